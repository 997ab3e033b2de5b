//! The server's end of a connection: one request after another, each with its body to read and its answer to write.
//!
//! Everything happens in the task that calls. A connection without an exchange holds no buffer; an exchange holds the
//! bytes of its head and of the frame that is on its way.

use std::future::{Future as _, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

pub use super::answer::Answer;
use super::answer::Outgoing;
use super::framing::{Decoder, Framing};
use super::head::{self, RequestHead, Scan};
use crate::clock;
use crate::fault::WebFault;
use crate::wire::closing::Closing;
use crate::wire::timer::Timer;
use crate::wire::{BodyFault, Frame, Gone, Length, Source};

/// HTTP/1.x on a connection.
pub struct Server<IO> {
    wire: Mutex<Wire<IO>>,
    closing: Arc<Closing>,
    timer: Timer,
}

/// Why there is no further request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client closed between two requests, or an answer said that it is the last, or the server is to close.
    Completed,
    /// No request began in time.
    Idle,
    /// The client went away in the middle, or an answer broke off. There is nobody to say goodbye to.
    BrokeOff,
    /// The client sends more of a body that nobody reads than is read away. What it has been answered is still to arrive:
    /// the connection has to be closed slowly.
    Unread,
    /// What came is no request. It is to be answered ([`Server::refusal`]), and nothing that follows means anything.
    Refused(WebFault),
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Server<IO> {
    /// A server at the beginning of a connection.
    pub fn new(io: IO) -> Self {
        Self {
            wire: Mutex::new(Wire::new(io)),
            closing: Arc::default(),
            timer: Timer::default(),
        }
    }

    /// What ends this server from outside.
    pub fn closing(&self) -> Arc<Closing> {
        self.closing.clone()
    }

    /// Waits for the next request, whose head is whole within `head_timeout`, what is left of the exchange before it
    /// included.
    ///
    /// # Errors
    /// [`End`], after which it is not called again.
    ///
    /// # Cancel safety
    /// Dropped, it has lost nothing.
    pub async fn next(&mut self, head_timeout: Duration) -> Result<(Request<()>, Body<'_, IO>, Answer<'_, IO>), End> {
        let deadline = clock::now() + head_timeout;
        let Self { wire, closing, timer } = self;
        let own = wire.get_mut();
        let RequestHead {
            request,
            framing,
            expects,
            ..
        } = poll_fn(|cx| {
            if let Poll::Ready(next) = own.poll_next(cx) {
                return Poll::Ready(next);
            }
            if closing.is_due(cx) && own.is_idle() {
                return Poll::Ready(Err(End::Completed));
            }
            ready!(timer.poll(deadline, cx));
            Poll::Ready(Err(own.timed_out()))
        })
        .await?;
        let wire = &*wire;
        let body = Body {
            wire,
            length: framing.length(),
            expects,
        };
        Ok((request, body, Answer { wire, closing }))
    }

    /// The way to answer what is no request. The connection ends after it.
    pub fn refusal(&mut self) -> Answer<'_, IO> {
        let wire = self.wire.get_mut();
        wire.exchange = true;
        wire.outgoing.refuse();
        Answer {
            wire: &self.wire,
            closing: &self.closing,
        }
    }

    /// Takes the connection out of HTTP in the middle of an exchange that is not answered yet; what came behind the head
    /// comes with it. A client that waits for `100 Continue` gets it.
    ///
    /// # Errors
    /// The connection alone, if the body was begun to be read or the answer to be written.
    pub async fn leave(self) -> Result<(IO, Bytes), IO> {
        let mut wire = self.wire.into_inner();
        if wire.touched || !wire.outgoing.is_untouched() {
            return Err(wire.io);
        }
        wire.outgoing.put_continue();
        // Who does not take it is noticed by who goes on.
        let _written = poll_fn(|cx| wire.outgoing.poll_write(&mut wire.io, cx)).await;
        Ok((wire.io, wire.input.freeze()))
    }

    /// Whether the last answer is out, whole.
    pub fn is_answered(&mut self) -> bool {
        self.wire.get_mut().outgoing.is_done()
    }

    /// The connection, at the end.
    pub fn into_io(self) -> IO {
        self.wire.into_inner().io
    }
}

/// The body of a request of HTTP/1.x.
///
/// A client that waits for `100 Continue` gets it when the body is first asked for, unless it has it already or was
/// answered finally. To be polled in the same task as its [`Answer`].
pub struct Body<'a, IO> {
    wire: &'a Mutex<Wire<IO>>,
    length: Length,
    expects: bool,
}

impl<IO> Body<'_, IO> {
    /// Whether the request came with the wish for `100 Continue`.
    pub fn expects(&self) -> bool {
        self.expects
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Source for Body<'_, IO> {
    fn length(&self) -> Length {
        self.length
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        self.wire.lock().poll_frame(cx)
    }
}

/// A connection, and how far its exchange is.
pub(super) struct Wire<IO> {
    pub(super) io: IO,
    /// What came and was not taken yet.
    input: BytesMut,
    /// Whether the client has closed its side.
    ended: bool,
    /// Whether more of a body came at once than a small read takes.
    flows: bool,
    scan: Scan,
    /// Whether a request was read that the next one has to wait for.
    exchange: bool,
    decoder: Decoder,
    /// Whether the body was begun to be taken.
    touched: bool,
    /// How much of a body that nobody reads was read away.
    drained: usize,
    pub(super) outgoing: Outgoing,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Wire<IO> {
    fn new(io: IO) -> Self {
        Self {
            io,
            input: BytesMut::new(),
            ended: false,
            flows: false,
            scan: Scan::default(),
            exchange: false,
            decoder: Decoder::new(Framing::None),
            touched: false,
            drained: 0,
            outgoing: Outgoing::default(),
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<RequestHead, End>> {
        if self.exchange {
            if !self.outgoing.is_done() {
                return Poll::Ready(Err(End::BrokeOff));
            }
            if !self.outgoing.is_persistent() {
                let end = if self.decoder.is_over() {
                    End::Completed
                } else {
                    End::Unread
                };
                return Poll::Ready(Err(end));
            }
            ready!(self.poll_drain(cx))?;
            self.exchange = false;
            self.scan = Scan::default();
        }
        loop {
            if head::skip_empty_lines(&mut self.input) {
                match self.scan.end(&self.input) {
                    Ok(Some(end)) => return Poll::Ready(self.begin(end)),
                    Ok(None) => {}
                    Err(fault) => return Poll::Ready(Err(End::Refused(fault.of_request()))),
                }
            }
            if self.ended {
                let end = if self.input.is_empty() {
                    End::Completed
                } else {
                    End::BrokeOff
                };
                return Poll::Ready(Err(end));
            }
            match self.poll_fill(false, cx) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(Gone)) => return Poll::Ready(Err(End::BrokeOff)),
                Poll::Pending => {
                    self.outgoing.release();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Begins an exchange with a head that is whole.
    fn begin(&mut self, end: usize) -> Result<RequestHead, End> {
        let bytes = self.input.split_to(end).freeze();
        let head = head::request(&bytes).map_err(|fault| End::Refused(fault.of_request()))?;
        self.exchange = true;
        self.decoder = Decoder::new(head.framing);
        (self.touched, self.flows, self.drained) = (false, false, 0);
        self.outgoing.begin(&head);
        Ok(head)
    }

    /// Whether nothing of a request is there.
    fn is_idle(&self) -> bool {
        !self.exchange && self.input.is_empty()
    }

    /// Why the time was over.
    fn timed_out(&self) -> End {
        if self.exchange {
            End::Unread
        } else if self.input.is_empty() {
            End::Idle
        } else {
            End::Refused(WebFault::ClientTimeout)
        }
    }

    /// Reads away what nobody has read of the body.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), End>> {
        if self.decoder.left().is_some_and(|left| left > DRAIN_MAX as u64) {
            return Poll::Ready(Err(End::Unread));
        }
        while self.drained <= DRAIN_MAX {
            match self.decoder.next(&mut self.input) {
                Ok(Some(Frame::Data(data))) => self.drained += data.len(),
                Ok(Some(Frame::Trailers(_))) => {}
                Ok(None) if self.decoder.is_over() => return Poll::Ready(Ok(())),
                Ok(None) if self.ended => return Poll::Ready(Err(End::BrokeOff)),
                Ok(None) => {
                    if ready!(self.poll_fill(true, cx)).is_err() {
                        return Poll::Ready(Err(End::BrokeOff));
                    }
                }
                Err(_) => break,
            }
        }
        Poll::Ready(Err(End::Unread))
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        loop {
            if !self.input.is_empty() {
                self.touched |= !self.decoder.is_over();
                self.outgoing.settle();
            }
            match self.decoder.next(&mut self.input) {
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Ok(None) if self.decoder.is_over() => return Poll::Ready(None),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            }
            // Who was answered without "100 Continue" may think that nobody wants the rest.
            if self.ended || self.outgoing.is_withheld() {
                return Poll::Ready(Some(Err(BodyFault::BrokeOff)));
            }
            if self.outgoing.is_untouched() {
                self.outgoing.put_continue();
                // Whether the client takes it or not, it is what it sends that counts.
                let _ = self.outgoing.poll_write(&mut self.io, cx);
            }
            let large = self.flows || self.decoder.left().is_some_and(|left| left > SMALL as u64);
            if ready!(self.poll_fill(large, cx)).is_err() {
                self.ended = true;
            }
        }
    }

    /// Looks whether the client is still there, by what it sends. One that has closed its side is taken to have gone.
    pub(super) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.ended && self.input.len() < SMALL {
            if ready!(self.poll_fill(false, cx)).is_err() {
                self.ended = true;
            }
        }
        if self.ended { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Reads what is there, as far as there is room: TLS gives one record at a time. `false` at the end.
    fn poll_read_large(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.input.capacity() - self.input.len() < LEAST {
            self.input.reserve(LARGE);
        }
        let before = self.input.len();
        while self.input.capacity() - self.input.len() >= LEAST {
            let read = pin!(self.io.read_buf(&mut self.input)).poll(cx);
            let came = self.input.len() > before;
            match read {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) => {
                    self.ended = true;
                    return Poll::Ready(Ok(came));
                }
                Poll::Ready(Err(_)) if came => {
                    // What came before it counts; what comes after it is the end.
                    self.ended = true;
                    return Poll::Ready(Ok(true));
                }
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                Poll::Pending if came => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(true))
    }

    /// Reads: ready with more input, or at its end.
    fn poll_fill(&mut self, large: bool, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        let read = if large {
            self.poll_read_large(cx)
        } else {
            let mut scratch = [MaybeUninit::uninit(); SMALL];
            let mut buffer = ReadBuf::uninit(&mut scratch);
            let read = Pin::new(&mut self.io).poll_read(cx, &mut buffer);
            self.input.extend_from_slice(buffer.filled());
            self.flows = buffer.filled().len() == SMALL;
            read.map_ok(|()| !buffer.filled().is_empty())
        };
        match read {
            Poll::Ready(Ok(came)) => {
                self.ended |= !came;
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Gone)),
            Poll::Pending => {
                // Nobody knows when the next byte comes: no room is kept for it.
                if self.input.is_empty() {
                    self.input = BytesMut::new();
                }
                Poll::Pending
            }
        }
    }
}

/// What a read takes while little is expected, from the stack.
const SMALL: usize = 8 * 1024;
/// The room for a body that flows, and what is left of it when it is made anew.
const LARGE: usize = 64 * 1024;
const LEAST: usize = 16 * 1024;
/// The most bytes of a body that are read for nothing.
const DRAIN_MAX: usize = 256 * 1024;

#[cfg(test)]
mod tests;
