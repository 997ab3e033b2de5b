//! Session tickets: what a client brings to take a session of TLS up again.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::rand;
use parking_lot::RwLock;
use rustls::server::ProducesTickets;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::types::Octets32;

/// The keys of session tickets: in memory only, exchanged every six hours; a ticket is good for at most twelve.
///
/// Made once for the node, so that neither a reload nor a handover ends a session; nothing is kept for a session.
#[derive(Clone)]
pub struct Tickets(Arc<RwLock<Keys>>);

/// A key as another process takes it over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TicketKey {
    key: Octets32,
    /// How long it has been there.
    age: Duration,
}

/// The key under which tickets are made, and the one before it.
struct Keys {
    current: Key,
    previous: Option<Key>,
}

struct Key {
    octets: Octets32,
    cipher: RandomizedNonceKey,
    since: Instant,
}

impl Tickets {
    /// Takes over the keys of another process, the current one first; draws one if there is none.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn new(before: &[TicketKey], now: Instant) -> Result<Self, rustls::Error> {
        let mut keys = before.iter().take(2).map(|TicketKey { key, age }| {
            let since = now.checked_sub(*age).unwrap_or(now);
            Key::new(key.clone(), since)
        });
        let current = keys.next().unwrap_or_else(|| Key::draw(now)).map_err(lacking)?;
        let previous = keys.next().transpose().map_err(lacking)?;
        Ok(Self(Arc::new(RwLock::new(Keys { current, previous }))))
    }

    /// The keys for another process, the current one first.
    pub fn to_hand_over(&self, now: Instant) -> Vec<TicketKey> {
        let keys = self.0.read();
        let all = std::iter::once(&keys.current).chain(&keys.previous);
        all.map(|key| TicketKey {
            key: key.octets.clone(),
            age: now.saturating_duration_since(key.since),
        })
        .collect()
    }

    pub(super) fn ticketer(&self) -> Arc<dyn ProducesTickets> {
        Arc::new(self.clone())
    }

    fn seal(&self, plain: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.exchange(now);
        let mut sealed = plain.to_vec();
        let nonce = (self.0.read().current.cipher).seal_in_place_append_tag(Aad::from(PURPOSE), &mut sealed);
        let mut ticket = nonce.ok()?.as_ref().to_vec();
        ticket.append(&mut sealed);
        Some(ticket)
    }

    fn open(&self, ticket: &[u8], now: Instant) -> Option<Vec<u8>> {
        self.exchange(now);
        let (nonce, sealed) = ticket.split_first_chunk::<NONCE_LEN>()?;
        let keys = self.0.read();
        let mut all = std::iter::once(&keys.current).chain(&keys.previous);
        all.find_map(|key| {
            let (nonce, mut plain) = (Nonce::assume_unique_for_key(*nonce), sealed.to_vec());
            let opened = key.cipher.open_in_place(nonce, Aad::from(PURPOSE), &mut plain).ok()?;
            let length = opened.len();
            plain.truncate(length);
            Some(plain)
        })
    }

    /// Puts another key in the place of one that is too old.
    fn exchange(&self, now: Instant) {
        if now < self.0.read().current.since + EXCHANGE {
            return;
        }
        let mut keys = self.0.write();
        let age = now.saturating_duration_since(keys.current.since);
        // Without random bytes no handshake gets so far.
        if age >= EXCHANGE
            && let Ok(drawn) = Key::draw(now)
        {
            let last = std::mem::replace(&mut keys.current, drawn);
            keys.previous = Some(last).filter(|_| age < EXCHANGE * 2);
        }
        if keys
            .previous
            .as_ref()
            .is_some_and(|key| now >= key.since + EXCHANGE * 2)
        {
            keys.previous = None;
        }
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, clock::now())
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, clock::now())
    }
}

impl Key {
    fn new(octets: Octets32, since: Instant) -> Result<Self, Unspecified> {
        let cipher = RandomizedNonceKey::new(&AES_256_GCM, &octets.0)?;
        Ok(Self { octets, cipher, since })
    }

    fn draw(now: Instant) -> Result<Self, Unspecified> {
        let mut octets = Octets32([0; 32]);
        rand::fill(&mut octets.0)?;
        Self::new(octets, now)
    }
}

fn lacking(_: Unspecified) -> rustls::Error {
    rustls::Error::FailedToGetRandomBytes
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets(…)")
    }
}

const EXCHANGE: Duration = Duration::from_secs(6 * 60 * 60);
/// In seconds: that of two exchanges.
const LIFETIME: u32 = 12 * 60 * 60;
const PURPOSE: &[u8] = b"session ticket, first form";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_ticket_is_good_over_one_exchange_and_one_handover_and_not_over_two_exchanges() {
        let start = clock::now();
        let first = Tickets::new(&[], start).unwrap();
        let ticket = first.seal(b"a session", start).unwrap();
        let later = start + EXCHANGE;
        assert_eq!(first.open(&ticket, later).unwrap(), b"a session");
        let second = Tickets::new(&first.to_hand_over(later), later).unwrap();
        assert_eq!(second.open(&ticket, later).unwrap(), b"a session");
        assert_eq!(second.open(&second.seal(b"", later).unwrap(), later).unwrap(), b"");
        assert!(second.open(&ticket, start + EXCHANGE * 2).is_none());
        assert!(first.open(&ticket, start + EXCHANGE * 9).is_none());
        assert!(Tickets::new(&[], start).unwrap().open(&ticket, start).is_none());
    }

    #[test]
    fn a_key_that_was_taken_over_is_exchanged_when_it_would_have_been() {
        let start = clock::now();
        let first = Tickets::new(&[], start).unwrap();
        let second = Tickets::new(&first.to_hand_over(start + EXCHANGE / 2), start + EXCHANGE / 2).unwrap();
        let ticket = second.seal(b"x", start + EXCHANGE).unwrap();
        assert!(first.open(&ticket, start).is_none(), "under a key of its own");
    }

    proptest! {
        #[test]
        fn what_was_changed_or_never_made_is_no_ticket(
            plain in proptest::collection::vec(any::<u8>(), 0..100), at: proptest::sample::Index, bit in 0..8,
            strange in proptest::collection::vec(any::<u8>(), 0..100),
        ) {
            let now = clock::now();
            let tickets = Tickets::new(&[], now).unwrap();
            let mut ticket = tickets.seal(&plain, now).unwrap();
            prop_assert_eq!(tickets.open(&ticket, now), Some(plain));
            let at = at.index(ticket.len());
            ticket[at] ^= 1_u8 << bit;
            prop_assert!(tickets.open(&ticket, now).is_none());
            prop_assert!(tickets.open(&ticket[..at], now).is_none());
            prop_assert!(tickets.open(&strange, now).is_none());
        }
    }
}
