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
        let balancers: Arc<[_]> = listener.balancers.clone().into();
        if listener.protocol == ListenerProtocol::Http {
            doors.extend(listener.bind.iter().map(|address| {
                let door = Door {
                    balancers: balancers.clone(),
                    tls: None,
                    quic: None,
                    certificates: None,
                };
                (*address, door)
            }));
            continue;
        }
        match Certificates::load(&config, &listener.certificates, clock::wall()) {
            Ok(certificates) => {
                for warning in certificates.warnings() {
                    tracing::warn!(certificate = %warning.certificate, "{warning}");
                }
                let certificates = Arc::new(certificates);
                let tls = server_config(certificates.clone(), tickets)?;
                let quic = listener
                    .udp
                    .then(|| quic_config(certificates.clone(), tickets, config.tunnel.lost_contact))
                    .transpose()?;
                for address in &listener.bind {
                    doors.insert(
                        *address,
                        Door {
                            balancers: balancers.clone(),
                            tls: Some(tls.clone()),
                            quic: quic.clone(),
                            certificates: Some(certificates.clone()),
                        },
                    );
                }
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
            Ok(certificates) => {
                let mut server = (*server_config(Arc::new(certificates), tickets)?).clone();
                // What is spoken within is no HTTP.
                server.alpn_protocols.clear();
                tls = Some(Arc::new(server));
            }
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
