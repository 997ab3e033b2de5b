//! The throttle of failed sign-ins: asked before any password hash is computed.
//!
//! Pure, with `now` as an argument. What is counted is bounded: when there are too many names or sources, those whose
//! last failure is oldest are forgotten first.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config;
use crate::types::{UserName, source_of};

/// Failed sign-ins by user and by source.
///
/// A failure counts for `window`. Whoever has reached the limit is refused until a failure is that old; a refused attempt
/// counts for nothing, so that a victim is not locked out for ever by someone else's persistence.
#[derive(Debug)]
pub struct Throttle {
    limits: config::Throttle,
    users: Failures<UserName>,
    sources: Failures<IpAddr>,
}

/// Who has failed too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttled {
    /// The user, from wherever.
    User,
    /// The source, as whomever.
    Source,
}

impl Throttle {
    /// Nobody has failed yet.
    pub fn new(limits: config::Throttle) -> Self {
        Self {
            limits,
            users: Failures::default(),
            sources: Failures::default(),
        }
    }

    /// Puts other limits in force; what was counted stays.
    pub fn set_limits(&mut self, limits: config::Throttle) {
        self.limits = limits;
    }

    /// Whether `user` may try to sign in from `client`. The attempt counts against the user until it has
    /// [`succeeded`](Self::succeeded), so that guesses at the same moment cannot pass the limit together; against the
    /// source it counts once it has [`failed`](Self::failed), so that an office whose users all begin at nine is not
    /// taken for an attacker.
    ///
    /// # Errors
    ///
    /// Who has failed too often.
    pub fn attempt(&mut self, user: &UserName, client: IpAddr, now: Instant) -> Result<(), Throttled> {
        let config::Throttle {
            per_user,
            per_source,
            window,
        } = self.limits;
        if self.sources.recent(&source_of(client), now, window) >= per_source {
            return Err(Throttled::Source);
        }
        if self.users.recent(user, now, window) >= per_user {
            return Err(Throttled::User);
        }
        self.users.add(user.clone(), now);
        Ok(())
    }

    /// The attempt was good: the user starts afresh. The source does not, or one good account would pay for guesses
    /// at all the others.
    pub fn succeeded(&mut self, user: &UserName) {
        self.users.clear(user);
    }

    /// The attempt was bad.
    pub fn failed(&mut self, client: IpAddr, now: Instant) {
        self.sources.add(source_of(client), now);
    }

    /// The attempt was not looked at: it counts for nothing.
    pub fn withdrawn(&mut self, user: &UserName) {
        self.users.take_back(user);
    }
}

/// What was counted, as data for another process of this node: how long ago each failure was, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThrottleSnapshot {
    users: Vec<(String, Vec<Duration>)>,
    sources: Vec<(IpAddr, Vec<Duration>)>,
}

impl Throttle {
    /// What still counts at `now`, of those who failed last at most [`Self::CARRIED`] names and as many sources.
    pub fn snapshot(&self, now: Instant) -> ThrottleSnapshot {
        let window = self.limits.window;
        ThrottleSnapshot {
            users: self.users.snapshot(window, now, |user| user.as_str().to_owned()),
            sources: self.sources.snapshot(window, now, |source| *source),
        }
    }

    /// Counts what another process has counted up to the moment `taken`.
    pub fn restore(&mut self, snapshot: &ThrottleSnapshot, taken: Instant) {
        for (user, failures) in &snapshot.users {
            self.users.restore(&UserName::new(user), failures, taken);
        }
        for (source, failures) in &snapshot.sources {
            self.sources.restore(source, failures, taken);
        }
    }

    /// So many names and sources are carried over to another process, the latest.
    pub const CARRIED: usize = 10_000;
}

/// The recent failures of each key.
#[derive(Debug)]
struct Failures<K> {
    of: HashMap<K, Vec<Instant>>,
    /// Keys by their last failure, oldest first.
    by_age: BTreeSet<(Instant, K)>,
}

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self {
            of: HashMap::new(),
            by_age: BTreeSet::new(),
        }
    }
}

impl<K: Clone + Eq + Hash + Ord> Failures<K> {
    /// How many failures of `key` still count.
    fn recent(&mut self, key: &K, now: Instant, window: Duration) -> u32 {
        let counts = |time: &Instant| now.saturating_duration_since(*time) < window;
        match self.of.get_mut(key) {
            None => 0,
            Some(times) if times.last().is_some_and(counts) => {
                times.retain(counts);
                u32::try_from(times.len()).unwrap_or(u32::MAX)
            }
            Some(_) => {
                self.clear(key);
                0
            }
        }
    }

    fn add(&mut self, key: K, now: Instant) {
        if !self.of.contains_key(&key) && self.of.len() >= MOST_KEYS {
            self.forget_oldest();
        }
        let times = self.of.entry(key.clone()).or_default();
        if let Some(last) = times.last() {
            self.by_age.remove(&(*last, key.clone()));
        }
        times.push(now);
        self.by_age.insert((now, key));
    }

    fn snapshot<T>(&self, window: Duration, now: Instant, name: impl Fn(&K) -> T) -> Vec<(T, Vec<Duration>)> {
        let latest = self.by_age.iter().rev().take(Throttle::CARRIED);
        let with_ages = latest.filter_map(|(_, key)| {
            let ages = self
                .of
                .get(key)?
                .iter()
                .map(|time| now.saturating_duration_since(*time));
            let ages: Vec<_> = ages.filter(|age| *age < window).collect();
            (!ages.is_empty()).then(|| (name(key), ages))
        });
        let mut all: Vec<_> = with_ages.collect();
        all.reverse();
        all
    }

    fn restore(&mut self, key: &K, ages: &[Duration], taken: Instant) {
        for age in ages {
            self.add(key.clone(), taken.checked_sub(*age).unwrap_or(taken));
        }
    }

    fn take_back(&mut self, key: &K) {
        let Some(times) = self.of.get_mut(key) else { return };
        let Some(last) = times.pop() else { return };
        self.by_age.remove(&(last, key.clone()));
        match times.last() {
            Some(before) => {
                self.by_age.insert((*before, key.clone()));
            }
            None => {
                self.of.remove(key);
            }
        }
    }

    fn clear(&mut self, key: &K) {
        if let Some(last) = self.of.remove(key).and_then(|times| times.last().copied()) {
            self.by_age.remove(&(last, key.clone()));
        }
        debug_assert_eq!(self.by_age.len(), self.of.len());
    }

    fn forget_oldest(&mut self) {
        if let Some((_, key)) = self.by_age.pop_first() {
            self.of.remove(&key);
        }
    }

    #[cfg(test)]
    fn check_invariants(&self) {
        assert_eq!(self.of.len(), self.by_age.len());
        assert!(self.of.len() <= MOST_KEYS);
        for (last, key) in &self.by_age {
            assert_eq!(self.of[key].last(), Some(last));
        }
    }
}

/// Users, and sources, whose failures are remembered at one time.
const MOST_KEYS: usize = 100_000;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    #[test]
    fn another_process_goes_on_counting() {
        let (mut before, mut after, now) = (throttle(), throttle(), crate::clock::now());
        for _ in 0..3 {
            before.attempt(&user(1), client(1), now).unwrap();
            before.failed(client(1), now);
        }
        let written = serde_json::to_string(&before.snapshot(now + WINDOW / 2)).unwrap();
        after.restore(&serde_json::from_str(&written).unwrap(), now + WINDOW / 2);
        let late = now + WINDOW - Duration::from_secs(1);
        assert_eq!(after.attempt(&user(1), client(2), late), Err(Throttled::User));
        assert_eq!(after.attempt(&user(2), client(1), late), Ok(()), "three of ten");
        assert_eq!(after.attempt(&user(1), client(2), now + WINDOW), Ok(()));
        assert_eq!(after.snapshot(now + WINDOW * 3), ThrottleSnapshot::default());
    }

    fn throttle() -> Throttle {
        Throttle::new(config::Throttle {
            per_user: 3,
            per_source: 10,
            window: WINDOW,
        })
    }

    fn user(n: u32) -> UserName {
        UserName::new(&format!("user{n}"))
    }

    fn client(n: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(192, 0, 2, n))
    }

    #[test]
    fn one_user_from_many_sources_is_throttled() {
        let (mut throttle, now) = (throttle(), crate::clock::now());
        for n in 0..3 {
            assert_eq!(throttle.attempt(&user(1), client(n), now), Ok(()));
        }
        assert_eq!(throttle.attempt(&user(1), client(9), now), Err(Throttled::User));
        assert_eq!(throttle.attempt(&user(2), client(9), now), Ok(()));
    }

    #[test]
    fn many_users_from_one_source_are_throttled_once_they_fail() {
        let (mut throttle, now) = (throttle(), crate::clock::now());
        for n in 0..50 {
            assert_eq!(throttle.attempt(&user(n), client(1), now), Ok(()), "an office at nine");
        }
        for _ in 0..10 {
            throttle.failed(client(1), now);
        }
        assert_eq!(throttle.attempt(&user(99), client(1), now), Err(Throttled::Source));
        assert_eq!(throttle.attempt(&user(99), client(2), now), Ok(()));
    }

    #[test]
    fn a_lock_is_over_when_the_window_is_and_refused_attempts_do_not_prolong_it() {
        let (mut throttle, now) = (throttle(), crate::clock::now());
        for _ in 0..3 {
            throttle.attempt(&user(1), client(1), now).unwrap();
        }
        assert!(throttle.attempt(&user(1), client(1), now + WINDOW / 2).is_err());
        assert_eq!(throttle.attempt(&user(1), client(1), now + WINDOW), Ok(()));
    }

    #[test]
    fn a_good_password_clears_its_user_but_not_the_guesses_of_its_source() {
        let (mut throttle, now) = (throttle(), crate::clock::now());
        for _ in 0..2 {
            throttle.attempt(&user(50), client(1), now).unwrap();
            throttle.failed(client(1), now);
        }
        throttle.attempt(&user(50), client(1), now).unwrap();
        throttle.succeeded(&user(50));
        for _ in 0..3 {
            assert_eq!(throttle.attempt(&user(50), client(1), now), Ok(()));
        }
        for _ in 0..8 {
            throttle.failed(client(1), now);
        }
        assert_eq!(throttle.attempt(&user(51), client(1), now), Err(Throttled::Source));
    }

    #[test]
    fn a_source_whose_failures_are_all_too_old_is_forgotten_whole() {
        let (mut failures, now) = (Failures::default(), crate::clock::now());
        failures.add(1, now);
        assert_eq!(failures.recent(&1, now + WINDOW, WINDOW), 0);
        failures.check_invariants();
        failures.add(1, now + WINDOW);
        assert_eq!(failures.recent(&1, now + WINDOW, WINDOW), 1);
        failures.check_invariants();
    }

    #[test]
    fn a_flood_of_names_is_forgotten_oldest_first() {
        let (mut failures, now) = (Failures::default(), crate::clock::now());
        for n in 0..=MOST_KEYS {
            failures.add(n, now + Duration::from_nanos(n as u64));
        }
        assert_eq!(failures.of.len(), MOST_KEYS);
        assert!(!failures.of.contains_key(&0));
        failures.check_invariants();
    }

    proptest! {
        #[test]
        fn nobody_ever_passes_the_limit_within_a_window(
            steps in prop::collection::vec((0_u32..4, 0_u8..4, 0_u64..200, 0_u8..4), 1..300)
        ) {
            let mut throttle = throttle();
            let mut now = crate::clock::now();
            let mut passed: Vec<(Instant, UserName)> = Vec::new();
            for (who, from, later, outcome) in steps {
                now += Duration::from_secs(later);
                let (user, client) = (user(who), client(from));
                if throttle.attempt(&user, client, now).is_ok() {
                    match outcome {
                        0 => {
                            throttle.succeeded(&user);
                            passed.retain(|(_, other)| *other != user);
                        }
                        1 => throttle.withdrawn(&user),
                        _ => {
                            throttle.failed(client, now);
                            passed.push((now, user.clone()));
                        }
                    }
                }
                throttle.users.check_invariants();
                throttle.sources.check_invariants();
                let recent = passed.iter().filter(|(at, other)| *other == user && now - *at < WINDOW).count();
                prop_assert!(recent <= 3);
            }
        }
    }
}
