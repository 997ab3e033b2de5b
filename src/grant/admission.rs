//! Admission: the proof that a secondary may run, and the refusals.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Grant, Route, RouteId};
use crate::fault::{CloseReason, Refusal};
use crate::observe::Kind;
use crate::types::{NodeName, SessionId};

/// A secondary protocol. Each has its own tokens; one of another opens nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Secondary {
    /// The HTTPS tunnel; its token is the connection-id.
    Tunnel,
    /// Blast over a WebSocket; its token is the route token, one a route.
    Blast,
    /// PCoIP over TCP; its token is the session tag, one a route.
    Pcoip,
    /// QUIC; its token is the UDP secret.
    Quic,
    /// RDP of a client that knows no gateway; its token is the preconnection blob, one a route.
    Rdp,
}

impl Secondary {
    /// Every secondary.
    pub const ALL: [Self; 5] = [Self::Tunnel, Self::Blast, Self::Pcoip, Self::Quic, Self::Rdp];

    /// The code in logs, and the label from which its secrets are derived.
    pub fn code(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Blast => "blast",
            Self::Pcoip => "pcoip",
            Self::Quic => "quic",
            Self::Rdp => "rdp",
        }
    }
}

impl From<Secondary> for Kind {
    fn from(secondary: Secondary) -> Self {
        match secondary {
            Secondary::Tunnel => Self::Tunnel,
            Secondary::Blast => Self::Blast,
            Secondary::Pcoip => Self::Pcoip,
            Secondary::Quic => Self::Quic,
            Secondary::Rdp => Self::Rdp,
        }
    }
}

/// What a token opens: a secondary, as a whole or for one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) secondary: Secondary,
    pub(super) route: Option<RouteId>,
}

/// Proof that one connection of a secondary protocol was admitted. Only [`Store::admit`](super::Store::admit) makes one.
///
/// It is one of the session's connections until it is dropped.
#[derive(Debug)]
pub struct Granted {
    place: Place,
    secondary: Secondary,
    route: Option<Arc<Route>>,
}

impl Granted {
    pub(super) fn new(place: Place, secondary: Secondary, route: Option<Arc<Route>>) -> Self {
        Self {
            place,
            secondary,
            route,
        }
    }

    /// The grant against which it was admitted.
    pub fn grant(&self) -> &Arc<Grant> {
        &self.place.0
    }

    /// As what it was admitted.
    pub fn secondary(&self) -> Secondary {
        self.secondary
    }

    /// The one route that the token opens; `None` if it opens all of the session.
    pub fn route(&self) -> Option<&Arc<Route>> {
        self.route.as_ref()
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
    /// The node of the fleet that issued the token, when it is known that one did and no session of it is.
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

    /// This node issued it, but does not know it (any more): before a restart, or replaced by a newer one.
    pub(super) fn forgotten(owner: NodeName) -> Self {
        Self {
            reason: Refusal::UnknownToken,
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
