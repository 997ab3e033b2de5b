//! From a checked configuration to the plan that connections follow.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock;
use crate::config::{Config, ListenerProtocol};
use crate::fleet::Fleet;
use crate::gateway::{Door, PcoipDoor, Plan};
use crate::publish::Publisher;
use crate::secure::{Certificates, LoadFault, Tickets, quic_config, server_config};

use crate::upstream::Agents;

use super::StartFault;

/// Loads the certificates of all listeners and joins them to the plan. Blocks on the file system.
///
/// # Errors
///
/// Every fault of every certificate; nothing is in force then that was not before.
pub(super) fn draw(
    config: Config,
    tickets: &Tickets,
    publisher: &Publisher,
    before: Option<&Plan>,
) -> Result<Plan, StartFault> {
    let mut doors = HashMap::new();
    let mut faults: Vec<LoadFault> = Vec::new();
    for listener in config.listeners.values() {
        let door = Door {
            protocol: listener.protocol,
            balancers: listener.balancers.clone().into(),
            tls: None,
            quic: None,
            certificates: None,
        };
        let ends_tls = match listener.protocol {
            ListenerProtocol::Https | ListenerProtocol::Tls => true,
            ListenerProtocol::Http | ListenerProtocol::Passthrough | ListenerProtocol::Tcp => false,
        };
        if !ends_tls {
            doors.extend(listener.bind.iter().map(|address| (*address, door.clone())));
            continue;
        }
        match Certificates::load(&config, &listener.certificates, clock::wall()) {
            Ok(certificates) => {
                for warning in certificates.warnings() {
                    tracing::warn!(certificate = %warning.certificate, "{warning}");
                }
                let certificates = Arc::new(certificates);
                let tls = if listener.protocol.is_http() {
                    server_config(certificates.clone(), tickets)?
                } else {
                    without_alpn(certificates.clone(), tickets)?
                };
                let quic = listener
                    .udp
                    .then(|| quic_config(certificates.clone(), tickets, config.tunnel.lost_contact))
                    .transpose()?;
                let door = Door {
                    tls: Some(tls),
                    quic,
                    certificates: Some(certificates),
                    ..door
                };
                doors.extend(listener.bind.iter().map(|address| (*address, door.clone())));
            }
            // Two listeners may share a certificate: its fault is told once.
            Err(of_listener) => faults.extend(
                of_listener
                    .into_iter()
                    .filter(|fault| !faults.contains(fault))
                    .collect::<Vec<_>>(),
            ),
        }
    }
    let pcoip = draw_pcoip(&config, tickets, &mut faults)?;
    if !faults.is_empty() {
        return Err(StartFault::Certificates(faults));
    }
    let fleet = Fleet::load(&config, clock::wall())?.map(Arc::new);
    let agents = Agents::load(&config)?;
    let web = publisher.load(&config, before.map(|plan| &plan.web), clock::wall())?;
    Ok(Plan {
        config,
        doors,
        fleet,
        agents,
        pcoip,
        web,
    })
}

/// The port of PCoIP, if it is configured.
fn draw_pcoip(
    config: &Config,
    tickets: &Tickets,
    faults: &mut Vec<LoadFault>,
) -> Result<Option<PcoipDoor>, StartFault> {
    let pcoip = &config.pcoip;
    if pcoip.bind.is_empty() {
        return Ok(None);
    }
    let mut tls = None;
    if pcoip.terminates_tls {
        match Certificates::load(config, &pcoip.certificates, clock::wall()) {
            Ok(certificates) => tls = Some(without_alpn(Arc::new(certificates), tickets)?),
            Err(of_pcoip) => {
                let told: Vec<_> = of_pcoip.into_iter().filter(|fault| !faults.contains(fault)).collect();
                faults.extend(told);
                return Ok(None);
            }
        }
    }
    Ok(Some(PcoipDoor {
        balancers: pcoip.balancers.clone().into(),
        tls,
    }))
}

/// The settings of a handshake within which no HTTP is spoken.
fn without_alpn(
    certificates: Arc<Certificates>,
    tickets: &Tickets,
) -> Result<Arc<rustls::ServerConfig>, rustls::Error> {
    let mut server = (*server_config(certificates, tickets)?).clone();
    server.alpn_protocols.clear();
    Ok(Arc::new(server))
}
