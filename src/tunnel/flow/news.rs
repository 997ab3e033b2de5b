//! What the process that reads the sockets has to know of the connections and flows of the one before it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Flows;
use super::table::{Beside, Pin};

/// One thing that has happened in a process, and may matter to the one that took over from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum News {
    /// A connection is open beside which flows may run.
    Connected {
        /// Which.
        beside: Beside,
        /// Since when.
        age: Duration,
    },
    /// One of them is closed.
    Disconnected {
        /// Which.
        beside: Beside,
    },
    /// A flow is open.
    Opened {
        /// Beside what.
        beside: Beside,
        /// From and to where.
        pin: Pin,
    },
    /// A flow is over.
    Ended {
        /// Which.
        pin: Pin,
        /// Its desktop has never answered.
        unanswered: bool,
    },
    /// News of another version.
    #[serde(other)]
    Unknown,
}

/// Whoever has to know at once what happens to flows.
pub trait HearsOfFlows: Send + Sync + std::fmt::Debug {
    /// Something happened. Called under a lock: it must not wait, and call nothing of the flows.
    fn happened(&self, news: News);
}

impl Flows {
    /// Tells `listener` of everything that happens from now on; gives all that is open at `now`.
    pub fn tell_of_flows(&self, listener: Arc<dyn HearsOfFlows>, now: Instant) -> Vec<News> {
        let table = self.table.lock();
        *self.listener.lock() = Some(listener);
        table.news(now)
    }

    /// Tells nobody any more.
    pub fn tell_no_more(&self) {
        *self.listener.lock() = None;
    }

    /// Takes note of what has happened in the process before this one.
    pub fn note(&self, news: Vec<News>, now: Instant) {
        let mut table = self.table.lock();
        for news in news {
            match &news {
                News::Connected { beside, age } => {
                    table.connected_before(*beside, now.checked_sub(*age).unwrap_or(now));
                }
                News::Disconnected { beside } => table.disconnected_before(*beside),
                News::Opened { beside, pin } => table.opened_before(*beside, *pin),
                News::Ended { pin, unanswered } => table.ended_before(*pin, *unanswered),
                News::Unknown => continue,
            }
            self.tell(news);
        }
    }

    /// The process before this one is no more.
    pub fn forget_before(&self) {
        let mut table = self.table.lock();
        for beside in table.forget_before() {
            self.tell(News::Disconnected { beside });
        }
    }

    /// To be called with the table locked, so that nobody hears of an end before the beginning.
    pub(super) fn tell(&self, news: News) {
        if let Some(listener) = &*self.listener.lock() {
            listener.happened(news);
        }
    }
}
