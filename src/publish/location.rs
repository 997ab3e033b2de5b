//! Names of the inside do not leave it: in `Location`, `Content-Location` and the `Domain` of cookies they become the
//! name that the client asked under, and paths that an override made become the client's. What names another place, or
//! none, stays as it is.

use std::net::IpAddr;

use http::header::{CONTENT_LOCATION, LOCATION, SET_COOKIE};
use http::{HeaderMap, HeaderValue};

use super::path::undone;
use crate::types::Authority;

/// What a target is called by those who are inside.
#[derive(Clone, Copy, Debug)]
pub struct Inside<'a> {
    /// Whether it is spoken to over TLS.
    pub tls: bool,
    /// Its port.
    pub port: u16,
    /// Its name as configured, and its address; without brackets.
    pub names: &'a [&'a str],
    /// `Host` as it was sent to it.
    pub asked: &'a str,
    /// The part of the client's path, and what stands in for it inside.
    pub path: Option<(&'a str, &'a str)>,
}

impl Inside<'_> {
    /// The client's path, if this is one of the inside.
    fn outer_path(&self, path: &str) -> Option<String> {
        let (literal, with) = self.path?;
        undone(path, literal, with)
    }
}

/// What the client asked under.
#[derive(Clone, Copy, Debug)]
pub struct Outside<'a> {
    /// Whether it came over TLS.
    pub https: bool,
    /// `Host` as it was received, with its port.
    pub host: &'a str,
}

/// Whether a head has a field in which [`hide`] looks.
pub fn may_tell(headers: &HeaderMap) -> bool {
    [LOCATION, CONTENT_LOCATION, SET_COOKIE]
        .iter()
        .any(|name| headers.contains_key(name))
}

/// Puts names of the outside where a head has names of the inside. A client that named no host gets what there is.
pub fn hide(headers: &mut HeaderMap, inside: &Inside<'_>, outside: &Outside<'_>) {
    for name in [LOCATION, CONTENT_LOCATION] {
        if let Some(value) = headers.get_mut(name)
            && let Some(hidden) = value.to_str().ok().and_then(|url| hide_in_url(url, inside, outside))
            && let Ok(hidden) = HeaderValue::from_maybe_shared(bytes::Bytes::from(hidden))
        {
            *value = hidden;
        }
    }
    if let http::header::Entry::Occupied(mut cookies) = headers.entry(SET_COOKIE) {
        for line in cookies.iter_mut() {
            if let Some(hidden) = hide_in_cookie(line.as_bytes(), inside, outside)
                && let Ok(hidden) = HeaderValue::from_maybe_shared(bytes::Bytes::from(hidden))
            {
                *line = hidden;
            }
        }
    }
}

/// The URL of the outside, if it is one of the inside.
fn hide_in_url(url: &str, inside: &Inside<'_>, outside: &Outside<'_>) -> Option<String> {
    let url = url.trim();
    if url.starts_with('/') && !url.starts_with("//") {
        return inside.outer_path(url);
    }
    let (scheme, behind) = url.split_once("//")?;
    let tls = match scheme {
        "" => inside.tls,
        scheme if scheme.eq_ignore_ascii_case("http:") => false,
        scheme if scheme.eq_ignore_ascii_case("https:") => true,
        _ => return None,
    };
    let end = behind.find(['/', '?', '#', '\\']).unwrap_or(behind.len());
    let (authority, rest) = behind.split_at(end);
    let authority = authority.parse().ok()?;
    if outside.host.is_empty() || !is_inside(&authority, tls, inside) {
        return None;
    }
    let scheme = match (scheme, outside.https) {
        ("", _) => "",
        (_, true) => "https:",
        (_, false) => "http:",
    };
    let path = inside.outer_path(rest);
    Some([scheme, "//", outside.host, path.as_deref().unwrap_or(rest)].concat())
}

/// Whether a URL's authority is the target: under its own name at its own port, or under the name it was asked by.
fn is_inside(authority: &Authority, tls: bool, inside: &Inside<'_>) -> bool {
    let is_named = inside
        .names
        .iter()
        .any(|name| authority.host.eq_ignore_ascii_case(name));
    if is_named && authority.port.is_none_or(|port| port == inside.port) {
        return true;
    }
    let asked = inside.asked.parse::<Authority>();
    asked.is_ok_and(|asked| {
        tls == inside.tls && asked.host == authority.host && (authority.port.is_none() || authority.port == asked.port)
    })
}

/// The line of `Set-Cookie` for the outside, if its `Domain` is one of the inside and none of the outside, or its `Path` is one
/// of the inside.
fn hide_in_cookie(line: &[u8], inside: &Inside<'_>, outside: &Outside<'_>) -> Option<Vec<u8>> {
    let says = |part: &[u8]| domain(part).is_some() || (inside.path.is_some() && path(part).is_some());
    if !line.split(|byte| *byte == b';').skip(1).any(says) {
        return None;
    }
    let outer = outside.host.parse::<Authority>().ok()?;
    let asked = inside.asked.parse::<Authority>().ok();
    let inner = || {
        inside
            .names
            .iter()
            .copied()
            .chain(asked.as_ref().map(|asked| asked.host.as_str()))
    };
    let mut made = Vec::with_capacity(line.len() + outer.host.len());
    let mut is_changed = false;
    for (index, part) in line.split(|byte| *byte == b';').enumerate() {
        let of_inside = domain(part)
            .filter(|_| index > 0)
            .is_some_and(|domain| !is_within(&outer.host, domain) && inner().any(|name| is_within(name, domain)));
        // "/" is for all of the host, whatever the application is called there.
        let outer_path = path(part)
            .filter(|path| index > 0 && *path != "/")
            .and_then(|path| inside.outer_path(path));
        is_changed |= of_inside || outer_path.is_some();
        // An address is the cookie's without being said.
        if of_inside && is_address(&outer.host) {
            continue;
        }
        if index > 0 {
            made.push(b';');
        }
        if of_inside {
            made.extend_from_slice(b" Domain=");
            made.extend_from_slice(outer.host.as_bytes());
        } else if let Some(path) = outer_path {
            made.extend_from_slice(b" Path=");
            made.extend_from_slice(path.as_bytes());
        } else {
            made.extend_from_slice(part);
        }
    }
    is_changed.then_some(made)
}

/// The value of a `Domain` attribute, without the dot that may stand before it (RFC 6265 section 5.2.3).
fn domain(part: &[u8]) -> Option<&str> {
    let value = attribute(part, b"domain")?;
    Some(value.strip_prefix('.').unwrap_or(value)).filter(|domain| !domain.is_empty())
}

/// The value of a `Path` attribute; one without is none (RFC 6265 section 5.2.4).
fn path(part: &[u8]) -> Option<&str> {
    attribute(part, b"path").filter(|path| path.starts_with('/'))
}

fn attribute<'p>(part: &'p [u8], wanted: &[u8]) -> Option<&'p str> {
    let (name, value) = part.split_at_checked(part.iter().position(|byte| *byte == b'=')?)?;
    if !name.trim_ascii().eq_ignore_ascii_case(wanted) {
        return None;
    }
    Some(std::str::from_utf8(&value[1..]).ok()?.trim())
}

/// Whether a cookie of the domain is for the host (RFC 6265 section 5.1.3).
fn is_within(host: &str, domain: &str) -> bool {
    let Some(start) = host.len().checked_sub(domain.len()) else {
        return false;
    };
    let (before, end) = host.as_bytes().split_at(start);
    let is_end = end.eq_ignore_ascii_case(domain.as_bytes());
    is_end && (before.is_empty() || (before.ends_with(b".") && !is_address(host)))
}

fn is_address(host: &str) -> bool {
    host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::publish::heads::{head, lines};

    const INSIDE: Inside<'_> = Inside {
        tls: false,
        port: 28001,
        names: &["be.internal", "127.0.0.1"],
        asked: "shop.example.com",
        path: None,
    };

    const OUTSIDE: Outside<'_> = Outside {
        https: true,
        host: "shop.example.com",
    };

    fn location(url: &str) -> String {
        let mut headers = head(&[("location", url)]);
        hide(&mut headers, &INSIDE, &OUTSIDE);
        lines(&headers, "location")[0].to_owned()
    }

    fn cookie(line: &str, inside: &Inside<'_>, outside: &Outside<'_>) -> String {
        let mut headers = head(&[("set-cookie", "a=1"), ("set-cookie", line), ("set-cookie", "b=2")]);
        hide(&mut headers, inside, outside);
        let lines = lines(&headers, "set-cookie");
        assert!(lines.len() == 3 && lines[0] == "a=1" && lines[2] == "b=2");
        lines[1].to_owned()
    }

    #[test]
    fn a_location_of_the_inside_becomes_one_of_the_outside() {
        assert_eq!(
            location("http://127.0.0.1:28001/a?b#c"),
            "https://shop.example.com/a?b#c"
        );
        assert_eq!(location("HTTP://BE.internal:28001"), "https://shop.example.com");
        assert_eq!(location("http://be.internal./a"), "https://shop.example.com/a");
        assert_eq!(location("//be.internal/a"), "//shop.example.com/a");
        assert_eq!(location("https://be.internal/a"), "https://shop.example.com/a");
    }

    #[test]
    fn a_target_that_knows_nothing_of_tls_sends_nobody_away_from_it() {
        assert_eq!(location("http://shop.example.com/a"), "https://shop.example.com/a");
        assert_eq!(location("https://shop.example.com/a"), "https://shop.example.com/a");
        assert_eq!(
            location("http://shop.example.com:8080/a"),
            "http://shop.example.com:8080/a"
        );
    }

    #[test]
    fn foreign_and_relative_locations_stay() {
        for url in [
            "http://other.example.com/a",
            "http://127.0.0.1:9/a",
            "http://be.internal.example.com/",
            "http://user@be.internal/",
            "ftp://be.internal/",
            "/a//be.internal/b",
            "a?u=http://be.internal/",
            "?x",
            "",
            "mailto:a@be.internal",
        ] {
            assert_eq!(location(url), url);
        }
    }

    #[test]
    fn the_clients_port_and_an_ipv6_address_are_kept() {
        let mut headers = head(&[
            ("location", "https://[fd00::5]:8443/a"),
            ("content-location", "https://[fd00::5]:8443/b"),
        ]);
        let inside = Inside {
            tls: true,
            port: 8443,
            names: &["fd00::5"],
            asked: "[fd00::5]:8443",
            path: None,
        };
        let outside = Outside {
            https: true,
            host: "[2001:db8::1]:444",
        };
        hide(&mut headers, &inside, &outside);
        assert_eq!(lines(&headers, "location"), ["https://[2001:db8::1]:444/a"]);
        assert_eq!(lines(&headers, "content-location"), ["https://[2001:db8::1]:444/b"]);
    }

    #[test]
    fn a_cookie_of_the_inside_becomes_one_of_the_outside() {
        let made = |line: &str| cookie(line, &INSIDE, &OUTSIDE);
        assert_eq!(
            made("s=1; Domain=be.internal; Path=/"),
            "s=1; Domain=shop.example.com; Path=/"
        );
        assert_eq!(made("s=1;domain = .INTERNAL"), "s=1; Domain=shop.example.com");
        assert_eq!(made("s=1; Domain=127.0.0.1"), "s=1; Domain=shop.example.com");
        for line in [
            "s=1",
            "Domain=be.internal",
            "s=1; Domain=",
            "s=1; Domain=example.com",
            "s=1; Domain=other.example",
        ] {
            assert_eq!(made(line), line);
        }
        let by_address = Outside {
            https: true,
            host: "192.0.2.1:8443",
        };
        assert_eq!(
            cookie("s=1; Domain=be.internal; Path=/", &INSIDE, &by_address),
            "s=1; Path=/"
        );
    }

    #[test]
    fn a_path_that_stands_in_for_another_becomes_that_again() {
        let inside = Inside {
            path: Some(("/api/", "/v2/")),
            ..INSIDE
        };
        let location = |url: &str| {
            let mut headers = head(&[("location", url)]);
            hide(&mut headers, &inside, &OUTSIDE);
            lines(&headers, "location")[0].to_owned()
        };
        for (url, expected) in [
            ("/v2/login?a", "/api/login?a"),
            ("/elsewhere", "/elsewhere"),
            ("//be.internal/v2/a", "//shop.example.com/api/a"),
            ("http://127.0.0.1:28001/v2/a#b", "https://shop.example.com/api/a#b"),
            ("http://127.0.0.1:28001/other", "https://shop.example.com/other"),
            ("http://other.example/v2/a", "http://other.example/v2/a"),
            ("v2/a", "v2/a"),
        ] {
            assert_eq!(location(url), expected, "{url}");
        }
        let made = |line: &str| cookie(line, &inside, &OUTSIDE);
        assert_eq!(made("s=1; Path=/v2/; HttpOnly"), "s=1; Path=/api/; HttpOnly");
        assert_eq!(
            made("s=1;path=/v2/cart;Domain=be.internal"),
            "s=1; Path=/api/cart; Domain=shop.example.com"
        );
        for line in ["s=1; Path=/", "Path=/v2/", "s=1; Path=/v20", "s=1; Path=v2"] {
            assert_eq!(made(line), line);
        }
    }

    #[test]
    fn a_domain_that_covers_both_sides_stays() {
        let inside = Inside {
            names: &["shop.corp.example.com"],
            asked: "shop.corp.example.com",
            ..INSIDE
        };
        let made = |line: &str| cookie(line, &inside, &OUTSIDE);
        assert_eq!(made("s=1; Domain=example.com"), "s=1; Domain=example.com");
        assert_eq!(made("s=1; Domain=corp.example.com"), "s=1; Domain=shop.example.com");
    }

    proptest! {
        /// No name of the inside is left in a URL's authority, and hiding twice is hiding once.
        #[test]
        fn nothing_of_the_inside_is_left(
            scheme in "(https?:)?",
            host in "be\\.internal|127\\.0\\.0\\.1|shop\\.example\\.com|other\\.example",
            port in "(:28001|:80)?",
            rest in "[/?#][ -~]{0,10}",
        ) {
            let url = format!("{scheme}//{host}{port}{rest}");
            let once = location(url.trim());
            prop_assert_eq!(&location(&once), &once);
            let foreign = host == "other.example" || port == ":80";
            prop_assert!(foreign || once.contains("//shop.example.com"), "{}", once);
            prop_assert!(once.ends_with(rest.trim_end()));
        }
    }
}
