//! Where a redirect sends a client.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use http::{HeaderValue, Uri};

use super::path::Normal;
use crate::config::web::{Redirect, RedirectTo};
use crate::config::{Listener, ListenerProtocol};
use crate::fault::WebFault;
use crate::types::Authority;

/// The `Location` for a request that asked `host` for `target`.
///
/// Towards a listener the host stays, with the scheme and the port under which clients find that listener. Path and query go with it
/// as the redirect says; the path goes behind that of a URL, and the query behind its own.
///
/// # Errors
/// [`WebFault::InvalidHost`] if the client named no host, so that there is none to send it to; [`WebFault::Internal`]
/// if there is no such listener.
pub fn location(
    redirect: &Redirect,
    listeners: &BTreeMap<String, Listener>,
    host: &Authority,
    target: &Normal,
) -> Result<HeaderValue, WebFault> {
    let (mut location, own_query) = match &redirect.to {
        RedirectTo::Listener(name) => (origin(listeners.get(name).ok_or(WebFault::Internal)?, host)?, None),
        RedirectTo::Url(url) => (beginning(url, redirect.keep_path), url.query()),
    };
    if redirect.keep_path {
        location.push_str(target.path());
    } else if matches!(redirect.to, RedirectTo::Listener(_)) {
        location.push('/');
    }
    let query = target.query().filter(|_| redirect.keep_query);
    for (part, mark) in own_query.into_iter().chain(query).zip(['?', '&']) {
        location.push(mark);
        location.push_str(part);
    }
    HeaderValue::try_from(location).map_err(|_| WebFault::Internal)
}

/// Scheme, host and port; the usual port is not said.
fn origin(listener: &Listener, host: &Authority) -> Result<String, WebFault> {
    if host.host.is_empty() {
        return Err(WebFault::InvalidHost);
    }
    let (scheme, usual) = match listener.protocol {
        ListenerProtocol::Https => ("https", 443),
        ListenerProtocol::Http => ("http", 80),
        // Refused with the configuration.
        ListenerProtocol::Tls | ListenerProtocol::Passthrough | ListenerProtocol::Tcp => {
            return Err(WebFault::Internal);
        }
    };
    let there = Authority {
        host: host.host.clone(),
        port: listener.port().filter(|port| *port != usual),
    };
    Ok(format!("{scheme}://{there}"))
}

/// A URL without its query, and without a `/` at its end where a path follows.
fn beginning(url: &Uri, path_follows: bool) -> String {
    let mut text = String::new();
    if let (Some(scheme), Some(authority)) = (url.scheme_str(), url.authority()) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{scheme}://{authority}");
    }
    let path = url.path();
    text.push_str(path.strip_suffix('/').filter(|_| path_follows).unwrap_or(path));
    text
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    fn listeners() -> BTreeMap<String, Listener> {
        let listener = |protocol, bind: &str, external_port| Listener {
            protocol,
            session_gateway: false,
            bind: bind.split(' ').map(|address| address.parse().unwrap()).collect(),
            balancers: Vec::new(),
            certificates: Vec::new(),
            udp: false,
            host_redirects: BTreeMap::new(),
            external_port,
            error_pages: BTreeMap::new(),
        };
        [
            ("main", ListenerProtocol::Https, "0.0.0.0:443 [::]:443", None),
            ("alternative", ListenerProtocol::Https, "[::]:8443", None),
            ("mapped", ListenerProtocol::Https, "[::]:8443", Some(443)),
            ("mapped elsewhere", ListenerProtocol::Https, "[::]:443", Some(10_443)),
            ("chosen", ListenerProtocol::Https, "[::]:0", None),
            ("plain", ListenerProtocol::Http, "0.0.0.0:80", None),
            ("odd", ListenerProtocol::Http, "0.0.0.0:443", None),
        ]
        .map(|(name, protocol, bind, port)| (name.to_owned(), listener(protocol, bind, port)))
        .into()
    }

    fn sent(to: RedirectTo, keep_path: bool, keep_query: bool, host: &str) -> Result<String, WebFault> {
        let redirect = Redirect {
            status: StatusCode::FOUND,
            to,
            keep_path,
            keep_query,
        };
        let target = Normal::parse("//a/./b?c=d&e").unwrap();
        let host = host.parse().unwrap();
        let location = location(&redirect, &listeners(), &host, &target)?;
        Ok(location.to_str().unwrap().to_owned())
    }

    #[test]
    fn a_listener_gives_scheme_and_port() {
        for (name, host, expected) in [
            ("main", "shop.test:80", "https://shop.test/a/b?c=d&e"),
            ("alternative", "shop.test", "https://shop.test:8443/a/b?c=d&e"),
            ("mapped", "shop.test:8080", "https://shop.test/a/b?c=d&e"),
            ("mapped elsewhere", "shop.test", "https://shop.test:10443/a/b?c=d&e"),
            ("chosen", "shop.test", "https://shop.test/a/b?c=d&e"),
            ("plain", "shop.test:8443", "http://shop.test/a/b?c=d&e"),
            ("odd", "192.0.2.1", "http://192.0.2.1:443/a/b?c=d&e"),
            ("main", "[2001:db8::1]:80", "https://[2001:db8::1]/a/b?c=d&e"),
            ("alternative", "[::1]", "https://[::1]:8443/a/b?c=d&e"),
        ] {
            let to = RedirectTo::Listener(name.to_owned());
            assert_eq!(sent(to, true, true, host).as_deref(), Ok(expected), "{name} {host}");
        }
        let main = || RedirectTo::Listener("main".to_owned());
        assert_eq!(
            sent(main(), false, true, "a.test").as_deref(),
            Ok("https://a.test/?c=d&e")
        );
        assert_eq!(sent(main(), true, false, "a.test").as_deref(), Ok("https://a.test/a/b"));
        assert_eq!(sent(main(), false, false, "a.test").as_deref(), Ok("https://a.test/"));
        let gone = RedirectTo::Listener("gone".to_owned());
        assert_eq!(sent(gone, true, true, "a.test"), Err(WebFault::Internal));
    }

    #[test]
    fn a_client_that_named_no_host_is_not_sent_to_a_listener() {
        let redirect = Redirect {
            status: StatusCode::FOUND,
            to: RedirectTo::Listener("main".to_owned()),
            keep_path: true,
            keep_query: true,
        };
        let nobody = Authority {
            host: String::new(),
            port: None,
        };
        let target = Normal::parse("/").unwrap();
        assert_eq!(
            location(&redirect, &listeners(), &nobody, &target),
            Err(WebFault::InvalidHost)
        );
    }

    #[test]
    fn a_url_comes_before_path_and_query() {
        for (url, path, query, expected) in [
            ("https://other.test", true, true, "https://other.test/a/b?c=d&e"),
            ("https://other.test/", true, false, "https://other.test/a/b"),
            ("https://other.test", false, false, "https://other.test/"),
            (
                "https://other.test:8443/base",
                true,
                true,
                "https://other.test:8443/base/a/b?c=d&e",
            ),
            ("https://other.test/base/", true, false, "https://other.test/base/a/b"),
            (
                "https://other.test/base/?own",
                true,
                true,
                "https://other.test/base/a/b?own&c=d&e",
            ),
            (
                "https://other.test/base/?own",
                false,
                false,
                "https://other.test/base/?own",
            ),
            (
                "https://other.test/base/?own",
                false,
                true,
                "https://other.test/base/?own&c=d&e",
            ),
            ("/elsewhere", false, true, "/elsewhere?c=d&e"),
        ] {
            let to = RedirectTo::Url(url.parse().unwrap());
            assert_eq!(sent(to, path, query, "a.test").as_deref(), Ok(expected), "{url}");
        }
    }
}
