//! Rules of listeners that speak no HTTP, and what stands behind them: bytes pass as they are.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::web::{Names, Used};
use crate::config::Listener;
use crate::config::document::{self, BackendProtocol, ListenerProtocol};
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::{Action, BYTES, Backend, Forward, HeaderPolicy, Pool, Rule, UnusualFields};

/// What is understood of what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    Http,
    /// Nothing.
    Bytes,
}

/// What is understood where. What was taken out as faulty is not among it.
#[derive(Default)]
pub(super) struct Layers {
    listeners: BTreeMap<String, Layer>,
    backends: BTreeMap<String, Layer>,
    /// Probes of backends of bytes.
    probes: BTreeSet<String>,
}

/// The ways of connections whose bytes pass as they are, each a pool with the name of a backend.
pub(super) type Ways = BTreeSet<(String, String)>;

impl Layers {
    pub(super) fn of(
        listeners: &BTreeMap<String, document::Listener>,
        backends: &BTreeMap<String, document::Backend>,
    ) -> Self {
        let layer = |is_bytes: bool| if is_bytes { Layer::Bytes } else { Layer::Http };
        let of_bytes = |backend: &document::Backend| backend.protocol.is_some_and(BackendProtocol::is_bytes);
        let of_listener = |listener: &document::Listener| match listener.protocol {
            ListenerProtocol::Https | ListenerProtocol::Http => Layer::Http,
            ListenerProtocol::Tls | ListenerProtocol::Tcp => Layer::Bytes,
        };
        Self {
            listeners: listeners
                .iter()
                .map(|(name, listener)| (name.clone(), of_listener(listener)))
                .collect(),
            backends: backends
                .iter()
                .map(|(name, backend)| (name.clone(), layer(of_bytes(backend))))
                .collect(),
            probes: backends
                .values()
                .filter(|backend| of_bytes(backend))
                .filter_map(|backend| backend.probe.clone())
                .collect(),
        }
    }

    pub(super) fn of_listener(&self, name: &str) -> Option<Layer> {
        self.listeners.get(name).copied()
    }

    /// Whether a backend of bytes has this probe.
    pub(super) fn probes_bytes(&self, name: &str) -> bool {
        self.probes.contains(name)
    }
}

impl Check<'_> {
    /// What a rule with these listeners is for; `None` if that cannot be said.
    pub(super) fn layer(
        &mut self,
        named: Option<&[String]>,
        listeners: &BTreeMap<String, Listener>,
        names: &Names,
        path: &SettingPath,
    ) -> Option<Layer> {
        let list = path.key("listeners");
        let Some(named) = named else {
            if !listeners.is_empty() && listeners.values().all(|listener| !listener.protocol.is_http()) {
                self.missing(&list, r#"listeners = ["NAME"]: without, a rule is for those of HTTP"#);
                return None;
            }
            return Some(Layer::Http);
        };
        let mut layers = named.iter().filter_map(|name| names.layers.of_listener(name));
        let first = layers.next()?;
        if layers.any(|layer| layer != first) {
            self.note(list, Unpublishable::MixedListeners);
            return None;
        }
        Some(first)
    }

    /// Notes backends of a rule of HTTP that are for bytes.
    pub(super) fn backends_of_http(&mut self, rule: &document::Rule, names: &Names, path: &SettingPath) {
        let service = rule.authentication.as_ref().and_then(|it| it.backend.as_ref());
        let mut named = vec![
            (rule.backend.as_ref(), path.key("backend")),
            (service, path.key("authentication").key("backend")),
        ];
        for (index, entry) in rule.path.iter().enumerate() {
            let place = self.places.element(&path.key("path"), index);
            named.push((entry.backend.as_ref(), place.key("backend")));
        }
        for (backend, place) in named {
            if backend.and_then(|backend| names.layers.backends.get(backend)) == Some(&Layer::Bytes) {
                self.note(place, Unpublishable::BackendOfBytes);
            }
        }
    }

    /// A rule whose listeners pass bytes as they are.
    pub(super) fn passing_rule(
        &mut self,
        rule: document::Rule,
        names: &Names,
        used: &mut Used,
        path: &SettingPath,
    ) -> Option<Rule> {
        for key in OF_HTTP {
            if self.places.has(&path.key(key)) {
                self.not_with(path.key(key), r#"listeners that speak "tcp" or "tls""#);
            }
        }
        // What is at fault refers to something all the same.
        used.pools.extend(rule.path.iter().filter_map(|path| path.pool.clone()));
        used.backends
            .extend(rule.path.iter().filter_map(|path| path.backend.clone()));
        used.rewrites.extend(rule.rewrite);
        if let Some(pool) = &rule.pool {
            self.refers("pool", pool, names.pools.as_ref(), path.key("pool"));
            used.pools.insert(pool.clone());
        } else {
            self.missing(&path.key("pool"), r#"pool = "NAME""#);
        }
        if let Some(backend) = &rule.backend {
            self.refers("backend", backend, names.backends.as_ref(), path.key("backend"));
            if names.layers.backends.get(backend) == Some(&Layer::Http) {
                self.note(path.key("backend"), Unpublishable::BackendOfHttp);
            }
            used.backends.insert(backend.clone());
        }
        let guard = self.guard((rule.allow, rule.deny), rule.rate, None, (names, &mut *used), path);
        let (pool, backend) = (rule.pool?, rule.backend.unwrap_or_else(|| BYTES.to_owned()));
        used.ways.insert((pool.clone(), backend.clone()));
        Some(Rule {
            listeners: rule.listeners?,
            hosts: rule.hosts.into_iter().flatten().map(|host| host.0).collect(),
            priority: rule.priority?,
            action: Action::Forward(Forward {
                pool,
                backend: Some(backend),
                rewrite: None,
            }),
            paths: Vec::new(),
            guard,
            error_pages: BTreeMap::new(),
            request_headers: HeaderPolicy::default(),
            response_headers: HeaderPolicy::default(),
            max_body: None,
            compress: false,
            unusual_fields: UnusualFields::default(),
        })
    }

    /// Notes names in rules of listeners on which no client says one.
    pub(super) fn nameless(&mut self, rules: &BTreeMap<String, Rule>, listeners: &BTreeMap<String, Listener>) {
        let is_nameless = |name: &String| {
            let listener = listeners.get(name);
            listener.is_some_and(|listener| listener.protocol == crate::config::ListenerProtocol::Tcp)
        };
        for (name, rule) in rules {
            if !rule.hosts.is_empty() && rule.listeners.iter().any(is_nameless) {
                let hosts = SettingPath::of(&["rule", name, "hosts"]);
                self.not_with(hosts, r#"a listener with protocol = "tcp""#);
            }
        }
    }

    /// Notes what a backend of bytes has no use for.
    pub(super) fn backend_of_bytes(&mut self, path: &SettingPath, has_tls: bool) {
        let words = if has_tls {
            r#"protocol = "tls""#
        } else {
            r#"protocol = "tcp""#
        };
        for key in BACKEND_OF_HTTP {
            if self.places.has(&path.key(key)) {
                self.not_with(path.key(key), words);
            }
        }
    }

    /// Adds the backend of those that name none, and notes targets without a port.
    pub(super) fn ways(
        &mut self,
        ways: &Ways,
        pools: &BTreeMap<String, Pool>,
        backends: &mut BTreeMap<String, Backend>,
    ) {
        let mut noted = BTreeSet::new();
        for (pool, backend) in ways {
            if backend == BYTES {
                backends.insert(BYTES.to_owned(), Backend::bytes());
            }
            let has_port = backends.get(backend).is_none_or(|backend| backend.port != 0);
            let lost = self.places.lost(&SettingPath::of(&["backend", backend, "port"]));
            if has_port || lost || !noted.insert(pool) {
                continue;
            }
            let list = SettingPath::of(&["pool", pool, "targets"]);
            let targets = pools.get(pool).map(|pool| pool.targets.as_slice()).unwrap_or_default();
            for (index, _) in targets.iter().enumerate().filter(|(_, target)| target.port.is_none()) {
                self.note(self.places.element(&list, index), Unpublishable::NoPort);
            }
        }
    }
}

/// Settings of a rule that are about requests.
const OF_HTTP: [&str; 9] = [
    "redirect",
    "rewrite",
    "path",
    "authentication",
    "max_body",
    "unusual_fields",
    "request_headers",
    "response_headers",
    "error_pages",
];

/// Settings of a backend that are about requests.
const BACKEND_OF_HTTP: [&str; 9] = [
    "version",
    "request_timeout",
    "host",
    "path_override",
    "affinity",
    "buffer_requests",
    "buffer_responses",
    "dedicated",
    "hide_inside",
];
