//! A WebSocket on a stream of HTTP/2 (RFC 8441): its bytes are the bodies of an exchange that neither side ends before it
//! has said all.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::h2::ext::Protocol;
use ::h2::{RecvStream, SendStream};
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Method, Request};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::Place;

/// What a client of HTTP/1.1 is to be shown by whoever has read its handshake (RFC 6455 section 4.2.2); `None` if the
/// request is for no WebSocket. HTTP/2 has nothing like it.
pub(super) fn accept_of(request: &Request<()>) -> Option<HeaderValue> {
    let upgrade = request.headers().get(UPGRADE)?;
    if !upgrade.as_bytes().eq_ignore_ascii_case(b"websocket") {
        return None;
    }
    let key = request.headers().get(SEC_WEBSOCKET_KEY);
    let mut proof = key.map_or(&b""[..], HeaderValue::as_bytes).to_vec();
    proof.extend_from_slice(GUID);
    HeaderValue::try_from(BASE64_STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &proof))).ok()
}

/// Makes the head that is about to be sent one that asks for a WebSocket.
pub(super) fn connect(request: &mut Request<()>) {
    *request.method_mut() = Method::CONNECT;
    request.extensions_mut().insert(Protocol::from_static("websocket"));
    request.headers_mut().remove(SEC_WEBSOCKET_KEY);
}

/// The stream, once the server has agreed. Dropped before its end, it is reset.
pub struct Stream {
    pub(super) out: SendStream<Bytes>,
    pub(super) incoming: RecvStream,
    /// What came and was not read.
    pub(super) waiting: Bytes,
    pub(super) place: Place,
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        while self.waiting.is_empty() {
            match ready!(self.incoming.poll_data(cx)) {
                Some(Ok(data)) => self.waiting = data,
                Some(Err(_)) => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                None => return Poll::Ready(Ok(())),
            }
        }
        let read = room.remaining().min(self.waiting.len());
        room.put_slice(&self.waiting.split_to(read));
        let _closed = self.incoming.flow_control().release_capacity(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.out.reserve_capacity(bytes.len());
        while self.out.capacity() == 0 {
            match ready!(self.out.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
        let written = self.out.capacity().min(bytes.len());
        let part = Bytes::copy_from_slice(&bytes[..written]);
        self.out.send_data(part, false).map_err(super::broken)?;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // What was taken goes out with the connection's turn.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.out.send_data(Bytes::new(), true).map_err(super::broken))
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handshake_is_answered_as_rfc_6455_has_it() {
        let asked = |upgrade: &str| {
            let asked = Request::get("/chat").header("upgrade", upgrade);
            let asked = asked.header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
            accept_of(&asked.body(()).unwrap())
        };
        assert_eq!(asked("WebSocket").unwrap(), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        assert_eq!(asked("h2c"), None);
        assert_eq!(accept_of(&Request::new(())), None);
    }
}
