//! Counts on their way to another process of the node, which goes on with them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Counts that only grow, each under words of closed lists and names of the configuration. Those that are zero are left
/// out, and those that nobody has a place for are passed over: another version may count other things.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Notes how far a count is.
    pub fn note(&mut self, of: &[&str], count: &AtomicU64) {
        let count = count.load(Ordering::Relaxed);
        if count > 0 {
            self.0.insert(key(of), count);
        }
    }

    /// Adds what was noted to a count.
    pub fn add_to(&self, of: &[&str], count: &AtomicU64) {
        if let Some(more) = self.0.get(&key(of)) {
            count.fetch_add(*more, Ordering::Relaxed);
        }
    }

    /// By how much each has grown since it was as in `before`.
    pub fn since(&self, before: &Self) -> Self {
        let grown = self.0.iter().filter_map(|(of, count)| {
            let more = count - before.0.get(of).copied().unwrap_or(0).min(*count);
            (more > 0).then(|| (of.clone(), more))
        });
        Self(grown.collect())
    }

    /// The same in parts of at most `many` counts; none, if there are no counts.
    pub fn into_parts(self, many: usize) -> Vec<Self> {
        let mut counts = self.0.into_iter().peekable();
        let mut parts = Vec::new();
        while counts.peek().is_some() {
            parts.push(Self(counts.by_ref().take(many).collect()));
        }
        parts
    }
}

fn key(of: &[&str]) -> String {
    // No name has a line break in it.
    of.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_elsewhere_comes_on_top_once() {
        let (here, there) = (AtomicU64::new(5), AtomicU64::new(7));
        let told = |before: &Tally| {
            let mut now = Tally::default();
            now.note(&["shop", "2xx"], &there);
            now.note(&["shop", "5xx"], &AtomicU64::new(0));
            (now.since(before), now)
        };
        let (first, so_far) = told(&Tally::default());
        first.add_to(&["shop", "2xx"], &here);
        first.add_to(&["shop", "5xx"], &here);
        assert_eq!(here.load(Ordering::Relaxed), 12);
        there.fetch_add(1, Ordering::Relaxed);
        let (second, so_far) = (told(&so_far).0, told(&so_far).1);
        second.add_to(&["shop", "2xx"], &here);
        assert_eq!(here.load(Ordering::Relaxed), 13);
        assert_eq!(told(&so_far).0.into_parts(9), []);
    }

    #[test]
    fn parts_hold_everything() {
        let mut all = Tally::default();
        for number in 0..25 {
            all.note(&[&number.to_string()], &AtomicU64::new(1));
        }
        let parts = all.clone().into_parts(10);
        assert_eq!(parts.iter().map(|part| part.0.len()).collect::<Vec<_>>(), [10, 10, 5]);
        assert_eq!(Tally(parts.into_iter().flat_map(|part| part.0).collect()), all);
    }
}
