//! The bytes of a request's stream, once its head is answered.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::{Code, StreamError};
use h3::server::RequestStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::ReusableBoxFuture;

use super::wire;

/// A request's stream, as the gateway sees it.
pub type Exchange = RequestStream<wire::BidiStream<Bytes>, Bytes>;

/// Its half towards the client.
pub type Sender = RequestStream<wire::SendStream<Bytes>, Bytes>;
/// Its half from the client.
pub type Receiver = RequestStream<wire::RecvStream, Bytes>;

/// A stream of bytes within `DATA` frames. Its end is told only by a shutdown: dropped, it is reset.
pub(super) struct Stream {
    receiver: Receiver,
    /// What was received and not read.
    received: Bytes,
    sender: Sending,
}

/// How far the sending side is.
enum Sending {
    Idle(Box<Sender>),
    /// A piece is on its way, or the end.
    Busy(ReusableBoxFuture<'static, (Box<Sender>, Result<(), StreamError>)>),
    Broken,
}

impl Stream {
    pub(super) fn new(exchange: Exchange) -> Self {
        let (sender, receiver) = exchange.split();
        Self {
            receiver,
            received: Bytes::new(),
            sender: Sending::Idle(Box::new(sender)),
        }
    }

    /// Ends both directions at once, with the reason for the client's library.
    pub(super) fn cut(mut self, code: Code) {
        self.receiver.stop_sending(code);
        match self.sender {
            Sending::Idle(mut sender) => sender.stop_stream(code),
            // Dropped in the middle of a piece, it is reset.
            Sending::Busy(_) | Sending::Broken => {}
        }
    }

    /// Waits until what was written before is sent.
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Sending::Busy(sending) = &mut self.sender {
            let (sender, sent) = ready!(sending.poll(cx));
            self.sender = match &sent {
                Ok(()) => Sending::Idle(sender),
                Err(_) => Sending::Broken,
            };
            return Poll::Ready(sent.map_err(broken));
        }
        Poll::Ready(Ok(()))
    }

    fn begin<F>(&mut self, send: impl FnOnce(Box<Sender>) -> F) -> io::Result<()>
    where
        F: Future<Output = (Box<Sender>, Result<(), StreamError>)> + Send + 'static,
    {
        match std::mem::replace(&mut self.sender, Sending::Broken) {
            Sending::Idle(sender) => {
                self.sender = Sending::Busy(ReusableBoxFuture::new(send(sender)));
                Ok(())
            }
            Sending::Busy(_) | Sending::Broken => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.received.is_empty() {
            let received = ready!(self.receiver.poll_recv_data(cx)).map_err(broken)?;
            let Some(mut received) = received else {
                return Poll::Ready(Ok(()));
            };
            let piece = received.copy_to_bytes(received.remaining());
            self.received = piece;
        }
        let length = self.received.len().min(buf.remaining());
        buf.put_slice(&self.received.split_to(length));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_idle(cx))?;
        let length = buf.len().min(PIECE);
        let piece = Bytes::copy_from_slice(&buf[..length]);
        self.begin(|mut sender| async move {
            let sent = sender.send_data(piece).await;
            (sender, sent)
        })?;
        // Most pieces are taken at once; what is not goes on with the next call.
        if let Poll::Ready(Err(error)) = self.poll_idle(cx) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(length))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_idle(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_idle(cx))?;
        let Sending::Idle(sender) = &mut self.sender else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let ended = ready!(std::pin::pin!(sender.finish()).poll(cx));
        Poll::Ready(ended.map_err(broken))
    }
}

fn broken(error: StreamError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

/// The most that is sent in one frame.
const PIECE: usize = 64 * 1024;
