//! The variable-length integers of QUIC (RFC 9000 section 16).

use bytes::{BufMut, BytesMut};

/// The largest integer that can be written.
pub const MAX: u64 = (1 << 62) - 1;

/// The octets of the longest integer.
pub const MAX_LENGTH: usize = 8;

/// Reads the integer at the front, and says how many octets it takes; `None` if it is not all there.
pub fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let length = 1 << (first >> 6);
    let rest = bytes.get(1..length)?;
    let value = rest
        .iter()
        .fold(u64::from(first & 0x3f), |value, byte| value << 8 | u64::from(*byte));
    Some((value, length))
}

/// Writes `value` in as few octets as it takes. What is larger than [`MAX`] is cut to it.
pub fn write(out: &mut BytesMut, value: u64) {
    debug_assert!(value <= MAX, "{value} cannot be written");
    match value.min(MAX) {
        value @ 0..0x40 => out.put_u8(value as u8),
        value @ 0x40..0x4000 => out.put_u16(value as u16 | 0x4000),
        value @ 0x4000..0x4000_0000 => out.put_u32(value as u32 | 0x8000_0000),
        value => out.put_u64(value | 0xc000_0000_0000_0000),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_examples_of_the_standard_are_read() {
        for (bytes, value) in [
            (
                &[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..],
                151_288_809_941_952_652,
            ),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(read(bytes), Some((value, bytes.len())));
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_and_nothing_shorter(value in 0..=MAX, tail: Vec<u8>) {
            let mut out = BytesMut::new();
            write(&mut out, value);
            let length = out.len();
            for cut in 0..length {
                prop_assert_eq!(read(&out[..cut]), None);
            }
            out.extend_from_slice(&tail);
            prop_assert_eq!(read(&out), Some((value, length)));
        }
    }
}
