//! What everything that admits or refuses reports to.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use parking_lot::Mutex;

use super::counters::{Counters, Kind};
use super::diagnosis::{Diagnosis, Finding};
use super::places::Places;
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::types::{NodeName, SessionId, UserName};

/// Where a connection came from, and where it came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The client, as its balancer named it or else the peer.
    pub client: SocketAddr,
    /// Who connected: the client or its balancer.
    pub via: SocketAddr,
    /// This node's address.
    pub local: SocketAddr,
}

impl Arrival {
    /// The listed balancer that brought it, if one did.
    pub fn balancer(&self) -> Option<IpAddr> {
        (self.via.ip() != self.client.ip()).then_some(self.via.ip())
    }
}

/// A secondary connection that was turned away.
#[derive(Clone, Copy, Debug)]
pub struct Refused<'a> {
    /// Why.
    pub reason: Refusal,
    /// The node that issued its token, if that is known.
    pub owner: Option<&'a NodeName>,
    /// Where it came in.
    pub arrival: Arrival,
}

/// The node's watch over itself: one for all its parts, shared through the store of grants.
///
/// Whatever is noted per connection or session takes one short lock; nothing is noted per byte, nor per datagram that goes
/// its way.
#[derive(Debug)]
pub struct Watch {
    counters: Counters,
    diagnosis: Mutex<Diagnosis>,
}

impl Default for Watch {
    fn default() -> Self {
        Self {
            counters: Counters::default(),
            diagnosis: Mutex::new(Diagnosis::new(clock::now())),
        }
    }
}

impl Watch {
    /// The counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Notes a refusal. For whoever writes the reason to the log, in the same breath.
    pub fn refused(&self, kind: impl Into<Kind>, refused: &Refused<'_>, now: Instant) {
        let kind = kind.into();
        self.counters.refused(kind, refused.reason);
        // Strangers and strays come by the thousand, and nothing follows from them.
        if refused.owner.is_some() || refused.reason == Refusal::WindowMissed {
            self.diagnosis.lock().refused(kind, refused, now);
        }
    }

    /// A user signed in. The store of grants counts the session.
    pub fn signed_in(&self, user: &UserName, client: IpAddr, local: SocketAddr, now: Instant) {
        self.diagnosis.lock().signed_in(user, client, local, now);
    }

    /// A token was announced; the store of grants reports it.
    pub fn announced(&self, session: SessionId, kind: impl Into<Kind>, route: Option<u32>, use_by: Instant) {
        self.diagnosis.lock().announced(session, kind.into(), route, use_by);
    }

    /// A secondary was admitted; the store of grants reports it.
    pub fn admitted(&self, session: SessionId, kind: impl Into<Kind>, route: Option<u32>) {
        let kind = kind.into();
        self.counters.admitted(kind);
        self.diagnosis.lock().admitted(session, kind, route);
    }

    /// A session began; the store of grants reports it.
    pub fn session_begun(&self) {
        self.counters.session_begun();
    }

    /// A session ended; the store of grants reports it.
    pub fn session_ended(&self, reason: CloseReason) {
        self.counters.session_ended(reason);
    }

    /// A session is no more, wherever it ended; the store of grants reports it.
    pub fn session_gone(&self, session: SessionId) {
        self.diagnosis.lock().ended(session);
    }

    /// A secondary of another node's grant was carried to that node.
    pub fn carried(&self, kind: impl Into<Kind>, owner: &NodeName, arrival: Arrival, now: Instant) {
        let kind = kind.into();
        self.counters.carried(kind);
        self.diagnosis.lock().strayed(kind, owner, arrival, now);
    }

    /// A session's Blast or PCoIP connection over TCP was admitted: its first datagram should come until `until`.
    pub fn awaits_datagrams(&self, session: SessionId, kind: impl Into<Kind>, until: Instant) {
        self.diagnosis.lock().awaits_datagrams(session, kind.into(), until);
    }

    /// A flow of a session's Blast or PCoIP datagrams was admitted.
    pub fn datagram_came(&self, session: SessionId, kind: impl Into<Kind>) {
        self.counters.admitted(Kind::Udp);
        self.diagnosis.lock().datagram(session, kind.into());
    }

    /// A session's last Blast or PCoIP connection over TCP is gone: no datagram can come any more.
    pub fn no_more_datagrams(&self, session: SessionId, kind: impl Into<Kind>) {
        self.diagnosis.lock().no_more_datagrams(session, kind.into());
    }

    /// Learns what clients are told.
    pub fn set_places(&self, places: Places) {
        self.diagnosis.lock().set_places(places);
    }

    /// Draws the consequences of what has not come, and writes each finding that has come up to the log: once an episode.
    pub fn tick(&self, now: Instant) {
        let begun = self.diagnosis.lock().tick(now);
        for finding in begun {
            tracing::warn!(finding = finding.cause.code(), "{}", finding.words);
        }
    }

    /// What is wrong around the node, or was.
    pub fn findings(&self, now: Instant) -> Vec<Finding> {
        self.diagnosis.lock().findings(now)
    }
}
