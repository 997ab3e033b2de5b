//! What the first octets of a datagram say.

use serde::{Deserialize, Serialize};

/// What kind of port a datagram came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Port {
    /// A port of PCoIP: nothing else is spoken there.
    Pcoip,
    /// A port of a listener: QUIC, and Blast beside it.
    Listener,
}

impl Port {
    /// The code in logs: the protocol of whose flows it is.
    pub fn code(self) -> &'static str {
        match self {
            Self::Pcoip => "pcoip",
            Self::Listener => "blast",
        }
    }
}

/// The part of a datagram that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    length: usize,
    head: [u8; Self::LOOKED_AT],
}

impl First {
    /// How many octets are looked at; a shorter datagram opens nothing.
    pub const LOOKED_AT: usize = 12;

    /// Looks at a whole datagram. Any octets will do.
    pub fn of(datagram: &[u8]) -> Self {
        let mut head = [0; Self::LOOKED_AT];
        let there = datagram.len().min(Self::LOOKED_AT);
        head[..there].copy_from_slice(&datagram[..there]);
        Self {
            length: datagram.len(),
            head,
        }
    }

    /// Whether it could be the first datagram of a flow: long enough, and for PCoIP with a security parameter index
    /// (secondary protocols sheet 2: octets 4 to 7) that is not zero.
    pub fn may_open(&self, port: Port) -> bool {
        self.length >= Self::LOOKED_AT
            && match port {
                Port::Pcoip => self.word(4) != 0,
                Port::Listener => true,
            }
    }

    /// Whether it is a QUIC packet with a long header (RFC 8999, RFC 9000 section 17.2) of a version that is in use or that
    /// asks for the versions: every QUIC connection begins with one.
    pub fn is_quic_long(&self) -> bool {
        let version = self.word(1);
        let known = matches!(version, QUIC_1 | QUIC_2);
        let draft = version & 0xffff_ff00 == QUIC_DRAFTS;
        let reserved = version & 0x0f0f_0f0f == QUIC_RESERVED;
        self.length >= LEAST_LONG && self.head[0] & LONG == LONG && (known || draft || reserved)
    }

    fn word(&self, at: usize) -> u32 {
        let [a, b, c, d] = [self.head[at], self.head[at + 1], self.head[at + 2], self.head[at + 3]];
        u32::from_be_bytes([a, b, c, d])
    }
}

/// Header form and fixed bit.
const LONG: u8 = 0xc0;
/// First octet, version and the lengths of two empty connection ids.
const LEAST_LONG: usize = 7;
const QUIC_1: u32 = 1;
const QUIC_2: u32 = 0x6b33_43cf;
const QUIC_DRAFTS: u32 = 0xff00_0000;
/// Versions of the form 0x?a?a?a?a are there to be refused (RFC 9000 section 15).
const QUIC_RESERVED: u32 = 0x0a0a_0a0a;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pcoip_needs_an_index_and_twelve_octets() {
        let good = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
        assert!(First::of(&good).may_open(Port::Pcoip));
        assert!(!First::of(&good[..11]).may_open(Port::Pcoip));
        assert!(!First::of(&[1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]).may_open(Port::Pcoip));
        assert!(First::of(&[0; 12]).may_open(Port::Listener));
        assert!(!First::of(b"").may_open(Port::Listener));
    }

    #[test]
    fn quic_is_known_by_its_long_header() {
        let with = |version: u32| {
            let mut datagram = [0_u8; 1200];
            datagram[0] = 0xc3;
            datagram[1..5].copy_from_slice(&version.to_be_bytes());
            First::of(&datagram).is_quic_long()
        };
        assert!(with(1) && with(0x6b33_43cf) && with(0xff00_001d) && with(0xba5a_3aaa));
        assert!(!with(0) && !with(2) && !with(0x1234_5678));
        assert!(!First::of(&[0x43, 0, 0, 0, 1, 0, 0]).is_quic_long(), "a short header");
        assert!(!First::of(&[0xc3, 0, 0, 0, 1, 0]).is_quic_long(), "cut short");
    }

    proptest! {
        #[test]
        fn any_octets_can_be_looked_at(datagram in proptest::collection::vec(any::<u8>(), 0..40)) {
            let first = First::of(&datagram);
            let _ = first.is_quic_long();
            prop_assert!(datagram.len() >= 12 || !first.may_open(Port::Listener));
            prop_assert!(!first.may_open(Port::Pcoip) || first.may_open(Port::Listener));
        }
    }
}
