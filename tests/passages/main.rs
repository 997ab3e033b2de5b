//! Listeners of TCP and TLS as their users meet them: over real sockets, with the program itself between a client and targets
//! that do what a test wants.
//!
//! What is asserted is what arrives on either side, and the one line of the log for it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "../support/mod.rs"]
mod support;

mod admission;
mod bytes;
mod changes;
mod rig;
mod targets;
mod tls;
