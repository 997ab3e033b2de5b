//! A request that leaves HTTP and takes its connection with it.
//!
//! Its destination gets the stream and every byte after the request's head as it came, and answers for itself. From then
//! on nothing of the HTTP server is left on the connection, its buffers least of all.

use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::Bytes;
use http::header::{EXPECT, TRANSFER_ENCODING};
use http::{Request, Version};
use hyper::body::{Body as _, Incoming};
use tokio::io::{AsyncRead, AsyncWrite};

use super::sister::Carried;
use crate::fault::CloseReason;
use crate::tunnel::blast::Joined;
use crate::tunnel::https::Carrier;

/// Where a request goes, and what is left of it to the server.
pub(super) struct Departure {
    /// Kept until the server is gone: dropped before, it would have the server read the body away.
    body: Incoming,
    expects: bool,
    to: Destination,
}

impl Departure {
    /// Has a request leave, with its chunked body for its destination to read, or without a body.
    ///
    /// One with a body is to be decided on when it is seen for the first time, without waiting: the server reads a body
    /// ahead.
    pub(super) fn new(request: Request<Incoming>, to: Destination) -> Self {
        let expectation = request.headers().get_all(EXPECT).iter().next_back();
        let expects = expectation.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let body = request.into_body();
        Self { body, expects, to }
    }

    /// Whether the server has taken nothing of the body.
    pub(super) fn is_untouched(&mut self) -> bool {
        let asked = &mut Context::from_waker(Waker::noop());
        // A body that waits for "100 Continue" is not read before somebody asks for it.
        self.expects || self.body.is_end_stream() || Pin::new(&mut self.body).poll_frame(asked).is_pending()
    }

    /// The destination, and what goes before its answer.
    pub(super) fn into_destination(self) -> (Destination, &'static [u8]) {
        (
            self.to,
            if self.expects {
                b"HTTP/1.1 100 Continue\r\n\r\n"
            } else {
                b""
            },
        )
    }
}

/// Whether a request is one that can leave with its body: chunked, and nothing beside it.
pub(super) fn is_chunked<B>(request: &Request<B>) -> bool {
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    request.version() == Version::HTTP_11
        && codings
            .next()
            .is_some_and(|coding| coding.as_bytes().eq_ignore_ascii_case(b"chunked"))
        && codings.next().is_none()
}

/// What takes a connection over from HTTP.
pub(super) enum Destination {
    /// A tunnel, over the same chunked exchange.
    Tunnel {
        /// The head of the response.
        head: Vec<u8>,
        carrier: Carrier,
    },
    /// The node that minted the grant.
    Sister(Box<Carried>),
    /// A WebSocket, whose agent has agreed.
    Blast(Box<Joined>),
    /// Sends back what comes, for the tests of leaving.
    #[cfg(test)]
    Echo,
}

impl Destination {
    /// Goes on with the connection to its end, and says why it ended. `early` is what came after the request's head.
    pub(super) async fn go_on<IO>(self, io: &mut IO, early: Bytes) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        // Each in a box of its own size: the smallest stay for as long as the largest.
        match self {
            Self::Tunnel { head, carrier } => Box::pin(carrier.carry(io, early, head.into())).await,
            Self::Sister(carried) => Box::pin(carried.go_on(io, early)).await,
            Self::Blast(joined) => Box::pin(joined.go_on(io, early)).await,
            #[cfg(test)]
            Self::Echo => super::http1::tests::echo(io, early).await,
        }
    }
}
