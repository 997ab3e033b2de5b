//! A stream that gives the HTTP server no byte after the head of a request before the request has been looked at.
//!
//! The server reads a body ahead as soon as it has a head. A request that is to leave HTTP has to leave with every byte
//! after its head, undecoded: so a read ends where a head ends, and the next one waits for one more poll of the
//! connection, in which the server asks what to answer. Once it has been told that the request leaves, it gets nothing
//! more.
//!
//! What looks like the end of a head inside a body costs a short read and a poll, nothing else.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the stream inside the server and its owner outside both see.
#[derive(Debug)]
pub(super) struct Gate {
    /// The request leaves: the server gets no further byte.
    leaving: AtomicBool,
    /// The server has written all it had.
    flushed: AtomicBool,
}

impl Gate {
    /// Lets nothing more through to the server.
    pub(super) fn shut(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Whether everything that the server wrote is out.
    pub(super) fn is_flushed(&self) -> bool {
        self.flushed.load(Ordering::Acquire)
    }

    /// Whether a request leaves and every earlier answer is written.
    pub(super) fn is_clear(&self) -> bool {
        self.leaving.load(Ordering::Acquire) && self.is_flushed()
    }
}

/// The stream that the server reads.
#[derive(Debug)]
pub(super) struct Headwise<IO> {
    io: IO,
    gate: Arc<Gate>,
    /// What was read and lies behind the end of a head.
    surplus: Bytes,
    line: Line,
    /// The last byte that the server got ended a head, or looked like it.
    at_end: bool,
    /// The server has still to be polled once before it gets more.
    pausing: bool,
}

impl<IO> Headwise<IO> {
    pub(super) fn new(io: IO) -> Self {
        Self {
            io,
            gate: Arc::new(Gate {
                leaving: AtomicBool::new(false),
                flushed: AtomicBool::new(true),
            }),
            surplus: Bytes::new(),
            line: Line::Inside,
            at_end: false,
            pausing: false,
        }
    }

    pub(super) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// The stream, and what follows the head with which the server's bytes ended; `None` if they did not end so.
    pub(super) fn into_parts(self) -> (IO, Option<Bytes>) {
        (self.io, self.at_end.then_some(self.surplus))
    }

    /// How many of `bytes` the server may have now.
    fn admit(&mut self, bytes: &[u8]) -> usize {
        self.at_end = false;
        for (place, byte) in bytes.iter().enumerate() {
            self.line = match (self.line, byte) {
                (Line::Start | Line::StartCr, b'\n') => {
                    self.at_end = true;
                    self.pausing = true;
                    Line::Start
                }
                (_, b'\n') => Line::Start,
                (Line::Start, b'\r') => Line::StartCr,
                _ => Line::Inside,
            };
            if self.at_end {
                return place + 1;
            }
        }
        bytes.len()
    }
}

/// Where in a line the stream is. A line ends with LF, with or without CR before it, as the server sees it too.
#[derive(Clone, Copy, Debug)]
enum Line {
    Inside,
    Start,
    /// After a CR at the start of a line.
    StartCr,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Headwise<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.gate.leaving.load(Ordering::Acquire) {
            // Whoever shut the gate is about to take the stream away.
            return Poll::Pending;
        }
        if std::mem::take(&mut this.pausing) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if !this.surplus.is_empty() {
            let mut bytes = std::mem::take(&mut this.surplus);
            let length = this.admit(&bytes[..bytes.len().min(buf.remaining())]);
            buf.put_slice(&bytes[..length]);
            bytes.advance(length);
            if !bytes.is_empty() {
                this.surplus = bytes;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        if !read.is_empty() {
            let length = this.admit(read);
            this.surplus = Bytes::copy_from_slice(&read[length..]);
            buf.set_filled(before + length);
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Headwise<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.gate.flushed.store(false, Ordering::Release);
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.gate.flushed.store(false, Ordering::Release);
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    /// The server flushes once its own buffer is empty.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.gate.flushed.store(true, Ordering::Release);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// What single reads of up to `room` bytes give, with a mark where the stream paused.
    async fn reads(stream: &[u8], room: usize) -> Vec<String> {
        let (mut far, near) = tokio::io::duplex(stream.len() + 1);
        far.write_all(stream).await.unwrap();
        drop(far);
        let mut io = Headwise::new(near);
        let mut seen = Vec::new();
        let mut buffer = vec![0; room];
        loop {
            let paused = io.pausing;
            let length = io.read(&mut buffer).await.unwrap();
            if paused {
                seen.push("|".to_owned());
            }
            if length == 0 {
                return seen;
            }
            seen.push(buffer[..length].escape_ascii().to_string());
        }
    }

    #[tokio::test]
    async fn a_read_ends_with_a_head_and_the_next_one_waits() {
        let head = "POST /x HTTP/1.1\\r\\nA: b\\r\\n\\r\\n";
        let two = b"POST /x HTTP/1.1\r\nA: b\r\n\r\nbody POST /x HTTP/1.1\r\nA: b\r\n\r\n5";
        let body = format!("body {head}");
        assert_eq!(reads(two, 500).await, [head, "|", &body, "|", "5"]);
    }

    #[tokio::test]
    async fn a_head_that_ends_in_any_way_the_server_knows_is_seen() {
        for end in ["\r\n\r\n", "\n\n", "\r\n\n", "\n\r\n"] {
            let stream = format!("GET / HTTP/1.1{end}x");
            for room in 1..20 {
                let seen = reads(stream.as_bytes(), room).await;
                assert_eq!(seen[seen.len() - 2..], ["|", "x"], "{end:?} {room} {seen:?}");
            }
        }
    }

    #[tokio::test]
    async fn a_shut_gate_lets_nothing_through_and_gives_back_what_followed_the_head() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"GET / HTTP/1.1\r\n\r\nrest").await.unwrap();
        let mut io = Headwise::new(near);
        assert_eq!(io.read(&mut [0; 64]).await.unwrap(), 18);
        io.gate().shut();
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), io.read(&mut [0; 64])).await;
        assert!(waited.is_err());
        assert_eq!(io.into_parts().1, Some(Bytes::from_static(b"rest")));
    }

    #[tokio::test]
    async fn the_gate_is_clear_once_everything_written_is_flushed() {
        let (_far, near) = tokio::io::duplex(64);
        let mut io = Headwise::new(near);
        let gate = io.gate().clone();
        assert!(!gate.is_clear());
        gate.shut();
        assert!(gate.is_clear());
        io.write_all(b"answer").await.unwrap();
        assert!(!gate.is_clear());
        io.flush().await.unwrap();
        assert!(gate.is_clear());
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_or_moved(
            stream in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'x')], 0..100),
            room in 1..30usize,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let seen = runtime.block_on(reads(&stream, room));
            let joined: String = seen.iter().filter(|piece| *piece != "|").map(String::as_str).collect();
            prop_assert_eq!(joined, stream.escape_ascii().to_string());
        }
    }
}
