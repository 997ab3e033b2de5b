//! The connection that carries a tunnel, once its request has left the HTTP server: chunked content in, one HTTP chunk
//! for each tunnel chunk out.
//!
//! Bytes have a buffer only while they move. An idle tunnel has none, which is why no HTTP server does this: it would
//! keep one for each direction for hours.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::Body;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::framing::Deframer;
use super::lane::TunnelBody;
use super::upload::UploadEntry;
use crate::fault::CloseReason;

/// A tunnel's two streams, and how far its connection has come with them.
#[derive(Debug)]
pub struct Carrier {
    upload: Option<UploadEntry>,
    deframer: Deframer,
    download: Option<TunnelBody>,
    outgoing: Outgoing,
    /// Bytes were written that may not have gone out.
    unflushed: bool,
    /// The client closed its side before its stream was at its end.
    broke_off: bool,
}

impl Carrier {
    /// Carries what the client sends to `upload`, and `download` to the client.
    pub(super) fn new(upload: UploadEntry, download: TunnelBody) -> Self {
        Self {
            upload: Some(upload),
            deframer: Deframer::new(),
            download: Some(download),
            outgoing: Outgoing::default(),
            unflushed: false,
            broke_off: false,
        }
    }

    /// Carries the tunnel until one of its ends is done with it; says why it ended.
    ///
    /// `early` is what came after the head of the request, `head` the response's head, which goes out first. The
    /// response is written to its end unless the client is gone, makes no sense, or takes too long for the last words.
    pub async fn carry<IO>(mut self, io: &mut IO, mut early: Bytes, head: Bytes) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.outgoing.push(head);
        let ended = poll_fn(|cx| match self.poll_carry(io, &mut early, cx) {
            Poll::Ready(reason) => Poll::Ready(Some(reason)),
            Poll::Pending if self.download.is_none() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await;
        match ended {
            Some(reason) => reason,
            None => {
                let rest = poll_fn(|cx| self.poll_carry(io, &mut early, cx));
                let written = Box::pin(timeout(LAST_WORDS, rest)).await;
                written.unwrap_or(CloseReason::ClientClosed)
            }
        }
    }

    fn poll_carry<IO>(&mut self, io: &mut IO, early: &mut Bytes, cx: &mut Context<'_>) -> Poll<CloseReason>
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        for _ in 0..TURNS {
            let read = self.poll_read(io, early, cx);
            let written = self.poll_write(io, cx);
            match (read, written) {
                (Poll::Ready(Err(reason)), _) => return Poll::Ready(reason),
                (_, Poll::Ready(Err(_))) => return Poll::Ready(CloseReason::ClientClosed),
                (_, Poll::Ready(Ok(()))) => {
                    return Poll::Ready(if self.broke_off {
                        CloseReason::ClientClosed
                    } else {
                        CloseReason::Completed
                    });
                }
                (Poll::Pending, Poll::Pending) => return Poll::Pending,
                (Poll::Ready(Ok(())), Poll::Pending) => {}
            }
        }
        // Others have their turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Hands the client's next bytes to the tunnel, as soon as it has taken those before. Ready: there may be more.
    fn poll_read<IO>(&mut self, io: &mut IO, early: &mut Bytes, cx: &mut Context<'_>) -> Poll<Result<(), CloseReason>>
    where
        IO: AsyncRead + Unpin,
    {
        let Some(upload) = &self.upload else {
            return Poll::Pending;
        };
        if ready!(upload.poll_ready(cx)).is_err() {
            // The tunnel goes on without this connection, or has ended: its last words are on their way.
            self.upload = None;
            return Poll::Pending;
        }
        if !early.is_empty() {
            let bytes = std::mem::take(early);
            return Poll::Ready(self.take(&bytes));
        }
        let mut scratch = [MaybeUninit::uninit(); SCRATCH];
        let mut buffer = ReadBuf::uninit(&mut scratch);
        match ready!(Pin::new(io).poll_read(cx, &mut buffer)) {
            Ok(()) if buffer.filled().is_empty() => {
                self.upload = None;
                self.broke_off = true;
                Poll::Pending
            }
            Ok(()) => Poll::Ready(self.take(buffer.filled())),
            Err(_) => Poll::Ready(Err(CloseReason::ClientClosed)),
        }
    }

    fn take(&mut self, mut bytes: &[u8]) -> Result<(), CloseReason> {
        let mut content = BytesMut::new();
        while let Some(piece) = self.deframer.next(&mut bytes).map_err(|fault| {
            tracing::debug!(%fault, "a tunnel's client sends no chunked coding");
            CloseReason::Malformed
        })? {
            if content.is_empty() {
                content.reserve(piece.len() + bytes.len());
            }
            content.extend_from_slice(piece);
        }
        if let Some(upload) = &self.upload
            && !content.is_empty()
        {
            upload.put(content.freeze());
        }
        if self.deframer.is_over()
            && let Some(upload) = self.upload.take()
        {
            upload.end();
        }
        Ok(())
    }

    /// Writes what the tunnel has for the client. Ready: that was all of it.
    fn poll_write<IO: AsyncWrite + Unpin>(&mut self, io: &mut IO, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.collect(cx);
            if self.outgoing.is_empty() {
                if self.unflushed {
                    ready!(Pin::new(&mut *io).poll_flush(cx))?;
                    self.unflushed = false;
                }
                return if self.download.is_none() {
                    Poll::Ready(Ok(()))
                } else {
                    Poll::Pending
                };
            }
            let written = ready!(self.outgoing.poll_write(io, cx))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
        }
    }

    /// Takes the chunks that are ready, but no more than go out together.
    fn collect(&mut self, cx: &mut Context<'_>) {
        while self.outgoing.length < MOST_OUTGOING
            && let Some(download) = &mut self.download
        {
            match Pin::new(download).poll_frame(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(frame)) => {
                    let Ok(frame) = frame;
                    let chunk = frame.into_data().unwrap_or_default();
                    if !chunk.is_empty() {
                        self.outgoing.push_chunk(chunk);
                    }
                }
                Poll::Ready(None) => {
                    self.download = None;
                    self.outgoing.push(Bytes::from_static(b"0\r\n\r\n"));
                }
            }
        }
    }
}

/// Bytes on their way to the client.
#[derive(Debug, Default)]
struct Outgoing {
    pieces: VecDeque<Bytes>,
    length: usize,
}

impl Outgoing {
    fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    fn push(&mut self, piece: Bytes) {
        self.length += piece.len();
        self.pieces.push_back(piece);
    }

    /// Frames one HTTP chunk. A small one is copied into its frame, a large one stays where it is.
    fn push_chunk(&mut self, content: Bytes) {
        let size = format!("{:X}\r\n", content.len());
        if content.len() <= COPIED {
            let mut chunk = BytesMut::with_capacity(size.len() + content.len() + CRLF.len());
            chunk.put_slice(size.as_bytes());
            chunk.put_slice(&content);
            chunk.put_slice(CRLF);
            self.push(chunk.freeze());
        } else {
            self.push(Bytes::from(size));
            self.push(content);
            self.push(Bytes::from_static(CRLF));
        }
    }

    fn poll_write<IO: AsyncWrite + Unpin>(&mut self, io: &mut IO, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        let written = ready!(Pin::new(io).poll_write_vectored(cx, &slices[..count]))?;
        self.advance(written);
        Poll::Ready(Ok(written))
    }

    fn advance(&mut self, mut written: usize) {
        self.length -= written;
        while let Some(first) = self.pieces.front_mut() {
            let length = first.len().min(written);
            first.advance(length);
            written -= length;
            if !first.is_empty() {
                return;
            }
            self.pieces.pop_front();
        }
        // Nothing is kept for the next time.
        self.pieces = VecDeque::new();
    }
}

/// How long a client has to take the end of the response.
const LAST_WORDS: Duration = Duration::from_secs(30);
/// What one read takes: a TLS record.
const SCRATCH: usize = 16 * 1024;
/// Reads before other tasks of the worker have their turn.
const TURNS: usize = 4;
/// Bytes that are collected for one write; the last chunk may go beyond.
const MOST_OUTGOING: usize = 32 * 1024;
/// Pieces of one write.
const SLICES: usize = 24;
/// The largest chunk that is copied rather than written from where it is.
const COPIED: usize = 1024;
const CRLF: &[u8] = b"\r\n";

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::super::lane::{LaneEntry, lane};
    use super::super::upload::{Upload, upload};
    use super::*;

    /// The tunnel's ends of a carrier, and what becomes of its connection.
    struct Tunnel {
        stream: Upload,
        lane: LaneEntry,
    }

    fn carried(room: usize, early: &'static str) -> (DuplexStream, Tunnel, impl Future<Output = CloseReason>) {
        let (client, mut server) = tokio::io::duplex(room);
        let ((entry, stream), (lane, download)) = (upload(), lane());
        let carrier = Carrier::new(entry, download);
        let served = async move {
            let early = Bytes::from_static(early.as_bytes());
            carrier.carry(&mut server, early, Bytes::from_static(b"head ")).await
        };
        (client, Tunnel { stream, lane }, served)
    }

    async fn collect(mut stream: Upload) -> (Vec<u8>, bool) {
        let mut content = Vec::new();
        while let Some(frame) = stream.frame().await {
            match frame {
                Ok(frame) => content.extend_from_slice(&frame.into_data().unwrap()),
                Err(_) => return (content, false),
            }
        }
        (content, true)
    }

    #[tokio::test]
    async fn early_and_later_bytes_are_one_stream() {
        let (mut client, tunnel, served) = carried(100, "6\r\nea");
        let sent = async { client.write_all(b"rly \r\n5\r\nlater\r\n0\r\n\r\n").await.unwrap() };
        let content = async {
            let content = collect(tunnel.stream).await;
            drop(tunnel.lane);
            content
        };
        let (content, (), reason) = tokio::join!(content, sent, served);
        assert_eq!(
            (content, reason),
            ((b"early later".to_vec(), true), CloseReason::Completed)
        );
    }

    #[tokio::test]
    async fn small_and_large_chunks_keep_their_frames_and_their_order() {
        for room in [1, 100, 100_000] {
            let (mut client, tunnel, served) = carried(room, "");
            for length in [5, COPIED, COPIED + 1, 10_240, 6] {
                tunnel.lane.put(vec![b'x'; length].into());
            }
            drop(tunnel.lane);
            let mut text = String::new();
            let read = async {
                while !text.ends_with("\r\n0\r\n\r\n") {
                    text.push(char::from(client.read_u8().await.unwrap()));
                }
            };
            let ((), reason) = tokio::join!(read, served);
            let chunk = |length| format!("{length:X}\r\n{}\r\n", "x".repeat(length));
            let chunks: String = [5, COPIED, COPIED + 1, 10_240, 6].into_iter().map(chunk).collect();
            assert_eq!(
                (text, reason),
                (format!("head {chunks}0\r\n\r\n"), CloseReason::Completed)
            );
        }
    }

    #[tokio::test]
    async fn a_tunnel_that_takes_nothing_holds_the_client_back() {
        let (mut client, tunnel, served) = carried(100, "");
        let flood = async {
            let mut sent = 0;
            while timeout(Duration::from_millis(20), client.write_all(b"4\r\nflow\r\n"))
                .await
                .is_ok()
            {
                sent += 9;
            }
            sent
        };
        tokio::select! {
            sent = flood => assert!(sent <= 300, "{sent}"),
            _ = served => unreachable!("the connection ended"),
        }
        drop(tunnel);
    }

    #[tokio::test]
    async fn an_idle_connection_holds_nothing() {
        let ((entry, _stream), (_lane, download)) = (upload(), lane());
        let mut carrier = Carrier::new(entry, download);
        carrier.outgoing.push_chunk(Bytes::from_static(b"A;05;"));
        let (mut near, _far) = tokio::io::duplex(100);
        let mut early = Bytes::new();
        let done = poll_fn(|cx| Poll::Ready(carrier.poll_carry(&mut near, &mut early, cx).is_ready())).await;
        assert!(!done);
        assert_eq!((carrier.outgoing.pieces.capacity(), carrier.outgoing.length), (0, 0));
        assert!(size_of::<Carrier>() <= 100, "{}", size_of::<Carrier>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_take_the_last_words_is_not_waited_for() {
        let (_client, tunnel, served) = carried(1, "");
        drop(tunnel.lane);
        assert_eq!(served.await, CloseReason::ClientClosed);
    }

    #[tokio::test]
    async fn a_client_that_is_gone_breaks_the_stream_off() {
        let (client, tunnel, served) = carried(100, "2\r\nin\r\n");
        drop(client);
        let content = async {
            let content = collect(tunnel.stream).await;
            drop(tunnel.lane);
            content
        };
        let (content, reason) = tokio::join!(content, served);
        assert_eq!((content, reason), ((b"in".to_vec(), false), CloseReason::ClientClosed));
    }
}
