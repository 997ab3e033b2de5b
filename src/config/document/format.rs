//! Texts with a form: durations, addresses, names. Each knows its parser, its JSON Schema and its fault.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::str::FromStr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::config::ExternalUrl;
use crate::config::problem::{Form, Problem};
use crate::types::{self, NodeName};

mod time_span;
pub(in crate::config) mod web;

pub(in crate::config) use time_span::TimeSpan;

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct Bind(pub SocketAddr);

/// A network; an address alone is a network of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct Network(pub IpNet);

/// A host name, or an address without brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Host(pub String);

/// Scheme https, a host and maybe a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct BaseUrl(pub String);

/// Host, and maybe a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Authority(pub types::Authority);

/// A base URL, and the UDP port that stands after `?udpport=`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct BlastUrl(pub ExternalUrl);

/// An IPv4 address; the port is 4172 unless it says another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct PcoipAddress(pub SocketAddrV4);

/// A SHA-256 thumbprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::config) struct Thumbprint(pub types::Thumbprint);

/// A node's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) struct Name(pub NodeName);

/// A log level, or several with the modules they are for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct Levels(pub String);

/// An absolute path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in crate::config) struct Path(pub PathBuf);

/// Checks a text against the form that the schema names.
///
/// # Errors
/// Says how the text breaks it. A form that is not known here holds always: it is a hint for editors.
pub(in crate::config) fn check(form: &str, text: &str) -> Result<(), Problem> {
    match form {
        TimeSpan::FORM => text.parse::<TimeSpan>().map(drop),
        Bind::FORM => text.parse::<Bind>().map(drop),
        Network::FORM => text.parse::<Network>().map(drop),
        Host::FORM => text.parse::<Host>().map(drop),
        BaseUrl::FORM => text.parse::<BaseUrl>().map(drop),
        Authority::FORM => text.parse::<Authority>().map(drop),
        BlastUrl::FORM => text.parse::<BlastUrl>().map(drop),
        PcoipAddress::FORM => text.parse::<PcoipAddress>().map(drop),
        Thumbprint::FORM => text.parse::<Thumbprint>().map(drop),
        Name::FORM => text.parse::<Name>().map(drop),
        Levels::FORM => text.parse::<Levels>().map(drop),
        Path::FORM => text.parse::<Path>().map(drop),
        "name" => check_name(text),
        "user-name" => check_user_name(text),
        other => web::check(other, text),
    }
}

/// Reads, checks and describes a text by one parser.
macro_rules! text_form {
    ($type:ident, $form:literal, { $($keyword:literal: $value:expr),* }) => {
        impl $type {
            /// The word for this form in the schema.
            pub(in crate::config) const FORM: &'static str = $form;
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "format": $form $(, $keyword: $value)* })
            }
        }
    };
}

use text_form;

text_form!(TimeSpan, "time-span", { "pattern": "^[0-9]+ ?(ms|s|min|h)$" });
text_form!(Bind, "bind", {});
text_form!(Network, "network", {});
text_form!(Host, "host", {});
text_form!(BaseUrl, "base-url", { "pattern": "^https://[^/?#@]+$" });
text_form!(Authority, "authority", {});
text_form!(BlastUrl, "blast-url", { "pattern": "^https://[^/?#@]+([?]udpport=[0-9]+)?$" });
text_form!(PcoipAddress, "pcoip-address", { "pattern": "^[0-9.]+(:[0-9]+)?$" });
text_form!(Thumbprint, "thumbprint", {});
text_form!(Name, "node-name", { "pattern": "^[A-Za-z0-9][A-Za-z0-9.-]{0,23}$" });
text_form!(Levels, "log-levels", {});
text_form!(Path, "absolute-path", { "pattern": "^/" });

impl FromStr for Bind {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = || Problem::BadForm {
            value: text.to_owned(),
            form: Form::Bind,
        };
        let address: SocketAddr = text.parse().map_err(|_| bad())?;
        if let IpAddr::V6(v6) = address.ip()
            && let Some(v4) = v6.to_ipv4_mapped()
        {
            let plain = SocketAddr::new(v4.into(), address.port()).to_string();
            return Err(Problem::MappedAddress {
                value: text.to_owned(),
                plain,
            });
        }
        let broadcast = address.ip() == IpAddr::V4(Ipv4Addr::BROADCAST);
        if address.ip().is_multicast() || broadcast {
            Err(bad())
        } else {
            Ok(Self(address))
        }
    }
}

impl FromStr for Network {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = |_| Problem::BadForm {
            value: text.to_owned(),
            form: Form::Network,
        };
        let network = if text.contains('/') {
            text.parse::<IpNet>().map_err(|_| bad(()))?
        } else {
            IpNet::from(text.parse::<IpAddr>().map_err(|_| bad(()))?)
        };
        if let IpNet::V6(v6) = network
            && let Some(v4) = v6.addr().to_ipv4_mapped()
        {
            return Err(Problem::MappedAddress {
                value: text.to_owned(),
                plain: v4.to_string(),
            });
        }
        if network.trunc() == network {
            Ok(Self(network))
        } else {
            Err(Problem::HostBits {
                value: text.to_owned(),
                network: network.trunc().to_string(),
            })
        }
    }
}

impl FromStr for Host {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let known = match bare {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => text.parse::<IpAddr>().is_ok() || is_host_name(text),
        };
        if known {
            Ok(Self(bare.unwrap_or(text).to_owned()))
        } else {
            Err(Problem::BadForm {
                value: text.to_owned(),
                form: Form::Host,
            })
        }
    }
}

/// A name by RFC 1123; all digits at the end would be a mistyped address.
fn is_host_name(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let last = name.rsplit('.').next().unwrap_or(name);
    name.len() <= 253 && name.split('.').all(label) && !last.bytes().all(|b| b.is_ascii_digit())
}

impl FromStr for BaseUrl {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = || Problem::BadForm {
            value: text.to_owned(),
            form: Form::BaseUrl,
        };
        let rest = text.strip_prefix("https://").ok_or_else(bad)?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, beyond) = rest.split_at(end);
        let (host, port) = match authority.rsplit_once(':') {
            // A colon within brackets belongs to the address.
            Some((host, port)) if !port.contains(']') => (host, Some(port)),
            _ => (authority, None),
        };
        // An address with colons needs its brackets in a URL.
        let host_holds = host.parse::<Host>().is_ok() && (host.starts_with('[') || !host.contains(':'));
        let port_holds =
            port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+'));
        if !host_holds || !port_holds {
            return Err(bad());
        }
        if beyond.is_empty() {
            Ok(Self(text.to_owned()))
        } else {
            Err(Problem::NotABase {
                value: text.to_owned(),
                base: format!("https://{authority}"),
            })
        }
    }
}

impl FromStr for Authority {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| Problem::BadForm {
            value: text.to_owned(),
            form: Form::Authority,
        })
    }
}

impl FromStr for BlastUrl {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let bad = || Problem::BadForm {
            value: text.to_owned(),
            form: Form::BlastUrl,
        };
        let (base, udp_port) = match text.split_once("?udpport=") {
            Some((base, port)) => (base, Some(port.parse().ok().filter(|port| *port > 0).ok_or_else(bad)?)),
            None => (text, None),
        };
        let authority = base.parse::<BaseUrl>().map_err(|_| bad())?.0;
        let authority: types::Authority = authority
            .strip_prefix("https://")
            .and_then(|authority| authority.parse().ok())
            .ok_or_else(bad)?;
        Ok(Self(ExternalUrl {
            port: authority.port.unwrap_or(443),
            host: authority.host,
            udp_port,
        }))
    }
}

impl FromStr for PcoipAddress {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let with_port = || text.parse::<SocketAddrV4>().ok().filter(|address| address.port() > 0);
        let alone = || text.parse::<Ipv4Addr>().ok().map(|ip| SocketAddrV4::new(ip, 4172));
        with_port().or_else(alone).map(Self).ok_or_else(|| Problem::BadForm {
            value: text.to_owned(),
            form: Form::PcoipAddress,
        })
    }
}

impl FromStr for Thumbprint {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| Problem::BadForm {
            value: text.to_owned(),
            form: Form::Thumbprint,
        })
    }
}

impl FromStr for Name {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        text.parse().map(Self).map_err(|_| Problem::BadForm {
            value: text.to_owned(),
            form: Form::NodeName,
        })
    }
}

impl FromStr for Levels {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let level = |word: &str| {
            ["off", "error", "warn", "info", "debug", "trace"]
                .iter()
                .any(|level| level.eq_ignore_ascii_case(word))
        };
        let module = |word: &str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b':')
        };
        let directive = |part: &str| match part.split_once('=') {
            Some((before, after)) => module(before) && level(after),
            None => level(part),
        };
        if text.split(',').all(directive) {
            Ok(Self(text.to_owned()))
        } else {
            Err(Problem::BadForm {
                value: text.to_owned(),
                form: Form::Levels,
            })
        }
    }
}

impl FromStr for Path {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        if text.starts_with('/') && !text.contains('\0') {
            Ok(Self(PathBuf::from(text)))
        } else {
            Err(Problem::BadForm {
                value: text.to_owned(),
                form: Form::AbsolutePath,
            })
        }
    }
}

/// Names of listeners, certificates and desktops: they stand in logs, metrics and URLs.
fn check_name(text: &str) -> Result<(), Problem> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let holds = text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.len() <= 64 && text.chars().all(allowed);
    if holds {
        Ok(())
    } else {
        Err(Problem::BadForm {
            value: text.to_owned(),
            form: Form::Name,
        })
    }
}

/// A backslash parts domain and user where users type both.
fn check_user_name(text: &str) -> Result<(), Problem> {
    let holds = (1..=128).contains(&text.chars().count())
        && text.trim() == text
        && !text.chars().any(|c| c.is_control() || c == '\\');
    if holds {
        Ok(())
    } else {
        Err(Problem::BadForm {
            value: text.to_owned(),
            form: Form::UserName,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remedy<T: FromStr<Err = Problem> + std::fmt::Debug>(text: &str) -> String {
        text.parse::<T>().unwrap_err().remedy()
    }

    #[test]
    fn an_address_to_listen_on_is_plain() {
        assert!("0.0.0.0:443".parse::<Bind>().is_ok());
        assert!("[::1]:0".parse::<Bind>().is_ok());
        for bad in [
            "443",
            ":443",
            "localhost:443",
            "10.0.0.1",
            "10.0.0.1:99999",
            "::1:443",
            "224.0.0.1:443",
        ] {
            assert!(bad.parse::<Bind>().is_err(), "{bad}");
        }
        assert_eq!(remedy::<Bind>("[::ffff:10.0.0.1]:443"), r#"Write "10.0.0.1:443"."#);
    }

    #[test]
    fn a_network_has_no_bits_beyond_its_prefix() {
        assert_eq!(
            "10.0.0.5".parse::<Network>().map(|n| n.0.to_string()),
            Ok("10.0.0.5/32".to_owned())
        );
        assert!("10.0.0.0/8".parse::<Network>().is_ok());
        assert!("fd00::/8".parse::<Network>().is_ok());
        assert_eq!(
            remedy::<Network>("10.1.0.0/8"),
            r#"Write "10.0.0.0/8", or the address alone."#
        );
        for bad in ["10.0.0.0/33", "10.0.0.0/", "desk", ""] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_an_address_or_a_name() {
        assert_eq!("[fd00::5]".parse::<Host>(), Ok(Host("fd00::5".to_owned())));
        for good in ["10.0.0.5", "fd00::5", "desk-7", "desk-7.example.com", "a.b.", "x_y"] {
            assert!(good.parse::<Host>().is_ok(), "{good}");
        }
        for bad in [
            "",
            "10.0.0.256",
            "10.0.0",
            "desk:3389",
            "-desk",
            "desk..example",
            "a b",
            "ä.example",
            "[desk]",
        ] {
            assert!(bad.parse::<Host>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_base_url_is_https_and_nothing_more() {
        for good in [
            "https://gw.example.com",
            "https://gw.example.com:8443",
            "https://[fd00::1]:443",
            "https://[fd00::1]",
        ] {
            assert!(good.parse::<BaseUrl>().is_ok(), "{good}");
        }
        for bad in [
            "http://gw",
            "https://",
            "https://a@gw",
            "https://gw:",
            "https://gw:0",
            "https://gw:+1",
            "https://fd00::1",
            "gw",
        ] {
            assert!(bad.parse::<BaseUrl>().is_err(), "{bad}");
        }
        assert_eq!(
            remedy::<BaseUrl>("https://gw.example.com/"),
            r#"Write "https://gw.example.com"."#
        );
        assert_eq!(
            remedy::<BaseUrl>("https://gw:8443/broker?x"),
            r#"Write "https://gw:8443"."#
        );
    }

    #[test]
    fn a_mistyped_log_level_is_no_module() {
        for good in ["info", "WARN", "info,portcullis::tunnel=debug", "portcullis=trace"] {
            assert!(good.parse::<Levels>().is_ok(), "{good}");
        }
        for bad in ["", "inof", "info,", "portcullis=loud", "=info", "a b=info"] {
            assert!(bad.parse::<Levels>().is_err(), "{bad}");
        }
    }

    #[test]
    fn names_can_stand_anywhere() {
        assert!(check("name", "public-2").is_ok());
        assert!(check("name", "a/b").is_err());
        assert!(check("name", "").is_err());
        assert!(check("user-name", "a.okafor@example.com").is_ok());
        assert!(check("user-name", " ann").is_err());
        assert!(check("user-name", "LAB\\ann").is_err());
    }
}
