//! The body of a request, read before the request is sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::clock;
use crate::fault::WebFault;
use crate::wire::timer::Timer;
use crate::wire::{BodyFault, Frame, Length, Source};

/// Reads a body until its end, or until there is a mebibyte of it; what is behind that is streamed. So a target is not kept
/// waiting by a client that sends slowly.
///
/// `silence` is how long the client may send nothing.
///
/// # Errors
/// The client does not send what it announced, or not in time.
pub async fn gather<'a, B: Source>(
    body: &'a mut B,
    timer: &mut Timer,
    silence: Duration,
) -> Result<Gathered<'a, B>, WebFault> {
    let mut gathered = Gathered {
        length: body.length(),
        frames: VecDeque::new(),
        rest: None,
    };
    let (mut size, mut data_only) = (0_u64, true);
    while size < MOST {
        let due = clock::now() + silence;
        let frame = poll_fn(|cx| match body.poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(Ok(frame)),
            Poll::Pending => timer.poll(due, cx).map(|()| Err(WebFault::ClientTimeout)),
        });
        match frame.await? {
            Some(Ok(frame)) => {
                match &frame {
                    Frame::Data(data) => size += data.len() as u64,
                    Frame::Trailers(_) => data_only = false,
                }
                gathered.frames.push_back(frame);
            }
            Some(Err(BodyFault::BrokeOff)) => return Err(WebFault::ClientClosed),
            Some(Err(BodyFault::Malformed | BodyFault::TooLarge)) => return Err(WebFault::InvalidRequest),
            None => {
                if data_only {
                    gathered.length = Length::Exact(size);
                }
                return Ok(gathered);
            }
        }
    }
    gathered.rest = Some(body);
    Ok(gathered)
}

/// A body of which some was read.
#[derive(Debug)]
pub struct Gathered<'a, B> {
    length: Length,
    frames: VecDeque<Frame>,
    rest: Option<&'a mut B>,
}

impl<B: Source> Source for Gathered<'_, B> {
    fn length(&self) -> Length {
        self.length
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        match (self.frames.pop_front(), &mut self.rest) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(rest)) => rest.poll_frame(cx),
            (None, None) => Poll::Ready(None),
        }
    }
}

const MOST: u64 = 1024 * 1024;
