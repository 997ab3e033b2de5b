//! Admission: the proof that a secondary may run, and the refusals.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Grant;
use crate::fault::{CloseReason, Refusal};
use crate::types::{NodeName, SessionId};

/// A secondary protocol. Each has its own tokens; one of another opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Secondary {
    /// The HTTPS tunnel; its token is the connection-id.
    Tunnel,
    /// Blast; its token is the route token.
    Blast,
}

impl Secondary {
    /// The code in logs, and the label from which its secrets are derived.
    pub fn code(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Blast => "blast",
        }
    }
}

/// Proof that one connection of a secondary protocol was admitted. Only [`Store::admit`](super::Store::admit) makes one.
///
/// It is one of the session's connections until it is dropped.
#[derive(Debug)]
pub struct Granted {
    place: Place,
    secondary: Secondary,
}

impl Granted {
    pub(super) fn new(place: Place, secondary: Secondary) -> Self {
        Self { place, secondary }
    }

    /// The grant against which it was admitted.
    pub fn grant(&self) -> &Arc<Grant> {
        &self.place.0
    }

    /// As what it was admitted.
    pub fn secondary(&self) -> Secondary {
        self.secondary
    }
}

/// One of the connections that a session may have; given back on drop.
#[derive(Debug)]
pub(super) struct Place(Arc<Grant>);

impl Place {
    /// Takes a place if the session has fewer than `limit` connections.
    pub(super) fn take(grant: &Arc<Grant>, limit: usize) -> Option<Self> {
        grant
            .connections
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
                (open < limit).then_some(open + 1)
            })
            .ok()
            .map(|_| Self(grant.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let before = self.0.connections.fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more places given back than taken");
    }
}

/// Why a secondary was turned away, and what is known about where it belongs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Denied {
    /// The word for log, metric and search. The client is told nothing of it.
    pub reason: Refusal,
    /// The sister node that issued the token, when it was one.
    pub owner: Option<NodeName>,
    /// The session of this node to which the token belongs or belonged, when it is known.
    pub session: Option<SessionId>,
}

impl Denied {
    pub(super) fn stray(reason: Refusal) -> Self {
        Self {
            reason,
            owner: None,
            session: None,
        }
    }

    pub(super) fn sister(owner: NodeName) -> Self {
        Self {
            reason: Refusal::SisterNode,
            owner: Some(owner),
            session: None,
        }
    }

    pub(super) fn of(session: SessionId, reason: Refusal) -> Self {
        Self {
            reason,
            owner: None,
            session: Some(session),
        }
    }

    pub(super) fn ended(session: SessionId, end: CloseReason) -> Self {
        Self::of(
            session,
            if ran_out(end) {
                Refusal::Expired
            } else {
                Refusal::Revoked
            },
        )
    }
}

/// Whether a session that ended for this reason ran out by itself, rather than being ended by someone.
fn ran_out(end: CloseReason) -> bool {
    matches!(
        end,
        CloseReason::Expired | CloseReason::SessionIdle | CloseReason::HeartbeatLost
    )
}
