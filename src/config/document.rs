//! The document: a configuration as it is written.
//!
//! One annotation serves three readers. The doc comments, types, ranges and defaults below become the JSON Schema
//! ([`schema`]); the schema drives the check of the document's shape ([`super::shape`]); and serde reads what passed.
//! Every default of the program is stated here and nowhere else.
//!
//! Mandatory settings are optional to serde: where one is missing, the rest of its table is still checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub(super) mod format;
pub(super) mod inventory;
mod json_schema;
pub(super) mod operator;
pub(super) mod pool;
pub(super) mod rewrite;
pub(super) mod secondary;
pub(super) mod secret;
pub(super) mod web;

use format::{Authority, BaseUrl, Bind, Host, Levels, Name, Network, Path, TimeSpan};
pub(super) use operator::{Admin, NewLogins, Quiesce, QuiesceAnswer};
pub(super) use pool::{
    Backend, BackendProtocol, BackendTls, BackendVersion, Balance, Pool, Probe, ProbeProtocol, SameSite, Target,
};
pub(super) use rewrite::{Condition, RewriteRule, RewriteSet};
pub(super) use secondary::{Agent, Blast, Fleet, Pcoip, PcoipTls, Rdp, Udp};
use secret::{HashSource, KeySource};
pub(super) use web::{
    AccessLog, AffinityKey, AnswerFields, Fields, ForwardAuthentication, Forwarded, ForwardedMode, Rate, Redirect,
    Resolver, Rule, RulePath, UnusualFields,
};

/// Tables by the name that their author gave them.
type Named<T> = BTreeMap<String, T>;

/// Configuration of a Portcullis node.
///
/// Relative paths start at the folder of this file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(title = "Portcullis configuration")]
#[serde(deny_unknown_fields)]
pub(super) struct Document {
    /// This node.
    #[schemars(required)]
    pub node: Option<Node>,
    /// Log output, on standard error.
    #[serde(default)]
    pub log: Log,
    /// Listeners, by a name of your choice.
    #[schemars(required, extend("minProperties" = 1, "propertyNames" = { "format": "name" }))]
    pub listener: Option<Named<Listener>>,
    /// Certificates with their keys, by a name of your choice. Mandatory with a listener that speaks HTTPS.
    #[schemars(extend("minProperties" = 1, "propertyNames" = { "format": "name" }))]
    pub certificate: Option<Named<Certificate>>,
    /// The health check over plain HTTP, beside the one of the listeners.
    #[serde(default)]
    pub health: Health,
    /// The operator's API over TLS, beside the socket.
    #[serde(default)]
    pub admin: Admin,
    /// How the node leaves the balancer's service.
    #[serde(default)]
    pub quiesce: Quiesce,
    /// Bounds on what clients may take before they have signed in.
    #[serde(default)]
    pub limits: Limits,
    /// Sessions and their grants.
    #[serde(default)]
    pub session: Session,
    /// What survives a restart.
    #[serde(default)]
    pub state: State,
    /// The HTTPS tunnel.
    #[serde(default)]
    pub tunnel: Tunnel,
    /// Blast.
    #[serde(default)]
    pub blast: Blast,
    /// PCoIP.
    #[serde(default)]
    pub pcoip: Pcoip,
    /// RDP for clients that know no gateway.
    #[serde(default)]
    pub rdp: Rdp,
    /// Datagrams of the secondary protocols.
    #[serde(default)]
    pub udp: Udp,
    /// The other nodes.
    #[serde(default)]
    pub fleet: Fleet,
    /// How users sign in.
    #[serde(default)]
    pub authentication: Authentication,
    /// Users and desktops of the embedded directory.
    #[serde(default)]
    pub directory: Directory,
    /// Rules of what is published for browsers and other clients of the web, by a name of your choice.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub rule: Named<Rule>,
    /// Pools of targets, by a name of your choice.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub pool: Named<Pool>,
    /// How targets are spoken to, by a name of your choice.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub backend: Named<Backend>,
    /// Probes of targets, by a name of your choice.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub probe: Named<Probe>,
    /// Rewrite sets, by a name of your choice.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub rewrite: Named<RewriteSet>,
    /// Pages for errors that the gateway makes, by status, where a rule has none of its own; HTML files below 1 MB.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "error-status" }))]
    pub error_pages: Named<PathBuf>,
    /// How the client's address travels.
    #[serde(default)]
    pub forwarded: Forwarded,
    /// One line of JSON a request.
    #[serde(default)]
    pub access_log: AccessLog,
    /// The cookies by which clients stay with their target.
    #[serde(default)]
    pub affinity: AffinityKey,
    /// How names of targets are resolved.
    #[serde(default)]
    pub resolver: Resolver,
}

/// This node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    /// Label of this node in tokens and logs. Each node of a fleet has its own.
    #[schemars(required, example = "gw-1")]
    pub name: Option<Name>,
    /// Folder for changed passwords and preferences, and for what `[state]` keeps. Each node has one of its own.
    #[serde(default = "state_dir")]
    pub state_dir: Path,
    /// Unix socket on which the operator's commands are answered.
    #[serde(default = "admin_socket")]
    pub admin_socket: Path,
    /// Threads that carry connections. Left out: one a core.
    #[schemars(range(min = 1, max = 1024), example = 4)]
    pub workers: Option<usize>,
    /// How long a drain leaves running tunnels before it ends them.
    #[serde(default = "grace_period")]
    #[schemars(extend("x-minimum" = "0 s", "x-maximum" = "24 h"))]
    pub grace_period: TimeSpan,
    /// Key by which the nodes of a fleet recognise each other's tokens; the same on all of them. It opens nothing.
    /// Never in this file itself. Left out: a token of another node is just unknown here.
    pub recognition_key: Option<KeySource>,
}

/// Log output, on standard error.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Log {
    /// Form of a line: "text" for people, "json" for programs.
    pub format: LogFormat,
    /// Level (off, error, warn, info, debug, trace), or directives: "info,portcullis::tunnel=debug".
    pub level: Levels,
}

/// Form of a line of the log.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object a line.
    Json,
}

/// A listener.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Listener {
    /// "https"; "http": HTTP without TLS, for what is published only; "tcp": bytes that pass as they are; "tls": the same
    /// within TLS.
    #[serde(default = "https")]
    pub protocol: ListenerProtocol,
    /// Addresses with ports. IPv4 and IPv6 apart: `[::]:443` takes no IPv4.
    #[schemars(required, length(min = 1), example = ["0.0.0.0:443", "[::]:443"])]
    pub bind: Option<Vec<Bind>>,
    /// Balancers in front, as addresses or networks. They must send a PROXY header (v1 or v2), and are believed.
    #[serde(default)]
    pub balancers: Vec<Network>,
    /// Certificates served here, chosen by the name a client asks for; the first is the default. Mandatory with TLS.
    #[schemars(length(min = 1), example = ["main"], extend("uniqueItems" = true))]
    pub certificates: Option<Vec<String>>,
    /// What becomes of TLS with "tls". "terminate": it ends here. "passthrough": it ends at the target, and only the name
    /// that the client asks for is looked at.
    #[serde(default)]
    pub tls: TlsEnd,
    /// Whether the session gateway answers here: sign-in, tunnels, Blast, the page for people. Only with "https".
    #[serde(default = "yes")]
    pub session_gateway: bool,
    /// Whether the same ports are served over UDP too: QUIC with HTTP/3, and the datagrams of Blast.
    #[serde(default)]
    pub udp: bool,
    /// Names of the balancer, each with the name of this very node to which the first request of a session is sent on
    /// (307). Host, or host and port.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "authority" }))]
    pub host_redirects: Named<Authority>,
    /// Port to which redirects to this listener send clients, where something before it maps ports. Left out: that of
    /// the first address.
    #[schemars(range(min = 1, max = 65535), example = 443)]
    pub external_port: Option<u16>,
    /// Pages for errors that the gateway makes for requests that came here, by status; HTML files below 1 MB. They stand
    /// before the general ones, and behind those of a rule.
    #[serde(default)]
    #[schemars(extend("propertyNames" = { "format": "error-status" }))]
    pub error_pages: Named<PathBuf>,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ListenerProtocol {
    /// HTTP over TLS.
    Https,
    /// HTTP.
    Http,
    /// Bytes within TLS.
    Tls,
    /// Bytes.
    Tcp,
}

/// What becomes of the TLS of a client.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum TlsEnd {
    /// It ends here.
    #[default]
    Terminate,
    /// It ends at the target.
    Passthrough,
}

/// A certificate with its key.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Certificate {
    /// PEM file of the chain, the leaf first.
    #[schemars(required, length(min = 1), example = "/etc/portcullis/main.crt")]
    pub chain: Option<PathBuf>,
    /// PEM file of the key: PKCS#8, PKCS#1 or SEC1.
    #[schemars(required, length(min = 1), example = "/etc/portcullis/main.key")]
    pub key: Option<PathBuf>,
    /// DER file of an OCSP response for the leaf, which is sent along (stapled) until it expires.
    #[schemars(length(min = 1), example = "/etc/portcullis/main.ocsp")]
    pub ocsp: Option<PathBuf>,
}

/// The health check over plain HTTP.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Health {
    /// Addresses with ports on which GET /favicon.ico is answered without TLS.
    pub bind: Vec<Bind>,
}

/// Bounds on what clients may take before they have signed in.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Limits {
    /// Open connections in all.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub connections: usize,
    /// Open connections from one source: an IPv4 address or an IPv6 /64.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub connections_per_source: usize,
    /// For the PROXY header and the TLS handshake together.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "5 min"))]
    pub handshake_timeout: TimeSpan,
    /// From the first moment a request is awaited to the end of its head.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "5 min"))]
    pub head_timeout: TimeSpan,
    /// From the end of the head to the end of a control message.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "5 min"))]
    pub body_timeout: TimeSpan,
    /// Sign-ins that have begun and not ended.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pending_logins: usize,
    /// TLS and QUIC handshakes that one source may begin in a second; ten times as many at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub handshakes_per_source: u32,
}

/// Sessions and their grants.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Session {
    /// A session ends this long after its sign-in, whatever happens.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "168 h"))]
    pub lifetime: TimeSpan,
    /// A session ends after this long without activity. Left out: never for that reason.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "168 h"), example = "2 h")]
    pub idle: Option<TimeSpan>,
    /// How often clients report activity. Three reports missed end the session of a client that has ever sent one.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "24 h"))]
    pub heartbeat: TimeSpan,
    /// How long a sign-in may take.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub login_timeout: TimeSpan,
    /// How long an issued token waits for its first use.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "10 min"))]
    pub first_use: TimeSpan,
    /// Live sessions in all.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: usize,
    /// Live sessions of one user.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub per_user: usize,
    /// Open connections of one session. Clients open several: 8 or fewer breaks some.
    #[schemars(range(min = 1, max = 1024))]
    pub connections: usize,
}

/// What survives a restart.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct State {
    /// Whether live sessions are kept in `node.state_dir`, sealed, so that after a restart or a crash users go on
    /// without signing in again.
    pub persist_grants: bool,
    /// Key under which they are sealed; at least 32 characters, never in this file itself. Left out: one that is made once
    /// and kept beside them.
    pub key: Option<KeySource>,
}

/// The HTTPS tunnel.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Tunnel {
    /// Base URL that clients are told for the tunnel; it must reach this very node.
    /// Left out: the name and port under which the client asked.
    #[schemars(example = "https://gw-1.example.com")]
    pub external_url: Option<BaseUrl>,
    /// Silence after which either side gives the connection up.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub lost_contact: TimeSpan,
    /// How long a tunnel that lost its connection waits for its client to come back.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub reconnect_window: TimeSpan,
}

/// How users sign in.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Authentication {
    /// Text to be accepted before the sign-in. Left out: none.
    #[schemars(length(min = 1, max = 20_000), example = "For authorised users only.")]
    pub disclaimer: Option<String>,
    /// Domains offered to users.
    #[schemars(length(min = 1, max = 100), extend("uniqueItems" = true), inner(length(min = 1, max = 255)))]
    pub domains: Vec<String>,
    /// Wrong passwords in one sign-in before it has to start again.
    #[schemars(range(min = 1, max = 100))]
    pub attempts: u32,
    /// Throttle of failed sign-ins, applied before any password hash is computed.
    pub throttle: Throttle,
}

/// Throttle of failed sign-ins.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Throttle {
    /// Failures of one user within the window before further ones are refused.
    #[schemars(range(min = 1, max = 100_000))]
    pub per_user: u32,
    /// Failures from one source within the window before further ones are refused.
    #[schemars(range(min = 1, max = 100_000))]
    pub per_source: u32,
    /// Span over which failures are counted.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "24 h"))]
    pub window: TimeSpan,
}

/// Users and desktops of the embedded directory.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Directory {
    /// Users, by the name with which they sign in. Names do not differ by case.
    #[schemars(extend("propertyNames" = { "format": "user-name" }))]
    pub user: Named<User>,
    /// Desktops, by an id of your choice.
    #[schemars(extend("propertyNames" = { "format": "name" }))]
    pub desktop: Named<Desktop>,
}

/// A user.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    /// Hash of the password, from `portcullis hash-password`; or where it is kept.
    #[schemars(required, example = "$argon2id$...")]
    pub password_hash: Option<HashSource>,
    /// Groups that the user is in; a group exists by being named.
    #[serde(default)]
    #[schemars(extend("uniqueItems" = true), inner(length(min = 1, max = 255)))]
    pub groups: Vec<String>,
    /// A disabled user is answered like one who does not exist.
    #[serde(default)]
    pub disabled: bool,
    /// The user has to choose another password before anything else.
    #[serde(default)]
    pub must_change_password: bool,
}

/// A desktop.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Desktop {
    /// Name shown to users. Left out: the id.
    #[schemars(length(min = 1, max = 255), example = "Design workstation 7")]
    pub name: Option<String>,
    /// Inside address or host name.
    #[schemars(required, example = "10.0.0.5")]
    pub address: Option<Host>,
    /// What it speaks and on which port; the one written first is the default.
    #[schemars(required, extend("minProperties" = 1), example = Ports { rdp: Some(3389), ..Ports::default() })]
    pub protocols: Option<Ports>,
    /// Users entitled to it.
    #[serde(default)]
    #[schemars(extend("uniqueItems" = true))]
    pub users: Vec<String>,
    /// Groups entitled to it.
    #[serde(default)]
    #[schemars(extend("uniqueItems" = true))]
    pub groups: Vec<String>,
    /// Sessions that may use it at one time. Left out: any number.
    #[schemars(range(min = 1, max = 1_000_000), example = 1)]
    pub max_sessions: Option<usize>,
    /// How its agent for Blast and PCoIP proves itself.
    #[serde(default)]
    pub agent: Agent,
}

/// Protocols with their ports.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ports {
    /// Remote Desktop Protocol, usually 3389.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rdp: Option<u16>,
    /// Remote Framebuffer, usually 5900.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vnc: Option<u16>,
    /// Secure Shell, usually 22.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssh: Option<u16>,
    /// Any other protocol over TCP.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<u16>,
    /// Blast, usually 22443; TCP and UDP.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blast: Option<u16>,
    /// PCoIP, usually 4172; TCP and UDP.
    #[schemars(range(min = 1, max = 65535))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcoip: Option<u16>,
}

fn https() -> ListenerProtocol {
    ListenerProtocol::Https
}

fn yes() -> bool {
    true
}

fn state_dir() -> Path {
    Path(PathBuf::from("/var/lib/portcullis"))
}

fn admin_socket() -> Path {
    Path(PathBuf::from("/run/portcullis/admin.sock"))
}

fn grace_period() -> TimeSpan {
    TimeSpan::seconds(30)
}

impl Default for Log {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            level: Levels("info".to_owned()),
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 50_000,
            connections_per_source: 512,
            handshake_timeout: TimeSpan::seconds(10),
            head_timeout: TimeSpan::seconds(15),
            body_timeout: TimeSpan::seconds(15),
            pending_logins: 2_000,
            handshakes_per_source: 100,
        }
    }
}

impl Default for Session {
    fn default() -> Self {
        Self {
            lifetime: TimeSpan::hours(10),
            idle: None,
            heartbeat: TimeSpan::minutes(30),
            login_timeout: TimeSpan::minutes(5),
            first_use: TimeSpan::seconds(120),
            max: 10_000,
            per_user: 10,
            connections: 16,
        }
    }
}

impl Default for Tunnel {
    fn default() -> Self {
        Self {
            external_url: None,
            lost_contact: TimeSpan::seconds(60),
            reconnect_window: TimeSpan::minutes(5),
        }
    }
}

impl Default for Authentication {
    fn default() -> Self {
        Self {
            disclaimer: None,
            domains: vec!["LOCAL".to_owned()],
            attempts: 3,
            throttle: Throttle::default(),
        }
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self {
            per_user: 5,
            per_source: 50,
            window: TimeSpan::minutes(5),
        }
    }
}

/// The JSON Schema (2020-12) of the document, without references.
pub fn schema() -> serde_json::Value {
    SCHEMA.clone()
}

/// The schema, made once.
pub(super) static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(json_schema::of::<Document>);
