//! What becomes of a request that leaves HTTP, such as a WebSocket: bytes both ways.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::{Buf as _, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::Io;
use crate::clock;
use crate::fault::{CloseReason, WebFault};
use crate::listen::Prefixed;
use crate::tunnel::relay::pass_within;
use crate::wire::timer::Timer;
use crate::wire::{Frame, Sink, Source};

/// A target's stream after `101`.
#[derive(Debug)]
pub struct Upgraded {
    /// The stream.
    pub io: Io,
    /// What the target sent behind its head.
    pub early: Bytes,
}

/// What passed, and how it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Bytes that came from the client.
    pub received: u64,
    /// Bytes that went to the client.
    pub sent: u64,
    /// Why it ended.
    pub reason: CloseReason,
}

impl Upgraded {
    /// Joins a client's stream, which has read the head of the answer, to the target's, until both have ended, one is lost,
    /// or nothing passes for as long as `idle`. Bytes of the client that were read before belong in front of its stream.
    ///
    /// # Cancel safety
    /// Dropping the future loses bytes on their way.
    pub async fn join<C>(self, client: &mut C, idle: Duration) -> Carried
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut target = Prefixed::new(self.early, self.io);
        let (reason, received, sent) = pass_within(client, &mut target, idle).await;
        Carried { received, sent, reason }
    }

    /// As [`join`](Self::join), for a client whose bytes come in frames (HTTP/2, HTTP/3) and which was sent the head.
    pub async fn carry<B: Source, A: Sink>(
        self,
        body: &mut B,
        sink: &mut A,
        idle: Duration,
        timer: &mut Timer,
    ) -> Carried {
        let mut target = Target {
            io: self.io,
            waiting: Bytes::new(),
            ended: false,
            received: 0,
        };
        let mut sent = 0;
        let reason = target.run(self.early, body, sink, &mut sent, idle, timer).await;
        Carried {
            received: target.received,
            sent,
            reason,
        }
    }
}

/// The target's end of what is carried.
struct Target {
    io: Io,
    /// What was taken from the client and not written.
    waiting: Bytes,
    /// The client has ended its side.
    ended: bool,
    received: u64,
}

impl Target {
    async fn run<B: Source, A: Sink>(
        &mut self,
        early: Bytes,
        body: &mut B,
        sink: &mut A,
        sent: &mut u64,
        idle: Duration,
        timer: &mut Timer,
    ) -> CloseReason {
        let mut data = early;
        loop {
            let mut last = (clock::now(), self.received);
            if !data.is_empty() {
                *sent += data.len() as u64;
                let mut taken = pin!(sink.data(data));
                let taken = poll_fn(|cx| {
                    if self.poll_up(cx, body).is_err() {
                        return Poll::Ready(Err(CloseReason::ClientClosed));
                    }
                    if let Poll::Ready(taken) = taken.as_mut().poll(cx) {
                        return Poll::Ready(taken.map_err(|_| CloseReason::ClientClosed));
                    }
                    self.poll_idle(cx, timer, &mut last, idle)
                });
                if let Err(reason) = taken.await {
                    return reason;
                }
            }
            let mut room = BytesMut::new();
            let read = poll_fn(|cx| {
                if self.poll_up(cx, body).is_err() {
                    return Poll::Ready(Err(CloseReason::ClientClosed));
                }
                room.reserve(ROOM);
                match pin!(self.io.read_buf(&mut room)).poll(cx) {
                    Poll::Ready(Ok(read)) => return Poll::Ready(Ok(read)),
                    Poll::Ready(Err(_)) => return Poll::Ready(Err(CloseReason::UpstreamClosed)),
                    // Nothing is held while nothing comes.
                    Poll::Pending => room = BytesMut::new(),
                }
                if sink.poll_gone(cx).is_ready() {
                    return Poll::Ready(Err(CloseReason::ClientClosed));
                }
                self.poll_idle(cx, timer, &mut last, idle)
            });
            match read.await {
                Ok(0) => {
                    return match sink.finish(None).await {
                        Ok(()) => CloseReason::Completed,
                        Err(_) => CloseReason::ClientClosed,
                    };
                }
                Ok(_) => data = room.freeze(),
                Err(reason) => return reason,
            }
        }
    }

    /// Writes to the target what the client sends.
    ///
    /// # Errors
    /// The client is gone, or sends no more of what it announced.
    fn poll_up<B: Source>(&mut self, cx: &mut Context<'_>, body: &mut B) -> Result<(), WebFault> {
        loop {
            match self.poll_write(cx) {
                Poll::Ready(Ok(())) => {}
                // Its last words may still be on their way.
                Poll::Ready(Err(_)) => self.ended = true,
                Poll::Pending => return Ok(()),
            }
            if self.ended {
                return Ok(());
            }
            match body.poll_frame(cx) {
                Poll::Ready(Some(Ok(Frame::Data(data)))) => {
                    self.received += data.len() as u64;
                    self.waiting = data;
                }
                Poll::Ready(Some(Ok(Frame::Trailers(_))) | None) => {
                    self.ended = true;
                    // Sent in its own time; the stream is closed soon in any case.
                    let _closing = Pin::new(&mut self.io).poll_shutdown(cx);
                    return Ok(());
                }
                Poll::Ready(Some(Err(_))) => return Err(WebFault::ClientClosed),
                Poll::Pending => return Ok(()),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.waiting));
            match written {
                Ok(written) if written > 0 => self.waiting.advance(written),
                Ok(_) | Err(_) => {
                    self.waiting = Bytes::new();
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
            }
        }
        Pin::new(&mut self.io).poll_flush(cx)
    }

    /// Ready when nothing has passed for too long; `last` is when something did, and how much the client had sent then.
    fn poll_idle<T>(
        &self,
        cx: &mut Context<'_>,
        timer: &mut Timer,
        last: &mut (Instant, u64),
        idle: Duration,
    ) -> Poll<Result<T, CloseReason>> {
        if last.1 != self.received {
            *last = (clock::now(), self.received);
        }
        timer.poll(last.0 + idle, cx).map(|()| Err(CloseReason::Idle))
    }
}

/// How much is read at once.
const ROOM: usize = 16 * 1024;
