//! Why the client could not do what it was asked to.

use super::http::HttpFault;
use super::prompter::{Question, Unanswered};
use super::quic::{QuicEnd, QuicFault};
use super::tls::{DialCause, DialFault};
use super::tunnel::{End, RaiseFault};
use super::words::{printable, printable_line};
use crate::control::envelope::{ReplyError, Unwritable};
use crate::control::operation::{ErrorCode, Failure};

/// What went wrong, where, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The control channel failed.
    #[error(transparent)]
    Http(#[from] HttpFault),
    /// A reply makes no sense.
    #[error("{0}. Check that this is a gateway")]
    Reply(#[from] ReplyError),
    /// A reply does not answer what was asked.
    #[error("the gateway's reply has no answer to {operation}")]
    NoAnswer {
        /// The operation.
        operation: String,
    },
    /// Something that was typed cannot be sent.
    #[error(transparent)]
    Unwritable(#[from] Unwritable),
    /// The gateway speaks no version that the client speaks.
    #[error("the gateway speaks no version of the protocol that this client speaks")]
    Version,
    /// The gateway failed at an operation.
    #[error("{}", printable(.0.words()))]
    Failed(Failure),
    /// The user was not signed in.
    #[error("not signed in: {words}")]
    SignIn {
        /// The gateway's words, fit for a terminal.
        words: String,
    },
    /// A question had no answer.
    #[error("{why}, but there is a question: {}{}", question.to_string().trim_end(), hint(question))]
    Unanswered {
        /// Why.
        why: Unanswered,
        /// The question.
        question: Question,
    },
    /// The user does not accept the gateway's terms.
    #[error("the gateway's terms were not accepted")]
    Declined,
    /// The gateway signs users in by a method that the client does not have.
    #[error("the gateway asks for \"{}\", which this client cannot do", printable_line(.0))]
    UnknownScreen(String),
    /// The gateway asks without end.
    #[error("the gateway does not stop asking")]
    Endless,
    /// The session is over.
    #[error("the session is over: {words}. Sign in again")]
    SessionOver {
        /// The gateway's words, fit for a terminal.
        words: String,
    },
    /// The user may use nothing here.
    #[error("there is no desktop for this user. Ask the gateway's administrator")]
    NoDesktop,
    /// The user has no such desktop, or several that could be meant.
    #[error("{}", choice_words(.wanted, .offered))]
    Choice {
        /// What was wanted, fit for a terminal; `None` if nothing was said.
        wanted: Option<String>,
        /// What there is, fit for a terminal.
        offered: Vec<String>,
    },
    /// The desktop is not offered by that protocol.
    #[error("{desktop} is not offered by {wanted}, but by {}", .offered.join(", "))]
    Protocol {
        /// The desktop, fit for a terminal.
        desktop: String,
        /// The wanted protocol.
        wanted: String,
        /// Those that it is offered by, fit for a terminal.
        offered: Vec<String>,
    },
    /// The gateway wants the client to connect to desktops itself.
    #[error("the gateway offers no tunnel, and this client connects through one only")]
    Bypass,
    /// The gateway sends the client somewhere that is not a tunnel's end.
    #[error("the gateway names {address} as the desktop's address, which is not in the tunnel")]
    NotInTunnel {
        /// The address, fit for a terminal.
        address: String,
    },
    /// The gateway has no token for clients of RDP.
    #[error("the gateway gives clients of RDP no token. Leave --preconnection out, and connect through the tunnel")]
    NoPreconnection,
    /// The tunnel is over, or was not opened.
    #[error(transparent)]
    Tunnel(#[from] End),
    /// The way over QUIC is over.
    #[error(transparent)]
    Quic(#[from] QuicEnd),
    /// No way over QUIC was opened, and no other one was wanted.
    #[error("{0}. Without --transport quic, the HTTPS tunnel would be used")]
    NoQuic(#[from] QuicFault),
    /// There is no channel.
    #[error(transparent)]
    Raise(#[from] RaiseFault),
}

/// What a fault means to a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// Something failed.
    Failed,
    /// The gateway cannot be reached.
    Unreachable,
    /// Not signed in, not trusted, or not allowed.
    NotAllowed,
}

impl Fault {
    /// What it means to a script.
    pub fn kind(&self) -> FaultKind {
        match self {
            Self::Http(HttpFault::Dial(fault)) => dial_kind(&fault.cause),
            Self::Http(HttpFault::Broken { .. } | HttpFault::TimedOut { .. } | HttpFault::Status { .. }) => {
                FaultKind::Unreachable
            }
            Self::SignIn { .. }
            | Self::Unanswered { .. }
            | Self::Declined
            | Self::SessionOver { .. }
            | Self::NoDesktop
            | Self::Choice { wanted: Some(_), .. } => FaultKind::NotAllowed,
            Self::Failed(failure) => match failure.code {
                ErrorCode::NotEntitled | ErrorCode::NotAuthenticated | ErrorCode::AuthenticationFailed => {
                    FaultKind::NotAllowed
                }
                ErrorCode::UnsupportedVersion
                | ErrorCode::AlreadyAuthenticated
                | ErrorCode::DesktopLaunchError
                | ErrorCode::DesktopNotAvailable
                | ErrorCode::TunnelError
                | ErrorCode::InvalidRequest
                | ErrorCode::UnsupportedOperation
                | ErrorCode::Busy
                | ErrorCode::Internal
                | ErrorCode::Other(_) => FaultKind::Failed,
            },
            Self::Tunnel(end) => end_kind(end),
            Self::Quic(QuicEnd::Lost { .. }) | Self::NoQuic(QuicFault::Silent) => FaultKind::Unreachable,
            Self::NoQuic(QuicFault::NotAdmitted { .. }) => FaultKind::NotAllowed,
            Self::Http(HttpFault::TooLarge { .. } | HttpFault::Redirect { .. })
            | Self::Reply(_)
            | Self::NoAnswer { .. }
            | Self::Unwritable(_)
            | Self::Version
            | Self::UnknownScreen(_)
            | Self::Endless
            | Self::Choice { wanted: None, .. }
            | Self::Protocol { .. }
            | Self::Bypass
            | Self::NotInTunnel { .. }
            | Self::Quic(QuicEnd::Stopped { .. } | QuicEnd::Closed)
            | Self::NoQuic(QuicFault::NotOffered | QuicFault::Failed(_))
            | Self::NoPreconnection
            | Self::Raise(_) => FaultKind::Failed,
        }
    }

    /// The gateway's failure of an operation, sorted.
    pub(super) fn of_failure(failure: &Failure) -> Self {
        let words = printable(failure.words());
        if failure.code == ErrorCode::NotAuthenticated {
            Self::SessionOver { words }
        } else if failure.code == ErrorCode::AuthenticationFailed {
            Self::SignIn { words }
        } else {
            Self::Failed(failure.clone())
        }
    }
}

impl From<DialFault> for Fault {
    fn from(fault: DialFault) -> Self {
        Self::Http(fault.into())
    }
}

fn dial_kind(cause: &DialCause) -> FaultKind {
    match cause {
        DialCause::Connect(_) | DialCause::TimedOut | DialCause::Handshake(_) => FaultKind::Unreachable,
        DialCause::Certificate(_) => FaultKind::NotAllowed,
        DialCause::Known(_) | DialCause::Address(_) | DialCause::Setup(_) => FaultKind::Failed,
    }
}

fn end_kind(end: &End) -> FaultKind {
    match end {
        End::NotAdmitted { .. } | End::NotTrusted(_) => FaultKind::NotAllowed,
        End::LostContact { .. } | End::Broken | End::NotReady { .. } => FaultKind::Unreachable,
        End::Stopped { .. } | End::Closed | End::Unacknowledged | End::Foreign | End::Chunk(_) | End::Message(_) => {
            FaultKind::Failed
        }
    }
}

fn choice_words(wanted: &Option<String>, offered: &[String]) -> String {
    let offered = offered.join("\n  ");
    match wanted {
        Some(wanted) => format!("no one desktop of this user is {wanted}. There are\n  {offered}"),
        None => format!("there are several desktops: choose with --desktop\n  {offered}"),
    }
}

/// How to answer beforehand.
fn hint(question: &Question) -> &'static str {
    match question {
        Question::User { .. } => "\nGive it with --user or PORTCULLIS_USER",
        Question::Password { .. } => "\nGive it with --password-file or PORTCULLIS_PASSWORD",
        Question::Domain { .. } => "\nGive it with --domain",
        Question::Disclaimer => "\nAccept it with --accept-disclaimer",
        Question::Desktop { .. } => "\nChoose with --desktop",
        Question::Certificate { .. }
        | Question::OldPassword
        | Question::NewPassword
        | Question::NewPasswordAgain
        | Question::Passcode { .. }
        | Question::Tokencode { .. }
        | Question::NewPin
        | Question::NewPinAgain
        | Question::SystemPin
        | Question::NextCode => "",
    }
}
