//! The body of a request on its way to the target.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::Request;
use http::header::EXPECT;

use super::Unforwarded;
use crate::clock;
use crate::fault::WebFault;
use crate::upstream::web::Exchange;
use crate::wire::{BodyFault, Frame, Length, Source};

/// The request's side of an exchange.
#[derive(Debug)]
pub(super) struct Upload<'a, B> {
    body: &'a mut B,
    state: State,
    /// A frame that was looked at too early.
    next: Option<Frame>,
    received: u64,
    max: Option<u64>,
    fault: Option<WebFault>,
    /// When something last went on.
    last: Instant,
    /// It was the client that did not go on.
    waits_for_client: bool,
    /// Something of the body was taken.
    touched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client waits for `100 Continue`, until this time.
    Held(Instant),
    Flowing,
    /// All was taken; some is still to be sent.
    Ending,
    Done,
    /// The target reads no more.
    Broken,
}

impl<'a, B: Source> Upload<'a, B> {
    pub(super) fn new(request: &Request<()>, body: &'a mut B, max: Option<u64>, now: Instant) -> Self {
        let expects = request.headers().get(EXPECT);
        let expects = expects.is_some_and(|expect| expect.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let state = match body.length() {
            Length::NONE => State::Ending,
            Length::Exact(_) | Length::Unknown if expects => State::Held(now + PATIENCE),
            Length::Exact(_) | Length::Unknown => State::Flowing,
        };
        let too_long = matches!((body.length(), max), (Length::Exact(length), Some(max)) if length > max);
        Self {
            body,
            state,
            next: None,
            received: 0,
            max,
            fault: too_long.then_some(WebFault::BodyTooLarge),
            last: now,
            waits_for_client: false,
            touched: false,
        }
    }

    pub(super) fn length(&self) -> Length {
        self.body.length()
    }

    /// Tells a request without a body to be one.
    pub(super) fn begin(&mut self, exchange: &mut Exchange) {
        if self.state == State::Ending {
            exchange.end(None);
        }
    }

    /// Whether the client waits for leave to send.
    pub(super) fn is_held(&self) -> bool {
        matches!(self.state, State::Held(_))
    }

    /// Has the client send.
    pub(super) fn release(&mut self) {
        if self.is_held() {
            self.state = State::Flowing;
            self.last = clock::now();
        }
    }

    /// Whether the target has all of the request.
    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Why the rest of the body will not come.
    pub(super) fn fault(&self) -> Option<WebFault> {
        self.fault
    }

    /// Bytes that came from the client.
    pub(super) fn received(&self) -> u64 {
        self.received
    }

    /// When something last went on.
    pub(super) fn last(&self) -> Instant {
        self.last
    }

    /// When somebody has waited for too long: the client for leave, or one side for the other.
    pub(super) fn due(&self, limit: Duration) -> Instant {
        let due = self.last + limit;
        match self.state {
            State::Held(until) => due.min(until),
            State::Flowing | State::Ending | State::Done | State::Broken => due,
        }
    }

    /// Whose fault it is that nothing goes on; `None` if the client is only waiting for leave.
    pub(super) fn overdue(&self, now: Instant, limit: Duration) -> Option<WebFault> {
        match self.state {
            State::Held(_) if now < self.last + limit => None,
            State::Flowing if self.waits_for_client => Some(WebFault::ClientTimeout),
            State::Held(_) | State::Flowing | State::Ending | State::Done | State::Broken => {
                Some(WebFault::UpstreamTimeout)
            }
        }
    }

    /// The request has no answer; `again` if it had no effect.
    pub(super) fn unforwarded(&self, fault: WebFault, again: bool) -> Unforwarded {
        Unforwarded {
            fault,
            again: again && !self.touched,
            received: self.received,
        }
    }

    /// Sends on what there is.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        while self.fault.is_none() {
            match self.state {
                State::Done | State::Broken => return,
                State::Held(_) => {
                    if let Poll::Ready(Err(_)) = exchange.poll_sent(cx) {
                        self.state = State::Broken;
                    }
                    return;
                }
                State::Ending => {
                    match exchange.poll_sent(cx) {
                        Poll::Ready(Ok(())) => self.state = State::Done,
                        Poll::Ready(Err(_)) => self.state = State::Broken,
                        Poll::Pending => {}
                    }
                    return;
                }
                State::Flowing => match exchange.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        if self.poll_body(cx, exchange).is_pending() {
                            return;
                        }
                    }
                    Poll::Ready(Err(_)) => self.state = State::Broken,
                    Poll::Pending => {
                        self.waits_for_client = false;
                        return;
                    }
                },
            }
        }
    }

    /// Takes the next frame; pending if there is none, and all that was taken goes out meanwhile.
    fn poll_body(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) -> Poll<()> {
        let frame = match self.next.take() {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => self.body.poll_frame(cx),
        };
        let Poll::Ready(frame) = frame else {
            self.waits_for_client = true;
            if let Poll::Ready(Err(_)) = exchange.poll_sent(cx) {
                self.state = State::Broken;
                return Poll::Ready(());
            }
            return Poll::Pending;
        };
        self.last = clock::now();
        self.touched = true;
        match frame {
            Some(Ok(Frame::Data(data))) => {
                self.received += data.len() as u64;
                if self.max.is_some_and(|max| self.received > max) {
                    self.fault = Some(WebFault::BodyTooLarge);
                    return Poll::Ready(());
                }
                let is_small = data.len() < LOOK_AHEAD;
                exchange.data(data);
                match self.length() {
                    Length::Exact(length) if self.received == length => self.end(exchange),
                    Length::Exact(_) => {}
                    Length::Unknown if is_small => self.look_ahead(cx, exchange),
                    Length::Unknown => {}
                }
            }
            Some(Ok(Frame::Trailers(trailers))) => {
                exchange.end(Some(&trailers));
                self.state = State::Ending;
            }
            None => self.end(exchange),
            Some(Err(fault)) => self.fault = Some(fault_of(fault)),
        }
        Poll::Ready(())
    }

    /// Looks whether the body has ended with what was taken, so that its end is written together with it.
    fn look_ahead(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        match self.body.poll_frame(cx) {
            Poll::Ready(None) => self.end(exchange),
            Poll::Ready(Some(Ok(Frame::Trailers(trailers)))) => {
                exchange.end(Some(&trailers));
                self.state = State::Ending;
            }
            Poll::Ready(Some(Ok(data))) => self.next = Some(data),
            Poll::Ready(Some(Err(fault))) => self.fault = Some(fault_of(fault)),
            Poll::Pending => {}
        }
    }

    fn end(&mut self, exchange: &mut Exchange) {
        exchange.end(None);
        self.state = State::Ending;
    }
}

fn fault_of(fault: BodyFault) -> WebFault {
    match fault {
        BodyFault::BrokeOff => WebFault::ClientClosed,
        BodyFault::Malformed | BodyFault::TooLarge => WebFault::InvalidRequest,
    }
}

/// How long a target may keep silent about `Expect` before the body is asked for here.
const PATIENCE: Duration = Duration::from_secs(1);
/// Behind parts of this size and above, the end of a body is written apart.
const LOOK_AHEAD: usize = 16 * 1024;
