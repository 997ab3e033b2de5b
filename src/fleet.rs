//! The other nodes: a secondary connection that a balancer brought to the wrong one is carried to the node that minted its
//! grant, and judged there.
//!
//! A node that meets a sister's token reaches the owner over mutual TLS ([`Fleet::reach`]), says on whose behalf
//! ([`Errand`]), and from then on passes bytes without looking. The owner ([`Fleet::receive`]) takes the connection as if
//! the client had come to it. It is carried once only: an owner never carries on what was carried to it.

mod call;
mod errand;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub use self::call::{Call, Reply, Way};
pub use self::errand::{Errand, Kind};
use crate::config::Config;
use crate::fault::CloseReason;
use crate::listen::Incoming;
use crate::secure::{self, Mutual, MutualFault, Secured};
use crate::types::NodeName;

/// The way to the other nodes, and from them.
#[derive(Clone, Debug)]
pub struct Fleet {
    own: NodeName,
    tls: Mutual,
    peers: BTreeMap<NodeName, SocketAddr>,
}

impl Fleet {
    /// The fleet of a configuration, if it has one. Blocks on the file system.
    ///
    /// # Errors
    /// Every fault of the certificate and of the authority.
    pub fn load(config: &Config, now: Timestamp) -> Result<Option<Self>, Vec<MutualFault>> {
        let fleet = &config.fleet;
        let (Some(name), Some(ca)) = (&fleet.certificate, &fleet.ca) else {
            return Ok(None);
        };
        let tls = Mutual::load(name, config.certificates.get(name), Path::new(ca), now)?;
        Ok(Some(Self {
            own: config.node.name.clone(),
            tls,
            peers: fleet.peers.clone(),
        }))
    }

    /// Whether that node can be reached.
    pub fn knows(&self, node: &NodeName) -> bool {
        self.peers.contains_key(node)
    }

    /// Connects to another node and tells it the errand; what follows is the client's.
    ///
    /// Cancel-safe: a connection in the making is given up.
    ///
    /// # Errors
    /// The node is none of the peers, cannot be reached in time, or does not prove its name.
    pub async fn reach(&self, node: &NodeName, errand: &Errand) -> Result<TlsStream<TcpStream>, ReachFault> {
        let address = *self.peers.get(node).ok_or(ReachFault::Unknown)?;
        let name = ServerName::try_from(node.as_str().to_owned()).map_err(|_| ReachFault::Unknown)?;
        let reaching = async {
            let socket = TcpStream::connect(address).await.map_err(ReachFault::Connect)?;
            socket.set_nodelay(true).map_err(ReachFault::Connect)?;
            let connector = TlsConnector::from(self.tls.client.clone());
            let mut io = connector.connect(name, socket).await.map_err(ReachFault::Tls)?;
            io.write_all(&errand.written(&self.own))
                .await
                .map_err(ReachFault::Tls)?;
            io.flush().await.map_err(ReachFault::Tls)?;
            Ok(io)
        };
        timeout(REACH, reaching).await.unwrap_or(Err(ReachFault::Timeout))
    }

    /// Takes in what another node carries here: TLS, the errand, and the client's place among the connections.
    ///
    /// # Errors
    /// [`CloseReason::TlsFailed`] if the peer is no node of the fleet, [`CloseReason::Malformed`] if its errand cannot be
    /// read, and those of [`secure::handshake`] and of the client's source.
    ///
    /// # Cancel safety
    /// Waits for the peer without a limit of its own. Dropping the future closes the connection.
    pub async fn receive(&self, incoming: Incoming) -> Result<(Secured, Kind), CloseReason> {
        let mut secured = secure::handshake(incoming.accept_peer(), self.tls.server.clone()).await?;
        let length = secured.io().read_u16().await.map_err(|_| CloseReason::ClientClosed)?;
        if usize::from(length) > Errand::MAX {
            return Err(CloseReason::Malformed);
        }
        let mut text = vec![0; usize::from(length)];
        let read = secured.io().read_exact(&mut text).await;
        read.map_err(|_| CloseReason::ClientClosed)?;
        let (errand, from) = Errand::read(&text).ok_or(CloseReason::Malformed)?;
        let proven = secured.peer_names().contains(&from.as_str().to_ascii_lowercase());
        if !proven || !self.knows(&from) {
            tracing::warn!(peer = %secured.facts().peer, claims = %from, "a peer is not the node that it says: refused");
            return Err(CloseReason::TlsFailed);
        }
        let secured = secured.on_behalf(errand.client, errand.local, from)?;
        Ok((secured, errand.kind))
    }
}

/// Why another node is not reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachFault {
    /// It is not configured.
    #[error("it is none of fleet.peers")]
    Unknown,
    /// No connection.
    #[error("it cannot be connected to ({0})")]
    Connect(io::Error),
    /// No TLS.
    #[error("TLS with it failed ({0})")]
    Tls(io::Error),
    /// Not in time.
    #[error("it does not answer")]
    Timeout,
}

/// A node next door answers at once; the client waits meanwhile.
const REACH: Duration = Duration::from_secs(3);
