//! Counts since the start of the node: plain atomics, one for each word of the closed lists.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fault::{CloseReason, Refusal};

/// What a secondary connection is, where it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// The HTTPS tunnel.
    Tunnel,
    /// Blast over a WebSocket.
    Blast,
    /// PCoIP over TCP.
    Pcoip,
    /// QUIC.
    Quic,
    /// RDP of a client that knows no gateway.
    Rdp,
    /// A flow of datagrams beside a Blast or PCoIP connection.
    Udp,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 6] = [Self::Tunnel, Self::Blast, Self::Pcoip, Self::Quic, Self::Rdp, Self::Udp];

    /// The code in metrics and in the API.
    pub fn code(self) -> &'static str {
        match self {
            Self::Tunnel => "tunnel",
            Self::Blast => "blast",
            Self::Pcoip => "pcoip",
            Self::Quic => "quic",
            Self::Rdp => "rdp",
            Self::Udp => "udp",
        }
    }

    /// The name that people read.
    pub fn words(self) -> &'static str {
        match self {
            Self::Tunnel => "the HTTPS tunnel",
            Self::Blast => "Blast",
            Self::Pcoip => "PCoIP",
            Self::Quic => "QUIC",
            Self::Rdp => "RDP",
            Self::Udp => "UDP",
        }
    }
}

/// What became of a datagram of a QUIC session that did not go on as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// Dropped on its way to the client: the path took less than the desktop sent.
    ToClient,
    /// Dropped on its way to the desktop: it came faster than it could be passed on.
    ToDesktop,
    /// Sent to the client within the stream: it was larger than the path took at that moment.
    InStream,
}

impl Aside {
    /// Every one.
    pub const ALL: [Self; 3] = [Self::ToClient, Self::ToDesktop, Self::InStream];

    fn code(self) -> &'static str {
        match self {
            Self::ToClient => "to_client",
            Self::ToDesktop => "to_desktop",
            Self::InStream => "in_stream",
        }
    }
}

/// The counts. Each only ever grows; reading one waits for nothing.
#[derive(Debug, Default)]
pub struct Counters {
    refused: [[AtomicU64; Refusal::ALL.len()]; Kind::ALL.len()],
    admitted: [AtomicU64; Kind::ALL.len()],
    carried: [AtomicU64; Kind::ALL.len()],
    closed: PerReason,
    begun: AtomicU64,
    ended: PerReason,
    aside: [AtomicU64; Aside::ALL.len()],
}

impl Counters {
    /// Counts a secondary connection that was turned away. For whoever writes the reason to the log, in the same breath.
    pub fn refused(&self, kind: impl Into<Kind>, reason: Refusal) {
        grow(&self.refused[kind.into() as usize][reason as usize]);
    }

    /// Counts a secondary connection that was let in.
    pub fn admitted(&self, kind: impl Into<Kind>) {
        grow(&self.admitted[kind.into() as usize]);
    }

    /// Counts a secondary connection that was carried to the node of its grant.
    pub fn carried(&self, kind: impl Into<Kind>) {
        grow(&self.carried[kind.into() as usize]);
    }

    /// Counts the end of a client's connection.
    pub fn closed(&self, reason: CloseReason) {
        self.closed.grow(reason);
    }

    /// Counts a session that begins.
    pub fn session_begun(&self) {
        grow(&self.begun);
    }

    /// Counts the end of a session.
    pub fn session_ended(&self, reason: CloseReason) {
        self.ended.grow(reason);
    }

    /// Counts a datagram of a QUIC session that did not go on as one.
    pub fn datagram(&self, aside: Aside) {
        grow(&self.aside[aside as usize]);
    }

    /// Datagrams of QUIC sessions that this became of.
    pub fn datagrams(&self, aside: Aside) -> u64 {
        read(&self.aside[aside as usize])
    }

    /// Visits every count, with the words for it.
    pub fn each(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        for kind in Kind::ALL {
            for reason in Refusal::ALL {
                visit(
                    &["refused", kind.code(), reason.code()],
                    &self.refused[kind as usize][reason as usize],
                );
            }
            visit(&["admitted", kind.code()], &self.admitted[kind as usize]);
            visit(&["carried", kind.code()], &self.carried[kind as usize]);
        }
        self.closed.each(|code, count| visit(&["closed", code], count));
        visit(&["sessions"], &self.begun);
        self.ended.each(|code, count| visit(&["ended", code], count));
        for aside in Aside::ALL {
            visit(&["datagrams", aside.code()], &self.aside[aside as usize]);
        }
    }

    /// Secondary connections of a kind that were turned away for a reason.
    pub fn refusals(&self, kind: Kind, reason: Refusal) -> u64 {
        read(&self.refused[kind as usize][reason as usize])
    }

    /// Secondary connections of a kind that were let in.
    pub fn admissions(&self, kind: Kind) -> u64 {
        read(&self.admitted[kind as usize])
    }

    /// Secondary connections of a kind that were carried to another node.
    pub fn carries(&self, kind: Kind) -> u64 {
        read(&self.carried[kind as usize])
    }

    /// Connections that ended, by the code of the reason.
    pub fn closes(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.closed.read()
    }

    /// Sessions that began.
    pub fn sessions_begun(&self) -> u64 {
        read(&self.begun)
    }

    /// Sessions that ended, by the code of the reason.
    pub fn sessions_ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.ended.read()
    }
}

/// One count for each code that an end can have.
#[derive(Debug, Default)]
struct PerReason {
    own: [AtomicU64; CloseReason::ALL.len()],
    refused: [AtomicU64; Refusal::ALL.len()],
}

impl PerReason {
    fn grow(&self, reason: CloseReason) {
        if let CloseReason::Refused(refusal) = reason {
            grow(&self.refused[refusal as usize]);
        } else if let Some(place) = CloseReason::ALL.iter().position(|known| *known == reason) {
            grow(&self.own[place]);
        }
    }

    fn each(&self, mut visit: impl FnMut(&'static str, &AtomicU64)) {
        self.counts().for_each(|(code, count)| visit(code, count));
    }

    fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts().map(|(code, count)| (code, read(count)))
    }

    fn counts(&self) -> impl Iterator<Item = (&'static str, &AtomicU64)> {
        let own = CloseReason::ALL.iter().zip(&self.own);
        let own = own.filter(|(reason, _)| !matches!(reason, CloseReason::Refused(_)));
        let refused = Refusal::ALL.iter().zip(&self.refused);
        own.map(|(reason, count)| (reason.code(), count))
            .chain(refused.map(|(refusal, count)| (refusal.code(), count)))
    }
}

fn grow(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_is_counted_by_itself() {
        for (number, reason) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(
                reason as usize, number,
                "the list stands in the order of the declaration"
            );
        }
        let counters = Counters::default();
        for (number, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, number, "the list stands in the order of the declaration");
            for reason in Refusal::ALL {
                counters.refused(kind, reason);
                assert_eq!(counters.refusals(kind, reason), 1);
            }
        }
    }

    #[test]
    fn each_datagram_is_counted_under_what_became_of_it() {
        let counters = Counters::default();
        for (number, aside) in Aside::ALL.into_iter().enumerate() {
            assert_eq!(
                aside as usize, number,
                "the list stands in the order of the declaration"
            );
            counters.datagram(aside);
            assert_eq!(
                Aside::ALL.map(|aside| counters.datagrams(aside)).iter().sum::<u64>(),
                1 + number as u64
            );
            assert_eq!(counters.datagrams(aside), 1);
        }
    }

    #[test]
    fn each_end_is_counted_under_its_own_code() {
        let counters = Counters::default();
        let refusals = Refusal::ALL.into_iter().map(CloseReason::Refused);
        for reason in CloseReason::ALL.into_iter().chain(refusals) {
            let before: Vec<_> = counters.closes().collect();
            counters.closed(reason);
            for ((code, now), (_, earlier)) in counters.closes().zip(before) {
                assert_eq!(
                    now - earlier,
                    u64::from(code == reason.code()),
                    "{code} after {reason:?}"
                );
            }
        }
    }
}
