//! The node as a child process with a configuration of its own.

use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, bail};
use portcullis::clock;
use portcullis::config::password;
use portcullis::secure::self_signed;
use portcullis::types::Secret;
use tempfile::TempDir;

use crate::process::Process;

/// The password of every user.
pub(crate) const PASSWORD: &str = "open sesame 1";

/// The times that decide how long a measurement takes.
pub(crate) struct Terms {
    pub(crate) head_timeout: Duration,
    lost_contact: Duration,
}

impl Terms {
    /// The product's.
    pub(crate) const DEFAULT: Self = Self {
        head_timeout: Duration::from_secs(15),
        lost_contact: Duration::from_secs(60),
    };
    pub(crate) const SHORT: Self = Self {
        head_timeout: Duration::from_secs(2),
        lost_contact: Duration::from_secs(9),
    };

    /// How often a tunnel's client asks whether the node is there.
    pub(crate) fn echo_interval(&self) -> Duration {
        self.lost_contact / 3
    }
}

/// A running node. Dropped, it is killed.
pub(crate) struct Node {
    child: Child,
    process: Process,
    folder: TempDir,
    pub(crate) address: SocketAddr,
}

impl Node {
    /// Starts a node with that many users, who may reach `desktops`, and waits until it is in service.
    pub(crate) fn start(users: usize, terms: &Terms, desktops: &[(&str, SocketAddr)]) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let certificate = self_signed(&["localhost".to_owned(), "127.0.0.1".to_owned()], clock::wall())?;
        write_private(&folder.path().join("chain.pem"), &certificate.chain)?;
        write_private(&folder.path().join("key.pem"), certificate.key.expose())?;
        let config = folder.path().join("portcullis.toml");
        write_private(&config, &configuration(folder.path(), users, terms, desktops)?)?;
        let log = fs::File::create(folder.path().join("log"))?;
        let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
            .args(["serve", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .context("cannot start the node")?;
        let mut node = Self {
            process: Process::new(child.id()),
            child,
            folder,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        node.address = node.wait_until_in_service()?;
        Ok(node)
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// The node's certificate, PEM.
    pub(crate) fn chain(&self) -> PathBuf {
        self.folder.path().join("chain.pem")
    }

    /// The certificate's key, PEM.
    pub(crate) fn key(&self) -> PathBuf {
        self.folder.path().join("key.pem")
    }

    fn wait_until_in_service(&mut self) -> anyhow::Result<SocketAddr> {
        let deadline = clock::now() + PATIENCE;
        while clock::now() < deadline && self.child.try_wait()?.is_none() {
            let log = self.log()?;
            if log.contains("in service") {
                let (_, rest) = log.split_once("listening address=").context("no address in the log")?;
                let address = rest.split_whitespace().next().unwrap_or_default();
                return Ok(address.parse()?);
            }
            sleep(Duration::from_millis(20));
        }
        bail!("the node does not start:\n{}", self.log()?)
    }

    fn log(&self) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.folder.path().join("log"))?)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // There is nothing to be done about a process that cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The name of a user.
pub(crate) fn user(number: usize) -> String {
    format!("user-{number:05}")
}

/// All users have one hash, so that it need not be computed for each: the node does not know that.
fn configuration(
    folder: &Path,
    users: usize,
    terms: &Terms,
    desktops: &[(&str, SocketAddr)],
) -> anyhow::Result<String> {
    let hash = password::hash(&Secret::new(PASSWORD))?;
    let mut text = format!(
        r#"[node]
name = "bench"
state_dir = "{folder}/state"
admin_socket = "{folder}/admin.sock"

[listener.public]
bind = ["127.0.0.1:0"]
certificates = ["own"]

[certificate.own]
chain = "{folder}/chain.pem"
key = "{folder}/key.pem"

# All clients are at one address.
[limits]
connections_per_source = 50000
handshakes_per_source = 1000000
pending_logins = 50000
head_timeout = "{} s"

[session]
max = 50000

[tunnel]
lost_contact = "{} s"

"#,
        terms.head_timeout.as_secs(),
        terms.lost_contact.as_secs(),
        folder = folder.display(),
    );
    for number in 0..users {
        let (user, hash) = (user(number), hash.expose());
        write!(
            text,
            "[directory.user.{user}]\npassword_hash = \"{hash}\"\ngroups = [\"all\"]\n\n"
        )?;
    }
    for (id, address) in desktops {
        let (ip, port) = (address.ip(), address.port());
        write!(
            text,
            "[directory.desktop.{id}]\naddress = \"{ip}\"\nprotocols = {{ tcp = {port} }}\ngroups = [\"all\"]\n\n"
        )?;
    }
    Ok(text)
}

pub(crate) fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(())
}

const PATIENCE: Duration = Duration::from_secs(20);
