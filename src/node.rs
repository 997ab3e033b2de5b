//! The composition root: builds a node from a checked configuration, and takes it through its life.
//!
//! Everything is made here and handed down; nothing below reaches for a global. A node runs until it is drained; meanwhile
//! another configuration can be put in force as a whole.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::admin::{Admin, AdminFault, Ports};
use crate::broker::{Directory, StateFault};
use crate::clock;
use crate::config::Config;
use crate::control::Control;
use crate::fault::CloseReason;
use crate::gateway::Gateway;
use crate::grant::{Randomness as _, Store, SystemRandomness};
use crate::listen::udp::Shared;
use crate::listen::{BindFault, Caps, ConnectionIds, accept_loop};
use crate::observe::access::AccessLogFault;
use crate::publish::{PublishFault, Publisher};
use crate::secure::{LoadFault, MutualFault, Tickets};
use crate::tunnel::flow;
use crate::tunnel::https::Registry;
use crate::upstream::{AgentFault, Home};

mod endpoints;
pub mod handover;
mod plan;
mod sockets;
mod state;
pub mod systemd;
pub mod workers;

use endpoints::{Added, Endpoints};
use handover::message::SocketFacts;
use handover::{Inheritance, Keys, Kin, Kindred};
pub use sockets::Service;
use sockets::{Change, Socket, Sockets, Unread};
pub use state::StateInUse;
use state::{Found, Keeping};
use workers::Workers;

/// A running node.
#[derive(Debug)]
pub struct Node {
    gateway: Arc<Gateway>,
    sockets: Mutex<Sockets>,
    endpoints: Mutex<Endpoints>,
    workers: Workers,
    tickets: Tickets,
    stopping: CancellationToken,
    keys: Keys,
    /// QUIC's connection ids of this process.
    ids: Arc<ConnectionIds>,
    /// Where other processes of the node find this one.
    kin: Mutex<Option<Kin>>,
    /// The processes before and after this one.
    kindred: Mutex<Kindred>,
    /// Another process has taken over, and has the word on whose time is over.
    led: Arc<AtomicBool>,
    /// The operator's side, which ends when it is dropped.
    admin: Mutex<Option<Admin>>,
    /// The TCP sockets of the operator's side, for whoever takes over. None, once it has.
    ports: Mutex<Ports>,
    /// What this process has on the disk.
    keeping: Mutex<Keeping>,
    /// The sockets that the service manager keeps for the next process.
    kept: Mutex<BTreeSet<SocketFacts>>,
}

/// A node that has everything and serves nobody yet.
#[derive(Debug)]
struct Prepared {
    node: Node,
    change: Change,
    added: Added,
}

impl Prepared {
    fn node(&self) -> &Node {
        &self.node
    }

    /// Waits until the names of targets were asked for and their first probes are in, for a moment at most. Blocks.
    fn warm_up(&self) {
        let publisher = self.node.gateway.publisher().clone();
        self.node.workers.tasks().handle().block_on(async move {
            publisher.settle().await;
            let deadline = Instant::now() + WARM_UP;
            while publisher.pools(clock::now()).has_unknown() && Instant::now() < deadline {
                tokio::time::sleep(A_MOMENT).await;
            }
        });
    }

    /// Puts it into service. `replaces`: another process serves the operator until now.
    fn serve(self, replaces: bool) -> Result<Node, StartFault> {
        let Self { node, change, added } = self;
        let (gateway, tasks) = (node.gateway.clone(), node.workers.tasks());
        let ports = node.ports.lock().try_clone().map_err(StartFault::Descriptors)?;
        *node.admin.lock() = Some(Admin::start(gateway.clone(), ports, replaces)?);
        tasks.spawn(gateway.control_channel().keep(node.stopping.clone()));
        gateway.lifecycle().serve();
        node.accept_from(change, added).map_err(StartFault::Descriptors)?;
        gateway.control_channel().set_rdp_addresses(node.rdp_addresses());
        let stop = node.stopping.clone();
        tasks.spawn(async move {
            // Once another process serves, the addresses lead to that one.
            let leaving = gateway.kinship().leaving().clone();
            let watch = leaving.run_until_cancelled(gateway.watch_external());
            stop.run_until_cancelled(watch).await;
        });
        node.keep_sockets();
        Ok(node)
    }
}

impl Node {
    /// Builds the node and puts it into service. Blocks on the file system, and waits a moment for names of targets.
    ///
    /// # Errors
    ///
    /// [`StartFault`] with everything that is wrong of one kind; nothing is left running then.
    pub fn start(config: Config) -> Result<Self, StartFault> {
        let (found, keys) = Found::look(&config)?;
        let mut inheritance = keys.map(Inheritance::remembered).unwrap_or_default();
        inheritance.add_sockets(systemd::kept());
        let prepared = Self::prepare(config, &mut inheritance)?;
        inheritance.close_the_rest();
        settle(&prepared.node.workers, prepared.node.gateway.publisher());
        let node = &prepared.node;
        *node.keeping.lock() = found.restore(&node.gateway, &node.keys);
        prepared.serve(false)
    }

    /// Builds the node, with what it takes over. Blocks on the file system.
    fn prepare(config: Config, inheritance: &mut Inheritance) -> Result<Prepared, StartFault> {
        let conflicts = inheritance.conflicts(&config);
        if !conflicts.is_empty() {
            return Err(StartFault::NeedsRestart(conflicts));
        }
        let keys = inheritance.keys.clone();
        let ids = Arc::new(keys.connection_ids(inheritance.generation)?);
        let stopping = CancellationToken::new();
        let tickets = Tickets::new(&keys.tickets, clock::now())?;
        let directory = Directory::load(&config)?;
        let drawn = keys.recognition_secret();
        let grants = Arc::new(Store::new(
            config.node.name.clone(),
            Some(config.node.recognition_key.as_ref().unwrap_or(&drawn)),
            config.session.clone(),
        ));
        let tunnels = Arc::new(Registry::new(stopping.clone()));
        let control = Control::new(&config, directory, grants.clone(), tunnels.clone(), keys.guid.clone());
        let caps = Caps::new(&config.limits);
        let workers = Workers::start(config.node.workers).map_err(StartFault::Workers)?;
        let home = Home {
            runtime: workers.tasks().handle().clone(),
            tasks: workers.tasks().tracker().clone(),
            stopping: stopping.clone(),
        };
        let publisher = Arc::new(Publisher::new(&config, home, seed(), &keys.affinity_secret())?);
        let plan = plan::draw(config, &tickets, &publisher, None)?;
        let change = Sockets::default().prepare(&plan.config, inheritance)?;
        let bound = |address| change.bound_at(address);
        let added = Endpoints::default().prepare(&plan.config, inheritance, bound)?;
        let inherited = |address, is_for| inheritance.port(address, is_for);
        let ports = Ports::bind(&plan.config, inherited).map_err(AdminFault::Bind)?;
        let gateway = Arc::new(Gateway::new(
            plan,
            control,
            grants,
            tunnels,
            caps,
            workers.tasks().tracker().clone(),
            publisher,
        ));
        let node = Self {
            gateway,
            sockets: Mutex::default(),
            endpoints: Mutex::default(),
            workers,
            tickets,
            stopping,
            keys,
            ids,
            kin: Mutex::default(),
            kindred: Mutex::default(),
            led: Arc::default(),
            admin: Mutex::default(),
            ports: Mutex::new(ports),
            keeping: Mutex::default(),
            kept: Mutex::default(),
        };
        Ok(Prepared { node, change, added })
    }

    /// Puts another configuration in force: whole, or not at all. Open connections stay open. Blocks on the file system, and
    /// waits a moment for names of targets that are new. Not cancel-safe.
    ///
    /// # Errors
    ///
    /// [`StartFault`] says what is wrong with it; the one before stays in force.
    pub async fn reload(&self, config: Config) -> Result<(), StartFault> {
        let fixed = settings_that_stay(&self.gateway.plan().config, &config);
        if !fixed.is_empty() {
            return Err(StartFault::NeedsRestart(fixed));
        }
        let before = self.gateway.plan();
        let plan = plan::draw(config, &self.tickets, self.gateway.publisher(), Some(&before))?;
        drop(before);
        let (change, added) = {
            let sockets = self.sockets.lock();
            let mut nothing = Inheritance::default();
            let change = sockets.prepare(&plan.config, &mut nothing)?;
            let bound = |address| sockets.bound_at(address).unwrap_or_else(|| change.bound_at(address));
            let added = (self.endpoints.lock()).prepare(&plan.config, &mut nothing, bound)?;
            (change, added)
        };
        let publisher = self.gateway.publisher();
        publisher.apply(&plan.web, clock::now());
        publisher.settle().await;
        self.gateway.control_channel().put_in_force(&plan.config);
        self.gateway.put_in_force(plan);
        let accepted = self.accept_from(change, added).map_err(StartFault::Descriptors);
        self.gateway.control_channel().set_rdp_addresses(self.rdp_addresses());
        self.keep_sockets();
        accepted
    }

    /// Has the service manager keep the sockets that are served, and no others.
    fn keep_sockets(&self) {
        let sockets = match self.backlogs() {
            Ok(sockets) => sockets,
            Err(fault) => return tracing::warn!(%fault, "the service manager keeps no sockets"),
        };
        let served: BTreeSet<_> = sockets.iter().map(|(facts, _)| *facts).collect();
        for (facts, socket) in &sockets {
            systemd::keep(*facts, socket);
        }
        let before = std::mem::replace(&mut *self.kept.lock(), served.clone());
        before.difference(&served).for_each(|facts| systemd::let_go(*facts));
    }

    /// The listening sockets in which clients can wait, once more.
    fn backlogs(&self) -> io::Result<Vec<(SocketFacts, OwnedFd)>> {
        let mut sockets = self.sockets.lock().to_hand_over()?;
        for (address, is_for, socket) in self.ports.lock().to_hand_over()? {
            let use_ = is_for.into();
            sockets.push((SocketFacts { address, use_ }, socket));
        }
        sockets.retain(|(facts, _)| systemd::is_worth_keeping(facts.use_));
        Ok(sockets)
    }

    /// What runs on it.
    pub fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    /// What is served on which addresses, as bound.
    pub fn bound(&self) -> Vec<(Service, SocketAddr)> {
        self.sockets.lock().bound()
    }

    /// The addresses on which clients are served, as bound.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses_of(|service| matches!(service, Service::Clients(_)))
    }

    /// The addresses on which RDP is served, as bound.
    pub fn rdp_addresses(&self) -> Vec<SocketAddr> {
        self.addresses_of(|service| *service == Service::Rdp)
    }

    fn addresses_of(&self, serves: impl Fn(&Service) -> bool) -> Vec<SocketAddr> {
        let served = |(service, address)| serves(&service).then_some(address);
        self.bound().into_iter().filter_map(served).collect()
    }

    /// Ends what is over, once a second, for as long as it is polled. Cancel-safe.
    pub async fn keep_house(&self) {
        let mut ticks = interval(HOUSEKEEPING);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if !self.led.load(Ordering::Acquire) {
                self.gateway.sweep(clock::now());
            }
        }
    }

    /// Drains: health 503 first, no new sessions, and time for what is open until the grace period is over; says what that is.
    ///
    /// Cancel-safe: dropped, it leaves the node draining.
    pub async fn drain(&self) {
        let grace = self.gateway.plan().config.node.grace_period;
        let deadline = Instant::now() + grace;
        self.gateway.lifecycle().drain();
        tracing::info!(grace_seconds = grace.as_secs(), "draining");
        let mut reports = interval(STILL_OPEN);
        while self.gateway.is_in_use() && Instant::now() < deadline {
            tokio::select! {
                _ = reports.tick() => self.report_what_is_open(deadline),
                () = tokio::time::sleep(A_MOMENT) => {}
            }
        }
        if let Some(journal) = self.keeping.lock().journal() {
            // What ends now is to go on after a restart.
            journal.flush();
            journal.close();
        }
        self.gateway.end_all(CloseReason::Drained);
        self.gateway.plan().web.close();
    }

    /// Ends the node: what is still open has a moment for its last words, then it is cut.
    pub async fn stop(self) {
        self.sockets.lock().close();
        self.endpoints.lock().close();
        // Nothing is left to be carried to.
        drop(self.kin.lock().take());
        self.stopping.cancel();
        let remains = self.workers.shutdown(GOODBYE).await;
        if remains.cut > 0 {
            tracing::warn!(connections = remains.cut, "connections cut at the end");
        }
    }

    /// Puts a change of sockets in force.
    fn accept_from(&self, change: Change, added: Added) -> io::Result<()> {
        let plan = self.gateway.plan();
        let quic = (self.endpoints.lock()).apply(added, &plan, (&self.gateway, &self.ids), self.workers.tasks());
        let accept = |address, socket: &Socket| self.accept(address, socket);
        quic.and(self.sockets.lock().apply(change, accept, |unread| self.read(unread)))
    }

    /// Takes connections in again, after a pause.
    fn accept_again(&self) -> io::Result<()> {
        let accept = |address, socket: &Socket| self.accept(address, socket);
        self.sockets.lock().resume(accept)
    }

    /// Begins to accept connections from a socket.
    fn accept(&self, address: SocketAddr, socket: &Socket) -> io::Result<()> {
        let (gateway, tasks) = (self.gateway.clone(), self.workers.tasks().clone());
        let (caps, stop) = (gateway.caps().clone(), socket.stop.clone());
        let listener = socket.listener.try_clone()?;
        let service = socket.service.clone();
        let name = service.name();
        let connections = tasks.clone();
        tasks.spawn(async move {
            let listener = match TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(fault) => return tracing::error!(%address, %fault, "listener lost"),
            };
            let serve = move |incoming| match &service {
                Service::Clients(_) => connections.spawn(gateway.clone().serve(incoming, address)),
                Service::Rdp => connections.spawn(gateway.clone().serve_rdp(incoming)),
                Service::Health => connections.spawn(gateway.clone().serve_health(incoming)),
                Service::Peers => connections.spawn(gateway.clone().serve_peer(incoming)),
                Service::Pcoip => connections.spawn(gateway.clone().serve_pcoip(incoming)),
            };
            accept_loop(listener, name, caps, serve, stop).await;
        });
        Ok(())
    }

    /// Begins to read datagrams from a socket.
    fn read(&self, unread: Unread) -> io::Result<Arc<flow::Door>> {
        let tasks = self.workers.tasks();
        let door = {
            let _workers = tasks.enter();
            let (socket, flows) = (Shared::new(unread.socket)?, self.gateway.flows().clone());
            flow::Door::new(socket, flows, unread.port, self.ids.clone(), unread.before)?
        };
        let door = Arc::new(door);
        tasks.spawn(door.clone().run(unread.stop));
        Ok(door)
    }

    fn report_what_is_open(&self, deadline: Instant) {
        tracing::info!(
            tunnels = self.gateway.tunnels().len(),
            sessions = self.gateway.grants().len(),
            connections = self.gateway.caps().counts().open,
            seconds_left = deadline.saturating_duration_since(Instant::now()).as_secs(),
            "still open"
        );
    }
}

/// Waits until names of targets were asked for once, for a moment at most: the first request is to find its target.
fn settle(workers: &Workers, publisher: &Arc<Publisher>) {
    let (tell, settled) = sync_channel(1);
    let publisher = publisher.clone();
    workers.tasks().spawn(async move {
        publisher.settle().await;
        // Whoever waits has asked for it.
        let _ = tell.send(());
    });
    // Whether it was told or the task has ended: nothing more will come.
    let _ = settled.recv();
}

/// Scatters what nodes would otherwise do in step.
fn seed() -> u64 {
    let mut octets = [0; 8];
    SystemRandomness.fill(&mut octets);
    u64::from_ne_bytes(octets)
}

/// Settings that hold from start to end, and that `new` wants to be otherwise.
fn settings_that_stay(old: &Config, new: &Config) -> Vec<&'static str> {
    let changed = [
        ("node.name", old.node.name != new.node.name),
        ("node.state_dir", old.node.state_dir != new.node.state_dir),
        ("node.admin_socket", old.node.admin_socket != new.node.admin_socket),
        ("node.workers", old.node.workers != new.node.workers),
        (
            "node.recognition_key",
            old.node.recognition_key != new.node.recognition_key,
        ),
        ("log.format", old.log.format != new.log.format),
        ("admin", old.admin != new.admin),
        ("state", old.state != new.state),
        ("quiesce.agent", old.quiesce.agent != new.quiesce.agent),
    ];
    changed
        .into_iter()
        .filter_map(|(name, differs)| differs.then_some(name))
        .collect()
}

/// Why a node does not start, or a configuration is not put in force.
#[derive(Debug, thiserror::Error)]
pub enum StartFault {
    /// Certificates.
    #[error("{}", lines(.0))]
    Certificates(Vec<LoadFault>),
    /// The certificate or authority of the fleet.
    #[error("{}", lines(.0))]
    Fleet(Vec<MutualFault>),
    /// The folder for what is kept.
    #[error(transparent)]
    State(#[from] StateInUse),
    /// Addresses.
    #[error("{}", lines(.0))]
    Bind(Vec<BindFault>),
    /// The desktops' agents.
    #[error("{}", lines(.0))]
    Agents(Vec<AgentFault>),
    /// What is published.
    #[error(transparent)]
    Publish(#[from] PublishFault),
    /// The access log.
    #[error(transparent)]
    AccessLog(#[from] AccessLogFault),
    /// What the directory kept.
    #[error(transparent)]
    Directory(#[from] StateFault),
    /// The operator's side.
    #[error(transparent)]
    Admin(#[from] AdminFault),
    /// File descriptors.
    #[error("no file descriptor is left: {0}; raise LimitNOFILE")]
    Descriptors(io::Error),
    /// Threads.
    #[error("workers cannot be started: {0}")]
    Workers(io::Error),
    /// The cryptographic library.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    /// Some settings are read at start only.
    #[error("{} changed, which takes a restart; change it back, or restart the node", .0.join(", "))]
    NeedsRestart(Vec<&'static str>),
}

impl From<Vec<MutualFault>> for StartFault {
    fn from(faults: Vec<MutualFault>) -> Self {
        Self::Fleet(faults)
    }
}

impl From<Vec<BindFault>> for StartFault {
    fn from(faults: Vec<BindFault>) -> Self {
        Self::Bind(faults)
    }
}

impl From<Vec<AgentFault>> for StartFault {
    fn from(faults: Vec<AgentFault>) -> Self {
        Self::Agents(faults)
    }
}

fn lines<T: ToString>(faults: &[T]) -> String {
    faults.iter().map(T::to_string).collect::<Vec<_>>().join("\n")
}

/// For the first probes of a node that takes over.
const WARM_UP: Duration = Duration::from_secs(5);
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const A_MOMENT: Duration = Duration::from_millis(50);
const STILL_OPEN: Duration = Duration::from_secs(5);
/// For the last words of tunnels, and the lingering of connections.
const GOODBYE: Duration = Duration::from_secs(3);
