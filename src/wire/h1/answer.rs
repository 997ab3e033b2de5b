//! What a server writes on its connection: informational answers, and one that is final, its head together with what
//! comes first behind it.

use std::future::poll_fn;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use http::header::{CONNECTION, CONTENT_LENGTH, DATE};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};

use super::framing::{Encoder, Framing};
use super::head::{RequestHead, lists};
use super::render::{put_date, put_end_to_end, put_field, put_framing, put_status};
use super::server::Wire;
use crate::clock;
use crate::wire::closing::Closing;
use crate::wire::{Gone, Length, Sink};

/// The way to answer a request of HTTP/1.x.
///
/// To be polled in the same task as its [`Body`](super::server::Body).
pub struct Answer<'a, IO> {
    pub(super) wire: &'a Mutex<Wire<IO>>,
    pub(super) closing: &'a Closing,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Answer<'_, IO> {
    /// Writes what waits, then `data` and `tail`.
    async fn write(&mut self, mut data: Bytes, mut tail: &'static [u8]) -> Result<(), Gone> {
        poll_fn(|cx| {
            let wire = &mut *self.wire.lock();
            wire.outgoing.poll_write_with(&mut wire.io, &mut data, &mut tail, cx)
        })
        .await
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Sink for Answer<'_, IO> {
    async fn inform(&mut self, head: Response<()>) -> Result<(), Gone> {
        self.wire.lock().outgoing.put_informational(&head);
        self.write(Bytes::new(), b"").await
    }

    async fn head(&mut self, head: Response<()>, length: Length) -> Result<(), Gone> {
        let is_last = self.closing.has_begun();
        self.wire.lock().outgoing.put_head(&head, length, is_last);
        Ok(())
    }

    async fn data(&mut self, mut data: Bytes) -> Result<(), Gone> {
        let tail = self.wire.lock().outgoing.begin_data(&mut data, false)?;
        self.write(data, tail).await?;
        self.wire.lock().outgoing.state = State::Open;
        Ok(())
    }

    async fn last(&mut self, mut data: Bytes) -> Result<(), Gone> {
        let tail = self.wire.lock().outgoing.begin_data(&mut data, true)?;
        self.write(data, tail).await?;
        self.wire.lock().outgoing.state = State::Done;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        self.write(Bytes::new(), b"").await
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone> {
        self.wire.lock().outgoing.begin_end(trailers.as_ref())?;
        self.write(Bytes::new(), b"").await?;
        self.wire.lock().outgoing.state = State::Done;
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.wire.lock().poll_gone(cx)
    }
}

/// The writing half of an exchange.
pub(super) struct Outgoing {
    /// Bytes that wait, and how many of them are out.
    waiting: Vec<u8>,
    written: usize,
    /// Something was written that may be held back on the way.
    unflushed: bool,
    state: State,
    encoder: Encoder,
    continuation: Continuation,
    version: Version,
    to_head: bool,
    persistent: bool,
    takes_trailers: bool,
}

/// How far the answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not begun.
    Fresh,
    /// Its head was given.
    Open,
    /// Some of it is out, and nobody knows how much: a write was given up, or what was to be written was wrong.
    Torn,
    /// It is out, or waits for nothing.
    Done,
}

/// Whether the client waits for `100 Continue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Continuation {
    /// No, or it has it.
    Settled,
    Due,
    /// It was answered instead, and may send its body or not.
    Withheld,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            waiting: Vec::new(),
            written: 0,
            unflushed: false,
            state: State::Done,
            encoder: Encoder::new(Framing::None),
            continuation: Continuation::Settled,
            version: Version::HTTP_11,
            to_head: false,
            persistent: true,
            takes_trailers: false,
        }
    }
}

impl Outgoing {
    /// Begins the answer to a request.
    pub(super) fn begin(&mut self, head: &RequestHead) {
        self.state = State::Fresh;
        let has_body = head.framing != Framing::Exact(0);
        self.continuation = if head.expects && has_body {
            Continuation::Due
        } else {
            Continuation::Settled
        };
        self.version = head.request.version();
        self.to_head = head.request.method() == Method::HEAD;
        self.persistent = head.persistent;
        self.takes_trailers = head.takes_trailers;
    }

    /// Begins the answer to what is no request, the last one.
    pub(super) fn refuse(&mut self) {
        *self = Self {
            state: State::Fresh,
            persistent: false,
            ..Self::default()
        };
    }

    /// Whether nothing of the answer was given yet.
    pub(super) fn is_untouched(&self) -> bool {
        self.state == State::Fresh
    }

    /// Whether the answer is out, whole.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Whether another request may follow.
    pub(super) fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// Gives back the room of what was written.
    pub(super) fn release(&mut self) {
        if self.waiting.is_empty() {
            self.waiting = Vec::new();
        }
    }

    /// The client has begun with its body: it waits for nothing.
    pub(super) fn settle(&mut self) {
        if self.continuation == Continuation::Due {
            self.continuation = Continuation::Settled;
        }
    }

    /// Whether the client may never send its body.
    pub(super) fn is_withheld(&self) -> bool {
        self.continuation == Continuation::Withheld
    }

    /// Puts `100 Continue`, if the client waits for it.
    pub(super) fn put_continue(&mut self) {
        if self.continuation == Continuation::Due {
            self.continuation = Continuation::Settled;
            self.waiting.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n");
        }
    }

    fn put_informational(&mut self, head: &Response<()>) {
        let status = head.status();
        if self.state != State::Fresh || self.version != Version::HTTP_11 || !status.is_informational() {
            return;
        }
        if status == StatusCode::CONTINUE {
            self.put_continue();
        } else if status != StatusCode::SWITCHING_PROTOCOLS {
            put_status(self.version, status, &mut self.waiting);
            put_end_to_end(head.headers(), &mut self.waiting);
            self.waiting.extend_from_slice(b"\r\n");
        }
    }

    fn put_head(&mut self, head: &Response<()>, length: Length, is_last: bool) {
        debug_assert_eq!(self.state, State::Fresh, "one head for each request");
        let (status, fields) = (head.status(), head.headers());
        let has_no_length = status == StatusCode::NO_CONTENT || status.is_informational();
        let framing = match length {
            _ if has_no_length || self.to_head || status == StatusCode::NOT_MODIFIED => Framing::None,
            Length::Exact(length) => Framing::Exact(length),
            Length::Unknown if self.version == Version::HTTP_11 => Framing::Chunked,
            Length::Unknown => Framing::UntilClose,
        };
        if self.continuation == Continuation::Due {
            self.continuation = Continuation::Withheld;
        }
        self.persistent &= !is_last
            && framing != Framing::UntilClose
            && self.continuation != Continuation::Withheld
            && !fields.get_all(CONNECTION).iter().any(|value| lists(value, b"close"));
        let out = &mut self.waiting;
        out.reserve(HEAD_ROOM);
        put_status(self.version, status, out);
        put_end_to_end(fields, out);
        if framing != Framing::None {
            put_framing(framing, out);
        } else if !has_no_length {
            // What the same request would have got by `GET`.
            match (fields.get(CONTENT_LENGTH), length) {
                (Some(length), _) => put_field(&CONTENT_LENGTH, length.as_bytes(), out),
                (None, Length::Exact(length)) if length > 0 => put_framing(Framing::Exact(length), out),
                (None, Length::Exact(_) | Length::Unknown) => {}
            }
        }
        if !fields.contains_key(DATE) {
            put_date(clock::wall(), out);
        }
        if !self.persistent {
            out.extend_from_slice(b"Connection: close\r\n");
        } else if self.version == Version::HTTP_10 {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
        }
        out.extend_from_slice(b"\r\n");
        self.encoder = Encoder::new(framing);
        self.state = State::Open;
    }

    /// Puts what goes before `data`, and says what goes behind it; the end of the body too if it is the `last`. What is
    /// not worth a piece of its own is taken out of `data`. The answer is torn until what this begins is out.
    fn begin_data(&mut self, data: &mut Bytes, last: bool) -> Result<&'static [u8], Gone> {
        if self.state != State::Open {
            return Err(Gone);
        }
        self.state = State::Torn;
        let mut tail = match self.encoder.data(data.len(), &mut self.waiting) {
            Ok(Some(tail)) => tail,
            Ok(None) => {
                data.clear();
                b""
            }
            Err(_) => return Err(Gone),
        };
        if data.len() <= COPIED_MAX {
            self.waiting.extend_from_slice(data);
            self.waiting.extend_from_slice(tail);
            data.clear();
            tail = b"";
        }
        if !last {
            return Ok(tail);
        }
        if data.is_empty() {
            self.encoder.end(None, &mut self.waiting).map_err(|_| Gone)?;
            return Ok(b"");
        }
        let mut end = Vec::new();
        self.encoder.end(None, &mut end).map_err(|_| Gone)?;
        Ok(if end.is_empty() { tail } else { b"\r\n0\r\n\r\n" })
    }

    fn begin_end(&mut self, trailers: Option<&HeaderMap>) -> Result<(), Gone> {
        if self.state != State::Open {
            return Err(Gone);
        }
        self.state = State::Torn;
        let trailers = trailers.filter(|_| self.takes_trailers);
        self.encoder.end(trailers, &mut self.waiting).map_err(|_| Gone)
    }

    /// Writes what waits.
    pub(super) fn poll_write<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Gone>> {
        self.poll_write_with(io, &mut Bytes::new(), &mut &b""[..], cx)
    }

    /// Writes what waits, then `data`, then `tail`, and sees it off.
    fn poll_write_with<IO: AsyncWrite + Unpin>(
        &mut self,
        io: &mut IO,
        data: &mut Bytes,
        tail: &mut &'static [u8],
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Gone>> {
        loop {
            let waiting = &self.waiting[self.written..];
            let rest = waiting.len();
            let written = if data.is_empty() && tail.is_empty() {
                if rest == 0 {
                    break;
                }
                ready!(Pin::new(&mut *io).poll_write(cx, waiting))
            } else {
                let slices = [IoSlice::new(waiting), IoSlice::new(data), IoSlice::new(tail)];
                let first = usize::from(rest == 0) + usize::from(rest == 0 && data.is_empty());
                ready!(Pin::new(&mut *io).poll_write_vectored(cx, &slices[first..]))
            };
            let Ok(mut written @ 1..) = written else {
                return Poll::Ready(Err(Gone));
            };
            self.unflushed = true;
            let of_waiting = written.min(rest);
            self.written += of_waiting;
            written -= of_waiting;
            let of_data = written.min(data.len());
            data.advance(of_data);
            *tail = &tail[written - of_data..];
        }
        self.waiting.clear();
        self.written = 0;
        if self.unflushed {
            if ready!(Pin::new(io).poll_flush(cx)).is_err() {
                return Poll::Ready(Err(Gone));
            }
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

/// Room for most heads with a short body.
const HEAD_ROOM: usize = 1024;
/// Data up to this size is copied behind what waits: a second piece costs more than the copy.
const COPIED_MAX: usize = 2 * 1024;
