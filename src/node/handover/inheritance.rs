//! What a process takes over before it serves: sockets that are listening already, and the keys that go with them.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use aws_lc_rs::digest::{SHA256, digest};
use rustix::net::{Shutdown, shutdown};

use super::message::{Keys, SocketFacts, SocketUse, draw};
use crate::admin::PortUse;
use crate::config::Config;
use crate::listen::ConnectionIds;
use crate::listen::pipe::Outlet;
use crate::node::systemd;
use crate::types::{Octets32, Secret};

/// Everything that is there before the configuration is looked at.
#[derive(Debug)]
pub(in crate::node) struct Inheritance {
    pub(in crate::node) keys: Keys,
    pub(in crate::node) generation: u8,
    sockets: HashMap<SocketFacts, OwnedFd>,
    ways_back: HashMap<SocketFacts, OwnedFd>,
    /// Of the process before: the node's name, and a hash of its configured recognition key.
    before: Option<(String, Option<Octets32>)>,
}

impl Default for Inheritance {
    /// Nothing was before: the keys are drawn.
    fn default() -> Self {
        Self {
            keys: Keys {
                recognition: draw(),
                affinity: draw(),
                guid: uuid::Uuid::new_v4().to_string(),
                quic: draw(),
                tickets: Vec::new(),
            },
            generation: 0,
            sockets: HashMap::new(),
            ways_back: HashMap::new(),
            before: None,
        }
    }
}

impl Inheritance {
    /// Nothing but keys, which a process had that is no more.
    pub(in crate::node) fn remembered(keys: Keys) -> Self {
        Self {
            keys,
            ..Self::default()
        }
    }

    /// Takes in sockets that the service manager has kept.
    pub(in crate::node) fn add_sockets(&mut self, sockets: HashMap<SocketFacts, OwnedFd>) {
        self.sockets.extend(sockets);
    }

    /// Closes the sockets that nobody has taken, for whoever has them open too.
    pub(in crate::node) fn close_the_rest(&mut self) {
        for (facts, socket) in self.sockets.drain() {
            close_for_all(&socket);
            systemd::let_go(facts);
        }
    }

    /// What the process before has sent.
    pub(super) fn new(
        (keys, generation): (Keys, u8),
        (sockets, ways_back): (HashMap<SocketFacts, OwnedFd>, HashMap<SocketFacts, OwnedFd>),
        node: String,
        recognition: Option<Octets32>,
    ) -> Self {
        Self {
            keys,
            generation,
            sockets,
            ways_back,
            before: Some((node, recognition)),
        }
    }

    /// Settings of `config` with which the sessions of the process before would be worth nothing.
    pub(in crate::node) fn conflicts(&self, config: &Config) -> Vec<&'static str> {
        let Some((node, recognition)) = &self.before else {
            return Vec::new();
        };
        let mut changed = Vec::new();
        if *node != config.node.name.as_str() {
            changed.push("node.name");
        }
        if *recognition != fingerprint(config) {
            changed.push("node.recognition_key");
        }
        changed
    }

    /// A TCP socket that listens at this address of the configuration.
    pub(in crate::node) fn connections(&mut self, address: SocketAddr) -> Option<TcpListener> {
        self.take(address, SocketUse::Connections).map(TcpListener::from)
    }

    /// A UDP socket for flows alone, and the way to the process that read it before.
    pub(in crate::node) fn datagrams(&mut self, address: SocketAddr) -> Option<(UdpSocket, Option<Outlet>)> {
        self.udp(address, SocketUse::Datagrams)
    }

    /// The same for QUIC.
    pub(in crate::node) fn quic(&mut self, address: SocketAddr) -> Option<(UdpSocket, Option<Outlet>)> {
        self.udp(address, SocketUse::Quic)
    }

    fn udp(&mut self, address: SocketAddr, use_: SocketUse) -> Option<(UdpSocket, Option<Outlet>)> {
        let socket = self.take(address, use_).map(UdpSocket::from)?;
        let way_back = self.ways_back.remove(&SocketFacts { address, use_ });
        Some((socket, way_back.map(Outlet::new)))
    }

    /// A TCP socket of the operator's side.
    pub(in crate::node) fn port(&mut self, address: SocketAddr, is_for: PortUse) -> Option<TcpListener> {
        self.take(address, is_for.into()).map(TcpListener::from)
    }

    fn take(&mut self, address: SocketAddr, use_: SocketUse) -> Option<OwnedFd> {
        self.sockets.remove(&SocketFacts { address, use_ })
    }
}

impl Keys {
    /// QUIC's connection ids of the process of that generation.
    ///
    /// # Errors
    /// Only if the cryptographic library lacks what every build of it has.
    pub(in crate::node) fn connection_ids(&self, generation: u8) -> Result<ConnectionIds, rustls::Error> {
        let lacks = |_| rustls::Error::General("no keys for connection ids".to_owned());
        ConnectionIds::new(&self.quic.0, generation).map_err(lacks)
    }

    /// The recognition key as a secret.
    pub(in crate::node) fn recognition_secret(&self) -> Secret {
        Secret::new(self.recognition.digits().as_str())
    }

    /// The affinity key as a secret.
    pub(in crate::node) fn affinity_secret(&self) -> Secret {
        Secret::new(self.affinity.digits().as_str())
    }
}

impl From<PortUse> for SocketUse {
    fn from(is_for: PortUse) -> Self {
        match is_for {
            PortUse::Operators => Self::Operators,
            PortUse::Agents => Self::Agents,
        }
    }
}

/// Has a listening socket refuse clients, whoever has it open too.
pub(in crate::node) fn close_for_all(socket: impl AsFd) {
    // One that does not listen any more refuses them already.
    let _ = shutdown(socket, Shutdown::Both);
}

/// A hash of the configured recognition key.
pub(super) fn fingerprint(config: &Config) -> Option<Octets32> {
    let key = config.node.recognition_key.as_ref()?;
    let hash = digest(&SHA256, key.expose().as_bytes());
    Some(Octets32(hash.as_ref().try_into().ok()?))
}
