//! Who may ask a web rule, and how often.
//!
//! Pure: nothing here reads a clock or a socket. A [`Guard`] is compiled with its rule and never changes; [`Rates`]
//! count across configurations.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use http::{HeaderMap, HeaderName};

pub use networks::Networks;
pub use rates::Rates;

use crate::config::web;
use crate::fault::WebFault;
use crate::route::paths::Paths;
use crate::secure::Certificates;

mod networks;
mod rates;

/// The guard of a rule, ready to be asked. In this order: address, rate, authentication; the last is not asked here.
#[derive(Debug)]
pub struct Guard {
    allow: Networks,
    deny: Networks,
    rate: Option<(rates::Key, web::Rate)>,
    exempt: Paths,
}

/// Why a client may not ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Its address is not admitted.
    Address,
    /// It asks too often.
    Rate {
        /// After this long it may again: what `Retry-After` says, in whole seconds.
        again_in: Duration,
    },
}

impl Guard {
    /// Compiles the guard of the rule of this name.
    pub fn compile(rule: &str, guard: &web::Guard) -> Self {
        let exempt = guard.authentication.iter().flat_map(|service| &service.exempt);
        Self {
            allow: Networks::new(&guard.allow),
            deny: Networks::new(&guard.deny),
            rate: guard.rate.map(|rate| (rates::Key::of(rule), rate)),
            exempt: Paths::new(exempt),
        }
    }

    /// Lets a request of `client` pass at `now`, and counts it.
    ///
    /// # Errors
    /// [`Denied`]; then it is not counted.
    pub fn admit(&self, client: IpAddr, rates: &Rates, now: Instant) -> Result<(), Denied> {
        let is_listed = self.allow.is_empty() || self.allow.contains(client);
        if !is_listed || self.deny.contains(client) {
            return Err(Denied::Address);
        }
        match self.rate {
            Some((key, rate)) => rates.pass(key, rate, client, now),
            None => Ok(()),
        }
        .map_err(|again_in| Denied::Rate { again_in })
    }

    /// Whether a path, in its one spelling and without its query, needs no authentication.
    pub fn is_exempt(&self, path: &str) -> bool {
        self.exempt.first(path).is_some()
    }
}

impl Denied {
    /// The fault for the answer and the log.
    pub fn fault(self) -> WebFault {
        match self {
            Self::Address => WebFault::AddressDenied,
            Self::Rate { .. } => WebFault::RateLimited,
        }
    }
}

/// The client behind a peer: the peer itself, unless it is `trusted`; then the rightmost address in `X-Forwarded-For`
/// that is not.
///
/// An entry that is no address ends the search: what stands before it was vouched for by nobody, so that the one who
/// wrote it is taken for the client. So is the leftmost address if all are trusted.
pub fn client_of(peer: IpAddr, headers: &HeaderMap, trusted: &Networks) -> IpAddr {
    let mut client = peer.to_canonical();
    if !trusted.contains(client) {
        return client;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    let entries = lines.flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
    for entry in entries {
        let Some(address) = std::str::from_utf8(entry).ok().and_then(address_in) else {
            break;
        };
        client = address.to_canonical();
        if !trusted.contains(client) {
            break;
        }
    }
    client
}

/// The address in an entry of `X-Forwarded-For`, with or without its port.
fn address_in(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    if let Some(rest) = entry.strip_prefix('[') {
        let (address, port) = rest.split_once(']')?;
        let is_sound = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
        return address.parse().ok().filter(|_| is_sound).map(IpAddr::V6);
    }
    let bare = entry.split_once(':').filter(|(_, port)| is_port(port));
    entry.parse().ok().or_else(|| bare?.0.parse().ok().map(IpAddr::V4))
}

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

/// Makes sure that a request came over a connection that may carry it (RFC 9110 section 7.4): a client that was shown a
/// certificate for one name may ask for another host under it, but not for one that the certificate does not speak for
/// while another certificate of the listener does. `sni` is the name of the handshake, `host` that of the request,
/// both in lower case.
///
/// # Errors
/// [`WebFault::Misdirected`].
pub fn misdirected(certificates: &Certificates, sni: Option<&str>, host: &str) -> Result<(), WebFault> {
    match sni {
        Some(sni) if sni != host && certificates.has_another_for(host, sni) => Err(WebFault::Misdirected),
        _ => Ok(()),
    }
}

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::clock;

    fn networks(texts: &[&str]) -> Vec<ipnet::IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn client(peer: &str, lines: &[&str]) -> String {
        let trusted = Networks::new(&networks(&["127.0.0.0/8", "10.0.0.0/8", "2001:db8:1::/48"]));
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        client_of(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn deny_stands_above_allow_and_no_list_is_everyone() {
        let guard = |allow: &[&str], deny: &[&str]| {
            let config = web::Guard {
                allow: networks(allow),
                deny: networks(deny),
                ..web::Guard::default()
            };
            Guard::compile("shop", &config)
        };
        let rates = Rates::default();
        let admits = |guard: &Guard, client: &str| {
            let verdict = guard.admit(client.parse().unwrap(), &rates, clock::now());
            assert!(matches!(verdict, Ok(()) | Err(Denied::Address)));
            verdict.is_ok()
        };
        let open = guard(&[], &[]);
        assert!(admits(&open, "192.0.2.1") && admits(&open, "2001:db8::1"));
        let inside = guard(&["10.0.0.0/8"], &["10.1.0.0/16"]);
        assert!(admits(&inside, "10.2.3.4") && admits(&inside, "::ffff:10.2.3.4"));
        assert!(!admits(&inside, "10.1.3.4") && !admits(&inside, "::ffff:10.1.3.4") && !admits(&inside, "2001:db8::1"));
        let all_but = guard(&[], &["2001:db8::/32"]);
        assert!(admits(&all_but, "192.0.2.1") && !admits(&all_but, "2001:db8::1"));
        assert_eq!(Denied::Address.fault(), WebFault::AddressDenied);
    }

    #[test]
    fn a_client_that_asks_too_often_is_told_when_to_come_again() {
        let config = web::Guard {
            rate: Some(web::Rate {
                per_second: 2,
                burst: 3,
            }),
            ..web::Guard::default()
        };
        let (shop, other) = (Guard::compile("shop", &config), Guard::compile("other", &config));
        let (rates, now) = (Rates::default(), clock::now());
        let one = "192.0.2.1".parse().unwrap();
        for _ in 0..3 {
            assert_eq!(shop.admit(one, &rates, now), Ok(()));
        }
        let again_in = Duration::from_millis(500);
        assert_eq!(shop.admit(one, &rates, now), Err(Denied::Rate { again_in }));
        assert_eq!(other.admit(one, &rates, now), Ok(()), "each rule counts for itself");
        assert_eq!(shop.admit("192.0.2.2".parse().unwrap(), &rates, now), Ok(()));
        assert_eq!(shop.admit(one, &rates, now + again_in), Ok(()));
        let reloaded = Guard::compile("shop", &config);
        assert!(
            reloaded.admit(one, &rates, now + again_in).is_err(),
            "a reload forgives nothing"
        );
        assert_eq!(Denied::Rate { again_in }.fault(), WebFault::RateLimited);
    }

    #[test]
    fn paths_without_authentication_are_told_apart() {
        let config = web::Guard {
            authentication: Some(web::ForwardAuthentication {
                pool: "sign-in".to_owned(),
                backend: None,
                path: "/check".to_owned(),
                copy: Vec::new(),
                exempt: vec!["/public/*".parse().unwrap(), "/health".parse().unwrap()],
            }),
            ..web::Guard::default()
        };
        let guard = Guard::compile("shop", &config);
        assert!(guard.is_exempt("/Public/a") && guard.is_exempt("/health"));
        assert!(!guard.is_exempt("/public") && !guard.is_exempt("/health/x") && !guard.is_exempt("/"));
        assert!(!Guard::compile("shop", &web::Guard::default()).is_exempt("/"));
    }

    #[test]
    fn the_client_is_the_rightmost_address_that_is_not_trusted() {
        for (peer, lines, expected) in [
            ("127.0.0.2", &["9.9.9.9, 127.0.0.2, 198.51.100.7"][..], "198.51.100.7"),
            ("198.51.100.9", &["9.9.9.9"], "198.51.100.9"),
            ("127.0.0.1", &[], "127.0.0.1"),
            ("127.0.0.1", &["9.9.9.9,10.0.0.1 ,10.0.0.2"], "9.9.9.9"),
            ("127.0.0.1", &["9.9.9.9", "8.8.8.8, 10.0.0.1"], "8.8.8.8"),
            ("127.0.0.1", &["10.0.0.3, 10.0.0.1"], "10.0.0.3"),
            ("127.0.0.1", &["9.9.9.9, unknown, 10.0.0.1"], "10.0.0.1"),
            ("127.0.0.1", &["9.9.9.9, 10.0.0.1, "], "127.0.0.1"),
            ("127.0.0.1", &["9.9.9.9:443, 10.0.0.1:1"], "9.9.9.9"),
            ("127.0.0.1", &["2001:db8::9, [2001:db8:1::1]:443"], "2001:db8::9"),
            ("127.0.0.1", &["[2001:db8::9]"], "2001:db8::9"),
            ("127.0.0.1", &["::ffff:9.9.9.9, ::ffff:10.0.0.1"], "9.9.9.9"),
            ("::ffff:127.0.0.1", &["9.9.9.9"], "9.9.9.9"),
            ("127.0.0.1", &["[2001:db8::9]x"], "127.0.0.1"),
            ("127.0.0.1", &["9.9.9.9:"], "127.0.0.1"),
            ("127.0.0.1", &["9.9.9.9:70000"], "127.0.0.1"),
            ("127.0.0.1", &["é"], "127.0.0.1"),
        ] {
            assert_eq!(client(peer, lines), expected, "{peer} {lines:?}");
        }
    }
}
