//! What a client is told of PCoIP.

use std::net::{IpAddr, SocketAddrV4};
use std::sync::Arc;

use super::operation::{Connection, ErrorCode, Failure};
use super::service::Turn;
use crate::clock;
use crate::config;
use crate::grant::{Grant, Route, Secondary};
use crate::types::Secret;

impl Turn<'_> {
    /// Announces a PCoIP connection to this very node: its IPv4 address, and the route's token, which the client shows or
    /// does not.
    pub(super) fn pcoip(&self, grant: &Arc<Grant>, route: &Route) -> Result<Connection, Failure> {
        let settings = self.control.settings.load();
        let Some(address) = reached_at(&settings.pcoip, self.exchange.local.ip()) else {
            tracing::warn!(
                local = %self.exchange.local,
                "a PCoIP desktop was asked for, but no IPv4 address for PCoIP is known: set pcoip.bind and pcoip.external_address"
            );
            let words = "The gateway does not serve this protocol.";
            return Err(Failure::new(ErrorCode::DesktopLaunchError).with_user_message(words));
        };
        let token = self
            .control
            .grants
            .announce_route(grant, Secondary::Pcoip, route, clock::now());
        Ok(Connection {
            address: address.ip().to_string(),
            port: address.port(),
            token: Some(Secret::new(token.as_str())),
            ..Connection::default()
        })
    }
}

/// Where PCoIP clients reach this node: as configured, or else at the address to which this one came.
fn reached_at(pcoip: &config::Pcoip, local: IpAddr) -> Option<SocketAddrV4> {
    if pcoip.bind.is_empty() {
        return None;
    }
    if let Some(address) = pcoip.external_address {
        return Some(address);
    }
    let IpAddr::V4(local) = local.to_canonical() else {
        return None;
    };
    let serves = |ip: IpAddr| ip == IpAddr::V4(local) || (ip.is_unspecified() && ip.is_ipv4());
    let bind = pcoip.bind.iter().find(|bind| serves(bind.ip()));
    bind.map(|bind| SocketAddrV4::new(local, bind.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_told_the_configured_address_or_the_one_to_which_they_came() {
        let local = "10.0.0.1".parse().unwrap();
        let told = |pcoip: &config::Pcoip| reached_at(pcoip, local).map(|address| address.to_string());
        let mut pcoip = config::Pcoip {
            bind: Vec::new(),
            balancers: Vec::new(),
            certificates: Vec::new(),
            terminates_tls: true,
            external_address: None,
        };
        assert_eq!(told(&pcoip), None);
        pcoip.bind = vec!["[::]:4172".parse().unwrap(), "0.0.0.0:4173".parse().unwrap()];
        assert_eq!(told(&pcoip).as_deref(), Some("10.0.0.1:4173"));
        assert_eq!(reached_at(&pcoip, "fd00::1".parse().unwrap()), None);
        pcoip.bind = vec!["10.0.0.2:4172".parse().unwrap()];
        assert_eq!(told(&pcoip), None);
        pcoip.external_address = "203.0.113.10:4172".parse().ok();
        assert_eq!(told(&pcoip).as_deref(), Some("203.0.113.10:4172"));
    }
}
