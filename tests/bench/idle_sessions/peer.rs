//! HAProxy as a peer: TLS from the client, plain TCP to the desktop, no sign-in and no tunnel protocol.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::node::write_private;
use crate::process::Process;

/// A running HAProxy. Dropped, it is killed.
pub(crate) struct HaProxy {
    child: Child,
    process: Process,
    tls: TlsConnector,
    doors: Vec<SocketAddr>,
    _folder: TempDir,
}

impl HaProxy {
    /// Starts it with a door for each target; `None` if it is not installed.
    pub(crate) fn start(chain: &Path, key: &Path, targets: &[SocketAddr]) -> anyhow::Result<Option<Self>> {
        let folder = TempDir::new()?;
        let identity = folder.path().join("identity.pem");
        let chain = std::fs::read_to_string(chain)?;
        write_private(&identity, &format!("{chain}{}", std::fs::read_to_string(key)?))?;
        let doors = targets
            .iter()
            .map(|_| free_port())
            .collect::<anyhow::Result<Vec<_>>>()?;
        let config = folder.path().join("haproxy.cfg");
        write_private(&config, &configuration(&identity, &doors, targets)?)?;
        let started = Command::new("haproxy")
            .args(["-db", "-q", "-f"])
            .arg(config)
            .stdin(Stdio::null())
            .spawn();
        let child = match started {
            Ok(child) => child,
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(fault) => return Err(fault).context("cannot start haproxy"),
        };
        Ok(Some(Self {
            process: Process::new(child.id()),
            child,
            tls: connector(&chain)?,
            doors,
            _folder: folder,
        }))
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Connects to the target of that place.
    pub(crate) async fn connect(&self, place: usize) -> anyhow::Result<TlsStream<TcpStream>> {
        let io = loop {
            match TcpStream::connect(self.doors[place]).await {
                Ok(io) => break io,
                // It is still starting.
                Err(fault) if fault.kind() == std::io::ErrorKind::ConnectionRefused => {
                    sleep(Duration::from_millis(20)).await;
                }
                Err(fault) => return Err(fault.into()),
            }
        };
        io.set_nodelay(true)?;
        Ok(self.tls.connect(ServerName::try_from("localhost")?, io).await?)
    }
}

impl Drop for HaProxy {
    fn drop(&mut self) {
        // There is nothing to be done about a process that cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(identity: &Path, doors: &[SocketAddr], targets: &[SocketAddr]) -> anyhow::Result<String> {
    let threads = std::thread::available_parallelism()?;
    let mut text = format!(
        "global\n nbthread {threads}\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
    );
    for (place, (door, target)) in doors.iter().zip(targets).enumerate() {
        let identity = identity.display();
        text.push_str(&format!(
            "listen t{place}\n bind {door} ssl crt {identity}\n server t {target}\n"
        ));
    }
    Ok(text)
}

fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn connector(chain: &str) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(chain.as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
