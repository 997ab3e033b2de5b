//! The way of the client's bytes from the connection that carries a tunnel to the tunnel: one piece at a time.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::{Body, Frame};
use parking_lot::Mutex;

use super::lane::{Closed, remember, wake};

/// A way that holds at most one piece.
pub(super) fn upload() -> (UploadEntry, Upload) {
    let way = Arc::new(Mutex::new(Way::default()));
    (UploadEntry { way: way.clone() }, Upload { way })
}

/// The connection's end. Dropped before [`end`](Self::end), the stream has broken off.
pub(super) struct UploadEntry {
    way: Arc<Mutex<Way>>,
}

impl UploadEntry {
    /// Waits until the piece before is taken.
    ///
    /// # Errors
    /// The tunnel takes no more.
    pub(super) fn poll_ready(&self, cx: &Context<'_>) -> Poll<Result<(), Closed>> {
        let mut way = self.way.lock();
        remember(&mut way.entry, cx);
        if way.exit_gone {
            Poll::Ready(Err(Closed))
        } else if way.piece.is_none() {
            Poll::Ready(Ok(()))
        } else {
            Poll::Pending
        }
    }

    /// Puts a piece on the way, for which [`poll_ready`](Self::poll_ready) found room.
    pub(super) fn put(&self, piece: Bytes) {
        let mut way = self.way.lock();
        debug_assert!(way.piece.is_none(), "a piece was put where one is");
        way.piece = Some(piece);
        let exit = way.exit.take();
        drop(way);
        wake(exit);
    }

    /// The client's stream is at its end, as it should be.
    pub(super) fn end(self) {
        self.way.lock().ended = true;
    }
}

impl Drop for UploadEntry {
    fn drop(&mut self) {
        let mut way = self.way.lock();
        way.entry_gone = true;
        let exit = way.exit.take();
        drop(way);
        wake(exit);
    }
}

impl fmt::Debug for UploadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UploadEntry")
    }
}

/// The tunnel's end: the body of the request.
pub(super) struct Upload {
    way: Arc<Mutex<Way>>,
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let mut way = self.way.lock();
        if let Some(piece) = way.piece.take() {
            let entry = way.entry.take();
            drop(way);
            wake(entry);
            Poll::Ready(Some(Ok(Frame::data(piece))))
        } else if way.ended {
            Poll::Ready(None)
        } else if way.entry_gone {
            Poll::Ready(Some(Err(BrokenOff)))
        } else {
            remember(&mut way.exit, cx);
            Poll::Pending
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let mut way = self.way.lock();
        way.exit_gone = true;
        let (piece, entry) = (way.piece.take(), way.entry.take());
        drop(way);
        drop(piece);
        wake(entry);
    }
}

/// The client's stream ended before its end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BrokenOff;

#[derive(Default)]
struct Way {
    piece: Option<Bytes>,
    entry: Option<Waker>,
    exit: Option<Waker>,
    ended: bool,
    entry_gone: bool,
    exit_gone: bool,
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn one_piece_waits_for_the_one_before_it() {
        let (entry, mut body) = upload();
        poll_fn(|cx| entry.poll_ready(cx)).await.unwrap();
        entry.put(Bytes::from_static(b"one"));
        let free = poll_fn(|cx| Poll::Ready(entry.poll_ready(cx).is_ready())).await;
        assert!(!free);
        let (room, frame) = tokio::join!(poll_fn(|cx| entry.poll_ready(cx)), body.frame());
        assert_eq!(room, Ok(()));
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "one");
        let (frame, ()) = tokio::join!(body.frame(), async { entry.put(Bytes::from_static(b"two")) });
        assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "two");
    }

    #[tokio::test]
    async fn an_end_comes_after_the_last_piece_and_is_not_a_break() {
        let (entry, mut body) = upload();
        entry.put(Bytes::from_static(b"last"));
        entry.end();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.is_none());
        let (entry, mut body) = upload();
        let (frame, ()) = tokio::join!(body.frame(), async { drop(entry) });
        assert_eq!(frame.unwrap().unwrap_err(), BrokenOff);
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_is_noticed_with_or_without_a_piece() {
        let (entry, body) = upload();
        entry.put(Bytes::from_static(b"untaken"));
        let (closed, ()) = tokio::join!(poll_fn(|cx| entry.poll_ready(cx)), async { drop(body) });
        assert_eq!(closed, Err(Closed));
    }
}
