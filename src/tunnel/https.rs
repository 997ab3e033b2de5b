//! The HTTPS tunnel (`/ice/tunnel`, `/ice/reconnect`).
//!
//! One long-lived full-duplex HTTP exchange carries a reliable, numbered stream of chunks in each direction. Control
//! messages open listening ports *on the client*; each TCP connection that a program makes to one of them becomes a
//! numbered channel, which the node joins to the desktop behind the port's name. A channel names a port, never an
//! address: that is what makes the tunnel safe.
//!
//! [`chunk`] and [`message`] are the codec of both directions, [`session`] is the server's state machine. The
//! [`Registry`] opens tunnels, each in a task of its own that outlives its connection, and finds them again.

mod actor;
pub mod chunk;
mod lane;
pub mod message;
mod registry;
pub mod session;

pub use self::lane::TunnelBody;
pub use self::registry::{Handle, ListenFault, Registry, Settings};
