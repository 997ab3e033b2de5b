//! Which of the places that may be chosen is: in turn, or by how much each has to do. Pure but for one shared count.
//!
//! Places are numbers from 0; who stands there is the caller's. A choice costs the same however many there are, and
//! takes no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How much of the whole a place gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    weight: u16,
    rise: Option<Rise>,
}

/// A share that grows from its beginning to the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rise {
    /// When it began.
    pub(super) began: Instant,
    /// How long it takes.
    pub(super) takes: Duration,
}

impl Rise {
    /// When it is over.
    pub(super) fn ends(&self) -> Instant {
        self.began + self.takes
    }
}

impl Share {
    /// A weight of 1 or more, in whole once its rise is over.
    pub(super) fn new(weight: u16, rise: Option<Rise>) -> Self {
        debug_assert!(weight > 0, "a place without weight is none");
        Self { weight, rise }
    }

    /// The share at `now`, in parts of which [`WHOLE`] are a weight of 1. Never 0.
    fn at(&self, now: Instant) -> u64 {
        let part = self.rise.map_or(WHOLE, |rise| {
            let gone = now.saturating_duration_since(rise.began).as_nanos();
            let part = (gone * u128::from(WHOLE)).checked_div(rise.takes.as_nanos());
            part.map_or(WHOLE, |part| (part.min(u128::from(WHOLE)) as u64).max(LEAST))
        });
        u64::from(self.weight) * part
    }
}

/// The places that may be chosen, at least one, and which of them are known to be full.
#[derive(Debug)]
pub(super) struct Places {
    shares: Box<[Share]>,
    /// The largest share that there will be.
    most: u64,
    /// Whether all shares are the same and stay so.
    equal: bool,
    /// A bit a place.
    full: Box<[AtomicU64]>,
}

impl Places {
    /// Places with these shares, none of them known to be full.
    pub(super) fn new(shares: Vec<Share>) -> Self {
        debug_assert!(!shares.is_empty(), "there is nothing to choose from");
        let weights = || shares.iter().map(|share| share.weight);
        let most = weights().max().unwrap_or(1);
        let equal = weights().all(|weight| weight == most) && shares.iter().all(|share| share.rise.is_none());
        let full = (0..shares.len().div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        Self {
            most: u64::from(most) * WHOLE,
            equal,
            full,
            shares: shares.into_boxed_slice(),
        }
    }

    /// The next in turn. In a row of turns each place comes as often as its share says, and as evenly spread as it can.
    ///
    /// `turn` counts on from wherever it stands. The places stand in a circle; in each round a place is passed over
    /// unless its share, added up round by round, reaches the largest share once more. So a choice takes as many steps
    /// as the largest share is times the mean one, and nothing has to be computed when a share changes.
    pub(super) fn in_turn(&self, turn: &AtomicU64, now: Instant) -> usize {
        let count = self.shares.len() as u64;
        if self.equal {
            return (turn.fetch_add(1, Ordering::Relaxed) % count) as usize;
        }
        let mut from = turn.load(Ordering::Relaxed);
        loop {
            let at = self.first_due(from, now);
            match turn.compare_exchange_weak(from, at.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return (at % count) as usize,
                Err(moved) => from = moved,
            }
        }
    }

    /// The first count at or after `from` whose place is not passed over.
    fn first_due(&self, from: u64, now: Instant) -> u64 {
        let count = self.shares.len() as u64;
        let (mut round, mut place) = (from / count % self.most, (from % count) as usize);
        for step in 0..MOST_STEPS {
            let share = self.shares[place].at(now);
            if (share * round + scattered(place, self.most)) % self.most >= self.most - share {
                return from.wrapping_add(step);
            }
            place += 1;
            if place == self.shares.len() {
                (place, round) = (0, (round + 1) % self.most);
            }
        }
        // Shares as far apart as they can be, all of them rising: whoever stands here.
        from.wrapping_add(MOST_STEPS)
    }

    /// Of two places that are drawn as often as their shares say, the one with less to do for its share. `seed` is the
    /// draw: another for each.
    pub(super) fn of_two(&self, seed: u64, load: impl Fn(usize) -> u32, now: Instant) -> usize {
        let mut dice = Dice(seed);
        let one = self.draw(&mut dice, now);
        let other = self.draw_besides(one, &mut dice, now);
        let (one_share, other_share) = (self.shares[one].at(now), self.shares[other].at(now));
        let other_is_freer = u64::from(load(other)) * one_share < u64::from(load(one)) * other_share;
        if other_is_freer { other } else { one }
    }

    fn draw(&self, dice: &mut Dice, now: Instant) -> usize {
        for _ in 0..MOST_DRAWS {
            let place = dice.below(self.shares.len() as u64) as usize;
            if self.equal || dice.below(self.most) < self.shares[place].at(now) {
                return place;
            }
        }
        dice.below(self.shares.len() as u64) as usize
    }

    fn draw_besides(&self, one: usize, dice: &mut Dice, now: Instant) -> usize {
        let drawn = (0..FEW_DRAWS).map(|_| self.draw(dice, now)).find(|other| *other != one);
        drawn.unwrap_or((one + 1) % self.shares.len())
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.shares.len()
    }

    /// Notes that a place has no room. Whoever notes it looks once more afterwards whether that is still so, and whoever
    /// makes room takes it back after having made it: so no room is overlooked.
    pub(super) fn note_full(&self, place: usize) {
        self.full[place / BITS].fetch_or(1 << (place % BITS), Ordering::SeqCst);
    }

    /// Takes back that a place has no room. A place that is not there has none anyway.
    pub(super) fn note_room(&self, place: usize) {
        if let Some(word) = self.full.get(place / BITS) {
            word.fetch_and(!(1 << (place % BITS)), Ordering::SeqCst);
        }
    }

    /// The places not known to be full, each once, beginning near `from`.
    pub(super) fn with_room(&self, from: usize) -> impl Iterator<Item = usize> {
        let words = self.full.len();
        (0..words).flat_map(move |word| {
            let word = (word + from / BITS) % words;
            let inside = (self.count() - word * BITS).min(BITS);
            let all = if inside == BITS { u64::MAX } else { (1 << inside) - 1 };
            let mut free = !self.full[word].load(Ordering::SeqCst) & all;
            std::iter::from_fn(move || {
                let bit = free.trailing_zeros() as usize;
                free &= free.wrapping_sub(1);
                (bit < BITS).then_some(word * BITS + bit)
            })
        })
    }
}

/// Where in the rounds a place begins: far from its neighbours, so that light ones do not all come in the same round.
fn scattered(place: usize, most: u64) -> u64 {
    ((place as u64).wrapping_mul(GOLDEN) >> 32) % most
}

/// A small generator (splitmix64): no lock, no state but a number.
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    /// A number below `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ (mixed >> 31)) * u128::from(bound)) >> 64) as u64
    }
}

/// Parts of a weight of 1.
const WHOLE: u64 = 256;
/// What a place gets at the beginning of its rise: a tenth, so that it warms up at all.
const LEAST: u64 = WHOLE.div_ceil(10);
/// Weights are at most 256 apart, and rising ten times that.
const MOST_STEPS: u64 = 4096;
const MOST_DRAWS: usize = 64;
const FEW_DRAWS: usize = 4;
const BITS: usize = u64::BITS as usize;
/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn places(weights: &[u16]) -> Places {
        Places::new(weights.iter().map(|weight| Share::new(*weight, None)).collect())
    }

    fn turns(places: &Places, turn: &AtomicU64, count: usize) -> Vec<usize> {
        let now = crate::clock::now();
        (0..count).map(|_| places.in_turn(turn, now)).collect()
    }

    fn counts(chosen: &[usize], places: usize) -> Vec<usize> {
        (0..places)
            .map(|place| chosen.iter().filter(|one| **one == place).count())
            .collect()
    }

    #[test]
    fn equal_ones_take_turns() {
        assert_eq!(turns(&places(&[1, 1, 1]), &AtomicU64::new(0), 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(turns(&places(&[7]), &AtomicU64::new(9), 2), [0, 0]);
    }

    #[test]
    fn a_heavy_one_is_interrupted_by_the_light_ones() {
        let chosen = turns(&places(&[5, 1, 1]), &AtomicU64::new(0), 700);
        assert_eq!(counts(&chosen, 3), [500, 100, 100]);
        let mut row = 0;
        for one in chosen {
            row = if one == 0 { row + 1 } else { 0 };
            assert!(row <= 5, "the light ones come together");
        }
    }

    #[test]
    fn a_share_rises_to_the_whole_from_a_tenth() {
        let began = crate::clock::now();
        let takes = Duration::from_secs(10);
        let shares = vec![Share::new(1, None), Share::new(1, Some(Rise { began, takes }))];
        let (places, turn) = (Places::new(shares), AtomicU64::new(0));
        let mut portions = Vec::new();
        for seconds in [0, 2, 5, 9, 10, 60] {
            let now = began + Duration::from_secs(seconds);
            let chosen: Vec<_> = (0..1100).map(|_| places.in_turn(&turn, now)).collect();
            portions.push(counts(&chosen, 2)[1]);
        }
        assert!((95..=105).contains(&portions[0]), "{portions:?}");
        assert!(portions.is_sorted(), "{portions:?}");
        assert_eq!(portions[4..], [550, 550]);
    }

    #[test]
    fn of_two_the_one_with_less_to_do_for_its_share_is_chosen() {
        let now = crate::clock::now();
        let heavy = places(&[4, 1]);
        for seed in 0..200 {
            assert_eq!(heavy.of_two(seed, |place| [3, 1][place], now), 0);
            assert_eq!(heavy.of_two(seed, |place| [5, 1][place], now), 1);
        }
    }

    #[test]
    fn among_idle_ones_a_draw_follows_the_shares() {
        let now = crate::clock::now();
        let places = places(&[3, 1]);
        let chosen: Vec<_> = (0..4000).map(|seed| places.of_two(seed, |_| 0, now)).collect();
        let heavy = counts(&chosen, 2)[0];
        assert!((2900..3100).contains(&heavy), "{heavy} of 4000");
    }

    #[test]
    fn the_most_uneven_shares_do_not_hold_a_turn_up() {
        let mut weights = vec![1; 5000];
        weights[17] = 256;
        let chosen = turns(&places(&weights), &AtomicU64::new(0), 5255);
        assert_eq!(counts(&chosen, 5000)[17], 256);
    }

    proptest! {
        /// The definition: over as many turns as there is weight everyone comes exactly as often as its own says.
        #[test]
        fn in_turn_everyone_gets_the_share_of_the_weight(weights in vec(1_u16..=20, 1..12), from in 0..10_000_u64) {
            let whole: usize = weights.iter().map(|weight| usize::from(*weight)).sum();
            let places = places(&weights);
            let turn = AtomicU64::new(from * weights.len() as u64);
            let chosen = turns(&places, &turn, whole);
            let expected: Vec<_> = weights.iter().map(|weight| usize::from(*weight)).collect();
            prop_assert_eq!(counts(&chosen, weights.len()), expected);
        }

        /// In any row of turns nobody is further than two turns a weight away from the share.
        #[test]
        fn in_turn_nobody_waits_long(weights in vec(1_u16..=9, 2..8), skip in 0_usize..200, length in 1_usize..200) {
            let (places, turn) = (places(&weights), AtomicU64::new(0));
            turns(&places, &turn, skip);
            let chosen = turns(&places, &turn, length);
            let whole: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
            let slack = weights.len() as f64 + 2.0;
            for (place, count) in counts(&chosen, weights.len()).into_iter().enumerate() {
                let fair = length as f64 * f64::from(weights[place]) / whole;
                prop_assert!((count as f64 - fair).abs() <= slack, "{count} instead of {fair} of {weights:?}");
            }
        }

        #[test]
        fn exactly_those_with_room_are_found(full in vec(any::<bool>(), 1..200), from in 0_usize..200) {
            let places = places(&vec![1; full.len()]);
            for (place, is_full) in full.iter().enumerate() {
                places.note_full(place);
                if !is_full {
                    places.note_room(place);
                }
            }
            let mut found: Vec<_> = places.with_room(from % full.len()).collect();
            found.sort_unstable();
            let expected: Vec<_> = (0..full.len()).filter(|place| !full[*place]).collect();
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn a_draw_is_always_of_a_place(weights in vec(1_u16..=256, 1..40), seed: u64) {
            let places = places(&weights);
            prop_assert!(places.of_two(seed, |place| place as u32, crate::clock::now()) < weights.len());
        }
    }
}
