//! HTTP/2 on one connection: its requests are answered side by side, in the connection's own task.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::Stream as _;
use futures_util::stream::FuturesUnordered;
use h2::ext::Protocol;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, SEC_WEBSOCKET_KEY, UPGRADE};
use http::{HeaderValue, Method, Request, Version};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use self::farewell::Unhurried;
use self::stream::{Received, Sent};
use super::http1::{Next, Respond};
use super::upgraded;
use crate::clock;
use crate::fault::{CloseReason, WebFault};
use crate::wire::NoBody;
use crate::wire::boxed::boxed;
use crate::wire::closing::Closing;
use crate::wire::h1::head::{HEAD_MAX, HeadFault, check_host};
use crate::wire::timer::Timer;

mod farewell;
mod stream;

/// Serves requests until a side ends the connection; says why it ended. `idle` is how long it may be without a request,
/// and how long it may take to begin.
///
/// When the drain begins the client is told, and what runs is answered to its end; so is what it asks before it can have
/// heard of that. A connection that comes later is told at once.
pub(super) async fn serve<IO, R>(io: IO, idle: Duration, respond: R, draining: &CancellationToken) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
    R: Respond,
{
    let holds = Arc::new(AtomicBool::new(false));
    let io = Unhurried::new(io, holds.clone());
    let handshake = Builder::new()
        .max_concurrent_streams(STREAMS)
        // More than is answered: what the library refuses by itself, nobody hears of.
        .max_header_list_size(2 * HEAD_MAX as u32)
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER)
        .enable_connect_protocol()
        .handshake::<_, Bytes>(io);
    let connection = match timeout(idle, handshake).await {
        Ok(Ok(connection)) => connection,
        Ok(Err(fault)) => return reason_of(&fault),
        Err(_) => return CloseReason::Timeout,
    };
    let closing = Arc::new(Closing::default());
    let ends_it = Waker::from(closing.clone());
    let mut drained = pin!(draining.cancelled());
    if drained.as_mut().poll(&mut Context::from_waker(&ends_it)).is_ready() {
        closing.begin();
    }
    let nudge = Arc::new(Nudge::default());
    let mut exchanges = Exchanges {
        connection,
        waker: nudge.clone().into(),
        nudge,
        open: FuturesUnordered::new(),
        // Boxed once, or else it would be copied from place to place until it is in the list.
        exchange: |request, answer| boxed(|| exchange(request, answer, &respond)),
        closing: &closing,
        told: None,
        holds,
        timer: Timer::default(),
        idle,
        idle_since: clock::now(),
        served: false,
    };
    poll_fn(|cx| exchanges.poll(cx)).await
}

/// A connection and its open exchanges.
struct Exchanges<'a, IO, F, R> {
    connection: Connection<Unhurried<IO>, Bytes>,
    /// What the connection is polled with.
    waker: Waker,
    nudge: Arc<Nudge>,
    open: FuturesUnordered<R>,
    exchange: F,
    closing: &'a Closing,
    /// When the client was told that there is to be no further request.
    told: Option<Instant>,
    /// Whether it is not told yet which request was the last.
    holds: Arc<AtomicBool>,
    timer: Timer,
    idle: Duration,
    idle_since: Instant,
    /// Whether there was a request.
    served: bool,
}

impl<IO, F, R> Exchanges<'_, IO, F, R>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<RecvStream>, SendResponse<Bytes>) -> R,
    R: Future<Output = ()>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        self.nudge.set_task(cx.waker());
        loop {
            // The exchanges first: what they write goes out with the connection's turn.
            self.nudge.begin();
            let was_open = !self.open.is_empty();
            while let Poll::Ready(Some(())) = Pin::new(&mut self.open).poll_next(cx) {}
            if was_open && self.open.is_empty() {
                self.idle_since = clock::now();
            }
            if self.closing.is_due(cx) && self.told.is_none() {
                self.told = Some(clock::now());
                self.holds.store(true, Ordering::Release);
                self.connection.graceful_shutdown();
            }
            self.nudge.end();
            match self.connection.poll_accept(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(Some(Ok((request, answer)))) => {
                    self.served = true;
                    self.open.push((self.exchange)(request, answer));
                }
                // Whoever goes between two requests owes no goodbye.
                Poll::Ready(Some(Err(fault))) if fault.is_io() && self.open.is_empty() && self.served => {
                    return Poll::Ready(CloseReason::Completed);
                }
                Poll::Ready(Some(Err(fault))) => return Poll::Ready(reason_of(&fault)),
                Poll::Ready(None) => return Poll::Ready(CloseReason::Completed),
                Poll::Pending => break,
            }
        }
        if let Some(told) = self.told
            && self.holds.load(Ordering::Acquire)
        {
            if self.timer.poll(told + CROSSING, cx).is_ready() {
                self.holds.store(false, Ordering::Release);
                self.idle_since = clock::now();
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        }
        if !self.open.is_empty() {
            return Poll::Pending;
        }
        let patience = if self.told.is_some() { LAST_WORDS } else { self.idle };
        if self.timer.poll(self.idle_since + patience, cx).is_pending() {
            return Poll::Pending;
        }
        if self.told.is_some() {
            return Poll::Ready(if self.served {
                CloseReason::Completed
            } else {
                CloseReason::Timeout
            });
        }
        self.closing.begin();
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Wakes the task of a connection, but not for what its own exchanges write while they are polled: the connection has
/// its turn right after them, and a second one would find nothing to do.
#[derive(Debug, Default)]
struct Nudge {
    /// Whether the connection's turn is still to come.
    is_coming: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Nudge {
    fn set_task(&self, waker: &Waker) {
        let mut task = self.task.lock();
        if !task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }

    /// From here on the connection's turn is still to come.
    fn begin(&self) {
        self.is_coming.store(true, Ordering::Relaxed);
    }

    /// The connection's turn begins, which sees all that anybody has woken it for.
    fn end(&self) {
        self.is_coming.swap(false, Ordering::AcqRel);
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Written even if it is left as it is, so that `end` comes after what is told here.
        let told = self
            .is_coming
            .compare_exchange(true, true, Ordering::AcqRel, Ordering::Acquire);
        if told.is_err() {
            let task = self.task.lock().clone();
            if let Some(task) = task {
                task.wake();
            }
        }
    }
}

/// One request, from its head to the last byte of its answer.
async fn exchange<R: Respond>(request: Request<RecvStream>, answer: SendResponse<Bytes>, respond: &R) {
    let (head, body) = request.into_parts();
    let mut request = Request::from_parts(head, ());
    let is_head = request.method() == Method::HEAD;
    let mut answer = Sent::new(answer, is_head);
    let socket = as_websocket(&mut request);
    let body = Received::new(body, length_of(&request), &answer, &request);
    if let Some(fault) = unfit(&request) {
        drop(body);
        respond.refuse(fault, &mut answer).await;
        return answer.linger().await;
    }
    let (next, kept) = if socket {
        (respond.respond(request, NoBody, &mut answer).await, Some(body))
    } else {
        (respond.respond(request, body, &mut answer).await, None)
    };
    match (next, kept) {
        (Next::Leave(to), Some(body)) => {
            let reason = Box::pin(upgraded::over_stream(to, body, answer)).await;
            tracing::debug!(reason = reason.code(), "stream of HTTP/2 that had left HTTP closed");
        }
        (Next::NeedsHttp1 | Next::Leave(_), _) => answer.reset(Reason::HTTP_1_1_REQUIRED),
        // What is not answered is reset.
        (Next::KeepOpen | Next::Close(_), kept) => {
            drop(kept);
            answer.linger().await;
        }
    }
}

/// Gives a request for a WebSocket (RFC 8441) the form that it has in HTTP/1.1, under which all others know it; `false`
/// if it is none.
fn as_websocket(request: &mut Request<()>) -> bool {
    let protocol = request.extensions().get::<Protocol>();
    if request.method() != Method::CONNECT || protocol.is_none_or(|protocol| protocol.as_str() != "websocket") {
        return false;
    }
    *request.method_mut() = Method::GET;
    *request.version_mut() = Version::HTTP_11;
    let authority = request
        .uri()
        .authority()
        .map(|authority| HeaderValue::from_str(authority.as_str()));
    let headers = request.headers_mut();
    if let Some(Ok(host)) = authority
        && !headers.contains_key(HOST)
    {
        headers.insert(HOST, host);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.remove(CONTENT_LENGTH);
    // The answer to it is seen by nobody: each side of this node has its own way to agree.
    headers.insert(SEC_WEBSOCKET_KEY, HeaderValue::from_static("AAAAAAAAAAAAAAAAAAAAAA=="));
    true
}

/// Why a request of HTTP/2 or HTTP/3 goes no further, which the library has let through.
pub(super) fn unfit(request: &Request<()>) -> Option<WebFault> {
    // Not the path, which is "/" where there is none.
    let target = request.uri().path_and_query().map_or("", |target| target.as_str());
    let is_path = target.starts_with('/') || (target == "*" && request.method() == Method::OPTIONS);
    let hosts = request.headers().get_all(HOST).iter().count();
    if size(request) > HEAD_MAX {
        Some(WebFault::HeadTooLarge)
    } else if request.method() == Method::CONNECT {
        Some(WebFault::InvalidMethod)
    } else if !is_path {
        Some(WebFault::InvalidRequest)
    } else if hosts + usize::from(request.uri().authority().is_some()) == 0 {
        Some(WebFault::InvalidHost)
    } else {
        check_host(request.uri(), Version::HTTP_2, (hosts, request.headers().get(HOST)))
            .err()
            .map(HeadFault::of_request)
    }
}

/// The size of a head as HTTP/2 and HTTP/3 count it (RFC 9113 section 6.5.2), without the fields of the request line.
fn size(request: &Request<()>) -> usize {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter();
    target
        + fields
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum::<usize>()
}

/// The length that a request declares; the library holds it to it.
fn length_of(request: &Request<()>) -> Option<u64> {
    request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn reason_of(fault: &h2::Error) -> CloseReason {
    if fault.is_remote() && fault.reason() == Some(Reason::NO_ERROR) {
        CloseReason::Completed
    } else if fault.is_io() || fault.is_remote() {
        CloseReason::ClientClosed
    } else {
        CloseReason::Malformed
    }
}

/// Exchanges at one time.
const STREAMS: u32 = 128;
/// What a client may send ahead of who reads it: of one body, and of all on a connection, which is what a connection may
/// cost.
const WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// What one exchange may write ahead of its client.
const SEND_BUFFER: usize = 128 * 1024;
/// For what a client asks before it has heard that there is to be no further request.
pub(super) const CROSSING: Duration = Duration::from_secs(1);
/// What a connection without an exchange has to say after it was told that it ends.
const LAST_WORDS: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
