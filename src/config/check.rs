//! From the document to the checked configuration: what a setting means beside the others, and what it refers to.
//!
//! Every part is checked, even if another is faulty, and what cannot be built is left out: a fault has been noted, so
//! the whole is refused. What the shape check has taken out is not spoken of again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::document::{self, Document};
use super::environment::Environment;
use super::nearest::nearest;
use super::path::SettingPath;
use super::problem::Problem;
use super::shape::Found;
use super::{Authentication, Config, Limits, Log, LogFormat, Node, Session, Source, State, Throttle, Tunnel};

mod circles;
mod directory;
mod inventory;
mod layers;
mod listeners;
mod operator;
mod places;
mod pools;
mod rewrites;
mod rules;
mod secondary;
mod secrets;
mod shadows;
mod web;

pub(super) use places::Places;

/// The check of one document.
pub(super) struct Check<'a> {
    environment: &'a dyn Environment,
    folder: &'a Path,
    places: Places,
    /// What was found so far.
    pub(super) found: Vec<Found>,
}

impl<'a> Check<'a> {
    /// A check of the document whose settings stand at `places`, in a file of `folder`.
    pub(super) fn new(environment: &'a dyn Environment, folder: &'a Path, places: Places) -> Self {
        Self {
            environment,
            folder,
            places,
            found: Vec::new(),
        }
    }

    /// Checks everything. What comes of it is whole only if no error was found.
    pub(super) fn config(&mut self, document: Document, source: Source) -> Option<Config> {
        let listeners = document.listener.unwrap_or_default();
        let listener_names = self.names(&SettingPath::of(&["listener"]), listeners.keys().cloned());
        let ends_tls = |listener: &document::Listener| match listener.protocol {
            document::ListenerProtocol::Https => true,
            document::ListenerProtocol::Tls => listener.tls == document::TlsEnd::Terminate,
            document::ListenerProtocol::Http | document::ListenerProtocol::Tcp => false,
        };
        let lacks_certificates =
            document.certificate.is_none() && (listeners.is_empty() || listeners.values().any(ends_tls));
        let layers = layers::Layers::of(&listeners, &document.backend);
        if lacks_certificates {
            self.missing(&SettingPath::of(&["certificate"]), "[certificate.NAME]");
        }
        let certificates = document.certificate.unwrap_or_default();
        let names = self.names(&SettingPath::of(&["certificate"]), certificates.keys().cloned());
        let names = names.filter(|_| !lacks_certificates);
        let certificates = self.certificates(certificates);
        let others = listeners::Others {
            health: &document.health,
            pcoip: &document.pcoip,
            rdp: &document.rdp,
            fleet: &document.fleet,
            admin: &document.admin,
            quiesce: &document.quiesce,
            backends: &document.backend,
        };
        let listeners = self.listeners(listeners, &others, names.as_ref());
        let has_key = document
            .node
            .as_ref()
            .is_some_and(|node| node.recognition_key.is_some());
        let pcoip = self.pcoip(&document.pcoip);
        let fleet = self.fleet(document.fleet, has_key);
        let admin = self.admin(&document.admin);
        let quiesce = self.quiesce(&document.quiesce);
        let limits = self.limits(&document.limits);
        let session = self.session(&document.session);
        let state = self.state(&document.state);
        let signs_in = listeners.is_empty() || listeners.values().any(|listener| listener.session_gateway);
        let directory = self.directory(document.directory, signs_in);
        let tunnel = tunnel(document.tunnel);
        let blast = secondary::blast(document.blast);
        let published = web::Published {
            rules: document.rule,
            pools: document.pool,
            backends: document.backend,
            probes: document.probe,
            rewrites: document.rewrite,
            error_pages: document.error_pages,
            forwarded: document.forwarded,
            access_log: document.access_log,
            affinity: document.affinity,
            resolver: document.resolver,
        };
        let around = web::Around {
            listeners: &listeners,
            listener_names,
            layers,
            certificate_names: names,
            tunnel: &tunnel,
            blast: &blast,
        };
        let web = self.web(published, around);
        Some(Config {
            source,
            node: self.node(document.node?)?,
            log: log(document.log),
            listeners,
            certificates,
            health: document.health.bind.into_iter().map(|bind| bind.0).collect(),
            admin,
            quiesce,
            limits,
            session,
            state,
            tunnel,
            blast,
            pcoip,
            rdp: secondary::rdp(document.rdp),
            udp: secondary::udp(&document.udp),
            fleet,
            authentication: authentication(document.authentication),
            directory,
            web,
        })
    }

    fn state(&mut self, state: &document::State) -> State {
        let path = SettingPath::of(&["state", "key"]);
        State {
            persist_grants: state.persist_grants,
            key: state.key.as_ref().and_then(|source| self.key(source, &path)),
        }
    }

    fn node(&mut self, node: document::Node) -> Option<Node> {
        let path = SettingPath::of(&["node", "recognition_key"]);
        let recognition_key = node.recognition_key.and_then(|source| self.key(&source, &path));
        Some(Node {
            name: node.name?.0,
            state_dir: node.state_dir.0,
            admin_socket: node.admin_socket.0,
            workers: node.workers,
            grace_period: node.grace_period.0,
            recognition_key,
        })
    }

    fn limits(&mut self, limits: &document::Limits) -> Limits {
        let all = limits.connections;
        Limits {
            connections: all,
            connections_per_source: self.within(
                &SettingPath::of(&["limits"]),
                ("connections_per_source", limits.connections_per_source),
                ("connections", all),
            ),
            handshake_timeout: limits.handshake_timeout.0,
            head_timeout: limits.head_timeout.0,
            body_timeout: limits.body_timeout.0,
            pending_logins: limits.pending_logins,
            handshakes_per_source: limits.handshakes_per_source,
        }
    }

    fn session(&mut self, session: &document::Session) -> Session {
        let lifetime = session.lifetime;
        let path = SettingPath::of(&["session"]);
        Session {
            lifetime: lifetime.0,
            idle: session
                .idle
                .map(|idle| self.within(&path, ("idle", idle), ("lifetime", lifetime)).0),
            heartbeat: session.heartbeat.0,
            login_timeout: session.login_timeout.0,
            first_use: session.first_use.0,
            max: session.max,
            per_user: self.within(&path, ("per_user", session.per_user), ("max", session.max)),
            connections: session.connections,
        }
    }

    /// The bound `narrow` as far as it lies within `wide`. Only one that was written is at fault; a default gives way.
    fn within<T: Copy + Ord + ToString>(&mut self, table: &SettingPath, narrow: (&str, T), wide: (&str, T)) -> T {
        let (path, other) = (table.key(narrow.0), table.key(wide.0));
        if narrow.1 > wide.1 && self.places.has(&path) && !self.places.lost(&other) {
            let problem = Problem::Exceeds {
                value: narrow.1.to_string(),
                other,
                limit: wide.1.to_string(),
            };
            self.note(path, problem);
        }
        narrow.1.min(wide.1)
    }

    /// The names of a table's entries: the `sound` ones, and those that were taken out. `None` if all are unknown.
    fn names(&self, table: &SettingPath, sound: impl Iterator<Item = String>) -> Option<BTreeSet<String>> {
        let lost = self.places.lost_names(table).map(str::to_owned);
        (!self.places.lost(table)).then(|| sound.chain(lost).collect())
    }

    /// Notes a name in a list that refers to nothing.
    fn reference(
        &mut self,
        what: &'static str,
        name: &str,
        known: Option<&BTreeSet<String>>,
        list: &SettingPath,
        index: usize,
    ) {
        if known.is_some_and(|known| !known.contains(name)) {
            self.refers(what, name, known, self.places.element(list, index));
        }
    }

    /// Notes a setting that refers to nothing.
    fn refers(&mut self, what: &'static str, name: &str, known: Option<&BTreeSet<String>>, path: SettingPath) {
        if let Some(known) = known
            && !known.contains(name)
        {
            let nearest = nearest(name, &Vec::from_iter(known));
            let problem = Problem::UnknownReference {
                what,
                name: name.to_owned(),
                nearest,
            };
            self.note(path, problem);
        }
    }

    /// Notes that a setting must be there, unless it was and has been found at fault.
    fn missing(&mut self, path: &SettingPath, example: &str) {
        if !self.places.lost(path) && !self.found.iter().any(|found| found.path == *path) {
            let example = example.to_owned();
            self.note(path.clone(), Problem::Missing { example });
        }
    }

    /// Notes a setting that another one makes pointless.
    fn not_with(&mut self, path: SettingPath, other: &'static str) {
        self.note(path, Problem::NotWith { other });
    }

    /// A file that the configuration names; a relative path starts at the configuration's folder.
    fn resolved(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    fn note(&mut self, path: SettingPath, problem: impl Into<Problem>) {
        let (at, problem) = (self.places.offset(&path), problem.into());
        self.found.push(Found { path, at, problem });
    }
}

fn log(log: document::Log) -> Log {
    let format = match log.format {
        document::LogFormat::Text => LogFormat::Text,
        document::LogFormat::Json => LogFormat::Json,
    };
    Log {
        format,
        level: log.level.0,
    }
}

fn tunnel(tunnel: document::Tunnel) -> Tunnel {
    Tunnel {
        external_url: tunnel.external_url.map(|url| url.0),
        lost_contact: tunnel.lost_contact.0,
        reconnect_window: tunnel.reconnect_window.0,
    }
}

fn authentication(authentication: document::Authentication) -> Authentication {
    let throttle = authentication.throttle;
    Authentication {
        disclaimer: authentication.disclaimer,
        domains: authentication.domains,
        attempts: authentication.attempts,
        throttle: Throttle {
            per_user: throttle.per_user,
            per_source: throttle.per_source,
            window: throttle.window.0,
        },
    }
}
