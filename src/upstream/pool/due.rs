//! When something is to be done next: a time that many may bring forward, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A time that is due, or none.
#[derive(Debug)]
pub(super) struct Due {
    epoch: Instant,
    /// Nanoseconds after the epoch.
    at: AtomicU64,
    /// It is not done again before, in nanoseconds after the epoch.
    rest: AtomicU64,
}

impl Due {
    /// Nothing is due. No time before `epoch` will be.
    pub(super) fn new(epoch: Instant) -> Self {
        Self {
            epoch,
            at: AtomicU64::new(NEVER),
            rest: AtomicU64::new(0),
        }
    }

    /// Whether the time has come.
    pub(super) fn has_come(&self, now: Instant) -> bool {
        let now = self.nanos(now);
        self.at.load(Ordering::Acquire) <= now && self.rest.load(Ordering::Relaxed) <= now
    }

    /// What was due is about to be done; what is brought forward from now on is due again, but not before `rest`.
    pub(super) fn begin(&self, rest: Instant) {
        self.rest.store(self.nanos(rest), Ordering::Relaxed);
        self.at.swap(NEVER, Ordering::AcqRel);
    }

    /// Brings it forward to now.
    pub(super) fn at_once(&self) {
        self.at.store(0, Ordering::Release);
    }

    /// Brings it forward to `at`.
    pub(super) fn no_later_than(&self, at: Instant) {
        self.at.fetch_min(self.nanos(at), Ordering::AcqRel);
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(NEVER - 1).min(NEVER - 1)
    }
}

const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_earliest_time_counts_until_it_is_begun() {
        let epoch = crate::clock::now();
        let at = |seconds| epoch + Duration::from_secs(seconds);
        let due = Due::new(epoch);
        assert!(!due.has_come(at(1_000_000)));
        due.no_later_than(at(5));
        due.no_later_than(at(9));
        assert!(!due.has_come(at(4)) && due.has_come(at(5)));
        due.begin(epoch);
        assert!(!due.has_come(at(10)));
        due.at_once();
        due.no_later_than(at(20));
        assert!(due.has_come(epoch), "not put off by a later time");
        due.begin(at(7));
        due.at_once();
        assert!(!due.has_come(at(6)) && due.has_come(at(7)), "it is rested in between");
    }
}
