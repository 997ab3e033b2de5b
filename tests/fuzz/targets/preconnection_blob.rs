//! The preconnection blob of RDP: no bytes panic, and the answer does not depend on how they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::tunnel::rdp::blob::{MAX, Progress, decode};

fuzz_target!(|data: &[u8]| {
    let whole = decode(data);
    match &whole {
        Ok(Progress::Complete { text, length }) => {
            assert!(*length <= data.len() && *length <= MAX);
            assert!(text.expose().bytes().all(|octet| octet.is_ascii_graphic()));
            assert_eq!(decode(&data[..*length]), whole, "what follows the blob does not matter");
            for cut in 0..*length {
                assert!(matches!(decode(&data[..cut]), Ok(Progress::Incomplete { at_least }) if at_least > cut && at_least <= *length));
            }
        }
        Ok(Progress::Incomplete { at_least }) => assert!(*at_least > data.len() && *at_least <= MAX),
        Err(_) => {}
    }
});
