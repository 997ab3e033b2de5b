//! The PROXY header: no bytes panic, and the answer does not depend on how they are cut.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::listen::proxy::{MAX_V2, Progress, decode};

fuzz_target!(|data: &[u8]| {
    let whole = decode(data);
    match whole {
        Ok(Progress::Complete { length, .. }) => {
            assert!(length <= data.len());
            assert_eq!(decode(&data[..length]), whole, "what follows the header does not matter");
            for cut in 0..length {
                assert!(matches!(decode(&data[..cut]), Ok(Progress::Incomplete { at_least }) if at_least > cut));
            }
        }
        Ok(Progress::Incomplete { at_least }) => assert!(at_least > data.len() && at_least <= MAX_V2),
        Err(_) => {}
    }
});
