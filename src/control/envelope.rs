//! The envelope `<broker version="…">`: a request with its operations, a reply with its answers.
//!
//! Decisions where the protocol leaves room:
//!
//! * A version above [`Version::NEWEST`], below [`Version::OLDEST`], absent or malformed gets `UNSUPPORTED_VERSION` as
//!   the answer to the whole envelope; a client then tries the next lower one. Versions between the known ones are
//!   served as they are. Every reply carries [`Version::NEWEST`], the server's own, as known servers do.
//! * Clients match answers by name and take the first, so two operations of one name in an envelope cannot both be
//!   answered. Such an envelope is refused whole: nothing of it is executed, and an envelope cannot carry a hundred
//!   guesses of a password.
//! * An operation that is unknown or lacks what it is about fails alone. The others are executed.
//! * Elements, attributes and text that are not known are skipped.

mod reply;
mod request;
mod version;

pub use reply::{Reply, ReplyError};
pub use request::{Refused, Request, Unwritable};
pub use version::{InvalidVersion, Version};

/// The name of the root element.
const ROOT: &str = "broker";
