//! Random requests, probes, failures and changes against a pool and a naive model of the rules, with a virtual clock.

use std::collections::BTreeMap;

use http::StatusCode;

use super::tests::{address_of, placed, probed, settings};
use super::*;
use crate::upstream::balance::Dice;
use crate::upstream::probe::ProbeFault;

#[test]
fn the_pool_agrees_with_the_rules_whatever_happens() {
    let mut seen: BTreeMap<&'static str, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            *seen.entry(world.step()).or_default() += 1;
            world.check();
        }
    }
    for what in [
        "chosen",
        "stayed",
        "stayed with one that leaves",
        "full",
        "nobody healthy",
        "nobody at all",
        "none untried",
        "panic",
        "before any probe",
        "ejected",
        "not ejected, for the others",
        "changed",
        "resolved",
        "probed",
    ] {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(
            times > 20,
            "the life is too tame: {what} happened {times} times of {seen:?}"
        );
    }
}

/// The pool, and what a naive reading of the rules knows of it.
struct World {
    dice: Dice,
    now: Instant,
    pool: Arc<Pool>,
    settings: Settings,
    targets: BTreeMap<usize, Target>,
    leases: Vec<(usize, Lease)>,
}

/// What the model knows of a target.
struct Target {
    placed: Placed,
    /// Results of probes, in order.
    probes: Vec<bool>,
    /// Failures that users saw since the last success or ejection.
    failures: u32,
    /// Ejections: when each began and ended.
    ejections: Vec<(Instant, Instant)>,
    leaving: Option<(Instant, bool)>,
}

impl Target {
    /// Behaviour sheet, section 3: three failures in a row bring it down, one success up.
    fn condition(&self) -> Condition {
        let row = self.probes.iter().rev().take_while(|good| !**good).count();
        if row >= THRESHOLD as usize {
            Condition::Unhealthy
        } else if self.probes.contains(&true) {
            Condition::Healthy
        } else {
            Condition::Unknown
        }
    }

    fn is_out(&self, now: Instant) -> bool {
        self.ejections.iter().any(|(began, ends)| *began <= now && now < *ends)
    }

    fn has_weight(&self) -> bool {
        self.leaving.is_none() && self.placed.weight > 0
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let (now, settings) = (crate::clock::now(), settings());
        let mut world = Self {
            dice: Dice(seed),
            now,
            pool: Pool::new("p", Some("web"), settings.clone(), now),
            settings,
            targets: BTreeMap::new(),
            leases: Vec::new(),
        };
        world.change(Cause::Configured);
        world
    }

    fn step(&mut self) -> &'static str {
        self.now += Duration::from_millis(self.dice.below(300));
        self.forget();
        match self.dice.below(40) {
            0 => self.change(Cause::Configured),
            1 => self.change(Cause::Resolved),
            2 => {
                self.now += Duration::from_secs(self.dice.below(40));
                "time passed"
            }
            3..12 => self.probe(),
            12..26 => self.finish(),
            _ => self.request(),
        }
    }

    /// Other targets, with other weights and caps; if the configuration is the cause, other settings too.
    fn change(&mut self, cause: Cause) -> &'static str {
        if cause == Cause::Configured {
            let one_in = |dice: &mut Dice, bound| dice.below(bound) == 0;
            self.settings.balance = match self.dice.below(2) {
                0 => Balance::RoundRobin,
                _ => Balance::LeastRequests,
            };
            self.settings.slow_start = one_in(&mut self.dice, 3).then(|| Duration::from_secs(20));
            self.settings.panic = one_in(&mut self.dice, 4).then_some(40);
            self.settings.ejection = (!one_in(&mut self.dice, 3)).then_some(RULE);
            self.settings.drain = Duration::from_secs(1 + self.dice.below(30));
        }
        let stays: Vec<_> = (0..TARGETS).filter(|_| self.dice.below(3) > 0).collect();
        let stays = if self.dice.below(12) == 0 { Vec::new() } else { stays };
        for (place, target) in &mut self.targets {
            let at = self.now + self.settings.drain;
            let cuts = cause == Cause::Configured;
            match target.leaving {
                _ if stays.contains(place) => target.leaving = None,
                Some((_, already)) if already || !cuts => {}
                _ => target.leaving = Some((at, cuts)),
            }
        }
        for place in &stays {
            let fresh = || Target {
                placed: placed(*place, 1, self.now),
                probes: Vec::new(),
                failures: 0,
                ejections: Vec::new(),
                leaving: None,
            };
            let target = self.targets.entry(*place).or_insert_with(fresh);
            target.placed.weight = self.dice.below(4) as u16;
            target.placed.max_requests = (self.dice.below(2) == 0).then(|| 1 + self.dice.below(3) as u32);
        }
        let put = stays.iter().map(|place| self.targets[place].placed.clone()).collect();
        self.pool.put(self.settings.clone(), put, cause, self.now);
        if cause == Cause::Configured {
            "changed"
        } else {
            "resolved"
        }
    }

    /// Drops from the model what is drained, and sees that the pool cut exactly what it should.
    fn forget(&mut self) {
        self.pool.keep_up(self.now);
        let now = self.now;
        let drained = |target: &Target| target.leaving.filter(|(at, _)| *at <= now);
        let over: Vec<_> = self
            .targets
            .iter()
            .filter_map(|(place, target)| Some((*place, drained(target)?.1)))
            .collect();
        for (place, cuts) in over {
            self.targets.remove(&place);
            // Each lease is looked at once: its target is not there any more.
            self.leases.retain(|(of, lease)| {
                if *of == place {
                    assert_eq!(lease.cut().is_cancelled(), cuts);
                }
                *of != place
            });
        }
    }

    fn probe(&mut self) -> &'static str {
        let (place, good) = (self.dice.below(TARGETS as u64) as usize, self.dice.below(5) > 1);
        let Some(target) = self.targets.get_mut(&place) else {
            return "nothing";
        };
        let outcome = if good { Ok(Some(200)) } else { Err(ProbeFault::Closed) };
        target
            .placed
            .check
            .note(probed(address_of(place), outcome), THRESHOLD, self.now);
        target.probes.push(good);
        "probed"
    }

    /// A request ends, well or not.
    fn finish(&mut self) -> &'static str {
        if self.leases.is_empty() {
            return "nothing";
        }
        let held = self.dice.below(self.leases.len() as u64) as usize;
        let (place, lease) = self.leases.swap_remove(held);
        let kind = self.dice.below(5);
        let outcome = match kind {
            0 => Outcome::Answered(StatusCode::OK),
            1 => Outcome::Failed(WebFault::ClientClosed),
            2 => Outcome::Failed(WebFault::UpstreamTimeout),
            _ => Outcome::Answered(StatusCode::BAD_GATEWAY),
        };
        lease.report(outcome, self.now);
        match kind {
            0 => {
                self.target(place).failures = 0;
                "went well"
            }
            1 => "left",
            _ => self.failed(place),
        }
    }

    fn failed(&mut self, place: usize) -> &'static str {
        let now = self.now;
        self.target(place).failures += 1;
        let Some(rule) = self.settings.ejection else {
            return "failed";
        };
        if self.target(place).failures < rule.failures {
            return "failed";
        }
        self.target(place).failures = 0;
        let all = self.targets.values().filter(|target| target.has_weight());
        let (all, out) = (all.clone().count(), all.filter(|target| target.is_out(now)).count());
        let share = (all * usize::from(rule.max_percent) / 100).max(usize::from(all > 1));
        let target = self.target(place);
        if target.is_out(now) || out >= share {
            return "not ejected, for the others";
        }
        let mut row = 1;
        let mut begin = now;
        for (began, ends) in target.ejections.iter().rev() {
            if begin >= *ends + (*ends - *began) {
                break;
            }
            (row, begin) = (row + 1, *began);
        }
        let lasts = (rule.base * row).min(Duration::from_secs(300));
        target.ejections.push((now, now + lasts));
        "ejected"
    }

    fn request(&mut self) -> &'static str {
        let now = self.now;
        let place = self.dice.below(TARGETS as u64) as usize;
        let id = |place: usize| TargetId::new(&address_of(place).ip().to_string(), address_of(place), Some("web"));
        let hint = (self.dice.below(3) == 0).then_some(place);
        let tried: Vec<_> = (0..TARGETS)
            .filter(|_| hint.is_none() && self.dice.below(6) == 0)
            .collect();
        let (allowed, is_panic) = self.allowed();
        let picked = if hint.is_some() {
            self.pool.pick(hint.map(id).as_ref(), now)
        } else {
            let tried: Vec<_> = tried.iter().copied().map(id).collect();
            self.pool.pick_besides(&tried, now)
        };
        let stays = hint.filter(|place| {
            let wanted = self.targets.get(place);
            wanted.is_some_and(|target| {
                let is_well = target.condition() != Condition::Unhealthy && !target.is_out(now);
                (is_well || is_panic) && self.has_room(*place)
            })
        });
        let with_room: Vec<_> = allowed
            .iter()
            .copied()
            .filter(|place| self.has_room(*place) && !tried.contains(place))
            .collect();
        match picked {
            Ok(lease) => {
                let got = (0..TARGETS).find(|place| id(*place) == *lease.target()).unwrap();
                assert_eq!(lease.address(), address_of(got));
                self.leases.push((got, lease));
                if let Some(place) = stays {
                    assert_eq!(got, place, "a client leaves a target that is well");
                    let leaves = self.targets[&place].leaving.is_some();
                    return if leaves {
                        "stayed with one that leaves"
                    } else {
                        "stayed"
                    };
                }
                assert!(with_room.contains(&got), "{got} is none of {with_room:?}");
                if is_panic {
                    "panic"
                } else if self.targets[&got].condition() == Condition::Unknown {
                    "before any probe"
                } else {
                    "chosen"
                }
            }
            Err(fault) => {
                assert_eq!((stays, &*with_room), (None, &[][..]), "{fault}");
                let is_empty = self.targets.values().all(|target| target.leaving.is_some());
                let (expected, what) = if is_empty && allowed.is_empty() {
                    (WebFault::NoTarget, "nobody at all")
                } else if allowed.is_empty() {
                    (WebFault::NoHealthyTarget, "nobody healthy")
                } else if allowed.iter().all(|place| tried.contains(place)) {
                    (WebFault::NoHealthyTarget, "none untried")
                } else {
                    (WebFault::Saturated, "full")
                };
                assert_eq!(fault, expected);
                what
            }
        }
    }

    /// Who may be given a new request, and whether because of panic.
    fn allowed(&self) -> (Vec<usize>, bool) {
        let now = self.now;
        let all: Vec<_> = self.targets.iter().filter(|(_, target)| target.has_weight()).collect();
        let those = |wanted: &dyn Fn(&Target) -> bool| -> Vec<_> {
            all.iter()
                .filter(|(_, target)| wanted(target))
                .map(|(place, _)| **place)
                .collect()
        };
        let well = those(&|target| target.condition() == Condition::Healthy && !target.is_out(now));
        if self
            .settings
            .panic
            .is_some_and(|panic| well.len() * 100 < all.len() * usize::from(panic))
        {
            return (those(&|_| true), true);
        }
        if well.is_empty() {
            return (
                those(&|target| target.condition() == Condition::Unknown && !target.is_out(now)),
                false,
            );
        }
        (well, false)
    }

    fn has_room(&self, place: usize) -> bool {
        let cap = self.targets[&place].placed.max_requests.unwrap_or(u32::MAX);
        self.in_flight(place) < cap
    }

    fn in_flight(&self, place: usize) -> u32 {
        self.leases.iter().filter(|(of, _)| *of == place).count() as u32
    }

    fn target(&mut self, place: usize) -> &mut Target {
        self.targets.get_mut(&place).unwrap()
    }

    fn check(&mut self) {
        self.forget();
        let view = self.pool.view(self.now);
        assert_eq!(view.targets.len(), self.targets.len());
        assert_eq!(self.pool.roster().targets().count(), self.targets.len());
        for seen in view.targets {
            let place = (0..TARGETS).find(|place| address_of(*place) == seen.address).unwrap();
            let target = &self.targets[&place];
            assert_eq!(seen.condition, target.condition());
            assert_eq!(seen.in_flight, self.in_flight(place));
            assert_eq!(seen.ejected.is_some(), target.is_out(self.now));
            assert_eq!(seen.draining, target.leaving.map(|(at, _)| at - self.now));
            assert_eq!(seen.results.len(), target.probes.len().min(20));
        }
        for (_, lease) in &self.leases {
            assert!(!lease.cut().is_cancelled(), "cut before the end of its drain");
        }
    }
}

const RULE: Ejection = Ejection {
    failures: 3,
    base: Duration::from_secs(10),
    max_percent: 30,
};
const THRESHOLD: u32 = 3;
const TARGETS: usize = 7;
const SEEDS: u64 = 60;
const STEPS: usize = 800;
