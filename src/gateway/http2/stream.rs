//! Both directions of a stream of HTTP/2, as the gateway reads and writes them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::header::EXPECT;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use parking_lot::Mutex;
use tokio::time::timeout;

use super::super::extent::{Extent, strip};
use crate::wire::{BodyFault, Frame, Gone, Length, Sink, Source};

/// The body of a request.
///
/// The client may send more as soon as a frame was taken and the next is asked for.
pub(super) struct Received {
    /// There until it is dropped.
    stream: Option<RecvStream>,
    /// Where what is left of the stream goes then.
    opening: Arc<Mutex<Opening>>,
    length: Length,
    /// Bytes of the last frame, for which the client has no room yet.
    owed: usize,
    /// Whether the client waits for `100 Continue`.
    expects: bool,
    data_ended: bool,
}

impl Received {
    pub(super) fn new(stream: RecvStream, declared: Option<u64>, answer: &Sent, request: &Request<()>) -> Self {
        let length = match declared {
            _ if stream.is_end_stream() => Length::NONE,
            Some(length) => Length::Exact(length),
            None => Length::Unknown,
        };
        let expectation = request.headers().get(EXPECT).map(HeaderValue::as_bytes);
        let expects = expectation.is_some_and(|value| value.eq_ignore_ascii_case(b"100-continue"));
        Self {
            stream: Some(stream),
            opening: answer.opening.clone(),
            length,
            owed: 0,
            expects: expects && length != Length::NONE,
            data_ended: false,
        }
    }
}

impl Source for Received {
    fn length(&self) -> Length {
        self.length
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(None);
        };
        if self.owed > 0 {
            // Fails only for more than was taken.
            let _ = stream.flow_control().release_capacity(self.owed);
            self.owed = 0;
        }
        while !self.data_ended {
            let Poll::Ready(data) = stream.poll_data(cx) else {
                if self.expects {
                    self.expects = false;
                    self.opening.lock().put_continue();
                }
                return Poll::Pending;
            };
            match data {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => {
                    self.expects = false;
                    self.owed = data.len();
                    return Poll::Ready(Some(Ok(Frame::Data(data))));
                }
                Some(Err(_)) => return Poll::Ready(Some(Err(BodyFault::BrokeOff))),
                None => self.data_ended = true,
            }
        }
        Poll::Ready(match ready!(stream.poll_trailers(cx)) {
            Ok(Some(trailers)) => Some(Ok(Frame::Trailers(trailers))),
            Ok(None) => None,
            Err(_) => Some(Err(BodyFault::BrokeOff)),
        })
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        if let Some(mut stream) = self.stream.take()
            && !stream.is_end_stream()
        {
            let _ = stream.flow_control().release_capacity(self.owed);
            self.opening.lock().unread = Some(stream);
        }
    }
}

/// The beginning of an answer, which the request's body shares as long as its client waits for `100 Continue`.
pub(super) struct Opening {
    answer: SendResponse<Bytes>,
    continued: bool,
    /// Whether the final head is out, or gathered.
    answered: bool,
    /// What nobody reads of the request.
    unread: Option<RecvStream>,
}

impl Opening {
    fn put_continue(&mut self) {
        if !self.continued && !self.answered {
            self.continued = true;
            let mut head = Response::new(());
            *head.status_mut() = StatusCode::CONTINUE;
            // Who is gone is noticed by who reads.
            let _ = self.answer.send_informational(head);
        }
    }
}

/// The way to answer a request.
pub(super) struct Sent {
    opening: Arc<Mutex<Opening>>,
    is_head: bool,
    /// The head, until something follows it.
    head: Option<Response<()>>,
    stream: Option<SendStream<Bytes>>,
    extent: Extent,
    finished: bool,
}

impl Sent {
    pub(super) fn new(answer: SendResponse<Bytes>, is_head: bool) -> Self {
        Self {
            opening: Arc::new(Mutex::new(Opening {
                answer,
                continued: false,
                answered: false,
                unread: None,
            })),
            is_head,
            head: None,
            stream: None,
            extent: Extent::default(),
            finished: false,
        }
    }

    /// Reads away for a moment what nobody has read of the request: to be told that nobody does, some clients take for a
    /// failure, and lose the answer that they have not read yet.
    pub(super) async fn linger(&mut self) {
        let unread = self.opening.lock().unread.take();
        let Some(mut stream) = unread.filter(|_| self.finished) else {
            return;
        };
        let read_away = async {
            let mut left = LINGER_BYTES;
            while left > 0
                && let Some(Ok(data)) = stream.data().await
            {
                left = left.saturating_sub(data.len());
                let _ = stream.flow_control().release_capacity(data.len());
            }
        };
        let _ = timeout(LINGER, read_away).await;
    }

    /// Breaks the answer off, unless it is at its end.
    pub(super) fn reset(&mut self, reason: Reason) {
        if !std::mem::replace(&mut self.finished, true) {
            match &mut self.stream {
                Some(stream) => stream.send_reset(reason),
                None => self.opening.lock().answer.send_reset(reason),
            }
        }
    }

    /// Sends the head if it waits; with the end of the answer, if it is `last`.
    fn send_head(&mut self, last: bool) -> Result<(), Gone> {
        if let Some(head) = self.head.take() {
            let sent = self.opening.lock().answer.send_response(head, last);
            self.stream = Some(sent.map_err(|_| Gone)?);
            self.finished = last;
        }
        Ok(())
    }

    async fn send(&mut self, data: Bytes, last: bool) -> Result<(), Gone> {
        let mut data = self.extent.take(data, last)?;
        self.send_head(last && data.is_empty())?;
        let stream = self.stream.as_mut().ok_or(Gone)?;
        while !data.is_empty() {
            stream.reserve_capacity(data.len());
            let room = match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(Ok(room)) => room.min(data.len()),
                Some(Err(_)) | None => return Err(Gone),
            };
            let piece = data.split_to(room);
            let ends = last && data.is_empty();
            stream.send_data(piece, ends).map_err(|_| Gone)?;
            self.finished = ends;
        }
        if last && !self.finished {
            stream.send_data(Bytes::new(), true).map_err(|_| Gone)?;
            self.finished = true;
        }
        Ok(())
    }
}

impl Sink for Sent {
    async fn inform(&mut self, mut head: Response<()>) -> Result<(), Gone> {
        let mut opening = self.opening.lock();
        if opening.answered {
            return Ok(());
        }
        if head.status() == StatusCode::CONTINUE {
            opening.put_continue();
            return Ok(());
        }
        strip(head.headers_mut());
        // What cannot be said in between is left out: the final answer counts.
        let _ = opening.answer.send_informational(head);
        Ok(())
    }

    async fn head(&mut self, mut head: Response<()>, length: Length) -> Result<(), Gone> {
        self.opening.lock().answered = true;
        *head.version_mut() = Version::HTTP_2;
        self.extent = Extent::announce(&mut head, length, self.is_head);
        self.head = Some(head);
        Ok(())
    }

    async fn data(&mut self, data: Bytes) -> Result<(), Gone> {
        self.send(data, false).await
    }

    async fn last(&mut self, data: Bytes) -> Result<(), Gone> {
        self.send(data, true).await
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        self.send_head(false)
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone> {
        let Some(mut trailers) = trailers.filter(|trailers| !self.extent.is_bodiless() && !trailers.is_empty()) else {
            return self.send(Bytes::new(), true).await;
        };
        self.extent.take(Bytes::new(), true)?;
        strip(&mut trailers);
        self.send_head(false)?;
        let stream = self.stream.as_mut().ok_or(Gone)?;
        stream.send_trailers(trailers).map_err(|_| Gone)?;
        self.finished = true;
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.stream {
            Some(stream) => stream.poll_reset(cx),
            None => self.opening.lock().answer.poll_reset(cx),
        };
        reset.map(|_| ())
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // Without this it would look like an end that the client has asked for.
        self.reset(Reason::INTERNAL_ERROR);
    }
}

/// How long, and how many bytes, a request is read on that was answered before its end.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 16 * 1024 * 1024;
