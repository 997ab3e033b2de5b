//! How many handshakes a source may begin in a second.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::episode::Episode;
use crate::types::source_of;

/// A token bucket for each source: so many a second, and as many at once as in [`BURST`].
///
/// The table is bounded. A source that has been quiet makes room for others; if none has, one that is not in the table yet is
/// let pass: a flood from so many sources is no matter of any one of them.
#[derive(Debug)]
pub(super) struct Rate {
    per_second: AtomicU32,
    sources: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    refused: AtomicU64,
}

/// What a source is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may go on.
    Pass,
    /// It comes too fast.
    Refuse {
        /// Whether that begins a spell, and so deserves a line in the log.
        begins: bool,
    },
}

impl Rate {
    pub(super) fn new(per_second: u32) -> Self {
        Self {
            per_second: AtomicU32::new(per_second),
            sources: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            refused: AtomicU64::new(0),
        }
    }

    pub(super) fn set(&self, per_second: u32) {
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    /// Refused since start.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Notes that a handshake of `client` begins at `now`, unless its source comes too fast.
    pub(super) fn begin(&self, client: IpAddr, now: Instant) -> Verdict {
        let source = source_of(client);
        let interval = Duration::from_secs(1) / self.per_second.load(Ordering::Relaxed).max(1);
        let shard = &self.sources[self.hasher.hash_one(source) as usize % SHARDS];
        let verdict = shard.lock().begin(source, interval, now);
        if verdict != Verdict::Pass {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        verdict
    }
}

#[derive(Debug, Default)]
struct Shard {
    buckets: HashMap<IpAddr, Bucket>,
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Bucket {
    /// When it is full again.
    full_at: Instant,
    episode: Episode,
}

impl Shard {
    fn begin(&mut self, source: IpAddr, interval: Duration, now: Instant) -> Verdict {
        if let Some(bucket) = self.buckets.get_mut(&source) {
            let after = bucket.full_at.max(now) + interval;
            if after.saturating_duration_since(now) > BURST {
                let begins = bucket.episode.begins(now);
                return Verdict::Refuse { begins };
            }
            bucket.full_at = after;
            return Verdict::Pass;
        }
        if self.buckets.len() < MOST_PER_SHARD || self.makes_room(now) {
            let bucket = Bucket {
                full_at: now + interval,
                episode: Episode::default(),
            };
            self.buckets.insert(source, bucket);
        }
        Verdict::Pass
    }

    /// Forgets the sources whose bucket is full, at most once a second; whether there is room now.
    fn makes_room(&mut self, now: Instant) -> bool {
        let lately = |swept: Instant| now.saturating_duration_since(swept) < Duration::from_secs(1);
        if !self.swept.is_some_and(lately) {
            self.swept = Some(now);
            self.buckets.retain(|_, bucket| bucket.full_at > now);
        }
        self.buckets.len() < MOST_PER_SHARD
    }
}

/// What a source saves up while it is quiet.
const BURST: Duration = Duration::from_secs(10);
const SHARDS: usize = 32;
const MOST_PER_SHARD: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(rate: &Rate, source: IpAddr, attempts: u32, now: Instant) -> u32 {
        (0..attempts)
            .map(|_| u32::from(rate.begin(source, now) == Verdict::Pass))
            .sum()
    }

    #[test]
    fn a_source_has_ten_seconds_worth_at_once_and_then_its_rate() {
        let (rate, start) = (Rate::new(5), crate::clock::now());
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        assert_eq!(passed(&rate, one, 80, start), 50);
        assert_eq!(passed(&rate, other, 10, start), 10, "others are not concerned");
        assert_eq!(passed(&rate, one, 80, start + Duration::from_secs(2)), 10);
        assert_eq!(
            passed(&rate, one, 80, start + Duration::from_secs(60)),
            50,
            "never more"
        );
        assert_eq!(rate.refused(), 30 + 70 + 30);
    }

    #[test]
    fn a_spell_is_told_once() {
        let (rate, start) = (Rate::new(1), crate::clock::now());
        let source = "192.0.2.1".parse().unwrap();
        passed(&rate, source, 10, start);
        let told = |at| rate.begin(source, at) == Verdict::Refuse { begins: true };
        assert!(told(start));
        assert!(!told(start));
        assert!(!told(start + Duration::from_millis(900)));
    }

    #[test]
    fn the_table_is_bounded_and_quiet_sources_make_room() {
        let (rate, start) = (Rate::new(1), crate::clock::now());
        for n in 0..200_000_u32 {
            assert_eq!(rate.begin(IpAddr::V4(n.into()), start), Verdict::Pass);
        }
        let held = |rate: &Rate| {
            rate.sources
                .iter()
                .map(|shard| shard.lock().buckets.len())
                .sum::<usize>()
        };
        assert_eq!(held(&rate), SHARDS * MOST_PER_SHARD);
        let later = start + Duration::from_secs(11);
        let newcomer = "203.0.113.9".parse().unwrap();
        assert_eq!(
            passed(&rate, newcomer, 30, later),
            10,
            "it is counted: the others have made room"
        );
    }

    #[test]
    fn another_rate_holds_from_now_on() {
        let (rate, start) = (Rate::new(1), crate::clock::now());
        let source = "192.0.2.1".parse().unwrap();
        assert_eq!(passed(&rate, source, 20, start), 10);
        rate.set(1000);
        assert_eq!(passed(&rate, source, 2000, start + Duration::from_secs(10)), 2000);
    }
}
