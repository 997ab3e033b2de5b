//! What the chunks of the client do to a session.

use std::time::Instant;

use super::ports::Lowered;
use super::{Contact, Event, Phase, Session, Violation, millis};
use crate::tunnel::https::chunk::Chunk;
use crate::tunnel::https::message::Message;
use crate::types::Secret;

impl Session {
    /// Takes one chunk: at most one thing happens.
    pub(super) fn take(&mut self, chunk: Chunk, now: Instant) -> Result<Option<Event>, Violation> {
        let (id, ack) = match &chunk {
            Chunk::Ack { ack } => (None, Some(*ack)),
            Chunk::Message { id, ack, .. } | Chunk::Data { id, ack, .. } => (Some(*id), *ack),
        };
        if id.is_some_and(|id| self.inbox.is_replay(id)) {
            return Ok(None);
        }
        if let Some(ack) = ack {
            self.outbox.acknowledge(ack)?;
        }
        if let Contact::Attached { hold } = &mut self.contact {
            *hold = None;
        }
        if let Some(id) = id {
            self.inbox.receive(id, now);
        }
        if self.phase != Phase::Ready && self.inbox.chunks() > self.terms.limits.chunks_before_start {
            return Err(Violation::NotStarted);
        }
        let event = match chunk {
            Chunk::Ack { .. } => None,
            Chunk::Message { header, body, .. } => self.obey(Message::decode(&header, &body)?)?,
            Chunk::Data { .. } if self.phase != Phase::Ready => return Err(Violation::OutOfTurn { message: "data" }),
            Chunk::Data { channel, octets, .. } => {
                (self.ports.takes(channel) && !octets.is_empty()).then_some(Event::Data { channel, octets })
            }
        };
        if self.outbox.len() > self.terms.limits.unacknowledged || self.outbox.is_used_up() {
            return Err(Violation::Unacknowledged);
        }
        Ok(event)
    }

    fn obey(&mut self, message: Message) -> Result<Option<Event>, Violation> {
        match (self.phase, message) {
            (_, Message::Unknown) => Ok(None),
            (Phase::AwaitInit, Message::Init { cid, .. }) => {
                self.phase = Phase::AwaitStart;
                self.say(&Message::PleaseInit { cid });
                Ok(None)
            }
            (Phase::AwaitStart, Message::Start { cap_id, half_close, .. }) => {
                self.half_close = half_close;
                self.authenticate(&cap_id).map(Some)
            }
            (Phase::Ready, message) => self.obey_ready(message),
            (_, message) => Err(Violation::OutOfTurn {
                message: message.name(),
            }),
        }
    }

    fn authenticate(&mut self, cap_id: &Secret) -> Result<Event, Violation> {
        if *cap_id != self.terms.connection_id {
            return Err(Violation::WrongConnectionId);
        }
        self.phase = Phase::Ready;
        self.say(&Message::Authenticated {
            reconnection: true,
            cap_id: self.terms.connection_id.clone(),
            lost_contact_ms: millis(self.terms.lost_contact),
            disconnected_ms: millis(self.terms.reconnect_window),
            session_ms: millis(self.terms.session_left),
            reconnect_secret: Some(self.terms.reconnect_secret.clone()),
            half_close: self.half_close,
        });
        self.say(&Message::Ready);
        Ok(Event::Ready)
    }

    fn obey_ready(&mut self, message: Message) -> Result<Option<Event>, Violation> {
        Ok(match message {
            Message::Init { .. } | Message::Start { .. } => {
                return Err(Violation::OutOfTurn {
                    message: message.name(),
                });
            }
            Message::EchoRequest { .. } => {
                self.say(&Message::EchoReply);
                None
            }
            Message::ListenReply { cid, port } => self
                .ports
                .answered(cid, port.is_ok())
                .then_some(Event::Listening { cid, port }),
            // Clients say this twice for one request, and unasked for every port that they close.
            Message::UnlistenReply {
                port_name: Some(name), ..
            } => self
                .ports
                .closed(&name)
                .map(|port_name| Event::Unlistened { port_name }),
            Message::RaiseRequest { channel, port_name } => self.raise(channel, &port_name),
            Message::Lower { channel } => self.lowered(channel),
            Message::PleaseInit { .. }
            | Message::Authenticated { .. }
            | Message::Ready
            | Message::ListenRequest { .. }
            | Message::RaiseReply { .. }
            | Message::UnlistenRequest { .. }
            | Message::UnlistenReply { .. }
            | Message::EchoReply
            | Message::Stop { .. }
            | Message::SystemMessage { .. }
            | Message::Error { .. }
            | Message::Unknown => None,
        })
    }

    fn raise(&mut self, channel: i32, port_name: &str) -> Option<Event> {
        match self.ports.raise(channel, port_name, &self.terms.limits) {
            Ok((channel, port_name)) => Some(Event::Raise { channel, port_name }),
            Err(problem) => {
                self.say(&Message::RaiseReply {
                    channel,
                    problem: Some(problem.to_owned()),
                });
                None
            }
        }
    }

    fn lowered(&mut self, channel: i32) -> Option<Event> {
        let (channel, what) = self.ports.lower_there(channel)?;
        Some(match what {
            Lowered::HalfClosed => Event::Lower { channel },
            Lowered::Again if !self.half_close => return None,
            Lowered::Again | Lowered::Raising => {
                self.forget(channel);
                Event::Abandon { channel }
            }
        })
    }
}
