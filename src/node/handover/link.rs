//! The link between two processes after a handover: each tells the other at once of what must not be missed.
//!
//! An end of a session is given to the system before anybody else learns of it ([`HearsOfEnds`]): a process that dies
//! in the next moment has told it. What the system does not take at once waits in memory, in order; a link whose other
//! side takes nothing for [`STUCK`] is broken.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use parking_lot::Mutex;
use rustix::net::{SendFlags, send};
use tokio::io::Interest;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::message::{Decoder, Message};
use crate::fault::CloseReason;
use crate::grant::HearsOfEnds;
use crate::tunnel::flow::{HearsOfFlows, News};
use crate::types::SessionId;

/// One end of the link.
#[derive(Debug)]
pub(super) struct Link {
    stream: UnixStream,
    outbox: Mutex<Outbox>,
    /// What is said waits until the other side is ready for it.
    corked: AtomicBool,
    waiting: Notify,
}

/// What was said and the system has not taken.
#[derive(Debug, Default)]
struct Outbox {
    bytes: BytesMut,
    /// Octets that the system has taken.
    sent: u64,
}

/// How a link ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The other process has closed it, or is no more.
    Closed,
    /// The other process takes nothing, or says what is no message.
    Broken,
}

impl Link {
    /// A link over a stream; corked, it keeps what is said until [`uncork`](Self::uncork).
    pub(super) fn corked(stream: UnixStream) -> Arc<Self> {
        Arc::new(Self {
            stream,
            outbox: Mutex::default(),
            corked: AtomicBool::new(true),
            waiting: Notify::new(),
        })
    }

    /// Lets what was said go. The stream must not block any more.
    pub(super) fn uncork(&self) {
        self.corked.store(false, Ordering::Release);
        self.flush(&mut self.outbox.lock());
    }

    /// Says something; never waits.
    pub(super) fn say(&self, message: &Message) {
        // No message of a link comes near the limit.
        let Ok(bytes) = message.encode() else { return };
        let mut outbox = self.outbox.lock();
        outbox.bytes.extend_from_slice(&bytes);
        if !self.corked.load(Ordering::Acquire) {
            self.flush(&mut outbox);
        }
    }

    /// Whether so much waits that what can wait should.
    pub(super) fn is_busy(&self) -> bool {
        self.outbox.lock().bytes.len() > BUSY
    }

    /// Waits until the system has taken all that was said, while [`run`](Self::run) gives it. Cancel-safe.
    pub(super) async fn taken(&self) {
        while !self.outbox.lock().bytes.is_empty() {
            sleep(A_MOMENT).await;
        }
    }

    /// Closes it, for both sides.
    pub(super) fn close(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
    }

    /// Gives the system what it takes. Whoever cannot write any more learns it by reading.
    fn flush(&self, outbox: &mut Outbox) {
        while !outbox.bytes.is_empty() {
            match send(&self.stream, &outbox.bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    outbox.bytes.advance(sent);
                    outbox.sent += sent as u64;
                }
                Err(_) => {
                    self.waiting.notify_one();
                    return;
                }
            }
        }
    }

    /// Hears what the other side says until the link ends; what has come together is handled together. Cancel-safe, but for
    /// what was heard and not handled.
    pub(super) async fn run(&self, mut decoder: Decoder, mut handle: impl FnMut(Vec<Message>)) -> End {
        let stream = self.stream.try_clone().and_then(|stream| {
            stream.set_nonblocking(true)?;
            tokio::net::UnixStream::from_std(stream)
        });
        let Ok(stream) = stream else { return End::Broken };
        let mut bytes = BytesMut::with_capacity(READ);
        let mut progress = (0, Instant::now());
        loop {
            let mut come = Vec::new();
            let garbled = loop {
                match decoder.next_message() {
                    Ok(Some(message)) => come.push(message),
                    Ok(None) => break false,
                    Err(_) => break true,
                }
            };
            handle(come);
            if garbled {
                return End::Broken;
            }
            let (waits, sent) = {
                let outbox = self.outbox.lock();
                (!outbox.bytes.is_empty(), outbox.sent)
            };
            if !waits || sent != progress.0 {
                progress = (sent, Instant::now());
            }
            tokio::select! {
                _ = stream.readable() => match stream.try_read_buf(&mut bytes) {
                    Ok(0) => return End::Closed,
                    Ok(_) => {
                        decoder.push(&bytes);
                        bytes.clear();
                    }
                    Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return End::Closed,
                },
                _ = stream.writable(), if waits => {
                    // What it says is seen by what is left.
                    let _ = stream.try_io(Interest::WRITABLE, || {
                        let mut outbox = self.outbox.lock();
                        self.flush(&mut outbox);
                        if outbox.bytes.is_empty() { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
                    });
                }
                () = self.waiting.notified(), if !waits => {}
                () = sleep_until(progress.1 + STUCK), if waits => return End::Broken,
            }
        }
    }
}

impl HearsOfEnds for Link {
    fn ended(&self, ends: &[(SessionId, CloseReason)]) {
        for (session, reason) in ends {
            self.say(&Message::Ended {
                session: session.to_string(),
                reason: reason.code().to_owned(),
            });
        }
    }
}

impl HearsOfFlows for Link {
    fn happened(&self, news: News) {
        self.say(&Message::Flows { news: vec![news] });
    }
}

/// How long the other side may take nothing.
const STUCK: Duration = Duration::from_secs(10);
const A_MOMENT: Duration = Duration::from_millis(10);
const BUSY: usize = 1024 * 1024;
const READ: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(number: usize) -> Message {
        Message::Ended {
            session: number.to_string(),
            reason: "logout".to_owned(),
        }
    }

    fn pair() -> (Arc<Link>, Arc<Link>) {
        let (here, there) = UnixStream::pair().unwrap();
        (Link::corked(here), Link::corked(there))
    }

    #[tokio::test]
    async fn what_is_said_before_the_cork_is_out_comes_first_and_nothing_is_lost() {
        const MANY: usize = 50_000; // more than the system takes at once
        let (here, there) = pair();
        here.say(&ended(0));
        here.uncork();
        let speaker = here.clone();
        let speaking = async move {
            for number in 1..MANY {
                speaker.say(&ended(number));
            }
            let listening = speaker.run(Decoder::default(), |_| {});
            assert_eq!(listening.await, End::Closed);
        };
        let mut heard = 0;
        let closing = there.clone();
        let hearing = there.run(Decoder::default(), |come| {
            for message in come {
                assert_eq!(message, ended(heard));
                heard += 1;
            }
            if heard == MANY {
                closing.close();
            }
        });
        let (_, end) = tokio::join!(speaking, hearing);
        assert_eq!((heard, end), (MANY, End::Closed));
    }

    #[tokio::test]
    async fn what_was_said_is_heard_after_the_death_of_who_said_it() {
        let (here, there) = pair();
        here.uncork();
        here.say(&ended(1));
        drop(here);
        let mut heard = Vec::new();
        let end = there.run(Decoder::default(), |come| heard.extend(come)).await;
        assert_eq!((heard, end), (vec![ended(1)], End::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_takes_nothing_breaks_the_link() {
        let (here, _there) = pair();
        here.uncork();
        for number in 0..100_000 {
            here.say(&ended(number));
        }
        assert!(here.is_busy());
        assert_eq!(here.run(Decoder::default(), |_| {}).await, End::Broken);
    }
}
