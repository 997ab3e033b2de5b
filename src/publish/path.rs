//! What a target is asked under: its path and its host (behaviour sheet of the application gateway, section 2).

use std::fmt::Write;

use http::HeaderValue;

use crate::config::web::BackendHost;

/// The path for a target whose backend has a path of its own: `with` stands in for `literal`, the part of the path that
/// the rule matched. `literal` is empty for a rule without paths. A path that does not begin with it, as one that no
/// pattern matched, is put behind whole. What follows the first `?` stays as it is.
///
/// Where `literal` ends a segment, there is one slash between the two.
pub fn overridden(path_and_query: &str, literal: &str, with: &str) -> String {
    let (path, query) = match path_and_query.find('?') {
        Some(at) => path_and_query.split_at(at),
        None => (path_and_query, ""),
    };
    let begins = path
        .as_bytes()
        .get(..literal.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(literal.as_bytes()));
    let rest = if begins { &path[literal.len()..] } else { path };
    let with = if with.is_empty() { "/" } else { with };
    let rest = if with.ends_with('/') {
        rest.strip_prefix('/').unwrap_or(rest)
    } else {
        rest
    };
    let is_cut_at_slash = begins && literal.ends_with('/') && !with.ends_with('/') && !rest.is_empty();
    let slash = if is_cut_at_slash && !rest.starts_with('/') {
        "/"
    } else {
        ""
    };
    let mut made = String::with_capacity(path_and_query.len() + with.len() + 2);
    if !with.starts_with('/') {
        made.push('/');
    }
    for part in [with, slash, rest, query] {
        made.push_str(part);
    }
    made
}

/// The contrary of [`overridden`], for a path that a target names: where it begins with `with`, `literal` stands in for that
/// again. `None` for any other path, and for one that is the client's own already. What follows `?` or `#` stays.
///
/// Only whole segments count: `/v2` is no part of `/v20/a`.
pub fn undone(path: &str, literal: &str, with: &str) -> Option<String> {
    let (inner, outer) = (without_slash(with), without_slash(literal));
    if outer.len() > inner.len() && behind(path, outer).is_some() {
        return None;
    }
    let rest = behind(path, inner)?;
    let outer = if rest.starts_with('/') { outer } else { literal };
    let outer = if outer.is_empty() && !rest.starts_with('/') {
        "/"
    } else {
        outer
    };
    Some([outer, rest].concat())
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

/// What follows the first segments of a path, if it begins with these.
fn behind<'p>(path: &'p str, segments: &str) -> Option<&'p str> {
    let rest = path.strip_prefix(segments)?;
    (rest.is_empty() || rest.starts_with(['/', '?', '#'])).then_some(rest)
}

/// `Host` for targets, ready to be used.
#[derive(Clone, Debug, PartialEq)]
pub enum TargetHost {
    /// What the client asked under, or rewriting made of it: the field stays.
    Client,
    /// The target's own name or address.
    Target,
    /// Always this.
    Fixed(HeaderValue),
}

impl TargetHost {
    /// The form of a setting in which requests use it. `None` for a name that cannot stand in a field.
    pub fn new(setting: &BackendHost) -> Option<Self> {
        match setting {
            BackendHost::Client => Some(Self::Client),
            BackendHost::Target => Some(Self::Target),
            BackendHost::Name(name) => HeaderValue::from_str(name).ok().map(Self::Fixed),
        }
    }

    /// What `Host` becomes; `None` is what it is.
    pub fn value(&self, target: impl FnOnce() -> Option<HeaderValue>) -> Option<HeaderValue> {
        match self {
            Self::Client => None,
            Self::Target => target(),
            Self::Fixed(value) => Some(value.clone()),
        }
    }
}

/// The `Host` of a target (RFC 9110 section 7.2): brackets around an IPv6 address, and the port if the scheme has
/// another. It depends on the target alone: keep it with the target.
pub fn host_of(host: &str, port: u16, tls: bool) -> Option<HeaderValue> {
    let mut text = String::with_capacity(host.len() + 8);
    let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
    let usual = if tls { 443 } else { 80 };
    for part in [open, host, close] {
        text.push_str(part);
    }
    if port != usual {
        // Writing into memory does not fail.
        let _written = write!(text, ":{port}");
    }
    HeaderValue::from_maybe_shared(bytes::Bytes::from(text)).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_path_of_the_target_becomes_the_clients() {
        for (path, literal, with, expected) in [
            ("/v2/login?next=/v2/a", "/api/", "/v2/", Some("/api/login?next=/v2/a")),
            ("/v2/login", "/api", "/v2", Some("/api/login")),
            ("/v2", "/api/", "/v2/", Some("/api/")),
            ("/v2?a", "/api", "/v2", Some("/api?a")),
            ("/v2#a", "/api/", "/v2", Some("/api/#a")),
            ("/v20/login", "/api/", "/v2", None),
            ("/other", "/api/", "/v2/", None),
            // All of a target under one path of the outside.
            ("/login", "/shop/", "/", Some("/shop/login")),
            ("/", "/shop/", "/", Some("/shop/")),
            ("", "/shop/", "/", Some("/shop/")),
            ("?a", "/shop", "/", Some("/shop?a")),
            // The target knows what it is called outside.
            ("/shop/login", "/shop/", "/", None),
            ("/shop", "/shop/", "/", None),
            ("/shopping", "/shop/", "/", Some("/shop/shopping")),
            ("/a/b/c", "/a/", "/a/b/", Some("/a/c")),
            // A rule without paths, or a path that no pattern matched.
            ("/app/login", "", "/app/", Some("/login")),
            ("/app", "", "/app", Some("/")),
            ("/elsewhere", "", "/app", None),
        ] {
            assert_eq!(
                undone(path, literal, with).as_deref(),
                expected,
                "{path} {literal} {with}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_an_override_does_is_undone(
            literal in "(/[ab]{1,2}){1,2}/?",
            rest in "(/[abc]{1,2}){0,3}/?(\\?[a=/]{0,3})?",
            with in "(/[cd]{1,2}){0,2}/?",
        ) {
            let path = format!("{}{rest}", literal.trim_end_matches('/'));
            let path = if path.len() < literal.len() { literal.clone() } else { path };
            prop_assume!(path.starts_with(&literal));
            let inside = overridden(&path, &literal, &with);
            let again = undone(&inside, &literal, &with);
            let known = without_slash(&literal).len() > without_slash(&with).len() && behind(&inside, without_slash(&literal)).is_some();
            prop_assume!(!known);
            // The slash at the end is the target's matter.
            let bare = |path: &str| path.replacen("/?", "?", 1).trim_end_matches('/').to_owned();
            prop_assert_eq!(again.as_deref().map(bare), Some(bare(&path)), "{}", inside);
        }
    }

    #[test]
    fn the_override_stands_in_for_what_the_rule_matched() {
        let table = [
            // A rule without paths.
            ("/home/", "", "/override/home/"),
            ("/home/secondhome/", "", "/override/home/secondhome/"),
            // /pathrule*
            ("/pathrule/home/", "/pathrule", "/override/home/"),
            ("/pathrule/home/secondhome/", "/pathrule", "/override/home/secondhome/"),
            // /pathrule/home*
            ("/pathrule/home/secondhome/", "/pathrule/home", "/override/secondhome/"),
            // /pathrule/
            ("/pathrule/", "/pathrule/", "/override/"),
            // Another path that came here.
            ("/home/", "/pathrule", "/override/home/"),
        ];
        for (path, literal, expected) in table {
            assert_eq!(overridden(path, literal, "/override/"), expected, "{path} {literal}");
        }
    }

    #[test]
    fn the_query_stays_and_letters_match_in_either_case() {
        assert_eq!(
            overridden("/Images/a.png?v=/images/", "/images/", "/static/"),
            "/static/a.png?v=/images/"
        );
        assert_eq!(overridden("/images?a?b", "/images", "/static"), "/static?a?b");
    }

    #[test]
    fn slashes_are_neither_doubled_nor_lost() {
        assert_eq!(overridden("/images/a", "/images/", "/static"), "/static/a");
        assert_eq!(overridden("/images/", "/images/", "/static"), "/static");
        assert_eq!(overridden("/images2/x", "/images", "/static"), "/static2/x");
        assert_eq!(overridden("/a", "", "static"), "/static/a");
        assert_eq!(overridden("/", "", "/"), "/");
        assert_eq!(overridden("/a/b", "/a", "/"), "/b");
    }

    #[test]
    fn a_host_has_its_port_unless_it_is_the_usual_one() {
        for (host, port, tls, expected) in [
            ("shop.inside.example", 80, false, "shop.inside.example"),
            ("shop.inside.example", 443, true, "shop.inside.example"),
            ("shop.inside.example", 443, false, "shop.inside.example:443"),
            ("10.0.0.5", 8080, false, "10.0.0.5:8080"),
            ("fd00::5", 443, true, "[fd00::5]"),
            ("fd00::5", 8443, true, "[fd00::5]:8443"),
        ] {
            assert_eq!(host_of(host, port, tls).unwrap(), expected);
        }
    }

    #[test]
    fn the_host_is_the_clients_the_targets_or_a_fixed_one() {
        let target = || host_of("10.0.0.5", 80, false);
        let made = |setting: BackendHost| TargetHost::new(&setting).unwrap().value(target);
        assert_eq!(made(BackendHost::Client), None);
        assert_eq!(made(BackendHost::Target).unwrap(), "10.0.0.5");
        assert_eq!(made(BackendHost::Name("a.example".into())).unwrap(), "a.example");
        assert_eq!(TargetHost::new(&BackendHost::Name("a\n".into())), None);
    }

    proptest! {
        /// The result is always a path, begins with the override and ends with what was not matched.
        #[test]
        fn an_overridden_path_is_a_path(path in "(/[a-c]{0,2}){1,4}(\\?[a-c/?]{0,4})?", cut in 0..8_usize, with in "/?[x-z/]{0,4}") {
            let bare = path.split('?').next().unwrap();
            let literal = bare.get(..cut).unwrap_or("/other");
            let made = overridden(&path, literal, &with);
            prop_assert!(made.starts_with('/'));
            prop_assert!(made.trim_start_matches('/').starts_with(with.trim_start_matches('/')));
            let rest = path.strip_prefix(literal).unwrap_or(&path);
            prop_assert!(made.ends_with(rest.trim_start_matches('/')), "{} {} {}", made, literal, rest);
        }
    }
}
