//! The part of the document about rewriting.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Named;
use super::format::web::{Template, Variable};

/// A rewrite set: rules that are applied in their order, each to what those before it made.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RewriteSet {
    /// Its rules.
    #[schemars(required, length(min = 1))]
    pub rule: Option<Vec<RewriteRule>>,
}

/// A rule of a rewrite set: if all of its conditions hold, all of its actions are done.
///
/// In values, `{http_req_NAME}`, `{http_resp_NAME}`, `{var_cookie_NAME}` and `{var_NAME}` stand for what is known of the
/// request and its answer, and with `_1` behind the name for what a condition's pattern has captured.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RewriteRule {
    /// Its name, for messages. Left out: its place in the set.
    #[schemars(length(min = 1, max = 64), example = &"articles")]
    pub name: Option<String>,
    /// What must be so. None: it always is.
    #[serde(default)]
    pub when: Vec<Condition>,
    /// Fields of the request, with their values. An empty value takes the field away.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub request_headers: Named<Template>,
    /// Fields of the answer, with their values. An empty value takes the field away.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub response_headers: Named<Template>,
    /// The path for the target.
    #[schemars(example = &"/article/{var_uri_path_1}")]
    pub path: Option<Template>,
    /// The query for the target, without "?". An empty one takes it away.
    #[schemars(example = &"id={var_uri_path_1}")]
    pub query: Option<Template>,
    /// Whether the new path chooses again among the paths of the routing rule.
    #[serde(default)]
    pub reevaluate: bool,
}

/// What must be so.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Condition {
    /// What is looked at: `http_req_NAME`, `http_resp_NAME`, `var_cookie_NAME` or `var_NAME`.
    #[schemars(required, example = &"var_uri_path")]
    pub variable: Option<Variable>,
    /// Regular expression (RE2 style) that is found in it, anywhere unless it says where. Left out: it has a value.
    #[schemars(length(min = 1), example = &"^/articles/([0-9]+)$")]
    pub matches: Option<String>,
    /// Whether letters match in either case.
    #[serde(default)]
    pub ignore_case: bool,
    /// Whether the contrary must be so.
    #[serde(default)]
    pub negate: bool,
}
