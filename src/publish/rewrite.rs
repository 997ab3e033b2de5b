//! Rewrite sets at work (behaviour sheet of the application gateway, section 4).
//!
//! A [`Set`] is applied twice: [`Set::request`] to a request after [`headers::prepare`](super::headers::prepare), and
//! [`Set::answer`] to the final answer. Rules are taken in their order, and each sees what those before it made; within
//! a rule every value is made before any is set. What a rule has to say of the request is settled while the request
//! passes: for the answer it is [`Kept`], and nothing of the request has to be there any more.
//!
//! A field of several lines is one value, the lines joined by commas, and setting it makes one line of it. `Set-Cookie`
//! is not such a list: a rule that looks at `Set-Cookie`, in a condition or a value, is applied to each line by itself
//! and changes or removes the lines for which it holds; one that does not look at it adds a line.
//!
//! No value that cannot stand in a field goes out: it takes the field away, as an empty one does. `Host` alone stays.

use std::borrow::Cow;

use http::header::{HOST, SET_COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

pub use facts::{Facts, Shown, size};
use value::{Piece, Slots, Value};

use crate::fault::WebFault;
use crate::types::{Condition, Part, Pattern, Rewrite, RewriteRule, ServerVariable, Template, Variable, is_framing};

mod facts;
mod value;

/// A rewrite set, ready to be applied. Made once for each configuration.
#[derive(Debug)]
pub struct Set {
    rules: Vec<Rule>,
}

/// Path and query of a request, normalised; the query without `?`.
#[derive(Clone, Copy, Debug)]
pub struct Url<'a> {
    /// The path.
    pub path: &'a str,
    /// The query, if there is a `?`.
    pub query: Option<&'a str>,
}

/// What a set made of a request, beside its fields.
#[derive(Debug, Default)]
pub struct Rewritten {
    /// Another path. It begins with `/`, and has to be normalised like any other.
    pub path: Option<String>,
    /// Another query; an empty one takes it away.
    pub query: Option<String>,
    /// Whether the paths of the routing rule are to be looked through again, because the path is another.
    pub reevaluate: bool,
    /// What the answer needs.
    pub kept: Kept,
}

impl Rewritten {
    /// Path and query as they are after it, if it changed any.
    pub fn url(&self, before: Url<'_>) -> Option<String> {
        if self.path.is_none() && self.query.is_none() {
            return None;
        }
        let mut url = self.path.clone().unwrap_or_else(|| before.path.to_owned());
        let query = self
            .query
            .as_deref()
            .map_or(before.query, |query| Some(query).filter(|query| !query.is_empty()));
        if let Some(query) = query {
            url.push('?');
            url.push_str(query);
        }
        Some(url)
    }
}

/// What a set remembers of a request until its answer. Empty for a set that does nothing to answers.
#[derive(Debug, Default)]
pub struct Kept {
    /// For each rule about answers its slots, or `None` if its conditions on the request do not hold.
    rules: Vec<Option<Slots>>,
}

/// How often paths may still be looked through again for one request.
#[derive(Debug)]
pub struct Rounds(u8);

impl Rounds {
    /// Takes one.
    ///
    /// # Errors
    /// [`WebFault::RewriteLoop`] after the fifth.
    pub fn take(&mut self) -> Result<(), WebFault> {
        self.0 = self.0.checked_sub(1).ok_or(WebFault::RewriteLoop)?;
        Ok(())
    }
}

impl Default for Rounds {
    fn default() -> Self {
        Self(5)
    }
}

impl Set {
    /// Prepares a set whose rules have no [faults](RewriteRule::faults). What is faulty in one does nothing.
    pub fn new(rewrite: &Rewrite) -> Self {
        let rules = rewrite.rules.iter().map(Rule::new).collect();
        Self { rules }
    }

    /// Applies the set to a request: changes its fields, and tells what else became of it.
    pub fn request(&self, headers: &mut HeaderMap, url: Url<'_>, facts: &Facts<'_>) -> Rewritten {
        let mut rewritten = Rewritten::default();
        for rule in &self.rules {
            let slots = rule.request(headers, url, facts, &mut rewritten);
            if rule.is_for_answers() {
                rewritten.kept.rules.push(slots);
            }
        }
        rewritten.reevaluate &= rewritten.path.as_deref().is_some_and(|path| path != url.path);
        rewritten
    }

    /// Applies the set to the answer to the request of which `kept` was kept.
    pub fn answer(&self, kept: Kept, status: StatusCode, headers: &mut HeaderMap) {
        let rules = self.rules.iter().filter(|rule| rule.is_for_answers());
        for (rule, slots) in rules.zip(kept.rules) {
            if let Some(mut slots) = slots {
                rule.answer(&mut slots, status, headers);
            }
        }
    }
}

#[derive(Debug)]
struct Rule {
    /// The conditions on the request, and those on the answer.
    of_request: Vec<Test>,
    of_answer: Vec<Test>,
    request_headers: Vec<(HeaderName, Value)>,
    response_headers: Vec<(HeaderName, Value)>,
    path: Option<Value>,
    query: Option<Value>,
    reevaluate: bool,
    /// What values of answers need of the request, and the slots for it.
    frozen: Vec<(usize, Variable)>,
    slots: usize,
}

impl Rule {
    fn new(rule: &RewriteRule) -> Self {
        let mut plan = Plan::new(rule);
        let request_headers = plan.values(&rule.request_headers);
        let path = rule.path.as_ref().map(|template| plan.value(template));
        let query = rule.query.as_ref().map(|template| plan.value(template));
        plan.freezes = true;
        let response_headers = plan.values(&rule.response_headers);
        let (of_answer, of_request) = plan.tests.into_iter().partition(|test| test.variable.is_of_answer());
        Self {
            of_request,
            of_answer,
            request_headers,
            response_headers,
            path,
            query,
            reevaluate: rule.reevaluate,
            frozen: plan.frozen,
            slots: plan.slots,
        }
    }

    fn is_for_answers(&self) -> bool {
        !self.response_headers.is_empty()
    }

    /// Does to a request what is to be done. `None` if the conditions on the request do not hold.
    fn request(
        &self,
        headers: &mut HeaderMap,
        url: Url<'_>,
        facts: &Facts<'_>,
        rewritten: &mut Rewritten,
    ) -> Option<Slots> {
        let mut slots = vec![Vec::new(); self.slots];
        let known = |variable: &Variable| facts.value(variable, url, headers);
        if !self
            .of_request
            .iter()
            .all(|test| test.holds(known(&test.variable).as_deref(), &mut slots))
        {
            return None;
        }
        for (slot, variable) in &self.frozen {
            slots[*slot] = known(variable).unwrap_or_default().into_owned();
        }
        if let Some(path) = &self.path {
            rewritten.path = Some(value::path(&path.bytes(&slots, known)));
            rewritten.reevaluate |= self.reevaluate;
        }
        if let Some(query) = &self.query {
            rewritten.query = Some(value::query(&query.bytes(&slots, known)));
        }
        let made: Vec<_> = self
            .request_headers
            .iter()
            .map(|(_, value)| value.field(&slots, known))
            .collect();
        for ((name, _), value) in self.request_headers.iter().zip(made) {
            match value {
                Some(value) => drop(headers.insert(name, value)),
                None if *name == HOST => {}
                None => drop(headers.remove(name)),
            }
        }
        Some(slots)
    }

    /// Does to an answer what is to be done.
    fn answer(&self, slots: &mut Slots, status: StatusCode, headers: &mut HeaderMap) {
        let looks_at_cookies = self.of_answer.iter().any(|test| is_set_cookie(&test.variable));
        let cookies = self.response_headers.iter().find(|(name, _)| *name == SET_COOKIE);
        let by_line = cookies.filter(|(_, value)| looks_at_cookies || value.shows(is_set_cookie));
        // Made before anything is set, like the rest.
        let lines = by_line.map(|(_, value)| self.cookie_lines(value, slots, status, headers));
        if self.holds(slots, status, headers) {
            let answer = Answer {
                headers,
                status,
                line: None,
            };
            let whole = self
                .response_headers
                .iter()
                .filter(|(name, _)| *name != SET_COOKIE || lines.is_none());
            let made: Vec<_> = whole
                .map(|(name, value)| (name, value.field(slots, |of| answer.value(of))))
                .collect();
            for (name, value) in made {
                match value {
                    Some(value) if *name == SET_COOKIE => {
                        headers.append(name, value);
                    }
                    Some(value) => drop(headers.insert(name, value)),
                    None => drop(headers.remove(name)),
                }
            }
        }
        if let Some(lines) = lines {
            headers.remove(SET_COOKIE);
            for line in lines {
                headers.append(SET_COOKIE, line);
            }
        }
    }

    /// Whether the conditions on the answer hold, that on `Set-Cookie` for any of its lines.
    fn holds(&self, slots: &mut Slots, status: StatusCode, headers: &HeaderMap) -> bool {
        self.of_answer.iter().all(|test| {
            if !is_set_cookie(&test.variable) {
                let answer = Answer {
                    headers,
                    status,
                    line: None,
                };
                return test.holds(answer.value(&test.variable).as_deref(), slots);
            }
            let mut lines = headers.get_all(SET_COOKIE).iter().map(HeaderValue::as_bytes).peekable();
            let found = match lines.peek() {
                Some(_) => lines.any(|line| test.finds(Some(line), slots)),
                None => test.finds(None, slots),
            };
            found != test.negate
        })
    }

    /// The lines of `Set-Cookie` after this rule: those for which it holds are `value`.
    fn cookie_lines(
        &self,
        value: &Value,
        slots: &mut Slots,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Vec<HeaderValue> {
        let mut made = Vec::new();
        let mut lines = headers.get_all(SET_COOKIE).iter().map(Some).peekable();
        // Where there is none, one may be added; but there is nothing that could be shown.
        let none = (lines.peek().is_none() && !value.shows(is_set_cookie)).then_some(None);
        for line in lines.chain(none) {
            let answer = Answer {
                headers,
                status,
                line: Some(line),
            };
            let known = |variable: &Variable| answer.value(variable);
            if self
                .of_answer
                .iter()
                .all(|test| test.holds(known(&test.variable).as_deref(), slots))
            {
                made.extend(value.field(slots, known));
            } else {
                made.extend(line.cloned());
            }
        }
        made
    }
}

fn is_set_cookie(variable: &Variable) -> bool {
    matches!(variable, Variable::Response(name) if *name == SET_COOKIE)
}

/// A condition, and the slots that its groups go into.
#[derive(Debug)]
struct Test {
    variable: Variable,
    pattern: Option<Pattern>,
    negate: bool,
    groups: Vec<(usize, usize)>,
}

impl Test {
    fn holds(&self, value: Option<&[u8]>, slots: &mut Slots) -> bool {
        self.finds(value, slots) != self.negate
    }

    /// Looks for the pattern, and keeps its groups if it is there.
    fn finds(&self, value: Option<&[u8]>, slots: &mut Slots) -> bool {
        let Some(pattern) = &self.pattern else {
            return value.is_some();
        };
        let text = value.unwrap_or_default();
        if self.groups.is_empty() {
            return pattern.regex().is_match(text);
        }
        let Some(captures) = pattern.regex().captures(text) else {
            return false;
        };
        for (group, slot) in &self.groups {
            slots[*slot] = captures
                .get(*group)
                .map_or_else(Vec::new, |found| found.as_bytes().to_vec());
        }
        true
    }
}

/// A rule while it is prepared: which group and which value of the request goes into which slot.
struct Plan<'a> {
    rule: &'a RewriteRule,
    tests: Vec<Test>,
    frozen: Vec<(usize, Variable)>,
    slots: usize,
    /// Whether values are for the answer.
    freezes: bool,
}

impl<'a> Plan<'a> {
    fn new(rule: &'a RewriteRule) -> Self {
        let test = |condition: &Condition| Test {
            variable: condition.variable.clone(),
            pattern: condition.pattern.clone(),
            negate: condition.negate,
            groups: Vec::new(),
        };
        Self {
            rule,
            tests: rule.conditions.iter().map(test).collect(),
            frozen: Vec::new(),
            slots: 0,
            freezes: false,
        }
    }

    fn values(&mut self, fields: &[(HeaderName, Template)]) -> Vec<(HeaderName, Value)> {
        let fields = fields.iter().filter(|(name, _)| !is_framing(name));
        fields
            .map(|(name, template)| (name.clone(), self.value(template)))
            .collect()
    }

    fn value(&mut self, template: &Template) -> Value {
        Value::new(template.parts().iter().map(|part| self.piece(part)).collect())
    }

    fn piece(&mut self, part: &Part) -> Piece {
        match part {
            Part::Text(text) => Piece::Text(text.clone()),
            Part::Value(variable) if self.freezes && !variable.is_of_answer() => {
                let slot = self.slot();
                self.frozen.push((slot, variable.clone()));
                Piece::Slot(slot)
            }
            Part::Value(variable) => Piece::Live(variable.clone()),
            Part::Capture(variable, group) => match self.rule.condition_of(variable, *group) {
                Some(condition) => {
                    let slot = self.slot();
                    self.tests[condition].groups.push((*group, slot));
                    Piece::Slot(slot)
                }
                None => Piece::Text(String::new()),
            },
        }
    }

    fn slot(&mut self) -> usize {
        self.slots += 1;
        self.slots - 1
    }
}

/// What is known of an answer.
struct Answer<'a> {
    headers: &'a HeaderMap,
    status: StatusCode,
    /// The line of `Set-Cookie` that is looked at, if they are looked at one by one; in it `None` if there is none.
    line: Option<Option<&'a HeaderValue>>,
}

impl<'a> Answer<'a> {
    fn value(&self, variable: &Variable) -> Option<Cow<'a, [u8]>> {
        match (variable, self.line) {
            (Variable::Response(name), Some(line)) if *name == SET_COOKIE => line.map(|line| line.as_bytes().into()),
            (Variable::Response(name), _) => value::joined(self.headers, name),
            (Variable::Server(ServerVariable::HttpStatus), _) => Some(self.status.as_str().as_bytes().to_vec().into()),
            (Variable::Request(_) | Variable::Cookie(_) | Variable::Server(_), _) => None,
        }
    }
}

#[cfg(test)]
mod tests;
