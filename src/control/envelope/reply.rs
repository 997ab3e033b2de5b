//! Replies.

use zeroize::Zeroizing;

use super::request::read_root;
use super::{ROOT, Refused, Version};
use crate::control::operation::{Answer, Failure, Flaw, Kind};
use crate::control::xml::{self, Element, Limits};

/// The reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// One answer for each operation, in the request's order.
    Answers(Vec<Answer>),
    /// The request failed as a whole.
    Failed(Failure),
}

impl Reply {
    /// The most answers that are read.
    pub const MAX_ANSWERS: usize = 64;

    /// Writes the body, with the fields that a client of `version` knows. It is wiped when dropped.
    ///
    /// A character that XML cannot carry becomes U+FFFD.
    pub fn write(&self, version: Version) -> Zeroizing<String> {
        let mut root = Element::new(ROOT).with_attribute("version", Version::NEWEST.to_string());
        match self {
            Self::Answers(answers) => answers.iter().for_each(|answer| root.push(answer.write(version))),
            Self::Failed(failure) => failure.write(&mut root),
        }
        Zeroizing::new(xml::write(&root))
    }

    /// Reads the body of a reply.
    ///
    /// # Errors
    ///
    /// See [`ReplyError`].
    pub fn read(body: &[u8], limits: &Limits) -> Result<Self, ReplyError> {
        let root = read_root(body, limits)?;
        if root.child("result").is_some() {
            return Ok(Self::Failed(Failure::read(&root).unwrap_or_default()));
        }
        let mut answers = Vec::new();
        for element in root.elements() {
            if answers.len() >= Self::MAX_ANSWERS {
                return Err(ReplyError::TooManyAnswers);
            }
            let kind = Kind::of_reply(&element.name);
            answers.push(Answer::read(element).map_err(|flaw| ReplyError::Answer { kind, flaw })?);
        }
        Ok(Self::Answers(answers))
    }

    /// The first answer to that kind of operation; `None` if there is none, or the request failed as a whole.
    pub fn answer(&self, kind: &Kind) -> Option<&Answer> {
        let same = |answer: &&Answer| answer.kind.reply_name().eq_ignore_ascii_case(kind.reply_name());
        match self {
            Self::Answers(answers) => answers.iter().find(same),
            Self::Failed(_) => None,
        }
    }
}

/// Why a reply cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// It is not an envelope.
    #[error("the server's reply cannot be read: {0}")]
    Envelope(#[from] Refused),
    /// One of the answers lacks something.
    #[error("the server's answer {} cannot be read: {flaw}", kind.reply_name())]
    Answer {
        /// Which one.
        kind: Kind,
        /// What it lacks.
        flaw: Flaw,
    },
    /// More answers than any request has operations.
    #[error("the server's reply has more than {} answers", Reply::MAX_ANSWERS)]
    TooManyAnswers,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::operation::{Body, Configuration, ErrorCode, Outcome, SignedIn};
    use crate::control::screen::{Ask, Param};

    const DECLARATION: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

    fn read(text: &str) -> Result<Reply, ReplyError> {
        Reply::read(text.as_bytes(), &Limits::default())
    }

    #[test]
    fn answers_are_written_in_order_and_found_by_name() {
        let locale = Answer::ok(Kind::SetLocale, Body::Empty);
        let unknown = Answer::failed(Kind::of_request("get-x"), Failure::new(ErrorCode::UnsupportedOperation));
        let text = Reply::Answers(vec![locale.clone(), unknown.clone()]).write(Version::V4_5);
        let expected = "<broker version=\"15.0\"><set-locale><result>ok</result></set-locale>\
             <x><result>error</result><error-code>UNSUPPORTED_OPERATION</error-code>\
             <error-message>this operation is not supported</error-message><user-message/></x></broker>";
        assert_eq!(text.as_str(), format!("{DECLARATION}{expected}"));
        let read = read(&text).unwrap();
        assert_eq!(read.answer(&Kind::SetLocale), Some(&locale));
        assert_eq!(
            read.answer(&Kind::of_request("get-x")).unwrap().outcome,
            unknown.outcome
        );
        assert_eq!(read.answer(&Kind::Logout), None);
    }

    #[test]
    fn a_failure_of_the_whole_envelope_has_no_operation() {
        let failure = Failure::new(ErrorCode::UnsupportedVersion).with_user_message("Too new.");
        let text = Reply::Failed(failure.clone()).write(Version::V1_0);
        assert!(text.contains("<broker version=\"15.0\"><result>error</result><error-code>UNSUPPORTED_VERSION"));
        assert_eq!(failure.words(), "Too new.");
        assert_eq!(read(&text), Ok(Reply::Failed(failure)));
    }

    #[test]
    fn version_1_0_has_no_word_for_not_executed() {
        let reply = Reply::Answers(vec![Answer {
            kind: Kind::GetDesktops,
            outcome: Outcome::NotExecuted,
        }]);
        assert_eq!(read(&reply.write(Version::V2_0)).unwrap(), reply);
        let answer = read(&reply.write(Version::V1_0))
            .unwrap()
            .answer(&Kind::GetDesktops)
            .unwrap()
            .clone();
        assert!(matches!(
            answer.outcome,
            Outcome::Failed(Failure {
                code: ErrorCode::NotAuthenticated,
                ..
            })
        ));
    }

    #[test]
    fn fields_are_written_only_for_a_version_that_knows_them() {
        let configuration = Configuration {
            screen: Some(Ask::SecuridWait.into()),
            broker_guid: Some("guid".to_owned()),
            client_configuration: vec![Param {
                name: "x".to_owned(),
                readonly: false,
                values: vec!["y".to_owned()],
            }],
        };
        let signed_in = SignedIn {
            logout_on_cert_removal: Some(true),
            idle_timeout: Some(-1),
            ..SignedIn::default()
        };
        let reply = Reply::Answers(vec![
            Answer::ok(Kind::GetConfiguration, Body::Configuration(configuration)),
            Answer::ok(Kind::SubmitAuthentication, Body::SignedIn(signed_in)),
        ]);
        let old = reply.write(Version::V4_5);
        assert!(old.contains("securid-wait") && old.contains("logout-on-cert-removal-enabled"));
        assert!(!old.contains("guid") && !old.contains("client-configuration") && !old.contains("idle-timeout"));
        assert!(reply.write(Version::V14_0).contains("<idle-timeout>-1</idle-timeout>"));
        assert_eq!(read(&reply.write(Version::V15_0)), Ok(reply));
    }

    #[test]
    fn any_other_result_with_a_code_or_a_message_is_a_failure() {
        let outcome = |inside: &str| {
            let reply = read(&format!("<broker version='4.5'><lock>{inside}</lock></broker>"))?;
            Ok(reply.answer(&Kind::Lock).unwrap().outcome.clone())
        };
        let failed = outcome("<result>odd</result><error-message>no</error-message>");
        assert!(matches!(failed, Ok(Outcome::Failed(failure)) if failure.words() == "no"));
        let ok = outcome("<error-code>X</error-code><result> OK\n</result>");
        assert_eq!(ok, Ok(Outcome::Ok(Body::Empty)));
        for inside in ["", "<result/>", "<result>odd</result>", "<result>partial</result>"] {
            assert!(
                matches!(outcome(inside), Err(ReplyError::Answer { kind: Kind::Lock, .. })),
                "{inside}"
            );
        }
    }

    #[test]
    fn more_answers_than_any_request_asks_for_are_refused() {
        let text = format!(
            "<broker version='4.5'>{}</broker>",
            "<lock><result>ok</result></lock>".repeat(65)
        );
        assert_eq!(read(&text), Err(ReplyError::TooManyAnswers));
    }
}
