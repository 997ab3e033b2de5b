//! The client's side of the tunnel as a pure state machine: time and chunks in, chunks and events out.
//!
//! It owns the numbering, the timers and the list of channels; it knows no socket. Whoever drives it
//!
//! 1. tells it what happened ([`connected`](Machine::connected), [`receive`](Machine::receive),
//!    [`disconnected`](Machine::disconnected), [`tick`](Machine::tick), …),
//! 2. then writes what [`transmit`](Machine::transmit) gives, and
//! 3. does what [`event`](Machine::event) says.

mod away;
mod event;
mod terms;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::window::{Order, Window};
use crate::client::words::printable;
use crate::tunnel::https::chunk::{Chunk, ChunkFault};
use crate::tunnel::https::message::Message;
use crate::types::Secret;

pub use self::event::End;
pub(super) use self::event::Event;

use self::away::Away;
use self::terms::Terms;

/// What the client says of itself when it opens a tunnel.
#[derive(Clone, Debug)]
pub(super) struct Introduction {
    /// The credential of the tunnel, from the control channel.
    pub(super) connection_id: Secret,
    /// The client's address as it sees it.
    pub(super) address: String,
    /// The client's host name.
    pub(super) host: String,
    /// Correlates the first answer.
    pub(super) cid: String,
    /// The time of day in milliseconds.
    pub(super) clock: i64,
    /// Draws the pauses between attempts to reconnect.
    pub(super) seed: u64,
}

/// The state of one tunnel.
#[derive(Debug)]
pub(super) struct Machine {
    introduction: Introduction,
    phase: Phase,
    /// What the gateway granted; `None` until it has authenticated the client.
    terms: Option<Terms>,
    window: Window,
    /// The acknowledgement that opens a resumed connection.
    opener: Option<Bytes>,
    connected: bool,
    away: Away,
    channels: BTreeMap<i32, Channel>,
    last_channel: i32,
    started: Instant,
    /// When something arrived last.
    heard: Instant,
    /// When the next question whether anyone is there is due.
    echo_at: Instant,
    /// Nobody reads the connection, because a local program does not take its data.
    reading: bool,
    /// Whether the gateway knows half-closed channels.
    half_close: bool,
    events: VecDeque<Event>,
}

/// How far the opening is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Nothing was sent yet.
    Fresh,
    /// `init` is out.
    Opening,
    /// `start` is out.
    Starting,
    /// `authenticated` is in.
    Authenticated,
    /// `ready` is in.
    Ready,
    /// The tunnel is over.
    Ended,
}

/// A local connection that was announced to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Channel {
    /// The gateway has not answered yet.
    Raising,
    /// Octets flow.
    Open,
    /// Octets flow to the program only, which sends no more.
    HalfClosed,
}

impl Machine {
    /// A tunnel that is not connected yet.
    pub(super) fn new(introduction: Introduction, now: Instant) -> Self {
        Self {
            away: Away::new(introduction.seed),
            introduction,
            phase: Phase::Fresh,
            terms: None,
            window: Window::default(),
            opener: None,
            connected: false,
            channels: BTreeMap::new(),
            last_channel: 0,
            started: now,
            heard: now,
            echo_at: now,
            reading: true,
            half_close: false,
            events: VecDeque::new(),
        }
    }

    /// A connection is up: the first one, or one that takes the tunnel up again.
    pub(super) fn connected(&mut self, now: Instant) {
        self.connected = true;
        self.reading = true;
        self.heard = now;
        if self.phase == Phase::Fresh {
            self.phase = Phase::Opening;
            self.push(&Message::Init {
                kind: "C".to_owned(),
                version: VERSION,
                cid: self.introduction.cid.clone(),
            });
        } else {
            self.opener = Some(self.window.rewind());
            // Its answer is the proof that the tunnel lives on.
            self.ask(now);
        }
    }

    /// The connection is gone, or could not be made.
    pub(super) fn disconnected(&mut self, now: Instant) {
        self.connected = false;
        self.opener = None;
        match &self.terms {
            _ if self.phase == Phase::Ended => {}
            Some(terms) if terms.can_resume() => self.away.begin(now),
            _ => self.end(End::Broken),
        }
    }

    /// Takes a chunk that arrived.
    pub(super) fn receive(&mut self, chunk: Chunk, now: Instant) {
        if !self.connected || self.phase == Phase::Ended {
            return;
        }
        self.heard = now;
        let (id, ack) = match &chunk {
            Chunk::Ack { ack } => (None, Some(*ack)),
            Chunk::Message { id, ack, .. } | Chunk::Data { id, ack, .. } => (Some(*id), *ack),
        };
        if let Some(ack) = ack {
            self.window.acknowledged(ack);
        }
        match id.map(|id| self.window.receive(id, now)) {
            None | Some(Order::Replay) => {}
            // A chunk is missing: only a new connection brings it back.
            Some(Order::Gap) => self.drop_connection(now),
            Some(Order::Next) => {
                self.away.end();
                match chunk {
                    Chunk::Ack { .. } => {}
                    Chunk::Data { channel, octets, .. } => self.data(channel, octets),
                    Chunk::Message { header, body, .. } => match Message::decode(&header, &body) {
                        Ok(message) => self.message(message, now),
                        Err(fault) => self.end(fault.into()),
                    },
                }
            }
        }
    }

    /// The stream has no meaning any more.
    pub(super) fn fail(&mut self, fault: ChunkFault) {
        self.end(fault.into());
    }

    /// Does what is due at `now`.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.phase == Phase::Ended {
            return;
        }
        if self.phase < Phase::Ready && now >= self.started + OPENING {
            self.end(End::NotReady { after: OPENING });
            return;
        }
        let Some(terms) = self.terms.clone() else { return };
        if self
            .away
            .since()
            .is_some_and(|since| now >= since + terms.disconnected())
        {
            self.end(End::LostContact {
                after: terms.disconnected(),
            });
        } else if self.connected && self.reading && now >= self.heard + terms.lost_contact() {
            self.drop_connection(now);
        } else if self.connected && now >= self.echo_at {
            self.ask(now);
        } else if !self.connected
            && self.away.is_due(now)
            && let Some(secret) = terms.secret()
        {
            self.events.push_back(Event::Resume { secret: secret.clone() });
        }
    }

    /// When a lone acknowledgement is due: [`transmit`](Self::transmit) gives it.
    pub(super) fn ack_due(&self) -> Option<Instant> {
        self.window.deadline().filter(|_| self.connected)
    }

    /// When [`tick`](Self::tick) has something to do. It may lie in the past.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.phase == Phase::Ended {
            return None;
        }
        let opening = (self.phase < Phase::Ready).then(|| self.started + OPENING);
        let terms = self.terms.as_ref();
        let away = terms.and_then(|terms| Some(self.away.since()? + terms.disconnected()));
        let link = if self.connected {
            let lost = terms
                .filter(|_| self.reading)
                .map(|terms| self.heard + terms.lost_contact());
            let echo = terms.map(|_| self.echo_at);
            [lost, echo]
        } else {
            [self.away.next_attempt(), None]
        };
        link.into_iter().chain([opening, away]).flatten().min()
    }

    /// The next chunk to be written to the connection.
    pub(super) fn transmit(&mut self, now: Instant) -> Option<Bytes> {
        if !self.connected || self.phase == Phase::Ended {
            return None;
        }
        self.opener.take().or_else(|| self.window.transmit(now))
    }

    /// The next thing to be done.
    pub(super) fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the connection is being read. While it is not, silence is no loss of contact.
    pub(super) fn set_reading(&mut self, reading: bool, now: Instant) {
        if reading && !self.reading {
            self.heard = now;
        }
        self.reading = reading;
    }

    /// Whether data of local programs may be given to [`data_from`](Self::data_from).
    pub(super) fn takes_data(&self) -> bool {
        self.phase == Phase::Ready && self.window.is_open()
    }

    /// Answers [`Event::Listen`]: the local port, or the words for why there is none.
    pub(super) fn listening(&mut self, cid: i32, port: Result<u16, String>) {
        self.push(&Message::ListenReply { cid, port });
    }

    /// A local port was closed.
    pub(super) fn unlistened(&mut self, port_name: &str) {
        self.push(&Message::UnlistenReply {
            port_name: Some(port_name.to_owned()),
            problem: None,
        });
    }

    /// A local program connected to a port: asks for a channel and gives its number.
    ///
    /// [`Event::Opened`] or [`Event::Refused`] follows, or the end of the tunnel.
    pub(super) fn raise(&mut self, port_name: &str) -> i32 {
        // 2^31 connections are more than a session can live to see; a number that is in use would be refused.
        self.last_channel = self.last_channel.saturating_add(1);
        self.channels.insert(self.last_channel, Channel::Raising);
        self.push(&Message::RaiseRequest {
            channel: self.last_channel,
            port_name: port_name.to_owned(),
        });
        self.last_channel
    }

    /// Octets of a local program, at most [`MAX_DATA`](crate::tunnel::https::chunk::MAX_DATA).
    ///
    /// Those for a channel that is not open are dropped.
    pub(super) fn data_from(&mut self, channel: i32, octets: Bytes) {
        let Ok(number) = u32::try_from(channel) else { return };
        if !octets.is_empty() && self.channels.get(&channel) == Some(&Channel::Open) {
            self.window.push(|id| Chunk::Data {
                id,
                ack: None,
                channel: number,
                octets,
            });
        }
    }

    /// The local program sends no more, and may still receive. Only a gateway that knows such channels is told.
    pub(super) fn half_close(&mut self, channel: i32) {
        if self.half_close
            && let Some(state @ Channel::Open) = self.channels.get_mut(&channel)
        {
            *state = Channel::HalfClosed;
            self.push(&Message::Lower { channel });
        }
    }

    /// The local program closed its connection fully.
    pub(super) fn lower(&mut self, channel: i32) {
        if let Some(state) = self.channels.remove(&channel) {
            self.push(&Message::Lower { channel });
            if self.half_close && state != Channel::HalfClosed {
                // Once for each direction.
                self.push(&Message::Lower { channel });
            }
        }
    }

    /// Ends the tunnel from this side.
    pub(super) fn end(&mut self, end: End) {
        if self.phase != Phase::Ended {
            self.phase = Phase::Ended;
            self.channels.clear();
            self.events.push_back(Event::Ended(end));
        }
    }

    fn message(&mut self, message: Message, now: Instant) {
        match message {
            Message::PleaseInit { cid } if self.phase == Phase::Opening && cid == self.introduction.cid => {
                self.phase = Phase::Starting;
                self.push(&Message::Start {
                    address: self.introduction.address.clone(),
                    host: self.introduction.host.clone(),
                    cap_id: self.introduction.connection_id.clone(),
                    kind: "C".to_owned(),
                    clock: self.introduction.clock,
                    half_close: true,
                });
            }
            Message::Authenticated {
                cap_id,
                reconnection,
                lost_contact_ms,
                disconnected_ms,
                reconnect_secret,
                half_close,
                ..
            } if self.phase >= Phase::Starting => {
                if cap_id != self.introduction.connection_id {
                    return self.end(End::Foreign);
                }
                let terms = Terms::new(
                    reconnection.then_some(reconnect_secret).flatten(),
                    lost_contact_ms,
                    disconnected_ms,
                );
                self.echo_at = now + terms.echo_interval();
                self.terms = Some(terms);
                self.half_close = half_close;
                self.phase = self.phase.max(Phase::Authenticated);
            }
            Message::Ready if self.phase == Phase::Authenticated => {
                self.phase = Phase::Ready;
                self.events.push_back(Event::Ready);
            }
            Message::ListenRequest {
                cid,
                port_name,
                client_port,
                max_connections,
                ..
            } => {
                self.listen(cid, port_name, client_port, max_connections);
            }
            Message::RaiseReply { channel, problem } => self.raised(channel, problem),
            Message::Lower { channel } => {
                if let Some(state) = self.channels.remove(&channel) {
                    if state != Channel::HalfClosed {
                        self.push(&Message::Lower { channel });
                    }
                    self.events.push_back(Event::Lowered { channel });
                }
            }
            Message::UnlistenRequest { port_name } => self.events.push_back(Event::Unlisten { port_name }),
            Message::EchoRequest { .. } => self.push(&Message::EchoReply),
            Message::Stop { reason } => self.end(End::Stopped {
                reason: printable(&reason),
            }),
            Message::SystemMessage { text } | Message::Error { text } => {
                self.events.push_back(Event::Say { text: printable(&text) });
            }
            Message::PleaseInit { .. }
            | Message::Authenticated { .. }
            | Message::Ready
            | Message::EchoReply
            | Message::Init { .. }
            | Message::Start { .. }
            | Message::ListenReply { .. }
            | Message::RaiseRequest { .. }
            | Message::UnlistenReply { .. }
            | Message::Unknown => {}
        }
    }

    fn listen(&mut self, cid: i32, port_name: String, port: i32, max_connections: i32) {
        let port = match port {
            ..=0 => None,
            port => match u16::try_from(port) {
                Ok(port) => Some(port),
                Err(_) => return self.listening(cid, Err("no such port".to_owned())),
            },
        };
        let max_connections = match max_connections {
            ..=0 => None,
            most => Some(u16::try_from(most).unwrap_or(u16::MAX)),
        };
        self.events.push_back(Event::Listen {
            cid,
            port_name,
            port,
            max_connections,
        });
    }

    fn raised(&mut self, channel: i32, problem: Option<String>) {
        let Some(state) = self
            .channels
            .get_mut(&channel)
            .filter(|state| **state == Channel::Raising)
        else {
            return;
        };
        match problem {
            None => {
                *state = Channel::Open;
                self.events.push_back(Event::Opened { channel });
            }
            Some(problem) => {
                self.channels.remove(&channel);
                self.events.push_back(Event::Refused {
                    channel,
                    problem: printable(&problem),
                });
            }
        }
    }

    fn data(&mut self, channel: u32, octets: Bytes) {
        let Ok(channel) = i32::try_from(channel) else { return };
        // What still comes for a channel that this side has closed has nowhere to go.
        let state = self.channels.get(&channel);
        if !octets.is_empty() && matches!(state, Some(Channel::Open | Channel::HalfClosed)) {
            self.events.push_back(Event::Data { channel, octets });
        }
    }

    fn drop_connection(&mut self, now: Instant) {
        self.events.push_back(Event::HangUp);
        self.disconnected(now);
    }

    fn ask(&mut self, now: Instant) {
        if let Some(terms) = &self.terms {
            self.echo_at = now + terms.echo_interval();
        }
        // With so much unanswered, one more question says nothing new.
        if self.window.unacknowledged() < MAX_UNANSWERED {
            let age = i64::try_from((now - self.started).as_millis()).unwrap_or(i64::MAX);
            self.push(&Message::EchoRequest {
                now: Some(self.introduction.clock.saturating_add(age)),
            });
        }
    }

    fn push(&mut self, message: &Message) {
        if self.window.unacknowledged() >= MAX_KEPT {
            self.end(End::Unacknowledged);
        } else if self.phase != Phase::Ended {
            self.window.push(|id| message.to_chunk(id, None));
        }
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        self.window.check_invariants();
        assert!(
            self.window.unacknowledged() <= MAX_KEPT,
            "{}",
            self.window.unacknowledged()
        );
        assert!(self.opener.is_none() || self.connected);
        assert!(self.phase != Phase::Ended || self.channels.is_empty());
    }
}

/// The version of the tunnel protocol that is spoken.
const VERSION: [i32; 3] = [3, 1, 4];
/// How long the gateway may take from the first connection to `ready`.
const OPENING: Duration = Duration::from_secs(30);
/// Unacknowledged chunks with which no further question is asked.
const MAX_UNANSWERED: usize = 64;
/// Unacknowledged chunks with which the gateway is given up.
const MAX_KEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::super::simulation::introduction;
    use super::*;
    use crate::client::model::listen_request;
    use crate::clock;

    struct Bench {
        now: Instant,
        machine: Machine,
        /// The number of the gateway's last chunk.
        sent: u32,
    }

    impl Bench {
        fn new() -> Self {
            let now = clock::now();
            let mut bench = Self {
                now,
                machine: Machine::new(introduction(), now),
                sent: 0,
            };
            bench.machine.connected(now);
            bench
        }

        fn ready() -> Self {
            let mut bench = Self::new();
            bench.receive(&Message::PleaseInit { cid: "77".into() });
            bench.receive(&authenticated(true));
            bench.receive(&Message::Ready);
            assert_eq!(bench.events(), [Event::Ready]);
            bench.sent();
            bench
        }

        fn receive(&mut self, message: &Message) {
            self.sent += 1;
            self.machine.receive(message.to_chunk(self.sent, None), self.now);
            self.machine.check_invariants();
        }

        fn receive_data(&mut self, channel: u32, octets: &'static [u8]) {
            self.sent += 1;
            let data = Chunk::Data {
                id: self.sent,
                ack: None,
                channel,
                octets: Bytes::from_static(octets),
            };
            self.machine.receive(data, self.now);
        }

        fn pass(&mut self, seconds: u64) {
            self.now += Duration::from_secs(seconds);
            self.machine.tick(self.now);
        }

        fn events(&mut self) -> Vec<Event> {
            std::iter::from_fn(|| self.machine.event()).collect()
        }

        fn sent(&mut self) -> Vec<String> {
            let chunks = std::iter::from_fn(|| self.machine.transmit(self.now));
            chunks
                .map(|chunk| String::from_utf8_lossy(&chunk).into_owned())
                .collect()
        }

        fn messages(&mut self) -> Vec<Message> {
            let chunks: Vec<_> = std::iter::from_fn(|| self.machine.transmit(self.now)).collect();
            let decoded = chunks.into_iter().filter_map(|mut chunk| {
                match crate::tunnel::https::chunk::Decoder::new()
                    .decode(&mut chunk)
                    .unwrap()
                    .unwrap()
                {
                    Chunk::Message { header, body, .. } => Some(Message::decode(&header, &body).unwrap()),
                    Chunk::Ack { .. } | Chunk::Data { .. } => None,
                }
            });
            decoded.collect()
        }
    }

    fn authenticated(reconnection: bool) -> Message {
        Message::Authenticated {
            reconnection,
            cap_id: Secret::new("ks7"),
            lost_contact_ms: 60_000,
            disconnected_ms: 300_000,
            session_ms: 0,
            reconnect_secret: Some(Secret::new("r1")),
            half_close: false,
        }
    }

    #[test]
    fn the_published_exchange_is_spoken_byte_for_byte() {
        let mut bench = Bench::new();
        let init = "M;1;;17;messageType=S:aW5pdA==|;2C;type=S:Qw==|v1=I:3|v2=I:1|v3=I:4|cid=S:Nzc=|;";
        assert_eq!(bench.sent(), [init]);
        bench.receive(&Message::PleaseInit { cid: "77".into() });
        assert!(bench.sent()[0].starts_with("M;2;1;"), "start acknowledges please-init");
        bench.receive(&authenticated(true));
        bench.receive(&Message::Ready);
        bench.receive(&listen_request(4));
        bench.machine.listening(9, Ok(40_001));
        assert!(bench.sent()[0].starts_with("M;3;4;1B;messageType=S:bGlzdGVuLXJw|;"));
        assert_eq!(bench.machine.raise("rdp1"), 1);
        let raise = "M;4;;1B;messageType=S:cmFpc2UtcnE=|;1F;chanID=I:1|portName=S:cmRwMQ==|;";
        assert_eq!(bench.sent(), [raise]);
        bench.receive(&Message::RaiseReply {
            channel: 1,
            problem: None,
        });
        bench.machine.data_from(1, Bytes::from_static(b"a;b;c"));
        assert_eq!(bench.sent(), ["D;5;5;1;5;a;b;c;"]);
        assert_eq!(bench.events().len(), 3);
    }

    #[test]
    fn an_answer_for_another_tunnel_ends_it() {
        let mut bench = Bench::new();
        bench.receive(&Message::PleaseInit { cid: "78".into() });
        assert_eq!(bench.messages().len(), 1, "an unknown cid is not answered");
        bench.receive(&Message::PleaseInit { cid: "77".into() });
        let mut other = authenticated(true);
        if let Message::Authenticated { cap_id, .. } = &mut other {
            *cap_id = Secret::new("ks8");
        }
        bench.receive(&other);
        assert_eq!(bench.events(), [Event::Ended(End::Foreign)]);
    }

    #[test]
    fn a_gateway_that_does_not_get_ready_is_given_up() {
        let mut bench = Bench::new();
        bench.receive(&Message::Ready);
        assert_eq!(bench.events(), [], "not before it has authenticated the client");
        assert_eq!(bench.machine.deadline(), Some(bench.now + OPENING));
        bench.pass(30);
        assert_eq!(bench.events(), [Event::Ended(End::NotReady { after: OPENING })]);
    }

    #[test]
    fn a_connection_that_breaks_before_or_without_leave_to_resume_is_the_end() {
        let mut bench = Bench::new();
        bench.machine.disconnected(bench.now);
        assert_eq!(bench.events(), [Event::Ended(End::Broken)]);

        let mut bench = Bench::ready();
        bench.receive(&authenticated(false));
        bench.machine.disconnected(bench.now);
        assert_eq!(bench.events(), [Event::Ended(End::Broken)]);
    }

    #[test]
    fn contact_is_asked_for_and_given_up() {
        let mut bench = Bench::ready();
        bench.pass(19);
        assert_eq!(bench.messages(), []);
        for _ in 0..2 {
            bench.pass(20);
            assert!(matches!(bench.messages()[..], [Message::EchoRequest { now: Some(_) }]));
        }
        assert_eq!(bench.events(), []);
        bench.pass(1);
        assert_eq!(bench.events(), [Event::HangUp]);
        bench.pass(0);
        assert_eq!(
            bench.events(),
            [Event::Resume {
                secret: Secret::new("r1")
            }]
        );
        bench.machine.connected(bench.now);
        let sent = bench.sent();
        assert_eq!(sent[0], "A;03;", "what was received goes first");
        assert!(
            sent[1].starts_with("M;1;;"),
            "then what is unacknowledged, with its number"
        );
    }

    #[test]
    fn silence_is_no_loss_of_contact_while_nobody_reads() {
        let mut bench = Bench::ready();
        bench.machine.set_reading(false, bench.now);
        for _ in 0..20 {
            bench.pass(20);
        }
        assert_eq!(bench.events(), []);
        bench.machine.set_reading(true, bench.now);
        bench.pass(59);
        assert_eq!(bench.events(), []);
        bench.pass(1);
        assert_eq!(bench.events(), [Event::HangUp]);
    }

    #[test]
    fn a_missing_chunk_is_fetched_over_a_new_connection() {
        let mut bench = Bench::ready();
        bench.sent += 1;
        bench.receive(&Message::SystemMessage { text: "lost".into() });
        assert_eq!(bench.events(), [Event::HangUp]);
        assert_eq!(bench.sent(), [""; 0]);
    }

    #[test]
    fn a_connection_that_brings_nothing_does_not_extend_the_time_away() {
        let mut bench = Bench::ready();
        bench.machine.disconnected(bench.now);
        for _ in 0..4 {
            bench.pass(0);
            bench.pass(10);
            bench.machine.connected(bench.now);
            bench.pass(60);
        }
        bench.pass(20);
        let last = bench.events().pop();
        assert_eq!(
            last,
            Some(Event::Ended(End::LostContact {
                after: Duration::from_secs(300)
            }))
        );
    }

    #[test]
    fn words_of_the_gateway_are_shown_without_control_characters() {
        let mut bench = Bench::ready();
        bench.receive(&Message::SystemMessage {
            text: "soon\x1b[2J".into(),
        });
        bench.receive(&Message::Error { text: "oops".into() });
        bench.receive(&Message::Stop {
            reason: "logged\tout".into(),
        });
        let say = |text: &str| Event::Say { text: text.into() };
        let stopped = Event::Ended(End::Stopped {
            reason: "loggedout".into(),
        });
        assert_eq!(bench.events(), [say("soon[2J"), say("oops"), stopped]);
        bench.receive(&Message::SystemMessage { text: "late".into() });
        assert_eq!(
            (bench.events(), bench.machine.deadline()),
            (vec![], None),
            "after the end, nothing"
        );
    }

    #[test]
    fn a_channel_that_is_refused_or_closed_takes_no_octets() {
        let mut bench = Bench::ready();
        for channel in 1..=2 {
            assert_eq!(bench.machine.raise("rdp1"), channel);
        }
        bench.machine.data_from(1, Bytes::from_static(b"early"));
        bench.receive(&Message::RaiseReply {
            channel: 1,
            problem: Some("no\x07".into()),
        });
        bench.receive(&Message::RaiseReply {
            channel: 2,
            problem: None,
        });
        bench.receive(&Message::RaiseReply {
            channel: 3,
            problem: None,
        });
        let refused = Event::Refused {
            channel: 1,
            problem: "no".into(),
        };
        assert_eq!(bench.events(), [refused, Event::Opened { channel: 2 }]);
        bench.receive(&Message::Lower { channel: 2 });
        bench.receive(&Message::Lower { channel: 2 });
        bench.machine.data_from(2, Bytes::from_static(b"late"));
        bench.machine.lower(2);
        assert_eq!(bench.events(), [Event::Lowered { channel: 2 }]);
        let sent = bench.messages();
        assert_eq!(
            sent.iter()
                .filter(|message| **message == Message::Lower { channel: 2 })
                .count(),
            1
        );
        assert!(!bench.sent().iter().any(|chunk| chunk.starts_with('D')));
    }

    #[test]
    fn a_channel_is_half_closed_only_where_the_gateway_agreed() {
        for agreed in [false, true] {
            let mut bench = Bench::ready();
            let mut terms = authenticated(true);
            if let Message::Authenticated { half_close, .. } = &mut terms {
                *half_close = agreed;
            }
            bench.receive(&terms);
            assert_eq!(bench.machine.raise("rdp1"), 1);
            bench.receive(&Message::RaiseReply {
                channel: 1,
                problem: None,
            });
            bench.events();
            bench.sent();
            bench.machine.half_close(1);
            bench.machine.half_close(1);
            let lower = Message::Lower { channel: 1 };
            assert_eq!(bench.messages(), vec![lower.clone(); usize::from(agreed)]);
            bench.receive_data(1, b"answer");
            let octets = Bytes::from_static(b"answer");
            assert_eq!(bench.events(), [Event::Data { channel: 1, octets }]);
            bench.machine.lower(1);
            assert_eq!(bench.messages(), [lower]);
        }
    }

    #[test]
    fn a_channel_that_ends_at_once_is_lowered_for_each_direction() {
        let mut bench = Bench::ready();
        bench.machine.half_close = true;
        bench.machine.raise("rdp1");
        bench.receive(&Message::RaiseReply {
            channel: 1,
            problem: None,
        });
        bench.sent();
        bench.machine.lower(1);
        assert_eq!(bench.messages(), vec![Message::Lower { channel: 1 }; 2]);
    }

    #[test]
    fn ports_are_read_as_they_are_meant() {
        let mut bench = Bench::ready();
        let mut wanted = |port, most| {
            let mut request = listen_request(most);
            if let Message::ListenRequest { client_port, .. } = &mut request {
                *client_port = port;
            }
            bench.receive(&request);
            match bench.events().pop() {
                Some(Event::Listen {
                    port, max_connections, ..
                }) => Some((port, max_connections)),
                _ => None,
            }
        };
        assert_eq!(wanted(-1, 1), Some((None, Some(1))));
        assert_eq!(wanted(4000, 0), Some((Some(4000), None)));
        assert_eq!(wanted(70_000, 1), None);
        let refused = Message::ListenReply {
            cid: 9,
            port: Err("no such port".into()),
        };
        assert!(bench.messages().contains(&refused));
    }

    #[test]
    fn a_gateway_that_asks_and_never_acknowledges_is_given_up() {
        let mut bench = Bench::ready();
        for _ in 0..2 * MAX_KEPT {
            bench.receive(&Message::EchoRequest { now: None });
        }
        assert_eq!(bench.events(), [Event::Ended(End::Unacknowledged)]);
    }
}
