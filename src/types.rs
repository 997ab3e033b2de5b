//! Newtypes that every module speaks.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

mod access;
mod address;
mod mark;
mod octets;
mod rewrite;
mod thumbprint;
mod web;

pub use access::{AccessField, InvalidAccessField};
pub use address::{put_ip, put_socket};
pub use mark::{InvalidMark, Mark, MarkAnswer};
pub use octets::Octets32;
pub use rewrite::{
    Condition, InvalidPattern, InvalidTemplate, InvalidVariable, Part, Pattern, Place, Rewrite, RewriteFault,
    RewriteRule, ServerVariable, Template, Variable, is_framing, is_of_path, is_of_query,
};
pub use thumbprint::{InvalidThumbprint, Thumbprint};
pub use web::{HostPattern, InvalidHostPattern, InvalidPathPattern, PathPattern};

/// The eight steps that every connection passes: the gate line.
///
/// The same words stand in the log, the CLI, the pages and the module tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A socket accepted, the client's address known.
    Listen,
    /// TLS agreed.
    Secure,
    /// The request's path belongs to something.
    Route,
    /// Sizes and headers within bounds.
    Inspect,
    /// The user has proved who they are.
    Authenticate,
    /// A live grant of this node covers it.
    Grant,
    /// The secondary protocol runs.
    Tunnel,
    /// The desktop answers.
    Upstream,
}

impl Step {
    /// All steps in the order in which a connection passes them.
    pub const ALL: [Self; 8] = [
        Self::Listen,
        Self::Secure,
        Self::Route,
        Self::Inspect,
        Self::Authenticate,
        Self::Grant,
        Self::Tunnel,
        Self::Upstream,
    ];

    /// The code used in logs and metrics: the module's name.
    pub fn code(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Secure => "secure",
            Self::Route => "route",
            Self::Inspect => "inspect",
            Self::Authenticate => "authenticate",
            Self::Grant => "grant",
            Self::Tunnel => "tunnel",
            Self::Upstream => "upstream",
        }
    }

    /// The word that people read.
    pub fn label(self) -> &'static str {
        match self {
            Self::Listen => "Listen",
            Self::Secure => "TLS",
            Self::Route => "Route",
            Self::Inspect => "Inspect",
            Self::Authenticate => "Sign-in",
            Self::Grant => "Grant",
            Self::Tunnel => "Tunnel",
            Self::Upstream => "Backend",
        }
    }

    /// The step's place in the gate line, from 1.
    pub fn number(self) -> usize {
        self as usize + 1
    }
}

/// The short name of a node: 1 to 24 letters, digits, `.` and `-`, starting with a letter or digit.
///
/// It stands in tokens and logs, so that a fleet can tell whose a token is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName(String);

impl NodeName {
    /// The longest name, in characters.
    pub const MAX: usize = 24;

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric());
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        if starts_well && text.len() <= Self::MAX && text.chars().all(allowed) {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidName)
        }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that cannot be a [`NodeName`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node name has 1 to 24 letters, digits, '.' or '-', and starts with a letter or digit")]
pub struct InvalidName;

/// A user, as the directory knows them.
///
/// Names are compared without regard to case, as Windows does: `Ann` and `ann` are one user.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UserName(String);

impl UserName {
    /// The user whom `typed` means.
    pub fn new(typed: &str) -> Self {
        Self(typed.trim().to_lowercase())
    }

    /// The name as text, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UserName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identifier of a desktop, as configured; opaque to clients.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DesktopId(String);

impl DesktopId {
    /// Wraps the configured identifier.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DesktopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a desktop speaks. The gateway splices bytes; the name tells the client which program to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    /// Remote Desktop Protocol.
    Rdp,
    /// Remote Framebuffer (RFC 6143).
    Vnc,
    /// Secure Shell (RFC 4253).
    Ssh,
    /// Any other protocol over TCP.
    Tcp,
    /// Blast: a WebSocket, and datagrams beside it (secondary protocols sheet 1).
    Blast,
    /// PC-over-IP: TCP, and datagrams beside it (secondary protocols sheet 2).
    Pcoip,
}

impl Protocol {
    /// All protocols.
    pub const ALL: [Self; 6] = [Self::Rdp, Self::Vnc, Self::Ssh, Self::Tcp, Self::Blast, Self::Pcoip];

    /// The name on the wire (`protocol/name` of the control channel).
    pub fn wire_name(self) -> &'static str {
        match self {
            Self::Rdp => "RDP",
            Self::Vnc => "VNC",
            Self::Ssh => "SSH",
            Self::Tcp => "TCP",
            Self::Blast => "BLAST",
            Self::Pcoip => "PCOIP",
        }
    }

    /// Whether it has a secondary of its own; every other one is carried within a tunnel.
    pub fn has_own_secondary(self) -> bool {
        matches!(self, Self::Blast | Self::Pcoip)
    }

    /// The protocol of that wire name, in any case.
    pub fn from_wire(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|p| p.wire_name().eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wire_name())
    }
}

/// An inside address that a grant permits to be dialled: a host name or IP literal, and a port.
///
/// Only the configuration makes one; nothing of a request ever becomes a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Host name, IPv4 literal, or IPv6 literal without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A host, and a port if one is said: what stands in `Host` (RFC 9110 section 7.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Authority {
    /// Host name in lower case without a dot at its end, IPv4 literal, or IPv6 literal without brackets.
    pub host: String,
    /// Port.
    pub port: Option<u16>,
}

impl Authority {
    /// Whether a request for `asked` is one for this: the hosts are the same, and the ports where this one says any.
    pub fn covers(&self, asked: &Self) -> bool {
        self.host == asked.host && (self.port.is_none() || self.port == asked.port)
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]", self.host)?;
        } else {
            f.write_str(&self.host)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for Authority {
    type Err = InvalidAuthority;

    fn from_str(text: &str) -> Result<Self, InvalidAuthority> {
        // A colon within brackets belongs to the address.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (text, None),
        };
        let port = match port {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                Some(digits.parse().ok().filter(|port| *port > 0).ok_or(InvalidAuthority)?)
            }
            Some(_) => return Err(InvalidAuthority),
            None => None,
        };
        let host = match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            Some(v6) => v6
                .parse::<std::net::Ipv6Addr>()
                .map_err(|_| InvalidAuthority)?
                .to_string(),
            None => host_name(host).ok_or(InvalidAuthority)?,
        };
        Ok(Self { host, port })
    }
}

/// A host name or IPv4 literal in its one spelling.
fn host_name(text: &str) -> Option<String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    let mut before = b'.';
    let mut stands = |byte: u8| {
        // No label is empty.
        let after_dot = std::mem::replace(&mut before, byte) == b'.';
        byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') || (byte == b'.' && !after_dot)
    };
    let holds = name.len() <= 253 && name.bytes().all(&mut stands) && before != b'.';
    holds.then(|| name.to_ascii_lowercase())
}

/// A text that is no [`Authority`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no host, or host and port")]
pub struct InvalidAuthority;

/// The identifier of a session and of its grant: 128 random bits, shown as 32 hex digits.
///
/// It is not a credential: it stands in logs and in the admin API.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct SessionId(u128);

impl SessionId {
    /// Makes an identifier of 128 given bits, which the caller drew at random.
    pub fn from_random(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SessionId {
    type Err = InvalidSessionId;

    fn from_str(text: &str) -> Result<Self, InvalidSessionId> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(InvalidSessionId);
        }
        u128::from_str_radix(text, 16).map(Self).map_err(|_| InvalidSessionId)
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.to_string()
    }
}

impl TryFrom<String> for SessionId {
    type Error = InvalidSessionId;

    fn try_from(text: String) -> Result<Self, InvalidSessionId> {
        text.parse()
    }
}

/// A text that cannot be a [`SessionId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a session id has 32 hexadecimal digits")]
pub struct InvalidSessionId;

/// A password or key: never printed, wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret(String);

impl Secret {
    /// Takes the text into custody.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself; the caller must not copy, log or keep it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl PartialEq for Secret {
    /// Compares in constant time (for equal lengths).
    fn eq(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(self.0.as_bytes(), other.0.as_bytes()).is_ok()
    }
}

impl Eq for Secret {}

/// The address with an IPv4-mapped IPv6 address (`::ffff:a.b.c.d`) turned into plain IPv4, so that IPv4 rules match it.
pub fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// The unit by which sources are counted: an IPv4 address, or an IPv6 /64 (one site can have 2^64 addresses).
pub fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        v4 @ IpAddr::V4(_) => v4,
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) & (u128::MAX << 64)).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_never_printed() {
        assert_eq!(format!("{:?}", Secret::new("hunter2")), "Secret(…)");
    }

    #[test]
    fn mapped_addresses_become_ipv4() {
        let mapped: SocketAddr = "[::ffff:192.0.2.7]:443".parse().unwrap();
        assert_eq!(canonical(mapped).to_string(), "192.0.2.7:443");
    }

    #[test]
    fn one_ipv6_site_is_one_source() {
        let a = source_of("2001:db8:1:2:3::1".parse().unwrap());
        let b = source_of("2001:db8:1:2:ffff::9".parse().unwrap());
        let c = source_of("2001:db8:1:3::1".parse().unwrap());
        assert_eq!(a, b);
        assert_ne!(a, c);
    }

    #[test]
    fn node_names_are_checked() {
        assert!("gw-1.eu".parse::<NodeName>().is_ok());
        for bad in ["", "-a", "a b", "ä", "a23456789012345678901234x"] {
            assert!(bad.parse::<NodeName>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_session_id_survives_its_text() {
        let id = SessionId::from_random(0x1f);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("1f".parse::<SessionId>().is_err());
        assert!("+0000000000000000000000000000001f".parse::<SessionId>().is_err());
    }
}
