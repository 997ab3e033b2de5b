//! Portcullis, a secure access gateway.
//!
//! It stands in a DMZ behind a load balancer. A client signs in over the *primary* protocol (XML over HTTPS); success
//! mints a *session grant* in the memory of this node; the *secondary* protocols are admitted only against a live
//! grant of this same node, and everything else is dropped.
//!
//! The life of a connection, one module a step:
//!
//! 1. [`listen`] accepts a socket, reads the balancer's PROXY header and counts the source: `Accepted`.
//! 2. [`secure`] agrees TLS: `Secured`.
//! 3. [`route`] decides from method and path what a request is: `Routed`.
//! 4. [`inspect`] holds headers and sizes to their limits.
//! 5. [`authenticate`] asks for the screens that are due and checks the answers: `Authenticated`.
//! 6. [`grant`] mints the grant, and admits secondaries against it: `Granted`.
//! 7. [`tunnel`] runs the admitted secondary.
//! 8. [`upstream`] dials the desktop that the grant names.
//!
//! A request of the web leaves after `inspect`: [`publish`] takes it to a target of its rule's pool.
//!
//! [`gateway`] joins the steps and is the file to read first; [`node`] builds everything from a configuration.

pub mod admin;
pub mod authenticate;
pub mod broker;
pub mod cli;
pub mod client;
pub mod clock;
pub mod config;
pub mod control;
pub mod fault;
pub mod fleet;
pub mod gateway;
pub mod grant;
pub mod inspect;
pub mod listen;
pub mod node;
pub mod observe;
pub mod publish;
pub mod route;
pub mod secure;
pub mod tunnel;
pub mod types;
pub mod upstream;
pub mod wire;
