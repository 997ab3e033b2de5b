//! The answer to a launch.

use std::fmt;

use super::Flaw;
use crate::control::xml::Element;
use crate::types::Secret;

/// Where the display protocol connects, or which server to ask instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Launch {
    /// Connect here.
    Connect(Box<Connection>),
    /// From 15.0: continue at another server.
    Redirect {
        /// Its URL.
        url: String,
        /// A token that signs the user in there.
        token: Option<Secret>,
    },
}

/// Where and how the display protocol connects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// What was launched.
    pub id: String,
    /// Host name or address. Through the tunnel it is `localhost`.
    pub address: String,
    /// TCP port. Through the tunnel it is one of the client's own.
    pub port: u16,
    /// The protocol as granted, such as `RDP`; some clients take none for RDP.
    pub protocol: Option<String>,
    /// For single sign-on at the desktop.
    pub user_name: Option<String>,
    /// For single sign-on at the desktop.
    pub password: Option<Secret>,
    /// For single sign-on at the desktop.
    pub domain_name: Option<String>,
    /// The ticket that the display protocol presents.
    pub token: Option<Secret>,
    /// Further connections of the same session.
    pub additional_listeners: Vec<AdditionalListener>,
    /// The channel for devices.
    pub framework_channel: FrameworkChannel,
    /// Whether devices may be passed on.
    pub enable_usb: bool,
    /// Whether media may be passed on.
    pub enable_mmr: bool,
    /// Whether devices go through a channel of the display protocol.
    pub enable_usb_virtual_channel: Option<bool>,
    /// Whether the client measures times.
    pub enable_timing_profiler: Option<bool>,
    /// An identifier of this launch.
    pub action_id: Option<String>,
    /// Minutes after which a session without a client is ended.
    pub logoff_after_disconnect_minutes: Option<i64>,
    /// Applications only: the session.
    pub session_id: Option<String>,
    /// Applications only: whether a connection must be made for it.
    pub new_connection_needed: Option<bool>,
}

/// A further connection of a session, such as `FRAMEWORKCHANNEL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdditionalListener {
    /// Its name.
    pub name: String,
    /// Host name, IPv4 literal, or IPv6 literal without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// What the channel for devices needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameworkChannel {
    /// Its credential.
    pub ticket: Option<Secret>,
    /// The thumbprint of the certificate that it shows, in pairs of hex digits with colons.
    pub thumbprint: Option<String>,
    /// The algorithm of that, such as `SHA-256`.
    pub thumbprint_algorithm: Option<String>,
}

impl Launch {
    pub(super) fn read(element: &Element) -> Result<Self, Flaw> {
        match element.child("protocol-redirect-settings") {
            Some(settings) => Ok(Self::Redirect {
                url: settings.required("url")?,
                token: settings.secret("jwt-at"),
            }),
            None => Ok(Self::Connect(Box::new(Connection::read(element)?))),
        }
    }

    pub(super) fn write(&self, out: &mut Element) {
        match self {
            Self::Connect(connection) => connection.write(out),
            Self::Redirect { url, token } => {
                let mut settings = Element::new("protocol-redirect-settings");
                settings.push_leaf("url", url);
                settings.push_secret("jwt-at", token.as_ref());
                out.push(settings);
            }
        }
    }
}

impl Connection {
    fn read(element: &Element) -> Result<Self, Flaw> {
        let settings = element.child("protocol-settings");
        let listeners = element.child("additional-listeners").into_iter();
        let listeners = listeners.flat_map(|section| section.named("additional-listener"));
        Ok(Self {
            id: element.string("id"),
            address: element
                .optional_word("address")
                .ok_or(Flaw::Missing { field: "address" })?,
            port: element.number("port")?.ok_or(Flaw::Missing { field: "port" })?,
            protocol: element.optional_word("protocol"),
            user_name: element.optional("user-name"),
            password: element.secret("password"),
            domain_name: element.optional("domain-name"),
            token: settings.and_then(|settings| settings.secret("token")),
            additional_listeners: listeners.map(AdditionalListener::read).collect::<Result<_, _>>()?,
            framework_channel: FrameworkChannel::read(element),
            enable_usb: element.flag("enable-usb"),
            enable_mmr: element.flag("enable-mmr"),
            enable_usb_virtual_channel: element.optional_flag("enable-usb-virtual-channel"),
            enable_timing_profiler: element.optional_flag("enable-timing-profiler"),
            action_id: element.optional("action-id"),
            logoff_after_disconnect_minutes: element.number("logoff-after-disconnect-minutes")?,
            session_id: element.optional("session-id"),
            new_connection_needed: element.optional_flag("new-connection-needed"),
        })
    }

    fn write(&self, out: &mut Element) {
        out.push_leaf("id", &self.id);
        out.push_leaf("address", &self.address);
        out.push_number("port", Some(self.port));
        out.push_optional("protocol", self.protocol.as_deref());
        out.push_optional("user-name", self.user_name.as_deref());
        out.push_secret("password", self.password.as_ref());
        out.push_optional("domain-name", self.domain_name.as_deref());
        out.push_flag("enable-usb", self.enable_usb);
        out.push_flag("enable-mmr", self.enable_mmr);
        if let Some(flag) = self.enable_usb_virtual_channel {
            out.push_flag("enable-usb-virtual-channel", flag);
        }
        if let Some(flag) = self.enable_timing_profiler {
            out.push_flag("enable-timing-profiler", flag);
        }
        if let Some(token) = &self.token {
            let mut settings = Element::new("protocol-settings");
            settings.push_secret("token", Some(token));
            out.push(settings);
        }
        if !self.additional_listeners.is_empty() {
            let mut section = Element::new("additional-listeners");
            for listener in &self.additional_listeners {
                section.push(listener.write());
            }
            out.push(section);
        }
        self.framework_channel.write(out);
        out.push_optional("action-id", self.action_id.as_deref());
        out.push_number("logoff-after-disconnect-minutes", self.logoff_after_disconnect_minutes);
        out.push_optional("session-id", self.session_id.as_deref());
        if let Some(flag) = self.new_connection_needed {
            out.push_flag("new-connection-needed", flag);
        }
    }
}

impl AdditionalListener {
    const FIELD: &'static str = "additional-listener";

    fn read(element: &Element) -> Result<Self, Flaw> {
        let malformed = Flaw::Malformed { field: Self::FIELD };
        let name = element.attribute("name").ok_or(malformed)?;
        let (host, port) = element.word().rsplit_once(':').ok_or(malformed)?;
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '[' | ']');
        if host.is_empty() || host.contains(is_odd) || !port.bytes().all(|b| b.is_ascii_digit()) {
            return Err(malformed);
        }
        let port = port.parse().map_err(|_| malformed)?;
        Ok(Self {
            name: name.to_owned(),
            host: host.to_owned(),
            port,
        })
    }

    fn write(&self) -> Element {
        Element::new(Self::FIELD)
            .with_attribute("name", &self.name)
            .with_text(&self.to_string())
    }
}

impl fmt::Display for AdditionalListener {
    /// The address as `host:port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FrameworkChannel {
    fn read(element: &Element) -> Self {
        Self {
            ticket: element.secret("framework-channel-ticket"),
            thumbprint: element.optional_word("framework-channel-certificate-thumbprint"),
            thumbprint_algorithm: element.optional_word("framework-channel-certificate-thumbprint-algorithm"),
        }
    }

    fn write(&self, out: &mut Element) {
        out.push_secret("framework-channel-ticket", self.ticket.as_ref());
        out.push_optional("framework-channel-certificate-thumbprint", self.thumbprint.as_deref());
        let algorithm = self.thumbprint_algorithm.as_deref();
        out.push_optional("framework-channel-certificate-thumbprint-algorithm", algorithm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(text: &str) -> Result<AdditionalListener, Flaw> {
        let element = Element::new("additional-listener").with_attribute("name", "VDPSERVICECHANNEL");
        AdditionalListener::read(&element.with_text(text))
    }

    #[test]
    fn an_additional_listener_is_a_host_and_a_port() {
        let read = listener("127.0.0.1:40001").unwrap();
        assert_eq!((read.host.as_str(), read.port), ("127.0.0.1", 40001));
        assert_eq!(
            listener("[2001:db8::7]:9427").unwrap().to_string(),
            "[2001:db8::7]:9427"
        );
        for bad in [
            "127.0.0.1",
            "h:",
            ":1",
            "[[h]]:1",
            "[h:1",
            "a b:1",
            "h:65536",
            "h:+1",
            "h:1x",
            "",
        ] {
            assert!(listener(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_launch_without_a_port_is_refused() {
        let mut element = Element::new("desktop-connection");
        element.push_leaf("address", "localhost");
        assert_eq!(Launch::read(&element), Err(Flaw::Missing { field: "port" }));
        element.push_leaf("port", "70000");
        assert_eq!(Launch::read(&element), Err(Flaw::NotANumber { field: "port" }));
    }

    #[test]
    fn secrets_of_a_launch_are_not_printed() {
        let connection = Connection {
            password: Some(Secret::new("hunter2")),
            token: Some(Secret::new("ticket7")),
            framework_channel: FrameworkChannel {
                ticket: Some(Secret::new("guid9")),
                ..Default::default()
            },
            ..Default::default()
        };
        let printed = format!("{:?}", Launch::Connect(Box::new(connection)));
        assert!(!printed.contains("hunter2") && !printed.contains("ticket7") && !printed.contains("guid9"));
    }
}
