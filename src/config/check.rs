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
use super::{Authentication, Config, Limits, Log, LogFormat, Node, Session, Throttle, Tunnel};

mod directory;
mod listeners;
mod places;
mod secondary;
mod secrets;

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
    pub(super) fn config(&mut self, document: Document) -> Option<Config> {
        let certificates = document.certificate.unwrap_or_default();
        let names = self.names(&SettingPath::of(&["certificate"]), certificates.keys().cloned());
        let certificates = self.certificates(certificates);
        let others = listeners::Others {
            health: &document.health,
            pcoip: &document.pcoip,
            rdp: &document.rdp,
            fleet: &document.fleet,
        };
        let listeners = self.listeners(document.listener.unwrap_or_default(), &others, names.as_ref());
        let has_key = document
            .node
            .as_ref()
            .is_some_and(|node| node.recognition_key.is_some());
        let pcoip = self.pcoip(&document.pcoip);
        let fleet = self.fleet(document.fleet, has_key);
        let limits = self.limits(&document.limits);
        let session = self.session(&document.session);
        let directory = self.directory(document.directory);
        Some(Config {
            node: self.node(document.node?)?,
            log: log(document.log),
            listeners,
            certificates,
            health: document.health.bind.into_iter().map(|bind| bind.0).collect(),
            limits,
            session,
            tunnel: tunnel(document.tunnel),
            blast: secondary::blast(document.blast),
            pcoip,
            rdp: secondary::rdp(&document.rdp),
            udp: secondary::udp(&document.udp),
            fleet,
            authentication: authentication(document.authentication),
            directory,
        })
    }

    fn node(&mut self, node: document::Node) -> Option<Node> {
        let path = SettingPath::of(&["node", "recognition_key"]);
        let recognition_key = node
            .recognition_key
            .and_then(|source| self.recognition_key(&source, &path));
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
                "limits",
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
        Session {
            lifetime: lifetime.0,
            idle: session
                .idle
                .map(|idle| self.within("session", ("idle", idle), ("lifetime", lifetime)).0),
            heartbeat: session.heartbeat.0,
            login_timeout: session.login_timeout.0,
            first_use: session.first_use.0,
            max: session.max,
            per_user: self.within("session", ("per_user", session.per_user), ("max", session.max)),
            connections: session.connections,
        }
    }

    /// The bound `narrow` as far as it lies within `wide`. Only one that was written is at fault; a default gives way.
    fn within<T: Copy + Ord + ToString>(&mut self, table: &str, narrow: (&str, T), wide: (&str, T)) -> T {
        let (path, other) = (SettingPath::of(&[table, narrow.0]), SettingPath::of(&[table, wide.0]));
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
        if let Some(known) = known
            && !known.contains(name)
        {
            let nearest = nearest(name, &Vec::from_iter(known));
            let problem = Problem::UnknownReference {
                what,
                name: name.to_owned(),
                nearest,
            };
            self.note(self.places.element(list, index), problem);
        }
    }

    /// A file that the configuration names; a relative path starts at the configuration's folder.
    fn resolved(&self, file: &Path) -> PathBuf {
        self.folder.join(file)
    }

    fn note(&mut self, path: SettingPath, problem: Problem) {
        let at = self.places.offset(&path);
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
