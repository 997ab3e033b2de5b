//! HTTP/2 from the client's end: many exchanges at one time on a connection to a server.
//!
//! A task of its own drives each connection; exchanges are polled by whoever has them. An exchange is used as one of
//! [HTTP/1.1](super::h1::client::Exchange) is.

use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};

use ::h2::client::{Builder, ResponseFuture, SendRequest};
use ::h2::{Error, Ping, PingPong, Reason, RecvStream, SendStream};
use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, SEC_WEBSOCKET_ACCEPT, TE, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Mutex;
use tokio_util::task::TaskTracker;

use super::h1::client::Head;
use super::{BodyFault, Frame, Length, Unanswered};

mod websocket;

pub use websocket::Stream;

/// A connection to a server, shared by all who have a clone.
#[derive(Clone)]
pub struct Connection {
    send: SendRequest<Bytes>,
    /// Until the server has answered for the first time.
    unheard: Arc<Mutex<Option<PingPong>>>,
    load: Load,
    is_secure: bool,
}

impl Connection {
    /// Speaks HTTP/2 on a stream, which was agreed (ALPN) or is taken for granted. The task that drives the connection
    /// ends when the last clone and the last exchange are dropped, or the server closes.
    ///
    /// # Errors
    /// The stream is broken.
    pub async fn start<IO>(io: IO, is_secure: bool, load: Load, tasks: &TaskTracker) -> io::Result<Self>
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (send, mut connection) = Builder::new()
            .enable_push(false)
            .initial_window_size(WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(HEAD)
            .max_send_buffer_size(SEND_BUFFER)
            .handshake::<_, Bytes>(io)
            .await
            .map_err(|fault| fault.into_io().unwrap_or_else(|| io::ErrorKind::InvalidData.into()))?;
        let unheard = Arc::new(Mutex::new(connection.ping_pong()));
        let driven = load.clone();
        tasks.spawn(async move {
            // Whoever has an exchange learns of the fault there.
            let _ended = connection.await;
            driven.retire();
        });
        Ok(Self {
            send,
            unheard,
            load,
            is_secure,
        })
    }

    /// Whether the server takes WebSockets on its streams (RFC 8441). Waits until it has said what it does: that comes
    /// before its answer to anything, so it is asked for a sign of life.
    ///
    /// Cancel-safe.
    pub async fn takes_websockets(&self) -> bool {
        let mut unheard = self.unheard.lock().await;
        if let Some(ping) = &mut *unheard {
            // Fails if whoever was here before did not wait for the answer, which comes all the same.
            let _under_way = ping.send_ping(Ping::opaque());
            let _heard = poll_fn(|cx| ping.poll_pong(cx)).await;
            *unheard = None;
        }
        self.send.is_extended_connect_protocol_enabled()
    }

    /// Whether an exchange can begin, as far as that is known: the server may be about to close.
    pub fn is_open(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        !self.load.is_retired() && !matches!(self.send.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// How many exchanges may go on at one time.
    pub fn allowed(&self) -> usize {
        self.send.current_max_send_streams().min(EXCHANGES)
    }

    /// Begins an exchange: `request`, whose body is as long as `length`. Nothing is sent before the exchange is polled.
    ///
    /// What HTTP/2 has no place for is left out of the fields, and `Host` becomes the authority. A request for a WebSocket,
    /// as HTTP/1.1 has it, is asked as HTTP/2 has it; a server that agrees is heard to say `101`. `None`: there is no `Host`
    /// that could be sent.
    pub fn ask(self, request: &Request<()>, length: Length, place: Place) -> Option<Exchange> {
        let accept = websocket::accept_of(request);
        let mut request = head_of(request, length, self.is_secure)?;
        if accept.is_some() {
            websocket::connect(&mut request);
        }
        Some(Exchange {
            is_head: request.method() == Method::HEAD,
            sending: Sending::Waiting {
                send: self.send,
                request: Box::new(request),
                has_body: length != Length::NONE || accept.is_some(),
            },
            accept,
            left: match length {
                Length::Exact(length) => Some(length),
                Length::Unknown => None,
            },
            data: Bytes::new(),
            trailers: None,
            queued: Queued::Part,
            response: None,
            body: None,
            place,
        })
    }
}

/// How busy a connection is; known before the connection has come about.
#[derive(Clone, Debug)]
pub struct Load(Arc<Count>);

#[derive(Debug)]
struct Count {
    /// Exchanges that have not ended.
    exchanges: AtomicUsize,
    /// It takes no more of them.
    retired: AtomicBool,
    created: Instant,
    /// Milliseconds from then to the beginning of the last exchange.
    used: AtomicU64,
}

impl Load {
    /// That of a connection to be.
    pub fn new(now: Instant) -> Self {
        Self(Arc::new(Count {
            exchanges: AtomicUsize::new(0),
            retired: AtomicBool::new(false),
            created: now,
            used: AtomicU64::new(0),
        }))
    }

    /// Counts an exchange that is about to begin.
    pub fn reserve(&self, now: Instant) -> Place {
        let used = now.saturating_duration_since(self.0.created).as_millis() as u64;
        self.0.exchanges.fetch_add(1, Ordering::Relaxed);
        self.0.used.store(used, Ordering::Relaxed);
        Place(self.clone())
    }

    /// Exchanges that go on, or are about to begin.
    pub fn exchanges(&self) -> usize {
        self.0.exchanges.load(Ordering::Relaxed)
    }

    /// Begins no more exchanges.
    pub fn retire(&self) {
        self.0.retired.store(true, Ordering::Relaxed);
    }

    /// Whether no more exchanges are to begin.
    pub fn is_retired(&self) -> bool {
        self.0.retired.load(Ordering::Relaxed)
    }

    /// Whether nothing was asked for as long as `limit`.
    pub fn is_idle(&self, now: Instant, limit: Duration) -> bool {
        let used = self.0.created + Duration::from_millis(self.0.used.load(Ordering::Relaxed));
        self.exchanges() == 0 && now.saturating_duration_since(used) >= limit
    }
}

/// Takes part in the load of a connection.
#[derive(Debug)]
pub struct Place(Load);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.exchanges.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One exchange. Dropped before its end, it resets its stream.
pub struct Exchange {
    is_head: bool,
    sending: Sending,
    /// Of a request for a WebSocket: what its client is to be shown.
    accept: Option<HeaderValue>,
    /// What is still to come of a body whose length is known.
    left: Option<u64>,
    /// A part of the body that has not been sent.
    data: Bytes,
    trailers: Option<HeaderMap>,
    queued: Queued,
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    place: Place,
}

enum Sending {
    /// The head waits for the server to allow another stream.
    Waiting {
        send: SendRequest<Bytes>,
        request: Box<Request<()>>,
        has_body: bool,
    },
    Body(SendStream<Bytes>),
    Done,
    Broken,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Queued {
    Part,
    /// The end of the body is behind what waits.
    End,
}

impl Exchange {
    /// As for [HTTP/1.1](super::h1::client::Exchange::poll_ready).
    ///
    /// # Errors
    /// The server reads no more. Its answer may still come.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_sent(cx)
    }

    /// Takes the next part of the body.
    pub fn data(&mut self, data: Bytes) {
        debug_assert!(self.data.is_empty(), "asked whether it is ready");
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(data.len() as u64) else {
                self.break_off();
                return;
            };
            *left = rest;
            if rest == 0 {
                self.queued = Queued::End;
            }
        }
        self.data = data;
    }

    /// Takes the end of the body. May follow [`data`](Self::data) at once, and is sent with it then.
    pub fn end(&mut self, trailers: Option<&HeaderMap>) {
        if self.accept.is_some() {
            // What has no body in HTTP/1.1 begins here with its head.
            return;
        }
        if self.left.is_some_and(|left| left > 0) {
            self.break_off();
            return;
        }
        if !matches!(self.sending, Sending::Done) {
            self.trailers = trailers.cloned();
            self.queued = Queued::End;
        }
    }

    /// Sends what was taken, as far as the server has room for it.
    ///
    /// # Errors
    /// The server reads no more. Its answer may still come.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.sending {
                Sending::Waiting { .. } => ready!(self.poll_begin(cx))?,
                Sending::Body(_) => {
                    if let Err(fault) = ready!(self.poll_body(cx)) {
                        self.sending = Sending::Broken;
                        return Poll::Ready(Err(fault));
                    }
                    return Poll::Ready(Ok(()));
                }
                Sending::Done => return Poll::Ready(Ok(())),
                Sending::Broken => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
            }
        }
    }

    /// Whether some of the request may have reached the server.
    pub fn began(&self) -> bool {
        !matches!(self.sending, Sending::Waiting { .. })
    }

    /// As for [HTTP/1.1](super::h1::client::Exchange::poll_head).
    ///
    /// # Errors
    /// There will be none. The exchange is over.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Unanswered>> {
        let Some(response) = &mut self.response else {
            return match &self.sending {
                // The task is woken when the request goes out.
                Sending::Waiting { .. } => Poll::Pending,
                Sending::Body(_) | Sending::Done | Sending::Broken => Poll::Ready(Err(Unanswered::Refused)),
            };
        };
        if let Poll::Ready(Some(interim)) = response.poll_informational(cx) {
            return Poll::Ready(interim.map_err(|fault| unanswered(&fault)).map(|response| Head {
                response,
                length: Length::NONE,
            }));
        }
        let (mut head, body) = match ready!(Pin::new(response).poll(cx)) {
            Ok(response) => response.into_parts(),
            Err(fault) => return Poll::Ready(Err(unanswered(&fault))),
        };
        self.response = None;
        if let Some(accept) = self.accept.as_ref().filter(|_| head.status.is_success()) {
            head.status = StatusCode::SWITCHING_PROTOCOLS;
            head.headers.insert(SEC_WEBSOCKET_ACCEPT, accept.clone());
        }
        let response = Response::from_parts(head, ());
        let status = response.status();
        let switches = status == StatusCode::SWITCHING_PROTOCOLS;
        let bodiless =
            self.is_head || switches || status == StatusCode::NO_CONTENT || status == StatusCode::NOT_MODIFIED;
        let length = match length_of(response.headers()) {
            _ if bodiless || body.is_end_stream() => Length::NONE,
            Some(length) => Length::Exact(length),
            None => Length::Unknown,
        };
        self.body = Some(body);
        Poll::Ready(Ok(Head { response, length }))
    }

    /// The next frame of the answer's body; `None` after the last.
    ///
    /// # Errors
    /// The rest will not come.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(None);
        };
        while let Some(data) = ready!(body.poll_data(cx)) {
            let Ok(data) = data else {
                return Poll::Ready(Some(Err(BodyFault::BrokeOff)));
            };
            // What is handed on is room for more: there is never more than the window of it.
            let _closed = body.flow_control().release_capacity(data.len());
            if !data.is_empty() {
                return Poll::Ready(Some(Ok(Frame::Data(data))));
            }
        }
        let trailers = ready!(body.poll_trailers(cx));
        self.body = None;
        match trailers {
            Ok(Some(trailers)) => Poll::Ready(Some(Ok(Frame::Trailers(trailers)))),
            Ok(None) => Poll::Ready(None),
            Err(_) => Poll::Ready(Some(Err(BodyFault::BrokeOff))),
        }
    }

    /// Whether no more data will come, as far as that is known.
    pub fn is_over(&self) -> bool {
        self.body.as_ref().is_none_or(RecvStream::is_end_stream)
    }

    /// The stream of a WebSocket to which the server has agreed; `None` if it has not.
    pub fn upgrade(self) -> Option<Stream> {
        let (Some(_), Sending::Body(out), Some(incoming)) = (self.accept, self.sending, self.body) else {
            return None;
        };
        Some(Stream {
            out,
            incoming,
            waiting: Bytes::new(),
            place: self.place,
        })
    }

    /// Begins no more exchanges on this one's connection.
    pub fn retire(&self) {
        self.place.0.retire();
    }

    fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Sending::Waiting {
            send,
            request,
            has_body,
        } = &mut self.sending
        else {
            return Poll::Ready(Ok(()));
        };
        if ready!(send.poll_ready(cx)).is_err() {
            self.break_off();
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let request = std::mem::replace(&mut **request, Request::new(()));
        let has_body = *has_body;
        match send.send_request(request, !has_body) {
            Ok((response, stream)) => {
                self.response = Some(response);
                self.sending = if has_body { Sending::Body(stream) } else { Sending::Done };
                Poll::Ready(Ok(()))
            }
            Err(_) => {
                self.break_off();
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }

    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Sending::Body(stream) = &mut self.sending else {
            return Poll::Ready(Ok(()));
        };
        let ends = self.queued == Queued::End;
        while !self.data.is_empty() {
            stream.reserve_capacity(self.data.len());
            let room = stream.capacity().min(self.data.len());
            if room == 0 {
                match ready!(stream.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    Some(Err(_)) | None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
                }
            }
            let part = self.data.split_to(room);
            let is_last = ends && self.data.is_empty() && self.trailers.is_none();
            stream.send_data(part, is_last).map_err(broken)?;
            if is_last {
                self.sending = Sending::Done;
                return Poll::Ready(Ok(()));
            }
        }
        if ends {
            match self.trailers.take() {
                Some(trailers) => stream.send_trailers(trailers).map_err(broken)?,
                None => stream.send_data(Bytes::new(), true).map_err(broken)?,
            }
            self.sending = Sending::Done;
        }
        Poll::Ready(Ok(()))
    }

    fn break_off(&mut self) {
        if let Sending::Body(stream) = &mut self.sending {
            stream.send_reset(Reason::CANCEL);
        }
        self.sending = Sending::Broken;
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("load", &self.load)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange")
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

fn broken(_fault: Error) -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

fn unanswered(fault: &Error) -> Unanswered {
    let untouched = fault.reason() == Some(Reason::REFUSED_STREAM)
        || (fault.is_go_away() && fault.is_remote() && fault.reason() == Some(Reason::NO_ERROR));
    if untouched {
        Unanswered::Refused
    } else if fault.is_library() {
        // What the other side sent was against the protocol.
        Unanswered::Malformed
    } else {
        Unanswered::Closed
    }
}

/// The head as HTTP/2 has it.
fn head_of(request: &Request<()>, length: Length, is_secure: bool) -> Option<Request<()>> {
    let host = request.headers().get(HOST)?;
    let mut uri = Uri::default().into_parts();
    uri.scheme = Some(if is_secure { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(Authority::try_from(host.as_bytes()).ok()?);
    uri.path_and_query = Some(match request.uri().path_and_query() {
        Some(target) => target.clone(),
        None => PathAndQuery::from_static("/"),
    });
    let mut headers = request.headers().clone();
    for name in [
        HOST,
        CONNECTION,
        TRANSFER_ENCODING,
        UPGRADE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
    ] {
        headers.remove(name);
    }
    if headers.get(TE).is_some_and(|te| te != "trailers") {
        headers.remove(TE);
    }
    match length {
        Length::Exact(length) if length > 0 => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        Length::Exact(_) => {}
        Length::Unknown => {
            headers.remove(CONTENT_LENGTH);
        }
    }
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = Uri::from_parts(uri).ok()?;
    *head.version_mut() = Version::HTTP_2;
    *head.headers_mut() = headers;
    Some(head)
}

fn length_of(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// What a server may send of one body before it is read here, and of all bodies: as much for each exchange.
const WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = WINDOW * EXCHANGES as u32;
/// The largest frame.
const FRAME: u32 = 64 * 1024;
/// The largest head.
const HEAD: u32 = 64 * 1024;
/// What may wait here for one exchange.
const SEND_BUFFER: usize = 256 * 1024;
/// Exchanges at one time, even if the server allows more.
pub const EXCHANGES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_connection_is_idle_from_the_end_of_its_last_exchange_at_the_earliest() {
        let start = clock::now();
        let (load, limit) = (Load::new(start), Duration::from_secs(55));
        assert!(!load.is_idle(start, limit) && load.is_idle(start + limit, limit));
        let place = load.reserve(start + limit);
        assert_eq!(load.exchanges(), 1);
        assert!(!load.is_idle(start + 9 * limit, limit));
        drop(place);
        assert!(!load.is_idle(start + limit, limit) && load.is_idle(start + 2 * limit, limit));
    }

    #[test]
    fn a_head_has_only_what_http2_has_a_place_for() {
        let request = Request::post("/a?b")
            .header("host", "shop.test:8443")
            .header("connection", "keep-alive")
            .header("keep-alive", "5")
            .header("transfer-encoding", "chunked")
            .header("te", "gzip, trailers")
            .header("content-length", "7")
            .header("x-own", "1")
            .body(())
            .unwrap();
        let head = head_of(&request, Length::Unknown, true).unwrap();
        assert_eq!(head.uri(), "https://shop.test:8443/a?b");
        let names: Vec<_> = head.headers().keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-own"]);
        let head = head_of(&request, Length::Exact(9), false).unwrap();
        assert_eq!(head.headers()["content-length"], "9");
        assert!(head_of(&Request::new(()), Length::NONE, true).is_none());
    }
}
