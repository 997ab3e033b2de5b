//! One web request, from its rule to the last byte of its answer.
//!
//! The order is the one that operators are told: address, rate and authentication; the path's rule; rewriting; a target;
//! the answer, rewritten. What goes wrong before the answer's head ends as a page of the gateway.

use std::cell::OnceCell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, LOCATION, TE};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, Response, Uri, Version};
use tokio::time::timeout;

mod answer;
mod authenticate;
mod reach;

use super::affinity::Affinity;
use super::compress::takes_gzip;
use super::forward::{self, Relayed, Unforwarded, Upgraded};
use super::headers::{self, Asked, Prepared};
use super::lane::{Grounds, Lane};
use super::path::overridden;
use super::record::Record;
use super::rewrite::{Facts, Kept, Rounds, Set, Url, size};
use super::{Published, Publisher};
use crate::clock;
use crate::config::web::{Action, BackendVersion, Redirect, UnusualFields};
use crate::fault::{CloseReason, WebFault};
use crate::inspect::guard::{Denied, client_of};
use crate::listen;
use crate::observe::access::Served;
use crate::observe::traffic::Requests;
use crate::route::path::Normal;
use crate::route::redirect;
use crate::route::web::Site;
use crate::secure::TlsFacts;
use crate::types::Authority;
use crate::upstream::web::Own;
use crate::upstream::{Lease, Outcome, TargetId};
use crate::wire::timer::Timers;
use crate::wire::{Gone, Length, Sink, Source};

/// The connection by which a request came.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// Who connected, where to.
    pub facts: &'a listen::Facts,
    /// What was agreed, over TLS.
    pub tls: Option<&'a TlsFacts>,
    /// The connection itself, if it is of QUIC.
    pub quic: Option<&'a quinn::Connection>,
    /// The connection to a target that belongs to this one alone.
    pub own: &'a Own,
    /// What the client is told of HTTP/3 (`Alt-Svc`), if it is served here and the request did not come by it.
    pub http3: Option<&'a HeaderValue>,
    /// For its exchanges.
    pub timers: &'a Timers,
}

impl Arrival<'_> {
    /// The round trip to whoever connected, as QUIC or the system has measured it.
    fn round_trip(&self) -> Option<Duration> {
        match self.quic {
            Some(connection) => Some(connection.rtt()),
            None => listen::round_trip(self.facts.peer, self.facts.local),
        }
    }
}

/// How a request ended.
#[derive(Debug)]
pub enum Ended {
    /// It has its answer.
    Answered,
    /// Its answer broke off, for this reason; the client must see that it did.
    BrokeOff(CloseReason),
    /// It leaves HTTP.
    Leave(Box<Departed>),
}

/// A request that has left HTTP, and the target's end of it.
#[derive(Debug)]
pub struct Departed {
    /// The answer that the client is still to be sent.
    pub head: Response<()>,
    upgraded: Upgraded,
    idle: Duration,
    lease: Lease,
    record: Record,
    requests: Arc<Requests>,
    publisher: Arc<Publisher>,
}

impl Departed {
    /// Joins the client's stream, which has been sent the head, to the target's, and says why that ended.
    pub async fn join<C>(self, client: &mut C) -> CloseReason
    where
        C: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let Self {
            upgraded,
            idle,
            lease,
            mut record,
            requests,
            publisher,
            ..
        } = self;
        let cut = lease.cut().clone();
        let over = async {
            tokio::select! {
                () = cut.cancelled() => {}
                () = publisher.over.cancelled() => {}
            }
        };
        let carried = upgraded.join(client, idle, over).await;
        (record.received, record.sent) = (carried.received, carried.sent);
        publisher.note(&record, &requests);
        carried.reason
    }
}

/// A request that goes no further.
#[derive(Clone, Copy, Debug)]
struct Stopped {
    fault: WebFault,
    retry_after: Option<Duration>,
}

impl From<WebFault> for Stopped {
    fn from(fault: WebFault) -> Self {
        Self {
            fault,
            retry_after: None,
        }
    }
}

impl From<Denied> for Stopped {
    fn from(denied: Denied) -> Self {
        let retry_after = match denied {
            Denied::Rate { again_in } => Some(again_in),
            Denied::Address => None,
        };
        Self {
            fault: denied.fault(),
            retry_after,
        }
    }
}

/// What came of a request.
enum Came {
    Relayed(Relayed),
    Upgraded(Box<(Response<()>, Upgraded, Duration, Lease)>),
    /// The client has gone, or does not take its answer.
    Gone,
    /// Answered by the gateway, as its rule says.
    Answered,
}

impl Publisher {
    /// Answers a request for a site. `host` is what it asked for.
    ///
    /// Not cancel-safe: dropped, the client sees an answer that broke off.
    pub async fn serve<B: Source, A: Sink>(
        self: &Arc<Self>,
        published: &Published,
        (site, host): (&Arc<Site>, &Authority),
        request: Request<()>,
        mut body: B,
        mut sink: A,
        arrival: Arrival<'_>,
    ) -> Ended {
        let mut record = Record::new(&request, &arrival);
        record.site = Some(site.clone());
        let Some(grounds) = published.grounds.get(site.index) else {
            return Ended::BrokeOff(CloseReason::Internal);
        };
        let one = One {
            publisher: self,
            published,
            site,
            grounds,
            host,
            arrival,
        };
        match one.act(request, &mut body, &mut sink, &mut record).await {
            Ok(Came::Relayed(relayed)) => {
                (record.received, record.sent) = (relayed.received, relayed.sent);
                record.fault = relayed.fault.or(record.fault);
                if relayed.fault == Some(WebFault::ClientClosed) {
                    record.status = WebFault::ClientClosed.status();
                }
                self.note(&record, &grounds.requests);
                relayed
                    .fault
                    .map_or(Ended::Answered, |fault| Ended::BrokeOff(reason_of(fault)))
            }
            Ok(Came::Upgraded(upgraded)) => {
                let (head, upgraded, idle, lease) = *upgraded;
                Ended::Leave(Box::new(Departed {
                    head,
                    upgraded,
                    idle,
                    lease,
                    record,
                    requests: grounds.requests.clone(),
                    publisher: self.clone(),
                }))
            }
            Ok(Came::Answered) => {
                self.note(&record, &grounds.requests);
                Ended::Answered
            }
            Ok(Came::Gone) => {
                record.fault = Some(WebFault::ClientClosed);
                record.status = WebFault::ClientClosed.status();
                self.note(&record, &grounds.requests);
                Ended::BrokeOff(CloseReason::ClientClosed)
            }
            Err(stopped) => {
                let own = Some(&grounds.pages).filter(|pages| pages.has(stopped.fault.status()));
                let pages = own.unwrap_or_else(|| published.pages(&arrival.facts.listener));
                let ended = Box::pin(self.turn_away(pages, stopped, &mut sink, &mut record)).await;
                self.note(&record, &grounds.requests);
                ended
            }
        }
    }

    /// Answers a request that no site is for, or that is none.
    pub async fn refuse<A: Sink>(
        &self,
        published: &Published,
        fault: WebFault,
        request: &Request<()>,
        mut sink: A,
        arrival: Arrival<'_>,
    ) -> Ended {
        let mut record = Record::new(request, &arrival);
        let pages = published.pages(&arrival.facts.listener);
        let ended = self.turn_away(pages, fault.into(), &mut sink, &mut record).await;
        self.note(&record, self.traffic.unruled());
        ended
    }

    /// Counts a request that has ended, and writes its line.
    fn note(&self, record: &Record, requests: &Requests) {
        record.end(requests, &self.traffic, &self.access_log);
    }

    async fn turn_away<A: Sink>(
        &self,
        pages: &super::error_page::ErrorPages,
        stopped: Stopped,
        sink: &mut A,
        record: &mut Record,
    ) -> Ended {
        record.fault = Some(stopped.fault);
        record.status = stopped.fault.status();
        if stopped.fault == WebFault::ClientClosed {
            return Ended::BrokeOff(CloseReason::ClientClosed);
        }
        let trace = record.trace.digits();
        let trace = std::str::from_utf8(&trace).unwrap_or_default();
        let (head, page) = pages.answer(stopped.fault, trace, stopped.retry_after);
        record.content_type = head.headers().get(CONTENT_TYPE).cloned();
        record.answered = Some(clock::now());
        match whole(sink, head, page).await {
            Ok(sent) => {
                record.sent = sent;
                Ended::Answered
            }
            Err(_) => Ended::BrokeOff(CloseReason::ClientClosed),
        }
    }
}

/// Sends an answer that is all there.
async fn whole<A: Sink>(sink: &mut A, head: Response<()>, body: Bytes) -> Result<u64, Gone> {
    let length = body.len() as u64;
    let written = async {
        sink.head(head, Length::Exact(length)).await?;
        sink.last(body).await
    };
    timeout(READ, written).await.unwrap_or(Err(Gone))?;
    Ok(length)
}

/// One request with all that decides about it.
#[derive(Clone, Copy)]
struct One<'a> {
    publisher: &'a Publisher,
    published: &'a Published,
    site: &'a Arc<Site>,
    grounds: &'a Grounds,
    host: &'a Authority,
    arrival: Arrival<'a>,
}

/// Where a request goes, and what its answer needs.
struct Directed<'a> {
    lane: &'a Arc<Lane>,
    target: PathAndQuery,
    /// The part of the client's path that an override stands in for; `None` if rewriting made another path before.
    literal: Option<&'a str>,
    /// The sets that were applied to it, with what each has to know for the answer.
    kept: Vec<(Arc<Set>, Kept)>,
}

enum Direction<'a> {
    Forward(Directed<'a>),
    Redirect(&'a Redirect),
}

impl<'a> One<'a> {
    async fn act<B: Source, A: Sink>(
        &self,
        request: Request<()>,
        body: &mut B,
        sink: &mut A,
        record: &mut Record,
    ) -> Result<Came, Stopped> {
        let (mut head, ()) = request.into_parts();
        if head.method == Method::TRACE || head.method == Method::CONNECT {
            return Err(WebFault::InvalidMethod.into());
        }
        // Of two proofs one program would take the first and the next one the last.
        if head.headers.get_all(AUTHORIZATION).iter().nth(1).is_some() {
            return Err(WebFault::InvalidRequest.into());
        }
        let target = head.uri.path_and_query().cloned().ok_or(WebFault::InvalidRequest)?;
        let normal = Normal::of(&target).map_err(|_| WebFault::UnsafePath)?;
        let peer = self.arrival.facts.client;
        let client = client_of(peer.ip(), &head.headers, &self.published.trusted);
        if client != peer.ip() {
            record.client = SocketAddr::new(client, 0);
        }
        self.grounds.guard.admit(client, &self.publisher.rates, record.since)?;
        if let (Some(most), Length::Exact(length)) = (self.site.rule.max_body, body.length())
            && length > most
        {
            return Err(WebFault::BodyTooLarge.into());
        }
        let received = self.grounds.measures.then(|| size(&head, body.length()));
        let asked = Asked {
            peer,
            client,
            port: self.arrival.facts.local.port(),
            https: self.arrival.tls.is_some(),
            host: record.host(),
            url: target.as_str(),
            trace: record.trace,
            unusual: self.site.rule.unusual_fields,
        };
        let mut prepared = headers::prepare(&mut head.headers, &asked, &self.published.web.forwarded);
        record.dropped = prepared.dropped;
        if prepared.dropped > 0 && self.site.rule.unusual_fields == UnusualFields::Refuse {
            return Err(WebFault::InvalidRequest.into());
        }
        prepared.takes_gzip = self.site.rule.compress && takes_gzip(&head.headers);
        if prepared.hop.websocket && body.length() != Length::NONE {
            return Err(WebFault::InvalidRequest.into());
        }
        // What this node adds comes after what the client may take out by naming it in `Connection`.
        if self.grounds.service.is_some() {
            let authenticated = self.authenticate(&mut head, &normal, sink, record);
            if let Some(came) = Box::pin(authenticated).await? {
                return Ok(came);
            }
        }
        headers::apply(&self.site.rule.request_headers, &mut head.headers);
        match self.direct(&mut head, normal, (&prepared, received.unwrap_or_default()), record)? {
            Direction::Redirect(redirect) => Box::pin(self.redirect(redirect, &head.uri, sink, record)).await,
            Direction::Forward(directed) => {
                record.lane = Some(directed.lane.clone());
                record.asked = Some(directed.target.clone());
                head.uri = Uri::from(directed.target.clone());
                head.version = Version::HTTP_11;
                let request = Request::from_parts(head, ());
                if directed.lane.way.settings().buffer_requests {
                    let mut lent = self.arrival.timers.lend();
                    let mut gathered = forward::gather(body, &mut lent.timer, directed.lane.limits.request).await?;
                    drop(lent);
                    let forwarded = self.forward(directed, request, &prepared, &mut gathered, sink, record);
                    return Box::pin(forwarded).await;
                }
                self.forward(directed, request, &prepared, body, sink, record).await
            }
        }
    }

    /// Follows the rule's paths and their rewriting, until the path stays what it is.
    fn direct(
        &self,
        head: &mut http::request::Parts,
        mut normal: Normal,
        (prepared, received): (&Prepared, u64),
        record: &Record,
    ) -> Result<Direction<'a>, Stopped> {
        let mut is_moved = false;
        let mut rounds = Rounds::default();
        let mut kept = Vec::new();
        let original = head.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let measured = OnceCell::new();
        let round_trip = || *measured.get_or_init(|| self.arrival.round_trip());
        loop {
            let matched = self.site.act(normal.path());
            if let Action::Redirect(redirect) = matched.action {
                return Ok(Direction::Redirect(redirect));
            }
            let lane = self.grounds.lane(matched.path).ok_or(WebFault::Internal)?;
            if let Some(set) = &lane.set {
                let facts = Facts {
                    client: record.client.ip(),
                    client_port: Some(record.client.port()).filter(|port| *port != 0),
                    forwarded_for: &prepared.forwarded_for,
                    host: &self.host.host,
                    method: &head.method,
                    version: head.version,
                    uri: original,
                    port: self.arrival.facts.local.port(),
                    https: self.arrival.tls.is_some(),
                    tls: self.arrival.tls,
                    certificate: None,
                    round_trip: &round_trip,
                    received,
                };
                let before = Url {
                    path: normal.path(),
                    query: normal.query(),
                };
                let rewritten = set.request(&mut head.headers, before, &facts);
                let url = rewritten.url(before);
                kept.push((set.clone(), rewritten.kept));
                if let Some(url) = url {
                    let rewritten = Normal::parse(&url).map_err(|_| WebFault::UnsafePath)?;
                    is_moved |= rewritten.path() != normal.path();
                    normal = rewritten;
                }
                if rewritten.reevaluate {
                    rounds.take()?;
                    continue;
                }
            }
            let target = match &lane.way.settings().path_override {
                Some(with) => {
                    let path = overridden(normal.as_str(), matched.literal, with);
                    PathAndQuery::try_from(path).map_err(|_| WebFault::UnsafePath)?
                }
                None => normal.path_and_query().clone(),
            };
            return Ok(Direction::Forward(Directed {
                lane,
                target,
                literal: (!is_moved).then_some(matched.literal),
                kept,
            }));
        }
    }

    async fn redirect<A: Sink>(
        &self,
        redirect: &Redirect,
        uri: &Uri,
        sink: &mut A,
        record: &mut Record,
    ) -> Result<Came, Stopped> {
        let asked = uri.path_and_query().ok_or(WebFault::InvalidRequest)?;
        let normal = Normal::of(asked).map_err(|_| WebFault::UnsafePath)?;
        let location = redirect::location(redirect, &self.published.listeners, self.host, &normal)?;
        let mut head = Response::new(());
        *head.status_mut() = redirect.status;
        head.headers_mut().insert(LOCATION, location);
        headers::apply(&self.site.rule.response_headers, head.headers_mut());
        record.status = redirect.status;
        record.answered = Some(clock::now());
        Ok(whole(sink, head, Bytes::new())
            .await
            .map_or(Came::Gone, |_| Came::Answered))
    }

    /// Asks targets in turn, as often as the backend allows, and brings back the answer of one.
    async fn forward<B: Source, A: Sink>(
        &self,
        directed: Directed<'_>,
        mut request: Request<()>,
        prepared: &Prepared,
        body: &mut B,
        sink: &mut A,
        record: &mut Record,
    ) -> Result<Came, Stopped> {
        let lane = directed.lane;
        let settings = lane.way.settings();
        let pool = self.pool(lane)?;
        let upgrade = prepared.hop.websocket;
        if settings.version == BackendVersion::Http1 || upgrade {
            prepared.hop.put(request.headers_mut());
        } else if prepared.hop.trailers {
            request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        }
        let roster = settings.affinity.is_some().then(|| pool.roster());
        let affinity = roster
            .as_ref()
            .and_then(|roster| roster.derived::<Affinity<TargetId>>());
        let stays = affinity.and_then(|affinity| affinity.target(request.headers()).cloned());
        let mut lent = self.arrival.timers.lend();
        let (mut tried, mut failed): (Vec<TargetId>, Option<WebFault>) = (Vec::new(), None);
        lane.way.budget().deposit();
        let (lease, answer) = loop {
            let now = clock::now();
            let lease = if tried.is_empty() {
                pool.pick(stays.as_ref(), now)
            } else {
                pool.pick_besides(&tried, now)
            };
            // Where nobody is left to be tried, what went wrong with the last one says more.
            let lease = lease.map_err(|fault| failed.unwrap_or(fault))?;
            record.retries += u32::from(failed.is_some());
            record.asked_host = self.host_for(lane, &lease, request.headers_mut(), None);
            record.served = Some(Served {
                address: lease.address(),
                source_port: None,
                status: None,
                latency: None,
                reused: false,
            });
            let may_try_again = record.retries < settings.retries.max;
            let mut leased = match self.reach(lane, &lease, record.asked_host.as_ref(), upgrade, now).await {
                Ok(leased) => leased,
                Err(fault) => {
                    lease.report(Outcome::Failed(fault), clock::now());
                    // A target that takes no connection was asked nothing: the budget is for what may be asked twice.
                    if may_try_again && (fault == WebFault::ConnectFailed || lane.way.budget().withdraw()) {
                        failed = Some(fault);
                        tried.push(lease.target().clone());
                        continue;
                    }
                    return Err(fault.into());
                }
            };
            let reused = leased.is_reused();
            if let Some(served) = &mut record.served {
                served.reused = reused;
                served.source_port = leased.local_addr().map(|address| address.port());
            }
            match forward::ask(leased, &request, body, sink, lane.limits, &mut lent.timer).await {
                Ok(answer) => break (lease, answer),
                Err(Unforwarded { fault, again, received }) => {
                    record.received = received;
                    if !reused {
                        lease.report(Outcome::Failed(fault), clock::now());
                    }
                    if again && may_try_again && lane.way.budget().withdraw() {
                        failed = Some(fault);
                        // A connection that had waited too long says nothing of its target.
                        if !reused {
                            tried.push(lease.target().clone());
                        }
                        continue;
                    }
                    return Err(fault.into());
                }
            }
        };
        let status = answer.head.status();
        if let Some(served) = &mut record.served {
            served.status = Some(status.as_u16());
            served.latency = Some(answer.first_byte);
        }
        lease.report(Outcome::Answered(status), answer.since());
        let cookies = affinity.filter(|_| stays.as_ref() != Some(lease.target()));
        self.answer(answer, directed, prepared, (&lease, cookies), record)
            .relay(sink, lease)
            .await
    }
}

/// Why a connection ends whose answer broke off.
fn reason_of(fault: WebFault) -> CloseReason {
    match fault.source() {
        crate::fault::Source::Client => CloseReason::ClientClosed,
        crate::fault::Source::Upstream => CloseReason::UpstreamClosed,
        crate::fault::Source::Policy => CloseReason::TooLarge,
        crate::fault::Source::Internal => CloseReason::Internal,
    }
}

/// For a client to read an answer that is all there.
const READ: Duration = Duration::from_secs(30);
