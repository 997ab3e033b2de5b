//! One direction of a relay.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::scratch;

/// One direction: what is on its way, and how far the end of it has come.
#[derive(Debug, Default)]
pub(super) struct Lane {
    stage: Stage,
    held: Held,
    /// The source was lost after what is held.
    lost: bool,
    /// The sink has taken bytes that it may not have sent yet.
    unflushed: bool,
    moved: u64,
}

/// How far a direction has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Passing,
    /// The source has ended; the sink has still to learn it.
    Ending,
    Done,
    /// The sink takes nothing any more.
    Cut,
}

/// What the sink did not take.
#[derive(Debug, Default)]
struct Held {
    bytes: Vec<u8>,
    taken: usize,
}

/// What a source has after what was read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Perhaps more at once.
    More,
    /// Nothing now; it wakes the task.
    Later,
    /// Its end.
    End,
    /// It is lost.
    Lost,
}

/// Reads as much as there is, so that it is written at once: a TLS stream gives one record at a time.
fn gather<R: AsyncRead + Unpin>(cx: &mut Context<'_>, source: &mut R, room: &mut [u8]) -> (usize, Next) {
    let mut buf = ReadBuf::new(room);
    while buf.remaining() > 0 {
        let before = buf.filled().len();
        match Pin::new(&mut *source).poll_read(cx, &mut buf) {
            Poll::Pending => return (before, Next::Later),
            Poll::Ready(Err(_)) => return (before, Next::Lost),
            Poll::Ready(Ok(())) if buf.filled().len() == before => return (before, Next::End),
            Poll::Ready(Ok(())) => {}
        }
    }
    (buf.filled().len(), Next::More)
}

/// Which stream of a direction was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) side: Side,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Source,
    Sink,
}

impl Lane {
    /// Whether the source has ended and the sink knows it.
    pub(super) fn is_done(&self) -> bool {
        self.stage == Stage::Done
    }

    /// How many bytes the sink has taken since this was asked for the last time.
    pub(super) fn take_moved(&mut self) -> u64 {
        std::mem::take(&mut self.moved)
    }

    /// Passes on what there is, up to the share of one poll. Ready when the direction has ended, and from then on.
    pub(super) fn poll<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        sink: &mut W,
        watch: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<(), Broken>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let passed = match self.stage {
            Stage::Passing => self.pass(cx, source, sink, watch),
            Stage::Ending => self.end(cx, sink),
            Stage::Done => return Poll::Ready(Ok(())),
            Stage::Cut => Poll::Ready(Err(Side::Sink)),
        };
        if passed == Poll::Ready(Err(Side::Sink)) {
            self.stage = Stage::Cut;
            self.held = Held::default();
        }
        passed.map_err(|side| Broken { side })
    }

    fn pass<R, W>(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut R,
        sink: &mut W,
        watch: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<(), Side>>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        ready!(self.pass_held(cx, sink, watch))?;
        if self.lost {
            return Poll::Ready(Err(Side::Source));
        }
        let ended = scratch::with(|scratch| {
            let mut share = SHARE;
            loop {
                let (length, next) = gather(cx, source, scratch);
                if length > 0 {
                    let taken = self.write(cx, sink, &scratch[..length], watch)?;
                    if taken < length {
                        // An end is there to be read again, a loss is not.
                        self.lost = next == Next::Lost;
                        self.held = Held {
                            bytes: scratch[taken..length].to_vec(),
                            taken: 0,
                        };
                        return Poll::Pending;
                    }
                    share = share.saturating_sub(length);
                }
                match next {
                    Next::More if share > 0 => {}
                    Next::More => {
                        // The other tasks of this worker have a right to theirs.
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Next::Later => {
                        // What is still to be sent is waited for together with what is still to come.
                        return match self.flush(cx, sink) {
                            Poll::Ready(Err(side)) => Poll::Ready(Err(side)),
                            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
                        };
                    }
                    Next::End => return Poll::Ready(Ok(())),
                    Next::Lost => return Poll::Ready(Err(Side::Source)),
                }
            }
        });
        ready!(ended)?;
        self.stage = Stage::Ending;
        self.end(cx, sink)
    }

    /// Writes what was kept.
    fn pass_held<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut W,
        watch: &mut impl FnMut(&[u8]),
    ) -> Poll<Result<(), Side>> {
        if self.held.bytes.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let mut held = std::mem::take(&mut self.held);
        held.taken += self.write(cx, sink, &held.bytes[held.taken..], watch)?;
        if held.taken < held.bytes.len() {
            self.held = held;
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }

    /// Writes as much as the sink takes now; with less than all of it, the sink wakes the task for the rest.
    fn write<W: AsyncWrite + Unpin>(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut W,
        bytes: &[u8],
        watch: &mut impl FnMut(&[u8]),
    ) -> Result<usize, Side> {
        let mut taken = 0;
        while taken < bytes.len() {
            match Pin::new(&mut *sink).poll_write(cx, &bytes[taken..]) {
                Poll::Ready(Ok(0) | Err(_)) => return Err(Side::Sink),
                Poll::Ready(Ok(length)) => taken += length,
                Poll::Pending => break,
            }
        }
        if taken > 0 {
            self.unflushed = true;
            self.moved += taken as u64;
            watch(&bytes[..taken]);
        }
        Ok(taken)
    }

    fn flush<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, sink: &mut W) -> Poll<Result<(), Side>> {
        if self.unflushed {
            ready!(Pin::new(sink).poll_flush(cx)).map_err(|_| Side::Sink)?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn end<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, sink: &mut W) -> Poll<Result<(), Side>> {
        ready!(self.flush(cx, sink))?;
        ready!(Pin::new(sink).poll_shutdown(cx)).map_err(|_| Side::Sink)?;
        self.stage = Stage::Done;
        Poll::Ready(Ok(()))
    }
}

/// How much one direction passes on before others have their turn.
const SHARE: usize = 4 * scratch::LENGTH;
