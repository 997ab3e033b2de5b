//! The course of one flow: when it is over, and how much may go to an address that has proved nothing yet.

use std::time::{Duration, Instant};

use crate::config;
use crate::fault::{CloseReason, Refusal};

/// What a flow has seen so far. Pure: every step takes `now`.
#[derive(Clone, Copy, Debug)]
pub struct Course {
    answer_by: Instant,
    idle: Duration,
    heard: Instant,
    stage: Stage,
    /// Octets from and to the client while it has proved nothing.
    taken: u64,
    given: u64,
}

/// How far client and desktop have proved to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The desktop has not answered.
    Asked,
    /// The desktop has answered; whether the client gets what is sent to its address is not known.
    Answered,
    /// The client has gone on after the answer.
    Proven,
}

impl Course {
    /// How many octets may go to the client for each one that came, until it has proved to be there.
    pub const AMPLIFICATION: u64 = 3;

    /// The course of a flow that the first datagram opens at `now`.
    pub fn new(limits: &config::Udp, now: Instant) -> Self {
        Self {
            answer_by: now + limits.agent_answer,
            idle: limits.idle,
            heard: now,
            stage: Stage::Asked,
            taken: 0,
            given: 0,
        }
    }

    /// Octets came from the client; they may go to the desktop.
    pub fn from_client(&mut self, octets: usize, now: Instant) {
        self.heard = self.heard.max(now);
        match self.stage {
            Stage::Asked => self.taken += octets as u64,
            Stage::Answered => self.stage = Stage::Proven,
            Stage::Proven => {}
        }
    }

    /// A datagram came from the desktop: whether it may go to the client.
    pub fn from_desktop(&mut self, octets: usize, now: Instant) -> bool {
        self.heard = self.heard.max(now);
        match self.stage {
            Stage::Asked => self.stage = Stage::Answered,
            Stage::Answered => {}
            Stage::Proven => return true,
        }
        let given = self.given + octets as u64;
        let fits = given <= self.taken * Self::AMPLIFICATION;
        if fits {
            self.given = given;
        }
        fits
    }

    /// Whether everything from the desktop may go to the client.
    pub fn is_proven(&self) -> bool {
        self.stage == Stage::Proven
    }

    /// Whether the desktop has answered.
    pub fn is_answered(&self) -> bool {
        self.stage != Stage::Asked
    }

    /// When [`over`](Self::over) has to be asked next, if nothing comes until then.
    pub fn deadline(&self) -> Instant {
        let idle = self.heard + self.idle;
        match self.stage {
            Stage::Asked => idle.min(self.answer_by),
            Stage::Answered | Stage::Proven => idle,
        }
    }

    /// Why it is over at `now`, if it is.
    pub fn over(&self, now: Instant) -> Option<CloseReason> {
        if self.stage == Stage::Asked && now >= self.answer_by {
            Some(CloseReason::Refused(Refusal::AgentSilent))
        } else if now.saturating_duration_since(self.heard) >= self.idle {
            Some(CloseReason::Idle)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_silent_desktop_ends_it_in_time() {
        let start = crate::clock::now();
        let mut course = Course::new(&limits(), start);
        course.from_client(1200, start);
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(course.deadline(), at(5));
        assert_eq!(course.over(at(4)), None);
        course.from_client(1200, at(4));
        assert_eq!(course.over(at(5)), Some(CloseReason::Refused(Refusal::AgentSilent)));
        assert!(course.from_desktop(100, at(4)));
        assert_eq!(course.over(at(5)), None);
    }

    #[test]
    fn silence_of_two_minutes_ends_it_and_of_45_seconds_does_not() {
        let start = crate::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut course = Course::new(&limits(), start);
        course.from_client(100, start);
        course.from_desktop(100, start);
        assert_eq!(course.over(at(45)), None);
        course.from_client(100, at(45));
        assert_eq!(course.over(at(164)), None);
        assert_eq!(course.over(at(165)), Some(CloseReason::Idle));
    }

    #[test]
    fn an_address_that_proved_nothing_gets_at_most_three_times_what_it_sent() {
        let now = crate::clock::now();
        let mut course = Course::new(&limits(), now);
        course.from_client(100, now);
        assert!(course.from_desktop(300, now));
        assert!(!course.from_desktop(1, now));
        course.from_client(12, now);
        assert!(course.from_desktop(60_000, now), "the client went on after the answer");
    }

    proptest! {
        /// Whatever comes in whichever order, an unproven address never gets more than three times its own octets.
        #[test]
        fn nothing_is_amplified(steps in proptest::collection::vec((any::<bool>(), 0_usize..65_508), 0..60)) {
            let now = crate::clock::now();
            let mut course = Course::new(&limits(), now);
            let (mut taken, mut given) = (0, 0);
            for (from_client, octets) in steps {
                if course.is_proven() {
                    break;
                }
                if from_client {
                    course.from_client(octets, now);
                    taken += octets;
                } else if course.from_desktop(octets, now) {
                    given += octets;
                }
                prop_assert!(given <= 3 * taken);
            }
        }
    }

    fn limits() -> config::Udp {
        config::Udp {
            first_datagram: Duration::from_secs(30),
            agent_answer: Duration::from_secs(5),
            idle: Duration::from_secs(120),
            flows: 10,
            flows_per_session: 4,
            strays_per_source: 100,
        }
    }
}
