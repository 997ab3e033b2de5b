//! TLS within QUIC.

use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{HandshakeData, QuicServerConfig};
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{CipherSuite, ProtocolVersion, ServerConfig};

use super::{Offer, Tickets, TlsFacts};
use crate::fault::CloseReason;
use crate::listen::{Arriving, Facts, Permit, quic_transport};

/// The application protocol: HTTP/3.
const H3: &[u8] = b"h3";

/// TLS 1.3 with the same certificates as over TCP, for HTTP/3; the connection is given up after a silence of
/// `lost_contact`.
///
/// A client may change its address. No early data: it could be sent twice.
///
/// # Errors
/// Only if the cryptographic library lacks what every build of it has.
pub fn quic_config(
    certificates: Arc<dyn ResolvesServerCert>,
    tickets: &Tickets,
    lost_contact: Duration,
) -> Result<quinn::ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    tls.alpn_protocols = vec![H3.to_vec()];
    tls.ticketer = tickets.ticketer();
    tls.send_tls13_tickets = 1;
    tls.session_storage = Arc::new(NoServerSessionStorage {});
    let tls = QuicServerConfig::try_from(tls).map_err(|fault| rustls::Error::General(fault.to_string()))?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    config.transport_config(quic_transport(lost_contact)).migration(true);
    Ok(config)
}

/// A QUIC connection with agreed TLS.
#[derive(Debug)]
pub struct SecuredQuic {
    connection: quinn::Connection,
    facts: Facts,
    tls: TlsFacts,
    permit: Permit,
}

impl SecuredQuic {
    /// Takes the connection apart. Whoever uses it keeps the permit for as long.
    pub fn into_parts(self) -> (quinn::Connection, Facts, TlsFacts, Permit) {
        (self.connection, self.facts, self.tls, self.permit)
    }
}

/// Agrees TLS with the client.
///
/// # Errors
/// [`CloseReason::TlsFailed`] if the two cannot agree, [`CloseReason::ClientClosed`] if the client went away.
///
/// # Cancel safety
/// Waits for the client without a limit of its own: the caller holds a deadline over it. Dropping the future closes
/// the connection and gives its places back.
pub async fn handshake(arriving: Arriving) -> Result<SecuredQuic, CloseReason> {
    let (incoming, facts, permit, _open) = arriving.into_parts();
    let agreed = async { incoming.accept()?.await }.await;
    let connection = agreed.map_err(|fault| {
        tracing::debug!(client = %facts.client, listener = &*facts.listener, %fault, "no QUIC");
        reason(&fault)
    })?;
    let tls = facts_of(&connection);
    Ok(SecuredQuic {
        connection,
        facts,
        tls,
        permit,
    })
}

fn facts_of(connection: &quinn::Connection) -> TlsFacts {
    let data = connection
        .handshake_data()
        .and_then(|data| data.downcast::<HandshakeData>().ok());
    TlsFacts {
        version: ProtocolVersion::TLSv1_3,
        // The QUIC library says neither this nor the next.
        suite: CipherSuite::Unknown(0),
        group: None,
        sni: data.and_then(|data| data.server_name).map(Box::from),
        alpn: true,
        h2: false,
        resumed: false,
        offered: Offer::default(),
    }
}

fn reason(fault: &quinn::ConnectionError) -> CloseReason {
    use quinn::ConnectionError as Lost;
    match fault {
        Lost::VersionMismatch | Lost::TransportError(_) => CloseReason::TlsFailed,
        Lost::ConnectionClosed(_) | Lost::ApplicationClosed(_) | Lost::Reset => CloseReason::ClientClosed,
        Lost::TimedOut => CloseReason::Timeout,
        Lost::LocallyClosed | Lost::CidsExhausted => CloseReason::Internal,
    }
}
