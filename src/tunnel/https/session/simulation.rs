//! The session against the model client, under seeded random traffic with a virtual clock.

use std::collections::BTreeMap;

use super::model::{Client, terms};
use super::*;

#[test]
fn every_promised_octet_arrives_once_and_in_order_whatever_the_connection_does() {
    for seed in 0..400 {
        World::new(seed).run(300);
    }
}

#[test]
fn a_long_life_with_many_reconnects_keeps_its_promises() {
    for seed in 1_000..1_010 {
        World::new(seed).run(6_000);
    }
}

/// What the server's driver knows of a channel.
#[derive(Default)]
struct Desktop {
    sent: Vec<u8>,
    received: Vec<u8>,
    raising: bool,
    lowered: bool,
    client_lowered: bool,
    /// The server ended it for both sides: the rest of the client's octets is not promised.
    cut: bool,
}

struct World {
    seed: u64,
    random: Random,
    now: Instant,
    server: Session,
    client: Client,
    /// Chunks on their way to the client.
    wire: Vec<u8>,
    desktops: BTreeMap<u32, Desktop>,
    listed: u32,
    raised: i32,
    reconnects: u32,
}

impl World {
    fn new(seed: u64) -> Self {
        let now = crate::clock::now();
        let mut terms = terms();
        terms.limits.window_chunks = 24;
        terms.limits.window_octets = 40_000;
        terms.limits.backlog = 12;
        Self {
            seed,
            random: Random(seed),
            now,
            server: Session::new(terms, now),
            client: Client::default(),
            wire: Vec::new(),
            desktops: BTreeMap::new(),
            listed: 0,
            raised: 0,
            reconnects: 0,
        }
    }

    fn run(mut self, steps: usize) {
        self.client.init();
        self.client.start("k3y");
        self.settle();
        assert!(self.client.ready);
        for _ in 0..steps {
            self.step();
            self.server.check_invariants();
        }
        self.settle();
        self.judge();
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0 => self.list(),
            1 => self.unlist(),
            2 => self.raise(),
            3 => self.lower_at_client(),
            4 => self.lower_at_server(),
            5..=7 => self.send_from_client(),
            8..=10 => self.send_from_desktop(),
            11..=12 => self.deliver_to_server(),
            13..=14 => self.deliver_to_client(),
            15 => self.client.acknowledge(),
            16 => self.client.say(&Message::EchoRequest { now: Some(1) }),
            17 => self.client.repeat(self.random.below(4)),
            18 => self.pass_time(),
            _ if self.random.below(3) == 0 => self.lose_connection(),
            _ => self.settle_raising(),
        }
        self.transmit();
    }

    fn list(&mut self) {
        self.listed += 1;
        let _ = self.server.listen(
            &format!("rdp-{}", self.listed),
            ("vm7", 3389),
            self.random.below(3) == 0,
        );
        let unanswered: Vec<_> = self
            .client
            .ports
            .iter()
            .filter(|port| port.1.is_some())
            .map(|p| p.0.clone())
            .collect();
        for port_name in unanswered {
            let port = if self.random.below(5) == 0 {
                Err("in use".to_owned())
            } else {
                Ok(40_001)
            };
            self.client.answer_listening(&port_name, port);
        }
    }

    fn unlist(&mut self) {
        if self.random.below(3) == 0 {
            let port_name = format!("rdp-{}", self.random.below(self.listed as usize + 1));
            for channel in self.server.unlisten(&port_name) {
                let desktop = self.desktops.get_mut(&channel).unwrap();
                desktop.cut = true;
                desktop.raising = false;
            }
        }
    }

    fn raise(&mut self) {
        let names: Vec<_> = self.client.ports.keys().cloned().collect();
        self.raised += 1;
        let unknown = || "ssh-1".to_owned();
        let port_name = names
            .get(self.random.below(names.len() + 1))
            .cloned()
            .unwrap_or_else(unknown);
        self.client.raise(self.raised, &port_name);
    }

    fn settle_raising(&mut self) {
        let raising: Vec<_> = self.desktops.iter().filter(|d| d.1.raising).map(|d| *d.0).collect();
        for channel in raising {
            let refuse = self.random.below(4) == 0;
            self.server
                .raised(channel, if refuse { Err("no answer".to_owned()) } else { Ok(()) });
            let desktop = self.desktops.get_mut(&channel).unwrap();
            desktop.raising = false;
            desktop.cut |= refuse;
        }
    }

    fn lower_at_client(&mut self) {
        if let Some(channel) = self.pick_client_channel() {
            self.client.lower(channel);
        }
    }

    fn lower_at_server(&mut self) {
        if let Some(channel) = self.pick_desktop() {
            if self.random.below(4) == 0 {
                self.server.forget(channel);
                self.desktops.get_mut(&channel).unwrap().cut = true;
            } else {
                self.server.lower(channel);
            }
            self.desktops.get_mut(&channel).unwrap().lowered = true;
        }
    }

    fn send_from_client(&mut self) {
        if let Some(channel) = self.pick_client_channel() {
            let octets = self.random.octets();
            self.client.send(channel, &octets);
        }
    }

    fn send_from_desktop(&mut self) {
        if let Some(channel) = self.pick_desktop().filter(|_| self.server.is_window_open()) {
            let octets = self.random.octets();
            self.server.send(channel, Payload::copy_from(&octets));
            self.desktops.get_mut(&channel).unwrap().sent.extend(octets);
        }
    }

    fn deliver_to_server(&mut self) {
        let amount = self.random.below(self.client.wire.len() + 1);
        self.deliver(amount);
    }

    fn deliver(&mut self, amount: usize) {
        let mut bytes = self.client.wire.split_to(amount).freeze();
        if !self.server.is_attached() {
            return;
        }
        while let Some(event) = self.server.receive(&mut bytes, self.now).unwrap() {
            self.act(event);
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Ready | Event::Listening { .. } | Event::Unlistened { .. } => {}
            Event::Raise { channel, port_name } => {
                assert!(port_name.starts_with("rdp-"), "a port that was never listed");
                let fresh = Desktop {
                    raising: true,
                    ..Desktop::default()
                };
                assert!(
                    self.desktops.insert(channel, fresh).is_none(),
                    "a channel was raised twice"
                );
            }
            Event::Data { channel, octets } => {
                let desktop = self.desktops.get_mut(&channel).unwrap();
                assert!(
                    !desktop.client_lowered && !desktop.cut,
                    "data outside of a channel's life"
                );
                desktop.received.extend(octets);
            }
            Event::Lower { channel } => {
                let desktop = self.desktops.get_mut(&channel).unwrap();
                assert!(!std::mem::replace(&mut desktop.client_lowered, true));
            }
            Event::Abandon { channel } => {
                let desktop = self.desktops.get_mut(&channel).unwrap();
                assert!(
                    std::mem::replace(&mut desktop.raising, false),
                    "abandoned while it was open"
                );
                (desktop.cut, desktop.client_lowered) = (true, true);
            }
        }
    }

    fn deliver_to_client(&mut self) {
        let amount = self.random.below(self.wire.len() + 1);
        let bytes = self.wire.drain(..amount).collect();
        self.client.receive(bytes);
        if self.client.unacknowledged >= 16 {
            self.client.acknowledge();
        }
    }

    fn pass_time(&mut self) {
        self.now += Duration::from_millis(self.random.below(30_000) as u64);
        self.tick();
    }

    fn tick(&mut self) {
        match self.server.tick(self.now) {
            None => {}
            Some(Alarm::LostContact) => {
                assert!(!self.server.is_attached());
                self.reconnect();
            }
            Some(alarm) => panic!("seed {}: {alarm:?}", self.seed),
        }
    }

    fn lose_connection(&mut self) {
        assert!(self.server.detach(self.now));
        self.transmit();
        self.now += Duration::from_millis(self.random.below(5_000) as u64);
        for _ in 0..self.random.below(4) {
            self.send_from_desktop();
            self.list();
        }
        self.reconnect();
    }

    fn reconnect(&mut self) {
        self.reconnects += 1;
        self.client.disconnect();
        self.wire.clear();
        self.client.reconnect();
        self.server.attach(self.now);
    }

    fn transmit(&mut self) {
        for _ in 0..self.random.below(6) {
            let Some(chunk) = self.server.transmit(self.now) else {
                break;
            };
            assert!(self.server.is_attached());
            self.wire.extend(chunk);
        }
    }

    /// Lets everything arrive that is on its way.
    fn settle(&mut self) {
        for round in 0..20 {
            self.now += Duration::from_millis(if round < 15 { 2_000 } else { 60 });
            self.tick();
            self.deliver(self.client.wire.len());
            self.settle_raising();
            while let Some(chunk) = self.server.transmit(self.now) {
                self.wire.extend(chunk);
            }
            self.client.receive(self.wire.drain(..).collect());
            self.client.acknowledge();
        }
        assert!(self.server.is_drained() && self.wire.is_empty() && self.client.wire.len() < 12);
        assert_eq!(
            self.client.kept(),
            0,
            "seed {}: the server did not acknowledge",
            self.seed
        );
        self.deliver(self.client.wire.len());
        assert_eq!(self.server.outbox.len(), 0, "the server let nothing go");
    }

    fn judge(&self) {
        for (number, channel) in &self.client.channels {
            let Some(desktop) = self.desktops.get(&(*number as u32)) else {
                assert!(
                    channel.refused.is_some() || channel.lowered,
                    "seed {}: no answer for {number}",
                    self.seed
                );
                continue;
            };
            let what = format!(
                "seed {} channel {number} after {} reconnects",
                self.seed, self.reconnects
            );
            assert_eq!(channel.received, desktop.sent, "{what}");
            assert!(channel.sent.starts_with(&desktop.received), "{what}");
            if !desktop.cut {
                assert_eq!(channel.sent, desktop.received, "{what}");
                assert_eq!(desktop.client_lowered, channel.lowered, "{what}");
                assert_eq!(channel.server_lowered, desktop.lowered, "{what}");
            }
        }
    }

    fn pick_client_channel(&mut self) -> Option<i32> {
        let channels = self.client.channels.iter();
        let open: Vec<_> = channels
            .filter(|c| c.1.refused.is_none() && !c.1.lowered)
            .map(|c| *c.0)
            .collect();
        open.get(self.random.below(open.len().max(1))).copied()
    }

    fn pick_desktop(&mut self) -> Option<u32> {
        let open = self.desktops.iter().filter(|(_, d)| !d.raising && !d.lowered && !d.cut);
        let open: Vec<_> = open.map(|d| *d.0).collect();
        open.get(self.random.below(open.len().max(1))).copied()
    }
}

/// A small generator that gives the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        value ^ (value >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn octets(&mut self) -> Vec<u8> {
        let length = if self.below(8) == 0 {
            1 + self.below(10_240)
        } else {
            1 + self.below(80)
        };
        (0..length).map(|_| self.next() as u8).collect()
    }
}
