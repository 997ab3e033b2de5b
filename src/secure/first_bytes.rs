//! What a client seems to speak, from its first bytes.

use crate::listen::proxy;

/// What the first bytes of a connection look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// A TLS handshake record.
    Tls,
    /// A request in plain HTTP.
    Http,
    /// A PROXY header where none is believed.
    ProxyHeader,
    /// Anything else.
    Foreign,
}

impl Opening {
    /// Judges at least one byte.
    pub fn of(bytes: &[u8]) -> Self {
        match bytes.first() {
            Some(&HANDSHAKE_RECORD) => Self::Tls,
            _ if proxy::looks_like_header(bytes) => Self::ProxyHeader,
            Some(byte) if byte.is_ascii_alphabetic() => Self::Http,
            _ => Self::Foreign,
        }
    }
}

/// The content type of a TLS record that carries handshake messages (RFC 8446, 5.1).
const HANDSHAKE_RECORD: u8 = 0x16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_are_told_apart() {
        assert_eq!(Opening::of(b"\x16"), Opening::Tls);
        assert_eq!(Opening::of(b"\x16\x03\x01\x02\x00"), Opening::Tls);
        assert_eq!(Opening::of(b"GET / HTTP/1.1\r\n"), Opening::Http);
        assert_eq!(Opening::of(b"P"), Opening::Http);
        assert_eq!(Opening::of(b"PROXY TCP4 1.2.3.4"), Opening::ProxyHeader);
        assert_eq!(Opening::of(b"PROPFIND / HTTP/1.1"), Opening::Http);
        assert_eq!(Opening::of(b"\r\n\r\n\0\r\nQUIT\n\x21"), Opening::ProxyHeader);
        assert_eq!(Opening::of(b"\x80\x2e\x01"), Opening::Foreign);
        assert_eq!(Opening::of(b""), Opening::Foreign);
    }
}
