//! Forward authentication: a service of the inside is asked about each request before it goes on.
//!
//! Only decisions are made here: what the service is asked, and what its answer means. The request goes by the same way as
//! any other to a target; it has no body, and the client's waits meanwhile.

use std::net::SocketAddr;

use http::header::{
    ACCEPT, ACCEPT_LANGUAGE, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::config::web::ForwardAuthentication;

/// What the service is told of the request in question.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The client's method.
    pub method: &'a Method,
    /// Path and query, as the client sent them.
    pub target: &'a str,
    /// The host that the client asked for.
    pub host: &'a str,
    /// Whether the client came by TLS.
    pub is_tls: bool,
    /// The client, as far as it can be believed.
    pub client: SocketAddr,
    /// The client's fields.
    pub fields: &'a HeaderMap,
}

/// What becomes of the request in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, with fields of the answer: see [`admit`].
    Admit,
    /// The client gets the service's answer.
    Answer,
}

/// The request that asks the service: `GET` of its path, with the client's proofs and with what it wants, and nothing else of
/// the client's. `Host` is left to whoever sends it.
pub fn request(authentication: &ForwardAuthentication, asked: &Asked<'_>) -> Request<()> {
    let mut request = Request::new(());
    *request.version_mut() = Version::HTTP_11;
    // The configuration was checked: it is a path.
    *request.uri_mut() = authentication.path.parse().unwrap_or(Uri::from_static("/"));
    let fields = request.headers_mut();
    for name in &PASSED {
        for value in asked.fields.get_all(name) {
            fields.append(name, value.clone());
        }
    }
    let scheme = if asked.is_tls { "https" } else { "http" };
    put(fields, &METHOD, asked.method.as_str());
    put(fields, &PROTO, scheme);
    put(fields, &FORWARDED_HOST, asked.host);
    put(fields, &URI, asked.target);
    put(fields, &FOR, &asked.client.ip().to_canonical().to_string());
    request
}

/// What the service's answer means: 2xx admits.
pub fn judge(status: StatusCode) -> Verdict {
    if status.is_success() {
        Verdict::Admit
    } else {
        Verdict::Answer
    }
}

/// Takes out of a request what only the service may say. For every request of the rule, exempt ones too, before anything else
/// is added: whoever asks must not be able to say who they are.
pub fn strip(authentication: &ForwardAuthentication, fields: &mut HeaderMap) {
    for name in &authentication.copy {
        fields.remove(name);
    }
}

/// Puts fields of the service's answer into the request that it admits; what it does not say stays away.
pub fn admit(authentication: &ForwardAuthentication, answer: &HeaderMap, fields: &mut HeaderMap) {
    for name in authentication.copy.iter().filter(|name| !NEVER_COPIED.contains(name)) {
        fields.remove(name);
        for value in answer.get_all(name) {
            fields.append(name, value.clone());
        }
    }
}

fn put(fields: &mut HeaderMap, name: &HeaderName, value: &str) {
    // All of it was part of a head that was read: it can be part of one again.
    if let Ok(value) = HeaderValue::from_str(value) {
        fields.insert(name, value);
    }
}

/// What the service sees of the client: its proofs, and by what to choose between a page and a status.
const PASSED: [HeaderName; 6] = [
    ACCEPT,
    ACCEPT_LANGUAGE,
    AUTHORIZATION,
    COOKIE,
    USER_AGENT,
    HeaderName::from_static("x-requested-with"),
];

const METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What says where a message begins and ends, or to whom it goes.
const NEVER_COPIED: [HeaderName; 7] = [
    CONNECTION,
    CONTENT_LENGTH,
    HOST,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_told_what_was_asked_and_by_whom() {
        let mut client = HeaderMap::new();
        for (name, value) in [
            ("cookie", "a=1"),
            ("cookie", "b=2"),
            ("authorization", "Basic eDp5"),
            ("accept", "text/html"),
            ("content-length", "5"),
            ("x-forwarded-uri", "/public"),
            ("x-user", "root"),
            ("expect", "100-continue"),
        ] {
            client.append(name, HeaderValue::from_static(value));
        }
        let request = request(&service(), &asked(&Method::POST, &client));
        assert_eq!((request.method(), request.uri().path()), (&Method::GET, "/auth"));
        let all = |name: &str| -> Vec<_> {
            request
                .headers()
                .get_all(name)
                .iter()
                .map(|v| v.to_str().unwrap())
                .collect()
        };
        assert_eq!(all("cookie"), ["a=1", "b=2"]);
        assert_eq!(all("authorization"), ["Basic eDp5"]);
        assert_eq!(all("x-forwarded-method"), ["POST"]);
        assert_eq!(all("x-forwarded-uri"), ["/private?x=%20y"]);
        assert_eq!(all("x-forwarded-host"), ["shop.example.com"]);
        assert_eq!(all("x-forwarded-proto"), ["https"]);
        assert_eq!(all("x-forwarded-for"), ["192.0.2.1"]);
        for gone in ["content-length", "x-user", "expect"] {
            assert!(all(gone).is_empty(), "{gone}");
        }
    }

    #[test]
    fn only_success_admits() {
        for code in [200, 202, 204, 299] {
            assert_eq!(judge(StatusCode::from_u16(code).unwrap()), Verdict::Admit, "{code}");
        }
        for code in [101, 300, 302, 401, 403, 404, 500, 503] {
            assert_eq!(judge(StatusCode::from_u16(code).unwrap()), Verdict::Answer, "{code}");
        }
    }

    #[test]
    fn nobody_but_the_service_says_who_the_client_is() {
        let service = service();
        let mut fields = HeaderMap::new();
        fields.append("x-user", HeaderValue::from_static("root"));
        fields.append("x-groups", HeaderValue::from_static("all"));
        strip(&service, &mut fields);
        assert!(fields.is_empty());
        // It may also say nothing.
        let mut answer = HeaderMap::new();
        answer.append("x-user", HeaderValue::from_static("ann"));
        answer.append("x-secret", HeaderValue::from_static("inside"));
        answer.append("content-length", HeaderValue::from_static("7"));
        fields.append("x-groups", HeaderValue::from_static("all"));
        admit(&service, &answer, &mut fields);
        assert_eq!(fields.len(), 1);
        assert_eq!(fields["x-user"], "ann");
    }

    fn asked<'a>(method: &'a Method, fields: &'a HeaderMap) -> Asked<'a> {
        Asked {
            method,
            target: "/private?x=%20y",
            host: "shop.example.com",
            is_tls: true,
            client: "[::ffff:192.0.2.1]:5000".parse().unwrap(),
            fields,
        }
    }

    fn service() -> ForwardAuthentication {
        ForwardAuthentication {
            pool: "auth".into(),
            backend: None,
            path: "/auth".into(),
            copy: ["x-user", "x-groups", "content-length"]
                .map(HeaderName::from_static)
                .into(),
            exempt: vec!["/public/*".parse().unwrap()],
        }
    }
}
