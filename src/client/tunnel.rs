//! The client's side of the HTTPS tunnel.
//!
//! ```text
//! local program --TCP--> ports, channel --> driver (machine, window) --> exchange --TLS--> gateway --TCP--> desktop
//! ```
//!
//! [`machine`] decides and is pure; [`driver`] runs it over the [`exchange`]; [`ports`] and [`channel`] are the side of
//! the local programs. Only the codec of `crate::tunnel::https` is shared with the gateway: this is a second
//! implementation of the protocol, so that a wrong reading of it does not agree with itself.
//!
//! The published protocol has no half-close: a `lower` closes a channel for both directions. This client and this gateway
//! agree on one at the start of the tunnel. With a gateway that knows none, a program that shuts its sending side still
//! gets the whole answer, but the desktop is not told; one that waits for the end of the input waits for ever.

mod channel;
mod driver;
mod exchange;
mod machine;
mod ports;
#[cfg(test)]
mod simulation;
mod window;

use http::Uri;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub use self::channel::{Channel, ChannelSender, TunnelOver};
pub(super) use self::channel::{Upward, splice};
pub use self::driver::RaiseFault;
pub use self::machine::End;
pub use self::ports::Doors;

use self::driver::{Call, Driver, Order};
pub(super) use self::exchange::Exchange;
use self::machine::{Introduction, Machine};
use self::ports::{Ports, raise};
use super::endpoint::{Endpoint, InvalidEndpoint};
use super::random;
use super::tls::{DialCause, DialFault, Dialer};
use crate::clock;
use crate::types::Secret;
use crate::types::Thumbprint;

/// An open tunnel. Dropped, it is closed, and local connections with it.
#[derive(Debug)]
pub struct Tunnel {
    orders: mpsc::Sender<Order>,
    status: watch::Receiver<Status>,
    _open: DropGuard,
}

/// What happens to a tunnel that its user may want to know. Texts are fit for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Words of the gateway.
    Said(String),
    /// A local program was not connected to its desktop, with the gateway's words.
    Refused(String),
    /// The connection broke; it is being replaced.
    ContactLost,
    /// It is replaced, and nothing was lost.
    ContactRegained,
}

/// How far a tunnel is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Status {
    Opening,
    Ready,
    Ended(End),
}

/// Where a tunnel is opened and taken up again.
#[derive(Clone)]
pub(super) struct Place {
    endpoint: Endpoint,
    connection_id: Secret,
    /// The certificate of the gateway that named the place.
    sibling: Option<Thumbprint>,
}

impl Tunnel {
    /// Opens a tunnel over a fresh exchange and waits until it is ready.
    ///
    /// # Errors
    /// The gateway does not admit the tunnel, or does not make it ready in time.
    pub(super) async fn open(
        exchange: Exchange,
        dialer: Dialer,
        place: Place,
        doors: Doors,
        notices: mpsc::Sender<Notice>,
        tasks: &TaskTracker,
    ) -> Result<Self, End> {
        let introduction = Introduction {
            connection_id: place.connection_id.clone(),
            address: exchange.local().map(|local| local.ip().to_string()).unwrap_or_default(),
            host: String::new(),
            cid: format!("{:x}", random::seed()),
            clock: clock::wall().as_millisecond(),
            seed: random::seed(),
        };
        let machine = Machine::new(introduction, clock::now());
        let ports = Ports::new(doors);
        let (driver, ends) = Driver::new(machine, dialer, place, exchange, ports, notices, tasks.clone());
        let stop = CancellationToken::new();
        let tunnel = Self {
            orders: ends.orders,
            status: ends.status,
            _open: stop.clone().drop_guard(),
        };
        tasks.spawn(driver.run(stop));
        match tunnel.status(|status| *status != Status::Opening).await {
            Status::Opening | Status::Ready => Ok(tunnel),
            Status::Ended(end) => Err(end),
        }
    }

    /// Opens a channel to what stands behind a local port, without a connection to that port.
    ///
    /// # Errors
    /// The gateway does not open it, asked for no such port, or the tunnel is over.
    pub async fn raise(&self, port: u16) -> Result<Channel, RaiseFault> {
        raise(Call::Number(port), &self.orders).await
    }

    /// Waits until the tunnel is over and says why. Cancel-safe.
    pub async fn ended(&self) -> End {
        match self.status(|status| matches!(status, Status::Ended(_))).await {
            Status::Ended(end) => end,
            Status::Opening | Status::Ready => End::Closed,
        }
    }

    async fn status(&self, wanted: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.status.clone();
        let reached = status.wait_for(wanted).await.map(|status| status.clone());
        // A driver that is gone without a last word was stopped with its runtime.
        reached.unwrap_or(Status::Ended(End::Closed))
    }
}

impl Place {
    pub(super) fn new(endpoint: Endpoint, connection_id: Secret, sibling: Option<Thumbprint>) -> Self {
        Self {
            endpoint,
            connection_id,
            sibling,
        }
    }

    /// Connects for the first time.
    pub(super) async fn dial(&self, dialer: &Dialer, tasks: &TaskTracker) -> Result<Exchange, DialFault> {
        let fault = |cause| DialFault {
            endpoint: self.endpoint.clone(),
            cause,
        };
        let target = self.target("/ice/tunnel?", None).map_err(fault)?;
        self.open(dialer, target, tasks).await.map_err(fault)
    }

    fn resume_target(&self, secret: &Secret) -> Result<Uri, DialCause> {
        self.target("/ice/reconnect?", Some(secret))
    }

    /// The request target: credentials stand in it without escapes.
    fn target(&self, path: &str, secret: Option<&Secret>) -> Result<Uri, DialCause> {
        let id = self.connection_id.expose();
        let target = match secret {
            Some(secret) => format!("{path}{id}&{}", secret.expose()),
            None => format!("{path}{id}"),
        };
        target.parse().map_err(|_| DialCause::Address(InvalidEndpoint))
    }

    async fn open(&self, dialer: &Dialer, target: Uri, tasks: &TaskTracker) -> Result<Exchange, DialCause> {
        let (io, _) = dialer
            .dial(&self.endpoint, self.sibling)
            .await
            .map_err(|fault| fault.cause)?;
        let exchange = Exchange::open(io, &self.endpoint, target, tasks).await;
        exchange.map_err(|error| DialCause::Handshake(std::io::Error::other(error)))
    }
}

#[cfg(test)]
mod tests;
