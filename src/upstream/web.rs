//! The ways to the targets of the web: how each backend is spoken to, and its connections.
//!
//! [`Way::lease`] gives a connection to an address: one that waits, or a new one. [`Leased::ask`] begins an exchange on
//! it; once the exchange is over the connection waits again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use rustls::sign::CertifiedKey;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::connect::{ConnectFault, Connector, Io, TrustFault, Trusted};
use super::lanes::Lanes;
use crate::clock;
use crate::config::Certificate;
use crate::config::web::{Backend, BackendTls, BackendVersion};
use crate::listen::proxy;
use crate::secure::{LoadFault, own_certificate};
use crate::wire::h1::client as h1;
use crate::wire::h2;

mod budget;
mod exchange;
mod shared;

pub use budget::Budget;
pub use exchange::{Exchange, Leased, Own};

use exchange::{Connection, Home, HomePlace};
use shared::Shared;

/// The ways of one configuration.
#[derive(Debug)]
pub struct Backends {
    ways: BTreeMap<String, Arc<Way>>,
    /// For rules that name no backend.
    standard: Arc<Way>,
}

impl Backends {
    /// Those of a configuration. Connections of `before` are kept where nothing changed that they depend on. Blocks on the
    /// file system.
    ///
    /// `tasks` drives the connections of HTTP/2.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn load(
        backends: &BTreeMap<String, Backend>,
        certificates: &BTreeMap<String, Certificate>,
        before: Option<&Self>,
        now: Timestamp,
        tasks: &TaskTracker,
    ) -> Result<Self, Vec<BackendFault>> {
        let mut ways = BTreeMap::new();
        let mut faults = Vec::new();
        for (name, settings) in backends {
            let former = before.and_then(|before| before.ways.get(name));
            match Way::load(name, settings, certificates, now, tasks) {
                Ok(way) => _ = ways.insert(name.clone(), Arc::new(way.after(former))),
                Err(fault) => faults.extend(fault),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let standard = match before {
            Some(before) => before.standard.clone(),
            None => Arc::new(Way::of(Backend::default(), None, None, tasks)),
        };
        Ok(Self { ways, standard })
    }

    /// The way of a backend; that of the standard backend for `None`, and for a name that is none.
    pub fn way(&self, backend: Option<&str>) -> &Arc<Way> {
        backend.and_then(|name| self.ways.get(name)).unwrap_or(&self.standard)
    }

    /// Closes connections that waited for too long or that the target closed. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        for way in self.all() {
            way.lanes
                .sweep(now, |idle| idle.io().is_quiet(), |shared| shared.sweep(now, IDLE));
        }
    }

    /// Closes all connections that wait. Exchanges go on; what they use is closed after them, or waits until the next
    /// sweep.
    pub fn close(&self) {
        for way in self.all() {
            way.lanes.clear(Shared::clear);
        }
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Way>> {
        self.ways.values().chain([&self.standard])
    }
}

/// The way to the targets of one backend.
#[derive(Debug)]
pub struct Way {
    settings: Backend,
    trusted: Option<Trusted>,
    connector: Connector,
    /// For WebSockets that a target does not take over HTTP/2, and for connections that belong to one client.
    connector_of_http1: Connector,
    lanes: Arc<Lanes<h1::Connection<Io>, Shared>>,
    budget: Arc<Budget>,
    tasks: TaskTracker,
}

/// What a connection is wanted for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted<'a> {
    /// `Host` of the request, by which the target is asked for its certificate unless the configuration gives a name.
    pub host: &'a str,
    /// Whether the request is for a WebSocket, which not every target takes over HTTP/2.
    pub upgrade: bool,
    /// The client's own connection: if it does not lead there, it becomes one that does.
    pub own: Option<&'a Own>,
}

impl Way {
    /// The way that `settings` describe; `name` is theirs, for faults. Blocks on the file system.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn load(
        name: &str,
        settings: &Backend,
        certificates: &BTreeMap<String, Certificate>,
        now: Timestamp,
        tasks: &TaskTracker,
    ) -> Result<Self, Vec<BackendFault>> {
        let Some(tls) = &settings.tls else {
            return Ok(Self::of(settings.clone(), None, None, tasks));
        };
        let own = own_key(tls, certificates, now)?;
        let trusted = |http2: bool| {
            Trusted::load(tls, own.clone(), http2).map_err(|fault| {
                vec![BackendFault::Trust {
                    backend: name.to_owned(),
                    fault,
                }]
            })
        };
        let of_http2 = match settings.version {
            BackendVersion::Http1 | BackendVersion::Bytes => None,
            BackendVersion::Http2 => Some(trusted(true)?),
        };
        Ok(Self::of(settings.clone(), Some(trusted(false)?), of_http2, tasks))
    }

    /// How targets are spoken to.
    pub fn settings(&self) -> &Backend {
        &self.settings
    }

    /// How connections come about.
    pub fn connector(&self) -> &Connector {
        &self.connector
    }

    /// A new connection that nobody shares. Where the backend wants that, the target is told of the `client` and of the
    /// address to which it came; without one, that this node speaks for itself.
    ///
    /// Cancel-safe: a connection that is not complete is given up.
    ///
    /// # Errors
    /// No connection came about. Nothing of a client was sent, so that another target can be asked.
    pub async fn dial(
        &self,
        address: SocketAddr,
        host: &str,
        client: Option<(SocketAddr, SocketAddr)>,
    ) -> Result<Io, ConnectFault> {
        let header = if self.settings.proxy_protocol {
            proxy::encode(client)
        } else {
            Vec::new()
        };
        let name = self.connector.name(host);
        self.connector.connect_saying(&header, address, name).await
    }

    /// Further tries.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A connection to a target, asked for at `now`: one that waits, or a new one.
    ///
    /// Cancel-safe: a connection that is not complete is given up, unless others wait for it.
    ///
    /// # Errors
    /// No connection came about. Nothing was sent, so that another target can be asked.
    pub async fn lease(&self, address: SocketAddr, wanted: Wanted<'_>, now: Instant) -> Result<Leased, ConnectFault> {
        let name = self.connector.name(wanted.host);
        // What may have to connect is in a box of its own: a connection that waits is the rule, and has no room for it.
        if let Some(own) = wanted.own {
            return Box::pin(self.own(address, name, own)).await;
        }
        if self.settings.version == BackendVersion::Http2 {
            let shared = Box::pin(self.share(address, name, now)).await?;
            if !wanted.upgrade || self.takes_websockets(&shared).await? {
                return Ok(shared);
            }
        }
        let lane = self.lanes.to(address);
        let idle = lane.take(name, now, |idle| idle.io().is_quiet());
        let reused = idle.is_some();
        let (connection, name, since) = match idle {
            Some((connection, name)) => (connection, name, now),
            None => {
                let io = Box::pin(self.connector_of_http1.connect(address, name)).await?;
                (h1::Connection::new(io), name.map(Arc::from), clock::now())
            }
        };
        Ok(Leased {
            connection: Connection::Http1(connection),
            home: Home {
                name,
                place: HomePlace::Lane(lane),
            },
            address,
            reused,
            since,
        })
    }

    /// Connections of HTTP/1.1 that wait.
    #[cfg(test)]
    pub(crate) fn idle(&self) -> usize {
        self.lanes.idle()
    }

    async fn own(&self, address: SocketAddr, name: Option<&str>, own: &Own) -> Result<Leased, ConnectFault> {
        let fitting = own
            .take()
            .filter(|owned| owned.address == address && owned.name.as_deref() == name);
        let quiet = fitting.and_then(|mut owned| owned.connection.io().is_quiet().then_some(owned.connection));
        let reused = quiet.is_some();
        let connection = match quiet {
            Some(connection) => connection,
            None => h1::Connection::new(self.connector_of_http1.connect(address, name).await?),
        };
        Ok(Leased {
            connection: Connection::Http1(connection),
            home: Home {
                name: name.map(Arc::from),
                place: HomePlace::Own(own.clone()),
            },
            address,
            reused,
            since: clock::now(),
        })
    }

    async fn share(&self, address: SocketAddr, name: Option<&str>, now: Instant) -> Result<Leased, ConnectFault> {
        let lane = self.lanes.to(address);
        let (slot, place) = lane.shared.slot(name, now);
        let reused = slot.cell.initialized();
        let made = slot.cell.get_or_init(|| async {
            let io = self.connector.connect(address, name).await?;
            let started = h2::Connection::start(io, self.connector.is_tls(), slot.load.clone(), &self.tasks);
            started.await.map_err(|_| ConnectFault::System)
        });
        let connection = made.await.clone()?;
        Ok(Leased {
            connection: Connection::Http2(connection, place),
            home: Home {
                name: None,
                place: HomePlace::Lane(lane),
            },
            address,
            reused,
            since: clock::now(),
        })
    }

    async fn takes_websockets(&self, shared: &Leased) -> Result<bool, ConnectFault> {
        let Connection::Http2(connection, _) = &shared.connection else {
            return Ok(false);
        };
        timeout(self.settings.connect_timeout, connection.takes_websockets())
            .await
            .map_err(|_| ConnectFault::Timeout)
    }

    fn of(settings: Backend, trusted: Option<Trusted>, of_http2: Option<Trusted>, tasks: &TaskTracker) -> Self {
        let limit = settings.connect_timeout;
        let name = settings.tls.as_ref().and_then(|tls| tls.name.as_deref());
        let connector = |trusted: Option<Trusted>| match trusted {
            Some(trusted) => Connector::tls(limit, trusted, name),
            None => Connector::plain(limit),
        };
        let connector_of_http1 = connector(trusted.clone());
        Self {
            connector: match of_http2 {
                Some(trusted) => connector(Some(trusted)),
                None => connector_of_http1.clone(),
            },
            connector_of_http1,
            lanes: Arc::new(Lanes::new()),
            budget: Arc::new(Budget::new(settings.retries.budget_percent)),
            tasks: tasks.clone(),
            trusted,
            settings,
        }
    }

    /// The same with the connections of the former way, if those could be its own.
    fn after(mut self, former: Option<&Arc<Self>>) -> Self {
        let Some(former) = former else {
            return self;
        };
        let as_trusted = match (&self.trusted, &former.trusted) {
            (Some(trusted), Some(formerly)) => trusted.is_as_read(formerly),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        if as_trusted && self.settings.tls == former.settings.tls && self.settings.version == former.settings.version {
            self.lanes = former.lanes.clone();
        }
        if self.settings.retries == former.settings.retries {
            self.budget = former.budget.clone();
        }
        self
    }
}

fn own_key(
    tls: &BackendTls,
    certificates: &BTreeMap<String, Certificate>,
    now: Timestamp,
) -> Result<Option<Arc<CertifiedKey>>, Vec<BackendFault>> {
    let Some(name) = &tls.certificate else {
        return Ok(None);
    };
    match own_certificate(name, certificates.get(name), now) {
        Ok(key) => Ok(Some(key)),
        Err(faults) => Err(faults.into_iter().map(BackendFault::Certificate).collect()),
    }
}

/// Why the targets of a backend cannot be reached at all.
#[derive(Debug, thiserror::Error)]
pub enum BackendFault {
    /// What they have to prove.
    #[error("backend `{backend}`: {fault}")]
    Trust {
        /// Its name.
        backend: String,
        /// What is wrong.
        fault: TrustFault,
    },
    /// What this node shows them.
    #[error(transparent)]
    Certificate(LoadFault),
}

/// As for connections of HTTP/1.1.
const IDLE: Duration = Duration::from_secs(55);

#[cfg(test)]
mod tests;
