//! Step 8: the way to a desktop.
//!
//! What is dialled is a [`Target`], which only the configuration makes.

use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::{Instant, timeout_at};

use crate::types::Target;

mod agent;
mod balance;
pub mod connect;
mod lanes;
mod pool;
mod pools;
pub mod probe;
mod resolve;
pub mod web;

pub use agent::{AgentFault, Agents, Upstream};
#[cfg(test)]
pub(crate) use pool::DeriveNothing;
pub use pool::{Census, Condition, Derive, Lease, Outcome, Pool, PoolView, Roster, TargetId, TargetView};
pub use pools::{Fittings, Home, Pools, PoolsView};
pub use probe::{ProbeFault, ProbeResult};
pub use resolve::{DnsFault, NameView};

/// Connects to `target` within `limit`: resolves its name and tries its addresses in turn.
///
/// An address that does not answer leaves time for the others. The socket has `TCP_NODELAY` and keep-alive set.
/// Cancel-safe: a connection that is not complete is given up.
///
/// # Errors
/// The name has no address, or none of its addresses accepted in time; of several faults the last.
pub async fn dial(target: &Target, limit: Duration) -> Result<TcpStream, DialFault> {
    let deadline = Instant::now() + limit;
    let addresses = resolve(target, deadline).await?;
    let stream = connect_any(&addresses, deadline, TcpStream::connect).await?;
    set_options(&stream).map_err(|error| DialFault::from_io(&error))?;
    Ok(stream)
}

/// Opens a socket for datagrams of `target` alone, within `limit`. Nothing is sent.
///
/// # Errors
/// The name has no address, or the system has no way or no descriptor.
pub async fn dial_datagrams(target: &Target, limit: Duration) -> Result<UdpSocket, DialFault> {
    let addresses = resolve(target, Instant::now() + limit).await?;
    let mut fault = DialFault::Unresolved;
    for address in addresses {
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let opened = async {
            let socket = UdpSocket::bind(any).await?;
            socket.connect(address).await?;
            io::Result::Ok(socket)
        };
        match opened.await {
            Ok(socket) => return Ok(socket),
            Err(error) => fault = DialFault::from_io(&error),
        }
    }
    Err(fault)
}

/// Why a desktop was not reached. The words are fit for its user: they name no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialFault {
    /// Its name could not be resolved.
    #[error("the desktop's name is not known")]
    Unresolved,
    /// It accepts no connections.
    #[error("the desktop refuses connections")]
    Refused,
    /// No way leads to it.
    #[error("the desktop cannot be reached")]
    Unreachable,
    /// It did not answer in time.
    #[error("the desktop does not answer")]
    Timeout,
    /// Its agent and this node do not agree on TLS.
    #[error("the desktop's agent does not speak TLS as it should")]
    NoTls,
    /// Its agent does not prove to be what the configuration says.
    #[error("the desktop's agent is not the one that was expected")]
    Untrusted,
    /// Something else failed.
    #[error("the connection to the desktop failed")]
    Other(io::ErrorKind),
}

impl DialFault {
    /// The code in logs and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Unresolved => "unresolved",
            Self::Refused => "refused",
            Self::Unreachable => "unreachable",
            Self::Timeout => "timeout",
            Self::NoTls => "no_tls",
            Self::Untrusted => "untrusted",
            Self::Other(_) => "other",
        }
    }

    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "io::ErrorKind grows; what has no word of its own is Other"
    )]
    fn from_io(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            kind => Self::Other(kind),
        }
    }
}

async fn resolve(target: &Target, deadline: Instant) -> Result<Vec<SocketAddr>, DialFault> {
    if let Ok(address) = target.host.parse() {
        return Ok(vec![SocketAddr::new(address, target.port)]);
    }
    let found = timeout_at(deadline, lookup_host((target.host.as_str(), target.port))).await;
    match found {
        Err(_) => Err(DialFault::Timeout),
        Ok(Err(_)) => Err(DialFault::Unresolved),
        Ok(Ok(addresses)) => Ok(addresses.take(MAX_ADDRESSES).collect()),
    }
}

/// The first connection that comes about. Each address has its share of the time that is left.
async fn connect_any<S, F>(
    addresses: &[SocketAddr],
    deadline: Instant,
    connect: impl Fn(SocketAddr) -> F,
) -> Result<S, DialFault>
where
    F: Future<Output = io::Result<S>>,
{
    let mut fault = DialFault::Unresolved;
    for (tried, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let left = (addresses.len() - tried) as u32;
        let share = deadline.saturating_duration_since(now) / left;
        fault = match timeout_at(now + share, connect(*address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => DialFault::from_io(&error),
            Err(_) => DialFault::Timeout,
        };
    }
    Err(fault)
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(3);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

const MAX_ADDRESSES: usize = 8;
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_desktop_is_reached_without_delay_and_kept_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            host: "localhost".into(),
            port: listener.local_addr().unwrap().port(),
        };
        let stream = dial(&target, LIMIT).await.unwrap();
        assert!(stream.nodelay().unwrap());
        assert!(SockRef::from(&stream).keepalive().unwrap());
    }

    #[tokio::test]
    async fn a_closed_port_is_said_to_refuse() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = Target {
            host: "127.0.0.1".into(),
            port: listener.local_addr().unwrap().port(),
        };
        drop(listener);
        assert_eq!(dial(&target, LIMIT).await.unwrap_err(), DialFault::Refused);
    }

    #[tokio::test]
    async fn a_name_without_an_address_is_said_to_be_unknown() {
        let target = Target {
            host: "no such name.invalid".into(),
            port: 1,
        };
        assert_eq!(dial(&target, LIMIT).await.unwrap_err(), DialFault::Unresolved);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_leaves_time_for_the_next() {
        let started = Instant::now();
        let reached = connect_any(&addresses(3), started + LIMIT, |address| async move {
            match address.port() {
                1 => pending().await,
                2 => Err(io::ErrorKind::ConnectionRefused.into()),
                port => Ok(port),
            }
        })
        .await;
        assert_eq!(reached, Ok(3));
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs() / 3);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_everywhere_ends_at_the_deadline() {
        let started = Instant::now();
        let reached = connect_any(&addresses(4), started + LIMIT, |_| pending::<io::Result<()>>()).await;
        assert_eq!(reached, Err(DialFault::Timeout));
        assert_eq!(started.elapsed().as_secs(), LIMIT.as_secs());
    }

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count)
            .map(|port| SocketAddr::from(([192, 0, 2, 1], port)))
            .collect()
    }

    const LIMIT: Duration = Duration::from_secs(12);
}
