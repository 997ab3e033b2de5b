//! The preconnection blob of version 2 (MS-RDPEPS 2.2.1.2): bytes in, decision out.
//!
//! `cbSize` (4 bytes), `flags` (4, zero), `version` (4), `id` (4, of no meaning here), `cchPCB` (2), then so many units of
//! UTF-16, NULs at the end included; all little-endian.

use zeroize::Zeroizing;

use crate::types::Secret;

/// The longest blob that is read: room for the longest token and some NULs.
pub const MAX: usize = FIXED + 2 * MAX_UNITS;

/// How far a blob has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed: at least so many in all, never more than the blob has and never more than [`MAX`].
    Incomplete {
        /// Bytes from the start of the blob.
        at_least: usize,
    },
    /// The blob is whole.
    Complete {
        /// Its text, without the NULs at the end.
        text: Secret,
        /// Its length; what follows is RDP.
        length: usize,
    },
}

/// Why bytes are no blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// RDP begins at once.
    #[error("the connection begins without a preconnection blob")]
    NoBlob,
    /// The bytes are neither.
    #[error("the preconnection blob is malformed")]
    Malformed,
    /// The blob would be longer than is read.
    #[error("the preconnection blob is longer than {MAX} bytes")]
    TooLong,
}

/// Reads a blob from the start of `bytes`, which may be any part of it and may go on after it.
///
/// The answer for a blob does not depend on how it is cut. Bytes that cannot become one are refused as soon as that is certain.
///
/// # Errors
/// [`Fault`] says what they are instead.
pub fn decode(bytes: &[u8]) -> Result<Progress, Fault> {
    // The header of TPKT: its version, and a reserved zero. No blob that is read is so short or so long.
    if bytes.starts_with(&[3, 0]) {
        return Err(Fault::NoBlob);
    }
    let size = match number(bytes, 0) {
        Some(size) if size < FIXED as u64 => return Err(Fault::Malformed),
        Some(size) if size > MAX as u64 => return Err(Fault::TooLong),
        Some(size) => size as usize,
        None => return Ok(Progress::Incomplete { at_least: FIXED }),
    };
    let is = |at, expected: u64| number(bytes, at).is_none_or(|value| value == expected);
    if !is(FLAGS, 0) || !is(VERSION, 2) {
        return Err(Fault::Malformed);
    }
    let Some(&[low, high]) = bytes.get(UNITS..FIXED) else {
        return Ok(Progress::Incomplete { at_least: FIXED });
    };
    if size != FIXED + 2 * usize::from(u16::from_le_bytes([low, high])) {
        return Err(Fault::Malformed);
    }
    match bytes.get(FIXED..size) {
        Some(units) => Ok(Progress::Complete {
            text: text(units).ok_or(Fault::Malformed)?,
            length: size,
        }),
        None => Ok(Progress::Incomplete { at_least: size }),
    }
}

/// The blob of a text, as clients send it.
pub fn encode(text: &str) -> Vec<u8> {
    let units: Vec<_> = text.encode_utf16().chain([0, 0]).collect();
    let mut blob = Vec::with_capacity(FIXED + 2 * units.len());
    blob.extend(((FIXED + 2 * units.len()) as u32).to_le_bytes());
    blob.extend(0_u32.to_le_bytes());
    blob.extend(2_u32.to_le_bytes());
    blob.extend(0_u32.to_le_bytes());
    blob.extend((units.len() as u16).to_le_bytes());
    blob.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
    blob
}

/// The text of these units, if it can be a token's: visible ASCII, then nothing but NULs.
fn text(units: &[u8]) -> Option<Secret> {
    let (units, _) = units.as_chunks::<2>();
    let units = units.iter().map(|unit| u16::from_le_bytes(*unit));
    let mut text = Zeroizing::new(String::with_capacity(MAX_UNITS));
    let mut ended = false;
    for unit in units {
        match u8::try_from(unit) {
            Ok(0) => ended = true,
            Ok(octet) if octet.is_ascii_graphic() && !ended => text.push(char::from(octet)),
            Ok(_) | Err(_) => return None,
        }
    }
    Some(Secret::new(text.as_str()))
}

/// The number at an offset, if it is there whole.
fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let octets: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(octets).into())
}

const FLAGS: usize = 4;
const VERSION: usize = 8;
const UNITS: usize = 16;
/// Everything before the text.
const FIXED: usize = 18;
const MAX_UNITS: usize = 128;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What xfreerdp 2.11.7 sends for `/pcb:GRANT-abc123`.
    const MEASURED: &[u8] = b"\x2e\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x0e\0\
        G\0R\0A\0N\0T\0-\0a\0b\0c\x001\x002\x003\0\0\0\0\0";

    #[test]
    fn the_blob_of_a_real_client_is_read() {
        let text = Secret::new("GRANT-abc123");
        let length = MEASURED.len();
        assert_eq!(decode(MEASURED), Ok(Progress::Complete { text, length }));
        assert_eq!(encode("GRANT-abc123"), MEASURED);
    }

    #[test]
    fn what_is_no_blob_of_version_2_is_refused() {
        let with = |at: usize, octet: u8| {
            let mut blob = MEASURED.to_vec();
            blob[at] = octet;
            decode(&blob)
        };
        assert_eq!(with(4, 1), Err(Fault::Malformed), "flags");
        assert_eq!(with(8, 1), Err(Fault::Malformed), "version 1 has no text");
        assert_eq!(with(8, 3), Err(Fault::Malformed), "a version that is not known");
        assert_eq!(with(0, 0x2d), Err(Fault::Malformed), "cut within a unit");
        assert_eq!(with(16, 0x0d), Err(Fault::Malformed), "two sizes that contradict");
        assert_eq!(with(0, 17), Err(Fault::Malformed), "too short for its own header");
        assert_eq!(with(1, 2), Err(Fault::TooLong));
        assert_eq!(with(20, 0), Err(Fault::Malformed), "a NUL within the text");
        assert_eq!(with(19, 1), Err(Fault::Malformed), "beyond ASCII");
        assert_eq!(with(18, b' '), Err(Fault::Malformed), "a blank");
        assert!(with(12, 7).is_ok(), "the id has no meaning");
        assert_eq!(decode(b"\x03\0\0\x13"), Err(Fault::NoBlob));
        let version_1 = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(decode(&version_1), Err(Fault::Malformed));
    }

    #[test]
    fn the_longest_token_has_room() {
        let token = "x".repeat(crate::grant::Token::MAX);
        assert!(matches!(decode(&encode(&token)), Ok(Progress::Complete { text, .. }) if text.expose() == token));
    }

    proptest! {
        #[test]
        fn any_text_comes_back_however_it_is_cut(text in "[!-~]{0,126}", more in proptest::collection::vec(any::<u8>(), 0..40)) {
            let blob = encode(&text);
            for cut in 0..blob.len() {
                let Ok(Progress::Incomplete { at_least }) = decode(&blob[..cut]) else {
                    return Err(TestCaseError::fail("complete or refused before its end"));
                };
                prop_assert!(at_least > cut && at_least <= blob.len());
            }
            let whole = Progress::Complete { text: Secret::new(text.as_str()), length: blob.len() };
            prop_assert_eq!(decode(&[blob, more].concat()), Ok(whole));
        }

        #[test]
        fn no_bytes_ask_for_more_than_is_read(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Ok(Progress::Incomplete { at_least }) = decode(&bytes) {
                prop_assert!(at_least > bytes.len() && at_least <= MAX);
            }
        }
    }
}
