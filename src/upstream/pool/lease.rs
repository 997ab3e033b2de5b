//! A request's hold on a target, and how the request went.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use http::StatusCode;
use tokio_util::sync::CancellationToken;

use super::{Member, TargetId};
use crate::fault::{Source, WebFault};

/// A request's hold on a target. Dropped, it is one request less there.
#[derive(Debug)]
#[must_use = "the target counts the request for as long as this is held"]
pub struct Lease {
    pub(super) member: Arc<Member>,
}

impl Lease {
    /// Which target it is.
    pub fn target(&self) -> &TargetId {
        &self.member.id
    }

    /// The target as it is configured: a name or an address, without port.
    pub fn host(&self) -> &str {
        &self.member.host
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.member.address
    }

    /// Cancelled once the target was taken away and its drain is over: what still runs on it then is to be cut.
    pub fn cut(&self) -> &CancellationToken {
        &self.member.cut
    }

    /// Says how it went, once. What a client did says nothing of the target.
    pub fn report(&self, outcome: Outcome, now: Instant) {
        let member = &*self.member;
        match outcome.is_well() {
            Some(true) => {
                if member.failures.load(Ordering::Relaxed) != 0 {
                    member.failures.store(0, Ordering::Relaxed);
                }
                member.check.answered(now);
            }
            Some(false) => {
                let failures = member.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
                let Some(pool) = member.pool.upgrade() else {
                    return;
                };
                let after = pool.round.load().ejects_after;
                if after.is_some_and(|after| failures >= after) {
                    pool.eject(member, now);
                }
            }
            None => {}
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let member = &*self.member;
        member.in_flight.fetch_sub(1, Ordering::SeqCst);
        if !member.is_capped.load(Ordering::SeqCst) {
            return;
        }
        let Some(pool) = member.pool.upgrade() else {
            return;
        };
        // The place is read after the round: one that belongs to a later round does no harm in this one.
        let round = pool.round.load();
        if let Some(places) = &round.places {
            places.note_room(member.place.load(Ordering::SeqCst));
        }
    }
}

/// How a request went with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The target answered so.
    Answered(StatusCode),
    /// It took the connection; nothing else was to be seen of it.
    Connected,
    /// It did not answer, or not in full.
    Failed(WebFault),
}

impl Outcome {
    /// Whether the target did well; `None` if that was not to be seen.
    fn is_well(self) -> Option<bool> {
        match self {
            Self::Answered(status) => Some(!status.is_server_error() || status == StatusCode::NOT_IMPLEMENTED),
            Self::Connected => Some(true),
            Self::Failed(fault) if fault.source() == Source::Upstream => Some(false),
            Self::Failed(_) => None,
        }
    }
}
