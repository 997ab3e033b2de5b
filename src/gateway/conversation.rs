//! What one connection's requests leave behind for its one line in the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use http::Version;

use crate::fault::CloseReason;
use crate::listen::Facts;
pub(super) use crate::observe::tell;
use crate::observe::{Watch, level_of};
use crate::secure::TlsFacts;
use crate::types::SessionId;
use crate::upstream::web::Own;
use crate::wire::timer::Timers;

/// One client connection, from its handshake to its end.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) facts: Facts,
    /// `None` on a listener of plain HTTP.
    pub(super) tls: Option<TlsFacts>,
    /// The connection itself, if it is of QUIC.
    pub(super) quic: Option<quinn::Connection>,
    /// The connection to a target that belongs to this one alone.
    pub(super) own: Own,
    /// For the exchanges with targets.
    pub(super) timers: Timers,
    /// Another process of this node brought it here.
    pub(super) carried: bool,
    /// Why a request's answer ends the connection; the first one stands.
    end: OnceLock<CloseReason>,
    session: OnceLock<SessionId>,
    /// Something other than a health check was asked.
    noteworthy: AtomicBool,
    pub(super) watch: Arc<Watch>,
}

impl Conversation {
    pub(super) fn new(facts: Facts, tls: Option<TlsFacts>, watch: Arc<Watch>) -> Self {
        Self {
            facts,
            tls,
            quic: None,
            own: Own::default(),
            timers: Timers::default(),
            carried: false,
            end: OnceLock::new(),
            session: OnceLock::new(),
            noteworthy: AtomicBool::new(false),
            watch,
        }
    }

    /// The same, over QUIC.
    pub(super) fn over(self, connection: quinn::Connection) -> Self {
        let quic = Some(connection);
        Self { quic, ..self }
    }

    /// The same, brought here by another process of this node.
    pub(super) fn carried(self) -> Self {
        Self { carried: true, ..self }
    }

    /// The version of HTTP that is spoken, 1.1 for any 1.x.
    pub(super) fn version(&self) -> Version {
        if self.quic.is_some() {
            Version::HTTP_3
        } else if self.tls.as_ref().is_some_and(|tls| tls.h2) {
            Version::HTTP_2
        } else {
            Version::HTTP_11
        }
    }

    /// Notes why this connection is about to end.
    pub(super) fn end_with(&self, reason: CloseReason) {
        // The first reason stands: what follows is its consequence.
        let _ = self.end.set(reason);
    }

    pub(super) fn end(&self) -> Option<CloseReason> {
        self.end.get().copied()
    }

    /// Notes whose connection it turned out to be.
    pub(super) fn belongs_to(&self, session: SessionId) {
        // One client's keep-alive connection can serve a second session after a logout: the first one names it.
        let _ = self.session.set(session);
    }

    pub(super) fn note_request(&self, is_health_check: bool) {
        if !is_health_check {
            self.noteworthy.store(true, Ordering::Relaxed);
        }
    }

    /// Counts the connection's end and writes its one line. Health checks, which come by the thousand, stay at DEBUG.
    pub(super) fn log(&self, reason: CloseReason) {
        let quiet = reason == CloseReason::Completed && !self.noteworthy.load(Ordering::Relaxed);
        let level = if quiet { tracing::Level::DEBUG } else { level_of(reason) };
        let facts = &self.facts;
        self.watch.counters().closed(reason);
        tell!(
            level,
            reason = reason.code(),
            session = self.session.get().map(tracing::field::display),
            client = %facts.client,
            via = (facts.peer.ip() != facts.client.ip()).then(|| tracing::field::display(facts.peer)),
            local = %facts.local,
            relayed_by = facts.relayed_by.as_ref().map(tracing::field::display),
            listener = &*facts.listener,
            tls = self.tls.as_ref().and_then(|tls| tls.version.as_str()),
            sni = self.tls.as_ref().and_then(|tls| tls.sni.as_deref()),
            ms = crate::clock::now().saturating_duration_since(facts.since).as_millis(),
            "connection closed"
        );
    }
}
