//! `portcullis connect`, the program itself.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use super::peer::{Peer, line};
use crate::support::{Gateway, PASSWORD, portcullis};

/// `connect` as `ann`, who trusts the gateway's own certificate; `to` is where the gateway is reached.
pub(super) fn connect_to(to: SocketAddr, gateway: &Gateway, arguments: &[&str]) -> Command {
    let mut command = portcullis();
    command
        .args(["connect", &to.to_string(), "--user", "ann", "--ca"])
        .arg(gateway.chain())
        .args(arguments)
        .env("PORTCULLIS_PASSWORD", PASSWORD);
    command
}

/// The same at the gateway's own address.
pub(super) fn connect(gateway: &Gateway, arguments: &[&str]) -> Command {
    connect_to(gateway.address, gateway, arguments)
}

/// The same as text for ssh's ProxyCommand, with the password in a file.
pub(super) fn proxy_command(to: SocketAddr, gateway: &Gateway, desktop: &str) -> String {
    let password = gateway.folder().join("password");
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    format!(
        "'{}' connect {to} --user ann --ca '{}' --password-file '{}' --desktop {desktop} --stdio",
        portcullis().get_program().display(),
        gateway.chain().display(),
        password.display()
    )
}

/// A running `connect -L`.
pub(super) struct Door {
    pub(super) peer: Peer,
    /// Where the desktop is reached.
    pub(super) address: SocketAddr,
    _folder: TempDir,
}

impl Door {
    /// Opens the way to a desktop on a free port.
    pub(super) fn open(gateway: &Gateway, desktop: &str) -> Self {
        Self::open_at(gateway.address, gateway, desktop)
    }

    /// The same, with the gateway reached at another address.
    pub(super) fn open_at(to: SocketAddr, gateway: &Gateway, desktop: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = connect_to(to, gateway, &["--desktop", desktop, "-L", "127.0.0.1:0"]);
        let (peer, mut stdout) = Peer::start_speaking(&mut command, folder.path());
        let address = line(&mut stdout);
        let address = address
            .parse()
            .unwrap_or_else(|_| panic!("no address but {address:?}\n{}", peer.said()));
        Self {
            peer,
            address,
            _folder: folder,
        }
    }
}

/// A running `connect --preconnection`.
pub(super) struct Held {
    pub(super) peer: Peer,
    /// Where a client of RDP connects.
    pub(super) address: SocketAddr,
    /// What it shows there.
    pub(super) blob: String,
    _folder: TempDir,
}

impl Held {
    /// Launches a desktop for a client of RDP.
    pub(super) fn launch(gateway: &Gateway, desktop: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = connect(gateway, &["--desktop", desktop, "--preconnection"]);
        let (mut peer, mut stdout) = Peer::start_speaking(&mut command, folder.path());
        let told = line(&mut stdout);
        let (address, blob) = told
            .split_once(' ')
            .unwrap_or_else(|| panic!("no address and blob but {told:?}\n{}", peer.said()));
        let hint = format!("xfreerdp /v:{address} /pcb:{blob}\n");
        let log = folder.path().join("portcullis.log");
        peer.wait_for("the hint", || {
            fs::read_to_string(&log)
                .is_ok_and(|said| said.contains(&hint))
                .then_some(())
        });
        Self {
            address: address.parse().unwrap(),
            blob: blob.to_owned(),
            peer,
            _folder: folder,
        }
    }
}

/// How many sessions the gateway has.
pub(super) fn sessions(gateway: &Gateway) -> usize {
    let output = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    list["sessions"].as_array().unwrap().len()
}
