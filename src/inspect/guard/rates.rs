//! How often each client has asked each rule.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, DefaultHasher, Hash as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::config::web::Rate;
use crate::types::source_of;

/// A bucket for each source (an IPv4 address, an IPv6 /64) and rule.
///
/// The table is bounded, for all rules together. Whoever has asked least lately makes room, and would begin anew; one that
/// goes on asking, refused or not, is never forgotten for others.
#[derive(Debug)]
pub struct Rates {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

/// What stands for a rule: the same for a name across reloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn of(rule: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        rule.hash(&mut hasher);
        Self(hasher.finish())
    }
}

impl Rates {
    /// Counts a request at `now`, unless it is one too many: then after how long the next would pass.
    pub(super) fn pass(&self, rule: Key, rate: Rate, client: IpAddr, now: Instant) -> Result<(), Duration> {
        let asked = (rule, source_of(client));
        let shard = self.hasher.hash_one(asked) as usize % SHARDS;
        let mut shard = self.shards[shard].lock();
        let full_at = shard.bucket(asked, now);
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        let after = (*full_at).max(now) + interval;
        let over = after.saturating_duration_since(now + interval * rate.burst.max(1));
        if over > Duration::ZERO {
            return Err(over);
        }
        *full_at = after;
        Ok(())
    }
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
        }
    }
}

/// Two generations: once the young one has its fill, it becomes the old one, and what was there is forgotten.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<(Key, IpAddr), Instant>,
    old: HashMap<(Key, IpAddr), Instant>,
}

impl Shard {
    /// When the bucket is full again; `now` for a new one.
    fn bucket(&mut self, asked: (Key, IpAddr), now: Instant) -> &mut Instant {
        if self.young.len() >= GENERATION && !self.young.contains_key(&asked) {
            std::mem::swap(&mut self.young, &mut self.old);
            // Whoever asks at the turn is taken along from the generation that ends.
            let kept = self.young.get(&asked).copied();
            self.young.clear();
            self.young.extend(kept.map(|full_at| (asked, full_at)));
        }
        let old = &mut self.old;
        self.young
            .entry(asked)
            .or_insert_with(|| old.remove(&asked).unwrap_or(now))
    }
}

const SHARDS: usize = 64;
/// As many as a table of 2,048 places takes. Two generations in 64 shards are 229,376 buckets, in some 13 MiB.
const GENERATION: usize = 1_792;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock;

    const RATE: Rate = Rate {
        per_second: 10,
        burst: 5,
    };

    fn passed(rates: &Rates, client: &str, attempts: usize, now: Instant) -> usize {
        let (rule, client) = (Key::of("shop"), client.parse().unwrap());
        (0..attempts)
            .filter(|_| rates.pass(rule, RATE, client, now).is_ok())
            .count()
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let (rates, start) = (Rates::default(), clock::now());
        assert_eq!(passed(&rates, "192.0.2.1", 20, start), 5);
        assert_eq!(passed(&rates, "::ffff:192.0.2.1", 20, start), 0, "the same client");
        assert_eq!(passed(&rates, "2001:db8::1", 20, start), 5);
        assert_eq!(passed(&rates, "2001:db8::2:1", 20, start), 0, "the same /64");
        assert_eq!(passed(&rates, "2001:db8:0:1::1", 20, start), 5);
        assert_eq!(passed(&rates, "192.0.2.1", 20, start + Duration::from_millis(250)), 2);
        assert_eq!(
            passed(&rates, "192.0.2.1", 20, start + Duration::from_secs(60)),
            5,
            "never more"
        );
    }

    #[test]
    fn nothing_at_all_is_taken_for_one() {
        let none = Rate {
            per_second: 0,
            burst: 0,
        };
        let (rates, start) = (Rates::default(), clock::now());
        let (rule, client) = (Key::of("shop"), "192.0.2.1".parse().unwrap());
        assert_eq!(rates.pass(rule, none, client, start), Ok(()));
        assert_eq!(rates.pass(rule, none, client, start), Err(Duration::from_secs(1)));
    }

    #[test]
    fn a_flood_from_everywhere_neither_grows_the_table_nor_frees_who_goes_on() {
        let (rates, now) = (Rates::default(), clock::now());
        assert_eq!(passed(&rates, "203.0.113.9", 20, now), 5);
        for n in 0..300_000_u32 {
            let _ = rates.pass(Key::of("shop"), RATE, IpAddr::V4(n.into()), now);
            if n % 1_000 == 0 {
                assert_eq!(passed(&rates, "203.0.113.9", 1, now), 0, "{n}");
            }
        }
        let held = rates.shards.iter().map(|shard| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        });
        assert!(held.sum::<usize>() <= SHARDS * 2 * GENERATION);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_span_of_time_has_more_than_burst_and_rate(
            gaps in proptest::collection::vec(0..400_u64, 1..80),
        ) {
            let (rates, start) = (Rates::default(), clock::now());
            let (rule, client) = (Key::of("shop"), "192.0.2.1".parse().unwrap());
            let (mut now, mut passed) = (start, Vec::new());
            for gap in gaps {
                now += Duration::from_millis(gap);
                match rates.pass(rule, RATE, client, now) {
                    Ok(()) => passed.push(now),
                    Err(over) => {
                        prop_assert!(over <= Duration::from_millis(100));
                        let soon = now + over;
                        let copy = Rates::default();
                        for before in &passed {
                            prop_assert!(copy.pass(rule, RATE, client, *before).is_ok());
                        }
                        prop_assert!(copy.pass(rule, RATE, client, soon).is_ok(), "what was promised holds");
                    }
                }
            }
            for (at, first) in passed.iter().enumerate() {
                for (more, last) in passed[at..].iter().enumerate() {
                    let allowed = 5.0 + (*last - *first).as_secs_f64() * 10.0;
                    prop_assert!(more as f64 + 1.0 <= allowed + 1e-6);
                }
            }
        }
    }
}
