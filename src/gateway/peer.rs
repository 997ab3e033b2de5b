//! What another node carries here: the client's connection, as if it had come to this node.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::conversation::{Conversation, tell};
use super::{Gateway, Plan};
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::fleet::{Call, Kind, Reply, Way};
use crate::grant::{Denied, Granted, Route, Secondary};
use crate::listen::Incoming;
use crate::observe;
use crate::secure::Secured;
use crate::tunnel::{Relay, masque};
use crate::upstream;

impl Gateway {
    /// Takes a connection of another node from its first byte to its end.
    pub async fn serve_peer(self: Arc<Self>, incoming: Incoming) {
        let facts = incoming.facts().clone();
        let plan = self.plan.load_full();
        let arrived = async {
            let fleet = plan.fleet.as_ref().ok_or(CloseReason::Drained)?;
            let received = timeout(plan.config.limits.handshake_timeout, fleet.receive(incoming)).await;
            received.unwrap_or(Err(CloseReason::Timeout))
        };
        let reason = match Box::pin(arrived).await {
            Ok((secured, Kind::Http)) => {
                let (io, facts, tls, permit) = secured.into_parts();
                return Box::pin(self.converse(io, (facts, Some(tls), permit), plan.clone())).await;
            }
            Ok((secured, Kind::Rdp)) => return Box::pin(self.rdp_of_peer(secured)).await,
            Ok((secured, Kind::Stream)) => return Box::pin(self.stream_of_peer(secured, &plan)).await,
            Err(reason) => reason,
        };
        self.grants.watch().counters().closed(reason);
        tell!(
            observe::level_of(reason),
            reason = reason.code(),
            client = %facts.client,
            local = %facts.local,
            listener = &*facts.listener,
            "connection of another node closed before its first request"
        );
    }

    /// A stream of QUIC, whose connection is at the other node.
    async fn stream_of_peer(&self, secured: Secured, plan: &Plan) {
        let (mut io, facts, tls, _permit) = secured.into_parts();
        let conversation = Conversation::new(facts, Some(tls), self.grants.watch().clone());
        self.answer_stream(&mut io, &conversation, plan).await;
    }

    /// A stream of QUIC, from the call for it to its end.
    pub(super) async fn answer_stream<IO>(&self, io: &mut IO, conversation: &Conversation, plan: &Plan)
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        conversation.note_request(false);
        let reason = match timeout(plan.config.limits.head_timeout, Call::read(io)).await {
            Ok(Ok(call)) => self.answer_call(&call, io, conversation, plan).await,
            Ok(Err(_)) => CloseReason::Malformed,
            Err(_) => CloseReason::Timeout,
        };
        // Whoever has gone needs no goodbye.
        let _ = timeout(GOODBYE, io.shutdown()).await;
        conversation.log(reason);
    }

    async fn answer_call<IO>(&self, call: &Call, io: &mut IO, conversation: &Conversation, plan: &Plan) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let admitted = self.grants.admit(call.token.expose(), Secondary::Quic, clock::now());
        let served = match &admitted {
            Ok(granted) => {
                conversation.belongs_to(granted.grant().id());
                serve(granted, call, io, plan).await
            }
            Err(denied) => Err(denied.clone()),
        };
        match served {
            Ok(reason) => reason,
            Err(denied) => {
                Self::note_refusal(observe::Kind::Quic, &denied, conversation);
                let reply = if denied.reason == Refusal::TargetUnreachable {
                    Reply::Unreachable
                } else {
                    Reply::Refused
                };
                // The other node may have gone; the log has the reason.
                let _ = reply.write(io).await;
                denied.reason.into()
            }
        }
    }
}

/// Steps 7 and 8 of a stream.
async fn serve<IO>(granted: &Granted, call: &Call, io: &mut IO, plan: &Plan) -> Result<CloseReason, Denied>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let grant = granted.grant();
    let route = call.name.as_deref().and_then(|name| grant.route_named(name));
    let lost = Ok(CloseReason::ClientClosed);
    match call.way {
        Way::Session => {
            if Reply::Admitted.write(io).await.is_err() {
                return lost;
            }
            let reason = grant.revoked().await;
            let said = async { io.write_all(reason.words().as_bytes()).await.and(io.flush().await) };
            // A client that has gone meanwhile knows.
            let _ = timeout(GOODBYE, said).await;
            Ok(reason)
        }
        Way::Bytes => {
            let route = announced(route, granted)?;
            let dialled = upstream::dial(route.target(), DIAL).await;
            let mut desktop = dialled.map_err(|_| denied(granted, Refusal::TargetUnreachable))?;
            if Reply::Admitted.write(io).await.is_err() {
                return lost;
            }
            let relay = Relay {
                grant,
                route: &route,
                idle: None,
            };
            Ok(relay.run(io, &mut desktop).await)
        }
        Way::Datagrams => {
            let route = announced(route, granted)?;
            let dialled = upstream::dial_datagrams(route.target(), DIAL).await;
            let desktop = dialled.map_err(|_| denied(granted, Refusal::TargetUnreachable))?;
            if Reply::Admitted.write(io).await.is_err() {
                return lost;
            }
            Ok(masque::relay_capsules(io, desktop, granted, &route, plan.config.udp.idle).await)
        }
    }
}

fn announced(route: Option<Arc<Route>>, granted: &Granted) -> Result<Arc<Route>, Denied> {
    route.ok_or_else(|| denied(granted, Refusal::NotAnnounced))
}

fn denied(granted: &Granted, reason: Refusal) -> Denied {
    Denied {
        reason,
        owner: None,
        session: Some(granted.grant().id()),
    }
}

/// How long the other node has to take the last words.
const GOODBYE: Duration = Duration::from_secs(5);
/// As long as a stream that has come here by itself waits for its desktop.
const DIAL: Duration = Duration::from_secs(10);
