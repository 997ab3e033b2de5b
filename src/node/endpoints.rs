//! The QUIC endpoints of a node, across reloads: open connections stay, handshakes to come follow the new plan.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::handover::Inheritance;
use super::handover::message::{SocketFacts, SocketUse};
use super::workers::Tasks;
use crate::config::Config;
use crate::gateway::{Gateway, Plan};
use crate::listen::pipe::Outlet;
use crate::listen::udp::{Shared, bind_udp};
use crate::listen::{BindFault, ConnectionIds, accept_quic, quic_endpoint};
use crate::tunnel::flow::{Door, Port};

/// All endpoints, by the address under which they are configured.
#[derive(Debug, Default)]
pub(super) struct Endpoints(BTreeMap<SocketAddr, Open>);

#[derive(Debug)]
struct Open {
    endpoint: quinn::Endpoint,
    /// Its socket once more, and what stands before it.
    socket: UdpSocket,
    door: Arc<Door>,
    /// Takes in only those who were told to come again.
    leaving: CancellationToken,
    /// Takes in no more clients; those that are here stay.
    stop: CancellationToken,
}

/// Sockets that a reload adds; bound, but not yet in force. With the way to the process that read one before.
#[derive(Debug, Default)]
pub(super) struct Added(BTreeMap<SocketAddr, (UdpSocket, Option<Outlet>)>);

impl Endpoints {
    /// Binds what `config` wants and is neither here yet nor in the inheritance, each on the port that `bound` says TCP has
    /// there.
    ///
    /// # Errors
    ///
    /// Every address that cannot be bound; nothing has changed then.
    pub(super) fn prepare(
        &self,
        config: &Config,
        inheritance: &mut Inheritance,
        bound: impl Fn(SocketAddr) -> SocketAddr,
    ) -> Result<Added, Vec<BindFault>> {
        let listeners = config.listeners.values().filter(|listener| listener.udp);
        let wanted = listeners.flat_map(|listener| &listener.bind).copied();
        let mut added = BTreeMap::new();
        let mut faults = Vec::new();
        for address in wanted.filter(|address| !self.0.contains_key(address)) {
            let inherited = inheritance.quic(address);
            match inherited.map_or_else(|| bind_udp(bound(address)).map(|socket| (socket, None)), Ok) {
                Ok(socket) => {
                    added.insert(address, socket);
                }
                Err(fault) => faults.push(fault),
            }
        }
        if faults.is_empty() {
            Ok(Added(added))
        } else {
            Err(faults)
        }
    }

    /// Puts the plan in force: endpoints that it does not know take in nobody any more, the others follow it.
    ///
    /// # Errors
    ///
    /// The system has no descriptor left for an endpoint; everything else is in force.
    pub(super) fn apply(
        &mut self,
        added: Added,
        plan: &Plan,
        (gateway, ids): (&Arc<Gateway>, &Arc<ConnectionIds>),
        tasks: &Tasks,
    ) -> io::Result<()> {
        let config_of = |address: &SocketAddr| {
            let config = plan.doors.get(address)?.quic.clone()?;
            Some(ids.with_tokens(config))
        };
        self.0.retain(|address, open| match config_of(address) {
            Some(config) => {
                open.endpoint.set_server_config(Some(config));
                true
            }
            None => {
                open.stop.cancel();
                false
            }
        });
        let mut outcome = Ok(());
        for (address, (socket, before)) in added.0 {
            let Some(config) = config_of(&address) else { continue };
            let once_more = match socket.try_clone() {
                Ok(once_more) => once_more,
                Err(fault) => {
                    outcome = Err(fault);
                    continue;
                }
            };
            let begun = {
                let _workers = tasks.enter();
                // Before QUIC stands the table of flows: Blast's datagrams come to the same port.
                Shared::new(socket).and_then(|socket| {
                    let door = Door::new(socket, gateway.flows().clone(), Port::Listener, ids.clone(), before)?;
                    let door = Arc::new(door);
                    Ok((quic_endpoint(door.clone(), config, ids.clone())?, door))
                })
            };
            let (endpoint, door) = match begun {
                Ok(begun) => begun,
                Err(fault) => {
                    outcome = Err(fault);
                    continue;
                }
            };
            let (leaving, stop) = (CancellationToken::new(), CancellationToken::new());
            let serve = {
                let (gateway, tasks) = (gateway.clone(), tasks.clone());
                move |arriving| tasks.spawn(gateway.clone().serve_quic(arriving))
            };
            let name = name_of(&plan.config, address);
            let (caps, ends) = (gateway.caps().clone(), (leaving.clone(), stop.clone()));
            tasks.spawn(accept_quic(endpoint.clone(), name, caps, serve, ends));
            let open = Open {
                endpoint,
                socket: once_more,
                door,
                leaving,
                stop,
            };
            self.0.insert(address, open);
        }
        outcome
    }

    /// Every socket once more, for another process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn to_hand_over(&self) -> io::Result<Vec<(SocketFacts, OwnedFd)>> {
        let mut sockets: Vec<(SocketFacts, OwnedFd)> = Vec::new();
        for (&address, open) in &self.0 {
            let use_ = SocketUse::Quic;
            sockets.push((SocketFacts { address, use_ }, open.socket.try_clone()?.into()));
        }
        Ok(sockets)
    }

    /// The way back to each socket, for another process.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(super) fn ways_back(&self) -> io::Result<Vec<(SocketFacts, OwnedFd)>> {
        let use_ = SocketUse::Quic;
        let ways = self.0.iter();
        ways.map(|(&address, open)| Ok((SocketFacts { address, use_ }, open.door.to_hand_over()?)))
            .collect()
    }

    /// Leaves the sockets to another process; the connections stay.
    pub(super) fn leave(&self) {
        for open in self.0.values() {
            open.leaving.cancel();
            open.door.leave();
        }
    }

    /// Takes in nobody any more.
    pub(super) fn close(&mut self) {
        for open in std::mem::take(&mut self.0).into_values() {
            open.stop.cancel();
        }
    }
}

fn name_of(config: &Config, address: SocketAddr) -> Arc<str> {
    let mut listeners = config.listeners.iter();
    let found = listeners.find(|(_, listener)| listener.bind.contains(&address));
    found.map_or("quic", |(name, _)| name.as_str()).into()
}
