//! The configuration: document (as written) -> checked -> runtime.
//!
//! [`Config`] is the checked form: every value has its type, every reference resolves, every limit is in range. Nothing
//! else of the program sees a string from the file. The runtime form (loaded keys, compiled tables) belongs to the
//! modules that use it.
//!
//! [`load`] takes a file all the way and returns either a configuration or every fault that it has, each with its
//! place, its setting, what is wrong and what to do. Nothing here keeps state or changes anything.

use std::collections::BTreeMap;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;
use ipnet::IpNet;

pub mod environment;
pub mod inventory;
pub mod password;
pub mod web;

mod check;
mod document;
mod nearest;
mod path;
mod problem;
mod read;
mod report;
mod shape;
mod source;

pub use document::schema;
pub use environment::Environment;
pub use path::SettingPath;
pub use problem::{Form, Kind, Problem, Unpublishable};
pub use read::{load, parse};
pub use report::{Fault, Faults, Position, Severity};
pub use source::{Source, is_of_one_node};

use crate::types::{Authority, DesktopId, NodeName, Protocol, Secret, Target, Thumbprint, UserName};

/// A whole checked configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it comes from.
    pub source: Source,
    /// This node.
    pub node: Node,
    /// Log output.
    pub log: Log,
    /// Listeners by name, at least one.
    pub listeners: BTreeMap<String, Listener>,
    /// Certificates by name, at least one.
    pub certificates: BTreeMap<String, Certificate>,
    /// Addresses on which the health check is answered over plain HTTP.
    pub health: Vec<SocketAddr>,
    /// The operator's API over TLS.
    pub admin: Admin,
    /// How the node leaves the balancer's service.
    pub quiesce: Quiesce,
    /// Bounds on what clients may take.
    pub limits: Limits,
    /// Sessions and their grants.
    pub session: Session,
    /// What survives a restart.
    pub state: State,
    /// The HTTPS tunnel.
    pub tunnel: Tunnel,
    /// Blast.
    pub blast: Blast,
    /// PCoIP.
    pub pcoip: Pcoip,
    /// RDP for clients that know no gateway.
    pub rdp: Rdp,
    /// Datagrams of the secondary protocols.
    pub udp: Udp,
    /// The other nodes.
    pub fleet: Fleet,
    /// How users sign in.
    pub authentication: Authentication,
    /// Users and desktops.
    pub directory: Directory,
    /// What is published for clients of the web.
    pub web: web::Web,
}

/// This node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Label in tokens and logs.
    pub name: NodeName,
    /// Where changed passwords and preferences are kept.
    pub state_dir: PathBuf,
    /// The Unix socket on which the operator's commands are answered.
    pub admin_socket: PathBuf,
    /// Data-plane workers; `None` is one a core.
    pub workers: Option<usize>,
    /// How long a drain leaves running tunnels.
    pub grace_period: Duration,
    /// Key by which the nodes of a fleet recognise each other's tokens. It opens nothing.
    pub recognition_key: Option<Secret>,
}

/// Log output.
#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// JSON objects or text.
    pub format: LogFormat,
    /// A level (`info`) or directives (`info,portcullis::tunnel=debug`).
    pub level: String,
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// Text for people.
    Text,
}

/// A listener.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// What is spoken there.
    pub protocol: ListenerProtocol,
    /// Whether the session gateway answers here: sign-in, tunnels, Blast, the page for people.
    pub session_gateway: bool,
    /// Addresses to bind, IPv4 and IPv6 apart.
    pub bind: Vec<SocketAddr>,
    /// Peers whose PROXY header (v1 or v2) is required and believed; everyone else's bytes are the client's.
    pub balancers: Vec<IpNet>,
    /// Certificates that may be served here, by name; the first is the default.
    pub certificates: Vec<String>,
    /// Whether the same addresses are served over UDP: QUIC, and datagrams of Blast.
    pub udp: bool,
    /// Where the first request of a session that asks for one name is sent on to.
    pub host_redirects: BTreeMap<Authority, Authority>,
    /// Port under which clients find it; `None` is that of the first address.
    pub external_port: Option<u16>,
    /// Pages for errors that the gateway makes, where a rule has none of its own.
    pub error_pages: BTreeMap<StatusCode, PathBuf>,
}

impl Listener {
    /// The port under which clients find it; `None` if the system chooses it.
    pub fn port(&self) -> Option<u16> {
        let bound = || self.bind.first().map(SocketAddr::port);
        self.external_port.or_else(bound).filter(|port| *port != 0)
    }
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerProtocol {
    /// HTTP over TLS.
    #[default]
    Https,
    /// HTTP. The session gateway is never there.
    Http,
    /// TLS that ends here; the bytes in it pass as they are.
    Tls,
    /// TLS that ends at the target: only the name in its first message is looked at.
    Passthrough,
    /// Bytes that pass as they are.
    Tcp,
}

impl ListenerProtocol {
    /// Whether HTTP is spoken there. Elsewhere nothing is understood of what passes.
    pub fn is_http(self) -> bool {
        match self {
            Self::Https | Self::Http => true,
            Self::Tls | Self::Passthrough | Self::Tcp => false,
        }
    }
}

/// A certificate with its key.
#[derive(Clone, Debug, PartialEq)]
pub struct Certificate {
    /// PEM chain, leaf first.
    pub chain: PathBuf,
    /// PEM key: PKCS#8, PKCS#1 or SEC1.
    pub key: PathBuf,
    /// OCSP response in DER that is sent along.
    pub ocsp: Option<PathBuf>,
}

/// The operator's API over TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admin {
    /// Addresses to bind; none is off.
    pub bind: Vec<SocketAddr>,
    /// Certificate that is shown there, by name; `None` is one of the node's own making.
    pub certificate: Option<String>,
}

/// How the node leaves the balancer's service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quiesce {
    /// How the balancer learns of it.
    pub answer: QuiesceAnswer,
    /// Addresses on which HAProxy's agent check is answered; none is off.
    pub agent: Vec<SocketAddr>,
    /// Who may ask there; none is everybody.
    pub agent_from: Vec<IpNet>,
    /// Whether new sign-ins are refused meanwhile.
    pub refuses_logins: bool,
}

/// How the balancer learns that the node is quiesced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuiesceAnswer {
    /// The health check is answered 503 at once.
    Unavailable,
    /// It is answered 404 for so long and until nobody is in the middle of a sign-in, then 503.
    TwoStep(Duration),
    /// It stays 200: the agent check says so.
    Agent,
}

impl QuiesceAnswer {
    /// The word in configuration and API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unavailable => "503",
            Self::TwoStep(_) => "two-step",
            Self::Agent => "agent",
        }
    }
}

/// Bounds on what clients may take.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Open connections in all.
    pub connections: usize,
    /// Open connections from one source (IPv4 address or IPv6 /64).
    pub connections_per_source: usize,
    /// PROXY header and TLS handshake together.
    pub handshake_timeout: Duration,
    /// From the first moment a request is awaited to the end of its head.
    pub head_timeout: Duration,
    /// From the end of the head to the end of a control message.
    pub body_timeout: Duration,
    /// Sign-in sessions that have not yet signed in.
    pub pending_logins: usize,
    /// Handshakes that one source may begin in a second; ten times as many at once.
    pub handshakes_per_source: u32,
}

/// Sessions and their grants.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Hard end of a session, from sign-in.
    pub lifetime: Duration,
    /// End of a session without activity; `None` is never.
    pub idle: Option<Duration>,
    /// How often clients report activity; three missed beats end the session of a client that has ever beaten.
    pub heartbeat: Duration,
    /// How long a sign-in may take.
    pub login_timeout: Duration,
    /// How long an issued token waits for its first use.
    pub first_use: Duration,
    /// Live sessions in all.
    pub max: usize,
    /// Live sessions of one user.
    pub per_user: usize,
    /// Open connections of one session.
    pub connections: usize,
}

/// What survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Whether live grants are kept in `node.state_dir`.
    pub persist_grants: bool,
    /// Under which they are sealed; `None` is a key of the node's own making.
    pub key: Option<Secret>,
}

/// The HTTPS tunnel.
#[derive(Clone, Debug, PartialEq)]
pub struct Tunnel {
    /// The base URL that clients are told, without a trailing slash; must reach this very node.
    /// `None` is the name and port under which the client asked.
    pub external_url: Option<String>,
    /// Silence after which a side gives the connection up.
    pub lost_contact: Duration,
    /// How long a tunnel without a connection waits for its client to come back.
    pub reconnect_window: Duration,
}

/// Blast.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Blast {
    /// What clients are told; must reach this very node. `None` is the name and port under which the client asked.
    pub external_url: Option<ExternalUrl>,
    /// What `Host` of a request may be; `None` is anything.
    pub allowed_hosts: Option<Vec<Authority>>,
}

/// Where clients find a secondary protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalUrl {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// UDP port, if it is said.
    pub udp_port: Option<u16>,
}

/// PCoIP.
#[derive(Clone, Debug, PartialEq)]
pub struct Pcoip {
    /// Addresses to bind, for TCP and UDP; none is off.
    pub bind: Vec<SocketAddr>,
    /// Peers whose PROXY header is required and believed.
    pub balancers: Vec<IpNet>,
    /// Certificates by name; the first is the default.
    pub certificates: Vec<String>,
    /// Whether TLS ends here and begins anew to the agent, rather than passing untouched.
    pub terminates_tls: bool,
    /// What clients are told; must reach this very node. `None` is the address to which the client connected.
    pub external_address: Option<SocketAddrV4>,
}

/// RDP for clients that know no gateway.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rdp {
    /// Addresses to bind; none is off.
    pub bind: Vec<SocketAddr>,
    /// Peers whose PROXY header is required and believed.
    pub balancers: Vec<IpNet>,
    /// What clients are told; must reach this very node. `None` is the host of `tunnel.external_url`, or that under which
    /// the client asked; without a port it is that of `bind`.
    pub external_address: Option<Authority>,
}

/// Datagrams of the secondary protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// From a TCP connection to the first datagram beside it.
    pub first_datagram: Duration,
    /// From the first datagram to the desktop's answer.
    pub agent_answer: Duration,
    /// Silence that ends a flow.
    pub idle: Duration,
    /// Flows in all.
    pub flows: usize,
    /// Flows of one session.
    pub flows_per_session: usize,
    /// Datagrams a second without a flow that are looked at from one source; ten times as many at once.
    pub strays_per_source: u32,
}

/// The other nodes, and the way to them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fleet {
    /// Addresses on which the other nodes bring misrouted connections; none is no relay.
    pub bind: Vec<SocketAddr>,
    /// Certificate that this node shows to the others, by name. Given if there is a relay.
    pub certificate: Option<String>,
    /// PEM file of the authority of the nodes' certificates. Given if there is a relay.
    pub ca: Option<PathBuf>,
    /// The other nodes, and where each is reached.
    pub peers: BTreeMap<NodeName, SocketAddr>,
}

/// How users sign in.
#[derive(Clone, Debug, PartialEq)]
pub struct Authentication {
    /// Text to be accepted before the sign-in.
    pub disclaimer: Option<String>,
    /// Domains offered; at least one.
    pub domains: Vec<String>,
    /// Wrong passwords in one sign-in before it has to start again.
    pub attempts: u32,
    /// Throttle of failed sign-ins.
    pub throttle: Throttle,
}

/// Throttle of failed sign-ins, applied before any password hash is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Failures of one user within `window` before further ones are refused.
    pub per_user: u32,
    /// Failures from one source within `window` before further ones are refused.
    pub per_source: u32,
    /// The span over which failures are counted.
    pub window: Duration,
}

/// The embedded directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    /// Users by name.
    pub users: BTreeMap<UserName, User>,
    /// Desktops by id.
    pub desktops: BTreeMap<DesktopId, Desktop>,
}

/// A user.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// argon2id hash in PHC form.
    pub password_hash: Secret,
    /// Groups that the user belongs to.
    pub groups: Vec<String>,
    /// A disabled user is answered like an unknown one.
    pub disabled: bool,
    /// The user must choose another password before anything else.
    pub must_change_password: bool,
}

/// A desktop.
#[derive(Clone, Debug, PartialEq)]
pub struct Desktop {
    /// The name shown to users.
    pub name: String,
    /// What it speaks and where; the first is the default. At least one.
    pub protocols: Vec<(Protocol, Target)>,
    /// Users entitled to it.
    pub users: Vec<UserName>,
    /// Groups entitled to it.
    pub groups: Vec<String>,
    /// Sessions that may be on it at one time; `None` is any number.
    pub max_sessions: Option<usize>,
    /// How its agent for Blast and PCoIP proves itself.
    pub agent: Agent,
}

/// How an agent proves itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Agent {
    /// It speaks no TLS: nothing proves it.
    Plain,
    /// By a certificate of the system's authorities for its address.
    #[default]
    System,
    /// By a certificate of this thumbprint, whoever issued it.
    Thumbprint(Thumbprint),
    /// By a certificate of an authority, for a name.
    Certificate {
        /// PEM file of the authority; `None` is the system's.
        ca: Option<PathBuf>,
        /// The name in it; `None` is the agent's address.
        name: Option<String>,
    },
}

#[cfg(test)]
mod tests;
