//! A desktop in a list.

use crate::control::operation::{Flaw, Preference};
use crate::control::xml::Element;

/// A desktop that the user may launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desktop {
    /// The identifier, which the client sends back to the letter.
    pub id: String,
    /// The name that people read.
    pub name: String,
    /// Such as `free`.
    pub kind: Option<String>,
    /// Whether a session of the user is on it.
    pub state: DesktopState,
    /// Names that session; `Some` means "logged on".
    pub session_id: Option<String>,
    /// The protocols by which it can be reached; none means RDP.
    pub protocols: Vec<OfferedProtocol>,
    /// Whether one of them is among those that the client supports.
    pub protocol_match: bool,
    /// Whether the user may reset it.
    pub reset_allowed: bool,
    /// Whether the user may reset it while in session.
    pub reset_allowed_on_session: bool,
    /// Whether it is closed for maintenance.
    pub in_maintenance_mode: bool,
    /// Whether its time is over.
    pub expired: bool,
    /// The user's preferences for it.
    pub preferences: Vec<Preference>,
    /// Whether browsers may not launch it.
    pub html_access_disabled: bool,
}

/// Whether a session of the user is on a desktop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DesktopState {
    /// None.
    #[default]
    Idle,
    /// One, with a client.
    Connected,
    /// One, without a client.
    Disconnected,
    /// Another word.
    Other(String),
}

/// A protocol by which something can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedProtocol {
    /// Such as `RDP`.
    pub name: String,
    /// Whether it is the one to take unless the user chooses.
    pub is_default: bool,
}

impl Desktop {
    /// Reads the `desktop` elements of a section.
    pub(in crate::control::operation) fn read_all(section: &Element) -> Result<Vec<Self>, Flaw> {
        section.named("desktop").map(Self::read).collect()
    }

    /// Writes them into a section.
    pub(in crate::control::operation) fn write_all(desktops: &[Self], section: &mut Element) {
        for desktop in desktops {
            section.push(desktop.write());
        }
    }

    fn read(element: &Element) -> Result<Self, Flaw> {
        Ok(Self {
            id: element.required("id")?,
            name: element.string("name"),
            kind: element.optional_word("type"),
            state: DesktopState::read(element),
            session_id: element.optional("session-id"),
            protocols: OfferedProtocol::read_all(element),
            protocol_match: element.flag("protocol-match"),
            reset_allowed: element.flag("reset-allowed"),
            reset_allowed_on_session: element.flag("reset-allowed-on-session"),
            in_maintenance_mode: element.flag("in-maintenance-mode"),
            expired: element.flag("expired"),
            preferences: Preference::read_all(element)?,
            html_access_disabled: element.child("html-access-disabled").is_some(),
        })
    }

    fn write(&self) -> Element {
        let mut element = Element::new("desktop");
        let out = &mut element;
        out.push_leaf("id", &self.id);
        out.push_leaf("name", &self.name);
        out.push_optional("type", self.kind.as_deref());
        out.push_leaf("state", self.state.word());
        out.push_leaf("session-id", self.session_id.as_deref().unwrap_or_default());
        OfferedProtocol::write_all(&self.protocols, out);
        out.push_flag("protocol-match", self.protocol_match);
        out.push_flag("reset-allowed", self.reset_allowed);
        out.push_flag("reset-allowed-on-session", self.reset_allowed_on_session);
        out.push_flag("in-maintenance-mode", self.in_maintenance_mode);
        out.push_flag("expired", self.expired);
        Preference::write_all(&self.preferences, out);
        if self.html_access_disabled {
            out.push_flag("html-access-disabled", true);
        }
        element
    }
}

impl DesktopState {
    fn read(desktop: &Element) -> Self {
        match desktop.optional_word("state").as_deref() {
            None => Self::Idle,
            Some(word) if word.eq_ignore_ascii_case("connected") => Self::Connected,
            Some(word) if word.eq_ignore_ascii_case("disconnected") => Self::Disconnected,
            Some(word) => Self::Other(word.to_owned()),
        }
    }

    fn word(&self) -> &str {
        match self {
            Self::Idle => "",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
            Self::Other(word) => word,
        }
    }
}

impl OfferedProtocol {
    /// Reads `protocols/protocol`.
    pub(super) fn read_all(parent: &Element) -> Vec<Self> {
        let protocols = parent
            .child("protocols")
            .into_iter()
            .flat_map(|list| list.named("protocol"));
        let named = protocols.filter_map(|protocol| {
            Some(Self {
                name: protocol.optional_word("name")?,
                is_default: protocol.flag("is-default"),
            })
        });
        named.collect()
    }

    /// Writes `protocols/protocol`.
    pub(super) fn write_all(protocols: &[Self], parent: &mut Element) {
        let mut list = Element::new("protocols");
        for Self { name, is_default } in protocols {
            let mut element = Element::new("protocol");
            element.push_leaf("name", name);
            element.push_flag("is-default", *is_default);
            list.push(element);
        }
        parent.push(list);
    }
}
