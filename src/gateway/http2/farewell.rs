//! The time between the two words with which a server of HTTP/2 says goodbye.
//!
//! The first (GOAWAY) asks the client to begin nothing more, the last one names the last request that counts. A round trip
//! has to lie between them (RFC 9113, section 6.8), for which the library sends a ping: it says the last word as soon as
//! that is answered. But many a client writes the answer before requests that it had begun when the first word came. So the
//! answer is held back for a while.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection from which the answer to the server's ping is read later than it has come.
pub(super) struct Unhurried<IO> {
    io: IO,
    frames: Frames,
    /// The answer that is held back.
    held: Option<[u8; PONG]>,
    /// Whether one is to be.
    holds: Arc<AtomicBool>,
}

impl<IO> Unhurried<IO> {
    /// A connection of which nothing has been read. Answers are held back while `holds`; whoever ends that reads on.
    pub(super) fn new(io: IO, holds: Arc<AtomicBool>) -> Self {
        Self {
            io,
            frames: Frames::default(),
            held: None,
            holds,
        }
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Unhurried<IO> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let holds = this.holds.load(Ordering::Acquire);
        let is_due = !holds && this.frames.is_between() && buf.remaining() >= PONG;
        if let Some(held) = this.held.take_if(|_| is_due) {
            buf.put_slice(&held);
            return Poll::Ready(Ok(()));
        }
        let start = buf.filled().len();
        loop {
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            let (_, read) = buf.filled_mut().split_at_mut(start);
            let Some(at) = this.frames.pass(read, holds) else {
                return Poll::Ready(Ok(()));
            };
            this.held = read[at..].first_chunk().copied();
            read.copy_within(at + PONG.., at);
            let left = read.len() - PONG;
            this.frames.pass(&read[at..left], false);
            buf.set_filled(start + left);
            if left > 0 {
                return Poll::Ready(Ok(()));
            }
            // To return with nothing would say that the client has closed.
        }
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Unhurried<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Where frames begin in what a client sends.
#[derive(Debug)]
struct Frames {
    /// What is still to come of the frame, or of the words before the first one.
    left: usize,
    /// The head of the next, as far as it has come.
    head: [u8; HEAD],
    known: usize,
}

impl Default for Frames {
    fn default() -> Self {
        Self {
            left: PREFACE,
            head: [0; HEAD],
            known: 0,
        }
    }
}

impl Frames {
    /// Whether the next byte begins a frame.
    fn is_between(&self) -> bool {
        self.left == 0 && self.known == 0
    }

    /// Goes over bytes, to their end, or to where `stops` and an answer to a ping begins. One that comes in pieces is not
    /// seen.
    fn pass(&mut self, bytes: &[u8], stops: bool) -> Option<usize> {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            if self.left > 0 {
                let skipped = self.left.min(rest.len());
                self.left -= skipped;
                at += skipped;
                continue;
            }
            if stops && self.known == 0 && rest.len() >= PONG && rest.starts_with(PONG_HEAD) {
                return Some(at);
            }
            let more = rest.len().min(HEAD - self.known);
            self.head[self.known..][..more].copy_from_slice(&rest[..more]);
            self.known += more;
            at += more;
            if self.known == HEAD {
                let [high, middle, low, ..] = self.head;
                self.left = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.known = 0;
            }
        }
        None
    }
}

/// What a client says before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// The head of a frame (section 4.1).
const HEAD: usize = 9;
/// A whole answer to a ping (section 6.7), and its head.
const PONG: usize = HEAD + 8;
const PONG_HEAD: &[u8; HEAD] = &[0, 0, 8, 6, 1, 0, 0, 0, 0];

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// What comes, one part a read, and then the end.
    struct Parts(VecDeque<Vec<u8>>);

    impl AsyncRead for Parts {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            buf.put_slice(&self.0.pop_front().unwrap_or_default());
            Poll::Ready(Ok(()))
        }
    }

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let [.., middle, low] = payload.len().to_be_bytes();
        let mut frame = vec![0, middle, low, kind, 1, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        frame
    }

    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let one = (0..6_u8, vec(any::<u8>(), 0..300)).prop_map(|(kind, payload)| frame(kind, &payload));
        vec(one, 0..6).prop_map(|all| all.concat())
    }

    async fn read(io: &mut Unhurried<Parts>) -> Vec<u8> {
        let mut read = Vec::with_capacity(4096);
        io.read_to_end(&mut read).await.unwrap();
        read
    }

    proptest! {
        #[test]
        fn an_answer_is_read_once_it_may_be_and_all_else_as_it_came(
            before in frames(), behind in frames(), piece in 1..70_usize,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let pong = frame(6, b"answered");
            // What looks like an answer within another frame is none.
            let first = [vec![b'x'; PREFACE], frame(0, &pong), before].concat();
            let mut parts: VecDeque<_> = first.chunks(piece).map(<[u8]>::to_vec).collect();
            parts.push_back([pong.clone(), behind.clone()].concat());
            let holds = Arc::new(AtomicBool::new(true));
            let mut io = Unhurried::new(Parts(parts), holds.clone());
            prop_assert_eq!(runtime.block_on(read(&mut io)), [first, behind].concat());
            holds.store(false, Ordering::Release);
            prop_assert_eq!(runtime.block_on(read(&mut io)), pong);
        }
    }

    #[tokio::test]
    async fn answers_pass_while_none_is_to_be_held() {
        let sent = [vec![b'x'; PREFACE], frame(6, b"answered"), frame(6, b"answered")].concat();
        let mut io = Unhurried::new(Parts([sent.clone()].into()), Arc::default());
        assert_eq!(read(&mut io).await, sent);
    }
}
