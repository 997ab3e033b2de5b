//! The flow table: which datagram opens a flow, which belongs to one, and which is turned away and why (secondary
//! protocols sheet 5.4, rule 3).
//!
//! Pure: `now` is an argument, and what a flow does with its datagrams is not known here. `L` is what a lease carries for
//! whoever opens a flow under it.
//!
//! Invariants, checked by the simulation after each step:
//! - A flow belongs to a lease that is open, and its client has the address from which the lease was opened.
//! - A session has no more flows than it may have, and neither has the node.
//! - Nothing is kept of an address without a lease beyond tables of a fixed size.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::first::{First, Port};
use super::strays::{Bucket, Foreigners, Strays};
use crate::config;
use crate::fault::Refusal;
use crate::grant::{RouteId, Store};
use crate::types::SessionId;

/// Beside which connections a flow may run: those of one route, from one address, of one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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
    flows: HashMap<Pin, FlowId>,
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
    fn lease(&mut self, beside: Beside) -> Option<&mut Lease<L>> {
        self.leases.iter_mut().find(|lease| lease.beside == beside)
    }
}

/// Connections beside which flows may run.
#[derive(Debug)]
struct Lease<L> {
    beside: Beside,
    /// When each of its connections was opened.
    opened: Vec<Instant>,
    flows: Vec<FlowId>,
    carries: L,
}

#[derive(Debug)]
struct Flow {
    pin: Pin,
    beside: Beside,
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
        let address = self.addresses.entry(beside.address()).or_insert_with(|| Address {
            leases: Vec::new(),
            bucket: Bucket::FULL,
        });
        if let Some(lease) = address.lease(beside) {
            lease.opened.push(now);
            return lease.carries.clone();
        }
        let carries = carries();
        address.leases.push(Lease {
            beside,
            opened: vec![now],
            flows: Vec::new(),
            carries: carries.clone(),
        });
        carries
    }

    /// A connection that was opened at that time is closed. With the last of its kind no flow goes on: the answer is what
    /// the lease carried.
    pub fn disconnected(&mut self, beside: Beside, opened: Instant) -> Option<L> {
        let address = self.addresses.get_mut(&beside.address())?;
        let lease = address.lease(beside)?;
        let place = lease.opened.iter().position(|at| *at == opened)?;
        lease.opened.swap_remove(place);
        if !lease.opened.is_empty() {
            return None;
        }
        let flows = std::mem::take(&mut lease.flows);
        let carries = lease.carries.clone();
        for flow in flows {
            self.forget(flow);
        }
        let address = self.addresses.get_mut(&beside.address())?;
        address.leases.retain(|lease| lease.beside != beside);
        if address.leases.is_empty() {
            self.addresses.remove(&beside.address());
        }
        Some(carries)
    }

    /// Judges a datagram that came to a port of that kind.
    pub fn arrived(&mut self, port: Port, pin: Pin, first: First, now: Instant) -> Verdict<L> {
        if let Some(flow) = self.flows.get(&pin) {
            return Verdict::Of(*flow);
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
        let lease = match address.leases.as_mut_slice() {
            [lease] => lease,
            many if many.len() > Store::CROWD => return Verdict::Refused(Refusal::LbSnatDetected, None),
            _ => return Verdict::Refused(Refusal::AmbiguousAddress, None),
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
            self.flows.insert(pin, id);
            self.open.insert(id, Flow { pin, beside });
            *self.sessions.entry(session).or_default() += 1;
            return Verdict::Opens(id, lease.carries.clone());
        };
        Verdict::Refused(refusal, Some(session))
    }

    /// A flow is over. Whether it was still there.
    pub fn end(&mut self, id: FlowId) -> bool {
        let Some(beside) = self.open.get(&id).map(|flow| flow.beside) else {
            return false;
        };
        if let Some(lease) = self.addresses.get_mut(&beside.address()).and_then(|a| a.lease(beside)) {
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
            assert_eq!(self.flows.get(&flow.pin), Some(id));
            assert_eq!(flow.pin.client.ip(), flow.beside.client);
            let address = self
                .addresses
                .get(&flow.beside.address())
                .expect("a lease from its address");
            let lease = address.leases.iter().find(|lease| lease.beside == flow.beside);
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
                let same = |other: &Lease<L>| other.beside == lease.beside;
                assert!(!address.leases[place + 1..].iter().any(same));
            }
        }
        assert_eq!(
            (self.strays.len(), self.foreigners.len()),
            (Strays::BUCKETS, Foreigners::PRINTS)
        );
    }
}
