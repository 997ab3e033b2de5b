//! What the machine wants done, and how a tunnel ends.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;

use crate::tunnel::https::chunk::ChunkFault;
use crate::tunnel::https::message::MessageFault;
use crate::types::Secret;

/// What the driver has to do.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::client::tunnel) enum Event {
    /// Open a connection that takes the tunnel up again.
    Resume {
        /// The credential of the resumption.
        secret: Secret,
    },
    /// Close the connection; it is of no use any more.
    HangUp,
    /// The tunnel can be used.
    Ready,
    /// Open a local port and say so with `Machine::listening`.
    Listen {
        /// Correlates the answer.
        cid: i32,
        /// The port's name.
        port_name: String,
        /// The wanted port; `None` is any.
        port: Option<u16>,
        /// Connections it takes; 1 is for a single one, `None` as many as the driver allows.
        max_connections: Option<u16>,
    },
    /// Close a local port.
    Unlisten {
        /// The port's name.
        port_name: String,
    },
    /// The channel is open.
    Opened {
        /// Its number.
        channel: i32,
    },
    /// The gateway does not open the channel.
    Refused {
        /// Its number.
        channel: i32,
        /// Its words, fit for a terminal.
        problem: String,
    },
    /// Octets for the local program.
    Data {
        /// The channel's number.
        channel: i32,
        /// The octets.
        octets: Bytes,
    },
    /// The gateway closed the channel: no octets follow.
    Lowered {
        /// Its number.
        channel: i32,
    },
    /// Words for the user, fit for a terminal.
    Say {
        /// The words.
        text: String,
    },
    /// The tunnel is over; no event follows.
    Ended(End),
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resume { .. } => f.write_str("Resume"),
            Self::HangUp => f.write_str("HangUp"),
            Self::Ready => f.write_str("Ready"),
            Self::Listen {
                cid,
                port_name,
                port,
                max_connections,
            } => {
                write!(f, "Listen({cid}, {port_name}, {port:?}, {max_connections:?})")
            }
            Self::Unlisten { port_name } => write!(f, "Unlisten({port_name})"),
            Self::Opened { channel } => write!(f, "Opened({channel})"),
            Self::Refused { channel, problem } => write!(f, "Refused({channel}, {problem})"),
            Self::Data { channel, octets } => write!(f, "Data({channel}, {} octets)", octets.len()),
            Self::Lowered { channel } => write!(f, "Lowered({channel})"),
            Self::Say { text } => write!(f, "Say({text})"),
            Self::Ended(end) => write!(f, "Ended({end:?})"),
        }
    }
}

/// Why a tunnel is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum End {
    /// The gateway ended it, with its words.
    #[error("the gateway ended the tunnel: {reason}")]
    Stopped {
        /// The gateway's words, fit for a terminal.
        reason: String,
    },
    /// The client closed it.
    #[error("the tunnel was closed")]
    Closed,
    /// The connection broke, and the gateway does not allow to take it up again.
    #[error("the connection to the gateway broke, and the gateway does not let a tunnel be taken up again")]
    Broken,
    /// The gateway could not be reached again in time.
    #[error("the gateway could not be reached again within {} s", .after.as_secs())]
    LostContact {
        /// How long the gateway would have waited.
        after: Duration,
    },
    /// The gateway did not make the tunnel ready in time.
    #[error("the gateway did not open the tunnel within {} s", .after.as_secs())]
    NotReady {
        /// How long the client waited.
        after: Duration,
    },
    /// The gateway did not let the tunnel be opened or taken up again.
    #[error("the gateway does not admit the tunnel (status {status})")]
    NotAdmitted {
        /// The status of its answer.
        status: u16,
    },
    /// The gateway goes on asking and acknowledges nothing.
    #[error("the gateway acknowledges nothing")]
    Unacknowledged,
    /// The gateway answered for another tunnel.
    #[error("the gateway answered for another tunnel")]
    Foreign,
    /// The gateway sent what is no chunk.
    #[error("the gateway sent what is not the protocol: {0}")]
    Chunk(#[from] ChunkFault),
    /// The gateway sent a message that cannot be read.
    #[error("the gateway sent what is not the protocol: {0}")]
    Message(#[from] MessageFault),
    /// Its certificate was not accepted when the tunnel was taken up again.
    #[error("{0}")]
    NotTrusted(String),
}
