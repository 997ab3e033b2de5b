//! What has changed of the grants since somebody asked: whoever keeps them elsewhere pays for what changes, not for what
//! lives.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::types::SessionId;

/// Grants that have changed, each named once. Nothing is noted before [`watch`](Self::watch).
#[derive(Debug, Default)]
pub struct Changes {
    is_watched: AtomicBool,
    noted: Mutex<Noted>,
    more: Condvar,
}

#[derive(Debug, Default)]
struct Noted {
    altered: Vec<SessionId>,
    used: Vec<SessionId>,
    is_woken: bool,
}

impl Changes {
    /// Notes changes from now on.
    pub fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
    }

    /// Notes nothing any more.
    pub fn forget(&self) {
        self.is_watched.store(false, Ordering::Release);
        *self.noted.lock() = Noted::default();
        self.more.notify_all();
    }

    /// Waits until a grant is there or has other tokens or routes, somebody [wakes](Self::wake) it, or `patience` is over;
    /// says which grants those are. Blocks.
    pub fn wait(&self, patience: Duration) -> Vec<SessionId> {
        let mut noted = self.noted.lock();
        let quiet = |noted: &mut Noted| noted.altered.is_empty() && !noted.is_woken;
        // Late or not, what is there is told.
        let _ = self.more.wait_while_for(&mut noted, quiet, patience);
        noted.is_woken = false;
        take(&mut noted.altered)
    }

    /// Ends a wait.
    pub fn wake(&self) {
        self.noted.lock().is_woken = true;
        self.more.notify_all();
    }

    /// Grants that were used since this was asked last, and did not change otherwise.
    pub fn used(&self) -> Vec<SessionId> {
        take(&mut self.noted.lock().used)
    }
}

/// Which changes of one grant are noted and not yet told.
#[derive(Debug, Default)]
pub(super) struct Marks {
    altered: AtomicBool,
    used: AtomicBool,
}

impl Marks {
    pub(super) fn alter(&self, id: SessionId, changes: &Changes) {
        if changes.is_watched.load(Ordering::Acquire) && !self.altered.swap(true, Ordering::AcqRel) {
            changes.noted.lock().altered.push(id);
            changes.more.notify_one();
        }
    }

    /// Cheap enough for every message.
    pub(super) fn used(&self, id: SessionId, changes: &Changes) {
        let news = !self.used.load(Ordering::Relaxed) && changes.is_watched.load(Ordering::Relaxed);
        if news && !self.used.swap(true, Ordering::AcqRel) {
            changes.noted.lock().used.push(id);
        }
    }

    /// To be called before the grant is looked at: what changes later is noted again.
    pub(super) fn clear(&self) {
        self.altered.swap(false, Ordering::AcqRel);
        self.clear_use();
    }

    /// The same, before only its use is looked at.
    pub(super) fn clear_use(&self) {
        self.used.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_once_and_again_only_after_a_look() {
        let (changes, marks) = (Changes::default(), Marks::default());
        let id = SessionId::from_random(7);
        marks.alter(id, &changes);
        assert!(changes.wait(Duration::ZERO).is_empty(), "nobody watches");
        changes.watch();
        for _ in 0..3 {
            marks.alter(id, &changes);
            marks.used(id, &changes);
        }
        assert_eq!((changes.wait(Duration::MAX), changes.used()), (vec![id], vec![id]));
        marks.alter(id, &changes);
        assert!(changes.wait(Duration::ZERO).is_empty(), "told, and not looked at");
        marks.clear();
        marks.alter(id, &changes);
        assert_eq!(changes.wait(Duration::MAX), [id]);
        changes.wake();
        assert!(changes.wait(Duration::MAX).is_empty());
    }
}
