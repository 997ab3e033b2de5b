//! The WebSocket handshake (RFC 6455 section 4), as it is passed on.
//!
//! The fields of the WebSocket pass untouched both ways. Credentials for the gateway and what concerns one connection only
//! stay here; so do fields by which a client could claim to be someone else's proxy.

use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::Empty;

/// The request to the agent; `None` if the path is none.
pub(super) fn request(headers: &HeaderMap, path: &str) -> Option<Request<Empty<Bytes>>> {
    let mut request = Request::new(Empty::new());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = path.parse().ok()?;
    let named = named_in_connection(headers);
    let passed = headers
        .iter()
        .filter(|(name, _)| !stays(name) && !named.iter().any(|named| name.as_str().eq_ignore_ascii_case(named)));
    for (name, value) in passed {
        request.headers_mut().append(name, value.clone());
    }
    request
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    request
        .headers_mut()
        .insert(UPGRADE, HeaderValue::from_static("websocket"));
    Some(request)
}

/// The head of the answer to the client, with the agent's choices.
pub(super) fn head(headers: &HeaderMap) -> Vec<u8> {
    let mut head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n".to_vec();
    for (name, value) in headers {
        if let Some(rest) = name.as_str().strip_prefix(WEBSOCKET) {
            head.extend_from_slice(b"Sec-WebSocket-");
            head.extend(title_case(rest));
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// Whether a field is not for the agent.
fn stays(name: &HeaderName) -> bool {
    let of_this_connection = [
        CONNECTION,
        UPGRADE,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        CONTENT_LENGTH,
        EXPECT,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        // For the gateway: its session cookie, a grant's secret.
        COOKIE,
        AUTHORIZATION,
        FORWARDED,
    ];
    let name_text = name.as_str();
    of_this_connection.contains(name)
        || ["keep-alive", "proxy-connection", "x-real-ip"].contains(&name_text)
        || name_text.starts_with("x-forwarded-")
}

/// What the client wants to be dropped on the way, but never a field of the WebSocket.
fn named_in_connection(headers: &HeaderMap) -> Vec<String> {
    let fields = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|field| field.to_str().ok());
    fields
        .flat_map(|field| field.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.starts_with(WEBSOCKET) && name != "host")
        .collect()
}

fn title_case(name: &str) -> impl Iterator<Item = u8> {
    let mut start = true;
    name.bytes().map(move |byte| {
        let shown = if start { byte.to_ascii_uppercase() } else { byte };
        start = byte == b'-';
        shown
    })
}

const WEBSOCKET: &str = "sec-websocket-";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_sees_the_websocket_and_no_credential_of_the_gateway() {
        let headers = fields(&[
            ("host", "gw.test"),
            ("origin", "https://gw.test"),
            ("connection", "keep-alive, Upgrade, X-Secret, Sec-WebSocket-Key"),
            ("upgrade", "WebSocket"),
            ("sec-websocket-key", "{AAAA-odd}"),
            ("sec-websocket-protocol", "binary, vmware-vvc"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("cookie", "JSESSIONID=1"),
            ("authorization", "Bearer x"),
            ("x-forwarded-for", "1.2.3.4"),
            ("x-secret", "y"),
            ("keep-alive", "5"),
            ("x-other", "passes"),
        ]);
        let request = request(&headers, "/d/G/?vauth=1").unwrap();
        assert_eq!(request.uri(), "/d/G/?vauth=1");
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        let expected = [
            "connection",
            "host",
            "origin",
            "sec-websocket-extensions",
            "sec-websocket-key",
            "sec-websocket-protocol",
            "upgrade",
            "x-other",
        ];
        assert_eq!(names, expected);
        assert_eq!(request.headers()["sec-websocket-key"], "{AAAA-odd}");
    }

    #[test]
    fn the_client_sees_what_the_agent_chose_and_nothing_else() {
        let headers = fields(&[
            ("sec-websocket-accept", "abc="),
            ("sec-websocket-protocol", "binary"),
            ("set-cookie", "inside=1"),
            ("server", "agent"),
        ]);
        let head = String::from_utf8(head(&headers)).unwrap();
        assert_eq!(
            head,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: abc=\r\nSec-WebSocket-Protocol: binary\r\n\r\n"
        );
    }

    fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }
}
