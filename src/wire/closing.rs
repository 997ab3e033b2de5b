//! How the server of a connection is told to come to an end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;

/// Ends the server of a connection from outside: at once if it waits for a request, or else with the answer that is due.
#[derive(Debug, Default)]
pub struct Closing {
    stage: AtomicU8,
    waiting: Mutex<Option<Waker>>,
}

impl Closing {
    /// Ends the server.
    pub fn begin(&self) {
        self.stage.store(AT_ONCE, Ordering::Release);
        let waiting = self.waiting.lock().take();
        if let Some(waker) = waiting {
            waker.wake();
        }
    }

    /// Has the server give one more answer, the last, however long it waits for the request.
    pub fn begin_with_the_answer(&self) {
        self.stage.store(WITH_THE_ANSWER, Ordering::Release);
    }

    /// Whether the answer that is due is the last.
    pub fn has_begun(&self) -> bool {
        self.stage.load(Ordering::Acquire) != 0
    }

    /// Whether a server that waits is to end; asks to be woken for that.
    pub fn is_due(&self, cx: &Context<'_>) -> bool {
        let mut waiting = self.waiting.lock();
        if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waiting = Some(cx.waker().clone());
        }
        // Looked at under the lock: whoever ends the server after this finds the waker.
        self.stage.load(Ordering::Acquire) == AT_ONCE
    }
}

/// As the waker of a future whose end is to end the server.
impl Wake for Closing {
    fn wake(self: Arc<Self>) {
        self.begin();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.begin();
    }
}

const WITH_THE_ANSWER: u8 = 1;
const AT_ONCE: u8 = 2;
