//! The room into which relays read: one piece a worker, used by whichever relay is being polled.

use std::cell::Cell;

/// How much is read at once.
pub(in crate::tunnel) const LENGTH: usize = 64 * 1024;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Lends this worker's room for the length of a call. What it holds at first means nothing.
pub(in crate::tunnel) fn with<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    // Taken away and put back: a call within a call has room of its own, which replaces this one.
    let mut room = SCRATCH.take();
    room.resize(LENGTH, 0);
    let done = work(&mut room);
    SCRATCH.set(room);
    done
}
