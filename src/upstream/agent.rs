//! The connection to a desktop's agent, and how the agent proves itself.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{DialFault, dial};
use crate::config::{Agent, Config};
use crate::listen::Pieces;
use crate::types::{Target, Thumbprint};

/// The ways to the agents of one configuration, ready to be gone.
pub struct Agents {
    provider: Arc<CryptoProvider>,
    connectors: HashMap<Agent, TlsConnector>,
}

impl Agents {
    /// Those of a configuration. Blocks on the file system.
    ///
    /// # Errors
    /// Every file of authorities that cannot be used, once.
    pub fn load(config: &Config) -> Result<Self, Vec<AgentFault>> {
        let desktops = config.directory.desktops.values();
        let with_agent = desktops.filter(|desktop| {
            desktop
                .protocols
                .iter()
                .any(|(protocol, _)| protocol.has_own_secondary())
        });
        Self::of(with_agent.map(|desktop| &desktop.agent))
    }

    /// Those that prove themselves in these ways. Blocks on the file system.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn of<'a>(ways: impl IntoIterator<Item = &'a Agent>) -> Result<Self, Vec<AgentFault>> {
        let mut agents = Self {
            provider: Arc::new(rustls::crypto::aws_lc_rs::default_provider()),
            connectors: HashMap::new(),
        };
        let mut faults = Vec::new();
        for way in ways {
            if *way == Agent::Plain || agents.connectors.contains_key(way) {
                continue;
            }
            match agents.connector(way) {
                Ok(connector) => {
                    agents.connectors.insert(way.clone(), connector);
                }
                Err(fault) if faults.contains(&fault) => {}
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() { Ok(agents) } else { Err(faults) }
    }

    /// Connects to `target` and has the agent there prove itself, all within `limit`.
    ///
    /// Cancel-safe: a connection that is not complete is given up.
    ///
    /// # Errors
    /// It cannot be reached in time, or is not who it should be; the log says more than the fault.
    pub async fn connect(&self, target: &Target, agent: &Agent, limit: Duration) -> Result<Upstream, DialFault> {
        let deadline = Instant::now() + limit;
        let socket = dial(target, limit).await?;
        if *agent == Agent::Plain {
            return Ok(Upstream::Plain(socket));
        }
        let connector = self.connectors.get(agent).ok_or(DialFault::Untrusted)?;
        let name = name_of(agent, target).ok_or(DialFault::Untrusted)?;
        let agreed = connector.connect_with(name, socket, |session| session.set_buffer_limit(Some(BUFFER_LIMIT)));
        match timeout_at(deadline, agreed).await {
            Err(_) => Err(DialFault::Timeout),
            Ok(Ok(stream)) => Ok(Upstream::Tls(Box::new(stream))),
            Ok(Err(cause)) => {
                tracing::warn!(%target, %cause, step = "upstream", "no TLS with an agent");
                Err(fault_of(&cause))
            }
        }
    }

    fn connector(&self, agent: &Agent) -> Result<TlsConnector, AgentFault> {
        let builder = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12]);
        let setup = |cause: Error| AgentFault::Setup(cause.to_string());
        let verifier: Arc<dyn ServerCertVerifier> = match agent {
            Agent::Thumbprint(thumbprint) => Arc::new(Pinned {
                provider: self.provider.clone(),
                thumbprint: *thumbprint,
            }),
            Agent::Certificate { ca: Some(file), .. } => self.authorities(authorities_in(file)?)?,
            Agent::Plain | Agent::System | Agent::Certificate { ca: None, .. } => {
                self.authorities(authorities_of_the_system()?)?
            }
        };
        let mut config = builder
            .map_err(setup)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        // Connections last for hours: what a resumption saves is not worth what it keeps.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn authorities(&self, roots: RootCertStore) -> Result<Arc<WebPkiServerVerifier>, AgentFault> {
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
            .build()
            .map_err(|cause| AgentFault::Setup(cause.to_string()))
    }
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents")
            .field("ways", &self.connectors.len())
            .finish_non_exhaustive()
    }
}

/// A connection to a desktop, with TLS or without.
#[derive(Debug)]
pub enum Upstream {
    /// Bytes as they are.
    Plain(TcpStream),
    /// An agent that has proved itself.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Upstream {
    /// The address that was reached.
    ///
    /// # Errors
    /// What the system says, for instance that the connection is gone.
    pub fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_addr(),
            Self::Tls(stream) => stream.get_ref().0.peer_addr(),
        }
    }
}

/// Why the agents of a configuration cannot be reached at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentFault {
    /// A file of authorities.
    #[error("{}: {problem}. Give a PEM file with the certificates of the agents' authority", file.display())]
    Authorities {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The system has no authorities.
    #[error(
        "the system knows no certificate authorities: install ca-certificates, or give desktop agents a thumbprint or a ca"
    )]
    NoSystemAuthorities,
    /// The cryptographic library.
    #[error("TLS to agents cannot be set up: {0}")]
    Setup(String),
}

/// The name that the agent's certificate must have.
fn name_of(agent: &Agent, target: &Target) -> Option<ServerName<'static>> {
    let name = match agent {
        Agent::Certificate { name: Some(name), .. } => name,
        Agent::Certificate { name: None, .. } | Agent::Plain | Agent::System | Agent::Thumbprint(_) => &target.host,
    };
    ServerName::try_from(name.clone()).ok()
}

fn authorities_in(file: &Path) -> Result<RootCertStore, AgentFault> {
    let fault = |problem: String| AgentFault::Authorities {
        file: file.to_owned(),
        problem,
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|cause| fault(cause.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|cause| fault(cause.to_string()))?;
        roots.add(certificate).map_err(|cause| fault(cause.to_string()))?;
    }
    if roots.is_empty() {
        return Err(fault("there is no certificate in it".to_owned()));
    }
    Ok(roots)
}

fn authorities_of_the_system() -> Result<RootCertStore, AgentFault> {
    let mut roots = RootCertStore::empty();
    // One that cannot be read is none of those that vouch; the others still do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(AgentFault::NoSystemAuthorities);
    }
    Ok(roots)
}

fn fault_of(cause: &io::Error) -> DialFault {
    let tls = cause.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(_)) => DialFault::Untrusted,
        Some(_) => DialFault::NoTls,
        None => DialFault::from_io(cause),
    }
}

/// Accepts one certificate, whoever issued it, if the agent has its key.
#[derive(Debug)]
struct Pinned {
    provider: Arc<CryptoProvider>,
    thumbprint: Thumbprint,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Thumbprint::of(certificate);
        if shown == self.thumbprint {
            return Ok(ServerCertVerified::assertion());
        }
        tracing::warn!(given = %self.thumbprint, %shown, step = "upstream", "an agent shows another certificate than the given one");
        Err(Error::InvalidCertificate(
            CertificateError::ApplicationVerificationFailure,
        ))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl AsyncRead for Upstream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Upstream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Tls(stream) => Pin::new(&mut Pieces::new(stream)).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// What an agent that does not read may leave unsent here.
const BUFFER_LIMIT: usize = 64 * 1024;

#[cfg(test)]
mod tests;
