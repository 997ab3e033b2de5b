//! A proxy under test, whichever it is.

use std::fs;
use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;

use tokio_rustls::TlsConnector;

use crate::client::Stream;
use crate::ours::Tickets;
use crate::process::Process;
use crate::{ours, peers};

/// Which proxies there are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ours,
    Nginx,
    HaProxy,
    /// No proxy: what the rest costs.
    Direct,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Ours, Self::Nginx, Self::HaProxy, Self::Direct];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Nginx => "nginx",
            Self::HaProxy => "haproxy",
            Self::Direct => "direct",
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        match self {
            Self::Ours | Self::Direct => true,
            Self::Nginx => peers::is_installed("nginx"),
            Self::HaProxy => peers::is_installed("haproxy"),
        }
    }
}

/// A running proxy in front of the target. Dropped, it is ended.
pub(crate) struct Proxy {
    pub(crate) child: Option<Child>,
    pub(crate) address: SocketAddr,
    pub(crate) tls: Option<TlsConnector>,
    pub(crate) tickets: Option<Tickets>,
    pub(crate) _folder: Option<tempfile::TempDir>,
}

impl Proxy {
    pub(crate) async fn start(kind: Kind, target: SocketAddr) -> anyhow::Result<Self> {
        match kind {
            Kind::Ours => ours::start(target).await,
            Kind::Nginx => peers::nginx(target).await,
            Kind::HaProxy => peers::haproxy(target).await,
            Kind::Direct => Ok(Self {
                child: None,
                address: target,
                tls: None,
                tickets: None,
                _folder: None,
            }),
        }
    }

    /// A connection to the target for that purpose.
    pub(crate) async fn connect(&self, path: &str) -> anyhow::Result<Stream> {
        let mut stream = Stream::connect(self.address, self.tls.as_ref()).await?;
        let path = match &self.tickets {
            Some(tickets) => format!("/r/{}{path}", tickets.next()),
            None => path.to_owned(),
        };
        stream.open(&path).await?;
        Ok(stream)
    }

    /// CPU time so far of the process and its children.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        self.processes()
            .iter()
            .map(|process| Ok(process.cpu()?.total()))
            .sum::<anyhow::Result<Duration>>()
    }

    /// Memory of the process and its children, in KiB.
    pub(crate) fn memory(&self) -> anyhow::Result<u64> {
        self.processes().iter().map(|process| Ok(process.memory()?.pss)).sum()
    }

    fn processes(&self) -> Vec<Process> {
        let Some(child) = &self.child else {
            return Vec::new();
        };
        let id = child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let children = children.split_whitespace().filter_map(|child| child.parse().ok());
        std::iter::once(id).chain(children).map(Process::new).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // TERM, so that a master takes its workers with it.
        if let Some(id) = rustix::process::Pid::from_raw(child.id().cast_signed()) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        for _ in 0..50 {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
