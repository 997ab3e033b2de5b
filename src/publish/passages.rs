//! The connections whose bytes pass as they are, by where they come in and where they lead: counts, and when those end for
//! which the configuration has no place any more.
//!
//! Nothing here runs by itself, and time is an argument.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Where connections come in, and where they lead.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Course {
    /// The listener, by name.
    pub listener: Arc<str>,
    /// The pool, by name.
    pub pool: Arc<str>,
    /// The backend, by name.
    pub backend: Arc<str>,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Passages(Mutex<BTreeMap<Course, Entry>>);

#[derive(Debug)]
struct Entry {
    counts: Arc<Counts>,
    cut: CancellationToken,
    drain: Duration,
    /// Whether the configuration applied last leads there.
    is_wanted: bool,
    /// When what is still open is cut, if nothing leads there any more.
    ends: Option<Instant>,
}

/// The counts of one course. All but the first only ever grow.
#[derive(Debug, Default)]
struct Counts {
    open: AtomicU64,
    opened: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    milliseconds: AtomicU64,
}

/// What an operator sees of one course.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassagesView {
    /// The course.
    pub course: Course,
    /// Connections that are open.
    pub open: u64,
    /// Connections that were opened.
    pub opened: u64,
    /// Bytes of clients that targets have taken.
    pub received: u64,
    /// Bytes of targets that clients have taken.
    pub sent: u64,
    /// How long the connections lasted that have ended, in all.
    pub milliseconds: u64,
}

impl Passages {
    /// Makes these the courses that the configuration has, each with the time that it leaves to what runs when it goes.
    /// Others stay open to connections that follow the configuration before, until [`retire`](Self::retire).
    pub(super) fn apply(&self, wanted: impl Iterator<Item = (Course, Duration)>) {
        let mut entries = self.0.lock();
        for entry in entries.values_mut() {
            entry.is_wanted = false;
        }
        for (course, drain) in wanted {
            let entry = entries.entry(course).or_insert_with(|| Entry {
                counts: Arc::default(),
                cut: CancellationToken::new(),
                drain,
                is_wanted: true,
                ends: None,
            });
            entry.is_wanted = true;
            entry.drain = drain;
            entry.ends = None;
        }
    }

    /// Lets the courses run out that the configuration applied last does not have.
    pub(super) fn retire(&self, now: Instant) {
        for entry in self.0.lock().values_mut().filter(|entry| !entry.is_wanted) {
            entry.ends.get_or_insert(now + entry.drain);
        }
    }

    /// Cuts what has run out by `now`.
    pub(super) fn sweep(&self, now: Instant) {
        self.0.lock().retain(|_, entry| {
            let is_over = entry.ends.is_some_and(|ends| ends <= now);
            if is_over {
                entry.cut.cancel();
            }
            !is_over
        });
    }

    /// Cuts everything, at the end of the node.
    pub(super) fn end_all(&self) {
        for entry in self.0.lock().values() {
            entry.cut.cancel();
        }
    }

    /// Counts a connection that begins; `None` if nothing leads there any more.
    pub(super) fn open(&self, course: &Course, now: Instant) -> Option<Passage> {
        let entries = self.0.lock();
        let entry = entries.get(course)?;
        entry.counts.open.fetch_add(1, Ordering::Relaxed);
        entry.counts.opened.fetch_add(1, Ordering::Relaxed);
        Some(Passage {
            counts: entry.counts.clone(),
            cut: entry.cut.clone(),
            since: now,
        })
    }

    /// Visits every count that only grows, with the names for it.
    pub(super) fn each(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        for (course, entry) in &*self.0.lock() {
            let of = ["passages", &*course.listener, &*course.pool, &*course.backend];
            let counts = &entry.counts;
            for (what, count) in [
                ("opened", &counts.opened),
                ("received", &counts.received),
                ("sent", &counts.sent),
                ("milliseconds", &counts.milliseconds),
            ] {
                visit(&[&of[..], &[what]].concat(), count);
            }
        }
    }

    /// How everything stands.
    pub fn view(&self) -> Vec<PassagesView> {
        let entries = self.0.lock();
        entries
            .iter()
            .map(|(course, entry)| entry.counts.view(course))
            .collect()
    }
}

impl Counts {
    fn view(&self, course: &Course) -> PassagesView {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        PassagesView {
            course: course.clone(),
            open: read(&self.open),
            opened: read(&self.opened),
            received: read(&self.received),
            sent: read(&self.sent),
            milliseconds: read(&self.milliseconds),
        }
    }
}

/// One connection, for as long as it is counted as open.
#[derive(Debug)]
pub(super) struct Passage {
    counts: Arc<Counts>,
    cut: CancellationToken,
    since: Instant,
}

impl Passage {
    /// Counts bytes of the client and bytes for it.
    pub(super) fn count(&self, received: u64, sent: u64) {
        self.counts.received.fetch_add(received, Ordering::Relaxed);
        self.counts.sent.fetch_add(sent, Ordering::Relaxed);
    }

    /// Cancelled when the connection is to be cut.
    pub(super) fn cut(&self) -> &CancellationToken {
        &self.cut
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let lasted = crate::clock::now().saturating_duration_since(self.since).as_millis();
        let lasted = u64::try_from(lasted).unwrap_or(u64::MAX);
        self.counts.milliseconds.fetch_add(lasted, Ordering::Relaxed);
        self.counts.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    fn course(listener: &str, pool: &str) -> Course {
        Course {
            listener: listener.into(),
            pool: pool.into(),
            backend: "b".into(),
        }
    }

    fn apply(passages: &Passages, courses: &[Course]) {
        passages.apply(courses.iter().map(|course| (course.clone(), Duration::from_secs(30))));
    }

    #[test]
    fn only_what_a_change_concerns_is_cut_and_only_after_its_time() {
        let (passages, begin) = (Passages::default(), clock::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let (db, mail) = (course("db", "a"), course("mail", "a"));
        apply(&passages, &[db.clone(), mail.clone()]);
        let (goes, stays) = (passages.open(&db, at(0)).unwrap(), passages.open(&mail, at(0)).unwrap());
        apply(&passages, std::slice::from_ref(&mail));
        assert!(passages.open(&db, at(1)).is_some(), "one that follows the former plan");
        passages.retire(at(1));
        passages.sweep(at(30));
        assert!(!goes.cut().is_cancelled());
        passages.sweep(at(31));
        assert!(goes.cut().is_cancelled() && !stays.cut().is_cancelled());
        assert!(passages.open(&db, at(32)).is_none());
        assert_eq!(passages.view().len(), 1);
    }

    #[test]
    fn what_comes_back_in_time_goes_on() {
        let (passages, begin) = (Passages::default(), clock::now());
        let db = course("db", "a");
        apply(&passages, std::slice::from_ref(&db));
        let passage = passages.open(&db, begin).unwrap();
        apply(&passages, &[]);
        passages.retire(begin);
        apply(&passages, std::slice::from_ref(&db));
        passages.retire(begin);
        passages.sweep(begin + Duration::from_secs(3600));
        assert!(!passage.cut().is_cancelled());
        passages.end_all();
        assert!(passage.cut().is_cancelled());
    }

    #[test]
    fn connections_and_their_bytes_are_counted() {
        let (passages, now) = (Passages::default(), clock::now());
        let db = course("db", "a");
        apply(&passages, std::slice::from_ref(&db));
        let (one, other) = (passages.open(&db, now).unwrap(), passages.open(&db, now).unwrap());
        one.count(3, 4);
        other.count(10, 20);
        drop(one);
        let view = &passages.view()[0];
        assert_eq!((view.open, view.opened, view.received, view.sent), (1, 2, 13, 24));
        drop(other);
        assert_eq!(passages.view()[0].open, 0);
    }
}
