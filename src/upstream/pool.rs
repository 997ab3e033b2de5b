//! A pool at work: which of its targets gets a request, and what is remembered of each.
//!
//! A choice reads one immutable [`Round`] and a few counts; it takes no lock, and costs the same for five targets as for
//! five thousand. Whoever changes something that the round depends on (a probe, an ejection, the configuration, the
//! names' addresses) says that it is due, and the next choice makes another. So nothing here runs by itself, and time
//! is always an argument.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::balance::{Places, Rise, Share};
use super::probe::Check;
use crate::config::web::{Balance, Ejection};
use crate::fault::WebFault;

mod due;
mod ejection;
mod lease;
mod roster;
mod standing;
mod view;

use due::Due;
use ejection::{Ejections, may_eject};
pub use lease::{Lease, Outcome};
#[cfg(test)]
pub(crate) use roster::DeriveNothing;
pub use roster::{Derive, Roster, TargetId};
pub use standing::Condition;
use standing::Standing;
pub use view::{Census, PoolView, TargetView};

/// The targets of a pool, as one backend speaks to them.
#[derive(Debug)]
pub struct Pool {
    name: Box<str>,
    backend: Option<Box<str>>,
    core: Mutex<Core>,
    round: ArcSwap<Round>,
    /// Counts choices.
    turn: AtomicU64,
    /// When another round is to be made.
    due: Due,
    me: Weak<Self>,
}

/// How a pool works.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) balance: Balance,
    pub(super) slow_start: Option<Duration>,
    pub(super) panic: Option<u8>,
    pub(super) ejection: Option<Ejection>,
    /// How long what runs on a target that was taken away goes on.
    pub(super) drain: Duration,
    /// What becomes of the roster.
    pub(super) derive: Arc<dyn Derive>,
}

/// A target at one of its addresses.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    /// As configured: a name or an address.
    pub(super) host: Arc<str>,
    pub(super) address: SocketAddr,
    pub(super) weight: u16,
    pub(super) max_requests: Option<u32>,
    /// What probes know of it.
    pub(super) check: Arc<Check>,
}

/// Why targets are put into a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// By the configuration: what is taken away is cut at the end of its drain.
    Configured,
    /// By names that have other addresses: what runs on the former ones goes on.
    Resolved,
}

/// What is known of each target, and who is chosen from it. Behind a lock that no choice waits for.
#[derive(Debug)]
struct Core {
    settings: Settings,
    entries: Vec<Entry>,
    roster: Arc<Roster>,
}

#[derive(Debug)]
struct Entry {
    member: Arc<Member>,
    weight: u16,
    cap: Option<u32>,
    ejections: Ejections,
    leaving: Option<Leaving>,
}

/// The end of a target that was taken away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaving {
    at: Instant,
    /// Whether what still runs is cut then.
    cuts: bool,
}

/// What requests share of a target.
#[derive(Debug)]
struct Member {
    id: TargetId,
    host: Arc<str>,
    address: SocketAddr,
    check: Arc<Check>,
    pool: Weak<Pool>,
    /// Requests that it has.
    in_flight: AtomicU32,
    /// Failures in a row that users saw.
    failures: AtomicU32,
    is_ejected: AtomicBool,
    /// Whether it may have a limited number of requests.
    is_capped: AtomicBool,
    /// Its place in the round that is made or about to be.
    place: AtomicUsize,
    cut: CancellationToken,
}

/// Everything that choices need, until the next round is made.
#[derive(Debug)]
struct Round {
    /// Those that get new requests.
    seats: Vec<Seat>,
    /// Their places; `None` if there is nobody.
    places: Option<Places>,
    /// Why nobody is there.
    fault: WebFault,
    is_panic: bool,
    balance: Balance,
    /// Failures in a row after which a target may be ejected.
    ejects_after: Option<u32>,
    roster: Arc<Roster>,
}

#[derive(Debug)]
struct Seat {
    member: Arc<Member>,
    cap: Option<u32>,
}

impl Pool {
    /// A pool without targets yet.
    pub(super) fn new(name: &str, backend: Option<&str>, settings: Settings, now: Instant) -> Arc<Self> {
        let roster = Arc::new(Roster {
            by_id: HashMap::new(),
            derived: settings.derive.derive(name, backend, &mut std::iter::empty()),
        });
        Arc::new_cyclic(|me| Self {
            name: name.into(),
            backend: backend.map(Box::from),
            round: ArcSwap::from_pointee(Round::empty(&settings, roster.clone())),
            core: Mutex::new(Core {
                settings,
                entries: Vec::new(),
                roster,
            }),
            turn: AtomicU64::new(0),
            due: Due::new(now),
            me: me.clone(),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The backend by which its targets are spoken to; `None` is the default one.
    pub fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }

    /// A target for a request: the one of `hint`, if it is there and not known to be unwell, even if it is being drained
    /// or has no weight; or else one that is chosen among those that may be.
    ///
    /// # Errors
    /// [`NoTarget`](WebFault::NoTarget) if there is none, or no name was resolved yet,
    /// [`NoHealthyTarget`](WebFault::NoHealthyTarget) or, if all have as many requests as they may have,
    /// [`Saturated`](WebFault::Saturated).
    pub fn pick(&self, hint: Option<&TargetId>, now: Instant) -> Result<Lease, WebFault> {
        self.keep_up(now);
        let round = self.round.load();
        let stays = hint.and_then(|hint| round.stay(hint));
        stays.map_or_else(|| self.choose(&round, &[], now), Ok)
    }

    /// A target for a further try, none of those that were tried.
    ///
    /// # Errors
    /// As [`pick`](Self::pick); no healthy target, if all have been tried.
    pub fn pick_besides(&self, tried: &[TargetId], now: Instant) -> Result<Lease, WebFault> {
        self.keep_up(now);
        self.choose(&self.round.load(), tried, now)
    }

    /// The targets that clients may stay with.
    pub fn roster(&self) -> Arc<Roster> {
        self.round.load().roster.clone()
    }

    fn choose(&self, round: &Round, tried: &[TargetId], now: Instant) -> Result<Lease, WebFault> {
        let Some(places) = &round.places else {
            return Err(round.fault);
        };
        let take = |place: usize| {
            let was_tried = tried.contains(&round.seats[place].member.id);
            if was_tried { None } else { round.take(places, place) }
        };
        for _ in 0..TRIES {
            let place = match round.balance {
                Balance::RoundRobin => places.in_turn(&self.turn, now),
                Balance::LeastRequests => {
                    let seed = self.turn.fetch_add(1, Ordering::Relaxed);
                    places.of_two(seed, |place| round.seats[place].member.in_flight(), now)
                }
            };
            if let Some(lease) = take(place) {
                return Ok(lease);
            }
        }
        // Nearly all are full, or were tried: whoever has room.
        let from = self.turn.load(Ordering::Relaxed) as usize % places.count();
        let found = places.with_room(from).find_map(take);
        let all_tried = || round.seats.iter().all(|seat| tried.contains(&seat.member.id));
        found.ok_or_else(|| {
            if tried.len() >= places.count() && all_tried() {
                WebFault::NoHealthyTarget
            } else {
                WebFault::Saturated
            }
        })
    }
}

/// What changes a pool.
impl Pool {
    /// Puts these targets in the place of the former ones. Those that stay keep what is known of them, those that go are
    /// drained, those that come back while they are drained stay.
    pub(super) fn put(&self, settings: Settings, targets: Vec<Placed>, cause: Cause, now: Instant) {
        let mut core = self.core.lock();
        core.settings = settings;
        let drained = now + core.settings.drain;
        let mut former: HashMap<_, _> = core
            .entries
            .drain(..)
            .map(|entry| (entry.member.id.clone(), entry))
            .collect();
        let mut entries = Vec::with_capacity(targets.len());
        let mut placed = HashSet::with_capacity(targets.len());
        for target in targets {
            let id = TargetId::new(&target.host, target.address, self.backend());
            if !placed.insert(id.clone()) {
                continue;
            }
            let (member, ejections) = match former.remove(&id) {
                Some(entry) => (entry.member, entry.ejections),
                None => (self.member(id, &target), Ejections::default()),
            };
            member.is_capped.store(target.max_requests.is_some(), Ordering::SeqCst);
            target.check.tell(&self.me);
            entries.push(Entry {
                member,
                weight: target.weight,
                cap: target.max_requests,
                ejections,
                leaving: None,
            });
        }
        let mut gone: Vec<_> = former.into_values().collect();
        gone.sort_by(|one, other| one.member.id.as_str().cmp(other.member.id.as_str()));
        for mut entry in gone {
            let cuts = cause == Cause::Configured;
            let at = match entry.leaving {
                Some(leaving) if leaving.cuts || !cuts => leaving,
                Some(_) | None => Leaving { at: drained, cuts },
            };
            entry.leaving = Some(at);
            entries.push(entry);
        }
        core.entries = entries;
        self.list(&mut core);
        self.make_round(&mut core, now);
    }

    fn member(&self, id: TargetId, target: &Placed) -> Arc<Member> {
        Arc::new(Member {
            id,
            host: target.host.clone(),
            address: target.address,
            check: target.check.clone(),
            pool: self.me.clone(),
            in_flight: AtomicU32::new(0),
            failures: AtomicU32::new(0),
            is_ejected: AtomicBool::new(false),
            is_capped: AtomicBool::new(target.max_requests.is_some()),
            place: AtomicUsize::new(usize::MAX),
            cut: CancellationToken::new(),
        })
    }

    /// Says that something changed that the round depends on.
    pub(super) fn look_again(&self) {
        self.due.at_once();
    }

    /// Cuts what runs on targets whose drain is over. Nobody else does, where nobody asks for a target.
    pub(super) fn end_drains(&self, now: Instant) {
        self.make_round(&mut self.core.lock(), now);
    }

    /// Makes another round if one is due.
    fn keep_up(&self, now: Instant) {
        // Whoever holds the lock makes a round with what is known now.
        if self.due.has_come(now)
            && let Some(mut core) = self.core.try_lock()
        {
            self.make_round(&mut core, now);
        }
    }

    /// When the next target that is being drained is gone; `None` if none is being drained.
    pub(super) fn next_drained(&self) -> Option<Instant> {
        let core = self.core.lock();
        let leaving = core.entries.iter().filter_map(|entry| entry.leaving);
        leaving.map(|leaving| leaving.at).min()
    }

    /// Whether any target has a request.
    pub(super) fn is_in_use(&self) -> bool {
        let core = self.core.lock();
        core.entries.iter().any(|entry| entry.member.in_flight() > 0)
    }

    /// What probes look at for this pool: of all targets, those that are being drained too.
    pub(super) fn checks(&self) -> Vec<Arc<Check>> {
        let core = self.core.lock();
        core.entries.iter().map(|entry| entry.member.check.clone()).collect()
    }

    fn make_round(&self, core: &mut Core, now: Instant) {
        self.due
            .begin(now + ROUND_TAKES * (core.entries.len().saturating_sub(FEW) * ROUNDS_SHARE) as u32);
        if core.end_drains(now) {
            self.list(core);
        }
        let (round, due) = core.round(now);
        for (place, seat) in round.seats.iter().enumerate() {
            seat.member.place.store(place, Ordering::SeqCst);
        }
        self.round.store(Arc::new(round));
        if let Some(due) = due {
            self.due.no_later_than(due);
        }
    }

    /// Writes the roster anew.
    fn list(&self, core: &mut Core) {
        let seat = |entry: &Entry| (entry.member.id.clone(), entry.seat());
        let by_id: HashMap<_, _> = core.entries.iter().map(seat).collect();
        let derived = core
            .settings
            .derive
            .derive(&self.name, self.backend(), &mut by_id.keys());
        core.roster = Arc::new(Roster { by_id, derived });
    }

    /// A target has failed its users too often.
    fn eject(&self, member: &Member, now: Instant) {
        let mut core = self.core.lock();
        let Some(rule) = core.settings.ejection else {
            return;
        };
        let is_out = |entry: &Entry| entry.ejections.out_until(now).is_some();
        let staying = || {
            core.entries
                .iter()
                .filter(|entry| entry.leaving.is_none() && entry.weight > 0)
        };
        let may = may_eject(
            staying().filter(|entry| is_out(entry)).count(),
            staying().count(),
            rule.max_percent,
        );
        // Whether it is out or may not be: its next failures are counted from here.
        member.failures.store(0, Ordering::Relaxed);
        let ejected = core.entries.iter_mut().find(|entry| entry.member.id == member.id);
        let Some(entry) = ejected.filter(|entry| may && !is_out(entry)) else {
            return;
        };
        entry.ejections.eject(&rule, now);
        let until = entry.ejections.out_until(now).unwrap_or(now);
        tracing::warn!(
            pool = &*self.name,
            target = %member.id,
            seconds = until.duration_since(now).as_secs(),
            step = "upstream",
            "a target is left out: it failed {} requests in a row",
            rule.failures
        );
        self.make_round(&mut core, now);
    }
}

impl Core {
    /// Lets go of the targets whose drain is over; says whether there were any.
    fn end_drains(&mut self, now: Instant) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| match entry.leaving {
            Some(leaving) if leaving.at <= now => {
                if leaving.cuts {
                    entry.member.cut.cancel();
                }
                false
            }
            Some(_) | None => true,
        });
        self.entries.len() != before
    }

    /// The round of `now`, and when another is to be made.
    fn round(&self, now: Instant) -> (Round, Option<Instant>) {
        let staying: Vec<_> = self.entries.iter().filter(|entry| entry.leaving.is_none()).collect();
        let mut dues: Vec<_> = self
            .entries
            .iter()
            .filter_map(|entry| entry.leaving.map(|leaving| leaving.at))
            .collect();
        for entry in &self.entries {
            let out_until = entry.ejections.out_until(now);
            entry.member.is_ejected.store(out_until.is_some(), Ordering::Relaxed);
            entry.member.place.store(usize::MAX, Ordering::SeqCst);
            dues.extend(out_until);
        }
        let standings: Vec<_> = staying.iter().map(|entry| entry.standing()).collect();
        let chosen = standing::choose(&standings, self.settings.panic);
        let mut shares = Vec::with_capacity(chosen.places.len());
        let mut seats = Vec::with_capacity(chosen.places.len());
        for place in chosen.places {
            let entry = staying[place];
            let rise = self.rise(entry, now);
            dues.extend(rise.map(|rise| rise.ends()));
            shares.push(Share::new(entry.weight, rise));
            seats.push(entry.seat());
        }
        let round = Round {
            places: (!shares.is_empty()).then(|| Places::new(shares)),
            seats,
            is_panic: chosen.is_panic,
            fault: if staying.is_empty() {
                WebFault::NoTarget
            } else {
                WebFault::NoHealthyTarget
            },
            ..Round::empty(&self.settings, self.roster.clone())
        };
        (round, dues.into_iter().min())
    }

    /// The slow start of a target that has become healthy, or has come back from an ejection.
    fn rise(&self, entry: &Entry, now: Instant) -> Option<Rise> {
        let takes = self.settings.slow_start?;
        let began = entry
            .member
            .check
            .healthy_since()
            .max(entry.ejections.back_since(now))?;
        let rise = Rise { began, takes };
        (now < rise.ends()).then_some(rise)
    }
}

impl Entry {
    fn standing(&self) -> Standing {
        Standing {
            condition: self.member.check.condition(),
            is_ejected: self.member.is_ejected.load(Ordering::Relaxed),
            weight: self.weight,
        }
    }

    fn seat(&self) -> Seat {
        Seat {
            member: self.member.clone(),
            cap: self.cap,
        }
    }
}

impl Round {
    /// A round without anybody.
    fn empty(settings: &Settings, roster: Arc<Roster>) -> Self {
        Self {
            seats: Vec::new(),
            places: None,
            fault: WebFault::NoTarget,
            is_panic: false,
            balance: settings.balance,
            ejects_after: settings.ejection.map(|rule| rule.failures),
            roster,
        }
    }

    fn take(&self, places: &Places, place: usize) -> Option<Lease> {
        let seat = &self.seats[place];
        let lease = seat.take();
        if lease.is_none() {
            places.note_full(place);
            if seat.has_room() {
                places.note_room(place);
            }
        }
        lease
    }

    fn stay(&self, id: &TargetId) -> Option<Lease> {
        let seat = self.roster.by_id.get(id)?;
        let member = &seat.member;
        let is_well = member.check.condition() != Condition::Unhealthy && !member.is_ejected.load(Ordering::Relaxed);
        if is_well || self.is_panic { seat.take() } else { None }
    }
}

impl Seat {
    fn take(&self) -> Option<Lease> {
        let in_flight = &self.member.in_flight;
        match self.cap {
            None => _ = in_flight.fetch_add(1, Ordering::SeqCst),
            Some(cap) => {
                let more = |count: u32| (count < cap).then_some(count + 1);
                in_flight.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
            }
        }
        let member = self.member.clone();
        Some(Lease { member })
    }

    fn has_room(&self) -> bool {
        self.cap.is_none_or(|cap| self.member.in_flight() < cap)
    }
}

impl Member {
    fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::SeqCst)
    }
}

/// What a round takes for each target, roughly: nobody makes rounds all the time where thousands of targets change at once.
const ROUND_TAKES: Duration = Duration::from_nanos(100);
/// Rounds take at most one part in so many of the time.
const ROUNDS_SHARE: usize = 20;
/// For so many targets a round takes no time worth mentioning.
const FEW: usize = 256;
/// Choices before it is looked for whoever has room.
const TRIES: usize = 4;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
