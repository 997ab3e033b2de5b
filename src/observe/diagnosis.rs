//! What is wrong around the node, seen from inside it: faults of balancers, firewalls and settings that no single
//! connection shows, and that users only know as "it does not work".
//!
//! [`Diagnosis`] is fed with what happens and told the time; it gives [`Finding`]s, each of which names a cause and what to
//! do. It is pure: nothing sleeps, logs or looks anything up.
//!
//! Invariants, checked by the simulation after each step:
//! - What it remembers is bounded, whatever comes: see [`Diagnosis::MOST_WAITING`], `Crowds::MOST` and `Book::MOST`.
//! - A finding begins once an episode: it is given out by [`Diagnosis::tick`] when it comes up, and again only after it
//!   has stayed away for [`Finding::AWAY`] or was seen to be mended.

mod crowd;
mod finding;
#[cfg(test)]
mod simulation;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use self::crowd::Crowds;
use self::finding::{Book, Subject};
pub use self::finding::{Cause, Finding};
use self::waiting::Waiting;
use super::counters::Kind;
use super::places::Places;
use super::watch::{Arrival, Refused};
use crate::fault::Refusal;
use crate::types::{NodeName, SessionId, UserName};

/// The state machine.
#[derive(Debug)]
pub struct Diagnosis {
    started: Instant,
    places: Places,
    /// When somebody last signed in on each of this node's ports.
    doors: HashMap<u16, Instant>,
    crowds: Crowds,
    /// What was announced and has not come yet.
    launches: Waiting<(SessionId, Kind, Option<u32>)>,
    ways: BTreeMap<Kind, Missed>,
    /// Sessions whose datagrams have not come yet.
    datagrams: Waiting<(SessionId, Kind)>,
    udp_ways: BTreeMap<Kind, Missed>,
    book: Book,
}

/// What did not come on one way since the last time that something came.
#[derive(Debug, Default)]
struct Missed {
    /// Sessions for which it did not come, as many as it takes to be sure.
    sessions: BTreeSet<SessionId>,
    times: u64,
}

impl Missed {
    /// Notes that nothing came for a session; how often that is by now, if it is enough to be sure.
    fn strike(&mut self, session: SessionId) -> Option<u64> {
        self.times += 1;
        if self.sessions.len() < Diagnosis::SURE {
            self.sessions.insert(session);
        }
        (self.sessions.len() >= Diagnosis::SURE).then_some(self.times)
    }
}

impl Diagnosis {
    /// The most announcements, and the most sessions without a datagram, that are waited for. Beyond it, further ones
    /// are not looked at.
    pub const MOST_WAITING: usize = 16_384;

    /// Sessions on end for which nothing came before the way is taken to be closed, rather than one client to be odd.
    pub const SURE: usize = 3;

    /// How long a port is known as one on which users sign in.
    pub const DOOR: Duration = Duration::from_secs(3600);

    /// Of a node that starts now.
    pub fn new(started: Instant) -> Self {
        Self {
            started,
            places: Places::default(),
            doors: HashMap::new(),
            crowds: Crowds::default(),
            launches: Waiting::new(Self::MOST_WAITING),
            ways: BTreeMap::new(),
            datagrams: Waiting::new(Self::MOST_WAITING),
            udp_ways: BTreeMap::new(),
            book: Book::default(),
        }
    }

    /// Learns what clients are told, for the words of its findings.
    pub fn set_places(&mut self, places: Places) {
        self.places = places;
    }

    /// A user signed in from an address, on one of this node's.
    pub fn signed_in(&mut self, user: &UserName, client: IpAddr, local: SocketAddr, now: Instant) {
        self.doors.insert(local.port(), now);
        if let Some(users) = self.crowds.enter(user, client, now) {
            self.strike(&Subject::Crowd { client, users }, now);
        }
    }

    /// A session was told a token for a secondary, as a whole or for one route, to be used by `use_by`.
    pub fn announced(&mut self, session: SessionId, kind: Kind, route: Option<u32>, use_by: Instant) {
        self.launches.expect((session, kind, route), use_by);
    }

    /// What was announced has come.
    pub fn admitted(&mut self, session: SessionId, kind: Kind, route: Option<u32>) {
        self.launches.met(&(session, kind, route));
        self.arrives(kind);
    }

    /// A session is over: nothing more of it can come.
    pub fn ended(&mut self, session: SessionId) {
        self.launches
            .forget((session, Kind::Tunnel, None)..=(session, Kind::Udp, Some(u32::MAX)));
        self.datagrams.forget((session, Kind::Tunnel)..=(session, Kind::Udp));
    }

    /// A secondary was turned away.
    pub fn refused(&mut self, kind: Kind, refused: &Refused<'_>, now: Instant) {
        match (refused.reason, refused.owner) {
            (Refusal::SisterNode, Some(owner)) => self.strayed(kind, owner, refused.arrival, now),
            (Refusal::UnknownToken, Some(_)) if self.remembers_less_than_a_session(now) => {
                let up = now.saturating_duration_since(self.started);
                self.strike(&Subject::Restarted { up }, now);
            }
            // It came, if late: the way is open.
            (Refusal::WindowMissed, _) => self.arrives(kind),
            _ => {}
        }
    }

    /// A secondary came here whose grant is with the node `owner`, whatever became of it.
    pub fn strayed(&mut self, kind: Kind, owner: &NodeName, arrival: Arrival, now: Instant) {
        let (owner, local, balancer) = (owner.clone(), arrival.local, arrival.balancer());
        let users_sign_in_there = self
            .doors
            .get(&local.port())
            .is_some_and(|last| now.saturating_duration_since(*last) <= Self::DOOR);
        let subject = if users_sign_in_there {
            Subject::Moved { owner, local, balancer }
        } else {
            Subject::Misrouted {
                kind,
                owner,
                local,
                balancer,
            }
        };
        self.strike(&subject, now);
    }

    /// A session's `kind` runs over TCP: its first datagram should come until `until`, if this node takes any.
    pub fn awaits_datagrams(&mut self, session: SessionId, kind: Kind, until: Instant) {
        if self.places.udp_port(kind).is_some() {
            self.datagrams.expect((session, kind), until);
        }
    }

    /// A datagram of it came, and was let in.
    pub fn datagram(&mut self, session: SessionId, kind: Kind) {
        self.datagrams.met(&(session, kind));
        if self.udp_ways.remove(&kind).is_some() {
            self.book
                .mended(|subject| matches!(subject, Subject::NoDatagram { kind: of, .. } if *of == kind));
        }
    }

    /// Its TCP connection is gone: no datagram can come any more, and nothing follows from that.
    pub fn no_more_datagrams(&mut self, session: SessionId, kind: Kind) {
        self.datagrams.met(&(session, kind));
    }

    /// Draws the consequences of what has not come by `now`, and gives the findings that have come up since the last call.
    pub fn tick(&mut self, now: Instant) -> Vec<Finding> {
        while let Some((session, kind, _)) = self.launches.overdue(now) {
            if let Some(times) = self.ways.entry(kind).or_default().strike(session) {
                self.strike(&Subject::NeverComes { kind, times }, now);
            }
        }
        while let Some((session, kind)) = self.datagrams.overdue(now) {
            if let Some(times) = self.udp_ways.entry(kind).or_default().strike(session) {
                self.strike(&Subject::NoDatagram { kind, times }, now);
            }
        }
        self.book.take_begun(now)
    }

    /// All findings, those that hold first, the latest first.
    pub fn findings(&self, now: Instant) -> Vec<Finding> {
        self.book.list(now)
    }

    fn strike(&mut self, subject: &Subject, now: Instant) {
        self.book.strike(subject, &self.places, now);
    }

    /// A way on which something comes is not closed.
    fn arrives(&mut self, kind: Kind) {
        if self.ways.remove(&kind).is_some() {
            self.book
                .mended(|subject| matches!(subject, Subject::NeverComes { kind: of, .. } if *of == kind));
        }
    }

    /// Whether a session may have been minted before this node's start: only the mark of a fleet outlives a process, and
    /// only until every session of that time has reached its hard end.
    fn remembers_less_than_a_session(&self, now: Instant) -> bool {
        self.places.marks_outlive_the_process
            && now.saturating_duration_since(self.started) < self.places.session_lifetime
    }
}
