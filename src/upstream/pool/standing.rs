//! Which targets of a pool are given new requests. Pure.

/// What is known of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing yet.
    Unknown,
    /// It does what its probe asks.
    Healthy,
    /// It does not.
    Unhealthy,
}

impl Condition {
    /// The code in log, metric and API.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Healthy => "healthy",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// What decides whether a target is given new requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// What its probe says.
    pub(super) condition: Condition,
    /// Whether it is left out for its answers to users.
    pub(super) is_ejected: bool,
    /// Its weight.
    pub(super) weight: u16,
}

impl Standing {
    fn is_well(self) -> bool {
        self.condition == Condition::Healthy && !self.is_ejected
    }
}

/// Who is given new requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Their places among the standings that were given, in order.
    pub(super) places: Vec<usize>,
    /// Whether so few are healthy that all are taken to be.
    pub(super) is_panic: bool,
}

/// Of targets that are not being drained, those that are given new requests: the healthy ones; with a panic threshold in
/// percent all, if fewer than that are healthy; and only if none is healthy, those of which nothing is known yet. Never
/// one without weight.
///
/// So a target that was added waits for its first probe, while a node that has just started answers at once.
pub(super) fn choose(standings: &[Standing], panic: Option<u8>) -> Chosen {
    let those = |wanted: fn(Standing) -> bool| -> Vec<_> {
        let wanted =
            |(place, standing): (usize, &Standing)| (standing.weight > 0 && wanted(*standing)).then_some(place);
        standings.iter().enumerate().filter_map(wanted).collect()
    };
    let well = those(Standing::is_well);
    if let Some(threshold) = panic {
        let all = those(|_| true);
        if well.len() * 100 < all.len() * usize::from(threshold) {
            return Chosen {
                places: all,
                is_panic: true,
            };
        }
    }
    let places = if well.is_empty() {
        those(|standing| standing.condition == Condition::Unknown && !standing.is_ejected)
    } else {
        well
    };
    Chosen {
        places,
        is_panic: false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::Condition::{Healthy, Unhealthy, Unknown};
    use super::*;

    fn chosen(conditions: &[Condition], panic: Option<u8>) -> Vec<usize> {
        let standings: Vec<_> = conditions
            .iter()
            .map(|condition| standing(*condition, false, 1))
            .collect();
        choose(&standings, panic).places
    }

    fn standing(condition: Condition, is_ejected: bool, weight: u16) -> Standing {
        Standing {
            condition,
            is_ejected,
            weight,
        }
    }

    #[test]
    fn an_added_target_waits_and_a_new_pool_does_not() {
        assert_eq!(chosen(&[Unknown, Unknown], None), [0, 1]);
        assert_eq!(chosen(&[Unknown, Healthy], None), [1]);
        assert_eq!(chosen(&[Unknown, Unhealthy], None), [0]);
        assert_eq!(chosen(&[Unhealthy, Unhealthy], None), [0; 0]);
    }

    #[test]
    fn below_the_panic_threshold_all_are_taken_to_be_healthy() {
        assert_eq!(chosen(&[Healthy, Unhealthy, Unhealthy], Some(34)), [0, 1, 2]);
        assert_eq!(chosen(&[Healthy, Unhealthy, Unhealthy], Some(33)), [0]);
        assert_eq!(chosen(&[Unhealthy, Unhealthy], Some(1)), [0, 1]);
        assert_eq!(chosen(&[Healthy, Healthy], Some(100)), [0, 1]);
    }

    #[test]
    fn one_without_weight_gets_nothing_and_counts_for_nothing() {
        let standings = [standing(Healthy, false, 0), standing(Unhealthy, false, 1)];
        assert_eq!(choose(&standings, None).places, [0; 0]);
        assert_eq!(choose(&standings, Some(50)).places, [1]);
    }

    #[test]
    fn an_ejected_one_is_left_out_unless_there_is_panic() {
        let standings = [standing(Healthy, true, 1), standing(Healthy, false, 1)];
        assert_eq!(choose(&standings, None).places, [1]);
        assert_eq!(choose(&standings, Some(51)).places, [0, 1]);
        assert_eq!(choose(&standings[..1], None).places, [0; 0]);
    }

    proptest! {
        #[test]
        fn nobody_is_chosen_who_should_not_be(of in vec((0..3_u8, any::<bool>(), 0..3_u16), 0..12), panic in proptest::option::of(1..=100_u8)) {
            let kinds = [Unknown, Healthy, Unhealthy];
            let standings: Vec<_> = of.iter().map(|(kind, out, weight)| standing(kinds[usize::from(*kind)], *out, *weight)).collect();
            let Chosen { places, is_panic } = choose(&standings, panic);
            prop_assert!(places.is_sorted());
            prop_assert!(!is_panic || panic.is_some());
            let some_well = standings.iter().any(|one| one.weight > 0 && one.is_well());
            for (place, one) in standings.iter().enumerate() {
                let right = if is_panic {
                    true
                } else if some_well {
                    one.is_well()
                } else {
                    one.condition == Unknown && !one.is_ejected
                };
                prop_assert_eq!(places.contains(&place), right && one.weight > 0);
            }
        }
    }
}
