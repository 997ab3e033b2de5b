//! Redirects that come back to themselves: found by following them as a client would.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use super::shadows::{Site, Sites};
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::{Action, Redirect, RedirectTo, Rule};
use crate::config::{Listener, ListenerProtocol};
use crate::types::HostPattern;

/// Where a client is sent.
#[derive(Clone)]
struct Stop<'a> {
    listener: &'a str,
    host: HostPattern,
    path: String,
    /// Whether a URL leads there, whose host may be somewhere else altogether unless a rule names it.
    by_url: bool,
}

/// The listeners by what leads to them.
struct Doors<'a> {
    listeners: &'a BTreeMap<String, Listener>,
    /// By protocol and port; `None` if there are several, of which nobody here knows which one is meant.
    by_port: BTreeMap<(bool, u16), Option<&'a str>>,
}

impl Check<'_> {
    /// Notes redirects from which a client comes back to them for ever.
    pub(super) fn redirect_circles(&mut self, sites: &Sites<'_>, listeners: &BTreeMap<String, Listener>) {
        let doors = Doors::of(listeners);
        let mut circles = Vec::new();
        for site in sites.iter() {
            for (place, path, action) in starts(site.rule) {
                let Action::Redirect(redirect) = action else {
                    continue;
                };
                let circle =
                    hosts_of(site.rule).find_map(|host| doors.circle(sites, (site, place), redirect, &host, &path));
                circles.extend(circle.map(|url| (site.name, place, url)));
            }
        }
        for (name, place, url) in circles {
            let rule = SettingPath::of(&["rule", name]);
            let path = match place {
                Some(index) => self.places.element(&rule.key("path"), index),
                None => rule,
            };
            self.note(path.key("redirect"), Unpublishable::RedirectCircle { url });
        }
    }
}

impl<'a> Doors<'a> {
    fn of(listeners: &'a BTreeMap<String, Listener>) -> Self {
        let mut by_port: BTreeMap<_, Option<&str>> = BTreeMap::new();
        for (name, listener) in listeners.iter().filter(|(_, listener)| listener.protocol.is_http()) {
            let has_tls = listener.protocol == ListenerProtocol::Https;
            let bound = listener.bind.iter().map(|address| address.port());
            let ports: BTreeSet<u16> = bound.chain(listener.external_port).collect();
            for port in ports {
                by_port
                    .entry((has_tls, port))
                    .and_modify(|known| *known = None)
                    .or_insert(Some(name.as_str()));
            }
        }
        Self { listeners, by_port }
    }

    /// A URL of a client that is sent on by this redirect of a rule, and comes back to it however long it follows.
    fn circle(
        &self,
        sites: &Sites<'_>,
        start: (&Site<'_>, Option<usize>),
        redirect: &Redirect,
        host: &HostPattern,
        path: &str,
    ) -> Option<String> {
        let mut stop = self.next(redirect, host, path)?;
        let mut came_back = None;
        for _ in 0..PATIENCE {
            let site = sites.first(stop.listener, &stop.host)?;
            let is_named = site.rule.hosts.contains(&stop.host);
            if !is_named && (stop.by_url || self.is_of_session_gateway(&stop)) {
                return None;
            }
            let (place, action) = act(site.rule, &stop.path);
            let Action::Redirect(redirect) = action else {
                return None;
            };
            if came_back.is_none() && site.name == start.0.name && place == start.1 {
                came_back = Some(self.url(&stop));
            }
            stop = self.next(redirect, &stop.host, &stop.path)?;
        }
        came_back
    }

    /// Where a redirect leads; `None` if that is nowhere here.
    fn next(&self, redirect: &Redirect, host: &HostPattern, path: &str) -> Option<Stop<'a>> {
        let kept = if redirect.keep_path { path } else { "/" };
        match &redirect.to {
            RedirectTo::Listener(name) => Some(Stop {
                listener: self.listeners.get_key_value(name)?.0,
                host: host.clone(),
                path: kept.to_owned(),
                by_url: false,
            }),
            RedirectTo::Url(url) => {
                let has_tls = url.scheme_str() == Some("https");
                let port = url.port_u16().unwrap_or(if has_tls { 443 } else { 80 });
                let own = url.path();
                let path = if redirect.keep_path {
                    format!("{}{kept}", own.strip_suffix('/').unwrap_or(own))
                } else {
                    own.to_owned()
                };
                Some(Stop {
                    listener: (*self.by_port.get(&(has_tls, port))?)?,
                    host: url.host()?.parse().ok()?,
                    path,
                    by_url: true,
                })
            }
        }
    }

    /// Whether the session gateway has a request for itself, unless a rule names the host.
    fn is_of_session_gateway(&self, stop: &Stop<'_>) -> bool {
        let listener = self.listeners.get(stop.listener);
        listener.is_some_and(|listener| listener.session_gateway) && is_session_path(&stop.path)
    }

    fn url(&self, stop: &Stop<'_>) -> String {
        let listener = self.listeners.get(stop.listener);
        let has_tls = listener.is_some_and(|listener| listener.protocol == ListenerProtocol::Https);
        let scheme = if has_tls { "https" } else { "http" };
        format!("{scheme}://{}{}", stop.host, stop.path)
    }
}

/// How many redirects a client follows: about as many as browsers do.
const PATIENCE: usize = 20;

/// The actions of a rule, each with its place among the paths and a path for which it holds.
fn starts(rule: &Rule) -> impl Iterator<Item = (Option<usize>, String, &Action)> {
    let entries = rule.paths.iter().enumerate().filter_map(move |(index, entry)| {
        let literals = entry.patterns.iter().map(|pattern| pattern.literal());
        let mut held = literals.filter(move |literal| act(rule, literal).0 == Some(index));
        Some((Some(index), held.next()?.to_owned(), &entry.action))
    });
    let elsewhere = ["/", NOWHERE].into_iter().find(|path| act(rule, path).0.is_none());
    let default = elsewhere.map(|path| (None, path.to_owned(), &rule.action));
    default.into_iter().chain(entries)
}

/// A path that nobody writes a pattern for.
const NOWHERE: &str = "/-/nowhere";

/// What a rule does with a path: the place among its paths, and the action.
fn act<'r>(rule: &'r Rule, path: &str) -> (Option<usize>, &'r Action) {
    let mut entries = rule.paths.iter().enumerate();
    let found = entries.find(|(_, entry)| entry.patterns.iter().any(|pattern| pattern.matches(path)));
    found.map_or((None, &rule.action), |(index, entry)| (Some(index), &entry.action))
}

/// A host for each of a rule's.
fn hosts_of(rule: &Rule) -> impl Iterator<Item = HostPattern> {
    let any = rule.hosts.is_empty().then_some("any-host.example");
    let named = rule.hosts.iter().map(HostPattern::to_string);
    named
        .chain(any.map(str::to_owned))
        .filter_map(|host| host.replace(['*', '?'], "x").parse().ok())
}

/// Whether the session gateway answers for a path.
fn is_session_path(path: &str) -> bool {
    let whole = ["/favicon.ico", "/broker/xml", "/portal"];
    let beginnings = ["/ice/", "/r/", "/d/"];
    whole.contains(&path) || beginnings.iter().any(|beginning| path.starts_with(beginning))
}
