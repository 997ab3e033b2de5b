//! The answer to one operation.

use std::fmt;

use super::configuration::{read_screen, write_screen};
use super::{
    AuthenticationStatus, Configuration, Desktop, Flaw, Kind, Launch, LaunchItems, Preference, SignedIn,
    TunnelConnection,
};
use crate::control::envelope::Version;
use crate::control::screen::Screen;
use crate::control::xml::Element;

/// The answer to one operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Which operation it answers.
    pub kind: Kind,
    /// How it went.
    pub outcome: Outcome,
}

/// How an operation went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Ok(Body),
    /// The sign-in goes on with this screen.
    Partial(Screen),
    /// It failed.
    Failed(Failure),
    /// It was skipped, because it needs a sign-in that an earlier operation of the envelope did not complete. Version
    /// 1.0 has no word for that and reads `NOT_AUTHENTICATED`.
    NotExecuted,
}

/// What a good answer holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing but the result.
    Empty,
    /// To `get-configuration`.
    Configuration(Configuration),
    /// To the last `do-submit-authentication`.
    SignedIn(SignedIn),
    /// To `get-tunnel-connection` and its like.
    Tunnel(TunnelConnection),
    /// To `get-desktops`.
    Desktops(Vec<Desktop>),
    /// To `get-launch-items`.
    LaunchItems(LaunchItems),
    /// To `get-desktop-connection` and its like.
    Launch(Launch),
    /// To `get-` and `set-user-global-preferences`.
    Preferences(Vec<Preference>),
    /// To `set-user-desktop-preferences`.
    DesktopPreferences {
        /// Which desktop.
        desktop_id: String,
        /// The preferences as they stand.
        preferences: Vec<Preference>,
    },
    /// To `get-authentication-status`.
    AuthenticationStatus(AuthenticationStatus),
}

impl Answer {
    /// A good answer.
    pub fn ok(kind: Kind, body: Body) -> Self {
        Self {
            kind,
            outcome: Outcome::Ok(body),
        }
    }

    /// A failure.
    pub fn failed(kind: Kind, failure: Failure) -> Self {
        Self {
            kind,
            outcome: Outcome::Failed(failure),
        }
    }

    /// Reads one element of a reply.
    ///
    /// # Errors
    ///
    /// A [`Flaw`] if there is no result that is known, or a good answer lacks what it is about.
    pub fn read(element: &Element) -> Result<Self, Flaw> {
        let kind = Kind::of_reply(&element.name);
        let outcome = Outcome::read(&kind, element)?;
        Ok(Self { kind, outcome })
    }

    /// Writes it as an element, with the fields that a client of `version` knows.
    pub fn write(&self, version: Version) -> Element {
        let mut element = Element::new(self.kind.reply_name());
        self.outcome.write(&mut element, version);
        element
    }
}

impl Outcome {
    fn read(kind: &Kind, element: &Element) -> Result<Self, Flaw> {
        let result = element.optional_word("result").unwrap_or_default().to_ascii_lowercase();
        if result == "ok" {
            return Ok(Self::Ok(Body::read(kind, element)?));
        }
        if let Some(failure) = Failure::read(element) {
            return Ok(Self::Failed(failure));
        }
        match result.as_str() {
            "partial" => Ok(Self::Partial(
                read_screen(element)?.ok_or(Flaw::Missing { field: "screen" })?,
            )),
            "notexecuted" => Ok(Self::NotExecuted),
            "error" => Ok(Self::Failed(Failure::default())),
            "" => Err(Flaw::Missing { field: "result" }),
            _ => Err(Flaw::Malformed { field: "result" }),
        }
    }

    fn write(&self, out: &mut Element, version: Version) {
        match self {
            Self::Ok(body) => {
                out.push_leaf("result", "ok");
                body.write(out, version);
            }
            Self::Partial(screen) => {
                out.push_leaf("result", "partial");
                write_screen(screen, out);
            }
            Self::Failed(failure) => failure.write(out),
            Self::NotExecuted if version < Version::V2_0 => Failure::new(ErrorCode::NotAuthenticated).write(out),
            Self::NotExecuted => out.push_leaf("result", "notexecuted"),
        }
    }
}

impl Body {
    fn read(kind: &Kind, element: &Element) -> Result<Self, Flaw> {
        Ok(match kind {
            Kind::GetConfiguration => Self::Configuration(Configuration::read(element)?),
            Kind::SubmitAuthentication => Self::SignedIn(SignedIn::read(element)?),
            Kind::GetTunnelConnection | Kind::GetTunnelConnectionRedirect => {
                Self::Tunnel(TunnelConnection::read(element)?)
            }
            Kind::GetDesktops => Self::Desktops(Desktop::read_all(element)?),
            Kind::GetLaunchItems => Self::LaunchItems(LaunchItems::read(element)?),
            Kind::GetDesktopConnection
            | Kind::GetDesktopConnectionRedirect
            | Kind::GetApplicationConnection
            | Kind::GetApplicationSessionConnection => Self::Launch(Launch::read(element)?),
            Kind::GetUserGlobalPreferences => Self::Preferences(Preference::read_all(element)?),
            Kind::SetUserGlobalPreferences if element.child("user-preferences").is_some() => {
                Self::Preferences(Preference::read_all(element)?)
            }
            Kind::SetUserDesktopPreferences if element.child("desktop-id").is_some() => Self::DesktopPreferences {
                desktop_id: element.string("desktop-id"),
                preferences: Preference::read_all(element)?,
            },
            Kind::GetAuthenticationStatus => Self::AuthenticationStatus(AuthenticationStatus::read(element)?),
            Kind::SetLocale
            | Kind::ConnectPrepare
            | Kind::SetUserGlobalPreferences
            | Kind::SetUserDesktopPreferences
            | Kind::KillSession
            | Kind::ResetDesktop
            | Kind::RollbackCheckoutDesktop
            | Kind::Logout
            | Kind::Lock
            | Kind::SetLastUserActivity
            | Kind::AddClientInfo
            | Kind::Unknown(_) => Self::Empty,
        })
    }

    fn write(&self, out: &mut Element, version: Version) {
        match self {
            Self::Empty => {}
            Self::Configuration(configuration) => configuration.write(out, version),
            Self::SignedIn(signed_in) => signed_in.write(out, version),
            Self::Tunnel(tunnel) => tunnel.write(out),
            Self::Desktops(desktops) => Desktop::write_all(desktops, out),
            Self::LaunchItems(items) => items.write(out),
            Self::Launch(launch) => launch.write(out),
            Self::Preferences(preferences) => Preference::write_all(preferences, out),
            Self::DesktopPreferences {
                desktop_id,
                preferences,
            } => {
                out.push_leaf("desktop-id", desktop_id);
                Preference::write_all(preferences, out);
            }
            Self::AuthenticationStatus(status) => status.write(out),
        }
    }
}

/// Why an operation, or a whole request, failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failure {
    /// The code that the client acts on.
    pub code: ErrorCode,
    /// Words for whoever runs the client.
    pub message: String,
    /// Words for the user, in their language; may be empty.
    pub user_message: String,
}

impl Failure {
    /// A failure with the code's own words and none for the user.
    pub fn new(code: ErrorCode) -> Self {
        let message = code.words().to_owned();
        Self {
            code,
            message,
            user_message: String::new(),
        }
    }

    /// The same failure with words for the user.
    #[must_use]
    pub fn with_user_message(mut self, words: impl Into<String>) -> Self {
        self.user_message = words.into();
        self
    }

    /// The words to show: those for the user, else the others, else the code.
    pub fn words(&self) -> &str {
        let words = [&self.user_message, &self.message]
            .into_iter()
            .find(|words| !words.is_empty());
        words.map_or(self.code.as_str(), String::as_str)
    }

    /// The failure that an element tells of: one with a code or a message.
    pub(in crate::control) fn read(element: &Element) -> Option<Self> {
        let code = element.optional_word("error-code");
        let message = element.string("error-message");
        if code.is_none() && message.is_empty() {
            return None;
        }
        let code = ErrorCode::of(code.as_deref().unwrap_or_default());
        Some(Self {
            code,
            message,
            user_message: element.string("user-message"),
        })
    }

    /// Writes result and all three fields, also those that are empty.
    pub(in crate::control) fn write(&self, out: &mut Element) {
        out.push_leaf("result", "error");
        out.push_leaf("error-code", self.code.as_str());
        out.push_leaf("error-message", &self.message);
        out.push_leaf("user-message", &self.user_message);
    }
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $variant:ident = $code:literal, $words:literal;)*) => {
        /// The code that a client acts on.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum ErrorCode {
            $($(#[$doc])* $variant,)*
            /// Another one; clients show it.
            Other(String),
        }

        impl ErrorCode {
            /// The code on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// The code of that text, in any case.
            pub fn of(text: &str) -> Self {
                $(if text.eq_ignore_ascii_case($code) {
                    return Self::$variant;
                })*
                Self::Other(text.to_owned())
            }

            /// What it means, in words.
            pub fn words(&self) -> &str {
                match self {
                    $(Self::$variant => $words,)*
                    Self::Other(code) => code,
                }
            }
        }
    };
}

error_codes! {
    /// The client retries with the next lower version.
    UnsupportedVersion = "UNSUPPORTED_VERSION", "this version of the protocol is not spoken here";
    /// The session is signed in; clients take it for success.
    AlreadyAuthenticated = "ALREADY_AUTHENTICATED", "already authenticated";
    /// The sign-in has failed for good and the session is at its start again.
    AuthenticationFailed = "AUTHENTICATION_FAILED", "Authentication failure";
    /// The operation needs a sign-in; the client begins a new session.
    NotAuthenticated = "NOT_AUTHENTICATED", "not authenticated";
    /// The user may not launch that.
    NotEntitled = "NOT_ENTITLED", "not entitled";
    /// The launch failed.
    DesktopLaunchError = "DESKTOP_LAUNCH_ERROR", "the desktop could not be launched";
    /// The desktop cannot be launched at this time, for instance before the tunnel is up.
    DesktopNotAvailable = "DESKTOP_NOT_AVAILABLE", "the desktop is not available";
    /// There is no tunnel.
    TunnelError = "TUNNEL_ERROR", "the tunnel could not be opened";
    /// Our own: the request cannot be read.
    InvalidRequest = "INVALID_REQUEST", "the request cannot be read";
    /// Our own: the operation is not known or not offered here.
    UnsupportedOperation = "UNSUPPORTED_OPERATION", "this operation is not supported";
    /// Our own: the gateway has too much to do.
    Busy = "SERVER_BUSY", "the server is busy";
    /// Our own: a fault of the gateway.
    Internal = "INTERNAL_ERROR", "the server has failed";
}

impl Default for ErrorCode {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
