//! Server variables: what is known of a request beside its fields. Nothing is made before it is asked for.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, HOST};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Version};
use x509_parser::prelude::{ASN1Time, FromDer as _, X509Certificate};

use super::Url;
use super::value::{encode, joined};
use crate::publish::headers::cookie;
use crate::secure::TlsFacts;
use crate::types::{ServerVariable, Variable};
use crate::wire::Length;

/// What is known of a request beside its fields, its path and its query.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// Who asks.
    pub client: IpAddr,
    /// The client's port, if it is known.
    pub client_port: Option<u16>,
    /// `X-Forwarded-For` as it is sent on ([`Prepared`](crate::publish::headers::Prepared)).
    pub forwarded_for: &'a HeaderValue,
    /// The host that was asked for, without port.
    pub host: &'a str,
    /// The method.
    pub method: &'a Method,
    /// The version that the client speaks.
    pub version: Version,
    /// Path and query as they were received.
    pub uri: &'a str,
    /// The listener's port.
    pub port: u16,
    /// Whether the request came over TLS.
    pub https: bool,
    /// What was agreed then, as far as it is known.
    pub tls: Option<&'a TlsFacts>,
    /// The client's certificate, if it showed one.
    pub certificate: Option<Shown<'a>>,
    /// Asks for the round trip to whoever connected. It is not cheap: nobody asks who does not need it.
    pub round_trip: &'a dyn Fn() -> Option<Duration>,
    /// The size of the request, in bytes ([`ServerVariable::ReceivedBytes`]).
    pub received: u64,
}

/// A certificate that a client showed.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The certificate in DER.
    pub der: &'a [u8],
    /// Why it does not prove who the client is, if it does not.
    pub failure: Option<&'a str>,
}

/// The size of a request in bytes: of its head as HTTP/1.1 writes it, and of its body if the head says that.
pub fn size(head: &Parts, body: Length) -> u64 {
    let of_line = |(name, value): (&str, usize)| name.len() + ": ".len() + value + "\r\n".len();
    let target = head.uri.path_and_query().map_or(1, |target| target.as_str().len());
    let request_line = head.method.as_str().len() + " ".len() + target + " HTTP/1.1\r\n".len();
    let authority = head.uri.authority().filter(|_| !head.headers.contains_key(HOST));
    let host = authority.map(|authority| (HOST.as_str(), authority.as_str().len()));
    let fields = head.headers.iter().map(|(name, value)| (name.as_str(), value.len()));
    let lines: usize = fields.chain(host).map(of_line).sum();
    let body = match body {
        Length::Exact(length) => length,
        Length::Unknown => 0,
    };
    (request_line + lines + "\r\n".len()) as u64 + body
}

impl Facts<'_> {
    /// The value of a variable for a request; `None` if it has none, or only the answer has.
    pub(super) fn value<'v>(
        &'v self,
        variable: &Variable,
        url: Url<'v>,
        headers: &'v HeaderMap,
    ) -> Option<Cow<'v, [u8]>> {
        match variable {
            Variable::Request(name) => joined(headers, name),
            Variable::Response(_) => None,
            Variable::Cookie(name) => cookie(headers, name).map(Cow::Borrowed),
            Variable::Server(variable) => {
                let text = self.server(*variable, url, headers).filter(|text| !text.is_empty())?;
                Some(match text {
                    Cow::Borrowed(text) => text.as_bytes().into(),
                    Cow::Owned(text) => text.into_bytes().into(),
                })
            }
        }
    }

    fn server<'v>(&'v self, variable: ServerVariable, url: Url<'v>, headers: &'v HeaderMap) -> Option<Cow<'v, str>> {
        let (scheme, enabled) = if self.https { ("https", "On") } else { ("http", "") };
        Some(match variable {
            ServerVariable::AddXForwardedForProxy => without_port(self.forwarded_for)?,
            ServerVariable::CiphersSupported => self.tls?.offered.to_string().into(),
            ServerVariable::CiphersUsed => self.tls?.suite.as_str()?.replace("TLS13_", "TLS_").into(),
            ServerVariable::ClientIp => self.client.to_string().into(),
            ServerVariable::ClientPort => self.client_port?.to_string().into(),
            ServerVariable::ClientTcpRtt => (self.round_trip)()?.as_micros().to_string().into(),
            ServerVariable::ClientUser => user(headers)?.into(),
            ServerVariable::Host => self.host.into(),
            ServerVariable::HttpMethod => self.method.as_str().into(),
            ServerVariable::HttpStatus => return None,
            ServerVariable::HttpVersion => version(self.version)?.into(),
            ServerVariable::QueryString | ServerVariable::RequestQuery => url.query?.into(),
            ServerVariable::ReceivedBytes => self.received.to_string().into(),
            ServerVariable::RequestScheme => scheme.into(),
            ServerVariable::RequestUri => self.uri.into(),
            // Before its head is sent, nothing is.
            ServerVariable::SentBytes => "0".into(),
            ServerVariable::ServerPort => self.port.to_string().into(),
            ServerVariable::SslConnectionProtocol => self.tls?.version.as_str()?.replace('_', ".").into(),
            ServerVariable::SslEnabled => enabled.into(),
            ServerVariable::UriPath => url.path.into(),
            ServerVariable::ClientCertificateVerification => match self.certificate {
                None => "NONE".into(),
                Some(Shown { failure: None, .. }) => "SUCCESS".into(),
                Some(Shown {
                    failure: Some(reason), ..
                }) => format!("FAILED:{reason}").into(),
            },
            ServerVariable::ClientCertificate
            | ServerVariable::ClientCertificateEndDate
            | ServerVariable::ClientCertificateFingerprint
            | ServerVariable::ClientCertificateIssuer
            | ServerVariable::ClientCertificateSerial
            | ServerVariable::ClientCertificateStartDate
            | ServerVariable::ClientCertificateSubject => self.certificate?.value(variable)?.into(),
        })
    }
}

impl Shown<'_> {
    fn value(&self, variable: ServerVariable) -> Option<String> {
        if variable == ServerVariable::ClientCertificate {
            return Some(self.escaped_pem());
        }
        if variable == ServerVariable::ClientCertificateFingerprint {
            return Some(digits(digest(&SHA1_FOR_LEGACY_USE_ONLY, self.der).as_ref(), false));
        }
        let (_, certificate) = X509Certificate::from_der(self.der).ok()?;
        if variable == ServerVariable::ClientCertificateEndDate {
            return date(certificate.validity().not_after);
        }
        if variable == ServerVariable::ClientCertificateStartDate {
            return date(certificate.validity().not_before);
        }
        if variable == ServerVariable::ClientCertificateIssuer {
            return Some(certificate.issuer().to_string());
        }
        if variable == ServerVariable::ClientCertificateSubject {
            return Some(certificate.subject().to_string());
        }
        Some(digits(certificate.tbs_certificate.raw_serial(), true))
    }

    /// PEM with its line breaks percent-encoded, which could not stand in a field.
    fn escaped_pem(&self) -> String {
        let mut pem = String::from("-----BEGIN CERTIFICATE-----\n");
        for line in STANDARD.encode(self.der).as_bytes().chunks(64) {
            pem.extend(line.iter().map(|byte| char::from(*byte)));
            pem.push('\n');
        }
        pem.push_str("-----END CERTIFICATE-----\n");
        let mut escaped = String::with_capacity(pem.len() * 9 / 8);
        encode(&mut escaped, pem.as_bytes(), |c| {
            c.is_ascii_alphanumeric() || "-._~".contains(c)
        });
        escaped
    }
}

/// As OpenSSL writes it: `Aug 10 12:00:00 2026 GMT`.
fn date(time: ASN1Time) -> Option<String> {
    let time = jiff::Timestamp::from_second(time.timestamp()).ok()?;
    Some(time.strftime("%b %e %H:%M:%S %Y GMT").to_string())
}

fn digits(octets: &[u8], upper: bool) -> String {
    let digit = |octet: &u8| {
        if upper {
            format!("{octet:02X}")
        } else {
            format!("{octet:02x}")
        }
    };
    octets.iter().map(digit).collect()
}

/// A chain of addresses whose last one has no port.
fn without_port(chain: &HeaderValue) -> Option<Cow<'_, str>> {
    let chain = chain.to_str().ok()?;
    let start = chain.rfind(' ').map_or(0, |space| space + 1);
    let (before, last) = chain.split_at(start);
    match last.parse::<SocketAddr>() {
        Ok(last) => Some(format!("{before}{}", last.ip()).into()),
        Err(_) => Some(chain.into()),
    }
}

/// The user of HTTP Basic authentication (RFC 7617).
fn user(headers: &HeaderMap) -> Option<String> {
    let (scheme, credentials) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let credentials = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    credentials.split_once(':').map(|(user, _)| user.to_owned())
}

fn version(version: Version) -> Option<&'static str> {
    let named = [
        (Version::HTTP_11, "HTTP/1.1"),
        (Version::HTTP_2, "HTTP/2.0"),
        (Version::HTTP_3, "HTTP/3.0"),
        (Version::HTTP_10, "HTTP/1.0"),
    ];
    named
        .into_iter()
        .find(|(named, _)| *named == version)
        .map(|(_, name)| name)
}
