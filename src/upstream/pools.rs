//! Every pool of the configuration, with the names and the probes that it needs.
//!
//! A configuration is put in force as a whole by [`Pools::apply`]; targets that it does not change keep all that is known
//! of them, their requests and their clients. Requests ask for a pool once and pick from it; nothing that happens here
//! makes them wait.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep_until;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::balance::Dice;
use super::pool::{Cause, Census, Condition, Derive, Placed, Pool, PoolView, Settings, TargetId};
use super::probe::{Check, Reach, Recipe, keep_watch};
use super::resolve::{Ask, Name, NameView, Servers, follow};
use crate::clock;
use crate::config::web::{self, Action, Backend, BackendHost, PoolTarget, Web};

/// The pools of a node.
#[derive(Debug)]
pub struct Pools {
    shared: Arc<Shared>,
    /// Ends the tasks when the pools are dropped.
    _stop: DropGuard,
}

/// Where the pools' tasks run.
#[derive(Clone, Debug)]
pub struct Home {
    /// The runtime.
    pub runtime: Handle,
    /// Counts them.
    pub tasks: TaskTracker,
    /// Ends them.
    pub stopping: CancellationToken,
}

/// What a configuration's pools need beside it.
#[derive(Clone, Debug)]
pub struct Fittings {
    /// Connects probes to targets.
    pub reach: Arc<dyn Reach>,
    /// Makes of the targets what clients are looked up in.
    pub derive: Arc<dyn Derive>,
}

struct Shared {
    home: Home,
    /// The pools by name; those of one name have different backends.
    found: ArcSwap<HashMap<String, Vec<Arc<Pool>>>>,
    /// Tells of names' first answers.
    answered: watch::Sender<()>,
    inner: Mutex<Inner>,
}

/// Everything that changes with the configuration and the names.
struct Inner {
    whom: watch::Sender<Arc<dyn Ask>>,
    servers: Option<Vec<SocketAddr>>,
    pools: HashMap<Key, Used>,
    /// Those that the configuration applied last uses.
    wanted: BTreeSet<Key>,
    /// Pools that are no longer used, until they are drained.
    leaving: Vec<Arc<Pool>>,
    names: HashMap<Arc<str>, Followed>,
    checks: HashMap<CheckKey, Watched>,
    /// When the next drain is over, and the task that sees to it.
    ending: Option<(Instant, DropGuard)>,
    dice: Dice,
}

/// A pool and the backend by which it is spoken to; `None` is the default one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Key {
    pool: String,
    backend: Option<String>,
}

/// A pool that a rule uses.
struct Used {
    pool: Arc<Pool>,
    settings: Settings,
    targets: Vec<PoolTarget>,
    backend: Arc<Backend>,
    probe: Arc<web::Probe>,
    reach: Arc<dyn Reach>,
}

struct Followed {
    known: Arc<Mutex<Name>>,
    _stop: DropGuard,
}

/// What one series of probes is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct CheckKey {
    host: Arc<str>,
    address: SocketAddr,
    backend: Option<String>,
}

struct Watched {
    check: Arc<Check>,
    recipes: watch::Sender<Arc<Recipe>>,
    _stop: DropGuard,
}

impl Pools {
    /// No pools yet. `seed` scatters what would otherwise happen everywhere at once.
    pub fn new(home: Home, seed: u64) -> Self {
        Self::asking(home, seed, Arc::new(Servers::of_the_system()))
    }

    fn asking(mut home: Home, seed: u64, whom: Arc<dyn Ask>) -> Self {
        home.stopping = home.stopping.child_token();
        let stop = home.stopping.clone().drop_guard();
        let inner = Inner {
            whom: watch::Sender::new(whom),
            servers: None,
            pools: HashMap::new(),
            wanted: BTreeSet::new(),
            leaving: Vec::new(),
            names: HashMap::new(),
            checks: HashMap::new(),
            ending: None,
            dice: Dice(seed),
        };
        let shared = Shared {
            home,
            found: ArcSwap::default(),
            answered: watch::Sender::new(()),
            inner: Mutex::new(inner),
        };
        Self {
            shared: Arc::new(shared),
            _stop: stop,
        }
    }

    /// Puts the pools of a configuration in force: those that its rules use, each as its backend speaks to it.
    ///
    /// Pools that it does not use are still found, for requests that follow the configuration before, until
    /// [`retire`](Self::retire). Names whose addresses are not known yet have no targets until they are: see
    /// [`settle`](Self::settle).
    pub fn apply(&self, config: &Web, fittings: &Fittings, now: Instant) {
        let shared = &self.shared;
        let mut inner = shared.inner.lock();
        inner.ask_these(&config.resolvers);
        let used = used_by(config);
        inner.wanted = used.keys().cloned().collect();
        for (key, host) in &used {
            inner.use_pool((key, host.as_ref()), config, fittings, now);
        }
        shared.follow_names(&mut inner);
        for key in used.keys() {
            shared.put(&mut inner, key, Cause::Configured, now);
        }
        shared.changed(&mut inner);
    }

    /// Waits until every name has been asked for once, whatever came of it. Between [`apply`](Self::apply) and whoever
    /// sends requests, so that a name that is good is a target from the first request on; the caller sets a limit.
    /// Cancel-safe.
    pub async fn settle(&self) {
        let mut answered = self.shared.answered.subscribe();
        loop {
            let is_settled = {
                let inner = self.shared.inner.lock();
                inner.names.values().all(|followed| followed.known.lock().is_asked())
            };
            if is_settled || answered.changed().await.is_err() {
                return;
            }
        }
    }

    /// Drains the pools that the configuration applied last does not use, and cuts what runs on them at the end. To be called
    /// once no new request follows the configuration before.
    pub fn retire(&self, now: Instant) {
        let mut inner = self.shared.inner.lock();
        inner.retire(now);
        self.shared.follow_names(&mut inner);
        self.shared.changed(&mut inner);
    }

    /// The pool of this name as this backend speaks to it; `None` if no rule uses it so.
    pub fn find(&self, pool: &str, backend: Option<&str>) -> Option<Arc<Pool>> {
        let found = self.shared.found.load();
        let of_name = found.get(pool)?;
        of_name.iter().find(|pool| pool.backend() == backend).cloned()
    }

    /// Whether any target has a request, also those that are being drained.
    pub fn is_in_use(&self) -> bool {
        let inner = self.shared.inner.lock();
        let used = inner.pools.values().map(|used| &used.pool);
        used.chain(&inner.leaving).any(|pool| pool.is_in_use())
    }

    /// How many targets each pool has of each kind at `now`, by name and backend.
    pub fn census(&self, now: Instant) -> Vec<Census> {
        let mut pools: Vec<_> = {
            let inner = self.shared.inner.lock();
            inner
                .pools
                .iter()
                .map(|(key, used)| (key.clone(), used.pool.clone()))
                .collect()
        };
        pools.sort_by(|(one, _), (other, _)| one.cmp(other));
        pools.into_iter().map(|(_, pool)| pool.census(now)).collect()
    }

    /// How everything stands at `now`.
    pub fn view(&self, now: Instant) -> PoolsView {
        let inner = self.shared.inner.lock();
        let mut pools: Vec<_> = inner.pools.iter().collect();
        pools.sort_by_key(|(key, _)| *key);
        let mut names: Vec<_> = inner.names.iter().collect();
        names.sort_by_key(|(name, _)| *name);
        let name = |(name, followed): (&Arc<str>, &Followed)| NameView::of(name, &followed.known.lock(), now);
        PoolsView {
            pools: pools.into_iter().map(|(_, used)| used.pool.view(now)).collect(),
            names: names.into_iter().map(name).collect(),
        }
    }
}

/// What an operator sees of the pools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolsView {
    /// The pools, by name and backend.
    pub pools: Vec<PoolView>,
    /// The names of targets.
    pub names: Vec<NameView>,
}

impl PoolsView {
    /// Whether nothing is known yet of some target.
    pub fn has_unknown(&self) -> bool {
        let mut targets = self.pools.iter().flat_map(|pool| &pool.targets);
        targets.any(|target| target.condition == Condition::Unknown)
    }
}

impl Inner {
    /// From now on these name servers are asked, or those of the system if there are none.
    fn ask_these(&mut self, servers: &[SocketAddr]) {
        let before = self.servers.replace(servers.to_vec());
        let is_same = before.map_or(servers.is_empty(), |before| before == servers);
        if !is_same {
            let whom = if servers.is_empty() {
                Servers::of_the_system()
            } else {
                Servers::these(servers)
            };
            self.whom.send_replace(Arc::new(whom));
        }
    }

    fn retire(&mut self, now: Instant) {
        let gone: Vec<_> = self
            .pools
            .keys()
            .filter(|key| !self.wanted.contains(key))
            .cloned()
            .collect();
        for key in gone {
            if let Some(used) = self.pools.remove(&key) {
                used.pool.put(used.settings, Vec::new(), Cause::Configured, now);
                self.leaving.push(used.pool);
            }
        }
    }

    fn use_pool(&mut self, (key, host): (&Key, Option<&String>), config: &Web, fittings: &Fittings, now: Instant) {
        let Some(pool) = config.pools.get(&key.pool) else {
            debug_assert!(false, "every reference resolves");
            return;
        };
        let named = key.backend.as_ref().and_then(|name| config.backends.get(name));
        let backend = named.cloned().unwrap_or_default();
        let probe = backend.probe.as_ref().and_then(|name| config.probes.get(name));
        let mut probe = probe.cloned().unwrap_or_default();
        if backend.host == BackendHost::Client {
            // What clients ask under the target knows; its own address it need not know.
            probe.host = probe.host.or_else(|| host.cloned());
        }
        let settings = Settings {
            balance: pool.balance,
            slow_start: pool.slow_start,
            panic: pool.panic,
            ejection: pool.ejection,
            drain: backend.drain,
            derive: fittings.derive.clone(),
        };
        let known = self
            .pools
            .remove(key)
            .map(|used| used.pool)
            .or_else(|| self.come_back(key));
        let new = || Pool::new(&key.pool, key.backend.as_deref(), settings.clone(), now);
        let used = Used {
            pool: known.unwrap_or_else(new),
            targets: pool.targets.clone(),
            probe: Arc::new(probe),
            backend: Arc::new(backend),
            reach: fittings.reach.clone(),
            settings,
        };
        self.pools.insert(key.clone(), used);
    }

    /// A pool that is being drained, and is used again.
    fn come_back(&mut self, key: &Key) -> Option<Arc<Pool>> {
        let is_it = |pool: &Arc<Pool>| pool.name() == key.pool && pool.backend() == key.backend.as_deref();
        let place = self.leaving.iter().position(is_it)?;
        Some(self.leaving.swap_remove(place))
    }

    /// Ends the probes of targets that no pool has.
    fn forget_checks(&mut self) {
        let used = self.pools.values().map(|used| &used.pool);
        let checks = used.chain(&self.leaving).flat_map(|pool| pool.checks());
        let used: HashSet<_> = checks.map(|check| Arc::as_ptr(&check)).collect();
        self.checks
            .retain(|_, watched| used.contains(&Arc::as_ptr(&watched.check)));
    }
}

impl Shared {
    /// Begins to follow the names of targets, and stops following those that no target has.
    fn follow_names(self: &Arc<Self>, inner: &mut Inner) {
        let targets = inner.pools.values().flat_map(|used| &used.targets);
        let names: HashSet<Arc<str>> = targets
            .filter(|target| target.host.parse::<IpAddr>().is_err())
            .map(|target| Arc::from(&*target.host))
            .collect();
        inner.names.retain(|name, _| names.contains(name));
        for name in names {
            if inner.names.contains_key(&name) {
                continue;
            }
            let known = Arc::new(Mutex::new(Name::default()));
            let shared = Arc::downgrade(self);
            let answered = {
                let name = name.clone();
                move |is_moved: bool| {
                    if let Some(shared) = shared.upgrade() {
                        shared.answered(&name, is_moved, clock::now());
                    }
                }
            };
            let dice = Dice(inner.dice.below(u64::MAX));
            let following = follow(name.clone(), known.clone(), inner.whom.subscribe(), dice, answered);
            let _stop = self.run(following);
            inner.names.insert(name, Followed { known, _stop });
        }
    }

    /// A name has been asked for, and may have other addresses now.
    fn answered(self: &Arc<Self>, name: &str, is_moved: bool, now: Instant) {
        if is_moved {
            self.moved(name, now);
        }
        self.answered.send_replace(());
    }

    fn moved(self: &Arc<Self>, name: &str, now: Instant) {
        let mut inner = self.inner.lock();
        let has_it = |used: &Used| used.targets.iter().any(|target| target.host == name);
        let keys: Vec<_> = inner
            .pools
            .iter()
            .filter(|(_, used)| has_it(used))
            .map(|(key, _)| key.clone())
            .collect();
        for key in keys {
            self.put(&mut inner, &key, Cause::Resolved, now);
        }
        self.changed(&mut inner);
    }

    /// Makes of a change of the pools what follows from it.
    fn changed(self: &Arc<Self>, inner: &mut Inner) {
        inner.forget_checks();
        let mut found: HashMap<String, Vec<_>> = HashMap::new();
        for (key, used) in &inner.pools {
            found.entry(key.pool.clone()).or_default().push(used.pool.clone());
        }
        self.found.store(Arc::new(found));
        self.end_drains_in_time(inner);
    }

    /// Puts a pool's targets in their places, and has them probed.
    fn put(&self, inner: &mut Inner, key: &Key, cause: Cause, now: Instant) {
        let Inner {
            pools,
            names,
            checks,
            dice,
            ..
        } = inner;
        let Some(used) = pools.get(key) else {
            return;
        };
        let mut placed = Vec::with_capacity(used.targets.len());
        for target in &used.targets {
            let host: Arc<str> = Arc::from(&*target.host);
            let port = target.port.unwrap_or(used.backend.port);
            let addresses = match target.host.parse() {
                Ok(address) => vec![address],
                Err(_) => names
                    .get(&host)
                    .map_or_else(Vec::new, |followed| followed.known.lock().addresses()),
            };
            for address in addresses {
                let key = CheckKey {
                    host: host.clone(),
                    address: SocketAddr::new(address, port),
                    backend: key.backend.clone(),
                };
                placed.push(Placed {
                    host: host.clone(),
                    address: key.address,
                    weight: target.weight,
                    max_requests: target.max_requests,
                    check: self.check(checks, key, used, dice, now),
                });
            }
        }
        used.pool.put(used.settings.clone(), placed, cause, now);
    }

    /// What is known of a target; if nothing is, probes of it begin.
    fn check(
        &self,
        checks: &mut HashMap<CheckKey, Watched>,
        key: CheckKey,
        used: &Used,
        dice: &mut Dice,
        now: Instant,
    ) -> Arc<Check> {
        let backend = (key.backend.as_deref(), used.backend.clone());
        let recipe = Recipe::new(
            used.probe.clone(),
            backend,
            (&key.host, key.address),
            used.reach.clone(),
        );
        if let Some(watched) = checks.get(&key) {
            watched.recipes.send_if_modified(|former| {
                let differs = !recipe.is_like(former);
                *former = Arc::new(recipe);
                differs
            });
            return watched.check.clone();
        }
        let check = Check::new(now);
        let (recipes, received) = watch::channel(Arc::new(recipe));
        let id = TargetId::new(&key.host, key.address, key.backend.as_deref());
        let dice = Dice(dice.below(u64::MAX));
        let _stop = self.run(keep_watch(id, check.clone(), received, dice));
        let watched = Watched {
            check: check.clone(),
            recipes,
            _stop,
        };
        checks.insert(key, watched);
        check
    }

    /// Sees to the end of the next drain, though nobody may ask the pools for anything then.
    fn end_drains_in_time(self: &Arc<Self>, inner: &mut Inner) {
        let pools = inner.pools.values().map(|used| &used.pool).chain(&inner.leaving);
        let next = pools.filter_map(|pool| pool.next_drained()).min();
        if next == inner.ending.as_ref().map(|(at, _)| *at) {
            return;
        }
        inner.ending = next.map(|at| {
            let shared = Arc::downgrade(self);
            let ending = async move {
                sleep_until(at.into()).await;
                if let Some(shared) = shared.upgrade() {
                    shared.end_drains(clock::now());
                }
            };
            (at, self.run(ending))
        });
    }

    fn end_drains(self: &Arc<Self>, now: Instant) {
        let mut inner = self.inner.lock();
        for pool in inner.pools.values().map(|used| &used.pool).chain(&inner.leaving) {
            pool.end_drains(now);
        }
        inner.leaving.retain(|pool| pool.next_drained().is_some());
        self.changed(&mut inner);
    }

    /// Runs a task until what is returned is dropped.
    fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
        let stop = self.home.stopping.child_token();
        let stopped = stop.clone();
        let task = async move {
            stopped.run_until_cancelled(task).await;
        };
        self.home.tasks.spawn_on(task, &self.home.runtime);
        stop.drop_guard()
    }
}

/// The pools that rules use, each with the first host by which it is named.
fn used_by(config: &Web) -> BTreeMap<Key, Option<String>> {
    let mut keys = BTreeMap::new();
    for rule in config.rules.values() {
        let host = rule.hosts.iter().find(|host| host.is_exact());
        let mut uses = |pool: &str, backend: &Option<String>| {
            let (pool, backend) = (pool.to_owned(), backend.clone());
            let known: &mut Option<String> = keys.entry(Key { pool, backend }).or_default();
            if known.is_none() {
                *known = host.map(|host| host.as_str().to_owned());
            }
        };
        let actions = rule.paths.iter().map(|path| &path.action);
        for action in actions.chain([&rule.action]) {
            if let Action::Forward(forward) = action {
                uses(&forward.pool, &forward.backend);
            }
        }
        if let Some(authentication) = &rule.guard.authentication {
            uses(&authentication.pool, &authentication.backend);
        }
    }
    keys
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("found", &self.found.load().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
