//! What a client asks for.

use super::{Environment, Flaw, Kind, Preference};
use crate::control::envelope::Version;
use crate::control::screen::Submission;
use crate::control::xml::Element;

/// One operation of a request.
///
/// The bodies of `do-connect-prepare`, `get-authentication-status`, `do-lock`, `set-last-user-activity` and
/// `add-client-info` are not known from public facts: whatever they hold is skipped, and they are written empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Names the user's language, as a POSIX locale such as `en_US.UTF-8`.
    SetLocale {
        /// The locale.
        locale: String,
    },
    /// Asks for the first screen, or the one that is due.
    GetConfiguration,
    /// Answers a screen.
    SubmitAuthentication {
        /// The answer.
        submission: Submission,
        /// From 15.0: the client's machine.
        environment: Environment,
    },
    /// Asks where the tunnel is opened.
    GetTunnelConnection(TunnelRequest),
    /// The same after a redirect.
    GetTunnelConnectionRedirect(TunnelRequest),
    /// Asks for the list of desktops.
    GetDesktops {
        /// Names of the protocols that the client speaks; empty if it does not say.
        supported_protocols: Vec<String>,
    },
    /// Asks for desktops and applications.
    GetLaunchItems(LaunchItemsRequest),
    /// Launches a desktop. The identifier is the desktop's.
    GetDesktopConnection(LaunchRequest),
    /// The same after a redirect.
    GetDesktopConnectionRedirect(LaunchRequest),
    /// Launches an application. The name `application-id` is inferred; an absent one reads as empty.
    GetApplicationConnection(LaunchRequest),
    /// Takes up an application session again. The name `session-id` is inferred; an absent one reads as empty.
    GetApplicationSessionConnection(LaunchRequest),
    /// Announces a launch.
    ConnectPrepare,
    /// Asks for the user's preferences.
    GetUserGlobalPreferences,
    /// Changes the user's preferences.
    SetUserGlobalPreferences {
        /// Those that change.
        preferences: Vec<Preference>,
    },
    /// Changes the user's preferences for one desktop.
    SetUserDesktopPreferences {
        /// Which desktop.
        desktop_id: String,
        /// Those that change.
        preferences: Vec<Preference>,
    },
    /// Ends a desktop session.
    KillSession {
        /// Which session, as the list of desktops named it.
        session_id: String,
    },
    /// Resets a desktop.
    ResetDesktop {
        /// Which desktop.
        desktop_id: String,
    },
    /// Gives a checked-out desktop back.
    RollbackCheckoutDesktop {
        /// Which desktop.
        desktop_id: String,
    },
    /// Ends the session.
    Logout,
    /// Asks whether single sign-on is unlocked.
    GetAuthenticationStatus,
    /// Locks single sign-on.
    Lock,
    /// The heartbeat.
    SetLastUserActivity,
    /// Says more of the client.
    AddClientInfo,
    /// An operation that is not known here. It is answered with an error.
    Unknown {
        /// The name as the client wrote it; a valid XML name.
        name: String,
    },
    /// An operation that is known but cannot be carried out as it stands. It is answered with an error, while the
    /// others of the envelope are executed. Only reading makes one; written, it is an empty element.
    Invalid {
        /// Which operation.
        kind: Kind,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

impl Operation {
    /// Which operation it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::SetLocale { .. } => Kind::SetLocale,
            Self::GetConfiguration => Kind::GetConfiguration,
            Self::SubmitAuthentication { .. } => Kind::SubmitAuthentication,
            Self::GetTunnelConnection(_) => Kind::GetTunnelConnection,
            Self::GetTunnelConnectionRedirect(_) => Kind::GetTunnelConnectionRedirect,
            Self::GetDesktops { .. } => Kind::GetDesktops,
            Self::GetLaunchItems(_) => Kind::GetLaunchItems,
            Self::GetDesktopConnection(_) => Kind::GetDesktopConnection,
            Self::GetDesktopConnectionRedirect(_) => Kind::GetDesktopConnectionRedirect,
            Self::GetApplicationConnection(_) => Kind::GetApplicationConnection,
            Self::GetApplicationSessionConnection(_) => Kind::GetApplicationSessionConnection,
            Self::ConnectPrepare => Kind::ConnectPrepare,
            Self::GetUserGlobalPreferences => Kind::GetUserGlobalPreferences,
            Self::SetUserGlobalPreferences { .. } => Kind::SetUserGlobalPreferences,
            Self::SetUserDesktopPreferences { .. } => Kind::SetUserDesktopPreferences,
            Self::KillSession { .. } => Kind::KillSession,
            Self::ResetDesktop { .. } => Kind::ResetDesktop,
            Self::RollbackCheckoutDesktop { .. } => Kind::RollbackCheckoutDesktop,
            Self::Logout => Kind::Logout,
            Self::GetAuthenticationStatus => Kind::GetAuthenticationStatus,
            Self::Lock => Kind::Lock,
            Self::SetLastUserActivity => Kind::SetLastUserActivity,
            Self::AddClientInfo => Kind::AddClientInfo,
            Self::Unknown { name } => Kind::Unknown(name.clone()),
            Self::Invalid { kind, .. } => kind.clone(),
        }
    }

    /// Reads one element of an envelope.
    pub fn read(element: &Element) -> Self {
        let kind = Kind::of_request(&element.name);
        Self::read_as(&kind, element).unwrap_or_else(|flaw| Self::Invalid { kind, flaw })
    }

    fn read_as(kind: &Kind, element: &Element) -> Result<Self, Flaw> {
        Ok(match kind {
            Kind::SetLocale => Self::SetLocale {
                locale: element.string("locale"),
            },
            Kind::GetConfiguration => Self::GetConfiguration,
            Kind::SubmitAuthentication => Self::SubmitAuthentication {
                submission: Submission::read(element.child("screen").ok_or(Flaw::Missing { field: "screen" })?)?,
                environment: Environment::read(element)?,
            },
            Kind::GetTunnelConnection => Self::GetTunnelConnection(TunnelRequest::read(element)),
            Kind::GetTunnelConnectionRedirect => Self::GetTunnelConnectionRedirect(TunnelRequest::read(element)),
            Kind::GetDesktops => Self::GetDesktops {
                supported_protocols: read_protocols(element),
            },
            Kind::GetLaunchItems => Self::GetLaunchItems(LaunchItemsRequest::read(element)?),
            Kind::GetDesktopConnection => {
                Self::GetDesktopConnection(LaunchRequest::read(element, element.required("desktop-id")?)?)
            }
            Kind::GetDesktopConnectionRedirect => {
                Self::GetDesktopConnectionRedirect(LaunchRequest::read(element, element.required("desktop-id")?)?)
            }
            Kind::GetApplicationConnection => {
                Self::GetApplicationConnection(LaunchRequest::read(element, element.string("application-id"))?)
            }
            Kind::GetApplicationSessionConnection => {
                Self::GetApplicationSessionConnection(LaunchRequest::read(element, element.string("session-id"))?)
            }
            Kind::ConnectPrepare => Self::ConnectPrepare,
            Kind::GetUserGlobalPreferences => Self::GetUserGlobalPreferences,
            Kind::SetUserGlobalPreferences => Self::SetUserGlobalPreferences {
                preferences: Preference::read_all(element)?,
            },
            Kind::SetUserDesktopPreferences => Self::SetUserDesktopPreferences {
                desktop_id: element.required("desktop-id")?,
                preferences: Preference::read_all(element)?,
            },
            Kind::KillSession => Self::KillSession {
                session_id: element.required("session-id")?,
            },
            Kind::ResetDesktop => Self::ResetDesktop {
                desktop_id: element.required("desktop-id")?,
            },
            Kind::RollbackCheckoutDesktop => Self::RollbackCheckoutDesktop {
                desktop_id: element.required("desktop-id")?,
            },
            Kind::Logout => Self::Logout,
            Kind::GetAuthenticationStatus => Self::GetAuthenticationStatus,
            Kind::Lock => Self::Lock,
            Kind::SetLastUserActivity => Self::SetLastUserActivity,
            Kind::AddClientInfo => Self::AddClientInfo,
            Kind::Unknown(name) => Self::Unknown { name: name.clone() },
        })
    }

    /// Writes it as an element, with the fields that a server of `version` knows.
    pub fn write(&self, version: Version) -> Element {
        let mut element = Element::new(self.kind().request_name());
        let out = &mut element;
        match self {
            Self::SetLocale { locale } => out.push_leaf("locale", locale),
            Self::SubmitAuthentication {
                submission,
                environment,
            } => {
                out.push(submission.write());
                if version >= Version::V15_0 {
                    environment.write(out);
                }
            }
            Self::GetTunnelConnection(request) | Self::GetTunnelConnectionRedirect(request) => {
                request.write(out, version);
            }
            Self::GetDesktops { supported_protocols } => write_protocols(supported_protocols, out),
            Self::GetLaunchItems(request) => request.write(out, version),
            Self::GetDesktopConnection(request) | Self::GetDesktopConnectionRedirect(request) => {
                request.write("desktop-id", out);
            }
            Self::GetApplicationConnection(request) => request.write("application-id", out),
            Self::GetApplicationSessionConnection(request) => request.write("session-id", out),
            Self::SetUserGlobalPreferences { preferences } => Preference::write_all(preferences, out),
            Self::SetUserDesktopPreferences {
                desktop_id,
                preferences,
            } => {
                out.push_leaf("desktop-id", desktop_id);
                Preference::write_all(preferences, out);
            }
            Self::KillSession { session_id } => out.push_leaf("session-id", session_id),
            Self::ResetDesktop { desktop_id } | Self::RollbackCheckoutDesktop { desktop_id } => {
                out.push_leaf("desktop-id", desktop_id);
            }
            Self::GetConfiguration
            | Self::ConnectPrepare
            | Self::GetUserGlobalPreferences
            | Self::Logout
            | Self::GetAuthenticationStatus
            | Self::Lock
            | Self::SetLastUserActivity
            | Self::AddClientInfo
            | Self::Unknown { .. }
            | Self::Invalid { .. } => {}
        }
        element
    }
}

/// What a client says when it asks for a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TunnelRequest {
    /// From 9.0: it can connect to desktops without a tunnel. The gateway decides.
    pub bypass_tunnel: bool,
    /// From 9.0: it can hold more than one connection.
    pub multi_connection_aware: bool,
    /// From 15.0: the hash algorithms it knows for thumbprints, such as `SHA-256`.
    pub thumbprint_algorithms: Vec<String>,
    /// This gateway only: it wants to know where QUIC is spoken.
    pub quic: bool,
}

impl TunnelRequest {
    fn read(element: &Element) -> Self {
        let algorithms = element.child("certificate-thumbprint-algorithms");
        Self {
            bypass_tunnel: element.flag("bypass-tunnel"),
            multi_connection_aware: element.flag("multi-connection-aware"),
            thumbprint_algorithms: algorithms.map(|list| words(list, "algorithm")).unwrap_or_default(),
            quic: element.flag(QUIC),
        }
    }

    fn write(&self, out: &mut Element, version: Version) {
        if version >= Version::V9_0 {
            out.push_flag("bypass-tunnel", self.bypass_tunnel);
            out.push_flag("multi-connection-aware", self.multi_connection_aware);
        }
        if version >= Version::V15_0 && !self.thumbprint_algorithms.is_empty() {
            let mut list = Element::new("certificate-thumbprint-algorithms");
            for algorithm in &self.thumbprint_algorithms {
                list.push_leaf("algorithm", algorithm);
            }
            out.push(list);
        }
        write_quic(self.quic, out);
    }
}

/// What a client wants listed: the sections that are `Some` (or true).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchItemsRequest {
    /// Desktops, of these protocols (empty: any).
    pub desktops: Option<Vec<String>>,
    /// Applications, of these types (empty: any).
    pub applications: Option<Vec<SupportedType>>,
    /// Application sessions that can be taken up again.
    pub application_sessions: bool,
    /// From 15.0: sessions that can be watched, of these protocols (empty: any).
    pub shadow_sessions: Option<Vec<String>>,
    /// From 15.0: the client's machine.
    pub environment: Environment,
}

/// A type of application that a client can show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SupportedType {
    /// `remote` is the only one known.
    pub name: String,
    /// By these protocols (empty: any).
    pub protocols: Vec<String>,
}

impl LaunchItemsRequest {
    fn read(element: &Element) -> Result<Self, Flaw> {
        let types = |section: &Element| -> Vec<SupportedType> {
            let types = section
                .child("supported-types")
                .into_iter()
                .flat_map(|types| types.named("type"));
            types
                .map(|it| SupportedType {
                    name: word_of(it, "name"),
                    protocols: read_protocols(it),
                })
                .collect()
        };
        Ok(Self {
            desktops: element.child("desktops").map(read_protocols),
            applications: element.child("applications").map(types),
            application_sessions: element.child("application-sessions").is_some(),
            shadow_sessions: element.child("shadow-sessions").map(read_protocols),
            environment: Environment::read(element)?,
        })
    }

    fn write(&self, out: &mut Element, version: Version) {
        if let Some(protocols) = &self.desktops {
            out.push(section("desktops", protocols));
        }
        if let Some(types) = &self.applications {
            let mut supported = Element::new("supported-types");
            for SupportedType { name, protocols } in types {
                let mut element = Element::new("type");
                element.push_leaf("name", name);
                write_protocols(protocols, &mut element);
                supported.push(element);
            }
            out.push(Element::new("applications").with(supported));
        }
        if self.application_sessions {
            out.push(Element::new("application-sessions"));
        }
        if version >= Version::V15_0 {
            if let Some(protocols) = &self.shadow_sessions {
                out.push(section("shadow-sessions", protocols));
            }
            self.environment.write(out);
        }
    }
}

/// What a client says when it launches something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchRequest {
    /// What to launch, as the list named it.
    pub id: String,
    /// The protocol that it wants; `None` leaves it to the server.
    pub protocol: Option<String>,
    /// This gateway only: the desktop is to be reached over QUIC.
    pub quic: bool,
    /// It wants a token for a client of RDP that knows no gateway (an element of ours: other servers ignore it).
    pub preconnection: bool,
    /// The client's machine.
    pub environment: Environment,
}

impl LaunchRequest {
    fn read(element: &Element, id: String) -> Result<Self, Flaw> {
        let protocol = element
            .child("protocol")
            .and_then(|protocol| protocol.optional_word("name"));
        Ok(Self {
            id,
            protocol,
            quic: element.flag(QUIC),
            preconnection: element.flag("preconnection"),
            environment: Environment::read(element)?,
        })
    }

    fn write(&self, id_field: &str, out: &mut Element) {
        out.push_leaf(id_field, &self.id);
        if let Some(protocol) = &self.protocol {
            out.push(Element::new("protocol").with(Element::new("name").with_text(protocol)));
        }
        write_quic(self.quic, out);
        if self.preconnection {
            out.push_flag("preconnection", true);
        }
        self.environment.write(out);
    }
}

/// An element of that name which holds the list of protocols.
fn section(name: &str, protocols: &[String]) -> Element {
    let mut section = Element::new(name);
    write_protocols(protocols, &mut section);
    section
}

/// Reads `supported-protocols/protocol/name`.
fn read_protocols(parent: &Element) -> Vec<String> {
    let protocols = parent
        .child("supported-protocols")
        .into_iter()
        .flat_map(|list| list.named("protocol"));
    protocols
        .map(|protocol| word_of(protocol, "name"))
        .filter(|name| !name.is_empty())
        .collect()
}

/// Writes `supported-protocols/protocol/name`, unless there are none.
fn write_protocols(protocols: &[String], parent: &mut Element) {
    if protocols.is_empty() {
        return;
    }
    let mut list = Element::new("supported-protocols");
    for name in protocols {
        list.push(Element::new("protocol").with(Element::new("name").with_text(name)));
    }
    parent.push(list);
}

/// The words in all children of one name, without the blank ones.
fn words(parent: &Element, field: &str) -> Vec<String> {
    parent
        .named(field)
        .map(|child| child.word().to_owned())
        .filter(|word| !word.is_empty())
        .collect()
}

fn word_of(parent: &Element, field: &str) -> String {
    parent.optional_word(field).unwrap_or_default()
}

/// Written only by a client that asks for it: other gateways need not know the word.
fn write_quic(quic: bool, out: &mut Element) {
    if quic {
        out.push_flag(QUIC, true);
    }
}

/// The word by which a client asks for QUIC.
const QUIC: &str = "quic";
