//! Listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Opens a listening TCP socket, non-blocking, for exactly that address: an IPv6 one takes no IPv4 connections.
///
/// # Errors
/// [`BindFault`], whose text names the address and what to do.
pub fn bind(address: SocketAddr) -> Result<TcpListener, BindFault> {
    listening_socket(address).map_err(|cause| BindFault { address, cause })
}

/// An address that could not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {cause}; {}", self.advice())]
pub struct BindFault {
    /// The address.
    pub address: SocketAddr,
    /// What the system said.
    #[source]
    pub cause: io::Error,
}

impl BindFault {
    /// What the operator can do about it.
    pub fn advice(&self) -> &'static str {
        match Errno::from_io_error(&self.cause) {
            Some(Errno::ADDRINUSE) => {
                "another program listens there: find it with `ss -tulnp`, stop it or choose another port"
            }
            Some(Errno::ADDRNOTAVAIL) => {
                "this machine has no such address: see `ip addr` and correct the configuration"
            }
            Some(Errno::ACCESS | Errno::PERM) => {
                "ports below 1024 need the capability CAP_NET_BIND_SERVICE: grant it or choose a higher port"
            }
            Some(Errno::AFNOSUPPORT) => "this machine has no IPv6: remove the address or enable IPv6",
            Some(Errno::MFILE | Errno::NFILE) => "too few file descriptors: raise LimitNOFILE (`ulimit -n`)",
            _ => "see the system's log",
        }
    }
}

/// Sets what every accepted connection shall have; accepted sockets inherit it, so no connection pays for it.
///
/// Small writes leave at once, and a peer that vanished without a word is noticed after two minutes.
pub(super) fn prepare(listener: &tokio::net::TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE_TIME)
            .with_interval(KEEPALIVE_INTERVAL)
            .with_retries(KEEPALIVE_RETRIES),
    )
}

fn listening_socket(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

const BACKLOG: i32 = 1024;
const KEEPALIVE_TIME: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_RETRIES: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_can_have_the_same_port() {
        let v4 = bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let port = v4.local_addr().unwrap().port();
        match bind(SocketAddr::new("::".parse().unwrap(), port)) {
            Ok(v6) => assert_eq!(v6.local_addr().unwrap().port(), port),
            Err(fault) => assert_eq!(Errno::from_io_error(&fault.cause), Some(Errno::AFNOSUPPORT), "{fault}"),
        }
    }

    #[test]
    fn a_taken_address_is_named_with_what_to_do() {
        let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let fault = bind(address).unwrap_err().to_string();
        assert!(
            fault.contains(&address.to_string()) && fault.contains("ss -tulnp"),
            "{fault}"
        );
    }

    #[test]
    fn an_address_of_another_machine_is_named_with_what_to_do() {
        let fault = bind("192.0.2.1:0".parse().unwrap()).unwrap_err().to_string();
        assert!(fault.contains("192.0.2.1:0") && fault.contains("ip addr"), "{fault}");
    }

    #[tokio::test]
    async fn accepted_sockets_inherit_the_options() {
        let listener = tokio::net::TcpListener::from_std(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        prepare(&listener).unwrap();
        let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap());
        let (_client, accepted) = tokio::join!(client, listener.accept());
        let (stream, _) = accepted.unwrap();
        let socket = SockRef::from(&stream);
        assert!(stream.nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_TIME);
    }
}
