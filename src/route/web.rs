//! Which rule a web request belongs to, and what becomes of it.
//!
//! A [`Table`] is compiled from a configuration, never changes and is shared; a reload makes another. What a look-up
//! costs depends on the length of host and path, not on how many listeners, rules and paths there are, but for hosts with
//! wildcards elsewhere than at their beginning, which are tried one after another.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::paths::Paths;
use super::trie::{Entry, Trie};
use crate::config::Listener;
use crate::config::web::{Action, Rule};
use crate::types::HostPattern;

/// Every rule by listener and host.
#[derive(Debug)]
pub struct Table {
    /// The rules, the most important first.
    sites: Vec<Arc<Site>>,
    entrances: HashMap<Box<str>, Entrance>,
}

impl Table {
    /// Compiles rules for their listeners; a listener that is not there is passed over.
    pub fn compile(listeners: &BTreeMap<String, Listener>, rules: &BTreeMap<String, Rule>) -> Self {
        let mut by_priority: Vec<(&String, &Rule)> = rules.iter().collect();
        by_priority.sort_by_key(|(_, rule)| rule.priority);
        let halls = Halls::of(&by_priority);
        let entrances = listeners.iter().map(|(name, listener)| {
            let entrance = Entrance {
                session_gateway: listener.session_gateway,
                halls: halls.of_listener(name),
            };
            (name.as_str().into(), entrance)
        });
        let sites = by_priority.iter().enumerate();
        Self {
            entrances: entrances.collect(),
            sites: sites
                .map(|(index, (name, rule))| Arc::new(Site::new(index, name, rule)))
                .collect(),
        }
    }

    /// The rules, in the order of their priorities: the one at `n` has the [`index`](Site::index) `n`.
    pub fn sites(&self) -> &[Arc<Site>] {
        &self.sites
    }

    /// The rule for a host (lower case, without port and without a dot at the end) on a listener: of those for it, the
    /// one with the lowest priority number.
    #[cfg(test)]
    fn site(&self, listener: &str, host: &str) -> Option<&Arc<Site>> {
        let (site, _) = self.found(self.entrances.get(listener)?, host)?;
        Some(site)
    }

    /// Whose a request is. `path` is its path as it was sent: the session gateway knows one spelling of its own.
    ///
    /// Where the session gateway answers too, a rule that names the host has all of its paths; one for any host or for
    /// a pattern leaves the session gateway [its own](super::is_of_session_gateway), but not `/`.
    pub fn owner(&self, listener: &str, host: &str, path: &str) -> Owner<'_> {
        let Some(entrance) = self.entrances.get(listener) else {
            return Owner::Nobody;
        };
        let session_gateway = entrance.session_gateway;
        match self.found(entrance, host) {
            Some((_, By::Any)) if session_gateway && super::is_of_session_gateway(path) => Owner::SessionGateway,
            Some((site, _)) => Owner::Site(site),
            None if session_gateway => Owner::SessionGateway,
            None => Owner::Nobody,
        }
    }

    fn found(&self, entrance: &Entrance, host: &str) -> Option<(&Arc<Site>, By)> {
        let mut room = [0; MOST_HOST];
        let reversed = room.get_mut(..host.len())?;
        reversed.copy_from_slice(host.as_bytes());
        reversed.reverse();
        let found = entrance
            .halls
            .iter()
            .fold(NONE, |best, hall| hall.first(host, reversed, best));
        let site = self.sites.get(found as usize / 2)?;
        Some((site, if found & 1 == 0 { By::Name } else { By::Any }))
    }
}

/// Whose a request is.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// A rule's.
    Site(&'a Arc<Site>),
    /// The session gateway's, which may have nothing there.
    SessionGateway,
    /// Nobody's: [`WebFault::NoRule`](crate::fault::WebFault::NoRule).
    Nobody,
}

/// A rule, ready to be asked.
#[derive(Debug)]
pub struct Site {
    /// Its name.
    pub name: String,
    /// Its place among all rules by priority, from 0.
    pub index: usize,
    /// What is configured, but for the listeners.
    pub rule: Rule,
    paths: Paths,
    /// The path rule of each pattern.
    path_rules: Vec<u32>,
}

impl Site {
    /// What becomes of a request for a path, which is in its one spelling and without its query: what the path rule says
    /// that is listed first of those that match, or else what the rule says. Linear in the path.
    pub fn act(&self, path: &str) -> Matched<'_> {
        let found = self.paths.first(path).and_then(|pattern| {
            let number = *self.path_rules.get(pattern)? as usize;
            Some(Matched {
                action: &self.rule.paths.get(number)?.action,
                literal: self.paths.literal(pattern),
                path: Some(number),
            })
        });
        found.unwrap_or(Matched {
            action: &self.rule.action,
            literal: "",
            path: None,
        })
    }

    fn new(index: usize, name: &str, rule: &Rule) -> Self {
        let listed = rule.paths.iter().zip(0..);
        let listed = listed.flat_map(|(path, number)| path.patterns.iter().map(move |pattern| (pattern, number)));
        let (patterns, path_rules): (Vec<_>, Vec<u32>) = listed.unzip();
        // A thousand rules for each of a thousand listeners would keep a million names.
        let mut rule = rule.clone();
        rule.listeners = Vec::new();
        Self {
            name: name.to_owned(),
            index,
            rule,
            paths: Paths::new(patterns),
            path_rules,
        }
    }
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Matched<'a> {
    /// The action.
    pub action: &'a Action,
    /// The part of the path that the pattern matched literally, with which it begins (in any case); empty if no pattern
    /// did. This is what a path override stands in for.
    pub literal: &'a str,
    /// The number of the path rule, from 0; `None` if none matched.
    pub path: Option<usize>,
}

/// A listener as requests come in.
#[derive(Debug)]
struct Entrance {
    session_gateway: bool,
    halls: Vec<Arc<Hall>>,
}

/// How a host was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    /// It is named.
    Name,
    /// By a pattern, or by a rule for any host.
    Any,
}

/// Rules that hold on the same listeners, by host.
///
/// The rank of a host is twice the site's index, and one more unless the host is named: the lowest rank is the most
/// important rule's, and tells whether it names the host.
#[derive(Debug)]
struct Hall {
    /// Names and patterns of which only the beginning is wild (`*.example.com`, and any host), back to front.
    names: Trie,
    /// All others, the lowest rank first.
    patterns: Vec<(u32, HostPattern)>,
}

impl Hall {
    fn new(rules: &[(u32, &Rule)]) -> Self {
        let mut names = Vec::new();
        let mut patterns = Vec::new();
        for (index, rule) in rules {
            let named = index * 2;
            if rule.hosts.is_empty() {
                names.push(backwards("", true, named + 1));
            }
            for host in &rule.hosts {
                let text = host.as_str();
                let tail = text.strip_prefix('*').filter(|tail| !tail.contains(['*', '?']));
                match tail {
                    _ if host.is_exact() => names.push(backwards(text, false, named)),
                    Some(tail) => names.push(backwards(tail, true, named + 1)),
                    None => patterns.push((named + 1, host.clone())),
                }
            }
        }
        patterns.sort_by_key(|(rank, _)| *rank);
        Self {
            names: Trie::new(names),
            patterns,
        }
    }

    /// The lowest rank for a host, which stands there back to front too, if it is lower than `best`; else that.
    fn first(&self, host: &str, reversed: &[u8], best: u32) -> u32 {
        let best = self.names.first(reversed).unwrap_or(NONE).min(best);
        let better = self.patterns.iter().take_while(|(rank, _)| *rank < best);
        let mut better = better.filter(|(_, pattern)| pattern.matches(host));
        better.next().map_or(best, |(rank, _)| *rank)
    }
}

fn backwards(text: &str, is_prefix: bool, rank: u32) -> Entry {
    Entry {
        text: text.bytes().rev().collect(),
        is_prefix,
        rank,
    }
}

/// The rules by the sets of listeners on which they hold.
///
/// What holds on many listeners is compiled once and shared by them, so that a thousand rules for any of a thousand
/// listeners are not a million entries. What holds on a few is compiled for each of them, so that each has but one of
/// its own.
struct Halls<'a> {
    own: HashMap<&'a str, Arc<Hall>>,
    shared: Vec<(Vec<&'a str>, Arc<Hall>)>,
}

impl<'a> Halls<'a> {
    fn of(by_priority: &[(&'a String, &'a Rule)]) -> Self {
        let mut own: HashMap<&str, Vec<_>> = HashMap::new();
        let mut shared: HashMap<Vec<&str>, Vec<_>> = HashMap::new();
        for ((_, rule), index) in by_priority.iter().zip(0..) {
            let mut names: Vec<&str> = rule.listeners.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            if names.len() > FEW {
                shared.entry(names).or_default().push((index, *rule));
            } else {
                for name in names {
                    own.entry(name).or_default().push((index, *rule));
                }
            }
        }
        let hall = |rules: Vec<(u32, &Rule)>| Arc::new(Hall::new(&rules));
        Self {
            own: own.into_iter().map(|(name, rules)| (name, hall(rules))).collect(),
            shared: shared.into_iter().map(|(names, rules)| (names, hall(rules))).collect(),
        }
    }

    fn of_listener(&self, name: &str) -> Vec<Arc<Hall>> {
        let holds = |names: &Vec<&str>| names.binary_search(&name).is_ok();
        let shared = self
            .shared
            .iter()
            .filter(|(names, _)| holds(names))
            .map(|(_, hall)| hall);
        self.own.get(name).into_iter().chain(shared).cloned().collect()
    }
}

/// A name has at most 253 bytes, an address fewer.
const MOST_HOST: usize = 255;
/// Listeners of a rule that has its place with each of them.
const FEW: usize = 8;
const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests;
