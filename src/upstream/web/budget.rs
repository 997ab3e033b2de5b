//! How many requests may be sent again, so that failing targets are not asked twice as much for it.

use std::sync::atomic::{AtomicU32, Ordering};

/// A share of all requests, and a few.
#[derive(Debug)]
pub struct Budget {
    /// Hundredths of a try.
    saved: AtomicU32,
    /// What each request adds.
    share: u32,
}

impl Budget {
    /// `percent` further tries beside each hundred requests.
    pub fn new(percent: u8) -> Self {
        Self {
            saved: AtomicU32::new(FEW * TRY),
            share: u32::from(percent),
        }
    }

    /// Counts a request.
    pub fn deposit(&self) {
        // A share may be lost between the two, or the bound be passed by one: neither matters.
        let saved = self.saved.load(Ordering::Relaxed);
        if saved < MOST * TRY && self.share > 0 {
            self.saved.fetch_add(self.share, Ordering::Relaxed);
        }
    }

    /// Whether a further try is allowed; counts it then.
    pub fn withdraw(&self) -> bool {
        let less = |saved: u32| saved.checked_sub(TRY);
        self.saved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

const TRY: u32 = 100;
/// Tries that are there at the start, so that few requests can be tried again too.
const FEW: u32 = 10;
/// Tries that can be saved for a bad time.
const MOST: u32 = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_are_free_and_the_rest_is_a_share() {
        let budget = Budget::new(20);
        assert_eq!(withdrawn(&budget), FEW);
        for _ in 0..50 {
            budget.deposit();
        }
        assert_eq!(withdrawn(&budget), 10);
    }

    #[test]
    fn not_more_than_the_most_is_saved() {
        let budget = Budget::new(100);
        for _ in 0..10_000 {
            budget.deposit();
        }
        assert_eq!(withdrawn(&budget), MOST);
    }

    fn withdrawn(budget: &Budget) -> u32 {
        let mut count = 0;
        while budget.withdraw() {
            count += 1;
        }
        count
    }
}
