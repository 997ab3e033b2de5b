//! The way of chunks from a tunnel to the HTTP connection that carries it: a bounded queue whose far end is a response
//! body.
//!
//! Each frame of the body is exactly one tunnel chunk, which the connection writes as exactly one HTTP chunk.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;

/// A lane that holds at most [`ROOM`] chunks.
pub(super) fn lane() -> (LaneEntry, TunnelBody) {
    let lane = Arc::new(Mutex::new(Lane::default()));
    (LaneEntry { lane: lane.clone() }, TunnelBody { lane })
}

/// The tunnel's end. Dropping it ends the body after what is in the lane.
pub(super) struct LaneEntry {
    lane: Arc<Mutex<Lane>>,
}

impl LaneEntry {
    /// Waits until the lane has room for one chunk.
    ///
    /// # Errors
    /// The connection is gone.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        let mut lane = self.lane.lock();
        if lane.exit_gone {
            Poll::Ready(Err(Closed))
        } else if lane.chunks.len() < ROOM {
            Poll::Ready(Ok(()))
        } else {
            remember(&mut lane.entry, cx);
            Poll::Pending
        }
    }

    /// Has the task woken when the connection is gone.
    pub(super) fn poll_closed(&self, cx: &Context<'_>) -> Poll<()> {
        let mut lane = self.lane.lock();
        if lane.exit_gone {
            return Poll::Ready(());
        }
        remember(&mut lane.entry, cx);
        Poll::Pending
    }

    /// Puts a chunk into the lane, for which [`poll_ready`](Self::poll_ready) found room.
    pub(super) fn put(&self, chunk: Bytes) {
        let mut lane = self.lane.lock();
        debug_assert!(lane.chunks.len() < ROOM, "a chunk was put into a full lane");
        lane.chunks.push_back(chunk);
        let exit = lane.exit.take();
        drop(lane);
        wake(exit);
    }
}

impl Drop for LaneEntry {
    fn drop(&mut self) {
        let mut lane = self.lane.lock();
        lane.entry_gone = true;
        let exit = lane.exit.take();
        drop(lane);
        wake(exit);
    }
}

/// The body of the response that carries a tunnel to its client.
///
/// It ends when the tunnel does, or when another connection takes over.
pub(super) struct TunnelBody {
    lane: Arc<Mutex<Lane>>,
}

impl Body for TunnelBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut lane = self.lane.lock();
        let was_full = lane.chunks.len() == ROOM;
        let Some(chunk) = lane.chunks.pop_front() else {
            if lane.entry_gone {
                return Poll::Ready(None);
            }
            remember(&mut lane.exit, cx);
            return Poll::Pending;
        };
        let entry = if was_full { lane.entry.take() } else { None };
        drop(lane);
        wake(entry);
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }
}

impl Drop for TunnelBody {
    fn drop(&mut self) {
        let mut lane = self.lane.lock();
        lane.exit_gone = true;
        let left = std::mem::take(&mut lane.chunks);
        let entry = lane.entry.take();
        drop(lane);
        drop(left);
        wake(entry);
    }
}

impl fmt::Debug for TunnelBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TunnelBody")
    }
}

/// The far end of a lane is gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Closed;

#[derive(Default)]
struct Lane {
    chunks: VecDeque<Bytes>,
    entry: Option<Waker>,
    exit: Option<Waker>,
    entry_gone: bool,
    exit_gone: bool,
}

pub(super) fn remember(place: &mut Option<Waker>, cx: &Context<'_>) {
    match place {
        Some(waker) => waker.clone_from(cx.waker()),
        None => *place = Some(cx.waker().clone()),
    }
}

pub(super) fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Chunks in a lane: enough that the connection is never without one while there is more, few enough that a `stop` is
/// not far behind.
const ROOM: usize = 8;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn chunks_come_out_one_a_frame_and_end_with_the_entry() {
        let (entry, mut body) = lane();
        entry.put(Bytes::from_static(b"A;01;"));
        entry.put(Bytes::from_static(b"A;02;"));
        drop(entry);
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "A;01;");
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "A;02;");
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn a_full_lane_waits_for_its_far_end() {
        let (entry, mut body) = lane();
        for _ in 0..ROOM {
            poll_fn(|cx| entry.poll_ready(cx)).await.unwrap();
            entry.put(Bytes::from_static(b"x"));
        }
        let filled = poll_fn(|cx| Poll::Ready(entry.poll_ready(cx).is_ready())).await;
        assert!(!filled);
        let (room, _) = tokio::join!(poll_fn(|cx| entry.poll_ready(cx)), body.frame());
        assert_eq!(room, Ok(()));
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_is_noticed() {
        let (entry, body) = lane();
        tokio::join!(poll_fn(|cx| entry.poll_closed(cx)), async { drop(body) });
        assert_eq!(poll_fn(|cx| entry.poll_ready(cx)).await, Err(Closed));
    }

    #[tokio::test]
    async fn a_waiting_body_gets_what_is_put() {
        let (entry, mut body) = lane();
        let (frame, ()) = tokio::join!(body.frame(), async { entry.put(Bytes::from_static(b"x")) });
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "x");
    }
}
