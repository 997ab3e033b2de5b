//! `portcullis connect`: sign in at a gateway and reach a desktop behind it.

mod again;
mod given;
mod interrupt;
mod list;
mod report;
mod stdio;
mod terminal;

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitStatus;

use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use self::given::GivenFault;
use self::interrupt::{Foreground, Interrupts};
use self::report::Report;
use self::terminal::Terminal;
use super::term::Term;
use super::{Exit, explain, print};
use crate::client::{
    Channel, Doors, Endpoint, Fault, FaultKind, Launched, Notice, Prompter, Question, Quic, RaiseFault, Reached,
    Session, Settings, Thumbprint, Tunnel, Unanswered, choose,
};
use crate::control::operation::Desktop;
use crate::types::Step;

/// Sign in at a gateway and reach a desktop behind it.
///
/// The desktop is reached on a local port, which is printed on standard output; with -L, on the port that you name. With
/// a command after --, that is run with {host} and {port} replaced, and connect ends with it; Ctrl-C is the command's. With --stdio, standard
/// input and output are the desktop's connection, and nothing else is written there.
///
/// A local program that will send nothing more still receives whatever the desktop sends. The desktop is told, unless the
/// gateway is one whose tunnels have no half-close.
///
/// A tunnel that the gateway does not know any more is opened anew for as long as the session lives, after a restart of the
/// gateway too: programs connect to the same port once more.
///
/// The gateway's certificate is held to the system's authorities. One that they do not vouch for is shown by its SHA-256
/// thumbprint, asked about, and remembered in known_gateways; if it changes later, connect refuses to go on.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  portcullis connect desk.example.com --desktop shell -- ssh -p {port} ann@{host}
  portcullis connect desk.example.com --desktop office --preconnection
  ssh -o ProxyCommand='portcullis connect desk.example.com --stdio --password-file ~/.desk' ann@shell

Exit codes: 0 done (with a command: it ended with 0), 1 failed (with a command: it ended otherwise), 2 usage,
4 gateway unreachable, 5 not signed in, not trusted or not allowed, 130 interrupted.")]
pub struct Connect {
    /// The gateway. Without a port: 443.
    #[arg(value_name = "HOST[:PORT]")]
    gateway: Endpoint,
    /// The user's name, or DOMAIN\name.
    #[arg(long, short, env = "PORTCULLIS_USER", value_name = "NAME")]
    user: Option<String>,
    /// The user's domain.
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,
    /// Read the password from this file; a newline at its end does not count. Without it, PORTCULLIS_PASSWORD is taken,
    /// and without that you are asked.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Accept the gateway's terms without a question. They are shown nevertheless.
    #[arg(long)]
    accept_disclaimer: bool,
    /// The desktop, by id or name.
    #[arg(long, short, value_name = "ID|NAME")]
    desktop: Option<String>,
    /// The protocol, such as RDP, if the desktop is offered by several.
    #[arg(long, value_name = "NAME")]
    protocol: Option<String>,
    /// Listen on this address; port 0 is any. Addresses that are not loopback open the desktop to the network.
    #[arg(short = 'L', value_name = "ADDR:PORT", conflicts_with_all = ["stdio", "list", "command"])]
    listen: Option<SocketAddr>,
    /// Carry one connection on standard input and output, for ProxyCommand of ssh.
    #[arg(long, conflicts_with_all = ["list", "command"])]
    stdio: bool,
    /// Open no tunnel: print address and preconnection blob for a client of RDP that knows no gateway, and hold the session.
    #[arg(long, requires = "desktop", conflicts_with_all = ["stdio", "list", "listen", "protocol", "command"])]
    preconnection: bool,
    /// List the desktops and end.
    #[arg(long, conflicts_with_all = ["command", "desktop", "protocol"])]
    list: bool,
    /// Print the list as one JSON document.
    #[arg(long, requires = "list")]
    json: bool,
    /// Trust the certificate authorities in this PEM file, or the gateway's own certificate there, and nothing else.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["thumbprint", "accept_new"])]
    ca: Option<PathBuf>,
    /// Trust the certificate with this SHA-256 thumbprint, and nothing else.
    #[arg(long, value_name = "SHA256", conflicts_with = "accept_new")]
    thumbprint: Option<Thumbprint>,
    /// Accept and remember a certificate that is unknown, without a question. One that has changed is refused.
    #[arg(long)]
    accept_new: bool,
    /// The way through which the desktop is reached: QUIC if the gateway serves it and UDP arrives within a second, else
    /// the HTTPS tunnel; or one of the two and nothing else.
    #[arg(long, value_enum, default_value_t = Transport::Auto, value_name = "WAY")]
    transport: Transport,
    /// A command to run, in which {host} and {port} are replaced.
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "json")]
    command: Vec<String>,
}

/// The way through which a desktop is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// QUIC where it arrives, the HTTPS tunnel where it does not.
    Auto,
    /// QUIC only.
    Quic,
    /// The HTTPS tunnel only.
    Https,
}

/// Runs the command in a runtime of its own.
pub fn run(arguments: Connect, term: Term) -> Exit {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            explain(&format!("Not connected: {error}.\n"));
            return Exit::Failed;
        }
    };
    let exit = runtime.block_on(arguments.run(term));
    // Threads that wait for standard input or a terminal must not hold the end up.
    runtime.shutdown_background();
    exit
}

impl Connect {
    /// Runs the command. Questions go to the terminal of this process.
    pub async fn run(self, term: Term) -> Exit {
        self.run_asking(term, &mut Terminal::new()).await
    }

    async fn run_asking(self, term: Term, prompter: &mut impl Prompter) -> Exit {
        let report = Report::new(term);
        let mut interrupts = match Interrupts::new() {
            Ok(interrupts) => interrupts,
            Err(error) => return report.failed(&Stop::Io("signals cannot be received", error)),
        };
        match self.connect(&report, &mut interrupts, prompter).await {
            Ok(exit) => exit,
            Err(stop) => report.failed(&stop),
        }
    }

    async fn connect(
        self,
        report: &Report,
        interrupts: &mut Interrupts,
        prompter: &mut impl Prompter,
    ) -> Result<Exit, Stop> {
        // First what can be wrong without a gateway: nobody types a password for nothing.
        let door = self.door().await?;
        let credentials = given::credentials(&self)?;
        let settings = Settings {
            trust: given::trust(&self)?,
            accept_new: self.accept_new,
            quic: self.transport != Transport::Https,
            locale: given::locale(|name| std::env::var(name).ok()),
            tasks: TaskTracker::new(),
        };
        let arriving = async {
            let reached = Reached::dial(self.gateway.clone(), settings, prompter).await?;
            report.passed(
                Step::Secure,
                &reached.tls().map(ToString::to_string).unwrap_or_default(),
            );
            let session = reached.sign_in(credentials, prompter).await?;
            report.passed(Step::Authenticate, &format!("{} desktops", session.desktops().len()));
            Ok::<_, Fault>(session)
        };
        let mut session = interrupts.cut(arriving).await.ok_or(Stop::Interrupted)??;
        let foreground = interrupts.foreground();
        let used = self.make_use(&mut session, door, report, prompter, &foreground);
        let used = interrupts.cut(used).await;
        foreground.set(false);
        // A session that is not logged out stays at the gateway for hours. The first signal asks for no more than what
        // is under way (ssh sends one to a ProxyCommand that has come to its end); a second one does not wait.
        let mut leaving = pin!(session.log_out());
        let left = interrupts.cut(leaving.as_mut()).await;
        if left.is_none() && used.is_some() {
            interrupts.cut(leaving).await;
        }
        match used {
            Some(used) => used,
            // Whoever had standard input and output has come to the end and let go.
            None if self.stdio && interrupts.hung_up() => Ok(Exit::Done),
            None => Err(Stop::Interrupted),
        }
    }

    /// The local end: where programs, or this one, reach the desktop.
    async fn door(&self) -> Result<Door, Stop> {
        if self.list || self.stdio || self.preconnection {
            return Ok(Door::Held);
        }
        let address = self.listen.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let fault = |error| Stop::Listen { address, error };
        let listener = TcpListener::bind(address).await.and_then(TcpListener::into_std);
        let listener = listener.map_err(fault)?;
        let address = listener.local_addr().map_err(|error| Stop::Listen { address, error })?;
        Ok(Door::Listening { listener, address })
    }

    async fn make_use(
        &self,
        session: &mut Session,
        door: Door,
        report: &Report,
        prompter: &mut impl Prompter,
        foreground: &Foreground,
    ) -> Result<Exit, Stop> {
        if self.list {
            return Ok(print(&list::text(session, self.json), Exit::Done));
        }
        let desktop = pick(session.desktops(), self.desktop.as_deref(), prompter).await?;
        if self.preconnection {
            return hold(session, &desktop, report).await;
        }
        let address = door.address();
        let (notices, mut heard) = mpsc::channel(16);
        let mut way = self
            .open(session, &desktop, &door, notices.clone(), report, prompter)
            .await?;
        let Some(address) = address else {
            return tokio::select! {
                biased;
                fault = way.ended() => Err(Stop::Fault(fault)),
                fault = session.keep_alive() => Err(Stop::Fault(fault)),
                never = narrate(&mut heard, report) => match never {},
                done = carry(&way) => done,
            };
        };
        let mut serving = pin!(self.serve(address, report, foreground));
        loop {
            let ended = tokio::select! {
                biased;
                fault = way.ended() => fault,
                fault = session.keep_alive() => fault,
                never = narrate(&mut heard, report) => match never {},
                done = &mut serving => return done,
            };
            drop(way);
            let again = self.open_again(session, (&desktop, &door), (ended, &notices), report, prompter);
            way = tokio::select! {
                again = again => again?,
                never = narrate(&mut heard, report) => match never {},
                done = &mut serving => return done,
            };
        }
    }

    /// Opens the way to the desktop, and launches it there.
    async fn open(
        &self,
        session: &mut Session,
        desktop: &Desktop,
        door: &Door,
        notices: mpsc::Sender<Notice>,
        report: &Report,
        prompter: &mut impl Prompter,
    ) -> Result<Way, Stop> {
        let why_not = match self.transport {
            Transport::Https => None,
            Transport::Auto | Transport::Quic => match session.open_quic().await {
                Ok(quic) => {
                    report.passed(Step::Tunnel, "QUIC");
                    let protocol = self.protocol.as_deref();
                    let (launched, route) = session.launch_over_quic(desktop, protocol).await?;
                    report.passed(Step::Upstream, &shown(&launched));
                    if let Some(listener) = door.listener()? {
                        quic.serve(listener, &route, notices);
                    }
                    return Ok(Way::Quic { quic, route });
                }
                Err(fault) if self.transport == Transport::Quic => return Err(Stop::Fault(fault.into())),
                Err(fault) => Some(fault),
            },
        };
        let address = door.address();
        let doors = door.listener()?.map_or(Doors::Held, Doors::Given);
        let tunnel = session.open_tunnel(doors, notices, prompter).await?;
        report.passed(
            Step::Tunnel,
            &why_not.map_or("HTTPS".to_owned(), |why| format!("HTTPS ({why})")),
        );
        let launched = session.launch(desktop, self.protocol.as_deref()).await?;
        if address.is_some_and(|address| address.port() != launched.port) {
            return Err(Stop::Fault(Fault::NotInTunnel {
                address: format!("port {}", launched.port),
            }));
        }
        report.passed(Step::Upstream, &shown(&launched));
        Ok(Way::Https {
            tunnel,
            port: launched.port,
        })
    }

    /// Has programs use the way at `address`: the command, or whatever the user connects.
    async fn serve(&self, address: SocketAddr, report: &Report, foreground: &Foreground) -> Result<Exit, Stop> {
        if !self.command.is_empty() {
            let status = run_command(&self.command, address, foreground).await?;
            return match status.signal() {
                Some(INTERRUPT) => Err(Stop::Interrupted),
                _ if status.success() => Ok(Exit::Done),
                _ => Ok(Exit::Failed),
            };
        }
        print(&format!("{address}\n"), Exit::Done);
        report.hint(&format!("Connect your program to {address}. Ctrl-C ends."));
        std::future::pending().await
    }
}

/// Carries one connection on standard input and output.
async fn carry(way: &Way) -> Result<Exit, Stop> {
    let channel = way.raise().await.map_err(|fault| Stop::Fault(fault.into()))?;
    let carried = stdio::carry(channel).await;
    carried
        .map(|()| Exit::Done)
        .map_err(|error| Stop::Io("standard input or output is not open", error))
}

/// Prints what a client of RDP is told, and holds the session for it.
async fn hold(session: &mut Session, desktop: &Desktop, report: &Report) -> Result<Exit, Stop> {
    let told = session.launch_preconnection(desktop).await?;
    report.passed(Step::Grant, &told.desktop);
    let (endpoint, token) = (&told.endpoint, told.token.expose());
    print(&format!("{endpoint} {token}\n"), Exit::Done);
    report.hint(&format!("xfreerdp /v:{endpoint} /pcb:{token}"));
    report.hint("Connect soon, and leave this running: Ctrl-C ends the session.");
    Err(Stop::Fault(session.keep_alive().await))
}

/// The local end of the tunnel.
enum Door {
    /// This program itself, or none.
    Held,
    /// A port.
    Listening {
        /// Open for as long as the command: who connects while there is no way waits.
        listener: std::net::TcpListener,
        address: SocketAddr,
    },
}

impl Door {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Held => None,
            Self::Listening { address, .. } => Some(*address),
        }
    }

    /// The port once more, for a way to the desktop.
    fn listener(&self) -> Result<Option<TcpListener>, Stop> {
        let Self::Listening { listener, address } = self else {
            return Ok(None);
        };
        let listener = listener.try_clone().and_then(TcpListener::from_std);
        let fault = |error| Stop::Listen {
            address: *address,
            error,
        };
        listener.map(Some).map_err(fault)
    }
}

/// The open way to the launched desktop.
enum Way {
    Quic { quic: Quic, route: String },
    Https { tunnel: Tunnel, port: u16 },
}

impl Way {
    async fn raise(&self) -> Result<Channel, RaiseFault> {
        match self {
            Self::Quic { quic, route } => quic.raise(route).await,
            Self::Https { tunnel, port } => tunnel.raise(*port).await,
        }
    }

    /// Waits until it is over. Cancel-safe.
    async fn ended(&self) -> Fault {
        match self {
            Self::Quic { quic, .. } => quic.ended().await.into(),
            Self::Https { tunnel, .. } => tunnel.ended().await.into(),
        }
    }
}

/// Why the command ended before it was done.
#[derive(Debug, thiserror::Error)]
enum Stop {
    #[error("Interrupted")]
    Interrupted,
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{0}")]
    Given(#[from] GivenFault),
    #[error("{address} cannot be listened on: {error}. Choose another address or port")]
    Listen { address: SocketAddr, error: std::io::Error },
    #[error("{command} cannot be run: {error}. Check its name and path")]
    Command { command: String, error: std::io::Error },
    #[error("{0}: {1}")]
    Io(&'static str, std::io::Error),
}

impl Stop {
    fn exit(&self) -> Exit {
        match self {
            Self::Interrupted => Exit::Interrupted,
            Self::Fault(fault) => match fault.kind() {
                FaultKind::Failed => Exit::Failed,
                FaultKind::Unreachable => Exit::Unreachable,
                FaultKind::NotAllowed => Exit::NotAllowed,
            },
            Self::Given(_) => Exit::Usage,
            Self::Listen { .. } | Self::Command { .. } | Self::Io(..) => Exit::Failed,
        }
    }
}

/// The wanted desktop, or the one that the user picks.
async fn pick(desktops: &[Desktop], wanted: Option<&str>, prompter: &mut impl Prompter) -> Result<Desktop, Fault> {
    let fault = match choose(desktops, wanted) {
        Ok(desktop) => return Ok(desktop.clone()),
        Err(fault @ Fault::Choice { wanted: None, .. }) => fault,
        Err(fault) => return Err(fault),
    };
    let question = Question::Desktop {
        offered: desktops.iter().map(list::line).collect(),
    };
    let answer = match prompter.ask(&question).await {
        Ok(answer) => answer,
        Err(Unanswered::NoTerminal) => return Err(fault),
        Err(why) => return Err(Fault::Unanswered { why, question }),
    };
    let answer = answer.expose().trim();
    let by_number = answer
        .parse::<usize>()
        .ok()
        .and_then(|number| desktops.get(number.checked_sub(1)?));
    match by_number {
        Some(desktop) => Ok(desktop.clone()),
        None => choose(desktops, Some(answer)).cloned(),
    }
}

fn shown(launched: &Launched) -> String {
    match &launched.protocol {
        Some(protocol) => format!("{} by {protocol}", launched.desktop),
        None => launched.desktop.clone(),
    }
}

/// Tells the user what happens to the tunnel.
async fn narrate(heard: &mut mpsc::Receiver<Notice>, report: &Report) -> std::convert::Infallible {
    while let Some(notice) = heard.recv().await {
        match notice {
            Notice::Said(words) => report.hint(&words),
            Notice::Refused(problem) => {
                report.hint(&RaiseFault::Refused { problem }.to_string());
            }
            Notice::ContactLost => report.hint("The connection to the gateway broke. Connecting again …"),
            Notice::ContactRegained => report.hint("Connected again; nothing was lost."),
        }
    }
    std::future::pending().await
}

/// Runs the user's command to its end. It is killed if this is cut short.
async fn run_command(command: &[String], address: SocketAddr, foreground: &Foreground) -> Result<ExitStatus, Stop> {
    let fault = |error| Stop::Command {
        command: command.first().cloned().unwrap_or_default(),
        error,
    };
    let (host, port) = (address.ip().to_string(), address.port().to_string());
    let mut words = command
        .iter()
        .map(|word| word.replace("{host}", &host).replace("{port}", &port));
    let mut child = Command::new(words.next().unwrap_or_default())
        .args(words)
        // It has no business with the gateway.
        .env_remove("PORTCULLIS_PASSWORD")
        .kill_on_drop(true)
        .spawn()
        .map_err(fault)?;
    foreground.set(true);
    child.wait().await.map_err(fault)
}

/// SIGINT.
const INTERRUPT: i32 = 2;

#[cfg(test)]
mod tests;
