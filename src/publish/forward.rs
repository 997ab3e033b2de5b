//! A request on its way to a target, and the answer on its way back.
//!
//! [`ask`] sends a request and waits for the head of the answer; the caller changes that head as its rule says, and
//! [`Answer::relay`] brings it and the body to the client. Both bodies pass at the same time, in the caller's task: an answer
//! that begins before the request has ended goes straight through. Nothing is boxed, queued or locked on the way.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use tokio::task::yield_now;

use crate::clock;
use crate::fault::WebFault;
use crate::upstream::web::{Exchange, Leased};
use crate::wire::timer::Timer;
use crate::wire::{BodyFault, Frame, Length, Sink, Source, Unanswered};

mod gather;
mod upload;
mod websocket;

pub use gather::{Gathered, gather};
pub use websocket::{Carried, Upgraded};

use upload::Upload;

/// What a request may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the end of the request to the head of the answer; between the parts of a request's body too.
    pub request: Duration,
    /// Silence in an answer, or a client that does not take it.
    pub idle: Duration,
    /// The largest body of a request, in bytes.
    pub max_body: Option<u64>,
    /// Whether an answer is read before it is sent on, as far as it is of a moderate size and no stream of events.
    pub gather_answers: bool,
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unforwarded {
    /// Why.
    pub fault: WebFault,
    /// Whether the same request may be sent again: it cannot have had an effect, or may have it twice, and nothing of its
    /// body was taken.
    pub again: bool,
    /// Bytes of its body that had come.
    pub received: u64,
}

/// Sends `request` with `body` on a connection, and waits for the head of the answer. Informational answers go to the client
/// at once.
///
/// A client that waits for `100 Continue` gets the target's; if the target says nothing for a second, the body is asked for
/// here, so that nobody waits for the other for ever. An answer that comes before the body goes straight through.
///
/// Not cancel-safe: dropped, it gives the connection up.
///
/// # Errors
/// There is no answer. The client has been sent nothing but informational ones.
pub async fn ask<'a, B: Source, A: Sink>(
    leased: Leased,
    request: &Request<()>,
    body: &'a mut B,
    sink: &mut A,
    limits: Limits,
    timer: &'a mut Timer,
) -> Result<Answer<'a, B>, Unforwarded> {
    let started = leased.since();
    let is_repeatable = is_idempotent(request.method());
    let upload = Upload::new(request, body, limits.max_body, started);
    let Some(exchange) = leased.ask(request, upload.length()) else {
        return Err(upload.unforwarded(WebFault::InvalidHost, false));
    };
    let mut pass = Pass {
        exchange,
        upload,
        limits,
        timer,
        heard: started,
    };
    pass.begin();
    let mut interims = 0;
    let head = loop {
        match pass.event(sink).await {
            Event::Head(Ok(head)) if is_interim(head.response.status()) && interims < INTERIMS => {
                interims += 1;
                let is_continue = head.response.status() == StatusCode::CONTINUE;
                // Whoever was told by this node already is not told again.
                if !is_continue || pass.upload.is_held() {
                    pass.inform(head.response, sink).await?;
                }
                if is_continue {
                    pass.upload.release();
                }
            }
            Event::Head(Ok(head)) if is_interim(head.response.status()) => {
                return Err(pass.upload.unforwarded(WebFault::UpstreamInvalid, false));
            }
            Event::Head(Ok(head)) => break head,
            Event::Head(Err(fault)) => {
                let untouched = fault == Unanswered::Refused || !pass.exchange.began();
                let again = untouched || (is_repeatable && fault == Unanswered::Closed);
                return Err(pass.upload.unforwarded(fault_of(fault), again));
            }
            Event::Fault(fault) => return Err(pass.upload.unforwarded(fault, false)),
        }
    };
    pass.heard = clock::now();
    Ok(Answer {
        head: head.response,
        first_byte: pass.heard.saturating_duration_since(started),
        length: head.length,
        pass,
    })
}

/// An answer whose head has come.
#[derive(Debug)]
pub struct Answer<'a, B> {
    /// The head as it came: the caller changes it and hands it to [`relay`](Self::relay).
    pub head: Response<()>,
    /// From the beginning of the request to the head.
    pub first_byte: Duration,
    length: Length,
    pass: Pass<'a, B>,
}

/// What passed of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relayed {
    /// Bytes of the request's body that came from the client.
    pub received: u64,
    /// Bytes of the answer's body that went to the client.
    pub sent: u64,
    /// Why it broke off; the client has seen its head if anything.
    pub fault: Option<WebFault>,
}

impl<B: Source> Answer<'_, B> {
    /// When the head was there.
    pub fn since(&self) -> Instant {
        self.pass.heard
    }

    /// Whether the target leaves HTTP (`101`).
    pub fn is_upgrade(&self) -> bool {
        self.head.status() == StatusCode::SWITCHING_PROTOCOLS
    }

    /// The stream behind `101`; `None` if the target did not switch.
    pub fn upgrade(self) -> Option<Upgraded> {
        let received = self.pass.upload.received();
        debug_assert_eq!(received, 0, "who upgrades sends no body");
        let (io, early) = self.pass.exchange.upgrade()?;
        Some(Upgraded { io, early })
    }

    /// Sends `head` and the body to the client, and the rest of the request's body to the target.
    ///
    /// The target's connection serves others as soon as the whole answer has come, however slowly the client takes it. If the
    /// answer ends before the request's body, the rest of that is not read.
    ///
    /// Not cancel-safe: dropped, it gives the connection up.
    pub async fn relay<A: Sink>(mut self, head: Response<()>, sink: &mut A) -> Relayed {
        let mut sent = 0;
        let fault = self.send(head, sink, &mut sent).await.err();
        if fault == Some(WebFault::UpstreamTimeout) {
            self.pass.exchange.retire();
        }
        Relayed {
            received: self.pass.upload.received(),
            sent,
            fault,
        }
    }

    /// Drops the body, because the client is answered otherwise. The connection serves others if the whole answer is here
    /// and small; nothing is waited for.
    ///
    /// Not cancel-safe: dropped, it gives the connection up.
    pub async fn discard(mut self) {
        let mut dropped = 0;
        while dropped < DISCARDED {
            match self.pass.frame_that_is_there().await {
                Some(Ok(Some(Frame::Data(data)))) => dropped += data.len(),
                Some(Ok(None | Some(Frame::Trailers(_)))) => return self.pass.let_go(),
                Some(Err(_)) | None => return,
            }
        }
    }

    async fn send<A: Sink>(&mut self, head: Response<()>, sink: &mut A, sent: &mut u64) -> Result<(), WebFault> {
        let pass = &mut self.pass;
        let mut gathered = Vec::new();
        let mut length = self.length;
        let mut rest = None;
        if pass.limits.gather_answers && length != Length::NONE && !is_stream(&head) {
            (gathered, rest) = pass.gather(sink).await?;
            if let Some(Rest::End) = rest {
                length = Length::Exact(gathered.iter().map(|data| data.len() as u64).sum());
            }
        }
        pass.drive(sink.head(head, length))
            .await?
            .map_err(|_| WebFault::ClientClosed)?;
        let last = if rest.is_some() { gathered.pop() } else { None };
        for data in gathered {
            *sent += data.len() as u64;
            pass.drive(sink.data(data)).await?.map_err(|_| WebFault::ClientClosed)?;
        }
        match (last, rest) {
            (Some(data), Some(rest)) => {
                *sent += data.len() as u64;
                pass.last(data, rest, sink).await
            }
            (None, Some(rest)) => pass.finish(rest, sink).await,
            (_, None) => pass.stream(sink, sent).await,
        }
    }
}

/// Both directions of one exchange.
#[derive(Debug)]
struct Pass<'a, B> {
    exchange: Exchange,
    upload: Upload<'a, B>,
    limits: Limits,
    timer: &'a mut Timer,
    /// When something came from the target that was waited for.
    heard: Instant,
}

enum Event {
    Head(Result<crate::wire::h1::client::Head, Unanswered>),
    Fault(WebFault),
}

/// What follows the data of a body that has come to its end.
enum Rest {
    End,
    Trailers(http::HeaderMap),
}

impl<B: Source> Pass<'_, B> {
    fn begin(&mut self) {
        self.upload.begin(&mut self.exchange);
    }

    /// Waits for the next head, while the request goes out.
    async fn event<A: Sink>(&mut self, sink: &mut A) -> Event {
        poll_fn(|cx| {
            loop {
                self.upload.poll(cx, &mut self.exchange);
                if let Some(fault) = self.upload.fault() {
                    return Poll::Ready(Event::Fault(fault));
                }
                if let Poll::Ready(head) = self.exchange.poll_head(cx) {
                    return Poll::Ready(Event::Head(head));
                }
                if sink.poll_gone(cx).is_ready() {
                    return Poll::Ready(Event::Fault(WebFault::ClientClosed));
                }
                let due = self.upload.due(self.limits.request);
                if self.timer.poll(due, cx).is_pending() {
                    return Poll::Pending;
                }
                match self.upload.overdue(clock::now(), self.limits.request) {
                    // The target keeps silent about `Expect`: the body goes out unasked.
                    None => self.upload.release(),
                    Some(fault) => {
                        if fault == WebFault::UpstreamTimeout {
                            self.exchange.retire();
                        }
                        return Poll::Ready(Event::Fault(fault));
                    }
                }
            }
        })
        .await
    }

    /// Sends an informational head to the client.
    async fn inform<A: Sink>(&mut self, mut head: Response<()>, sink: &mut A) -> Result<(), Unforwarded> {
        head.headers_mut().remove(http::header::CONNECTION);
        head.headers_mut().remove(CONTENT_LENGTH);
        match self.drive(sink.inform(head)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.upload.unforwarded(WebFault::ClientClosed, false)),
            Err(fault) => Err(self.upload.unforwarded(fault, false)),
        }
    }

    /// Streams a body to its end.
    async fn stream<A: Sink>(&mut self, sink: &mut A, sent: &mut u64) -> Result<(), WebFault> {
        let mut waits = true;
        let mut since_yield = 0;
        loop {
            let frame = match self.frame_that_is_there().await {
                Some(frame) => frame?,
                None => {
                    if waits {
                        // The head has waited for the body long enough.
                        self.drive(sink.flush()).await?.map_err(|_| WebFault::ClientClosed)?;
                    }
                    self.frame(sink).await?
                }
            };
            match frame {
                Some(Frame::Data(data)) => {
                    waits = false;
                    *sent += data.len() as u64;
                    since_yield += data.len();
                    if let Some(rest) = self.rest().await? {
                        self.let_go();
                        return self.last(data, rest, sink).await;
                    }
                    self.drive(sink.data(data)).await?.map_err(|_| WebFault::ClientClosed)?;
                    if since_yield >= YIELD_EVERY {
                        since_yield = 0;
                        yield_now().await;
                    }
                }
                Some(Frame::Trailers(trailers)) => {
                    self.let_go();
                    return self.finish(Rest::Trailers(trailers), sink).await;
                }
                None => {
                    self.let_go();
                    return self.finish(Rest::End, sink).await;
                }
            }
        }
    }

    /// Sends the last data and the end.
    async fn last<A: Sink>(&mut self, data: Bytes, rest: Rest, sink: &mut A) -> Result<(), WebFault> {
        match rest {
            Rest::End => self.drive(sink.last(data)).await?.map_err(|_| WebFault::ClientClosed),
            Rest::Trailers(_) => {
                self.drive(sink.data(data)).await?.map_err(|_| WebFault::ClientClosed)?;
                self.finish(rest, sink).await
            }
        }
    }

    /// Sends the end.
    async fn finish<A: Sink>(&mut self, rest: Rest, sink: &mut A) -> Result<(), WebFault> {
        let trailers = match rest {
            Rest::End => None,
            Rest::Trailers(trailers) => Some(trailers),
        };
        self.drive(sink.finish(trailers))
            .await?
            .map_err(|_| WebFault::ClientClosed)
    }

    /// Reads a body up to [`GATHERED`] bytes; with what follows them if that was the end.
    async fn gather<A: Sink>(&mut self, sink: &mut A) -> Result<(Vec<Bytes>, Option<Rest>), WebFault> {
        let mut gathered = Vec::new();
        let mut size = 0;
        while size < GATHERED {
            match self.frame(sink).await? {
                Some(Frame::Data(data)) => {
                    size += data.len();
                    gathered.push(data);
                }
                Some(Frame::Trailers(trailers)) => {
                    self.let_go();
                    return Ok((gathered, Some(Rest::Trailers(trailers))));
                }
                None => {
                    self.let_go();
                    return Ok((gathered, Some(Rest::End)));
                }
            }
        }
        Ok((gathered, None))
    }

    /// Gives the connection back once both bodies have passed.
    fn let_go(&mut self) {
        if self.upload.is_done() {
            self.exchange.release(self.heard);
        }
    }

    /// The next frame if it is there already.
    async fn frame_that_is_there(&mut self) -> Option<Result<Option<Frame>, WebFault>> {
        poll_fn(|cx| {
            self.upload.poll(cx, &mut self.exchange);
            Poll::Ready(match self.exchange.poll_frame(cx) {
                Poll::Ready(frame) => Some(frame.transpose().map_err(fault_of_body)),
                Poll::Pending => None,
            })
        })
        .await
    }

    /// What follows the data, if that is known already.
    async fn rest(&mut self) -> Result<Option<Rest>, WebFault> {
        if !self.exchange.is_over() {
            return Ok(None);
        }
        match self.frame_that_is_there().await {
            Some(Ok(None)) => Ok(Some(Rest::End)),
            Some(Ok(Some(Frame::Trailers(trailers)))) => Ok(Some(Rest::Trailers(trailers))),
            Some(Err(fault)) => Err(fault),
            Some(Ok(Some(Frame::Data(_)))) | None => Err(WebFault::Internal),
        }
    }

    /// Waits for the next frame.
    async fn frame<A: Sink>(&mut self, sink: &mut A) -> Result<Option<Frame>, WebFault> {
        let due = clock::now() + self.limits.idle;
        let frame = poll_fn(|cx| {
            self.upload.poll(cx, &mut self.exchange);
            if let Poll::Ready(frame) = self.exchange.poll_frame(cx) {
                return Poll::Ready(frame.transpose().map_err(fault_of_body));
            }
            if let Some(fault) = self.upload.fault() {
                return Poll::Ready(Err(fault));
            }
            if sink.poll_gone(cx).is_ready() {
                return Poll::Ready(Err(WebFault::ClientClosed));
            }
            // A client that still sends is no silence.
            let due = due.max(self.upload.last() + self.limits.idle);
            self.timer.poll(due, cx).map(|()| Err(WebFault::UpstreamTimeout))
        })
        .await;
        self.heard = clock::now();
        frame
    }

    /// Waits for the client to take something, while the request goes out.
    async fn drive<F: Future>(&mut self, taken: F) -> Result<F::Output, WebFault> {
        let mut taken = pin!(taken);
        let mut due: Option<Instant> = None;
        poll_fn(|cx| {
            self.upload.poll(cx, &mut self.exchange);
            if let Poll::Ready(taken) = taken.as_mut().poll(cx) {
                return Poll::Ready(Ok(taken));
            }
            if let Some(fault) = self.upload.fault() {
                return Poll::Ready(Err(fault));
            }
            let due = *due.get_or_insert_with(|| clock::now() + self.limits.idle);
            self.timer.poll(due, cx).map(|()| Err(WebFault::ClientTimeout))
        })
        .await
    }
}

fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

/// Whether a request with this method may be sent twice (RFC 9110 section 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::PUT, Method::DELETE].contains(method)
}

/// Whether a body is of a kind whose parts are waited for.
fn is_stream(head: &Response<()>) -> bool {
    let kind = head
        .headers()
        .get(CONTENT_TYPE)
        .map_or(&b""[..], |kind| kind.as_bytes());
    let begins = |with: &[u8]| {
        kind.get(..with.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    begins(b"text/event-stream") || begins(b"application/grpc")
}

fn fault_of(fault: Unanswered) -> WebFault {
    match fault {
        Unanswered::Closed | Unanswered::Refused | Unanswered::BrokeOff => WebFault::UpstreamClosed,
        Unanswered::Malformed => WebFault::UpstreamInvalid,
    }
}

fn fault_of_body(fault: BodyFault) -> WebFault {
    match fault {
        BodyFault::BrokeOff => WebFault::UpstreamClosed,
        BodyFault::Malformed | BodyFault::TooLarge => WebFault::UpstreamInvalid,
    }
}

/// Informational answers to one request.
const INTERIMS: usize = 32;
/// How much of an answer is read before it is sent on, if that is wanted.
const GATHERED: usize = 1024 * 1024;
/// How much of an answer is read that nobody wants.
const DISCARDED: usize = 64 * 1024;
/// Others get their turn after so many bytes.
const YIELD_EVERY: usize = 256 * 1024;

#[cfg(test)]
mod tests;
