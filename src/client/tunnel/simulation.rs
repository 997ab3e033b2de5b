//! The machine against a model gateway over a bad network, in virtual time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::machine::{End, Event, Introduction, Machine};
use crate::client::model::{DISCONNECTED, TunnelModel};
use crate::clock;
use crate::tunnel::https::chunk::Decoder;
use crate::tunnel::https::message::Message;
use crate::types::Secret;

pub(super) fn introduction() -> Introduction {
    Introduction {
        connection_id: Secret::new("ks7"),
        address: "192.0.2.7".into(),
        host: "box".into(),
        cid: "77".into(),
        clock: 1_000,
        seed: 42,
    }
}

/// xorshift64: the seeds of failed runs can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn octets(&mut self, most: u64) -> Vec<u8> {
        (0..=self.roll(most))
            .map(|_| u8::try_from(self.roll(256)).unwrap())
            .collect()
    }
}

/// One local program's record of one channel.
#[derive(Default)]
struct Program {
    sent: Vec<u8>,
    received: Vec<u8>,
    opened: bool,
    lowered: bool,
    closed: bool,
    /// What its desktop sent.
    answered: Vec<u8>,
}

struct World {
    dice: Dice,
    now: Instant,
    client: Machine,
    model: TunnelModel,
    /// Whether a connection carries octets, and what is on its way.
    up: bool,
    to_model: VecDeque<Bytes>,
    to_client: VecDeque<Bytes>,
    decoder: Decoder,
    programs: BTreeMap<u32, Program>,
    resumes: usize,
    ready: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = clock::now();
        let mut world = Self {
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            now,
            client: Machine::new(introduction(), now),
            model: TunnelModel::new(),
            up: true,
            to_model: VecDeque::new(),
            to_client: VecDeque::new(),
            decoder: Decoder::new(),
            programs: BTreeMap::new(),
            resumes: 0,
            ready: false,
        };
        world.client.connected(now);
        world
    }

    /// Everything that follows without the passing of time.
    fn settle(&mut self) {
        loop {
            while let Some(chunk) = self.client.transmit(self.now) {
                assert!(self.up, "nothing is written without a connection");
                self.to_model.push_back(chunk);
            }
            if self.up {
                self.to_client.extend(self.model.out.drain(..));
            }
            let Some(event) = self.client.event() else { break };
            self.event(event);
        }
        self.client.check_invariants();
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Resume { secret } => {
                self.resumes += 1;
                // One attempt in three comes to nothing.
                if self.dice.roll(3) == 0 {
                    self.client.disconnected(self.now);
                } else {
                    self.up = true;
                    self.decoder = Decoder::new();
                    self.model.resumed(&secret);
                    self.client.connected(self.now);
                }
            }
            Event::HangUp => self.cut(),
            Event::Ready => self.ready = true,
            Event::Listen {
                cid,
                port_name,
                port,
                max_connections,
            } => {
                assert_eq!((port_name.as_str(), port, max_connections), ("rdp1", None, Some(4)));
                self.client.listening(cid, Ok(40_001));
            }
            Event::Opened { channel } => self.program(channel).opened = true,
            Event::Data { channel, octets } => {
                let program = self.program(channel);
                assert!(program.opened && !program.lowered);
                program.received.extend(&octets);
            }
            Event::Lowered { channel } => self.program(channel).lowered = true,
            Event::Unlisten { .. } | Event::Refused { .. } | Event::Say { .. } | Event::Ended(_) => panic!("{event:?}"),
        }
    }

    fn program(&mut self, channel: i32) -> &mut Program {
        self.programs.get_mut(&u32::try_from(channel).unwrap()).unwrap()
    }

    /// The network drops what is on its way, but for a part of it.
    fn cut(&mut self) {
        self.up = false;
        for _ in 0..self.dice.roll(3) {
            if let Some(octets) = self.to_model.pop_front() {
                self.model.receive(octets);
            }
        }
        self.to_model.clear();
        self.to_client.clear();
        self.model.out.clear();
    }

    fn deliver(&mut self) {
        if self.dice.roll(2) == 0 {
            if let Some(octets) = self.to_model.pop_front() {
                self.model.receive(octets);
            }
        } else if let Some(mut octets) = self.to_client.pop_front() {
            // In pieces, and now and then a chunk that was had before.
            let replay = (self.dice.roll(20) == 0).then(|| octets.clone());
            let split = usize::try_from(self.dice.roll(octets.len() as u64 + 1)).unwrap();
            for mut piece in [octets.split_to(split), octets].into_iter().chain(replay) {
                while let Some(chunk) = self.decoder.decode(&mut piece).unwrap() {
                    self.client.receive(chunk, self.now);
                }
            }
        }
    }

    fn step(&mut self, hostile: bool) {
        match self.dice.roll(if hostile { 24 } else { 18 }) {
            0..=9 => self.deliver(),
            10 if self.ready && self.programs.len() < 5 => {
                let channel = self.client.raise("rdp1");
                self.programs
                    .insert(u32::try_from(channel).unwrap(), Program::default());
            }
            11..=13 if self.client.takes_data() => self.program_sends(),
            14 | 15 => self.desktop_sends(),
            16 => self.pass(Duration::from_millis(self.dice.0 % 50)),
            17 if self.dice.roll(8) == 0 => self.program_closes(),
            18 if self.ready => self.pass(Duration::from_secs(self.dice.0 % 20)),
            19 if self.ready && self.dice.roll(2) == 0 => {
                self.cut();
                self.client.disconnected(self.now);
            }
            // A chunk is lost without the connection breaking: nothing after it may be taken.
            20 if self.ready && self.dice.roll(4) == 0 => {
                self.to_client.pop_front();
            }
            21 if self.up && self.ready && self.dice.roll(4) == 0 => {
                let authenticated = self.model.authenticated();
                self.model.send(&authenticated);
            }
            _ => {}
        }
        self.settle();
    }

    fn program_sends(&mut self) {
        let octets = self.dice.octets(3_000);
        let open = |program: &&mut Program| program.opened && !program.lowered && !program.closed;
        let mut programs: Vec<_> = self.programs.iter_mut().filter(|(_, program)| open(program)).collect();
        if programs.is_empty() {
            return;
        }
        let place = usize::try_from(self.dice.0).unwrap() % programs.len();
        let (channel, program) = &mut programs[place];
        program.sent.extend(&octets);
        self.client.data_from(i32::try_from(**channel).unwrap(), octets.into());
    }

    fn desktop_sends(&mut self) {
        // The model has a window of its own, as the gateway does.
        if self.model.kept.len() > 16 {
            return;
        }
        let octets = self.dice.octets(3_000);
        let open: Vec<_> = self
            .model
            .desktops
            .iter()
            .filter(|(_, it)| it.open)
            .map(|(channel, _)| *channel)
            .collect();
        let Some(channel) = open.get(usize::try_from(self.dice.0).unwrap() % open.len().max(1)) else {
            return;
        };
        if self.dice.roll(40) == 0 {
            self.model.desktops.get_mut(channel).unwrap().open = false;
            self.model.send(&Message::Lower {
                channel: i32::try_from(*channel).unwrap(),
            });
        } else {
            self.programs.get_mut(channel).unwrap().answered.extend(&octets);
            self.model.data(*channel, &octets);
        }
    }

    fn program_closes(&mut self) {
        let open = |program: &&mut Program| program.opened && !program.lowered && !program.closed;
        if let Some((channel, program)) = self.programs.iter_mut().find(|(_, program)| open(program)) {
            program.closed = true;
            self.client.lower(i32::try_from(*channel).unwrap());
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.client.tick(self.now);
    }

    /// The network is well again: everything arrives.
    fn recover(&mut self) {
        for _ in 0..5_000 {
            self.settle();
            if self.to_model.is_empty() && self.to_client.is_empty() && (!self.up || self.model.out.is_empty()) {
                let next = [self.client.deadline(), self.client.ack_due()]
                    .into_iter()
                    .flatten()
                    .min();
                let done = self.up && self.model.kept.is_empty();
                match next {
                    Some(next) if !done => self.now = self.now.max(next),
                    _ => return,
                }
            }
            self.deliver();
            self.client.tick(self.now);
        }
        panic!("it does not come to rest");
    }

    fn compare(&self) {
        for (channel, program) in &self.programs {
            let desktop = &self.model.desktops[channel];
            let (down, up) = (&program.received, &desktop.received);
            if program.closed {
                assert!(
                    program.answered.starts_with(down),
                    "channel {channel}: from the desktop"
                );
            } else {
                let lengths = (down.len(), program.answered.len());
                assert!(
                    *down == program.answered,
                    "channel {channel}: from the desktop {lengths:?}"
                );
            }
            if program.lowered {
                assert!(program.sent.starts_with(up), "channel {channel}: to the desktop");
            } else {
                let lengths = (up.len(), program.sent.len());
                assert!(*up == program.sent, "channel {channel}: to the desktop {lengths:?}");
            }
            assert_eq!(desktop.open, !program.closed && !program.lowered, "channel {channel}");
        }
    }
}

#[test]
fn every_octet_arrives_once_and_in_order_over_a_network_that_breaks() {
    let (mut resumes, mut replays, mut octets) = (0, 0, 0);
    for seed in 1..=200 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            world.step(true);
        }
        world.recover();
        world.compare();
        resumes += world.resumes;
        replays += world.model.replays;
        octets += world
            .programs
            .values()
            .map(|program| program.received.len() + program.sent.len())
            .sum::<usize>();
    }
    assert!(
        resumes > 200 && replays > 100 && octets > 1_000_000,
        "{resumes} {replays} {octets}: the dice are too kind"
    );
}

#[test]
fn a_network_that_is_well_needs_no_second_connection() {
    for seed in 1..=20 {
        let mut world = World::new(seed);
        for _ in 0..2_000 {
            world.step(false);
        }
        world.recover();
        world.compare();
        assert_eq!((world.resumes, world.model.replays), (0, 0), "seed {seed}");
    }
}

#[test]
fn a_gateway_that_stays_away_is_given_up_after_the_time_it_named() {
    let mut world = World::new(1);
    while !world.ready {
        world.step(false);
    }
    let begun = world.now;
    world.client.disconnected(world.now);
    loop {
        match world.client.event() {
            Some(Event::Ended(end)) => {
                assert_eq!(end, End::LostContact { after: DISCONNECTED });
                break;
            }
            Some(_) => world.client.disconnected(world.now),
            None => {
                world.now = world.now.max(world.client.deadline().unwrap());
                world.client.tick(world.now);
            }
        }
    }
    assert_eq!(world.now - begun, DISCONNECTED);
}
