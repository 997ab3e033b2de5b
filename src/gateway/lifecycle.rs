//! Where a node stands in its life: starting, serving, quiesced, draining.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::clock;

/// A node's state. It only moves forward, but for quiesce, which can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet listening.
    Starting,
    /// In service: the health check answers 200.
    Serving,
    /// The balancer is told to send no new users ([`Health`](super::health::Health)); everything that is here goes on.
    Quiesced,
    /// Shutting down: health 503, no new sessions, tunnels run until the grace period is over.
    Draining,
}

impl State {
    /// The word in log, API and CLI.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Quiesced => "quiesced",
            Self::Draining => "draining",
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Starting,
            1 => Self::Serving,
            2 => Self::Quiesced,
            _ => Self::Draining,
        }
    }

    fn code(self) -> u8 {
        match self {
            Self::Starting => 0,
            Self::Serving => 1,
            Self::Quiesced => 2,
            Self::Draining => 3,
        }
    }
}

/// The state of this node, shared by everyone who asks.
#[derive(Debug)]
pub struct Lifecycle {
    state: AtomicU8,
    /// When the node was last quiesced.
    quiesced: Mutex<Option<Instant>>,
    draining: CancellationToken,
    started: (Instant, Timestamp),
    last_upgrade: Mutex<Option<UpgradeOutcome>>,
}

/// What came of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeOutcome {
    /// When that was clear.
    pub at: Timestamp,
    /// The program that was to take over.
    pub program: PathBuf,
    /// Why it did not; `None` if it is the one that runs.
    pub fault: Option<String>,
}

impl Default for Lifecycle {
    /// Of a process that starts at this moment.
    fn default() -> Self {
        Self {
            state: AtomicU8::default(),
            quiesced: Mutex::default(),
            draining: CancellationToken::default(),
            started: (clock::now(), clock::wall()),
            last_upgrade: Mutex::default(),
        }
    }
}

impl Lifecycle {
    /// The state at this moment.
    pub fn state(&self) -> State {
        State::from_code(self.state.load(Ordering::Acquire))
    }

    /// Whether the balancer is to send users here.
    pub fn is_in_service(&self) -> bool {
        self.state() == State::Serving
    }

    /// Since when the node is quiesced; `None` if it is not.
    pub fn quiesced_since(&self) -> Option<Instant> {
        self.quiesced.lock().filter(|_| self.state() == State::Quiesced)
    }

    /// When the process started, on both clocks.
    pub fn started(&self) -> (Instant, Timestamp) {
        self.started
    }

    /// Notes what came of an upgrade: this process took over, or another one did not.
    pub fn note_upgrade(&self, program: PathBuf, fault: Option<String>) {
        let at = clock::wall();
        *self.last_upgrade.lock() = Some(UpgradeOutcome { at, program, fault });
    }

    /// What came of the last upgrade that this process knows of.
    pub fn last_upgrade(&self) -> Option<UpgradeOutcome> {
        self.last_upgrade.lock().clone()
    }

    /// Goes into service, once the listeners are bound.
    pub fn serve(&self) {
        self.step(State::Starting, State::Serving);
    }

    /// Takes the node out of service at `now`, or back in. Does nothing while it starts or drains; says whether it is now
    /// so. A node that is quiesced already stays so from when it was.
    pub fn set_quiesced(&self, quiesced: bool, now: Instant) -> bool {
        let mut since = self.quiesced.lock();
        if quiesced {
            if self.state() == State::Serving {
                *since = Some(now);
            }
            self.step(State::Serving, State::Quiesced);
            self.state() == State::Quiesced
        } else {
            self.step(State::Quiesced, State::Serving);
            self.state() == State::Serving
        }
    }

    /// Begins the drain; there is no way back.
    pub fn drain(&self) {
        self.state.store(State::Draining.code(), Ordering::Release);
        self.draining.cancel();
    }

    /// A token that is cancelled when the drain begins.
    pub fn draining(&self) -> &CancellationToken {
        &self.draining
    }

    fn step(&self, from: State, to: State) {
        // A lost race means that somebody moved the node elsewhere first: theirs stands.
        let _ = self
            .state
            .compare_exchange(from.code(), to.code(), Ordering::AcqRel, Ordering::Acquire);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn quiesce_can_be_taken_back_but_a_drain_cannot() {
        let (life, now) = (Lifecycle::default(), clock::now());
        assert!(!life.set_quiesced(true, now), "a node that starts is not quiesced");
        life.serve();
        assert!(life.is_in_service());
        assert!(life.set_quiesced(true, now));
        assert!(!life.is_in_service());
        assert!(life.set_quiesced(true, now + Duration::from_secs(1)));
        assert_eq!(
            life.quiesced_since(),
            Some(now),
            "asked twice, it counts from the first time"
        );
        assert!(life.set_quiesced(false, now));
        assert_eq!(life.quiesced_since(), None);
        life.drain();
        assert!(!life.set_quiesced(false, now));
        life.serve();
        assert_eq!(life.state(), State::Draining);
        assert!(life.draining().is_cancelled());
    }
}
