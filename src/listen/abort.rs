//! Connections that break off.

use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpStream;

/// Has the peer see a reset when `stream` is dropped, and not an end in order: what broke off must not look whole.
pub fn abort_at_end(stream: &TcpStream) {
    // A socket that takes no option is closed already.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
