//! Whether targets are well: each is asked now and then what a healthy one answers as expected, or where nothing is
//! understood of what passes, whether it takes a connection.
//!
//! A probe goes the way that requests go: same TLS, same checks of the certificate. It follows no redirect and brings no
//! credentials. One series of probes serves every pool that has the target with the same backend.
//!
//! Slow probes alone never take a target away that users see working: one that gave a user a good answer within the
//! last interval is not failed for a probe that ran out of time. Whatever else a probe finds counts, and so does a
//! timeout of a target that no user was sent to.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use http::{Request, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use super::balance::Dice;
use super::pool::{Condition, TargetId};
use crate::clock;
use crate::config::web::{self, Backend, BackendHost, BackendVersion, ProbeProtocol};

mod check;
mod health;

pub(super) use check::Check;
use health::Noted;
pub use health::ProbeResult;

/// Makes connections to targets, as requests have them.
pub trait Reach: fmt::Debug + Send + Sync {
    /// Connects to `way.address` within the backend's limit, with TLS if it has that. Cancel-safe: a connection that is not
    /// complete is given up.
    fn reach<'a>(&'a self, way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>>;
}

/// Where a probe goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// The address to connect to.
    pub address: SocketAddr,
    /// `Host` of the probe, from which the name for TLS follows as for requests.
    pub host: String,
    /// The backend's name; `None` is the default one.
    pub backend: Option<String>,
    /// How it speaks.
    pub settings: Arc<Backend>,
}

/// A connection to a target.
#[derive(Debug)]
pub struct Reached {
    /// Its bytes.
    pub io: Box<dyn Stream>,
    /// What was agreed, if TLS was.
    pub tls: Option<TlsFacts>,
}

/// Bytes both ways.
pub trait Stream: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Stream for S {}

/// What was agreed with a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFacts {
    /// The version.
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// When its certificate expires.
    pub not_after: Option<Timestamp>,
}

/// Why no connection came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreached {
    /// Of the closed list of whoever connects.
    pub code: &'static str,
    /// For people.
    pub words: String,
    /// Whether time ran out.
    pub is_timeout: bool,
}

/// What is wrong with a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeFault {
    /// It did not connect, or not answer, in time.
    #[error("no answer in time")]
    Timeout,
    /// No connection, or no TLS, came about.
    #[error("{words}")]
    Unreached {
        /// Of the closed list of whoever connects.
        code: &'static str,
        /// For people.
        words: String,
    },
    /// It closed before it had answered.
    #[error("the target closed before it had answered")]
    Closed,
    /// What it answered is no HTTP.
    #[error("the answer is no HTTP")]
    Malformed,
    /// The status is none of those expected.
    #[error("status {got} is not among those expected ({expected})")]
    Status {
        /// The status.
        got: u16,
        /// As configured.
        expected: String,
    },
    /// The body does not contain what it should.
    #[error("the first {} KiB of the body do not contain the expected text", MOST_BODY / 1024)]
    Body,
}

impl ProbeFault {
    /// The code in log, metric and API.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Unreached { code, .. } => code,
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::Status { .. } => "status_mismatch",
            Self::Body => "body_mismatch",
        }
    }
}

impl From<Unreached> for ProbeFault {
    fn from(unreached: Unreached) -> Self {
        if unreached.is_timeout {
            return Self::Timeout;
        }
        Self::Unreached {
            code: unreached.code,
            words: unreached.words,
        }
    }
}

/// What is asked of a target, and how.
#[derive(Debug)]
pub(super) struct Recipe {
    probe: Arc<web::Probe>,
    way: Way,
    reach: Arc<dyn Reach>,
}

impl Recipe {
    /// That of a target with this host at this address.
    pub(super) fn new(
        probe: Arc<web::Probe>,
        (name, settings): (Option<&str>, Arc<Backend>),
        (host, mut address): (&str, SocketAddr),
        reach: Arc<dyn Reach>,
    ) -> Self {
        let host = host_for(&probe, &settings, host, address);
        address.set_port(probe.port.unwrap_or(address.port()));
        let way = Way {
            address,
            host,
            backend: name.map(str::to_owned),
            settings,
        };
        Self { probe, way, reach }
    }

    /// Whether the same is asked in the same way.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        (&self.probe, &self.way) == (&other.probe, &other.way)
    }

    /// Asks, and says what came of it. Cancel-safe: a probe that is not complete is given up.
    async fn run(&self) -> ProbeResult {
        let began = clock::now();
        let mut tls = None;
        let outcome = timeout(self.probe.timeout, self.ask(&mut tls)).await;
        ProbeResult {
            at: clock::wall(),
            took: clock::now().saturating_duration_since(began),
            address: self.way.address,
            outcome: outcome.unwrap_or(Err(ProbeFault::Timeout)),
            tls: tls.map(Box::new),
            is_excused: false,
        }
    }

    async fn ask(&self, tls: &mut Option<TlsFacts>) -> Result<Option<u16>, ProbeFault> {
        let reached = self.reach.reach(&self.way).await?;
        *tls = reached.tls;
        match (self.probe.protocol, self.way.settings.version) {
            (Some(ProbeProtocol::Tcp), _) | (None, BackendVersion::Bytes) => Ok(None),
            (_, BackendVersion::Http2) => self.ask_http2(reached.io).await.map(Some),
            (_, BackendVersion::Http1 | BackendVersion::Bytes) => self.ask_http1(reached.io).await.map(Some),
        }
    }

    async fn ask_http1(&self, io: Box<dyn Stream>) -> Result<u16, ProbeFault> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.map_err(fault_of)?;
        let request = self.request(&self.probe.path, Version::HTTP_11)?;
        let mut connection = pin!(connection);
        let mut exchange = pin!(async {
            let answer = sender.send_request(request).await.map_err(fault_of)?;
            let status = self.judge_status(answer.status().as_u16())?;
            self.judge_body(answer.into_body()).await?;
            Ok(status)
        });
        tokio::select! {
            biased;
            outcome = &mut exchange => outcome,
            // The connection has ended; what it brought is still to be read.
            _ = &mut connection => exchange.await,
        }
    }

    async fn ask_http2(&self, io: Box<dyn Stream>) -> Result<u16, ProbeFault> {
        let (mut sender, connection) = h2::client::handshake(io).await.map_err(|cause| fault_of_h2(&cause))?;
        let scheme = if self.way.settings.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let uri = format!("{scheme}://{}{}", self.way.host, self.probe.path);
        let request = self.request(&uri, Version::HTTP_2)?.map(|_| ());
        let mut connection = pin!(connection);
        let mut exchange = pin!(async {
            let (answer, _) = sender
                .send_request(request, true)
                .map_err(|cause| fault_of_h2(&cause))?;
            let mut answer = answer.await.map_err(|cause| fault_of_h2(&cause))?;
            let status = self.judge_status(answer.status().as_u16())?;
            let mut search = Search::new(self.probe.body.as_deref());
            while !search.is_over() {
                let Some(data) = answer.body_mut().data().await else {
                    break;
                };
                let data = data.map_err(|cause| fault_of_h2(&cause))?;
                // What is not given back is only missed if more is read.
                let _ = answer.body_mut().flow_control().release_capacity(data.len());
                search.take(&data);
            }
            search.end()?;
            Ok(status)
        });
        tokio::select! {
            biased;
            outcome = &mut exchange => outcome,
            _ = &mut connection => exchange.await,
        }
    }

    fn request(&self, uri: &str, version: Version) -> Result<Request<Empty<Bytes>>, ProbeFault> {
        let request = Request::get(uri)
            .version(version)
            .header(USER_AGENT, AGENT)
            .header(ACCEPT, "*/*");
        let request = if version == Version::HTTP_2 {
            request
        } else {
            request.header(HOST, &self.way.host).header(CONNECTION, "close")
        };
        // Path and host have been checked with the configuration; what no request can carry reaches nobody.
        request.body(Empty::new()).map_err(|cause| ProbeFault::Unreached {
            code: "bad_probe",
            words: cause.to_string(),
        })
    }

    fn judge_status(&self, status: u16) -> Result<u16, ProbeFault> {
        if self.probe.status.iter().any(|range| range.contains(&status)) {
            return Ok(status);
        }
        let range = |range: &std::ops::RangeInclusive<u16>| {
            if range.start() == range.end() {
                range.start().to_string()
            } else {
                format!("{}-{}", range.start(), range.end())
            }
        };
        let expected: Vec<_> = self.probe.status.iter().map(range).collect();
        Err(ProbeFault::Status {
            got: status,
            expected: expected.join(", "),
        })
    }

    async fn judge_body<B>(&self, body: B) -> Result<(), ProbeFault>
    where
        B: Body<Data = Bytes, Error = hyper::Error>,
    {
        let mut search = Search::new(self.probe.body.as_deref());
        let mut body = pin!(body);
        while !search.is_over() {
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        search.take(data);
                    }
                }
                Some(Err(cause)) => return Err(fault_of(cause)),
                None => break,
            }
        }
        search.end()
    }
}

/// A text that is looked for in a body, wherever its pieces are cut.
struct Search<'a> {
    wanted: Option<&'a [u8]>,
    read: Vec<u8>,
}

impl<'a> Search<'a> {
    fn new(wanted: Option<&'a str>) -> Self {
        Self {
            wanted: wanted.map(str::as_bytes).filter(|wanted| !wanted.is_empty()),
            read: Vec::new(),
        }
    }

    fn is_over(&self) -> bool {
        self.wanted.is_none() || self.read.len() >= MOST_BODY
    }

    fn take(&mut self, data: &[u8]) {
        let Some(wanted) = self.wanted else {
            return;
        };
        let from = self.read.len().saturating_sub(wanted.len() - 1);
        let room = MOST_BODY - self.read.len();
        self.read.extend_from_slice(&data[..data.len().min(room)]);
        if self.read[from..].windows(wanted.len()).any(|part| part == wanted) {
            self.wanted = None;
        }
    }

    fn end(&self) -> Result<(), ProbeFault> {
        if self.wanted.is_none() {
            Ok(())
        } else {
            Err(ProbeFault::Body)
        }
    }
}

/// Probes a target again and again: soon after the beginning and whenever something else is to be asked, and then from
/// interval to interval. Ends when nobody sends recipes any more. Cancel-safe: a probe that is not complete is given up.
pub(super) async fn keep_watch(
    id: TargetId,
    check: Arc<Check>,
    mut recipes: watch::Receiver<Arc<Recipe>>,
    mut dice: Dice,
) {
    let mut part = |of: Duration| of.mul_f64(dice.below(1000) as f64 / 1000.0);
    let first = recipes.borrow_and_update().probe.interval;
    let mut next = Instant::now() + part(first.min(SOON));
    // The first and the second are apart by chance, so that probes of many targets spread over the interval.
    let mut early = part(first / 2);
    loop {
        tokio::select! {
            () = sleep_until(next) => {}
            changed = recipes.changed() => {
                if changed.is_err() {
                    return;
                }
                next = Instant::now() + part(SOON);
                continue;
            }
        }
        let recipe = recipes.borrow_and_update().clone();
        let began = Instant::now();
        let result = recipe.run().await;
        judge(&id, &check, &recipe.probe, result);
        next = began + recipe.probe.interval.saturating_sub(early);
        early = Duration::ZERO;
    }
}

/// Takes in a result, and tells the log if it changed the target's condition.
fn judge(id: &TargetId, check: &Check, probe: &web::Probe, mut result: ProbeResult) {
    let now = clock::now();
    if result.outcome == Err(ProbeFault::Timeout) {
        result.is_excused = now
            .checked_sub(probe.interval)
            .is_none_or(|then| check.has_answered_since(then));
    }
    let outcome = result.outcome.clone();
    if check.note(result, probe.threshold, now) == Noted::Same {
        return;
    }
    match (check.condition(), outcome) {
        (Condition::Unhealthy, Err(fault)) => {
            tracing::warn!(target = %id, reason = fault.code(), step = "upstream", "a target is unhealthy: {fault}");
        }
        (condition, _) => tracing::info!(target = %id, step = "upstream", "a target is {}", condition.code()),
    }
}

/// `Host` of a probe: its own, or the backend's, or the target's.
fn host_for(probe: &web::Probe, backend: &Backend, target: &str, address: SocketAddr) -> String {
    if let Some(host) = &probe.host {
        return host.clone();
    }
    match &backend.host {
        BackendHost::Name(name) => name.clone(),
        BackendHost::Client | BackendHost::Target => {
            let host = if target.contains(':') {
                format!("[{target}]")
            } else {
                target.to_owned()
            };
            let usual = if backend.tls.is_some() { 443 } else { 80 };
            if address.port() == usual {
                host
            } else {
                format!("{host}:{}", address.port())
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn fault_of(cause: hyper::Error) -> ProbeFault {
    if cause.is_parse() {
        ProbeFault::Malformed
    } else {
        ProbeFault::Closed
    }
}

fn fault_of_h2(cause: &h2::Error) -> ProbeFault {
    if cause.is_io() {
        ProbeFault::Closed
    } else {
        ProbeFault::Malformed
    }
}

/// How probes call themselves.
const AGENT: &str = concat!("Portcullis/", env!("CARGO_PKG_VERSION"), " (probe)");
/// How much of a body is looked at.
const MOST_BODY: usize = 64 * 1024;
/// The longest wait for the first probe.
const SOON: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests;
