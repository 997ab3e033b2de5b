//! The handover to another process: it takes the listening sockets over and everything that sessions need, while what
//! is open stays where it is (decision 0006).
//!
//! The process that hands over ([`Node::hand_over`]) starts the other one, which finds the way back in its environment
//! ([`Heir`]). Until the new one serves, the old one can go on as if nothing had happened, and does if anything fails.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use self::link::Link;
use super::Node;
use super::workers::Tasks;
use crate::gateway::Gateway;

mod health;
mod heir;
mod inheritance;
mod line;
mod link;
pub mod message;
mod other;
mod parent;

pub use health::{Silence, Unhealthy};
pub use heir::{Heir, HeirFault};
pub(super) use inheritance::{Inheritance, close_for_all};
pub(super) use message::Keys;
pub use parent::HandoverFault;

/// The links to other processes of the node.
#[derive(Debug, Default)]
pub(super) struct Kindred {
    before: Option<Arc<Link>>,
    after: Option<After>,
}

/// The link to the process that took over.
#[derive(Debug)]
struct After {
    link: Arc<Link>,
    parted: CancellationToken,
}

/// The private folder of a process in which other processes of the node find it. Removed when dropped.
#[derive(Debug)]
pub(super) struct Kin {
    folder: PathBuf,
    stop: CancellationToken,
}

impl Kin {
    /// Opens the folder beside the operator's socket, and begins to take connections that other processes carry here.
    fn open(admin_socket: &Path, gateway: &Arc<Gateway>, tasks: &Tasks) -> io::Result<Self> {
        let beside = admin_socket.parent().unwrap_or(Path::new("."));
        let folder = beside.join(format!("handover-{}", std::process::id()));
        // What a process of that number has left behind.
        let _ = std::fs::remove_dir_all(&folder);
        DirBuilder::new().mode(0o700).create(&folder)?;
        let kin = Self {
            folder,
            stop: CancellationToken::new(),
        };
        let listener = UnixListener::bind(kin.socket())?;
        listener.set_nonblocking(true)?;
        let (gateway, tasks, stop) = (gateway.clone(), tasks.clone(), kin.stop.clone());
        let spawning = tasks.clone();
        spawning.spawn(async move {
            stop.run_until_cancelled(take_in(listener, gateway, tasks)).await;
        });
        Ok(kin)
    }

    /// Where connections are carried.
    fn socket(&self) -> PathBuf {
        self.folder.join("kin")
    }

    /// Where the process that takes over finds this one.
    fn line(&self) -> PathBuf {
        self.folder.join("line")
    }
}

impl Drop for Kin {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Node {
    /// Where other processes of this node find this one.
    fn kin(&self) -> io::Result<(PathBuf, PathBuf)> {
        let mut kin = self.kin.lock();
        let opened = match kin.take() {
            Some(opened) => opened,
            None => Kin::open(
                &self.gateway.plan().config.node.admin_socket,
                &self.gateway,
                self.workers.tasks(),
            )?,
        };
        let places = (opened.socket(), opened.line());
        *kin = Some(opened);
        Ok(places)
    }
}

async fn take_in(listener: UnixListener, gateway: Arc<Gateway>, tasks: Tasks) {
    let listener = match tokio::net::UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(fault) => return tracing::error!(%fault, "socket for the other process lost"),
    };
    loop {
        match listener.accept().await {
            Ok((stream, _)) => tasks.spawn(gateway.clone().serve_kin(stream)),
            Err(fault) => {
                tracing::warn!(%fault, "a connection of the other process cannot be taken");
                tokio::time::sleep(super::A_MOMENT).await;
            }
        }
    }
}

/// The variable that tells a process where to find the one that it takes over from.
const ENVIRONMENT: &str = "PORTCULLIS_HANDOVER";
