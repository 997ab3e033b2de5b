//! The desktop's end of one channel.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

use crate::tunnel::https::chunk::{MAX_DATA, Payload};
use crate::upstream::DialFault;

/// The desktop behind one channel: being dialled, or a socket with what waits to be written to it.
///
/// While nothing moves it holds the socket and no buffer.
pub(super) struct Desktop {
    channel: u32,
    stage: Stage,
    queue: VecDeque<Bytes>,
    queued: usize,
    /// The socket took no more at the last write.
    blocked: bool,
    /// Since when so much is queued that the client is not read.
    full_since: Option<Instant>,
    /// Since when one side sends no more.
    half_closed_since: Option<Instant>,
    last_octet: Instant,
    client: Side,
    desktop: Side,
    /// Nobody takes what it sends any more.
    abandoned: bool,
}

impl Desktop {
    pub(super) fn dialling(channel: u32, dial: Dial, now: Instant) -> Self {
        Self {
            channel,
            stage: Stage::Dialling(dial),
            queue: VecDeque::new(),
            queued: 0,
            blocked: false,
            full_since: None,
            half_closed_since: None,
            last_octet: now,
            client: Side::Sends,
            desktop: Side::Sends,
            abandoned: false,
        }
    }

    pub(super) fn channel(&self) -> u32 {
        self.channel
    }

    /// Has the dialling go on. `Ready(Ok(false))`: it was done before.
    pub(super) fn poll_dial(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<Result<bool, DialFault>> {
        let Stage::Dialling(dial) = &mut self.stage else {
            return Poll::Ready(Ok(false));
        };
        let stream = ready!(dial.as_mut().poll(cx))?;
        self.stage = Stage::Open(stream);
        self.last_octet = now;
        Poll::Ready(Ok(true))
    }

    /// Queues octets of the client.
    pub(super) fn take(&mut self, octets: Bytes, now: Instant) {
        // What stays for longer, or is small, must not hold the whole buffer that it was read in.
        let octets = if self.blocked || octets.len() < COPY_BELOW {
            Bytes::copy_from_slice(&octets)
        } else {
            octets
        };
        self.queued += octets.len();
        self.queue.push_back(octets);
        self.last_octet = now;
        if self.is_over_bound() && self.full_since.is_none() {
            self.full_since = Some(now);
        }
    }

    /// Whether the client must not be read until some of the queue was written.
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }

    /// The client sends no more: what is queued is written, then the desktop is told.
    pub(super) fn end_client(&mut self, now: Instant) {
        if self.client == Side::Sends {
            self.client = Side::Ended;
            self.half_closed_since.get_or_insert(now);
        }
    }

    /// Writes what the desktop takes. `Ok(true)`: some was written.
    pub(super) fn write(&mut self, cx: &mut Context<'_>, now: Instant) -> io::Result<bool> {
        let Stage::Open(stream) = &mut self.stage else {
            return Ok(false);
        };
        let mut moved = false;
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self
                .queue
                .iter()
                .zip(&mut slices)
                .map(|(octets, slice)| *slice = IoSlice::new(octets))
                .count();
            let written = Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count]);
            self.blocked = written.is_pending();
            let Poll::Ready(written) = written else { break };
            let written = written?;
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            advance(&mut self.queue, written);
            self.queued -= written;
            self.last_octet = now;
            moved = true;
        }
        if self.queue.is_empty() {
            if self.queue.capacity() > SLICES {
                self.queue = VecDeque::new();
            }
            if self.client == Side::Ended && Pin::new(&mut *stream).poll_shutdown(cx)?.is_ready() {
                self.client = Side::Closed;
            }
        }
        if !self.is_over_bound() {
            self.full_since = None;
        }
        Ok(moved)
    }

    /// Reads what the desktop sends, at most one chunk; `None` is its end. Pending once it has ended.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, now: Instant) -> Poll<io::Result<Option<Payload>>> {
        let Stage::Open(stream) = &self.stage else {
            return Poll::Pending;
        };
        if self.desktop != Side::Sends || self.abandoned {
            return Poll::Pending;
        }
        loop {
            // The buffer is taken only when there is something to read.
            ready!(stream.poll_read_ready(cx))?;
            let mut payload = Payload::with_capacity(MAX_DATA);
            match stream.try_read_buf(&mut payload.spare()) {
                Ok(0) => {
                    self.desktop = Side::Closed;
                    self.half_closed_since.get_or_insert(now);
                    return Poll::Ready(Ok(None));
                }
                Ok(octets) => {
                    self.last_octet = now;
                    // Chunks are kept until the client acknowledges them: little ones in little buffers.
                    let small = octets < MAX_DATA / 2;
                    let payload = if small {
                        Payload::copy_from(payload.octets())
                    } else {
                        payload
                    };
                    return Poll::Ready(Ok(Some(payload)));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Nobody takes what the desktop sends any more: it ends once everything of the client is written.
    pub(super) fn abandon(&mut self, now: Instant) {
        if matches!(self.stage, Stage::Dialling(_)) {
            self.abort();
        } else {
            self.end_client(now);
            self.abandoned = true;
        }
    }

    /// The connection is of no use any more.
    pub(super) fn abort(&mut self) {
        self.queue.clear();
        self.queued = 0;
        self.client = Side::Closed;
        self.desktop = Side::Closed;
    }

    /// Starts all times again: the client was away.
    pub(super) fn excuse(&mut self, now: Instant) {
        self.last_octet = now;
        for since in [&mut self.full_since, &mut self.half_closed_since]
            .into_iter()
            .flatten()
        {
            *since = now;
        }
    }

    /// Whether both sides have ended and everything is delivered.
    pub(super) fn is_over(&self) -> bool {
        self.client == Side::Closed && (self.desktop == Side::Closed || self.abandoned)
    }

    /// Whether everything of the client is delivered.
    pub(super) fn is_delivered(&self) -> bool {
        self.queue.is_empty() && self.client != Side::Ended
    }

    /// When the channel is given up, if nothing happens before. `client_listens`: it takes what comes until it says
    /// otherwise.
    pub(super) fn deadline(&self, lost_contact: Duration, client_listens: bool) -> Option<Instant> {
        let stuck = self.full_since.map(|since| since + lost_contact / 2);
        let half_closed = self
            .half_closed_since
            .filter(|_| !client_listens || self.abandoned || self.desktop != Side::Sends)
            .map(|since| (self.last_octet + lost_contact).min(since + LONGEST_HALF_CLOSED));
        stuck.into_iter().chain(half_closed).min()
    }

    fn is_over_bound(&self) -> bool {
        self.queued >= QUEUE_OCTETS || self.queue.len() >= QUEUE_CHUNKS
    }
}

/// A connection in the making.
pub(super) type Dial = Pin<Box<dyn Future<Output = Result<TcpStream, DialFault>> + Send>>;

enum Stage {
    Dialling(Dial),
    Open(TcpStream),
}

/// How far one side of a channel has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Sends,
    /// It sends no more; the other side was not told yet.
    Ended,
    Closed,
}

fn advance(queue: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(first) = queue.front_mut() {
        if first.len() > written {
            first.advance(written);
            return;
        }
        written -= first.len();
        queue.pop_front();
    }
}

/// What may be queued for one desktop before the client is no longer read.
const QUEUE_OCTETS: usize = 256 * 1024;
const QUEUE_CHUNKS: usize = 128;
/// Queues handed to the kernel at once.
const SLICES: usize = 16;
const COPY_BELOW: usize = 2 * 1024;
/// A client that forgets lowered channels never lowers one again: so long may a desktop go on sending into the void.
const LONGEST_HALF_CLOSED: Duration = Duration::from_secs(600);
