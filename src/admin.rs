//! The operator's side: one HTTP API on a thread and runtime of its own, so that it answers while the data plane is busy.
//!
//! There are two ways to it. Whoever can open the Unix socket (mode 0600) is the operator, without further sign-in. On the
//! admin port, over TLS, a token says who asks and how much they may do. The agent check of the balancer is answered here
//! too, for the same reason.
//!
//! Every change is told to the log, with who made it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::config::Config;
use crate::gateway::Gateway;
use crate::listen::{self, BindFault};

mod access;
pub mod api;
mod identity;
mod metrics;
mod pools;
mod port;
mod problem;
mod routes;
mod tokens;
mod upgrade;

use access::Access;
use identity::Identity;
pub use identity::IdentityFault;
use routes::Side;
use tokens::Tokens;
pub use tokens::TokensFault;

/// The TCP sockets of the operator's side, bound, each with the address under which it is configured.
#[derive(Debug, Default)]
pub struct Ports {
    operators: Vec<(SocketAddr, TcpListener)>,
    agents: Vec<(SocketAddr, TcpListener)>,
}

/// What a TCP socket of the operator's side is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortUse {
    /// The API.
    Operators,
    /// The balancer's agent check.
    Agents,
}

impl Ports {
    /// Binds what the configuration wants, but for what `inherited` has.
    ///
    /// # Errors
    ///
    /// The first that cannot be bound; nothing is left behind then.
    pub fn bind(
        config: &Config,
        mut inherited: impl FnMut(SocketAddr, PortUse) -> Option<TcpListener>,
    ) -> Result<Self, BindFault> {
        let mut bind_all = |addresses: &[SocketAddr], is_for: PortUse| {
            let bind = |address: &SocketAddr| match inherited(*address, is_for) {
                Some(socket) => Ok((*address, socket)),
                None => listen::bind(*address).map(|socket| (*address, socket)),
            };
            addresses.iter().map(bind).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            operators: bind_all(&config.admin.bind, PortUse::Operators)?,
            agents: bind_all(&config.quiesce.agent, PortUse::Agents)?,
        })
    }

    /// The same sockets once more.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        let clones = |sockets: &[(SocketAddr, TcpListener)]| {
            let clone = |(address, socket): &(SocketAddr, TcpListener)| Ok((*address, socket.try_clone()?));
            sockets.iter().map(clone).collect::<io::Result<Vec<_>>>()
        };
        Ok(Self {
            operators: clones(&self.operators)?,
            agents: clones(&self.agents)?,
        })
    }

    /// Every socket, for a process that takes over.
    ///
    /// # Errors
    ///
    /// No descriptor is left.
    pub fn to_hand_over(&self) -> io::Result<Vec<(SocketAddr, PortUse, OwnedFd)>> {
        let Self { operators, agents } = self.try_clone()?;
        let of = |sockets: Vec<(SocketAddr, TcpListener)>, is_for: PortUse| {
            (sockets.into_iter()).map(move |(address, socket)| (address, is_for, OwnedFd::from(socket)))
        };
        Ok(of(operators, PortUse::Operators)
            .chain(of(agents, PortUse::Agents))
            .collect())
    }
}

/// The running operator's side; ends when dropped.
#[derive(Debug)]
pub struct Admin {
    socket: PathBuf,
    /// The socket's number in its file system: another process may have put its own in that place.
    inode: u64,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Answers on the Unix socket, which it binds, and on `ports`, in a thread of its own. `replaces`: whoever answers on
    /// the Unix socket is to be replaced. Blocks on the file system.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound, the tokens or the certificate cannot be read, or the system has nothing left for it.
    pub fn start(gateway: Arc<Gateway>, ports: Ports, replaces: bool) -> Result<Self, AdminFault> {
        let plan = gateway.plan();
        let tokens = Arc::new(Tokens::load(&plan.config.node.state_dir)?);
        let identity = if ports.operators.is_empty() {
            None
        } else {
            Some(Identity::load(&plan.config, clock::wall())?)
        };
        drop(plan);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(AdminFault::Thread)?;
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let path = gateway.plan().config.node.admin_socket.clone();
        let bound = bind(&path, replaces).and_then(|socket| Ok((socket, std::fs::metadata(&path)?.ino())));
        let (socket, inode) = bound.map_err(|cause| AdminFault::Socket {
            socket: path.clone(),
            cause,
        })?;
        let ends = stop.clone();
        let side = Side::new(gateway, tokens);
        let work = move || {
            runtime.block_on(async {
                let tasks = TaskTracker::new();
                if let Err(fault) = answer(&side, (socket, ports), identity, &tasks, &stopped) {
                    tracing::error!(%fault, "the operator's side is not there");
                }
                ends.cancelled().await;
                stopped.cancel();
                tasks.close();
                // Who does not take leave in time is left.
                let _ = tokio::time::timeout(GOODBYE, tasks.wait()).await;
            });
        };
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(work);
        Ok(Self {
            socket: path,
            inode,
            stop,
            thread: Some(thread.map_err(AdminFault::Thread)?),
        })
    }
}

impl Admin {
    /// Whether the operator who opens the path finds this side.
    pub fn owns_its_path(&self) -> bool {
        std::fs::metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported where it happened; here there is nothing left to save.
            let _ = thread.join();
        }
        if self.owns_its_path() {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

/// Begins to answer on every socket, until `stop`.
fn answer(
    side: &Side,
    (socket, ports): (UnixListener, Ports),
    identity: Option<Identity>,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> io::Result<()> {
    let socket = tokio::net::UnixListener::from_std(socket)?;
    let served = axum::serve(socket, side.for_the_socket()).with_graceful_shutdown(stop.clone().cancelled_owned());
    tasks.spawn(async move {
        if let Err(fault) = served.await {
            tracing::error!(%fault, "admin socket lost");
        }
    });
    if let Some(identity) = identity {
        let access = Arc::new(Access::new(side.tokens().clone()));
        for (_, listener) in ports.operators {
            let address = listener.local_addr()?;
            tracing::info!(%address, thumbprint = %identity.thumbprint, "answering operators");
            let router = side.for_the_port(&access);
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let tls = identity.tls.clone();
            tasks.spawn(port::serve(listener, tls, router, tasks.clone(), stop.clone()));
        }
    }
    for (_, listener) in ports.agents {
        let address = listener.local_addr()?;
        tracing::info!(%address, "answering the agent check");
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let gateway = side.gateway().clone();
        tasks.spawn(port::serve_agent(listener, gateway, tasks.clone(), stop.clone()));
    }
    Ok(())
}

/// Binds the socket with mode 0600, replacing one that nobody answers on, or any.
fn bind(socket: &Path, replaces: bool) -> io::Result<UnixListener> {
    if socket.exists() && !replaces {
        if UnixStream::connect(socket).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another node answers on this socket",
            ));
        }
        std::fs::remove_file(socket)?;
    }
    // Bound under a private name first: at no moment can anyone else connect.
    let private = socket.with_extension(format!("{}.new", std::process::id()));
    let listener = UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&private, socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Why there is no operator's side.
#[derive(Debug, thiserror::Error)]
pub enum AdminFault {
    /// The socket cannot be bound.
    #[error("admin socket {}: {cause}; another node may be running, or the folder is missing or not writable", socket.display())]
    Socket {
        /// Where it was to be.
        socket: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// An address cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindFault),
    /// The tokens cannot be read.
    #[error(transparent)]
    Tokens(#[from] TokensFault),
    /// The certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityFault),
    /// The system has no thread left.
    #[error("the admin thread cannot be started: {0}")]
    Thread(io::Error),
}

const GOODBYE: Duration = Duration::from_secs(3);
