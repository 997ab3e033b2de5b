//! The client's bytes under a tunnel: chunked transfer coding, whatever its segmentation.

#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::tunnel::https::framing::{Deframer, FramingFault};

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(piece) + 1), whole);
    if let Ok((content, _)) = whole {
        assert!(content.len() <= stream.len());
    }
});

/// The content, and how many bytes lie behind the end.
fn read(stream: &[u8], piece: usize) -> Result<(Vec<u8>, Option<usize>), FramingFault> {
    let (mut deframer, mut content, mut taken) = (Deframer::new(), Vec::new(), 0);
    for part in stream.chunks(piece) {
        let mut rest = part;
        while let Some(found) = deframer.next(&mut rest)? {
            content.extend_from_slice(found);
        }
        taken += part.len() - rest.len();
        if deframer.is_over() {
            return Ok((content, Some(stream.len() - taken)));
        }
        assert!(rest.is_empty());
    }
    Ok((content, None))
}
