//! How many connections may be open, in all and from one source.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::rate::{Rate, Verdict};
use crate::clock;
use crate::config;
use crate::fault::CloseReason;
use crate::types::source_of;

/// The counts of open connections, shared by all listeners and workers.
///
/// A source is counted from the moment at which its address is known. The counts of sources lie in shards, each under
/// its own lock, which is held for one look-up; a source without an open connection has no entry.
#[derive(Debug)]
pub struct Caps {
    total: AtomicUsize,
    per_source: AtomicUsize,
    open: AtomicUsize,
    /// Open in the process of the node before this one.
    before: AtomicUsize,
    sources: [Mutex<HashMap<IpAddr, usize>>; SHARDS],
    hasher: RandomState,
    refused_total: AtomicU64,
    refused_source: AtomicU64,
    accept_faults: AtomicU64,
    rate: Rate,
    unproven: Rate,
}

/// The counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Open connections.
    pub open: usize,
    /// Sources with at least one open connection.
    pub sources: usize,
    /// Connections closed at once because the node was full, since start.
    pub refused_total: u64,
    /// Connections closed because their source had its share, since start.
    pub refused_source: u64,
    /// Connections closed because their source began handshakes too fast, since start.
    pub refused_rate: u64,
    /// Times that the system refused to accept a connection for want of file descriptors or memory, since start.
    pub accept_faults: u64,
}

impl Caps {
    /// No connection yet, and these limits.
    pub fn new(limits: &config::Limits) -> Arc<Self> {
        Arc::new(Self {
            total: AtomicUsize::new(limits.connections),
            per_source: AtomicUsize::new(limits.connections_per_source),
            open: AtomicUsize::new(0),
            before: AtomicUsize::new(0),
            sources: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            refused_total: AtomicU64::new(0),
            refused_source: AtomicU64::new(0),
            accept_faults: AtomicU64::new(0),
            rate: Rate::new(limits.handshakes_per_source),
            unproven: Rate::new(limits.handshakes_per_source),
        })
    }

    /// Puts other limits in force for connections to come. None is closed for them.
    pub fn set_limits(&self, limits: &config::Limits) {
        self.total.store(limits.connections, Ordering::Relaxed);
        self.per_source.store(limits.connections_per_source, Ordering::Relaxed);
        self.rate.set(limits.handshakes_per_source);
        self.unproven.set(limits.handshakes_per_source);
    }

    /// The counts now.
    pub fn counts(&self) -> Counts {
        Counts {
            open: self.open.load(Ordering::Relaxed),
            sources: self.sources.iter().map(|shard| shard.lock().len()).sum(),
            refused_total: self.refused_total.load(Ordering::Relaxed),
            refused_source: self.refused_source.load(Ordering::Relaxed),
            refused_rate: self.rate.refused(),
            accept_faults: self.accept_faults.load(Ordering::Relaxed),
        }
    }

    /// Visits the counts that stand at `/metrics`, with the words for them.
    pub fn each_count(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        visit(&["full"], &self.refused_total);
        visit(&["accept faults"], &self.accept_faults);
    }

    /// Notes that a client may begin a handshake, whose address is not proven; whether its source comes no faster than it may.
    /// What others send in its name counts for nothing else.
    pub(super) fn begins_unproven(&self, client: IpAddr) -> bool {
        self.unproven.begin(client, clock::now()) == Verdict::Pass
    }

    /// Notes that a client begins a handshake: TLS, QUIC, or what comes in its place.
    ///
    /// # Errors
    /// [`CloseReason::HandshakeRate`] if its source comes too fast. The log says so once a spell.
    fn begin_handshake(&self, client: IpAddr) -> Result<(), CloseReason> {
        match self.rate.begin(client, clock::now()) {
            Verdict::Pass => Ok(()),
            Verdict::Refuse { begins } => {
                if begins {
                    tracing::warn!(
                        source = %source_of(client),
                        "one source begins handshakes too fast, closing what is too much; see limits.handshakes_per_source"
                    );
                }
                Err(CloseReason::HandshakeRate)
            }
        }
    }

    /// Learns how many connections are open in the process before this one, which count as well.
    pub fn set_before(&self, open: usize) {
        self.before.store(open, Ordering::Relaxed);
    }

    /// Connections that are open here and in the processes before this one.
    pub fn of_the_node(&self) -> usize {
        let before = self.before.load(Ordering::Relaxed);
        self.open.load(Ordering::Relaxed).saturating_add(before)
    }

    /// Takes one of the places of the whole node.
    pub fn admit(self: &Arc<Self>) -> Option<Permit> {
        let before = self.before.load(Ordering::Relaxed);
        let limit = self.total.load(Ordering::Relaxed).saturating_sub(before);
        let taken = self.open.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |open| {
            (open < limit).then(|| open + 1)
        });
        if taken.is_err() {
            self.refused_total.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Permit {
            caps: Arc::clone(self),
            source: None,
        })
    }

    pub(super) fn accept_failed(&self) {
        self.accept_faults.fetch_add(1, Ordering::Relaxed);
    }

    fn shard(&self, source: IpAddr) -> &Mutex<HashMap<IpAddr, usize>> {
        &self.sources[self.hasher.hash_one(source) as usize % SHARDS]
    }

    fn leave(&self, source: IpAddr) {
        let mut shard = self.shard(source).lock();
        let Some(count) = shard.get_mut(&source) else {
            debug_assert!(false, "a permit holds a place of a source that is not counted");
            return;
        };
        *count -= 1;
        if *count == 0 {
            shard.remove(&source);
            // What a flood of sources made large becomes small again.
            if shard.capacity() > SHRINK_ABOVE && shard.len() * 4 < shard.capacity() {
                let room = shard.len() * 2;
                shard.shrink_to(room);
            }
        }
    }
}

/// A place for one connection; dropped, it is free again.
#[derive(Debug)]
pub struct Permit {
    caps: Arc<Caps>,
    source: Option<IpAddr>,
}

impl Permit {
    /// Notes that the client begins a handshake.
    ///
    /// # Errors
    /// [`CloseReason::HandshakeRate`] if its source comes too fast.
    pub(super) fn begin_handshake(&self, client: IpAddr) -> Result<(), CloseReason> {
        self.caps.begin_handshake(client)
    }

    /// Takes a place of the client's source as well.
    ///
    /// # Errors
    /// [`CloseReason::SourceLimit`] if the source has its share.
    pub fn claim(&mut self, client: IpAddr) -> Result<(), CloseReason> {
        debug_assert!(self.source.is_none(), "a connection has one client");
        let source = source_of(client);
        let limit = self.caps.per_source.load(Ordering::Relaxed);
        {
            let mut shard = self.caps.shard(source).lock();
            let open = shard.get(&source).copied().unwrap_or(0);
            if open < limit {
                shard.insert(source, open + 1);
                self.source = Some(source);
                return Ok(());
            }
        }
        self.caps.refused_source.fetch_add(1, Ordering::Relaxed);
        Err(CloseReason::SourceLimit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(source) = self.source {
            self.caps.leave(source);
        }
        self.caps.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Enough that two workers seldom meet at one lock.
const SHARDS: usize = 32;
const SHRINK_ABOVE: usize = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::listen::tests::limits;

    #[test]
    fn places_come_back_when_permits_are_dropped() {
        let caps = Caps::new(&limits(2, 9));
        let first = caps.admit().unwrap();
        let second = caps.admit().unwrap();
        assert!(caps.admit().is_none());
        drop(first);
        assert!(caps.admit().is_some());
        drop(second);
        assert_eq!(
            caps.counts(),
            Counts {
                open: 0,
                sources: 0,
                refused_total: 1,
                refused_source: 0,
                refused_rate: 0,
                accept_faults: 0
            }
        );
    }

    #[test]
    fn one_source_cannot_take_the_places_of_another() {
        let caps = Caps::new(&limits(100, 2));
        let claim = |address: &str| {
            let mut permit = caps.admit().unwrap();
            permit.claim(address.parse().unwrap()).map(|()| permit)
        };
        let first = claim("192.0.2.1").unwrap();
        let _second = claim("::ffff:192.0.2.1").unwrap();
        assert_eq!(claim("192.0.2.1").unwrap_err(), CloseReason::SourceLimit);
        let _other = claim("192.0.2.2").unwrap();
        assert_eq!((caps.counts().open, caps.counts().sources), (3, 2));
        drop(first);
        assert!(claim("192.0.2.1").is_ok());
        assert_eq!(caps.counts().refused_source, 1);
    }

    #[test]
    fn limits_change_for_connections_to_come() {
        let caps = Caps::new(&limits(3, 3));
        let held: Vec<_> = (0..3).map(|_| caps.admit().unwrap()).collect();
        caps.set_limits(&limits(1, 1));
        assert_eq!(caps.counts().open, held.len());
        assert!(caps.admit().is_none());
        caps.set_limits(&limits(4, 1));
        assert!(caps.admit().is_some());
    }

    #[test]
    fn a_flood_of_sources_leaves_no_memory_behind() {
        let caps = Caps::new(&limits(usize::MAX, 1));
        let flood: Vec<_> = (0..20_000u32)
            .map(|i| {
                let mut permit = caps.admit().unwrap();
                permit.claim(IpAddr::V4(i.into())).unwrap();
                permit
            })
            .collect();
        assert_eq!(caps.counts().sources, flood.len());
        drop(flood);
        assert_eq!(caps.counts().sources, 0);
        let room: usize = caps.sources.iter().map(|shard| shard.lock().capacity()).sum();
        assert!(room <= SHARDS * 2 * SHRINK_ABOVE, "{room}");
    }

    proptest! {
        #[test]
        fn the_counts_are_those_of_the_open_permits(moves in proptest::collection::vec((any::<bool>(), 0u8..6), 0..200)) {
            let (total, share) = (8, 3);
            let caps = Caps::new(&limits(total, share));
            let mut open: Vec<(u8, Permit)> = Vec::new();
            for (opens, who) in moves {
                let of_source = open.iter().filter(|(source, _)| *source == who).count();
                if opens {
                    let admitted = caps.admit();
                    prop_assert_eq!(admitted.is_some(), open.len() < total);
                    if let Some(mut permit) = admitted {
                        let claimed = permit.claim(IpAddr::from([192, 0, 2, who]));
                        prop_assert_eq!(claimed.is_ok(), of_source < share);
                        if claimed.is_ok() {
                            open.push((who, permit));
                        }
                    }
                } else if let Some(at) = open.iter().position(|(source, _)| *source == who) {
                    open.swap_remove(at);
                }
                let sources: std::collections::HashSet<_> = open.iter().map(|(source, _)| source).collect();
                prop_assert_eq!((caps.counts().open, caps.counts().sources), (open.len(), sources.len()));
            }
        }
    }
}
