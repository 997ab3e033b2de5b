use std::any::Any;
use std::net::Ipv4Addr;

use http::StatusCode;

use super::*;
use crate::upstream::probe::{ProbeFault, ProbeResult};

#[test]
fn targets_take_turns_and_count_their_requests() {
    let mut rig = Rig::new(&[1, 1], |_| {});
    rig.up(0).up(1);
    let leases: Vec<_> = (0..4).map(|_| rig.pick().unwrap()).collect();
    let order: Vec<_> = leases.iter().map(|lease| rig.place(lease)).collect();
    assert_eq!(order, [0, 1, 0, 1]);
    assert_eq!(rig.in_flight(), [2, 2]);
    drop(leases);
    assert_eq!(rig.in_flight(), [0, 0]);
}

#[test]
fn each_gets_as_much_as_its_weight_says() {
    let rig = Rig::new(&[3, 1, 0], |_| {});
    let mut counts = [0; 3];
    for _ in 0..400 {
        counts[rig.place(&rig.pick().unwrap())] += 1;
    }
    assert_eq!(counts, [300, 100, 0]);
}

#[test]
fn of_two_the_one_with_fewer_requests_is_asked() {
    let rig = Rig::new(&[1, 1], |settings| settings.balance = Balance::LeastRequests);
    let leases: Vec<_> = (0..100).map(|_| rig.pick().unwrap()).collect();
    assert_eq!(rig.in_flight(), [50, 50]);
    drop(leases);
}

#[test]
fn an_empty_pool_and_one_without_a_healthy_target_say_so() {
    let now = crate::clock::now();
    let pool = Pool::new("p", None, settings(), now);
    assert_eq!(pool.pick(None, now).unwrap_err(), WebFault::NoTarget);
    let mut rig = Rig::new(&[1], |_| {});
    rig.down(0);
    assert_eq!(rig.pick().unwrap_err(), WebFault::NoHealthyTarget);
    rig.up(0);
    assert!(rig.pick().is_ok());
}

#[test]
fn an_added_target_gets_nothing_before_its_first_success() {
    let mut rig = Rig::new(&[1], |_| {});
    rig.up(0);
    rig.add(1);
    assert!((0..10).all(|_| rig.place(&rig.pick().unwrap()) == 0));
    rig.up(1);
    assert!((0..2).any(|_| rig.place(&rig.pick().unwrap()) == 1));
}

#[test]
fn a_cap_is_never_exceeded_and_room_is_always_found() {
    let mut rig = Rig::new(&[1; 130], |_| {});
    rig.cap(2);
    let mut leases: Vec<_> = (0..260).map(|_| rig.pick().unwrap()).collect();
    assert!(rig.in_flight().iter().all(|count| *count == 2));
    assert_eq!(rig.pick().unwrap_err(), WebFault::Saturated);
    for place in [129, 64, 3] {
        let held = leases.iter().position(|lease| rig.place(lease) == place).unwrap();
        drop(leases.swap_remove(held));
        let lease = rig.pick().unwrap();
        assert_eq!(rig.place(&lease), place, "the only one with room");
        leases.push(lease);
    }
}

#[test]
fn a_further_try_goes_elsewhere() {
    let rig = Rig::new(&[1, 1], |_| {});
    let first = rig.pick().unwrap();
    let tried = [first.target().clone()];
    for _ in 0..6 {
        let other = rig.pool.pick_besides(&tried, rig.now).unwrap();
        assert_ne!(other.target(), first.target());
    }
    let both = [rig.id(0), rig.id(1)];
    assert_eq!(
        rig.pool.pick_besides(&both, rig.now).unwrap_err(),
        WebFault::NoHealthyTarget
    );
}

#[test]
fn a_client_stays_with_its_target_until_that_is_unwell() {
    let mut rig = Rig::new(&[1, 1, 0], |_| {});
    for place in [1, 2] {
        rig.up(0).up(1).up(2);
        let hint = rig.id(place);
        assert!((0..5).all(|_| rig.stays_with(&hint)));
        rig.down(place);
        assert!(!rig.stays_with(&hint));
    }
    let stranger = TargetId::new("10.9.9.9", ([10, 9, 9, 9], 80).into(), None);
    assert!(rig.pool.pick(Some(&stranger), rig.now).is_ok());
}

#[test]
fn a_target_that_was_taken_away_keeps_its_clients_for_the_drain_and_is_cut_then() {
    let mut rig = Rig::new(&[1, 1], |_| {});
    let held = rig.pool.pick(Some(&rig.id(1)), rig.now).unwrap();
    rig.remove(1, Cause::Configured);
    assert!((0..6).all(|_| rig.place(&rig.pick().unwrap()) == 0), "nothing new");
    assert!(rig.stays_with(&rig.id(1)));
    rig.after(29);
    assert!(rig.stays_with(&rig.id(1)) && !held.cut().is_cancelled());
    rig.after(1);
    assert!(!rig.stays_with(&rig.id(1)) && held.cut().is_cancelled());
    assert_eq!(rig.pool.next_drained(), None);
}

#[test]
fn what_runs_on_an_address_that_a_name_no_longer_has_goes_on() {
    let mut rig = Rig::new(&[1, 1], |_| {});
    let held = rig.pool.pick(Some(&rig.id(1)), rig.now).unwrap();
    rig.remove(1, Cause::Resolved);
    rig.after(31);
    assert!(!rig.stays_with(&rig.id(1)) && !held.cut().is_cancelled());
}

#[test]
fn one_that_comes_back_during_its_drain_is_as_it_was() {
    let mut rig = Rig::new(&[1, 1], |_| {});
    rig.up(0).up(1);
    let held = rig.pool.pick(Some(&rig.id(1)), rig.now).unwrap();
    rig.remove(1, Cause::Configured);
    rig.after(10);
    rig.add(1);
    rig.after(60);
    assert!(!held.cut().is_cancelled());
    assert_eq!(rig.in_flight(), [0, 1]);
    assert!((0..2).any(|_| rig.place(&rig.pick().unwrap()) == 1));
}

#[test]
fn failures_in_a_row_that_users_see_leave_a_target_out_for_a_while() {
    let rule = Ejection {
        failures: 3,
        base: Duration::from_secs(30),
        max_percent: 50,
    };
    let mut rig = Rig::new(&[1, 1], |settings| settings.ejection = Some(rule));
    rig.up(0).up(1);
    let bad = Outcome::Answered(StatusCode::INTERNAL_SERVER_ERROR);
    rig.report(
        0,
        &[
            bad,
            bad,
            Outcome::Answered(StatusCode::OK),
            bad,
            bad,
            Outcome::Failed(WebFault::ClientClosed),
        ],
    );
    assert!(rig.stays_with(&rig.id(0)), "not three in a row");
    rig.report(0, &[Outcome::Failed(WebFault::UpstreamTimeout)]);
    assert!((0..6).all(|_| rig.place(&rig.pick().unwrap()) == 1) && !rig.stays_with(&rig.id(0)));
    rig.report(1, &[bad, bad, bad]);
    assert!(
        (0..6).all(|_| rig.place(&rig.pick().unwrap()) == 1),
        "not all may be out"
    );
    rig.after(30);
    assert!(rig.stays_with(&rig.id(0)));
    rig.report(0, &[Outcome::Answered(StatusCode::NOT_IMPLEMENTED); 3]);
    assert!(rig.stays_with(&rig.id(0)), "501 is no failure");
}

#[test]
fn a_target_that_became_healthy_starts_slowly() {
    let mut rig = Rig::new(&[1, 1], |settings| settings.slow_start = Some(Duration::from_secs(60)));
    rig.up(0);
    rig.down(1);
    rig.after(120);
    rig.up(1);
    let mut portions = Vec::new();
    for _ in 0..4 {
        portions.push((0..1000).filter(|_| rig.place(&rig.pick().unwrap()) == 1).count());
        rig.after(20);
    }
    assert!((80..=110).contains(&portions[0]), "{portions:?}");
    assert!(portions.is_sorted() && portions[3] == 500, "{portions:?}");
}

#[test]
fn below_the_panic_threshold_all_are_asked() {
    let mut rig = Rig::new(&[1, 1, 1], |settings| settings.panic = Some(50));
    rig.up(0).down(1).down(2);
    let mut seen: Vec<_> = (0..3).map(|_| rig.place(&rig.pick().unwrap())).collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
    assert!(rig.stays_with(&rig.id(2)) && rig.pool.view(rig.now).is_panic);
    rig.up(1);
    assert!((0..6).all(|_| rig.place(&rig.pick().unwrap()) < 2));
}

#[test]
fn what_is_derived_of_the_targets_follows_every_change() {
    let mut rig = Rig::new(&[1, 1], |settings| settings.derive = Arc::new(Names));
    let derived = |rig: &Rig| rig.pool.roster().derived::<Vec<String>>().cloned();
    let named = |places: &[usize]| Some(places.iter().map(|place| format!("10.0.0.{place}:80/web")).collect());
    assert_eq!(derived(&rig), named(&[0, 1]));
    rig.add(2);
    assert_eq!(derived(&rig), named(&[0, 1, 2]));
    rig.remove(1, Cause::Configured);
    assert_eq!(derived(&rig), named(&[0, 1, 2]), "its clients still stay");
    rig.after(30);
    assert!(rig.pick().is_ok());
    assert_eq!(derived(&rig), named(&[0, 2]));
    assert_eq!(rig.pool.roster().derived::<u8>(), None);
}

#[derive(Debug)]
struct Names;

impl Derive for Names {
    fn derive(
        &self,
        _pool: &str,
        _backend: Option<&str>,
        targets: &mut dyn Iterator<Item = &TargetId>,
    ) -> Box<dyn Any + Send + Sync> {
        let mut names: Vec<_> = targets.map(TargetId::to_string).collect();
        names.sort();
        Box::new(names)
    }
}

#[test]
fn ids_tell_hosts_addresses_and_backends_apart() {
    let id = |host, address: &str, backend| TargetId::new(host, address.parse().unwrap(), backend).to_string();
    assert_eq!(id("10.0.0.5", "10.0.0.5:80", Some("web")), "10.0.0.5:80/web");
    assert_eq!(id("::1", "[::1]:80", None), "[::1]:80/-");
    assert_eq!(
        id("shop.example", "10.0.0.5:80", Some("web")),
        "shop.example=10.0.0.5:80/web"
    );
}

#[test]
fn many_threads_never_exceed_a_cap_nor_lose_room() {
    let mut rig = Rig::new(&[1; 5], |_| {});
    rig.cap(3);
    let (pool, now) = (rig.pool.clone(), rig.now);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    let leases: Vec<_> = (0..4).map(|_| pool.pick(None, now)).collect();
                    let most = leases.iter().flatten().map(|lease| lease.member.in_flight()).max();
                    assert!(most <= Some(3));
                }
            });
        }
    });
    assert_eq!(rig.in_flight(), [0; 5]);
    let leases: Vec<_> = (0..15).map(|_| rig.pick().unwrap()).collect();
    assert_eq!(rig.pick().unwrap_err(), WebFault::Saturated);
    drop(leases);
}

/// A pool of the targets 10.0.0.0:80, 10.0.0.1:80 and so on.
struct Rig {
    pool: Arc<Pool>,
    now: Instant,
    settings: Settings,
    placed: Vec<Placed>,
}

impl Rig {
    fn new(weights: &[u16], change: impl FnOnce(&mut Settings)) -> Self {
        let (now, mut settings) = (crate::clock::now(), settings());
        change(&mut settings);
        let pool = Pool::new("p", Some("web"), settings.clone(), now);
        let placed = weights
            .iter()
            .enumerate()
            .map(|(place, weight)| placed(place, *weight, now));
        let rig = Self {
            pool,
            now,
            settings,
            placed: placed.collect(),
        };
        rig.put(Cause::Configured);
        rig
    }

    fn put(&self, cause: Cause) {
        self.pool
            .put(self.settings.clone(), self.placed.clone(), cause, self.now);
    }

    fn pick(&self) -> Result<Lease, WebFault> {
        self.pool.pick(None, self.now)
    }

    fn stays_with(&self, hint: &TargetId) -> bool {
        self.pool
            .pick(Some(hint), self.now)
            .is_ok_and(|lease| lease.target() == hint)
    }

    fn id(&self, place: usize) -> TargetId {
        let address = address_of(place);
        TargetId::new(&address.ip().to_string(), address, Some("web"))
    }

    fn place(&self, lease: &Lease) -> usize {
        (0..self.placed.len() + 2)
            .find(|place| self.id(*place) == *lease.target())
            .unwrap()
    }

    fn add(&mut self, place: usize) {
        self.placed.push(placed(place, 1, self.now));
        self.put(Cause::Configured);
    }

    fn remove(&mut self, place: usize, cause: Cause) {
        self.placed.retain(|placed| placed.address != address_of(place));
        self.put(cause);
    }

    fn cap(&mut self, cap: u32) {
        for placed in &mut self.placed {
            placed.max_requests = Some(cap);
        }
        self.put(Cause::Configured);
    }

    fn up(&mut self, place: usize) -> &mut Self {
        self.probe(place, Ok(Some(200)))
    }

    fn down(&mut self, place: usize) -> &mut Self {
        self.probe(place, Err(ProbeFault::Timeout))
    }

    fn probe(&mut self, place: usize, outcome: Result<Option<u16>, ProbeFault>) -> &mut Self {
        let placed = self
            .placed
            .iter()
            .find(|placed| placed.address == address_of(place))
            .unwrap();
        placed.check.note(probed(placed.address, outcome), 1, self.now);
        self
    }

    fn report(&self, place: usize, outcomes: &[Outcome]) {
        let hint = self.id(place);
        for outcome in outcomes {
            let lease = self.pool.pick(Some(&hint), self.now).unwrap();
            lease.report(*outcome, self.now);
        }
    }

    fn after(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn in_flight(&self) -> Vec<u32> {
        let view = self.pool.view(self.now);
        view.targets.iter().map(|target| target.in_flight).collect()
    }
}

pub(super) fn settings() -> Settings {
    Settings {
        balance: Balance::RoundRobin,
        slow_start: None,
        panic: None,
        ejection: None,
        drain: Duration::from_secs(30),
        derive: Arc::new(DeriveNothing),
    }
}

pub(super) fn placed(place: usize, weight: u16, now: Instant) -> Placed {
    let address = address_of(place);
    Placed {
        host: address.ip().to_string().into(),
        address,
        weight,
        max_requests: None,
        check: Check::new(now),
    }
}

pub(super) fn probed(address: SocketAddr, outcome: Result<Option<u16>, ProbeFault>) -> ProbeResult {
    ProbeResult {
        at: jiff::Timestamp::UNIX_EPOCH,
        took: Duration::from_millis(1),
        address,
        outcome,
        tls: None,
        is_excused: false,
    }
}

pub(super) fn address_of(place: usize) -> SocketAddr {
    (Ipv4Addr::from(0x0a00_0000 + place as u32), 80).into()
}
