//! The live tunnels of this node by their session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body::Body;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::actor::{Link, Tunnel};
use super::carrier::Carrier;
use super::lane::TunnelBody;
use super::session::{Limits, Terms};
use super::upload::upload;
use crate::clock;
use crate::config;
#[cfg(doc)]
use crate::fault::CloseReason;
use crate::fault::Refusal;
use crate::grant::{Granted, Randomness, Route, RouteId, SystemRandomness};
use crate::types::{Secret, SessionId};

/// The tunnels that live, at most one a session. Shared by all workers.
#[derive(Debug)]
pub struct Registry {
    tunnels: papaya::HashMap<SessionId, Handle>,
    serial: AtomicU64,
    drain: CancellationToken,
}

impl Registry {
    /// An empty registry. When `drain` is cancelled, its tunnels end as [`CloseReason::Drained`].
    pub fn new(drain: CancellationToken) -> Self {
        Self {
            tunnels: papaya::HashMap::new(),
            serial: AtomicU64::new(0),
            drain,
        }
    }

    /// Opens a tunnel; its connection has to carry it from here on.
    ///
    /// `connection_id` is the token under which the request was admitted; the client has to repeat it. The tunnel runs as
    /// a task of `tasks`, on the runtime of the caller. A tunnel that the session has already ends as
    /// [`CloseReason::Resumed`].
    pub fn open(
        self: &Arc<Self>,
        granted: Granted,
        connection_id: &str,
        settings: Settings,
        tasks: &TaskTracker,
    ) -> Carrier {
        let (entry, body) = upload();
        Carrier::new(entry, self.open_over(granted, connection_id, body, settings, tasks))
    }

    /// The same over any body of the client's; the result is the body of the response.
    pub(super) fn open_over<B>(
        self: &Arc<Self>,
        granted: Granted,
        connection_id: &str,
        body: B,
        settings: Settings,
        tasks: &TaskTracker,
    ) -> TunnelBody
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let id = granted.grant().id();
        let secret = draw_secret();
        let terms = Terms {
            connection_id: Secret::new(connection_id),
            reconnect_secret: secret.clone(),
            lost_contact: settings.lost_contact,
            reconnect_window: settings.reconnect_window,
            session_left: granted.grant().hard_end().saturating_duration_since(clock::now()),
            limits: settings.limits,
        };
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let shared = Arc::new(Shared::new(serial, secret));
        let (orders, inbox) = mpsc::channel(ORDERS);
        let (link, response) = Link::new(granted, body);
        let tunnel = Tunnel::new(terms, link, inbox, shared.clone(), self.drain.clone());
        if let Some(old) = self.tunnels.pin().insert(id, Handle { orders, shared }) {
            old.replace();
        }
        tasks.spawn(run(
            tunnel,
            Registration {
                registry: self.clone(),
                id,
                serial,
            },
        ));
        response
    }

    /// Has the session's tunnel go on over another connection, which has to carry it from here on.
    ///
    /// # Errors
    /// [`Refusal::NotResumable`] if there is no tunnel, it has not come that far, it is too busy to be asked, or `secret`
    /// is not its secret.
    pub fn resume(&self, granted: Granted, secret: &str) -> Result<Carrier, Refusal> {
        let (entry, body) = upload();
        Ok(Carrier::new(entry, self.resume_over(granted, secret, body)?))
    }

    /// The same over any body of the client's; the result is the body of the response.
    pub(super) fn resume_over<B>(&self, granted: Granted, secret: &str, body: B) -> Result<TunnelBody, Refusal>
    where
        B: Body<Data = Bytes> + Send + 'static,
    {
        let handle = self.get(granted.grant().id()).ok_or(Refusal::NotResumable)?;
        if !handle.shared.is_resumable() || handle.shared.secret != Secret::new(secret) {
            return Err(Refusal::NotResumable);
        }
        let (link, response) = Link::new(granted, body);
        // Not to be waited for: a tunnel takes its orders whatever else it waits for.
        let order = Order::Attach(Box::new(link));
        handle.orders.try_send(order).map_err(|_| Refusal::NotResumable)?;
        Ok(response)
    }

    /// Notes that the session's tunnel lives in another process of this node, until the answer is dropped; what is
    /// asked of the tunnel meanwhile comes out there. `None` if the session has one here.
    pub fn note_elsewhere(self: &Arc<Self>, session: SessionId) -> Option<Elsewhere> {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let mut shared = Shared::new(serial, draw_secret());
        shared.elsewhere = true;
        let (orders, inbox) = mpsc::channel(ORDERS);
        let handle = Handle {
            orders,
            shared: Arc::new(shared),
        };
        self.tunnels.pin().try_insert(session, handle).ok()?;
        let registration = Registration {
            registry: self.clone(),
            id: session,
            serial,
        };
        Some(Elsewhere { inbox, registration })
    }

    /// Whether the session has a tunnel, in another process of this node.
    pub fn lives_elsewhere(&self, session: SessionId) -> bool {
        let tunnels = self.tunnels.pin();
        tunnels.get(&session).is_some_and(|handle| handle.shared.elsewhere)
    }

    /// The sessions that have a tunnel, wherever it lives.
    pub fn sessions(&self) -> Vec<SessionId> {
        self.tunnels.pin().keys().copied().collect()
    }

    /// The session's tunnel.
    pub fn get(&self, session: SessionId) -> Option<Handle> {
        self.tunnels.pin().get(&session).cloned()
    }

    /// How many tunnels live.
    pub fn len(&self) -> usize {
        self.tunnels.len()
    }

    /// Whether none lives.
    pub fn is_empty(&self) -> bool {
        self.tunnels.is_empty()
    }
}

/// What a tunnel is opened with; a reload changes that of later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Silence after which a side gives the connection up.
    pub lost_contact: Duration,
    /// How long a tunnel waits without a connection.
    pub reconnect_window: Duration,
    /// Bounds of one tunnel.
    pub limits: Limits,
}

impl Settings {
    /// The settings of the configuration, with the usual bounds.
    pub fn of(tunnel: &config::Tunnel) -> Self {
        Self {
            lost_contact: tunnel.lost_contact,
            reconnect_window: tunnel.reconnect_window,
            limits: Limits::default(),
        }
    }
}

/// A live tunnel, for the control channel to list ports on.
#[derive(Clone, Debug)]
pub struct Handle {
    orders: mpsc::Sender<Order>,
    shared: Arc<Shared>,
}

impl Handle {
    /// Has the client listen on a local port for `route`, and says on which. Asked again for the same route, a port that
    /// was not used up is named again. Cancel-safe: the port stays, and is found by the next call.
    ///
    /// # Errors
    /// The client refuses or does not answer, the tunnel has too many ports, or is not there any more.
    pub async fn listen(&self, route: Arc<Route>, single_use: bool) -> Result<u16, ListenFault> {
        let (answer, port) = oneshot::channel();
        self.orders
            .send(Order::Listen {
                route,
                single_use,
                answer,
            })
            .await
            .map_err(|_| ListenFault::Gone)?;
        match tokio::time::timeout(LISTEN_LIMIT, port).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(ListenFault::Gone),
            Err(_) => Err(ListenFault::Timeout),
        }
    }

    /// Takes the ports of a route back and ends their channels.
    pub async fn unlisten(&self, route: RouteId) {
        // A tunnel that is gone has no ports.
        drop(self.orders.send(Order::Unlisten { route }).await);
    }

    /// Has the tunnel end, because its session has another one.
    pub fn replace(&self) {
        self.shared.replaced.store(true, Ordering::Release);
        // If the orders are full, the tunnel is about to look anyway.
        drop(self.orders.try_send(Order::Look));
    }
}

/// The place of a tunnel that lives in another process; the place is given back when it is dropped.
#[derive(Debug)]
pub struct Elsewhere {
    inbox: mpsc::Receiver<Order>,
    registration: Registration,
}

/// What is asked of a tunnel that lives in another process.
#[derive(Debug)]
pub enum Asked {
    /// To have the client listen for a route.
    Listen {
        /// The route.
        route: Arc<Route>,
        /// Whether the port is for one connection.
        single_use: bool,
        /// Told the port.
        answer: oneshot::Sender<Result<u16, ListenFault>>,
    },
    /// To take the ports of a route back.
    Unlisten {
        /// The route.
        route: RouteId,
    },
    /// To end, because the session has another tunnel.
    Replaced,
}

impl Elsewhere {
    /// Whose tunnel it is.
    pub fn session(&self) -> SessionId {
        self.registration.id
    }

    /// Waits for what is asked next; `None` when nothing more can be. Cancel-safe.
    pub async fn asked(&mut self) -> Option<Asked> {
        loop {
            match self.inbox.recv().await? {
                Order::Listen {
                    route,
                    single_use,
                    answer,
                } => {
                    return Some(Asked::Listen {
                        route,
                        single_use,
                        answer,
                    });
                }
                Order::Unlisten { route } => return Some(Asked::Unlisten { route }),
                Order::Look => return Some(Asked::Replaced),
                // Nobody attaches what has no secret that anyone knows.
                Order::Attach(_) => {}
            }
        }
    }
}

/// Why the client does not listen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ListenFault {
    /// The tunnel has ended.
    #[error("the tunnel is gone")]
    Gone,
    /// The client is not authenticated yet.
    #[error("the tunnel is not ready")]
    NotReady,
    /// The tunnel has as many ports as it may have.
    #[error("the tunnel has too many ports")]
    TooMany,
    /// The client did not answer in time.
    #[error("the client did not answer in time")]
    Timeout,
    /// The client could not listen.
    #[error("the client could not listen: {words}")]
    Refused {
        /// The client's words.
        words: String,
    },
}

/// What others ask of a tunnel's task.
#[derive(Debug)]
pub(super) enum Order {
    Listen {
        route: Arc<Route>,
        single_use: bool,
        answer: oneshot::Sender<Result<u16, ListenFault>>,
    },
    Unlisten {
        route: RouteId,
    },
    Attach(Box<Link>),
    /// See what was [`Shared`].
    Look,
}

/// What a tunnel's task and its handles both see.
#[derive(Debug)]
pub(super) struct Shared {
    serial: u64,
    secret: Secret,
    resumable: AtomicBool,
    replaced: AtomicBool,
    /// It is the place of a tunnel of another process.
    elsewhere: bool,
}

impl Shared {
    fn new(serial: u64, secret: Secret) -> Self {
        Self {
            serial,
            secret,
            resumable: AtomicBool::new(false),
            replaced: AtomicBool::new(false),
            elsewhere: false,
        }
    }

    pub(super) fn set_resumable(&self, resumable: bool) {
        self.resumable.store(resumable, Ordering::Release);
    }

    pub(super) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    fn is_resumable(&self) -> bool {
        self.resumable.load(Ordering::Acquire) && !self.is_replaced()
    }
}

/// A tunnel's place in the registry, given back whatever becomes of its task.
#[derive(Debug)]
struct Registration {
    registry: Arc<Registry>,
    id: SessionId,
    serial: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let tunnels = self.registry.tunnels.pin();
        // Another one may have its place already.
        let _ = tunnels.remove_if(&self.id, |_, handle| handle.shared.serial == self.serial);
    }
}

async fn run(mut tunnel: Tunnel, registration: Registration) {
    let opened = clock::now();
    let reason = (&mut tunnel).await;
    let tally = tunnel.tally();
    drop(tunnel);
    tracing::info!(
        session = %registration.id,
        reason = reason.code(),
        bytes_in = tally.octets_in,
        bytes_out = tally.octets_out,
        channels = tally.channels,
        reconnects = tally.reconnects,
        seconds = clock::now().saturating_duration_since(opened).as_secs(),
        "tunnel closed"
    );
}

fn draw_secret() -> Secret {
    let mut bits = [0; 16];
    SystemRandomness.fill(&mut bits);
    Secret::new(URL_SAFE_NO_PAD.encode(bits))
}

/// Orders that wait for a tunnel's task.
const ORDERS: usize = 8;
/// How long a client has to open a port.
const LISTEN_LIMIT: Duration = Duration::from_secs(10);
