//! QUIC's connection ids, which tell the processes of a node apart: what is sent to one of them says which process it is
//! for, and nothing to whoever lacks the key.
//!
//! An id is five random octets, one for the generation of the process, and four by which it is known; the latter five
//! are hidden under a mask that the key makes of the former.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk, Salt};
use aws_lc_rs::rand;
use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;

/// The ids of one process, and how those of the others are known.
pub struct ConnectionIds {
    key: HeaderProtectionKey,
    generation: u8,
    /// Of the tokens with which clients prove their address.
    tokens: Arc<Prk>,
}

impl ConnectionIds {
    /// The ids of the process of that generation. All processes of a node have the same key, of which one half is for ids and
    /// the other for tokens.
    ///
    /// # Errors
    /// Only if the cryptographic library lacks what every build of it has.
    pub fn new(key: &[u8; 32], generation: u8) -> Result<Self, Unspecified> {
        let (of_ids, of_tokens) = key.split_at(key.len() / 2);
        Ok(Self {
            key: HeaderProtectionKey::new(&AES_128, of_ids)?,
            generation,
            tokens: Arc::new(Salt::new(HKDF_SHA256, &[]).extract(of_tokens)),
        })
    }

    /// Settings under which the tokens of every process of the node are good, and of every configuration.
    pub fn with_tokens(&self, mut settings: quinn::ServerConfig) -> quinn::ServerConfig {
        settings.token_key(self.tokens.clone());
        settings
    }

    /// Which process it is.
    pub fn generation(&self) -> u8 {
        self.generation
    }

    /// Whether a datagram that came from outside, whatever it holds, is for a connection of another process.
    pub fn is_of_another(&self, datagram: &[u8]) -> bool {
        let issuer = destination(datagram).and_then(|id| self.issuer(id));
        issuer.is_some_and(|generation| generation != self.generation)
    }

    /// The generation of the process that has issued an id.
    fn issuer(&self, id: &[u8; LENGTH]) -> Option<u8> {
        let [nonce @ .., generation, a, b, c, d] = id;
        let mask = self.mask(nonce)?;
        ([*a, *b, *c, *d] == mask[1..]).then_some(generation ^ mask[0])
    }

    fn draw(&self) -> Option<[u8; LENGTH]> {
        let mut id = [0; LENGTH];
        rand::fill(&mut id[..NONCE]).ok()?;
        let [nonce @ .., _, _, _, _, _] = id;
        let mask = self.mask(&nonce)?;
        id[NONCE..].copy_from_slice(&mask);
        id[NONCE] ^= self.generation;
        Some(id)
    }

    fn mask(&self, nonce: &[u8; NONCE]) -> Option<[u8; LENGTH - NONCE]> {
        let mut sample = [0; 16];
        sample[..NONCE].copy_from_slice(nonce);
        self.key.new_mask(&sample).ok()
    }
}

impl fmt::Debug for ConnectionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ConnectionIds");
        shown.field("generation", &self.generation).finish_non_exhaustive()
    }
}

/// The ids as a QUIC endpoint draws them.
#[derive(Debug)]
pub(super) struct Generator(pub(super) Arc<ConnectionIds>);

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        // Without random octets no handshake gets so far.
        ConnectionId::new(&self.0.draw().unwrap_or_default())
    }

    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        let id: &[u8; LENGTH] = id[..].try_into().map_err(|_| InvalidCid)?;
        let is_own = self.0.issuer(id) == Some(self.0.generation);
        is_own.then_some(()).ok_or(InvalidCid)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// The connection id to which a datagram is sent, if it has the length of those of this node (RFC 8999, section 5).
fn destination(datagram: &[u8]) -> Option<&[u8; LENGTH]> {
    let is_long = datagram.first()? & 0x80 != 0;
    let rest = if is_long {
        let (length, rest) = datagram.get(LONG..)?.split_first()?;
        Some(rest).filter(|_| usize::from(*length) == LENGTH)
    } else {
        datagram.get(1..)
    };
    rest?.first_chunk()
}

const LENGTH: usize = 10;
const NONCE: usize = 5;
/// The first octet and the version, before the length of the id.
const LONG: usize = 5;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ids(generation: u8) -> ConnectionIds {
        ConnectionIds::new(&[9; 32], generation).unwrap()
    }

    /// A packet to an id, with a long or a short header.
    fn packet(id: &[u8], long: bool, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x43];
        if long {
            packet = vec![0xe3, 0, 0, 0, 1, u8::try_from(id.len()).unwrap()];
        }
        packet.extend_from_slice(id);
        packet.extend_from_slice(rest);
        packet
    }

    #[test]
    fn an_endpoint_knows_its_own_ids_and_no_others() {
        let (own, other) = (Arc::new(ids(1)), Arc::new(ids(2)));
        let mut generator = Generator(own);
        let id = generator.generate_cid();
        assert_eq!(id.len(), generator.cid_len());
        assert_ne!(id, generator.generate_cid());
        assert!(generator.validate(&id).is_ok());
        assert!(Generator(other).validate(&id).is_err());
        assert!(generator.validate(&ConnectionId::new(&id[..8])).is_err());
        let stranger = Arc::new(ConnectionIds::new(&[8; 32], 1).unwrap());
        assert!(Generator(stranger).validate(&id).is_err());
    }

    proptest! {
        #[test]
        fn packets_to_another_process_are_known(
            own: u8, issuer: u8, long: bool, rest in proptest::collection::vec(any::<u8>(), 0..30),
        ) {
            let id = ids(issuer).draw().unwrap();
            prop_assert_eq!(ids(own).is_of_another(&packet(&id, long, &rest)), own != issuer);
            for length in 0..id.len() {
                prop_assert!(!ids(own).is_of_another(&packet(&id[..length], long, b"")));
            }
        }

        /// Nobody without the key draws one: five octets of it would have to be right by chance.
        #[test]
        fn what_strangers_send_is_of_no_other_process(
            datagram in proptest::collection::vec(any::<u8>(), 0..60), id: [u8; LENGTH], long: bool,
        ) {
            prop_assert!(!ids(1).is_of_another(&datagram));
            prop_assert!(!ids(1).is_of_another(&packet(&id, long, b"")));
        }
    }
}
