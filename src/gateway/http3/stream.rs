//! Both directions of a stream of HTTP/3, as the gateway reads and writes them.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use h3::error::Code;
use http::header::{CONTENT_LENGTH, EXPECT};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use parking_lot::Mutex;

use super::super::extent::{Extent, strip};
use crate::tunnel::masque::wire::Stopped;
use crate::tunnel::masque::{Exchange, Receiver, Sender};
use crate::wire::{BodyFault, Frame, Gone, Length, Sink, Source};

/// Parts a stream whose request was read; `stopped` is when its client wants no answer.
pub(super) fn part(exchange: Exchange, request: &Request<()>, stopped: Stopped) -> (Received, Sent) {
    let (sender, receiver) = exchange.split();
    let opening = Arc::new(Mutex::new(Opening {
        sender: Sending::Idle(Box::new(sender)),
        continued: false,
        answered: false,
    }));
    let received = Received {
        receiver,
        opening: opening.clone(),
        peeked: None,
        at: At::Data,
        left: length_of(request),
        length: length_of(request).map_or(Length::Unknown, Length::Exact),
        expects: expects(request),
    };
    let sent = Sent {
        opening,
        is_head: request.method() == Method::HEAD,
        head: None,
        sender: None,
        extent: Extent::default(),
        finished: false,
        stopped: Some(stopped),
    };
    (received, sent)
}

/// The length that a request declares, once it was found to be one.
pub(super) fn length_of(request: &Request<()>) -> Option<u64> {
    let text = request.headers().get(CONTENT_LENGTH)?.to_str().ok()?;
    // A sign would be read too.
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())?
}

fn expects(request: &Request<()>) -> bool {
    let expectation = request.headers().get(EXPECT).map(HeaderValue::as_bytes);
    expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

/// The body of a request, held to the length that its head declares.
///
/// The client may send more as soon as a frame was taken and the next is asked for.
pub(super) struct Received {
    receiver: Receiver,
    opening: Arc<Mutex<Opening>>,
    /// What was looked at too early.
    peeked: Option<Result<Frame, BodyFault>>,
    at: At,
    /// What is still to come of a declared length.
    left: Option<u64>,
    length: Length,
    /// Whether the client waits for `100 Continue`.
    expects: bool,
}

/// How far a body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Data,
    Trailers,
    End,
}

impl Received {
    /// Finds out whether there is a body at all, for a request that says nothing of it: its end may come by itself, behind
    /// its head. With methods that have none it waits for that, without a limit. Cancel-safe.
    pub(super) async fn look(&mut self, method: &Method) {
        if self.length != Length::Unknown || self.expects {
            return;
        }
        let waits = ![Method::POST, Method::PUT, Method::PATCH].contains(method);
        let first = poll_fn(|cx| match self.poll_frame(cx) {
            Poll::Ready(first) => Poll::Ready(Some(first)),
            Poll::Pending if waits => Poll::Pending,
            Poll::Pending => Poll::Ready(None),
        });
        match first.await {
            Some(None) => self.length = Length::NONE,
            Some(Some(frame)) => self.peeked = Some(frame),
            None => {}
        }
    }

    /// The client has sent something else than it declared.
    fn malformed(&mut self) -> Poll<Option<Result<Frame, BodyFault>>> {
        self.at = At::End;
        self.receiver.stop_sending(Code::H3_MESSAGE_ERROR);
        Poll::Ready(Some(Err(BodyFault::Malformed)))
    }

    fn broke_off(&mut self) -> Poll<Option<Result<Frame, BodyFault>>> {
        self.at = At::End;
        Poll::Ready(Some(Err(BodyFault::BrokeOff)))
    }
}

impl Source for Received {
    fn length(&self) -> Length {
        self.length
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        if let Some(frame) = self.peeked.take() {
            return Poll::Ready(Some(frame));
        }
        while self.at == At::Data {
            let Poll::Ready(data) = self.receiver.poll_recv_data(cx) else {
                if std::mem::take(&mut self.expects) {
                    self.opening.lock().put_continue();
                }
                self.opening.lock().poll_continued(cx);
                return Poll::Pending;
            };
            match data {
                Ok(Some(mut data)) => {
                    let data = data.copy_to_bytes(data.remaining());
                    self.expects = false;
                    match self.left.map(|left| left.checked_sub(data.len() as u64)) {
                        Some(None) => return self.malformed(),
                        Some(left) => self.left = left,
                        None => {}
                    }
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::Data(data))));
                    }
                }
                Ok(None) if self.left.is_some_and(|left| left > 0) => return self.malformed(),
                Ok(None) => self.at = At::Trailers,
                Err(_) => return self.broke_off(),
            }
        }
        if self.at == At::End {
            return Poll::Ready(None);
        }
        match ready!(self.receiver.poll_recv_trailers(cx)) {
            Ok(Some(trailers)) => {
                self.at = At::End;
                Poll::Ready(Some(Ok(Frame::Trailers(trailers))))
            }
            Ok(None) => {
                self.at = At::End;
                Poll::Ready(None)
            }
            Err(_) => self.broke_off(),
        }
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if self.at != At::End {
            // What nobody reads is no fault of the client's: its answer stands.
            self.receiver.stop_sending(Code::H3_NO_ERROR);
        }
    }
}

/// The beginning of an answer, which the request's body shares as long as its client waits for `100 Continue`.
struct Opening {
    sender: Sending,
    continued: bool,
    /// Whether the final head is out, or gathered.
    answered: bool,
}

/// Where the sending side is.
enum Sending {
    Idle(Box<Sender>),
    /// `100 Continue` is on its way.
    Continuing(Pin<Box<dyn Future<Output = Option<Box<Sender>>> + Send>>),
    /// With whoever writes, or lost.
    Taken,
}

impl Opening {
    fn put_continue(&mut self) {
        if self.continued || self.answered {
            return;
        }
        self.sender = match std::mem::replace(&mut self.sender, Sending::Taken) {
            Sending::Idle(mut sender) => {
                self.continued = true;
                let mut head = Response::new(());
                *head.status_mut() = StatusCode::CONTINUE;
                Sending::Continuing(Box::pin(async move {
                    // Who is gone is noticed by who reads.
                    sender.send_response(head).await.is_ok().then_some(sender)
                }))
            }
            // An answer is on its way.
            sending @ (Sending::Continuing(_) | Sending::Taken) => sending,
        };
    }

    /// Has what was put go on.
    fn poll_continued(&mut self, cx: &mut Context<'_>) {
        if let Sending::Continuing(sending) = &mut self.sender
            && let Poll::Ready(sender) = sending.as_mut().poll(cx)
        {
            self.sender = sender.map_or(Sending::Taken, Sending::Idle);
        }
    }

    /// The sending side, once it is free; `None` if it is lost.
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<Box<Sender>>> {
        self.poll_continued(cx);
        match std::mem::replace(&mut self.sender, Sending::Taken) {
            Sending::Idle(sender) => Poll::Ready(Some(sender)),
            Sending::Taken => Poll::Ready(None),
            sending @ Sending::Continuing(_) => {
                self.sender = sending;
                Poll::Pending
            }
        }
    }
}

async fn take(opening: &Mutex<Opening>) -> Result<Box<Sender>, Gone> {
    poll_fn(|cx| opening.lock().poll_take(cx)).await.ok_or(Gone)
}

/// The way to answer a request.
pub(super) struct Sent {
    opening: Arc<Mutex<Opening>>,
    is_head: bool,
    /// The head, until something follows it.
    head: Option<Response<()>>,
    /// There from the final head on.
    sender: Option<Box<Sender>>,
    extent: Extent,
    finished: bool,
    /// `None` once the client wants no answer.
    stopped: Option<Stopped>,
}

impl Sent {
    /// Breaks the answer off, unless it is at its end.
    pub(super) fn reset(&mut self, code: Code) {
        if std::mem::replace(&mut self.finished, true) {
            return;
        }
        let waiting = std::mem::replace(&mut self.opening.lock().sender, Sending::Taken);
        if let (Some(mut sender), _) | (None, Sending::Idle(mut sender)) = (self.sender.take(), waiting) {
            sender.stop_stream(code);
        }
        // In the middle of an informational answer it was dropped, which resets it too.
    }

    /// Sends the head if it waits.
    async fn send_head(&mut self) -> Result<&mut Sender, Gone> {
        let sender = self.sender.as_mut().ok_or(Gone)?;
        if let Some(head) = self.head.take() {
            sender.send_response(head).await.map_err(|_| Gone)?;
        }
        Ok(sender)
    }

    async fn send(&mut self, data: Bytes, last: bool) -> Result<(), Gone> {
        let data = self.extent.take(data, last)?;
        let sender = self.send_head().await?;
        if !data.is_empty() {
            sender.send_data(data).await.map_err(|_| Gone)?;
        }
        if last {
            sender.finish().await.map_err(|_| Gone)?;
            self.finished = true;
        }
        Ok(())
    }
}

impl Sink for Sent {
    async fn inform(&mut self, mut head: Response<()>) -> Result<(), Gone> {
        {
            let mut opening = self.opening.lock();
            if opening.answered || (head.status() == StatusCode::CONTINUE && opening.continued) {
                return Ok(());
            }
            opening.continued |= head.status() == StatusCode::CONTINUE;
        }
        strip(head.headers_mut());
        let mut sender = take(&self.opening).await?;
        sender.send_response(head).await.map_err(|_| Gone)?;
        self.opening.lock().sender = Sending::Idle(sender);
        Ok(())
    }

    async fn head(&mut self, mut head: Response<()>, length: Length) -> Result<(), Gone> {
        self.opening.lock().answered = true;
        self.extent = Extent::announce(&mut head, length, self.is_head);
        self.head = Some(head);
        self.sender = Some(take(&self.opening).await?);
        Ok(())
    }

    async fn data(&mut self, data: Bytes) -> Result<(), Gone> {
        self.send(data, false).await
    }

    async fn last(&mut self, data: Bytes) -> Result<(), Gone> {
        self.send(data, true).await
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        self.send_head().await.map(|_| ())
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone> {
        let Some(mut trailers) = trailers.filter(|trailers| !self.extent.is_bodiless() && !trailers.is_empty()) else {
            return self.send(Bytes::new(), true).await;
        };
        self.extent.take(Bytes::new(), true)?;
        strip(&mut trailers);
        let sender = self.send_head().await?;
        sender.send_trailers(trailers).await.map_err(|_| Gone)?;
        sender.finish().await.map_err(|_| Gone)?;
        self.finished = true;
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(stopped) = &mut self.stopped {
            ready!(stopped.as_mut().poll(cx));
            self.stopped = None;
        }
        Poll::Ready(())
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        self.reset(Code::H3_INTERNAL_ERROR);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_length_is_digits_and_nothing_else(text in "[0-9+, \\-]{0,22}") {
            let request = Request::builder().header(CONTENT_LENGTH, &text).body(()).unwrap();
            let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let expected = text.parse().ok().filter(|_| is_number);
            prop_assert_eq!(length_of(&request), expected);
        }
    }
}
