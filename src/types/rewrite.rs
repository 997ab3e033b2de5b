//! Rewrite sets: what is looked at, and what is made of it (behaviour sheet of the application gateway, section 4).
//!
//! A [`Template`] is text with variables in braces, as `{http_req_Referer}` or `{var_uri_path_1}`; a [`Condition`] looks
//! at one of those variables, and the groups of its [`Pattern`] are what `_1`, `_2` mean. [`RewriteRule::faults`] tells
//! whether the parts of a rule fit each other; nothing that it leaves uncomplained fails later.

use std::fmt;
use std::str::FromStr;

use http::HeaderName;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRAILER, TRANSFER_ENCODING, UPGRADE};
use regex::bytes::{Regex, RegexBuilder};

pub use variable::{InvalidVariable, ServerVariable, Variable};

mod variable;

/// A rewrite set: rules that are applied in their order, each to what those before it made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rewrite {
    /// The rules.
    pub rules: Vec<RewriteRule>,
}

impl Rewrite {
    /// Whether a condition looks at that variable, or a value shows it.
    pub fn uses(&self, variable: &Variable) -> bool {
        self.rules.iter().any(|rule| {
            let looks = rule.conditions.iter().any(|condition| condition.variable == *variable);
            looks
                || rule
                    .actions()
                    .any(|(_, value)| value.variables().any(|shown| shown == variable))
        })
    }
}

/// A rule of a rewrite set: if all of its conditions hold, all of its actions are done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RewriteRule {
    /// Its name, for messages.
    pub name: String,
    /// All of them must hold; none always do.
    pub conditions: Vec<Condition>,
    /// Fields of the request that are set. A value that comes out empty takes the field away.
    pub request_headers: Vec<(HeaderName, Template)>,
    /// Fields of the answer that are set. A value that comes out empty takes the field away.
    pub response_headers: Vec<(HeaderName, Template)>,
    /// The path for the target.
    pub path: Option<Template>,
    /// The query for the target, without `?`. One that comes out empty takes the query away.
    pub query: Option<Template>,
    /// Whether the new path chooses again among the paths of the routing rule.
    pub reevaluate: bool,
}

impl RewriteRule {
    /// Whether it does anything to requests.
    pub fn is_for_requests(&self) -> bool {
        !self.request_headers.is_empty() || self.path.is_some() || self.query.is_some()
    }

    /// Whether it does anything to answers.
    pub fn is_for_answers(&self) -> bool {
        !self.response_headers.is_empty()
    }

    /// The condition whose pattern has group `group` of `variable`: the first such that says what is, not what is not.
    pub fn condition_of(&self, variable: &Variable, group: usize) -> Option<usize> {
        self.conditions.iter().position(|condition| {
            let groups = condition.pattern.as_ref().map_or(0, Pattern::groups);
            condition.variable == *variable && !condition.negate && (1..=groups).contains(&group)
        })
    }

    /// Everything in it that does not fit; none is a rule that can be applied.
    pub fn faults(&self) -> Vec<RewriteFault> {
        let mut faults = Vec::new();
        if !self.is_for_requests() && !self.is_for_answers() {
            faults.push(RewriteFault::NoAction);
        }
        if self.reevaluate && self.path.is_none() {
            faults.push(RewriteFault::NothingToReevaluate);
        }
        if self.is_for_requests() {
            let late = self
                .conditions
                .iter()
                .filter(|condition| condition.variable.is_of_answer());
            faults.extend(late.map(|condition| RewriteFault::TooEarly {
                place: Place::Condition,
                variable: condition.variable.clone(),
            }));
        }
        for (place, template) in self.actions() {
            faults.extend(place.faults(template));
            let missing = template
                .captures()
                .filter(|(variable, group)| self.condition_of(variable, *group).is_none());
            faults.extend(missing.map(|(variable, group)| RewriteFault::NoCapture {
                place: place.clone(),
                variable: variable.clone(),
                group,
            }));
        }
        faults
    }

    fn actions(&self) -> impl Iterator<Item = (Place, &Template)> {
        let requests = self
            .request_headers
            .iter()
            .map(|(name, value)| (Place::RequestHeader(name.clone()), value));
        let answers = self
            .response_headers
            .iter()
            .map(|(name, value)| (Place::ResponseHeader(name.clone()), value));
        let path = self.path.iter().map(|value| (Place::Path, value));
        let query = self.query.iter().map(|value| (Place::Query, value));
        requests.chain(answers).chain(path).chain(query)
    }
}

/// Whether a field says how a message is framed or where a connection goes on. No rewriting touches those.
pub fn is_framing(name: &HeaderName) -> bool {
    let named = ["keep-alive", "proxy-connection"].contains(&name.as_str());
    named || [CONNECTION, UPGRADE, TRANSFER_ENCODING, CONTENT_LENGTH, TE, TRAILER].contains(name)
}

/// Something in a rewrite rule that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteFault {
    /// It does nothing.
    #[error("the rule does nothing: give it request_headers, response_headers, path or query")]
    NoAction,
    /// There is no new path that could choose.
    #[error("reevaluate needs a path")]
    NothingToReevaluate,
    /// See [`is_framing`].
    #[error("{0} belongs to the connection and cannot be rewritten: leave it out")]
    Framing(Place),
    /// `Host` would be taken away.
    #[error("Host cannot be taken away: give it a value")]
    HostDeleted,
    /// The variable is known once the target has answered.
    #[error("{place}: {variable} is not known before the answer: use it in response_headers only")]
    TooEarly {
        /// Where it stands.
        place: Place,
        /// The variable.
        variable: Variable,
    },
    /// No condition captures it.
    #[error(
        "{place}: {{{variable}_{group}}} is captured by no condition: add one on {variable}, not negated, \
         whose pattern has {group} pairs of parentheses or more"
    )]
    NoCapture {
        /// Where it stands.
        place: Place,
        /// The variable.
        variable: Variable,
        /// The group, from 1.
        group: usize,
    },
    /// Text that does not belong into a URL as it is.
    #[error("{place}: {character:?} cannot stand there: write it percent-encoded")]
    NotOfUrl {
        /// Path or query.
        place: Place,
        /// The first such character.
        character: char,
    },
    /// A path that does not begin with `/`.
    #[error("path: it begins with /, or with a variable")]
    RelativePath,
}

/// The part of a rewrite rule in which something stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A condition.
    Condition,
    /// A field of the request.
    RequestHeader(HeaderName),
    /// A field of the answer.
    ResponseHeader(HeaderName),
    /// The path.
    Path,
    /// The query.
    Query,
}

impl Place {
    /// What does not fit about a template that stands here, captures apart.
    fn faults(&self, template: &Template) -> Vec<RewriteFault> {
        let mut faults = Vec::new();
        let mut url = |allowed: fn(char) -> bool| {
            let found = template.texts().find_map(|text| text.chars().find(|c| !allowed(*c)));
            faults.extend(found.map(|character| RewriteFault::NotOfUrl {
                place: self.clone(),
                character,
            }));
        };
        match self {
            Self::Condition => {}
            Self::RequestHeader(name) | Self::ResponseHeader(name) if is_framing(name) => {
                faults.push(RewriteFault::Framing(self.clone()));
            }
            Self::RequestHeader(name) => {
                if *name == HOST && template.is_empty() {
                    faults.push(RewriteFault::HostDeleted);
                }
            }
            Self::ResponseHeader(_) => {}
            Self::Path => {
                url(is_of_path);
                if !template.begins_well() {
                    faults.push(RewriteFault::RelativePath);
                }
            }
            Self::Query => url(is_of_query),
        }
        if !matches!(self, Self::ResponseHeader(_)) {
            let late = template.variables().filter(|variable| variable.is_of_answer());
            faults.extend(late.map(|variable| RewriteFault::TooEarly {
                place: self.clone(),
                variable: variable.clone(),
            }));
        }
        faults
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Condition => f.write_str("condition"),
            Self::RequestHeader(name) => write!(f, "request header {name}"),
            Self::ResponseHeader(name) => write!(f, "response header {name}"),
            Self::Path => f.write_str("path"),
            Self::Query => f.write_str("query"),
        }
    }
}

/// Whether a character may stand in a path as it is (RFC 3986 section 3.3, `%` of an encoded one among them).
pub fn is_of_path(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:@/%".contains(c)
}

/// Whether a character may stand in a query as it is. Browsers leave more than RFC 3986 section 3.4 allows; what no
/// request line is broken by passes.
pub fn is_of_query(c: char) -> bool {
    is_of_path(c) || "?[]{}|^\\`".contains(c)
}

/// What must be so.
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    /// What is looked at.
    pub variable: Variable,
    /// What is found in it, anywhere unless the pattern says where; `None`: that it has a value. Where there is none,
    /// the pattern is tried on the empty text.
    pub pattern: Option<Pattern>,
    /// Whether the contrary must be so.
    pub negate: bool,
}

/// A regular expression, compared by how it is written. It takes time linear in what it is tried on.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    ignore_case: bool,
}

impl Pattern {
    /// Compiles it.
    ///
    /// # Errors
    /// [`InvalidPattern`] for what is no regular expression of the linear kind, or a huge one.
    pub fn new(text: &str, ignore_case: bool) -> Result<Self, InvalidPattern> {
        let built = RegexBuilder::new(text)
            .case_insensitive(ignore_case)
            .size_limit(LARGEST_PATTERN)
            .build();
        match built {
            Ok(regex) => Ok(Self { regex, ignore_case }),
            Err(error) => Err(InvalidPattern(reason(&error))),
        }
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether letters match in either case.
    pub fn ignores_case(&self) -> bool {
        self.ignore_case
    }

    /// How many groups it captures.
    pub fn groups(&self) -> usize {
        self.regex.captures_len() - 1
    }

    /// The compiled expression.
    pub fn regex(&self) -> &Regex {
        &self.regex
    }
}

/// Bytes that a compiled pattern may take.
const LARGEST_PATTERN: usize = 1 << 20;

/// The last line of the compiler's message; those above it draw arrows.
fn reason(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    last.trim().trim_start_matches("error: ").to_owned()
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str() && self.ignore_case == other.ignore_case
    }
}

impl Eq for Pattern {}

/// A text that is no [`Pattern`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no regular expression (RE2 style, without look-around and back references): {0}")]
pub struct InvalidPattern(String);

/// Text with variables in it. `{{` and `}}` stand for the braces themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// A piece of a [`Template`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Itself; never empty.
    Text(String),
    /// The value of a variable.
    Value(Variable),
    /// A group, from 1, of the condition on that variable.
    Capture(Variable, usize),
}

impl Template {
    /// The pieces, in their order; no two texts beside each other.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether it is the empty text, which takes a field away.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The text that it always is, if there is no variable in it.
    pub fn constant(&self) -> Option<&str> {
        match self.parts.as_slice() {
            [] => Some(""),
            [Part::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// The variables whose values or groups stand in it.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(variable) | Part::Capture(variable, _) => Some(variable),
        })
    }

    fn captures(&self) -> impl Iterator<Item = (&Variable, usize)> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) | Part::Value(_) => None,
            Part::Capture(variable, group) => Some((variable, *group)),
        })
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Value(_) | Part::Capture(..) => None,
        })
    }

    /// Whether it can be a path from its first character on.
    fn begins_well(&self) -> bool {
        self.parts.first().is_none_or(|first| match first {
            Part::Text(text) => text.starts_with('/'),
            Part::Value(_) | Part::Capture(..) => true,
        })
    }
}

impl FromStr for Template {
    type Err = InvalidTemplate;

    fn from_str(text: &str) -> Result<Self, InvalidTemplate> {
        if let Some(at) = text
            .bytes()
            .position(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f)
        {
            return Err(InvalidTemplate::Control { at });
        }
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(brace) = rest.find(['{', '}']) {
            let at = text.len() - rest.len() + brace;
            let (before, from) = rest.split_at(brace);
            plain.push_str(before);
            if let Some(doubled) = from.strip_prefix("{{").or_else(|| from.strip_prefix("}}")) {
                plain.push_str(&from[..1]);
                rest = doubled;
                continue;
            }
            let inside = from.strip_prefix('{').ok_or(InvalidTemplate::Unopened { at })?;
            let (reference, behind) = inside.split_once('}').ok_or(InvalidTemplate::Unclosed { at })?;
            if !plain.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut plain)));
            }
            parts.push(reference.parse()?);
            rest = behind;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            parts.push(Part::Text(plain));
        }
        Ok(Self { parts })
    }
}

impl FromStr for Part {
    type Err = InvalidTemplate;

    /// What stands between braces: a number behind the last underscore is a group.
    fn from_str(text: &str) -> Result<Self, InvalidTemplate> {
        let unknown = |_| InvalidTemplate::Unknown(text.to_owned());
        match text.rsplit_once('_') {
            Some((variable, digits)) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let variable = variable.parse().map_err(unknown)?;
                match digits.parse() {
                    Ok(group @ 1..=GROUPS) => Ok(Self::Capture(variable, group)),
                    _ => Err(InvalidTemplate::Group(text.to_owned())),
                }
            }
            _ => text.parse().map(Self::Value).map_err(unknown),
        }
    }
}

/// The highest group that a template can name.
const GROUPS: usize = 99;

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in &self.parts {
            match part {
                Part::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}"))?,
                Part::Value(variable) => write!(f, "{{{variable}}}")?,
                Part::Capture(variable, group) => write!(f, "{{{variable}_{group}}}")?,
            }
        }
        Ok(())
    }
}

/// A text that is no [`Template`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTemplate {
    /// `{` without its `}`; at this byte.
    #[error("the {{ at byte {at} is not closed: close it, or write {{{{ for the character")]
    Unclosed {
        /// Counted from 0.
        at: usize,
    },
    /// `}` without its `{`; at this byte.
    #[error("the }} at byte {at} closes nothing: write }}}} for the character")]
    Unopened {
        /// Counted from 0.
        at: usize,
    },
    /// What stands in braces is no variable.
    #[error("{{{0}}} is no variable; {InvalidVariable}; write {{{{ and }}}} for braces")]
    Unknown(String),
    /// A group that there cannot be.
    #[error("{{{0}}}: groups are numbered from 1 to {GROUPS}")]
    Group(String),
    /// A control character.
    #[error("there is a control character at byte {at}: take it out")]
    Control {
        /// Counted from 0.
        at: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn template(text: &str) -> Template {
        text.parse().unwrap()
    }

    fn condition(variable: &str, pattern: &str) -> Condition {
        Condition {
            variable: variable.parse().unwrap(),
            pattern: Some(Pattern::new(pattern, false).unwrap()),
            negate: false,
        }
    }

    fn sets(name: &str, value: &str) -> Vec<(HeaderName, Template)> {
        vec![(name.parse().unwrap(), template(value))]
    }

    fn messages(rule: &RewriteRule) -> Vec<String> {
        rule.faults().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_template_is_text_with_variables_and_groups() {
        let made = template("a {http_req_X-Name} {var_uri_path_2}{var_cookie_Id}{{}}");
        let parts = [
            Part::Text("a ".into()),
            Part::Value(Variable::Request(HeaderName::from_static("x-name"))),
            Part::Text(" ".into()),
            Part::Capture(Variable::Server(ServerVariable::UriPath), 2),
            Part::Value(Variable::Cookie("Id".into())),
            Part::Text("{}".into()),
        ];
        assert_eq!(made.parts(), parts);
        assert_eq!(made.constant(), None);
        assert_eq!(template("a{{b").constant(), Some("a{b"));
        assert!(template("").is_empty());
    }

    #[test]
    fn what_is_no_template_is_told_exactly() {
        let told = |text: &str| text.parse::<Template>().unwrap_err();
        assert_eq!(told("ab{var_host"), InvalidTemplate::Unclosed { at: 2 });
        assert_eq!(told("{{a}b"), InvalidTemplate::Unopened { at: 3 });
        assert_eq!(told("{host}"), InvalidTemplate::Unknown("host".into()));
        assert_eq!(told("{var_hosts}"), InvalidTemplate::Unknown("var_hosts".into()));
        assert_eq!(told("{http_req_}"), InvalidTemplate::Unknown("http_req_".into()));
        assert_eq!(told("{var_host_0}"), InvalidTemplate::Group("var_host_0".into()));
        assert_eq!(told("{var_host_100}"), InvalidTemplate::Group("var_host_100".into()));
        assert_eq!(told("a\r\nb"), InvalidTemplate::Control { at: 1 });
        assert_eq!(
            told("{x}").to_string(),
            "{x} is no variable; variables are http_req_NAME, http_resp_NAME, var_cookie_NAME and var_NAME with a server \
             variable's name; write {{ and }} for braces"
        );
        assert_eq!(
            told("{").to_string(),
            "the { at byte 0 is not closed: close it, or write {{ for the character"
        );
        assert_eq!(
            told("}").to_string(),
            "the } at byte 0 closes nothing: write }} for the character"
        );
    }

    #[test]
    fn every_server_variable_has_its_name() {
        for variable in ServerVariable::ALL {
            assert_eq!(variable.name().parse(), Ok(variable));
            let text = Variable::Server(variable).to_string();
            assert_eq!(text.parse(), Ok(Variable::Server(variable)), "{text}");
        }
    }

    #[test]
    fn a_pattern_says_what_is_wrong_in_one_line() {
        let pattern = Pattern::new("(a)(b)", true).unwrap();
        assert!(pattern.groups() == 2 && pattern.ignores_case() && pattern.regex().is_match(b"xABx"));
        assert_ne!(pattern, Pattern::new("(a)(b)", false).unwrap());
        assert_eq!(pattern, Pattern::new("(a)(b)", true).unwrap());
        for text in ["(a", "a(?=b)", r"(a)\1", "(?:a{1000}){1000}"] {
            let told = Pattern::new(text, false).unwrap_err().to_string();
            assert!(told.lines().count() == 1 && told.len() > 90, "{told}");
        }
    }

    #[test]
    fn a_rule_that_fits_has_no_faults() {
        let rule = RewriteRule {
            name: "articles".into(),
            conditions: vec![
                condition("var_uri_path", "^/article/([^/]+)/(.*)"),
                condition("http_resp_Location", "//(.*)"),
            ],
            response_headers: sets("Location", "https://{http_resp_location_1}/{var_uri_path_1}"),
            ..RewriteRule::default()
        };
        assert_eq!(rule.faults(), []);
        let rule = RewriteRule {
            conditions: vec![
                condition("var_uri_path", "^/a/"),
                condition("var_uri_path", "([^/]+)/([^/]+)$"),
            ],
            path: Some(template("/article.aspx")),
            query: Some(template("id={var_uri_path_1}&title={var_uri_path_2}")),
            reevaluate: true,
            ..RewriteRule::default()
        };
        assert_eq!(rule.faults(), []);
        assert_eq!(rule.condition_of(&"var_uri_path".parse().unwrap(), 2), Some(1));
    }

    #[test]
    fn all_that_does_not_fit_is_told() {
        let rule = RewriteRule {
            reevaluate: true,
            ..RewriteRule::default()
        };
        assert_eq!(
            messages(&rule),
            [
                "the rule does nothing: give it request_headers, response_headers, path or query",
                "reevaluate needs a path"
            ]
        );

        let rule = RewriteRule {
            conditions: vec![
                condition("http_resp_x", "."),
                Condition {
                    negate: true,
                    ..condition("var_host", "(.)")
                },
            ],
            request_headers: [
                sets("connection", "close"),
                sets("host", ""),
                sets("x-a", "{var_http_status}{var_host_1}"),
            ]
            .concat(),
            path: Some(template("a?b")),
            query: Some(template("a#{http_req_x_3}")),
            ..RewriteRule::default()
        };
        assert_eq!(
            messages(&rule),
            [
                "condition: http_resp_x is not known before the answer: use it in response_headers only",
                "request header connection belongs to the connection and cannot be rewritten: leave it out",
                "Host cannot be taken away: give it a value",
                "request header x-a: var_http_status is not known before the answer: use it in response_headers only",
                "request header x-a: {var_host_1} is captured by no condition: add one on var_host, not negated, whose \
                 pattern has 1 pairs of parentheses or more",
                "path: '?' cannot stand there: write it percent-encoded",
                "path: it begins with /, or with a variable",
                "query: '#' cannot stand there: write it percent-encoded",
                "query: {http_req_x_3} is captured by no condition: add one on http_req_x, not negated, whose pattern has 3 \
                 pairs of parentheses or more",
            ]
        );
    }

    fn piece() -> impl Strategy<Value = String> {
        const VARIABLES: &[&str] = &[
            "http_req_a",
            "http_resp_b-c",
            "var_cookie_D",
            "var_host",
            "var_uri_path_7",
            "http_req_a_12",
            "x",
        ];
        prop_oneof![
            "[ -~]{0,6}",
            Just("{{".to_owned()),
            Just("}}".to_owned()),
            proptest::sample::select(VARIABLES).prop_map(|variable| format!("{{{variable}}}")),
        ]
    }

    proptest! {
        /// A template that is understood is written as what it was read from, and no text makes the reader fail.
        #[test]
        fn a_template_survives_its_text(pieces in proptest::collection::vec(piece(), 0..8)) {
            if let Ok(read) = pieces.concat().parse::<Template>() {
                prop_assert_eq!(read.to_string().parse::<Template>(), Ok(read.clone()));
                let beside = read.parts().windows(2).any(|two| matches!(two, [Part::Text(_), Part::Text(_)]));
                prop_assert!(!beside);
            }
        }
    }
}
