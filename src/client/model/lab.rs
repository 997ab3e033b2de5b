//! A whole gateway: one user, two desktops, one tunnel.

use std::sync::Arc;

use http::header::{HOST, SET_COOKIE};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use parking_lot::Mutex;

use super::{Frames, Gateway, Identity, Inside, document, envelope, serve, status};
use crate::client::{Endpoint, Thumbprint};
use crate::control::envelope::{Reply, Request as Envelope};
use crate::control::operation::{
    Answer, Body, Configuration, Connection, Desktop, ErrorCode, Failure, Launch, LaunchItems, OfferedProtocol,
    Operation, Outcome, SignedIn, Tunnel, TunnelConnection,
};
use crate::control::screen::{Ask, Screen, Submission, WindowsPassword};
use crate::types::Secret;

/// A gateway at which `ann` signs in with `plum` and may launch `Shell` (`cn=shell`, SSH) and `Lab` (`cn=lab`).
pub(crate) struct Lab {
    gateway: Gateway,
    thumbprint: Thumbprint,
    inside: Arc<Inside>,
    seen: Arc<Mutex<Vec<Envelope>>>,
}

impl Lab {
    pub(crate) async fn new() -> Self {
        let (identity, inside, seen) = (Identity::new("localhost"), Inside::new(), Arc::<Mutex<_>>::default());
        let (served, record) = (inside.clone(), seen.clone());
        let gateway = serve(identity.server_config(), move |request| {
            answer(request, served.clone(), record.clone())
        })
        .await;
        Self {
            gateway,
            thumbprint: identity.thumbprint(),
            inside,
            seen,
        }
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        self.gateway.endpoint()
    }

    pub(crate) fn thumbprint(&self) -> Thumbprint {
        self.thumbprint
    }

    /// Whether the last thing that was asked for is the end of the session.
    pub(crate) fn is_logged_out(&self) -> bool {
        self.seen
            .lock()
            .last()
            .is_some_and(|last| last.operations == [Operation::Logout])
    }

    /// Sends everything back on a channel, and closes it after `octets`.
    pub(crate) async fn echo(&self, channel: u32, octets: usize) {
        let received = self.inside.received(channel, octets).await;
        self.inside.act(|model| {
            received.chunks(10_240).for_each(|piece| model.data(channel, piece));
            let channel = i32::try_from(channel).unwrap();
            model.send(&crate::tunnel::https::message::Message::Lower { channel });
        });
    }
}

async fn answer(request: Request<Incoming>, inside: Arc<Inside>, seen: Arc<Mutex<Vec<Envelope>>>) -> Response<Frames> {
    if request.uri().path().starts_with("/ice/") {
        return inside.serve(request);
    }
    if request.uri().path() != "/broker/xml" {
        return status(StatusCode::NOT_FOUND);
    }
    let host = request.headers()[HOST].to_str().unwrap().to_owned();
    let envelope = envelope(request).await;
    let mut answers = Vec::new();
    for operation in &envelope.operations {
        if matches!(operation, Operation::GetDesktopConnection(_)) {
            inside.wait(|model| model.port.is_some()).await;
        }
        let outcome = outcome(operation, &answers, &host, &inside);
        answers.push(Answer {
            kind: operation.kind(),
            outcome,
        });
    }
    let mut response = document(&Reply::Answers(answers), &envelope);
    response
        .headers_mut()
        .append(SET_COOKIE, "JSESSIONID=7; Secure; HttpOnly".parse().unwrap());
    seen.lock().push(envelope);
    response
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a lab answers what it knows")]
fn outcome(operation: &Operation, before: &[Answer], host: &str, inside: &Inside) -> Outcome {
    if before
        .iter()
        .any(|answer| matches!(answer.outcome, Outcome::Partial(_)))
    {
        return Outcome::NotExecuted;
    }
    Outcome::Ok(match operation {
        Operation::GetConfiguration => Body::Configuration(Configuration {
            screen: Some(password_screen(None)),
            ..Configuration::default()
        }),
        Operation::SubmitAuthentication { submission, .. } => match submission {
            Submission::WindowsPassword { user, password, .. } if user == "ann" && password.expose() == "plum" => {
                Body::SignedIn(SignedIn::default())
            }
            _ => return Outcome::Partial(password_screen(Some("Wrong user name or password."))),
        },
        Operation::GetTunnelConnection(_) => Body::Tunnel(TunnelConnection::Tunnel(Tunnel {
            connection_id: Secret::new("ks7"),
            server1: format!("https://{host}"),
            server2: None,
            generation: 0,
            status_port: 0,
            quic: None,
        })),
        Operation::GetLaunchItems(_) => {
            let desktops = Some(vec![desktop("cn=shell", "Shell"), desktop("cn=lab", "Lab")]);
            Body::LaunchItems(LaunchItems {
                desktops,
                ..LaunchItems::default()
            })
        }
        Operation::GetDesktopConnection(launch) if launch.id == "cn=shell" => {
            Body::Launch(Launch::Connect(Box::new(Connection {
                id: launch.id.clone(),
                address: "localhost".into(),
                port: inside.model.lock().port.unwrap(),
                protocol: launch.protocol.clone(),
                ..Connection::default()
            })))
        }
        Operation::GetDesktopConnection(_) => return Outcome::Failed(Failure::new(ErrorCode::NotEntitled)),
        _ => Body::Empty,
    })
}

fn password_screen(error: Option<&str>) -> Screen {
    Ask::WindowsPassword(WindowsPassword {
        error: error.map(str::to_owned),
        ..WindowsPassword::default()
    })
    .into()
}

fn desktop(id: &str, name: &str) -> Desktop {
    let protocols = vec![OfferedProtocol {
        name: "SSH".into(),
        is_default: true,
    }];
    Desktop {
        id: id.into(),
        name: name.into(),
        protocols,
        ..Desktop::default()
    }
}
