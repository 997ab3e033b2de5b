//! The answers that the gateway itself makes.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, RETRY_AFTER, SERVER, SET_COOKIE, STRICT_TRANSPORT_SECURITY,
};
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use http_body_util::{Either, Full};

use crate::control::Answered;
use crate::tunnel::https::TunnelBody;

/// An answer's body: whole, or the stream of a tunnel.
pub(super) type Reply = Either<Full<Bytes>, TunnelBody>;

/// Shown by browsers, and what the balancer's health check asks for.
const FAVICON: &[u8] = include_bytes!("favicon.ico");

/// After which a client that was turned away may try again, in seconds.
const RETRY_SECONDS: u64 = 10;

/// The health check: 200 in service, 503 out of it; the same bytes for HEAD without the body.
pub(super) fn health(in_service: bool, method: &Method) -> Response<Reply> {
    let body = if method == Method::HEAD {
        Bytes::new()
    } else {
        Bytes::from_static(FAVICON)
    };
    let mut response = if in_service {
        with_type(StatusCode::OK, "image/x-icon", body)
    } else {
        text(StatusCode::SERVICE_UNAVAILABLE, "out of service\n")
    };
    // A balancer must see the state as it is now.
    put(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// A short text for people; what the client does next is in the status.
pub(super) fn text(status: StatusCode, words: &'static str) -> Response<Reply> {
    with_type(
        status,
        "text/plain; charset=utf-8",
        Bytes::from_static(words.as_bytes()),
    )
}

/// The same text and time for every secondary that is not admitted; the connection closes after it.
pub(super) fn refused() -> Response<Reply> {
    closing(text(StatusCode::FORBIDDEN, "not admitted\n"))
}

/// The node takes no new sessions at this moment.
pub(super) fn unavailable() -> Response<Reply> {
    let mut response = closing(text(
        StatusCode::SERVICE_UNAVAILABLE,
        "no new sessions at this moment\n",
    ));
    response.headers_mut().insert(
        RETRY_AFTER,
        HeaderValue::from(Duration::from_secs(RETRY_SECONDS).as_secs()),
    );
    response
}

/// The path is right, the method is not.
pub(super) fn method_not_allowed(allow: &'static str) -> Response<Reply> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    put(&mut response, ALLOW, allow);
    response
}

/// A control reply: always 200, whatever the message says (protocol sheet 1.2).
pub(super) fn control(answer: Answered) -> Response<Reply> {
    let mut response = with_type(
        StatusCode::OK,
        "text/xml;charset=UTF-8",
        Bytes::copy_from_slice(answer.document.as_bytes()),
    );
    put(&mut response, CACHE_CONTROL, "no-store");
    put(&mut response, STRICT_TRANSPORT_SECURITY, "max-age=63072000");
    for cookie in answer.cookies {
        if let Ok(value) = HeaderValue::from_str(&cookie) {
            response.headers_mut().append(SET_COOKIE, value);
        }
    }
    response
}

/// The head of a tunnel; its stream follows for as long as the tunnel lives.
pub(super) fn tunnel(body: TunnelBody) -> Response<Reply> {
    let mut response = Response::new(Either::Right(body));
    put(&mut response, CONTENT_TYPE, "application/octet-stream");
    put(&mut response, CACHE_CONTROL, "no-cache, no-store, must-revalidate");
    response
}

/// Makes an answer the last one of its connection.
pub(super) fn closing(mut response: Response<Reply>) -> Response<Reply> {
    put(&mut response, CONNECTION, "close");
    response
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    put(&mut response, CONTENT_TYPE, kind);
    put(&mut response, SERVER, "Portcullis");
    response
}

fn put(response: &mut Response<Reply>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}
