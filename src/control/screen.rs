//! Screens: what a server asks of a user, and what a client answers.
//!
//! A [`Screen`] goes from server to client, a [`Submission`] the other way; both are named lists of parameters on the
//! wire. A server re-sends the screen that is due when a submission answers another one, so both ends know every name.
//!
//! What a user types is kept to the letter and in a [`Secret`] where it is one.

mod param;
mod submission;

pub use param::Param;
pub use submission::{Submission, SubmittedParam};

use super::operation::Flaw;
use super::xml::Element;
use crate::types::Secret;

/// The domain name to send when the list of domains is hidden.
pub const DEFAULT_DOMAIN: &str = "*DefaultDomain*";

/// A screen that the server asks the client to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Screen {
    /// A heading.
    pub title: Option<String>,
    /// A text below it.
    pub text: Option<String>,
    /// What is asked.
    pub ask: Ask,
}

/// What a screen asks. Texts that are empty are not written, for old clients fail on a parameter without a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// `disclaimer`: the user must accept a text.
    Disclaimer {
        /// The text.
        text: String,
    },
    /// `windows-password`: user name, password and domain.
    WindowsPassword(WindowsPassword),
    /// `windows-password-expired`: the old and a new password.
    WindowsPasswordExpired {
        /// Whose password.
        user: Option<UserField>,
        /// Why it is asked again.
        error: Option<String>,
    },
    /// `securid-passcode`: user name and passcode.
    SecuridPasscode(Securid),
    /// `securid-nexttokencode`: a further code, or the answer to a challenge.
    SecuridNextTokencode(Securid),
    /// `securid-pinchange`: a new PIN.
    SecuridPinChange(PinChange),
    /// `securid-wait`: the user waits for the next code and then submits `securid-passcode`.
    SecuridWait,
    /// `cert-auth`: the client signs in with a certificate.
    CertAuth,
    /// A screen that is not known here.
    Unknown {
        /// Its name.
        name: String,
        /// Its parameters.
        params: Vec<Param>,
    },
}

/// What `windows-password` shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowsPassword {
    /// The user name, as far as it is known.
    pub user: Option<UserField>,
    /// The domains to choose from, or [`DEFAULT_DOMAIN`].
    pub domains: Vec<String>,
    /// Why it is asked again.
    pub error: Option<String>,
    /// How long the client may keep the password, in the unit of `clientCredentialCacheTimeout`; -1 for not at all.
    pub credential_cache_timeout: Option<i64>,
}

/// A user name that a screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserField {
    /// The name; not empty.
    pub name: String,
    /// Whether it is fixed, by an earlier factor.
    pub readonly: bool,
}

/// What `securid-passcode` and `securid-nexttokencode` show. RADIUS uses them too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Securid {
    /// The user name, as far as it is known.
    pub user: Option<UserField>,
    /// Why it is asked again.
    pub error: Option<String>,
    /// A text to show.
    pub message: Option<String>,
    /// Such as `RADIUS`.
    pub auth_type: Option<String>,
    /// A finer word.
    pub auth_subtype: Option<String>,
    /// The name of the method, for the user.
    pub auth_label: Option<String>,
    /// The challenge to answer; `securid-nexttokencode` only.
    pub challenge: Option<String>,
}

/// What `securid-pinchange` shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChange {
    /// Whether the user may choose a PIN; if not, `pin1` is the one to take.
    pub user_selectable: bool,
    /// The PIN that the system has chosen.
    pub pin1: Option<Secret>,
    /// A text to show.
    pub message: Option<String>,
    /// Why it is asked again.
    pub error: Option<String>,
}

impl From<Ask> for Screen {
    /// The screen without heading and text.
    fn from(ask: Ask) -> Self {
        Self {
            title: None,
            text: None,
            ask,
        }
    }
}

impl Screen {
    /// The name on the wire.
    pub fn name(&self) -> &str {
        self.ask.name()
    }

    /// Reads a `screen` element that a server sent.
    ///
    /// # Errors
    ///
    /// A [`Flaw`] if it has no name, or lacks what it is about. Unknown parameters are skipped.
    pub fn read(element: &Element) -> Result<Self, Flaw> {
        let name = element.optional_word("name").ok_or(Flaw::Missing { field: "name" })?;
        let title = element.optional("title");
        let text = element.optional("text");
        Ok(Self {
            title,
            text,
            ask: Ask::read(&name, element)?,
        })
    }

    /// Writes a `screen` element.
    pub fn write(&self) -> Element {
        let mut screen = Element::new("screen");
        screen.push_leaf("name", self.name());
        screen.push_optional("title", self.title.as_deref());
        screen.push_optional("text", self.text.as_deref());
        let mut params = Element::new("params");
        self.ask.write(&mut params);
        if !params.children.is_empty() {
            screen.push(params);
        }
        screen
    }
}

const DISCLAIMER: &str = "disclaimer";
const WINDOWS_PASSWORD: &str = "windows-password";
const WINDOWS_PASSWORD_EXPIRED: &str = "windows-password-expired";
const SECURID_PASSCODE: &str = "securid-passcode";
const SECURID_NEXT_TOKENCODE: &str = "securid-nexttokencode";
const SECURID_PIN_CHANGE: &str = "securid-pinchange";
const SECURID_WAIT: &str = "securid-wait";
const CERT_AUTH: &str = "cert-auth";

/// The value of `user-selectable` by which the system chooses the PIN. Any other lets the user choose.
const CANNOT_CHOOSE_PIN: &str = "CANNOT_CHOOSE_PIN";
const CAN_CHOOSE_PIN: &str = "USER_SELECTABLE";

impl Ask {
    /// The name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::Disclaimer { .. } => DISCLAIMER,
            Self::WindowsPassword(_) => WINDOWS_PASSWORD,
            Self::WindowsPasswordExpired { .. } => WINDOWS_PASSWORD_EXPIRED,
            Self::SecuridPasscode(_) => SECURID_PASSCODE,
            Self::SecuridNextTokencode(_) => SECURID_NEXT_TOKENCODE,
            Self::SecuridPinChange(_) => SECURID_PIN_CHANGE,
            Self::SecuridWait => SECURID_WAIT,
            Self::CertAuth => CERT_AUTH,
            Self::Unknown { name, .. } => name,
        }
    }

    fn read(name: &str, screen: &Element) -> Result<Self, Flaw> {
        Ok(match name.to_ascii_lowercase().as_str() {
            DISCLAIMER => Self::Disclaimer {
                text: param::text(screen, "text")
                    .ok_or(Flaw::Missing { field: "text" })?
                    .to_owned(),
            },
            WINDOWS_PASSWORD => Self::WindowsPassword(WindowsPassword {
                user: UserField::read(screen),
                domains: param::texts(screen, "domain"),
                error: owned(screen, "error"),
                credential_cache_timeout: param::number(screen, CREDENTIAL_CACHE_TIMEOUT)?,
            }),
            WINDOWS_PASSWORD_EXPIRED => Self::WindowsPasswordExpired {
                user: UserField::read(screen),
                error: owned(screen, "error"),
            },
            SECURID_PASSCODE => Self::SecuridPasscode(Securid {
                challenge: None,
                ..Securid::read(screen)
            }),
            SECURID_NEXT_TOKENCODE => Self::SecuridNextTokencode(Securid::read(screen)),
            SECURID_PIN_CHANGE => Self::SecuridPinChange(PinChange::read(screen)?),
            SECURID_WAIT => Self::SecuridWait,
            CERT_AUTH => Self::CertAuth,
            _ => Self::Unknown {
                name: name.to_owned(),
                params: Param::read_all(screen),
            },
        })
    }

    fn write(&self, params: &mut Element) {
        match self {
            Self::Disclaimer { text } => param::push(params, "text", text),
            Self::WindowsPassword(it) => {
                UserField::write(it.user.as_ref(), params);
                param::push_all(params, "domain", &it.domains);
                param::push_optional(params, "error", it.error.as_deref());
                let timeout = it.credential_cache_timeout.map(|timeout| timeout.to_string());
                param::push_optional(params, CREDENTIAL_CACHE_TIMEOUT, timeout.as_deref());
            }
            Self::WindowsPasswordExpired { user, error } => {
                UserField::write(user.as_ref(), params);
                param::push_optional(params, "error", error.as_deref());
            }
            Self::SecuridPasscode(it) => it.write(params),
            Self::SecuridNextTokencode(it) => {
                it.write(params);
                param::push_optional(params, "auth-challenge-string", it.challenge.as_deref());
            }
            Self::SecuridPinChange(it) => it.write(params),
            Self::SecuridWait | Self::CertAuth => {}
            Self::Unknown { params: list, .. } => list.iter().for_each(|param| params.push(param.write())),
        }
    }
}

const CREDENTIAL_CACHE_TIMEOUT: &str = "clientCredentialCacheTimeout";

impl UserField {
    fn read(screen: &Element) -> Option<Self> {
        let name = owned(screen, "username")?;
        Some(Self {
            name,
            readonly: param::is_readonly(screen, "username"),
        })
    }

    fn write(field: Option<&Self>, params: &mut Element) {
        if let Some(Self { name, readonly }) = field.filter(|field| !field.name.is_empty()) {
            params.push(param::element("username", *readonly, [name.as_str()]));
        }
    }
}

impl Securid {
    fn read(screen: &Element) -> Self {
        Self {
            user: UserField::read(screen),
            error: owned(screen, "error"),
            message: owned(screen, "message"),
            auth_type: owned(screen, "auth-type"),
            auth_subtype: owned(screen, "auth-subtype"),
            auth_label: owned(screen, "auth-label"),
            challenge: owned(screen, "auth-challenge-string"),
        }
    }

    /// Writes all but the challenge.
    fn write(&self, params: &mut Element) {
        UserField::write(self.user.as_ref(), params);
        param::push_optional(params, "error", self.error.as_deref());
        param::push_optional(params, "message", self.message.as_deref());
        param::push_optional(params, "auth-type", self.auth_type.as_deref());
        param::push_optional(params, "auth-subtype", self.auth_subtype.as_deref());
        param::push_optional(params, "auth-label", self.auth_label.as_deref());
    }
}

impl PinChange {
    fn read(screen: &Element) -> Result<Self, Flaw> {
        let user_selectable = param::text(screen, "user-selectable") != Some(CANNOT_CHOOSE_PIN);
        let pin1 = param::text(screen, "pin1").map(Secret::new);
        if !user_selectable && pin1.is_none() {
            return Err(Flaw::Missing { field: "pin1" });
        }
        Ok(Self {
            user_selectable,
            pin1,
            message: owned(screen, "message"),
            error: owned(screen, "error"),
        })
    }

    fn write(&self, params: &mut Element) {
        let selectable = if self.user_selectable {
            CAN_CHOOSE_PIN
        } else {
            CANNOT_CHOOSE_PIN
        };
        param::push(params, "user-selectable", selectable);
        param::push_optional(params, "pin1", self.pin1.as_ref().map(Secret::expose));
        param::push_optional(params, "message", self.message.as_deref());
        param::push_optional(params, "error", self.error.as_deref());
    }
}

fn owned(screen: &Element, name: &str) -> Option<String> {
    param::text(screen, name).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::xml::{Limits, parse, write};

    fn screen(text: &str) -> Element {
        parse(text, &Limits::default()).unwrap()
    }

    #[test]
    fn a_password_screen_is_read_with_its_values_and_its_error() {
        let element = screen(
            "<screen><name>windows-password</name><title>Lab</title><params>
               <param><name>error</name><values><value>Try again.</value></values></param>
               <param><name>username</name><readonly/><values><value>ann</value></values></param>
               <param><name>domain</name><values><value>LAB</value><value/><value>CORP</value></values></param>
               <param><name>later</name><values/></param>
             </params></screen>",
        );
        let read = Screen::read(&element).unwrap();
        assert_eq!(read.title.as_deref(), Some("Lab"));
        let Ask::WindowsPassword(ask) = read.ask else {
            panic!("another screen")
        };
        assert_eq!(
            ask.user,
            Some(UserField {
                name: "ann".to_owned(),
                readonly: true
            })
        );
        assert_eq!(ask.domains, ["LAB", "CORP"]);
        assert_eq!(ask.error.as_deref(), Some("Try again."));
    }

    #[test]
    fn a_screen_is_written_as_known_servers_write_it() {
        let ask = Ask::WindowsPassword(WindowsPassword {
            user: Some(UserField {
                name: "ann".to_owned(),
                readonly: true,
            }),
            domains: vec![DEFAULT_DOMAIN.to_owned()],
            error: Some(String::new()),
            credential_cache_timeout: None,
        });
        let expected = "<screen><name>windows-password</name><params>\
             <param><name>username</name><readonly/><values><value>ann</value></values></param>\
             <param><name>domain</name><values><value>*DefaultDomain*</value></values></param>\
             </params></screen>";
        assert!(write(&Screen::from(ask).write()).ends_with(expected));
    }

    #[test]
    fn a_screen_without_parameters_has_no_empty_list() {
        assert!(write(&Screen::from(Ask::CertAuth).write()).ends_with("<screen><name>cert-auth</name></screen>"));
    }

    #[test]
    fn a_screen_that_lacks_what_it_is_about_is_refused() {
        let read = |text| Screen::read(&screen(text));
        assert_eq!(read("<screen/>"), Err(Flaw::Missing { field: "name" }));
        assert_eq!(
            read("<screen><name>disclaimer</name></screen>"),
            Err(Flaw::Missing { field: "text" })
        );
        let pinned = "<screen><name>securid-pinchange</name><params><param><name>user-selectable</name>\
             <values><value>CANNOT_CHOOSE_PIN</value></values></param></params></screen>";
        assert_eq!(read(pinned), Err(Flaw::Missing { field: "pin1" }));
    }

    #[test]
    fn the_secrets_of_a_screen_are_not_printed() {
        let pin = PinChange {
            user_selectable: false,
            pin1: Some(Secret::new("4711")),
            message: None,
            error: None,
        };
        let param = Param {
            name: "x".to_owned(),
            readonly: false,
            values: vec!["hunter2".to_owned()],
        };
        let unknown = Ask::Unknown {
            name: "saml".to_owned(),
            params: vec![param],
        };
        let printed = format!("{:?} {unknown:?}", Ask::SecuridPinChange(pin));
        assert!(!printed.contains("4711") && !printed.contains("hunter2"), "{printed}");
    }
}
