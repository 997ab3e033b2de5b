//! A WebSocket that a client of HTTP/2 or HTTP/3 opens (RFC 8441, RFC 9220), asked of a target in HTTP/1.1 (RFC 6455).

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use aws_lc_rs::rand;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};

/// A handshake that was made for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handshake {
    /// What the target has to answer.
    accept: String,
}

impl Handshake {
    /// Makes of an extended `CONNECT` the request that HTTP/1.1 has for it.
    pub fn begin(request: &mut Request<()>) -> Self {
        let mut nonce = [0; 16];
        // It only tells a server that answers from one that echoes: zeros would do.
        let _filled = rand::fill(&mut nonce);
        Self::with(&BASE64_STANDARD.encode(nonce), request)
    }

    fn with(key: &str, request: &mut Request<()>) -> Self {
        *request.method_mut() = Method::GET;
        *request.version_mut() = Version::HTTP_11;
        let headers = request.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers
            .entry(SEC_WEBSOCKET_VERSION)
            .or_insert(HeaderValue::from_static("13"));
        if let Ok(key) = HeaderValue::try_from(key) {
            headers.insert(SEC_WEBSOCKET_KEY, key);
        }
        let sum = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes());
        Self {
            accept: BASE64_STANDARD.encode(sum),
        }
    }

    /// The answer for the client, of the target's `101`; `None` if the target has not understood the handshake.
    pub fn end(&self, head: &Response<()>) -> Option<Response<()>> {
        if head.headers().get(SEC_WEBSOCKET_ACCEPT)?.as_bytes() != self.accept.as_bytes() {
            return None;
        }
        let mut answer = Response::new(());
        *answer.status_mut() = StatusCode::OK;
        *answer.headers_mut() = head.headers().clone();
        for name in [CONNECTION, UPGRADE, SEC_WEBSOCKET_ACCEPT] {
            answer.headers_mut().remove(name);
        }
        Some(answer)
    }
}

const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extended_connect_becomes_an_upgrade_and_its_answer_a_200() {
        let mut request = Request::builder()
            .method(Method::CONNECT)
            .version(Version::HTTP_2)
            .uri("https://shop.test/chat?a")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "chat")
            .body(())
            .unwrap();
        // The example of RFC 6455 section 1.3.
        let handshake = Handshake::with("dGhlIHNhbXBsZSBub25jZQ==", &mut request);
        assert_eq!((request.method(), request.version()), (&Method::GET, Version::HTTP_11));
        assert_eq!(request.headers()["sec-websocket-key"], "dGhlIHNhbXBsZSBub25jZQ==");
        assert_eq!(request.headers()["upgrade"], "websocket");
        let answer = |accept: &str| {
            Response::builder()
                .status(101)
                .header("upgrade", "websocket")
                .header("connection", "upgrade")
                .header("sec-websocket-accept", accept)
                .header("sec-websocket-protocol", "chat")
                .body(())
                .unwrap()
        };
        let ended = handshake.end(&answer("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")).unwrap();
        assert_eq!(ended.status(), 200);
        assert_eq!(ended.headers().len(), 1);
        assert_eq!(ended.headers()["sec-websocket-protocol"], "chat");
        assert!(handshake.end(&answer("else")).is_none());
        assert!(handshake.end(&Response::new(())).is_none());
    }

    #[test]
    fn no_two_handshakes_are_alike() {
        let begin = || Handshake::begin(&mut Request::new(()));
        assert_ne!(begin(), begin());
    }
}
