//! Paths of web requests: whatever is sent, what comes of it has one spelling and hides no dot segment.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::route::path::Normal;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(normal) = Normal::parse(text) else { return };
    assert_eq!(Normal::parse(normal.as_str()).as_ref(), Ok(&normal));
    assert_eq!(Normal::of(normal.path_and_query()).as_ref(), Ok(&normal));
    assert_eq!(normal.query(), text.split_once('?').map(|(_, query)| query));

    let path = normal.path();
    assert!(path.starts_with('/') && !path.contains("//") && path.bytes().all(|byte| byte.is_ascii_graphic()));
    let mut now = path.as_bytes().to_vec();
    // A target that decodes more often than this is no web server.
    for _ in 0..16 {
        assert!(!now.iter().any(u8::is_ascii_control));
        for segment in now.split(|byte| b"/\\".contains(byte)) {
            let name = segment.split(|byte| *byte == b';').next().unwrap_or_default();
            assert!(name != b"." && name != b"..", "{path}");
        }
        now = decode(&now);
    }
});

fn decode(bytes: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        let digit = |at: usize| after.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                decoded.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                decoded.push(first);
                rest = after;
            }
        }
    }
    decoded
}
