//! How a client can break the protocol.

use crate::fault::{CloseReason, Refusal};
use crate::tunnel::https::chunk::ChunkFault;
use crate::tunnel::https::message::MessageFault;

/// What a client did that ends its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Bytes that are no chunk.
    #[error(transparent)]
    Chunk(#[from] ChunkFault),
    /// A message that cannot be read.
    #[error(transparent)]
    Message(#[from] MessageFault),
    /// Something that has no place there.
    #[error("{message:?} out of turn")]
    OutOfTurn {
        /// The message's name, or `data`.
        message: &'static str,
    },
    /// The connection-id in `start` is not that of the request target.
    #[error("start with another connection-id")]
    WrongConnectionId,
    /// An acknowledgement of something that was never sent.
    #[error("acknowledgement of chunk {ack} where {transmitted} was the last")]
    AckAhead {
        /// What was acknowledged.
        ack: u32,
        /// The last chunk that was sent.
        transmitted: u32,
    },
    /// Too many chunks without a `start` among them.
    #[error("no start among the first chunks")]
    NotStarted,
    /// Too much that the client makes this side say without acknowledging it, or more than there are numbers for.
    #[error("too many chunks without an acknowledgement")]
    Unacknowledged,
}

impl Violation {
    /// The close reason that it amounts to.
    pub fn close_reason(self) -> CloseReason {
        match self {
            Self::WrongConnectionId => CloseReason::Refused(Refusal::UnknownToken),
            Self::Unacknowledged => CloseReason::TooLarge,
            Self::Chunk(ChunkFault::TooLong { .. }) => CloseReason::TooLarge,
            Self::Chunk(_) | Self::Message(_) | Self::OutOfTurn { .. } | Self::AckAhead { .. } | Self::NotStarted => {
                CloseReason::Malformed
            }
        }
    }
}
