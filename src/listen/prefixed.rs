//! A stream some of whose bytes have already been read.
//!
//! Beneath TLS it also reads ahead: the TLS library asks for four kibibytes at a time, which a peer that sends in bulk would
//! make a system call each. Once such a read has come back full, the next takes as much as is there, into room that is given
//! back as soon as it is empty.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// A stream with bytes to be read before its own; everything else passes through.
#[derive(Debug)]
pub struct Prefixed<IO> {
    prefix: Bytes,
    ahead: Option<Box<Ahead>>,
    /// The last read of the stream filled all the room that it had.
    full: bool,
    io: IO,
}

/// What was read ahead.
#[derive(Debug)]
struct Ahead {
    room: Vec<u8>,
    taken: usize,
    length: usize,
}

impl<IO> Prefixed<IO> {
    /// Puts `prefix` in front of what `io` has still to give.
    pub fn new(prefix: Bytes, io: IO) -> Self {
        Self {
            // An empty piece of a buffer would keep all of it for the life of the connection.
            prefix: if prefix.is_empty() { Bytes::new() } else { prefix },
            ahead: None,
            full: false,
            io,
        }
    }

    /// Puts bytes that were read in front again.
    pub fn put_back(&mut self, bytes: Bytes) {
        self.prefix = if self.prefix.is_empty() {
            bytes
        } else {
            [bytes, std::mem::take(&mut self.prefix)].concat().into()
        };
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &IO {
        &self.io
    }
}

impl<IO: AsyncRead + Unpin> Prefixed<IO> {
    /// Looks at the bytes that come next without taking them: what is there, at most `limit` bytes if the stream has to
    /// be read for it. Empty at the end of the stream.
    ///
    /// # Cancel safety
    /// No byte is lost when the future is dropped.
    pub async fn peek(&mut self, limit: usize) -> io::Result<&[u8]> {
        if self.prefix.is_empty() {
            let mut buffer = BytesMut::zeroed(limit);
            let length = self.io.read(&mut buffer).await?;
            buffer.truncate(length);
            self.prefix = buffer.freeze();
        }
        Ok(&self.prefix)
    }
}

impl<IO: AsyncRead + Unpin> Prefixed<IO> {
    fn read_ahead(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_none() {
            if !self.full || buf.remaining() > SMALL {
                let before = buf.filled().len();
                ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
                self.full = buf.remaining() == 0 && buf.filled().len() > before;
                return Poll::Ready(Ok(()));
            }
            let mut room = ROOM.take();
            room.resize(AHEAD, 0);
            let mut into = ReadBuf::new(&mut room);
            let read = Pin::new(&mut self.io).poll_read(cx, &mut into);
            let length = into.filled().len();
            if !matches!(read, Poll::Ready(Ok(()))) || length == 0 {
                ROOM.set(room);
                self.full = false;
                return read;
            }
            self.full = length > SMALL;
            self.ahead = Some(Box::new(Ahead { room, taken: 0, length }));
        }
        if let Some(ahead) = &mut self.ahead {
            let length = (ahead.length - ahead.taken).min(buf.remaining());
            buf.put_slice(&ahead.room[ahead.taken..ahead.taken + length]);
            ahead.taken += length;
            if ahead.taken == ahead.length {
                ROOM.set(std::mem::take(&mut ahead.room));
                self.ahead = None;
            }
        }
        Poll::Ready(Ok(()))
    }
}

thread_local! {
    /// Room to read ahead, one piece a worker for whoever needs it next.
    static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// How much is read ahead, and the largest read for which it is worth it.
const AHEAD: usize = 64 * 1024;
const SMALL: usize = 4096;

impl<IO: AsyncRead + Unpin> AsyncRead for Prefixed<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.prefix.is_empty() {
            return self.read_ahead(cx, buf);
        }
        let length = self.prefix.len().min(buf.remaining());
        buf.put_slice(&self.prefix[..length]);
        self.prefix.advance(length);
        if self.prefix.is_empty() {
            // An empty rest would keep its whole buffer for the life of the connection.
            self.prefix = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Prefixed<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs {
            // A record of TLS, mostly: to send one piece costs the system less than to gather several.
            [piece] => Pin::new(&mut self.io).poll_write(cx, piece),
            pieces => Pin::new(&mut self.io).poll_write_vectored(cx, pieces),
        }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn the_prefix_is_read_first_and_then_the_stream() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"world").await.unwrap();
        drop(far);
        let mut stream = Prefixed::new(Bytes::from_static(b"hello "), near);
        let mut first = [0; 3];
        stream.read_exact(&mut first).await.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!((&first[..], rest.as_str()), (&b"hel"[..], "lo world"));
    }

    proptest! {
        /// Whatever the sizes of writes and reads, bytes come whole and in order, and nothing is kept at the end.
        #[test]
        fn reading_ahead_changes_nothing(
            writes in proptest::collection::vec(1..20_000_usize, 1..20),
            reads in proptest::collection::vec(prop_oneof![1..100_usize, Just(4096), 1..10_000_usize], 1..10),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let sent: Vec<u8> = (0..writes.iter().sum()).map(|n: usize| (n / 7) as u8).collect();
                let (mut far, near) = tokio::io::duplex(100_000);
                let mut stream = Prefixed::new(Bytes::from_static(b"first"), near);
                let send = async {
                    let mut rest = &sent[..];
                    for length in writes {
                        let (now, later) = rest.split_at(length);
                        far.write_all(now).await.unwrap();
                        rest = later;
                        tokio::task::yield_now().await;
                    }
                    drop(far);
                };
                let receive = async {
                    let mut got = Vec::new();
                    for length in reads.into_iter().cycle() {
                        let mut room = vec![0; length];
                        match stream.read(&mut room).await.unwrap() {
                            0 => break,
                            length => got.extend_from_slice(&room[..length]),
                        }
                    }
                    got
                };
                let ((), got) = tokio::join!(send, receive);
                assert!(got == [b"first", &sent[..]].concat());
                assert!(stream.ahead.is_none());
            });
        }
    }

    #[tokio::test]
    async fn peeked_bytes_are_read_again() {
        let (mut far, near) = tokio::io::duplex(64);
        far.write_all(b"abcdef").await.unwrap();
        drop(far);
        let mut stream = Prefixed::new(Bytes::new(), near);
        assert_eq!(stream.peek(4).await.unwrap(), b"abcd");
        assert_eq!(stream.peek(4).await.unwrap(), b"abcd");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"abcdef");
        assert_eq!(stream.peek(4).await.unwrap(), b"");
    }
}
