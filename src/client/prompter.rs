//! Who answers when the client has to ask.

use std::fmt;

use super::endpoint::Endpoint;
use super::words::{printable, printable_line};
use crate::types::Secret;
use crate::types::Thumbprint;

/// Answers questions and shows words: a terminal, or a script.
pub trait Prompter: Send {
    /// Shows words that need no answer. They are fit for a terminal.
    fn show(&mut self, text: &str);

    /// Asks. The answer to a yes-or-no question is `yes` or anything else; see [`is_yes`].
    fn ask(&mut self, question: &Question) -> impl Future<Output = Result<Secret, Unanswered>> + Send;
}

/// A prompter that answers nothing: everything must have been given beforehand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unattended;

impl Prompter for Unattended {
    fn show(&mut self, _text: &str) {}

    async fn ask(&mut self, _question: &Question) -> Result<Secret, Unanswered> {
        Err(Unanswered::NoTerminal)
    }
}

/// What the client has to ask. `Display` gives the words; what comes from the gateway is made fit for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// Whether a certificate that nobody vouches for is the gateway's.
    Certificate {
        /// The gateway.
        endpoint: Endpoint,
        /// Its certificate.
        thumbprint: Thumbprint,
        /// What the authorities say of it.
        problem: String,
    },
    /// Whether the text that was shown is accepted.
    Disclaimer,
    /// The user's name.
    User {
        /// The name that an empty answer stands for.
        suggested: Option<String>,
    },
    /// The user's domain.
    Domain {
        /// Those that the gateway offers.
        offered: Vec<String>,
    },
    /// The password.
    Password {
        /// Whose.
        user: String,
    },
    /// The password that has expired.
    OldPassword,
    /// A new password.
    NewPassword,
    /// The same again.
    NewPasswordAgain,
    /// A passcode.
    Passcode {
        /// The gateway's name for the method.
        label: Option<String>,
    },
    /// A further code, or the answer to a challenge.
    Tokencode {
        /// The challenge.
        challenge: Option<String>,
    },
    /// A new PIN.
    NewPin,
    /// The same again.
    NewPinAgain,
    /// Whether the PIN that was shown is noted.
    SystemPin,
    /// Whether the wait for the next code is over.
    NextCode,
    /// Which desktop.
    Desktop {
        /// Those that there are, a line each, fit for a terminal.
        offered: Vec<String>,
    },
}

/// How an answer is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// A line that may be seen.
    Line,
    /// A line that must not be seen.
    Hidden,
    /// `yes` or not.
    YesOrNo,
}

impl Question {
    /// How the answer is given.
    pub fn answer_kind(&self) -> AnswerKind {
        match self {
            Self::Certificate { .. } | Self::Disclaimer => AnswerKind::YesOrNo,
            Self::User { .. } | Self::Domain { .. } | Self::SystemPin | Self::NextCode | Self::Desktop { .. } => {
                AnswerKind::Line
            }
            Self::Password { .. }
            | Self::OldPassword
            | Self::NewPassword
            | Self::NewPasswordAgain
            | Self::Passcode { .. }
            | Self::Tokencode { .. }
            | Self::NewPin
            | Self::NewPinAgain => AnswerKind::Hidden,
        }
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate {
                endpoint,
                thumbprint,
                problem,
            } => write!(
                f,
                "The certificate of {endpoint} is not trusted: {}.\nIts SHA-256 thumbprint is\n  {thumbprint}\nCompare \
                 it with the one that the gateway's administrator gave you. Trust it from here on? (yes/no) ",
                printable_line(problem)
            ),
            Self::Disclaimer => f.write_str("Do you accept this? (yes/no) "),
            Self::User { suggested: None } => f.write_str("User name: "),
            Self::User { suggested: Some(name) } => write!(f, "User name [{}]: ", printable_line(name)),
            Self::Domain { offered } => {
                let offered: Vec<_> = offered.iter().map(|domain| printable_line(domain)).collect();
                write!(f, "Domain ({}): ", offered.join(", "))
            }
            Self::Password { user } => write!(f, "Password of {}: ", printable_line(user)),
            Self::OldPassword => f.write_str("Old password: "),
            Self::NewPassword => f.write_str("New password: "),
            Self::NewPasswordAgain => f.write_str("New password again: "),
            Self::Passcode { label: Some(label) } => write!(f, "Passcode for {}: ", printable_line(label)),
            Self::Passcode { label: None } => f.write_str("Passcode: "),
            Self::Tokencode {
                challenge: Some(challenge),
            } => write!(f, "{} ", printable(challenge).trim_end()),
            Self::Tokencode { challenge: None } => f.write_str("Next code: "),
            Self::NewPin => f.write_str("New PIN: "),
            Self::NewPinAgain => f.write_str("New PIN again: "),
            Self::SystemPin => f.write_str("Note it, then press Enter: "),
            Self::NextCode => f.write_str("Wait until the code has changed, then press Enter: "),
            Self::Desktop { offered } => {
                for (place, desktop) in offered.iter().enumerate() {
                    writeln!(f, "{:>3}  {desktop}", place + 1)?;
                }
                f.write_str("Desktop (number, name or id): ")
            }
        }
    }
}

/// Whether an answer is yes.
pub fn is_yes(answer: &Secret) -> bool {
    ["yes", "y"]
        .iter()
        .any(|yes| answer.expose().trim().eq_ignore_ascii_case(yes))
}

/// A question that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unanswered {
    /// There is nobody to ask.
    #[error("there is no terminal to ask on")]
    NoTerminal,
    /// The terminal was closed, or the answer cannot be read.
    #[error("there was no answer")]
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_yes_means_yes() {
        for yes in ["yes", " YES\n", "y"] {
            assert!(is_yes(&Secret::new(yes)), "{yes:?}");
        }
        for no in ["", "no", "ye", "yess", "1", "true"] {
            assert!(!is_yes(&Secret::new(no)), "{no:?}");
        }
    }

    #[test]
    fn secrets_are_asked_for_without_an_echo() {
        let hidden = [
            Question::Password { user: "ann".into() },
            Question::NewPassword,
            Question::Passcode { label: None },
            Question::Tokencode { challenge: None },
            Question::NewPin,
        ];
        assert!(
            hidden
                .iter()
                .all(|question| question.answer_kind() == AnswerKind::Hidden)
        );
    }

    #[test]
    fn words_of_the_gateway_in_a_question_cannot_command_the_terminal() {
        let question = Question::Tokencode {
            challenge: Some("code\x1b]0;x\x07?".into()),
        };
        assert_eq!(question.to_string(), "code]0;x? ");
    }
}
