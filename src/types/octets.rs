//! Secret octets of a fixed length, as they pass between two processes of one node.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// 32 octets that are a secret, or stand for one. Never printed, wiped when dropped; 64 hex digits in a document.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Octets32(pub [u8; 32]);

impl Octets32 {
    /// As 64 hex digits.
    pub fn digits(&self) -> Zeroizing<String> {
        let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or_default();
        let pairs = self.0.iter().flat_map(|octet| [digit(octet >> 4), digit(octet & 15)]);
        let mut digits = Zeroizing::new(String::with_capacity(64));
        digits.extend(pairs);
        digits
    }

    /// Reads exactly 64 hex digits.
    pub fn from_digits(digits: &str) -> Option<Self> {
        let digits: &[u8; 64] = digits.as_bytes().try_into().ok()?;
        let mut octets = Self([0; 32]);
        for (octet, pair) in octets.0.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |at: usize| char::from(pair[at]).to_digit(16);
            *octet = u8::try_from(value(0)? << 4 | value(1)?).ok()?;
        }
        Some(octets)
    }
}

impl fmt::Debug for Octets32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Octets32(…)")
    }
}

impl Serialize for Octets32 {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.digits())
    }
}

impl<'de> Deserialize<'de> for Octets32 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let digits = Zeroizing::new(String::deserialize(from)?);
        Self::from_digits(&digits).ok_or_else(|| D::Error::custom("64 hex digits are expected"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn octets_are_read_as_they_were_written_and_not_shown() {
        let mut octets = Octets32([0; 32]);
        for (place, octet) in octets.0.iter_mut().enumerate() {
            *octet = (place as u8).wrapping_mul(9);
        }
        let written = serde_json::to_string(&octets).unwrap();
        assert!(written.starts_with("\"0009121b"), "{written}");
        assert_eq!(serde_json::from_str::<Octets32>(&written).unwrap(), octets);
        assert!(serde_json::from_str::<Octets32>("\"00\"").is_err());
        assert!(serde_json::from_str::<Octets32>(&written.replace('1', "g")).is_err());
        assert_eq!(format!("{octets:?}"), "Octets32(…)");
    }
}
