//! The control channel: the XML protocol that a client speaks on `POST /broker/xml`.
//!
//! The codec is pure and serves both ends: the gateway reads requests and writes replies, `portcullis connect` writes
//! requests and reads replies. A body passes these modules in order:
//!
//! 1. [`encoding`]: octets become text, and only if the text is certain.
//! 2. [`xml`]: the text becomes a small tree, held to limits; nothing is expanded or fetched.
//! 3. [`envelope`]: the tree becomes a version and a list of operations (or answers).
//! 4. [`operation`] and [`screen`]: each of them becomes a type.
//!
//!
//! The service on top of the codec is the server's: [`Control`] answers envelopes within cookie sessions, signs users in, mints
//! their grants and launches their desktops.
//!
//! Nothing in here panics or recurses on what a peer sent, and no fault repeats a peer's text: what stands in the
//! wrong place may be a piece of a password.

pub mod encoding;
pub mod envelope;
mod launch;
pub mod operation;
mod pcoip;
mod preconnection;
pub mod screen;
mod service;
mod sessions;
mod sign_in;
pub mod snapshot;
mod ticket;
pub mod xml;

pub use service::{Answered, Control, Exchange, Unanswered};
