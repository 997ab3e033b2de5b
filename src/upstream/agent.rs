//! The connection to a desktop's agent, and how the agent proves itself.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{CertificateError, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{DialFault, dial};
use crate::config::{Agent, Config};
use crate::listen::Pieces;
use crate::secure::{Authorities, Judge, Shown, authorities_in, authorities_of_the_system, judged_by};
use crate::types::{Target, Thumbprint};

/// The ways to the agents of one configuration, ready to be gone.
pub struct Agents {
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
            connectors: HashMap::new(),
        };
        let mut faults = Vec::new();
        for way in ways {
            if *way == Agent::Plain || agents.connectors.contains_key(way) {
                continue;
            }
            match connector(way) {
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
}

fn connector(agent: &Agent) -> Result<TlsConnector, AgentFault> {
    let setup = |cause: Error| AgentFault::Setup(cause.to_string());
    let judge: Arc<dyn Judge> = match agent {
        Agent::Thumbprint(thumbprint) => Arc::new(Pinned(*thumbprint)),
        Agent::Certificate { ca: Some(file), .. } => {
            let (roots, _) = authorities_in(file).map_err(|problem| AgentFault::Authorities {
                file: file.clone(),
                problem,
            })?;
            Arc::new(Authorities::new(roots).map_err(setup)?)
        }
        Agent::Plain | Agent::System | Agent::Certificate { ca: None, .. } => {
            let roots = authorities_of_the_system().ok_or(AgentFault::NoSystemAuthorities)?;
            Arc::new(Authorities::new(roots).map_err(setup)?)
        }
    };
    let mut config = judged_by(judge).map_err(setup)?.with_no_client_auth();
    // Connections last for hours: what a resumption saves is not worth what it keeps.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
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
struct Pinned(Thumbprint);

impl Judge for Pinned {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        let thumbprint = Thumbprint::of(shown.certificate);
        if thumbprint == self.0 {
            return Ok(());
        }
        tracing::warn!(given = %self.0, shown = %thumbprint, step = "upstream", "an agent shows another certificate than the given one");
        Err(CertificateError::ApplicationVerificationFailure.into())
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
