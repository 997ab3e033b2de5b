//! QUIC under HTTP/3: the traits of the `h3` library over `quinn`.
//!
//! What the library reads has gone through [`Frames`], which bounds what it keeps. Streams may be stopped at any time,
//! also while a read waits.

use std::future::{Future, pending};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::quic::{self, ConnectionErrorIncoming, StreamErrorIncoming, StreamId, WriteBuf};
use parking_lot::Mutex;
use quinn::{ReadError, VarInt, WriteError};

use super::frames::Frames;

/// When the client of a stream has gone, or wants no answer any more.
pub type Stopped = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Of the stream that was accepted last: when its client wants no answer any more. The library has no word for it.
#[derive(Clone, Default)]
pub struct Latest(Arc<Mutex<Option<Stopped>>>);

impl Latest {
    /// To be asked once after a stream was accepted, before the next is.
    pub fn take(&self) -> Stopped {
        let stopped = self.0.lock().take();
        stopped.unwrap_or_else(|| Box::pin(pending()))
    }

    fn put(&self, stream: &quinn::SendStream) {
        let stopped = stream.stopped();
        *self.0.lock() = Some(Box::pin(async move {
            // However it ended, nobody reads on.
            let _ = stopped.await;
        }));
    }
}

/// A QUIC connection for HTTP/3.
pub struct Connection {
    opener: Opener,
    latest: Latest,
    accepting_both: Option<Waiting<(quinn::SendStream, quinn::RecvStream)>>,
    accepting_one: Option<Waiting<quinn::RecvStream>>,
}

impl Connection {
    /// HTTP/3 over this connection.
    pub fn new(connection: quinn::Connection) -> Self {
        Self {
            opener: Opener {
                connection,
                opening_both: None,
                opening_one: None,
            },
            latest: Latest::default(),
            accepting_both: None,
            accepting_one: None,
        }
    }

    /// To learn when clients want no answer any more.
    pub fn latest(&self) -> Latest {
        self.latest.clone()
    }
}

impl<B: Buf> quic::Connection<B> for Connection {
    type RecvStream = RecvStream;
    type OpenStreams = Opener;

    fn poll_accept_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<RecvStream, ConnectionErrorIncoming>> {
        let connection = &self.opener.connection;
        let accepted = ready!(poll(&mut self.accepting_one, cx, || {
            let connection = connection.clone();
            Box::pin(async move { connection.accept_uni().await })
        }));
        let recv = accepted.map_err(lost)?;
        Poll::Ready(Ok(RecvStream::new(recv, Frames::of_one_direction())))
    }

    fn poll_accept_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream<B>, ConnectionErrorIncoming>> {
        let connection = &self.opener.connection;
        let accepted = ready!(poll(&mut self.accepting_both, cx, || {
            let connection = connection.clone();
            Box::pin(async move { connection.accept_bi().await })
        }));
        let (send, recv) = accepted.map_err(lost)?;
        self.latest.put(&send);
        Poll::Ready(Ok(BidiStream::new(send, recv)))
    }

    fn opener(&self) -> Opener {
        self.opener.clone()
    }
}

impl<B: Buf> quic::OpenStreams<B> for Connection {
    type BidiStream = BidiStream<B>;
    type SendStream = SendStream<B>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream<B>, StreamErrorIncoming>> {
        self.opener.poll_open_bidi(cx)
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream<B>, StreamErrorIncoming>> {
        self.opener.poll_open_send(cx)
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        quic::OpenStreams::<B>::close(&mut self.opener, code, reason);
    }
}

/// Opens streams.
pub struct Opener {
    connection: quinn::Connection,
    opening_both: Option<Waiting<(quinn::SendStream, quinn::RecvStream)>>,
    opening_one: Option<Waiting<quinn::SendStream>>,
}

impl Clone for Opener {
    fn clone(&self) -> Self {
        Self {
            connection: self.connection.clone(),
            opening_both: None,
            opening_one: None,
        }
    }
}

impl<B: Buf> quic::OpenStreams<B> for Opener {
    type BidiStream = BidiStream<B>;
    type SendStream = SendStream<B>;

    fn poll_open_bidi(&mut self, cx: &mut Context<'_>) -> Poll<Result<BidiStream<B>, StreamErrorIncoming>> {
        let connection = &self.connection;
        let opened = ready!(poll(&mut self.opening_both, cx, || {
            let connection = connection.clone();
            Box::pin(async move { connection.open_bi().await })
        }));
        let (send, recv) = opened.map_err(lost_stream)?;
        Poll::Ready(Ok(BidiStream::new(send, recv)))
    }

    fn poll_open_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<SendStream<B>, StreamErrorIncoming>> {
        let connection = &self.connection;
        let opened = ready!(poll(&mut self.opening_one, cx, || {
            let connection = connection.clone();
            Box::pin(async move { connection.open_uni().await })
        }));
        Poll::Ready(Ok(SendStream::new(opened.map_err(lost_stream)?)))
    }

    fn close(&mut self, code: Code, reason: &[u8]) {
        self.connection.close(varint(code.value()), reason);
    }
}

/// A stream of both directions.
pub struct BidiStream<B: Buf> {
    send: SendStream<B>,
    recv: RecvStream,
}

impl<B: Buf> BidiStream<B> {
    fn new(send: quinn::SendStream, recv: quinn::RecvStream) -> Self {
        Self {
            send: SendStream::new(send),
            recv: RecvStream::new(recv, Frames::of_request()),
        }
    }
}

impl<B: Buf> quic::BidiStream<B> for BidiStream<B> {
    type SendStream = SendStream<B>;
    type RecvStream = RecvStream;

    fn split(self) -> (SendStream<B>, RecvStream) {
        (self.send, self.recv)
    }
}

impl<B: Buf> quic::RecvStream for BidiStream<B> {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        self.recv.poll_data(cx)
    }

    fn stop_sending(&mut self, code: u64) {
        self.recv.stop_sending(code);
    }

    fn recv_id(&self) -> StreamId {
        self.recv.recv_id()
    }
}

impl<B: Buf> quic::SendStream<B> for BidiStream<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_ready(cx)
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        self.send.send_data(data)
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        self.send.poll_finish(cx)
    }

    fn reset(&mut self, code: u64) {
        self.send.reset(code);
    }

    fn send_id(&self) -> StreamId {
        self.send.send_id()
    }
}

/// The receiving half of a stream.
pub struct RecvStream {
    stream: quinn::RecvStream,
    frames: Frames,
    /// What was read and not handed on.
    read: Bytes,
}

impl RecvStream {
    fn new(stream: quinn::RecvStream, frames: Frames) -> Self {
        Self {
            stream,
            frames,
            read: Bytes::new(),
        }
    }
}

impl quic::RecvStream for RecvStream {
    type Buf = Bytes;

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamErrorIncoming>> {
        loop {
            match self.frames.next(&mut self.read) {
                Ok(Some(piece)) => return Poll::Ready(Ok(Some(piece))),
                Ok(None) => {}
                Err(fault) => {
                    self.stop_sending(Code::H3_EXCESSIVE_LOAD.value());
                    return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(fault))));
                }
            }
            // Made anew for each poll: all that waits is kept with the stream.
            let chunk = pin!(self.stream.read_chunk(READ, true)).poll(cx);
            match ready!(chunk) {
                Ok(Some(chunk)) => self.read = chunk.bytes,
                Ok(None) => return Poll::Ready(Ok(None)),
                Err(ReadError::Reset(code)) => {
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated {
                        error_code: code.into_inner(),
                    }));
                }
                Err(ReadError::ConnectionLost(error)) => return Poll::Ready(Err(lost_stream(error))),
                Err(error @ (ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected)) => {
                    return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(error))));
                }
            }
        }
    }

    fn stop_sending(&mut self, code: u64) {
        // A stream that is closed needs no stop.
        let _ = self.stream.stop(varint(code));
    }

    fn recv_id(&self) -> StreamId {
        id(self.stream.id())
    }
}

/// The sending half of a stream. Dropped before it was finished, it is reset: what was cut must not look whole.
pub struct SendStream<B: Buf> {
    stream: quinn::SendStream,
    writing: Option<WriteBuf<B>>,
    finished: bool,
}

impl<B: Buf> Drop for SendStream<B> {
    fn drop(&mut self) {
        if !self.finished {
            quic::SendStream::reset(self, Code::H3_REQUEST_CANCELLED.value());
        }
    }
}

impl<B: Buf> SendStream<B> {
    fn new(stream: quinn::SendStream) -> Self {
        Self {
            stream,
            writing: None,
            finished: false,
        }
    }
}

impl<B: Buf> quic::SendStream<B> for SendStream<B> {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        while let Some(data) = self.writing.as_mut().filter(|data| data.has_remaining()) {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data.chunk()));
            match written {
                Ok(written) => data.advance(written),
                Err(WriteError::Stopped(code)) => {
                    return Poll::Ready(Err(StreamErrorIncoming::StreamTerminated {
                        error_code: code.into_inner(),
                    }));
                }
                Err(WriteError::ConnectionLost(error)) => return Poll::Ready(Err(lost_stream(error))),
                Err(error @ (WriteError::ClosedStream | WriteError::ZeroRttRejected)) => {
                    return Poll::Ready(Err(StreamErrorIncoming::Unknown(Box::new(error))));
                }
            }
        }
        self.writing = None;
        Poll::Ready(Ok(()))
    }

    fn send_data<T: Into<WriteBuf<B>>>(&mut self, data: T) -> Result<(), StreamErrorIncoming> {
        if self.writing.is_some() {
            // A write that was given up in the middle: what followed would be out of frame.
            return Err(StreamErrorIncoming::Unknown(Box::new(io::Error::other(
                "a write was given up",
            ))));
        }
        self.writing = Some(data.into());
        Ok(())
    }

    fn poll_finish(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), StreamErrorIncoming>> {
        ready!(self.poll_ready(cx))?;
        let finished = self.stream.finish();
        self.finished = true;
        Poll::Ready(finished.map_err(|error| StreamErrorIncoming::Unknown(Box::new(error))))
    }

    fn reset(&mut self, code: u64) {
        // A stream that is closed needs no reset.
        let _ = self.stream.reset(varint(code));
    }

    fn send_id(&self) -> StreamId {
        id(self.stream.id())
    }
}

type Waiting<T> = Pin<Box<dyn Future<Output = Result<T, quinn::ConnectionError>> + Send + Sync>>;

/// Polls what waits, or what `begin` makes of it.
fn poll<T>(
    waiting: &mut Option<Waiting<T>>,
    cx: &mut Context<'_>,
    begin: impl FnOnce() -> Waiting<T>,
) -> Poll<Result<T, quinn::ConnectionError>> {
    let outcome = ready!(waiting.get_or_insert_with(begin).as_mut().poll(cx));
    *waiting = None;
    Poll::Ready(outcome)
}

fn lost_stream(error: quinn::ConnectionError) -> StreamErrorIncoming {
    StreamErrorIncoming::ConnectionErrorIncoming {
        connection_error: lost(error),
    }
}

fn lost(error: quinn::ConnectionError) -> ConnectionErrorIncoming {
    use quinn::ConnectionError as Lost;
    match error {
        Lost::ApplicationClosed(close) => ConnectionErrorIncoming::ApplicationClose {
            error_code: close.error_code.into_inner(),
        },
        Lost::TimedOut => ConnectionErrorIncoming::Timeout,
        error @ (Lost::VersionMismatch
        | Lost::TransportError(_)
        | Lost::ConnectionClosed(_)
        | Lost::Reset
        | Lost::LocallyClosed
        | Lost::CidsExhausted) => ConnectionErrorIncoming::Undefined(Arc::new(error)),
    }
}

#[expect(clippy::expect_used, reason = "both are integers of 62 bits")]
fn id(id: quinn::StreamId) -> StreamId {
    StreamId::try_from(u64::from(id)).expect("a stream's number has 62 bits")
}

fn varint(value: u64) -> VarInt {
    VarInt::from_u64(value).unwrap_or(VarInt::MAX)
}

/// The most octets that are taken from a stream at once.
const READ: usize = 64 * 1024;
