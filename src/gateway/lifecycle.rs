//! Where a node stands in its life: starting, serving, quiesced, draining.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio_util::sync::CancellationToken;

/// A node's state. It only moves forward, but for quiesce, which can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not yet listening.
    Starting,
    /// In service: the health check answers 200.
    Serving,
    /// The health check answers 503, so that the balancer sends no new users; everything that is here goes on, and
    /// whoever still arrives is served.
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
#[derive(Debug, Default)]
pub struct Lifecycle {
    state: AtomicU8,
    draining: CancellationToken,
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

    /// Whether users may begin sessions here. A quiesced node still serves those whom the balancer sends.
    pub fn admits_sessions(&self) -> bool {
        matches!(self.state(), State::Serving | State::Quiesced)
    }

    /// Goes into service, once the listeners are bound.
    pub fn serve(&self) {
        self.step(State::Starting, State::Serving);
    }

    /// Takes the node out of service, or back in. Does nothing while it starts or drains; says whether it is now so.
    pub fn set_quiesced(&self, quiesced: bool) -> bool {
        if quiesced {
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
    use super::*;

    #[test]
    fn quiesce_can_be_taken_back_but_a_drain_cannot() {
        let life = Lifecycle::default();
        assert!(!life.set_quiesced(true), "a node that starts is not quiesced");
        life.serve();
        assert!(life.is_in_service());
        assert!(life.set_quiesced(true));
        assert!(!life.is_in_service());
        assert!(life.set_quiesced(false));
        life.drain();
        assert!(!life.set_quiesced(false));
        life.serve();
        assert_eq!(life.state(), State::Draining);
        assert!(life.draining().is_cancelled());
    }
}
