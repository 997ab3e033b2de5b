//! Numbering, acknowledgement and the send window of both directions.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::tunnel::https::chunk::Chunk;

/// What was sent and not acknowledged, and what was received and not yet told.
///
/// Chunks stay here, in order and with their numbers, until the gateway has acknowledged them: a new connection is
/// given all of them again. How many there can be is bounded by the send window (data) and by the timers (messages).
#[derive(Debug, Default)]
pub(super) struct Window {
    kept: VecDeque<Chunk>,
    /// How many of `kept`, from the front, went out on the present connection.
    written: usize,
    last_sent: u32,
    received: u32,
    told: u32,
    /// When a lone acknowledgement is due.
    ack_at: Option<Instant>,
    /// More than [`FULL`] were unacknowledged, and not yet fewer than [`FREE`].
    shut: bool,
}

/// What a received number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The next one.
    Next,
    /// Received before: to be ignored entirely.
    Replay,
    /// One or more before it are missing.
    Gap,
}

impl Window {
    /// Takes a chunk that was built without a number and an acknowledgement, and gives it the next number.
    pub(super) fn push(&mut self, build: impl FnOnce(u32) -> Chunk) {
        // The last number is never reached: at 10 KiB a chunk it stands for 40 TiB.
        self.last_sent = self.last_sent.saturating_add(1);
        self.kept.push_back(build(self.last_sent));
        self.shut |= self.kept.len() > FULL;
    }

    /// The next chunk to be written to the present connection, with the news of what was received.
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Bytes> {
        if let Some(chunk) = self.kept.get(self.written) {
            let news = (self.told != self.received).then_some(self.received);
            let encoded = with_ack(chunk, news).encode();
            self.written += 1;
            self.all_told();
            return Some(encoded);
        }
        if self.ack_at.is_some_and(|at| at <= now) {
            self.all_told();
            return Some(Chunk::Ack { ack: self.received }.encode());
        }
        None
    }

    /// The gateway has everything up to `ack`. An acknowledgement of what was never sent counts for what was.
    pub(super) fn acknowledged(&mut self, ack: u32) {
        while self.kept.front().is_some_and(|chunk| number_of(chunk) <= ack) {
            self.kept.pop_front();
            self.written = self.written.saturating_sub(1);
        }
        self.shut &= self.kept.len() >= FREE;
    }

    /// Judges the number of a received message or data chunk, and counts it if it is the next one.
    pub(super) fn receive(&mut self, id: u32, now: Instant) -> Order {
        if id <= self.received {
            // The gateway sends again what it does not know to be here: tell it.
            self.ack_at = Some(now);
            return Order::Replay;
        }
        if id != self.received + 1 {
            return Order::Gap;
        }
        self.received = id;
        let soon = if self.received - self.told >= ACK_AFTER {
            now
        } else {
            now + ACK_DELAY
        };
        self.ack_at = Some(self.ack_at.map_or(soon, |at| at.min(soon)));
        Order::Next
    }

    /// A new connection: everything unacknowledged goes out again, after a lone acknowledgement.
    pub(super) fn rewind(&mut self) -> Bytes {
        self.written = 0;
        self.all_told();
        Chunk::Ack { ack: self.received }.encode()
    }

    /// Whether data may be taken from local programs.
    pub(super) fn is_open(&self) -> bool {
        !self.shut
    }

    /// How many chunks are kept.
    pub(super) fn unacknowledged(&self) -> usize {
        self.kept.len()
    }

    /// When [`transmit`](Self::transmit) has an acknowledgement to send.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.ack_at
    }

    fn all_told(&mut self) {
        self.told = self.received;
        self.ack_at = None;
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert!(self.written <= self.kept.len());
        assert!(self.told <= self.received);
        let numbers: Vec<_> = self.kept.iter().map(number_of).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "{numbers:?}");
        assert!(numbers.last().is_none_or(|last| *last == self.last_sent));
    }
}

fn number_of(chunk: &Chunk) -> u32 {
    match chunk {
        Chunk::Ack { .. } => 0,
        Chunk::Message { id, .. } | Chunk::Data { id, .. } => *id,
    }
}

fn with_ack(chunk: &Chunk, news: Option<u32>) -> Chunk {
    let mut chunk = chunk.clone();
    match &mut chunk {
        Chunk::Ack { .. } => {}
        Chunk::Message { ack, .. } | Chunk::Data { ack, .. } => *ack = news,
    }
    chunk
}

/// With more chunks than these unacknowledged, no data is sent …
const FULL: usize = 16;
/// … until there are fewer than these.
const FREE: usize = 4;
/// So many received chunks are acknowledged at once …
const ACK_AFTER: u32 = 4;
/// … and fewer when nothing went out for so long.
const ACK_DELAY: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn data(id: u32) -> Chunk {
        Chunk::Data {
            id,
            ack: None,
            channel: 1,
            octets: Bytes::from_static(b"x"),
        }
    }

    fn sent(window: &mut Window, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| window.transmit(now))
            .map(|chunk| String::from_utf8(chunk.to_vec()).unwrap())
            .collect()
    }

    #[test]
    fn four_received_chunks_are_acknowledged_at_once_and_fewer_after_a_moment() {
        let (mut window, now) = (Window::default(), clock::now());
        for id in 1..=3 {
            assert_eq!(window.receive(id, now), Order::Next);
        }
        assert_eq!(sent(&mut window, now), [""; 0]);
        assert_eq!(sent(&mut window, now + ACK_DELAY), ["A;03;"]);
        for id in 4..=7 {
            window.receive(id, now);
        }
        assert_eq!(sent(&mut window, now), ["A;07;"]);
    }

    #[test]
    fn an_acknowledgement_rides_on_what_goes_out() {
        let (mut window, now) = (Window::default(), clock::now());
        window.receive(1, now);
        window.push(data);
        window.push(data);
        assert_eq!(sent(&mut window, now), ["D;1;1;1;1;x;", "D;2;;1;1;x;"]);
        assert_eq!(window.deadline(), None);
    }

    #[test]
    fn the_window_shuts_above_sixteen_and_opens_below_four() {
        let mut window = Window::default();
        for _ in 0..16 {
            window.push(data);
        }
        assert!(window.is_open());
        window.push(data);
        assert!(!window.is_open());
        window.acknowledged(13);
        assert!(!window.is_open(), "four are left");
        window.acknowledged(14);
        assert!(window.is_open());
    }

    #[test]
    fn a_new_connection_gets_what_is_unacknowledged_with_its_numbers() {
        let (mut window, now) = (Window::default(), clock::now());
        window.receive(1, now);
        for _ in 0..3 {
            window.push(data);
        }
        assert_eq!(sent(&mut window, now).len(), 3);
        window.acknowledged(1);
        assert_eq!(window.rewind(), "A;01;");
        assert_eq!(sent(&mut window, now), ["D;2;;1;1;x;", "D;3;;1;1;x;"]);
    }

    #[test]
    fn replays_and_gaps_are_told_apart() {
        let (mut window, now) = (Window::default(), clock::now());
        assert_eq!(window.receive(1, now), Order::Next);
        assert_eq!(window.receive(1, now), Order::Replay);
        assert_eq!(sent(&mut window, now), ["A;01;"], "a replay is answered");
        assert_eq!(window.receive(3, now), Order::Gap);
        assert_eq!(window.receive(2, now), Order::Next);
        assert_eq!(window.receive(0, now), Order::Replay);
    }

    #[test]
    fn an_acknowledgement_of_what_was_never_sent_is_harmless() {
        let (mut window, now) = (Window::default(), clock::now());
        window.push(data);
        window.acknowledged(u32::MAX);
        window.check_invariants();
        window.push(data);
        assert_eq!(sent(&mut window, now), ["D;2;;1;1;x;"]);
    }
}
