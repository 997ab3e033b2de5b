//! A request that leaves HTTP and takes its connection with it.
//!
//! Its destination gets the stream and every byte after the request's head as it came, and answers for itself. From then
//! on nothing of the HTTP server is left on the connection, its buffers least of all.

use bytes::Bytes;
use http::header::TRANSFER_ENCODING;
use http::{Request, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use super::kin;
use super::sister::Carried;
use crate::fault::CloseReason;
use crate::publish::Departed;
use crate::tunnel::blast::Joined;
use crate::tunnel::https::Carrier;

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
    /// Another process of this node.
    Kin(Box<kin::Carried>),
    /// A WebSocket, whose agent has agreed.
    Blast(Box<Joined>),
    /// Whatever a target of the web has agreed to.
    Web(Box<Departed>),
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
            Self::Kin(carried) => Box::pin(carried.go_on(io, early)).await,
            Self::Blast(joined) => Box::pin(joined.go_on(io, early)).await,
            Self::Web(departed) => Box::pin(super::web::go_on(*departed, io, early)).await,
            #[cfg(test)]
            Self::Echo => super::http1::tests::echo(io, early).await,
        }
    }
}
