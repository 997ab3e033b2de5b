//! Random traffic against the table, its flows and a naive model of the rule, with a virtual clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::course::Course;
use super::first::{First, Port};
use super::news::News;
use super::table::{Beside, FlowId, Pin, Table, Verdict};
use crate::authenticate::Authenticated;
use crate::config;
use crate::fault::Refusal;
use crate::grant::{RouteId, Store};
use crate::types::{DesktopId, Protocol, SessionId, Target};

#[test]
fn the_table_agrees_with_the_rule_whatever_happens() {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for _ in 0..STEPS {
            *seen.entry(world.step()).or_default() += 1;
            world.check();
        }
    }
    for what in [
        "opens",
        "of",
        "foreign",
        "ignored",
        "address_mismatch",
        "not_announced",
        "ambiguous_address",
        "window_missed",
        "flow_limit",
        "malformed",
        "connected",
        "disconnected",
        "expired",
    ] {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(
            times > 30,
            "the traffic is too tame: {what} happened {times} times of {seen:?}"
        );
    }
}

#[test]
fn a_crowd_behind_one_address_is_named() {
    let mut world = World::new(1);
    let now = world.now;
    let (sessions, client) = (many_sessions(Store::CROWD + 1), IpAddr::from([192, 0, 2, 1]));
    for (session, route) in sessions {
        let port = Port::Pcoip;
        world.table.connected(
            Beside {
                client,
                port,
                session,
                route,
            },
            || (),
            now,
        );
    }
    let verdict = world.table.arrived(Port::Pcoip, pin(client, 1), First::of(&GOOD), now);
    assert_eq!(verdict, Verdict::Refused(Refusal::LbSnatDetected, None));
}

#[test]
fn spoofed_sources_leave_nothing_behind() {
    let mut world = World::new(2);
    let now = world.now;
    for n in 0..200_000_u32 {
        let client = IpAddr::V4((0x0a00_0000 + n).into());
        for port in [Port::Pcoip, Port::Listener] {
            let verdict = world.table.arrived(port, pin(client, n as u16), First::of(&GOOD), now);
            assert!(!matches!(verdict, Verdict::Opens(..) | Verdict::Of(_)));
        }
    }
    assert_eq!((world.table.flows(), world.table.leases()), (0, 0));
    world.table.check_invariants();
}

#[test]
fn what_began_as_quic_stays_quic_beside_an_open_blast() {
    let mut world = World::new(3);
    let (now, client) = (world.now, IpAddr::from([192, 0, 2, 1]));
    let (session, route) = world.sessions[0];
    let port = Port::Listener;
    world.table.connected(
        Beside {
            client,
            port,
            session,
            route,
        },
        || (),
        now,
    );
    let mut initial = [0; 1200];
    initial[..5].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
    let mut short = [7; 100];
    short[0] = 0x41;
    assert_eq!(
        world.table.arrived(port, pin(client, 1), First::of(&initial), now),
        Verdict::Foreign
    );
    assert_eq!(
        world.table.arrived(port, pin(client, 1), First::of(&short), now),
        Verdict::Foreign
    );
    let Verdict::Opens(flow, ()) = world.table.arrived(port, pin(client, 2), First::of(&short), now) else {
        panic!("another port of the client is Blast's");
    };
    // A QUIC client that changed its port looks like that; when the desktop does not answer, QUIC has it back.
    world.table.end_unanswered(flow);
    assert_eq!(
        world.table.arrived(port, pin(client, 2), First::of(&short), now),
        Verdict::Foreign
    );
}

/// Whatever happens before and after a handover: the process that took over judges every datagram as one process would that
/// had everything, and leaves to the old one what is the old one's.
#[test]
fn a_process_that_took_over_judges_as_one_that_has_everything() {
    let (mut before, mut here) = (0, 0);
    for seed in 0..SEEDS {
        let mut world = Handover::new(seed);
        for step in 0..STEPS {
            world.now += Duration::from_millis(world.dice.below(400));
            match world.dice.below(12) {
                0 | 1 => world.connect(),
                2 => world.disconnect(),
                _ if step == STEPS / 3 => world.hand_over(),
                _ => match world.arrive() {
                    Some(true) => before += 1,
                    Some(false) => here += 1,
                    None => {}
                },
            }
            world.one.check_invariants();
            world.new.check_invariants();
        }
        let now = world.now;
        world.new.forget_before();
        world.new.check_invariants();
        for (beside, opened, is_old) in world.connections.drain(..) {
            assert!(is_old || world.new.disconnected(beside, opened).is_some() || world.new.leases() > 0);
        }
        assert_eq!(
            (world.new.flows(), world.new.leases(), world.new.news(now).len()),
            (0, 0, 0)
        );
    }
    assert!(
        before > 500 && here > 500,
        "the traffic is too tame: {before} and {here}"
    );
}

#[test]
fn of_the_same_connections_in_two_processes_the_last_one_has_the_flow() {
    let mut world = World::new(4);
    let (now, client) = (world.now, IpAddr::from([192, 0, 2, 1]));
    let (session, route) = world.sessions[0];
    let port = Port::Pcoip;
    let beside = Beside {
        client,
        port,
        session,
        route,
    };
    let later = now + Duration::from_secs(1);
    let table = &mut world.table;
    let judge = |table: &mut Table<()>, from| table.arrived(port, pin(client, from), First::of(&GOOD), later);
    table.connected_before(beside, now);
    assert_eq!(judge(table, 1), Verdict::Before);
    table.connected(beside, || (), later);
    assert_eq!(judge(table, 1), Verdict::Before);
    assert!(matches!(judge(table, 2), Verdict::Opens(..)));
    table.ended_before(pin(client, 2), false);
    assert!(matches!(judge(table, 2), Verdict::Of(_)), "it is none of before");
    table.ended_before(pin(client, 1), false);
    table.disconnected_before(beside);
    assert!(matches!(judge(table, 1), Verdict::Opens(..)));
    table.check_invariants();
}

/// One table that has everything, and those of two processes.
struct Handover {
    dice: Dice,
    now: Instant,
    one: Table<()>,
    old: Table<()>,
    new: Table<()>,
    handed_over: bool,
    sessions: Vec<(SessionId, RouteId)>,
    /// With the time of their opening, and whether the old process has them.
    connections: Vec<(Beside, Instant, bool)>,
}

impl Handover {
    fn new(seed: u64) -> Self {
        let limits = config::Udp {
            strays_per_source: 1_000_000,
            ..limits()
        };
        let table = || Table::new(limits);
        Self {
            dice: Dice(seed * 2 + 1),
            now: crate::clock::now(),
            one: table(),
            old: table(),
            new: table(),
            handed_over: false,
            sessions: many_sessions(4),
            connections: Vec::new(),
        }
    }

    fn connect(&mut self) {
        let (session, route) = self.sessions[self.dice.below(4) as usize];
        let client = IpAddr::from([192, 0, 2, self.dice.below(4) as u8]);
        let port = Port::Pcoip;
        let beside = Beside {
            client,
            port,
            session,
            route,
        };
        // The old connection's flows would end with it, while in one process they are also the new one's.
        let same = |(of, _, is_old): &(Beside, Instant, bool)| *of == beside && *is_old == self.handed_over;
        if self.connections.iter().any(same) {
            return;
        }
        self.one.connected(beside, || (), self.now);
        let own = if self.handed_over { &mut self.new } else { &mut self.old };
        own.connected(beside, || (), self.now);
        self.connections.push((beside, self.now, !self.handed_over));
    }

    /// Closes a connection, of the same ones the oldest.
    fn disconnect(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let place = self.dice.below(self.connections.len() as u64) as usize;
        let (beside, _, is_old) = self.connections[place];
        let oldest = self
            .connections
            .iter()
            .position(|(of, _, old)| (*of, *old) == (beside, is_old));
        let (beside, opened, is_old) = self.connections.remove(oldest.unwrap());
        self.one.disconnected(beside, opened);
        if !is_old {
            self.new.disconnected(beside, opened);
            return;
        }
        self.old.disconnected(beside, opened);
        if self.handed_over {
            self.new.disconnected_before(beside);
        }
    }

    fn hand_over(&mut self) {
        self.handed_over = true;
        for news in self.old.news(self.now) {
            match news {
                News::Connected { beside, age } => self.new.connected_before(beside, self.now - age),
                News::Opened { beside, pin } => self.new.opened_before(beside, pin),
                other @ (News::Disconnected { .. } | News::Ended { .. } | News::Unknown) => panic!("{other:?}"),
            }
        }
    }

    /// Whether a datagram is passed on to a flow of the old process or of the new one.
    fn arrive(&mut self) -> Option<bool> {
        let client = IpAddr::from([192, 0, 2, self.dice.below(4) as u8]);
        let pin = pin(client, 1000 + self.dice.below(5) as u16);
        let judges = |table: &mut Table<()>| table.arrived(Port::Pcoip, pin, First::of(&GOOD), self.now);
        let expected = judges(&mut self.one);
        if !self.handed_over {
            assert_eq!(judges(&mut self.old), expected);
            return None;
        }
        let verdict = judges(&mut self.new);
        let passes = matches!(expected, Verdict::Of(_) | Verdict::Opens(..));
        match verdict {
            Verdict::Before => {
                assert!(passes, "{expected:?}");
                let there = judges(&mut self.old);
                assert!(matches!(there, Verdict::Of(_) | Verdict::Opens(..)), "{there:?}");
                Some(true)
            }
            Verdict::Of(_) | Verdict::Opens(..) => {
                assert!(passes, "{expected:?}");
                Some(false)
            }
            other @ (Verdict::Foreign | Verdict::Refused(..) | Verdict::Ignored) => {
                assert_eq!(other, expected);
                None
            }
        }
    }
}

/// The table, and what a naive reading of the rule knows of it.
struct World {
    dice: Dice,
    now: Instant,
    table: Table<()>,
    sessions: Vec<(SessionId, RouteId)>,
    /// Open connections with the time of their opening.
    connections: Vec<(Beside, Instant)>,
    flows: BTreeMap<FlowId, (Pin, Beside, Course)>,
    foreign: Vec<SocketAddr>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            dice: Dice(seed * 2 + 1),
            now: crate::clock::now(),
            table: Table::new(limits()),
            sessions: many_sessions(4),
            connections: Vec::new(),
            flows: BTreeMap::new(),
            foreign: Vec::new(),
        }
    }

    fn step(&mut self) -> String {
        self.now += Duration::from_millis(self.dice.below(400));
        match self.dice.below(20) {
            0 | 1 => self.connect(),
            2 => self.disconnect(),
            3 => {
                self.now += Duration::from_secs(self.dice.below(40));
                self.expire()
            }
            4 => self.answer(),
            5 if self.dice.below(4) == 0 => self.flood(),
            _ => self.arrive(),
        }
    }

    fn connect(&mut self) -> String {
        let (session, route) = self.sessions[self.dice.below(4) as usize];
        let beside = Beside {
            client: self.client(),
            port: self.port(),
            session,
            route,
        };
        self.table.connected(beside, || (), self.now);
        self.connections.push((beside, self.now));
        "connected".to_owned()
    }

    fn disconnect(&mut self) -> String {
        if self.connections.is_empty() {
            return "nothing".to_owned();
        }
        let place = self.dice.below(self.connections.len() as u64) as usize;
        let (beside, opened) = self.connections.swap_remove(place);
        let last = !self.connections.iter().any(|(other, _)| *other == beside);
        assert_eq!(self.table.disconnected(beside, opened).is_some(), last);
        if last {
            self.flows.retain(|_, (_, of, _)| *of != beside);
        }
        "disconnected".to_owned()
    }

    fn answer(&mut self) -> String {
        let now = self.now;
        let octets = self.dice.below(2000) as usize;
        if let Some((_, _, course)) = self.flows.values_mut().next() {
            course.from_desktop(octets, now);
        }
        "answered".to_owned()
    }

    fn expire(&mut self) -> String {
        let now = self.now;
        let over: Vec<_> = self
            .flows
            .iter()
            .filter(|(_, flow)| flow.2.over(now).is_some())
            .map(|(id, _)| *id)
            .collect();
        for id in &over {
            assert!(self.flows[id].2.deadline() <= now);
            assert!(self.table.end(*id));
            self.flows.remove(id);
        }
        if over.is_empty() { "nothing" } else { "expired" }.to_owned()
    }

    /// More from one source than anybody looks at.
    fn flood(&mut self) -> String {
        let client = IpAddr::from([203, 0, 113, 9]);
        let looked_at = (0..2000).filter(|n| {
            let verdict = self
                .table
                .arrived(Port::Pcoip, pin(client, *n), First::of(&[]), self.now);
            verdict != Verdict::Ignored
        });
        let looked_at = looked_at.count();
        let most = limits().strays_per_source as usize * 10;
        assert!(looked_at <= most, "{looked_at}");
        "ignored".to_owned()
    }

    fn arrive(&mut self) -> String {
        let port = self.port();
        let local = if port == Port::Pcoip { 4172 } else { 443 };
        let pin = Pin {
            client: SocketAddr::new(self.client(), 1000 + self.dice.below(6) as u16),
            local: SocketAddr::from(([10, 0, 0, 1], local)),
        };
        let mut datagram = vec![0; [1, 11, 12, 200, 1200][self.dice.below(5) as usize]];
        let kind = self.dice.below(8);
        if let Some(octet) = datagram.get_mut(7)
            && kind > 0
        {
            *octet = 1;
        }
        let is_quic = kind == 1 && datagram.len() > 6;
        if is_quic {
            datagram[..5].copy_from_slice(&[0xc0, 0, 0, 0, 1]);
        }
        if is_quic && port == Port::Listener && !self.flows.values().any(|(of, ..)| *of == pin) {
            self.foreign.push(pin.client);
        }
        let expected = self.expected(port, pin, &datagram, is_quic);
        let verdict = self.table.arrived(port, pin, First::of(&datagram), self.now);
        let what = match &verdict {
            Verdict::Of(id) => {
                let (of, _, course) = self.flows.get_mut(id).expect("a flow that the model knows");
                assert_eq!(*of, pin);
                course.from_client(datagram.len(), self.now);
                "of"
            }
            Verdict::Opens(id, ()) => {
                let mut beside = self.connections.iter().map(|(beside, _)| *beside);
                let beside = beside.find(|beside| beside.client == pin.client.ip() && beside.port == port);
                let course = Course::new(&limits(), self.now);
                self.flows.insert(*id, (pin, beside.expect("a connection"), course));
                "opens"
            }
            Verdict::Before => panic!("there is no process before this one"),
            Verdict::Foreign => "foreign",
            Verdict::Refused(reason, _) => reason.code(),
            Verdict::Ignored => "ignored",
        };
        // What began as QUIC is remembered, unless something newer took its place.
        let remembered = port == Port::Listener && what == "foreign" && self.foreign.contains(&pin.client);
        assert!(
            what == expected || what == "ignored" || remembered,
            "{what} instead of {expected}"
        );
        what.to_owned()
    }

    /// The rule, read naively: secondary protocols sheet 5.4, rule 3.
    fn expected(&self, port: Port, pin: Pin, datagram: &[u8], is_quic: bool) -> &'static str {
        if self.flows.values().any(|(of, ..)| *of == pin) {
            return "of";
        }
        let from = |port: Port| {
            let connections = self.connections.iter();
            connections.filter(move |(beside, _)| beside.client == pin.client.ip() && beside.port == port)
        };
        if port == Port::Listener && (is_quic || from(port).count() == 0) {
            return "foreign";
        }
        let Some((beside, _)) = from(port).next() else {
            return if from(Port::Listener).count() > 0 {
                "not_announced"
            } else {
                "address_mismatch"
            };
        };
        if from(port).any(|(other, _)| other != beside) {
            return "ambiguous_address";
        }
        let opened = from(port).map(|(_, at)| *at).max().expect("a connection");
        let of_session = self
            .flows
            .values()
            .filter(|(_, of, _)| of.session == beside.session)
            .count();
        if datagram.len() < 12 || (port == Port::Pcoip && datagram[4..8] == [0; 4]) {
            "malformed"
        } else if self.now - opened > limits().first_datagram {
            "window_missed"
        } else if of_session >= limits().flows_per_session || self.flows.len() >= limits().flows {
            "flow_limit"
        } else {
            "opens"
        }
    }

    fn check(&self) {
        self.table.check_invariants();
        assert_eq!(self.table.flows(), self.flows.len());
        let mut kinds: Vec<_> = self
            .connections
            .iter()
            .map(|(beside, _)| format!("{beside:?}"))
            .collect();
        kinds.sort();
        kinds.dedup();
        assert_eq!(self.table.leases(), kinds.len());
    }

    fn client(&mut self) -> IpAddr {
        IpAddr::from([192, 0, 2, self.dice.below(3) as u8])
    }

    fn port(&mut self) -> Port {
        [Port::Pcoip, Port::Listener][self.dice.below(2) as usize]
    }
}

fn pin(client: IpAddr, port: u16) -> Pin {
    Pin {
        client: SocketAddr::new(client, port),
        local: SocketAddr::from(([10, 0, 0, 1], 4172)),
    }
}

/// Sessions with a route each.
fn many_sessions(count: usize) -> Vec<(SessionId, RouteId)> {
    let now = crate::clock::now();
    let limits = config::Session {
        lifetime: Duration::from_secs(36_000),
        idle: None,
        heartbeat: Duration::from_secs(1_800),
        login_timeout: Duration::from_secs(300),
        first_use: Duration::from_secs(120),
        max: 1000,
        per_user: 1000,
        connections: 8,
    };
    let store = Arc::new(Store::new("gw-1".parse().unwrap(), None, limits));
    let target = Target {
        host: "10.0.0.5".to_owned(),
        port: 4172,
    };
    let session = |_| {
        let who = Authenticated::for_test("ann", IpAddr::from([192, 0, 2, 0]), now);
        let grant = store.mint(who, now).unwrap();
        let route = grant.add_route(&DesktopId::new("d"), Protocol::Pcoip, &target, None);
        (grant.id(), route.unwrap().id())
    };
    (0..count).map(session).collect()
}

fn limits() -> config::Udp {
    config::Udp {
        first_datagram: Duration::from_secs(30),
        agent_answer: Duration::from_secs(5),
        idle: Duration::from_secs(120),
        flows: 6,
        flows_per_session: 3,
        strays_per_source: 5,
    }
}

/// A small generator, so that a seed says everything (xorshift64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

const GOOD: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
const SEEDS: u64 = 60;
const STEPS: usize = 600;
