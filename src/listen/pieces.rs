//! Large writes to TLS, cut into small ones.
//!
//! The TLS library copies what is written behind the five bytes of a record's head. From some kibibytes on, the C library copies
//! with one instruction of the processor, which on many takes several times as long where source and destination are not
//! aligned alike. What comes in small pieces it copies with plain loads and stores; it is still one write, of whole records.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream of TLS to which much is written at once; everything else passes through.
#[derive(Debug)]
pub struct Pieces<IO>(IO);

impl<IO> Pieces<IO> {
    /// Writes to `io` in pieces.
    pub fn new(io: IO) -> Self {
        Self(io)
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &IO {
        &self.0
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Pieces<IO> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Pieces<IO> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.len() <= PIECE {
            return Pin::new(&mut self.0).poll_write(cx, buf);
        }
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut pieces = [IoSlice::new(&[]); PIECES];
        let mut count = 0;
        for (place, piece) in pieces.iter_mut().zip(bufs.iter().flat_map(|buf| buf.chunks(PIECE))) {
            *place = IoSlice::new(piece);
            count += 1;
        }
        Pin::new(&mut self.0).poll_write_vectored(cx, &pieces[..count])
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Below what the C library needs to see for its one instruction, and a whole number of cache lines.
const PIECE: usize = 2048 - 64;
/// As many pieces as 64 KiB have, with what goes before and behind them.
const PIECES: usize = 40;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    proptest! {
        /// Whatever is written arrives whole and in order, by itself or among others.
        #[test]
        fn cutting_changes_nothing(writes in proptest::collection::vec(0..150_000_usize, 1..6), room in 1..100_000_usize) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let sent: Vec<u8> = (0..writes.iter().sum()).map(|n: usize| (n / 7) as u8).collect();
                let (mut far, near) = tokio::io::duplex(room);
                let send = async {
                    let mut stream = Pieces::new(near);
                    let mut rest = &sent[..];
                    for length in writes {
                        let (now, later) = rest.split_at(length);
                        let (first, mut second) = now.split_at(length / 3);
                        if !now.is_empty() {
                            let written = stream.write_vectored(&[IoSlice::new(first), IoSlice::new(second)]).await;
                            let written = written.unwrap();
                            assert!(written > 0);
                            stream.write_all(first.get(written..).unwrap_or_default()).await.unwrap();
                            second = second.get(written.saturating_sub(first.len())..).unwrap_or_default();
                            stream.write_all(second).await.unwrap();
                        }
                        rest = later;
                    }
                };
                let mut got = Vec::new();
                tokio::join!(send, async { far.read_to_end(&mut got).await.unwrap() });
                assert!(got == sent);
            });
        }
    }
}
