//! HTTP between steps: bodies as they pass, whichever version of HTTP brought them.
//!
//! A head is a [`http::Request`] or [`http::Response`] without a body. A body is a [`Source`] on the side where it is
//! read and goes into a [`Sink`] on the side where it is written, frame by frame, with the pressure of whoever reads
//! felt by whoever writes. Nothing here holds more than the frame that is on its way.

use std::future::Future;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};

pub mod boxed;
pub mod closing;
pub mod h1;
pub mod h2;
pub mod timer;
pub mod websocket;

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Some of its bytes, never none.
    Data(Bytes),
    /// The fields after its last byte; nothing follows.
    Trailers(HeaderMap),
}

/// How long a body is, as far as it is said before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// So many bytes; 0 is a body that says so, or none.
    Exact(u64),
    /// Until it ends.
    Unknown,
}

impl Length {
    /// No bytes, whatever the head says.
    pub const NONE: Self = Self::Exact(0);
}

/// Why a body broke off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// The peer closed or reset before the end.
    #[error("the peer closed before the body's end")]
    BrokeOff,
    /// What the peer sent is no body (RFC 9112 section 7.1).
    #[error("the body's framing is malformed")]
    Malformed,
    /// More framing than bytes, or trailers without end.
    #[error("the body's framing is larger than it may be")]
    TooLarge,
}

/// Why a server gave no head of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// It closed or reset before it had sent anything.
    #[error("the server closed before it answered")]
    Closed,
    /// It says that it has done nothing with the request.
    #[error("the server did not take the request")]
    Refused,
    /// It closed or reset in the middle of a head.
    #[error("the server closed in the middle of its answer")]
    BrokeOff,
    /// What it sent is no answer.
    #[error("the server's answer is malformed")]
    Malformed,
}

/// A body to be read.
pub trait Source: Send {
    /// How long the whole is; known from the start, and not counted down.
    fn length(&self) -> Length;

    /// The next frame; `None` after the last. After a fault or the end it is not asked again.
    ///
    /// # Errors
    /// [`BodyFault`] if the rest will not come.
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>>;

    /// The same, to wait for. Cancel-safe: a frame that was not returned is still there.
    fn frame(&mut self) -> impl Future<Output = Option<Result<Frame, BodyFault>>> + Send
    where
        Self: Sized,
    {
        std::future::poll_fn(move |cx| self.poll_frame(cx))
    }
}

/// The way to answer one request. In this order: any number of [`inform`](Sink::inform), one [`head`](Sink::head), data,
/// one [`finish`](Sink::finish) or [`last`](Sink::last). Dropped before `finish`, the client sees an answer that broke off.
///
/// None of the futures is cancel-safe: a sink whose future was dropped may only be dropped too.
pub trait Sink: Send {
    /// Sends an informational answer (1xx, never 101) at once. A client that cannot read one (HTTP/1.0) gets none.
    fn inform(&mut self, head: Response<()>) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Takes the head of the answer, which may wait for what follows it. Framing fields in it are replaced by those that
    /// `length` means for the client's version; after an answer to `HEAD`, 204 or 304 the sink sends no body whatever
    /// it is given, and keeps a `Content-Length` that is in the head.
    fn head(&mut self, head: Response<()>, length: Length) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Writes all that waits and `data`.
    fn data(&mut self, data: Bytes) -> impl Future<Output = Result<(), Gone>> + Send;

    /// The last data and the end of an answer without trailers, together: one write where the protocol allows it.
    fn last(&mut self, data: Bytes) -> impl Future<Output = Result<(), Gone>> + Send {
        async move {
            if !data.is_empty() {
                self.data(data).await?;
            }
            self.finish(None).await
        }
    }

    /// Writes what waits.
    fn flush(&mut self) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Ends the answer, and writes all that waits.
    fn finish(&mut self, trailers: Option<HeaderMap>) -> impl Future<Output = Result<(), Gone>> + Send;

    /// Ready once the client has gone and nobody will read the answer.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

impl<S: Sink> Sink for &mut S {
    fn inform(&mut self, head: Response<()>) -> impl Future<Output = Result<(), Gone>> + Send {
        S::inform(self, head)
    }

    fn head(&mut self, head: Response<()>, length: Length) -> impl Future<Output = Result<(), Gone>> + Send {
        S::head(self, head, length)
    }

    fn data(&mut self, data: Bytes) -> impl Future<Output = Result<(), Gone>> + Send {
        S::data(self, data)
    }

    fn last(&mut self, data: Bytes) -> impl Future<Output = Result<(), Gone>> + Send {
        S::last(self, data)
    }

    fn flush(&mut self) -> impl Future<Output = Result<(), Gone>> + Send {
        S::flush(self)
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> impl Future<Output = Result<(), Gone>> + Send {
        S::finish(self, trailers)
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        S::poll_gone(self, cx)
    }
}

/// No body.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBody;

impl Source for NoBody {
    fn length(&self) -> Length {
        Length::NONE
    }

    fn poll_frame(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        Poll::Ready(None)
    }
}

/// Nobody who would read an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReader;

impl Sink for NoReader {
    async fn inform(&mut self, _: Response<()>) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn head(&mut self, _: Response<()>, _: Length) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn data(&mut self, _: Bytes) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        Err(Gone)
    }

    async fn finish(&mut self, _: Option<HeaderMap>) -> Result<(), Gone> {
        Err(Gone)
    }

    fn poll_gone(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }
}

/// The client has gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client has gone")]
pub struct Gone;
