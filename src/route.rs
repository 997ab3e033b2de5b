//! Step 3: what a request is, from its method and path.

use http::{Method, Uri};

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// The balancer's health check.
    Health,
    /// A control message (protocol sheet 1.1).
    Control,
    /// A client opens its tunnel with this token.
    Tunnel {
        /// The connection-id; empty if there is none.
        token: &'a str,
    },
    /// A client comes back to its tunnel.
    Resume {
        /// The connection-id; empty if there is none.
        token: &'a str,
        /// The reconnect secret; empty if there is none.
        secret: &'a str,
    },
}

/// Why a request is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unrouted {
    /// Nothing lives at that path.
    NotFound,
    /// The path is right, the method is not.
    MethodNotAllowed {
        /// The value of `Allow`.
        allow: &'static str,
    },
}

/// Decides what a request is.
///
/// Paths are compared byte for byte: nothing is decoded, no dot segment resolved, so that no other spelling of a path
/// reaches what lives there. A query on `/broker/xml` is accepted and ignored.
///
/// # Errors
///
/// [`Unrouted`] if the request is nothing that this node serves.
pub fn route<'a>(method: &Method, uri: &'a Uri) -> Result<Routed<'a>, Unrouted> {
    let token = uri.query().unwrap_or_default();
    let (routed, methods, allow): (_, &[Method], _) = match uri.path() {
        "/favicon.ico" => (Routed::Health, &[Method::GET, Method::HEAD], "GET, HEAD"),
        "/broker/xml" => (Routed::Control, &[Method::POST], "POST"),
        "/ice/tunnel" => (Routed::Tunnel { token }, &[Method::POST], "POST"),
        "/ice/reconnect" => {
            let (token, secret) = token.split_once('&').unwrap_or((token, ""));
            (Routed::Resume { token, secret }, &[Method::POST], "POST")
        }
        _ => return Err(Unrouted::NotFound),
    };
    if methods.contains(method) {
        Ok(routed)
    } else {
        Err(Unrouted::MethodNotAllowed { allow })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_what_the_protocol_says() {
        for (path, routed) in [
            ("/broker/xml", Routed::Control),
            ("/broker/xml?x=1", Routed::Control),
            ("/ice/tunnel?gw.abc", Routed::Tunnel { token: "gw.abc" }),
            ("/ice/tunnel", Routed::Tunnel { token: "" }),
            (
                "/ice/reconnect?gw.abc&s3",
                Routed::Resume {
                    token: "gw.abc",
                    secret: "s3",
                },
            ),
            (
                "/ice/reconnect?gw.abc",
                Routed::Resume {
                    token: "gw.abc",
                    secret: "",
                },
            ),
        ] {
            assert_eq!(route(&Method::POST, &Uri::from_static(path)), Ok(routed), "{path}");
        }
    }

    #[test]
    fn no_other_spelling_reaches_it() {
        for path in [
            "/broker/xml/",
            "/Broker/xml",
            "/broker//xml",
            "/broker/%78ml",
            "/x/../broker/xml",
            "/ice/tunnel/",
            "/",
        ] {
            let uri: Uri = path.parse().unwrap();
            assert_eq!(route(&Method::POST, &uri), Err(Unrouted::NotFound), "{path}");
        }
    }

    #[test]
    fn the_health_check_is_get_or_head_only() {
        let uri = Uri::from_static("/favicon.ico");
        assert_eq!(route(&Method::GET, &uri), Ok(Routed::Health));
        assert_eq!(route(&Method::HEAD, &uri), Ok(Routed::Health));
        assert_eq!(
            route(&Method::POST, &uri),
            Err(Unrouted::MethodNotAllowed { allow: "GET, HEAD" })
        );
    }
}
