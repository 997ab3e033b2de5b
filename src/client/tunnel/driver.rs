//! Runs the state machine of a tunnel over real connections.
//!
//! One task owns the machine, the exchange with the gateway and the local ports. Every queue has a bound: a program
//! that does not take its octets stops the reading of the whole tunnel (the protocol has no window for one channel), and
//! a gateway that does not acknowledge stops the reading of the programs.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Instant;

use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::channel::{Channel, Upward};
use super::exchange::{Exchange, Finish};
use super::machine::{End, Event, Machine};
use super::ports::{Ports, Wanted};
use super::{Notice, Place, Status};
use crate::client::tls::{DialCause, Dialer};
use crate::clock;
use crate::tunnel::https::chunk::Decoder;
use crate::types::Secret;

/// What others want of the driver.
#[derive(Debug)]
pub(super) enum Order {
    /// A channel to what stands behind a port.
    Raise {
        port: Call,
        reply: oneshot::Sender<Result<Channel, RaiseFault>>,
    },
    /// A port for a single connection has had it.
    Used { port_name: String },
}

/// How a port is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// By the gateway's name for it.
    Name(String),
    /// By its number.
    Number(u16),
}

/// No channel.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RaiseFault {
    /// The gateway does not open it.
    #[error("the gateway does not connect to the desktop: {problem}")]
    Refused {
        /// The gateway's words, fit for a terminal.
        problem: String,
    },
    /// The gateway asked for no such port.
    #[error("the gateway asked for no such port")]
    NoPort,
    /// The tunnel is over.
    #[error("the tunnel is over")]
    Over,
}

/// The task of one tunnel.
pub(super) struct Driver {
    machine: Machine,
    dialer: Dialer,
    place: Place,
    exchange: Option<Exchange>,
    dialing: Option<Dialing>,
    ports: Ports,
    orders: mpsc::Receiver<Order>,
    order: mpsc::Sender<Order>,
    upward: mpsc::Receiver<Upward>,
    up: mpsc::Sender<Upward>,
    channels: HashMap<i32, Live>,
    raising: HashMap<i32, Raising>,
    decoder: Decoder,
    /// What arrived and is not decoded yet.
    input: Bytes,
    /// Octets that a program has no room for.
    stalled: Option<(i32, Bytes)>,
    status: watch::Sender<Status>,
    notices: mpsc::Sender<Notice>,
    away: bool,
    tasks: TaskTracker,
}

/// An open channel.
struct Live {
    port_name: String,
    down: mpsc::Sender<Bytes>,
}

/// A channel that the gateway has not opened yet.
struct Raising {
    port_name: String,
    reply: oneshot::Sender<Result<Channel, RaiseFault>>,
}

type Dialing = Pin<Box<dyn Future<Output = Result<Exchange, DialCause>> + Send>>;

/// What the driver woke up for.
enum Wake {
    Stop,
    Order(Order),
    Upward(Upward),
    Input(Result<Bytes, Finish>),
    Dialled(Result<Exchange, DialCause>),
    /// There is room, or a time has come: to be found out by trying.
    Again,
}

/// The ends that the rest of the client holds.
pub(super) struct Ends {
    pub(super) orders: mpsc::Sender<Order>,
    pub(super) status: watch::Receiver<Status>,
}

impl Driver {
    pub(super) fn new(
        machine: Machine,
        dialer: Dialer,
        place: Place,
        exchange: Exchange,
        ports: Ports,
        notices: mpsc::Sender<Notice>,
        tasks: TaskTracker,
    ) -> (Self, Ends) {
        let (order, orders) = mpsc::channel(16);
        let (up, upward) = mpsc::channel(8);
        let (status, watched) = watch::channel(Status::Opening);
        let ends = Ends {
            orders: order.clone(),
            status: watched,
        };
        let driver = Self {
            machine,
            dialer,
            place,
            exchange: Some(exchange),
            dialing: None,
            ports,
            orders,
            order,
            upward,
            up,
            channels: HashMap::new(),
            raising: HashMap::new(),
            decoder: Decoder::new(),
            input: Bytes::new(),
            stalled: None,
            status,
            notices,
            away: false,
            tasks,
        };
        (driver, ends)
    }

    /// Runs until the tunnel is over or `stop` is cancelled. Local connections end when it returns.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        self.machine.connected(clock::now());
        let end = loop {
            if let Some(end) = self.act() {
                break end;
            }
            let is_full = self.write();
            let wake = self.wait(&stop, is_full).await;
            self.take(wake);
            self.machine.tick(clock::now());
        };
        self.status.send_replace(Status::Ended(end));
    }

    /// Does what the machine says, and gives it what arrived, for as long as programs take their octets.
    fn act(&mut self) -> Option<End> {
        loop {
            self.deliver();
            if self.stalled.is_some() {
                return None;
            }
            if let Some(event) = self.machine.event() {
                if let Some(end) = self.handle(event) {
                    return Some(end);
                }
            } else {
                match self.decoder.decode(&mut self.input) {
                    Ok(Some(chunk)) => self.machine.receive(chunk, clock::now()),
                    Ok(None) => return None,
                    Err(fault) => self.machine.fail(fault),
                }
            }
        }
    }

    /// Tries to get rid of stalled octets.
    fn deliver(&mut self) {
        let Some((channel, octets)) = self.stalled.take() else {
            return;
        };
        let sent = self.channels.get(&channel).map(|live| live.down.try_send(octets));
        if let Some(Err(TrySendError::Full(octets))) = sent {
            self.stalled = Some((channel, octets));
        }
        self.machine.set_reading(self.stalled.is_none(), clock::now());
    }

    fn handle(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Resume { secret } => self.resume(&secret),
            Event::HangUp => self.hang_up(),
            Event::Ready => {
                self.status.send_replace(Status::Ready);
            }
            Event::Listen {
                cid,
                port_name,
                port,
                max_connections,
            } => {
                let wanted = Wanted {
                    name: port_name,
                    port,
                    max_connections,
                };
                let opened = self.ports.open(wanted, &self.order, &self.tasks);
                self.machine.listening(cid, opened);
            }
            Event::Unlisten { port_name } => {
                self.unlisten(&port_name);
            }
            Event::Opened { channel } => self.opened(channel),
            Event::Refused { channel, problem } => {
                if let Some(raising) = self.raising.remove(&channel) {
                    self.notify(Notice::Refused(problem.clone()));
                    let _ = raising.reply.send(Err(RaiseFault::Refused { problem }));
                }
            }
            Event::Data { channel, octets } => self.stalled = Some((channel, octets)),
            Event::Lowered { channel } => {
                self.channels.remove(&channel);
            }
            Event::Say { text } => self.notify(Notice::Said(text)),
            Event::Ended(end) => return Some(end),
        }
        None
    }

    fn opened(&mut self, channel: i32) {
        let (sender, down) = mpsc::channel(DOWNWARD);
        let opened = Channel {
            number: channel,
            up: self.up.clone(),
            down,
        };
        let Some(Raising { port_name, reply }) = self.raising.remove(&channel) else {
            return;
        };
        if reply.send(Ok(opened)).is_ok() {
            self.channels.insert(
                channel,
                Live {
                    port_name,
                    down: sender,
                },
            );
        } else {
            // Who asked for it is gone.
            self.machine.lower(channel);
        }
    }

    /// Closes a port and its channels. Programs get what was received before.
    fn unlisten(&mut self, port_name: &str) {
        self.ports.close(port_name);
        let machine = &mut self.machine;
        self.channels.retain(|channel, live| {
            let stays = live.port_name != port_name;
            if !stays {
                machine.lower(*channel);
            }
            stays
        });
        self.machine.unlistened(port_name);
    }

    fn resume(&mut self, secret: &Secret) {
        if !self.away {
            self.away = true;
            self.notify(Notice::ContactLost);
        }
        let target = self.place.resume_target(secret);
        let (dialer, place, tasks) = (self.dialer.clone(), self.place.clone(), self.tasks.clone());
        self.dialing = Some(Box::pin(async move { place.open(&dialer, target?, &tasks).await }));
    }

    fn hang_up(&mut self) {
        self.exchange = None;
        self.dialing = None;
        self.decoder = Decoder::new();
        self.input = Bytes::new();
    }

    /// Gives the connection what it has room for. `true`: it has none, and there may be more.
    fn write(&mut self) -> bool {
        let Some(exchange) = &self.exchange else { return false };
        loop {
            match exchange.out().try_reserve() {
                Ok(room) => match self.machine.transmit(clock::now()) {
                    Some(chunk) => room.send(chunk),
                    None => return false,
                },
                Err(TrySendError::Full(())) => return true,
                // The end of the connection shows where its octets are read.
                Err(TrySendError::Closed(())) => return false,
            }
        }
    }

    /// Waits for the next thing to happen. Cancel-safe.
    async fn wait(&mut self, stop: &CancellationToken, is_full: bool) -> Wake {
        let timer = [self.machine.deadline(), self.machine.ack_due().filter(|_| !is_full)];
        let takes_data = self.machine.takes_data() && !is_full;
        let reads = self.stalled.is_none();
        let out = self
            .exchange
            .as_ref()
            .filter(|_| is_full)
            .map(|exchange| exchange.out().clone());
        let down = self
            .stalled
            .as_ref()
            .and_then(|(channel, _)| self.channels.get(channel))
            .map(|live| &live.down);
        tokio::select! {
            () = stop.cancelled() => Wake::Stop,
            Some(order) = self.orders.recv() => Wake::Order(order),
            input = next(&mut self.exchange), if reads => Wake::Input(input),
            dialled = dialled(&mut self.dialing) => Wake::Dialled(dialled),
            Some(upward) = self.upward.recv(), if takes_data => Wake::Upward(upward),
            () = room(out.as_ref()) => Wake::Again,
            () = room(down) => Wake::Again,
            () = until(timer.into_iter().flatten().min()) => Wake::Again,
        }
    }

    fn take(&mut self, wake: Wake) {
        let now = clock::now();
        match wake {
            Wake::Stop => self.machine.end(End::Closed),
            Wake::Order(Order::Raise { port, reply }) => self.raise(&port, reply),
            Wake::Order(Order::Used { port_name }) => {
                if self.ports.close(&port_name) {
                    self.machine.unlistened(&port_name);
                }
            }
            Wake::Upward(Upward::Data { channel, octets }) => self.machine.data_from(channel, octets),
            Wake::Upward(Upward::HalfClosed { channel }) => self.machine.half_close(channel),
            Wake::Upward(Upward::Closed { channel }) => {
                self.channels.remove(&channel);
                self.machine.lower(channel);
            }
            Wake::Input(Ok(octets)) => {
                if std::mem::take(&mut self.away) {
                    self.notify(Notice::ContactRegained);
                }
                self.input = octets;
            }
            Wake::Input(Err(finish)) => {
                self.hang_up();
                match finish {
                    Finish::Status(status) if !status.is_server_error() => {
                        self.machine.end(End::NotAdmitted {
                            status: status.as_u16(),
                        });
                    }
                    Finish::Status(_) | Finish::Broken => self.machine.disconnected(now),
                }
            }
            Wake::Dialled(Ok(exchange)) => {
                self.exchange = Some(exchange);
                self.machine.connected(now);
                self.machine.set_reading(self.stalled.is_none(), now);
            }
            Wake::Dialled(Err(cause)) => match cause {
                DialCause::Certificate(_) | DialCause::Known(_) | DialCause::Address(_) | DialCause::Setup(_) => {
                    self.machine.end(End::NotTrusted(cause.to_string()));
                }
                DialCause::Connect(_) | DialCause::TimedOut | DialCause::Handshake(_) => self.machine.disconnected(now),
            },
            Wake::Again => {}
        }
    }

    fn raise(&mut self, port: &Call, reply: oneshot::Sender<Result<Channel, RaiseFault>>) {
        let name = match port {
            Call::Name(name) => Some(name.as_str()).filter(|name| self.ports.is_open(name)),
            Call::Number(number) => self.ports.name_of(*number),
        };
        let Some(port_name) = name.map(str::to_owned) else {
            let _ = reply.send(Err(RaiseFault::NoPort));
            return;
        };
        let channel = self.machine.raise(&port_name);
        self.raising.insert(channel, Raising { port_name, reply });
    }

    fn notify(&self, notice: Notice) {
        // Words that nobody reads in time are lost; the tunnel does not wait for them.
        let _ = self.notices.try_send(notice);
    }
}

async fn next(exchange: &mut Option<Exchange>) -> Result<Bytes, Finish> {
    match exchange {
        Some(exchange) => exchange.next().await,
        None => std::future::pending().await,
    }
}

async fn dialled(dialing: &mut Option<Dialing>) -> Result<Exchange, DialCause> {
    let Some(attempt) = dialing else {
        return std::future::pending().await;
    };
    let outcome = attempt.await;
    *dialing = None;
    outcome
}

/// Waits until a queue has room, or nobody takes from it any more.
async fn room<T>(queue: Option<&mpsc::Sender<T>>) {
    match queue {
        Some(queue) => {
            let _ = queue.reserve().await;
        }
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Chunks that wait for one program to take them.
const DOWNWARD: usize = 32;
