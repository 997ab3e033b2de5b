//! The whole way from end to end, with the peers that users have: OpenSSH, TigerVNC, xrdp and FreeRDP, curl, h2load, HAProxy,
//! nginx, the libraries `websockets`, `aioquic` and `grpcio`, Autobahn's test suite, Chromium.
//!
//! `tests/run` installs them. Every peer is started by its test, with files and ports of its own, and ended by it. All of
//! this is left out by `cargo test -- --skip e2e`.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail, and says what it measured"
)]

#[allow(
    dead_code,
    clippy::disallowed_methods,
    reason = "another test uses the rest, and nothing of a test is drained"
)]
#[path = "../quic/peer.rs"]
mod peer;
#[path = "../support/web.rs"]
mod rig;
#[path = "../support/mod.rs"]
mod support;

#[path = "."]
mod e2e {
    mod balancer;
    mod blast;
    mod calls;
    mod conformance;
    mod connect;
    mod curl;
    mod differential;
    mod faulty;
    mod passage;
    mod peer;
    mod quic;
    mod random;
    mod rdp;
    mod rfb;
    mod screen;
    mod ssh;
    mod sshd;
    mod tunnel;
    mod upgrade;
    mod vnc;
    mod web;
    mod xrdp;
    mod xvnc;
}
