//! The part of the document about targets: pools, how they are spoken to, and how they are probed.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::format::web::{Address, CookieName, HostForTarget, PathAndQuery, Statuses, UrlPath};
use super::format::{Host, TimeSpan};
use crate::config::web::BackendHost;

/// Targets that answer for each other.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Pool {
    /// Targets: addresses or names, with a port if it is not the backend's. A name stands for all of its addresses.
    #[schemars(example = ["10.0.0.5:8080", "shop-2.inside.example"])]
    pub targets: Vec<Target>,
    /// "round_robin": in turn, each as often as its weight. "least_requests": of two drawn at random the one with fewer
    /// requests for its weight.
    pub balance: Balance,
    /// How long a target that became healthy takes to get its whole share. Left out: no time.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"), example = "30 s")]
    pub slow_start: Option<TimeSpan>,
    /// Below this percentage of healthy targets all are taken to be healthy. Left out: never.
    #[schemars(range(min = 1, max = 100), example = 50)]
    pub panic: Option<u8>,
    /// When a target is left out for its answers to users. Left out: never, only probes count.
    pub ejection: Option<Ejection>,
}

/// A target.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(in crate::config) enum Target {
    /// Its address alone.
    Address(Address),
    /// Its address with more.
    Table(TargetTable),
}

/// A target with more than its address.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct TargetTable {
    /// Address or name, with a port if it is not the backend's.
    #[schemars(required, example = &"10.0.0.5:8080")]
    pub address: Option<Address>,
    /// Its share beside the others; 0 gets nothing new.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 256))]
    pub weight: u16,
    /// Requests that it may have at one time. Left out: any number.
    #[schemars(range(min = 1, max = 1_000_000), example = 200)]
    pub max_requests: Option<u32>,
}

/// How a target is chosen.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::config) enum Balance {
    /// In turn.
    RoundRobin,
    /// The one with fewer requests.
    LeastRequests,
}

/// When a target is left out for its answers to users, and for how long.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Ejection {
    /// Failures in a row: no answer, or 5xx but 501.
    #[schemars(range(min = 1, max = 1000))]
    pub failures: u32,
    /// For how long, times the number of ejections in a row.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub base: TimeSpan,
    /// The share of the pool, in percent, that may be left out at one time for this reason.
    #[schemars(range(min = 1, max = 100))]
    pub max_percent: u8,
}

/// How targets are spoken to.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Backend {
    /// "http" or "https"; for listeners of TCP and TLS "tcp" or "tls". Left out: "https" if there are settings of TLS, else
    /// "http".
    #[schemars(example = &"https")]
    pub protocol: Option<BackendProtocol>,
    /// Version of HTTP: "1.1" or "2". Without TLS, 2 begins at once, with prior knowledge.
    pub version: BackendVersion,
    /// Port of targets that name none. Left out: 80, or 443 with TLS; none with "tcp" and "tls".
    #[schemars(range(min = 1, max = 65535), example = 8080)]
    pub port: Option<u16>,
    /// From the end of a request to the head of its answer; while a body is being sent, between its bytes too.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "24 h"))]
    pub request_timeout: TimeSpan,
    /// Silence in an answer, in a WebSocket or on a connection of bytes that ends it. Left out: 4 min, with "tcp" and
    /// "tls" 1 h.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "24 h"), example = "4 min")]
    pub idle_timeout: Option<TimeSpan>,
    /// For a connection to a target, with its TLS.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "1 min"))]
    pub connect_timeout: TimeSpan,
    /// How long what runs on a target that was taken away goes on.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub drain: TimeSpan,
    /// Host under which the target is asked. "client": the client's. "target": the target's own name or address.
    /// Anything else: this host.
    pub host: HostForTarget,
    /// What stands in for the part of the path that the rule matched. Left out: the path stays.
    #[schemars(example = &"/v2/")]
    pub path_override: Option<UrlPath>,
    /// Whether a client stays with its target, by a cookie. Left out: it does not.
    pub affinity: Option<Affinity>,
    /// Probe. Left out: GET / every 30 s, with "tcp" and "tls" a connection every 30 s.
    #[schemars(example = &"shop")]
    pub probe: Option<String>,
    /// Further tries, only where nothing can have happened yet or the request may be repeated: never a POST twice.
    pub retries: Retries,
    /// Whether bodies of requests are read whole before they are sent on.
    pub buffer_requests: bool,
    /// Whether bodies of answers are read whole before they are sent on; never event streams and gRPC.
    pub buffer_responses: bool,
    /// Whether each client's connection has a connection to the target of its own, for NTLM and Negotiate.
    pub dedicated: bool,
    /// Whether names of the inside in Location and in the Domain of cookies become the outer ones, and paths that an
    /// override made, there and in the Path of cookies, the client's.
    pub hide_inside: bool,
    /// Whether the target is told the client's address by a PROXY header (v2) before anything else. With "tcp" and "tls"
    /// only.
    pub proxy_protocol: bool,
    /// TLS to the targets.
    pub tls: Option<BackendTls>,
}

/// What is spoken to targets.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum BackendProtocol {
    /// HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// Bytes.
    Tcp,
    /// Bytes within TLS.
    Tls,
}

impl BackendProtocol {
    /// Whether bytes pass as they are.
    pub(in crate::config) fn is_bytes(self) -> bool {
        match self {
            Self::Tcp | Self::Tls => true,
            Self::Http | Self::Https => false,
        }
    }
}

/// Version of HTTP to targets.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
pub(in crate::config) enum BackendVersion {
    /// HTTP/1.1.
    #[serde(rename = "1.1")]
    Http1,
    /// HTTP/2.
    #[serde(rename = "2")]
    Http2,
}

/// A client stays with its target by a cookie.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Affinity {
    /// Name of the cookie; a second one with CORS behind its name serves frames of other sites.
    pub cookie: CookieName,
    /// SameSite of the first cookie: "lax", "strict" or "none".
    pub same_site: SameSite,
}

/// SameSite of a cookie.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum SameSite {
    /// With navigation from other sites too.
    Lax,
    /// From the same site only.
    Strict,
    /// Always.
    None,
}

/// Further tries.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Retries {
    /// Tries after the first.
    #[schemars(range(min = 0, max = 10))]
    pub max: u32,
    /// Retries beside each hundred requests, not counting targets that took no connection; a few are always allowed.
    #[schemars(range(min = 0, max = 100))]
    pub budget_percent: u8,
}

/// TLS to targets.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct BackendTls {
    /// PEM file of the authorities that vouch for the targets. Left out: the system's.
    #[schemars(length(min = 1), example = &"/etc/portcullis/inside-ca.crt")]
    pub ca: Option<PathBuf>,
    /// Name that is asked for and that the certificate must have. Left out: the host under which the target is asked.
    #[schemars(example = &"shop.inside.example")]
    pub name: Option<Host>,
    /// Certificate that this node shows to the targets. Left out: none.
    #[schemars(example = &"main")]
    pub certificate: Option<String>,
    /// Whether a certificate for another name will do. Whoever has any certificate can pretend to be the target then.
    pub accept_any_name: bool,
    /// Whether a certificate of whatever issuer will do, also one that has expired. Anybody on the way can pretend to be
    /// the target then.
    pub accept_any_certificate: bool,
}

/// How a target is asked whether it is well.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Probe {
    /// "http": by GET. "tcp": by a connection alone, with its TLS if the backend has that. Left out: "tcp" for backends with
    /// "tcp" and "tls", else "http".
    #[schemars(example = &"http")]
    pub protocol: Option<ProbeProtocol>,
    /// Path, with a query if it needs one.
    pub path: PathAndQuery,
    /// Host under which it is asked. Left out: as for requests: the host of a rule that leads there where the client's goes on,
    /// or else the target's address.
    #[schemars(example = &"shop.inside.example")]
    pub host: Option<Host>,
    /// Port. Left out: where requests go.
    #[schemars(range(min = 1, max = 65535), example = 8081)]
    pub port: Option<u16>,
    /// From one probe to the next.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "24 h"))]
    pub interval: TimeSpan,
    /// For the whole of one; at most the interval.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "24 h"))]
    pub timeout: TimeSpan,
    /// Failures in a row that make a target unhealthy. One success makes it healthy.
    #[schemars(range(min = 1, max = 20))]
    pub threshold: u32,
    /// Statuses of a healthy target, each alone or from one to another.
    #[schemars(length(min = 1), extend("uniqueItems" = true))]
    pub status: Vec<Statuses>,
    /// What the body of a healthy target contains. Left out: anything.
    #[schemars(length(min = 1, max = 4090), example = &"ready")]
    pub body: Option<String>,
}

/// What a target is asked.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum ProbeProtocol {
    /// A request of HTTP.
    Http,
    /// A connection.
    Tcp,
}

fn one() -> u16 {
    1
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            targets: Vec::new(),
            balance: Balance::RoundRobin,
            slow_start: None,
            panic: None,
            ejection: None,
        }
    }
}

impl Default for Ejection {
    fn default() -> Self {
        Self {
            failures: 5,
            base: TimeSpan::seconds(30),
            max_percent: 10,
        }
    }
}

impl Default for Backend {
    fn default() -> Self {
        Self {
            protocol: None,
            version: BackendVersion::Http1,
            port: None,
            request_timeout: TimeSpan::seconds(20),
            idle_timeout: None,
            connect_timeout: TimeSpan::seconds(5),
            drain: TimeSpan::seconds(30),
            host: HostForTarget(BackendHost::Client),
            path_override: None,
            affinity: None,
            probe: None,
            retries: Retries::default(),
            buffer_requests: false,
            buffer_responses: false,
            dedicated: false,
            hide_inside: true,
            proxy_protocol: false,
            tls: None,
        }
    }
}

impl Default for Affinity {
    fn default() -> Self {
        Self {
            cookie: CookieName("ApplicationGatewayAffinity".to_owned()),
            same_site: SameSite::Lax,
        }
    }
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            max: 1,
            budget_percent: 20,
        }
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            protocol: None,
            path: PathAndQuery("/".to_owned()),
            host: None,
            port: None,
            interval: TimeSpan::seconds(30),
            timeout: TimeSpan::seconds(30),
            threshold: 3,
            status: vec![Statuses(200..=399)],
            body: None,
        }
    }
}
