//! The one HTTP exchange that carries the tunnel: a request whose body never ends, and its answer.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HOST, PRAGMA, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::client::endpoint::Endpoint;
use crate::client::http::AGENT;

/// An exchange under way. Dropped, it closes its connection.
pub(in crate::client) struct Exchange {
    local: Option<SocketAddr>,
    out: mpsc::Sender<Bytes>,
    answer: Answer,
    _request: SendRequest<Outgoing>,
    _connection: DropGuard,
}

enum Answer {
    Due(Pin<Box<dyn Future<Output = hyper::Result<Response<Incoming>>> + Send>>),
    Flowing(Incoming),
}

/// Why an exchange brings no more octets.
#[derive(Debug)]
pub(super) enum Finish {
    /// The gateway answered with another status than 200.
    Status(StatusCode),
    /// The connection broke, or the answer ended.
    Broken,
}

impl Exchange {
    /// Sends the head of the request; what the gateway says to it comes with [`next`](Self::next).
    ///
    /// # Errors
    /// The connection broke at once.
    pub(super) async fn open(
        io: TlsStream<TcpStream>,
        endpoint: &Endpoint,
        target: Uri,
        tasks: &TaskTracker,
    ) -> Result<Self, hyper::Error> {
        let local = io.get_ref().0.local_addr().ok();
        let (mut request, connection) = http1::handshake(TokioIo::new(io)).await?;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        tasks.spawn(async move {
            // An end of the connection shows where its octets are awaited.
            let _ = stop.run_until_cancelled(connection).await;
        });
        let (out, body) = mpsc::channel(QUEUE);
        let answer = request.send_request(head(endpoint, target, Outgoing(body)));
        Ok(Self {
            local,
            out,
            answer: Answer::Due(Box::pin(answer)),
            _request: request,
            _connection: guard,
        })
    }

    /// The address of this machine on the connection.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Where chunks are written, one at a time.
    pub(super) fn out(&self) -> &mpsc::Sender<Bytes> {
        &self.out
    }

    /// The next octets of the answer, in any segmentation. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Bytes, Finish> {
        loop {
            match &mut self.answer {
                Answer::Due(answer) => {
                    let response = answer.await.map_err(|_| Finish::Broken)?;
                    if response.status() != StatusCode::OK {
                        return Err(Finish::Status(response.status()));
                    }
                    self.answer = Answer::Flowing(response.into_body());
                }
                Answer::Flowing(body) => match body.frame().await {
                    Some(Ok(frame)) => {
                        if let Ok(octets) = frame.into_data() {
                            return Ok(octets);
                        }
                    }
                    Some(Err(_)) | None => return Err(Finish::Broken),
                },
            }
        }
    }
}

fn head(endpoint: &Endpoint, target: Uri, body: Outgoing) -> Request<Outgoing> {
    let mut request = Request::post(target).body(body).unwrap_or_else(|error| {
        // Method, target and body are typed: nothing in them can be refused.
        unreachable!("{error}")
    });
    let headers = request.headers_mut();
    // Digits, letters and punctuation of an endpoint are all allowed in a header.
    if let Ok(host) = HeaderValue::try_from(endpoint.to_string()) {
        headers.insert(HOST, host);
    }
    headers.insert(ACCEPT, HeaderValue::from_static("text/*, application/octet-stream"));
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-store, must-revalidate"),
    );
    request
}

/// The body of the request: one frame, and so one HTTP chunk, for each tunnel chunk.
struct Outgoing(mpsc::Receiver<Bytes>);

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Chunks that wait for the connection to take them.
const QUEUE: usize = 4;
