//! From a checked configuration to the plan that connections follow.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock;
use crate::config::Config;
use crate::gateway::{Door, Plan};
use crate::secure::{Certificates, LoadFault, Tickets, server_config};

use super::StartFault;

/// Loads the certificates of all listeners and joins them to the plan. Blocks on the file system.
///
/// # Errors
///
/// Every fault of every certificate; nothing is in force then that was not before.
pub(super) fn draw(config: Config, tickets: &Tickets) -> Result<Plan, StartFault> {
    let mut doors = HashMap::new();
    let mut faults: Vec<LoadFault> = Vec::new();
    for listener in config.listeners.values() {
        match Certificates::load(&config, listener, clock::wall()) {
            Ok(certificates) => {
                for warning in certificates.warnings() {
                    tracing::warn!(certificate = %warning.certificate, "{warning}");
                }
                let balancers: Arc<[_]> = listener.balancers.clone().into();
                let tls = server_config(Arc::new(certificates), tickets)?;
                for address in &listener.bind {
                    doors.insert(
                        *address,
                        Door {
                            balancers: balancers.clone(),
                            tls: tls.clone(),
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
    if faults.is_empty() {
        Ok(Plan { config, doors })
    } else {
        Err(StartFault::Certificates(faults))
    }
}
