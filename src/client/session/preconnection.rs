//! Launching a desktop for a client of RDP that knows no gateway.

use super::{Session, environment, protocol_of};
use crate::client::endpoint::Endpoint;
use crate::client::fault::Fault;
use crate::client::words::printable_line;
use crate::control::operation::{Desktop, LaunchRequest};
use crate::types::Secret;

/// What such a client is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preconnection {
    /// The desktop's name, fit for a terminal.
    pub desktop: String,
    /// Where the gateway serves RDP.
    pub endpoint: Endpoint,
    /// The preconnection blob: whoever has it reaches the desktop while the session lives.
    pub token: Secret,
}

impl Session {
    /// Launches a desktop by RDP, without a tunnel. The session must live for as long as it is used.
    ///
    /// # Errors
    /// The gateway does not launch it, or not for such clients.
    pub async fn launch_preconnection(&mut self, desktop: &Desktop) -> Result<Preconnection, Fault> {
        let request = LaunchRequest {
            id: desktop.id.clone(),
            protocol: protocol_of(desktop, Some("RDP"))?,
            preconnection: true,
            quic: false,
            environment: environment(),
        };
        let connection = self.connection(request).await?;
        let host = &connection.address;
        let text = if host.contains(':') {
            format!("[{host}]:{}", connection.port)
        } else {
            format!("{host}:{}", connection.port)
        };
        let endpoint = text.parse().map_err(|_| Fault::NoPreconnection)?;
        let fits = |token: &Secret| {
            let token = token.expose();
            (1..=LONGEST).contains(&token.len()) && token.bytes().all(|octet| octet.is_ascii_graphic())
        };
        Ok(Preconnection {
            desktop: printable_line(&desktop.name),
            endpoint,
            token: connection.token.filter(fits).ok_or(Fault::NoPreconnection)?,
        })
    }
}

/// The longest blob that a client of RDP is given to type.
const LONGEST: usize = 126;
