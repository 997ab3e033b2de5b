//! TigerVNC's server: a desktop with nothing on it but its background.

use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use super::peer::{Peer, line, tool};
use super::screen::{Colour, fill};

/// A running server.
pub(super) struct Xvnc {
    peer: Peer,
    _folder: TempDir,
    /// Its name for X clients.
    pub(super) display: String,
    /// Where it listens for VNC clients.
    pub(super) address: SocketAddr,
}

impl Xvnc {
    /// Starts it with a background of that colour.
    pub(super) fn start(background: Colour) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = tool("Xtigervnc");
        command.args([
            "-displayfd",
            "1",
            "-geometry",
            "640x480",
            "-depth",
            "24",
            "-nolisten",
            "tcp",
        ]);
        // It would cut texts of more than 256 KiB itself.
        command.args(["-SecurityTypes", "None", "-localhost", "-MaxCutText", "4194304"]);
        let (peer, mut stdout) = Peer::start_speaking(&mut command, folder.path());
        let number: u16 = line(&mut stdout)
            .parse()
            .unwrap_or_else(|_| panic!("no display\n{}", peer.said()));
        let xvnc = Self {
            peer,
            _folder: folder,
            display: format!(":{number}"),
            address: SocketAddr::from(([127, 0, 0, 1], 5900 + number)),
        };
        fill(&xvnc.display, background);
        xvnc
    }

    /// A program for its clipboard.
    pub(super) fn xclip(&self, arguments: &[&str]) -> Command {
        let mut command = tool("xclip");
        command
            .env("DISPLAY", &self.display)
            .args(["-selection", "clipboard"])
            .args(arguments);
        command
    }

    /// What it said so far.
    pub(super) fn said(&self) -> String {
        self.peer.said()
    }
}
