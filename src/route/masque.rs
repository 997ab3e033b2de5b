//! What a request over HTTP/3 asks for beyond pages: a way to a desktop, by the name of a route, never by an address.

use http::{Method, Uri};

/// The port that stands beside the name of a route, for the look of an authority; no other is known.
pub const PORT: u16 = 1;

/// A way that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    /// `CONNECT name:1`: bytes, to what the route of that name leads to. `None`: no name that a route can have.
    Bytes(Option<&'a str>),
    /// `connect-udp` to `/.well-known/masque/udp/name/1/`: datagrams, likewise.
    Datagrams(Option<&'a str>),
    /// `GET /session`: to be told when the session ends, and why.
    Session,
}

/// Reads what a request asks for; `None` if it is none of these. `protocol` is the request's `:protocol`.
pub fn asked<'a>(method: &Method, uri: &'a Uri, protocol: Option<&str>) -> Option<Asked<'a>> {
    match (protocol, method) {
        (Some("connect-udp"), &Method::CONNECT) => {
            let place = uri.path().strip_prefix("/.well-known/masque/udp/");
            let (name, port) = place.and_then(|place| place.strip_suffix('/')?.split_once('/')).unzip();
            Some(Asked::Datagrams(
                name.filter(|_| uri.query().is_none() && port.is_some_and(is_port)),
            ))
        }
        (None, &Method::CONNECT) => {
            let (name, port) = uri
                .authority()
                .and_then(|authority| authority.as_str().rsplit_once(':'))
                .unzip();
            Some(Asked::Bytes(name.filter(|_| port.is_some_and(is_port))))
        }
        (None, &Method::GET) if uri.path() == "/session" => Some(Asked::Session),
        _ => None,
    }
}

fn is_port(text: &str) -> bool {
    text == "1"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(uri: &'static str, protocol: Option<&str>) -> Option<Asked<'static>> {
        let uri: &'static Uri = Box::leak(Box::new(uri.parse().unwrap()));
        asked(&Method::CONNECT, uri, protocol)
    }

    #[test]
    fn a_route_is_named_and_nothing_else_is_dialled() {
        let udp = Some("connect-udp");
        for (uri, protocol, asked) in [
            ("rdp-1:1", None, Asked::Bytes(Some("rdp-1"))),
            ("https://rdp-1:1/", None, Asked::Bytes(Some("rdp-1"))),
            ("rdp-1:3389", None, Asked::Bytes(None)),
            ("rdp-1", None, Asked::Bytes(None)),
            (
                "https://gw/.well-known/masque/udp/rdp-1/1/",
                udp,
                Asked::Datagrams(Some("rdp-1")),
            ),
            (
                "https://gw/.well-known/masque/udp/10.0.0.1/53/",
                udp,
                Asked::Datagrams(None),
            ),
            ("https://gw/.well-known/masque/udp/rdp-1/1", udp, Asked::Datagrams(None)),
            (
                "https://gw/.well-known/masque/udp/rdp-1/1/?x",
                udp,
                Asked::Datagrams(None),
            ),
            (
                "https://gw/.well-known/masque/udp/rdp-1/1/1/",
                udp,
                Asked::Datagrams(None),
            ),
            ("https://gw/", udp, Asked::Datagrams(None)),
        ] {
            assert_eq!(connect(uri, protocol), Some(asked), "{uri}");
        }
        assert_eq!(connect("https://gw/", Some("webtransport")), None);
    }
}
