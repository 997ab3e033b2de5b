//! Connections to targets that wait for the next request.
//!
//! Each target's address has a lane. In it lie idle connections, the one used last on top, so that those too many grow
//! old and go. A worker takes from its own stack first, and from another's before a new connection is made. No lock is
//! held for longer than it takes to push or pop; what is dropped is dropped outside it.

use std::cell::Cell;
use std::collections::VecDeque;
use std::mem;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use papaya::HashMap;
use parking_lot::Mutex;

/// The lanes of one backend by address. `C` is a connection that nobody uses.
#[derive(Debug)]
pub(super) struct Lanes<C, S> {
    by_address: HashMap<SocketAddr, Arc<Lane<C, S>>>,
}

impl<C, S: Default> Lanes<C, S> {
    pub(super) fn new() -> Self {
        Self {
            by_address: HashMap::new(),
        }
    }

    /// The lane to `address`, made if there is none.
    pub(super) fn to(&self, address: SocketAddr) -> Arc<Lane<C, S>> {
        let lanes = self.by_address.pin();
        match lanes.get(&address) {
            Some(lane) => lane.clone(),
            None => lanes.get_or_insert_with(address, || Arc::new(Lane::new())).clone(),
        }
    }

    /// Drops what has been idle for too long or is of no more use, and lanes that nobody uses. `is_alive` looks at a
    /// connection, `is_shared` at what the lane shares.
    pub(super) fn sweep(
        &self,
        now: Instant,
        mut is_alive: impl FnMut(&mut C) -> bool,
        mut is_shared: impl FnMut(&S) -> bool,
    ) {
        let lanes = self.by_address.pin();
        let mut unused = Vec::new();
        for (address, lane) in &lanes {
            lane.sweep(now, &mut is_alive);
            // Whoever takes the lane in this moment keeps it; its connections end with that one request.
            if !is_shared(&lane.shared) && lane.is_empty() && Arc::strong_count(lane) == 1 {
                unused.push(*address);
            }
        }
        for address in unused {
            lanes.remove(&address);
        }
    }

    /// Drops every connection that nobody uses, and calls `close` for what lanes share.
    pub(super) fn clear(&self, close: impl Fn(&S)) {
        for (_, lane) in &self.by_address.pin() {
            for stack in &lane.stacks {
                drop(mem::take(&mut *stack.0.lock()));
            }
            close(&lane.shared);
        }
    }

    /// Connections that nobody uses.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        let lanes = self.by_address.pin();
        lanes
            .values()
            .flat_map(|lane| &lane.stacks)
            .map(|stack| stack.0.lock().len())
            .sum()
    }
}

/// The idle connections to one address, and what connections there share.
#[derive(Debug)]
pub(super) struct Lane<C, S> {
    stacks: Box<[Stack<C>]>,
    pub(super) shared: S,
}

/// Apart from its neighbours in memory: each belongs to another worker.
#[derive(Debug)]
#[repr(align(128))]
struct Stack<C>(Mutex<VecDeque<Idle<C>>>);

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    /// The name that the target proved.
    name: Option<Arc<str>>,
    /// Not used from then on.
    until: Instant,
}

impl<C, S: Default> Lane<C, S> {
    fn new() -> Self {
        Self {
            stacks: (0..*STACKS).map(|_| Stack(Mutex::default())).collect(),
            shared: S::default(),
        }
    }

    /// The connection for `name` that was used last and that `is_alive`, with that name.
    pub(super) fn take(
        &self,
        name: Option<&str>,
        now: Instant,
        mut is_alive: impl FnMut(&mut C) -> bool,
    ) -> Option<(C, Option<Arc<str>>)> {
        let own = seat() % self.stacks.len();
        let (before, from) = self.stacks.split_at(own);
        for stack in from.iter().chain(before) {
            while let Some(mut idle) = stack.pop(name) {
                if now < idle.until && is_alive(&mut idle.connection) {
                    return Some((idle.connection, idle.name));
                }
            }
        }
        None
    }

    /// Keeps a connection, at most for as long as the target `keeps` it, if it says so; the one that has been idle for
    /// longest gives way if there are too many.
    pub(super) fn put(&self, name: Option<Arc<str>>, connection: C, keeps: Option<Duration>, now: Instant) {
        let stack = &self.stacks[seat() % self.stacks.len()];
        let room = (MAX_IDLE / self.stacks.len()).max(1);
        let idle = Idle {
            connection,
            name,
            until: now + keeps.map_or(IDLE, |keeps| keeps.saturating_sub(MARGIN).min(IDLE)),
        };
        let _outgrown = stack.push(idle, room);
    }

    fn sweep(&self, now: Instant, mut is_alive: impl FnMut(&mut C) -> bool) {
        for stack in &self.stacks {
            let mut swept = mem::take(&mut *stack.0.lock());
            swept.retain_mut(|idle| now < idle.until && is_alive(&mut idle.connection));
            let mut held = stack.0.lock();
            swept.append(&mut held);
            *held = swept;
        }
    }

    fn is_empty(&self) -> bool {
        self.stacks.iter().all(|stack| stack.0.lock().is_empty())
    }
}

impl<C> Stack<C> {
    fn pop(&self, name: Option<&str>) -> Option<Idle<C>> {
        let mut held = self.0.lock();
        let newest_first = held.iter().rev().take(LOOKED_AT);
        let found = newest_first.enumerate().find(|(_, idle)| idle.name.as_deref() == name);
        let (from_top, _) = found?;
        let at = held.len() - 1 - from_top;
        held.remove(at)
    }

    /// Puts a connection on top, and gives back the bottom one if there are more than `room`.
    fn push(&self, idle: Idle<C>, room: usize) -> Option<Idle<C>> {
        let mut held = self.0.lock();
        let outgrown = if held.len() >= room { held.pop_front() } else { None };
        held.push_back(idle);
        outgrown
    }
}

/// The number of this thread among those that ever asked.
fn seat() -> usize {
    thread_local! {
        static SEAT: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SEAT.get().unwrap_or_else(|| {
        let seat = SEATS.fetch_add(1, Ordering::Relaxed);
        SEAT.set(Some(seat));
        seat
    })
}

static SEATS: AtomicUsize = AtomicUsize::new(0);

/// One for each worker; with very many workers some share.
static STACKS: LazyLock<usize> = LazyLock::new(|| available_parallelism().map_or(1, usize::from).min(16));

/// Shorter than the 60 s after which most servers close.
const IDLE: Duration = Duration::from_secs(55);
/// How much earlier than the target says a connection is given up, so that no request meets its end.
const MARGIN: Duration = Duration::from_secs(1);
/// Idle connections to one address.
const MAX_IDLE: usize = 256;
/// How deep a connection for the right name is looked for.
const LOOKED_AT: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn the_connection_used_last_is_taken_first() {
        let lane = lane();
        let now = clock::now();
        for connection in 1..=3 {
            lane.put(None, connection, None, now);
        }
        assert_eq!(taken(&lane, now), [3, 2, 1]);
    }

    #[test]
    fn a_connection_is_for_the_name_that_was_proved() {
        let lane = lane();
        let now = clock::now();
        lane.put(Some("a.test".into()), 1, None, now);
        lane.put(Some("b.test".into()), 2, None, now);
        lane.put(None, 3, None, now);
        assert_eq!(lane.take(Some("c.test"), now, |_| true), None);
        assert_eq!(
            lane.take(Some("a.test"), now, |_| true),
            Some((1, Some("a.test".into())))
        );
        assert_eq!(lane.take(None, now, |_| true), Some((3, None)));
    }

    #[test]
    fn one_that_is_old_or_dead_is_passed_over() {
        let lane = lane();
        let start = clock::now();
        lane.put(None, 1, None, start);
        lane.put(None, 2, None, start + IDLE / 2);
        lane.put(None, 3, None, start + IDLE / 2);
        let taken = lane.take(None, start + IDLE, |connection| *connection != 3);
        assert_eq!(taken, Some((2, None)));
        assert_eq!(lane.take(None, start + IDLE, |_| true), None);
    }

    #[test]
    fn a_target_that_says_when_it_closes_is_believed() {
        let (lane, start) = (lane(), clock::now());
        let seconds = Duration::from_secs;
        for (connection, keeps) in [(1, Some(seconds(1))), (2, Some(seconds(5))), (3, Some(seconds(900)))] {
            lane.put(None, connection, keeps, start);
        }
        assert_eq!(taken(&lane, start + seconds(4)), [3]);
        lane.put(None, 4, Some(seconds(5)), start);
        assert_eq!(taken(&lane, start + seconds(3)), [4]);
    }

    #[test]
    fn too_many_push_out_the_oldest() {
        let lane = lane();
        let now = clock::now();
        for connection in 0..1000 {
            lane.put(None, connection, None, now);
        }
        let taken = taken(&lane, now);
        assert_eq!(taken.len(), MAX_IDLE / *STACKS);
        assert_eq!(taken[0], 999);
    }

    #[test]
    fn a_sweep_leaves_only_what_can_still_be_used() {
        let lanes = Lanes::<u32, ()>::new();
        let start = clock::now();
        let [one, other]: [SocketAddr; 2] = ["192.0.2.1:1".parse().unwrap(), "192.0.2.2:1".parse().unwrap()];
        lanes.to(one).put(None, 1, None, start);
        lanes.to(one).put(None, 2, None, start + IDLE / 2);
        lanes.to(one).put(None, 3, None, start + IDLE / 2);
        lanes.to(other).put(None, 4, None, start);
        lanes.sweep(start + IDLE, |connection| *connection != 3, |()| false);
        assert_eq!((lanes.idle(), lanes.by_address.len()), (1, 1));
        assert_eq!(taken(&lanes.to(one), start + IDLE), [2]);
    }

    #[test]
    fn a_lane_in_use_is_not_swept() {
        let lanes = Lanes::<u32, ()>::new();
        let address = "192.0.2.1:1".parse().unwrap();
        let used = lanes.to(address);
        lanes.sweep(clock::now(), |_| true, |()| false);
        used.put(None, 1, None, clock::now());
        assert_eq!(lanes.idle(), 1);
    }

    fn lane() -> Lane<u32, ()> {
        Lane::new()
    }

    fn taken(lane: &Lane<u32, ()>, now: Instant) -> Vec<u32> {
        let next = || lane.take(None, now, |_| true).map(|(connection, _)| connection);
        std::iter::from_fn(next).collect()
    }
}
