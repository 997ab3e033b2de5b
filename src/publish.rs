//! Step 7 for the web: a request goes to a target of its rule's pool, and the answer comes back.
//!
//! [`Published`] is what one configuration makes of it, immutable and swapped whole; [`Publisher`] is what outlives
//! configurations. [`Publisher::serve`] takes one request from its rule to its line in the access log; the parts that it
//! is made of are pure, each in a module of its own.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::web::{Action, Web};
use crate::config::{Config, Listener};
use crate::inspect::guard::{Networks, Rates};
use crate::observe::access::{AccessLog, AccessLogFault};
use crate::observe::traffic::Traffic;
use crate::route::web::{Owner, Table};
use crate::types::{Authority, Secret};
use crate::upstream::probe::{Reach, Reached, TlsFacts, Unreached, Way};
use crate::upstream::web::{BackendFault, Backends};
use crate::upstream::{Census, Fittings, Home, Pools, PoolsView};

pub mod affinity;
pub mod authentication;
mod compress;
pub mod error_page;
pub mod forward;
pub mod headers;
mod lane;
pub mod location;
mod passage;
mod passages;
pub mod path;
mod record;
pub mod rewrite;
mod serve;

#[cfg(test)]
mod heads;

use affinity::AffinityKey;
use error_page::{ErrorPages, UnreadablePage};
use lane::{Cookies, Grounds};
pub use passage::{Joined, Led};
pub use passages::{Course, Passages, PassagesView};
pub use record::Record;
pub use serve::{Arrival, Departed, Ended};

/// What outlives configurations: pools, counts and the access log.
#[derive(Debug)]
pub struct Publisher {
    pools: Pools,
    rates: Rates,
    passages: Passages,
    access_log: AccessLog,
    traffic: Traffic,
    /// For affinity without a key of the configuration.
    drawn_key: Arc<AffinityKey>,
    tasks: TaskTracker,
    /// Cancelled at the end of the node.
    over: CancellationToken,
}

impl Publisher {
    /// A publisher with nothing published yet. `affinity` is the key of affinity where none is configured. Blocks on the
    /// file system.
    ///
    /// # Errors
    /// The access log cannot be opened.
    pub fn new(config: &Config, home: Home, seed: u64, affinity: &Secret) -> Result<Self, AccessLogFault> {
        Ok(Self {
            tasks: home.tasks.clone(),
            pools: Pools::new(home, seed),
            rates: Rates::default(),
            passages: Passages::default(),
            access_log: AccessLog::start(&config.web.access_log, config.node.name.as_str())?,
            traffic: Traffic::default(),
            drawn_key: Arc::new(AffinityKey::new(affinity)),
            over: CancellationToken::new(),
        })
    }

    /// What a configuration publishes. Nothing is in force yet. `before` is what was in force; its connections are kept
    /// where nothing changed that they depend on. Blocks on the file system.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn load(&self, config: &Config, before: Option<&Published>, now: Timestamp) -> Result<Published, PublishFault> {
        let web = &config.web;
        let before = before.map(|before| &*before.backends);
        let backends = Backends::load(&web.backends, &config.certificates, before, now, &self.tasks);
        let backends = Arc::new(backends.map_err(PublishFault::Backends)?);
        let table = Table::compile(&config.listeners, &web.rules);
        let pages = ErrorPages::read(&web.error_pages).map_err(PublishFault::Page)?;
        let key = match &web.affinity_key {
            Some(secret) => Arc::new(AffinityKey::new(secret)),
            None => self.drawn_key.clone(),
        };
        let mut grounds = Vec::with_capacity(table.sites().len());
        for site in table.sites() {
            grounds.push(Grounds::new(site, web, &backends, &self.traffic).map_err(PublishFault::Page)?);
        }
        let mut pages_by_listener = HashMap::new();
        for (name, listener) in config.listeners.iter().filter(|(_, it)| !it.error_pages.is_empty()) {
            let own = ErrorPages::read(&listener.error_pages).map_err(PublishFault::Page)?;
            pages_by_listener.insert(name.as_str().into(), own.over(&pages));
        }
        Ok(Published {
            table,
            grounds,
            backends,
            cookies: Arc::new(Cookies::new(web, key)),
            pages,
            pages_by_listener,
            trusted: Networks::new(&web.forwarded.trusted),
            listeners: config.listeners.clone(),
            web: web.clone(),
        })
    }

    /// Makes pools, probes and the access log those of what is published. Requests can go on to follow what was in force,
    /// until [`retire`](Self::retire).
    pub fn apply(&self, published: &Published, now: Instant) {
        let fittings = Fittings {
            reach: Arc::new(Reaching(published.backends.clone())),
            derive: published.cookies.clone(),
        };
        self.pools.apply(&published.web, &fittings, now);
        self.passages.apply(published.courses());
        if let Err(fault) = self.access_log.apply(&published.web.access_log) {
            tracing::error!(%fault, "the access log stays where it was");
        }
    }

    /// Waits until every name of a target was asked for once, for a moment at most. Cancel-safe.
    pub async fn settle(&self) {
        // A name that takes longer has no addresses until it has.
        let _ = timeout(SETTLE, self.pools.settle()).await;
    }

    /// Drains what is no longer published; to be called once no new request follows what was in force.
    pub fn retire(&self, now: Instant) {
        self.pools.retire(now);
        self.passages.retire(now);
        self.traffic.forget();
    }

    /// Cuts the passages whose way has gone and whose time is over. To be called every second or so.
    pub fn sweep(&self, now: Instant) {
        self.passages.sweep(now);
    }

    /// Ends what might never end by itself, passages and WebSockets, at the end of the node.
    pub fn end_all(&self) {
        self.passages.end_all();
        self.over.cancel();
    }

    /// Whether any request, WebSocket or passage is with its target.
    pub fn is_in_use(&self) -> bool {
        self.pools.is_in_use()
    }

    /// The passages.
    pub fn passages(&self) -> &Passages {
        &self.passages
    }

    /// The counts of requests.
    pub fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    /// The access log.
    pub fn access_log(&self) -> &AccessLog {
        &self.access_log
    }

    /// Visits every count that only grows, with the words and names for it.
    pub fn each_count(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        self.traffic.each(&mut visit);
        self.passages.each(&mut visit);
        visit(&["access log"], self.access_log.dropped_count());
    }

    /// How many targets each pool has in which condition.
    pub fn census(&self, now: Instant) -> Vec<Census> {
        self.pools.census(now)
    }

    /// How the pools stand.
    pub fn pools(&self, now: Instant) -> PoolsView {
        self.pools.view(now)
    }
}

/// What one configuration publishes.
#[derive(Debug)]
pub struct Published {
    table: Table,
    /// What belongs to each site, by its index.
    grounds: Vec<Grounds>,
    backends: Arc<Backends>,
    cookies: Arc<Cookies>,
    /// Where neither the rule nor the listener has any.
    pages: ErrorPages,
    /// Of the listeners that have their own, with the general ones behind them.
    pages_by_listener: HashMap<Box<str>, ErrorPages>,
    trusted: Networks,
    listeners: BTreeMap<String, Listener>,
    web: Web,
}

impl Published {
    /// Whose a request is: see [`Table::owner`].
    pub fn owner(&self, listener: &str, host: &Authority, path: &str) -> Owner<'_> {
        self.table.owner(listener, &host.host, path)
    }

    /// The pages for requests that came to that listener.
    fn pages(&self, listener: &str) -> &ErrorPages {
        self.pages_by_listener.get(listener).unwrap_or(&self.pages)
    }

    /// Whether nothing is published.
    pub fn is_empty(&self) -> bool {
        self.grounds.is_empty()
    }

    /// Where passages come in and lead, each with its time to drain.
    fn courses(&self) -> impl Iterator<Item = (Course, Duration)> {
        let of_bytes = move |name: &&String| self.listeners.get(*name).is_some_and(|it| !it.protocol.is_http());
        self.web.rules.values().flat_map(move |rule| {
            let forward = match &rule.action {
                Action::Forward(forward) => Some(forward),
                Action::Redirect(_) => None,
            };
            let listeners = rule.listeners.iter().filter(of_bytes);
            listeners.filter_map(move |listener| {
                let (pool, backend) = (forward?.pool.as_str(), forward?.backend.as_deref()?);
                let course = Course {
                    listener: listener.as_str().into(),
                    pool: pool.into(),
                    backend: backend.into(),
                };
                Some((course, self.web.backends.get(backend)?.drain))
            })
        })
    }

    /// Closes all connections to targets that wait, at the end of the node. Requests that run go on.
    pub fn close(&self) {
        self.backends.close();
    }

    /// Closes connections to targets that nobody needs. To be called every few seconds.
    pub fn sweep(&self, now: Instant) {
        self.backends.sweep(now);
    }
}

/// Why a configuration cannot be put in force.
#[derive(Debug, thiserror::Error)]
pub enum PublishFault {
    /// Files of backends.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Backends(Vec<BackendFault>),
    /// An error page.
    #[error(transparent)]
    Page(UnreadablePage),
}

/// Probes reach targets as requests do.
struct Reaching(Arc<Backends>);

impl fmt::Debug for Reaching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reaching").finish_non_exhaustive()
    }
}

impl Reach for Reaching {
    fn reach<'a>(&'a self, way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>> {
        Box::pin(async move {
            match self
                .0
                .way(way.backend.as_deref())
                .dial(way.address, &way.host, None)
                .await
            {
                Ok(io) => Ok(Reached {
                    tls: io.tls().map(|tls| TlsFacts {
                        version: tls
                            .version
                            .and_then(|version| version.as_str())
                            .unwrap_or("unknown")
                            .to_owned(),
                        suite: tls
                            .suite
                            .and_then(|suite| suite.as_str())
                            .unwrap_or("unknown")
                            .to_owned(),
                        not_after: tls.not_after,
                    }),
                    io: Box::new(io),
                }),
                Err(fault) => Err(Unreached {
                    code: fault.code(),
                    words: fault.to_string(),
                    is_timeout: fault.is_timeout(),
                }),
            }
        })
    }
}

/// For names to be asked for, before a configuration is put in force.
const SETTLE: Duration = Duration::from_secs(2);
