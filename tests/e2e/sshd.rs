//! OpenSSH's server: on a port of its own, for the user who runs the tests, with a key that only the test has.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use tempfile::TempDir;

use super::peer::{Peer, path_of, run, tool};

/// A running server.
pub(super) struct Sshd {
    folder: TempDir,
    /// Where it listens.
    pub(super) address: SocketAddr,
    user: String,
    _peer: Peer,
}

impl Sshd {
    /// Starts it and waits until it listens.
    pub(super) fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let user = run(tool("id").arg("-un")).trim().to_owned();
        for key in ["host", "user"] {
            let file = folder.path().join(key);
            run(tool("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(file));
        }
        // Its place for processes without privileges: there only after the system has started the service once.
        if user == "root" {
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let address = free_address();
        let config = folder.path().join("sshd_config");
        fs::write(&config, config_text(&folder, address)).unwrap();
        let mut command = Command::new(path_of("sshd"));
        let mut peer = Peer::start(command.arg("-D").arg("-e").arg("-f").arg(config), folder.path());
        peer.wait_for("listens", || TcpStream::connect(address).ok());
        Self {
            folder,
            address,
            user,
            _peer: peer,
        }
    }

    /// A client, `ssh` or `scp`, that knows the key and the host and nothing of its user's settings.
    pub(super) fn client(&self, program: &str) -> Command {
        let folder = self.folder.path().display();
        let mut command = tool(program);
        command.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "StrictHostKeyChecking=accept-new",
        ]);
        command.args(["-o", &format!("UserKnownHostsFile={folder}/known_hosts")]);
        command.args(["-i", &format!("{folder}/user"), "-o", "IdentitiesOnly=yes"]);
        command.args(["-o", &format!("User={}", self.user)]);
        command
    }

    /// Its folder, for files to be sent.
    pub(super) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }
}

fn config_text(folder: &TempDir, address: SocketAddr) -> String {
    let folder = folder.path().display();
    format!(
        "ListenAddress {address}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nStrictModes no\n\
         PidFile none\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin prohibit-password\n\
         Subsystem sftp internal-sftp\n"
    )
}

/// An address that was free a moment ago, for a server that cannot choose one itself.
pub(super) fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
