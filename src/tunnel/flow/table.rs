//! The flow table: which datagram opens a flow, which belongs to one, and which is turned away and why (secondary
//! protocols sheet 5.4, rule 3).
//!
//! Pure: `now` is an argument, and what a flow does with its datagrams is not known here. `L` is what a lease carries for
//! whoever opens a flow under it.
//!
//! Two processes of a node can have connections and flows at one time: the one that reads the sockets knows those of the
//! other, and judges as if all were its own.
//!
//! Invariants, checked by the simulation after each step:
//! - A flow belongs to a lease that is open, and its client has the address from which the lease was opened.
//! - A session has no more flows than it may have, and neither has the node.
//! - Nothing is kept of an address without a lease beyond tables of a fixed size.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::first::{First, Port};
use super::news::News;
use super::strays::{Bucket, Foreigners, Strays};
use crate::config;
use crate::fault::Refusal;
use crate::grant::{RouteId, Store};
use crate::types::SessionId;

/// Beside which connections a flow may run: those of one route, from one address, of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Beside {
    /// The address of the connections' client.
    pub client: IpAddr,
    /// On which ports their datagrams come.
    pub port: Port,
    /// Whose they are.
    pub session: SessionId,
    /// Where they lead.
    pub route: RouteId,
}

impl Beside {
    fn address(&self) -> (IpAddr, Port) {
        (self.client, self.port)
    }
}

/// A flow, by its number; no number is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowId(u64);

/// The addresses of both ends of a flow on the client's side. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin {
    /// Who sends.
    pub client: SocketAddr,
    /// The address of this node to which it was sent.
    pub local: SocketAddr,
}

/// What is to be done with a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<L> {
    /// It belongs to this flow.
    Of(FlowId),
    /// It opens a flow, which lasts until [`Table::end`].
    Opens(FlowId, L),
    /// It belongs to a flow of the process before this one, or opens one there.
    Before,
    /// It is none of ours: on a listener's port it is QUIC's.
    Foreign,
    /// It opens nothing, for this reason. On a listener's port QUIC may still look at it.
    Refused(Refusal, Option<SessionId>),
    /// Its source sent so many that it is not looked at.
    Ignored,
}

/// Leases and flows.
#[derive(Debug)]
pub struct Table<L> {
    limits: config::Udp,
    addresses: HashMap<(IpAddr, Port), Address<L>>,
    flows: HashMap<Pin, (FlowId, Place)>,
    open: HashMap<FlowId, Flow>,
    sessions: HashMap<SessionId, usize>,
    strays: Strays,
    foreigners: Foreigners,
    last: u64,
}

/// What is open from one address, for ports of one kind.
#[derive(Debug)]
struct Address<L> {
    leases: Vec<Lease<L>>,
    bucket: Bucket,
}

impl<L> Address<L> {
    fn lease(&mut self, beside: Beside, place: Place) -> Option<&mut Lease<L>> {
        let is_it = |lease: &&mut Lease<L>| lease.beside == beside && lease.place() == place;
        self.leases.iter_mut().find(is_it)
    }
}

/// In which process a connection or a flow is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here,
    /// In the one before this one.
    Before,
}

/// Connections beside which flows may run.
#[derive(Debug)]
struct Lease<L> {
    beside: Beside,
    /// When each of its connections was opened.
    opened: Vec<Instant>,
    flows: Vec<FlowId>,
    /// `None`: the connections are of the process before this one.
    carries: Option<L>,
}

impl<L> Lease<L> {
    fn place(&self) -> Place {
        match self.carries {
            Some(_) => Place::Here,
            None => Place::Before,
        }
    }
}

#[derive(Debug)]
struct Flow {
    pin: Pin,
    beside: Beside,
    place: Place,
}

impl<L: Clone> Table<L> {
    /// An empty table.
    pub fn new(limits: config::Udp) -> Self {
        Self {
            limits,
            addresses: HashMap::new(),
            flows: HashMap::new(),
            open: HashMap::new(),
            sessions: HashMap::new(),
            strays: Strays::default(),
            foreigners: Foreigners::default(),
            last: 0,
        }
    }

    /// The limits in force.
    pub fn limits(&self) -> config::Udp {
        self.limits
    }

    /// Puts other limits in force, for what comes next.
    pub fn set_limits(&mut self, limits: config::Udp) {
        self.limits = limits;
    }

    /// A connection is open: a flow may begin beside it. `carries` is asked for the first connection of its kind; the
    /// answer is what counts.
    pub fn connected(&mut self, beside: Beside, carries: impl FnOnce() -> L, now: Instant) -> L {
        let address = self.address(beside);
        if let Some(lease) = address.lease(beside, Place::Here)
            && let Some(carries) = &lease.carries
        {
            lease.opened.push(now);
            return carries.clone();
        }
        let carries = carries();
        address.leases.push(Lease {
            beside,
            opened: vec![now],
            flows: Vec::new(),
            carries: Some(carries.clone()),
        });
        carries
    }

    /// The same of the process before this one.
    pub fn connected_before(&mut self, beside: Beside, opened: Instant) {
        let address = self.address(beside);
        match address.lease(beside, Place::Before) {
            Some(lease) => lease.opened.push(opened),
            None => address.leases.push(Lease {
                beside,
                opened: vec![opened],
                flows: Vec::new(),
                carries: None,
            }),
        }
    }

    fn address(&mut self, beside: Beside) -> &mut Address<L> {
        self.addresses.entry(beside.address()).or_insert_with(|| Address {
            leases: Vec::new(),
            bucket: Bucket::FULL,
        })
    }

    /// A connection that was opened at that time is closed. With the last of its kind no flow goes on: the answer is what
    /// the lease carried.
    pub fn disconnected(&mut self, beside: Beside, opened: Instant) -> Option<L> {
        let address = self.addresses.get_mut(&beside.address())?;
        let lease = address.lease(beside, Place::Here)?;
        let at = lease.opened.iter().position(|at| *at == opened)?;
        lease.opened.swap_remove(at);
        let carries = lease.carries.clone();
        self.close(beside, Place::Here).then_some(carries)?
    }

    /// The same of the process before this one, the oldest of its connections.
    pub fn disconnected_before(&mut self, beside: Beside) {
        let address = self.addresses.get_mut(&beside.address());
        if let Some(lease) = address.and_then(|address| address.lease(beside, Place::Before)) {
            let oldest = (0..lease.opened.len()).min_by_key(|at| lease.opened[*at]);
            if let Some(oldest) = oldest {
                lease.opened.swap_remove(oldest);
            }
            self.close(beside, Place::Before);
        }
    }

    /// Takes a lease out that has no connection any more, with its flows. Whether it was one.
    fn close(&mut self, beside: Beside, place: Place) -> bool {
        let Some(address) = self.addresses.get_mut(&beside.address()) else {
            return false;
        };
        let is_it = |lease: &&mut Lease<L>| lease.opened.is_empty();
        let Some(lease) = address.lease(beside, place).filter(is_it) else {
            return false;
        };
        let flows = std::mem::take(&mut lease.flows);
        address
            .leases
            .retain(|lease| lease.beside != beside || lease.place() != place);
        if address.leases.is_empty() {
            self.addresses.remove(&beside.address());
        }
        for flow in flows {
            self.forget(flow);
        }
        true
    }

    /// A flow is open in the process before this one.
    pub fn opened_before(&mut self, beside: Beside, pin: Pin) {
        let is_there = self.flows.contains_key(&pin);
        let address = self.addresses.get_mut(&beside.address());
        if let Some(lease) = address.and_then(|address| address.lease(beside, Place::Before))
            && !is_there
        {
            self.last += 1;
            let id = FlowId(self.last);
            lease.flows.push(id);
            self.remember(id, pin, beside, Place::Before);
        }
    }

    /// A flow of the process before this one is over.
    pub fn ended_before(&mut self, pin: Pin, unanswered: bool) {
        let Some((id, Place::Before)) = self.flows.get(&pin).copied() else {
            return;
        };
        if unanswered {
            self.end_unanswered(id);
        } else {
            self.end(id);
        }
    }

    /// The process before this one is no more. Gives each connection that it had.
    pub fn forget_before(&mut self) -> Vec<Beside> {
        let leases = self.addresses.values().flat_map(|address| &address.leases);
        let before = leases.filter(|lease| lease.place() == Place::Before);
        let connections: Vec<_> = before
            .flat_map(|lease| lease.opened.iter().map(|_| lease.beside))
            .collect();
        for beside in &connections {
            self.disconnected_before(*beside);
        }
        connections
    }

    /// Everything that is open, here and before, as another process is to know it.
    pub fn news(&self, now: Instant) -> Vec<News> {
        let leases = self.addresses.values().flat_map(|address| &address.leases);
        let connections = leases.flat_map(|lease| {
            lease.opened.iter().map(|opened| News::Connected {
                beside: lease.beside,
                age: now.saturating_duration_since(*opened),
            })
        });
        let flows = self.open.values().map(|flow| News::Opened {
            beside: flow.beside,
            pin: flow.pin,
        });
        connections.chain(flows).collect()
    }

    /// Judges a datagram that came to a port of that kind.
    pub fn arrived(&mut self, port: Port, pin: Pin, first: First, now: Instant) -> Verdict<L> {
        match self.flows.get(&pin) {
            Some((flow, Place::Here)) => return Verdict::Of(*flow),
            Some((_, Place::Before)) => return Verdict::Before,
            None => {}
        }
        let ip = pin.client.ip();
        let rate = self.limits.strays_per_source;
        match port {
            Port::Listener if first.is_quic_long() => {
                self.foreigners.note(pin.client);
                return Verdict::Foreign;
            }
            Port::Listener if self.foreigners.knows(pin.client) || !self.addresses.contains_key(&(ip, port)) => {
                return Verdict::Foreign;
            }
            Port::Listener | Port::Pcoip => {}
        }
        let Some(address) = self.addresses.get_mut(&(ip, port)) else {
            let (reason, looked_at) = match self.addresses.get_mut(&(ip, Port::Listener)) {
                Some(other) => (Refusal::NotAnnounced, other.bucket.take(rate, now)),
                None => (Refusal::AddressMismatch, self.strays.take(ip, rate, now)),
            };
            return if looked_at {
                Verdict::Refused(reason, None)
            } else {
                Verdict::Ignored
            };
        };
        if !address.bucket.take(rate, now) {
            return Verdict::Ignored;
        }
        let one = address.leases.windows(2).all(|two| two[0].beside == two[1].beside);
        if !one && address.leases.len() > Store::CROWD {
            return Verdict::Refused(Refusal::LbSnatDetected, None);
        }
        // The same connections in two processes: the last of them counts.
        let latest = |lease: &&mut Lease<L>| lease.opened.iter().max().copied();
        let Some(lease) = address.leases.iter_mut().filter(|_| one).max_by_key(latest) else {
            return Verdict::Refused(Refusal::AmbiguousAddress, None);
        };
        let session = lease.beside.session;
        let of_session = self.sessions.get(&session).copied().unwrap_or(0);
        let in_time = |opened: &Instant| now.saturating_duration_since(*opened) <= self.limits.first_datagram;
        let refusal = if !first.may_open(port) {
            Refusal::Malformed
        } else if !lease.opened.iter().any(in_time) {
            Refusal::WindowMissed
        } else if of_session >= self.limits.flows_per_session || self.open.len() >= self.limits.flows {
            Refusal::FlowLimit
        } else {
            self.last += 1;
            let id = FlowId(self.last);
            let beside = lease.beside;
            lease.flows.push(id);
            let (place, carries) = (lease.place(), lease.carries.clone());
            self.remember(id, pin, beside, place);
            return carries.map_or(Verdict::Before, |carries| Verdict::Opens(id, carries));
        };
        Verdict::Refused(refusal, Some(session))
    }

    fn remember(&mut self, id: FlowId, pin: Pin, beside: Beside, place: Place) {
        self.flows.insert(pin, (id, place));
        self.open.insert(id, Flow { pin, beside, place });
        *self.sessions.entry(beside.session).or_default() += 1;
    }

    /// A flow is over. Whether it was still there.
    pub fn end(&mut self, id: FlowId) -> bool {
        let Some((beside, place)) = self.open.get(&id).map(|flow| (flow.beside, flow.place)) else {
            return false;
        };
        let address = self.addresses.get_mut(&beside.address());
        if let Some(lease) = address.and_then(|address| address.lease(beside, place)) {
            lease.flows.retain(|flow| *flow != id);
        }
        self.forget(id);
        true
    }

    /// A flow is over because its desktop never answered. On a listener's port, what comes from there may be QUIC.
    pub fn end_unanswered(&mut self, id: FlowId) -> bool {
        if let Some(flow) = self.open.get(&id)
            && flow.beside.port == Port::Listener
        {
            self.foreigners.note(flow.pin.client);
        }
        self.end(id)
    }

    /// Takes a flow out that its lease has no more.
    fn forget(&mut self, id: FlowId) {
        let Some(flow) = self.open.remove(&id) else {
            return;
        };
        self.flows.remove(&flow.pin);
        let session = flow.beside.session;
        if let Some(count) = self.sessions.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&session);
            }
        }
    }

    /// How many flows are open.
    pub fn flows(&self) -> usize {
        self.open.len()
    }

    /// Beside how many kinds of connections a flow may run.
    pub fn leases(&self) -> usize {
        self.addresses.values().map(|address| address.leases.len()).sum()
    }

    /// Panics if an invariant does not hold.
    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert_eq!(self.flows.len(), self.open.len());
        let mut sessions: HashMap<_, usize> = HashMap::new();
        for (id, flow) in &self.open {
            assert_eq!(self.flows.get(&flow.pin), Some(&(*id, flow.place)));
            assert_eq!(flow.pin.client.ip(), flow.beside.client);
            let address = self
                .addresses
                .get(&flow.beside.address())
                .expect("a lease from its address");
            let is_its = |lease: &&Lease<L>| lease.beside == flow.beside && lease.place() == flow.place;
            let lease = address.leases.iter().find(is_its);
            assert!(lease.expect("its lease").flows.contains(id));
            *sessions.entry(flow.beside.session).or_default() += 1;
        }
        assert_eq!(sessions, self.sessions);
        assert!(
            self.sessions
                .values()
                .all(|flows| *flows <= self.limits.flows_per_session)
        );
        assert!(self.open.len() <= self.limits.flows);
        let leased = |address: &Address<L>| address.leases.iter().map(|lease| lease.flows.len()).sum::<usize>();
        assert_eq!(self.addresses.values().map(leased).sum::<usize>(), self.open.len());
        for (of, address) in &self.addresses {
            assert!(!address.leases.is_empty());
            for (place, lease) in address.leases.iter().enumerate() {
                assert!(!lease.opened.is_empty() && lease.beside.address() == *of);
                let same = |other: &Lease<L>| other.beside == lease.beside && other.place() == lease.place();
                assert!(!address.leases[place + 1..].iter().any(same));
            }
        }
        assert_eq!(
            (self.strays.len(), self.foreigners.len()),
            (Strays::BUCKETS, Foreigners::PRINTS)
        );
    }
}
