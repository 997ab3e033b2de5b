//! The application gateway as its users, their applications and its enemies meet it: over real sockets, with the program
//! itself between a browser of the test's own and an application that keeps every byte.
//!
//! A file a subject. What is asserted is what arrives on either side, and the word of the access log for it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

#[path = "../support/web.rs"]
mod rig;
#[path = "../support/mod.rs"]
mod support;

mod access_log;
mod affinity;
mod authentication;
mod balance;
mod bodies;
mod compression;
mod continue_100;
mod drain;
mod errors;
mod fields;
mod forwarded;
mod guard;
mod handshakes;
mod hosts;
mod http2;
mod inside;
mod metrics;
mod names;
mod overrides;
mod paths;
mod probes;
mod redirects;
mod reload;
mod retries;
mod rewrite;
mod rig_itself;
mod smuggling;
mod times;
mod tls;
mod websocket;
