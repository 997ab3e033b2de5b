//! Counts of requests of the web by rule, and of exchanges with targets by pool.
//!
//! Whoever serves requests holds the counts of its rule and of its pool: counting is a few additions, without a lock or a
//! look-up. They outlive configurations; a name that is no longer configured goes when nobody counts under it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::fault::WebFault;

/// All counts of a node.
#[derive(Debug, Default)]
pub struct Traffic {
    rules: Mutex<BTreeMap<Box<str>, Arc<Requests>>>,
    pools: Mutex<BTreeMap<Box<str>, Arc<Exchanges>>>,
    /// Of requests that no rule is for.
    unruled: Arc<Requests>,
    faults: [AtomicU64; WebFault::ALL.len()],
}

impl Traffic {
    /// The counts of a rule.
    pub fn rule(&self, name: &str) -> Arc<Requests> {
        self.rules.lock().entry(name.into()).or_default().clone()
    }

    /// The counts of a pool.
    pub fn pool(&self, name: &str) -> Arc<Exchanges> {
        self.pools.lock().entry(name.into()).or_default().clone()
    }

    /// The counts of requests that no rule is for.
    pub fn unruled(&self) -> &Requests {
        &self.unruled
    }

    /// Visits every count, with the words and names for it.
    pub fn each(&self, mut visit: impl FnMut(&[&str], &AtomicU64)) {
        for (name, rule) in &*self.rules.lock() {
            rule.each(&["rule", name], &mut visit);
        }
        self.unruled.each(&["no rule"], &mut visit);
        for (name, pool) in &*self.pools.lock() {
            pool.connected.each(&["connected", name], &mut visit);
            pool.first_byte.each(&["first byte", name], &mut visit);
            visit(&["unreached", name], &pool.unreached);
        }
        for (fault, count) in WebFault::ALL.into_iter().zip(&self.faults) {
            visit(&["web fault", fault.code()], count);
        }
    }

    /// Forgets names under which nobody counts any more.
    pub fn forget(&self) {
        self.rules.lock().retain(|_, counts| Arc::strong_count(counts) > 1);
        self.pools.lock().retain(|_, counts| Arc::strong_count(counts) > 1);
    }

    /// Counts a request that was not answered by its target, or not wholly.
    pub fn fault(&self, fault: WebFault) {
        add(&self.faults[fault as usize], 1);
    }

    /// Requests that were not, by the reason.
    pub fn faults(&self) -> impl Iterator<Item = (WebFault, u64)> {
        WebFault::ALL
            .into_iter()
            .zip(&self.faults)
            .map(|(fault, count)| (fault, read(count)))
    }

    /// The rules that had any request, by name; the empty name is of those that no rule is for.
    pub fn rules(&self) -> Vec<(Box<str>, Arc<Requests>)> {
        let rules = self.rules.lock();
        let named = rules.iter().map(|(name, counts)| (name.clone(), counts.clone()));
        let all = std::iter::once((Box::from(""), self.unruled.clone())).chain(named);
        all.filter(|(_, counts)| counts.is_used()).collect()
    }

    /// The pools that had any request, by name.
    pub fn pools(&self) -> Vec<(Box<str>, Arc<Exchanges>)> {
        let pools = self.pools.lock();
        let used = pools.iter().filter(|(_, counts)| counts.is_used());
        used.map(|(name, counts)| (name.clone(), counts.clone())).collect()
    }
}

/// The requests of one rule.
#[derive(Debug, Default)]
pub struct Requests {
    /// By the first digit of the status, from 1.
    by_class: [Spread; CLASSES.len()],
    received: AtomicU64,
    sent: AtomicU64,
}

impl Requests {
    /// Counts a request that has ended: how it was answered, how long it took, and the bytes of both bodies.
    pub fn count(&self, status: u16, taken: Duration, (received, sent): (u64, u64)) {
        let class = usize::from(status / 100).saturating_sub(1).min(CLASSES.len() - 1);
        self.by_class[class].note(taken);
        if received > 0 {
            add(&self.received, received);
        }
        if sent > 0 {
            add(&self.sent, sent);
        }
    }

    /// How many there were, by the class of the status, such as `2xx`.
    pub fn by_class(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CLASSES
            .into_iter()
            .zip(&self.by_class)
            .map(|(class, spread)| (class, spread.read().count()))
    }

    /// How long they took, from the head of the request to the last byte.
    pub fn taken(&self) -> Distribution {
        let all = self.by_class.iter().map(Spread::read);
        all.fold(Distribution::default(), Distribution::and)
    }

    /// Bytes of their bodies, and of those of their answers.
    pub fn bytes(&self) -> (u64, u64) {
        (read(&self.received), read(&self.sent))
    }

    fn each(&self, of: &[&str], visit: &mut impl FnMut(&[&str], &AtomicU64)) {
        for (class, spread) in CLASSES.into_iter().zip(&self.by_class) {
            spread.each(&[of, &[class]].concat(), visit);
        }
        visit(&[of, &["received"]].concat(), &self.received);
        visit(&[of, &["sent"]].concat(), &self.sent);
    }

    fn is_used(&self) -> bool {
        self.by_class().any(|(_, count)| count > 0)
    }
}

/// What passed between the node and the targets of one pool.
#[derive(Debug, Default)]
pub struct Exchanges {
    connected: Spread,
    first_byte: Spread,
    unreached: AtomicU64,
}

impl Exchanges {
    /// Counts a connection to a target, with its TLS.
    pub fn connected(&self, taken: Duration) {
        self.connected.note(taken);
    }

    /// Counts an answer whose head has come so long after its request was sent.
    pub fn first_byte(&self, taken: Duration) {
        self.first_byte.note(taken);
    }

    /// Counts a connection that did not come about.
    pub fn unreached(&self) {
        add(&self.unreached, 1);
    }

    /// How long connecting took.
    pub fn connect_times(&self) -> Distribution {
        self.connected.read()
    }

    /// How long targets took to answer.
    pub fn answer_times(&self) -> Distribution {
        self.first_byte.read()
    }

    /// Connections that did not come about.
    pub fn failures(&self) -> u64 {
        read(&self.unreached)
    }

    fn is_used(&self) -> bool {
        self.failures() + self.connected.read().count() + self.first_byte.read().count() > 0
    }
}

/// How often something took how long.
#[derive(Debug, Default)]
struct Spread {
    counts: [AtomicU64; PLACES],
    micros: AtomicU64,
}

impl Spread {
    fn note(&self, taken: Duration) {
        let micros = u64::try_from(taken.as_micros()).unwrap_or(u64::MAX);
        let place = BOUNDS.partition_point(|(bound, _)| *bound < micros);
        add(&self.counts[place], 1);
        add(&self.micros, micros);
    }

    fn each(&self, of: &[&str], visit: &mut impl FnMut(&[&str], &AtomicU64)) {
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain(["+Inf"]);
        for (bound, count) in bounds.zip(&self.counts) {
            visit(&[of, &[bound]].concat(), count);
        }
        visit(&[of, &["micros"]].concat(), &self.micros);
    }

    fn read(&self) -> Distribution {
        Distribution {
            counts: self.counts.each_ref().map(read),
            sum: Duration::from_micros(read(&self.micros)),
        }
    }
}

/// How often something took how long, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    counts: [u64; PLACES],
    sum: Duration,
}

impl Distribution {
    /// How often it happened.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How long all of it took together.
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// How often it took at most so many seconds; the last is all.
    pub fn up_to(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let bounds = BOUNDS.iter().map(|(_, seconds)| *seconds).chain(["+Inf"]);
        let mut so_far = 0;
        bounds.zip(self.counts).map(move |(bound, count)| {
            so_far += count;
            (bound, so_far)
        })
    }

    fn and(mut self, other: Self) -> Self {
        for (own, count) in self.counts.iter_mut().zip(other.counts) {
            *own += count;
        }
        self.sum = self.sum.saturating_add(other.sum);
        self
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Bounds of what is counted together, in microseconds and as text in seconds.
const BOUNDS: [(u64, &str); 14] = [
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (5_000_000, "5"),
    (10_000_000, "10"),
];

const PLACES: usize = BOUNDS.len() + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_counted_once_where_it_belongs() {
        let traffic = Traffic::default();
        let shop = traffic.rule("shop");
        shop.count(200, Duration::from_micros(500), (0, 10));
        shop.count(204, Duration::from_micros(501), (7, 0));
        shop.count(499, Duration::from_secs(11), (0, 0));
        let by_class: Vec<_> = shop.by_class().collect();
        assert_eq!(by_class, [("1xx", 0), ("2xx", 2), ("3xx", 0), ("4xx", 1), ("5xx", 0)]);
        assert_eq!(shop.bytes(), (7, 10));
        let taken = shop.taken();
        assert_eq!((taken.count(), taken.sum()), (3, Duration::from_micros(11_001_001)));
        let up_to: Vec<_> = taken.up_to().collect();
        assert_eq!(
            (up_to[0], up_to[1], up_to[13]),
            (("0.0005", 1), ("0.001", 2), ("10", 2))
        );
        assert_eq!(up_to[14], ("+Inf", 3));
        // No status is outside of them.
        for status in [0, 99, 100, 600, u16::MAX] {
            shop.count(status, Duration::MAX, (0, 0));
        }
        assert_eq!(shop.taken().count(), 8);
    }

    #[test]
    fn names_go_when_nobody_counts_under_them() {
        let traffic = Traffic::default();
        let (kept, pool) = (traffic.rule("kept"), traffic.pool("pool"));
        traffic.rule("gone").count(200, Duration::ZERO, (0, 0));
        kept.count(200, Duration::ZERO, (0, 0));
        pool.unreached();
        traffic.forget();
        assert_eq!(
            traffic.rule("kept").taken().count(),
            1,
            "the same counts are found again"
        );
        assert_eq!((traffic.rules().len(), traffic.pools().len()), (1, 1));
        traffic.unruled().count(404, Duration::ZERO, (0, 0));
        assert_eq!(&*traffic.rules()[0].0, "");
    }

    #[test]
    fn each_fault_has_its_own_count() {
        let traffic = Traffic::default();
        for (number, fault) in WebFault::ALL.into_iter().enumerate() {
            assert_eq!(
                fault as usize, number,
                "the list stands in the order of the declaration"
            );
            traffic.fault(fault);
        }
        assert!(traffic.faults().all(|(_, count)| count == 1));
    }
}
