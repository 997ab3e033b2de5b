//! A user's session at a gateway: the client's side of the control channel.
//!
//! [`Reached`] is a gateway with which TLS is agreed; signing in makes it a [`Session`].

mod preconnection;
mod screens;
mod sign_in;

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

pub use self::preconnection::Preconnection;
pub use self::screens::Credentials;

use super::endpoint::Endpoint;
use super::fault::Fault;
use super::http::{HttpFault, MAX_REPLY, Web};
use super::prompter::{Prompter, Question, Unanswered, is_yes};
use super::quic::{Quic, QuicFault};
use super::tls::{DialCause, DialFault, Dialer, TlsFacts};
use super::trust::{Judgement, Trust};
use super::tunnel::{Doors, Notice, Place, Tunnel};
use super::words::printable_line;
use crate::control::envelope::{Reply, Request, Version};
use crate::control::operation::{
    Body, Connection, Desktop, Environment, Info, Kind, Launch, LaunchRequest, Operation, Outcome, TunnelConnection,
    TunnelRequest,
};
use crate::control::xml::Limits;
use crate::types::Thumbprint;

/// How the client goes about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What certificates are held to.
    pub trust: Trust,
    /// Whether an unknown certificate is accepted and remembered without a question.
    pub accept_new: bool,
    /// Whether the gateway is asked where QUIC is spoken.
    pub quic: bool,
    /// The user's language as a POSIX locale; `None` is not sent.
    pub locale: Option<String>,
    /// Counts the tasks of connections and tunnels.
    pub tasks: TaskTracker,
}

/// A gateway that was reached and is trusted. Nobody is signed in.
#[derive(Debug)]
pub struct Reached {
    line: Line,
}

/// A signed-in session. End it with [`log_out`](Self::log_out).
#[derive(Debug)]
pub struct Session {
    line: Line,
    desktops: Vec<Desktop>,
    tunnel: TunnelConnection,
    interval: Duration,
    lifetime: Option<Duration>,
}

/// Where a launched desktop is reached on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// The desktop's name, fit for a terminal.
    pub desktop: String,
    /// The protocol as granted.
    pub protocol: Option<String>,
    /// The local port; its address is 127.0.0.1, or that of [`Doors::Given`].
    pub port: u16,
}

/// The way on which documents are exchanged.
#[derive(Debug)]
struct Line {
    web: Web,
    dialer: Dialer,
    settings: Settings,
    version: Version,
}

impl Reached {
    /// Connects to a gateway and agrees TLS. The prompter is asked about an unknown certificate.
    ///
    /// # Errors
    /// It is not reached, or not trusted.
    pub async fn dial(endpoint: Endpoint, settings: Settings, prompter: &mut impl Prompter) -> Result<Self, Fault> {
        let dialer = Dialer::new(settings.trust.clone());
        let web = Web::new(dialer.clone(), endpoint, settings.tasks.clone());
        let mut line = Line {
            web,
            dialer,
            settings,
            version: Version::NEWEST,
        };
        while let Err(fault) = line.web.connect().await {
            line.trust(fault, prompter).await?;
        }
        Ok(Self { line })
    }

    /// The gateway: the one that was named, or the one to which it redirected.
    pub fn endpoint(&self) -> &Endpoint {
        self.line.web.endpoint()
    }

    /// What was agreed.
    pub fn tls(&self) -> Option<&TlsFacts> {
        self.line.web.tls()
    }

    /// Whether the gateway is in service, as its balancer sees it.
    ///
    /// # Errors
    /// It did not answer.
    pub async fn is_in_service(&mut self) -> Result<bool, Fault> {
        Ok(self.line.web.health().await?.is_success())
    }

    /// Posts a document as it stands, and says whether the gateway refused it as a whole.
    ///
    /// # Errors
    /// It did not answer, or not with a reply of the protocol.
    pub async fn refuses(&mut self, document: &str) -> Result<bool, Fault> {
        let reply = self.line.web.post(document).await?;
        Ok(matches!(Reply::read(&reply, &Limits::default())?, Reply::Failed(_)))
    }

    /// Signs the user in and fetches the list of their desktops.
    ///
    /// # Errors
    /// The user was not signed in, or a question had no answer.
    pub async fn sign_in(self, credentials: Credentials, prompter: &mut impl Prompter) -> Result<Session, Fault> {
        sign_in::sign_in(self.line, credentials, prompter).await
    }
}

impl Session {
    /// The gateway.
    pub fn endpoint(&self) -> &Endpoint {
        self.line.web.endpoint()
    }

    /// What was agreed on the last connection.
    pub fn tls(&self) -> Option<&TlsFacts> {
        self.line.web.tls()
    }

    /// The version of the protocol that is spoken.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// What the user may launch. Texts are the gateway's, as they came.
    pub fn desktops(&self) -> &[Desktop] {
        &self.desktops
    }

    /// How often the gateway wants to hear that the user is active.
    pub fn activity_interval(&self) -> Duration {
        self.interval
    }

    /// How long the session lasts at most, from the sign-in; `None` if the gateway did not say, or sets no end.
    pub fn lifetime(&self) -> Option<Duration> {
        self.lifetime
    }

    /// Opens the tunnel through which desktops are reached. What happens to it is told through `notices`.
    ///
    /// # Errors
    /// The gateway offers none, or it could not be opened.
    pub async fn open_tunnel(
        &mut self,
        doors: Doors,
        notices: mpsc::Sender<Notice>,
        prompter: &mut impl Prompter,
    ) -> Result<Tunnel, Fault> {
        let TunnelConnection::Tunnel(offered) = &self.tunnel else {
            return Err(Fault::Bypass);
        };
        let address = offered.server1.parse().ok().and_then(|uri| Endpoint::of_uri(&uri).ok());
        let endpoint = address.ok_or_else(|| Fault::NotInTunnel {
            address: printable_line(&offered.server1),
        })?;
        let sibling = self.line.web.tls().map(|tls| tls.thumbprint);
        let place = Place::new(endpoint, offered.connection_id.clone(), sibling);
        let (dialer, tasks) = (self.line.dialer.clone(), self.line.settings.tasks.clone());
        let exchange = loop {
            match place.dial(&dialer, &tasks).await {
                Ok(exchange) => break exchange,
                Err(fault) => self.line.trust(fault.into(), prompter).await?,
            }
        };
        Ok(Tunnel::open(exchange, dialer, place, doors, notices, &tasks).await?)
    }

    /// Opens the way over QUIC through which desktops are reached, if the gateway offers it and UDP arrives.
    ///
    /// # Errors
    /// Within a second if nothing comes back.
    pub async fn open_quic(&self) -> Result<Quic, QuicFault> {
        let TunnelConnection::Tunnel(offered) = &self.tunnel else {
            return Err(QuicFault::NotOffered);
        };
        let address = offered.server1.parse().ok().and_then(|uri| Endpoint::of_uri(&uri).ok());
        let (Some(quic), Some(endpoint)) = (&offered.quic, address) else {
            return Err(QuicFault::NotOffered);
        };
        let sibling = self.line.web.tls().map(|tls| tls.thumbprint);
        let settings = &self.line.settings;
        Quic::open(&settings.trust, &endpoint, quic, sibling, &settings.tasks).await
    }

    /// Launches a desktop over QUIC, and gives the name under which it is reached there.
    ///
    /// # Errors
    /// The gateway does not launch it, or not by that protocol.
    pub async fn launch_over_quic(
        &mut self,
        desktop: &Desktop,
        protocol: Option<&str>,
    ) -> Result<(Launched, String), Fault> {
        let (launched, address) = self.launch_by(desktop, protocol, true).await?;
        // A route's name, and nothing that could be an address.
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if launched.port != 1 || !address.chars().all(is_name) {
            return Err(Fault::NotInTunnel {
                address: printable_line(&address),
            });
        }
        Ok((launched, address))
    }

    /// Launches a desktop over the tunnel, which must be open.
    ///
    /// `protocol` is one that the desktop is offered by; `None` takes its default.
    ///
    /// # Errors
    /// The gateway does not launch it, or not by that protocol.
    pub async fn launch(&mut self, desktop: &Desktop, protocol: Option<&str>) -> Result<Launched, Fault> {
        let (launched, address) = self.launch_by(desktop, protocol, false).await?;
        if !matches!(address.to_ascii_lowercase().as_str(), "localhost" | "127.0.0.1") {
            return Err(Fault::NotInTunnel {
                address: printable_line(&address),
            });
        }
        Ok(launched)
    }

    async fn launch_by(
        &mut self,
        desktop: &Desktop,
        protocol: Option<&str>,
        quic: bool,
    ) -> Result<(Launched, String), Fault> {
        let request = LaunchRequest {
            id: desktop.id.clone(),
            protocol: protocol_of(desktop, protocol)?,
            quic,
            preconnection: false,
            environment: environment(),
        };
        let connection = self.connection(request).await?;
        let launched = Launched {
            desktop: printable_line(&desktop.name),
            protocol: connection.protocol.as_deref().map(printable_line),
            port: connection.port,
        };
        Ok((launched, connection.address))
    }

    /// The answer to a launch, which leads to a desktop and not to another server.
    async fn connection(&mut self, request: LaunchRequest) -> Result<Box<Connection>, Fault> {
        let mut reply = self.line.post(vec![Operation::GetDesktopConnection(request)]).await?;
        let Body::Launch(launch) = take_ok(&mut reply, &Kind::GetDesktopConnection)? else {
            return Err(no_answer(&Kind::GetDesktopConnection));
        };
        match launch {
            Launch::Connect(connection) => Ok(connection),
            Launch::Redirect { url, .. } => Err(Fault::NotInTunnel {
                address: printable_line(&url),
            }),
        }
    }

    /// Tells the gateway, again and again, that the user is active. It returns when the session is over.
    ///
    /// Not cancel-safe in the strict sense: a beat may have been sent; that does no harm.
    pub async fn keep_alive(&mut self) -> Fault {
        let mut failures = 0;
        loop {
            sleep(if failures == 0 {
                self.interval
            } else {
                RETRY.min(self.interval)
            })
            .await;
            match self.beat().await {
                Ok(()) => failures = 0,
                Err(fault @ Fault::SessionOver { .. }) => return fault,
                // The tunnel may get through where the control channel does not at this moment.
                Err(_) if failures < RETRIES => failures += 1,
                Err(fault) => return fault,
            }
        }
    }

    /// Tells the gateway once that the user is active. Servers before version 15.0 are not told.
    ///
    /// # Errors
    /// The gateway was not reached, or the session is over.
    pub async fn beat(&mut self) -> Result<(), Fault> {
        if self.line.version < Kind::SetLastUserActivity.since() {
            return Ok(());
        }
        let mut reply = self.line.post(vec![Operation::SetLastUserActivity]).await?;
        take_ok(&mut reply, &Kind::SetLastUserActivity).map(drop)
    }

    /// Ends the session. A gateway that does not answer within seconds is left to its own timers.
    pub async fn log_out(mut self) {
        // Best effort: there is nothing to do about a fault at the end.
        let _ = timeout(FAREWELL, self.line.post(vec![Operation::Logout])).await;
    }
}

impl Line {
    /// One envelope and the answers to it.
    async fn post(&mut self, operations: Vec<Operation>) -> Result<Reply, Fault> {
        let body = Request {
            version: self.version,
            operations,
        }
        .write()?;
        let reply = self.web.post(&body).await?;
        let limits = Limits {
            bytes: MAX_REPLY,
            ..Limits::default()
        };
        Ok(Reply::read(&reply, &limits)?)
    }

    /// The same, asking about certificates that are not known: of a gateway that was redirected to.
    async fn post_trusting(&mut self, operations: &[Operation], prompter: &mut impl Prompter) -> Result<Reply, Fault> {
        loop {
            match self.post(operations.to_vec()).await {
                // Nothing was sent to a gateway that is not trusted.
                Err(Fault::Http(fault @ HttpFault::Dial(_))) => self.trust(fault, prompter).await?,
                outcome => return outcome,
            }
        }
    }

    /// Asks about an unknown certificate. `Ok`: it is accepted, and dialling again will succeed.
    async fn trust(&self, fault: HttpFault, prompter: &mut impl Prompter) -> Result<(), Fault> {
        let HttpFault::Dial(DialFault {
            endpoint,
            cause: DialCause::Certificate(Judgement::Unknown { thumbprint, problem }),
        }) = &fault
        else {
            return Err(fault.into());
        };
        let question = Question::Certificate {
            endpoint: endpoint.clone(),
            thumbprint: *thumbprint,
            problem: problem.clone(),
        };
        if !self.settings.accept_new {
            match prompter.ask(&question).await {
                Ok(answer) if is_yes(&answer) => {}
                Ok(_) | Err(Unanswered::NoTerminal | Unanswered::Closed) => return Err(fault.into()),
            }
        }
        self.remember(endpoint, *thumbprint, prompter);
        Ok(())
    }

    fn remember(&self, endpoint: &Endpoint, thumbprint: Thumbprint, prompter: &mut impl Prompter) {
        let trust = &self.settings.trust;
        match (trust.accept(endpoint, thumbprint), trust.remembered_in()) {
            (Ok(()), Some(file)) => {
                prompter.show(&format!(
                    "Trusting {endpoint} with {thumbprint}, remembered in {}",
                    file.display()
                ));
            }
            (Ok(()), None) => prompter.show(&format!("Trusting {endpoint} with {thumbprint}, this time only")),
            (Err(fault), _) => prompter.show(&format!("Trusting {endpoint} this time only: {fault}")),
        }
    }
}

/// Takes the body of a good answer out of a reply.
fn take_ok(reply: &mut Reply, kind: &Kind) -> Result<Body, Fault> {
    match take(reply, kind)? {
        Outcome::Ok(body) => Ok(body),
        Outcome::Failed(failure) => Err(Fault::of_failure(&failure)),
        Outcome::Partial(_) | Outcome::NotExecuted => Err(no_answer(kind)),
    }
}

/// Takes the outcome of one operation out of a reply.
fn take(reply: &mut Reply, kind: &Kind) -> Result<Outcome, Fault> {
    match reply {
        Reply::Failed(failure) => Err(Fault::of_failure(failure)),
        Reply::Answers(answers) => {
            let place = answers
                .iter()
                .position(|answer| answer.kind.reply_name() == kind.reply_name());
            place
                .map(|place| answers.swap_remove(place).outcome)
                .ok_or_else(|| no_answer(kind))
        }
    }
}

fn no_answer(kind: &Kind) -> Fault {
    Fault::NoAnswer {
        operation: kind.request_name().to_owned(),
    }
}

/// The protocol to ask for: the wanted one if it is offered, else the default, else the server's choice.
fn protocol_of(desktop: &Desktop, wanted: Option<&str>) -> Result<Option<String>, Fault> {
    let offered = &desktop.protocols;
    let Some(wanted) = wanted else {
        let default = offered.iter().find(|protocol| protocol.is_default).or(offered.first());
        return Ok(default.map(|protocol| protocol.name.clone()));
    };
    if offered.is_empty() {
        return Ok(Some(wanted.to_owned()));
    }
    let found = offered
        .iter()
        .find(|protocol| protocol.name.eq_ignore_ascii_case(wanted));
    found
        .map(|protocol| Some(protocol.name.clone()))
        .ok_or_else(|| Fault::Protocol {
            desktop: printable_line(&desktop.name),
            wanted: wanted.to_owned(),
            offered: offered.iter().map(|protocol| printable_line(&protocol.name)).collect(),
        })
}

/// What the client says of its machine: no more than a gateway needs.
fn environment() -> Environment {
    let info = |name: &str, value: &str| Info {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let system = match std::env::consts::OS {
        "macos" => "Mac",
        "windows" => "Windows",
        _ => "Linux",
    };
    Environment(vec![
        info("Type", system),
        info("Client_Version", env!("CARGO_PKG_VERSION")),
    ])
}

/// What the client says when it asks for a tunnel.
fn tunnel_request(quic: bool) -> TunnelRequest {
    TunnelRequest {
        bypass_tunnel: false,
        multi_connection_aware: true,
        thumbprint_algorithms: vec!["SHA-256".to_owned()],
        quic,
    }
}

/// Failed beats in a row that are made good by trying again.
const RETRIES: u32 = 5;
const RETRY: Duration = Duration::from_secs(10);
/// How long a logout may take.
const FAREWELL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::model::{Identity, Script, serve, status};
    use crate::client::{FaultKind, KnownGateways, Unattended};
    use crate::control::operation::OfferedProtocol;

    #[tokio::test]
    async fn an_unknown_gateway_is_asked_about_once_and_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("known");
        let identity = Identity::new("localhost");
        let gateway = serve(identity.server_config(), |_| async { status(http::StatusCode::OK) }).await;
        let settings = |accept_new| Settings {
            quic: true,
            trust: Trust::system(Some(KnownGateways::new(&file))),
            accept_new,
            locale: None,
            tasks: TaskTracker::new(),
        };
        let question = Question::Certificate {
            endpoint: gateway.endpoint(),
            thumbprint: identity.thumbprint(),
            problem: "no known authority issued it".into(),
        };

        let refused = Reached::dial(gateway.endpoint(), settings(false), &mut Unattended)
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), FaultKind::NotAllowed);
        assert!(
            refused.to_string().contains(&identity.thumbprint().to_string()),
            "{refused}"
        );

        let mut no = Script::new([(question.clone(), "no")]);
        assert!(
            Reached::dial(gateway.endpoint(), settings(false), &mut no)
                .await
                .is_err()
        );
        assert!(!file.exists());

        let mut yes = Script::new([(question, "yes")]);
        let reached = Reached::dial(gateway.endpoint(), settings(false), &mut yes)
            .await
            .unwrap();
        assert_eq!(reached.tls().unwrap().thumbprint, identity.thumbprint());
        assert!(yes.shown[0].contains("remembered in"), "{:?}", yes.shown);
        assert!(
            Reached::dial(gateway.endpoint(), settings(false), &mut Unattended)
                .await
                .is_ok()
        );

        std::fs::remove_file(&file).unwrap();
        assert!(
            Reached::dial(gateway.endpoint(), settings(true), &mut Unattended)
                .await
                .is_ok()
        );
        assert!(file.exists(), "--accept-new remembers without a question");
    }

    #[test]
    fn the_wanted_protocol_must_be_offered_and_the_default_is_taken_without_one() {
        let protocol = |name: &str, is_default| OfferedProtocol {
            name: name.into(),
            is_default,
        };
        let both = Desktop {
            protocols: vec![protocol("VNC", false), protocol("SSH", true)],
            ..Desktop::default()
        };
        assert_eq!(protocol_of(&both, None).unwrap().as_deref(), Some("SSH"));
        assert_eq!(protocol_of(&both, Some("vnc")).unwrap().as_deref(), Some("VNC"));
        assert!(
            protocol_of(&both, Some("RDP"))
                .unwrap_err()
                .to_string()
                .contains("VNC, SSH")
        );
        let none = Desktop::default();
        assert_eq!(protocol_of(&none, None).unwrap(), None);
        assert_eq!(protocol_of(&none, Some("RDP")).unwrap().as_deref(), Some("RDP"));
    }
}
