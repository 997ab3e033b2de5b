//! HTTP/1.x on the wire, both ways: strict about every byte, because what two readers read differently is how a request
//! is smuggled past one of them.
//!
//! [`head`] reads heads and [`render`] writes them; [`framing`] finds the bytes of a body. All three are pure: bytes in,
//! meaning out, or a fault. [`client`] and [`server`] are the two ends of a connection.

mod answer;
pub mod client;
pub mod framing;
pub mod head;
pub mod render;
pub mod server;
