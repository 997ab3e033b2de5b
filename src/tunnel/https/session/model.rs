//! A client of the tunnel for the tests: correct, and as simple as it can be.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};

use super::*;
use crate::tunnel::https::chunk::MAX_DATA;
use crate::types::Secret;

/// The client's end. Bytes for the server gather in `wire`.
#[derive(Default)]
pub(in crate::tunnel::https) struct Client {
    pub(in crate::tunnel::https) wire: BytesMut,
    decoder: Decoder,
    sent: u32,
    kept: VecDeque<(u32, Bytes)>,
    highest: u32,
    pub(in crate::tunnel::https) unacknowledged: u32,
    pub(in crate::tunnel::https) ready: bool,
    pub(in crate::tunnel::https) reconnect_secret: Option<Secret>,
    /// Ports that the client listens on, with the `cid`s of those that it has not answered.
    pub(in crate::tunnel::https) ports: BTreeMap<String, Option<i32>>,
    pub(in crate::tunnel::https) channels: BTreeMap<i32, ClientChannel>,
    pub(in crate::tunnel::https) heard: Vec<Message>,
    pub(in crate::tunnel::https) stopped: Option<String>,
    /// Whether it says that it knows half-closed channels.
    pub(in crate::tunnel::https) half_close: bool,
}

#[derive(Default)]
pub(in crate::tunnel::https) struct ClientChannel {
    pub(in crate::tunnel::https) open: bool,
    pub(in crate::tunnel::https) refused: Option<String>,
    pub(in crate::tunnel::https) sent: Vec<u8>,
    pub(in crate::tunnel::https) received: Vec<u8>,
    pub(in crate::tunnel::https) lowered: bool,
    pub(in crate::tunnel::https) server_lowered: bool,
}

impl Client {
    pub(in crate::tunnel::https) fn init(&mut self) {
        self.say(&Message::Init {
            kind: "C".into(),
            version: [3, 1, 4],
            cid: "77".into(),
        });
    }

    pub(in crate::tunnel::https) fn start(&mut self, connection_id: &str) {
        self.say(&Message::Start {
            address: "192.0.2.1".into(),
            host: "pc".into(),
            cap_id: Secret::new(connection_id),
            kind: "C".into(),
            clock: 1,
            half_close: self.half_close,
        });
    }

    pub(in crate::tunnel::https) fn say(&mut self, message: &Message) {
        self.push(|id, ack| message.to_chunk(id, ack).encode());
    }

    pub(in crate::tunnel::https) fn raise(&mut self, channel: i32, port_name: &str) {
        self.channels.insert(channel, ClientChannel::default());
        self.say(&Message::RaiseRequest {
            channel,
            port_name: port_name.into(),
        });
    }

    pub(in crate::tunnel::https) fn send(&mut self, channel: i32, octets: &[u8]) {
        assert!(octets.len() <= MAX_DATA);
        self.channels.get_mut(&channel).unwrap().sent.extend(octets);
        let octets = Bytes::copy_from_slice(octets);
        self.push(|id, ack| {
            Chunk::Data {
                id,
                ack,
                channel: channel as u32,
                octets,
            }
            .encode()
        });
    }

    pub(in crate::tunnel::https) fn lower(&mut self, channel: i32) {
        self.channels.get_mut(&channel).unwrap().lowered = true;
        self.say(&Message::Lower { channel });
    }

    pub(in crate::tunnel::https) fn answer_listening(&mut self, port_name: &str, port: Result<u16, String>) {
        let Some(Some(cid)) = self.ports.insert(port_name.to_owned(), None) else {
            return;
        };
        self.say(&Message::ListenReply { cid, port });
    }

    pub(in crate::tunnel::https) fn acknowledge(&mut self) {
        self.unacknowledged = 0;
        self.wire.extend(Chunk::Ack { ack: self.highest }.encode());
    }

    /// Sends a chunk again that the server may have had already.
    pub(in crate::tunnel::https) fn repeat(&mut self, place: usize) {
        if let Some((_, chunk)) = self.kept.get(place) {
            self.wire.extend(chunk);
        }
    }

    /// The connection is gone with all that was on its way.
    pub(in crate::tunnel::https) fn disconnect(&mut self) {
        self.wire.clear();
        self.decoder = Decoder::new();
    }

    pub(in crate::tunnel::https) fn reconnect(&mut self) {
        self.acknowledge();
        for (_, chunk) in &self.kept {
            self.wire.extend(chunk);
        }
    }

    pub(in crate::tunnel::https) fn receive(&mut self, mut bytes: Bytes) {
        while let Some(chunk) = self.decoder.decode(&mut bytes).unwrap() {
            match chunk {
                Chunk::Ack { ack } => self.let_go(ack),
                Chunk::Message { id, ack, header, body } => {
                    if self.is_new(id, ack) {
                        self.obey(Message::decode(&header, &body).unwrap());
                    }
                }
                Chunk::Data {
                    id,
                    ack,
                    channel,
                    octets,
                } => {
                    assert!(!octets.is_empty() && octets.len() <= MAX_DATA);
                    if self.is_new(id, ack) {
                        let channel = self.channels.get_mut(&(channel as i32)).unwrap();
                        assert!(
                            channel.open && !channel.server_lowered,
                            "data outside of a channel's life"
                        );
                        channel.received.extend(octets);
                    }
                }
            }
        }
    }

    fn obey(&mut self, message: Message) {
        match message.clone() {
            Message::Authenticated { reconnect_secret, .. } => self.reconnect_secret = reconnect_secret,
            Message::Ready => self.ready = true,
            Message::ListenRequest { cid, port_name, .. } => {
                self.ports.insert(port_name, Some(cid));
            }
            Message::RaiseReply { channel, problem } => {
                let channel = self.channels.get_mut(&channel).unwrap();
                channel.open = problem.is_none();
                channel.refused = problem;
            }
            Message::Lower { channel } => self.channels.get_mut(&channel).unwrap().server_lowered = true,
            Message::UnlistenRequest { port_name } => {
                self.ports.remove(&port_name);
                self.say(&Message::UnlistenReply {
                    port_name: Some(port_name),
                    problem: None,
                });
                self.say(&Message::UnlistenReply {
                    port_name: None,
                    problem: None,
                });
            }
            Message::EchoRequest { .. } => self.say(&Message::EchoReply),
            Message::PleaseInit { .. } | Message::EchoReply => {}
            Message::Stop { reason } => self.stopped = Some(reason),
            Message::Init { .. }
            | Message::Start { .. }
            | Message::ListenReply { .. }
            | Message::RaiseRequest { .. }
            | Message::UnlistenReply { .. }
            | Message::SystemMessage { .. }
            | Message::Error { .. }
            | Message::Unknown => panic!("the server says {message:?}"),
        }
        self.heard.push(message);
    }

    fn is_new(&mut self, id: u32, ack: Option<u32>) -> bool {
        if id <= self.highest {
            return false;
        }
        assert_eq!(id, self.highest + 1, "the server left out a chunk");
        self.highest = id;
        self.unacknowledged += 1;
        if let Some(ack) = ack {
            self.let_go(ack);
        }
        true
    }

    fn let_go(&mut self, ack: u32) {
        assert!(ack <= self.sent, "the server acknowledged what was never sent");
        self.kept.retain(|(id, _)| *id > ack);
    }

    fn push(&mut self, chunk: impl FnOnce(u32, Option<u32>) -> Bytes) {
        self.sent += 1;
        let ack = (self.unacknowledged > 0).then_some(self.highest);
        self.unacknowledged = 0;
        let chunk = chunk(self.sent, ack);
        self.kept.push_back((self.sent, chunk.clone()));
        self.wire.extend(chunk);
    }

    pub(in crate::tunnel::https) fn kept(&self) -> usize {
        self.kept.len()
    }
}

pub(in crate::tunnel::https) fn terms() -> Terms {
    Terms {
        connection_id: Secret::new("k3y"),
        reconnect_secret: Secret::new("r1"),
        lost_contact: Duration::from_secs(60),
        reconnect_window: Duration::from_secs(300),
        session_left: Duration::from_secs(36_000),
        limits: Limits::default(),
    }
}
