//! The settings of a handshake.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};

use super::Tickets;

/// TLS 1.2 and 1.3 with authenticated encryption, a post-quantum key exchange for whoever knows it, and `h2` before
/// `http/1.1`.
///
/// # Errors
/// Only if the cryptographic library lacks what every build of it has.
pub fn server_config(
    certificates: Arc<dyn ResolvesServerCert>,
    tickets: &Tickets,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    // Suites are those of the library's default: all of them AEAD with ephemeral keys. The client's order among them
    // counts, since only the client knows whether it computes AES or ChaCha20 faster.
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![super::H2.to_vec(), b"http/1.1".to_vec()];
    config.ticketer = tickets.ticketer();
    config.send_tls13_tickets = 1;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// TLS 1.3 under one certificate, for HTTP/1.1: operators bring no old clients. No session is taken up again.
///
/// # Errors
/// Only if the cryptographic library lacks what every build of it has.
pub fn operator_config(key: Arc<CertifiedKey>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}
