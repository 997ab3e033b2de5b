//! How long a round trip on a TCP connection takes, as the system has measured it.
//!
//! Asked of `sock_diag(7)` by the connection's addresses, which needs no right and no more than the addresses.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

/// The round trip of the TCP connection between these two: what the system has smoothed of it (`tcpi_rtt` of `tcp(7)`).
/// `None` if there is no such connection any more, or the system does not tell.
///
/// Waits for nobody: the system answers within the call. It takes four system calls.
pub fn round_trip(peer: SocketAddr, local: SocketAddr) -> Option<Duration> {
    let system = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        Some(netlink::SOCK_DIAG),
    )
    .ok()?;
    send(&system, &question(peer, local), SendFlags::empty()).ok()?;
    let mut answer = [0; LONGEST_ANSWER];
    let (length, _) = recv(&system, &mut answer, RecvFlags::empty()).ok()?;
    smoothed(answer.get(..length)?)
}

/// Asks for one connection by its addresses: `struct nlmsghdr`, then `struct inet_diag_req_v2`.
fn question(peer: SocketAddr, local: SocketAddr) -> [u8; QUESTION] {
    let family = match local {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    // The interface, where an address means nothing without one.
    let scope = match peer {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(peer) => peer.scope_id(),
    };
    let mut question = [0; QUESTION];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        question[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&(QUESTION as u32).to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    // Neither a number nor a sender: there is one question.
    put(&[0; 8]);
    put(&[family.as_raw() as u8, IPPROTO_TCP, 1 << (INET_DIAG_INFO - 1), 0]);
    // In whatever state.
    put(&u32::MAX.to_ne_bytes());
    put(&local.port().to_be_bytes());
    put(&peer.port().to_be_bytes());
    put(&octets(local.ip()));
    put(&octets(peer.ip()));
    put(&scope.to_ne_bytes());
    // INET_DIAG_NOCOOKIE: whichever connection has these addresses.
    put(&[0xff; 8]);
    question
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&address.octets());
            octets
        }
        IpAddr::V6(address) => address.octets(),
    }
}

/// Looks for `tcpi_rtt`, which is in microseconds, behind `struct nlmsghdr` and `struct inet_diag_msg`.
fn smoothed(answer: &[u8]) -> Option<Duration> {
    let u16_at = |bytes: &[u8], at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    if u16_at(answer, TYPE)? != SOCK_DIAG_BY_FAMILY {
        return None;
    }
    let mut attributes = answer.get(ATTRIBUTES..)?;
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        if u16_at(attributes, 2)? == INET_DIAG_INFO {
            let info = attributes.get(4..length)?;
            let micros = u32::from_ne_bytes(*info.get(TCPI_RTT..)?.first_chunk()?);
            // Nothing is measured of a socket that listens.
            return (micros > 0).then(|| Duration::from_micros(micros.into()));
        }
        attributes = attributes.get(length.max(4).next_multiple_of(4)..)?;
    }
}

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, linux/tcp.h

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const INET_DIAG_INFO: u16 = 2;
const IPPROTO_TCP: u8 = 6;
/// The size of `struct nlmsghdr` and `struct inet_diag_req_v2`.
const QUESTION: usize = 16 + 56;
/// Where `nlmsg_type` is.
const TYPE: usize = 4;
/// Behind `struct nlmsghdr` and `struct inet_diag_msg`.
const ATTRIBUTES: usize = 16 + 72;
/// Where `tcpi_rtt` is in `struct tcp_info`.
const TCPI_RTT: usize = 68;
/// Twice what the system says today.
const LONGEST_ANSWER: usize = 1024;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;
    use crate::types::canonical;

    /// Both ends of a connection over which something has passed.
    fn connection(listener: &str, to: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listener).unwrap();
        let mut client = TcpStream::connect((to, listener.local_addr().unwrap().port())).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"ping").unwrap();
        server.read_exact(&mut [0; 4]).unwrap();
        (client, server)
    }

    #[test]
    fn the_system_knows_the_round_trip_of_a_connection() {
        // The last: a client of IPv4 at a socket of IPv6.
        for (listener, to) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
        ] {
            let (_client, server) = connection(listener, to);
            let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
            let taken = round_trip(canonical(peer), canonical(local));
            let taken = taken.unwrap_or_else(|| panic!("nothing is known of {peer} at {local}"));
            assert!(taken > Duration::ZERO && taken < Duration::from_secs(1), "{taken:?}");
        }
    }

    #[test]
    fn of_no_connection_nothing_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let local = listener.local_addr().unwrap();
        // A listening socket is found, and has measured nothing.
        assert_eq!(round_trip("127.0.0.1:9".parse().unwrap(), local), None);
        let (client, server) = connection("127.0.0.1:0", "127.0.0.1");
        let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
        let stranger = SocketAddr::new("127.0.0.9".parse().unwrap(), peer.port());
        assert_eq!(round_trip(stranger, local), None);
        drop((client, server));
    }

    proptest! {
        #[test]
        fn whatever_the_answer_it_is_read_to_an_end(mut answer: Vec<u8>, is_one: bool) {
            if is_one {
                answer.splice(0..0, [0; ATTRIBUTES]);
                answer[TYPE..TYPE + 2].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            }
            let _ = smoothed(&answer);
        }
    }
}
