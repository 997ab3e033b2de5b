//! From a reached gateway to a session: agreeing on a version, then screen by screen.

use std::time::Duration;

use super::screens::{Credentials, Respondent};
use super::{Line, Session, environment, no_answer, take, take_ok, tunnel_request};
use crate::client::fault::Fault;
use crate::client::prompter::Prompter;
use crate::control::envelope::{Reply, Version};
use crate::control::operation::{
    Body, Desktop, ErrorCode, Kind, LaunchItemsRequest, Operation, Outcome, SignedIn, TunnelConnection,
};
use crate::control::screen::{Screen, Submission};
use crate::types::Protocol;

/// How a submission went.
enum Step {
    Screen(Box<Screen>),
    SignedIn(SignedIn),
}

pub(super) async fn sign_in<P: Prompter>(
    mut line: Line,
    credentials: Credentials,
    prompter: &mut P,
) -> Result<Session, Fault> {
    let mut respondent = Respondent::new(credentials, prompter);
    let mut screen = first_screen(&mut line, respondent.prompter()).await?;
    for _ in 0..MOST_SCREENS {
        let submission = match screen.take() {
            Some(screen) => Some(respondent.answer(screen).await?),
            None => None,
        };
        let submits = submission.is_some();
        let operations = batch(&line, submission);
        let mut reply = line.post_trusting(&operations, respondent.prompter()).await?;
        let step = if submits {
            step(&mut reply)?
        } else {
            Step::SignedIn(SignedIn::default())
        };
        match step {
            Step::Screen(next) => screen = Some(*next),
            Step::SignedIn(signed_in) => return complete(line, &signed_in, reply).await,
        }
    }
    Err(Fault::Endless)
}

/// Agrees on a version and asks for the first screen; `None` if nothing is asked.
async fn first_screen(line: &mut Line, prompter: &mut impl Prompter) -> Result<Option<Screen>, Fault> {
    for version in LADDER {
        let Ok(version) = version.parse::<Version>() else {
            continue;
        };
        line.version = version;
        let mut operations = Vec::new();
        if let Some(locale) = line
            .settings
            .locale
            .clone()
            .filter(|_| version >= Kind::SetLocale.since())
        {
            operations.push(Operation::SetLocale { locale });
        }
        operations.push(Operation::GetConfiguration);
        let mut reply = line.post_trusting(&operations, prompter).await?;
        if is_unsupported(&reply) {
            continue;
        }
        return match take(&mut reply, &Kind::GetConfiguration)? {
            Outcome::Ok(Body::Configuration(configuration)) => Ok(configuration.screen),
            Outcome::Failed(failure) if failure.code == ErrorCode::AlreadyAuthenticated => Ok(None),
            Outcome::Failed(failure) => Err(Fault::of_failure(&failure)),
            Outcome::Ok(_) | Outcome::Partial(_) | Outcome::NotExecuted => Err(no_answer(&Kind::GetConfiguration)),
        };
    }
    Err(Fault::Version)
}

/// Whether the gateway does not speak the version: said of the envelope, or of its first operation.
fn is_unsupported(reply: &Reply) -> bool {
    match reply {
        Reply::Failed(failure) => failure.code == ErrorCode::UnsupportedVersion,
        Reply::Answers(answers) => answers.iter().any(|answer| {
            matches!(&answer.outcome, Outcome::Failed(failure) if failure.code == ErrorCode::UnsupportedVersion)
        }),
    }
}

/// An answer to a screen, and what is wanted next if it was the last one.
fn batch(line: &Line, submission: Option<Submission>) -> Vec<Operation> {
    let submit = submission.map(|submission| Operation::SubmitAuthentication {
        submission,
        environment: environment(),
    });
    let rest = [
        Operation::GetTunnelConnection(tunnel_request(line.settings.quic)),
        list(line.version),
    ];
    submit.into_iter().chain(rest).collect()
}

/// The operation that lists desktops.
fn list(version: Version) -> Operation {
    let protocols: Vec<_> = Protocol::ALL.map(|protocol| protocol.wire_name().to_owned()).into();
    if version >= Kind::GetLaunchItems.since() {
        Operation::GetLaunchItems(LaunchItemsRequest {
            desktops: Some(protocols),
            environment: environment(),
            ..LaunchItemsRequest::default()
        })
    } else {
        Operation::GetDesktops {
            supported_protocols: protocols,
        }
    }
}

fn step(reply: &mut Reply) -> Result<Step, Fault> {
    match take(reply, &Kind::SubmitAuthentication)? {
        Outcome::Ok(Body::SignedIn(signed_in)) => Ok(Step::SignedIn(signed_in)),
        Outcome::Partial(screen) => Ok(Step::Screen(Box::new(screen))),
        Outcome::Failed(failure) if failure.code == ErrorCode::AlreadyAuthenticated => {
            Ok(Step::SignedIn(SignedIn::default()))
        }
        Outcome::Failed(failure) => Err(Fault::of_failure(&failure)),
        Outcome::Ok(_) | Outcome::NotExecuted => Err(no_answer(&Kind::SubmitAuthentication)),
    }
}

/// Makes the session of what came with the last answer; what did not come is asked for again.
async fn complete(mut line: Line, signed_in: &SignedIn, mut reply: Reply) -> Result<Session, Fault> {
    let tunnel = reply.answer(&Kind::GetTunnelConnection);
    if tunnel.is_some_and(|answer| answer.outcome == Outcome::NotExecuted) {
        reply = line.post(batch(&line, None)).await?;
    }
    let tunnel = tunnel_of(&mut reply)?;
    let desktops = desktops_of(&mut reply, line.version)?;
    if desktops.is_empty() {
        return Err(Fault::NoDesktop);
    }
    let seconds = signed_in
        .user_activity_interval
        .and_then(|seconds| u64::try_from(seconds).ok());
    let interval = seconds
        .map_or(LONGEST_INTERVAL, Duration::from_secs)
        .clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL);
    Ok(Session {
        line,
        desktops,
        tunnel,
        interval,
        lifetime: signed_in
            .max_broker_session_time
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(Duration::from_secs),
    })
}

fn tunnel_of(reply: &mut Reply) -> Result<TunnelConnection, Fault> {
    let Body::Tunnel(tunnel) = take_ok(reply, &Kind::GetTunnelConnection)? else {
        return Err(no_answer(&Kind::GetTunnelConnection));
    };
    Ok(tunnel)
}

fn desktops_of(reply: &mut Reply, version: Version) -> Result<Vec<Desktop>, Fault> {
    let kind = list(version).kind();
    let body = take_ok(reply, &kind)?;
    if let Body::LaunchItems(items) = body {
        Ok(items.desktops.unwrap_or_default())
    } else if let Body::Desktops(desktops) = body {
        Ok(desktops)
    } else {
        Err(no_answer(&kind))
    }
}

/// Versions in the order in which they are tried.
const LADDER: [&str; 9] = ["15.0", "14.0", "10.0", "9.0", "4.5", "4.0", "3.0", "2.0", "1.0"];
/// No sign-in has more screens than these, repeated ones included.
const MOST_SCREENS: usize = 40;
const SHORTEST_INTERVAL: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(30 * 60);

#[cfg(test)]
#[expect(clippy::wildcard_enum_match_arm, reason = "a model answers what it knows")]
mod tests {
    use crate::client::model::{Broker, Identity, Script, serve, settings};
    use crate::client::{Endpoint, FaultKind, Question, Reached, Session, Thumbprint, Unattended};
    use crate::control::envelope::Request;
    use crate::control::operation::{Answer, Configuration, Failure, LaunchItems, Tunnel};
    use crate::control::screen::{Ask, WindowsPassword};
    use crate::types::Secret;

    use super::*;

    fn password_screen(error: Option<&str>) -> Screen {
        Ask::WindowsPassword(WindowsPassword {
            error: error.map(str::to_owned),
            ..WindowsPassword::default()
        })
        .into()
    }

    fn desktops() -> Vec<Desktop> {
        vec![Desktop {
            id: "cn=shell".into(),
            name: "Shell".into(),
            ..Desktop::default()
        }]
    }

    /// The good answer to an operation.
    fn good(operation: &Operation) -> Answer {
        let body = match operation {
            Operation::GetConfiguration => Body::Configuration(Configuration {
                screen: Some(password_screen(None)),
                ..Configuration::default()
            }),
            Operation::SubmitAuthentication { .. } => Body::SignedIn(SignedIn {
                user_activity_interval: Some(60),
                ..SignedIn::default()
            }),
            Operation::GetTunnelConnection(_) => Body::Tunnel(TunnelConnection::Tunnel(Tunnel {
                connection_id: Secret::new("ks7"),
                server1: "https://localhost:1".into(),
                server2: None,
                generation: 0,
                status_port: 0,
                quic: None,
            })),
            Operation::GetLaunchItems(_) => Body::LaunchItems(LaunchItems {
                desktops: Some(desktops()),
                ..LaunchItems::default()
            }),
            Operation::GetDesktops { .. } => Body::Desktops(desktops()),
            _ => Body::Empty,
        };
        Answer::ok(operation.kind(), body)
    }

    fn all_good(request: &Request) -> Reply {
        Reply::Answers(request.operations.iter().map(good).collect())
    }

    /// Good answers, but for the kind of operation that `special` answers.
    fn but(request: &Request, special: impl Fn(&Operation) -> Option<Outcome>) -> Reply {
        let answer = |operation: &Operation| match special(operation) {
            Some(outcome) => Answer {
                kind: operation.kind(),
                outcome,
            },
            None => good(operation),
        };
        Reply::Answers(request.operations.iter().map(answer).collect())
    }

    fn failure(code: ErrorCode) -> Failure {
        Failure::new(code)
    }

    fn ann() -> Credentials {
        Credentials {
            user: Some("ann".into()),
            password: Some(Secret::new("plum")),
            ..Credentials::default()
        }
    }

    async fn reached(endpoint: Endpoint, thumbprint: Thumbprint) -> Reached {
        Reached::dial(endpoint, settings(thumbprint), &mut Unattended)
            .await
            .unwrap()
    }

    async fn signed_in(
        answer: impl Fn(&Request) -> Reply + Clone + Send + Sync + 'static,
        prompter: &mut Script,
    ) -> (Result<Session, Fault>, Vec<Request>) {
        let identity = Identity::new("localhost");
        let broker = Broker::new(answer);
        let seen = broker.seen.clone();
        let gateway = serve(identity.server_config(), move |request| broker.clone().serve(request)).await;
        let reached = reached(gateway.endpoint(), identity.thumbprint()).await;
        let outcome = reached.sign_in(ann(), prompter).await;
        let seen = std::mem::take(&mut *seen.lock());
        (outcome, seen)
    }

    fn kinds(request: &Request) -> Vec<&'static str> {
        request
            .operations
            .iter()
            .map(|operation| match operation {
                Operation::SetLocale { .. } => "locale",
                Operation::GetConfiguration => "configuration",
                Operation::SubmitAuthentication { .. } => "submit",
                Operation::GetTunnelConnection(_) => "tunnel",
                Operation::GetLaunchItems(_) => "items",
                Operation::GetDesktops { .. } => "desktops",
                _ => "other",
            })
            .collect()
    }

    #[tokio::test]
    async fn an_answer_is_sent_with_what_is_wanted_next() {
        let (session, seen) = signed_in(all_good, &mut Script::default()).await;
        let session = session.unwrap();
        assert_eq!(session.desktops(), desktops());
        assert_eq!(session.activity_interval(), Duration::from_secs(60));
        assert_eq!(
            seen.iter().map(kinds).collect::<Vec<_>>(),
            [vec!["configuration"], vec!["submit", "tunnel", "items"]]
        );
        assert!(seen.iter().all(|request| request.version == Version::V15_0));
    }

    #[tokio::test]
    async fn the_version_goes_down_until_the_gateway_speaks_it() {
        for (spoken, list) in [
            ("14.0", "items"),
            ("10.0", "items"),
            ("4.5", "desktops"),
            ("1.0", "desktops"),
        ] {
            let spoken: Version = spoken.parse().unwrap();
            let answer = move |request: &Request| match request.version > spoken {
                // Said of the whole envelope, or of its operations.
                true if request.version == Version::V15_0 => Reply::Failed(failure(ErrorCode::UnsupportedVersion)),
                true => but(request, |_| {
                    Some(Outcome::Failed(failure(ErrorCode::UnsupportedVersion)))
                }),
                false => all_good(request),
            };
            let (session, seen) = signed_in(answer, &mut Script::default()).await;
            assert_eq!(session.unwrap().version(), spoken);
            assert_eq!(kinds(seen.last().unwrap()), ["submit", "tunnel", list]);
        }
        let never = |_: &Request| Reply::Failed(failure(ErrorCode::UnsupportedVersion));
        let (session, seen) = signed_in(never, &mut Script::default()).await;
        assert!(matches!(session, Err(Fault::Version)));
        assert_eq!(seen.len(), LADDER.len());
    }

    #[tokio::test]
    async fn the_locale_is_sent_from_version_two() {
        let identity = Identity::new("localhost");
        let broker = Broker::new(|request: &Request| match request.version {
            Version::V1_0 => all_good(request),
            _ => Reply::Failed(failure(ErrorCode::UnsupportedVersion)),
        });
        let seen = broker.seen.clone();
        let gateway = serve(identity.server_config(), move |request| broker.clone().serve(request)).await;
        let settings = super::super::Settings {
            locale: Some("de_DE".into()),
            ..settings(identity.thumbprint())
        };
        let reached = Reached::dial(gateway.endpoint(), settings, &mut Unattended)
            .await
            .unwrap();
        reached.sign_in(ann(), &mut Unattended).await.unwrap();
        let seen: Vec<_> = seen.lock().iter().map(kinds).collect();
        assert_eq!(seen[0], ["locale", "configuration"]);
        assert_eq!(seen[LADDER.len() - 2], ["locale", "configuration"]);
        assert_eq!(seen[LADDER.len() - 1], ["configuration"]);
    }

    #[tokio::test]
    async fn a_wrong_password_is_asked_for_again() {
        let answer = |request: &Request| {
            but(request, |operation| match operation {
                Operation::SubmitAuthentication {
                    submission: Submission::WindowsPassword { password, .. },
                    ..
                } if password.expose() != "pear" => Some(Outcome::Partial(password_screen(Some("Try again.")))),
                _ => None,
            })
        };
        let mut script = Script::new([(Question::Password { user: "ann".into() }, "pear")]);
        let (session, seen) = signed_in(answer, &mut script).await;
        assert!(session.is_ok());
        assert_eq!((seen.len(), script.shown), (3, vec!["Try again.".to_owned()]));

        let (session, _) = signed_in(answer, &mut Script::default()).await;
        let fault = session.unwrap_err();
        assert_eq!(
            (fault.kind(), fault.to_string().as_str()),
            (FaultKind::NotAllowed, "not signed in: Try again.")
        );
    }

    #[tokio::test]
    async fn a_sign_in_that_failed_for_good_is_told_in_the_words_for_the_user() {
        let answer = |request: &Request| {
            but(request, |operation| {
                let failed = failure(ErrorCode::AuthenticationFailed).with_user_message("No\u{202e} attempts left.");
                matches!(operation, Operation::SubmitAuthentication { .. }).then_some(Outcome::Failed(failed))
            })
        };
        let (session, _) = signed_in(answer, &mut Script::default()).await;
        let fault = session.unwrap_err();
        assert_eq!(fault.to_string(), "not signed in: No attempts left.");
        assert_eq!(fault.kind(), FaultKind::NotAllowed);
    }

    #[tokio::test]
    async fn a_session_that_is_signed_in_already_is_taken_for_success() {
        let already = |request: &Request| {
            but(request, |operation| {
                let failed = Outcome::Failed(failure(ErrorCode::AlreadyAuthenticated));
                matches!(operation, Operation::GetConfiguration).then_some(failed)
            })
        };
        let (session, seen) = signed_in(already, &mut Script::default()).await;
        assert!(session.is_ok());
        assert_eq!(kinds(&seen[1]), ["tunnel", "items"], "nothing is submitted");
    }

    #[tokio::test]
    async fn what_was_skipped_is_asked_for_again() {
        let skipped = |request: &Request| {
            but(request, |operation| match operation {
                Operation::SubmitAuthentication { .. } => {
                    Some(Outcome::Failed(failure(ErrorCode::AlreadyAuthenticated)))
                }
                _ if request.operations.len() == 3 => Some(Outcome::NotExecuted),
                _ => None,
            })
        };
        let (session, seen) = signed_in(skipped, &mut Script::default()).await;
        assert_eq!(session.unwrap().desktops().len(), 1);
        assert_eq!(seen.len(), 3);
    }

    #[tokio::test]
    async fn a_user_without_desktops_is_not_entitled() {
        let none = |request: &Request| {
            but(request, |operation| {
                let empty = Body::LaunchItems(LaunchItems {
                    desktops: Some(vec![]),
                    ..LaunchItems::default()
                });
                matches!(operation, Operation::GetLaunchItems(_)).then_some(Outcome::Ok(empty))
            })
        };
        let (session, _) = signed_in(none, &mut Script::default()).await;
        assert_eq!(session.unwrap_err().kind(), FaultKind::NotAllowed);
    }

    #[tokio::test]
    async fn a_gateway_that_asks_without_end_is_left() {
        let terms = |request: &Request| {
            but(request, |operation| {
                let again = Outcome::Partial(Ask::CertAuth.into());
                matches!(operation, Operation::SubmitAuthentication { .. }).then_some(again)
            })
        };
        let (session, seen) = signed_in(terms, &mut Script::default()).await;
        assert!(matches!(session, Err(Fault::Endless)));
        assert_eq!(seen.len(), MOST_SCREENS + 1);
    }

    #[tokio::test]
    async fn a_reply_without_the_answer_is_a_fault() {
        let (session, _) = signed_in(|_| Reply::Answers(vec![]), &mut Script::default()).await;
        assert_eq!(
            session.unwrap_err().to_string(),
            "the gateway's reply has no answer to get-configuration"
        );
    }
}
