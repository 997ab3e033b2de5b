//! The diagnosis under a virtual clock: what an administrator is told of each fault, and random traffic.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::observe::Arrival;
use crate::types::NodeName;

#[test]
fn a_sisters_grant_on_another_port_names_owner_port_and_balancer() {
    let mut world = World::new();
    world.sign_in("ann", "203.0.113.7");
    world.stray(Kind::Blast, "gw-2", "10.0.0.1:8443", "10.0.0.9");
    let told = world.tick();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].cause, Cause::AffinityLost);
    assert_eq!(
        told[0].words,
        "A valid grant of gw-2 arrived at gw-1 on 10.0.0.1:8443 from balancer 10.0.0.9: clients sign in at one node, \
         and reach another one for Blast on port 8443. Give both ports one affinity table (docs/load-balancers.md)."
    );
}

#[test]
fn a_sisters_grant_where_users_sign_in_too_is_lost_persistence() {
    let mut world = World::new();
    world.sign_in("ann", "203.0.113.7");
    world.stray(Kind::Tunnel, "gw-2", "10.0.0.1:443", "203.0.113.7");
    let told = world.tick();
    assert_eq!(told[0].cause, Cause::PersistenceLost);
    assert!(told[0].words.contains("from no listed balancer"), "{}", told[0].words);
    assert!(
        told[0].words.contains("keep it for 90 min or more"),
        "{}",
        told[0].words
    );
}

#[test]
fn a_token_from_before_a_restart_is_known_as_such_while_its_session_could_last() {
    let mut world = World::new();
    world.pass(720);
    world.refuse(
        Kind::Tunnel,
        Refusal::UnknownToken,
        Some("gw-1"),
        "10.0.0.1:443",
        "10.0.0.9",
    );
    let told = world.tick();
    assert_eq!(told[0].cause, Cause::PersistenceLost);
    assert!(told[0].words.contains("it was started 12 min ago"), "{}", told[0].words);

    world.pass(10 * 3600);
    world.refuse(
        Kind::Tunnel,
        Refusal::UnknownToken,
        Some("gw-1"),
        "10.0.0.1:443",
        "10.0.0.9",
    );
    assert_eq!(world.tick(), [], "no session of that time can live any more");
}

#[test]
fn a_strangers_token_is_no_finding() {
    let mut world = World::new();
    world.refuse(Kind::Tunnel, Refusal::UnknownToken, None, "10.0.0.1:443", "203.0.113.7");
    assert_eq!(world.tick(), []);
}

#[test]
fn a_crowd_behind_one_address_is_told_with_its_number() {
    let mut world = World::new();
    for number in 0..Crowds::USUAL {
        world.sign_in(&format!("user-{number}"), "10.0.0.9");
        world.sign_in(&format!("user-{number}"), "10.0.0.9");
    }
    assert_eq!(world.tick(), [], "as many are usual");
    world.sign_in("one-more", "10.0.0.9");
    let told = world.tick();
    assert_eq!(told[0].cause, Cause::LbSnatDetected);
    assert!(
        told[0]
            .words
            .starts_with("21 users signed in from 10.0.0.9 within 15 min."),
        "{}",
        told[0].words
    );
}

#[test]
fn users_who_come_over_hours_are_no_crowd() {
    let mut world = World::new();
    for number in 0..200 {
        world.sign_in(&format!("user-{number}"), "10.0.0.9");
        world.pass(60);
        assert_eq!(world.tick(), []);
    }
}

#[test]
fn what_is_announced_and_never_comes_names_the_external_url() {
    let mut world = World::new();
    for number in 0..3 {
        world.announce(number, Kind::Blast);
        world.pass(60);
        assert_eq!(world.tick(), [], "there is time until the token's window is over");
        world.pass(61);
        let told = world.tick();
        assert_eq!(
            told.len(),
            usize::from(number == 2),
            "one client may be odd, three are not"
        );
    }
    let finding = &world.diagnosis.findings(world.now)[0];
    assert_eq!(finding.cause, Cause::LaunchNeverArrives);
    assert_eq!(
        finding.words,
        "Blast was announced 3 times on end and never came within 2 min: gw.example.com:8443 does not lead to gw-1, or \
         its port is closed. Correct blast.external_url, or open the port."
    );
    assert!(finding.holds);

    world.announce(9, Kind::Blast);
    world.diagnosis.admitted(session(9), Kind::Blast, None);
    assert!(
        !world.diagnosis.findings(world.now)[0].holds,
        "it was seen to be mended"
    );
}

#[test]
fn a_session_that_ends_leaves_nothing_to_wait_for() {
    let mut world = World::new();
    for number in 0..9 {
        world.announce(number, Kind::Tunnel);
        world.diagnosis.ended(session(number));
    }
    world.pass(600);
    assert_eq!(world.tick(), []);
}

#[test]
fn one_client_that_never_comes_is_no_closed_port() {
    let mut world = World::new();
    for _ in 0..20 {
        world.announce(1, Kind::Tunnel);
        world.pass(121);
        assert_eq!(world.tick(), []);
    }
}

#[test]
fn datagrams_that_never_come_name_the_port_that_clients_were_told() {
    let mut world = World::new();
    for number in 0..5 {
        let until = world.now + Duration::from_secs(30);
        world.diagnosis.awaits_datagrams(session(number), Kind::Blast, until);
        world.pass(31);
        world.tick();
    }
    let finding = &world.diagnosis.findings(world.now)[0];
    assert_eq!((finding.cause, finding.count), (Cause::UdpNeverArrives, 3));
    assert_eq!(
        finding.words,
        "No datagram came within 30 s of a Blast connection over TCP, 5 times on end: clients fall \
         back to TCP without a word, or show a black screen. Let UDP port 8444 and its replies through firewall and \
         balancer, with the clients' addresses unchanged."
    );
    world.diagnosis.datagram(session(7), Kind::Blast);
    assert!(!world.diagnosis.findings(world.now)[0].holds);
}

#[test]
fn a_connection_that_ends_first_says_nothing_about_datagrams() {
    let mut world = World::new();
    for number in 0..9 {
        let until = world.now + Duration::from_secs(30);
        world.diagnosis.awaits_datagrams(session(number), Kind::Blast, until);
        world.diagnosis.no_more_datagrams(session(number), Kind::Blast);
    }
    world.pass(60);
    assert_eq!(world.tick(), []);
}

#[test]
fn an_episode_is_told_once_and_the_next_one_again() {
    let mut world = World::new();
    for _ in 0..100 {
        world.stray(Kind::Blast, "gw-2", "10.0.0.1:8443", "10.0.0.9");
        world.pass(300);
    }
    assert_eq!(world.tick().len(), 1);
    let finding = &world.diagnosis.findings(world.now)[0];
    assert_eq!(
        (finding.count, finding.last - finding.since),
        (100, Duration::from_secs(99 * 300))
    );

    world.pass(601);
    assert!(!world.diagnosis.findings(world.now)[0].holds, "it has stayed away");
    assert_eq!(world.tick(), []);
    world.stray(Kind::Blast, "gw-2", "10.0.0.1:8443", "10.0.0.9");
    let told = world.tick();
    assert_eq!((told.len(), told[0].count), (1, 1), "the next episode counts from one");
}

#[test]
fn what_it_remembers_is_bounded() {
    let mut world = World::new();
    for number in 0..40_000_u32 {
        world.announce(u128::from(number), Kind::Tunnel);
        let client = IpAddr::from(number.to_be_bytes());
        let user = UserName::new(&number.to_string());
        world
            .diagnosis
            .signed_in(&user, client, "10.0.0.1:443".parse().unwrap(), world.now);
        world.stray(Kind::Tunnel, &format!("gw-{number}"), "10.0.0.1:8443", "10.0.0.9");
    }
    world.check_invariants();
    assert_eq!(world.diagnosis.findings(world.now).len(), Book::MOST);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random traffic against a model that keeps everything and computes each answer from the start.
    #[test]
    fn random_traffic_finds_what_a_plain_model_finds(steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new();
        let mut model = Model::default();
        for step in steps {
            match step {
                Step::SignIn { user, client } => {
                    world.sign_in(&format!("user-{user}"), &format!("10.0.1.{client}"));
                    model.sign_ins.push((world.now, client, user));
                }
                Step::Announce { session } => {
                    world.announce(session, Kind::Tunnel);
                    model.open.insert(session, world.now + FIRST_USE);
                }
                Step::Come { session } => {
                    world.diagnosis.admitted(self::session(session), Kind::Tunnel, None);
                    model.open.remove(&session);
                    model.missed.clear();
                }
                Step::End { session } => {
                    world.diagnosis.ended(self::session(session));
                    model.open.remove(&session);
                }
                Step::Pass { seconds } => {
                    world.pass(seconds);
                    world.tick();
                    let now = world.now;
                    let over: Vec<_> = model.open.iter().filter(|(_, until)| **until < now).map(|(id, _)| *id).collect();
                    for session in over {
                        model.open.remove(&session);
                        model.missed.insert(session);
                    }
                }
            }
            world.check_invariants();
            if let Some(count) = model.crowd_of_the_last(world.now) {
                let words = format!("{count} users signed in from");
                let told = world.diagnosis.findings(world.now);
                prop_assert!(told.iter().any(|finding| finding.words.starts_with(&words)), "{count}: {told:?}");
            }
            let closed = world.diagnosis.findings(world.now).into_iter()
                .find(|finding| finding.cause == Cause::LaunchNeverArrives && finding.holds);
            if model.missed.len() < Diagnosis::SURE {
                prop_assert!(closed.is_none(), "{closed:?} with {:?}", model.missed);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    SignIn { user: u8, client: u8 },
    Announce { session: u128 },
    Come { session: u128 },
    End { session: u128 },
    Pass { seconds: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..60_u8, 0..2_u8).prop_map(|(user, client)| Step::SignIn { user, client }),
        4 => (0..12_u128).prop_map(|session| Step::Announce { session }),
        1 => (0..12_u128).prop_map(|session| Step::Come { session }),
        1 => (0..12_u128).prop_map(|session| Step::End { session }),
        2 => (0..100_u64).prop_map(|seconds| Step::Pass { seconds }),
    ]
}

#[derive(Default)]
struct Model {
    sign_ins: Vec<(Instant, u8, u8)>,
    open: BTreeMap<u128, Instant>,
    missed: HashSet<u128>,
}

impl Model {
    /// How many users the address of the last sign-in has had in the window, if that sign-in is of now and they are a crowd.
    fn crowd_of_the_last(&self, now: Instant) -> Option<usize> {
        let &(at, client, _) = self.sign_ins.last()?;
        let in_window = |(then, of, _): &&(Instant, u8, u8)| *then + Crowds::WINDOW >= now && *of == client;
        let users: HashSet<_> = self.sign_ins.iter().filter(in_window).map(|(.., user)| *user).collect();
        (at == now && users.len() > Crowds::USUAL).then_some(users.len())
    }
}

struct World {
    diagnosis: Diagnosis,
    now: Instant,
}

impl World {
    fn new() -> Self {
        let start = crate::clock::now();
        let mut diagnosis = Diagnosis::new(start);
        diagnosis.set_places(Places::for_test(FIRST_USE));
        Self { diagnosis, now: start }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }

    fn tick(&mut self) -> Vec<Finding> {
        self.diagnosis.tick(self.now)
    }

    fn sign_in(&mut self, user: &str, client: &str) {
        let (client, local) = (client.parse().unwrap(), "10.0.0.1:443".parse().unwrap());
        self.diagnosis.signed_in(&UserName::new(user), client, local, self.now);
    }

    fn announce(&mut self, session: u128, kind: Kind) {
        self.diagnosis
            .announced(self::session(session), kind, None, self.now + FIRST_USE);
    }

    fn stray(&mut self, kind: Kind, owner: &str, local: &str, via: &str) {
        self.refuse(kind, Refusal::SisterNode, Some(owner), local, via);
    }

    fn refuse(&mut self, kind: Kind, reason: Refusal, owner: Option<&str>, local: &str, via: &str) {
        let owner: Option<NodeName> = owner.map(|name| name.parse().unwrap());
        let refused = Refused {
            reason,
            owner: owner.as_ref(),
            arrival: Arrival {
                client: "203.0.113.7:40000".parse().unwrap(),
                via: SocketAddr::new(via.parse().unwrap(), 50000),
                local: local.parse().unwrap(),
            },
        };
        self.diagnosis.refused(kind, &refused, self.now);
    }

    fn check_invariants(&self) {
        self.diagnosis.crowds.check_invariants();
        self.diagnosis.launches.check_invariants();
        self.diagnosis.datagrams.check_invariants();
        self.diagnosis.book.check_invariants();
    }
}

fn session(number: u128) -> SessionId {
    SessionId::from_random(number)
}

const FIRST_USE: Duration = Duration::from_secs(120);
