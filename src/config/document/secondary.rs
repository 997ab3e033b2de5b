//! The part of the document about the secondary protocols beside the tunnel, their datagrams, and the other nodes.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Named;
use super::format::{Authority, Bind, BlastUrl, Host, Network, PcoipAddress, Thumbprint, TimeSpan};

/// Blast.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Blast {
    /// URL that clients are told for Blast; it must reach this very node. With `?udpport=` it names the UDP port.
    /// Left out: the name and port under which the client asked.
    #[schemars(example = "https://gw-1.example.com:8443?udpport=8443")]
    pub external_url: Option<BlastUrl>,
    /// What `Host` of a Blast request may be: a host with any port, or host and port. Left out: anything.
    #[schemars(extend("uniqueItems" = true), example = ["gw-1.example.com"])]
    pub allowed_hosts: Option<Vec<Authority>>,
}

/// PCoIP.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Pcoip {
    /// Addresses with ports for TCP and UDP, usually port 4172. None: PCoIP is off.
    pub bind: Vec<Bind>,
    /// Balancers in front of the TCP port, as addresses or networks. They must send a PROXY header, and are believed.
    pub balancers: Vec<Network>,
    /// Certificates served here; the first is the default.
    #[schemars(extend("uniqueItems" = true))]
    pub certificates: Vec<String>,
    /// "terminate": TLS ends here and begins anew to the agent. "pass": the client's TLS goes to the agent untouched.
    pub tls: PcoipTls,
    /// IPv4 address, with a port if it is not 4172, that clients are told; it must reach this very node.
    /// Left out: the address to which the client connected.
    #[schemars(example = "203.0.113.10:4172")]
    pub external_address: Option<PcoipAddress>,
}

/// Where the TLS of PCoIP ends.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum PcoipTls {
    /// At this node.
    Terminate,
    /// At the agent.
    Pass,
}

/// RDP for clients that know no gateway.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Rdp {
    /// Addresses with ports on which a preconnection blob is read as the token. None: off.
    pub bind: Vec<Bind>,
    /// Balancers in front, as addresses or networks. They must send a PROXY header, and are believed.
    pub balancers: Vec<Network>,
    /// Host, with a port if it is not that of `bind`, that clients are told; it must reach this very node.
    /// Left out: the host of `tunnel.external_url`, or that under which the client asked.
    #[schemars(example = "gw-1.example.com:3389")]
    pub external_address: Option<Authority>,
}

/// Datagrams of the secondary protocols.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Udp {
    /// How soon after its TCP connection the first datagram of Blast or PCoIP must come.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "10 min"))]
    pub first_datagram: TimeSpan,
    /// How soon the desktop must answer the first datagram.
    #[schemars(extend("x-minimum" = "100 ms", "x-maximum" = "1 min"))]
    pub agent_answer: TimeSpan,
    /// A flow without a datagram for this long ends.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub idle: TimeSpan,
    /// Flows in all.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub flows: usize,
    /// Flows of one session.
    #[schemars(range(min = 1, max = 1024))]
    pub flows_per_session: usize,
    /// Datagrams a second that are looked at from one source without a flow; ten times as many at once.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub strays_per_source: u32,
}

/// The other nodes, and the way to them.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Fleet {
    /// Addresses with ports on which the other nodes bring misrouted connections. None: no relay.
    pub bind: Vec<Bind>,
    /// Certificate that this node shows to the others.
    #[schemars(example = &"main")]
    pub certificate: Option<String>,
    /// PEM file of the authority whose certificates the nodes accept of each other. Each carries the name of its node.
    #[schemars(length(min = 1), example = "/etc/portcullis/fleet-ca.crt")]
    pub ca: Option<PathBuf>,
    /// The other nodes by name, each with the address and port on which it is reached.
    #[schemars(extend("propertyNames" = { "format": "node-name" }))]
    pub peers: Named<Bind>,
}

/// How an agent for Blast and PCoIP proves itself. Left out: by a certificate of the system's authorities.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Agent {
    /// Whether it speaks TLS. Without TLS nothing proves it.
    pub tls: bool,
    /// SHA-256 thumbprint of its certificate, in hexadecimal digits, with or without colons. No authority is asked then.
    #[schemars(example = "5f:1d:…")]
    pub thumbprint: Option<Thumbprint>,
    /// PEM file of the authority that vouches for it.
    #[schemars(length(min = 1), example = "/etc/portcullis/agents-ca.crt")]
    pub ca: Option<PathBuf>,
    /// The name that its certificate must have. Left out: its address.
    #[schemars(example = "design-7.inside.example")]
    pub name: Option<Host>,
}

impl Default for Pcoip {
    fn default() -> Self {
        Self {
            bind: Vec::new(),
            balancers: Vec::new(),
            certificates: Vec::new(),
            tls: PcoipTls::Terminate,
            external_address: None,
        }
    }
}

impl Default for Udp {
    fn default() -> Self {
        Self {
            first_datagram: TimeSpan::seconds(30),
            agent_answer: TimeSpan::seconds(5),
            idle: TimeSpan::seconds(120),
            flows: 10_000,
            flows_per_session: 4,
            strays_per_source: 100,
        }
    }
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            tls: true,
            thumbprint: None,
            ca: None,
            name: None,
        }
    }
}
