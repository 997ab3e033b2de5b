//! The driver of one tunnel: a task that owns its [`Session`], its channels and the connection that carries it.
//!
//! It outlives that connection, so that its client can come back over another one, on another worker. It is one future
//! that is polled as a whole, without a task or a queue for each channel: an idle channel costs its socket.
//!
//! Back-pressure is to read no further: the client's stream while a desktop's queue is full, a desktop while the
//! client has not acknowledged enough.

mod channels;
mod desktop;
mod ports;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Body;
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use self::desktop::Desktop;
use self::ports::Ports;
use super::lane::{Closed, LaneEntry, TunnelBody, lane};
use super::registry::{Order, Shared};
use super::session::{Alarm, Event, Session, Terms};
use crate::clock;
use crate::fault::CloseReason;
use crate::grant::{Grant, Granted, RouteId};

/// One HTTP exchange that carries a tunnel, and the proof that it was admitted.
pub(super) struct Link {
    granted: Granted,
    body: UnsyncBoxBody<Bytes, Broken>,
    entry: LaneEntry,
}

impl Link {
    /// Joins a request body and the response body that is returned.
    pub(super) fn new<B>(granted: Granted, body: B) -> (Self, TunnelBody)
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let (entry, response) = lane();
        let body = body.map_err(|_| Broken).boxed_unsync();
        (Self { granted, body, entry }, response)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Link")
    }
}

/// The client's stream broke off.
#[derive(Debug)]
struct Broken;

/// A running tunnel. The future's result is why it ended.
pub(super) struct Tunnel {
    session: Session,
    grant: Arc<Grant>,
    link: Option<Link>,
    /// What came from the client and is not read yet.
    unread: Bytes,
    desktops: Vec<Desktop>,
    /// The desktop that is served first.
    turn: usize,
    ports: Ports,
    orders: mpsc::Receiver<Order>,
    shared: Arc<Shared>,
    revoked: Pin<Box<dyn Future<Output = CloseReason> + Send>>,
    drained: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: Pin<Box<Sleep>>,
    armed: Option<Instant>,
    ending: Option<Ending>,
    lost_contact: Duration,
    tally: Tally,
}

/// What went through a tunnel, for its last line in the log.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) octets_in: u64,
    pub(super) octets_out: u64,
    pub(super) channels: u64,
    pub(super) reconnects: u64,
}

#[derive(Clone, Copy)]
struct Ending {
    reason: CloseReason,
    /// When the client need not be waited for any longer.
    at: Instant,
}

impl Tunnel {
    pub(super) fn new(
        terms: Terms,
        link: Link,
        orders: mpsc::Receiver<Order>,
        shared: Arc<Shared>,
        drain: CancellationToken,
    ) -> Self {
        let now = clock::now();
        let grant = link.granted.grant().clone();
        let lost_contact = terms.lost_contact;
        let watched = grant.clone();
        Self {
            session: Session::new(terms, now),
            grant,
            link: Some(link),
            unread: Bytes::new(),
            desktops: Vec::new(),
            turn: 0,
            ports: Ports::default(),
            orders,
            shared,
            revoked: Box::pin(async move { watched.revoked().await }),
            drained: Box::pin(drain.cancelled_owned()),
            timer: Box::pin(tokio::time::sleep_until(now.into())),
            armed: None,
            ending: None,
            lost_contact,
            tally: Tally::default(),
        }
    }

    /// What went through so far.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    fn watch_ends(&mut self, cx: &mut Context<'_>, now: Instant) {
        if self.ending.is_some() {
            return;
        }
        if let Poll::Ready(reason) = self.revoked.as_mut().poll(cx) {
            self.end(reason, now);
        } else if self.shared.is_replaced() {
            self.end(CloseReason::Resumed, now);
        } else if self.drained.as_mut().poll(cx).is_ready() {
            self.end(CloseReason::Drained, now);
        }
    }

    fn take_orders(&mut self, cx: &mut Context<'_>, now: Instant) {
        while let Poll::Ready(Some(order)) = self.orders.poll_recv(cx) {
            if self.ending.is_some() {
                continue;
            }
            match order {
                Order::Listen {
                    route,
                    single_use,
                    answer,
                } => {
                    self.ports.listen(&mut self.session, route, single_use, answer);
                }
                Order::Unlisten { route } => self.unlisten(route),
                Order::Attach(link) => self.attach(*link, now),
                Order::Look => {}
            }
        }
    }

    fn unlisten(&mut self, route: RouteId) {
        for channel in self.ports.unlisten(&mut self.session, route) {
            self.drop_desktop(channel);
        }
    }

    fn attach(&mut self, link: Link, now: Instant) {
        if self.session.is_ready() {
            self.drop_link(now);
            self.link = Some(link);
            self.session.attach(now);
            for desktop in &mut self.desktops {
                desktop.excuse(now);
            }
            self.tally.reconnects += 1;
        }
    }

    /// Lets go of the connection; the session stays. `false` if there is nothing to stay for.
    fn drop_link(&mut self, now: Instant) -> bool {
        self.link = None;
        self.unread = Bytes::new();
        self.session.detach(now)
    }

    fn lose_link(&mut self, now: Instant) {
        if !self.drop_link(now) {
            self.end(CloseReason::ClientClosed, now);
        }
    }

    /// Reads the client's stream as far as it came, but not past a full queue. `true`: there may be more.
    fn read_client(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        for _ in 0..CHUNKS_A_TURN {
            // Back-pressure. A full queue gets room, or its channel ends, before the client could be taken for lost.
            if self.ending.is_some() || self.desktops.iter().any(Desktop::is_full) {
                return false;
            }
            if self.unread.is_empty() && !self.poll_client(cx, now) {
                return false;
            }
            match self.session.receive(&mut self.unread, now) {
                Ok(Some(event)) => self.act(event, now),
                Ok(None) => {}
                Err(violation) => {
                    tracing::debug!(session = %self.grant.id(), "tunnel client broke the protocol: {violation}");
                    self.end(violation.close_reason(), now);
                }
            }
        }
        true
    }

    /// Takes the next piece of the client's stream. `false`: there is none.
    fn poll_client(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let Some(link) = &mut self.link else { return false };
        match Pin::new(&mut link.body).poll_frame(cx) {
            Poll::Pending => false,
            Poll::Ready(Some(Ok(frame))) => {
                self.unread = frame.into_data().unwrap_or_default();
                true
            }
            Poll::Ready(Some(Err(Broken))) => {
                self.lose_link(now);
                false
            }
            Poll::Ready(None) => {
                let ready = self.session.is_ready();
                self.end(
                    if ready {
                        CloseReason::Completed
                    } else {
                        CloseReason::ClientClosed
                    },
                    now,
                );
                false
            }
        }
    }

    fn act(&mut self, event: Event, now: Instant) {
        match event {
            Event::Ready => {
                self.shared.set_resumable(true);
                tracing::info!(session = %self.grant.id(), "tunnel opened");
            }
            Event::Listening { cid, port } => self.ports.answered(cid, port),
            Event::Unlistened { port_name } => self.ports.closed(&port_name),
            Event::Raise { channel, port_name } => self.raise(channel, &port_name, now),
            Event::Data { channel, octets } => {
                self.grant.touch(now);
                self.grant.count_in(octets.len() as u64);
                self.tally.octets_in += octets.len() as u64;
                if let Some(desktop) = self.desktops.iter_mut().find(|desktop| desktop.channel() == channel) {
                    desktop.take(octets, now);
                }
            }
            Event::Lower { channel } => {
                if let Some(desktop) = self.desktops.iter_mut().find(|desktop| desktop.channel() == channel) {
                    desktop.end_client(now);
                }
            }
            Event::Abandon { channel } => {
                if let Some(desktop) = self.desktops.iter_mut().find(|desktop| desktop.channel() == channel) {
                    desktop.abandon(now);
                }
            }
        }
    }

    /// Hands to the connection what it takes. `true`: a chunk went.
    fn transmit(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let mut moved = false;
        while let Some(link) = &self.link {
            match link.entry.poll_ready(cx) {
                Poll::Pending => return moved,
                Poll::Ready(Err(Closed)) => self.lose_link(now),
                Poll::Ready(Ok(())) => match self.session.transmit(now) {
                    Some(chunk) => {
                        link.entry.put(chunk);
                        moved = true;
                    }
                    None => {
                        if link.entry.poll_closed(cx).is_ready() {
                            self.lose_link(now);
                        }
                        return moved;
                    }
                },
            }
        }
        moved
    }

    fn keep_time(&mut self, now: Instant) {
        if self.ending.is_none() {
            match self.session.tick(now) {
                None => {}
                Some(Alarm::NotStarted) => self.end(CloseReason::Timeout, now),
                Some(Alarm::NotResumed) => self.end(CloseReason::LostContact, now),
                Some(Alarm::LostContact) => {
                    tracing::debug!(session = %self.grant.id(), "tunnel lost contact with its client");
                    self.lose_link(now);
                }
            }
        }
        self.give_up_desktops(now);
    }

    fn arm(&mut self, cx: &mut Context<'_>) {
        let session = if self.ending.is_none() {
            self.session.next_deadline()
        } else {
            None
        };
        let desktops = self
            .desktops
            .iter()
            .filter_map(|desktop| desktop.deadline(self.lost_contact, self.session.keeps_lowered()))
            .min();
        let ending = self.ending.map(|ending| ending.at);
        let Some(due) = [session, desktops, ending].into_iter().flatten().min() else {
            return;
        };
        // A deadline that moves away is left alone: the timer is asked again when it fires.
        if self.armed.is_none_or(|armed| due < armed) {
            self.timer.as_mut().reset(due.into());
            self.armed = Some(due);
        }
        if self.timer.as_mut().poll(cx).is_ready() {
            self.armed = None;
            cx.waker().wake_by_ref();
        }
    }

    /// Begins the end: from here on only the last words go out, and what the client left for its desktops.
    fn end(&mut self, reason: CloseReason, now: Instant) {
        if self.ending.is_some() {
            return;
        }
        self.ending = Some(Ending {
            reason,
            at: now + FAREWELL,
        });
        self.shared.set_resumable(false);
        self.session.stop(reason.words());
        self.ports = Ports::default();
        self.unread = Bytes::new();
        if reason == CloseReason::Completed {
            for desktop in &mut self.desktops {
                desktop.end_client(now);
            }
        } else {
            self.desktops.clear();
        }
    }

    /// The reason, once nothing is left to do.
    fn over(&self, now: Instant) -> Option<CloseReason> {
        let ending = self.ending?;
        let told = self.link.is_none() || self.session.is_drained();
        let delivered = self.desktops.iter().all(Desktop::is_delivered);
        ((told && delivered) || now >= ending.at).then_some(ending.reason)
    }
}

impl Future for Tunnel {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let tunnel = &mut *self;
        let now = clock::now();
        tunnel.watch_ends(cx, now);
        tunnel.take_orders(cx, now);
        tunnel.keep_time(now);
        let mut more = true;
        for _ in 0..TURNS {
            let read = tunnel.read_client(cx, now);
            let served = tunnel.serve_desktops(cx, now);
            let sent = tunnel.transmit(cx, now);
            more = read || served || sent;
            if !more {
                break;
            }
        }
        if let Some(reason) = tunnel.over(now) {
            return Poll::Ready(reason);
        }
        if more {
            // Others have their turn first.
            cx.waker().wake_by_ref();
        }
        tunnel.arm(cx);
        Poll::Pending
    }
}

/// Chunks that one side may move before the others have their turn.
const CHUNKS_A_TURN: usize = 16;
/// Turns before other tasks of the worker have theirs.
const TURNS: usize = 4;
/// How long an ending tunnel waits for its client to take the last words.
const FAREWELL: Duration = Duration::from_secs(2);
#[cfg(test)]
mod tests;
