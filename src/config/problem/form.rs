//! The forms that a text can be required to have, and the words for them.

use std::fmt;

/// The forms that a text can be required to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An address and a port to listen on.
    Bind,
    /// An address or a network.
    Network,
    /// A host name or address.
    Host,
    /// The base URL of this node.
    BaseUrl,
    /// A host, and maybe a port.
    Authority,
    /// The URL of Blast.
    BlastUrl,
    /// An IPv4 address, and maybe a port.
    PcoipAddress,
    /// A SHA-256 thumbprint.
    Thumbprint,
    /// A node name.
    NodeName,
    /// A log level or list of directives.
    Levels,
    /// An absolute path.
    AbsolutePath,
    /// A name of something configured.
    Name,
    /// A user name.
    UserName,
    /// A host name or a pattern of several.
    HostPattern,
    /// A path or the beginning of several.
    PathPattern,
    /// A target.
    Target,
    /// What a target is asked under.
    HostForTarget,
    /// A path.
    UrlPath,
    /// A path, and maybe a query.
    PathAndQuery,
    /// A URL to which clients are sent.
    RedirectUrl,
    /// The name of a field.
    FieldName,
    /// The value of a field.
    FieldValue,
    /// The name of a cookie.
    CookieName,
    /// A status or a range of them.
    Statuses,
    /// The address of a name server.
    NameServer,
    /// What a rewrite rule looks at.
    Variable,
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bind => "address to listen on",
            Self::Network => "address or network",
            Self::Host => "host",
            Self::BaseUrl => "base URL",
            Self::Authority => "host",
            Self::BlastUrl => "URL for Blast",
            Self::PcoipAddress => "IPv4 address",
            Self::Thumbprint => "SHA-256 thumbprint",
            Self::NodeName => "node name",
            Self::Levels => "log level",
            Self::AbsolutePath => "absolute path",
            Self::Name => "name",
            Self::UserName => "user name",
            Self::HostPattern => "host or pattern of hosts",
            Self::PathPattern => "path",
            Self::Target => "target",
            Self::HostForTarget => "host",
            Self::UrlPath => "path",
            Self::PathAndQuery => "path",
            Self::RedirectUrl => "URL",
            Self::FieldName => "name of a field",
            Self::FieldValue => "value of a field",
            Self::CookieName => "name of a cookie",
            Self::Statuses => "status",
            Self::NameServer => "address of a name server",
            Self::Variable => "variable",
        })
    }
}

impl Form {
    /// What such a text looks like.
    pub(super) fn remedy(self) -> &'static str {
        match self {
            Self::Bind => r#"Write an address and a port, such as "0.0.0.0:443" or "[::]:443"."#,
            Self::Network => r#"Write an address or a network, such as "10.0.0.5" or "10.0.0.0/24"."#,
            Self::Host => {
                r#"Write an address or a host name without port, such as "10.0.0.5" or "desk-7.example.com"."#
            }
            Self::BaseUrl => r#"Write "https://", a host, and a port if it is not 443: "https://gw-1.example.com"."#,
            Self::Authority => r#"Write a host, and a port if only that is meant: "gw-1.example.com:8443"."#,
            Self::BlastUrl => {
                r#"Write "https://", a host, and ports where they are not 443: "https://gw-1.example.com:8443?udpport=8443"."#
            }
            Self::PcoipAddress => r#"Write an IPv4 address, and a port if it is not 4172: "203.0.113.10"."#,
            Self::Thumbprint => "Write 64 hexadecimal digits, as from: openssl x509 -fingerprint -sha256.",
            Self::NodeName => r#"Write 1 to 24 letters, digits, "." or "-", a letter or digit first, such as "gw-1"."#,
            Self::Levels => r#"Write off, error, warn, info, debug or trace, or "info,portcullis::tunnel=debug"."#,
            Self::AbsolutePath => r#"Write a path that starts with "/"."#,
            Self::Name => r#"Use 1 to 64 letters, digits, "-", "_" or ".", a letter or digit first."#,
            Self::UserName => {
                r"Use 1 to 128 characters without spaces around them, and without control characters or \."
            }
            Self::HostPattern => {
                r#"Use letters, digits, "-" and ".", at most four wildcards ("*" for any characters, "?" for one), "*" once in a label and twice in all. Or an IPv6 address in brackets: "[2001:db8::1]"."#
            }
            Self::PathPattern => {
                r##"Write a path that starts with "/", without "?" and "#"; "*" may stand at its end only: "/images/*"."##
            }
            Self::Target => {
                r#"Write a host, and a port if it is not the backend's: "10.0.0.5:8080" or "[fd00::5]:8080"."#
            }
            Self::HostForTarget => r#"Write "client", "target" or a host: "shop.inside.example"."#,
            Self::UrlPath => r##"Write a path that starts with "/", percent-encoded, without "?" and "#": "/v2/"."##,
            Self::PathAndQuery => {
                r##"Write a path that starts with "/", percent-encoded, without "#": "/health?full=1"."##
            }
            Self::RedirectUrl => {
                r#"Write "https://" or "http://", a host, and a path if there is one: "https://www.example.com/shop"."#
            }
            Self::FieldName => r#"Write the name alone, without colon and spaces: "X-Frame-Options"."#,
            Self::FieldValue => "Write visible ASCII characters on one line, without spaces around them.",
            Self::CookieName => r#"Use letters, digits, "-" and "_", such as "ShopAffinity"."#,
            Self::Statuses => r#"Write a status, or the first and the last one: "200" or "200-399"."#,
            Self::NameServer => r#"Write an address, and a port if it is not 53: "10.0.0.53" or "[fd00::53]:5353"."#,
            Self::Variable => {
                r#"Write "http_req_NAME", "http_resp_NAME", "var_cookie_NAME" or "var_NAME" with a server variable's name: "var_uri_path"."#
            }
        }
    }
}
