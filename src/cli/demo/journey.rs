//! The journey: a client of its own goes the eight steps, over TLS, and says what it found at each.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use jiff::ZonedDateTime;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::desktop::BANNER;
use super::setting::{DESKTOP, Setting, USER};
use crate::cli::term::{Ink, Term};
use crate::client::{Channel, Credentials, Doors, Endpoint, Reached, Session, Settings, Trust, Tunnel, Unattended};
use crate::clock;
use crate::types::{Secret, Step};

/// A user on the way.
#[derive(Debug)]
pub(super) struct Journey {
    address: SocketAddr,
    settings: Settings,
    password: Secret,
}

/// What was found at one step.
#[derive(Debug)]
pub(super) struct Line {
    step: Step,
    found: Result<String, String>,
    took: Duration,
}

impl Line {
    /// `ok  2 TLS      TLS 1.3, X25519MLKEM768           3.1 ms`
    pub(super) fn words(&self, term: Term) -> String {
        let (mark, found) = match &self.found {
            Ok(found) => (term.paint(Ink::Good, "ok  "), found),
            Err(fault) => (term.paint(Ink::Bad, "FAIL"), fault),
        };
        let (number, label) = (self.step.number(), self.step.label());
        let milliseconds = self.took.as_secs_f64() * 1000.0;
        format!("{mark} {number} {label:<8} {found:<44} {milliseconds:>8.1} ms\n")
    }
}

/// A step did not hold; its line has said why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped;

impl Journey {
    pub(super) fn new(address: SocketAddr, setting: &Setting, tasks: TaskTracker) -> Self {
        let trust = Trust::thumbprint(setting.thumbprint);
        let settings = Settings {
            trust,
            accept_new: false,
            quic: false,
            locale: None,
            tasks,
        };
        Self {
            address,
            settings,
            password: setting.password.clone(),
        }
    }

    /// Goes all the way, telling each step; the time that it took.
    pub(super) async fn run(self, mut tell: impl FnMut(&Line)) -> Result<Duration, Stopped> {
        let began = clock::now();
        let mut log = Log {
            tell: &mut tell,
            since: began,
        };
        let (address, password) = (self.address, self.password);

        log.step(Step::Listen, knock(address).await)?;
        let mut reached = log.step(Step::Secure, reach(address, self.settings).await)?;
        log.step(Step::Route, ask_health(&mut reached).await)?;
        log.step(Step::Inspect, offer_a_bomb(&mut reached).await)?;
        let mut session = log.step(Step::Authenticate, sign_in(reached, password).await)?;
        let tunnel = log.step(Step::Grant, open_tunnel(&mut session).await)?;
        let channel = log.step(Step::Tunnel, launch(&mut session, &tunnel).await)?;
        log.step(Step::Upstream, talk(channel).await)?;
        session.log_out().await;
        Ok(clock::now() - began)
    }
}

/// Something found, in words, with what the next step needs.
type Found<T> = anyhow::Result<(T, String)>;

struct Log<'a> {
    tell: &'a mut dyn FnMut(&Line),
    since: Instant,
}

impl Log<'_> {
    fn step<T>(&mut self, step: Step, outcome: Found<T>) -> Result<T, Stopped> {
        let now = clock::now();
        let took = now - std::mem::replace(&mut self.since, now);
        let (found, outcome) = match outcome {
            Ok((next, words)) => (Ok(words), Ok(next)),
            Err(fault) => (Err(format!("{fault:#}")), Err(Stopped)),
        };
        (self.tell)(&Line { step, found, took });
        outcome
    }
}

async fn knock(address: SocketAddr) -> Found<()> {
    TcpStream::connect(address).await.context("nobody listens")?;
    Ok(((), address.to_string()))
}

async fn reach(address: SocketAddr, settings: Settings) -> Found<Reached> {
    let endpoint: Endpoint = address.to_string().parse()?;
    let reached = Reached::dial(endpoint, settings, &mut Unattended).await?;
    let tls = reached.tls().context("no TLS")?;
    let group = tls.group.as_deref().unwrap_or("no key exchange");
    let words = format!("{}, {group}", tls.version);
    Ok((reached, words))
}

async fn ask_health(reached: &mut Reached) -> Found<()> {
    ensure!(reached.is_in_service().await?, "the health check says: out of service");
    Ok(((), "/favicon.ico answers 200: in service".to_owned()))
}

/// What no gateway may swallow: a document that defines entities.
async fn offer_a_bomb(reached: &mut Reached) -> Found<()> {
    let bomb = "<?xml version=\"1.0\"?><!DOCTYPE b [<!ENTITY a \"ha\">]><broker version=\"1.0\">&a;</broker>";
    ensure!(
        reached.refuses(bomb).await?,
        "a document with a DOCTYPE was not refused"
    );
    Ok(((), "a message with a DOCTYPE is refused".to_owned()))
}

async fn sign_in(reached: Reached, password: Secret) -> Found<Session> {
    let credentials = Credentials {
        user: Some(USER.to_owned()),
        password: Some(password),
        domain: None,
        accept_disclaimer: true,
    };
    let session = reached.sign_in(credentials, &mut Unattended).await?;
    let words = format!("{USER}, by password; protocol {}", session.version());
    Ok((session, words))
}

async fn open_tunnel(session: &mut Session) -> Found<Tunnel> {
    let (notices, _) = mpsc::channel(1);
    let tunnel = session.open_tunnel(Doors::Held, notices, &mut Unattended).await?;
    let ends = ZonedDateTime::now().checked_add(session.lifetime().unwrap_or_default())?;
    Ok((
        tunnel,
        format!("admitted by its token, ends {}", ends.strftime("%H:%M %Z")),
    ))
}

async fn launch(session: &mut Session, tunnel: &Tunnel) -> Found<Channel> {
    let desktop = session.desktops().iter().find(|desktop| desktop.id == DESKTOP).cloned();
    let desktop = desktop.with_context(|| format!("desktop \"{DESKTOP}\" is not on the list"))?;
    let launched = session.launch(&desktop, None).await?;
    let channel = tunnel.raise(launched.port).await?;
    Ok((channel, format!("desktop \"{DESKTOP}\", one channel")))
}

async fn talk(mut channel: Channel) -> Found<()> {
    let mut heard = Vec::new();
    while !heard.contains(&b'\n') {
        match timeout(PATIENCE, channel.receive()).await {
            Ok(Some(octets)) => heard.extend_from_slice(&octets),
            Ok(None) => bail!("the desktop closed the connection"),
            Err(_) => bail!("the desktop does not answer"),
        }
        ensure!(heard.len() < 1024, "the desktop says something else");
    }
    let line = String::from_utf8_lossy(&heard);
    let line = line.lines().next().unwrap_or_default().to_owned();
    ensure!(line == BANNER, "the desktop says {line:?}");
    Ok(((), format!("it says \"{line}\"")))
}

const PATIENCE: Duration = Duration::from_secs(5);
