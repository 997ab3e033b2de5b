//! Rewrite sets, and what becomes of paths that they make.

use std::collections::BTreeMap;

use http::HeaderName;
use http::header::HOST;

use super::Check;
use crate::config::document;
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::{Action, Rule};
use crate::types::{Condition, Part, Pattern, Place, Rewrite, RewriteFault, RewriteRule, Template};

impl Check<'_> {
    /// The sets whose rules fit.
    pub(super) fn rewrites(&mut self, sets: BTreeMap<String, document::RewriteSet>) -> BTreeMap<String, Rewrite> {
        let mut built = BTreeMap::new();
        for (name, set) in sets {
            let list = SettingPath::of(&["rewrite", &name, "rule"]);
            let mut rules = Vec::new();
            for (index, rule) in set.rule.into_iter().flatten().enumerate() {
                let path = self.places.element(&list, index);
                rules.push(self.rewrite_rule(index, rule, &path));
            }
            built.insert(name, Rewrite { rules });
        }
        built
    }

    fn rewrite_rule(&mut self, index: usize, rule: document::RewriteRule, path: &SettingPath) -> RewriteRule {
        let mut conditions = Vec::new();
        let mut whole = !self.places.lost_part(path);
        for (index, condition) in rule.when.into_iter().enumerate() {
            let place = self.places.element(&path.key("when"), index);
            match self.condition(condition, &place) {
                Some(condition) => conditions.push(condition),
                None => whole = false,
            }
        }
        let request_headers = self.rewritten_fields(rule.request_headers, &path.key("request_headers"));
        let response_headers = self.rewritten_fields(rule.response_headers, &path.key("response_headers"));
        let built = RewriteRule {
            name: rule.name.unwrap_or_else(|| (index + 1).to_string()),
            conditions,
            request_headers: by_name(&request_headers),
            response_headers: by_name(&response_headers),
            path: rule.path.map(|template| template.0),
            query: rule.query.map(|template| template.0),
            reevaluate: rule.reevaluate,
        };
        if whole {
            for fault in built.faults() {
                let at = match place_of(&fault) {
                    Some(Place::Condition) => path.key("when"),
                    Some(Place::RequestHeader(name)) => {
                        path.key("request_headers").key(written(&request_headers, &name))
                    }
                    Some(Place::ResponseHeader(name)) => {
                        path.key("response_headers").key(written(&response_headers, &name))
                    }
                    Some(Place::Path) => path.key("path"),
                    Some(Place::Query) => path.key("query"),
                    None => path.clone(),
                };
                self.note(at, Unpublishable::Rewrite(fault));
            }
        }
        built
    }

    fn condition(&mut self, condition: document::Condition, path: &SettingPath) -> Option<Condition> {
        let pattern = match condition.matches {
            Some(text) => match Pattern::new(&text, condition.ignore_case) {
                Ok(pattern) => Some(pattern),
                Err(why) => {
                    self.note(path.key("matches"), Unpublishable::Pattern(why));
                    return None;
                }
            },
            None => None,
        };
        if pattern.is_none() && condition.ignore_case {
            self.missing(&path.key("matches"), r#"matches = "^/shop/", or leave out ignore_case"#);
        }
        Some(Condition {
            variable: condition.variable?.0,
            pattern,
            negate: condition.negate,
        })
    }

    /// The fields with their values; one that stands twice is noted.
    fn rewritten_fields(
        &mut self,
        fields: BTreeMap<String, document::format::web::Template>,
        path: &SettingPath,
    ) -> Vec<(String, Template)> {
        let mut first: BTreeMap<String, String> = BTreeMap::new();
        for key in fields.keys() {
            if let Some(other) = first.insert(key.to_ascii_lowercase(), key.clone()) {
                let other = path.key(&other);
                self.note(path.key(key), Unpublishable::SameField { other });
            }
        }
        fields.into_iter().map(|(key, value)| (key, value.0)).collect()
    }

    /// Notes rules whose rewriting chooses among paths that there are not, or comes back to itself for ever.
    pub(super) fn rewrite_circles(&mut self, rules: &BTreeMap<String, Rule>, sets: &BTreeMap<String, Rewrite>) {
        for (name, rule) in rules {
            let path = SettingPath::of(&["rule", name]);
            for place in (0..rule.paths.len()).map(Some).chain([None]) {
                let Some(set) = set_of(rule, place, sets) else {
                    continue;
                };
                let at = match place {
                    Some(index) => self.places.element(&path.key("path"), index),
                    None => path.clone(),
                };
                if rule.paths.is_empty() && set.rules.iter().any(|rule| rule.reevaluate) {
                    self.note(at.key("rewrite"), Unpublishable::NothingToChoose);
                } else if let Some(path) = circle(rule, place, sets) {
                    self.note(at.key("rewrite"), Unpublishable::RewriteCircle { path });
                }
            }
        }
    }
}

/// The fields by their names, which have been checked with the shape.
fn by_name(fields: &[(String, Template)]) -> Vec<(HeaderName, Template)> {
    let fields = fields.iter();
    fields
        .filter_map(|(key, value)| Some((key.parse().ok()?, value.clone())))
        .collect()
}

/// A field's name as it is written.
fn written<'f>(fields: &'f [(String, Template)], name: &'f HeaderName) -> &'f str {
    let same = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name.as_str()));
    same.map_or(name.as_str(), |(key, _)| key)
}

/// The part of a rule in which a fault is; `None` for the whole.
fn place_of(fault: &RewriteFault) -> Option<Place> {
    match fault {
        RewriteFault::NoAction | RewriteFault::NothingToReevaluate => None,
        RewriteFault::HostDeleted => Some(Place::RequestHeader(HOST)),
        RewriteFault::RelativePath => Some(Place::Path),
        RewriteFault::Framing(place)
        | RewriteFault::TooEarly { place, .. }
        | RewriteFault::NoCapture { place, .. }
        | RewriteFault::NotOfUrl { place, .. } => Some(place.clone()),
    }
}

/// What is known of a path before any request is there.
#[derive(Clone, Copy)]
struct Known<'a> {
    /// How it begins.
    beginning: &'a str,
    /// Whether that is all of it.
    whole: bool,
}

/// A path, or its beginning, from which rewriting comes back to this place of a rule whatever the request is.
fn circle(rule: &Rule, start: Option<usize>, sets: &BTreeMap<String, Rewrite>) -> Option<String> {
    let mut place = start;
    // Each step leads to another place, or the circle is closed elsewhere and noted there.
    for _ in 0..=rule.paths.len() {
        let known = made(set_of(rule, place, sets)?)?;
        place = chosen(rule, known)?;
        if place == start {
            return Some(known.beginning.to_owned());
        }
    }
    None
}

/// The rewrite set of a place of a rule: one of its paths, or none of them.
fn set_of<'s>(rule: &Rule, place: Option<usize>, sets: &'s BTreeMap<String, Rewrite>) -> Option<&'s Rewrite> {
    let action = match place {
        Some(index) => &rule.paths.get(index)?.action,
        None => &rule.action,
    };
    match action {
        Action::Forward(forward) => sets.get(forward.rewrite.as_ref()?),
        Action::Redirect(_) => None,
    }
}

/// The path by which a set chooses again in any case, as far as it is the same for every request.
fn made(set: &Rewrite) -> Option<Known<'_>> {
    let mut path = None;
    let mut chooses = false;
    for rule in set.rules.iter().filter(|rule| rule.path.is_some()) {
        let always = rule.conditions.iter().all(never_fails);
        chooses |= always && rule.reevaluate;
        path = rule.path.as_ref().filter(|_| always);
    }
    match path.filter(|_| chooses)?.parts() {
        [Part::Text(beginning)] => Some(Known { beginning, whole: true }),
        [Part::Text(beginning), ..] => Some(Known {
            beginning,
            whole: false,
        }),
        _ => None,
    }
}

fn never_fails(condition: &Condition) -> bool {
    let pattern = condition.pattern.as_ref().map(Pattern::as_str);
    !condition.negate
        && pattern.is_some_and(|pattern| ["", "^", ".*", "^.*", "^.*$", "(.*)", "^(.*)$"].contains(&pattern))
}

/// The place of a rule that has every path of which this is known; `None` if the requests part there.
fn chosen(rule: &Rule, known: Known<'_>) -> Option<Option<usize>> {
    let beginning = known.beginning.to_ascii_lowercase();
    for (index, entry) in rule.paths.iter().enumerate() {
        for pattern in &entry.patterns {
            if pattern.matches(known.beginning) && (known.whole || pattern.is_prefix()) {
                return Some(Some(index));
            }
            let literal = pattern.literal().to_ascii_lowercase();
            if !known.whole && literal.starts_with(&beginning) {
                return None;
            }
        }
    }
    Some(None)
}
