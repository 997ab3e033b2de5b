//! A launch for a client of RDP that knows no gateway: it gets a token, which it shows before its first byte of RDP.

use std::net::SocketAddr;
use std::sync::Arc;

use http::Uri;

use super::launch::route_failure;
use super::operation::{Body, Connection, ErrorCode, Failure, Launch};
use super::service::Turn;
use crate::broker::Desktop;
use crate::clock;
use crate::grant::{Grant, Secondary};
use crate::types::{Protocol, Secret, Target};

impl Turn<'_> {
    /// `get-desktop-connection` with `preconnection`: adds a route without a tunnel, and announces its token.
    pub(super) fn launch_preconnection(
        &self,
        grant: &Arc<Grant>,
        desktop: &Desktop,
        protocol: Protocol,
        target: &Target,
    ) -> Result<Body, Failure> {
        let not_possible = |words: &'static str| Failure::new(ErrorCode::DesktopLaunchError).with_user_message(words);
        if protocol != Protocol::Rdp {
            return Err(not_possible("Only RDP can be launched with a preconnection blob."));
        }
        let port = rdp_port(&self.control.rdp.load(), self.exchange.local)
            .ok_or_else(|| not_possible("The gateway has no port for clients of RDP."))?;
        let told = self.control.settings.load().rdp_address.clone();
        let (host, port) = match told {
            Some(told) => (told.host, told.port.unwrap_or(port)),
            None => (self.own_host(), port),
        };
        let route = grant
            .add_route(&desktop.id, protocol, target, desktop.max_sessions)
            .map_err(route_failure)?;
        let token = self
            .control
            .grants
            .announce_route(grant, Secondary::Rdp, &route, clock::now());
        tracing::info!(session = %grant.id(), desktop = %desktop.id, %protocol, "desktop launched");
        Ok(Body::Launch(Launch::Connect(Box::new(Connection {
            id: desktop.id.to_string(),
            address: host,
            port,
            protocol: Some(protocol.wire_name().to_owned()),
            user_name: Some(grant.user().to_string()),
            token: Some(Secret::new(token.as_str())),
            ..Connection::default()
        }))))
    }

    /// The host of this very node, without brackets: as configured, or else as the client asked for it.
    fn own_host(&self) -> String {
        let settings = self.control.settings.load();
        let configured = settings.external_url.as_ref().and_then(|url| url.parse::<Uri>().ok());
        let host = configured.as_ref().and_then(Uri::host);
        let host = host.or(self.exchange.authority.map(|authority| authority.host()));
        match host {
            Some(host) => host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            None => self.exchange.local.ip().to_string(),
        }
    }
}

/// The port for clients that reach this node at `local`, or else the first that there is.
fn rdp_port(addresses: &[SocketAddr], local: SocketAddr) -> Option<u16> {
    let serves = |address: &&SocketAddr| {
        address.ip() == local.ip() || address.ip().is_unspecified() && address.is_ipv4() == local.is_ipv4()
    };
    addresses
        .iter()
        .find(serves)
        .or(addresses.first())
        .map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_one_at_the_address_to_which_the_client_came() {
        let addresses = |list: &[&str]| -> Vec<SocketAddr> { list.iter().map(|text| text.parse().unwrap()).collect() };
        let both = addresses(&["192.0.2.1:3389", "192.0.2.2:3390", "[::]:3391"]);
        let port = |local: &str| rdp_port(&both, local.parse().unwrap());
        assert_eq!(port("192.0.2.2:443"), Some(3390));
        assert_eq!(port("[2001:db8::1]:443"), Some(3391));
        assert_eq!(port("192.0.2.9:443"), Some(3389));
        assert_eq!(rdp_port(&[], "192.0.2.9:443".parse().unwrap()), None);
    }
}
