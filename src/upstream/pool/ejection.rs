//! How long a target is left out for its answers to users. Pure.

use std::time::{Duration, Instant};

use crate::config::web::Ejection;

/// The ejections of one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ejections {
    last: Option<Last>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    until: Instant,
    lasted: Duration,
    /// How many there were in a row.
    row: u32,
}

impl Ejections {
    /// Leaves the target out from `now`: for the rule's base time, times the number of ejections in a row, but not for
    /// longer than [`LONGEST`] or once the base. A row ends when the target has been back for as long as it was out.
    pub(super) fn eject(&mut self, rule: &Ejection, now: Instant) {
        let goes_on = |last: &Last| now < last.until + last.lasted;
        let row = self.last.filter(goes_on).map_or(1, |last| last.row.saturating_add(1));
        let lasted = rule.base.saturating_mul(row).min(LONGEST.max(rule.base));
        self.last = Some(Last {
            until: now + lasted,
            lasted,
            row,
        });
    }

    /// Until when it is out, if it is.
    pub(super) fn out_until(&self, now: Instant) -> Option<Instant> {
        self.last.map(|last| last.until).filter(|until| now < *until)
    }

    /// Since when it is back, if it was out.
    pub(super) fn back_since(&self, now: Instant) -> Option<Instant> {
        self.last.map(|last| last.until).filter(|until| *until <= now)
    }
}

/// Whether one more of `all` may be out beside those that are: so that not more than the percentage is, rounded down, but
/// one of several always may.
pub(super) fn may_eject(out: usize, all: usize, max_percent: u8) -> bool {
    let share = all * usize::from(max_percent) / 100;
    let least = usize::from(all > 1 && max_percent > 0);
    out < share.max(least)
}

/// No ejection lasts longer, unless its base does.
pub(super) const LONGEST: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RULE: Ejection = Ejection {
        failures: 5,
        base: Duration::from_secs(30),
        max_percent: 10,
    };

    #[test]
    fn ejections_in_a_row_grow_and_a_good_while_forgives_them() {
        let begin = crate::clock::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut ejections = Ejections::default();
        assert_eq!(ejections.out_until(at(0)), None);
        ejections.eject(&RULE, at(0));
        assert_eq!(ejections.out_until(at(29)), Some(at(30)));
        assert_eq!(
            (ejections.out_until(at(30)), ejections.back_since(at(30))),
            (None, Some(at(30)))
        );
        ejections.eject(&RULE, at(59));
        assert_eq!(ejections.out_until(at(59)), Some(at(119)), "twice the base");
        ejections.eject(&RULE, at(120));
        assert_eq!(ejections.out_until(at(120)), Some(at(210)), "three times the base");
        ejections.eject(&RULE, at(300));
        assert_eq!(
            ejections.out_until(at(300)),
            Some(at(330)),
            "ninety seconds back: forgiven"
        );
    }

    #[test]
    fn no_ejection_lasts_for_ever() {
        let (mut ejections, mut now) = (Ejections::default(), crate::clock::now());
        for _ in 0..100 {
            ejections.eject(&RULE, now);
            now = ejections.out_until(now).unwrap();
        }
        ejections.eject(&RULE, now);
        assert_eq!(ejections.out_until(now), Some(now + LONGEST));
    }

    #[test]
    fn one_of_several_may_always_be_out_and_the_only_one_not() {
        assert!(may_eject(0, 2, 10) && !may_eject(1, 2, 10));
        assert!(!may_eject(0, 1, 99) && may_eject(0, 1, 100));
        assert!(may_eject(1, 20, 10) && !may_eject(2, 20, 10));
        assert!(!may_eject(0, 20, 0));
    }

    proptest! {
        #[test]
        fn never_more_are_out_than_the_share(all in 0_usize..5000, percent in 0_u8..=100) {
            let out = (0..all).take_while(|out| may_eject(*out, all, percent)).count();
            let share = all * usize::from(percent) / 100;
            prop_assert!(out == share || (out == 1 && all > 1));
        }
    }
}
