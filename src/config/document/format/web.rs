//! Texts with a form in what is published for clients of the web: hosts, paths, targets, fields.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Host, text_form};
use crate::config::nearest::nearest;
use crate::config::problem::{Form, Problem, Unpublishable};
use crate::config::web::{BackendHost, ERROR_PAGES};
use crate::types;

/// A host name, or a pattern of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct HostPattern(pub types::HostPattern);

/// A path, or the beginning of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct PathPattern(pub types::PathPattern);

/// A target: host, and maybe a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Address {
    /// Without brackets, in lower case.
    pub host: String,
    pub port: Option<u16>,
}

/// What a target is asked under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct HostForTarget(pub BackendHost);

/// A path without query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct UrlPath(pub String);

/// A path, and maybe a query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct PathAndQuery(pub String);

/// A URL to which clients are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct RedirectUrl(pub http::Uri);

/// The name of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct FieldName(pub http::HeaderName);

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct FieldValue(pub http::HeaderValue);

/// The name of a cookie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct CookieName(pub String);

/// A status, or all from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Statuses(pub RangeInclusive<u16>);

/// The address of a name server; the port is 53 unless it says another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct NameServer(pub SocketAddr);

/// A field of the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct LogField(pub types::AccessField);

/// What a rewrite rule looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Variable(pub types::Variable);

/// Text with variables in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Template(pub types::Template);

/// Checks a text against the form that the schema names.
///
/// # Errors
/// Says how the text breaks it. A form that is not known here holds always: it is a hint for editors.
pub(super) fn check(form: &str, text: &str) -> Result<(), Problem> {
    match form {
        HostPattern::FORM => text.parse::<HostPattern>().map(drop),
        PathPattern::FORM => text.parse::<PathPattern>().map(drop),
        Address::FORM => text.parse::<Address>().map(drop),
        HostForTarget::FORM => text.parse::<HostForTarget>().map(drop),
        UrlPath::FORM => text.parse::<UrlPath>().map(drop),
        PathAndQuery::FORM => text.parse::<PathAndQuery>().map(drop),
        RedirectUrl::FORM => text.parse::<RedirectUrl>().map(drop),
        FieldName::FORM => text.parse::<FieldName>().map(drop),
        FieldValue::FORM => text.parse::<FieldValue>().map(drop),
        CookieName::FORM => text.parse::<CookieName>().map(drop),
        Statuses::FORM => text.parse::<Statuses>().map(drop),
        NameServer::FORM => text.parse::<NameServer>().map(drop),
        LogField::FORM => text.parse::<LogField>().map(drop),
        Variable::FORM => text.parse::<Variable>().map(drop),
        Template::FORM => text.parse::<Template>().map(drop),
        "error-status" => check_error_status(text),
        _ => Ok(()),
    }
}

text_form!(HostPattern, "host-pattern", { "pattern": "^([A-Za-z0-9.*?-]+|[[][0-9A-Fa-f:.]+[]])$" });
text_form!(PathPattern, "path-pattern", { "pattern": "^/[^*?#]*[*]?$" });
text_form!(Address, "target", {});
text_form!(HostForTarget, "host-for-target", {});
text_form!(UrlPath, "url-path", { "pattern": "^/[^?#]*$" });
text_form!(PathAndQuery, "path-and-query", { "pattern": "^/[^#]*$" });
text_form!(RedirectUrl, "redirect-url", { "pattern": "^https?://[^/?#@]+[^#]*$" });
text_form!(FieldName, "field-name", {});
text_form!(FieldValue, "field-value", {});
text_form!(CookieName, "cookie-name", {});
text_form!(Statuses, "statuses", { "pattern": "^[0-9]{3}(-[0-9]{3})?$" });
text_form!(NameServer, "name-server", {});
text_form!(LogField, "log-field", { "enum": types::AccessField::ALL.map(types::AccessField::name).to_vec() });
text_form!(Variable, "variable", { "pattern": "^(http_req|http_resp|var)_" });
text_form!(Template, "template", {});

impl FromStr for HostPattern {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| bad(text, Form::HostPattern))
    }
}

impl FromStr for PathPattern {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| bad(text, Form::PathPattern))
    }
}

impl FromStr for Address {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let (host, port) = match text.rsplit_once(':') {
            // A colon within brackets, or of an address without them, belongs to the address.
            Some((host, port)) if !port.contains(']') && text.parse::<Ipv6Addr>().is_err() => (host, Some(port)),
            _ => (text, None),
        };
        let bad = |_| bad(text, Form::Target);
        let bracketed = host.starts_with('[') || port.is_none() || !host.contains(':');
        let Host(host) = host.parse::<Host>().map_err(bad)?;
        let port = port.map(read_port).transpose().map_err(bad)?;
        if bracketed {
            Ok(Self {
                host: host.to_ascii_lowercase(),
                port,
            })
        } else {
            Err(bad(Problem::Unforeseen))
        }
    }
}

/// A port in digits alone.
fn read_port(text: &str) -> Result<u16, Problem> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port > 0);
    port.ok_or_else(|| bad(text, Form::Target))
}

impl FromStr for HostForTarget {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let host = match text {
            "client" => BackendHost::Client,
            "target" => BackendHost::Target,
            name => {
                let Ok(authority) = name.parse::<types::Authority>() else {
                    return Err(bad(text, Form::HostForTarget));
                };
                BackendHost::Name(authority.to_string())
            }
        };
        Ok(Self(host))
    }
}

impl Serialize for HostForTarget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match &self.0 {
            BackendHost::Client => "client",
            BackendHost::Target => "target",
            BackendHost::Name(name) => name,
        })
    }
}

impl FromStr for UrlPath {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if text.starts_with('/') && graphic(text) && !text.contains(['?', '#']) {
            Ok(Self(text.to_owned()))
        } else {
            Err(bad(text, Form::UrlPath))
        }
    }
}

impl FromStr for PathAndQuery {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if text.starts_with('/') && graphic(text) && !text.contains('#') {
            Ok(Self(text.to_owned()))
        } else {
            Err(bad(text, Form::PathAndQuery))
        }
    }
}

impl FromStr for RedirectUrl {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = || bad(text, Form::RedirectUrl);
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        let known_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
        let authority = uri.authority().ok_or_else(bad)?.as_str();
        let sound =
            known_scheme && graphic(text) && !text.contains('#') && authority.parse::<types::Authority>().is_ok();
        if sound { Ok(Self(uri)) } else { Err(bad()) }
    }
}

impl FromStr for FieldName {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| bad(text, Form::FieldName))
    }
}

impl FromStr for FieldValue {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let plain = text.trim() == text && text.is_ascii();
        let value = text.parse().ok().filter(|_| plain);
        value.map(Self).ok_or_else(|| bad(text, Form::FieldValue))
    }
}

impl FromStr for CookieName {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        // A cookie's name has the letters of a field's name, but keeps their case.
        if text.parse::<http::HeaderName>().is_ok() {
            Ok(Self(text.to_owned()))
        } else {
            Err(bad(text, Form::CookieName))
        }
    }
}

impl FromStr for Statuses {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let status = |text: &str| {
            let number: u16 = text.parse().ok()?;
            (text.len() == 3 && (100..=599).contains(&number)).then_some(number)
        };
        match (status(first), status(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self(first..=last)),
            _ => Err(bad(text, Form::Statuses)),
        }
    }
}

impl Serialize for Statuses {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (first, last) = (self.0.start(), self.0.end());
        if first == last {
            serializer.collect_str(first)
        } else {
            serializer.collect_str(&format_args!("{first}-{last}"))
        }
    }
}

impl FromStr for NameServer {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let alone = bare.unwrap_or(text).parse::<IpAddr>().ok();
        let with_port = || text.parse::<SocketAddr>().ok().filter(|address| address.port() > 0);
        alone
            .map(|ip| SocketAddr::new(ip, 53))
            .or_else(with_port)
            .map(Self)
            .ok_or_else(|| bad(text, Form::NameServer))
    }
}

impl FromStr for LogField {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| {
            let allowed = types::AccessField::ALL.map(|field| field.name().to_owned()).to_vec();
            Problem::NotOneOf {
                value: text.to_owned(),
                nearest: nearest(text, &allowed),
                allowed,
            }
        })
    }
}

impl FromStr for Variable {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| bad(text, Form::Variable))
    }
}

impl FromStr for Template {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse()
            .map(Self)
            .map_err(|why| Unpublishable::Template(why).into())
    }
}

/// Statuses with pages of one's own.
fn check_error_status(text: &str) -> Result<(), Problem> {
    let allowed = ERROR_PAGES.map(|status| status.to_string()).to_vec();
    if allowed.iter().any(|status| status == text) {
        Ok(())
    } else {
        Err(Problem::NotOneOf {
            value: text.to_owned(),
            nearest: None,
            allowed,
        })
    }
}

fn graphic(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_graphic())
}

fn bad(text: &str, form: Form) -> Problem {
    Problem::BadForm {
        value: text.to_owned(),
        form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_are<T: FromStr<Err = Problem>>(good: &[&str], bad: &[&str]) {
        for text in good {
            assert!(text.parse::<T>().is_ok(), "{text}");
        }
        for text in bad {
            assert!(text.parse::<T>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_target_is_a_host_and_maybe_a_port() {
        let read = |text: &str| {
            let Address { host, port } = text.parse().unwrap();
            (host, port)
        };
        assert_eq!(read("10.0.0.5:8080"), ("10.0.0.5".to_owned(), Some(8080)));
        assert_eq!(
            read("Shop-2.Inside.example"),
            ("shop-2.inside.example".to_owned(), None)
        );
        assert_eq!(read("[fd00::1]:80"), ("fd00::1".to_owned(), Some(80)));
        assert_eq!(read("fd00::1"), ("fd00::1".to_owned(), None));
        assert_eq!(read("[fd00::1]"), ("fd00::1".to_owned(), None));
        all_are::<Address>(
            &[],
            &[
                "",
                ":80",
                "a:",
                "a:0",
                "a:+1",
                "a:65536",
                "http://a",
                "10.0.0.256",
                "a b",
                "[a]:80",
                "fd00::g:80",
                "a/b",
            ],
        );
    }

    #[test]
    fn the_host_for_a_target_is_the_clients_the_targets_or_a_name() {
        let read = |text: &str| text.parse::<HostForTarget>().unwrap().0;
        assert_eq!(read("client"), BackendHost::Client);
        assert_eq!(read("target"), BackendHost::Target);
        assert_eq!(
            read("Shop.example:8080"),
            BackendHost::Name("shop.example:8080".to_owned())
        );
        all_are::<HostForTarget>(&["[fd00::1]:80"], &["", "a b", "http://a", "a:0", "*.a"]);
    }

    #[test]
    fn paths_and_urls_are_such() {
        all_are::<UrlPath>(&["/", "/a%20b/"], &["", "a", "/a?b", "/a#b", "/a b", "/ä"]);
        all_are::<PathAndQuery>(&["/", "/health?full=1"], &["", "health", "/a#b", "/a b"]);
        all_are::<RedirectUrl>(
            &["https://a.example", "http://a.example:8080/b?c=d", "https://[fd00::1]/"],
            &[
                "",
                "/a",
                "a.example",
                "ftp://a",
                "https://",
                "https://u@a",
                "https://a/#b",
                "https://a b",
                "https://a:0/",
            ],
        );
    }

    #[test]
    fn fields_cannot_smuggle_lines() {
        all_are::<FieldName>(&["X-A", "x_a", "x.a"], &["", "x a", "x:", "x\n", "ä"]);
        all_are::<FieldValue>(
            &["", "a b", "max-age=1; x=\"y\""],
            &[" a", "a ", "a\r\nb: c", "a\0", "ä"],
        );
        all_are::<CookieName>(&["Shop", "__Host-a"], &["", "a=b", "a;b", "a b"]);
    }

    #[test]
    fn statuses_stand_alone_or_from_one_to_another() {
        assert_eq!("200".parse(), Ok(Statuses(200..=200)));
        assert_eq!("200-399".parse(), Ok(Statuses(200..=399)));
        all_are::<Statuses>(
            &["100", "599"],
            &["", "20", "600", "099", "300-200", "200-", "-200", "+200", "200-20x"],
        );
        assert!(check("error-status", "502").is_ok() && check("error-status", "501").is_err());
    }

    #[test]
    fn a_name_server_is_an_address() {
        let read = |text: &str| text.parse::<NameServer>().unwrap().0.to_string();
        assert_eq!(read("10.0.0.53"), "10.0.0.53:53");
        assert_eq!(read("fd00::53"), "[fd00::53]:53");
        assert_eq!(read("[fd00::53]:5353"), "[fd00::53]:5353");
        all_are::<NameServer>(&[], &["", "dns.example", "10.0.0.53:0", ":53"]);
    }
}
