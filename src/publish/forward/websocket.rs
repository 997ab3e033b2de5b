//! What becomes of a request that leaves HTTP, such as a WebSocket: bytes both ways.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::either::Either;

use crate::fault::CloseReason;
use crate::listen::Prefixed;
use crate::tunnel::relay::pass_counted;
use crate::upstream::connect::Io;
use crate::wire::h2;
use crate::wire::websocket::{self, Frames};

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
    /// nothing passes for as long as `idle`, or it is `over`: then the client is told, once it has the frame that is on its
    /// way. Bytes of the client that were read before belong in front of its stream.
    ///
    /// # Cancel safety
    /// Dropping the future loses bytes on their way.
    pub async fn join<C>(self, client: &mut C, idle: Duration, over: impl Future<Output = ()>) -> Carried
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let mut target = Prefixed::new(self.early, self.io);
        let (mut received, mut sent) = (0, 0);
        let count = |from_client, for_client| {
            received += from_client;
            sent += for_client;
        };
        let mut frames = Frames::default();
        let can_close = AtomicBool::new(frames.can_close());
        let watch = |bytes: &[u8]| {
            frames.pass(bytes);
            can_close.store(frames.can_close(), Ordering::Relaxed);
        };
        let ended = {
            let mut passing = pin!(pass_counted(&mut *client, &mut target, idle, count, watch));
            tokio::select! {
                passed = &mut passing => Some(passed),
                () = over => {
                    let to_a_bound = poll_fn(|cx| {
                        let passed = passing.as_mut().poll(cx).map(Some);
                        let is_bound = passed.is_pending() && can_close.load(Ordering::Relaxed);
                        if is_bound { Poll::Ready(None) } else { passed }
                    });
                    timeout(LAST_FRAME, to_a_bound).await.ok().flatten()
                }
            }
        };
        let reason = ended.map_or(CloseReason::Drained, |passed| passed.reason);
        if ended.is_none() && can_close.into_inner() {
            // A client that does not even take this is cut.
            let _ = timeout(GOODBYE, websocket::goodbye(client, reason.words())).await;
        }
        Carried { received, sent, reason }
    }
}

/// How long a frame may take that is on its way when a WebSocket is over.
const LAST_FRAME: Duration = Duration::from_millis(500);
/// How long a client may take to take the last frame.
const GOODBYE: Duration = Duration::from_secs(1);
