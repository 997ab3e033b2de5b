//! The time without a working connection: when to try again, and since when.

use std::time::{Duration, Instant};

/// Attempts to take a tunnel up again.
///
/// The first is made at once; the pauses after that double, with a random part so that many clients of one gateway do
/// not come back in the same moment. Only a chunk that arrived ends the time away: a connection that was accepted and
/// brings nothing does not.
#[derive(Debug)]
pub(super) struct Away {
    since: Option<Instant>,
    next: Option<Instant>,
    attempts: u32,
    random: u64,
}

impl Away {
    /// Nothing is wrong yet. The seed must not be zero to make a difference.
    pub(super) fn new(seed: u64) -> Self {
        Self {
            since: None,
            next: None,
            attempts: 0,
            random: seed | 1,
        }
    }

    /// The connection broke, or an attempt failed.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.next = Some(now + self.pause());
        self.attempts = self.attempts.saturating_add(1);
    }

    /// The gateway is there again.
    pub(super) fn end(&mut self) {
        self.since = None;
        self.next = None;
        self.attempts = 0;
    }

    /// Since when nothing arrived; `None` while all is well.
    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// When the next attempt is due; `None` while one is under way.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.next
    }

    /// Whether an attempt is due; if so, it is under way from here on.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_some_and(|at| at <= now);
        if due {
            self.next = None;
        }
        due
    }

    fn pause(&mut self) -> Duration {
        let Some(doublings) = self.attempts.checked_sub(1) else {
            return Duration::ZERO;
        };
        let whole = (FIRST_PAUSE * (1 << doublings.min(8))).min(LONGEST_PAUSE);
        // xorshift64: enough to spread clients.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        whole / 2 + whole.mul_f64((self.random >> 11) as f64 / (1_u64 << 53) as f64) / 2
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn the_first_attempt_is_made_at_once_and_pauses_double_up_to_a_bound() {
        let (mut away, now) = (Away::new(7), clock::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            away.begin(now);
            pauses.push(away.next_attempt().unwrap() - now);
            assert!(away.is_due(now + LONGEST_PAUSE));
            assert!(!away.is_due(now + LONGEST_PAUSE), "one attempt at a time");
        }
        assert_eq!(pauses[0], Duration::ZERO);
        for (doublings, pause) in pauses[1..].iter().enumerate() {
            let whole = (FIRST_PAUSE * (1 << doublings.min(8))).min(LONGEST_PAUSE);
            assert!((whole / 2..=whole).contains(pause), "{pauses:?}");
        }
    }

    #[test]
    fn clients_come_back_at_different_times() {
        let pause = |seed| {
            let (mut away, now) = (Away::new(seed), clock::now());
            away.begin(now);
            away.begin(now);
            away.next_attempt().unwrap() - now
        };
        assert_ne!(pause(0x1234_5678_9abc), pause(0xcba9_8765_4321));
    }
}
