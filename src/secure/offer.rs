//! The cipher suites that a client offers, read from its first bytes (RFC 8446 section 4.1.2).
//!
//! The TLS library tells only which one was agreed. Nothing is decided by this: it is for logs and rewriting.

use std::fmt;

use rustls::CipherSuite;

/// Cipher suites in the order of the client; none if its first bytes do not show them whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer(Box<[u16]>);

impl Offer {
    /// Those in the first bytes of a connection: a record with the beginning of a `ClientHello`.
    pub fn of(first: &[u8]) -> Self {
        let pairs = suites(first).unwrap_or_default().chunks_exact(2);
        pairs.map(|pair| u16::from_be_bytes([pair[0], pair[1]])).collect()
    }

    /// By their numbers.
    pub fn suites(&self) -> &[u16] {
        &self.0
    }
}

impl FromIterator<u16> for Offer {
    fn from_iter<I: IntoIterator<Item = u16>>(suites: I) -> Self {
        Self(suites.into_iter().collect())
    }
}

/// Names with `:` between them, such as `TLS_AES_128_GCM_SHA256:0x0a0a`; those without a name as numbers.
impl fmt::Display for Offer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, suite) in self.0.iter().enumerate() {
            if place > 0 {
                f.write_str(":")?;
            }
            match CipherSuite::from(*suite).as_str() {
                Some(name) => f.write_str(&name.replace("TLS13_", "TLS_"))?,
                None => write!(f, "{suite:#06x}")?,
            }
        }
        Ok(())
    }
}

/// The bytes of the list.
fn suites(first: &[u8]) -> Option<&[u8]> {
    let (head, rest) = first.split_at_checked(5)?;
    let (kind, record_length) = (head.first()?, usize::from(u16::from_be_bytes([head[3], head[4]])));
    // What follows this record has a head of its own.
    let rest = rest.get(..record_length).unwrap_or(rest);
    if *kind != HANDSHAKE_RECORD {
        return None;
    }
    let rest = rest.strip_prefix(&[CLIENT_HELLO])?.get(3..)?;
    // The version and the client's random bytes.
    let (session_length, rest) = rest.get(2 + 32..)?.split_first()?;
    let (length, rest) = rest.get(usize::from(*session_length)..)?.split_at_checked(2)?;
    let length = usize::from(u16::from_be_bytes([*length.first()?, *length.last()?]));
    rest.get(..length).filter(|list| list.len() % 2 == 0)
}

const HANDSHAKE_RECORD: u8 = 0x16;
const CLIENT_HELLO: u8 = 1;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::pki_types::ServerName;
    use rustls::server::Acceptor;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn hello() -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from("shop.test").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// What the TLS library reads of the same bytes.
    fn by_the_library(bytes: &[u8]) -> Option<Vec<u16>> {
        let mut acceptor = Acceptor::default();
        acceptor.read_tls(&mut &*bytes).ok()?;
        let accepted = acceptor.accept().ok()??;
        Some(
            accepted
                .client_hello()
                .cipher_suites()
                .iter()
                .map(|suite| u16::from(*suite))
                .collect(),
        )
    }

    #[test]
    fn the_suites_of_a_hello_are_read_with_their_names() {
        let offer = Offer::of(&hello());
        assert_eq!(Some(offer.suites().to_vec()), by_the_library(&hello()));
        let text = offer.to_string();
        assert!(text.contains("TLS_AES_128_GCM_SHA256:"), "{text}");
        assert!(text.split(':').all(|name| name.starts_with("TLS_")), "{text}");
        assert_eq!(
            Offer::from_iter([0x0a0a, 0x1301]).to_string(),
            "0x0a0a:TLS_AES_128_GCM_SHA256"
        );
    }

    #[test]
    fn what_is_not_there_whole_is_no_offer() {
        let hello = hello();
        let end = 5 + 4 + 2 + 32 + 1 + 32 + 2 + Offer::of(&hello).suites().len() * 2;
        for length in 0..end {
            assert_eq!(Offer::of(&hello[..length]), Offer::default(), "{length}");
        }
        assert_ne!(Offer::of(&hello[..end]), Offer::default());
        assert_eq!(Offer::of(b"GET / HTTP/1.1\r\n\r\n"), Offer::default());
    }

    proptest! {
        /// Whatever the TLS library takes for a hello, this reads the same of.
        #[test]
        fn a_changed_hello_is_read_as_the_library_reads_it(place in 0_usize..120, byte: u8) {
            let mut bytes = hello();
            bytes[place] = byte;
            if let Some(suites) = by_the_library(&bytes) {
                prop_assert_eq!(Offer::of(&bytes).suites().to_vec(), suites);
            }
        }

        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Offer::of(&bytes).to_string();
        }
    }
}
