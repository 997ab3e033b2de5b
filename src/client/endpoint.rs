//! Where a gateway is reached: `HOST[:PORT]`.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::Scheme;
use rustls::pki_types::ServerName;

/// A gateway's host and port.
///
/// The host is a name in lower case, an IPv4 literal, or an IPv6 literal without brackets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    host: String,
    port: u16,
}

impl Endpoint {
    /// The port of a gateway that is named without one.
    pub const DEFAULT_PORT: u16 = 443;

    /// The host, an IPv6 literal without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The TCP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The name that the gateway's certificate must have.
    pub(super) fn server_name(&self) -> Result<ServerName<'static>, InvalidEndpoint> {
        ServerName::try_from(self.host.clone()).map_err(|_| InvalidEndpoint)
    }

    /// The endpoint of an `https` address. What follows the port is left out.
    pub(super) fn of_uri(uri: &Uri) -> Result<Self, InvalidEndpoint> {
        match uri.authority() {
            Some(authority) if uri.scheme() == Some(&Scheme::HTTPS) => authority.as_str().parse(),
            _ => Err(InvalidEndpoint),
        }
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    /// Reads `host`, `host:port`, `v6-literal`, `[v6-literal]` or `[v6-literal]:port`.
    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(InvalidEndpoint)?;
                (host, port)
            }
            None => match text.find(':') {
                Some(at) if text.rfind(':') == Some(at) => text.split_at(at),
                _ => (text, ""),
            },
        };
        let port = match port.strip_prefix(':') {
            Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().map_err(|_| InvalidEndpoint)?
            }
            None if port.is_empty() => Self::DEFAULT_PORT,
            _ => return Err(InvalidEndpoint),
        };
        let host = host.to_ascii_lowercase();
        let bracketed = text.starts_with('[');
        let is_v6 = host.parse::<std::net::Ipv6Addr>().is_ok();
        if port == 0 || bracketed && !is_v6 || ServerName::try_from(host.as_str()).is_err() {
            return Err(InvalidEndpoint);
        }
        Ok(Self { host, port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A text that is not an [`Endpoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a gateway's address: write HOST or HOST:PORT, an IPv6 literal as [::1]:443")]
pub struct InvalidEndpoint;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_an_address_is_read() {
        for (text, shown) in [
            ("Desk.Example.com", "desk.example.com:443"),
            ("desk.example.com:8443", "desk.example.com:8443"),
            ("192.0.2.7:1", "192.0.2.7:1"),
            ("::1", "[::1]:443"),
            ("[2001:DB8::1]", "[2001:db8::1]:443"),
            ("[::1]:8443", "[::1]:8443"),
        ] {
            assert_eq!(text.parse::<Endpoint>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            ":443",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "a b",
            "[a]:1",
            "[::1",
            "[::1]x",
            "https://a",
            "a/b",
            "a@b",
        ] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_https_addresses_are_followed() {
        let endpoint = |text: &'static str| Endpoint::of_uri(&Uri::from_static(text));
        assert_eq!(
            endpoint("https://gw-2.example:8443/broker/xml").unwrap().to_string(),
            "gw-2.example:8443"
        );
        assert_eq!(endpoint("https://[::1]/x").unwrap().to_string(), "[::1]:443");
        assert!(endpoint("http://gw-2.example/broker/xml").is_err());
        assert!(endpoint("https://user@gw-2.example/").is_err());
        assert!(endpoint("/broker/xml").is_err());
    }
}
