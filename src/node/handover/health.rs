//! What a process shows of itself before it takes over: that it would serve clients.
//!
//! Each listener of HTTP is asked for the health check at a port that nobody else knows, as a client would: through the
//! accept loop, TLS with each of its certificates, and the pipeline, on the workers that clients will have. And a pool
//! that has a healthy target in the process before must not be without one here.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::runtime::Builder;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::message::PoolFacts;
use crate::clock;
use crate::gateway::{Door, Gateway};
use crate::listen::{bind, proxy};
use crate::node::sockets::{Service, Socket};
use crate::node::{Node, Prepared};
use crate::secure::{Judge, Leaf, Shown, judged_by};
use crate::upstream::{Condition, PoolView};

/// Why a process does not take over, although it has loaded everything.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// It cannot even ask itself.
    #[error("it cannot be asked how it is: {0}; raise LimitNOFILE if descriptors ran out")]
    System(io::Error),
    /// A listener.
    #[error("listener.{listener}{}: {why}", of_certificate(certificate.as_deref()))]
    Listener {
        /// Which.
        listener: Arc<str>,
        /// The certificate with which it was asked, if it has any.
        certificate: Option<String>,
        /// What came of it.
        why: Silence,
    },
    /// A pool.
    #[error("pool.{pool}: none of its targets is healthy for the new process, though one is for the old one{}", of_target(why.as_deref()))]
    Pool {
        /// Which.
        pool: String,
        /// What is wrong with one of its targets.
        why: Option<String>,
    },
}

/// Why a listener does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// No answer.
    #[error("the health check is not answered within {} s", PATIENCE.as_secs())]
    Late,
    /// No connection, or it broke off.
    #[error("the health check breaks off: {0}")]
    Broken(io::Error),
    /// Another answer.
    #[error("the health check is answered with {0}")]
    Status(String),
}

fn of_certificate(certificate: Option<&str>) -> String {
    certificate.map_or_else(String::new, |name| format!(" with certificate.{name}"))
}

fn of_target(why: Option<&str>) -> String {
    why.map_or_else(String::new, |why| format!(" ({why})"))
}

impl Prepared {
    /// Asks this process how it is, as it will stand once it serves. `healthy`: the pools that have a healthy target in the
    /// process before. Blocks, at most [`PATIENCE`] for each certificate of each listener.
    ///
    /// # Errors
    /// What a client would find.
    pub(super) fn prove_healthy(&self, healthy: &BTreeSet<PoolFacts>) -> Result<(), Unhealthy> {
        let node = self.node();
        node.gateway.lifecycle().serve();
        let runtime = Builder::new_current_thread().enable_all().build();
        runtime.map_err(Unhealthy::System)?.block_on(node.ask_itself())?;
        lost_pool(&node.gateway, healthy).map_or(Ok(()), Err)
    }
}

impl Node {
    async fn ask_itself(&self) -> Result<(), Unhealthy> {
        let plan = self.gateway.plan();
        let spare: io::Result<Vec<_>> = (0..SPARE).map(|_| UnixDatagram::unbound()).collect();
        let _spare = spare.map_err(Unhealthy::System)?;
        // Each connection comes from an address of its own, so that none is too much from one source.
        let mut sources = (1..).map(|n| Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + n));
        for (name, listener) in &plan.config.listeners {
            let doors = listener.bind.iter().filter_map(|at| Some((*at, plan.doors.get(at)?)));
            for (address, door) in doors.filter(|(_, door)| door.protocol.is_http()) {
                let name: Arc<str> = name.as_str().into();
                let port = self.open_a_port(name.clone(), address).map_err(Unhealthy::System)?;
                let leaves = door.certificates.as_deref().map_or(&[][..], |some| some.leaves());
                let shown: Vec<_> = leaves.iter().map(Some).collect();
                let each = if shown.is_empty() { vec![None] } else { shown };
                for leaf in each {
                    let visit = Visit {
                        door,
                        is_of_sessions: listener.session_gateway,
                        leaf,
                        source: sources.next().unwrap_or(Ipv4Addr::LOCALHOST),
                    };
                    let seen = timeout(PATIENCE, visit.make(&self.gateway, port.address)).await;
                    seen.unwrap_or(Err(Silence::Late)).map_err(|why| Unhealthy::Listener {
                        listener: name.clone(),
                        certificate: leaf.map(|leaf| leaf.certificate.clone()),
                        why,
                    })?;
                }
            }
        }
        Ok(())
    }

    /// A port of this machine alone, which leads to the listener at `address`; until it is dropped.
    fn open_a_port(&self, name: Arc<str>, address: SocketAddr) -> io::Result<PrivatePort> {
        let listener = bind((Ipv4Addr::LOCALHOST, 0).into()).map_err(|fault| fault.cause)?;
        let at = listener.local_addr()?;
        let socket = Socket::new(Service::Clients(name), listener);
        self.accept(address, &socket)?;
        Ok(PrivatePort { socket, address: at })
    }
}

struct PrivatePort {
    socket: Socket,
    address: SocketAddr,
}

impl Drop for PrivatePort {
    fn drop(&mut self) {
        self.socket.close();
    }
}

/// One connection to a listener.
struct Visit<'a> {
    door: &'a Door,
    /// Whether the session gateway answers there.
    is_of_sessions: bool,
    /// The certificate that is to be shown.
    leaf: Option<&'a Leaf>,
    source: Ipv4Addr,
}

impl Visit<'_> {
    async fn make(&self, gateway: &Gateway, port: SocketAddr) -> Result<(), Silence> {
        let asked = async {
            let mut io = self.connect(port).await?;
            let Some(leaf) = self.leaf else {
                return self.ask(&mut io).await;
            };
            self.ask(&mut self.secure(io, leaf).await?).await
        };
        let status = asked.await.map_err(Silence::Broken)?;
        // Where applications are published alone, the health check may be one of theirs; none of them is asked.
        let expected = gateway.health().status();
        if self.is_of_sessions && status.split(' ').next() != Some(expected.as_str()) {
            return Err(Silence::Status(status));
        }
        Ok(())
    }

    async fn connect(&self, port: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((self.source, 0).into())?;
        let mut io = socket.connect(port).await?;
        let source = IpAddr::from(self.source);
        if self.door.balancers.iter().any(|net| net.contains(&source)) {
            io.write_all(&proxy::encode(None)).await?;
        }
        Ok(io)
    }

    async fn secure(&self, io: TcpStream, leaf: &Leaf) -> io::Result<impl AsyncRead + AsyncWrite + Unpin> {
        let host = host_of(leaf);
        let certificates = self.door.certificates.as_deref();
        let own = certificates.and_then(|some| some.leaf_for(&host));
        let config = judged_by(Arc::new(Own(own.unwrap_or_else(|| Vec::new().into())))).map_err(io::Error::other)?;
        let name = ServerName::try_from(host).unwrap_or(ServerName::IpAddress(Ipv4Addr::LOCALHOST.into()));
        let tls = TlsConnector::from(Arc::new(config.with_no_client_auth()));
        tls.connect(name, io).await
    }

    /// Asks for the health check, and gives the status line of the answer from the status on.
    async fn ask(&self, io: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<String> {
        // No rule is for such a name. Without one, the request is nobody's, and refused.
        let host = if self.is_of_sessions {
            "Host: portcullis.invalid\r\n"
        } else {
            ""
        };
        let request = format!("HEAD /favicon.ico HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        io.write_all(request.as_bytes()).await?;
        io.flush().await?;
        let mut answer = Vec::new();
        while !answer.contains(&b'\r') {
            if answer.len() > LONGEST || io.read_buf(&mut answer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let line = String::from_utf8_lossy(&answer);
        let line = line.split('\r').next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.1 ");
        status
            .map(str::to_owned)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// A name for which the certificate is shown; one that is no name, if it speaks for addresses alone.
fn host_of(leaf: &Leaf) -> String {
    let name = leaf.names.first().map_or("", String::as_str);
    name.strip_prefix("*.")
        .map_or_else(|| name.to_owned(), |above| format!("any.{above}"))
}

/// Takes this certificate and no other.
#[derive(Debug)]
struct Own(CertificateDer<'static>);

impl Judge for Own {
    fn judge(&self, shown: Shown<'_>) -> Result<(), rustls::Error> {
        if *shown.certificate == self.0 {
            Ok(())
        } else {
            Err(rustls::Error::General("another certificate is shown".to_owned()))
        }
    }
}

/// A pool that has lost its healthy targets with the change of the process.
fn lost_pool(gateway: &Gateway, healthy: &BTreeSet<PoolFacts>) -> Option<Unhealthy> {
    let plan = gateway.plan();
    let view = gateway.publisher().pools(clock::now());
    let lost = view.pools.iter().find(|pool| {
        let was_healthy = healthy.contains(&PoolFacts {
            pool: pool.pool.clone(),
            backend: pool.backend.clone(),
        });
        let wants_targets = plan
            .config
            .web
            .pools
            .get(&pool.pool)
            .is_some_and(|pool| !pool.targets.is_empty());
        was_healthy && wants_targets && is_lost(pool)
    })?;
    let results = lost.targets.iter().filter_map(|target| target.results.first());
    let why = results
        .filter_map(|result| Some(result.outcome.as_ref().err()?.to_string()))
        .next();
    Some(Unhealthy::Pool {
        pool: lost.pool.clone(),
        why,
    })
}

/// Whether each of its targets has failed its last probe. One that has not answered yet may be slow.
fn is_lost(pool: &PoolView) -> bool {
    let mut stay = pool.targets.iter().filter(|target| target.draining.is_none());
    stay.all(|target| {
        let last = target.results.first();
        target.condition != Condition::Healthy && last.is_some_and(|last| last.outcome.is_err())
    })
}

/// Descriptors that must be free beside those of the check: what serving takes, and a few clients.
const SPARE: usize = 64;
/// For the answer to one health check.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than a status line has.
const LONGEST: usize = 1024;
