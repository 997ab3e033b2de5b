//! The timers of a connection.

use std::future::Future as _;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::time::{Sleep, sleep_until};

/// A timer for deadlines that move on with each exchange and are hardly ever reached. It is set again only when it goes
/// off, or has to go off earlier: its task may be woken for nothing now and then.
#[derive(Debug, Default)]
pub struct Timer(Option<Pin<Box<Sleep>>>);

impl Timer {
    /// Ready at `deadline`.
    pub fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = deadline.into();
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        loop {
            ready!(sleep.as_mut().poll(cx));
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
    }
}

/// Timers for the exchanges of one connection. To set one up and take it down again for each exchange would cost more than
/// all that it is looked at: it is lent from one to the next as it is.
#[derive(Debug, Default)]
pub struct Timers(Mutex<Vec<Timer>>);

impl Timers {
    /// A timer, until it is dropped.
    pub fn lend(&self) -> Lent<'_> {
        Lent {
            timer: self.0.lock().pop().unwrap_or_default(),
            owner: self,
        }
    }
}

/// A timer that goes back where it came from.
#[derive(Debug)]
pub struct Lent<'a> {
    /// The timer.
    pub timer: Timer,
    owner: &'a Timers,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut kept = self.owner.0.lock();
        if kept.len() < KEPT {
            kept.push(mem::take(&mut self.timer));
        }
    }
}

/// Timers that a connection keeps.
const KEPT: usize = 16;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::clock;

    #[tokio::test(start_paused = true)]
    async fn a_lent_timer_goes_off_when_its_borrower_wants_it() {
        let timers = Timers::default();
        // Left unused, then sooner than it was set for, then later, then later than one that was left.
        for (seconds, waits) in [(20, false), (5, true), (30, true), (10, false), (40, true)] {
            let begun = clock::now();
            let deadline = begun + Duration::from_secs(seconds);
            let mut lent = timers.lend();
            poll_fn(|cx| {
                let due = lent.timer.poll(deadline, cx);
                if waits { due } else { Poll::Ready(()) }
            })
            .await;
            assert_eq!(clock::now() >= deadline, waits, "{seconds}");
            assert!(clock::now() < deadline + Duration::from_millis(5), "{seconds}");
        }
        assert_eq!(timers.0.lock().len(), 1);
    }

    #[test]
    fn exchanges_at_one_time_have_timers_of_their_own_and_few_are_kept() {
        let timers = Timers::default();
        let lent: Vec<_> = (0..KEPT + 5).map(|_| timers.lend()).collect();
        drop(lent);
        assert_eq!(timers.0.lock().len(), KEPT);
    }
}
