//! The host that a request is for.

use http::header::HOST;
use http::{Request, Uri, Version};

use crate::fault::WebFault;
use crate::types::Authority;

/// The host under which a client asks, and the port if it says one: that of the target (absolute form, `:authority`),
/// or else of `Host` (RFC 9112 section 3.2, RFC 9113 section 8.3.1). Empty for HTTP/1.0 without either.
///
/// # Errors
/// [`WebFault::InvalidHost`] if there is none, several, one that is no host (user information, a zone, a port that is
/// none), or two that differ.
pub fn host_of<B>(request: &Request<B>) -> Result<Authority, WebFault> {
    let named: Option<Authority> = match request.uri().authority() {
        Some(authority) => Some(authority.as_str().parse().map_err(|_| WebFault::InvalidHost)?),
        None => None,
    };
    match (named, field(request)?) {
        (Some(named), Some(field)) if is_same(request.uri(), &named, &field) => Ok(named),
        (Some(_), Some(_)) => Err(WebFault::InvalidHost),
        // HTTP/1.1 demands the field even beside an absolute target.
        (Some(named), None) if request.version() != Version::HTTP_11 => Ok(named),
        (None, Some(field)) => Ok(field),
        (None, None) if request.version() < Version::HTTP_11 => Ok(Authority {
            host: String::new(),
            port: None,
        }),
        (_, None) => Err(WebFault::InvalidHost),
    }
}

fn field<B>(request: &Request<B>) -> Result<Option<Authority>, WebFault> {
    let mut fields = request.headers().get_all(HOST).iter();
    let Some(field) = fields.next() else {
        return Ok(None);
    };
    let text = field.to_str().map_err(|_| WebFault::InvalidHost)?;
    match fields.next() {
        None => text.parse().map(Some).map_err(|_| WebFault::InvalidHost),
        Some(_) => Err(WebFault::InvalidHost),
    }
}

/// Whether two mean the same; the port of the target's scheme need not be said.
fn is_same(target: &Uri, one: &Authority, other: &Authority) -> bool {
    let usual = match target.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    one.host == other.host && one.port.or(usual) == other.port.or(usual)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(version: Version, target: &str, fields: &[&str]) -> Result<String, WebFault> {
        let mut request = Request::builder().version(version).uri(target);
        for field in fields {
            request = request.header(HOST, *field);
        }
        host_of(&request.body(()).unwrap()).map(|host| host.to_string())
    }

    #[test]
    fn the_host_has_one_spelling() {
        for (field, expected) in [
            ("gw.test", "gw.test"),
            ("GW.TEST", "gw.test"),
            ("gw.test:8443", "gw.test:8443"),
            ("gw.test.", "gw.test"),
            ("gw.test.:80", "gw.test:80"),
            ("my_app.test", "my_app.test"),
            ("192.0.2.1:81", "192.0.2.1:81"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
            ("[::1]:8443", "[::1]:8443"),
        ] {
            assert_eq!(
                host(Version::HTTP_11, "/", &[field]).as_deref(),
                Ok(expected),
                "{field}"
            );
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
        for field in [
            "",
            ".",
            "a..b",
            "gw.test..",
            "a b",
            "a/b",
            "a,b",
            "user@a",
            "a:",
            "a:0",
            "a:x",
            "a:65536",
            "a:+1",
            "a:1:2",
            "::1",
            "[::1",
            "::1]",
            "[::1]x",
            "[fe80::1%25eth0]",
            "[fe80::1%eth0]",
            "[v1.x]",
            "é.test",
            "a%2eb",
            "*.test",
        ] {
            let refused = host(Version::HTTP_11, "/", &[field]);
            assert_eq!(refused, Err(WebFault::InvalidHost), "{field:?}");
        }
        assert_eq!(host(Version::HTTP_11, "/", &["a", "a"]), Err(WebFault::InvalidHost));
        for version in [Version::HTTP_11, Version::HTTP_2, Version::HTTP_3] {
            assert_eq!(host(version, "/", &[]), Err(WebFault::InvalidHost), "{version:?}");
        }
        assert_eq!(host(Version::HTTP_10, "/", &[]).as_deref(), Ok(""));
    }

    #[test]
    fn the_target_counts_and_the_field_must_agree() {
        let absolute = "http://A.gw.test/x";
        for (fields, expected) in [
            (&["a.gw.test"][..], Ok("a.gw.test")),
            (&["a.gw.test:80"], Ok("a.gw.test")),
            (&["b.gw.test"], Err(WebFault::InvalidHost)),
            (&["a.gw.test:81"], Err(WebFault::InvalidHost)),
            (&[""], Err(WebFault::InvalidHost)),
            (&[], Err(WebFault::InvalidHost)),
        ] {
            let found = host(Version::HTTP_11, absolute, fields);
            assert_eq!(found.as_deref().map_err(|fault| *fault), expected, "{fields:?}");
        }
        let authority = "https://a.gw.test:8443/x";
        assert_eq!(host(Version::HTTP_2, authority, &[]).as_deref(), Ok("a.gw.test:8443"));
        assert_eq!(
            host(Version::HTTP_2, authority, &["A.gw.test:8443"]).as_deref(),
            Ok("a.gw.test:8443")
        );
        assert_eq!(
            host(Version::HTTP_2, authority, &["a.gw.test"]),
            Err(WebFault::InvalidHost)
        );
        assert_eq!(host(Version::HTTP_2, "/", &["a.gw.test"]).as_deref(), Ok("a.gw.test"));
        let user = "https://user@a.gw.test/x";
        assert_eq!(host(Version::HTTP_2, user, &[]), Err(WebFault::InvalidHost));
    }
}
