//! TCP and UDP over HTTP/3: `CONNECT` (RFC 9114) and `CONNECT-UDP` (RFC 9298).
//!
//! A stream names a route of its grant, never an address; what is dialled stands in the route. [`varint`], [`capsule`]
//! and [`frames`] are pure; [`wire`] puts the HTTP/3 library on top of the QUIC library, for the gateway and for the
//! client.

pub mod capsule;
mod datagrams;
pub mod frames;
mod stream;
mod udp;
pub mod varint;
pub mod wire;

use h3::error::Code;
use tokio::io::{AsyncRead, AsyncWrite};

pub use self::datagrams::Datagrams;
pub use self::stream::{Exchange, Receiver, Sender};
pub use self::udp::{pass_datagrams, relay_capsules, relay_datagrams};
use super::{Relay, relay};
use crate::fault::CloseReason;
use crate::grant::{Granted, Route};

/// Passes bytes between a `CONNECT` stream, whose head is answered, and a desktop, until both have ended, one is lost, or
/// the route ends.
///
/// A client that sends no more still gets the whole answer. Not cancel-safe: dropped, the stream is reset.
pub async fn relay_bytes<D>(exchange: Exchange, mut desktop: D, granted: &Granted, route: &Route) -> CloseReason
where
    D: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = stream::Stream::new(exchange);
    let relay = Relay {
        grant: granted.grant(),
        route,
        idle: None,
    };
    let reason = relay.run(&mut stream, &mut desktop).await;
    cut(stream, reason);
    reason
}

/// The same for a stream whose grant is another node's, to which `owner` leads.
pub async fn pass_bytes<O>(exchange: Exchange, owner: &mut O) -> CloseReason
where
    O: AsyncRead + AsyncWrite + Unpin,
{
    let mut stream = stream::Stream::new(exchange);
    let reason = relay::pass(&mut stream, owner).await;
    cut(stream, reason);
    reason
}

/// Has the client's library learn of an end that was none of its stream's.
fn cut(stream: stream::Stream, reason: CloseReason) {
    if reason == CloseReason::UpstreamClosed {
        stream.cut(Code::H3_CONNECT_ERROR);
    } else if reason != CloseReason::Completed {
        stream.cut(Code::H3_REQUEST_CANCELLED);
    }
}
