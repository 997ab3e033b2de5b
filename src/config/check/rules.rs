//! Rules: what becomes of whose requests, and who may ask.

use std::collections::BTreeMap;

use http::StatusCode;
use http::header::{HOST, HeaderName, HeaderValue};

use super::layers::Layer;
use super::web::{Names, Used};
use super::{Check, secondary};
use crate::config::document::{self, format};
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::{
    Action, Forward, ForwardAuthentication, Guard, HeaderPolicy, PathRule, Rate, Redirect, RedirectTo, Rule,
    UnusualFields,
};
use crate::config::{Blast, Listener, Tunnel};
use crate::types::{self, Authority, PathPattern};

/// What says what becomes of requests.
struct Told {
    pool: Option<String>,
    backend: Option<String>,
    rewrite: Option<String>,
    redirect: Option<document::Redirect>,
}

impl Check<'_> {
    /// The rules that are whole.
    pub(super) fn rules(
        &mut self,
        rules: BTreeMap<String, document::Rule>,
        listeners: &BTreeMap<String, Listener>,
        names: &Names,
        used: &mut Used,
    ) -> BTreeMap<String, Rule> {
        self.priorities(&rules);
        let mut built = BTreeMap::new();
        for (name, rule) in rules {
            let path = SettingPath::of(&["rule", &name]);
            if let Some(rule) = self.rule(rule, listeners, names, used, &path) {
                built.insert(name, rule);
            }
        }
        built
    }

    fn priorities(&mut self, rules: &BTreeMap<String, document::Rule>) {
        let mut taken: BTreeMap<u16, &String> = BTreeMap::new();
        let mut twice = Vec::new();
        for (name, rule) in rules {
            let Some(priority) = rule.priority else { continue };
            match taken.get(&priority) {
                Some(other) => twice.push((name, priority, *other)),
                None => drop(taken.insert(priority, name)),
            }
        }
        for (name, priority, other) in twice {
            let free = (priority..=20_000)
                .chain(1..priority)
                .find(|free| !taken.contains_key(free));
            let problem = Unpublishable::SamePriority {
                priority,
                other: SettingPath::of(&["rule", other]),
                free: free.unwrap_or(priority),
            };
            self.note(SettingPath::of(&["rule", name, "priority"]), problem);
        }
    }

    fn rule(
        &mut self,
        rule: document::Rule,
        listeners: &BTreeMap<String, Listener>,
        names: &Names,
        used: &mut Used,
        path: &SettingPath,
    ) -> Option<Rule> {
        let list = path.key("listeners");
        for (index, listener) in rule.listeners.iter().flatten().enumerate() {
            self.reference("listener", listener, names.listeners.as_ref(), &list, index);
        }
        match self.layer(rule.listeners.as_deref(), listeners, names, path) {
            Some(Layer::Bytes) => return self.passing_rule(rule, names, used, path),
            Some(Layer::Http) => self.backends_of_http(&rule, names, path),
            // It is noted why not; whatever else is wrong is told as for a rule of HTTP.
            None => {}
        }
        let of_http = |(name, listener): (&String, &Listener)| listener.protocol.is_http().then(|| name.clone());
        let told = Told {
            pool: rule.pool,
            backend: rule.backend,
            rewrite: rule.rewrite,
            redirect: rule.redirect,
        };
        let action = self.action(told, names, used, path);
        let paths = self.paths(rule.path, names, used, &path.key("path"));
        let guard = self.guard(
            (rule.allow, rule.deny),
            rule.rate,
            rule.authentication,
            (names, used),
            path,
        );
        let request_headers = self.fields(rule.request_headers, &path.key("request_headers"), true);
        let response_headers = self.answer_fields(rule.response_headers, &path.key("response_headers"));
        let error_pages = self.error_pages(rule.error_pages, &path.key("error_pages"));
        if rule.compress {
            self.note(path.key("compress"), Unpublishable::Compresses);
        }
        Some(Rule {
            listeners: rule
                .listeners
                .unwrap_or_else(|| listeners.iter().filter_map(of_http).collect()),
            hosts: rule.hosts.into_iter().flatten().map(|host| host.0).collect(),
            priority: rule.priority?,
            action: action?,
            paths,
            guard,
            error_pages,
            request_headers,
            response_headers,
            max_body: rule.max_body,
            compress: rule.compress,
            unusual_fields: match rule.unusual_fields {
                document::UnusualFields::Drop => UnusualFields::Drop,
                document::UnusualFields::Refuse => UnusualFields::Refuse,
                document::UnusualFields::Pass => UnusualFields::Pass,
            },
        })
    }

    /// The paths that are whole; those that never hold are noted.
    fn paths(
        &mut self,
        paths: Vec<document::RulePath>,
        names: &Names,
        used: &mut Used,
        list: &SettingPath,
    ) -> Vec<PathRule> {
        let mut covered = Covered::default();
        let mut built = Vec::new();
        for (index, entry) in paths.into_iter().enumerate() {
            let path = self.places.element(list, index);
            let patterns: Vec<PathPattern> = entry.paths.into_iter().flatten().map(|pattern| pattern.0).collect();
            for (index, pattern) in patterns.iter().enumerate() {
                let place = self.places.element(&path.key("paths"), index);
                if let Some(other) = covered.cover(pattern, &place) {
                    self.note(place, Unpublishable::ShadowedPath { other });
                }
            }
            let told = Told {
                pool: entry.pool,
                backend: entry.backend,
                rewrite: entry.rewrite,
                redirect: entry.redirect,
            };
            let action = self.action(told, names, used, &path);
            if let Some(action) = action
                && !patterns.is_empty()
            {
                built.push(PathRule { patterns, action });
            }
        }
        built
    }

    fn action(&mut self, told: Told, names: &Names, used: &mut Used, path: &SettingPath) -> Option<Action> {
        if let Some(pool) = &told.pool {
            self.refers("pool", pool, names.pools.as_ref(), path.key("pool"));
            used.pools.insert(pool.clone());
        }
        if let Some(backend) = &told.backend {
            self.refers("backend", backend, names.backends.as_ref(), path.key("backend"));
            used.backends.insert(backend.clone());
        }
        if let Some(rewrite) = &told.rewrite {
            self.refers("rewrite set", rewrite, names.rewrites.as_ref(), path.key("rewrite"));
            used.rewrites.insert(rewrite.clone());
        }
        if let Some(redirect) = told.redirect {
            for (key, said) in [
                ("pool", told.pool),
                ("backend", told.backend),
                ("rewrite", told.rewrite),
            ] {
                if said.is_some() {
                    self.not_with(path.key(key), "redirect");
                }
            }
            return self
                .redirect(redirect, names, &path.key("redirect"))
                .map(Action::Redirect);
        }
        let Some(pool) = told.pool else {
            if !self.places.lost(&path.key("redirect")) {
                let example = r#"pool = "NAME", or redirect = { url = "https://www.example.com" }"#;
                self.missing(&path.key("pool"), example);
            }
            return None;
        };
        Some(Action::Forward(Forward {
            pool,
            backend: told.backend,
            rewrite: told.rewrite,
        }))
    }

    fn redirect(&mut self, redirect: document::Redirect, names: &Names, path: &SettingPath) -> Option<Redirect> {
        if let Some(listener) = &redirect.listener {
            self.refers("listener", listener, names.listeners.as_ref(), path.key("listener"));
            if names.layers.of_listener(listener) == Some(Layer::Bytes) {
                self.note(path.key("listener"), Unpublishable::RedirectToBytes);
            }
        }
        let status = match redirect.status {
            301..=303 | 307 | 308 => StatusCode::from_u16(redirect.status).ok(),
            status => {
                self.note(path.key("status"), Unpublishable::RedirectStatus { status });
                None
            }
        };
        let to = match (redirect.listener, redirect.url) {
            (Some(listener), None) => RedirectTo::Listener(listener),
            (None, Some(url)) => RedirectTo::Url(url.0),
            _ => {
                if !self.places.lost(&path.key("listener")) && !self.places.lost(&path.key("url")) {
                    self.note(path.clone(), Unpublishable::RedirectTarget);
                }
                return None;
            }
        };
        Some(Redirect {
            status: status?,
            to,
            keep_path: redirect.path,
            keep_query: redirect.query,
        })
    }

    pub(super) fn guard(
        &mut self,
        (allow, deny): (Vec<format::Network>, Vec<format::Network>),
        rate: Option<document::Rate>,
        authentication: Option<document::ForwardAuthentication>,
        (names, used): (&Names, &mut Used),
        path: &SettingPath,
    ) -> Guard {
        let rate = rate.and_then(|rate| {
            let per_second = rate.per_second?;
            Some(Rate {
                per_second,
                burst: rate.burst.unwrap_or(per_second),
            })
        });
        let path = path.key("authentication");
        Guard {
            allow: secondary::networks(&allow),
            deny: secondary::networks(&deny),
            rate,
            authentication: authentication.and_then(|service| self.authentication(service, names, used, &path)),
        }
    }

    fn authentication(
        &mut self,
        service: document::ForwardAuthentication,
        names: &Names,
        used: &mut Used,
        path: &SettingPath,
    ) -> Option<ForwardAuthentication> {
        if let Some(pool) = &service.pool {
            self.refers("pool", pool, names.pools.as_ref(), path.key("pool"));
            used.pools.insert(pool.clone());
        }
        if let Some(backend) = &service.backend {
            self.refers("backend", backend, names.backends.as_ref(), path.key("backend"));
            used.backends.insert(backend.clone());
        }
        for (index, field) in service.copy.iter().enumerate() {
            self.own_field(&field.0, self.places.element(&path.key("copy"), index), true);
        }
        Some(ForwardAuthentication {
            pool: service.pool?,
            backend: service.backend,
            path: service.path?.0,
            copy: service.copy.into_iter().map(|field| field.0).collect(),
            exempt: service.exempt.into_iter().map(|pattern| pattern.0).collect(),
        })
    }

    fn answer_fields(&mut self, fields: document::AnswerFields, path: &SettingPath) -> HeaderPolicy {
        let said = document::Fields {
            set: fields.set,
            default: fields.default,
            remove: fields.remove,
        };
        let mut policy = self.fields(said, path, false);
        if fields.secure {
            let speaks_of = |name: &HeaderName| {
                let mut set = policy.set.iter().chain(&policy.default).map(|(name, _)| name);
                set.any(|set| set == name) || policy.remove.contains(name)
            };
            let secure: Vec<_> = SECURE
                .into_iter()
                .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
                .filter(|(name, _)| !speaks_of(name))
                .collect();
            policy.default.extend(secure);
        }
        policy
    }

    fn fields(&mut self, fields: document::Fields, path: &SettingPath, of_requests: bool) -> HeaderPolicy {
        for (index, field) in fields.remove.iter().enumerate() {
            let place = self.places.element(&path.key("remove"), index);
            self.own_field(&field.0, place, of_requests);
        }
        HeaderPolicy {
            set: self.set_fields(fields.set, &path.key("set"), of_requests),
            default: self.set_fields(fields.default, &path.key("default"), of_requests),
            remove: fields.remove.into_iter().map(|field| field.0).collect(),
        }
    }

    fn set_fields(
        &mut self,
        fields: BTreeMap<String, format::web::FieldValue>,
        path: &SettingPath,
        of_requests: bool,
    ) -> Vec<(HeaderName, HeaderValue)> {
        let mut places: BTreeMap<String, SettingPath> = BTreeMap::new();
        let mut built = Vec::new();
        for (key, value) in fields {
            let place = path.key(&key);
            // The names have been checked with the shape.
            let Ok(name) = key.parse::<HeaderName>() else { continue };
            self.own_field(&name, place.clone(), of_requests);
            if let Some(other) = places.insert(name.to_string(), place.clone()) {
                self.note(place, Unpublishable::SameField { other });
            }
            built.push((name, value.0));
        }
        built
    }

    /// Notes a field that says how a message is framed, or where it goes.
    fn own_field(&mut self, name: &HeaderName, path: SettingPath, of_requests: bool) {
        if types::is_framing(name) || (of_requests && *name == HOST) {
            let name = name.to_string();
            self.note(path, Unpublishable::OwnField { name });
        }
    }

    /// Notes rules that take from the session gateway what it needs, and rules that leave it what they may want.
    pub(super) fn session_gateway(
        &mut self,
        rules: &BTreeMap<String, Rule>,
        listeners: &BTreeMap<String, Listener>,
        tunnel: &Tunnel,
        blast: &Blast,
    ) {
        let of_tunnel = tunnel.external_url.as_deref().and_then(host_of);
        let of_blast = blast.external_url.as_ref().map(|url| url.host.to_ascii_lowercase());
        let own = [("tunnel", of_tunnel), ("blast", of_blast)];
        for (name, rule) in rules {
            let has_session_gateway =
                |listener: &&String| listeners.get(*listener).is_some_and(|it| it.session_gateway);
            let Some(listener) = rule.listeners.iter().find(has_session_gateway) else {
                continue;
            };
            let path = SettingPath::of(&["rule", name]);
            let list = path.key("hosts");
            for (index, host) in rule.hosts.iter().enumerate() {
                let taken = own.iter().find(|(_, own)| own.as_deref() == Some(host.as_str()));
                if let Some((table, _)) = taken {
                    let problem = Unpublishable::TakesSessionGateway {
                        host: host.to_string(),
                        url: SettingPath::of(&[table, "external_url"]),
                    };
                    self.note(self.places.element(&list, index), problem);
                }
            }
            if rule.hosts.iter().any(|host| !host.is_exact()) || rule.hosts.is_empty() {
                let listener = SettingPath::of(&["listener", listener]);
                self.note(path, Unpublishable::StaysWithSessionGateway { listener });
            }
        }
    }
}

/// What browsers are told so that they are careful.
const SECURE: [(&str, &str); 4] = [
    ("strict-transport-security", "max-age=31536000"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "SAMEORIGIN"),
    ("referrer-policy", "strict-origin-when-cross-origin"),
];

/// The host of a base URL, as hosts compare.
fn host_of(url: &str) -> Option<String> {
    let authority: Authority = url.strip_prefix("https://")?.parse().ok()?;
    Some(authority.host)
}

/// The paths that the earlier patterns of a rule match, each with the setting that says so.
#[derive(Default)]
struct Covered {
    whole: BTreeMap<String, SettingPath>,
    /// None begins with another: what one covers is taken out.
    beginnings: BTreeMap<String, SettingPath>,
}

impl Covered {
    /// Adds a pattern, unless an earlier one matches whatever it does; then says which.
    fn cover(&mut self, pattern: &PathPattern, place: &SettingPath) -> Option<SettingPath> {
        let literal = pattern.literal().to_ascii_lowercase();
        let before = self.beginnings.range(..=literal.clone()).next_back();
        if let Some((_, other)) = before.filter(|(beginning, _)| literal.starts_with(*beginning)) {
            return Some(other.clone());
        }
        if !pattern.is_prefix() {
            if let Some(other) = self.whole.get(&literal) {
                return Some(other.clone());
            }
            self.whole.insert(literal, place.clone());
            return None;
        }
        let longer: Vec<String> = self
            .beginnings
            .range(literal.clone()..)
            .map_while(|(beginning, _)| beginning.starts_with(&literal).then(|| beginning.clone()))
            .collect();
        for beginning in longer {
            self.beginnings.remove(&beginning);
        }
        self.beginnings.insert(literal, place.clone());
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns() -> impl Strategy<Value = Vec<PathPattern>> {
        let pattern = "/[abAB/]{0,3}[*]?".prop_map(|text| text.parse().unwrap());
        proptest::collection::vec(pattern, 0..12)
    }

    /// Whether a pattern matches whatever another does.
    fn covers(one: &PathPattern, other: &PathPattern) -> bool {
        one.matches(other.literal()) && (one.is_prefix() || !other.is_prefix())
    }

    proptest! {
        #[test]
        fn a_pattern_is_covered_exactly_if_one_before_it_covers_it(patterns in patterns()) {
            let mut covered = Covered::default();
            for (index, pattern) in patterns.iter().enumerate() {
                let place = SettingPath::of(&["paths"]).index(index);
                let found = covered.cover(pattern, &place).is_some();
                prop_assert_eq!(found, patterns[..index].iter().any(|earlier| covers(earlier, pattern)), "{}", pattern);
            }
        }
    }
}
