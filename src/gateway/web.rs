//! Requests of the web: whose each is, and what becomes of its connection.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{DATE, UPGRADE};
use http::{HeaderValue, Method, Request};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_util::sync::CancellationToken;

use super::conversation::Conversation;
use super::departure::Destination;
use super::http1::{self, Next, Respond};
use super::lifecycle::State;
use super::{Gateway, Plan, answer};
use crate::fault::{CloseReason, WebFault};
use crate::inspect::guard::misdirected;
use crate::listen::{Facts, Permit, Prefixed};
use crate::publish::{Arrival, Departed, Ended};
use crate::route::host::host_of;
use crate::route::web::{Owner, Site};
use crate::types::Authority;
use crate::wire::{NoBody, Sink, Source};

/// What the application gateway has to do with a request.
pub(super) enum Publication<'p> {
    /// It answers it.
    Site(&'p Arc<Site>, Authority),
    /// It says that there is nothing.
    Fault(WebFault),
}

impl Gateway {
    /// Whether a request is the application gateway's; `None` if it is the session gateway's.
    pub(super) fn published<'p>(
        plan: &'p Plan,
        request: &Request<()>,
        conversation: &Conversation,
    ) -> Option<Publication<'p>> {
        let listener = &*conversation.facts.listener;
        let serves_sessions = plan
            .config
            .listeners
            .get(listener)
            .is_some_and(|listener| listener.session_gateway);
        if conversation.facts.relayed_by.is_some() || (plan.web.is_empty() && serves_sessions) {
            return None;
        }
        let host = match host_of(request) {
            Ok(host) => host,
            Err(fault) => return Some(Publication::Fault(fault)),
        };
        match plan.web.owner(listener, &host, request.uri().path()) {
            Owner::Site(site) => Some(Publication::Site(site, host)),
            Owner::SessionGateway => None,
            Owner::Nobody => Some(Publication::Fault(WebFault::NoRule)),
        }
    }

    /// Steps 3 to 8 of a request of the web.
    pub(super) async fn publish<B: Source, A: Sink>(
        &self,
        plan: &Plan,
        publication: Publication<'_>,
        request: Request<()>,
        (body, sink): (B, A),
        conversation: &Conversation,
    ) -> Next {
        conversation.note_request(false);
        let http3 = self.http3(&request, conversation);
        let arrival = Arrival {
            facts: &conversation.facts,
            tls: conversation.tls.as_ref(),
            quic: conversation.quic.as_ref(),
            own: &conversation.own,
            http3: http3.as_ref(),
            timers: &conversation.timers,
        };
        let (publisher, web) = (&self.publisher, &plan.web);
        let ended = match publication {
            Publication::Site(site, host) => match self.takes(plan, &host, &request, conversation) {
                Ok(()) => publisher.serve(web, (site, &host), request, body, sink, arrival).await,
                Err(fault) => Box::pin(publisher.refuse(web, fault, &request, sink, arrival)).await,
            },
            Publication::Fault(fault) => Box::pin(publisher.refuse(web, fault, &request, sink, arrival)).await,
        };
        match ended {
            Ended::Answered => Next::KeepOpen,
            Ended::BrokeOff(reason) => Next::Close(reason),
            Ended::Leave(departed) => Next::Leave(Destination::Web(departed)),
        }
    }

    /// Answers what is no request.
    pub(super) async fn refuse_unread<A: Sink>(
        &self,
        plan: &Plan,
        fault: WebFault,
        sink: A,
        conversation: &Conversation,
    ) {
        let mut unread = Request::new(());
        *unread.version_mut() = conversation.version();
        if let Ok(method) = Method::from_bytes(b"-") {
            *unread.method_mut() = method;
        }
        self.publish(plan, Publication::Fault(fault), unread, (NoBody, sink), conversation)
            .await;
    }

    /// What a client is told that could ask over HTTP/3 too (RFC 7838).
    fn http3(&self, request: &Request<()>, conversation: &Conversation) -> Option<HeaderValue> {
        let port = self.quic_port(request, conversation)?;
        HeaderValue::try_from(format!("h3=\":{port}\"; ma=86400")).ok()
    }

    /// Tells a client that speaks HTTP to a TLS port to use TLS, by the page for that, and closes.
    pub(super) async fn set_right<IO>(&self, io: IO, (facts, _permit): (Facts, Permit), plan: Arc<Plan>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let conversation = Conversation::new(facts, None, self.grants.watch().clone());
        conversation.end_with(CloseReason::Malformed);
        let lost = Lost {
            gateway: self,
            plan: &plan,
            conversation: &conversation,
        };
        // As for one that comes while the node drains: the first answer is the last.
        let over = CancellationToken::new();
        over.cancel();
        let ended = http1::serve(io, plan.config.limits.head_timeout, lost, &over).await;
        conversation.log(conversation.end().unwrap_or(ended));
    }

    /// Whether the client was shown a certificate under which the host may be asked for, and does not ask a node that drains
    /// for what has no end.
    fn takes(
        &self,
        plan: &Plan,
        host: &Authority,
        request: &Request<()>,
        conversation: &Conversation,
    ) -> Result<(), WebFault> {
        let wants_a_websocket = || {
            let upgrade = request.headers().get(UPGRADE);
            upgrade.is_some_and(|upgrade| upgrade.as_bytes().eq_ignore_ascii_case(b"websocket"))
        };
        if self.lifecycle.state() == State::Draining && wants_a_websocket() {
            return Err(WebFault::Draining);
        }
        let sni = conversation.tls.as_ref().and_then(|tls| tls.sni.as_deref());
        let listener = plan.config.listeners.get(&*conversation.facts.listener);
        let door = listener.and_then(|listener| plan.doors.get(listener.bind.first()?));
        match door.and_then(|door| door.certificates.as_ref()) {
            Some(certificates) => misdirected(certificates, sni, &host.host),
            None => Ok(()),
        }
    }
}

/// Answers everything with the advice to use TLS.
struct Lost<'a> {
    gateway: &'a Gateway,
    plan: &'a Plan,
    conversation: &'a Conversation,
}

impl Respond for Lost<'_> {
    async fn refuse<A: Sink>(&self, _fault: WebFault, sink: A) {
        let fault = WebFault::HttpToHttpsPort;
        self.gateway
            .refuse_unread(self.plan, fault, sink, self.conversation)
            .await;
    }

    async fn respond<B: Source, A: Sink>(&self, request: Request<()>, body: B, answer: A) -> Next {
        let fault = Publication::Fault(WebFault::HttpToHttpsPort);
        let (plan, conversation) = (self.plan, self.conversation);
        self.gateway
            .publish(plan, fault, request, (body, answer), conversation)
            .await
    }
}

/// Goes on with a connection that has left HTTP, and says why it ended.
pub(super) async fn go_on<IO>(mut departed: Departed, io: &mut IO, early: Bytes) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    // The head that is written has a date of its own.
    departed.head.headers_mut().remove(DATE);
    if io.write_all(&answer::head(&departed.head)).await.is_err() || io.flush().await.is_err() {
        return CloseReason::ClientClosed;
    }
    departed.join(&mut Prefixed::new(early, io)).await
}
