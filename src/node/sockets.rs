//! The listening sockets of a node, across reloads: what stays is not touched, what comes is bound before anything
//! goes.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::handover::message::{SocketFacts, SocketUse};
use super::handover::{Inheritance, close_for_all};
use crate::config::Config;
use crate::listen::pipe::Outlet;
use crate::listen::udp::bind_udp;
use crate::listen::{BindFault, bind};
use crate::tunnel::flow::{Door, Port};

/// What is served on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// TLS clients, under this listener's name.
    Clients(Arc<str>),
    /// RDP clients that know no gateway.
    Rdp,
    /// Plain health checks.
    Health,
    /// Other nodes of the fleet.
    Peers,
    /// PCoIP clients.
    Pcoip,
}

impl Service {
    /// The name of the listener in logs.
    pub fn name(&self) -> Arc<str> {
        match self {
            Self::Clients(name) => name.clone(),
            Self::Rdp => "rdp".into(),
            Self::Health => "health".into(),
            Self::Peers => "fleet".into(),
            Self::Pcoip => "pcoip".into(),
        }
    }

    /// What comes over UDP to the same address, if that is served.
    fn port(&self) -> Port {
        match self {
            Self::Clients(_) | Self::Rdp | Self::Health | Self::Peers => Port::Listener,
            Self::Pcoip => Port::Pcoip,
        }
    }
}

/// A bound socket with the loops that accept from it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) service: Service,
    pub(super) listener: TcpListener,
    /// Stops its loops; the socket and its backlog stay.
    pub(super) stop: CancellationToken,
    /// The same address over UDP.
    datagrams: Option<Datagrams>,
}

/// A bound UDP socket with whoever reads from it.
#[derive(Debug)]
pub(super) struct Datagrams {
    port: Port,
    socket: UdpSocket,
    door: Arc<Door>,
    /// Stops whoever reads, and ends the flows that came in here.
    stop: CancellationToken,
}

/// A UDP socket that nobody reads yet.
#[derive(Debug)]
pub(super) struct Unread {
    pub(super) port: Port,
    pub(super) socket: UdpSocket,
    /// The way to the process that read it before.
    pub(super) before: Option<Outlet>,
    /// Stops whoever reads.
    pub(super) stop: CancellationToken,
}

/// All sockets, by the address under which they are configured.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    open: BTreeMap<SocketAddr, Socket>,
    /// Those that another process reads, for the flows that are here.
    left: Vec<Datagrams>,
}

/// What a reload changes; bound, but not yet in force.
#[derive(Debug)]
pub(super) struct Change {
    wanted: BTreeMap<SocketAddr, Wanted>,
    bound: BTreeMap<SocketAddr, TcpListener>,
    datagrams: BTreeMap<SocketAddr, (UdpSocket, Option<Outlet>)>,
}

/// What a configuration wants of an address.
#[derive(Debug)]
struct Wanted {
    service: Service,
    udp: bool,
}

impl Change {
    /// The real address of a socket that comes; an address that is none of them is taken as it is.
    pub(super) fn bound_at(&self, address: SocketAddr) -> SocketAddr {
        let real = self.bound.get(&address).and_then(|listener| listener.local_addr().ok());
        real.unwrap_or(address)
    }
}

impl Sockets {
    /// Binds what `config` wants and is neither here yet nor in the inheritance.
    ///
    /// # Errors
    ///
    /// Every address that cannot be bound; nothing has changed then.
    pub(super) fn prepare(&self, config: &Config, inheritance: &mut Inheritance) -> Result<Change, Vec<BindFault>> {
        let mut wanted = BTreeMap::new();
        for (name, listener) in &config.listeners {
            let name: Arc<str> = name.as_str().into();
            wanted.extend(
                listener
                    .bind
                    .iter()
                    // Over UDP, a listener's ports are those of its QUIC endpoints.
                    .map(|address| (*address, Service::Clients(name.clone()), false))
                    .map(Wanted::at),
            );
        }
        let rdp = config.rdp.bind.iter();
        wanted.extend(rdp.map(|address| Wanted::at((*address, Service::Rdp, false))));
        wanted.extend(
            config
                .health
                .iter()
                .map(|address| Wanted::at((*address, Service::Health, false))),
        );
        let peers = config.fleet.bind.iter();
        wanted.extend(peers.map(|address| Wanted::at((*address, Service::Peers, false))));
        let pcoip = config.pcoip.bind.iter();
        wanted.extend(pcoip.map(|address| Wanted::at((*address, Service::Pcoip, true))));

        let mut bound = BTreeMap::new();
        let mut faults = Vec::new();
        for address in wanted.keys().filter(|address| !self.open.contains_key(address)) {
            match inheritance.connections(*address).map_or_else(|| bind(*address), Ok) {
                Ok(listener) => {
                    bound.insert(*address, listener);
                }
                Err(fault) => faults.push(fault),
            }
        }
        // The port of the TCP socket, which the system may have chosen.
        let mut datagrams = BTreeMap::new();
        for address in wanted
            .iter()
            .filter(|(_, wanted)| wanted.udp)
            .map(|(address, _)| address)
        {
            let socket = self.open.get(address);
            if socket.is_some_and(|socket| socket.datagrams.is_some()) {
                continue;
            }
            let listener = bound.get(address).or(socket.map(|socket| &socket.listener));
            let Some(real) = listener.and_then(|listener| listener.local_addr().ok()) else {
                continue;
            };
            let inherited = inheritance.datagrams(*address);
            match inherited.map_or_else(|| bind_udp(real).map(|socket| (socket, None)), Ok) {
                Ok(socket) => {
                    datagrams.insert(*address, socket);
                }
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            Ok(Change {
                wanted,
                bound,
                datagrams,
            })
        } else {
            Err(faults)
        }
    }

    /// Puts a change in force. `start` begins to accept from a socket, `read` to read datagrams from one.
    ///
    /// # Errors
    ///
    /// The first fault of `start`; everything else is in force.
    pub(super) fn apply(
        &mut self,
        change: Change,
        mut start: impl FnMut(SocketAddr, &Socket) -> io::Result<()>,
        mut read: impl FnMut(Unread) -> io::Result<Arc<Door>>,
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        let Change {
            wanted,
            mut bound,
            mut datagrams,
        } = change;
        self.open.retain(|address, socket| {
            let stays = wanted.contains_key(address);
            if !stays {
                socket.close();
                // The service manager may have passed it under a number of its own.
                close_for_all(&socket.listener);
            }
            stays
        });
        for (address, Wanted { service, udp }) in wanted {
            let port = service.port();
            if let Some(listener) = bound.remove(&address) {
                let socket = Socket::new(service, listener);
                outcome = outcome.and(start(address, &socket));
                self.open.insert(address, socket);
            } else if let Some(socket) = self.open.get_mut(&address)
                && socket.service != service
            {
                socket.stop.cancel();
                socket.service = service;
                socket.stop = CancellationToken::new();
                outcome = outcome.and(start(address, socket));
            }
            if let Some(socket) = self.open.get_mut(&address) {
                outcome = outcome.and(socket.serve_udp(port, udp, datagrams.remove(&address), &mut read));
            }
        }
        outcome
    }

    /// Every socket once more, for another process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn to_hand_over(&self) -> io::Result<Vec<(SocketFacts, OwnedFd)>> {
        let mut sockets: Vec<(SocketFacts, OwnedFd)> = Vec::new();
        for (&address, socket) in &self.open {
            let facts = |use_| SocketFacts { address, use_ };
            sockets.push((facts(SocketUse::Connections), socket.listener.try_clone()?.into()));
            if let Some(datagrams) = &socket.datagrams {
                sockets.push((facts(SocketUse::Datagrams), datagrams.socket.try_clone()?.into()));
            }
        }
        Ok(sockets)
    }

    /// The way back to each UDP socket, for another process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn ways_back(&self) -> io::Result<Vec<(SocketFacts, OwnedFd)>> {
        let use_ = SocketUse::Datagrams;
        let read = self
            .open
            .iter()
            .filter_map(|(&address, socket)| Some((address, socket.datagrams.as_ref()?)));
        read.map(|(address, datagrams)| Ok((SocketFacts { address, use_ }, datagrams.door.to_hand_over()?)))
            .collect()
    }

    /// Takes no connection in: the sockets stay, and who comes waits. Datagrams are read on.
    pub(super) fn pause(&self) {
        for socket in self.open.values() {
            socket.stop.cancel();
        }
    }

    /// Takes connections in again. `start` begins to accept from a socket.
    ///
    /// # Errors
    /// The first fault of it; everything else is served.
    pub(super) fn resume(&mut self, mut start: impl FnMut(SocketAddr, &Socket) -> io::Result<()>) -> io::Result<()> {
        let mut outcome = Ok(());
        for (address, socket) in &mut self.open {
            socket.stop = CancellationToken::new();
            outcome = outcome.and(start(*address, socket));
        }
        outcome
    }

    /// Leaves the sockets to another process; the flows stay.
    pub(super) fn leave(&mut self) {
        for mut socket in std::mem::take(&mut self.open).into_values() {
            socket.stop.cancel();
            self.left.extend(socket.datagrams.take());
        }
        for datagrams in &self.left {
            datagrams.door.leave();
        }
    }

    /// The real address of a socket that is there.
    pub(super) fn bound_at(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.open.get(&address)?.listener.local_addr().ok()
    }

    /// Closes every socket: whoever comes next finds nobody.
    pub(super) fn close(&mut self) {
        for socket in std::mem::take(&mut self.open).into_values() {
            socket.close();
        }
        for datagrams in std::mem::take(&mut self.left) {
            datagrams.stop.cancel();
        }
    }

    /// The sockets' services, and their real addresses.
    pub(super) fn bound(&self) -> Vec<(Service, SocketAddr)> {
        let bound = |socket: &Socket| Some((socket.service.clone(), socket.listener.local_addr().ok()?));
        self.open.values().filter_map(bound).collect()
    }
}

impl Wanted {
    fn at((address, service, udp): (SocketAddr, Service, bool)) -> (SocketAddr, Self) {
        (address, Self { service, udp })
    }
}

impl Socket {
    /// A socket from which nobody accepts yet.
    pub(super) fn new(service: Service, listener: TcpListener) -> Self {
        Self {
            service,
            listener,
            stop: CancellationToken::new(),
            datagrams: None,
        }
    }

    /// Brings its UDP side to what is wanted; what stays is not touched.
    fn serve_udp(
        &mut self,
        port: Port,
        wanted: bool,
        bound: Option<(UdpSocket, Option<Outlet>)>,
        read: &mut impl FnMut(Unread) -> io::Result<Arc<Door>>,
    ) -> io::Result<()> {
        let stays = wanted && self.datagrams.as_ref().is_some_and(|datagrams| datagrams.port == port);
        if stays {
            return Ok(());
        }
        let open = self.datagrams.take();
        if let Some(datagrams) = &open {
            datagrams.stop.cancel();
        }
        let open = open.map(|datagrams| (datagrams.socket, None));
        let Some((socket, before)) = bound.or(open).filter(|_| wanted) else {
            return Ok(());
        };
        let stop = CancellationToken::new();
        let door = read(Unread {
            port,
            socket: socket.try_clone()?,
            before,
            stop: stop.clone(),
        })?;
        self.datagrams = Some(Datagrams {
            port,
            socket,
            door,
            stop,
        });
        Ok(())
    }

    pub(super) fn close(&self) {
        self.stop.cancel();
        if let Some(datagrams) = &self.datagrams {
            datagrams.stop.cancel();
        }
    }
}
