//! The cookies of one gateway.

use std::collections::BTreeMap;
use std::fmt;

use cookie::Cookie;
use http::header::SET_COOKIE;
use http::{HeaderMap, HeaderValue};

use crate::types::Secret;

/// Every cookie that the gateway set is returned with every request: that is the protocol.
///
/// One that the gateway lets expire is dropped. What exceeds the bounds is dropped too.
#[derive(Default)]
pub(super) struct Jar {
    cookies: BTreeMap<String, Secret>,
}

impl Jar {
    /// Takes the cookies of a reply.
    pub(super) fn take(&mut self, headers: &HeaderMap) {
        for value in headers.get_all(SET_COOKIE) {
            let Some(cookie) = value.to_str().ok().and_then(|text| Cookie::parse(text).ok()) else {
                continue;
            };
            let name = cookie.name().to_owned();
            if is_over(&cookie) {
                self.cookies.remove(&name);
            } else if name.len() + cookie.value().len() <= LONGEST
                && (self.cookies.len() < MOST || self.cookies.contains_key(&name))
            {
                self.cookies.insert(name, Secret::new(cookie.value()));
            }
        }
    }

    /// The value of the request's header; `None` if there are no cookies.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        let pairs: Vec<_> = self
            .cookies
            .iter()
            .map(|(name, value)| format!("{name}={}", value.expose()))
            .collect();
        let mut value = HeaderValue::try_from(pairs.join("; "))
            .ok()
            .filter(|value| !value.is_empty())?;
        value.set_sensitive(true);
        Some(value)
    }
}

impl fmt::Debug for Jar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.cookies.keys()).finish()
    }
}

/// Whether the gateway takes a cookie back.
fn is_over(cookie: &Cookie<'_>) -> bool {
    let by_age = cookie.max_age().map(|age| !age.is_positive());
    let by_date = || {
        cookie
            .expires_datetime()
            .is_some_and(|at| at.unix_timestamp() <= crate::clock::wall().as_second())
    };
    by_age.unwrap_or_else(by_date)
}

const MOST: usize = 32;
const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(jar: &mut Jar, cookies: &[&str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(SET_COOKIE, HeaderValue::from_str(cookie).unwrap());
        }
        jar.take(&headers);
        jar.header().map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn every_cookie_is_returned_and_the_newest_value_counts() {
        let mut jar = Jar::default();
        assert_eq!(taken(&mut jar, &[]), None);
        let first = [
            "JSESSIONID=a==; Path=/broker; Secure; HttpOnly",
            "com.vmware.vdi.broker.location.id=7",
        ];
        assert_eq!(
            taken(&mut jar, &first).unwrap(),
            "JSESSIONID=a==; com.vmware.vdi.broker.location.id=7"
        );
        assert_eq!(
            taken(&mut jar, &["JSESSIONID=b"]).unwrap(),
            "JSESSIONID=b; com.vmware.vdi.broker.location.id=7"
        );
    }

    #[test]
    fn a_cookie_that_is_over_is_dropped() {
        let mut jar = Jar::default();
        assert_eq!(
            taken(&mut jar, &["a=1", "b=2; Max-Age=60", "c=3"]).unwrap(),
            "a=1; b=2; c=3"
        );
        let over = ["a=; Max-Age=0", "c=; Expires=Thu, 01 Jan 1970 00:00:00 GMT"];
        assert_eq!(taken(&mut jar, &over).unwrap(), "b=2");
    }

    #[test]
    fn a_jar_does_not_grow_without_bound() {
        let mut jar = Jar::default();
        let many: Vec<_> = (0..100).map(|place| format!("c{place}=x")).collect();
        taken(&mut jar, &many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(jar.cookies.len(), MOST);
        taken(&mut jar, &[&format!("c0={}", "x".repeat(5000))]);
        assert_eq!(jar.cookies["c0"].expose(), "x");
    }

    #[test]
    fn values_are_not_printed() {
        let mut jar = Jar::default();
        taken(&mut jar, &["JSESSIONID=hunter2"]);
        assert!(!format!("{jar:?} {:?}", jar.header()).contains("hunter2"));
    }
}
