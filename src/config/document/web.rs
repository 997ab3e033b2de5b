//! The part of the document about what is published for clients of the web: rules and what goes with them.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Named;
use super::format::Network;
use super::format::web::{
    FieldName, FieldValue, HostPattern, LogField, NameServer, PathAndQuery, PathPattern, RedirectUrl,
};
use super::secret::KeySource;

/// A routing rule: for which requests, and what becomes of them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Rule {
    /// Listeners on which it holds. Left out: all of them.
    #[schemars(length(min = 1), extend("uniqueItems" = true), example = ["public"])]
    pub listeners: Option<Vec<String>>,
    /// Hosts that it is for, without port: names, or patterns in which "*" stands for any characters, dots among them,
    /// and "?" for one; or addresses, of IPv6 in brackets. Left out: any host.
    #[schemars(length(min = 1), extend("uniqueItems" = true), example = ["shop.example.com", "*.shop.example.com"])]
    pub hosts: Option<Vec<HostPattern>>,
    /// Of several rules for a host the one with the lowest number holds, whatever else they say. No two have the same.
    #[schemars(required, range(min = 1, max = 20_000), example = 10)]
    pub priority: Option<u16>,
    /// Pool whose targets answer. A rule has this or a redirect.
    #[schemars(example = &"shop")]
    pub pool: Option<String>,
    /// How the targets are spoken to. Left out: by HTTP/1.1 without TLS.
    #[schemars(example = &"shop")]
    pub backend: Option<String>,
    /// Rewrite set for requests and answers.
    #[schemars(example = &"shop")]
    pub rewrite: Option<String>,
    /// Where clients are sent instead.
    pub redirect: Option<Redirect>,
    /// Paths for which something else holds: the first in the list that matches.
    #[serde(default)]
    pub path: Vec<RulePath>,
    /// Clients that are admitted, as addresses or networks. None: all.
    #[serde(default)]
    pub allow: Vec<Network>,
    /// Clients that are not admitted, whatever "allow" says.
    #[serde(default)]
    pub deny: Vec<Network>,
    /// How often one client may ask. Left out: as often as it likes.
    pub rate: Option<Rate>,
    /// A service that is asked about each request before it goes on. Left out: none is asked.
    pub authentication: Option<ForwardAuthentication>,
    /// The largest body of a request, in bytes. Left out: any.
    #[schemars(range(min = 0, max = 1_099_511_627_776_u64), example = 10_485_760)]
    pub max_body: Option<u64>,
    /// Whether answers of text are compressed (gzip) for clients that can read that, where the target has not done so. A
    /// page that shows a secret beside what somebody else wrote then gives the secret away by its length (BREACH).
    #[serde(default)]
    pub compress: bool,
    /// What becomes of fields of requests whose names have other characters than letters, digits, "-", "_" and "." ("drop",
    /// "refuse", "pass"). Fields that would be read as one of the gateway's own are never passed on.
    #[serde(default = "dropped")]
    pub unusual_fields: UnusualFields,
    /// Fields of requests, before rewriting.
    #[serde(default)]
    pub request_headers: Fields,
    /// Fields of answers, after rewriting.
    #[serde(default)]
    pub response_headers: AnswerFields,
    /// Pages for errors that the gateway makes, by status; HTML files below 1 MB. They stand before those of the listener
    /// and the general ones.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "error-status" }))]
    pub error_pages: Named<PathBuf>,
}

/// What becomes of fields with unusual names.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum UnusualFields {
    /// They are taken out, and counted in the access log.
    Drop,
    /// The request is answered 400.
    Refuse,
    /// They go to the target.
    Pass,
}

fn dropped() -> UnusualFields {
    UnusualFields::Drop
}

/// Paths of a rule, and what becomes of requests for them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RulePath {
    /// Paths, in either case of letters; with "*" at the end, all that begin so.
    #[schemars(required, length(min = 1), example = ["/images/*"])]
    pub paths: Option<Vec<PathPattern>>,
    /// Pool whose targets answer. A path has this or a redirect.
    #[schemars(example = &"images")]
    pub pool: Option<String>,
    /// How the targets are spoken to. Left out: by HTTP/1.1 without TLS, whatever the rule says.
    #[schemars(example = &"images")]
    pub backend: Option<String>,
    /// Rewrite set for requests and answers.
    #[schemars(example = &"images")]
    pub rewrite: Option<String>,
    /// Where clients are sent instead.
    pub redirect: Option<Redirect>,
}

/// Where clients are sent: to a listener or to a URL.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Redirect {
    /// The same host at this listener: its scheme and port.
    #[schemars(example = &"public")]
    pub listener: Option<String>,
    /// A URL.
    #[schemars(example = &"https://www.example.com")]
    pub url: Option<RedirectUrl>,
    /// 301, 302, 303, 307 or 308.
    #[serde(default = "moved_permanently")]
    #[schemars(range(min = 301, max = 308))]
    pub status: u16,
    /// Whether the path goes with it; behind a URL's own.
    #[serde(default = "yes")]
    pub path: bool,
    /// Whether the query goes with it.
    #[serde(default = "yes")]
    pub query: bool,
}

/// How often one client, an IPv4 address or an IPv6 /64, may ask.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Rate {
    /// Requests a second.
    #[schemars(required, range(min = 1, max = 1_000_000), example = 50)]
    pub per_second: Option<u32>,
    /// Requests at once. Left out: those of one second.
    #[schemars(range(min = 1, max = 1_000_000), example = 100)]
    pub burst: Option<u32>,
}

/// A service that is asked about each request: 2xx admits it, anything else is the client's answer.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct ForwardAuthentication {
    /// The service's pool.
    #[schemars(required, example = &"sign-in")]
    pub pool: Option<String>,
    /// How the service is spoken to. Left out: by HTTP/1.1 without TLS.
    #[schemars(example = &"sign-in")]
    pub backend: Option<String>,
    /// The path that it is asked for, always by GET.
    #[schemars(required, example = &"/verify")]
    pub path: Option<PathAndQuery>,
    /// Fields of its answer that the target gets; never the client's own of that name.
    #[serde(default)]
    #[schemars(example = ["X-User"])]
    pub copy: Vec<FieldName>,
    /// Paths that need no authentication.
    #[serde(default)]
    #[schemars(example = ["/public/*"])]
    pub exempt: Vec<PathPattern>,
}

/// What is done to fields of a head.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Fields {
    /// Fields that are set, whatever was there.
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub set: Named<FieldValue>,
    /// Fields that are set where there is none.
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub default: Named<FieldValue>,
    /// Fields that are taken out.
    pub remove: Vec<FieldName>,
}

/// What is done to fields of an answer's head.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct AnswerFields {
    /// Whether answers without them get the fields by which browsers are told to be careful: Strict-Transport-Security
    /// (a year), X-Content-Type-Options, X-Frame-Options (same origin) and Referrer-Policy.
    pub secure: bool,
    /// Fields that are set, whatever was there.
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub set: Named<FieldValue>,
    /// Fields that are set where there is none.
    #[schemars(extend("propertyNames" = { "format": "field-name" }))]
    pub default: Named<FieldValue>,
    /// Fields that are taken out.
    pub remove: Vec<FieldName>,
}

/// How the client's address travels.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Forwarded {
    /// "append": the client's address goes behind what X-Forwarded-For holds. "replace": it stands there alone.
    pub mode: ForwardedMode,
    /// Whether the client's port goes with its address. Some applications do not understand it.
    pub port: bool,
    /// Proxies in front, as addresses or networks, whose X-Forwarded-For is believed. With any, that of all others is
    /// dropped, and the client is the rightmost address that is none of them.
    pub trusted: Vec<Network>,
}

/// What becomes of X-Forwarded-For.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum ForwardedMode {
    /// The client's address goes behind what is there.
    Append,
    /// The client's address stands alone.
    Replace,
}

/// One line of JSON a request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct AccessLog {
    /// "stdout", or a file, which is opened again at a reload. Left out: nothing is written.
    #[schemars(length(min = 1), example = &"/var/log/portcullis/access.log")]
    pub to: Option<PathBuf>,
    /// Of every hundred requests that went well so many are written; the others always.
    #[schemars(range(min = 0, max = 100))]
    pub sample_percent: u8,
    /// The fields that are written. Left out: all of them.
    #[schemars(extend("uniqueItems" = true), example = ["time_stamp", "client_ip", "original_host", "request_uri", "http_status"])]
    pub fields: Vec<LogField>,
}

/// The cookies by which clients stay with their target.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct AffinityKey {
    /// Key of the cookies, the same on all nodes of a fleet; at least 32 characters. Never in this file itself. Left
    /// out: the node draws one, and clients lose their target when it restarts.
    pub key: Option<KeySource>,
}

/// How names of targets are resolved.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Resolver {
    /// Name servers, with a port if it is not 53. Left out: the system's.
    #[schemars(example = ["10.0.0.53"])]
    pub servers: Vec<NameServer>,
}

fn moved_permanently() -> u16 {
    301
}

fn yes() -> bool {
    true
}

impl Default for Forwarded {
    fn default() -> Self {
        Self {
            mode: ForwardedMode::Append,
            port: true,
            trusted: Vec::new(),
        }
    }
}

impl Default for AccessLog {
    fn default() -> Self {
        Self {
            to: None,
            sample_percent: 100,
            fields: Vec::new(),
        }
    }
}
