//! Step 7 for the web: a request goes to a target of its rule's pool, and the answer comes back.
//!
//! [`Published`] is what one configuration makes of it, immutable and swapped whole; [`Publisher`] is what outlives
//! configurations. [`Publisher::serve`] takes one request from its rule to its line in the access log; the parts that it
//! is made of are pure, each in a module of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::config::web::Web;
use crate::config::{Config, Listener};
use crate::inspect::guard::{Networks, Rates};
use crate::observe::access::{AccessLog, AccessLogFault};
use crate::route::web::{Owner, Table};
use crate::types::{Authority, Secret};
use crate::upstream::probe::{Reach, Reached, TlsFacts, Unreached, Way};
use crate::upstream::web::{BackendFault, Backends};
use crate::upstream::{Fittings, Home, Pools, PoolsView};

pub mod affinity;
pub mod authentication;
pub mod error_page;
pub mod forward;
pub mod headers;
mod lane;
pub mod location;
pub mod path;
mod record;
pub mod rewrite;
mod serve;

#[cfg(test)]
mod heads;

use affinity::AffinityKey;
use error_page::{ErrorPages, UnreadablePage};
use lane::{Cookies, Grounds};
pub use record::Record;
pub use serve::{Arrival, Departed, Ended};

/// What outlives configurations: pools, counts and the access log.
#[derive(Debug)]
pub struct Publisher {
    pools: Pools,
    rates: Rates,
    access_log: AccessLog,
    /// For affinity without a key of the configuration.
    drawn_key: Arc<AffinityKey>,
    tasks: TaskTracker,
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
            access_log: AccessLog::start(&config.web.access_log, config.node.name.as_str())?,
            drawn_key: Arc::new(AffinityKey::new(affinity)),
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
            grounds.push(Grounds::new(site, web, &backends, &pages).map_err(PublishFault::Page)?);
        }
        Ok(Published {
            table,
            grounds,
            backends,
            cookies: Arc::new(Cookies::new(web, key)),
            pages,
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
    /// For requests that no rule is for.
    pages: ErrorPages,
    trusted: Networks,
    listeners: BTreeMap<String, Listener>,
    web: Web,
}

impl Published {
    /// Whose a request is: see [`Table::owner`].
    pub fn owner(&self, listener: &str, host: &Authority, path: &str) -> Owner<'_> {
        self.table.owner(listener, &host.host, path)
    }

    /// Whether nothing is published.
    pub fn is_empty(&self) -> bool {
        self.grounds.is_empty()
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
            let connector = self.0.way(way.backend.as_deref()).connector();
            let name = connector.name(&way.host);
            match connector.connect(way.address, name).await {
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
