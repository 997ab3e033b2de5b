//! What is expected to happen by a time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::Instant;

/// Expectations by their key, each with the time by which it is to be met; at most so many.
#[derive(Debug)]
pub(super) struct Waiting<K> {
    most: usize,
    by_key: BTreeMap<K, Instant>,
    by_time: BTreeSet<(Instant, K)>,
}

impl<K: Ord + Clone> Waiting<K> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            by_key: BTreeMap::new(),
            by_time: BTreeSet::new(),
        }
    }

    /// Expects `key` until `until`; an earlier expectation of the same is replaced. Beyond the limit nothing is expected.
    pub(super) fn expect(&mut self, key: K, until: Instant) {
        self.met(&key);
        if self.by_key.len() < self.most {
            self.by_time.insert((until, key.clone()));
            self.by_key.insert(key, until);
        }
    }

    /// It happened, or nothing follows from it any more.
    pub(super) fn met(&mut self, key: &K) {
        if let Some((key, until)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(until, key));
        }
    }

    /// The same for all keys of a range.
    pub(super) fn forget(&mut self, range: RangeInclusive<K>) {
        let keys: Vec<_> = self.by_key.range(range).map(|(key, _)| key.clone()).collect();
        for key in &keys {
            self.met(key);
        }
    }

    /// Takes out one that was not met in time.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<K> {
        let (until, _) = self.by_time.first()?;
        if *until >= now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert!(self.by_key.len() <= self.most);
        let keys: BTreeSet<_> = self.by_key.iter().map(|(key, until)| (*until, key.clone())).collect();
        assert!(keys == self.by_time, "each expectation is armed once");
    }
}
