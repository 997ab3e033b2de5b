//! What conditions look at and templates show.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;

/// What a condition looks at and a template shows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Variable {
    /// A field of the request: `http_req_NAME`.
    Request(HeaderName),
    /// A field of the answer: `http_resp_NAME`.
    Response(HeaderName),
    /// A cookie of the request: `var_cookie_NAME`. Names are compared with their case.
    Cookie(String),
    /// Anything else: `var_NAME`.
    Server(ServerVariable),
}

impl Variable {
    /// Whether it has no value before the target has answered.
    pub fn is_of_answer(&self) -> bool {
        matches!(self, Self::Response(_) | Self::Server(ServerVariable::HttpStatus))
    }
}

impl FromStr for Variable {
    type Err = InvalidVariable;

    fn from_str(text: &str) -> Result<Self, InvalidVariable> {
        if let Some(name) = text.strip_prefix("http_req_") {
            return name.parse().map(Self::Request).map_err(|_| InvalidVariable);
        }
        if let Some(name) = text.strip_prefix("http_resp_") {
            return name.parse().map(Self::Response).map_err(|_| InvalidVariable);
        }
        let name = text.strip_prefix("var_").ok_or(InvalidVariable)?;
        match name.strip_prefix("cookie_") {
            // What may stand in a field's name may stand in a cookie's.
            Some(cookie) if cookie.parse::<HeaderName>().is_ok() => Ok(Self::Cookie(cookie.to_owned())),
            Some(_) => Err(InvalidVariable),
            None => name.parse().map(Self::Server),
        }
    }
}

impl fmt::Display for Variable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(name) => write!(f, "http_req_{name}"),
            Self::Response(name) => write!(f, "http_resp_{name}"),
            Self::Cookie(name) => write!(f, "var_cookie_{name}"),
            Self::Server(variable) => write!(f, "var_{}", variable.name()),
        }
    }
}

/// A text that is no [`Variable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("variables are http_req_NAME, http_resp_NAME, var_cookie_NAME and var_NAME with a server variable's name")]
pub struct InvalidVariable;

/// What is known of a request beside its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerVariable {
    /// `X-Forwarded-For` as it is sent on, but without the client's port.
    AddXForwardedForProxy,
    /// The cipher suites that the client offers.
    CiphersSupported,
    /// The cipher suite that is used.
    CiphersUsed,
    /// The client's address.
    ClientIp,
    /// The client's port.
    ClientPort,
    /// The round trip of the connection to whoever connected, in microseconds.
    ClientTcpRtt,
    /// The user of HTTP Basic authentication.
    ClientUser,
    /// The host that was asked for, without port.
    Host,
    /// The method.
    HttpMethod,
    /// The status of the answer.
    HttpStatus,
    /// The version, as `HTTP/1.1` or `HTTP/2.0`.
    HttpVersion,
    /// The query, without `?`.
    QueryString,
    /// The size of the request, in bytes: of its head as HTTP/1.1 writes it, and of its body if the head says that.
    ReceivedBytes,
    /// The same as the query string.
    RequestQuery,
    /// `http` or `https`.
    RequestScheme,
    /// Path and query as the client sent them.
    RequestUri,
    /// The size of the answer, in bytes, as far as it is sent.
    SentBytes,
    /// The port that the request came to.
    ServerPort,
    /// The version of TLS.
    SslConnectionProtocol,
    /// `On` with TLS, or else empty.
    SslEnabled,
    /// The path.
    UriPath,
    /// The client's certificate in PEM.
    ClientCertificate,
    /// The last day of its validity.
    ClientCertificateEndDate,
    /// Its SHA-1.
    ClientCertificateFingerprint,
    /// Its issuer.
    ClientCertificateIssuer,
    /// Its serial number.
    ClientCertificateSerial,
    /// The first day of its validity.
    ClientCertificateStartDate,
    /// Its subject.
    ClientCertificateSubject,
    /// `SUCCESS`, `FAILED:` with a reason, or `NONE`.
    ClientCertificateVerification,
}

impl ServerVariable {
    /// Every one.
    pub const ALL: [Self; 29] = [
        Self::AddXForwardedForProxy,
        Self::CiphersSupported,
        Self::CiphersUsed,
        Self::ClientIp,
        Self::ClientPort,
        Self::ClientTcpRtt,
        Self::ClientUser,
        Self::Host,
        Self::HttpMethod,
        Self::HttpStatus,
        Self::HttpVersion,
        Self::QueryString,
        Self::ReceivedBytes,
        Self::RequestQuery,
        Self::RequestScheme,
        Self::RequestUri,
        Self::SentBytes,
        Self::ServerPort,
        Self::SslConnectionProtocol,
        Self::SslEnabled,
        Self::UriPath,
        Self::ClientCertificate,
        Self::ClientCertificateEndDate,
        Self::ClientCertificateFingerprint,
        Self::ClientCertificateIssuer,
        Self::ClientCertificateSerial,
        Self::ClientCertificateStartDate,
        Self::ClientCertificateSubject,
        Self::ClientCertificateVerification,
    ];

    /// The name behind `var_`.
    pub fn name(self) -> &'static str {
        match self {
            Self::AddXForwardedForProxy => "add_x_forwarded_for_proxy",
            Self::CiphersSupported => "ciphers_supported",
            Self::CiphersUsed => "ciphers_used",
            Self::ClientIp => "client_ip",
            Self::ClientPort => "client_port",
            Self::ClientTcpRtt => "client_tcp_rtt",
            Self::ClientUser => "client_user",
            Self::Host => "host",
            Self::HttpMethod => "http_method",
            Self::HttpStatus => "http_status",
            Self::HttpVersion => "http_version",
            Self::QueryString => "query_string",
            Self::ReceivedBytes => "received_bytes",
            Self::RequestQuery => "request_query",
            Self::RequestScheme => "request_scheme",
            Self::RequestUri => "request_uri",
            Self::SentBytes => "sent_bytes",
            Self::ServerPort => "server_port",
            Self::SslConnectionProtocol => "ssl_connection_protocol",
            Self::SslEnabled => "ssl_enabled",
            Self::UriPath => "uri_path",
            Self::ClientCertificate => "client_certificate",
            Self::ClientCertificateEndDate => "client_certificate_end_date",
            Self::ClientCertificateFingerprint => "client_certificate_fingerprint",
            Self::ClientCertificateIssuer => "client_certificate_issuer",
            Self::ClientCertificateSerial => "client_certificate_serial",
            Self::ClientCertificateStartDate => "client_certificate_start_date",
            Self::ClientCertificateSubject => "client_certificate_subject",
            Self::ClientCertificateVerification => "client_certificate_verification",
        }
    }
}

impl FromStr for ServerVariable {
    type Err = InvalidVariable;

    fn from_str(text: &str) -> Result<Self, InvalidVariable> {
        let named = Self::ALL.into_iter().find(|variable| variable.name() == text);
        named.ok_or(InvalidVariable)
    }
}
