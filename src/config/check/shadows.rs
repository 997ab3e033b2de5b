//! Which rule holds for a host on a listener, and rules that never do.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::Check;
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::Rule;
use crate::types::HostPattern;

/// Rules by their hosts, so that a look at one costs no look at all others.
#[derive(Default)]
pub(super) struct Sites<'a> {
    /// By priority, the one that comes first before the others.
    sites: Vec<Site<'a>>,
    exact: HashMap<&'a str, Vec<usize>>,
    /// Of `*.example.com`, by `example.com`.
    suffixes: HashMap<&'a str, Vec<usize>>,
    patterns: Vec<(&'a HostPattern, usize)>,
    /// The first rule for any host on a listener.
    any: HashMap<&'a str, usize>,
    /// Most rules hold on the same listeners as others.
    reaches: HashMap<&'a [String], Rc<BTreeSet<&'a str>>>,
}

/// A rule, and where it holds.
#[derive(Clone)]
pub(super) struct Site<'a> {
    pub(super) name: &'a str,
    pub(super) rule: &'a Rule,
    reach: Rc<BTreeSet<&'a str>>,
}

impl<'a> Sites<'a> {
    /// The rule that holds for a host on a listener.
    pub(super) fn first(&self, listener: &str, host: &HostPattern) -> Option<&Site<'a>> {
        self.sites.get(self.first_of(&self.covering(host), listener)?)
    }

    /// All rules, the one that comes first before the others.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Site<'a>> {
        self.sites.iter()
    }

    /// Adds a rule that comes after all others.
    fn add(&mut self, name: &'a str, rule: &'a Rule) {
        let index = self.sites.len();
        let names = rule.listeners.as_slice();
        let reach = self.reaches.entry(names);
        let reach = reach.or_insert_with(|| Rc::new(names.iter().map(String::as_str).collect()));
        let reach = Rc::clone(reach);
        self.sites.push(Site { name, rule, reach });
        for host in &rule.hosts {
            match host.as_str().strip_prefix("*.") {
                _ if host.is_exact() => self.exact.entry(host.as_str()).or_default().push(index),
                Some(suffix) if !suffix.contains(['*', '?']) => self.suffixes.entry(suffix).or_default().push(index),
                _ => self.patterns.push((host, index)),
            }
        }
        if rule.hosts.is_empty() {
            for listener in names {
                self.any.entry(listener).or_insert(index);
            }
        }
    }

    /// The rules that hold instead of this one, if there is no request for which it does.
    fn shadows_of(&self, rule: &Rule) -> Option<BTreeSet<usize>> {
        if rule.listeners.is_empty() {
            return None;
        }
        let mut shadows = BTreeSet::new();
        if rule.hosts.is_empty() {
            for listener in &rule.listeners {
                shadows.insert(self.first_of(&BTreeSet::new(), listener)?);
            }
        }
        for host in &rule.hosts {
            let covering = self.covering(host);
            for listener in &rule.listeners {
                shadows.insert(self.first_of(&covering, listener)?);
            }
        }
        Some(shadows)
    }

    /// The rules with a host that covers all of `host`; those for any host are not among them.
    fn covering(&self, host: &HostPattern) -> BTreeSet<usize> {
        let text = host.as_str();
        let exact = self.exact.get(text).filter(|_| host.is_exact());
        let dots = text.match_indices('.');
        let behind_dots = dots.filter_map(|(dot, _)| self.suffixes.get(text.split_at(dot + 1).1));
        let named = exact.into_iter().chain(behind_dots).flatten().copied();
        let by_pattern = self.patterns.iter().filter(|(pattern, _)| pattern.covers(host));
        named.chain(by_pattern.map(|(_, index)| *index)).collect()
    }

    /// The first on a listener of some rules and of those for any host.
    fn first_of(&self, rules: &BTreeSet<usize>, listener: &str) -> Option<usize> {
        let holds = |index: &usize| self.sites.get(*index).is_some_and(|site| site.reach.contains(listener));
        let named = rules.iter().copied().find(|index| holds(index));
        let any = self.any.get(listener).copied();
        named.into_iter().chain(any).min()
    }
}

impl Check<'_> {
    /// The rules by their hosts; those that never hold are noted.
    pub(super) fn sites<'r>(&mut self, rules: &'r BTreeMap<String, Rule>) -> Sites<'r> {
        let mut in_order: Vec<_> = rules.iter().collect();
        in_order.sort_by_key(|(_, rule)| rule.priority);
        let mut sites = Sites::default();
        for (name, rule) in in_order {
            if let Some(shadows) = sites.shadows_of(rule) {
                let named = shadows.iter().filter_map(|index| sites.sites.get(*index));
                let others: Vec<_> = named
                    .take(MOST_NAMED)
                    .map(|site| SettingPath::of(&["rule", site.name]).to_string())
                    .collect();
                let others = others.join(" or ");
                self.note(SettingPath::of(&["rule", name]), Unpublishable::ShadowedRule { others });
            }
            sites.add(name, rule);
        }
        sites
    }
}

/// The most rules that a warning names.
const MOST_NAMED: usize = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::web::{Action, Forward, Guard, HeaderPolicy, UnusualFields};

    fn rule(listeners: &[&str], hosts: &[&str], priority: u16) -> Rule {
        Rule {
            listeners: listeners.iter().map(|name| (*name).to_owned()).collect(),
            hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
            priority,
            action: Action::Forward(Forward {
                pool: "shop".to_owned(),
                backend: None,
                rewrite: None,
            }),
            paths: Vec::new(),
            guard: Guard::default(),
            error_pages: BTreeMap::new(),
            request_headers: HeaderPolicy::default(),
            response_headers: HeaderPolicy::default(),
            max_body: None,
            compress: false,
            unusual_fields: UnusualFields::default(),
        }
    }

    /// The names of the rules that hold instead of the last one.
    fn shadows(rules: &[Rule]) -> Option<Vec<usize>> {
        let names: Vec<String> = (0..rules.len()).map(|index| index.to_string()).collect();
        let (last, before) = rules.split_last().unwrap();
        let mut sites = Sites::default();
        for (name, rule) in names.iter().zip(before) {
            sites.add(name, rule);
        }
        Some(sites.shadows_of(last)?.into_iter().collect())
    }

    #[test]
    fn a_rule_is_shadowed_where_others_have_all_of_its_hosts_everywhere() {
        let wild = rule(&["a", "b"], &["*.x.com"], 1);
        assert_eq!(
            shadows(&[wild.clone(), rule(&["a"], &["s.x.com", "*.y.x.com"], 2)]),
            Some(vec![0])
        );
        assert_eq!(shadows(&[wild.clone(), rule(&["a"], &["s.x.com", "x.com"], 2)]), None);
        assert_eq!(shadows(&[wild.clone(), rule(&["a", "c"], &["s.x.com"], 2)]), None);
        assert_eq!(shadows(&[wild.clone(), rule(&["a"], &[], 2)]), None);
        let on_c = rule(&["c"], &[], 2);
        assert_eq!(
            shadows(&[wild, on_c, rule(&["a", "c"], &["s.x.com"], 3)]),
            Some(vec![0, 1])
        );
        assert_eq!(shadows(&[rule(&["a"], &[], 1), rule(&["a"], &[], 2)]), Some(vec![0]));
        assert_eq!(
            shadows(&[rule(&["a"], &["?.x.com"], 1), rule(&["a"], &["*.x.com"], 2)]),
            None
        );
    }

    fn hosts() -> impl Strategy<Value = Vec<&'static str>> {
        proptest::sample::subsequence(vec!["a.b", "c.a.b", "*.a.b", "*.b", "?.a.b", "*a.b", "b", "*"], 0..3)
    }

    fn listeners() -> impl Strategy<Value = Vec<&'static str>> {
        proptest::sample::subsequence(vec!["x", "y"], 1..=2)
    }

    proptest! {
        #[test]
        fn the_first_rule_for_a_host_is_the_first_that_has_it(
            rules in proptest::collection::vec((listeners(), hosts()), 1..6),
            host in proptest::sample::select(vec!["a.b", "c.a.b", "d.a.b", "b", "z", "x.c.a.b"]),
        ) {
            let rules: Vec<Rule> = rules.iter().map(|(listeners, hosts)| rule(listeners, hosts, 1)).collect();
            let names: Vec<String> = (0..rules.len()).map(|index| index.to_string()).collect();
            let mut sites = Sites::default();
            for (name, rule) in names.iter().zip(&rules) {
                sites.add(name, rule);
            }
            for listener in ["x", "y", "z"] {
                let naive = rules.iter().position(|rule| {
                    let has_host = rule.hosts.is_empty() || rule.hosts.iter().any(|pattern| pattern.matches(host));
                    has_host && rule.listeners.iter().any(|name| name == listener)
                });
                let found = sites.first(listener, &host.parse().unwrap()).map(|site| site.name.parse().unwrap());
                prop_assert_eq!(found, naive);
            }
        }
    }
}
