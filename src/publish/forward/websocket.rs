//! What becomes of a request that leaves HTTP, such as a WebSocket: bytes both ways.

use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::either::Either;

use crate::fault::CloseReason;
use crate::listen::Prefixed;
use crate::tunnel::relay::pass_within;
use crate::upstream::connect::Io;
use crate::wire::h2;

/// A target's stream after `101`.
#[derive(Debug)]
pub struct Upgraded {
    /// The stream.
    pub io: Either<Io, h2::Stream>,
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
}
