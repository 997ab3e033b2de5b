//! Step 2: TLS.
//!
//! [`Certificates`] are what a listener can prove to be; [`server_config`] makes of them the settings for
//! handshakes to come, exchanged whole at a reload; [`handshake`] turns an [`Accepted`] into a [`Secured`].
//!
//! Invariants: TLS 1.2 and 1.3 with authenticated encryption only, no renegotiation, no early data. Nothing is
//! buffered without a bound, before or after the handshake. A set of certificates with one fault is not served at all.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion, ServerConfig, ServerConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

pub use certificates::{Certificates, Leaf};
pub use faults::{LoadFault, Problem, Warning, WarningKind};
pub use first_bytes::Opening;
pub use hello::name_asked_for;
pub use judge::{
    Authorities, Judge, Shown, authorities_in, authorities_of_the_system, in_its_time, judged_by, judged_over,
};
pub use load::own_certificate;
pub use mutual::{Mutual, MutualFault};
pub use offer::Offer;
pub use quic::{SecuredQuic, handshake as quic_handshake, quic_config};
pub use self_signed::{SelfSigned, self_signed, self_signed_for};
pub use settings::{operator_config, server_config};
pub use tickets::{TicketKey, Tickets};

use crate::fault::CloseReason;
use crate::listen::{Accepted, Facts, Permit, Pieces, Prefixed};
use crate::types::NodeName;

mod certificates;
mod faults;
mod first_bytes;
mod hello;
mod judge;
mod load;
mod mutual;
mod offer;
mod quic;
mod self_signed;
mod settings;
mod staple;
mod tickets;

/// A connection with agreed TLS.
#[derive(Debug)]
pub struct Secured {
    io: Box<TlsStream<Prefixed<TcpStream>>>,
    facts: Facts,
    tls: TlsFacts,
    permit: Permit,
}

impl Secured {
    /// What is known of the connection.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What was agreed.
    pub fn tls(&self) -> &TlsFacts {
        &self.tls
    }

    /// The host names in the peer's certificate, in lower case; none if it was not asked for one.
    pub fn peer_names(&self) -> Vec<String> {
        let certificates = self.io.get_ref().1.peer_certificates();
        certificates
            .and_then(<[_]>::first)
            .map(load::names_in)
            .unwrap_or_default()
    }

    /// The stream.
    pub fn io(&mut self) -> &mut TlsStream<Prefixed<TcpStream>> {
        &mut self.io
    }

    /// The same connection, taken to be that of a client which reached `local` of the node `by`.
    ///
    /// # Errors
    /// [`CloseReason::SourceLimit`] if the client's source has its share.
    pub fn on_behalf(mut self, client: SocketAddr, local: SocketAddr, by: NodeName) -> Result<Self, CloseReason> {
        self.permit.claim(client.ip())?;
        self.facts.client = client;
        self.facts.local = local;
        self.facts.relayed_by = Some(by);
        Ok(self)
    }

    /// Takes the connection apart. Whoever uses the stream keeps the permit for as long.
    #[expect(clippy::type_complexity, reason = "streams upon streams, taken apart at once")]
    pub fn into_parts(self) -> (Pieces<Box<TlsStream<Prefixed<TcpStream>>>>, Facts, TlsFacts, Permit) {
        (Pieces::new(self.io), self.facts, self.tls, self.permit)
    }
}

/// What client and node agreed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFacts {
    /// The protocol version.
    pub version: ProtocolVersion,
    /// The cipher suite.
    pub suite: CipherSuite,
    /// The group of the key exchange; `None` if a TLS 1.2 session was resumed.
    pub group: Option<NamedGroup>,
    /// The name that the client asked for, in lower case; `None` also if it asked for an IP address.
    pub sni: Option<Box<str>>,
    /// Whether the client agreed to the application protocol by name (ALPN); without, it is `http/1.1`.
    pub alpn: bool,
    /// Whether that is HTTP/2.
    pub h2: bool,
    /// Whether an earlier session was resumed.
    pub resumed: bool,
    /// The cipher suites that the client offered, as far as they are known.
    pub offered: Offer,
}

impl fmt::Display for TlsFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unknown = "unknown";
        let version = self.version.as_str().unwrap_or(unknown);
        let suite = self.suite.as_str().unwrap_or(unknown);
        let group = self.group.and_then(|group| group.as_str()).unwrap_or("no key exchange");
        write!(f, "{version} {suite} {group}")
    }
}

/// Whether the client begins to speak HTTP where TLS is spoken. Waits for its first bytes as [`handshake`] does, and takes
/// none.
pub async fn is_plain_http(accepted: &mut Accepted) -> bool {
    let first = accepted.io_mut().peek(FIRST_READ).await;
    first.is_ok_and(|bytes| Opening::of(bytes) == Opening::Http)
}

/// Agrees TLS with a client that is to speak HTTP in it, and answers one that speaks HTTP without it with a short text that
/// says to use HTTPS. Everything else is as for [`handshake`].
///
/// # Errors
/// [`CloseReason::Malformed`] after plain HTTP, and those of [`handshake`].
///
/// # Cancel safety
/// As for [`handshake`].
pub async fn https_handshake(mut accepted: Accepted, config: Arc<ServerConfig>) -> Result<Secured, CloseReason> {
    if is_plain_http(&mut accepted).await {
        let (io, _facts, _permit) = accepted.into_parts();
        answer_plain_http(io).await;
        return Err(CloseReason::Malformed);
    }
    handshake(accepted, config).await
}

/// Agrees TLS with the client. What is not TLS is answered with an alert.
///
/// # Errors
/// [`CloseReason::ProxyHeader`] after a PROXY header from a peer that is not
/// a listed balancer, [`CloseReason::TlsFailed`] if the two cannot agree, [`CloseReason::ClientClosed`] if the client
/// went away. The connection is closed then and its places are free.
///
/// # Cancel safety
/// Waits for the client without a limit of its own: the caller holds one deadline over [`Incoming::accept`] and this.
/// Dropping the future closes the connection and gives its places back.
///
/// [`Incoming::accept`]: crate::listen::Incoming::accept
pub async fn handshake(accepted: Accepted, config: Arc<ServerConfig>) -> Result<Secured, CloseReason> {
    let (mut io, facts, permit) = accepted.into_parts();
    let (opening, offered) = match io.peek(FIRST_READ).await {
        Ok([]) | Err(_) => return Err(CloseReason::ClientClosed),
        Ok(bytes) => (Opening::of(bytes), Offer::of(bytes)),
    };
    match opening {
        Opening::ProxyHeader => {
            tracing::debug!(peer = %facts.peer, listener = &*facts.listener, "PROXY header from a peer that is not a listed balancer");
            return Err(CloseReason::ProxyHeader);
        }
        Opening::Tls | Opening::Http | Opening::Foreign => {}
    }
    let agreed = TlsAcceptor::from(config)
        .accept_with(io, |session| session.set_buffer_limit(Some(BUFFER_LIMIT)))
        .await;
    match agreed {
        Ok(io) => {
            let tls = TlsFacts::of(io.get_ref().1, offered).ok_or(CloseReason::Internal)?;
            // More than a kibibyte: moved on from step to step, it would have a place in each.
            let io = Box::new(io);
            Ok(Secured { io, facts, tls, permit })
        }
        Err(cause) => {
            tracing::debug!(client = %facts.client, listener = &*facts.listener, %cause, "no TLS");
            Err(reason(&cause))
        }
    }
}

impl TlsFacts {
    /// The facts of a finished handshake.
    fn of(session: &ServerConnection, offered: Offer) -> Option<Self> {
        Some(Self {
            version: session.protocol_version()?,
            suite: session.negotiated_cipher_suite()?.suite(),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            sni: session.server_name().map(Box::from),
            alpn: session.alpn_protocol().is_some(),
            h2: session.alpn_protocol() == Some(H2),
            resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            offered,
        })
    }
}

/// Tells a person's browser or script what to do, and waits a moment for it to have read that.
async fn answer_plain_http(mut io: Prefixed<TcpStream>) {
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{PLAIN_HTTP_ADVICE}",
        PLAIN_HTTP_ADVICE.len()
    );
    let goodbye = async {
        io.write_all(answer.as_bytes()).await?;
        io.shutdown().await?;
        // Closing with unread bytes would reset the connection, and the client could lose the answer.
        let mut unread = [0; 512];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match io.read(&mut unread).await? {
                0 => break,
                length => left = left.saturating_sub(length),
            }
        }
        Ok::<_, io::Error>(())
    };
    let _gone_or_answered = tokio::time::timeout(LINGER, goodbye).await;
}

fn reason(cause: &io::Error) -> CloseReason {
    if cause.kind() == io::ErrorKind::InvalidData {
        CloseReason::TlsFailed
    } else if cause.kind() == io::ErrorKind::Other {
        CloseReason::Internal
    } else {
        CloseReason::ClientClosed
    }
}

/// HTTP/2, as it is named in a handshake.
const H2: &[u8] = b"h2";

/// Room for the first message of today's browsers, with a post-quantum key share; freed as soon as it is read.
const FIRST_READ: usize = 2048;

/// What a connection may hold of bytes that its client does not take, and at most as much once more unread: what is relayed
/// at once, with what goes before and behind it.
const BUFFER_LIMIT: usize = 80 * 1024;

const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES: usize = 64 * 1024;

const PLAIN_HTTP_ADVICE: &str = "This port speaks HTTPS. Write https:// before the address.\n";
