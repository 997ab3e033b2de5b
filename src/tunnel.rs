//! The admitted secondary protocols, from a `Granted` to their end.
//!
//! A tunnel is opened only with a `Granted`, which only [`crate::grant`] can make, and dials only what the grant's
//! routes name.

pub mod https;
