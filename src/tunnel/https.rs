//! The HTTPS tunnel (`/ice/tunnel`, `/ice/reconnect`).
//!
//! One long-lived full-duplex HTTP exchange carries a reliable, numbered stream of chunks in each direction. Control
//! messages open listening ports *on the client*; each TCP connection that a program makes to one of them becomes a
//! numbered channel, which the node joins to the desktop behind the port's name. A channel names a port, never an
//! address: that is what makes the tunnel safe.
//!
//! [`chunk`] and [`message`] are the codec of both directions, [`session`] is the server's state machine. The
//! [`Registry`] opens tunnels, each in a task of its own that outlives its connection, and finds them again. A
//! [`Carrier`] is what the connection does for its tunnel, over the [`framing`] of HTTP.

mod actor;
mod carrier;
pub mod chunk;
pub mod framing;
mod lane;
pub mod message;
mod registry;
pub mod session;
mod upload;

pub use self::carrier::Carrier;
pub use self::registry::{Asked, Elsewhere, Handle, ListenFault, Registry, Settings};
