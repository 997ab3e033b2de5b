//! The checked form of the application gateway: rules, pools, backends, probes.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;

use crate::types::{HostPattern, PathPattern, Rewrite, Secret};

/// The statuses for which there may be a page of one's own: those that the gateway answers by itself.
pub const ERROR_PAGES: [u16; 12] = [400, 401, 403, 404, 405, 408, 413, 429, 500, 502, 503, 504];

/// What is published for browsers and other clients of the web.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Web {
    /// Rules by name. Their priorities differ.
    pub rules: BTreeMap<String, Rule>,
    /// Pools of targets by name.
    pub pools: BTreeMap<String, Pool>,
    /// How targets are spoken to, by name.
    pub backends: BTreeMap<String, Backend>,
    /// Probes by name.
    pub probes: BTreeMap<String, Probe>,
    /// Rewrite sets by name.
    pub rewrites: BTreeMap<String, Rewrite>,
    /// Pages for errors that the gateway makes, where a rule has none of its own.
    pub error_pages: BTreeMap<StatusCode, PathBuf>,
    /// How the client's address travels.
    pub forwarded: Forwarded,
    /// One line a request.
    pub access_log: AccessLog,
    /// Key of the affinity cookies, the same on every node of a fleet. `None`: drawn at start.
    pub affinity_key: Option<Secret>,
    /// Name servers that are asked for targets' names; none is the system's.
    pub resolvers: Vec<std::net::SocketAddr>,
}

/// A routing rule: for which requests, and what becomes of them. Its listeners either all speak HTTP, or none does: then
/// it leads connections to a pool, and has neither paths nor anything else that is of HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// Listeners on which it holds, by name; at least one.
    pub listeners: Vec<String>,
    /// Hosts that it is for; none is any host. Without HTTP, the names that clients ask for within TLS.
    pub hosts: Vec<HostPattern>,
    /// Of several rules for a host the one with the lowest number holds. 1 to 20,000.
    pub priority: u16,
    /// What becomes of requests that no path is for.
    pub action: Action,
    /// Paths, of which the first that matches holds.
    pub paths: Vec<PathRule>,
    /// Who may ask, and how often.
    pub guard: Guard,
    /// Pages for errors that the gateway makes.
    pub error_pages: BTreeMap<StatusCode, PathBuf>,
    /// What becomes of fields of requests with unusual names.
    pub unusual_fields: UnusualFields,
    /// Fields of requests, before rewriting.
    pub request_headers: HeaderPolicy,
    /// Fields of answers, after rewriting.
    pub response_headers: HeaderPolicy,
    /// The largest body of a request, in bytes; `None` is any.
    pub max_body: Option<u64>,
    /// Whether answers of text are compressed.
    pub compress: bool,
}

/// What becomes of fields of requests whose names have other characters than letters, digits, `-`, `_` and `.`, or would
/// be read as one of the gateway's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnusualFields {
    /// They are taken out.
    #[default]
    Drop,
    /// The request goes no further.
    Refuse,
    /// They go to the target, except for those that would be read as one of the gateway's own.
    Pass,
}

/// Paths of a rule, and what becomes of requests for them.
#[derive(Clone, Debug, PartialEq)]
pub struct PathRule {
    /// At least one.
    pub patterns: Vec<PathPattern>,
    /// What becomes of them.
    pub action: Action,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// A target answers it.
    Forward(Forward),
    /// The client is sent elsewhere.
    Redirect(Redirect),
}

/// The way to a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forward {
    /// The pool, by name.
    pub pool: String,
    /// How its targets are spoken to, by name; `None` is [`Backend::default`].
    pub backend: Option<String>,
    /// The rewrite set, by name.
    pub rewrite: Option<String>,
}

/// An answer that sends the client elsewhere.
#[derive(Clone, Debug, PartialEq)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub status: StatusCode,
    /// Where.
    pub to: RedirectTo,
    /// Whether the path goes with it.
    pub keep_path: bool,
    /// Whether the query goes with it.
    pub keep_query: bool,
}

/// Where a redirect leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedirectTo {
    /// The same host at another listener: its scheme and port.
    Listener(String),
    /// A URL.
    Url(http::Uri),
}

/// Who may ask, and how often. In this order: address, rate, authentication.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guard {
    /// Clients that are admitted; none is all.
    pub allow: Vec<IpNet>,
    /// Clients that are not, whatever `allow` says.
    pub deny: Vec<IpNet>,
    /// How often one client (an IPv4 address, an IPv6 /64) may ask.
    pub rate: Option<Rate>,
    /// Who is asked whether the user may.
    pub authentication: Option<ForwardAuthentication>,
}

/// A rate with its burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests a second.
    pub per_second: u32,
    /// Requests at once.
    pub burst: u32,
}

/// A service that is asked about each request before it goes on: 2xx admits it, anything else is the client's answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardAuthentication {
    /// The service's pool, by name.
    pub pool: String,
    /// How it is spoken to, by name.
    pub backend: Option<String>,
    /// The path that it is asked for, always by `GET`.
    pub path: String,
    /// Fields of its answer that the target gets; never the client's own of that name.
    pub copy: Vec<HeaderName>,
    /// Paths that need no authentication.
    pub exempt: Vec<PathPattern>,
}

/// What is done to fields of a head. A field has many lines; `set` and `remove` mean all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeaderPolicy {
    /// Fields that are set whatever was there.
    pub set: Vec<(HeaderName, HeaderValue)>,
    /// Fields that are set where there is none.
    pub default: Vec<(HeaderName, HeaderValue)>,
    /// Fields that are taken out.
    pub remove: Vec<HeaderName>,
}

/// Targets that answer for each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pool {
    /// The targets; none answers everything with 502.
    pub targets: Vec<PoolTarget>,
    /// How one is chosen.
    pub balance: Balance,
    /// How long a target that became healthy takes to get its whole share.
    pub slow_start: Option<Duration>,
    /// Below this percentage of healthy targets all are taken to be healthy; `None` is never.
    pub panic: Option<u8>,
    /// When a target is left out for its answers to users; `None` is never.
    pub ejection: Option<Ejection>,
}

/// A target as it is written. A name stands for all of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolTarget {
    /// Host name or address, without brackets.
    pub host: String,
    /// Port; `None` is the backend's.
    pub port: Option<u16>,
    /// Its share beside the others, 1 to 256; 0 gets nothing new.
    pub weight: u16,
    /// Requests that it may have at one time; `None` is any number.
    pub max_requests: Option<u32>,
}

/// How a target is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// In turn, each as often as its weight.
    #[default]
    RoundRobin,
    /// The one with the fewest requests for its weight, of two drawn at random.
    LeastRequests,
}

/// When a target is left out for its answers to users, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Failures in a row: 5xx that the gateway makes or the target sends, but 501.
    pub failures: u32,
    /// For how long, times the number of ejections in a row.
    pub base: Duration,
    /// The share of the pool, in percent, that may be out at one time for this reason.
    pub max_percent: u8,
}

/// How targets are spoken to.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// TLS or not.
    pub tls: Option<BackendTls>,
    /// Version of HTTP.
    pub version: BackendVersion,
    /// Port of targets that name none; 0 if there are none.
    pub port: u16,
    /// From the end of the request to the head of the answer; for a body that is still being sent, between its bytes too.
    pub request_timeout: Duration,
    /// Silence in an answer, in a WebSocket or on a connection of bytes that ends it.
    pub idle_timeout: Duration,
    /// For TCP and TLS together.
    pub connect_timeout: Duration,
    /// How long what runs on a target that was taken away goes on.
    pub drain: Duration,
    /// `Host` for the target.
    pub host: BackendHost,
    /// What stands in for the part of the path that the rule matched.
    pub path_override: Option<String>,
    /// Whether clients stay with their target.
    pub affinity: Option<Affinity>,
    /// The probe, by name; `None` is [`Probe::default`].
    pub probe: Option<String>,
    /// Further tries for requests that may be repeated.
    pub retries: Retries,
    /// Whether bodies of requests are read whole before they are sent.
    pub buffer_requests: bool,
    /// Whether bodies of answers are read whole before they are sent; never event streams and gRPC.
    pub buffer_responses: bool,
    /// Whether a client's connection has a connection to the target of its own, for NTLM and Negotiate.
    pub dedicated: bool,
    /// Whether names of the inside in `Location` and in the `Domain` of cookies become the outer ones.
    pub hide_inside: bool,
    /// Whether the target is told the client's address by a PROXY header.
    pub proxy_protocol: bool,
}

/// The name of [`Backend::bytes`], which no configuration can give.
pub const BYTES: &str = "(tcp)";

/// TLS to the inside.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendTls {
    /// PEM file of the authorities; `None` is the system's.
    pub ca: Option<PathBuf>,
    /// Name that is asked for and expected; `None` is the `Host` for the target.
    pub name: Option<String>,
    /// Whether the certificate must be for that name.
    pub verify_name: bool,
    /// Whether it must be issued by the authorities and be valid today.
    pub verify_chain: bool,
    /// Certificate that this node shows, by name.
    pub certificate: Option<String>,
}

/// Version of HTTP behind, if it is HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackendVersion {
    /// HTTP/1.1.
    #[default]
    Http1,
    /// HTTP/2; without TLS by prior knowledge.
    Http2,
    /// None: bytes pass as they are.
    Bytes,
}

/// What a target is asked under.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackendHost {
    /// What the client asked under.
    #[default]
    Client,
    /// The target's own name or address.
    Target,
    /// This.
    Name(String),
}

/// Clients stay with their target by a cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// Name of the cookie; a second one with `CORS` behind it serves other sites' frames.
    pub cookie: String,
    /// The first cookie's `SameSite`.
    pub same_site: SameSite,
}

/// `SameSite` of a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameSite {
    /// With navigation from other sites too.
    #[default]
    Lax,
    /// From the same site only.
    Strict,
    /// Always.
    None,
}

/// Further tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// Tries after the first.
    pub max: u32,
    /// Retries beside each hundred requests, not counting targets that took no connection; a few are always allowed.
    pub budget_percent: u8,
}

/// How a target is asked whether it is well.
#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    /// What it is asked; `None` follows the backend.
    pub protocol: Option<ProbeProtocol>,
    /// Path with query.
    pub path: String,
    /// `Host`; `None` is the backend's, or else the target's address.
    pub host: Option<String>,
    /// Port; `None` is where requests go.
    pub port: Option<u16>,
    /// From one to the next.
    pub interval: Duration,
    /// For the whole of one.
    pub timeout: Duration,
    /// Failures in a row that make a target unhealthy; one success makes it healthy.
    pub threshold: u32,
    /// Statuses of a healthy target.
    pub status: Vec<RangeInclusive<u16>>,
    /// What the body of a healthy target contains.
    pub body: Option<String>,
}

/// What a probe asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeProtocol {
    /// An answer to a request.
    Http,
    /// A connection, with TLS if the backend has that.
    Tcp,
}

/// How the client's address travels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// What becomes of `X-Forwarded-For` of a peer.
    pub mode: ForwardedMode,
    /// Whether the client's port goes with its address.
    pub port: bool,
    /// Peers whose `X-Forwarded-For` is believed. With any, that of all others is dropped, and the client is the
    /// rightmost address that is not one of them.
    pub trusted: Vec<IpNet>,
}

/// What becomes of `X-Forwarded-For`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedMode {
    /// The client's address goes behind what is there.
    #[default]
    Append,
    /// The client's address stands alone.
    Replace,
}

/// One line of JSON a request.
#[derive(Clone, Debug, PartialEq)]
pub struct AccessLog {
    /// Where it goes; `None` is nowhere.
    pub to: Option<AccessLogTo>,
    /// Of every hundred requests that went well so many are written; the others always.
    pub sample_percent: u8,
    /// The fields that are written; none is all.
    pub fields: Vec<String>,
}

/// Where access log lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLogTo {
    /// Standard output.
    Stdout,
    /// A file, which is opened again at a reload.
    File(PathBuf),
}

impl Default for Backend {
    fn default() -> Self {
        Self {
            tls: None,
            version: BackendVersion::default(),
            port: 80,
            request_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(240),
            connect_timeout: Duration::from_secs(5),
            drain: Duration::from_secs(30),
            host: BackendHost::default(),
            path_override: None,
            affinity: None,
            probe: None,
            retries: Retries::default(),
            buffer_requests: false,
            buffer_responses: false,
            dedicated: false,
            hide_inside: true,
            proxy_protocol: false,
        }
    }
}

impl Backend {
    /// How bytes pass without further settings: without TLS, to the port that each target names.
    pub fn bytes() -> Self {
        Self {
            version: BackendVersion::Bytes,
            port: 0,
            idle_timeout: Duration::from_secs(3600),
            host: BackendHost::Target,
            ..Self::default()
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
            path: "/".into(),
            host: None,
            port: None,
            interval: Duration::from_secs(30),
            timeout: Duration::from_secs(30),
            threshold: 3,
            status: vec![200..=399],
            body: None,
        }
    }
}

impl Default for Forwarded {
    fn default() -> Self {
        Self {
            mode: ForwardedMode::default(),
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

impl Default for BackendTls {
    fn default() -> Self {
        Self {
            ca: None,
            name: None,
            verify_name: true,
            verify_chain: true,
            certificate: None,
        }
    }
}
