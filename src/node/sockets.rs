//! The listening sockets of a node, across reloads: what stays is not touched, what comes is bound before anything
//! goes.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::listen::{BindFault, bind};

/// What is served on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// TLS clients, under this listener's name.
    Clients(Arc<str>),
    /// Plain health checks.
    Health,
}

/// A bound socket with the loops that accept from it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) service: Service,
    pub(super) listener: TcpListener,
    /// Stops its loops; the socket and its backlog stay.
    pub(super) stop: CancellationToken,
}

/// All sockets, by the address under which they are configured.
#[derive(Debug, Default)]
pub(super) struct Sockets(BTreeMap<SocketAddr, Socket>);

/// What a reload changes; bound, but not yet in force.
#[derive(Debug)]
pub(super) struct Change {
    wanted: BTreeMap<SocketAddr, Service>,
    bound: BTreeMap<SocketAddr, TcpListener>,
}

impl Sockets {
    /// Binds what `config` wants and is not here yet.
    ///
    /// # Errors
    ///
    /// Every address that cannot be bound; nothing has changed then.
    pub(super) fn prepare(&self, config: &Config) -> Result<Change, Vec<BindFault>> {
        let mut wanted = BTreeMap::new();
        for (name, listener) in &config.listeners {
            let name: Arc<str> = name.as_str().into();
            wanted.extend(
                listener
                    .bind
                    .iter()
                    .map(|address| (*address, Service::Clients(name.clone()))),
            );
        }
        wanted.extend(config.health.iter().map(|address| (*address, Service::Health)));

        let mut bound = BTreeMap::new();
        let mut faults = Vec::new();
        for address in wanted.keys().filter(|address| !self.0.contains_key(address)) {
            match bind(*address) {
                Ok(listener) => {
                    bound.insert(*address, listener);
                }
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            Ok(Change { wanted, bound })
        } else {
            Err(faults)
        }
    }

    /// Puts a change in force. `start` begins to accept from a socket.
    ///
    /// # Errors
    ///
    /// The first fault of `start`; everything else is in force.
    pub(super) fn apply(
        &mut self,
        change: Change,
        mut start: impl FnMut(SocketAddr, &Socket) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut outcome = Ok(());
        let Change { wanted, mut bound } = change;
        self.0.retain(|address, socket| {
            let stays = wanted.contains_key(address);
            if !stays {
                socket.stop.cancel();
            }
            stays
        });
        for (address, service) in wanted {
            if let Some(listener) = bound.remove(&address) {
                let socket = Socket {
                    service,
                    listener,
                    stop: CancellationToken::new(),
                };
                outcome = outcome.and(start(address, &socket));
                self.0.insert(address, socket);
            } else if let Some(socket) = self.0.get_mut(&address)
                && socket.service != service
            {
                socket.stop.cancel();
                socket.service = service;
                socket.stop = CancellationToken::new();
                outcome = outcome.and(start(address, socket));
            }
        }
        outcome
    }

    /// Closes every socket: whoever comes next finds nobody.
    pub(super) fn close(&mut self) {
        for socket in std::mem::take(&mut self.0).into_values() {
            socket.stop.cancel();
        }
    }

    /// The real addresses of the sockets that serve `clients` or else health checks.
    pub(super) fn addresses(&self, clients: bool) -> Vec<SocketAddr> {
        let serves = |socket: &&Socket| matches!(socket.service, Service::Clients(_)) == clients;
        self.0
            .values()
            .filter(serves)
            .filter_map(|socket| socket.listener.local_addr().ok())
            .collect()
    }
}
