//! The steps of a Blast connection, from its request to the agent's answer.

use bytes::Bytes;
use http::{HeaderMap, Request, Response};

use super::conversation::Conversation;
use super::departure::Destination;
use super::lifecycle::State;
use super::{Gateway, Outcome, Plan, answer};
use crate::fault::{CloseReason, Refusal};
use crate::grant::{Denied, Granted, Secondary};
use crate::inspect;
use crate::observe::Kind;
use crate::tunnel::blast::{self, Joined, Unjoined};
use crate::types::Authority;
use crate::wire::Length;

impl Gateway {
    /// Steps 4 to 8: inspected, admitted, and continued to its agent. Nothing is dialled before the admission, and
    /// nothing leaves HTTP before the agent has agreed.
    pub(super) async fn blast(
        &self,
        (token, path): (&str, &str),
        request: &Request<()>,
        body: Length,
        conversation: &Conversation,
    ) -> Outcome {
        let plan = self.plan.load_full();
        let answer = match self.admit_blast(&plan, token, (request, body), conversation) {
            Err(Turned::Rejected(answer)) => answer,
            Err(Turned::Denied(denied)) => {
                return self.carry_or_turn_away(Kind::Blast, request, &denied, conversation);
            }
            Ok(granted) => match self.join(&plan, granted, path, request.headers(), conversation).await {
                Ok(joined) => return Outcome::Leave(Destination::Blast(Box::new(joined))),
                Err(answer) => answer,
            },
        };
        Outcome::Answer(*answer)
    }

    fn admit_blast(
        &self,
        plan: &Plan,
        token: &str,
        (request, body): (&Request<()>, Length),
        conversation: &Conversation,
    ) -> Result<Granted, Turned> {
        let asked = inspect::authority(request)
            .and_then(|authority| inspect::websocket(request, body).map(|()| authority))
            .map_err(|rejected| Turned::Rejected(Box::new(Self::reject(rejected, conversation))))?;
        let refuse = |reason| Denied {
            reason,
            owner: None,
            session: None,
        };
        let asked = asked.and_then(|authority| authority.as_str().parse().ok());
        let denied = if !is_allowed(plan.config.blast.allowed_hosts.as_deref(), asked) {
            refuse(Refusal::HostNotAllowed)
        } else if self.lifecycle.state() == State::Draining {
            refuse(Refusal::Quiesced)
        } else {
            match self.admit(token, Secondary::Blast, conversation) {
                Ok(granted) => return Ok(granted),
                Err(denied) => denied,
            }
        };
        Err(Turned::Denied(denied))
    }

    /// Asks the agent of the grant's route.
    async fn join(
        &self,
        plan: &Plan,
        granted: Granted,
        path: &str,
        headers: &HeaderMap,
        conversation: &Conversation,
    ) -> Result<Joined, Box<Response<Bytes>>> {
        let session = granted.grant().id();
        let refuse = |reason| Denied {
            reason,
            owner: None,
            session: Some(session),
        };
        let revoked = || Box::new(Self::turn_away(Kind::Blast, &refuse(Refusal::Revoked), conversation));
        let route = granted.route().cloned();
        let desktop = route.as_deref().map(|route| route.desktop());
        let agent = desktop
            .and_then(|id| plan.config.directory.desktops.get(id))
            .map(|desktop| &desktop.agent);
        let (Some(route), Some(agent)) = (route, agent) else {
            // A reload has taken the desktop away.
            return Err(revoked());
        };
        let joined = tokio::select! {
            joined = blast::ask(granted, &route, (headers, path), (&plan.agents, agent)) => joined,
            () = route.ended() => {
                return Err(revoked());
            }
        };
        let desktop = route.desktop();
        let refusal = match joined {
            Ok(joined) => {
                let client = conversation.facts.client;
                tracing::info!(%session, %desktop, %client, "Blast connection opened");
                return Ok(if self.serves_udp(conversation) {
                    joined.with_datagrams(&self.flows, &conversation.facts)
                } else {
                    joined
                });
            }
            Err(Unjoined::Declined(response)) => {
                let status = response.status().as_u16();
                tracing::info!(%session, %desktop, status, "the desktop's agent declined a Blast connection");
                conversation.end_with(CloseReason::Completed);
                return Err(Box::new(answer::passed_on(response)));
            }
            Err(Unjoined::Unreachable(cause)) => {
                tracing::debug!(%session, %desktop, cause = cause.code(), "agent not reached");
                Refusal::TargetUnreachable
            }
            Err(Unjoined::Silent) => Refusal::AgentSilent,
        };
        Err(Box::new(Self::turn_away(Kind::Blast, &refuse(refusal), conversation)))
    }
}

/// Why a request goes no further here.
enum Turned {
    /// It is no request for a WebSocket.
    Rejected(Box<Response<Bytes>>),
    /// It is not admitted.
    Denied(Denied),
}

/// Whether a request for that host is served. A host without a port is asked for at the port of HTTPS.
fn is_allowed(allowed: Option<&[Authority]>, asked: Option<Authority>) -> bool {
    let Some(allowed) = allowed else {
        return true;
    };
    let asked = asked.map(|asked| Authority {
        port: asked.port.or(Some(HTTPS)),
        ..asked
    });
    asked.is_some_and(|asked| allowed.iter().any(|host| host.covers(&asked)))
}

const HTTPS: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_with_any_port_or_with_the_one_that_is_named() {
        let allowed: Vec<Authority> = ["any.test", "one.test:8443", "web.test:443"]
            .map(|host| host.parse().unwrap())
            .to_vec();
        let is = |host: &str| is_allowed(Some(&allowed), host.parse().ok());
        assert!(is("any.test") && is("ANY.test:8443") && is("one.test:8443") && is("web.test"));
        assert!(!is("one.test") && !is("web.test:444") && !is("other.test") && !is_allowed(Some(&allowed), None));
        assert!(is_allowed(None, None));
    }
}
