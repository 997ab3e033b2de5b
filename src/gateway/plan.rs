//! What connections follow.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use rustls::pki_types::CertificateDer;

use super::PcoipDoor;
use crate::config::{Config, ListenerProtocol};
use crate::fleet::Fleet;
use crate::publish::Published;
use crate::secure::Certificates;
use crate::upstream::Agents;

/// What one configuration makes of the gateway; immutable, swapped whole at a reload.
#[derive(Debug)]
pub struct Plan {
    /// The checked configuration.
    pub config: Config,
    /// The TLS listeners by the address under which they are configured.
    pub doors: HashMap<SocketAddr, Door>,
    /// The other nodes, if connections are carried between them.
    pub fleet: Option<Arc<Fleet>>,
    /// The ways to the desktops' agents.
    pub agents: Agents,
    /// The port of PCoIP, if it is open.
    pub pcoip: Option<PcoipDoor>,
    /// What is published for clients of the web.
    pub web: Published,
}

impl Plan {
    /// The certificate that a client is shown who comes to `host` and `port`: of the listener with that port, or else of
    /// the one that has its connection at `local`, behind a balancer that maps ports.
    pub(super) fn certificate_shown(
        &self,
        local: SocketAddr,
        host: &str,
        port: u16,
    ) -> Option<CertificateDer<'static>> {
        let with_port = |port: u16| self.doors.iter().find(|(address, _)| address.port() == port);
        let here = || self.doors.get_key_value(&local).or_else(|| with_port(local.port()));
        let by_port = here()
            .filter(|(address, _)| address.port() == port)
            .or_else(|| with_port(port));
        let (_, door) = by_port.or_else(here).or_else(|| self.doors.iter().next())?;
        door.certificates.as_ref()?.leaf_for(host)
    }
}

/// One listener, ready to serve.
#[derive(Clone, Debug)]
pub struct Door {
    /// What is spoken there.
    pub protocol: ListenerProtocol,
    /// Peers whose PROXY header is believed.
    pub balancers: Arc<[IpNet]>,
    /// TLS with its certificates; `None` on a listener of plain HTTP.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// QUIC with the same certificates, if the listener serves UDP.
    pub quic: Option<quinn::ServerConfig>,
    /// Those certificates.
    pub certificates: Option<Arc<Certificates>>,
}
