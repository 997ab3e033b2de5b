//! The admitted secondary protocols, from a `Granted` to their end.
//!
//! A tunnel is opened only with a `Granted`, which only [`crate::grant`] can make, and dials only what the grant's
//! routes name.

pub mod blast;
pub mod flow;
pub mod https;
pub mod masque;
pub mod pcoip;
pub mod rdp;
pub mod relay;

pub use self::relay::Relay;
