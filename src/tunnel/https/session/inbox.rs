//! What came from the client: the numbers seen, and which of them are not acknowledged yet.

use std::time::{Duration, Instant};

#[derive(Debug, Default)]
pub(super) struct Inbox {
    highest: u32,
    chunks: u32,
    unacknowledged: u32,
    due: Option<Instant>,
}

impl Inbox {
    /// Whether a chunk of that number came before.
    pub(super) fn is_replay(&self, id: u32) -> bool {
        id <= self.highest
    }

    pub(super) fn receive(&mut self, id: u32, now: Instant) {
        self.highest = id;
        self.chunks = self.chunks.saturating_add(1);
        self.unacknowledged = self.unacknowledged.saturating_add(1);
        if self.unacknowledged >= EVERY {
            self.due = None;
        } else if self.due.is_none() {
            self.due = Some(now + DELAY);
        }
    }

    /// How many chunks came so far.
    pub(super) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The number to be acknowledged, if it is news.
    pub(super) fn news(&self) -> Option<u32> {
        (self.unacknowledged > 0).then_some(self.highest)
    }

    /// The number to be acknowledged at once, by a chunk of its own.
    pub(super) fn overdue(&self) -> Option<u32> {
        (self.unacknowledged >= EVERY).then_some(self.highest)
    }

    /// When an acknowledgement waits for no further chunk.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    pub(super) fn acknowledged(&mut self) {
        self.unacknowledged = 0;
        self.due = None;
    }

    /// Says the highest number again at once, whether or not it is news.
    pub(super) fn repeat(&mut self) {
        if self.highest > 0 {
            self.unacknowledged = EVERY;
            self.due = None;
        }
    }

    pub(super) fn tick(&mut self, now: Instant) {
        if self.due.is_some_and(|due| now >= due) {
            self.repeat();
        }
    }

    pub(super) fn check_invariants(&self) {
        assert_eq!(
            self.due.is_some(),
            (1..EVERY).contains(&self.unacknowledged),
            "an acknowledgement is forgotten"
        );
    }
}

/// Clients stall their uploads if more than a few wait for an acknowledgement.
const EVERY: u32 = 4;
/// How long fewer chunks wait for a chunk that takes their acknowledgement along.
const DELAY: Duration = Duration::from_millis(50);
