//! What one node tells another before it passes a client's bytes.
//!
//! A length of two octets (big-endian), then so much text: `1 KIND CLIENT LOCAL FROM`.

use std::net::SocketAddr;

use crate::types::NodeName;

/// On whose behalf a connection is carried, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errand {
    /// What the client's bytes are.
    pub kind: Kind,
    /// The client.
    pub client: SocketAddr,
    /// Where it arrived.
    pub local: SocketAddr,
}

/// What the bytes of a carried connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request by HTTP/1.1, and what follows it.
    Http,
    /// A preconnection blob of RDP, and what follows it.
    Rdp,
    /// A [`Call`](super::Call), and what passes on a stream of QUIC after it is answered.
    Stream,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Http, Self::Rdp, Self::Stream];

    fn code(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Rdp => "rdp",
            Self::Stream => "stream",
        }
    }
}

impl Errand {
    /// The longest text, in octets.
    pub(super) const MAX: usize = 256;

    /// The octets that tell it, as from the node `from`.
    pub(super) fn written(&self, from: &NodeName) -> Vec<u8> {
        let text = format!("{VERSION} {} {} {} {from}", self.kind.code(), self.client, self.local);
        let length = u16::try_from(text.len()).unwrap_or_default();
        let mut octets = length.to_be_bytes().to_vec();
        octets.extend_from_slice(text.as_bytes());
        octets
    }

    /// Reads the text: the errand, and which node it comes from.
    pub(super) fn read(text: &[u8]) -> Option<(Self, NodeName)> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let version = words.next()?;
        let code = words.next()?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.code() == code)?;
        let client = words.next()?.parse().ok()?;
        let local = words.next()?.parse().ok()?;
        let from = words.next()?.parse().ok()?;
        let complete = version == VERSION && words.next().is_none();
        complete.then_some((Self { kind, client, local }, from))
    }
}

const VERSION: &str = "1";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_errand_survives_its_text(client: (u128, u16, bool), local: (u32, u16), kind in 0_usize..3) {
            let ip = if client.2 { std::net::IpAddr::V6(client.0.into()) } else { std::net::IpAddr::V4((client.0 as u32).into()) };
            let errand = Errand {
                kind: Kind::ALL[kind],
                client: SocketAddr::new(ip, client.1),
                local: SocketAddr::new(std::net::IpAddr::V4(local.0.into()), local.1),
            };
            let from: NodeName = "gw-12345678901234567890x".parse().unwrap();
            let octets = errand.written(&from);
            prop_assert!(octets.len() <= Errand::MAX);
            prop_assert_eq!(usize::from(u16::from_be_bytes([octets[0], octets[1]])), octets.len() - 2);
            prop_assert_eq!(Errand::read(&octets[2..]), Some((errand, from)));
        }

        #[test]
        fn no_text_panics_the_reader(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Errand::read(&text);
        }
    }

    #[test]
    fn another_version_or_more_words_are_refused() {
        let text = b"1 http 192.0.2.7:1 198.51.100.1:443 gw-1";
        assert!(Errand::read(text).is_some());
        for bad in [
            &b"2 http 192.0.2.7:1 198.51.100.1:443 gw-1"[..],
            b"1 smtp 192.0.2.7:1 198.51.100.1:443 gw-1",
            b"1 http 192.0.2.7:1 198.51.100.1:443 gw-1 x",
            b"1 http 192.0.2.7 198.51.100.1:443 gw-1",
            b"",
        ] {
            assert!(Errand::read(bad).is_none());
        }
    }
}
