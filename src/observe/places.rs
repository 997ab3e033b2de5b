//! What clients are told about where to go, and how long for: what a finding has to name.

use std::time::Duration;

use super::counters::Kind;
use crate::config::Config;

/// What a configuration says about it.
#[derive(Clone, Debug, Default)]
pub struct Places {
    pub(super) node: String,
    pub(super) session_lifetime: Duration,
    pub(super) first_use: Duration,
    pub(super) first_datagram: Duration,
    /// Tokens are recognised by a key of the fleet, not of this process.
    pub(super) marks_outlive_the_process: bool,
    tunnel: Option<String>,
    blast: Option<(String, u16)>,
    blast_udp: Option<u16>,
    pcoip: Option<String>,
    pcoip_udp: Option<u16>,
    rdp: Option<String>,
}

impl From<&Config> for Places {
    fn from(config: &Config) -> Self {
        let blast = config.blast.external_url.as_ref();
        let pcoip = config.pcoip.external_address;
        let with_udp = config.listeners.values().filter(|listener| listener.udp);
        let takes_blast = with_udp.flat_map(|listener| &listener.bind).next();
        let takes_pcoip = config.pcoip.bind.first();
        Self {
            node: config.node.name.to_string(),
            session_lifetime: config.session.lifetime,
            first_use: config.session.first_use,
            first_datagram: config.udp.first_datagram,
            marks_outlive_the_process: config.node.recognition_key.is_some(),
            tunnel: config.tunnel.external_url.clone(),
            blast: blast.map(|url| (url.host.clone(), url.port)),
            pcoip: pcoip.map(|address| address.to_string()),
            blast_udp: takes_blast.map(|own| blast.map_or(own.port(), |url| url.udp_port.unwrap_or(url.port))),
            pcoip_udp: takes_pcoip.map(|own| pcoip.map_or(own.port(), |address| address.port())),
            rdp: config.rdp.external_address.as_ref().map(ToString::to_string),
        }
    }
}

impl Places {
    /// Where clients look for it.
    pub(super) fn told(&self, kind: Kind) -> String {
        let told = match kind {
            Kind::Tunnel => self.tunnel.clone(),
            Kind::Blast => self.blast.as_ref().map(|(host, port)| format!("{host}:{port}")),
            Kind::Pcoip => self.pcoip.clone(),
            Kind::Rdp => self.rdp.clone(),
            Kind::Quic | Kind::Udp => None,
        };
        told.unwrap_or_else(|| "the name under which clients ask for this node".to_owned())
    }

    /// What to correct if that is wrong.
    pub(super) fn remedy(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::Tunnel if self.tunnel.is_some() => "Correct tunnel.external_url",
            Kind::Tunnel => "Set tunnel.external_url",
            Kind::Blast if self.blast.is_some() => "Correct blast.external_url",
            Kind::Blast => "Set blast.external_url",
            Kind::Pcoip if self.pcoip.is_some() => "Correct pcoip.external_address",
            Kind::Pcoip => "Set pcoip.external_address",
            Kind::Quic | Kind::Udp => "Let UDP through firewall and balancer",
            Kind::Rdp if self.rdp.is_some() => "Correct rdp.external_address",
            Kind::Rdp => "Set rdp.external_address",
        }
    }

    /// The port to which clients send its datagrams, if this node takes any.
    pub(super) fn udp_port(&self, kind: Kind) -> Option<u16> {
        match kind {
            Kind::Blast => self.blast_udp,
            Kind::Pcoip => self.pcoip_udp,
            Kind::Tunnel | Kind::Quic | Kind::Rdp | Kind::Udp => None,
        }
    }
}

#[cfg(test)]
impl Places {
    /// The node gw-1 of a fleet, which announces Blast at gw.example.com.
    pub(super) fn for_test(first_use: Duration) -> Self {
        Self {
            node: "gw-1".to_owned(),
            session_lifetime: Duration::from_secs(10 * 3600),
            first_use,
            first_datagram: Duration::from_secs(30),
            marks_outlive_the_process: true,
            blast: Some(("gw.example.com".to_owned(), 8443)),
            blast_udp: Some(8444),
            ..Self::default()
        }
    }
}
