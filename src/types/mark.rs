//! The mark of a request by which a node finds out whether an address leads to itself.

use std::fmt;
use std::str::FromStr;

/// 128 bits that an asker drew, shown as 32 hex digits.
///
/// The node that is asked answers with a [`MarkAnswer`]: the same one on all of its ports, and another one than any other
/// node. Who asks learns whether two addresses lead to one node, and nothing else about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(u128);

impl Mark {
    /// Where a mark is answered; the mark itself is the query.
    pub const PATH: &'static str = "/.well-known/portcullis/mark";

    /// A mark of given bits, which the caller drew at random.
    pub fn from_random(bits: u128) -> Self {
        Self(bits)
    }

    /// The host name that carries the mark with its answer, for ports that look at no more than a name. The node whose
    /// answer that is knows that it asks itself.
    pub fn name(self, answer: MarkAnswer) -> String {
        format!("{self}-{answer}{NAME}")
    }

    /// What such a name carries; `None` for any other name.
    pub fn in_name(name: &str) -> Option<(Self, MarkAnswer)> {
        let (mark, answer) = name.strip_suffix(NAME)?.split_once('-')?;
        Some((mark.parse().ok()?, answer.parse().ok()?))
    }

    /// The octets over which a node computes its answer.
    pub fn octets(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for Mark {
    type Err = InvalidMark;

    fn from_str(text: &str) -> Result<Self, InvalidMark> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(InvalidMark);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidMark)
    }
}

/// A node's answer to a [`Mark`]: 64 bits, shown as 16 hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkAnswer(u64);

impl MarkAnswer {
    /// An answer of given octets.
    pub fn from_octets(octets: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(octets))
    }
}

impl fmt::Display for MarkAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for MarkAnswer {
    type Err = InvalidMark;

    fn from_str(text: &str) -> Result<Self, InvalidMark> {
        if text.len() != 16 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(InvalidMark);
        }
        u64::from_str_radix(text, 16).map(Self).map_err(|_| InvalidMark)
    }
}

/// A text that is no mark, or no answer to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mark has 32 hexadecimal digits, its answer 16")]
pub struct InvalidMark;

/// The end of such a name, under which nobody can be reached (RFC 6761 section 6.4).
const NAME: &str = ".mark.invalid";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_answers_survive_their_text_and_nothing_else_is_one() {
        let mark = Mark::from_random(0xab << 100);
        assert_eq!(mark.to_string().parse(), Ok(mark));
        let answer = MarkAnswer::from_octets([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(answer.to_string(), "0001020304050607");
        assert_eq!(answer.to_string().parse(), Ok(answer));
        for bad in [
            "",
            "ab",
            "+0000000000000000000000000000000",
            "000000000000000000000000000000000",
        ] {
            assert!(bad.parse::<Mark>().is_err(), "{bad:?}");
        }
        assert!("+000000000000000".parse::<MarkAnswer>().is_err());
    }

    #[test]
    fn a_name_carries_a_mark_with_its_answer() {
        let (mark, answer) = (Mark::from_random(7), MarkAnswer::from_octets([9; 8]));
        let name = mark.name(answer);
        assert_eq!(Mark::in_name(&name), Some((mark, answer)));
        for other in [
            "localhost",
            "mark.invalid",
            ".mark.invalid",
            "-.mark.invalid",
            &name[1..],
        ] {
            assert_eq!(Mark::in_name(other), None, "{other}");
        }
    }
}
