//! What is remembered of a request for its line in the access log.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{HOST, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode, Version};
use jiff::Timestamp;
use rustls::ProtocolVersion;

use super::headers::TraceId;
use super::lane::Lane;
use super::serve::Arrival;
use crate::clock;
use crate::fault::WebFault;
use crate::observe::access::{AccessLog, Line, Served};
use crate::observe::traffic::{Requests, Traffic};
use crate::route::web::Site;
use crate::secure::TlsFacts;

/// One request, from its head to its end. Everything in it is shared with the request: nothing is copied.
#[derive(Debug)]
pub struct Record {
    begun: Timestamp,
    pub(super) since: Instant,
    pub(super) trace: TraceId,
    listener: Arc<str>,
    pub(super) client: SocketAddr,
    tls: Option<(&'static str, &'static str)>,
    method: Method,
    version: Version,
    target: Option<PathAndQuery>,
    /// As the client wrote it.
    host: HeaderValue,
    user_agent: Option<HeaderValue>,
    pub(super) site: Option<Arc<Site>>,
    pub(super) lane: Option<Arc<Lane>>,
    /// What the target is asked for.
    pub(super) asked: Option<PathAndQuery>,
    pub(super) asked_host: Option<HeaderValue>,
    pub(super) served: Option<Served>,
    pub(super) retries: u32,
    /// Fields that were taken out for their names.
    pub(super) dropped: usize,
    pub(super) status: StatusCode,
    pub(super) answered: Option<Instant>,
    pub(super) content_type: Option<HeaderValue>,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) fault: Option<WebFault>,
}

impl Record {
    /// The beginning of a request.
    pub(super) fn new(request: &Request<()>, arrival: &Arrival<'_>) -> Self {
        Self {
            begun: clock::wall(),
            since: clock::now(),
            trace: TraceId::next(),
            listener: arrival.facts.listener.clone(),
            client: arrival.facts.client,
            tls: arrival
                .tls
                .map(|tls| (protocol(tls), tls.suite.as_str().unwrap_or("unknown"))),
            method: request.method().clone(),
            version: request.version(),
            target: request.uri().path_and_query().cloned(),
            host: written_host(request),
            user_agent: request.headers().get(USER_AGENT).cloned(),
            site: None,
            lane: None,
            asked: None,
            asked_host: None,
            served: None,
            retries: 0,
            dropped: 0,
            status: StatusCode::OK,
            answered: None,
            content_type: None,
            received: 0,
            sent: 0,
            fault: None,
        }
    }

    /// The host that was asked for, as it was written.
    pub(super) fn host(&self) -> &str {
        self.host.to_str().unwrap_or_default()
    }

    /// Counts the request among those of its rule, and writes its line.
    pub(super) fn end(&self, requests: &Requests, traffic: &Traffic, log: &AccessLog) {
        let now = clock::now();
        // A WebSocket may stay for days: its request has ended when it began.
        let switched = self.answered.filter(|_| self.status == StatusCode::SWITCHING_PROTOCOLS);
        let taken = switched.unwrap_or(now).saturating_duration_since(self.since);
        requests.count(self.status.as_u16(), taken, (self.received, self.sent));
        if let Some(fault) = self.fault {
            traffic.fault(fault);
        }
        if log.is_on() {
            self.write(log, now);
        }
    }

    fn write(&self, log: &AccessLog, now: Instant) {
        let trace = self.trace.digits();
        let asked = self.asked.as_ref().or(self.target.as_ref());
        let since_answer = self.answered.map(|answered| now.saturating_duration_since(answered));
        log.write(&Line {
            begun: self.begun,
            listener: &self.listener,
            rule: self.site.as_ref().map(|site| site.name.as_str()),
            pool: self.lane.as_ref().map(|lane| lane.forward.pool.as_str()),
            backend: self.lane.as_ref().and_then(|lane| lane.backend()),
            client: self.client,
            method: self.method.as_str(),
            original_target: self
                .target
                .as_ref()
                .map_or(&b""[..], |target| target.as_str().as_bytes()),
            path: asked.map_or("", PathAndQuery::path),
            query: asked.and_then(PathAndQuery::query),
            user_agent: self.user_agent.as_ref().map(HeaderValue::as_bytes),
            status: self.status.as_u16(),
            version: version(self.version),
            received: self.received,
            sent: self.sent,
            answering: since_answer.unwrap_or(Duration::ZERO),
            taken: now.saturating_duration_since(self.since),
            trace: std::str::from_utf8(&trace).unwrap_or_default(),
            tls: self.tls,
            target: self.served,
            retries: self.retries,
            dropped_fields: self.dropped,
            original_host: self.host(),
            host: self.asked_host.as_ref().and_then(|host| host.to_str().ok()),
            fault: self.fault,
            content_type: self.content_type.as_ref().map(HeaderValue::as_bytes),
        });
    }
}

/// The version of TLS as operators write it.
fn protocol(tls: &TlsFacts) -> &'static str {
    if tls.version == ProtocolVersion::TLSv1_3 {
        "TLSv1.3"
    } else {
        "TLSv1.2"
    }
}

/// The host that is asked for: of the target, or else of the field. Nothing if there is none.
fn written_host(request: &Request<()>) -> HeaderValue {
    let of_target = request
        .uri()
        .authority()
        .map(|authority| HeaderValue::from_str(authority.as_str()));
    let written = match of_target {
        Some(host) => host.ok(),
        None => request.headers().get(HOST).cloned(),
    };
    written.unwrap_or(HeaderValue::from_static(""))
}

fn version(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2.0",
        Version::HTTP_3 => "HTTP/3.0",
        _ => "HTTP/1.1",
    }
}
