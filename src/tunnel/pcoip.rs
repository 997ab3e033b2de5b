//! PCoIP over TCP: admitted by a token in the name that the client asks for, or by the client's address; then bytes.
//!
//! What the two ends say is not public and is not looked at. TLS either ends here and begins anew to the agent, or passes
//! untouched; which of the two, the configuration says. While the connection is open, the datagrams of its route are
//! let in beside it ([`super::flow`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::flow::{Candidate, Flows};
use super::relay::Relay;
use crate::config::Agent;
use crate::fault::CloseReason;
use crate::grant::{Denied, Granted, Secondary, Store};
use crate::listen::Facts;
use crate::upstream::{Agents, DialFault, Upstream, dial};

/// Step 6: by the token in `name`, if there is one, or else by the client's address (secondary protocols sheet 5.3).
///
/// # Errors
/// [`Denied`] with exactly one reason.
pub fn admit(grants: &Store, name: Option<&str>, facts: &Facts, now: Instant) -> Result<Granted, Denied> {
    name.and_then(|name| grants.admit_host(name, Secondary::Pcoip, now))
        .unwrap_or_else(|| grants.admit_from(facts.client.ip(), Secondary::Pcoip, now))
}

/// A connection that was let in, and its way to the agent.
#[derive(Debug)]
pub struct Joined {
    granted: Granted,
    upstream: Upstream,
    _candidate: Option<Candidate>,
}

impl Joined {
    /// Dials the agent of the grant's route: with the TLS of `agent`, or plainly if the client's own TLS passes. From here on
    /// datagrams are let in beside the connection.
    ///
    /// # Errors
    /// The agent is not reached, or is not who it should be.
    ///
    /// # Cancel safety
    /// Dropped, it gives the connection to the agent up.
    pub async fn dial(
        granted: Granted,
        (agents, agent): (&Agents, &Agent),
        terminates_tls: bool,
        (flows, facts): (&Arc<Flows>, &Facts),
    ) -> Result<Self, DialFault> {
        let target = granted.route().ok_or(DialFault::Unresolved)?.target();
        let upstream = if terminates_tls {
            agents.connect(target, agent, DIAL_LIMIT).await?
        } else {
            Upstream::Plain(dial(target, DIAL_LIMIT).await?)
        };
        let address = upstream.address().ok();
        let candidate = address.and_then(|agent| flows.candidate(&granted, facts, agent));
        Ok(Self {
            granted,
            upstream,
            _candidate: candidate,
        })
    }

    /// Passes bytes until the end, of which it says why.
    pub async fn go_on(mut self, client: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> CloseReason {
        let Some(route) = self.granted.route() else {
            return CloseReason::Internal;
        };
        let relay = Relay {
            grant: self.granted.grant(),
            route,
            idle: None,
        };
        relay.run(client, &mut self.upstream).await
    }
}

/// Tells a client by an alert that it is not let in, before anything was agreed or dialled: [`ACCESS_DENIED`] whatever the
/// reason, but for a node that asks itself.
pub async fn turn_away(client: &mut (impl AsyncWrite + Unpin), alert: [u8; 7]) {
    let told = async {
        client.write_all(&alert).await?;
        client.shutdown().await
    };
    // A client that does not even take this is cut.
    let _ = timeout(GOODBYE, told).await;
}

/// A fatal alert "access denied" (RFC 8446 section 6.2), as the first record of a server.
pub const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];
/// The same, "unrecognized name": for a name by which this very node asks.
pub const OWN_MARK: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// How long connecting to an agent may take, with TLS.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
const GOODBYE: Duration = Duration::from_secs(1);
