//! A proxy under test, whichever it is.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use portcullis::clock;
use portcullis::secure::self_signed;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::Offer;
use crate::process::Process;
use crate::{client, configuration};

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
            Self::Nginx | Self::HaProxy => is_installed(self.name()),
        }
    }
}

/// Whether a program is there.
pub(crate) fn is_installed(name: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join(name).is_file())
}

/// What a proxy proves itself with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Identity {
    P256,
    Rsa2048,
}

/// A running proxy in front of the target. Dropped, it is ended.
pub(crate) struct Proxy {
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
    target: SocketAddr,
    child: Option<Child>,
    folder: TempDir,
}

impl Proxy {
    pub(crate) async fn start(kind: Kind, identity: Identity, target: SocketAddr) -> anyhow::Result<Self> {
        let folder = folder(identity)?;
        let mut proxy = Self {
            kind,
            address: target,
            target,
            child: None,
            folder,
        };
        match kind {
            Kind::Direct => {}
            Kind::Ours => {
                proxy.child = Some(proxy.start_ours()?);
                proxy.address = proxy.in_service().await?;
            }
            Kind::Nginx | Kind::HaProxy => {
                proxy.address = free_port()?;
                proxy.child = Some(proxy.start_peer()?);
                proxy.wait_for_port().await?;
            }
        }
        Ok(proxy)
    }

    fn start_ours(&self) -> anyhow::Result<Child> {
        self.write_configuration("")?;
        let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["serve", "--config"])
            .arg(self.at("portcullis.toml"))
            .stdin(Stdio::null())
            .stderr(fs::File::create(self.at("log"))?)
            .spawn();
        child.context("cannot start the node")
    }

    fn start_peer(&self) -> anyhow::Result<Child> {
        let (folder, conf) = (self.folder.path(), self.at("conf"));
        let mut command = match self.kind {
            Kind::Nginx => {
                fs::write(&conf, configuration::nginx(folder, self.address, self.target))?;
                let mut command = Command::new("nginx");
                command.arg("-c").arg(&conf).arg("-p").arg(folder);
                command
            }
            Kind::HaProxy => {
                fs::write(&conf, configuration::haproxy(folder, self.address, self.target))?;
                let mut command = Command::new("haproxy");
                // A master with its worker, so that it can be reloaded.
                command.args(["-W", "-db", "-q", "-f"]).arg(&conf);
                command
            }
            Kind::Ours | Kind::Direct => bail!("no peer"),
        };
        command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start a peer")
    }

    async fn in_service(&self) -> anyhow::Result<SocketAddr> {
        for _ in 0..500 {
            let text = self.log()?;
            if text.contains("in service") {
                let (_, rest) = text.split_once("listening address=").context("no address in the log")?;
                return Ok(rest.split_whitespace().next().unwrap_or_default().parse()?);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("the node does not start:\n{}", self.log()?)
    }

    async fn wait_for_port(&self) -> anyhow::Result<()> {
        for _ in 0..250 {
            if TcpStream::connect(self.address).await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        bail!("{} does not start", self.kind.name())
    }

    /// Changes the configuration: ours with another text, the peers with the same. Waits until it is in force, as far as that
    /// can be seen; how long it took.
    pub(crate) async fn change(&self, more: &str) -> anyhow::Result<Duration> {
        let begun = clock::now();
        match self.kind {
            Kind::Direct => {}
            Kind::Nginx => self.signal(Signal::HUP)?,
            Kind::HaProxy => self.signal(Signal::USR2)?,
            Kind::Ours => {
                let count = |text: &str| text.matches("configuration applied").count();
                let before = count(&self.log()?);
                self.write_configuration(more)?;
                self.signal(Signal::HUP)?;
                while count(&self.log()?) == before {
                    ensure!(
                        begun.elapsed() < Duration::from_secs(30),
                        "not applied:\n{}",
                        self.log()?
                    );
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        Ok(begun.elapsed())
    }

    /// TLS to it.
    pub(crate) fn tls(&self, offer: Offer) -> anyhow::Result<Option<TlsConnector>> {
        if self.kind == Kind::Direct {
            return Ok(None);
        }
        client::tls(&self.at("chain.pem"), offer).map(Some)
    }

    /// Its URL for a path, for the tools.
    pub(crate) fn url(&self, path: &str) -> String {
        let scheme = if self.kind == Kind::Direct { "http" } else { "https" };
        format!("{scheme}://{}{path}", self.address)
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

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let child = self.child.as_ref().context("no process")?;
        let id = Pid::from_raw(child.id().cast_signed()).context("no process id")?;
        Ok(kill_process(id, signal)?)
    }

    fn write_configuration(&self, more: &str) -> anyhow::Result<()> {
        let text = configuration::ours(self.folder.path(), self.target, more);
        let (file, fresh) = (self.at("portcullis.toml"), self.at("fresh.toml"));
        let _ = fs::remove_file(&fresh);
        write_private(&fresh, &text)?;
        Ok(fs::rename(fresh, file)?)
    }

    fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.at("log"))?)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // TERM, so that a master takes its workers with it.
        let _ = self.signal(Signal::TERM);
        let Some(child) = &mut self.child else { return };
        for _ in 0..100 {
            if child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// A folder with a certificate and its key, apart and together.
fn folder(identity: Identity) -> anyhow::Result<TempDir> {
    let folder = TempDir::new()?;
    let (chain, key) = match identity {
        Identity::P256 => {
            let certificate = self_signed(&["localhost".to_owned()], clock::wall())?;
            (certificate.chain.clone(), certificate.key.expose().to_owned())
        }
        Identity::Rsa2048 => rsa(folder.path())?,
    };
    fs::write(folder.path().join("chain.pem"), &chain)?;
    write_private(&folder.path().join("key.pem"), &key)?;
    write_private(&folder.path().join("identity.pem"), &format!("{chain}{key}"))?;
    Ok(folder)
}

fn rsa(folder: &Path) -> anyhow::Result<(String, String)> {
    let (chain, key) = (folder.join("rsa.crt"), folder.join("rsa.key"));
    let made = Command::new("openssl")
        .args("req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost".split(' '))
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&chain)
        .stderr(Stdio::null())
        .status()
        .context("openssl is not there")?;
    ensure!(made.success(), "openssl makes no certificate");
    Ok((fs::read_to_string(chain)?, fs::read_to_string(key)?))
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(())
}

fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
