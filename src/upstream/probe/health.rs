//! What is known of a target from its probes. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{ProbeFault, TlsFacts};
use crate::upstream::pool::Condition;

/// What the probes of one target have shown.
#[derive(Clone, Debug)]
pub(in crate::upstream) struct Health {
    condition: Condition,
    /// Failures in a row.
    failures: u32,
    /// When the condition began.
    since: Instant,
    /// The last, newest behind.
    results: VecDeque<ProbeResult>,
}

/// What one probe showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeResult {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// The address that was asked.
    pub address: std::net::SocketAddr,
    /// The status of a healthy answer, `None` if only a connection was asked for; or what was wrong.
    pub outcome: Result<Option<u16>, ProbeFault>,
    /// What was agreed, if TLS was.
    pub tls: Option<Box<TlsFacts>>,
    /// Whether a user's request that went well in the meantime stood in for it.
    pub is_excused: bool,
}

impl Health {
    /// That of a target of which nothing is known.
    pub(in crate::upstream) fn new(now: Instant) -> Self {
        Self {
            condition: Condition::Unknown,
            failures: 0,
            since: now,
            results: VecDeque::with_capacity(KEPT),
        }
    }

    /// Takes in the result of a probe at `now`. One success makes a target healthy; `threshold` failures in a row make it
    /// unhealthy. An excused failure counts for a target that is healthy as a success, and for others as it is.
    pub(in crate::upstream) fn note(&mut self, result: ProbeResult, threshold: u32, now: Instant) -> Noted {
        let before = self.condition;
        let stands = result.is_excused && before == Condition::Healthy;
        if result.outcome.is_ok() || stands {
            self.failures = 0;
            self.condition = Condition::Healthy;
        } else {
            self.failures = self.failures.saturating_add(1);
            if self.failures >= threshold {
                self.condition = Condition::Unhealthy;
            }
        }
        if self.results.len() == KEPT {
            self.results.pop_front();
        }
        self.results.push_back(result);
        if self.condition == before {
            return Noted::Same;
        }
        self.since = now;
        Noted::Changed
    }

    /// What the target's condition is.
    pub(in crate::upstream) fn condition(&self) -> Condition {
        self.condition
    }

    /// Since when.
    pub(in crate::upstream) fn since(&self) -> Instant {
        self.since
    }

    /// The last results, the newest first.
    pub(in crate::upstream) fn results(&self) -> impl Iterator<Item = &ProbeResult> {
        self.results.iter().rev()
    }
}

/// Whether a result changed the condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Noted {
    /// It is as it was.
    Same,
    /// It is another.
    Changed,
}

/// Results that are kept.
const KEPT: usize = 20;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn result(outcome: Result<Option<u16>, ProbeFault>, is_excused: bool) -> ProbeResult {
        ProbeResult {
            at: Timestamp::UNIX_EPOCH,
            took: Duration::from_millis(3),
            address: ([127, 0, 0, 1], 80).into(),
            outcome,
            tls: None,
            is_excused,
        }
    }

    #[test]
    fn failures_in_a_row_bring_it_down_and_one_success_up() {
        let now = crate::clock::now();
        let mut health = Health::new(now);
        let mut note = |outcome| {
            health.note(result(outcome, false), 3, now);
            health.condition()
        };
        let down = || Err(ProbeFault::Closed);
        assert_eq!(note(down()), Condition::Unknown);
        assert_eq!(note(Ok(Some(200))), Condition::Healthy);
        assert_eq!(note(down()), Condition::Healthy);
        assert_eq!(note(down()), Condition::Healthy);
        assert_eq!(note(Ok(Some(204))), Condition::Healthy, "not in a row");
        assert_eq!(note(down()), Condition::Healthy);
        assert_eq!(note(down()), Condition::Healthy);
        assert_eq!(note(down()), Condition::Unhealthy);
        assert_eq!(note(Ok(Some(200))), Condition::Healthy);
    }

    #[test]
    fn what_users_see_excuses_a_healthy_target_only() {
        let now = crate::clock::now();
        let mut health = Health::new(now);
        health.note(result(Err(ProbeFault::Timeout), true), 1, now);
        assert_eq!(health.condition(), Condition::Unhealthy);
        health.note(result(Ok(Some(200)), false), 1, now);
        health.note(result(Err(ProbeFault::Timeout), true), 1, now);
        assert_eq!(health.condition(), Condition::Healthy);
        health.note(result(Err(ProbeFault::Timeout), false), 1, now);
        assert_eq!(health.condition(), Condition::Unhealthy);
    }

    proptest! {
        /// The rule of the behaviour sheet, section 3, read from the whole history.
        #[test]
        fn the_condition_follows_from_the_history(probes in vec(any::<bool>(), 0..60), threshold in 1_u32..5) {
            let now = crate::clock::now();
            let mut health = Health::new(now);
            for (count, _) in probes.iter().enumerate() {
                let outcome = if probes[count] { Ok(Some(200)) } else { Err(ProbeFault::Closed) };
                let before = health.condition();
                let noted = health.note(result(outcome, false), threshold, now);
                let history = &probes[..=count];
                let row = history.iter().rev().take_while(|good| !**good).count();
                let expected = if row >= threshold as usize {
                    Condition::Unhealthy
                } else if history.contains(&true) {
                    Condition::Healthy
                } else {
                    Condition::Unknown
                };
                prop_assert_eq!(health.condition(), expected);
                prop_assert_eq!(noted == Noted::Changed, before != expected);
                prop_assert_eq!(health.results().count(), history.len().min(20));
            }
        }
    }
}
