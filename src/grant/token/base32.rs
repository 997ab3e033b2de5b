//! Base 32 (RFC 4648 section 6) without padding, in lower case: what survives in a host name.

/// Writes `bytes` at the end of `text`.
pub(super) fn encode(bytes: &[u8], text: &mut String) {
    let mut bits = 0_u32;
    let mut held = 0;
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(digit(bits >> held));
        }
    }
    if held > 0 {
        text.push(digit(bits << (5 - held)));
    }
}

/// Reads what [`encode`] wrote, in any case; `None` for anything else. At most `N` bytes.
pub(super) fn decode<const N: usize>(text: &str) -> Option<([u8; N], usize)> {
    let mut bytes = [0; N];
    let mut length = 0;
    let mut bits = 0_u32;
    let mut held = 0;
    for character in text.bytes() {
        bits = (bits << 5 | value(character)?) & 0xfff;
        held += 5;
        if held >= 8 {
            held -= 8;
            *bytes.get_mut(length)? = (bits >> held) as u8;
            length += 1;
        }
    }
    // What is left over is less than a character and nothing but zeros: one text for the same bytes.
    let is_whole = held < 5 && bits & ((1 << held) - 1) == 0;
    is_whole.then_some((bytes, length))
}

fn digit(bits: u32) -> char {
    let place = (bits & 31) as u8;
    char::from(if place < 26 { b'a' + place } else { b'2' + place - 26 })
}

fn value(character: u8) -> Option<u32> {
    match character.to_ascii_lowercase() {
        letter @ b'a'..=b'z' => Some(u32::from(letter - b'a')),
        number @ b'2'..=b'7' => Some(u32::from(number - b'2') + 26),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_vectors_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "my"),
            ("fo", "mzxq"),
            ("foo", "mzxw6"),
            ("foob", "mzxw6yq"),
            ("fooba", "mzxw6ytb"),
            ("foobar", "mzxw6ytboi"),
        ] {
            let mut written = String::new();
            encode(bytes.as_bytes(), &mut written);
            assert_eq!(written, text);
        }
    }

    proptest! {
        #[test]
        fn whatever_is_written_is_read_in_any_case(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut text = String::new();
            encode(&bytes, &mut text);
            for text in [text.clone(), text.to_ascii_uppercase()] {
                let (read, length) = decode::<40>(&text).unwrap();
                prop_assert_eq!(&read[..length], &bytes[..]);
            }
        }

        #[test]
        fn bytes_have_one_text(text in "[a-z2-7]{0,30}") {
            if let Some((bytes, length)) = decode::<20>(&text) {
                let mut again = String::new();
                encode(&bytes[..length], &mut again);
                prop_assert_eq!(again, text);
            }
        }

        #[test]
        fn no_text_panics_the_decoder(text in ".{0,60}") {
            let _ = decode::<32>(&text);
        }
    }
}
