//! The control channel's service: one envelope in, one out.
//!
//! The operations of an envelope are answered in order, within the cookie session of the client that sent it; envelopes
//! of one session one after another.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use http::HeaderValue;
use http::uri::Authority;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::sync::MutexGuard;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

use super::envelope::{Refused, Reply, Request, Version};
use super::operation::{Answer, Body, ErrorCode, Failure, Operation, Outcome};
use super::sessions::{Cookie, Session, Sessions, State};
use super::xml::Limits;
use crate::authenticate::{Chain, Throttle};
use crate::broker::Directory;
use crate::clock;
use crate::config::{self, Config};
use crate::fault::CloseReason;
use crate::grant::{Grant, Store};
use crate::listen::Episode;
use crate::tunnel::https::Registry;
use crate::types::{self, SessionId};

/// Answers the control messages of all clients of this node.
#[derive(Debug)]
pub struct Control {
    pub(super) settings: ArcSwap<Settings>,
    pub(super) directory: ArcSwap<Directory>,
    pub(super) grants: Arc<Store>,
    pub(super) tunnels: Arc<Registry>,
    pub(super) sessions: Sessions,
    pub(super) throttle: Mutex<Throttle>,
    /// Where clients of RDP that know no gateway are served.
    pub(super) rdp: ArcSwap<Vec<SocketAddr>>,
    full: Mutex<Episode>,
    guid: String,
}

/// What the configuration says about the control channel.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) authentication: config::Authentication,
    pub(super) session: config::Session,
    pub(super) external_url: Option<String>,
    pub(super) pcoip: config::Pcoip,
    pub(super) rdp_address: Option<types::Authority>,
    pub(super) blast_url: Option<config::ExternalUrl>,
    /// Datagrams of Blast are served, so that clients may be told where.
    pub(super) serves_udp: bool,
    pub(super) pending_logins: usize,
}

impl From<&Config> for Settings {
    fn from(config: &Config) -> Self {
        Self {
            authentication: config.authentication.clone(),
            session: config.session.clone(),
            external_url: config.tunnel.external_url.clone(),
            pcoip: config.pcoip.clone(),
            rdp_address: config.rdp.external_address.clone(),
            blast_url: config.blast.external_url.clone(),
            serves_udp: config.listeners.values().any(|listener| listener.udp),
            pending_logins: config.limits.pending_logins,
        }
    }
}

/// A control message's circumstances.
#[derive(Clone, Copy)]
pub struct Exchange<'a> {
    /// The client's address.
    pub client: IpAddr,
    /// This node's address of the connection.
    pub local: SocketAddr,
    /// The name and port under which the client asked, if it said so.
    pub authority: Option<&'a Authority>,
    /// The request's `Cookie` fields.
    pub cookies: &'a [HeaderValue],
    /// Whether sessions may begin.
    pub admits_sessions: bool,
    /// Whether the client's listener serves QUIC.
    pub quic: bool,
    /// The certificate that this node shows to a client who comes to a host and port.
    pub shown: &'a (dyn Fn(&str, u16) -> Option<CertificateDer<'static>> + Sync),
}

impl fmt::Debug for Exchange<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("client", &self.client)
            .field("local", &self.local)
            .field("authority", &self.authority)
            .finish_non_exhaustive()
    }
}

/// The answer to a control message.
#[derive(Debug)]
pub struct Answered {
    /// The reply.
    pub document: Zeroizing<String>,
    /// Values for `Set-Cookie`.
    pub cookies: Vec<Zeroizing<String>>,
    /// The session that the client is signed in to.
    pub session: Option<SessionId>,
}

/// Why there is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The node begins no session at this moment.
    Full,
}

impl Control {
    /// A control channel without clients, which tells them that its broker is `guid`.
    pub fn new(
        config: &Config,
        directory: Directory,
        grants: Arc<Store>,
        tunnels: Arc<Registry>,
        guid: String,
    ) -> Self {
        Self {
            settings: ArcSwap::from_pointee(config.into()),
            directory: ArcSwap::from_pointee(directory),
            grants,
            tunnels,
            sessions: Sessions::default(),
            throttle: Mutex::new(Throttle::new(config.authentication.throttle)),
            rdp: ArcSwap::default(),
            full: Mutex::default(),
            guid,
        }
    }

    /// Follows another configuration from the next message on. Sessions of users who are gone or disabled end.
    pub fn put_in_force(&self, config: &Config) {
        let directory = self.directory.load().reloaded(config);
        self.settings.store(Arc::new(config.into()));
        self.throttle.lock().set_limits(config.authentication.throttle);
        self.directory.store(Arc::new(directory));
        self.end_strangers();
    }

    /// Ends the sessions of users who are gone or disabled.
    pub fn end_strangers(&self) {
        let directory = self.directory.load();
        let mut grants = self.grants.list();
        grants.retain(|grant| !directory.knows(grant.user()));
        for grant in self.grants.revoke_together(grants, CloseReason::Killed) {
            self.forget(grant.id());
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = CloseReason::Killed.code(), "session closed: user removed or disabled");
        }
    }

    /// Tells where clients of RDP that know no gateway are served from now on, as bound.
    pub fn set_rdp_addresses(&self, addresses: Vec<SocketAddr>) {
        self.rdp.store(Arc::new(addresses));
    }

    /// Writes what users change to the disk, until `stop`; then writes what is left. One a node is enough.
    pub fn keep(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        self.directory.load().keep(stop)
    }

    /// Answers one message.
    ///
    /// # Errors
    ///
    /// [`Unanswered`] if the client has no session and cannot be given one.
    pub async fn answer(&self, exchange: Exchange<'_>, message: &[u8]) -> Result<Answered, Unanswered> {
        let request = match Request::read(message, &Limits::default()) {
            Ok(request) => request,
            Err(refused) => return Ok(Self::refuse(exchange, &refused)),
        };
        let now = clock::now();
        let mut cookies = Vec::new();
        let session = match self.session_of(exchange.cookies) {
            Some(session) => session,
            None => {
                let (session, cookie) = self.begin(exchange, now)?;
                cookies.push(session_cookie(&cookie));
                session
            }
        };
        let mut turn = Turn {
            control: self,
            exchange,
            state: session.state.lock().await,
            session: &session,
            cookies,
            sign_in_failed: false,
        };
        turn.notice_the_end_of_the_grant();
        let mut answers = Vec::with_capacity(request.operations.len());
        for operation in request.operations {
            answers.push(turn.execute(operation).await);
        }
        Ok(Answered {
            document: Reply::Answers(answers).write(request.version),
            session: turn.grant().map(|grant| grant.id()),
            cookies: turn.cookies,
        })
    }

    /// Forgets the cookie session of a grant that has ended.
    pub fn forget(&self, session: SessionId) {
        self.sessions.forget_grant(session);
    }

    /// Ends the sign-ins whose time is over.
    pub fn sweep(&self, now: Instant) {
        let over = self.sessions.sweep(now);
        if over > 0 {
            tracing::debug!(over, "sign-ins took too long");
        }
    }

    /// Sign-ins in the middle.
    pub fn pending(&self) -> usize {
        self.sessions.pending()
    }

    fn refuse(exchange: Exchange<'_>, refused: &Refused) -> Answered {
        tracing::debug!(client = %exchange.client, step = "inspect", "control message refused: {refused}");
        Answered {
            document: refused.reply().write(Version::NEWEST),
            cookies: Vec::new(),
            session: None,
        }
    }

    /// Whether these cookies are those of a session that is here, signed in or on its way there.
    pub fn has_session(&self, cookies: &[HeaderValue]) -> bool {
        self.session_of(cookies).is_some()
    }

    /// Whether there are as many sessions as there may be.
    pub fn is_full(&self) -> bool {
        self.grants.len() >= self.settings.load().session.max
    }

    fn session_of(&self, cookies: &[HeaderValue]) -> Option<Arc<Session>> {
        let fields = cookies.iter().filter_map(|field| field.to_str().ok());
        let named = fields.flat_map(|field| cookie::Cookie::split_parse(field).flatten());
        named
            .filter(|cookie| cookie.name() == SESSION_COOKIE)
            .take(MOST_COOKIES)
            .find_map(|cookie| self.sessions.find(cookie.value()))
    }

    fn begin(&self, exchange: Exchange<'_>, now: Instant) -> Result<(Arc<Session>, Cookie), Unanswered> {
        if !exchange.admits_sessions {
            return Err(Unanswered::Full);
        }
        if self.is_full() {
            if self.full.lock().begins(now) {
                tracing::warn!(
                    sessions = self.grants.len(),
                    "node is full, turning new users away; see session.max"
                );
            }
            return Err(Unanswered::Full);
        }
        let settings = self.settings.load();
        let chain = Chain::new(&settings.authentication, exchange.client);
        let deadline = now + settings.session.login_timeout;
        self.sessions.begin(exchange.client, chain, deadline, settings.pending_logins).map_err(|_| {
            tracing::warn!(client = %exchange.client, step = "authenticate", "too many sign-ins in the middle: refused");
            Unanswered::Full
        })
    }
}

/// One envelope's way through the operations.
pub(super) struct Turn<'a> {
    pub(super) control: &'a Control,
    pub(super) exchange: Exchange<'a>,
    pub(super) session: &'a Arc<Session>,
    pub(super) state: MutexGuard<'a, State>,
    pub(super) cookies: Vec<Zeroizing<String>>,
    /// A `do-submit-authentication` of this envelope did not complete the sign-in.
    pub(super) sign_in_failed: bool,
}

impl Turn<'_> {
    /// The grant, if the client is signed in.
    pub(super) fn grant(&self) -> Option<Arc<Grant>> {
        match &*self.state {
            State::SignedIn { grant } => Some(grant.clone()),
            State::SigningIn { .. } => None,
        }
    }

    /// A session whose grant has ended is at its start again.
    fn notice_the_end_of_the_grant(&mut self) {
        if self.grant().is_some_and(|grant| grant.revocation().is_some()) {
            self.start_again();
        }
    }

    /// Back to the first screen.
    pub(super) fn start_again(&mut self) {
        let chain = Chain::new(&self.control.settings.load().authentication, self.exchange.client);
        *self.state = State::SigningIn { chain };
    }

    async fn execute(&mut self, operation: Operation) -> Answer {
        let kind = operation.kind();
        let outcome = match self.grant() {
            Some(grant) => {
                grant.touch(clock::now());
                self.execute_signed_in(operation, grant).await
            }
            None if kind.needs_sign_in() && self.sign_in_failed => Outcome::NotExecuted,
            None if kind.needs_sign_in() => Outcome::Failed(Failure::new(ErrorCode::NotAuthenticated)),
            None => self.execute_signed_out(operation).await,
        };
        Answer { kind, outcome }
    }

    /// What can be asked before the sign-in.
    async fn execute_signed_out(&mut self, operation: Operation) -> Outcome {
        if let Operation::SubmitAuthentication { submission, .. } = operation {
            return self.sign_in(submission).await;
        }
        if matches!(operation, Operation::GetConfiguration) {
            self.configuration()
        } else if matches!(operation, Operation::SetLocale { .. } | Operation::Logout) {
            Outcome::Ok(Body::Empty)
        } else {
            Outcome::Failed(refusal_of(&operation))
        }
    }

    /// What can be asked after it.
    async fn execute_signed_in(&mut self, operation: Operation, grant: Arc<Grant>) -> Outcome {
        let done = match operation {
            Operation::GetConfiguration | Operation::SubmitAuthentication { .. } => {
                Err(Failure::new(ErrorCode::AlreadyAuthenticated))
            }
            Operation::GetTunnelConnection(request) | Operation::GetTunnelConnectionRedirect(request) => {
                Ok(self.tunnel(&grant, &request))
            }
            Operation::GetDesktops { supported_protocols } => Ok(self.desktops(&grant, &supported_protocols)),
            Operation::GetLaunchItems(request) => Ok(self.launch_items(&grant, request)),
            Operation::GetDesktopConnection(request) | Operation::GetDesktopConnectionRedirect(request) => {
                self.launch(&grant, request).await
            }
            Operation::GetApplicationConnection(_) | Operation::GetApplicationSessionConnection(_) => {
                Err(Failure::new(ErrorCode::NotEntitled))
            }
            Operation::GetUserGlobalPreferences => Ok(self.preferences(&grant)),
            Operation::SetUserGlobalPreferences { preferences } => self.set_preferences(&grant, preferences),
            Operation::SetUserDesktopPreferences {
                desktop_id,
                preferences,
            } => self.set_desktop_preferences(&grant, desktop_id, preferences),
            Operation::KillSession { session_id } => self.kill_session(&grant, &session_id).await,
            Operation::ResetDesktop { desktop_id } => Err(self.reset(&grant, desktop_id)),
            Operation::Logout => {
                self.log_out(&grant).await;
                Ok(Body::Empty)
            }
            Operation::SetLastUserActivity => {
                grant.beat(clock::now());
                Ok(Body::Empty)
            }
            Operation::GetAuthenticationStatus => Ok(Body::AuthenticationStatus(unlocked())),
            // Nothing is kept that a lock could protect: the password is checked and forgotten.
            Operation::Lock | Operation::SetLocale { .. } | Operation::ConnectPrepare | Operation::AddClientInfo => {
                Ok(Body::Empty)
            }
            other @ (Operation::RollbackCheckoutDesktop { .. }
            | Operation::Unknown { .. }
            | Operation::Invalid { .. }) => Err(refusal_of(&other)),
        };
        done.map_or_else(Outcome::Failed, Outcome::Ok)
    }

    async fn log_out(&mut self, grant: &Grant) {
        let grants = &self.control.grants;
        if grants.revoke_aside(grant.id(), CloseReason::Logout).await {
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = CloseReason::Logout.code(), "session closed");
        }
        self.control.sessions.forget_grant(grant.id());
        self.start_again();
    }

    pub(super) fn guid(&self) -> String {
        self.control.guid.clone()
    }
}

/// Why an operation is not carried out, whoever asks.
fn refusal_of(operation: &Operation) -> Failure {
    if let Operation::Invalid { flaw, .. } = operation {
        Failure {
            message: flaw.to_string(),
            ..Failure::new(ErrorCode::InvalidRequest)
        }
    } else {
        Failure::new(ErrorCode::UnsupportedOperation)
    }
}

fn unlocked() -> super::operation::AuthenticationStatus {
    super::operation::AuthenticationStatus {
        sso: "unlocked".to_owned(),
        time_to_sso_lock: -1,
    }
}

/// The field that carries the session to the client.
pub(super) fn session_cookie(cookie: &Cookie) -> Zeroizing<String> {
    Zeroizing::new(format!(
        "{SESSION_COOKIE}={}; Path=/; Secure; HttpOnly; SameSite=Lax",
        cookie.expose()
    ))
}

/// The name under which clients and balancers know the session.
const SESSION_COOKIE: &str = "JSESSIONID";

/// A client that sends more cookies of that name than this has a jar that is not ours.
const MOST_COOKIES: usize = 4;
