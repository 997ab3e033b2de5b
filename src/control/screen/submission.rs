//! What a client answers to a screen.

use super::param;
use super::{
    CERT_AUTH, DISCLAIMER, SECURID_NEXT_TOKENCODE, SECURID_PASSCODE, SECURID_PIN_CHANGE, WINDOWS_PASSWORD,
    WINDOWS_PASSWORD_EXPIRED,
};
use crate::control::operation::{Flaw, flag_word, is_true};
use crate::control::xml::Element;
use crate::types::Secret;

/// The answer to a screen. It is named by the screen that it answers, which need not be the one that is due.
///
/// A parameter that the client leaves out reads as an empty one: the check that follows is the judge of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Submission {
    /// To `disclaimer`.
    Disclaimer {
        /// Whether the user accepts.
        accept: bool,
    },
    /// To `windows-password`.
    WindowsPassword {
        /// The user name as typed.
        user: String,
        /// The password as typed.
        password: Secret,
        /// The domain chosen.
        domain: String,
    },
    /// To `windows-password-expired`.
    WindowsPasswordExpired {
        /// The password that is to be changed.
        old: Secret,
        /// The new one.
        new: Secret,
        /// The new one again.
        repeated: Secret,
    },
    /// To `securid-passcode`, and after `securid-wait`.
    SecuridPasscode {
        /// The user name as typed.
        user: String,
        /// The passcode.
        passcode: Secret,
    },
    /// To `securid-nexttokencode`.
    SecuridNextTokencode {
        /// The code, or the answer to the challenge.
        tokencode: Secret,
    },
    /// To `securid-pinchange`.
    SecuridPinChange {
        /// The new PIN.
        pin1: Secret,
        /// The new PIN again.
        pin2: Secret,
    },
    /// To `cert-auth`.
    CertAuth {
        /// Whether the client will show a certificate.
        accept: bool,
        /// The PIN of the smart card.
        pin: Secret,
        /// The name of the reader.
        reader: String,
    },
    /// To a screen that is not known here.
    Unknown {
        /// The screen's name.
        name: String,
        /// The answers.
        params: Vec<SubmittedParam>,
    },
}

/// An answer to one parameter of a screen that is not known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmittedParam {
    /// The parameter's name.
    pub name: String,
    /// Its values; any of them may be a secret.
    pub values: Vec<Secret>,
}

impl Submission {
    /// The screen's name on the wire.
    pub fn name(&self) -> &str {
        match self {
            Self::Disclaimer { .. } => DISCLAIMER,
            Self::WindowsPassword { .. } => WINDOWS_PASSWORD,
            Self::WindowsPasswordExpired { .. } => WINDOWS_PASSWORD_EXPIRED,
            Self::SecuridPasscode { .. } => SECURID_PASSCODE,
            Self::SecuridNextTokencode { .. } => SECURID_NEXT_TOKENCODE,
            Self::SecuridPinChange { .. } => SECURID_PIN_CHANGE,
            Self::CertAuth { .. } => CERT_AUTH,
            Self::Unknown { name, .. } => name,
        }
    }

    /// Reads a `screen` element that a client sent.
    ///
    /// # Errors
    ///
    /// A [`Flaw`] if it has no name, or if a value holds an element: a password with a `<` in it that the client did
    /// not escape would be read as another one.
    pub fn read(screen: &Element) -> Result<Self, Flaw> {
        let name = screen.optional_word("name").ok_or(Flaw::Missing { field: "name" })?;
        for param in param::params(screen) {
            if values(param).any(|value| value.elements().next().is_some()) {
                return Err(Flaw::Malformed { field: "value" });
            }
        }
        let text = |name| param::text(screen, name).unwrap_or_default();
        let secret = |name| Secret::new(text(name));
        Ok(match name.to_ascii_lowercase().as_str() {
            DISCLAIMER => Self::Disclaimer {
                accept: is_true(text("accept").trim()),
            },
            WINDOWS_PASSWORD => Self::WindowsPassword {
                user: text("username").to_owned(),
                password: secret("password"),
                domain: text("domain").to_owned(),
            },
            WINDOWS_PASSWORD_EXPIRED => Self::WindowsPasswordExpired {
                old: secret("oldPassword"),
                new: secret("newPassword1"),
                repeated: secret("newPassword2"),
            },
            SECURID_PASSCODE => Self::SecuridPasscode {
                user: text("username").to_owned(),
                passcode: secret("passcode"),
            },
            SECURID_NEXT_TOKENCODE => Self::SecuridNextTokencode {
                tokencode: secret("tokencode"),
            },
            SECURID_PIN_CHANGE => Self::SecuridPinChange {
                pin1: secret("pin1"),
                pin2: secret("pin2"),
            },
            CERT_AUTH => Self::CertAuth {
                accept: is_true(text("accept").trim()),
                pin: secret("smartCardPIN"),
                reader: text("smartCardReader").to_owned(),
            },
            _ => Self::Unknown {
                name,
                params: param::params(screen).map(SubmittedParam::read).collect(),
            },
        })
    }

    /// Writes a `screen` element.
    pub fn write(&self) -> Element {
        let mut params = Element::new("params");
        let out = &mut params;
        match self {
            Self::Disclaimer { accept } => param::push(out, "accept", flag_word(*accept)),
            Self::WindowsPassword { user, password, domain } => {
                param::push(out, "username", user);
                param::push(out, "password", password.expose());
                param::push(out, "domain", domain);
            }
            Self::WindowsPasswordExpired { old, new, repeated } => {
                param::push(out, "oldPassword", old.expose());
                param::push(out, "newPassword1", new.expose());
                param::push(out, "newPassword2", repeated.expose());
            }
            Self::SecuridPasscode { user, passcode } => {
                param::push(out, "username", user);
                param::push(out, "passcode", passcode.expose());
            }
            Self::SecuridNextTokencode { tokencode } => param::push(out, "tokencode", tokencode.expose()),
            Self::SecuridPinChange { pin1, pin2 } => {
                param::push(out, "pin1", pin1.expose());
                param::push(out, "pin2", pin2.expose());
            }
            Self::CertAuth { accept, pin, reader } => {
                param::push(out, "accept", flag_word(*accept));
                param::push(out, "smartCardPIN", pin.expose());
                param::push(out, "smartCardReader", reader);
            }
            Self::Unknown { params: list, .. } => list.iter().for_each(|submitted| out.push(submitted.write())),
        }
        let mut screen = Element::new("screen");
        screen.push_leaf("name", self.name());
        screen.push(params);
        screen
    }
}

impl SubmittedParam {
    fn read(element: &Element) -> Self {
        Self {
            name: element.optional_word("name").unwrap_or_default(),
            values: values(element).map(|value| Secret::new(value.text())).collect(),
        }
    }

    fn write(&self) -> Element {
        param::element(&self.name, false, self.values.iter().map(Secret::expose))
    }
}

/// The `value` elements of a `param` element.
fn values(param: &Element) -> impl Iterator<Item = &Element> {
    param
        .child("values")
        .into_iter()
        .flat_map(|values| values.named("value"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::xml::{Limits, parse};

    fn submitted(name: &str, params: &str) -> Result<Submission, Flaw> {
        let text = format!("<screen><name>{name}</name><params>{params}</params></screen>");
        Submission::read(&parse(&text, &Limits::default()).unwrap())
    }

    fn password(value: &str) -> Result<String, Flaw> {
        let params = format!(
            "<param><name>password</name><values>{value}</values></param>
             <param><name>UserName</name><values><value>LAB\\ann</value></values></param>"
        );
        let Submission::WindowsPassword { user, password, domain } = submitted("\n windows-password ", &params)? else {
            panic!("another screen");
        };
        assert_eq!((user.as_str(), domain.as_str()), ("LAB\\ann", ""));
        Ok(password.expose().to_owned())
    }

    #[test]
    fn a_password_arrives_to_the_letter() {
        assert_eq!(
            password("<value> a&amp;b&lt;c]]&gt;&#13; </value>").unwrap(),
            " a&b<c]]>\r "
        );
        assert_eq!(
            password("<value><![CDATA[<x>&amp;]]>ü🦀</value>").unwrap(),
            "<x>&amp;ü🦀"
        );
        assert_eq!(password("<value/>").unwrap(), "");
        assert_eq!(password("").unwrap(), "");
    }

    #[test]
    fn a_value_that_holds_an_element_is_refused() {
        let refused = Err(Flaw::Malformed { field: "value" });
        assert_eq!(password("<value>pa<b/>ss</value>"), refused);
        assert_eq!(password("<value>pa</value><value>p<b>a</b></value>"), refused);
    }

    #[test]
    fn any_word_but_the_five_declines_a_disclaimer() {
        let accept = |word: &str| {
            let params = format!("<param><name>accept</name><values><value>{word}</value></values></param>");
            submitted("disclaimer", &params)
        };
        assert_eq!(accept("true"), Ok(Submission::Disclaimer { accept: true }));
        for word in ["false", "", "True!"] {
            assert_eq!(accept(word), Ok(Submission::Disclaimer { accept: false }));
        }
        assert_eq!(
            submitted("disclaimer", ""),
            Ok(Submission::Disclaimer { accept: false })
        );
    }

    #[test]
    fn what_a_user_typed_is_not_printed() {
        let params = "<param><name>x</name><values><value>hunter2</value></values></param>";
        let unknown = submitted("saml", params).unwrap();
        let known = submitted("securid-passcode", &params.replace("<name>x", "<name>passcode")).unwrap();
        assert!(!format!("{unknown:?} {known:?}").contains("hunter2"));
    }

    #[test]
    fn a_submission_without_a_name_is_refused() {
        assert_eq!(submitted(" ", ""), Err(Flaw::Missing { field: "name" }));
    }
}
