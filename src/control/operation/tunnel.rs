//! The answer to `get-tunnel-connection`.

use super::Flaw;
use crate::control::xml::Element;
use crate::types::Secret;

/// Whether there is a tunnel, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TunnelConnection {
    /// No tunnel: the client connects to desktops itself.
    Bypass,
    /// The client opens this one.
    Tunnel(Tunnel),
}

/// A tunnel that a client can open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The credential: whoever has it opens the tunnel. It goes unescaped into a URL and is refused on reading if
    /// that is not safe. Some clients take at most 120 octets.
    pub connection_id: Secret,
    /// Base URL `https://host:port` without a slash at its end.
    pub server1: String,
    /// A second base URL. It is read by clients and not used by any known one.
    pub server2: Option<String>,
    /// Read by clients, meaning unknown.
    pub generation: i64,
    /// Read by clients, meaning unknown.
    pub status_port: u16,
    /// This gateway only, and only for clients that ask: where QUIC is spoken.
    pub quic: Option<Quic>,
}

/// Where QUIC is spoken, at the tunnel's host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quic {
    /// The UDP port.
    pub port: u16,
    /// The credential: whoever has it opens the session's streams.
    pub token: Secret,
}

impl Quic {
    fn read(element: &Element) -> Result<Self, Flaw> {
        let port = element.number("port")?.ok_or(Flaw::Missing { field: "port" })?;
        let token = element.required("token")?;
        if !is_url_safe(&token) {
            return Err(Flaw::Malformed { field: "token" });
        }
        Ok(Self {
            port,
            token: Secret::new(token),
        })
    }

    fn write(&self) -> Element {
        let mut element = Element::new("quic");
        element.push_number("port", Some(self.port));
        element.push_secret("token", Some(&self.token));
        element
    }
}

impl TunnelConnection {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        if element.flag("bypass-tunnel") {
            return Ok(Self::Bypass);
        }
        let connection_id = element.required("connection-id")?;
        if !is_url_safe(&connection_id) {
            return Err(Flaw::Malformed { field: "connection-id" });
        }
        Ok(Self::Tunnel(Tunnel {
            connection_id: Secret::new(connection_id),
            server1: element
                .optional_word("server1")
                .ok_or(Flaw::Missing { field: "server1" })?,
            server2: element.optional_word("server2"),
            generation: element.number("generation")?.unwrap_or_default(),
            status_port: element.number("status-port")?.unwrap_or_default(),
            quic: element.child("quic").map(Quic::read).transpose()?,
        }))
    }

    pub(super) fn write(&self, out: &mut Element) {
        match self {
            Self::Bypass => out.push_flag("bypass-tunnel", true),
            Self::Tunnel(tunnel) => {
                debug_assert!(
                    is_url_safe(tunnel.connection_id.expose()),
                    "a connection-id stands in a URL"
                );
                out.push_secret("connection-id", Some(&tunnel.connection_id));
                out.push_number("status-port", Some(tunnel.status_port));
                out.push_leaf("server1", &tunnel.server1);
                out.push_optional("server2", tunnel.server2.as_deref());
                out.push_number("generation", Some(tunnel.generation));
                out.push_flag("bypass-tunnel", false);
                if let Some(quic) = &tunnel.quic {
                    out.push(quic.write());
                }
            }
        }
    }
}

/// Whether the text can stand in a query as it is: no blank, control character, `#` or anything beyond ASCII, and not
/// `&`, which parts a connection-id from the secret of a reconnect.
fn is_url_safe(text: &str) -> bool {
    text.len() <= 1024
        && text
            .bytes()
            .all(|b| b.is_ascii_graphic() && !matches!(b, b'#' | b'&' | b'<' | b'>' | b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(connection_id: &str) -> Element {
        let mut element = Element::new("tunnel-connection");
        element.push_leaf("connection-id", connection_id);
        element.push_leaf("server1", "https://gw.example:443");
        element
    }

    #[test]
    fn a_connection_id_that_would_break_out_of_the_url_is_refused() {
        for bad in ["a b", "a\r\nHost: x", "a#b", "a&b", "ä", "a\tb"] {
            let read = TunnelConnection::read(&answer(bad));
            assert_eq!(read, Err(Flaw::Malformed { field: "connection-id" }), "{bad:?}");
        }
        assert!(TunnelConnection::read(&answer("gw1.k3x-9_Q~=.m")).is_ok());
    }

    #[test]
    fn a_bypassed_tunnel_needs_no_other_field() {
        let mut element = Element::new("tunnel-connection");
        element.push_flag("bypass-tunnel", true);
        assert_eq!(TunnelConnection::read(&element), Ok(TunnelConnection::Bypass));
    }

    #[test]
    fn a_tunnel_without_an_address_is_refused() {
        let mut element = Element::new("tunnel-connection");
        element.push_leaf("connection-id", "k");
        assert_eq!(
            TunnelConnection::read(&element),
            Err(Flaw::Missing { field: "server1" })
        );
    }
}
