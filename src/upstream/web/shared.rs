//! Connections of HTTP/2 to one address, which many requests share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::upstream::connect::ConnectFault;
use crate::wire::h2::{Connection, EXCHANGES, Load, Place};

/// The connections of one lane.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Shared(Mutex<Vec<Arc<Slot>>>);

/// A connection, or one to be: the first request that needs it makes it, and the others wait for that.
#[derive(Debug)]
pub(super) struct Slot {
    name: Option<Arc<str>>,
    pub(super) load: Load,
    pub(super) cell: OnceCell<Result<Connection, ConnectFault>>,
}

impl Shared {
    /// A connection for `name` with room for one more exchange, and that room. Exchanges crowd together, so that what was
    /// opened for a busy time grows idle and goes.
    pub(super) fn slot(&self, name: Option<&str>, now: Instant) -> (Arc<Slot>, Place) {
        let mut slots = self.0.lock();
        loop {
            let fitting = slots
                .iter()
                .enumerate()
                .filter(|(_, slot)| slot.name.as_deref() == name);
            let free = fitting.clone().find(|(_, slot)| slot.load.exchanges() < slot.allowed());
            let least = || fitting.clone().min_by_key(|(_, slot)| slot.load.exchanges());
            let found = free.or_else(|| if fitting.clone().count() < MOST { None } else { least() });
            match found {
                Some((at, slot)) if !slot.is_usable() => drop(slots.swap_remove(at)),
                Some((_, slot)) => return (slot.clone(), slot.load.reserve(now)),
                None => {
                    let slot = Arc::new(Slot {
                        name: name.map(Arc::from),
                        load: Load::new(now),
                        cell: OnceCell::new(),
                    });
                    let place = slot.load.reserve(now);
                    slots.push(slot.clone());
                    return (slot, place);
                }
            }
        }
    }

    /// Drops those that are of no more use; whether any is left.
    pub(super) fn sweep(&self, now: Instant, idle: Duration) -> bool {
        let mut slots = self.0.lock();
        slots.retain(|slot| slot.is_usable() && !slot.load.is_idle(now, idle));
        !slots.is_empty()
    }

    /// Drops all; exchanges that go on keep theirs.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl Slot {
    fn allowed(&self) -> usize {
        match self.cell.get() {
            Some(Ok(connection)) => connection.allowed(),
            Some(Err(_)) | None => EXCHANGES,
        }
    }

    fn is_usable(&self) -> bool {
        match self.cell.get() {
            Some(Ok(connection)) => connection.is_open(),
            Some(Err(_)) => false,
            None => !self.load.is_retired(),
        }
    }
}

/// Connections to one address and name.
const MOST: usize = 16;
