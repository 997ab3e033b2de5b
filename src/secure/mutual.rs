//! TLS between nodes: both sides show a certificate, and both are held to one authority.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::crypto::aws_lc_rs;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SignatureScheme};

use super::faults::{LoadFault, Problem};
use super::load::{load_pair, read_chain};
use crate::config;

/// Both ends of TLS 1.3 between nodes.
#[derive(Clone)]
pub struct Mutual {
    /// For the node that is reached.
    pub server: Arc<ServerConfig>,
    /// For the node that reaches out. It expects the other node's name in its certificate.
    pub client: Arc<ClientConfig>,
}

impl Mutual {
    /// Reads this node's certificate, and the authority of all of them. Blocks on the file system.
    ///
    /// # Errors
    /// Every fault of the files.
    pub fn load(
        name: &str,
        certificate: Option<&config::Certificate>,
        ca: &Path,
        now: Timestamp,
    ) -> Result<Self, Vec<MutualFault>> {
        let pair =
            load_pair(name, certificate, now).map_err(|faults| faults.into_iter().map(MutualFault::Own).collect());
        let roots = read_roots(ca).map_err(|fault| vec![fault]);
        let (pair, roots) = match (pair, roots) {
            (Ok(pair), Ok(roots)) => (pair, Arc::new(roots)),
            (pair, roots) => {
                return Err([pair.err(), roots.err()]
                    .into_iter()
                    .flatten()
                    .flatten()
                    .collect::<Vec<_>>());
            }
        };
        Self::of(Arc::new(Own(pair.key)), roots).map_err(|cause| vec![MutualFault::Tls(cause)])
    }

    fn of(own: Arc<Own>, roots: Arc<RootCertStore>) -> Result<Self, rustls::Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|fault| rustls::Error::General(fault.to_string()))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(own.clone());
        server.alpn_protocols = vec![ALPN.to_vec()];
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_root_certificates(roots)
            .with_client_cert_resolver(own);
        client.alpn_protocols = vec![ALPN.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
        })
    }
}

impl fmt::Debug for Mutual {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutual(…)")
    }
}

fn read_roots(ca: &Path) -> Result<RootCertStore, MutualFault> {
    let fault = |problem| MutualFault::Authority {
        file: ca.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    for (at, certificate) in read_chain(ca).map_err(fault)?.into_iter().enumerate() {
        roots
            .add(certificate)
            .map_err(|_| fault(Problem::DamagedCertificate(at + 1)))?;
    }
    Ok(roots)
}

/// What can be wrong with the files of TLS between nodes.
#[derive(Debug, thiserror::Error)]
pub enum MutualFault {
    /// This node's own certificate.
    #[error(transparent)]
    Own(LoadFault),
    /// The authority.
    #[error("fleet.ca: {} {problem}; {}", file.display(), problem.advice())]
    Authority {
        /// Its file.
        file: PathBuf,
        /// What is wrong.
        problem: Problem,
    },
    /// The cryptographic library.
    #[error("TLS between nodes cannot be set up: {0}")]
    Tls(rustls::Error),
}

/// One certificate for whoever asks.
#[derive(Debug)]
struct Own(Arc<CertifiedKey>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

impl ResolvesClientCert for Own {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// So that nothing else is taken for a node.
const ALPN: &[u8] = b"portcullis-fleet/1";
