//! HTTP/3 on one QUIC connection: requests, answered as over the other versions of HTTP, and the streams of admitted
//! sessions.
//!
//! Each of those is admitted by itself, by the grant's QUIC token in `Authorization: Bearer`, and is one of the session's
//! connections. Whatever is not admitted gets the same small answer; the log has the reason.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h3::error::{Code, StreamError};
use h3::ext::Protocol;
use h3::server::RequestResolver;
use http::header::{AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use quinn::VarInt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::conversation::{Conversation, tell};
use super::extent::{KEEP_ALIVE, PROXY_CONNECTION};
use super::http1::{Next, Respond};
use super::{Gateway, Plan, Speaker, answer, http2};
use crate::clock;
use crate::fault::{CloseReason, Refusal, WebFault};
use crate::fleet::{self, Call, Reply, Way};
use crate::grant::{Denied, Granted, Route, Secondary, Token};
use crate::listen::Arriving;
use crate::observe::{self, Kind};
use crate::route::masque::{Asked, asked};
use crate::secure::{self, SecuredQuic};
use crate::tunnel::masque::frames::TooLarge;
use crate::tunnel::masque::wire::{self, Stopped};
use crate::tunnel::masque::{Datagrams, Exchange, pass_bytes, pass_datagrams, relay_bytes, relay_datagrams};
use crate::types::Secret;
use crate::upstream;
use crate::wire::NoReader;
use crate::wire::h1::head::{FIELDS_MAX, HEAD_MAX};

mod stream;

/// What the requests of one connection share.
#[derive(Clone)]
struct Shared {
    connection: quinn::Connection,
    conversation: Arc<Conversation>,
    datagrams: Arc<Datagrams>,
}

impl Gateway {
    /// Takes a QUIC connection from its first packet to its end. Never fails: what goes wrong ends it, with a reason.
    pub async fn serve_quic(self: Arc<Self>, arriving: Arriving) {
        let facts = arriving.facts().clone();
        let plan = self.plan.load_full();
        let arrived = timeout(plan.config.limits.handshake_timeout, secure::quic_handshake(arriving));
        let reason = match Box::pin(arrived).await {
            Ok(Ok(secured)) => return Box::pin(self.converse_h3(secured, plan)).await,
            Ok(Err(reason)) => reason,
            Err(_) => CloseReason::Timeout,
        };
        self.grants.watch().counters().closed(reason);
        tell!(
            observe::level_of(reason),
            reason = reason.code(),
            client = %facts.client,
            local = %facts.local,
            listener = &*facts.listener,
            "QUIC connection closed before its first request"
        );
    }

    /// Answers the connection's requests, each in a task of its own, until it ends.
    async fn converse_h3(self: Arc<Self>, secured: SecuredQuic, plan: Arc<Plan>) {
        let (connection, facts, tls, _permit) = secured.into_parts();
        let conversation = Conversation::new(facts, Some(tls), self.grants.watch().clone()).over(connection.clone());
        let shared = Shared {
            connection: connection.clone(),
            conversation: Arc::new(conversation),
            datagrams: Datagrams::new(connection.clone(), self.grants.watch().clone()),
        };
        self.tasks.spawn(shared.datagrams.clone().run());
        let ended = self.requests(&shared, &plan).await;
        connection.close(VarInt::from_u32(Code::H3_NO_ERROR.value() as u32), b"");
        shared.conversation.log(shared.conversation.end().unwrap_or(ended));
    }

    async fn requests(self: &Arc<Self>, shared: &Shared, plan: &Plan) -> CloseReason {
        let mut builder = h3::server::builder();
        builder
            .max_field_section_size(2 * HEAD_MAX as u64)
            .enable_extended_connect(true)
            .enable_datagram(true)
            .send_grease(false);
        let wire = wire::Connection::new(shared.connection.clone());
        let latest = wire.latest();
        let mut http = match timeout(plan.config.limits.head_timeout, builder.build(wire)).await {
            Ok(Ok(http)) => http,
            Ok(Err(_)) => return CloseReason::ClientClosed,
            Err(_) => return CloseReason::Timeout,
        };
        let (open, mut count) = watch::channel(Requests::default());
        let leaving = self.kinship().leaving();
        let mut told = false;
        loop {
            let requests = *count.borrow_and_update();
            let idle = match requests.open {
                0 if leaving.is_cancelled() => Some(http2::CROSSING),
                0 => Some(plan.config.limits.head_timeout),
                _ => None,
            };
            // A connection with streams of a session goes on, also with streams to come.
            if leaving.is_cancelled() && requests.streams == 0 && !told {
                told = true;
                if http.shutdown(UNDER_WAY).await.is_err() {
                    return CloseReason::ClientClosed;
                }
            }
            tokio::select! {
                accepted = http.accept() => match accepted {
                    Ok(Some(resolver)) => {
                        let open = Open::new(open.clone());
                        self.tasks.spawn(self.clone().request(resolver, latest.take(), shared.clone(), open));
                    }
                    Ok(None) => return CloseReason::Completed,
                    Err(error) if error.is_h3_no_error() => return CloseReason::Completed,
                    Err(_) => return CloseReason::ClientClosed,
                },
                // A sender is held here: this ends with no error.
                _ = count.changed() => {}
                () = async { sleep(idle.unwrap_or_default()).await }, if idle.is_some() => {
                    // What comes from here on is told that nobody has looked at it, so that it may be asked elsewhere.
                    if http.shutdown(0).await.is_ok() {
                        let _ = timeout(LAST_WORDS, http.accept()).await;
                    }
                    return CloseReason::Completed;
                }
                () = leaving.cancelled(), if !leaving.is_cancelled() => {}
            }
        }
    }

    /// One request, from its head to its last byte.
    async fn request(
        self: Arc<Self>,
        resolver: RequestResolver<wire::Connection, Bytes>,
        stopped: Stopped,
        shared: Shared,
        mut open: Open,
    ) {
        let limit = self.plan().config.limits.head_timeout;
        let (request, exchange) = match timeout(limit, resolver.resolve_request()).await {
            Ok(Ok(resolved)) => resolved,
            // The library has answered it, or its stream is reset.
            Ok(Err(fault)) if is_too_large(&fault) => return self.unread(WebFault::HeadTooLarge, &shared).await,
            Ok(Err(_)) => return,
            Err(_) => return self.unread(WebFault::ClientTimeout, &shared).await,
        };
        let Some(asked) = self.way(&request, &shared) else {
            return self.exchange_h3(request, exchange, stopped, &shared).await;
        };
        open.is_stream();
        shared.conversation.note_request(false);
        match self.successor_for_stream(&shared.conversation).await {
            Some(Ok(owner)) => {
                let call = call_for(&request, &asked);
                return carry(exchange, owner, &call, Refusal::UnknownToken, &shared).await;
            }
            Some(Err(fault)) => {
                tracing::warn!(%fault, "the other process of this node cannot be reached");
                return send(exchange, answer::unavailable()).await;
            }
            None => {}
        }
        match self.admit_stream(&request, &shared.conversation) {
            Ok(granted) => match asked {
                Asked::Session => tell_the_end(exchange, &granted, &shared.connection).await,
                Asked::Bytes(name) => self.bytes(exchange, &granted, name, &shared).await,
                Asked::Datagrams(name) => self.datagrams(exchange, &granted, name, &shared).await,
            },
            Err(denied) => match self.sister(Kind::Quic, fleet::Kind::Stream, &denied, &shared.conversation.facts) {
                Some(sister) => match sister.reach(&[]).await {
                    Some(owner) => carry(exchange, owner, &call_for(&request, &asked), denied.reason, &shared).await,
                    None => refuse(exchange, &denied, &shared.conversation).await,
                },
                None => refuse(exchange, &denied, &shared.conversation).await,
            },
        }
    }

    /// Has a request in the log of which nobody could read the head.
    async fn unread(&self, fault: WebFault, shared: &Shared) {
        let speaker = Speaker {
            gateway: self,
            conversation: &shared.conversation,
        };
        speaker.refuse(fault, NoReader).await;
    }

    /// A request as the other versions of HTTP have them.
    async fn exchange_h3(&self, request: Request<()>, exchange: Exchange, stopped: Stopped, shared: &Shared) {
        let speaker = Speaker {
            gateway: self,
            conversation: &shared.conversation,
        };
        let (mut body, mut answer) = stream::part(exchange, &request, stopped);
        let patience = self.plan().config.limits.head_timeout;
        let fault = match unfit(&request) {
            Some(fault) => Some(fault),
            None => {
                let looked = timeout(patience, body.look(request.method())).await;
                looked.err().map(|_| WebFault::ClientTimeout)
            }
        };
        if let Some(fault) = fault {
            drop(body);
            return speaker.refuse(fault, &mut answer).await;
        }
        if let Next::NeedsHttp1 = speaker.respond(request, body, &mut answer).await {
            answer.reset(Code::H3_VERSION_FALLBACK);
        }
        // What is not answered is reset.
    }

    /// The way to a desktop that a request asks for. What an application has at the same place stays its own, unless a
    /// token is shown.
    fn way<'r>(&self, request: &'r Request<()>, shared: &Shared) -> Option<Asked<'r>> {
        let plan = self.plan.load();
        let listener = plan.config.listeners.get(&*shared.conversation.facts.listener)?;
        let protocol = request.extensions().get::<Protocol>().map(Protocol::as_str);
        let asked = asked(request.method(), request.uri(), protocol).filter(|_| listener.session_gateway)?;
        let is_shown = || bearer(request.headers()).is_ok_and(Token::is_one);
        match asked {
            Asked::Session if !is_shown() => Self::published(&plan, request, &shared.conversation)
                .is_none()
                .then_some(asked),
            Asked::Session | Asked::Bytes(_) | Asked::Datagrams(_) => Some(asked),
        }
    }

    /// Step 6: is there a live grant of this node behind the token?
    fn admit_stream(&self, request: &Request<()>, conversation: &Conversation) -> Result<Granted, Denied> {
        let token = bearer(request.headers())?;
        let granted = self.grants.admit(token, Secondary::Quic, clock::now())?;
        conversation.belongs_to(granted.grant().id());
        Ok(granted)
    }

    /// Step 7 for bytes: the desktop is dialled, the request answered, and both are joined.
    async fn bytes(&self, mut exchange: Exchange, granted: &Granted, name: Option<&str>, shared: &Shared) {
        let Some(route) = named(granted, name) else {
            return refuse(exchange, &not_announced(granted), &shared.conversation).await;
        };
        let dialled = tokio::select! {
            dialled = upstream::dial(route.target(), DIAL) => dialled,
            () = route.ended() => return refuse(exchange, &gone(granted), &shared.conversation).await,
        };
        let desktop = match dialled {
            Ok(desktop) => desktop,
            Err(fault) => return unreachable(exchange, granted, &route, fault, &shared.conversation).await,
        };
        if exchange.send_response(Response::new(())).await.is_err() {
            return;
        }
        let reason = relay_bytes(exchange, desktop, granted, &route).await;
        log_stream("bytes", granted, &route, reason, shared);
    }

    /// Step 7 for datagrams.
    async fn datagrams(&self, mut exchange: Exchange, granted: &Granted, name: Option<&str>, shared: &Shared) {
        let Some(route) = named(granted, name) else {
            return refuse(exchange, &not_announced(granted), &shared.conversation).await;
        };
        let desktop = match upstream::dial_datagrams(route.target(), DIAL).await {
            Ok(desktop) => desktop,
            Err(fault) => return unreachable(exchange, granted, &route, fault, &shared.conversation).await,
        };
        let mut head = Response::new(());
        head.headers_mut()
            .insert(CAPSULE_PROTOCOL, HeaderValue::from_static("?1"));
        if exchange.send_response(head).await.is_err() {
            return;
        }
        let idle = self.plan().config.udp.idle;
        let reason = relay_datagrams(exchange, &shared.datagrams, desktop, granted, &route, idle).await;
        log_stream("datagrams", granted, &route, reason, shared);
    }
}

/// What a stream asks for, as whoever has its grant is told.
fn call_for(request: &Request<()>, asked: &Asked<'_>) -> Call {
    let (way, name) = match asked {
        Asked::Session => (Way::Session, None),
        Asked::Bytes(name) => (Way::Bytes, *name),
        Asked::Datagrams(name) => (Way::Datagrams, *name),
    };
    Call {
        way,
        name: name.map(str::to_owned),
        token: Secret::new(bearer(request.headers()).unwrap_or_default()),
    }
}

/// Passes a stream on to whoever has its grant, who answers it; one that is refused there was `refused` here, or would be.
async fn carry<IO>(mut exchange: Exchange, mut owner: IO, call: &Call, refused: Refusal, shared: &Shared)
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let answered = async {
        call.write(&mut owner).await?;
        Reply::read(&mut owner).await
    };
    match timeout(OWNER, answered).await {
        Ok(Ok(Reply::Admitted)) => {}
        Ok(Ok(Reply::Unreachable)) => return send(exchange, answer::refused(Refusal::TargetUnreachable)).await,
        Ok(Ok(Reply::Refused) | Err(_)) | Err(_) => return send(exchange, answer::refused(refused)).await,
    }
    let mut head = Response::new(());
    if call.way == Way::Datagrams {
        head.headers_mut()
            .insert(CAPSULE_PROTOCOL, HeaderValue::from_static("?1"));
    }
    if exchange.send_response(head).await.is_err() {
        return;
    }
    let reason = match call.way {
        Way::Datagrams => pass_datagrams(exchange, &shared.datagrams, &mut owner).await,
        Way::Bytes | Way::Session => pass_bytes(exchange, &mut owner).await,
    };
    tracing::debug!(reason = reason.code(), client = %shared.connection.remote_address(), "carried QUIC stream closed");
}

/// The token of a request.
fn bearer(headers: &HeaderMap) -> Result<&str, Denied> {
    let denied = |reason| Denied {
        reason,
        owner: None,
        session: None,
    };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Err(denied(Refusal::NoToken));
    };
    let text = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
    });
    match (text, values.next()) {
        (Some(token), None) => Ok(token),
        _ => Err(denied(Refusal::Malformed)),
    }
}

fn named(granted: &Granted, name: Option<&str>) -> Option<Arc<Route>> {
    granted.grant().route_named(name?)
}

fn not_announced(granted: &Granted) -> Denied {
    Denied {
        reason: Refusal::NotAnnounced,
        owner: None,
        session: Some(granted.grant().id()),
    }
}

fn gone(granted: &Granted) -> Denied {
    Denied {
        reason: Refusal::Revoked,
        owner: None,
        session: Some(granted.grant().id()),
    }
}

/// Keeps the stream open for as long as the session lives, and then says why it ended.
async fn tell_the_end(mut exchange: Exchange, granted: &Granted, connection: &quinn::Connection) {
    let mut head = Response::new(());
    head.headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if exchange.send_response(head).await.is_err() {
        return;
    }
    tokio::select! {
        reason = granted.grant().revoked() => {
            let words = Bytes::from_static(reason.words().as_bytes());
            // A client that has gone meanwhile knows.
            if exchange.send_data(words).await.is_ok() {
                let _ = exchange.finish().await;
            }
        }
        _ = connection.closed() => {}
    }
}

/// Nothing was dialled: says so to the log in full, to the client hardly anything.
async fn refuse(exchange: Exchange, denied: &Denied, conversation: &Conversation) {
    Gateway::note_refusal(Kind::Quic, denied, conversation);
    send(exchange, answer::refused(denied.reason)).await;
}

/// The session may, but the desktop does not answer: the one thing that its client is told.
async fn unreachable(
    exchange: Exchange,
    granted: &Granted,
    route: &Route,
    fault: upstream::DialFault,
    conversation: &Conversation,
) {
    tracing::info!(
        reason = Refusal::TargetUnreachable.code(),
        cause = fault.code(),
        session = %granted.grant().id(),
        route = route.port_name(),
        client = %conversation.facts.client,
        step = "upstream",
        "stream refused: {fault}"
    );
    let mut response = answer::text(StatusCode::BAD_GATEWAY, "");
    *response.body_mut() = Bytes::from(format!("{fault}\n"));
    send(exchange, response).await;
}

fn log_stream(kind: &'static str, granted: &Granted, route: &Route, reason: CloseReason, shared: &Shared) {
    tell!(
        observe::level_of(reason),
        reason = reason.code(),
        kind,
        session = %granted.grant().id(),
        route = route.port_name(),
        client = %shared.connection.remote_address(),
        listener = &*shared.conversation.facts.listener,
        "QUIC stream closed"
    );
}

/// Sends an answer whole, and ends the stream.
async fn send(mut exchange: Exchange, mut response: Response<Bytes>) {
    // HTTP/3 has no such field; its connections end by themselves.
    response.headers_mut().remove(CONNECTION);
    let (head, body) = response.into_parts();
    let sent = async {
        exchange.send_response(Response::from_parts(head, ())).await?;
        if !body.is_empty() {
            exchange.send_data(body).await?;
        }
        exchange.finish().await
    };
    // A client that does not read its answer has no use for it; one that sends on is told that nobody reads.
    let _ = timeout(ANSWER, sent).await;
    exchange.stop_sending(Code::H3_NO_ERROR);
}

/// Whether a request was not read because its head has no room.
fn is_too_large(fault: &StreamError) -> bool {
    let is_frame =
        |fault: &StreamError| matches!(fault, StreamError::Undefined { 0: cause, .. } if cause.is::<TooLarge>());
    matches!(fault, StreamError::HeaderTooBig { .. }) || is_frame(fault)
}

/// Why a request goes no further, which the library has let through.
fn unfit(request: &Request<()>) -> Option<WebFault> {
    let headers = request.headers();
    let of_http1 = [CONNECTION, TRANSFER_ENCODING, UPGRADE, KEEP_ALIVE, PROXY_CONNECTION];
    let is_of_http1 = of_http1.iter().any(|name| headers.contains_key(name));
    let takes_else = |takes: &HeaderValue| !takes.as_bytes().eq_ignore_ascii_case(b"trailers");
    let lengths = headers.get_all(CONTENT_LENGTH).iter().count();
    if headers.len() > FIELDS_MAX {
        Some(WebFault::HeadTooLarge)
    } else if is_of_http1
        || headers.get_all(TE).iter().any(takes_else)
        || lengths != usize::from(stream::length_of(request).is_some())
    {
        Some(WebFault::InvalidRequest)
    } else {
        http2::unfit(request)
    }
}

/// The open requests of a connection.
#[derive(Clone, Copy, Debug, Default)]
struct Requests {
    open: usize,
    /// Those of them that are streams of a session.
    streams: usize,
}

/// An open request of a connection.
struct Open {
    count: watch::Sender<Requests>,
    is_stream: bool,
}

impl Open {
    fn new(count: watch::Sender<Requests>) -> Self {
        count.send_modify(|requests| requests.open += 1);
        let is_stream = false;
        Self { count, is_stream }
    }

    /// It is a stream of a session, if it is admitted.
    fn is_stream(&mut self) {
        self.is_stream = true;
        self.count.send_modify(|requests| requests.streams += 1);
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let streams = usize::from(self.is_stream);
        self.count.send_modify(|requests| {
            requests.open -= 1;
            requests.streams -= streams;
        });
    }
}

const CAPSULE_PROTOCOL: HeaderName = HeaderName::from_static("capsule-protocol");
/// For a desktop to accept.
const DIAL: Duration = Duration::from_secs(10);
/// The owner of a grant dials the desktop before it answers.
const OWNER: Duration = Duration::from_secs(15);
/// For a client to read an answer.
const ANSWER: Duration = Duration::from_secs(10);
/// Requests that a client may have sent before it learns that it is to make no more.
const UNDER_WAY: usize = 64;
/// For a client to take what it is told at the end.
const LAST_WORDS: Duration = Duration::from_millis(200);
