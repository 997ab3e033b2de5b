//! Datagrams beside a connection: opaque flows of PCoIP and Blast, admitted by what is open from their address.
//!
//! These protocols put nothing readable into their datagrams, so that no token can be asked for. A flow is admitted by
//! the rule of the secondary protocols sheet (5.4, rule 3), which [`table`] keeps: beside an open TCP connection of the
//! one session that has one from that address, soon after it was opened, a few a session. [`course`] says when a flow is
//! over, and keeps it from sending more to an address than that has earned. Both are pure. `lane` moves the datagrams,
//! `door` takes those that have no flow, and hands on what is QUIC's.
//!
//! Limits of the rule: it fails where a balancer hides the clients' addresses, where a carrier's NAT gives the TCP and
//! the UDP of one client different addresses, and where one goes over IPv4 and the other over IPv6. Each has its reason.
//!
//! One idle time (`udp.idle`, 120 s) serves both protocols. PCoIP's own ends give up after 60 s without a packet, so that
//! a longer time here costs a socket for a minute at most; a shorter one would change the port that the desktop
//! sees under a client which was only silent, and that breaks it.

pub mod course;
mod door;
pub mod first;
mod lane;
mod news;
mod notices;
#[cfg(test)]
mod simulation;
mod socket;
mod strays;
pub mod table;

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use door::Door;
pub use first::Port;
pub use news::{HearsOfFlows, News};

use self::first::First;
use self::lane::Lane;
use self::notices::Notices;
use self::table::{Beside, FlowId, Pin, Table, Verdict};
use crate::clock;
use crate::config;
use crate::fault::{CloseReason, Refusal};
use crate::grant::{Grant, Granted, Route, Secondary};
use crate::listen::udp::Received;
use crate::listen::{Episode, Facts};
use crate::observe::{self, Arrival, Kind, Refused, Watch};
use crate::types::SessionId;

/// All flows of the node.
#[derive(Debug)]
pub struct Flows {
    table: Mutex<Table<Arc<Lease>>>,
    lanes: Mutex<HashMap<FlowId, Arc<Lane>>>,
    notices: Mutex<Notices>,
    watch: Arc<Watch>,
    ignored: AtomicU64,
    offload: Mutex<Episode>,
    tasks: TaskTracker,
    /// Locked after the table.
    listener: Mutex<Option<Arc<dyn HearsOfFlows>>>,
    passed_on: AtomicBool,
}

/// What flows beside the connections of one route need to know.
#[derive(Debug)]
struct Lease {
    grant: Arc<Grant>,
    route: Arc<Route>,
    agent: SocketAddr,
    kind: Kind,
    /// Cancelled when the last of the connections is closed.
    closed: CancellationToken,
}

impl Flows {
    /// No flow yet. Flows run as tasks of `tasks`.
    pub fn new(limits: config::Udp, watch: Arc<Watch>, tasks: TaskTracker) -> Arc<Self> {
        Arc::new(Self {
            table: Mutex::new(Table::new(limits)),
            lanes: Mutex::default(),
            notices: Mutex::default(),
            watch,
            ignored: AtomicU64::new(0),
            offload: Mutex::default(),
            tasks,
            listener: Mutex::default(),
            passed_on: AtomicBool::new(false),
        })
    }

    /// Puts other limits in force, for flows to come.
    pub fn set_limits(&self, limits: config::Udp) {
        self.table.lock().set_limits(limits);
    }

    /// Lets flows run beside a TCP connection, for as long as the answer is held: one line before the relay,
    ///
    /// ```ignore
    /// let _candidate = flows.candidate(&granted, &facts, upstream.address()?);
    /// ```
    ///
    /// `agent` is where its datagrams go: the address of the desktop to which the connection was made. Call it once the
    /// desktop is reached and, for Blast, has answered 101, where the port serves UDP: the time for the first datagram runs from here.
    ///
    /// `None` if the connection is of a kind that has no datagrams.
    pub fn candidate(self: &Arc<Self>, granted: &Granted, facts: &Facts, agent: SocketAddr) -> Option<Candidate> {
        let secondary = granted.secondary();
        let port = match secondary {
            Secondary::Blast => Port::Listener,
            Secondary::Pcoip => Port::Pcoip,
            Secondary::Tunnel | Secondary::Quic | Secondary::Rdp => return None,
        };
        let route = granted.route()?;
        let (session, opened) = (granted.grant().id(), clock::now());
        let beside = Beside {
            client: facts.client.ip(),
            port,
            session,
            route: route.id(),
        };
        let lease = || {
            Arc::new(Lease {
                grant: granted.grant().clone(),
                route: route.clone(),
                agent,
                kind: secondary.into(),
                closed: CancellationToken::new(),
            })
        };
        let until = {
            let mut table = self.table.lock();
            table.connected(beside, lease, opened);
            let age = Duration::ZERO;
            self.tell(News::Connected { beside, age });
            opened + table.limits().first_datagram
        };
        self.watch.awaits_datagrams(session, secondary, until);
        Some(Candidate {
            flows: self.clone(),
            beside,
            opened,
        })
    }

    /// The process that took over has handed over itself: nothing that it leaves behind comes back to this one.
    pub fn note_passed_on(&self) {
        self.passed_on.store(true, Ordering::Release);
    }

    fn has_passed_on(&self) -> bool {
        self.passed_on.load(Ordering::Acquire)
    }

    fn limits(&self) -> config::Udp {
        self.table.lock().limits()
    }

    /// Says once in a while that a device does not cut datagrams itself; nothing is lost by it.
    fn offload_failed(&self, client: SocketAddr, agent: SocketAddr) {
        if self.offload.lock().begins(clock::now()) {
            tracing::info!(%client, %agent, "a network device does not segment datagrams (GSO): sending them one by one");
        }
    }

    /// How it stands.
    pub fn counts(&self) -> Counts {
        let table = self.table.lock();
        Counts {
            flows: table.flows(),
            candidates: table.leases(),
            ignored: self.ignored.load(Ordering::Relaxed),
        }
    }

    /// Judges what a client has sent to a door, by the first of it. `true`: a flow takes all of it; `false`: the first of
    /// it is none of ours.
    fn take(door: &Door, received: &[Received<'_>]) -> bool {
        let Some(first) = received.first() else {
            return false;
        };
        let flows = &door.flows;
        let pin = Pin {
            client: first.from,
            local: door.socket.reached(first.to),
        };
        let now = clock::now();
        let verdict = flows
            .table
            .lock()
            .arrived(door.port, pin, First::of(first.first()), now);
        match verdict {
            Verdict::Of(id) => {
                // One that is just ending loses its datagrams.
                let lane = flows.lanes.lock().get(&id).cloned();
                if let Some(lane) = lane {
                    lane.pass_on(received);
                }
                true
            }
            Verdict::Opens(id, lease) => {
                flows.open(door, id, pin, lease, received);
                true
            }
            Verdict::Before => {
                door.pass_back(received);
                true
            }
            Verdict::Foreign => false,
            Verdict::Refused(reason, session) => {
                flows.refuse(reason, session, door.port, pin);
                false
            }
            Verdict::Ignored => {
                flows.ignored.fetch_add(1, Ordering::Relaxed);
                false
            }
        }
    }

    fn open(&self, door: &Door, id: FlowId, pin: Pin, lease: Arc<Lease>, received: &[Received<'_>]) {
        let (session, kind) = (lease.grant.id(), lease.kind);
        let (client, route) = (pin.client.ip(), lease.route.id());
        let beside = Beside {
            client,
            port: door.port,
            session,
            route,
        };
        let lane = match Lane::open(door, id, pin, lease) {
            Ok(lane) => Arc::new(lane),
            Err(cause) => {
                self.table.lock().end(id);
                tracing::error!(client = %pin.client, local = %pin.local, %cause, "no socket for a flow of datagrams");
                return;
            }
        };
        self.watch.datagram_came(session, kind);
        self.lanes.lock().insert(id, lane.clone());
        {
            let _ordered = self.table.lock();
            self.tell(News::Opened { beside, pin });
        }
        lane.pass_on(received);
        self.tasks.spawn(lane.run());
    }

    /// A flow has ended: its place is free.
    fn ended(&self, id: FlowId, pin: Pin, reason: CloseReason) {
        self.lanes.lock().remove(&id);
        let mut table = self.table.lock();
        let unanswered = reason == CloseReason::Refused(Refusal::AgentSilent);
        if unanswered {
            table.end_unanswered(id);
        } else {
            table.end(id);
        }
        self.tell(News::Ended { pin, unanswered });
        if let CloseReason::Refused(refusal) = reason {
            self.watch.counters().refused(Kind::Udp, refusal);
        }
    }

    /// Counts every datagram that is turned away, and tells of some.
    fn refuse(&self, reason: Refusal, session: Option<SessionId>, port: Port, pin: Pin) {
        let now = clock::now();
        let Some(unsaid) = self.notices.lock().note(pin.client.ip(), reason, now) else {
            return self.watch.counters().refused(Kind::Udp, reason);
        };
        let arrival = Arrival {
            client: pin.client,
            via: pin.client,
            local: pin.local,
        };
        let refused = Refused {
            reason,
            owner: None,
            arrival,
        };
        self.watch.refused(Kind::Udp, &refused, now);
        observe::tell!(
            observe::level_of(CloseReason::Refused(reason)),
            reason = reason.code(),
            session = session.map(tracing::field::display),
            client = %pin.client,
            local = %pin.local,
            protocol = port.code(),
            unsaid,
            step = "grant",
            "datagrams refused: {}",
            reason.words()
        );
    }
}

/// A TCP connection beside which flows may run, until it is dropped.
#[derive(Debug)]
#[must_use = "dropped, it ends the flows"]
pub struct Candidate {
    flows: Arc<Flows>,
    beside: Beside,
    opened: Instant,
}

impl Drop for Candidate {
    fn drop(&mut self) {
        let last = {
            let mut table = self.flows.table.lock();
            let last = table.disconnected(self.beside, self.opened);
            let beside = self.beside;
            self.flows.tell(News::Disconnected { beside });
            last
        };
        if let Some(lease) = last {
            self.flows.watch.no_more_datagrams(lease.grant.id(), lease.kind);
            lease.closed.cancel();
        }
    }
}

/// How flows stand at one moment. What was let in and turned away is counted by the node's watch, as UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Open flows.
    pub flows: usize,
    /// Routes with an open connection beside which flows may run, by address.
    pub candidates: usize,
    /// Datagrams that were not looked at, because their source sent too many.
    pub ignored: u64,
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}
