//! Affinity: a cookie keeps a client with its target (behaviour sheet of the application gateway, section 2).
//!
//! The cookie's value is derived from what the target is called and the backend that it is spoken to by, under a key
//! that all nodes of a fleet share; so every node reads it the same, and nobody keeps a table of clients. A value that
//! is of no target of the pool is no value: the client gets another target and another cookie.

use std::collections::HashMap;
use std::fmt;

use aws_lc_rs::hmac;
use bytes::{BufMut, BytesMut};
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use super::headers::{cookie, hex};
use crate::config::web::{self, SameSite};
use crate::types::Secret;

/// The key of all affinity cookies.
pub struct AffinityKey(hmac::Key);

impl AffinityKey {
    /// The key behind a secret: one that is configured, or one that the node drew at its start.
    pub fn new(secret: &Secret) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes()))
    }

    /// The value for a target, by its name and port, under a backend.
    pub fn value(&self, target: &str, backend: &str) -> AffinityValue {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(b"portcullis affinity 1\0");
        context.update(backend.as_bytes());
        context.update(b"\0");
        context.update(target.as_bytes());
        let mut octets = [0; 16];
        for (octet, of_tag) in octets.iter_mut().zip(context.sign().as_ref()) {
            *octet = *of_tag;
        }
        AffinityValue(octets)
    }
}

impl fmt::Debug for AffinityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AffinityKey(…)")
    }
}

/// What the cookie says, as 32 hex digits: which target it was. It lets nobody in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AffinityValue([u8; 16]);

impl AffinityValue {
    /// As it stands in the cookie.
    pub fn digits(self) -> [u8; 32] {
        hex(self.0)
    }

    /// Exactly 32 digits in lower case, as the gateway writes them.
    fn read(digits: &[u8]) -> Option<Self> {
        let digits: &[u8; 32] = digits.try_into().ok()?;
        let mut octets = [0; 16];
        for (octet, pair) in octets.iter_mut().zip(digits.chunks_exact(2)) {
            *octet = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Some(Self(octets))
    }
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    }
}

/// The affinity of one pool under one backend: which targets its cookies mean.
///
/// Made anew whenever the targets change; looking a client up costs the same whatever their number.
#[derive(Debug)]
pub struct Affinity<T> {
    names: [String; 2],
    /// What stands behind the value in the first cookie and in the second, without and with TLS.
    attributes: [[String; 2]; 2],
    targets: HashMap<AffinityValue, T>,
}

impl<T> Affinity<T> {
    /// The affinity of `targets`, each with its value ([`AffinityKey::value`]).
    pub fn new(settings: &web::Affinity, targets: impl IntoIterator<Item = (AffinityValue, T)>) -> Self {
        let name = &settings.cookie;
        let same_site = match settings.same_site {
            SameSite::Lax => "Lax",
            SameSite::Strict => "Strict",
            SameSite::None => "None",
        };
        let first = format!("; Path=/; HttpOnly; SameSite={same_site}");
        // No browser takes it without TLS, where another site's frame is not reached by any cookie.
        let second = "; Path=/; HttpOnly; SameSite=None; Secure".to_owned();
        Self {
            names: [name.clone(), format!("{name}CORS")],
            attributes: [[first.clone(), second.clone()], [first + "; Secure", second]],
            targets: targets.into_iter().collect(),
        }
    }

    /// The target that the request's cookies mean, the first cookie before the second.
    pub fn target(&self, headers: &HeaderMap) -> Option<&T> {
        let value = |name| AffinityValue::read(cookie(headers, name)?);
        self.names
            .iter()
            .filter_map(|name| value(name))
            .find_map(|value| self.targets.get(&value))
    }

    /// Adds both cookies to an answer, for a client that has none of the target that answered.
    pub fn put(&self, headers: &mut HeaderMap, value: AffinityValue, https: bool) {
        let digits = value.digits();
        for (name, attributes) in self.names.iter().zip(&self.attributes[usize::from(https)]) {
            let mut line = BytesMut::with_capacity(name.len() + 1 + digits.len() + attributes.len());
            for part in [name.as_bytes(), b"=", &digits, attributes.as_bytes()] {
                line.put_slice(part);
            }
            // A name that cannot stand in a cookie sets none.
            if let Ok(line) = HeaderValue::from_maybe_shared(line.freeze()) {
                headers.append(SET_COOKIE, line);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::publish::heads::{head, lines};

    fn key() -> AffinityKey {
        AffinityKey::new(&Secret::new("one key for the whole fleet"))
    }

    fn settings(same_site: SameSite) -> web::Affinity {
        web::Affinity {
            cookie: "ApplicationGatewayAffinity".into(),
            same_site,
        }
    }

    fn affinity() -> Affinity<usize> {
        let targets = (0..100).map(|n| (key().value(&format!("10.0.0.{n}:80"), "plain"), n));
        Affinity::new(&settings(SameSite::Lax), targets)
    }

    fn digits(n: usize) -> String {
        String::from_utf8(key().value(&format!("10.0.0.{n}:80"), "plain").digits().to_vec()).unwrap()
    }

    #[test]
    fn two_cookies_are_set_that_scanners_do_not_complain_about() {
        let mut headers = head(&[("set-cookie", "own=1")]);
        affinity().put(&mut headers, key().value("10.0.0.5:80", "plain"), true);
        let value = digits(5);
        assert_eq!(value.len(), 32);
        let expected = [
            "own=1".to_owned(),
            format!("ApplicationGatewayAffinity={value}; Path=/; HttpOnly; SameSite=Lax; Secure"),
            format!("ApplicationGatewayAffinityCORS={value}; Path=/; HttpOnly; SameSite=None; Secure"),
        ];
        assert_eq!(lines(&headers, "set-cookie"), expected);

        let mut headers = HeaderMap::new();
        let strict = Affinity::<()>::new(&settings(SameSite::Strict), []);
        strict.put(&mut headers, key().value("10.0.0.5:80", "plain"), false);
        assert!(lines(&headers, "set-cookie")[0].ends_with("; Path=/; HttpOnly; SameSite=Strict"));
    }

    #[test]
    fn either_cookie_leads_back_to_its_target() {
        let affinity = affinity();
        let line = format!("a=1; ApplicationGatewayAffinity={}; b=2", digits(7));
        assert_eq!(affinity.target(&head(&[("cookie", &line)])), Some(&7));
        let line = format!("ApplicationGatewayAffinityCORS={}", digits(8));
        assert_eq!(
            affinity.target(&head(&[("cookie", "a=1"), ("cookie", &line)])),
            Some(&8)
        );
        let stale = format!("ApplicationGatewayAffinity=00{}; {line}", &digits(7)[2..]);
        assert_eq!(affinity.target(&head(&[("cookie", &stale)])), Some(&8));
    }

    #[test]
    fn a_value_is_of_one_target_one_backend_and_one_key() {
        let value = key().value("10.0.0.1:80", "plain");
        assert_eq!(value, key().value("10.0.0.1:80", "plain"));
        assert_ne!(value, key().value("10.0.0.1:80", "tls"));
        assert_ne!(value, key().value("10.0.0.2:80", "plain"));
        let other = AffinityKey::new(&Secret::new("another key"));
        assert_ne!(value, other.value("10.0.0.1:80", "plain"));
        assert_eq!(format!("{:?}", key()), "AffinityKey(…)");
    }

    proptest! {
        /// A cookie that the gateway did not write for a target of this pool is none.
        #[test]
        fn a_forged_value_means_no_target(value in "[0-9a-fA-F]{30,34}|[ -:<-~]{0,40}") {
            prop_assume!((0..100).all(|n| digits(n) != value));
            let line = format!("ApplicationGatewayAffinity={value}; ApplicationGatewayAffinityCORS={value}");
            let affinity = affinity();
            prop_assert_eq!(affinity.target(&head(&[("cookie", &line)])), None);
        }
    }
}
