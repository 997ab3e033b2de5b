//! Step 3: what a request is, from its method and path.
//!
//! On a listener with the session gateway its own paths are read here, byte for byte. Everything else is the web's: the
//! path gets its one spelling ([`path`]), [`host`] says under which name it is asked for, and [`web`] finds the rule.

use http::{Method, Uri};

pub mod host;
pub mod masque;
pub mod path;
pub mod paths;
pub mod redirect;
pub mod web;

mod trie;

use crate::types::Mark;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routed<'a> {
    /// The balancer's health check.
    Health,
    /// Somebody asks whether this is the node that they think it is.
    Mark(Mark),
    /// The page that says to people what this is.
    Portal,
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
    /// A client opens a Blast connection.
    Blast {
        /// The route token; empty if there is none.
        token: &'a str,
        /// The path that the agent is asked for; the query goes with it.
        path: &'a str,
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
        "/" | "/portal" => (Routed::Portal, &[Method::GET, Method::HEAD], "GET, HEAD"),
        "/broker/xml" => (Routed::Control, &[Method::POST], "POST"),
        "/ice/tunnel" => (Routed::Tunnel { token }, &[Method::POST], "POST"),
        "/ice/reconnect" => {
            let (token, secret) = token.split_once('&').unwrap_or((token, ""));
            (Routed::Resume { token, secret }, &[Method::POST], "POST")
        }
        Mark::PATH => {
            let mark = token.parse().map_err(|_| Unrouted::NotFound)?;
            (Routed::Mark(mark), &[Method::GET], "GET")
        }
        path => {
            let (token, path) = blast(path).ok_or(Unrouted::NotFound)?;
            (Routed::Blast { token, path }, &[Method::GET], "GET")
        }
    };
    if methods.contains(method) {
        Ok(routed)
    } else {
        Err(Unrouted::MethodNotAllowed { allow })
    }
}

/// Whether a path, as it was sent, is one of the session gateway's own, whether something lives there or not. `/` is the
/// session gateway's only where nothing else is.
pub fn is_of_session_gateway(path: &str) -> bool {
    matches!(path, "/favicon.ico" | "/broker/xml" | "/portal" | Mark::PATH)
        || ["/ice/", "/r/", "/d/"].iter().any(|folder| path.starts_with(folder))
}

/// The token and the agent's path in the path of a Blast connection (secondary protocols sheet 1.1):
///
/// | client asks for | token | agent is asked for |
/// |---|---|---|
/// | `/r/TOKEN/d/GUID/` | `TOKEN` | `/d/GUID/` |
/// | `/d/TOKEN/` | `TOKEN` | the same |
/// | `/d/GUID/` | none | |
fn blast(path: &str) -> Option<(&str, &str)> {
    if let Some(rest) = path.strip_prefix("/r/") {
        return Some(match rest.find('/') {
            Some(end) => rest.split_at(end),
            None => (rest, "/"),
        });
    }
    let rest = path.strip_prefix("/d/")?;
    let first = rest.split('/').next().unwrap_or_default();
    Some((if is_guid(first) { "" } else { first }, path))
}

fn is_guid(text: &str) -> bool {
    let groups = text.split('-').map(|group| {
        let is_hex = group.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex { group.len() } else { 0 }
    });
    groups.eq([8, 4, 4, 4, 12])
}

/// Whether a request is one with which a user begins: a control message, or a look at the pages for people.
///
/// Of these the first one of a session may be sent on to the node's own name; never a health check, nor a secondary.
pub fn is_entrance(method: &Method, uri: &Uri) -> bool {
    match uri.path() {
        "/broker/xml" => method == Method::POST,
        path if path == "/" || path == "/portal" || path.starts_with("/portal/") => {
            [Method::GET, Method::HEAD].contains(method)
        }
        _ => false,
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
    fn a_blast_path_is_a_token_and_the_path_of_the_agent() {
        for (asked, token, path) in [
            ("/r/gw.abc/d/G-1/?vauth=s", "gw.abc", "/d/G-1/"),
            ("/r/gw.abc/", "gw.abc", "/"),
            ("/r/gw.abc", "gw.abc", "/"),
            ("/r//d/G/", "", "/d/G/"),
            ("/r/", "", "/"),
            ("/r/gw.abc/../x", "gw.abc", "/../x"),
            ("/d/gw.abc/?vauth=s", "gw.abc", "/d/gw.abc/"),
            (
                "/d/1B2F3C4D-0000-1111-2222-0123456789AB/?vauth=s",
                "",
                "/d/1B2F3C4D-0000-1111-2222-0123456789AB/",
            ),
            ("/d/", "", "/d/"),
        ] {
            let uri = asked.parse().unwrap();
            assert_eq!(route(&Method::GET, &uri), Ok(Routed::Blast { token, path }), "{asked}");
        }
        let uri = Uri::from_static("/r/gw.abc/");
        assert_eq!(
            route(&Method::POST, &uri),
            Err(Unrouted::MethodNotAllowed { allow: "GET" })
        );
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
            "/portal/",
            "//",
            "/r",
            "/R/gw.abc/",
            "//r/gw.abc/",
        ] {
            let uri: Uri = path.parse().unwrap();
            assert_eq!(route(&Method::POST, &uri), Err(Unrouted::NotFound), "{path}");
        }
    }

    #[test]
    fn whatever_is_served_here_is_of_the_session_gateway() {
        for path in [
            "/favicon.ico",
            "/portal",
            "/broker/xml",
            "/ice/tunnel?t",
            "/ice/reconnect",
            "/r/t/d/x",
            "/r/",
            "/d/x",
        ] {
            let uri = Uri::from_static(path);
            assert!(is_of_session_gateway(uri.path()), "{path}");
            assert!(route(&Method::PUT, &uri) != Err(Unrouted::NotFound), "{path}");
        }
        for path in [
            "/",
            "/favicon.ico/",
            "/broker",
            "/r",
            "/rx/",
            "/Portal",
            "/portal/",
            "//portal",
            "",
        ] {
            assert!(!is_of_session_gateway(path), "{path}");
        }
        assert!(is_of_session_gateway("/ice/what"), "the folder is kept whole");
    }

    #[test]
    fn users_begin_with_a_control_message_or_a_page() {
        let is = |method: Method, path: &'static str| is_entrance(&method, &Uri::from_static(path));
        assert!(is(Method::POST, "/broker/xml?x"));
        for page in ["/", "/?a=b", "/portal", "/portal/", "/portal/info.jsp"] {
            assert!(is(Method::GET, page) && is(Method::HEAD, page), "{page}");
            assert!(!is(Method::POST, page), "{page}");
        }
        for other in [
            "/favicon.ico",
            "/ice/tunnel?t",
            "/r/t/d/x",
            "/d/x",
            "/portals",
            "/broker/xml",
        ] {
            assert!(!is(Method::GET, other), "{other}");
        }
    }

    #[test]
    fn only_a_whole_mark_is_answered() {
        let routed = |query: &str| {
            let uri: Uri = format!("/.well-known/portcullis/mark{query}").parse().unwrap();
            route(&Method::GET, &uri).map(|routed| format!("{routed:?}"))
        };
        let digits = "00112233445566778899aabbccddeeff";
        let mark = digits.parse().map(Routed::Mark).unwrap();
        assert_eq!(routed(&format!("?{digits}")), Ok(format!("{mark:?}")));
        for query in ["", "?", "?00", "?00112233445566778899aabbccddeefg"] {
            assert_eq!(routed(query), Err(Unrouted::NotFound), "{query}");
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
