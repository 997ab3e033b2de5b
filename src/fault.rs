//! What went wrong, whose fault it was, and the closed lists of words for it.
//!
//! Every connection ends with exactly one [`CloseReason`]; every secondary connection that is turned away has exactly
//! one [`Refusal`]. The same code stands in the log, the metric and the admin search.

use std::fmt;

mod web;

pub use web::WebFault;

/// Whose fault an end was. It decides the log level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The client, or the network between it and this node.
    Client,
    /// The inside: a desktop or its network.
    Upstream,
    /// A rule or limit of this node; nothing is broken.
    Policy,
    /// This node itself.
    Internal,
}

/// Why a secondary connection was not admitted. Nothing is dialled after one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It carried no token at all.
    NoToken,
    /// Its token cannot be read.
    Malformed,
    /// No grant of this node has that token.
    UnknownToken,
    /// The token was issued by another node of this fleet.
    SisterNode,
    /// The grant had ended.
    Expired,
    /// The grant was revoked: logged out, or ended by an administrator.
    Revoked,
    /// The grant is for another protocol.
    WrongProtocol,
    /// The session has not launched what the connection is for.
    NotAnnounced,
    /// It comes from another address than its session.
    AddressMismatch,
    /// Several sessions come from its address, and nothing in it says which one it belongs to.
    AmbiguousAddress,
    /// The first use came too late after the token was issued.
    WindowMissed,
    /// The session has as many connections as it may have.
    FlowLimit,
    /// Its `Host` is none that is allowed.
    HostNotAllowed,
    /// The tunnel that it wants to resume is not there any more.
    NotResumable,
    /// The desktop cannot be reached.
    TargetUnreachable,
    /// The desktop was reached and does not answer.
    AgentSilent,
    /// The node takes no new sessions.
    Quiesced,
    /// So many users come from its address that a balancer must have replaced theirs.
    LbSnatDetected,
}

impl Refusal {
    /// Every reason.
    pub const ALL: [Self; 18] = [
        Self::NoToken,
        Self::Malformed,
        Self::UnknownToken,
        Self::SisterNode,
        Self::Expired,
        Self::Revoked,
        Self::WrongProtocol,
        Self::NotAnnounced,
        Self::AddressMismatch,
        Self::AmbiguousAddress,
        Self::WindowMissed,
        Self::FlowLimit,
        Self::HostNotAllowed,
        Self::NotResumable,
        Self::TargetUnreachable,
        Self::AgentSilent,
        Self::Quiesced,
        Self::LbSnatDetected,
    ];

    /// The code in log, metric and filter.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoToken => "no_token",
            Self::Malformed => "malformed",
            Self::UnknownToken => "unknown_token",
            Self::SisterNode => "sister_node",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::WrongProtocol => "wrong_protocol",
            Self::NotAnnounced => "not_announced",
            Self::AddressMismatch => "address_mismatch",
            Self::AmbiguousAddress => "ambiguous_address",
            Self::WindowMissed => "window_missed",
            Self::FlowLimit => "flow_limit",
            Self::HostNotAllowed => "host_not_allowed",
            Self::NotResumable => "not_resumable",
            Self::TargetUnreachable => "target_unreachable",
            Self::AgentSilent => "agent_silent",
            Self::Quiesced => "quiesced",
            Self::LbSnatDetected => "lb_snat_detected",
        }
    }

    /// The words that people read.
    pub fn words(self) -> &'static str {
        match self {
            Self::NoToken => "came without a grant",
            Self::Malformed => "unreadable token",
            Self::UnknownToken => "no such grant here",
            Self::SisterNode => "issued by another node",
            Self::Expired => "grant had ended",
            Self::Revoked => "grant was revoked",
            Self::WrongProtocol => "grant is for another protocol",
            Self::NotAnnounced => "nothing of the kind was launched",
            Self::AddressMismatch => "comes from another address than its session",
            Self::AmbiguousAddress => "several sessions come from its address",
            Self::WindowMissed => "first use came too late",
            Self::FlowLimit => "too many connections of one session",
            Self::HostNotAllowed => "asks for a host that is not allowed",
            Self::NotResumable => "tunnel cannot be resumed",
            Self::TargetUnreachable => "desktop cannot be reached",
            Self::AgentSilent => "desktop does not answer",
            Self::Quiesced => "node takes no new sessions",
            Self::LbSnatDetected => "balancer hides the clients' addresses",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

/// Why a connection, tunnel or session ended: one closed list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CloseReason {
    /// The exchange was complete and a side closed in order.
    Completed,
    /// The client went away in the middle.
    ClientClosed,
    /// The desktop went away in the middle.
    UpstreamClosed,
    /// No PROXY header from a listed balancer, or one that cannot be read.
    ProxyHeader,
    /// The TLS handshake failed.
    TlsFailed,
    /// PROXY header, TLS handshake or request head did not arrive in time.
    Timeout,
    /// The connection was idle for longer than it may be.
    Idle,
    /// Bytes that are not the protocol.
    Malformed,
    /// More bytes than the limit.
    TooLarge,
    /// The node has as many connections as it may have.
    ConnectionLimit,
    /// The source has as many connections as it may have.
    SourceLimit,
    /// The source began handshakes too fast.
    HandshakeRate,
    /// Not admitted.
    Refused(Refusal),
    /// No rule of its listener is for the name that it asks for.
    NoRule,
    /// The rule does not admit the client's address.
    AddressDenied,
    /// The client connects more often than the rule allows.
    RateLimited,
    /// None of the pool's targets could be reached.
    NoTarget,
    /// The user logged out.
    Logout,
    /// An administrator, or the user from another client, ended the session.
    Killed,
    /// The session's time was over.
    Expired,
    /// The session was idle for longer than it may be.
    SessionIdle,
    /// The client stopped sending its heartbeats.
    HeartbeatLost,
    /// The client was out of contact for longer than the tunnel waits.
    LostContact,
    /// The tunnel was taken over by a reconnect of the same client.
    Resumed,
    /// The node drained and the grace period was over.
    Drained,
    /// A fault of this node; the log has more.
    Internal,
}

impl CloseReason {
    /// Every reason; [`Refused`](Self::Refused) once, as a stand-in for the codes of [`Refusal`].
    pub const ALL: [Self; 26] = [
        Self::Completed,
        Self::ClientClosed,
        Self::UpstreamClosed,
        Self::ProxyHeader,
        Self::TlsFailed,
        Self::Timeout,
        Self::Idle,
        Self::Malformed,
        Self::TooLarge,
        Self::ConnectionLimit,
        Self::SourceLimit,
        Self::HandshakeRate,
        Self::Refused(Refusal::NoToken),
        Self::NoRule,
        Self::AddressDenied,
        Self::RateLimited,
        Self::NoTarget,
        Self::Logout,
        Self::Killed,
        Self::Expired,
        Self::SessionIdle,
        Self::HeartbeatLost,
        Self::LostContact,
        Self::Resumed,
        Self::Drained,
        Self::Internal,
    ];

    /// The code in log, metric and filter.
    pub fn code(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::ClientClosed => "client_closed",
            Self::UpstreamClosed => "upstream_closed",
            Self::ProxyHeader => "proxy_header",
            Self::TlsFailed => "tls_failed",
            Self::Timeout => "timeout",
            Self::Idle => "idle",
            Self::Malformed => "malformed_request",
            Self::TooLarge => "too_large",
            Self::ConnectionLimit => "connection_limit",
            Self::SourceLimit => "source_limit",
            Self::HandshakeRate => "handshake_rate",
            Self::Refused(refusal) => refusal.code(),
            Self::NoRule => "no_rule",
            Self::AddressDenied => "address_denied",
            Self::RateLimited => "rate_limited",
            Self::NoTarget => "no_target",
            Self::Logout => "logout",
            Self::Killed => "killed",
            Self::Expired => "session_expired",
            Self::SessionIdle => "session_idle",
            Self::HeartbeatLost => "heartbeat_lost",
            Self::LostContact => "lost_contact",
            Self::Resumed => "resumed",
            Self::Drained => "drained",
            Self::Internal => "internal",
        }
    }

    /// The words that people read, also in the `stop` message of a tunnel.
    pub fn words(self) -> &'static str {
        match self {
            Self::Completed => "finished",
            Self::ClientClosed => "client went away",
            Self::UpstreamClosed => "desktop went away",
            Self::ProxyHeader => "no readable PROXY header from the balancer",
            Self::TlsFailed => "TLS handshake failed",
            Self::Timeout => "nothing arrived in time",
            Self::Idle => "idle for too long",
            Self::Malformed => "not the protocol",
            Self::TooLarge => "larger than the limit",
            Self::ConnectionLimit => "node is full",
            Self::SourceLimit => "too many connections from one address",
            Self::HandshakeRate => "too many handshakes from one address",
            Self::Refused(refusal) => refusal.words(),
            Self::NoRule => "nothing is published under this name",
            Self::AddressDenied => "client's address is not admitted",
            Self::RateLimited => "too many connections at once",
            Self::NoTarget => "no target can be reached",
            Self::Logout => "logged out",
            Self::Killed => "session was ended",
            Self::Expired => "session time is over",
            Self::SessionIdle => "session was idle for too long",
            Self::HeartbeatLost => "client stopped reporting activity",
            Self::LostContact => "client lost contact",
            Self::Resumed => "taken over by a reconnect",
            Self::Drained => "node shuts down",
            Self::Internal => "internal fault",
        }
    }

    /// Whose fault it was.
    pub fn source(self) -> Source {
        match self {
            Self::Completed
            | Self::ClientClosed
            | Self::ProxyHeader
            | Self::TlsFailed
            | Self::Timeout
            | Self::Idle
            | Self::Malformed
            | Self::TooLarge
            | Self::Logout
            | Self::HeartbeatLost
            | Self::LostContact
            | Self::Resumed => Source::Client,
            Self::UpstreamClosed
            | Self::NoTarget
            | Self::Refused(Refusal::TargetUnreachable | Refusal::AgentSilent) => Source::Upstream,
            Self::ConnectionLimit
            | Self::SourceLimit
            | Self::HandshakeRate
            | Self::Refused(_)
            | Self::NoRule
            | Self::AddressDenied
            | Self::RateLimited
            | Self::Killed
            | Self::Expired
            | Self::SessionIdle
            | Self::Drained => Source::Policy,
            Self::Internal => Source::Internal,
        }
    }
}

impl From<Refusal> for CloseReason {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_reasons_share_a_code() {
        let refusals = Refusal::ALL.map(Refusal::code);
        let closes = CloseReason::ALL
            .into_iter()
            .filter(|reason| !matches!(reason, CloseReason::Refused(_)))
            .map(CloseReason::code);
        let codes: Vec<_> = refusals.into_iter().chain(closes).collect();
        let distinct: HashSet<_> = codes.iter().collect();
        assert_eq!(distinct.len(), codes.len());
    }
}
