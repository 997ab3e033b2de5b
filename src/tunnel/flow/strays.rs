//! How many datagrams without a flow are looked at, and which connections are QUIC's: tables of a fixed size, so that
//! nobody can make them grow.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use crate::types::source_of;

/// A token bucket: so many a second, and [`BURST`](Bucket::BURST) times as many at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    /// When it will be full again. In the past, or never set: it is full.
    full_at: Option<Instant>,
}

impl Bucket {
    pub(super) const FULL: Self = Self { full_at: None };

    /// How many times the rate of a second may come at once.
    pub(super) const BURST: u32 = 10;

    /// Takes one, if there is one.
    pub(super) fn take(&mut self, rate: u32, now: Instant) -> bool {
        let each = Duration::from_secs(1) / rate.max(1);
        let from = self.full_at.map_or(now, |at| at.max(now));
        let owed = from.saturating_duration_since(now);
        if owed + each > Duration::from_secs(Self::BURST.into()) {
            return false;
        }
        self.full_at = Some(from + each);
        true
    }
}

/// Buckets of the sources that have nothing open here. Sources share a bucket by chance, never by choice: the hash has a
/// key. Whoever has a connection open has a bucket of their own elsewhere.
#[derive(Debug)]
pub(super) struct Strays {
    buckets: Box<[Bucket]>,
    hasher: RandomState,
}

impl Strays {
    pub(super) const BUCKETS: usize = 4096;

    /// Takes one of the source's datagrams, if it has one left.
    pub(super) fn take(&mut self, client: IpAddr, rate: u32, now: Instant) -> bool {
        let place = self.hasher.hash_one(source_of(client)) as usize % self.buckets.len();
        self.buckets[place].take(rate, now)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.buckets.len()
    }
}

impl Default for Strays {
    fn default() -> Self {
        Self {
            buckets: vec![Bucket::FULL; Self::BUCKETS].into(),
            hasher: RandomState::new(),
        }
    }
}

/// From where QUIC connections were begun lately, each as a fingerprint; a newer one may take the place of an older one.
#[derive(Debug)]
pub(super) struct Foreigners {
    prints: Box<[u32]>,
    hasher: RandomState,
}

impl Foreigners {
    pub(super) const PRINTS: usize = 8192;

    pub(super) fn note(&mut self, client: SocketAddr) {
        let (place, print) = self.place(client);
        self.prints[place] = print;
    }

    pub(super) fn knows(&self, client: SocketAddr) -> bool {
        let (place, print) = self.place(client);
        self.prints[place] == print
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.prints.len()
    }

    /// Zero stands for nobody.
    fn place(&self, client: SocketAddr) -> (usize, u32) {
        let hash = self.hasher.hash_one(client);
        (hash as usize % self.prints.len(), (hash >> 32) as u32 | 1)
    }
}

impl Default for Foreigners {
    fn default() -> Self {
        Self {
            prints: vec![0; Self::PRINTS].into(),
            hasher: RandomState::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_of_ten_seconds_then_the_rate() {
        let start = crate::clock::now();
        let mut bucket = Bucket::FULL;
        let took = (0..5000).filter(|_| bucket.take(100, start)).count();
        assert_eq!(took, 1000);
        let later = start + Duration::from_secs(2);
        assert_eq!((0..5000).filter(|_| bucket.take(100, later)).count(), 200);
    }

    #[test]
    fn one_source_does_not_empty_the_bucket_of_the_next() {
        let now = crate::clock::now();
        let mut strays = Strays::default();
        let flooder = IpAddr::from([192, 0, 2, 1]);
        while strays.take(flooder, 100, now) {}
        let others = (0..250).filter(|n| strays.take(IpAddr::from([198, 51, 100, *n]), 100, now));
        assert!(others.count() >= 245);
    }

    proptest! {
        #[test]
        fn never_more_than_the_burst_and_the_rate(
            steps in proptest::collection::vec((0_u64..3_000, 1_usize..400), 1..40),
            rate in 1_u32..500,
        ) {
            let start = crate::clock::now();
            let (mut now, mut bucket, mut took) = (start, Bucket::FULL, 0_u64);
            for (millis, tries) in steps {
                now += Duration::from_millis(millis);
                took += (0..tries).filter(|_| bucket.take(rate, now)).count() as u64;
                let most = u64::from(rate * Bucket::BURST) as f64 + (now - start).as_secs_f64() * f64::from(rate);
                prop_assert!(took as f64 <= most * 1.001 + 1.0, "{took} of {most}");
            }
        }
    }
}
