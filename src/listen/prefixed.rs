//! A stream some of whose bytes have already been read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

/// A stream with bytes to be read before its own; everything else passes through.
#[derive(Debug)]
pub struct Prefixed<IO> {
    prefix: Bytes,
    io: IO,
}

impl<IO> Prefixed<IO> {
    /// Puts `prefix` in front of what `io` has still to give.
    pub fn new(prefix: Bytes, io: IO) -> Self {
        Self { prefix, io }
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

impl<IO: AsyncRead + Unpin> AsyncRead for Prefixed<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.prefix.is_empty() || buf.remaining() == 0 {
            return Pin::new(&mut self.io).poll_read(cx, buf);
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

#[cfg(test)]
mod tests {
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
