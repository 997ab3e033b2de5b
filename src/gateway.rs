//! The pipeline, top to bottom, one call a step: the file to read first.
//!
//! A connection goes through [`Gateway::serve`]: it is accepted and secured under one deadline, in its own task, and
//! then its requests are routed, inspected and answered one after another. It ends with exactly one [`CloseReason`],
//! told in exactly one line of the log.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use http::header::COOKIE;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming as RequestBody;
use ipnet::IpNet;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::config::Config;
use crate::control::{Control, Exchange, Unanswered};
use crate::fault::CloseReason;
use crate::grant::{Denied, Granted, Secondary, Store};
use crate::inspect::{self, Rejected};
use crate::listen::{Caps, Incoming};
use crate::observe;
use crate::route::{self, Routed, Unrouted};
use crate::secure::{self, Secured};
use crate::tunnel::https::{self, Registry};
use crate::types::SessionId;

mod answer;
mod conversation;
mod http1;
pub mod lifecycle;

use answer::Reply;
use conversation::{Conversation, tell};
use lifecycle::Lifecycle;

/// What one configuration makes of the gateway; immutable, swapped whole at a reload.
#[derive(Debug)]
pub struct Plan {
    /// The checked configuration.
    pub config: Config,
    /// The TLS listeners by the address under which they are configured.
    pub doors: HashMap<SocketAddr, Door>,
}

/// One listener, ready to serve.
#[derive(Clone, Debug)]
pub struct Door {
    /// Peers whose PROXY header is believed.
    pub balancers: Arc<[IpNet]>,
    /// TLS with its certificates.
    pub tls: Arc<rustls::ServerConfig>,
}

/// Everything that connections share.
#[derive(Debug)]
pub struct Gateway {
    plan: ArcSwap<Plan>,
    lifecycle: Lifecycle,
    control: Control,
    grants: Arc<Store>,
    tunnels: Arc<Registry>,
    caps: Arc<Caps>,
    tasks: TaskTracker,
}

impl Gateway {
    /// A gateway that works to `plan`, not yet in service. Its tunnels run as tasks of `tasks`.
    pub fn new(
        plan: Plan,
        control: Control,
        grants: Arc<Store>,
        tunnels: Arc<Registry>,
        caps: Arc<Caps>,
        tasks: TaskTracker,
    ) -> Self {
        Self {
            plan: ArcSwap::from_pointee(plan),
            lifecycle: Lifecycle::default(),
            control,
            grants,
            tunnels,
            caps,
            tasks,
        }
    }

    /// Takes a connection from its first byte to its end. Never fails: what goes wrong ends it, with a reason.
    pub async fn serve(self: Arc<Self>, incoming: Incoming, address: SocketAddr) {
        let facts = incoming.facts().clone();
        // Boxed, because a connection stays for hours and needs the room of its arrival for a moment.
        let reason = match Box::pin(self.arrive(incoming, address)).await {
            Ok((secured, plan)) => return Box::pin(self.converse(secured, plan)).await,
            Err(reason) => reason,
        };
        tell!(
            observe::level_of(reason),
            reason = reason.code(),
            client = %facts.client,
            local = %facts.local,
            listener = &*facts.listener,
            "connection closed before its first request"
        );
    }

    /// Steps 1 and 2, under one deadline: who connects, and TLS.
    async fn arrive(&self, incoming: Incoming, address: SocketAddr) -> Result<(Secured, Arc<Plan>), CloseReason> {
        let plan = self.plan.load_full();
        // A listener that a reload has just taken away: its last connections find nobody.
        let door = plan.doors.get(&address).ok_or(CloseReason::Drained)?;
        let arrived = async {
            let accepted = incoming.accept(&door.balancers).await?;
            secure::handshake(accepted, door.tls.clone()).await
        };
        let secured = timeout(plan.config.limits.handshake_timeout, arrived)
            .await
            .unwrap_or(Err(CloseReason::Timeout))?;
        Ok((secured, plan))
    }

    /// Answers the connection's requests until it ends.
    async fn converse(self: Arc<Self>, secured: Secured, plan: Arc<Plan>) {
        let (io, facts, tls, _permit) = secured.into_parts();
        let conversation = Arc::new(Conversation::new(facts, tls));
        let respond = {
            let (gateway, conversation) = (self.clone(), conversation.clone());
            move |request| {
                let (gateway, conversation) = (gateway.clone(), conversation.clone());
                async move { Ok::<_, Infallible>(gateway.respond(request, &conversation).await) }
            }
        };
        let ended = http1::serve(io, plan.config.limits.head_timeout, respond, self.lifecycle.draining()).await;
        conversation.log(conversation.end().unwrap_or(ended));
    }

    /// Answers one request: route, inspect, and on to whatever it is.
    async fn respond(&self, request: Request<RequestBody>, conversation: &Conversation) -> Response<Reply> {
        let uri = request.uri().clone();
        let routed = route::route(request.method(), &uri);
        conversation.note_request(routed == Ok(Routed::Health));
        match routed {
            Ok(Routed::Health) => answer::health(self.lifecycle.is_in_service(), request.method()),
            Ok(Routed::Control) => self.control(request, conversation).await,
            Ok(Routed::Tunnel { token }) => match self.admit(token, conversation) {
                Ok(granted) => self.tunnel(granted, token, request),
                Err(denied) => Self::turn_away(&denied, conversation),
            },
            Ok(Routed::Resume { token, secret }) => match self.admit(token, conversation) {
                Ok(granted) => self.resume(granted, secret, request, conversation).await,
                Err(denied) => Self::turn_away(&denied, conversation),
            },
            Err(Unrouted::MethodNotAllowed { allow }) => answer::method_not_allowed(allow),
            Err(Unrouted::NotFound) => answer::text(StatusCode::NOT_FOUND, "not found\n"),
        }
    }

    /// A control message: inspected, then answered by the sign-in and the broker.
    async fn control(&self, request: Request<RequestBody>, conversation: &Conversation) -> Response<Reply> {
        let limits = self.plan().config.limits.clone();
        let authority = match inspect::authority(&request) {
            Ok(authority) => authority,
            Err(rejected) => return Self::reject(rejected, conversation),
        };
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().cloned().collect();
        let message = match inspect::control_body(request, limits.body_timeout).await {
            Ok(message) => message,
            Err(rejected) => return Self::reject(rejected, conversation),
        };
        let exchange = Exchange {
            client: conversation.facts.client.ip(),
            local: conversation.facts.local,
            authority: authority.as_ref(),
            cookies: &cookies,
            admits_sessions: self.lifecycle.admits_sessions(),
        };
        match self.control.answer(exchange, &message).await {
            Ok(answered) => {
                if let Some(session) = answered.session {
                    conversation.belongs_to(session);
                }
                answer::control(answered)
            }
            Err(Unanswered::Full) => answer::unavailable(),
        }
    }

    /// Step 6: is there a live grant of this node behind the token?
    fn admit(&self, token: &str, conversation: &Conversation) -> Result<Granted, Denied> {
        let granted = self.grants.admit(token, Secondary::Tunnel, clock::now())?;
        conversation.belongs_to(granted.grant().id());
        Ok(granted)
    }

    /// Step 7: the tunnel runs in a task of its own and outlives this connection, so that its client can come back.
    fn tunnel(&self, granted: Granted, token: &str, request: Request<RequestBody>) -> Response<Reply> {
        let settings = https::Settings::of(&self.plan().config.tunnel);
        answer::tunnel(
            self.tunnels
                .open(granted, token, request.into_body(), settings, &self.tasks),
        )
    }

    /// Step 7 once more, for a client that lost contact.
    async fn resume(
        &self,
        granted: Granted,
        secret: &str,
        request: Request<RequestBody>,
        conversation: &Conversation,
    ) -> Response<Reply> {
        let session = granted.grant().id();
        match self.tunnels.resume(granted, secret, request.into_body()).await {
            Ok(body) => answer::tunnel(body),
            Err(reason) => {
                let session = Some(session);
                Self::turn_away(
                    &Denied {
                        reason,
                        owner: None,
                        session,
                    },
                    conversation,
                )
            }
        }
    }

    /// Nothing was dialled: says so to the log in full, to the client hardly anything.
    fn turn_away(denied: &Denied, conversation: &Conversation) -> Response<Reply> {
        let reason = CloseReason::Refused(denied.reason);
        if let Some(session) = denied.session {
            conversation.belongs_to(session);
        }
        conversation.end_with(reason);
        tell!(
            observe::level_of(reason),
            reason = denied.reason.code(),
            owner = denied.owner.as_ref().map(tracing::field::display),
            session = denied.session.map(tracing::field::display),
            client = %conversation.facts.client,
            via = %conversation.facts.peer,
            local = %conversation.facts.local,
            step = "grant",
            "tunnel refused: {}",
            denied.reason.words()
        );
        answer::refused()
    }

    fn reject(rejected: Rejected, conversation: &Conversation) -> Response<Reply> {
        tracing::debug!(client = %conversation.facts.client, step = "inspect", "request rejected: {rejected}");
        conversation.end_with(rejected.close_reason());
        answer::closing(answer::text(rejected.status(), rejected.words()))
    }
}

/// What the node and the operator's side need of it.
impl Gateway {
    /// The plan in force.
    pub fn plan(&self) -> Guard<Arc<Plan>> {
        self.plan.load()
    }

    /// Puts another plan in force. Open connections stay as they are; what they ask next follows the new one.
    pub fn put_in_force(&self, plan: Plan) {
        self.caps.set_limits(&plan.config.limits);
        self.grants.set_limits(plan.config.session.clone());
        self.plan.store(Arc::new(plan));
    }

    /// Where the node stands in its life.
    pub fn lifecycle(&self) -> &Lifecycle {
        &self.lifecycle
    }

    /// The control channel.
    pub fn control_channel(&self) -> &Control {
        &self.control
    }

    /// The grants.
    pub fn grants(&self) -> &Arc<Store> {
        &self.grants
    }

    /// The open tunnels.
    pub fn tunnels(&self) -> &Arc<Registry> {
        &self.tunnels
    }

    /// The connections' counts and limits.
    pub fn caps(&self) -> &Arc<Caps> {
        &self.caps
    }

    /// Ends a session for the operator; `false` if there is none.
    pub fn kill(&self, session: SessionId) -> bool {
        let killed = self.grants.revoke(session, CloseReason::Killed);
        if killed {
            self.control.forget(session);
            tracing::info!(%session, reason = CloseReason::Killed.code(), "session closed by the operator");
        }
        killed
    }

    /// Ends every session, at the end of the node.
    pub fn end_all(&self, reason: CloseReason) {
        for grant in self.grants.list() {
            if self.grants.revoke(grant.id(), reason) {
                tracing::info!(session = %grant.id(), user = %grant.user(), reason = reason.code(), "session closed");
            }
        }
    }

    /// Ends what is over at `now`: sessions, and sign-ins that took too long.
    pub fn sweep(&self, now: Instant) {
        for (grant, reason) in self.grants.sweep(now) {
            self.control.forget(grant.id());
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = reason.code(), "session closed");
        }
        self.control.sweep(now);
    }

    /// Answers the health check on a plain connection: nothing else is served there.
    pub async fn serve_health(self: Arc<Self>, incoming: Incoming) {
        let Ok(accepted) = incoming.accept(&[]).await else {
            return;
        };
        let (io, _facts, _permit) = accepted.into_parts();
        let head_timeout = self.plan().config.limits.head_timeout;
        let respond = {
            let gateway = self.clone();
            move |request: Request<RequestBody>| {
                let answer = match route::route(request.method(), request.uri()) {
                    Ok(Routed::Health) => answer::health(gateway.lifecycle.is_in_service(), request.method()),
                    _ => answer::text(StatusCode::NOT_FOUND, "only the health check is answered here\n"),
                };
                std::future::ready(Ok::<_, Infallible>(answer))
            }
        };
        http1::serve(io, head_timeout, respond, self.lifecycle.draining()).await;
    }
}
