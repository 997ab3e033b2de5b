//! The gateway's side of a tunnel, without I/O.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use crate::tunnel::https::chunk::{Chunk, Decoder};
use crate::tunnel::https::message::Message;
use crate::types::Secret;

const LOST_CONTACT: Duration = Duration::from_secs(60);
pub(in crate::client) const DISCONNECTED: Duration = Duration::from_secs(300);

/// A gateway with one port, behind which every channel is a desktop.
pub(in crate::client) struct TunnelModel {
    sent: u32,
    received: u32,
    /// What the client has not acknowledged.
    pub(in crate::client) kept: VecDeque<Chunk>,
    /// Chunks for the present connection.
    pub(in crate::client) out: VecDeque<Bytes>,
    decoder: Decoder,
    secret: u32,
    pub(in crate::client) port: Option<u16>,
    /// What came and goes by channel; a closed one stays for the comparison.
    pub(in crate::client) desktops: BTreeMap<u32, Desktop>,
    pub(in crate::client) messages: Vec<Message>,
    pub(in crate::client) acks: Vec<u32>,
    pub(in crate::client) replays: usize,
    /// Whether its desktop does not answer.
    pub(in crate::client) refuse: bool,
    pub(in crate::client) max_connections: i32,
}

#[derive(Default)]
pub(in crate::client) struct Desktop {
    pub(in crate::client) received: Vec<u8>,
    pub(in crate::client) open: bool,
}

impl TunnelModel {
    pub(in crate::client) fn new() -> Self {
        Self {
            sent: 0,
            received: 0,
            kept: VecDeque::new(),
            out: VecDeque::new(),
            decoder: Decoder::new(),
            secret: 0,
            port: None,
            desktops: BTreeMap::new(),
            messages: Vec::new(),
            acks: Vec::new(),
            replays: 0,
            refuse: false,
            max_connections: 4,
        }
    }

    /// A fresh tunnel behind the same port.
    pub(in crate::client) fn restart(&mut self) {
        let (refuse, max_connections) = (self.refuse, self.max_connections);
        *self = Self {
            refuse,
            max_connections,
            ..Self::new()
        };
    }

    pub(in crate::client) fn send(&mut self, message: &Message) {
        self.sent += 1;
        let chunk = message.to_chunk(self.sent, Some(self.received));
        self.kept.push_back(chunk.clone());
        self.out.push_back(chunk.encode());
    }

    pub(in crate::client) fn data(&mut self, channel: u32, octets: &[u8]) {
        self.sent += 1;
        let octets = Bytes::copy_from_slice(octets);
        let chunk = Chunk::Data {
            id: self.sent,
            ack: Some(self.received),
            channel,
            octets,
        };
        self.kept.push_back(chunk.clone());
        self.out.push_back(chunk.encode());
    }

    pub(in crate::client) fn authenticated(&mut self) -> Message {
        self.secret += 1;
        Message::Authenticated {
            reconnection: true,
            cap_id: Secret::new("ks7"),
            lost_contact_ms: LOST_CONTACT.as_millis().try_into().unwrap(),
            disconnected_ms: DISCONNECTED.as_millis().try_into().unwrap(),
            session_ms: 36_000_000,
            reconnect_secret: Some(Secret::new(format!("s{}", self.secret))),
            half_close: false,
        }
    }

    /// A new connection took the tunnel up again.
    pub(in crate::client) fn resumed(&mut self, secret: &Secret) {
        // A fresh secret may be lost on its way: the one before it must do.
        let number: u32 = secret.expose()[1..].parse().unwrap();
        assert!((1..=self.secret).contains(&number));
        self.decoder = Decoder::new();
        self.out = self.kept.iter().map(Chunk::encode).collect();
    }

    pub(in crate::client) fn receive(&mut self, octets: Bytes) {
        let mut input = octets;
        while let Some(chunk) = self
            .decoder
            .decode(&mut input)
            .expect("the client keeps to the grammar")
        {
            self.chunk(chunk);
        }
    }

    fn chunk(&mut self, chunk: Chunk) {
        let (id, ack) = match &chunk {
            Chunk::Ack { ack } => (None, Some(*ack)),
            Chunk::Message { id, ack, .. } | Chunk::Data { id, ack, .. } => (Some(*id), *ack),
        };
        if let Some(ack) = ack {
            assert!(ack <= self.sent, "it acknowledges what was never sent");
            self.acks.push(ack);
            self.kept.retain(|chunk| match chunk {
                Chunk::Ack { .. } => false,
                Chunk::Message { id, .. } | Chunk::Data { id, .. } => *id > ack,
            });
        }
        let Some(id) = id else { return };
        if id <= self.received {
            self.replays += 1;
            return;
        }
        assert_eq!(id, self.received + 1, "no chunk is left out");
        self.received = id;
        if id % 4 == 0 {
            self.out.push_back(Chunk::Ack { ack: id }.encode());
        }
        match chunk {
            Chunk::Ack { .. } => {}
            Chunk::Data { channel, octets, .. } => {
                assert!(octets.len() <= 10_240);
                self.desktops
                    .get_mut(&channel)
                    .expect("a channel that was raised")
                    .received
                    .extend(&octets);
            }
            Chunk::Message { header, body, .. } => self.message(Message::decode(&header, &body).unwrap()),
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "a model answers what it knows")]
    fn message(&mut self, message: Message) {
        match &message {
            Message::Init { cid, .. } => self.send(&Message::PleaseInit { cid: cid.clone() }),
            Message::Start { cap_id, .. } => {
                assert_eq!(cap_id.expose(), "ks7");
                let authenticated = self.authenticated();
                self.send(&authenticated);
                self.send(&Message::Ready);
                self.send(&listen_request(self.max_connections));
            }
            Message::ListenReply { cid: 9, port } => self.port = Some(port.clone().unwrap()),
            Message::RaiseRequest { channel, .. } if self.refuse => {
                let problem = Some("desktop does not answer".to_owned());
                self.send(&Message::RaiseReply {
                    channel: *channel,
                    problem,
                });
            }
            Message::RaiseRequest { channel, port_name } => {
                assert_eq!(port_name, "rdp1");
                let fresh = Desktop {
                    open: true,
                    ..Desktop::default()
                };
                assert!(self.desktops.insert(u32::try_from(*channel).unwrap(), fresh).is_none());
                self.send(&Message::RaiseReply {
                    channel: *channel,
                    problem: None,
                });
            }
            Message::Lower { channel } => {
                self.desktops.get_mut(&u32::try_from(*channel).unwrap()).unwrap().open = false;
            }
            Message::EchoRequest { .. } => self.send(&Message::EchoReply),
            _ => {}
        }
        self.messages.push(message);
    }
}

pub(in crate::client) fn listen_request(max_connections: i32) -> Message {
    Message::ListenRequest {
        cid: 9,
        port_name: "rdp1".into(),
        client_port: -1,
        server_host: "vm7".into(),
        server_port: 3389,
        max_connections,
    }
}
