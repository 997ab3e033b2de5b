//! The SHA-256 thumbprint of a certificate.

use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;

/// The SHA-256 hash of a certificate in DER: what people compare and what is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Thumbprint([u8; 32]);

impl Thumbprint {
    /// The thumbprint of a certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        let mut octets = [0; 32];
        octets.copy_from_slice(digest(&SHA256, certificate).as_ref());
        Self(octets)
    }

    /// 64 hexadecimal digits in lower case, without separators.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|octet| format!("{octet:02x}")).collect()
    }
}

impl fmt::Display for Thumbprint {
    /// Pairs in upper case with colons, as other tools show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, octet) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str(":")?;
            }
            write!(f, "{octet:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Thumbprint {
    type Err = InvalidThumbprint;

    /// Reads `aa:bb:…`, `AA BB …` and plain hexadecimal digits, with or without `SHA256:` or `sha-256=` before them.
    fn from_str(text: &str) -> Result<Self, InvalidThumbprint> {
        let text = strip_algorithm(text.trim())?;
        let digits: Vec<u8> = text.bytes().filter(|b| !matches!(b, b':' | b' ' | b'-')).collect();
        let value = |digit: &u8| char::from(*digit).to_digit(16).ok_or(InvalidThumbprint::NotHexadecimal);
        let nibbles = digits.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        match nibbles.len() {
            64 => {}
            40 => return Err(InvalidThumbprint::Sha1),
            32 => return Err(InvalidThumbprint::Md5),
            digits => return Err(InvalidThumbprint::Length { digits }),
        }
        let mut octets = [0; 32];
        for (octet, pair) in octets.iter_mut().zip(nibbles.chunks_exact(2)) {
            *octet = pair
                .iter()
                .fold(0, |value, nibble| value << 4 | u8::try_from(*nibble).unwrap_or(0));
        }
        Ok(Self(octets))
    }
}

/// The text without the name of the algorithm before it.
fn strip_algorithm(text: &str) -> Result<&str, InvalidThumbprint> {
    let lower = text.to_ascii_lowercase();
    for name in ["sha-1", "sha1"] {
        if lower.starts_with(name) {
            return Err(InvalidThumbprint::Sha1);
        }
    }
    for name in ["sha-256", "sha256"] {
        if lower.starts_with(name) {
            return Ok(text[name.len()..].trim_start_matches([':', '=', ' ']));
        }
    }
    Ok(text)
}

/// A text that is not a [`Thumbprint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidThumbprint {
    /// It has the length, or the name, of SHA-1.
    #[error("a SHA-1 thumbprint can be forged: give the SHA-256 thumbprint (64 hexadecimal digits)")]
    Sha1,
    /// It has the length of MD5.
    #[error("an MD5 thumbprint can be forged: give the SHA-256 thumbprint (64 hexadecimal digits)")]
    Md5,
    /// It has another length.
    #[error("a SHA-256 thumbprint has 64 hexadecimal digits, not {digits}")]
    Length {
        /// The digits it has.
        digits: usize,
    },
    /// A character is neither a hexadecimal digit nor a separator.
    #[error("a thumbprint has hexadecimal digits, and ':' or spaces between them")]
    NotHexadecimal,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Thumbprint {
        Thumbprint::of(&CertificateDer::from_slice(b"a certificate"))
    }

    #[test]
    fn every_spelling_is_read() {
        let shown = sample().to_string();
        for text in [
            shown.clone(),
            shown.to_lowercase(),
            shown.replace(':', " "),
            sample().to_hex(),
            format!(" SHA256:{shown}\n"),
            format!("sha-256={}", sample().to_hex()),
        ] {
            assert_eq!(text.parse(), Ok(sample()), "{text}");
        }
    }

    #[test]
    fn weak_hashes_are_refused_by_name() {
        let parse = |text: &str| text.parse::<Thumbprint>().unwrap_err();
        assert_eq!(parse(&"ab:".repeat(20)), InvalidThumbprint::Sha1);
        assert_eq!(parse("SHA1:00"), InvalidThumbprint::Sha1);
        assert_eq!(parse(&"ab".repeat(16)), InvalidThumbprint::Md5);
    }

    #[test]
    fn what_is_no_thumbprint_is_refused() {
        let parse = |text: &str| text.parse::<Thumbprint>().unwrap_err();
        assert_eq!(parse(""), InvalidThumbprint::Length { digits: 0 });
        assert_eq!(parse(&"ab".repeat(33)), InvalidThumbprint::Length { digits: 66 });
        assert_eq!(parse(&"äg".repeat(32)), InvalidThumbprint::NotHexadecimal);
    }
}
