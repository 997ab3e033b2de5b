//! What the demo puts into the user's data directory: a configuration, a certificate, the node's state.

use std::fs;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::desktop::Desktops;
use crate::client::Thumbprint;
use crate::clock;
use crate::config::password;
use crate::grant::{Randomness as _, SystemRandomness};
use crate::secure::self_signed;
use crate::types::Secret;

/// Where everything is, and who may sign in.
#[derive(Debug)]
pub(super) struct Setting {
    /// The configuration that was written.
    pub(super) config: PathBuf,
    /// The node's certificate.
    pub(super) thumbprint: Thumbprint,
    /// The password of [`USER`].
    pub(super) password: Secret,
    /// The password of [`NEWCOMER`], good for one sign-in.
    first_password: Secret,
    folder: PathBuf,
}

/// May reach both desktops.
pub(super) const USER: &str = "demo";
/// The same, after choosing a password of their own.
const NEWCOMER: &str = "newcomer";
/// The desktop that the journey goes to.
pub(super) const DESKTOP: &str = "shell";

impl Setting {
    /// Writes everything anew. Blocks for the time of two password hashes.
    pub(super) fn prepare(desktops: &Desktops) -> anyhow::Result<Self> {
        let folder = data_folder()?.join("demo");
        make_folder(&folder)?;
        let certificate = self_signed(
            &["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string()],
            clock::wall(),
        )?;
        write_private(&folder.join("chain.pem"), &certificate.chain)?;
        write_private(&folder.join("key.pem"), certificate.key.expose())?;
        let leaf = CertificateDer::from_pem_slice(certificate.chain.as_bytes())?;
        let (password, first_password) = (invent_password(), invent_password());
        let state = folder.join("state");
        // The users' passwords are new each time: what an earlier demo kept is of no use.
        if state.exists() {
            fs::remove_dir_all(&state)?;
        }
        let text = configuration(
            &folder,
            free_port(),
            desktops,
            [
                password::hash(&password)?.expose(),
                password::hash(&first_password)?.expose(),
            ],
        );
        let config = folder.join("portcullis.toml");
        write_private(&config, &text)?;
        Ok(Self {
            config,
            thumbprint: Thumbprint::of(&leaf),
            password,
            first_password,
            folder,
        })
    }

    /// The lines before the journey.
    pub(super) fn introduction(&self, address: SocketAddr) -> String {
        format!(
            "node https://{address}   files {}\nuser {USER}  password {}\nuser {NEWCOMER}  password {}  (to be changed at the first sign-in)\n",
            self.folder.display(),
            self.password.expose(),
            self.first_password.expose(),
        )
    }

    /// The lines after it.
    pub(super) fn what_to_try(&self, address: SocketAddr) -> String {
        let program = program();
        let socket = self.folder.join("admin.sock");
        let socket = socket.display();
        let connect = format!(
            "{program} connect {address} --user {USER} --thumbprint {}",
            self.thumbprint.to_hex()
        );
        format!(
            "Try, in another terminal:\n  \
             {connect} --desktop {DESKTOP} --stdio\n  \
             {connect} --desktop page -L 127.0.0.1:0\n  \
             {program} sessions list --socket {socket}\n  \
             {program} quiesce on --socket {socket}\n  \
             {program} check {}\n",
            self.config.display(),
        )
    }
}

/// The name under which this program was called.
fn program() -> String {
    std::env::args_os()
        .next()
        .map_or_else(|| "portcullis".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The user's data directory for this program (XDG Base Directory Specification).
fn data_folder() -> anyhow::Result<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_DATA_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/share")));
    Ok(base
        .context("Neither XDG_DATA_HOME nor HOME names a folder. Set one of them.")?
        .join("portcullis"))
}

fn make_folder(folder: &Path) -> anyhow::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .with_context(|| format!("{} cannot be made", folder.display()))
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    let open = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(file)?;
        file.write_all(text.as_bytes())
    };
    open().with_context(|| format!("{} cannot be written", file.display()))
}

/// 8443, unless it is taken.
fn free_port() -> u16 {
    const PREFERRED: u16 = 8443;
    let preferred = (Ipv4Addr::LOCALHOST, PREFERRED);
    if TcpListener::bind(preferred).is_ok() && UdpSocket::bind(preferred).is_ok() {
        PREFERRED
    } else {
        0
    }
}

fn configuration(folder: &Path, port: u16, desktops: &Desktops, hashes: [&str; 2]) -> String {
    let quoted = |path: PathBuf| toml::Value::String(path.to_string_lossy().into_owned()).to_string();
    let [hash, first_hash] = hashes;
    format!(
        r#"# Written by `portcullis demo`, anew each time.
[node]
name = "demo"
state_dir = {state}
admin_socket = {socket}
grace_period = "1 s"

[log]
format = "text"

[listener.public]
bind = ["127.0.0.1:{port}"]
certificates = ["own"]
udp = true

[certificate.own]
chain = {chain}
key = {key}

[directory.user.{USER}]
password_hash = "{hash}"
groups = ["visitors"]

[directory.user.{NEWCOMER}]
password_hash = "{first_hash}"
must_change_password = true
groups = ["visitors"]

[directory.desktop.{DESKTOP}]
name = "Shell"
address = "127.0.0.1"
protocols = {{ tcp = {shell} }}
groups = ["visitors"]

[directory.desktop.page]
name = "Page"
address = "127.0.0.1"
protocols = {{ tcp = {page} }}
groups = ["visitors"]
"#,
        state = quoted(folder.join("state")),
        socket = quoted(folder.join("admin.sock")),
        chain = quoted(folder.join("chain.pem")),
        key = quoted(folder.join("key.pem")),
        shell = desktops.shell.port(),
        page = desktops.page.port(),
    )
}

/// Two words and a number, easy to type. Enough for a node on loopback that throttles guesses.
fn invent_password() -> Secret {
    const WORDS: [&str; 64] = [
        "amber", "anchor", "apple", "arrow", "aspen", "badge", "basil", "beacon", "birch", "bridge", "cedar", "cherry",
        "clover", "cobalt", "comet", "copper", "coral", "delta", "ember", "falcon", "fern", "flint", "garnet",
        "ginger", "granite", "harbor", "hazel", "heron", "indigo", "island", "ivory", "jasper", "juniper", "lagoon",
        "lantern", "laurel", "lemon", "linden", "maple", "marble", "meadow", "mint", "nectar", "oak", "olive", "onyx",
        "orchid", "otter", "pebble", "pepper", "plum", "poplar", "quartz", "raven", "river", "saffron", "sage",
        "silver", "spruce", "summit", "thistle", "timber", "walnut", "willow",
    ];
    let mut bytes = [0; 4];
    SystemRandomness.fill(&mut bytes);
    let word = |n: u8| WORDS[usize::from(n) % WORDS.len()];
    let number = u16::from_le_bytes([bytes[2], bytes[3]]) % 9000 + 1000;
    Secret::new(format!("{}-{}-{number}", word(bytes[0]), word(bytes[1])))
}
