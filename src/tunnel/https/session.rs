//! The server's side of one tunnel as a pure state machine.
//!
//! Bytes of the client and the time go in; [`Event`]s, chunks and alarms come out. There is no clock, no socket and no
//! task in here: its driver drives it.
//!
//! Invariants, held to by [`Session::check_invariants`]:
//! - A channel exists only behind a port that this server listed itself, and no two have one number.
//! - Each direction has its numbers without a gap; a number that was taken once is never taken again.
//! - What was sent is kept until it is acknowledged, and sent again on the next connection under its old number.
//! - Channels, ports and what waits for an acknowledgement are bounded by [`Limits`].
//!
//! A channel ends when *both* sides have said `lower`. A side that said it sends no more octets there, yet takes those of
//! the other side: whatever was sent before the other side's `lower` arrives. A client that forgets a channel with its own
//! `lower` loses nothing by it, because octets and `lower`s can cross on the wire at any time, so that it has to ignore
//! late ones anyway. A client that says at its start that it knows half-closed channels takes what comes there until it
//! lowers the channel once more.

mod event;
mod inbox;
mod outbox;
mod ports;
mod receive;
mod terms;
mod violation;

use std::time::{Duration, Instant};

use bytes::Bytes;

pub use self::event::{Alarm, Event, ListenRefusal};
use self::inbox::Inbox;
use self::outbox::Outbox;
use self::ports::Ports;
pub use self::terms::{Limits, Terms};
pub use self::violation::Violation;
use super::chunk::{Chunk, Decoder, Payload};
use super::message::Message;

/// The state of one tunnel.
#[derive(Debug)]
pub struct Session {
    terms: Terms,
    phase: Phase,
    contact: Contact,
    opened: Instant,
    heard: Instant,
    sent: Instant,
    decoder: Decoder,
    inbox: Inbox,
    outbox: Outbox,
    ports: Ports,
    last_cid: i32,
    /// Whether the client knows half-closed channels.
    half_close: bool,
}

impl Session {
    /// A tunnel whose opening request has just arrived: attached, and not yet authenticated.
    pub fn new(terms: Terms, now: Instant) -> Self {
        Self {
            terms,
            phase: Phase::AwaitInit,
            contact: Contact::Attached { hold: None },
            opened: now,
            heard: now,
            sent: now,
            decoder: Decoder::new(),
            inbox: Inbox::default(),
            outbox: Outbox::default(),
            ports: Ports::default(),
            last_cid: 0,
            half_close: false,
        }
    }

    /// Reads the client's bytes up to the next event, at most to the end of `input`. `None`: all of it is read.
    ///
    /// # Errors
    /// The client broke the protocol; the tunnel is of no use any more.
    pub fn receive(&mut self, input: &mut Bytes, now: Instant) -> Result<Option<Event>, Violation> {
        if self.phase == Phase::Stopped || !self.is_attached() {
            input.clear();
            return Ok(None);
        }
        while let Some(chunk) = self.decoder.decode(input)? {
            self.heard = now;
            let event = self.take(chunk, now)?;
            self.check_invariants();
            if event.is_some() {
                return Ok(event);
            }
        }
        Ok(None)
    }

    /// The next chunk for the client, as the whole content of one HTTP chunk. `None`: nothing is due.
    pub fn transmit(&mut self, now: Instant) -> Option<Bytes> {
        let Contact::Attached { hold } = self.contact else {
            return None;
        };
        let chunk = if let Some(ack) = self.inbox.overdue() {
            self.inbox.acknowledged();
            Chunk::Ack { ack }.encode()
        } else if hold.is_none() {
            self.outbox.next()?
        } else {
            return None;
        };
        self.sent = now;
        self.check_invariants();
        Some(chunk)
    }

    /// Whether a chunk of channel data may be sent.
    pub fn is_window_open(&self) -> bool {
        let limits = &self.terms.limits;
        self.phase == Phase::Ready
            && self.outbox.len() < limits.window_chunks
            && self.outbox.octets() < limits.window_octets
            && self.outbox.backlog() < limits.backlog
    }

    /// Sends octets of a desktop. They are dropped if the channel is gone, or lowered from here.
    pub fn send(&mut self, channel: u32, octets: Payload) {
        debug_assert!(self.is_window_open(), "sent against a closed window");
        if self.ports.gives(channel) && !octets.octets().is_empty() {
            let ack = self.piggyback();
            self.outbox.push(|id| octets.into_chunk(id, ack, channel));
            self.check_invariants();
        }
    }

    /// Asks the client to listen under `port_name`; the answer is an [`Event::Listening`] with the returned `cid`.
    /// `server` is what the client shows or logs; no one dials it.
    ///
    /// # Errors
    /// The tunnel is not ready, has too many ports, or the name is taken.
    pub fn listen(&mut self, port_name: &str, server: (&str, u16), single_use: bool) -> Result<i32, ListenRefusal> {
        if self.phase != Phase::Ready {
            return Err(ListenRefusal::NotReady);
        }
        let cid = self.last_cid.wrapping_add(1);
        self.ports.list(port_name, cid, single_use, &self.terms.limits)?;
        self.last_cid = cid;
        self.say(&Message::ListenRequest {
            cid,
            port_name: port_name.to_owned(),
            client_port: ANY_PORT,
            server_host: server.0.to_owned(),
            server_port: i32::from(server.1),
            max_connections: if single_use { 1 } else { MAX_CONNECTIONS },
        });
        self.check_invariants();
        Ok(cid)
    }

    /// Takes a port back. Its channels end at once; their numbers are returned. Nothing happens for unknown names.
    pub fn unlisten(&mut self, port_name: &str) -> Vec<u32> {
        let Some(behind) = self.ports.close(port_name) else {
            return Vec::new();
        };
        for channel in &behind {
            self.forget(*channel);
        }
        self.say(&Message::UnlistenRequest {
            port_name: port_name.to_owned(),
        });
        self.check_invariants();
        behind
    }

    /// Answers an [`Event::Raise`]: the desktop is connected, or the words for why it is not.
    pub fn raised(&mut self, channel: u32, result: Result<(), String>) {
        if self.ports.settle(channel, result.is_ok()) {
            self.say(&Message::RaiseReply {
                channel: signed(channel),
                problem: result.err(),
            });
            self.check_invariants();
        }
    }

    /// Nothing more comes from the channel's desktop. The channel goes on until the client lowers it too.
    pub fn lower(&mut self, channel: u32) {
        if self.ports.lower_here(channel) {
            self.say(&Message::Lower {
                channel: signed(channel),
            });
            self.check_invariants();
        }
    }

    /// Whether the client says so when nothing more is to come on a channel that it has lowered.
    pub fn keeps_lowered(&self) -> bool {
        self.half_close
    }

    /// Ends a channel for both sides.
    pub fn forget(&mut self, channel: u32) {
        self.lower(channel);
        self.ports.remove(channel);
    }

    /// Ends the tunnel, with words for the user. What was not yet transmitted is dropped in favour of the words.
    pub fn stop(&mut self, reason: &str) {
        if self.phase == Phase::Stopped {
            return;
        }
        self.phase = Phase::Stopped;
        self.ports.clear();
        self.outbox.drop_untransmitted();
        if let Contact::Attached { hold } = &mut self.contact {
            *hold = None;
        }
        self.say(&Message::Stop {
            reason: reason.to_owned(),
        });
        self.check_invariants();
    }

    /// The connection is gone. `false`: the client was not authenticated, so that nothing can be resumed.
    pub fn detach(&mut self, now: Instant) -> bool {
        if self.is_attached() {
            self.contact = Contact::Detached { since: now };
            self.decoder = Decoder::new();
        }
        self.phase == Phase::Ready
    }

    /// The client is back on another connection. Both sides go on with their numbers; what was not acknowledged is
    /// sent again, as soon as the client has told what it has, or after a moment.
    pub fn attach(&mut self, now: Instant) {
        self.contact = Contact::Attached { hold: Some(now + HOLD) };
        self.decoder = Decoder::new();
        self.outbox.rewind();
        self.inbox.repeat();
        self.heard = now;
        self.sent = now;
        self.check_invariants();
    }

    /// Does what is due at `now`. To be called at [`next_deadline`](Self::next_deadline), harmless at other times.
    pub fn tick(&mut self, now: Instant) -> Option<Alarm> {
        let alarm = match self.contact {
            Contact::Detached { since } => (now >= since + self.terms.reconnect_window).then_some(Alarm::NotResumed),
            Contact::Attached { hold } => self.tick_attached(hold, now),
        };
        self.check_invariants();
        alarm
    }

    /// When [`tick`](Self::tick) is due; `None` if it never is.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lost_contact = self.terms.lost_contact;
        let hold = match self.contact {
            Contact::Detached { since } => return Some(since + self.terms.reconnect_window),
            Contact::Attached { hold } => hold,
        };
        let (end, echo) = match self.phase {
            Phase::AwaitInit | Phase::AwaitStart => (Some(self.opened + self.terms.limits.start_timeout), None),
            Phase::Ready => {
                let idle = self.outbox.is_transmitted();
                (
                    Some(self.heard + lost_contact),
                    idle.then(|| self.sent + lost_contact / 2),
                )
            }
            Phase::Stopped => (None, None),
        };
        [end, echo, hold, self.inbox.due()].into_iter().flatten().min()
    }

    /// Whether a connection carries the tunnel.
    pub fn is_attached(&self) -> bool {
        matches!(self.contact, Contact::Attached { .. })
    }

    /// Whether the client is authenticated and the tunnel not stopped.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Whether everything was transmitted that can be.
    pub fn is_drained(&self) -> bool {
        !self.is_attached() || self.outbox.is_transmitted()
    }

    /// Panics if the state contradicts itself, in builds with debug assertions.
    pub fn check_invariants(&self) {
        if cfg!(debug_assertions) {
            self.inbox.check_invariants();
            self.outbox.check_invariants();
            self.ports.check_invariants(&self.terms.limits);
            assert!(
                self.phase == Phase::Ready || self.ports.is_empty(),
                "ports without a client"
            );
        }
    }

    fn tick_attached(&mut self, hold: Option<Instant>, now: Instant) -> Option<Alarm> {
        self.inbox.tick(now);
        if hold.is_some_and(|until| now >= until) {
            self.contact = Contact::Attached { hold: None };
        }
        match self.phase {
            Phase::Stopped => None,
            Phase::AwaitInit | Phase::AwaitStart => {
                (now >= self.opened + self.terms.limits.start_timeout).then_some(Alarm::NotStarted)
            }
            Phase::Ready if now >= self.heard + self.terms.lost_contact => {
                self.detach(now);
                Some(Alarm::LostContact)
            }
            Phase::Ready => {
                if now >= self.sent + self.terms.lost_contact / 2 && self.outbox.is_transmitted() {
                    self.say(&Message::EchoRequest { now: None });
                }
                None
            }
        }
    }

    fn say(&mut self, message: &Message) {
        let ack = self.piggyback();
        self.outbox.push(|id| message.to_chunk(id, ack).encode());
    }

    /// The acknowledgement that rides on the next chunk. It counts as given only if that chunk need not wait.
    fn piggyback(&mut self) -> Option<u32> {
        let news = self.inbox.news();
        if matches!(self.contact, Contact::Attached { hold: None }) && self.outbox.is_transmitted() {
            self.inbox.acknowledged();
        }
        news
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    AwaitInit,
    AwaitStart,
    Ready,
    Stopped,
}

#[derive(Clone, Copy, Debug)]
enum Contact {
    Attached {
        /// After a reconnect: nothing is sent again before the client told what it has, or before this.
        hold: Option<Instant>,
    },
    Detached {
        since: Instant,
    },
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Channel numbers come from the client as non-negative signed numbers.
fn signed(channel: u32) -> i32 {
    i32::try_from(channel).unwrap_or(i32::MAX)
}

/// How long a client that came back has for telling what it has.
const HOLD: Duration = Duration::from_secs(1);
const ANY_PORT: i32 = -1;
/// Connections that a client may accept on one port over its life, unless it is for a single use.
const MAX_CONNECTIONS: i32 = 32;

#[cfg(test)]
pub(super) mod model;
#[cfg(test)]
mod simulation;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::model::{Client, terms};
    use super::*;
    use crate::fault::{CloseReason, Refusal};

    #[test]
    fn the_opening_is_the_published_one() {
        let mut pair = Pair::new();
        let sent =
            pair.say_to_server("M;1;;17;messageType=S:aW5pdA==|;2C;type=S:Qw==|v1=I:3|v2=I:1|v3=I:4|cid=S:Nzc=|;");
        assert_eq!(sent, ["M;1;1;1F;messageType=S:cGxlYXNlLWluaXQ=|;B;cid=S:Nzc=|;"]);
        let sent = pair.say_to_server(
            "M;2;1;17;messageType=S:c3RhcnQ=|;4C;type=S:Qw==|capID=S:azN5|hostaddress=S:cGM=|ipaddress=S:MTAuMC4wLjE=|t1=L:5|;",
        );
        assert_eq!(
            sent,
            [
                "M;2;2;23;messageType=S:YXV0aGVudGljYXRlZA==|;93;allowAutoReconnection=B:true|capID=S:azN5|\
                 lostContactTimeout=L:60000|disconnectedTimeout=L:300000|sessionTimeout=L:36000000|\
                 reconnectSecret=S:cjE=|;",
                "M;3;;17;messageType=S:cmVhZHk=|;0;;",
            ]
        );
        assert_eq!(pair.server.listen("rdp1", ("vm7", 3389), false), Ok(1));
        let listen = "M;4;;1B;messageType=S:bGlzdGVuLXJx|;64;cid=I:1|portName=S:cmRwMQ==|clientPort=I:-1|\
                      serverHost=S:dm03|serverPort=I:3389|maxConnections=I:32|;";
        assert_eq!(pair.sent(), [listen]);
        let answer = "M;3;4;1B;messageType=S:bGlzdGVuLXJw|;49;cid=I:1|portName=S:cmRwMQ==|clientHost=S:MTI3LjAuMC4x|\
                      clientPort=I:40001|;";
        assert_eq!(pair.say_to_server(answer), [""; 0]);
        let sent = pair.say_to_server("M;4;;1B;messageType=S:cmFpc2UtcnE=|;1F;chanID=I:1|portName=S:cmRwMQ==|;");
        assert_eq!(sent, [""; 0]);
        pair.server.raised(1, Ok(()));
        assert_eq!(pair.sent(), ["M;5;4;1B;messageType=S:cmFpc2UtcnA=|;B;chanID=I:1|;"]);
        assert_eq!(pair.say_to_server("D;5;5;1;5;a;b;c;"), [""; 0]);
        pair.pass(Duration::from_millis(50));
        assert_eq!(pair.sent(), ["A;05;"]);
        let events = [
            Event::Ready,
            Event::Listening {
                cid: 1,
                port: Ok(40_001),
            },
            Event::Raise {
                channel: 1,
                port_name: "rdp1".into(),
            },
            Event::Data {
                channel: 1,
                octets: Bytes::from_static(b"a;b;c"),
            },
        ];
        assert_eq!(pair.events, events);
    }

    #[test]
    fn another_connection_id_ends_it() {
        let mut pair = Pair::new();
        pair.client.init();
        pair.client.start("k3z");
        let violation = pair.deliver().unwrap_err();
        assert_eq!(violation, Violation::WrongConnectionId);
        assert_eq!(violation.close_reason(), CloseReason::Refused(Refusal::UnknownToken));
    }

    #[test]
    fn nothing_but_the_opening_is_taken_before_it() {
        let mut pair = Pair::new();
        pair.client.say(&Message::EchoRequest { now: None });
        assert_eq!(pair.deliver(), Err(Violation::OutOfTurn { message: "echo-rq" }));

        let mut pair = Pair::new();
        pair.client.wire.extend(b"D;1;;1;1;x;");
        assert_eq!(pair.deliver(), Err(Violation::OutOfTurn { message: "data" }));

        let mut pair = Pair::new();
        for _ in 0..9 {
            pair.client.say(&Message::Unknown);
        }
        assert_eq!(pair.deliver(), Err(Violation::NotStarted));
        assert_eq!(
            pair.server.listen("rdp1", ("vm7", 3389), false),
            Err(ListenRefusal::NotReady)
        );
    }

    #[test]
    fn a_client_that_does_not_start_in_time_is_dropped() {
        let mut pair = Pair::new();
        pair.client.init();
        pair.deliver().unwrap();
        assert_eq!(pair.pass(Duration::from_millis(9_999)), None);
        assert_eq!(pair.pass(Duration::from_millis(1)), Some(Alarm::NotStarted));
        assert!(!pair.server.detach(pair.now));
    }

    #[test]
    fn only_ports_that_were_listed_can_be_raised() {
        let mut pair = Pair::ready();
        pair.client.raise(1, "rdp1");
        pair.exchange();
        assert_eq!(pair.client.channels[&1].refused.as_deref(), Some("no such port"));
        pair.server.listen("rdp1", ("vm7", 3389), false).unwrap();
        pair.client.raise(2, "RDP1");
        pair.client.raise(-3, "rdp1");
        pair.exchange();
        assert!(pair.client.channels[&2].refused.is_some() && pair.client.channels[&-3].refused.is_some());
        assert!(pair.events.is_empty());
    }

    #[test]
    fn a_port_for_one_connection_takes_one() {
        let mut pair = Pair::ready();
        pair.server.listen("rdp1", ("vm7", 3389), true).unwrap();
        pair.exchange();
        assert!(matches!(
            pair.client.heard.last(),
            Some(Message::ListenRequest { max_connections: 1, .. })
        ));
        pair.client.answer_listening("rdp1", Ok(40_001));
        pair.client.raise(1, "rdp1");
        pair.client.raise(2, "rdp1");
        pair.exchange();
        assert!(pair.client.channels[&1].refused.is_none());
        assert_eq!(
            pair.client.channels[&2].refused.as_deref(),
            Some("the port was for one connection")
        );
        pair.server.raised(1, Ok(()));
        pair.client.say(&Message::UnlistenReply {
            port_name: Some("rdp1".into()),
            problem: None,
        });
        pair.client.send(1, b"still here");
        pair.exchange();
        assert!(matches!(pair.events.last(), Some(Event::Data { channel: 1, .. })));
        pair.server.listen("rdp1", ("vm7", 3389), true).unwrap();
    }

    #[test]
    fn a_port_that_is_taken_back_ends_its_channels_and_is_answered_twice() {
        let mut pair = Pair::with_channel();
        assert_eq!(pair.server.unlisten("rdp1"), [1]);
        assert!(pair.server.unlisten("rdp1").is_empty());
        pair.exchange();
        pair.exchange();
        assert!(pair.client.channels[&1].server_lowered);
        let closed = pair
            .events
            .iter()
            .filter(|event| matches!(event, Event::Unlistened { .. }));
        assert_eq!(closed.count(), 1);
        pair.client.raise(2, "rdp1");
        pair.exchange();
        assert_eq!(pair.client.channels[&2].refused.as_deref(), Some("no such port"));
    }

    #[test]
    fn each_side_may_send_until_it_lowers_the_channel_itself() {
        let mut pair = Pair::with_channel();
        pair.client.send(1, b"question");
        pair.client.lower(1);
        pair.exchange();
        let lowered = Event::Lower { channel: 1 };
        assert_eq!(pair.events.last(), Some(&lowered));
        pair.server.send(1, Payload::copy_from(b"answer"));
        pair.server.lower(1);
        pair.exchange();
        assert_eq!(pair.client.channels[&1].received, b"answer");
        assert!(pair.client.channels[&1].server_lowered);

        pair.events.clear();
        pair.client.send(1, b"late");
        pair.client.lower(1);
        pair.exchange();
        assert!(pair.events.is_empty());
    }

    #[test]
    fn a_client_that_knows_half_closed_channels_lowers_one_again_to_end_it() {
        let mut pair = Pair::with_channel();
        pair.server.half_close = true;
        pair.client.lower(1);
        pair.exchange();
        pair.server.send(1, Payload::copy_from(b"answer"));
        pair.exchange();
        assert_eq!(pair.client.channels[&1].received, b"answer");
        pair.client.lower(1);
        pair.exchange();
        let ended = [Event::Lower { channel: 1 }, Event::Abandon { channel: 1 }];
        assert_eq!(pair.events, ended);
        assert!(pair.client.channels[&1].server_lowered);
    }

    #[test]
    fn half_closed_channels_are_agreed_on_only_with_a_client_that_asks() {
        for asks in [false, true] {
            let mut pair = Pair::new();
            pair.client.half_close = asks;
            pair.start();
            let agreed = pair
                .client
                .heard
                .iter()
                .any(|message| matches!(message, Message::Authenticated { half_close: true, .. }));
            assert_eq!((agreed, pair.server.keeps_lowered()), (asks, asks));
        }
    }

    #[test]
    fn a_channel_that_is_given_up_while_raised_is_gone() {
        let mut pair = Pair::ready();
        pair.server.listen("rdp1", ("vm7", 3389), false).unwrap();
        pair.client.raise(1, "rdp1");
        pair.client.lower(1);
        pair.exchange();
        let abandoned = Event::Abandon { channel: 1 };
        assert_eq!(pair.events.last(), Some(&abandoned));
        pair.server.raised(1, Ok(()));
        assert_eq!(pair.sent(), [""; 0]);
    }

    #[test]
    fn the_fourth_chunk_is_acknowledged_at_once_and_fewer_after_a_moment() {
        let mut pair = Pair::with_channel();
        pair.client.acknowledge();
        pair.exchange();
        pair.pass(Duration::from_secs(1));
        pair.sent();
        for _ in 0..3 {
            pair.client.send(1, b"x");
        }
        pair.deliver().unwrap();
        assert_eq!(pair.sent(), [""; 0]);
        pair.client.send(1, b"x");
        pair.deliver().unwrap();
        assert_eq!(pair.sent().len(), 1);
        pair.client.send(1, b"x");
        pair.deliver().unwrap();
        pair.pass(Duration::from_millis(49));
        assert_eq!(pair.sent(), [""; 0]);
        pair.pass(Duration::from_millis(1));
        assert_eq!(pair.sent().len(), 1);
    }

    #[test]
    fn a_full_window_stops_data_and_an_acknowledgement_opens_it() {
        let mut pair = Pair::with_channel();
        let mut sent = 0;
        while pair.server.is_window_open() {
            pair.server.send(1, Payload::copy_from(&[7; 10_240]));
            sent += 10_240;
            pair.exchange();
        }
        assert!((1024 * 1024 - 10_240..1024 * 1024 + 10_240).contains(&sent));
        pair.exchange();
        assert!(!pair.server.is_window_open());
        pair.client.acknowledge();
        pair.exchange();
        assert!(pair.server.is_window_open());
        assert_eq!(pair.client.channels[&1].received.len(), sent);
    }

    #[test]
    fn what_waits_to_be_transmitted_is_little() {
        let mut pair = Pair::with_channel();
        let fill = |pair: &mut Pair| {
            while pair.server.is_window_open() {
                pair.server.send(1, Payload::copy_from(b"x"));
            }
        };
        fill(&mut pair);
        assert_eq!(pair.sent().len(), 8);
        pair.server.detach(pair.now);
        pair.server.attach(pair.now);
        fill(&mut pair);
        assert!(!pair.server.is_window_open());
        pair.client.reconnect();
        pair.exchange();
        assert!(pair.server.is_window_open());
    }

    #[test]
    fn a_client_that_asks_and_never_acknowledges_is_ended() {
        let mut pair = Pair::ready();
        let violation = loop {
            pair.client.say(&Message::EchoRequest { now: None });
            match pair.deliver() {
                Ok(()) => drop(pair.sent()),
                Err(violation) => break violation,
            }
        };
        assert_eq!(violation, Violation::Unacknowledged);
        let ahead = Violation::AckAhead {
            ack: 0x7fff_ffff,
            transmitted: 3,
        };
        let mut pair = Pair::ready();
        pair.client.wire.extend(b"A;7FFFFFFF;");
        assert_eq!(pair.deliver(), Err(ahead));
    }

    #[test]
    fn silence_is_answered_by_an_echo_and_then_by_giving_up() {
        let mut pair = Pair::ready();
        assert_eq!(pair.pass(Duration::from_secs(30)), None);
        assert_eq!(pair.sent(), ["M;4;2;1B;messageType=S:ZWNoby1ycQ==|;0;;"]);
        assert_eq!(pair.pass(Duration::from_secs(29)), None);
        assert_eq!(pair.pass(Duration::from_secs(1)), Some(Alarm::LostContact));
        assert!(!pair.server.is_attached());
        assert_eq!(pair.pass(Duration::from_secs(299)), None);
        assert_eq!(pair.pass(Duration::from_secs(1)), Some(Alarm::NotResumed));
    }

    #[test]
    fn after_a_reconnect_what_the_client_lacks_is_sent_again_under_its_old_number() {
        let mut pair = Pair::with_channel();
        pair.client.acknowledge();
        pair.exchange();
        for text in ["one", "two", "three"] {
            pair.server.send(1, Payload::copy_from(text.as_bytes()));
        }
        let lost = pair.sent();
        pair.client.receive(Bytes::from(lost[0].clone()));
        assert!(pair.server.detach(pair.now));
        pair.server.send(1, Payload::copy_from(b"four"));
        assert_eq!(pair.sent(), [""; 0]);
        pair.client.disconnect();
        pair.server.attach(pair.now);
        let first = pair.sent();
        assert!(first.len() == 1 && first[0].starts_with("A;"), "{first:?}");
        pair.client.reconnect();
        pair.exchange();
        assert_eq!(pair.client.channels[&1].received, b"onetwothreefour");
    }

    #[test]
    fn a_silent_client_that_came_back_is_sent_everything_after_a_moment() {
        let mut pair = Pair::with_channel();
        pair.server.send(1, Payload::copy_from(b"one"));
        let lost = pair.sent();
        pair.server.detach(pair.now);
        pair.server.attach(pair.now);
        pair.sent();
        pair.pass(Duration::from_secs(1));
        assert_eq!(pair.sent().last(), lost.last());
    }

    #[test]
    fn stop_is_the_last_word_and_overtakes_what_was_not_sent_yet() {
        let mut pair = Pair::with_channel();
        pair.server.send(1, Payload::copy_from(b"unsent"));
        pair.server.stop("logged out");
        pair.server.stop("again");
        assert!(!pair.server.is_drained() && !pair.server.is_window_open());
        let sent = pair.sent();
        pair.client.receive(sent.concat().into());
        assert!(pair.server.is_drained());
        assert_eq!(pair.client.stopped.as_deref(), Some("logged out"));
        assert!(pair.client.channels[&1].received.is_empty());
        pair.client.send(1, b"x");
        assert_eq!(pair.deliver(), Ok(()));
        assert_eq!(pair.server.next_deadline(), None);
    }

    proptest! {
        #[test]
        fn a_client_that_says_anything_at_all_is_survived(
            chunks in proptest::collection::vec((0..9usize, 0..6u32, any::<u8>(), -1..4i32), 0..60),
            cut in 1..200usize,
        ) {
            let mut pair = Pair::ready();
            pair.server.listen("rdp1", ("vm7", 3389), false).unwrap();
            pair.server.listen("rdp2", ("vm7", 3389), true).unwrap();
            let mut stream = Vec::new();
            for (id, (kind, ack, octet, channel)) in (3..).zip(chunks) {
                let (id, ack) = (id - u32::from(octet) / 64, (ack > 0).then_some(ack));
                let port_name = format!("rdp{}", octet % 4);
                let message = match kind {
                    0 => Message::RaiseRequest { channel, port_name },
                    1 => Message::Lower { channel },
                    2 => Message::ListenReply { cid: channel, port: if octet > 99 { Ok(1) } else { Err(port_name) } },
                    3 => Message::UnlistenReply { port_name: Some(port_name), problem: None },
                    4 => Message::EchoRequest { now: None },
                    5 => Message::Stop { reason: port_name },
                    6 => {
                        stream.extend(Chunk::Ack { ack: u32::from(octet) }.encode());
                        continue;
                    }
                    7 => {
                        stream.push(octet);
                        continue;
                    }
                    _ => {
                        let octets = Bytes::from(vec![octet; usize::from(octet)]);
                        stream.extend(Chunk::Data { id, ack, channel: channel.unsigned_abs(), octets }.encode());
                        continue;
                    }
                };
                stream.extend(message.to_chunk(id, ack).encode());
            }
            for piece in stream.chunks(cut) {
                pair.client.wire.extend(piece);
                pair.pass(Duration::from_millis(30));
                if pair.deliver().is_err() {
                    pair.server.stop("broken");
                    break;
                }
                for event in std::mem::take(&mut pair.events) {
                    match event {
                        Event::Raise { channel, .. } => pair.server.raised(channel, Ok(())),
                        Event::Lower { channel } if cut % 2 == 0 => pair.server.lower(channel),
                        Event::Data { channel, octets } if pair.server.is_window_open() => {
                            pair.server.send(channel, Payload::copy_from(&octets));
                        }
                        Event::Ready
                        | Event::Listening { .. }
                        | Event::Unlistened { .. }
                        | Event::Data { .. }
                        | Event::Lower { .. }
                        | Event::Abandon { .. } => {}
                    }
                }
                pair.server.transmit(pair.now);
                pair.server.check_invariants();
            }
        }
    }

    /// A session and the model client, joined by hand.
    struct Pair {
        server: Session,
        client: Client,
        events: Vec<Event>,
        now: Instant,
    }

    impl Pair {
        fn new() -> Self {
            let now = crate::clock::now();
            Self {
                server: Session::new(terms(), now),
                client: Client::default(),
                events: Vec::new(),
                now,
            }
        }

        fn start(&mut self) {
            self.client.init();
            self.client.start("k3y");
            self.exchange();
        }

        fn ready() -> Self {
            let mut pair = Self::new();
            pair.start();
            assert!(pair.client.ready && pair.server.is_ready());
            assert_eq!(std::mem::take(&mut pair.events), [Event::Ready]);
            pair
        }

        fn with_channel() -> Self {
            let mut pair = Self::ready();
            pair.server.listen("rdp1", ("vm7", 3389), false).unwrap();
            pair.client.raise(1, "rdp1");
            pair.exchange();
            pair.server.raised(1, Ok(()));
            pair.exchange();
            assert!(pair.client.channels[&1].open);
            pair.events.clear();
            pair
        }

        fn deliver(&mut self) -> Result<(), Violation> {
            let mut bytes = self.client.wire.split().freeze();
            while let Some(event) = self.server.receive(&mut bytes, self.now)? {
                self.events.push(event);
            }
            assert!(bytes.is_empty());
            Ok(())
        }

        fn sent(&mut self) -> Vec<String> {
            let sent = std::iter::from_fn(|| self.server.transmit(self.now));
            sent.map(|chunk| String::from_utf8(chunk.into()).unwrap()).collect()
        }

        fn exchange(&mut self) {
            self.deliver().unwrap();
            let sent = self.sent();
            self.client.receive(sent.concat().into());
        }

        fn say_to_server(&mut self, chunk: &str) -> Vec<String> {
            self.client.wire.extend(chunk.as_bytes());
            self.deliver().unwrap();
            self.sent()
        }

        fn pass(&mut self, time: Duration) -> Option<Alarm> {
            self.now += time;
            self.server.tick(self.now)
        }
    }
}
