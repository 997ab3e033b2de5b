//! What is published for clients of the web, as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use http::StatusCode;

use super::layers::{Layers, Ways};
use super::{Check, secondary};
use crate::config::document;
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::report::Severity;
use crate::config::shape::Found;
use crate::config::web::{AccessLog, AccessLogTo, Forwarded, ForwardedMode, Rule, Web};
use crate::config::{Blast, Listener, Tunnel};

/// The tables of the document.
pub(super) struct Published {
    pub(super) rules: BTreeMap<String, document::Rule>,
    pub(super) pools: BTreeMap<String, document::Pool>,
    pub(super) backends: BTreeMap<String, document::Backend>,
    pub(super) probes: BTreeMap<String, document::Probe>,
    pub(super) rewrites: BTreeMap<String, document::RewriteSet>,
    pub(super) error_pages: BTreeMap<String, PathBuf>,
    pub(super) forwarded: document::Forwarded,
    pub(super) access_log: document::AccessLog,
    pub(super) affinity: document::AffinityKey,
    pub(super) resolver: document::Resolver,
}

/// What stands around it.
pub(super) struct Around<'a> {
    pub(super) listeners: &'a BTreeMap<String, Listener>,
    pub(super) listener_names: Option<BTreeSet<String>>,
    pub(super) layers: Layers,
    pub(super) certificate_names: Option<BTreeSet<String>>,
    pub(super) tunnel: &'a Tunnel,
    pub(super) blast: &'a Blast,
}

/// The names to which something can refer, faulty ones among them; `None` if they are not known.
pub(super) struct Names {
    pub(super) listeners: Option<BTreeSet<String>>,
    pub(super) certificates: Option<BTreeSet<String>>,
    pub(super) pools: Option<BTreeSet<String>>,
    pub(super) backends: Option<BTreeSet<String>>,
    pub(super) probes: Option<BTreeSet<String>>,
    pub(super) rewrites: Option<BTreeSet<String>>,
    pub(super) layers: Layers,
}

/// The names to which something does refer.
#[derive(Default)]
pub(super) struct Used {
    pub(super) pools: BTreeSet<String>,
    pub(super) backends: BTreeSet<String>,
    pub(super) probes: BTreeSet<String>,
    pub(super) rewrites: BTreeSet<String>,
    /// The ways of connections whose bytes pass as they are.
    pub(super) ways: Ways,
}

/// The longest error page, in bytes.
const MAX_PAGE: u64 = 1_000_000;

impl Check<'_> {
    /// All of it that is whole.
    pub(super) fn web(&mut self, published: Published, around: Around<'_>) -> Web {
        let names = Names {
            pools: self.names(&SettingPath::of(&["pool"]), published.pools.keys().cloned()),
            backends: self.names(&SettingPath::of(&["backend"]), published.backends.keys().cloned()),
            probes: self.names(&SettingPath::of(&["probe"]), published.probes.keys().cloned()),
            rewrites: self.names(&SettingPath::of(&["rewrite"]), published.rewrites.keys().cloned()),
            listeners: around.listener_names,
            certificates: around.certificate_names,
            layers: around.layers,
        };
        let mut used = Used::default();
        let path = SettingPath::of(&["affinity", "key"]);
        let affinity_key = published.affinity.key.and_then(|source| self.key(&source, &path));
        if affinity_key.is_none() && !self.places.lost(&path) && !self.places.has(&path) {
            self.drawn_key(&published.backends);
        }
        let mut backends = self.backends(published.backends, &names, &mut used);
        let rewrites = self.rewrites(published.rewrites);
        let rules = self.rules(published.rules, around.listeners, &names, &mut used);
        self.nameless(&rules, around.listeners);
        let sites = self.sites(&rules);
        self.redirect_circles(&sites, around.listeners);
        self.session_gateway(&rules, around.listeners, around.tunnel, around.blast);
        self.rewrite_circles(&rules, &rewrites);
        self.unpublished(&rules, around.listeners);
        self.unused(&names, &used);
        let pools = self.pools(published.pools);
        self.ways(&used.ways, &pools, &mut backends);
        Web {
            pools,
            probes: self.probes(published.probes, &names.layers),
            error_pages: self.error_pages(published.error_pages, &SettingPath::of(&["error_pages"])),
            forwarded: self.forwarded(&published.forwarded),
            access_log: self.access_log(published.access_log),
            resolvers: published.resolver.servers.iter().map(|server| server.0).collect(),
            affinity_key,
            backends,
            rewrites,
            rules,
        }
    }

    /// The pages, by status, whose files are there.
    pub(super) fn error_pages(
        &mut self,
        pages: BTreeMap<String, PathBuf>,
        path: &SettingPath,
    ) -> BTreeMap<StatusCode, PathBuf> {
        let mut built = BTreeMap::new();
        for (status, file) in pages {
            let page = self.short_file(&file, &path.key(&status), MAX_PAGE);
            // The statuses have been checked with the shape.
            if let (Ok(status), Some(page)) = (status.parse(), page) {
                built.insert(status, page);
            }
        }
        built
    }

    fn forwarded(&mut self, forwarded: &document::Forwarded) -> Forwarded {
        let list = SettingPath::of(&["forwarded", "trusted"]);
        for (index, network) in forwarded.trusted.iter().enumerate() {
            if network.0.prefix_len() == 0 {
                self.note(self.places.element(&list, index), Unpublishable::EveryoneTrusted);
            }
        }
        Forwarded {
            mode: match forwarded.mode {
                document::ForwardedMode::Append => ForwardedMode::Append,
                document::ForwardedMode::Replace => ForwardedMode::Replace,
            },
            port: forwarded.port,
            trusted: secondary::networks(&forwarded.trusted),
        }
    }

    fn access_log(&self, log: document::AccessLog) -> AccessLog {
        let to = log.to.map(|to| {
            if to == Path::new("stdout") {
                AccessLogTo::Stdout
            } else {
                AccessLogTo::File(self.resolved(&to))
            }
        });
        AccessLog {
            to,
            sample_percent: log.sample_percent,
            fields: log.fields.into_iter().map(|field| field.0.name().to_owned()).collect(),
        }
    }

    /// Notes listeners on which there is nothing.
    fn unpublished(&mut self, rules: &BTreeMap<String, Rule>, listeners: &BTreeMap<String, Listener>) {
        let table = SettingPath::of(&["rule"]);
        let faulty = |found: &Found| found.problem.severity() == Severity::Error && found.path.is_within(&table);
        if self.places.lost_part(&table) || self.found.iter().any(faulty) {
            return;
        }
        let served: BTreeSet<&String> = rules.values().flat_map(|rule| &rule.listeners).collect();
        for (name, listener) in listeners {
            if !listener.session_gateway && !served.contains(name) {
                self.note(SettingPath::of(&["listener", name]), Unpublishable::NothingPublished);
            }
        }
    }

    /// Notes what nothing refers to, where everything that could is known.
    fn unused(&mut self, names: &Names, used: &Used) {
        for (table, known, used, by, from) in [
            ("pool", &names.pools, &used.pools, "no rule", "rule"),
            ("backend", &names.backends, &used.backends, "no rule", "rule"),
            ("rewrite", &names.rewrites, &used.rewrites, "no rule", "rule"),
            ("probe", &names.probes, &used.probes, "no backend", "backend"),
        ] {
            if self.places.lost_part(&SettingPath::of(&[from])) {
                continue;
            }
            for name in known.iter().flatten().filter(|name| !used.contains(*name)) {
                self.note(SettingPath::of(&[table, name]), Unpublishable::Unused { by });
            }
        }
    }
}
