//! What a rule needs to serve requests, made once for each configuration.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::affinity::{Affinity, AffinityKey, AffinityValue};
use super::error_page::{ErrorPages, UnreadablePage};
use super::forward::Limits;
use super::path::TargetHost;
use super::rewrite::Set;
use crate::config::web::{Action, Backend, Forward, ForwardAuthentication, Web};
use crate::inspect::guard::Guard;
use crate::observe::traffic::{Exchanges, Requests, Traffic};
use crate::route::web::Site;
use crate::types::{ServerVariable, Variable};
use crate::upstream::web::{Backends, Way};
use crate::upstream::{Derive, TargetId};

/// What belongs to one site.
#[derive(Debug)]
pub(super) struct Grounds {
    pub(super) requests: Arc<Requests>,
    pub(super) guard: Guard,
    /// The rule's own.
    pub(super) pages: ErrorPages,
    /// Whether anything is told of the size of requests.
    pub(super) measures: bool,
    /// The way to the service that is asked whether a request may go on.
    pub(super) service: Option<Arc<Lane>>,
    /// By path rule, the site's own last; `None` where the action is a redirect.
    lanes: Vec<Option<Arc<Lane>>>,
}

impl Grounds {
    /// Prepares a site. Blocks on the file system.
    pub(super) fn new(site: &Site, web: &Web, backends: &Backends, traffic: &Traffic) -> Result<Self, UnreadablePage> {
        let rule = &site.rule;
        // Thousands of paths of a rule lead to a few pools.
        let mut made: HashMap<Forward, Arc<Lane>> = HashMap::new();
        let mut lane = |forward: &Forward| {
            let make = || Arc::new(Lane::new(forward, rule.max_body, (web, backends), traffic));
            made.entry(forward.clone()).or_insert_with(make).clone()
        };
        let actions = rule.paths.iter().map(|path| &path.action).chain([&rule.action]);
        let lanes: Vec<_> = actions
            .map(|action| match action {
                Action::Forward(forward) => Some(lane(forward)),
                Action::Redirect(_) => None,
            })
            .collect();
        let size = Variable::Server(ServerVariable::ReceivedBytes);
        let mut sets = lanes
            .iter()
            .flatten()
            .filter_map(|lane| web.rewrites.get(lane.forward.rewrite.as_ref()?));
        Ok(Self {
            requests: traffic.rule(&site.name),
            measures: sets.any(|set| set.uses(&size)),
            lanes,
            guard: Guard::compile(&site.name, &rule.guard),
            pages: ErrorPages::read(&rule.error_pages)?,
            service: rule.guard.authentication.as_ref().map(|service| lane(&way_of(service))),
        })
    }

    /// The lane of a path rule, or of the rule itself.
    pub(super) fn lane(&self, path: Option<usize>) -> Option<&Arc<Lane>> {
        let number = path.unwrap_or(self.lanes.len().saturating_sub(1));
        self.lanes.get(number)?.as_ref()
    }
}

fn way_of(service: &ForwardAuthentication) -> Forward {
    Forward {
        pool: service.pool.clone(),
        backend: service.backend.clone(),
        rewrite: None,
    }
}

/// The way of requests to one pool.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) forward: Forward,
    pub(super) way: Arc<Way>,
    pub(super) set: Option<Arc<Set>>,
    pub(super) host: TargetHost,
    pub(super) limits: Limits,
    pub(super) exchanges: Arc<Exchanges>,
}

impl Lane {
    fn new(forward: &Forward, max_body: Option<u64>, (web, backends): (&Web, &Backends), traffic: &Traffic) -> Self {
        let way = backends.way(forward.backend.as_deref()).clone();
        let settings = way.settings();
        let set = forward.rewrite.as_ref().and_then(|name| web.rewrites.get(name));
        Self {
            forward: forward.clone(),
            exchanges: traffic.pool(&forward.pool),
            set: set.map(|rewrite| Arc::new(Set::new(rewrite))),
            // The configuration was checked: a name can stand in a field.
            host: TargetHost::new(&settings.host).unwrap_or(TargetHost::Client),
            limits: Limits {
                request: settings.request_timeout,
                idle: settings.idle_timeout,
                max_body,
                gather_answers: settings.buffer_responses,
            },
            way,
        }
    }

    /// The backend's name.
    pub(super) fn backend(&self) -> Option<&str> {
        self.forward.backend.as_deref()
    }
}

/// Makes of a pool's targets what their cookies mean.
#[derive(Debug)]
pub(super) struct Cookies {
    backends: BTreeMap<String, Backend>,
    key: Arc<AffinityKey>,
}

impl Cookies {
    pub(super) fn new(web: &Web, key: Arc<AffinityKey>) -> Self {
        Self {
            backends: web.backends.clone(),
            key,
        }
    }

    /// What the cookie of a target says. The backend is part of the target's name.
    pub(super) fn value(&self, target: &TargetId) -> AffinityValue {
        self.key.value(target.as_str(), "")
    }
}

impl Derive for Cookies {
    fn derive(
        &self,
        _pool: &str,
        backend: Option<&str>,
        targets: &mut dyn Iterator<Item = &TargetId>,
    ) -> Box<dyn Any + Send + Sync> {
        let backend = backend.and_then(|name| self.backends.get(name));
        match backend.and_then(|backend| backend.affinity.as_ref()) {
            Some(settings) => {
                let targets = targets.map(|target| (self.value(target), target.clone()));
                Box::new(Affinity::new(settings, targets))
            }
            None => Box::new(()),
        }
    }
}
