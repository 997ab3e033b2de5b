//! Connections to targets of the web: TCP, and TLS as the configuration expects it of them.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, CipherSuite, Error, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::set_options;
use crate::fault::WebFault;
use crate::listen::{Pieces, Prefixed, abort_at_end};

mod trust;

pub use trust::{TrustFault, Trusted};

/// How connections to the targets of one backend come about.
#[derive(Clone)]
pub struct Connector {
    limit: Duration,
    tls: Option<Tls>,
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    /// The name that is asked for and expected, whatever the request says.
    name: Option<Box<str>>,
    /// Whether a connection is of use without a name to check.
    needs_name: bool,
    needs_http2: bool,
}

impl Connector {
    /// Connections without TLS, each within `limit`.
    pub fn plain(limit: Duration) -> Self {
        Self { limit, tls: None }
    }

    /// Connections with TLS, each within `limit`. `name` is asked for and expected instead of the host of requests.
    pub fn tls(limit: Duration, trusted: Trusted, name: Option<&str>) -> Self {
        let tls = Tls {
            needs_name: trusted.checks_name,
            needs_http2: !trusted.config.alpn_protocols.is_empty(),
            connector: TlsConnector::from(trusted.config),
            name: name.map(Box::from),
        };
        Self { limit, tls: Some(tls) }
    }

    /// Whether connections have TLS.
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The name that a connection is for if requests on it have this `Host`; `None` without TLS, or if any name will do.
    pub fn name<'a>(&'a self, host: &'a str) -> Option<&'a str> {
        let tls = self.tls.as_ref()?;
        tls.name.as_deref().or_else(|| host_name(host))
    }

    /// Connects to `address`, and has the target prove to be `name` if the configuration wants that.
    ///
    /// An address is never sent as a name. The socket has `TCP_NODELAY` and keep-alive set. Cancel-safe: a connection that
    /// is not complete is given up.
    ///
    /// # Errors
    /// No connection came about within the limit.
    pub async fn connect(&self, address: SocketAddr, name: Option<&str>) -> Result<Io, ConnectFault> {
        self.connect_saying(&[], address, name).await
    }

    /// As [`connect`](Self::connect), but `first` is sent before anything else, before TLS too.
    ///
    /// # Errors
    /// As there.
    pub async fn connect_saying(
        &self,
        first: &[u8],
        address: SocketAddr,
        name: Option<&str>,
    ) -> Result<Io, ConnectFault> {
        let deadline = Instant::now() + self.limit;
        let mut socket = match timeout_at(deadline, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(cause)) => return Err(ConnectFault::from_io(&cause)),
            Err(_) => return Err(ConnectFault::Timeout),
        };
        set_options(&socket).map_err(|cause| ConnectFault::from_io(&cause))?;
        if !first.is_empty() {
            match timeout_at(deadline, socket.write_all(first)).await {
                Ok(Ok(())) => {}
                Ok(Err(cause)) => return Err(ConnectFault::from_io(&cause)),
                Err(_) => return Err(ConnectFault::Timeout),
            }
        }
        let local = socket.local_addr().ok();
        let Some(tls) = &self.tls else {
            let stream = Stream::Plain(socket);
            return Ok(Io { stream, local });
        };
        let name = match name.map(|name| ServerName::try_from(name.to_owned())) {
            Some(Ok(name)) => name,
            Some(Err(_)) | None if tls.needs_name => return Err(ConnectFault::NoName),
            // Sent to nobody: an address is no name to ask for.
            Some(Err(_)) | None => ServerName::IpAddress(address.ip().into()),
        };
        // Beneath TLS, reads of four kibibytes become larger ones.
        let socket = Prefixed::new(Bytes::new(), socket);
        let agreed = tls
            .connector
            .connect_with(name, socket, |session| session.set_buffer_limit(Some(BUFFER_LIMIT)));
        let stream = match timeout_at(deadline, agreed).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(cause)) => return Err(ConnectFault::from_tls(&cause)),
            Err(_) => return Err(ConnectFault::TlsTimeout),
        };
        if tls.needs_http2 && stream.get_ref().1.alpn_protocol().is_none() {
            return Err(ConnectFault::NoHttp2);
        }
        let stream = Stream::Tls(Box::new(stream));
        Ok(Io { stream, local })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector")
            .field("limit", &self.limit)
            .field("tls", &self.is_tls())
            .finish_non_exhaustive()
    }
}

/// The host of `Host` without its port and without brackets; `None` if there is none.
fn host_name(host: &str) -> Option<&str> {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next()?,
        None => host.split(':').next()?,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    (!name.is_empty()).then_some(name)
}

/// A connection to a target.
#[derive(Debug)]
pub struct Io {
    stream: Stream,
    /// This end's address: to ask the system for each request would be a call more.
    local: Option<SocketAddr>,
}

#[derive(Debug)]
enum Stream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// With TLS.
    Tls(Box<TlsStream<Prefixed<TcpStream>>>),
}

impl Io {
    /// What TLS was agreed; `None` without.
    pub fn tls(&self) -> Option<TargetTls> {
        let Stream::Tls(stream) = &self.stream else {
            return None;
        };
        let session = stream.get_ref().1;
        let leaf = session.peer_certificates().and_then(<[_]>::first);
        Some(TargetTls {
            version: session.protocol_version(),
            suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
            not_after: leaf.and_then(|leaf| {
                let (_, certificate) = X509Certificate::from_der(leaf).ok()?;
                Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
            }),
        })
    }

    /// Has the end of this connection reach the target as a break, and not as an end in order.
    pub fn abort_at_end(&self) {
        match &self.stream {
            Stream::Plain(stream) => abort_at_end(stream),
            Stream::Tls(stream) => abort_at_end(stream.get_ref().0.get_ref()),
        }
    }

    /// This end's address, as the target sees it if nothing translates it; `None` if the system did not say.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Whether the target neither closed nor sent anything, which it has no reason to while it is asked nothing.
    pub fn is_quiet(&mut self) -> bool {
        let mut byte = [0];
        let mut room = ReadBuf::new(&mut byte);
        let mut cx = Context::from_waker(Waker::noop());
        Pin::new(self).poll_read(&mut cx, &mut room).is_pending()
    }
}

/// What is known of the TLS of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetTls {
    /// The protocol version.
    pub version: Option<ProtocolVersion>,
    /// The cipher suite.
    pub suite: Option<CipherSuite>,
    /// When its certificate expires.
    pub not_after: Option<Timestamp>,
}

/// Why no connection to a target came about: one closed list, the same in log and probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ConnectFault {
    /// It accepts no connections.
    #[error("the target refuses connections")]
    Refused,
    /// No way leads to it.
    #[error("no way leads to the target")]
    Unreachable,
    /// It did not accept in time.
    #[error("the target does not accept the connection in time")]
    Timeout,
    /// The system failed, for instance for want of descriptors.
    #[error("the connection failed")]
    System,
    /// It accepted, and did not agree TLS in time.
    #[error("the target does not agree TLS in time")]
    TlsTimeout,
    /// It closed in the middle of the handshake.
    #[error("the target closed during the TLS handshake")]
    TlsClosed,
    /// What it sent is no TLS.
    #[error("the target does not speak TLS")]
    NoTls,
    /// It refused the handshake: other versions or suites, or a client certificate that it wants or does not trust.
    #[error("the target refuses the TLS handshake")]
    TlsAlert,
    /// It speaks no HTTP/2.
    #[error("the target does not speak HTTP/2")]
    NoHttp2,
    /// There is no name that it could prove.
    #[error("the request has no host name that the target's certificate could be for")]
    NoName,
    /// No known authority issued its certificate, or an intermediate certificate is missing.
    #[error("the target's certificate was not issued by a known authority, or its chain is incomplete")]
    UnknownAuthority,
    /// Its certificate is for other names.
    #[error("the target's certificate is for another name")]
    NameMismatch,
    /// Its certificate has expired.
    #[error("the target's certificate has expired")]
    Expired,
    /// Its certificate is not valid yet.
    #[error("the target's certificate is not valid yet")]
    NotYetValid,
    /// Something else is wrong with its certificate.
    #[error("the target's certificate is unusable")]
    BadCertificate,
}

impl ConnectFault {
    /// The code in logs and probes.
    pub fn code(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "connect_timeout",
            Self::System => "system",
            Self::TlsTimeout => "tls_timeout",
            Self::TlsClosed => "tls_closed",
            Self::NoTls => "no_tls",
            Self::TlsAlert => "tls_alert",
            Self::NoHttp2 => "no_http2",
            Self::NoName => "no_name",
            Self::UnknownAuthority => "unknown_authority",
            Self::NameMismatch => "name_mismatch",
            Self::Expired => "certificate_expired",
            Self::NotYetValid => "certificate_not_yet_valid",
            Self::BadCertificate => "bad_certificate",
        }
    }

    /// Whether time ran out.
    pub fn is_timeout(self) -> bool {
        matches!(self, Self::Timeout | Self::TlsTimeout)
    }

    /// What the request's fault is.
    pub fn web(self) -> WebFault {
        match self {
            Self::Refused | Self::Unreachable | Self::Timeout | Self::System => WebFault::ConnectFailed,
            Self::TlsTimeout
            | Self::TlsClosed
            | Self::NoTls
            | Self::TlsAlert
            | Self::NoHttp2
            | Self::NoName
            | Self::UnknownAuthority
            | Self::NameMismatch
            | Self::Expired
            | Self::NotYetValid
            | Self::BadCertificate => WebFault::UpstreamTls,
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "io::ErrorKind grows; what has no word of its own is the system's"
    )]
    fn from_io(cause: &io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => Self::Refused,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            _ => Self::System,
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the lists of the TLS library grow; what has no word of its own is told as the general case"
    )]
    fn from_tls(cause: &io::Error) -> Self {
        let Some(fault) = cause.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
            return Self::TlsClosed;
        };
        match fault {
            Error::InvalidCertificate(fault) => match fault {
                CertificateError::UnknownIssuer => Self::UnknownAuthority,
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                    Self::NameMismatch
                }
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
                _ => Self::BadCertificate,
            },
            Error::AlertReceived(AlertDescription::NoApplicationProtocol) => Self::NoHttp2,
            Error::AlertReceived(_) | Error::PeerIncompatible(_) => Self::TlsAlert,
            _ => Self::NoTls,
        }
    }
}

impl AsyncRead for Io {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(&mut Pieces::new(stream)).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(&mut Pieces::new(stream)).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What a target that does not read may leave unsent here: what is relayed at once, with what goes before and behind it.
const BUFFER_LIMIT: usize = 80 * 1024;

#[cfg(test)]
mod tests;
