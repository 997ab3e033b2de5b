//! The side that hands over.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::inheritance::fingerprint;
use super::line::{Line, LineFault, TOGETHER};
use super::link::{End, Link};
use super::message::{BATCH, COUNTS, Decoder, Keys, Message, PoolFacts, SocketFacts, VERSION};
use super::other::Other;
use super::{After, ENVIRONMENT, Node};
use crate::admin::{Admin, AdminFault, Ports};
use crate::broker::StateFault;
use crate::clock;
use crate::fault::CloseReason;
use crate::gateway::lifecycle::State;
use crate::grant::HearsOfEnds;
use crate::node::{A_MOMENT, systemd};
use crate::observe::Tally;
use crate::types::SessionId;
use crate::upstream::{Census, Condition};

/// Why a process goes on by itself.
#[derive(Debug, thiserror::Error)]
pub enum HandoverFault {
    /// It is not the one that serves.
    #[error("this process has handed over already, or drains")]
    OutOfService,
    /// A folder or socket of its own.
    #[error("the handover cannot be prepared: {0}")]
    Prepare(io::Error),
    /// The program cannot be started.
    #[error("{} cannot be started: {cause}", binary.display())]
    Binary {
        /// Which.
        binary: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The new process ended.
    #[error("the new process ended before it served ({0}); what it said stands above")]
    Ended(ExitStatus),
    /// The new process says that it cannot serve.
    #[error("the new process refuses: {0}")]
    Refused(String),
    /// The new process is silent, or cannot be understood.
    #[error("{0}")]
    Line(String),
    /// The new process has everything and does not serve.
    #[error("the new process does not serve: {0}")]
    NotServing(String),
    /// Messages of the control channel that are being answered take too long.
    #[error("control messages were still being answered after {} s", TURN.as_secs())]
    Busy,
    /// What users have changed cannot be written.
    #[error(transparent)]
    State(#[from] StateFault),
}

impl From<LineFault> for HandoverFault {
    fn from(fault: LineFault) -> Self {
        Self::Line(fault.to_string())
    }
}

impl Node {
    /// Hands over to `binary`, started with the configuration in `file`; gives the id of the process that serves from
    /// then on. This one keeps what is open, until [`emptied`](Self::emptied).
    ///
    /// Cancel-safe: dropped, the new process is ended and this one goes on.
    ///
    /// # Errors
    /// [`HandoverFault`]; this process goes on as if nothing had happened.
    pub async fn hand_over(&self, binary: &Path, file: &Path) -> Result<u32, HandoverFault> {
        self.may_hand_over()?;
        let (kin, meeting) = self.kin().map_err(HandoverFault::Prepare)?;
        let _ = std::fs::remove_file(&meeting);
        let listener = UnixListener::bind(&meeting).map_err(HandoverFault::Prepare)?;
        let mut heir = Started::start(binary, file, &meeting)?;
        let pid = heir.child.id();
        tracing::info!(binary = %binary.display(), pid, "handing over to a new process");
        let outcome = self.lead(&mut heir, listener, kin).await;
        let _ = std::fs::remove_file(&meeting);
        match outcome {
            Ok(()) => Ok(pid),
            Err(fault) => match heir.ended_by_itself().await {
                Some(status) if matches!(fault, HandoverFault::Line(_)) => Err(HandoverFault::Ended(status)),
                Some(_) | None => Err(fault),
            },
        }
    }

    fn may_hand_over(&self) -> Result<(), HandoverFault> {
        let serves = matches!(self.gateway.lifecycle().state(), State::Serving | State::Quiesced);
        if serves && !self.gateway.kinship().has_handed_over() {
            Ok(())
        } else {
            Err(HandoverFault::OutOfService)
        }
    }

    /// Leads the new process into service.
    async fn lead(&self, heir: &mut Started, meeting: UnixListener, kin: PathBuf) -> Result<(), HandoverFault> {
        let line = heir.meet(meeting).await?;
        let (line, version) = match hear(line, ANSWER).await? {
            (line, Message::Hello { version, .. }) if version > 0 => (line, version.min(VERSION)),
            (_, other) => return Err(out_of_turn(other)),
        };
        let line = self.tell_identity(line, version, kin).await?;
        let line = expect(line, LOADING, &Message::Ready {}).await?;

        // From here on nothing may change that goes along; whoever wants to, waits.
        let turn = timeout(TURN, self.gateway.kinship().hold()).await;
        let turn = turn.map_err(|_| HandoverFault::Busy)?;
        self.may_hand_over()?;
        let mut pause = self.pause();
        let since = clock::now();
        self.gateway.control_channel().flush().await?;
        let link = Link::corked(line.stream().try_clone().map_err(HandoverFault::Prepare)?);
        let told: Arc<dyn HearsOfEnds> = link.clone();
        self.gateway.grants().tell_of_ends(&told);
        pause.link = Some(link.clone());
        let line = say(line, vec![Message::Held {}]).await?;
        let line = expect(line, ANSWER, &Message::Take {}).await?;
        let (tunnels, counted, snapshot) = self.snapshot(&link);
        let line = say(line, snapshot).await?;
        let (line, successor) = match hear(line, ANSWER).await? {
            (line, Message::Installed { kin }) => (line, kin),
            (_, other) => return Err(out_of_turn(other)),
        };
        pause.rival = Some(Pid::from_child(&heir.child));
        self.keeping.lock().leave();
        let line = say(line, vec![Message::Go {}]).await?;
        let serving = expect(line, ANSWER, &Message::Serving {}).await;
        let line = serving.map_err(|fault| HandoverFault::NotServing(fault.to_string()))?;

        let not_accepting = clock::now().saturating_duration_since(since);
        let not_accepting_ms = u64::try_from(not_accepting.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(not_accepting_ms, "the new process serves");
        pause.is_over = true;
        self.gateway.kinship().hand_over_to(successor);
        drop(turn);
        let (stream, decoder) = line.into_parts();
        // Cannot fail for a socket; a link that blocks is found broken.
        let _ = stream.set_nonblocking(true);
        link.uncork();
        self.leave(heir, link, decoder, (tunnels, counted));
        Ok(())
    }

    async fn tell_identity(&self, mut line: Line, version: u32, kin: PathBuf) -> Result<Line, HandoverFault> {
        let mut sockets = self.sockets.lock().to_hand_over().map_err(HandoverFault::Prepare)?;
        sockets.extend(self.endpoints.lock().to_hand_over().map_err(HandoverFault::Prepare)?);
        let ports = self.ports.lock().to_hand_over().map_err(HandoverFault::Prepare)?;
        sockets.extend(ports.into_iter().map(|(address, is_for, socket)| {
            let use_ = is_for.into();
            (SocketFacts { address, use_ }, socket)
        }));
        let mut ways_back = self.sockets.lock().ways_back().map_err(HandoverFault::Prepare)?;
        ways_back.extend(self.endpoints.lock().ways_back().map_err(HandoverFault::Prepare)?);
        let identity = {
            let plan = self.gateway.plan();
            Message::Identity {
                version,
                node: plan.config.node.name.to_string(),
                keys: Keys {
                    tickets: self.tickets.to_hand_over(clock::now()),
                    ..self.keys.clone()
                },
                recognition: fingerprint(&plan.config),
                kin,
                generation: self.ids.generation(),
                healthy: self.healthy_pools(),
            }
        };
        let sent = spawn_blocking(move || {
            for some in sockets.chunks(TOGETHER) {
                let (sockets, descriptors) = parted(some);
                line.send_with(&Message::Sockets { sockets }, &descriptors)?;
            }
            for some in ways_back.chunks(TOGETHER) {
                let (sockets, descriptors) = parted(some);
                line.send_with(&Message::WaysBack { sockets }, &descriptors)?;
            }
            line.send(&identity)?;
            Ok::<_, LineFault>(line)
        });
        Ok(sent.await.map_err(|_| LineFault::Closed)??)
    }

    /// The pools that have a target which does what its probe asks.
    fn healthy_pools(&self) -> BTreeSet<PoolFacts> {
        let pools = self.gateway.publisher().census(clock::now()).into_iter();
        let healthy = pools.filter(|pool| {
            let mut kinds = pool.by_condition.iter();
            kinds.any(|(condition, count)| *condition == Condition::Healthy && *count > 0)
        });
        let facts = healthy.map(|Census { pool, backend, .. }| PoolFacts { pool, backend });
        facts.collect()
    }

    /// What goes along; and of that the sessions whose tunnels stay here, and the counts.
    fn snapshot(&self, link: &Arc<Link>) -> (Vec<SessionId>, Tally, Vec<Message>) {
        let now = clock::now();
        let gateway = &self.gateway;
        let tunnels = gateway.tunnels().sessions();
        let (grants, control) = (gateway.grants().snapshot(now), gateway.control_channel());
        let mut messages = vec![Message::Throttle {
            throttle: control.throttled(now),
        }];
        messages.extend(
            grants
                .chunks(BATCH)
                .map(|some| Message::Grants { grants: some.to_vec() }),
        );
        let sessions = control.snapshot(now);
        messages.extend(sessions.chunks(BATCH).map(|some| Message::Sessions {
            sessions: some.to_vec(),
        }));
        messages.extend(tunnels.chunks(BATCH).map(|some| Message::Tunnels {
            sessions: some.iter().map(ToString::to_string).collect(),
        }));
        let flows = gateway.flows().tell_of_flows(link.clone(), now);
        messages.extend(flows.chunks(BATCH).map(|some| Message::Flows { news: some.to_vec() }));
        let counted = gateway.tally();
        let parts = counted.clone().into_parts(COUNTS).into_iter();
        messages.extend(parts.map(|counts| Message::Counts { counts }));
        messages.push(Message::Whole {
            grants: grants.len(),
            quiesced: (gateway.lifecycle().quiesced_since())
                .map(|since| u64::try_from(now.saturating_duration_since(since).as_millis()).unwrap_or(u64::MAX)),
        });
        (tunnels, counted, messages)
    }

    /// Takes leave of what belongs to the new process, and keeps in touch with it.
    fn leave(
        &self,
        heir: &mut Started,
        link: Arc<Link>,
        decoder: Decoder,
        (tunnels, counted): (Vec<SessionId>, Tally),
    ) {
        self.led.store(true, Ordering::Release);
        if let Some(journal) = self.keeping.lock().journal() {
            // One of the other process stands beside it.
            drop(spawn_blocking(move || journal.hand_over()));
        }
        self.sockets.lock().leave();
        self.endpoints.lock().leave();
        if let Some(admin) = self.admin.lock().take() {
            // It ends once it has told the operator what became of the wish.
            drop(spawn_blocking(move || drop(admin)));
        }
        // Whoever starts the node again must find its ports free, although this process has tunnels yet.
        *self.ports.lock() = Ports::default();
        let parted = CancellationToken::new();
        {
            let mut kindred = self.kindred.lock();
            if let Some(before) = &kindred.before {
                before.say(&Message::PassedOn {});
            }
            kindred.after = Some(After {
                link: link.clone(),
                parted: parted.clone(),
            });
        }
        let other = Other::new(self.gateway.clone(), link, self.workers.tasks().clone());
        other.note_counts(counted);
        let (gateway, led, child) = (self.gateway.clone(), self.led.clone(), heir.release());
        let stopping = self.stopping.clone();
        self.workers.tasks().spawn(async move {
            let stopped = async {
                stopping.cancelled().await;
                other.tell_counts();
            };
            let end = tokio::select! {
                end = other.hear(decoder, stopped) => end,
                () = other.report(tunnels) => Some(End::Broken),
                () = parted.cancelled() => None,
            };
            let Some(end) = end else { return };
            if is_gone(child, end).await && !other.has_passed_on() {
                // Everything that it has ended was heard. Nobody else looks after the times of the sessions.
                led.store(false, Ordering::Release);
                // The service manager learns of the end of its own children only.
                systemd::notify(&format!("MAINPID={}", std::process::id()));
                tracing::warn!("the process that took over is no more: going on with what is open");
            } else {
                // It, or one after it, may end sessions and cannot say so.
                tracing::error!("the process that took over cannot be heard: ending every session here");
                gateway.end_sessions(CloseReason::Drained);
            }
        });
    }

    /// Waits until nothing is open any more, here or in the process before this one. Cancel-safe.
    pub async fn emptied(&self) {
        let gateway = &self.gateway;
        while gateway.caps().counts().open > 0 || !gateway.tunnels().is_empty() || gateway.kinship().has_predecessor() {
            sleep(A_MOMENT).await;
        }
    }

    /// Whether the process that took over has died, so that nobody is let in any more.
    pub fn is_bereft(&self) -> bool {
        self.gateway.kinship().has_handed_over() && !self.led.load(Ordering::Acquire)
    }

    /// Takes leave of the process that took over: sessions that end here from now on do not end there.
    pub fn part(&self) {
        if let Some(After { link, parted }) = self.kindred.lock().after.take() {
            parted.cancel();
            let told: Arc<dyn HearsOfEnds> = link.clone();
            self.gateway.grants().tell_no_more(&told);
            link.close();
        }
    }

    fn pause(&self) -> Pause<'_> {
        self.sockets.lock().pause();
        Pause {
            node: self,
            link: None,
            rival: None,
            is_over: false,
        }
    }
}

/// No connection is taken in meanwhile; dropped before it is over, the node goes on.
struct Pause<'a> {
    node: &'a Node,
    link: Option<Arc<Link>>,
    /// The new process, once it may serve.
    rival: Option<Pid>,
    is_over: bool,
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let node = self.node;
        if let Some(rival) = self.rival {
            // One that has ended is no rival.
            let _ = kill_process(rival, Signal::KILL);
        }
        if let Some(link) = self.link.take() {
            let told: Arc<dyn HearsOfEnds> = link;
            node.gateway.grants().tell_no_more(&told);
            node.gateway.flows().tell_no_more();
        }
        if let Err(cause) = node.accept_again() {
            tracing::error!(%cause, "not every socket is served again");
        }
        let mut admin = node.admin.lock();
        if admin.as_ref().is_some_and(|admin| !admin.owns_its_path()) {
            *admin = None;
            let again = node.ports.lock().try_clone().map_err(AdminFault::Thread);
            match again.and_then(|ports| Admin::start(node.gateway.clone(), ports, true)) {
                Ok(again) => *admin = Some(again),
                Err(fault) => tracing::error!(%fault, "the operator's side is lost"),
            }
        }
        if self.rival.is_some() {
            let plan = node.gateway.plan();
            node.keeping.lock().come_back(&plan.config.node.state_dir);
        }
    }
}

/// The new process, until it serves. Dropped before that, it is ended.
struct Started {
    child: Child,
    released: bool,
}

impl Started {
    fn start(binary: &Path, file: &Path, meeting: &Path) -> Result<Self, HandoverFault> {
        let started = Command::new(binary)
            .arg("serve")
            .arg("--config")
            .arg(file)
            .env(ENVIRONMENT, meeting)
            .stdin(Stdio::null())
            .spawn();
        let child = started.map_err(|cause| HandoverFault::Binary {
            binary: binary.to_owned(),
            cause,
        })?;
        Ok(Self { child, released: false })
    }

    /// Waits until it has come to the meeting place.
    async fn meet(&mut self, listener: UnixListener) -> Result<Line, HandoverFault> {
        listener.set_nonblocking(true).map_err(HandoverFault::Prepare)?;
        let deadline = Instant::now() + STARTING;
        while Instant::now() < deadline {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(HandoverFault::Prepare)?;
                    return Ok(Line::new(stream));
                }
                Err(fault) if fault.kind() == io::ErrorKind::WouldBlock => {}
                Err(fault) => return Err(HandoverFault::Prepare(fault)),
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(HandoverFault::Ended(status));
            }
            sleep(LOOK).await;
        }
        Err(LineFault::Late.into())
    }

    /// How it has ended, if it has within a moment.
    async fn ended_by_itself(&mut self) -> Option<ExitStatus> {
        for _ in 0..LOOKS {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            sleep(LOOK).await;
        }
        None
    }

    /// Lets it live. What is left is to take note of its end.
    fn release(&mut self) -> u32 {
        self.released = true;
        self.child.id()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if !self.released {
            // One that has ended by itself cannot be ended again.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether a child is no more, a moment after its link has ended.
async fn is_gone(pid: u32, end: End) -> bool {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let looks = if end == End::Closed { LOOKS } else { 1 };
    for _ in 0..looks {
        // An error says that there is no such child.
        if !matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)) {
            return true;
        }
        sleep(LOOK).await;
    }
    false
}

fn parted(sockets: &[(SocketFacts, OwnedFd)]) -> (Vec<SocketFacts>, Vec<BorrowedFd<'_>>) {
    let parts = sockets.iter().map(|(facts, socket)| (*facts, socket.as_fd()));
    parts.unzip()
}

async fn hear(mut line: Line, patience: Duration) -> Result<(Line, Message), HandoverFault> {
    let heard = spawn_blocking(move || line.receive(patience).map(|message| (line, message)));
    Ok(heard.await.map_err(|_| LineFault::Closed)??)
}

async fn expect(line: Line, patience: Duration, expected: &Message) -> Result<Line, HandoverFault> {
    let (line, message) = hear(line, patience).await?;
    if message == *expected {
        Ok(line)
    } else {
        Err(out_of_turn(message))
    }
}

async fn say(mut line: Line, messages: Vec<Message>) -> Result<Line, HandoverFault> {
    let said = spawn_blocking(move || {
        messages.iter().try_for_each(|message| line.send(message))?;
        Ok::<_, LineFault>(line)
    });
    Ok(said.await.map_err(|_| LineFault::Closed)??)
}

fn out_of_turn(message: Message) -> HandoverFault {
    if let Message::Refused { words } = message {
        HandoverFault::Refused(words)
    } else {
        HandoverFault::Line("the new process speaks out of turn".to_owned())
    }
}

/// For the new process to come to the meeting place.
const STARTING: Duration = Duration::from_secs(10);
/// For it to load certificates, names and first probes.
const LOADING: Duration = Duration::from_secs(60);
/// For each step that only computes.
const ANSWER: Duration = Duration::from_secs(10);
/// For control messages that are being answered: longer than a client has to open a port.
const TURN: Duration = Duration::from_secs(12);
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;
