//! What two processes of one node say to each other.
//!
//! A message is a length of four octets and a JSON object with its kind. Either side may be of another version: a kind
//! that it does not know is passed over, a field that it does not know is not read, and one that is missing has the value
//! that it had before it was thought of. Lists that grow with the sessions are cut into several messages.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

use crate::authenticate::ThrottleSnapshot;
use crate::control::snapshot::SessionSnapshot;
use crate::grant::{GrantSnapshot, Randomness as _, RouteSnapshot, SystemRandomness};
use crate::observe::Tally;
use crate::secure::TicketKey;
use crate::tunnel::flow::News;
use crate::tunnel::https::ListenFault;
use crate::types::Octets32;

/// The version of what is said. Both sides speak the lower one of theirs.
pub const VERSION: u32 = 1;

/// One message. "Old" is the process that hands over, "new" the one that takes over.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Message {
    /// New: who it is.
    Hello {
        /// Its [`VERSION`].
        version: u32,
        /// The version of its program.
        program: String,
    },
    /// Old: listening sockets, whose descriptors come with the message in this order.
    Sockets {
        /// What they are.
        sockets: Vec<SocketFacts>,
    },
    /// Old, after its sockets: the ways by which datagrams of its flows and connections are passed back to it, whose
    /// descriptors come with the message in this order.
    WaysBack {
        /// The sockets from which.
        sockets: Vec<SocketFacts>,
    },
    /// Old: who it is, after its sockets.
    Identity {
        /// The version that is spoken.
        version: u32,
        /// The node's name.
        node: String,
        /// What it drew at its start.
        keys: Keys,
        /// A hash of the recognition key that is configured.
        recognition: Option<Octets32>,
        /// Where it takes connections that are carried back to it.
        kin: PathBuf,
        /// Its generation; that of the new one is the next.
        #[serde(default)]
        generation: u8,
        /// Pools that have a healthy target.
        #[serde(default)]
        healthy: BTreeSet<PoolFacts>,
    },
    /// New: everything is loaded.
    Ready {},
    /// New: it cannot serve, and why.
    Refused {
        /// In words for the operator.
        words: String,
    },
    /// Old: nothing is accepted and nothing changes any more.
    Held {},
    /// New: it has noted the time, to which all spans that follow refer.
    Take {},
    /// Old: some of the grants.
    Grants {
        /// At most [`BATCH`].
        grants: Vec<GrantSnapshot>,
    },
    /// Old: some of the cookie sessions.
    Sessions {
        /// At most [`BATCH`].
        sessions: Vec<SessionSnapshot>,
    },
    /// Old: failures that count.
    Throttle {
        /// All of them.
        throttle: ThrottleSnapshot,
    },
    /// Old: sessions whose tunnels it has.
    Tunnels {
        /// Their ids.
        sessions: Vec<String>,
    },
    /// Old: connections beside which datagrams flow, and flows, that it has; later, what happens to them.
    Flows {
        /// At most [`BATCH`].
        news: Vec<News>,
    },
    /// Old: what was counted there; later, what more was.
    Counts {
        /// At most [`COUNTS`].
        counts: Tally,
    },
    /// Old: that was all.
    Whole {
        /// How many grants there were.
        grants: usize,
        /// How long it has been out of the balancer's service, in milliseconds.
        quiesced: Option<u64>,
    },
    /// New: it has all that, and waits for the word.
    Installed {
        /// Where it takes connections that are carried to it.
        kin: PathBuf,
    },
    /// Old: the word.
    Go {},
    /// New: it accepts.
    Serving {},
    /// Both: a session has ended.
    Ended {
        /// Its id.
        session: String,
        /// The code of the reason.
        reason: String,
    },
    /// Old: sessions that were used there.
    Active {
        /// At most [`BATCH`].
        sessions: Vec<Activity>,
    },
    /// Old: how many connections are open there and before it.
    Open {
        /// So many.
        connections: usize,
    },
    /// Old: a tunnel is no more.
    TunnelGone {
        /// Whose it was.
        session: String,
    },
    /// New: has the client of a tunnel listen for a route.
    Listen {
        /// Which question this is.
        id: u64,
        /// Whose tunnel.
        session: String,
        /// For what.
        route: RouteSnapshot,
        /// Whether the port is for one connection.
        single_use: bool,
    },
    /// Old: the client listens, or does not.
    Listened {
        /// The question that this answers.
        id: u64,
        /// The port.
        port: Option<u16>,
        /// Why there is none.
        fault: Option<ListenFault>,
    },
    /// New: takes the ports of a route back.
    Unlisten {
        /// Whose tunnel.
        session: String,
        /// The route's number.
        route: u32,
    },
    /// New: the session has another tunnel.
    Replaced {
        /// Whose tunnel it is that has to end.
        session: String,
    },
    /// New: it has handed over itself, so that its end says nothing of the ends of sessions any more.
    PassedOn {},
    /// A message of another version.
    #[serde(other)]
    Unknown,
}

/// One listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SocketFacts {
    /// The address as it is configured.
    pub address: SocketAddr,
    /// What it is for.
    #[serde(rename = "use")]
    pub use_: SocketUse,
}

/// A pool of targets, as one backend speaks to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolFacts {
    /// Its name.
    pub pool: String,
    /// The backend's name; `None` is the default one.
    pub backend: Option<String>,
}

/// What a listening socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SocketUse {
    /// TCP.
    Connections,
    /// UDP, of flows alone.
    Datagrams,
    /// UDP, of QUIC and flows.
    Quic,
    /// TCP, of the operator's API.
    Operators,
    /// TCP, of the balancer's agent check.
    Agents,
}

/// The keys that a node draws.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keys {
    /// Under which tokens are recognised without a key of the fleet.
    pub recognition: Octets32,
    /// Of affinity cookies without a configured key.
    pub affinity: Octets32,
    /// What clients are told as the broker's identity.
    pub guid: String,
    /// Of QUIC's connection ids, and the tokens with which clients prove their address.
    #[serde(default = "draw")]
    pub quic: Octets32,
    /// Of session tickets, the current one first.
    #[serde(default)]
    pub tickets: Vec<TicketKey>,
}

/// What a session did in the old process since it was last told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// The session.
    pub session: String,
    /// How long ago the user was active.
    pub inactive: Duration,
    /// How long ago the client sent a heartbeat, if ever.
    pub unbeaten: Option<Duration>,
    /// Bytes from the client since then.
    pub bytes_in: u64,
    /// Bytes to the client since then.
    pub bytes_out: u64,
}

/// Draws a key.
pub(super) fn draw() -> Octets32 {
    let mut octets = Octets32([0; 32]);
    SystemRandomness.fill(&mut octets.0);
    octets
}

impl Message {
    /// The message in bytes.
    ///
    /// # Errors
    /// [`Garbled`] if it is longer than [`LONGEST`].
    pub fn encode(&self) -> Result<Bytes, Garbled> {
        let mut bytes = BytesMut::new();
        bytes.put_u32(0);
        let mut writer = bytes.writer();
        serde_json::to_writer(&mut writer, self).map_err(|_| Garbled)?;
        let mut bytes = writer.into_inner();
        let length = bytes.len() - LENGTH;
        if length > LONGEST {
            return Err(Garbled);
        }
        (&mut bytes[..LENGTH]).put_u32(u32::try_from(length).map_err(|_| Garbled)?);
        Ok(bytes.freeze())
    }
}

/// Takes messages out of bytes, however they are cut.
#[derive(Debug, Default)]
pub struct Decoder(BytesMut);

impl Decoder {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next message that is whole.
    ///
    /// # Errors
    /// [`Garbled`], after which nothing that follows means anything.
    pub fn next_message(&mut self) -> Result<Option<Message>, Garbled> {
        let Some(length) = self.0.first_chunk::<LENGTH>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_be_bytes(*length)).map_err(|_| Garbled)?;
        if length > LONGEST {
            return Err(Garbled);
        }
        if self.0.len() < LENGTH + length {
            return Ok(None);
        }
        self.0.advance(LENGTH);
        let message = self.0.split_to(length);
        serde_json::from_slice(&message).map(Some).map_err(|_| Garbled)
    }
}

/// What cannot be read as a message, or is longer than one may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other process speaks in a way that cannot be understood")]
pub struct Garbled;

/// Items of a list in one message.
pub const BATCH: usize = 128;
/// Counts in one message.
pub const COUNTS: usize = 10_000;
/// The longest message: a batch of grants with as many routes as they may have.
pub const LONGEST: usize = 16 * 1024 * 1024;
const LENGTH: usize = 4;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(message: &Message, piece: usize) -> Vec<Message> {
        let mut decoder = Decoder::default();
        let mut read = Vec::new();
        for part in message.encode().unwrap().chunks(piece) {
            decoder.push(part);
            while let Some(message) = decoder.next_message().unwrap() {
                read.push(message);
            }
        }
        read
    }

    #[test]
    fn messages_of_another_version_are_passed_over_and_unknown_fields_not_read() {
        let mut decoder = Decoder::default();
        for text in [
            r#"{"kind":"weather","sun":true}"#,
            r#"{"kind":"hello","version":9,"program":"9.9","mood":"good"}"#,
        ] {
            decoder.push(&u32::try_from(text.len()).unwrap().to_be_bytes());
            decoder.push(text.as_bytes());
        }
        assert_eq!(decoder.next_message(), Ok(Some(Message::Unknown)));
        let hello = Message::Hello {
            version: 9,
            program: "9.9".to_owned(),
        };
        assert_eq!(decoder.next_message(), Ok(Some(hello)));
        assert_eq!(decoder.next_message(), Ok(None));
    }

    #[test]
    fn what_is_no_message_is_refused_before_room_is_made_for_it() {
        let mut decoder = Decoder::default();
        decoder.push(&[0xff; 5]);
        assert_eq!(decoder.next_message(), Err(Garbled));
        let mut decoder = Decoder::default();
        decoder.push(b"\0\0\0\x02{]");
        assert_eq!(decoder.next_message(), Err(Garbled));
        let words = "x".repeat(LONGEST);
        assert_eq!(Message::Refused { words }.encode(), Err(Garbled));
    }

    proptest! {
        #[test]
        fn messages_are_read_as_they_were_written_however_they_are_cut(
            session in ".{0,40}", ms in any::<u64>(), beat in any::<Option<u32>>(), piece in 1_usize..50,
        ) {
            let active = Message::Active { sessions: vec![Activity {
                session: session.clone(),
                inactive: Duration::from_millis(ms),
                unbeaten: beat.map(|s| Duration::from_secs(s.into())),
                bytes_in: ms,
                bytes_out: 0,
            }]};
            let ended = Message::Ended { session: session.clone(), reason: "logout".to_owned() };
            let listened = Message::Listened { id: ms, port: None, fault: Some(ListenFault::Refused { words: session }) };
            for message in [active, ended, listened, Message::Go {}] {
                prop_assert_eq!(whole(&message, piece), vec![message]);
            }
        }

        #[test]
        fn no_bytes_panic_the_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..200), piece in 1_usize..20) {
            let mut decoder = Decoder::default();
            for part in bytes.chunks(piece) {
                decoder.push(part);
                while let Ok(Some(_)) = decoder.next_message() {}
            }
        }
    }
}
