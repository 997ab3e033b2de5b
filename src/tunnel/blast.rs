//! Blast: a WebSocket of the client, continued to the desktop's agent.
//!
//! The gateway leads the handshake: it asks the agent with the client's request ([`ask`]), and only an agent that answers
//! `101` is joined to the client ([`Joined`]). Sub-protocol and extensions are the agent's choice. From then on bytes pass
//! as they are; of the agent's, only the bounds of frames are looked at, so that a session that ends can be closed in
//! order.
//!
//! A connection lives as long as its route, however idle it is.

mod handshake;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, SEC_WEBSOCKET_VERSION};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::flow::{Candidate, Flows};
use super::relay::Relay;
use crate::config::Agent;
use crate::fault::CloseReason;
use crate::grant::{Granted, Route};
use crate::listen::{Facts, Prefixed};
use crate::upstream::{Agents, DialFault, Upstream};
use crate::wire::websocket::{self, Frames};

/// An agent that has agreed, waiting for its client.
#[derive(Debug)]
pub struct Joined {
    granted: Granted,
    upstream: Prefixed<Upstream>,
    /// The head of the answer to the client.
    head: Vec<u8>,
    /// Lets the client's datagrams through for as long.
    candidate: Option<Candidate>,
}

/// Why an agent was not joined to its client.
#[derive(Debug)]
pub enum Unjoined {
    /// It was not reached.
    Unreachable(DialFault),
    /// It was reached, and did not answer in time or in HTTP.
    Silent,
    /// It answered something else than `101`: this, to be passed on.
    Declined(Response<Bytes>),
}

/// Dials the agent of `route` and asks it for the WebSocket that the client wants; `path` and query are the agent's own.
///
/// # Errors
/// [`Unjoined`]; the connection to the agent is closed then, and the client has still to be answered.
///
/// # Cancel safety
/// Dropped, it gives the connection to the agent up.
pub async fn ask(
    granted: Granted,
    route: &Route,
    (headers, path): (&HeaderMap, &str),
    (agents, agent): (&Agents, &Agent),
) -> Result<Joined, Unjoined> {
    let request = handshake::request(headers, path).ok_or(Unjoined::Silent)?;
    let upstream = agents
        .connect(route.target(), agent, DIAL_LIMIT)
        .await
        .map_err(Unjoined::Unreachable)?;
    match timeout(ANSWER_LIMIT, exchange(upstream, request)).await {
        Ok(Ok(Answer::Agreed { head, upstream })) => Ok(Joined {
            granted,
            upstream,
            head,
            candidate: None,
        }),
        Ok(Ok(Answer::Declined(response))) => Err(Unjoined::Declined(response)),
        Ok(Err(cause)) => {
            tracing::debug!(target_address = %route.target(), %cause, step = "upstream", "no answer of an agent");
            Err(Unjoined::Silent)
        }
        Err(_) => Err(Unjoined::Silent),
    }
}

impl Joined {
    /// Lets the client's datagrams go to the same agent for as long as the connection is open.
    pub fn with_datagrams(mut self, flows: &Arc<Flows>, facts: &Facts) -> Self {
        let agent = self.upstream.get_ref().address().ok();
        self.candidate = agent.and_then(|agent| flows.candidate(&self.granted, facts, agent));
        self
    }

    /// Answers the client and passes bytes until the end, of which it says why. `early` is what the client sent after its
    /// request.
    pub async fn go_on<IO>(self, io: &mut IO, early: Bytes) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let Self {
            granted,
            mut upstream,
            head,
            candidate: _candidate,
        } = self;
        let Some(route) = granted.route() else {
            return CloseReason::Internal;
        };
        let written = async { io.write_all(&head).await.and(io.flush().await) };
        if written.await.is_err() {
            return CloseReason::ClientClosed;
        }
        drop(head);
        let relay = Relay {
            grant: granted.grant(),
            route,
            idle: None,
        };
        let mut frames = Frames::default();
        let mut client = Prefixed::new(early, &mut *io);
        let reason = relay
            .run_watched(&mut client, &mut upstream, |bytes| frames.pass(bytes))
            .await;
        if ends_the_session(reason) && frames.can_close() {
            // A client that does not even take this is cut.
            let _ = timeout(GOODBYE, websocket::goodbye(io, reason.words())).await;
        }
        reason
    }
}

/// Whether neither side has closed: then the client is told.
fn ends_the_session(reason: CloseReason) -> bool {
    !matches!(
        reason,
        CloseReason::Completed | CloseReason::ClientClosed | CloseReason::UpstreamClosed
    )
}

/// What an agent answered.
enum Answer {
    Agreed {
        head: Vec<u8>,
        upstream: Prefixed<Upstream>,
    },
    Declined(Response<Bytes>),
}

/// Sends the request and reads the answer: whole, unless it is `101`.
async fn exchange(upstream: Upstream, request: Request<Empty<Bytes>>) -> Result<Answer, hyper::Error> {
    let (mut sender, mut connection) = http1::Builder::new()
        .title_case_headers(true)
        .max_buf_size(ANSWER_HEAD_MAX)
        .handshake(TokioIo::new(upstream))
        .await?;
    let mut over = false;
    let mut sent = pin!(sender.send_request(request));
    let response = poll_fn(|cx| {
        // Its end tells the request, too.
        over = over || connection.poll_without_shutdown(cx).is_ready();
        sent.as_mut().poll(cx)
    })
    .await?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        if !over {
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await?;
        }
        let parts = connection.into_parts();
        return Ok(Answer::Agreed {
            head: handshake::head(response.headers()),
            upstream: Prefixed::new(parts.read_buf, parts.io.into_inner()),
        });
    }
    let mut read = pin!(declined(response));
    let answer = poll_fn(|cx| {
        over = over || connection.poll_without_shutdown(cx).is_ready();
        read.as_mut().poll(cx).map(Answer::Declined)
    });
    Ok(answer.await)
}

/// An answer that is not `101`, as it is passed on: its status, a body within bounds, and hardly any of its headers.
async fn declined(response: Response<Incoming>) -> Response<Bytes> {
    let (parts, body) = response.into_parts();
    // A body that breaks off or is too long is left out: the status says enough.
    let body = Limited::new(body, ANSWER_BODY_MAX).collect().await;
    let mut passed = Response::new(body.map(|body| body.to_bytes()).unwrap_or_default());
    *passed.status_mut() = parts.status;
    for name in [CONTENT_TYPE, RETRY_AFTER, SEC_WEBSOCKET_VERSION] {
        if let Some(value) = parts.headers.get(&name) {
            passed.headers_mut().insert(name, value.clone());
        }
    }
    passed
}

/// How long connecting to an agent may take, with TLS.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
/// How long its answer may take after that.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// The largest answer of an agent that declines, in bytes.
const ANSWER_HEAD_MAX: usize = 16 * 1024;
const ANSWER_BODY_MAX: usize = 16 * 1024;
/// How long a client has to take the last frame.
const GOODBYE: Duration = Duration::from_secs(1);
