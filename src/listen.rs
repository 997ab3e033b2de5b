//! Step 1: sockets, the balancer's PROXY header, and how many connections a source may have.
//!
//! [`accept_loop`] does nothing that could wait for a client: it takes a place in [`Caps`] and hands an [`Incoming`] to
//! the connection's own task. There [`Incoming::accept`] learns who the client is and yields an [`Accepted`].
//!
//! Invariants: nothing but a listed balancer is believed about the client's address; at most the configured number of
//! connections is open, in all and from one source; a place is given back when its [`Permit`] is dropped, and the
//! memory of all counting is bounded by the open connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use ipnet::IpNet;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

pub use abort::abort_at_end;
pub use accept::accept_loop;
pub use bind::{BindFault, bind};
pub use caps::{Caps, Counts, Permit};
pub use episode::Episode;
pub use ids::ConnectionIds;
pub use pieces::Pieces;
pub use prefixed::Prefixed;
pub use quic::{Arriving, Handshake, RETRY_ABOVE, accept_quic, quic_endpoint, quic_transport};
pub use round_trip::round_trip;

use crate::fault::CloseReason;
use crate::observe::Arrival;
use crate::types::{NodeName, canonical};

mod abort;
mod accept;
mod bind;
mod caps;
mod episode;
mod ids;
mod pieces;
pub mod pipe;
mod prefixed;
pub mod proxy;
mod quic;
mod rate;
mod round_trip;
pub mod udp;

/// What is known of a connection from its first moment.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The listener's name in the configuration.
    pub listener: Arc<str>,
    /// The address of this node to which the peer connected.
    pub local: SocketAddr,
    /// Who connected: the client or its balancer.
    pub peer: SocketAddr,
    /// The client, as the balancer named it or else the peer; never an IPv4-mapped address.
    pub client: SocketAddr,
    /// When the connection was accepted.
    pub since: Instant,
    /// The node that brought it here, because a balancer had brought it there by mistake.
    pub relayed_by: Option<NodeName>,
}

impl Facts {
    /// Where it came from and came in.
    pub fn arrival(&self) -> Arrival {
        Arrival {
            client: self.client,
            via: self.peer,
            local: self.local,
        }
    }
}

/// An accepted socket of which no byte has been read.
#[derive(Debug)]
pub struct Incoming {
    io: TcpStream,
    facts: Facts,
    permit: Permit,
}

impl Incoming {
    /// What is known so far: the client is still taken to be the peer.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Reads the PROXY header if the peer is one of `balancers`, then takes a place for the client's source.
    ///
    /// From a listed peer the header (version 1 or 2) is required; from anyone else nothing is read.
    ///
    /// # Errors
    /// [`CloseReason::ProxyHeader`] without a readable header, [`CloseReason::SourceLimit`] if the source has its share,
    /// [`CloseReason::HandshakeRate`] if it comes too fast,
    /// [`CloseReason::ClientClosed`] if the peer went away before it sent anything. The connection is closed then.
    ///
    /// # Cancel safety
    /// Waits for the peer without a limit of its own: the caller holds one deadline over this and the TLS handshake.
    /// Dropping the future closes the connection and gives its places back.
    pub async fn accept(mut self, balancers: &[IpNet]) -> Result<Accepted, CloseReason> {
        let peer = self.facts.peer.ip();
        let prefix = if balancers.iter().any(|net| net.contains(&peer)) {
            let (client, rest) = read_proxy_header(&mut self.io).await?;
            if let Some(client) = client {
                self.facts.client = canonical(client);
            }
            rest
        } else {
            Bytes::new()
        };
        self.permit.begin_handshake(self.facts.client.ip())?;
        self.permit.claim(self.facts.client.ip())?;
        Ok(Accepted {
            io: Prefixed::new(prefix, self.io),
            facts: self.facts,
            permit: self.permit,
        })
    }
}

impl Incoming {
    /// Takes the connection as it is: the peer is another node, which will say for whom it comes.
    pub fn accept_peer(self) -> Accepted {
        Accepted {
            io: Prefixed::new(Bytes::new(), self.io),
            facts: self.facts,
            permit: self.permit,
        }
    }
}

/// A connection whose client is known and counted; the PROXY header is behind it.
#[derive(Debug)]
pub struct Accepted {
    io: Prefixed<TcpStream>,
    facts: Facts,
    permit: Permit,
}

impl Accepted {
    /// What is known of the connection.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// The stream, for a protocol that says who it is before TLS.
    pub fn io_mut(&mut self) -> &mut Prefixed<TcpStream> {
        &mut self.io
    }

    /// Takes the connection apart. Whoever uses the stream keeps the permit for as long.
    pub fn into_parts(self) -> (Prefixed<TcpStream>, Facts, Permit) {
        (self.io, self.facts, self.permit)
    }
}

/// Reads one header, however it is cut into segments: the client that it names, and the bytes that came after it.
async fn read_proxy_header(io: &mut TcpStream) -> Result<(Option<SocketAddr>, Bytes), CloseReason> {
    let mut buffer = BytesMut::with_capacity(FIRST_READ);
    loop {
        match proxy::decode(&buffer) {
            Ok(proxy::Progress::Complete { client, length }) => return Ok((client, buffer.split_off(length).freeze())),
            Ok(proxy::Progress::Incomplete { at_least }) => buffer.reserve(at_least.saturating_sub(buffer.len())),
            Err(fault) => {
                tracing::debug!(peer = ?io.peer_addr().ok(), %fault, "a listed balancer sent no PROXY header");
                return Err(CloseReason::ProxyHeader);
            }
        }
        let room = buffer.capacity() - buffer.len();
        match io.read_buf(&mut (&mut buffer).limit(room)).await {
            Ok(0) if buffer.is_empty() => return Err(CloseReason::ClientClosed),
            Ok(0) => return Err(CloseReason::ProxyHeader),
            Ok(_) => {}
            Err(_) => return Err(CloseReason::ClientClosed),
        }
    }
}

/// Enough for every version 1 header and for a version 2 header with the usual additions.
const FIRST_READ: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::config;

    /// Limits of which only these two matter to the test.
    pub(crate) fn limits(connections: usize, connections_per_source: usize) -> config::Limits {
        config::Limits {
            connections,
            connections_per_source,
            handshake_timeout: Duration::from_secs(10),
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            pending_logins: 1,
            handshakes_per_source: 1_000_000,
        }
    }
}
