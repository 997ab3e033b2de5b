//! The pipeline, top to bottom, one call a step: the file to read first.
//!
//! A connection goes through [`Gateway::serve`]: it is accepted and secured under one deadline, in its own task, and
//! then its requests are routed, inspected and answered one after another. It ends with exactly one [`CloseReason`],
//! told in exactly one line of the log.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use arc_swap::{ArcSwap, Guard};
use bytes::Bytes;
use http::header::COOKIE;
use http::{Request, Response, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::clock;
use crate::control::{Control, Exchange, Unanswered};
use crate::fault::{CloseReason, Refusal, WebFault};
use crate::fleet;
use crate::grant::{Denied, Granted, Secondary, Store};
use crate::inspect::{self, Rejected};
use crate::listen::{Accepted, Caps, Facts, Incoming, Permit};
use crate::observe::{self, Kind, Refused, Tally};
use crate::publish::Publisher;
use crate::route::{self, Routed, Unrouted};
use crate::secure::{self, Secured, TlsFacts};
use crate::tunnel::flow::Flows;
use crate::tunnel::https::{self, Carrier, Registry};
use crate::types::SessionId;
use crate::wire::boxed::boxed;
use crate::wire::{Gone, Sink, Source};

mod answer;
mod blast;
mod conversation;
mod departure;
mod extent;
pub mod external;
pub mod health;
mod http1;
mod http2;
mod http3;
pub mod kin;
pub mod lifecycle;
mod mark;
mod passage;
mod pcoip;
mod peer;
mod plan;
mod portal;
mod rdp;
mod redirect;
mod sister;
mod upgraded;
mod web;

use conversation::{Conversation, tell};
use departure::Destination;
use external::External;
use http1::{Next, Respond};
use kin::Kinship;
use lifecycle::Lifecycle;
use mark::MarkKey;
pub use pcoip::PcoipDoor;
pub use plan::{Door, Plan};
use sister::Carried;

/// A connection after the steps that its listener takes.
enum Arrived {
    Secured(Secured),
    Plain(Accepted),
    /// One of which nothing is understood.
    Bytes(passage::Client),
    /// It speaks HTTP where TLS is spoken, on a node that publishes applications.
    Lost(Accepted),
}

/// Everything that connections share.
#[derive(Debug)]
pub struct Gateway {
    plan: ArcSwap<Plan>,
    lifecycle: Lifecycle,
    control: Control,
    grants: Arc<Store>,
    tunnels: Arc<Registry>,
    flows: Arc<Flows>,
    caps: Arc<Caps>,
    tasks: TaskTracker,
    mark_key: MarkKey,
    external: External,
    publisher: Arc<Publisher>,
    kinship: Kinship,
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
        publisher: Arc<Publisher>,
    ) -> Self {
        publisher.apply(&plan.web, clock::now());
        grants.watch().set_places((&plan.config).into());
        let flows = Flows::new(plan.config.udp, grants.watch().clone(), tasks.clone());
        let lifecycle = Lifecycle::default();
        Self {
            plan: ArcSwap::from_pointee(plan),
            kinship: Kinship::new(lifecycle.draining()),
            lifecycle,
            control,
            grants,
            tunnels,
            flows,
            caps,
            tasks,
            mark_key: MarkKey::draw(),
            external: External::default(),
            publisher,
        }
    }

    /// Takes a connection from its first byte to its end. Never fails: what goes wrong ends it, with a reason.
    pub async fn serve(self: Arc<Self>, incoming: Incoming, address: SocketAddr) {
        let facts = incoming.facts().clone();
        // Boxed, because a connection stays for hours and needs the room of its arrival for a moment.
        let reason = match boxed(|| self.arrive(incoming, address)).await {
            Ok((Arrived::Secured(secured), plan)) => {
                let (io, facts, tls, permit) = secured.into_parts();
                return boxed(|| self.converse(io, (facts, Some(tls), permit), plan)).await;
            }
            Ok((Arrived::Plain(accepted), plan)) => {
                let (io, facts, permit) = accepted.into_parts();
                return boxed(|| self.converse(io, (facts, None, permit), plan)).await;
            }
            Ok((Arrived::Bytes(client), plan)) => return Box::pin(self.pass_on(client, plan)).await,
            Ok((Arrived::Lost(accepted), plan)) => {
                let (io, facts, permit) = accepted.into_parts();
                return Box::pin(self.set_right(io, (facts, permit), plan)).await;
            }
            Err(reason) => reason,
        };
        self.grants.watch().counters().closed(reason);
        tell!(
            observe::level_of(reason),
            reason = reason.code(),
            client = %facts.client,
            local = %facts.local,
            listener = &*facts.listener,
            "connection closed before its first request"
        );
    }

    /// Steps 1 and 2, under one deadline: who connects, and TLS if the listener has that.
    async fn arrive(&self, incoming: Incoming, address: SocketAddr) -> Result<(Arrived, Arc<Plan>), CloseReason> {
        let plan = self.plan.load_full();
        // A listener that a reload has just taken away: its last connections find nobody.
        let door = plan.doors.get(&address).ok_or(CloseReason::Drained)?;
        let arrived = async {
            let mut accepted = incoming.accept(&door.balancers).await?;
            match &door.tls {
                _ if !door.protocol.is_http() => passage::Client::of(accepted, door).await.map(Arrived::Bytes),
                Some(_) if !plan.web.is_empty() && secure::is_plain_http(&mut accepted).await => {
                    Ok(Arrived::Lost(accepted))
                }
                Some(tls) => secure::https_handshake(accepted, tls.clone())
                    .await
                    .map(Arrived::Secured),
                None => Ok(Arrived::Plain(accepted)),
            }
        };
        let arrived = timeout(plan.config.limits.handshake_timeout, arrived)
            .await
            .unwrap_or(Err(CloseReason::Timeout))?;
        Ok((arrived, plan))
    }

    /// Answers the connection's requests until it ends.
    async fn converse<IO>(
        self: Arc<Self>,
        io: IO,
        (facts, tls, _permit): (Facts, Option<TlsFacts>, Permit),
        plan: Arc<Plan>,
    ) where
        IO: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let conversation = Conversation::new(facts, tls, self.grants.watch().clone());
        let speaker = Speaker {
            gateway: &self,
            conversation: &conversation,
        };
        let idle = plan.config.limits.head_timeout;
        let ended = if conversation.tls.as_ref().is_some_and(|tls| tls.h2) {
            boxed(|| http2::serve(io, idle, speaker, self.kinship.leaving())).await
        } else {
            http1::serve(io, idle, speaker, self.lifecycle.draining()).await
        };
        conversation.log(conversation.end().unwrap_or(ended));
    }

    /// Answers one request: route, inspect, and on to whatever it is. A tunnel leaves HTTP without waiting.
    async fn respond<B: Source>(&self, request: &Request<()>, body: &mut B, conversation: &Conversation) -> Outcome {
        let uri = request.uri();
        let routed = route::route(request.method(), uri);
        conversation.note_request(matches!(routed, Ok(Routed::Health | Routed::Mark(_))));
        let is_secondary = matches!(
            routed,
            Ok(Routed::Tunnel { .. } | Routed::Resume { .. } | Routed::Blast { .. })
        );
        if conversation.facts.relayed_by.is_some() && !is_secondary {
            // Another node carries secondaries here, and nothing else.
            return Outcome::Answer(answer::not_found());
        }
        if let Some(elsewhere) = self.sent_on(request, conversation) {
            return Outcome::Answer(answer::redirect(&elsewhere));
        }
        let _turn = match self.take_turn(&routed, request, conversation).await {
            Ok(turn) => turn,
            Err(elsewhere) => return elsewhere,
        };
        let answer = match routed {
            Ok(Routed::Health) => answer::health(self.health(), request.method()),
            Ok(Routed::Mark(mark)) => answer::mark(self.mark_key.answer(mark)),
            Ok(Routed::Portal) => {
                let quic = self.quic_port(request, conversation);
                let authority = inspect::authority(request).ok().flatten();
                answer::portal(request.method(), authority.as_ref(), quic)
            }
            Ok(Routed::Control) => self.control(request, body, conversation).await,
            Ok(Routed::Tunnel { .. } | Routed::Resume { .. }) if request.version() > Version::HTTP_11 => {
                return Outcome::NeedsHttp1;
            }
            Ok(Routed::Tunnel { .. } | Routed::Resume { .. }) if !departure::is_chunked(request) => {
                conversation.end_with(CloseReason::Malformed);
                answer::not_chunked()
            }
            Ok(Routed::Tunnel { token }) => match self.admit(token, Secondary::Tunnel, conversation) {
                Ok(granted) => return Self::leave(self.tunnel(granted, token)),
                Err(denied) => return self.carry_or_turn_away(Kind::Tunnel, request, &denied, conversation),
            },
            Ok(Routed::Resume { token, secret }) => match self.resume(token, secret, conversation) {
                Ok(carrier) => return Self::leave(carrier),
                Err(denied) => return self.carry_or_turn_away(Kind::Tunnel, request, &denied, conversation),
            },
            Ok(Routed::Blast { token, path }) => {
                let path = uri
                    .query()
                    .map_or(Cow::Borrowed(path), |query| format!("{path}?{query}").into());
                return self.blast((token, &path), request, body.length(), conversation).await;
            }
            Err(Unrouted::MethodNotAllowed { allow }) => answer::method_not_allowed(allow),
            Err(Unrouted::NotFound) => answer::not_found(),
        };
        Outcome::Answer(answer)
    }

    /// A control message: inspected, then answered by the sign-in and the broker.
    async fn control<B: Source>(
        &self,
        request: &Request<()>,
        body: &mut B,
        conversation: &Conversation,
    ) -> Response<Bytes> {
        let limits = self.plan().config.limits.clone();
        let authority = match inspect::authority(request) {
            Ok(authority) => authority,
            Err(rejected) => return Self::reject(rejected, conversation),
        };
        let cookies: Vec<_> = request.headers().get_all(COOKIE).iter().cloned().collect();
        let message = match inspect::control_body(request.headers(), body, limits.body_timeout).await {
            Ok(message) => message,
            Err(rejected) => return Self::reject(rejected, conversation),
        };
        let exchange = Exchange {
            client: conversation.facts.client.ip(),
            local: conversation.facts.local,
            authority: authority.as_ref(),
            cookies: &cookies,
            admits_sessions: self.admits_sessions(),
            quic: self.serves_udp(conversation),
            shown: &|host, port| self.plan().certificate_shown(conversation.facts.local, host, port),
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
    fn admit(&self, token: &str, secondary: Secondary, conversation: &Conversation) -> Result<Granted, Denied> {
        let granted = self.grants.admit(token, secondary, clock::now())?;
        conversation.belongs_to(granted.grant().id());
        Ok(granted)
    }

    /// Step 7: the tunnel runs in a task of its own and outlives this connection, so that its client can come back.
    fn tunnel(&self, granted: Granted, token: &str) -> Carrier {
        let settings = https::Settings::of(&self.plan().config.tunnel);
        self.tunnels.open(granted, token, settings, &self.tasks)
    }

    /// Steps 6 and 7 once more, for a client that lost contact.
    fn resume(&self, token: &str, secret: &str, conversation: &Conversation) -> Result<Carrier, Denied> {
        let granted = self.admit(token, Secondary::Tunnel, conversation)?;
        let session = Some(granted.grant().id());
        self.tunnels.resume(granted, secret).map_err(|reason| Denied {
            reason,
            owner: None,
            session,
        })
    }

    fn leave(carrier: Carrier) -> Outcome {
        let head = answer::head(&answer::tunnel());
        Outcome::Leave(Destination::Tunnel { head, carrier })
    }

    /// Takes a request to the node that minted its grant, if there is a way; or else turns it away.
    fn carry_or_turn_away(
        &self,
        kind: Kind,
        request: &Request<()>,
        denied: &Denied,
        conversation: &Conversation,
    ) -> Outcome {
        match self.sister(kind, fleet::Kind::Http, denied, &conversation.facts) {
            Some(sister) => {
                let carried = Carried::new(sister, request);
                Outcome::Leave(Destination::Sister(Box::new(carried)))
            }
            None => Outcome::Answer(Self::turn_away(kind, denied, conversation)),
        }
    }

    /// Nothing was dialled: says so to the log in full, to the client hardly anything.
    fn turn_away(kind: Kind, denied: &Denied, conversation: &Conversation) -> Response<Bytes> {
        conversation.end_with(CloseReason::Refused(denied.reason));
        Self::note_refusal(kind, denied, conversation);
        answer::refused(denied.reason)
    }

    /// Tells the log who was turned away, and why.
    fn note_refusal(kind: Kind, denied: &Denied, conversation: &Conversation) {
        let reason = CloseReason::Refused(denied.reason);
        if let Some(session) = denied.session {
            conversation.belongs_to(session);
        }
        let refused = Refused {
            reason: denied.reason,
            owner: denied.owner.as_ref(),
            arrival: conversation.facts.arrival(),
        };
        conversation.watch.refused(kind, &refused, clock::now());
        tell!(
            observe::level_of(reason),
            reason = denied.reason.code(),
            owner = denied.owner.as_ref().map(tracing::field::display),
            session = denied.session.map(tracing::field::display),
            client = %conversation.facts.client,
            via = %conversation.facts.peer,
            local = %conversation.facts.local,
            step = if matches!(denied.reason, Refusal::TargetUnreachable | Refusal::AgentSilent) { "upstream" } else { "grant" },
            "{} refused: {}",
            kind.code(),
            denied.reason.words()
        );
    }

    /// The port at which a client that asks over TCP finds QUIC: the one under which it asked.
    fn quic_port<B>(&self, request: &Request<B>, conversation: &Conversation) -> Option<u16> {
        if request.version() == Version::HTTP_3 || !self.serves_udp(conversation) {
            return None;
        }
        let authority = inspect::authority(request).ok().flatten();
        let asked = authority.map(|authority| authority.port_u16().unwrap_or(HTTPS));
        Some(asked.unwrap_or(conversation.facts.local.port()))
    }

    fn serves_udp(&self, conversation: &Conversation) -> bool {
        let plan = self.plan();
        let listener = plan.config.listeners.get(&*conversation.facts.listener);
        listener.is_some_and(|listener| listener.udp)
    }

    fn reject(rejected: Rejected, conversation: &Conversation) -> Response<Bytes> {
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

    /// Puts another plan in force, after the [publisher](Self::publisher) was told of it. Open connections stay as they
    /// are; what they ask next follows the new one.
    pub fn put_in_force(&self, plan: Plan) {
        self.caps.set_limits(&plan.config.limits);
        self.grants.set_limits(plan.config.session.clone());
        self.grants.watch().set_places((&plan.config).into());
        self.flows.set_limits(plan.config.udp);
        self.plan.store(Arc::new(plan));
        self.publisher.retire(clock::now());
        self.external.ask_again();
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

    /// What is published for clients of the web.
    pub fn publisher(&self) -> &Arc<Publisher> {
        &self.publisher
    }

    /// The open tunnels.
    pub fn tunnels(&self) -> &Arc<Registry> {
        &self.tunnels
    }

    /// Whether any secondary connection is open or waits for its client to come back, or any target serves a client.
    pub fn is_in_use(&self) -> bool {
        !self.tunnels.is_empty() || self.grants.is_in_use() || self.publisher.is_in_use()
    }

    /// The flows of datagrams.
    pub fn flows(&self) -> &Arc<Flows> {
        &self.flows
    }

    /// The connections' counts and limits.
    pub fn caps(&self) -> &Arc<Caps> {
        &self.caps
    }

    /// How far the counts are that only grow.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.each_count(|of, count| tally.note(of, count));
        tally
    }

    /// Goes on with what another process of the node has counted.
    pub fn count_in(&self, tally: &Tally) {
        self.each_count(|of, count| tally.add_to(of, count));
    }

    fn each_count(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        self.grants.watch().counters().each(&mut visit);
        self.caps.each_count(&mut visit);
        self.publisher.each_count(&mut visit);
    }

    /// Ends a session for the operator; `false` if there is none.
    pub async fn kill(&self, session: SessionId) -> bool {
        let killed = self.grants.revoke_aside(session, CloseReason::Killed).await;
        if killed {
            self.control.forget(session);
            tracing::info!(%session, reason = CloseReason::Killed.code(), "session closed by the operator");
        }
        killed
    }

    /// Ends every session, and what clients of applications have open without end, at the end of the node.
    pub fn end_all(&self, reason: CloseReason) {
        self.publisher.end_all();
        self.end_sessions(reason);
    }

    /// Ends every session.
    pub fn end_sessions(&self, reason: CloseReason) {
        for grant in self.grants.revoke_all(reason) {
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = reason.code(), "session closed");
        }
    }

    /// Ends what is over at `now`: sessions, and sign-ins that took too long; tells what is found wrong by then.
    pub fn sweep(&self, now: Instant) {
        for (grant, reason) in self.grants.sweep(now) {
            self.control.forget(grant.id());
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = reason.code(), "session closed");
        }
        self.control.sweep(now);
        self.plan().web.sweep(now);
        self.publisher.sweep(now);
        self.grants.watch().tick(now);
    }
}

/// What becomes of a request.
enum Outcome {
    /// It is answered, and the connection goes on.
    Answer(Response<Bytes>),
    /// It leaves HTTP, and takes the connection with it.
    Leave(Destination),
    /// It needs a connection of its own, as HTTP/1.1 has them.
    NeedsHttp1,
}

/// The gateway, as it answers the requests of one connection.
struct Speaker<'a> {
    gateway: &'a Gateway,
    conversation: &'a Conversation,
}

impl Respond for Speaker<'_> {
    async fn refuse<A: Sink>(&self, fault: WebFault, mut sink: A) {
        let plan = self.gateway.plan.load_full();
        if !plan.web.is_empty() {
            let refused = self.gateway.refuse_unread(&plan, fault, sink, self.conversation);
            // Boxed: it would have its ten kibibytes in every connection that waits for a request.
            return Box::pin(refused).await;
        }
        let words = answer::closing(answer::text(fault.status(), fault.words()));
        // Whether it is read or not, there is nothing else to say.
        let _ = answer::send(&mut sink, words).await;
    }

    async fn respond<B: Source, A: Sink>(&self, request: Request<()>, mut body: B, mut answer: A) -> Next {
        if let Some(next) = self.carried(&request) {
            return next;
        }
        let plan = self.gateway.plan.load_full();
        if let Some(published) = Gateway::published(&plan, &request, self.conversation) {
            let (gateway, conversation) = (self.gateway, self.conversation);
            return boxed(|| gateway.publish(&plan, published, request, (body, answer), conversation)).await;
        }
        // Boxed: a connection is idle for longer than it is answered.
        match boxed(|| self.gateway.respond(&request, &mut body, self.conversation)).await {
            Outcome::Answer(response) => sent(answer::send(&mut answer, response).await),
            Outcome::Leave(to) => Next::Leave(to),
            Outcome::NeedsHttp1 => Next::NeedsHttp1,
        }
    }
}

/// What becomes of a connection whose client has read its answer, or not.
fn sent(sent: Result<(), Gone>) -> Next {
    match sent {
        Ok(()) => Next::KeepOpen,
        Err(Gone) => Next::Close(CloseReason::ClientClosed),
    }
}

/// The port that an authority leaves out.
const HTTPS: u16 = 443;
