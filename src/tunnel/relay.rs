//! The byte relay between a client and a desktop.
//!
//! Bytes pass without being understood. The end of one side's bytes reaches the other side as such, so that an answer
//! still arrives after the question has ended. Only what the other side does not take at once is kept; while nothing
//! moves, a relay holds no buffer.
//!
//! It ends with exactly one [`CloseReason`], and neither stream is closed by it but in order: whoever called it decides
//! what a client is told at last.

mod lane;
pub(super) mod scratch;

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Sleep, sleep_until};

use self::lane::{Broken, Lane, Side};
use crate::clock;
use crate::fault::CloseReason;
use crate::grant::{Grant, Route};

/// What a relay works for: the session that pays for it, and the route that permits it.
#[derive(Clone, Copy, Debug)]
pub struct Relay<'a> {
    /// Counts the bytes and learns that its user is active.
    pub grant: &'a Grant,
    /// The relay ends with it.
    pub route: &'a Route,
    /// Without a byte in either direction for so long, the relay ends. `None`: it lives as long as its route.
    pub idle: Option<Duration>,
}

impl Relay<'_> {
    /// Passes bytes both ways until both sides have ended, one is lost, or the route ends.
    ///
    /// Bytes of the client that were read before belong in front of `client` ([`Prefixed`](crate::listen::Prefixed)).
    ///
    /// # Cancel safety
    /// Dropping the future loses bytes on their way; both streams are still the caller's.
    pub async fn run<C, U>(self, client: &mut C, upstream: &mut U) -> CloseReason
    where
        C: AsyncRead + AsyncWrite + Unpin,
        U: AsyncRead + AsyncWrite + Unpin,
    {
        self.run_watched(client, upstream, |_| {}).await
    }

    /// As [`run`](Self::run); `watch` sees the desktop's bytes, in order, once the client's stream has taken them.
    pub async fn run_watched<C, U>(self, client: &mut C, upstream: &mut U, watch: impl FnMut(&[u8])) -> CloseReason
    where
        C: AsyncRead + AsyncWrite + Unpin,
        U: AsyncRead + AsyncWrite + Unpin,
    {
        let mut joined = Joined {
            client,
            upstream,
            watch,
            up: Lane::default(),
            down: Lane::default(),
        };
        let mut activity = Activity::new(self);
        let mut idle = pin!(self.idle.map(|idle| sleep_until((clock::now() + idle).into())));
        let mut ended = pin!(self.route.ended());
        poll_fn(|cx| {
            if ended.as_mut().poll(cx).is_ready() {
                return Poll::Ready(end_of(self.grant));
            }
            let passed = joined.poll(cx);
            activity.note(joined.up.take_moved(), joined.down.take_moved());
            if passed.is_ready() {
                return passed;
            }
            match idle.as_mut().as_pin_mut() {
                Some(sleep) => activity.poll_idle(cx, sleep),
                None => Poll::Pending,
            }
        })
        .await
    }
}

/// Passes bytes both ways for nobody in particular, until both sides have ended or one is lost; as [`Relay`] does, but
/// there is no session here that could end or be told.
///
/// # Cancel safety
/// As [`Relay::run`].
pub async fn pass<C, U>(client: &mut C, upstream: &mut U) -> CloseReason
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut joined = Joined {
        client,
        upstream,
        watch: |_: &[u8]| {},
        up: Lane::default(),
        down: Lane::default(),
    };
    poll_fn(|cx| joined.poll(cx)).await
}

/// How bytes that were passed came to their end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Why.
    pub reason: CloseReason,
    /// Whether the client was passed the end of the other side's bytes: it has them all.
    pub is_whole: bool,
}

/// As [`pass`], and ends when nothing has passed for as long as `idle`. `count` is told the bytes that went to `upstream` and
/// those that went to `client`, as they do; `watch` sees the latter as in [`Relay::run_watched`].
///
/// # Cancel safety
/// As [`Relay::run`].
pub async fn pass_counted<C, U>(
    client: &mut C,
    upstream: &mut U,
    idle: Duration,
    mut count: impl FnMut(u64, u64),
    watch: impl FnMut(&[u8]),
) -> Passed
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
{
    let mut joined = Joined {
        client,
        upstream,
        watch,
        up: Lane::default(),
        down: Lane::default(),
    };
    let mut last = clock::now();
    let mut sleep = pin!(sleep_until((last + idle).into()));
    let reason = poll_fn(|cx| {
        let passed = joined.poll(cx);
        let moved = (joined.up.take_moved(), joined.down.take_moved());
        if moved != (0, 0) {
            count(moved.0, moved.1);
            last = clock::now();
        }
        if passed.is_ready() {
            return passed;
        }
        // Set once and looked at when it fires, not moved with every byte.
        while sleep.as_mut().poll(cx).is_ready() {
            let due = (last + idle).into();
            if due <= sleep.deadline() {
                return Poll::Ready(CloseReason::Idle);
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    })
    .await;
    Passed {
        reason,
        is_whole: joined.down.is_done(),
    }
}

/// Why the route of this grant has ended: with its session, or taken away by its user.
fn end_of(grant: &Grant) -> CloseReason {
    grant.revocation().unwrap_or(CloseReason::Killed)
}

/// Both streams and the lanes between them.
struct Joined<'a, C, U, W> {
    client: &'a mut C,
    upstream: &'a mut U,
    watch: W,
    up: Lane,
    down: Lane,
}

impl<C, U, W> Joined<'_, C, U, W>
where
    C: AsyncRead + AsyncWrite + Unpin,
    U: AsyncRead + AsyncWrite + Unpin,
    W: FnMut(&[u8]),
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let up = self.up.poll(cx, self.client, self.upstream, &mut |_| {});
        if let Poll::Ready(Err(broken)) = up {
            match broken.side {
                Side::Source if self.down.is_done() => return Poll::Ready(CloseReason::Completed),
                Side::Source => return Poll::Ready(CloseReason::ClientClosed),
                // Its last words may still be on their way to the client.
                Side::Sink => {}
            }
        }
        let down = self.down.poll(cx, self.upstream, self.client, &mut self.watch);
        match (down, up) {
            (Poll::Ready(Err(Broken { side: Side::Source })), _) => Poll::Ready(CloseReason::UpstreamClosed),
            (Poll::Ready(Err(Broken { side: Side::Sink })), _) => Poll::Ready(CloseReason::ClientClosed),
            (Poll::Ready(Ok(())), Poll::Ready(Ok(()))) => Poll::Ready(CloseReason::Completed),
            (Poll::Ready(Ok(())), Poll::Ready(Err(_))) => Poll::Ready(CloseReason::UpstreamClosed),
            (Poll::Pending, _) | (_, Poll::Pending) => Poll::Pending,
        }
    }
}

/// What a relay tells its session, and since when it has been idle.
struct Activity<'a> {
    relay: Relay<'a>,
    told: Instant,
    last: Instant,
}

impl<'a> Activity<'a> {
    fn new(relay: Relay<'a>) -> Self {
        let now = clock::now();
        relay.grant.touch(now);
        Self {
            relay,
            told: now,
            last: now,
        }
    }

    /// Notes what passed in one poll. A relay that nobody watches asks for the time only when its client sends.
    fn note(&mut self, up: u64, down: u64) {
        let grant = self.relay.grant;
        if down > 0 {
            grant.count_out(down);
        }
        if up > 0 {
            grant.count_in(up);
        }
        if up > 0 || (down > 0 && self.relay.idle.is_some()) {
            self.last = clock::now();
        }
        if up > 0 && self.last.saturating_duration_since(self.told) >= TELL_EVERY {
            self.told = self.last;
            grant.touch(self.last);
        }
    }

    /// The timer is set once and looked at when it fires, not moved with every byte.
    fn poll_idle(&self, cx: &mut Context<'_>, mut sleep: Pin<&mut Sleep>) -> Poll<CloseReason> {
        let Some(idle) = self.relay.idle else {
            return Poll::Pending;
        };
        while sleep.as_mut().poll(cx).is_ready() {
            let due = (self.last + idle).into();
            if due <= sleep.deadline() {
                return Poll::Ready(CloseReason::Idle);
            }
            sleep.as_mut().reset(due);
        }
        Poll::Pending
    }
}

/// How often a session learns that its user is active.
const TELL_EVERY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
