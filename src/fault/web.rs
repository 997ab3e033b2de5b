//! Why a web request was answered by the gateway itself: one closed list.

use std::fmt;

use http::StatusCode;

use super::Source;

/// Why a web request got no answer of its target, or not the whole of it. The same code stands in the access log, the
/// metric and the admin search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WebFault {
    /// The request's head is none: its line, a field, or how its body is delimited.
    InvalidRequest,
    /// A version of HTTP that is not spoken here.
    InvalidVersion,
    /// A method that is never passed on (`TRACE`, `CONNECT` without a protocol).
    InvalidMethod,
    /// `Host` is missing, repeated or no host.
    InvalidHost,
    /// Plain HTTP came to a TLS port.
    HttpToHttpsPort,
    /// The path cannot be made safe.
    UnsafePath,
    /// The head is larger than it may be.
    HeadTooLarge,
    /// The body is larger than it may be.
    BodyTooLarge,
    /// The client closed before it had its answer.
    ClientClosed,
    /// The client did not send what it announced in time.
    ClientTimeout,
    /// No rule is for the host, and none for any host.
    NoRule,
    /// The name of the TLS handshake and the host belong to rules whose TLS differs.
    Misdirected,
    /// The rule does not admit the client's address.
    AddressDenied,
    /// The client asks more often than the rule allows.
    RateLimited,
    /// The authentication service says no.
    Unauthenticated,
    /// The authentication service does not answer.
    AuthenticationUnavailable,
    /// The pool has no target.
    NoTarget,
    /// No target of the pool is healthy.
    NoHealthyTarget,
    /// Every target has as many requests as it may have.
    Saturated,
    /// A WebSocket was asked for, and the node drains.
    Draining,
    /// No connection to the target came about.
    ConnectFailed,
    /// The target and this node do not agree on TLS, or it does not prove to be what the configuration says.
    UpstreamTls,
    /// The target closed before it had answered.
    UpstreamClosed,
    /// What the target answered is no HTTP.
    UpstreamInvalid,
    /// The target did not answer in time.
    UpstreamTimeout,
    /// Rewriting the path came back to where it began.
    RewriteLoop,
    /// This node is at fault.
    Internal,
}

impl WebFault {
    /// Every fault.
    pub const ALL: [Self; 27] = [
        Self::InvalidRequest,
        Self::InvalidVersion,
        Self::InvalidMethod,
        Self::InvalidHost,
        Self::HttpToHttpsPort,
        Self::UnsafePath,
        Self::HeadTooLarge,
        Self::BodyTooLarge,
        Self::ClientClosed,
        Self::ClientTimeout,
        Self::NoRule,
        Self::Misdirected,
        Self::AddressDenied,
        Self::RateLimited,
        Self::Unauthenticated,
        Self::AuthenticationUnavailable,
        Self::NoTarget,
        Self::NoHealthyTarget,
        Self::Saturated,
        Self::Draining,
        Self::ConnectFailed,
        Self::UpstreamTls,
        Self::UpstreamClosed,
        Self::UpstreamInvalid,
        Self::UpstreamTimeout,
        Self::RewriteLoop,
        Self::Internal,
    ];

    /// The code in log, metric and filter.
    pub fn code(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::InvalidVersion => "invalid_version",
            Self::InvalidMethod => "invalid_method",
            Self::InvalidHost => "invalid_host",
            Self::HttpToHttpsPort => "http_to_https_port",
            Self::UnsafePath => "unsafe_path",
            Self::HeadTooLarge => "head_too_large",
            Self::BodyTooLarge => "body_too_large",
            Self::ClientClosed => "client_closed",
            Self::ClientTimeout => "client_timeout",
            Self::NoRule => "no_rule",
            Self::Misdirected => "misdirected",
            Self::AddressDenied => "address_denied",
            Self::RateLimited => "rate_limited",
            Self::Unauthenticated => "unauthenticated",
            Self::AuthenticationUnavailable => "authentication_unavailable",
            Self::NoTarget => "no_target",
            Self::NoHealthyTarget => "no_healthy_target",
            Self::Saturated => "saturated",
            Self::Draining => "draining",
            Self::ConnectFailed => "connect_failed",
            Self::UpstreamTls => "upstream_tls",
            Self::UpstreamClosed => "upstream_closed",
            Self::UpstreamInvalid => "upstream_invalid",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::RewriteLoop => "rewrite_loop",
            Self::Internal => "internal",
        }
    }

    /// The status that the client is answered; 499, which nobody is sent, if it has gone.
    pub fn status(self) -> StatusCode {
        match self {
            Self::InvalidRequest | Self::InvalidHost | Self::HttpToHttpsPort | Self::UnsafePath => {
                StatusCode::BAD_REQUEST
            }
            Self::InvalidVersion => StatusCode::HTTP_VERSION_NOT_SUPPORTED,
            Self::InvalidMethod => StatusCode::METHOD_NOT_ALLOWED,
            Self::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::ClientClosed => StatusCode::from_u16(499).unwrap_or(StatusCode::BAD_REQUEST),
            Self::ClientTimeout => StatusCode::REQUEST_TIMEOUT,
            Self::NoRule => StatusCode::NOT_FOUND,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::AddressDenied => StatusCode::FORBIDDEN,
            Self::RateLimited => StatusCode::TOO_MANY_REQUESTS,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
            Self::NoTarget
            | Self::NoHealthyTarget
            | Self::ConnectFailed
            | Self::UpstreamTls
            | Self::UpstreamClosed
            | Self::UpstreamInvalid => StatusCode::BAD_GATEWAY,
            Self::Saturated | Self::Draining | Self::AuthenticationUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::UpstreamTimeout => StatusCode::GATEWAY_TIMEOUT,
            Self::RewriteLoop | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// The words that people read; they name no inside address.
    pub fn words(self) -> &'static str {
        match self {
            Self::InvalidRequest => "the request is malformed",
            Self::InvalidVersion => "this version of HTTP is not spoken here",
            Self::InvalidMethod => "the method is not allowed",
            Self::InvalidHost => "Host is missing, repeated or malformed",
            Self::HttpToHttpsPort => "this port speaks TLS",
            Self::UnsafePath => "the path cannot be made safe",
            Self::HeadTooLarge => "the request's head is too large",
            Self::BodyTooLarge => "the request's body is too large",
            Self::ClientClosed => "the client closed first",
            Self::ClientTimeout => "the request did not arrive in time",
            Self::NoRule => "nothing is published under this host",
            Self::Misdirected => "this host is not served on this connection",
            Self::AddressDenied => "the client's address is not admitted",
            Self::RateLimited => "too many requests",
            Self::Unauthenticated => "authentication is required",
            Self::AuthenticationUnavailable => "the authentication service does not answer",
            Self::NoTarget => "the pool is empty",
            Self::NoHealthyTarget => "no target is healthy",
            Self::Saturated => "every target is busy",
            Self::Draining => "this node shuts down",
            Self::ConnectFailed => "the target cannot be reached",
            Self::UpstreamTls => "the target's TLS is not as expected",
            Self::UpstreamClosed => "the target closed before it had answered",
            Self::UpstreamInvalid => "the target's answer is malformed",
            Self::UpstreamTimeout => "the target did not answer in time",
            Self::RewriteLoop => "rewriting the path went in a circle",
            Self::Internal => "an error of this node",
        }
    }

    /// Whose fault it is.
    pub fn source(self) -> Source {
        match self {
            Self::InvalidRequest
            | Self::InvalidVersion
            | Self::InvalidMethod
            | Self::InvalidHost
            | Self::HttpToHttpsPort
            | Self::UnsafePath
            | Self::HeadTooLarge
            | Self::ClientClosed
            | Self::ClientTimeout => Source::Client,
            Self::BodyTooLarge
            | Self::NoRule
            | Self::Misdirected
            | Self::AddressDenied
            | Self::RateLimited
            | Self::Unauthenticated
            | Self::Saturated
            | Self::Draining => Source::Policy,
            Self::AuthenticationUnavailable
            | Self::NoTarget
            | Self::NoHealthyTarget
            | Self::ConnectFailed
            | Self::UpstreamTls
            | Self::UpstreamClosed
            | Self::UpstreamInvalid
            | Self::UpstreamTimeout => Source::Upstream,
            Self::RewriteLoop | Self::Internal => Source::Internal,
        }
    }
}

impl fmt::Display for WebFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl std::error::Error for WebFault {}
