//! The secondary protocols and the other nodes.

use super::Check;
use crate::config::document::format::{Bind, Network};
use crate::config::document::{self, PcoipTls};
use crate::config::path::SettingPath;
use crate::config::{Blast, Fleet, Pcoip, Rdp, Udp};

impl Check<'_> {
    pub(super) fn pcoip(&mut self, pcoip: &document::Pcoip) -> Pcoip {
        let terminates_tls = matches!(pcoip.tls, PcoipTls::Terminate);
        if terminates_tls && !pcoip.bind.is_empty() && pcoip.certificates.is_empty() {
            self.missing(
                &SettingPath::of(&["pcoip", "certificates"]),
                r#"certificates = ["main"], or tls = "pass""#,
            );
        }
        Pcoip {
            bind: addresses(&pcoip.bind),
            balancers: networks(&pcoip.balancers),
            certificates: pcoip.certificates.clone(),
            terminates_tls,
            external_address: pcoip.external_address.map(|address| address.0),
        }
    }

    pub(super) fn fleet(&mut self, fleet: document::Fleet, has_key: bool) -> Fleet {
        let ca = fleet
            .ca
            .and_then(|file| self.file(&file, &SettingPath::of(&["fleet", "ca"]), false));
        if !fleet.bind.is_empty() || !fleet.peers.is_empty() {
            if fleet.certificate.is_none() {
                self.missing(&SettingPath::of(&["fleet", "certificate"]), r#"certificate = "fleet""#);
            }
            if ca.is_none() {
                self.missing(
                    &SettingPath::of(&["fleet", "ca"]),
                    r#"ca = "/etc/portcullis/fleet-ca.crt""#,
                );
            }
            if !has_key {
                self.missing(
                    &SettingPath::of(&["node", "recognition_key"]),
                    r#"recognition_key = { file = "/etc/portcullis/recognition.key" }: without it no node knows whose a token is"#,
                );
            }
        }
        Fleet {
            bind: addresses(&fleet.bind),
            certificate: fleet.certificate,
            ca,
            // The names have been checked with the shape.
            peers: fleet
                .peers
                .into_iter()
                .filter_map(|(name, at)| Some((name.parse().ok()?, at.0)))
                .collect(),
        }
    }
}

pub(super) fn blast(blast: document::Blast) -> Blast {
    Blast {
        external_url: blast.external_url.map(|url| url.0),
        allowed_hosts: blast
            .allowed_hosts
            .map(|hosts| hosts.into_iter().map(|host| host.0).collect()),
    }
}

pub(super) fn rdp(rdp: document::Rdp) -> Rdp {
    Rdp {
        bind: addresses(&rdp.bind),
        balancers: networks(&rdp.balancers),
        external_address: rdp.external_address.map(|address| address.0),
    }
}

pub(super) fn udp(udp: &document::Udp) -> Udp {
    Udp {
        first_datagram: udp.first_datagram.0,
        agent_answer: udp.agent_answer.0,
        idle: udp.idle.0,
        flows: udp.flows,
        flows_per_session: udp.flows_per_session,
        strays_per_source: udp.strays_per_source,
    }
}

pub(super) fn addresses(binds: &[Bind]) -> Vec<std::net::SocketAddr> {
    binds.iter().map(|bind| bind.0).collect()
}

pub(super) fn networks(networks: &[Network]) -> Vec<ipnet::IpNet> {
    networks.iter().map(|network| network.0).collect()
}
