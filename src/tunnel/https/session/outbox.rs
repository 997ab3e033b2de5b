//! What goes to the client: numbered, and kept until it is acknowledged.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Violation;

/// Chunks in the order of their numbers, from the first that is not acknowledged.
#[derive(Debug)]
pub(super) struct Outbox {
    chunks: VecDeque<Bytes>,
    octets: usize,
    /// How many of `chunks` were handed to the present connection.
    cursor: usize,
    /// The number of the next chunk.
    next: u32,
    /// The highest number ever handed to a connection.
    transmitted: u32,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            chunks: VecDeque::new(),
            octets: 0,
            cursor: 0,
            next: 1,
            transmitted: 0,
        }
    }
}

impl Outbox {
    /// Numbers a chunk and puts it at the end.
    pub(super) fn push(&mut self, chunk: impl FnOnce(u32) -> Bytes) {
        let chunk = chunk(self.next);
        self.octets += chunk.len();
        self.chunks.push_back(chunk);
        self.next += 1;
    }

    /// The next chunk for the present connection.
    pub(super) fn next(&mut self) -> Option<Bytes> {
        let chunk = self.chunks.get(self.cursor)?.clone();
        self.cursor += 1;
        self.transmitted = self.transmitted.max(self.first() + self.cursor as u32 - 1);
        Some(chunk)
    }

    /// Lets go of everything up to the number `ack`.
    pub(super) fn acknowledge(&mut self, ack: u32) -> Result<(), Violation> {
        if ack > self.transmitted {
            return Err(Violation::AckAhead {
                ack,
                transmitted: self.transmitted,
            });
        }
        while self.first() <= ack {
            let Some(chunk) = self.chunks.pop_front() else { break };
            self.octets -= chunk.len();
            self.cursor = self.cursor.saturating_sub(1);
        }
        // A burst is over: an idle tunnel keeps no table for it.
        if self.chunks.is_empty() && self.chunks.capacity() > SPARE {
            self.chunks = VecDeque::new();
        }
        Ok(())
    }

    /// Another connection: everything is to be sent again.
    pub(super) fn rewind(&mut self) {
        self.cursor = 0;
    }

    /// Drops what no connection has had; its numbers are free again, because nobody has seen them.
    pub(super) fn drop_untransmitted(&mut self) {
        let keep = (self.transmitted + 1 - self.first()) as usize;
        self.octets -= self.chunks.drain(keep..).map(|chunk| chunk.len()).sum::<usize>();
        self.next = self.transmitted + 1;
    }

    /// Whether the numbers come to their end.
    pub(super) fn is_used_up(&self) -> bool {
        self.next > LAST
    }

    /// How many chunks wait for the present connection.
    pub(super) fn backlog(&self) -> usize {
        self.chunks.len() - self.cursor
    }

    pub(super) fn is_transmitted(&self) -> bool {
        self.cursor == self.chunks.len()
    }

    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    pub(super) fn octets(&self) -> usize {
        self.octets
    }

    pub(super) fn check_invariants(&self) {
        assert!(self.cursor <= self.chunks.len());
        assert!(
            self.first() >= 1 && self.first() <= self.transmitted + 1,
            "a number was let go unseen"
        );
        assert!(self.transmitted < self.next);
        assert_eq!(self.octets, self.chunks.iter().map(Bytes::len).sum::<usize>());
    }

    /// The number of the first chunk that is kept, or of the next one.
    fn first(&self) -> u32 {
        self.next - self.chunks.len() as u32
    }
}

/// Places that an empty outbox keeps.
const SPARE: usize = 16;
/// From this number on the tunnel is ended, so that no number comes twice: some 40 TiB after it was opened.
const LAST: u32 = u32::MAX - 0x10_000;
