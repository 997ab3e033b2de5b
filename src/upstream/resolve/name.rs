//! What is known of a name. Pure.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::upstream::balance::Dice;

/// The addresses of a name as last known.
#[derive(Clone, Debug, Default)]
pub(in crate::upstream) struct Name {
    v4: Vec<IpAddr>,
    v6: Vec<IpAddr>,
    failing: Option<Failing>,
    is_asked: bool,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    fault: DnsFault,
    since: Instant,
    times: u32,
}

/// What a name server says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) struct Answer {
    /// Its IPv4 addresses.
    pub(in crate::upstream) v4: Family,
    /// Its IPv6 addresses.
    pub(in crate::upstream) v6: Family,
}

/// What a name server says of a name's addresses of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Family {
    /// These, at least one, for so long.
    Has(Vec<IpAddr>, Duration),
    /// There are none.
    HasNone(DnsFault),
    /// It says nothing of use.
    Failed(DnsFault),
}

/// Why a name's addresses cannot be renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsFault {
    /// There is no such name (NXDOMAIN).
    #[error("there is no such name")]
    NoSuchName,
    /// There is, and it has no address.
    #[error("the name has no address")]
    NoAddress,
    /// No name server answered in time.
    #[error("no name server answers")]
    Timeout,
    /// The name servers refuse to answer, or fail.
    #[error("the name servers refuse or fail")]
    Refused,
    /// No name server is configured, or its address is of no use.
    #[error("there is no usable name server: set resolver.servers or see to /etc/resolv.conf")]
    NoServer,
}

impl DnsFault {
    /// The code in log and API.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoSuchName => "no_such_name",
            Self::NoAddress => "no_address",
            Self::Timeout => "dns_timeout",
            Self::Refused => "dns_refused",
            Self::NoServer => "no_dns_server",
        }
    }
}

/// What an answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Noted {
    /// Whether the addresses are others than before.
    pub(super) is_moved: bool,
    /// What an operator is to be told, once.
    pub(super) alarm: Option<Alarm>,
    /// When to ask again.
    pub(super) again: Duration,
}

/// What an operator is told of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alarm {
    /// It cannot be resolved any more.
    Began(DnsFault),
    /// It can again.
    Ended,
}

impl Name {
    /// The addresses, IPv4 first, each kind in order.
    pub(in crate::upstream) fn addresses(&self) -> Vec<IpAddr> {
        self.v4.iter().chain(&self.v6).copied().collect()
    }

    /// Whether there was any answer yet.
    pub(in crate::upstream) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Why they cannot be renewed, and since when.
    pub(in crate::upstream) fn fault(&self) -> Option<(DnsFault, Instant)> {
        self.failing.map(|failing| (failing.fault, failing.since))
    }

    /// Takes in an answer. Addresses of one kind stay as they are if the answer does not say what they are, and all of
    /// them if it does not name a single one.
    pub(super) fn note(&mut self, answer: Answer, now: Instant) -> Noted {
        let before = self.addresses();
        self.is_asked = true;
        let again = match (answer.v4, answer.v6) {
            (Family::Has(v4, v4_ttl), Family::Has(v6, v6_ttl)) => {
                self.v4 = ordered(v4);
                self.v6 = ordered(v6);
                v4_ttl.min(v6_ttl)
            }
            (Family::Has(v4, ttl), Family::HasNone(_)) => {
                self.v4 = ordered(v4);
                self.v6.clear();
                ttl
            }
            (Family::HasNone(_), Family::Has(v6, ttl)) => {
                self.v4.clear();
                self.v6 = ordered(v6);
                ttl
            }
            (Family::Has(v4, ttl), Family::Failed(_)) => {
                self.v4 = ordered(v4);
                ttl.min(MOST_PATIENCE)
            }
            (Family::Failed(_), Family::Has(v6, ttl)) => {
                self.v6 = ordered(v6);
                ttl.min(MOST_PATIENCE)
            }
            (Family::Failed(fault), _) | (_, Family::Failed(fault)) => return self.failed(fault, now),
            (Family::HasNone(one), Family::HasNone(other)) => {
                let fault = if one == other { one } else { DnsFault::NoAddress };
                return self.failed(fault, now);
            }
        };
        Noted {
            is_moved: self.addresses() != before,
            alarm: self.failing.take().map(|_| Alarm::Ended),
            again: again.clamp(SHORTEST, LONGEST),
        }
    }

    fn failed(&mut self, fault: DnsFault, now: Instant) -> Noted {
        let before = self.failing;
        let failing = Failing {
            fault,
            since: before.map_or(now, |failing| failing.since),
            times: before.map_or(0, |failing| failing.times.saturating_add(1)),
        };
        self.failing = Some(failing);
        Noted {
            is_moved: false,
            alarm: before.is_none().then_some(Alarm::Began(fault)),
            again: SHORTEST.saturating_mul(1 << failing.times.min(10)).min(MOST_PATIENCE),
        }
    }
}

/// A wait that is up to a sixteenth longer, so that not all names are asked for in the same moment; but not longer than
/// the longest.
pub(super) fn scattered(wait: Duration, dice: &mut Dice) -> Duration {
    let more = dice.below(wait.as_millis() as u64 / 16 + 1);
    (wait + Duration::from_millis(more)).min(LONGEST)
}

fn ordered(mut addresses: Vec<IpAddr>) -> Vec<IpAddr> {
    addresses.sort_unstable();
    addresses.dedup();
    addresses.truncate(MOST_ADDRESSES);
    addresses
}

/// Records that live shorter are asked for so often all the same.
const SHORTEST: Duration = Duration::from_secs(1);
/// Records that live longer are asked for so often all the same.
const LONGEST: Duration = Duration::from_secs(3600);
/// The longest wait after a failure.
const MOST_PATIENCE: Duration = Duration::from_secs(30);
/// Addresses of one kind that a name may have.
const MOST_ADDRESSES: usize = 256;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn has(addresses: &[u8]) -> Family {
        let v4 = |last: &u8| IpAddr::from([10, 0, 0, *last]);
        Family::Has(addresses.iter().map(v4).collect(), TTL)
    }

    fn has_six(last: u16) -> Family {
        Family::Has(vec![IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])], TTL)
    }

    fn answer(v4: Family, v6: Family) -> Answer {
        Answer { v4, v6 }
    }

    #[test]
    fn all_addresses_are_targets_and_their_order_is_none() {
        let now = crate::clock::now();
        let mut name = Name::default();
        let none = Family::HasNone(DnsFault::NoAddress);
        let noted = name.note(answer(has(&[2, 1, 1]), has_six(1)), now);
        assert_eq!((noted.is_moved, noted.again, noted.alarm), (true, TTL, None));
        assert_eq!(name.addresses().len(), 3);
        assert!(!name.note(answer(has(&[1, 2]), has_six(1)), now).is_moved);
        assert!(name.note(answer(has(&[1, 2]), none.clone()), now).is_moved);
        assert!(name.note(answer(none, has_six(7)), now).is_moved);
        assert_eq!(name.addresses().len(), 1);
    }

    #[test]
    fn a_failure_leaves_the_last_addresses_and_rings_once() {
        let now = crate::clock::now();
        let mut name = Name::default();
        name.note(answer(has(&[1]), has_six(1)), now);
        for (round, fault) in [DnsFault::NoSuchName, DnsFault::NoSuchName, DnsFault::NoAddress]
            .into_iter()
            .enumerate()
        {
            let gone = Family::HasNone(fault);
            let noted = name.note(answer(gone.clone(), gone), now);
            assert_eq!(noted.alarm, (round == 0).then_some(Alarm::Began(DnsFault::NoSuchName)));
            assert_eq!((noted.is_moved, noted.again.as_secs()), (false, 1 << round));
            assert_eq!(name.addresses().len(), 2);
            assert_eq!(name.fault(), Some((fault, now)));
        }
        let noted = name.note(answer(has(&[1]), has_six(1)), now);
        assert_eq!((noted.is_moved, noted.alarm), (false, Some(Alarm::Ended)));
        assert_eq!(name.fault(), None);
    }

    #[test]
    fn what_one_kind_of_record_failed_to_say_stays() {
        let now = crate::clock::now();
        let mut name = Name::default();
        name.note(answer(has(&[1]), has_six(1)), now);
        let noted = name.note(answer(has(&[2]), Family::Failed(DnsFault::Timeout)), now);
        assert_eq!((noted.is_moved, noted.alarm), (true, None));
        assert_eq!(noted.again, MOST_PATIENCE, "it is asked for again soon");
        assert_eq!(name.addresses().len(), 2);
        let noted = name.note(
            answer(Family::Failed(DnsFault::Timeout), Family::HasNone(DnsFault::NoAddress)),
            now,
        );
        assert_eq!(noted.alarm, Some(Alarm::Began(DnsFault::Timeout)));
        assert_eq!(name.addresses().len(), 2);
    }

    proptest! {
        /// Whatever is answered: addresses that were once known are never lost without others, and nothing is asked for
        /// more often than once a second or more seldom than once an hour.
        #[test]
        fn last_known_good_stays(answers in vec((family(), family()), 1..30), seed: u64) {
            let now = crate::clock::now();
            let (mut name, mut dice, mut knew) = (Name::default(), Dice(seed), false);
            for (v4, v6) in answers {
                let says_something = matches!(v4, Family::Has(..)) || matches!(v6, Family::Has(..));
                let before = name.addresses();
                let noted = name.note(Answer { v4, v6 }, now);
                knew |= says_something;
                prop_assert_eq!(!name.addresses().is_empty(), knew);
                prop_assert_eq!(noted.is_moved, name.addresses() != before);
                prop_assert_eq!(name.fault().is_none(), says_something);
                prop_assert!(says_something || !noted.is_moved);
                let wait = scattered(noted.again, &mut dice);
                prop_assert!((SHORTEST..=LONGEST).contains(&wait));
                prop_assert!(says_something || noted.again <= MOST_PATIENCE);
            }
        }
    }

    fn family() -> impl Strategy<Value = Family> {
        let address = (0_u8..6).prop_map(|last| IpAddr::from([10, 0, 0, last]));
        prop_oneof![
            (vec(address, 1..4), 0_u64..10_000)
                .prop_map(|(addresses, ttl)| Family::Has(addresses, Duration::from_secs(ttl))),
            Just(Family::HasNone(DnsFault::NoSuchName)),
            Just(Family::Failed(DnsFault::Timeout)),
        ]
    }
}
