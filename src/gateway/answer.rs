//! The answers that the gateway itself makes.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, ALT_SVC, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION,
    REFERRER_POLICY, RETRY_AFTER, SERVER, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING,
    X_CONTENT_TYPE_OPTIONS,
};
use http::uri::Authority;
use http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use jiff::fmt::rfc2822::DateTimePrinter;
use tokio::time::timeout;

use super::health::Health;
use super::portal;
use crate::clock;
use crate::control::Answered;
use crate::fault::Refusal;
use crate::types::MarkAnswer;
use crate::wire::{Gone, Length, Sink};

/// Shown by browsers, and what the balancer's health check asks for.
const FAVICON: &[u8] = include_bytes!("favicon.ico");

/// What a client is told that is not admitted.
const REFUSED: &str = "not admitted\n";

/// For a client to read an answer.
const READ: Duration = Duration::from_secs(30);

/// After which a client that was turned away may try again, in seconds.
const RETRY_SECONDS: u64 = 10;

/// The health check; the same bytes for HEAD without the body.
pub(super) fn health(health: Health, method: &Method) -> Response<Bytes> {
    let body = if method == Method::HEAD {
        Bytes::new()
    } else {
        Bytes::from_static(FAVICON)
    };
    let mut response = match health {
        Health::InService => with_type(health.status(), "image/x-icon", body),
        Health::NoNewUsers => text(health.status(), "no new users\n"),
        Health::OutOfService => text(health.status(), "out of service\n"),
    };
    // A balancer must see the state as it is now.
    put(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// The answer to a mark. It is another one for every mark: nobody may keep it.
pub(super) fn mark(answer: MarkAnswer) -> Response<Bytes> {
    let mut response = with_type(StatusCode::OK, "text/plain", Bytes::from(answer.to_string()));
    put(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// The page for people; `quic` is the port at which the same is served over HTTP/3.
pub(super) fn portal(method: &Method, authority: Option<&Authority>, quic: Option<u16>) -> Response<Bytes> {
    let body = if method == Method::HEAD {
        Bytes::new()
    } else {
        portal::page(authority)
    };
    let mut response = with_type(StatusCode::OK, "text/html; charset=utf-8", body);
    put(&mut response, CACHE_CONTROL, "no-cache");
    put(&mut response, STRICT_TRANSPORT_SECURITY, "max-age=63072000");
    put(&mut response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    put(&mut response, REFERRER_POLICY, "no-referrer");
    response
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, portal::POLICY.clone());
    if let Some(service) = quic.and_then(|port| HeaderValue::try_from(format!("h3=\":{port}\"; ma=3600")).ok()) {
        response.headers_mut().insert(ALT_SVC, service);
    }
    response
}

/// Writes an answer.
///
/// # Errors
/// [`Gone`] also if the client does not read it.
pub(super) async fn send(sink: &mut impl Sink, answer: Response<Bytes>) -> Result<(), Gone> {
    let (head, body) = answer.into_parts();
    let written = async {
        let length = Length::Exact(body.len() as u64);
        sink.head(Response::from_parts(head, ()), length).await?;
        sink.last(body).await
    };
    timeout(READ, written).await.unwrap_or(Err(Gone))
}

/// A short text for people; what the client does next is in the status.
pub(super) fn text(status: StatusCode, words: &'static str) -> Response<Bytes> {
    with_type(
        status,
        "text/plain; charset=utf-8",
        Bytes::from_static(words.as_bytes()),
    )
}

/// A secondary that is not joined to its desktop; the connection closes after it. Who is not admitted is told the same
/// whatever the reason.
pub(super) fn refused(reason: Refusal) -> Response<Bytes> {
    match reason {
        Refusal::TargetUnreachable => closing(text(StatusCode::BAD_GATEWAY, "the desktop cannot be reached\n")),
        Refusal::AgentSilent => closing(text(StatusCode::GATEWAY_TIMEOUT, "the desktop does not answer\n")),
        Refusal::Quiesced => unavailable(),
        Refusal::NoToken
        | Refusal::Malformed
        | Refusal::UnknownToken
        | Refusal::SisterNode
        | Refusal::Expired
        | Refusal::Revoked
        | Refusal::WrongProtocol
        | Refusal::NotAnnounced
        | Refusal::AddressMismatch
        | Refusal::AmbiguousAddress
        | Refusal::WindowMissed
        | Refusal::FlowLimit
        | Refusal::HostNotAllowed
        | Refusal::NotResumable
        | Refusal::LbSnatDetected => closing(text(StatusCode::FORBIDDEN, REFUSED)),
    }
}

/// The answer of somebody inside, passed on.
pub(super) fn passed_on(answer: Response<Bytes>) -> Response<Bytes> {
    let mut response = closing(answer);
    put(&mut response, CACHE_CONTROL, "no-store");
    response
}

/// The same request again, at another name of this node. What is left of its body is not read.
pub(super) fn redirect(location: &str) -> Response<Bytes> {
    let mut response = closing(text(
        StatusCode::TEMPORARY_REDIRECT,
        "continue at this node's own name\n",
    ));
    put(&mut response, CACHE_CONTROL, "no-store");
    match HeaderValue::from_str(location) {
        Ok(location) => drop(response.headers_mut().insert(LOCATION, location)),
        // Names are checked, and paths were read from a head: this is never so.
        Err(_) => *response.status_mut() = StatusCode::BAD_REQUEST,
    }
    response
}

/// The node takes no new sessions at this moment.
pub(super) fn unavailable() -> Response<Bytes> {
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

/// Nothing lives there.
pub(super) fn not_found() -> Response<Bytes> {
    text(StatusCode::NOT_FOUND, "not found\n")
}

/// The path is right, the method is not.
pub(super) fn method_not_allowed(allow: &'static str) -> Response<Bytes> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed\n");
    put(&mut response, ALLOW, allow);
    response
}

/// A control reply: always 200, whatever the message says (protocol sheet 1.2).
pub(super) fn control(answer: Answered) -> Response<Bytes> {
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
pub(super) fn tunnel() -> Response<()> {
    let mut response = Response::new(());
    put(&mut response, CONTENT_TYPE, "application/octet-stream");
    put(&mut response, CACHE_CONTROL, "no-cache, no-store, must-revalidate");
    put(&mut response, TRANSFER_ENCODING, "chunked");
    response
}

/// A request that cannot become a tunnel, whoever sent it.
pub(super) fn not_chunked() -> Response<Bytes> {
    closing(text(
        StatusCode::BAD_REQUEST,
        "a tunnel is a chunked request of HTTP/1.1\n",
    ))
}

/// The same without a body, for a connection that has left HTTP.
pub(super) fn bad_request() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::BAD_REQUEST;
    put(&mut response, CONTENT_LENGTH, "0");
    put(&mut response, CONNECTION, "close");
    response
}

/// The bytes of an answer's head, for a connection that has left HTTP; written as the HTTP server writes them.
pub(super) fn head<T>(response: &Response<T>) -> Vec<u8> {
    let status = response.status();
    let mut head = format!(
        "HTTP/1.1 {} {}\r\n",
        status.as_u16(),
        status.canonical_reason().unwrap_or("")
    )
    .into_bytes();
    for (name, value) in response.headers() {
        let mut starts = true;
        for letter in name.as_str().bytes() {
            head.push(if starts { letter.to_ascii_uppercase() } else { letter });
            starts = letter == b'-';
        }
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    if let Ok(date) = DateTimePrinter::new().timestamp_to_rfc9110_string(&clock::wall()) {
        head.extend_from_slice(format!("Date: {date}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    head
}

/// The bytes of what [`refused`] tells whoever is not admitted, for a connection that has left HTTP.
pub(super) fn refused_in_bytes() -> Vec<u8> {
    let mut response = refused(Refusal::SisterNode);
    let length = HeaderValue::from(REFUSED.len());
    response.headers_mut().insert(CONTENT_LENGTH, length);
    let mut bytes = head(&response);
    bytes.extend_from_slice(REFUSED.as_bytes());
    bytes
}

/// Makes an answer the last one of its connection.
pub(super) fn closing(mut response: Response<Bytes>) -> Response<Bytes> {
    put(&mut response, CONNECTION, "close");
    response
}

fn with_type(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    put(&mut response, CONTENT_TYPE, kind);
    put(&mut response, SERVER, "Portcullis");
    response
}

fn put<T>(response: &mut Response<T>, name: HeaderName, value: &'static str) {
    response.headers_mut().insert(name, HeaderValue::from_static(value));
}
