//! One flow at work: a socket of its own towards the desktop, and everything that comes passed on at once.
//!
//! Nothing waits in a lane: a batch is received into room of the thread and sent before anything else happens, so that an
//! idle flow holds a socket and no buffer. Towards the desktop the flow has one port for its life.
//!
//! Towards the client it has none of its own, but the shared one: the system looks through all sockets of a port
//! for every datagram that belongs to none of them, so that with thousands of flows strangers would cost it dearly
//! (measured on Linux 6.18: 4 us a datagram with one socket, 75 us with 4,000).

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use super::course::Course;
use super::first::Port;
use super::table::{FlowId, Pin};
use super::{Door, Flows, Lease};
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::listen::udp::{Connected, Received, Sent, Shared};
use crate::observe;

#[derive(Debug)]
pub(super) struct Lane {
    flows: Arc<Flows>,
    id: FlowId,
    port: Port,
    pin: Pin,
    lease: Arc<Lease>,
    shared: Arc<Shared>,
    /// Cancelled when the shared socket is not read any more.
    shut: CancellationToken,
    agent: Connected,
    course: Mutex<Course>,
    /// Cancelled when the system says that nobody listens at the desktop, and it has never answered.
    nobody: CancellationToken,
    tally: Tally,
}

/// What the flow did, for its last line.
#[derive(Debug, Default)]
struct Tally {
    octets_in: AtomicU64,
    octets_out: AtomicU64,
    /// Datagrams that a socket did not take.
    lost: AtomicU64,
    /// Datagrams that the client had not earned.
    withheld: AtomicU64,
}

impl Lane {
    pub(super) fn open(door: &Door, id: FlowId, pin: Pin, lease: Arc<Lease>) -> io::Result<Self> {
        let limits = door.flows.limits();
        Ok(Self {
            agent: Connected::towards(lease.agent)?,
            shared: door.socket.clone(),
            shut: door.shut.clone(),
            flows: door.flows.clone(),
            id,
            port: door.port,
            pin,
            lease,
            course: Mutex::new(Course::new(&limits, clock::now())),
            nobody: CancellationToken::new(),
            tally: Tally::default(),
        })
    }

    /// Passes on what the client sent.
    pub(super) fn pass_on(&self, received: &[Received<'_>]) {
        let octets: usize = received.iter().map(Received::octets).sum();
        let now = clock::now();
        self.course.lock().from_client(octets, now);
        self.lease.grant.touch(now);
        self.lease.grant.count_in(octets as u64);
        self.tally.octets_in.fetch_add(octets as u64, Ordering::Relaxed);
        let sent = self.agent.way().send_all(received);
        if sent.refused {
            self.refused();
        }
        self.note(sent);
    }

    /// Passes on what the desktop sends until the flow is over.
    pub(super) async fn run(self: Arc<Self>) {
        tracing::info!(
            session = %self.lease.grant.id(),
            desktop = %self.lease.route.desktop(),
            client = %self.pin.client,
            protocol = self.port.code(),
            "flow of datagrams opened"
        );
        let reason = self.carry().await;
        self.flows.ended(self.id, self.pin, reason);
        let tally = &self.tally;
        observe::tell!(
            observe::level_of(reason),
            reason = reason.code(),
            session = %self.lease.grant.id(),
            desktop = %self.lease.route.desktop(),
            client = %self.pin.client,
            protocol = self.port.code(),
            bytes_in = tally.octets_in.load(Ordering::Relaxed),
            bytes_out = tally.octets_out.load(Ordering::Relaxed),
            lost = tally.lost.load(Ordering::Relaxed),
            withheld = tally.withheld.load(Ordering::Relaxed),
            "flow of datagrams closed: {}",
            reason.words()
        );
    }

    async fn carry(&self) -> CloseReason {
        let mut ended = pin!(self.ended());
        let deadline = self.course.lock().deadline();
        let mut timer = pin!(sleep_until(deadline.into()));
        poll_fn(|cx| {
            if let Poll::Ready(reason) = ended.as_mut().poll(cx) {
                return Poll::Ready(reason);
            }
            // The runtime's budget ends it.
            while self.poll_agent(cx).is_ready() {}
            while timer.as_mut().poll(cx).is_ready() {
                let course = self.course.lock();
                if let Some(reason) = course.over(clock::now()) {
                    return Poll::Ready(reason);
                }
                timer.as_mut().reset(course.deadline().into());
            }
            Poll::Pending
        })
        .await
    }

    /// From the desktop to the client.
    fn poll_agent(&self, cx: &mut Context<'_>) -> Poll<()> {
        let polled = self.agent.poll_receive(cx, |received| self.pass_back(received));
        polled.map(|outcome| {
            if outcome.is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
                self.refused();
            }
        })
    }

    fn pass_back(&self, received: &[Received<'_>]) {
        let way = self.shared.way_to(self.pin.client, self.pin.local);
        let octets: usize = received.iter().map(Received::octets).sum();
        let now = clock::now();
        let mut course = self.course.lock();
        if course.is_proven() {
            course.from_desktop(octets, now);
            drop(course);
            self.went(octets);
            return self.note(way.send_all(received));
        }
        for datagram in received.iter().flat_map(|received| received.datagrams()) {
            if course.from_desktop(datagram.len(), now) {
                self.went(datagram.len());
                self.note(way.send(datagram));
            } else {
                self.tally.withheld.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Once it has answered, a desktop that is away for a moment ends nothing.
    fn refused(&self) {
        if !self.course.lock().is_answered() {
            self.nobody.cancel();
        }
    }

    fn went(&self, octets: usize) {
        self.lease.grant.count_out(octets as u64);
        self.tally.octets_out.fetch_add(octets as u64, Ordering::Relaxed);
    }

    fn note(&self, sent: Sent) {
        if sent.lost > 0 {
            self.tally.lost.fetch_add(sent.lost as u64, Ordering::Relaxed);
        }
        if sent.offload_failed {
            self.flows.offload_failed(self.pin.client, self.lease.agent);
        }
    }

    /// Why the flow has to end, whatever it does.
    async fn ended(&self) -> CloseReason {
        let grant = &self.lease.grant;
        tokio::select! {
            () = self.lease.route.ended() => grant.revocation().unwrap_or(CloseReason::Killed),
            () = self.lease.closed.cancelled() => grant.revocation().unwrap_or(CloseReason::Completed),
            () = self.shut.cancelled() => CloseReason::Drained,
            () = self.nobody.cancelled() => CloseReason::Refused(Refusal::TargetUnreachable),
            () = self.is_refused() => CloseReason::Refused(Refusal::TargetUnreachable),
        }
    }

    async fn is_refused(&self) {
        loop {
            self.agent.is_refused().await;
            if !self.course.lock().is_answered() {
                return;
            }
        }
    }
}
