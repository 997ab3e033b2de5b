//! The side that takes over.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, getppid};
use tokio::task::spawn_blocking;

use super::health::Unhealthy;
use super::inheritance::Inheritance;
use super::line::{Line, LineFault};
use super::link::Link;
use super::message::{Message, PoolFacts, SocketFacts, VERSION};
use super::other::Other;
use super::{ENVIRONMENT, Kin};
use crate::clock;
use crate::config::Config;
use crate::grant::HearsOfEnds;
use crate::node::state::Keeping;
use crate::node::{Node, Prepared, StartFault};
use crate::types::SessionId;

/// A process that is to take over from another one, before it serves.
#[derive(Debug)]
pub struct Heir {
    line: Line,
    inheritance: Inheritance,
    /// Pools that have a healthy target in the other process.
    healthy: BTreeSet<PoolFacts>,
    /// Where connections are carried back.
    predecessor: PathBuf,
    parent: Option<Pid>,
}

/// Why nothing is taken over.
#[derive(Debug, thiserror::Error)]
pub enum HeirFault {
    /// The other process.
    #[error("nothing to take over: {0}")]
    Line(String),
    /// This one.
    #[error(transparent)]
    Start(#[from] StartFault),
    /// This one has everything, and would not serve.
    #[error("not healthy: {0}")]
    Unhealthy(#[from] Unhealthy),
}

impl From<LineFault> for HeirFault {
    fn from(fault: LineFault) -> Self {
        Self::Line(fault.to_string())
    }
}

impl Heir {
    /// Meets the process from which this one is to take over. `None`: there is none, the environment says nothing of it.
    /// Blocks.
    ///
    /// # Errors
    /// The other process cannot be met or understood.
    pub fn of_environment() -> Result<Option<Self>, HeirFault> {
        let Some(meeting) = std::env::var_os(ENVIRONMENT) else {
            return Ok(None);
        };
        let parent = getppid();
        let stream = UnixStream::connect(meeting).map_err(LineFault::from)?;
        let mut line = Line::new(stream);
        line.send(&Message::Hello {
            version: VERSION,
            program: env!("CARGO_PKG_VERSION").to_owned(),
        })?;
        let mut sockets: HashMap<SocketFacts, OwnedFd> = HashMap::new();
        let mut ways_back: HashMap<SocketFacts, OwnedFd> = HashMap::new();
        loop {
            let message = line.receive(ANSWER)?;
            if let Message::Sockets { sockets: facts } = message {
                let descriptors = line.take_descriptors(facts.len()).ok_or_else(out_of_turn)?;
                sockets.extend(facts.into_iter().zip(descriptors));
            } else if let Message::WaysBack { sockets: facts } = message {
                let descriptors = line.take_descriptors(facts.len()).ok_or_else(out_of_turn)?;
                ways_back.extend(facts.into_iter().zip(descriptors));
            } else if let Message::Identity {
                node,
                keys,
                recognition,
                kin,
                generation,
                healthy,
                ..
            } = message
            {
                let descriptors = (sockets, ways_back);
                let keys = (keys, generation.wrapping_add(1));
                return Ok(Some(Self {
                    line,
                    inheritance: Inheritance::new(keys, descriptors, node, recognition),
                    healthy,
                    predecessor: kin,
                    parent,
                }));
            } else {
                return Err(out_of_turn());
            }
        }
    }

    /// Tells the other process why this one cannot serve.
    pub fn refuse(mut self, words: &str) {
        // If it does not hear it, it will see that this one has ended.
        let _ = self.line.send(&Message::Refused {
            words: words.trim().to_owned(),
        });
    }

    /// Builds a node of the configuration, takes over, and serves. Blocks.
    ///
    /// # Errors
    /// The other process has gone on, or was told to; this one is to end.
    pub fn serve(mut self, config: Config) -> Result<Node, HeirFault> {
        let mut inheritance = std::mem::take(&mut self.inheritance);
        let prepared = match Node::prepare(config, &mut inheritance) {
            Ok(prepared) => prepared,
            Err(fault) => {
                self.refuse(&fault.to_string());
                return Err(fault.into());
            }
        };
        prepared.warm_up();
        if let Err(fault) = prepared.prove_healthy(&self.healthy) {
            self.refuse(&format!("it is not healthy: {fault}"));
            return Err(fault.into());
        }
        self.line.send(&Message::Ready {})?;
        self.expect(&Message::Held {}, WAITING)?;
        // Spans are counted from a moment before the snapshot, so that nothing lasts longer than it would have.
        let taken = clock::now();
        self.line.send(&Message::Take {})?;
        let tunnels = self.install(&prepared, taken)?;

        let node = prepared.node();
        let opened = Kin::open(
            &node.gateway.plan().config.node.admin_socket,
            &node.gateway,
            node.workers.tasks(),
        );
        let kin = opened.map_err(LineFault::Io)?;
        let socket = kin.socket();
        *node.kin.lock() = Some(kin);
        node.gateway.kinship().follows(Some(self.predecessor.clone()));
        let link = Link::corked(self.line.stream().try_clone().map_err(LineFault::Io)?);
        let told: Arc<dyn HearsOfEnds> = link.clone();
        node.gateway.grants().tell_of_ends(&told);
        let other = Other::new(node.gateway.clone(), link.clone(), node.workers.tasks().clone());
        other.note_tunnels(&tunnels);
        self.line.send(&Message::Installed { kin: socket })?;
        match self.expect(&Message::Go {}, ANSWER) {
            Ok(()) => {}
            // It was killed, and this one has everything.
            Err(_) if self.is_orphan() => tracing::warn!("the process before this one has died: taking over"),
            Err(fault) => return Err(fault),
        }
        match Keeping::take_over(&node.gateway, &node.keys) {
            Ok(keeping) => *node.keeping.lock() = keeping,
            Err(fault) => {
                self.refuse(&fault.to_string());
                return Err(StartFault::from(fault).into());
            }
        }
        let node = match prepared.serve(true) {
            Ok(node) => node,
            Err(fault) => {
                self.refuse(&fault.to_string());
                return Err(fault.into());
            }
        };
        // If nobody hears it, nobody is there to be told.
        let _ = self.line.send(&Message::Serving {});
        let (stream, decoder) = self.line.into_parts();
        let _ = stream.set_nonblocking(true);
        link.uncork();
        node.kindred.lock().before = Some(link.clone());
        let (gateway, journal) = (node.gateway.clone(), node.keeping.lock().journal());
        let stopping = node.stopping.clone();
        node.workers.tasks().spawn(async move {
            if other.hear(decoder, stopping.cancelled()).await.is_none() {
                return;
            }
            if let Some(journal) = journal {
                // A fault of its own is told by itself.
                let _ = spawn_blocking(move || journal.succeed()).await;
            }
            gateway.kinship().follows(None);
            gateway.flows().forget_before();
            gateway.caps().set_before(0);
            let told: Arc<dyn HearsOfEnds> = link;
            gateway.grants().tell_no_more(&told);
            tracing::info!("the process before this one has ended");
        });
        Ok(node)
    }

    /// Takes in what the other process had; gives the sessions whose tunnels stay there.
    fn install(&mut self, prepared: &Prepared, taken: std::time::Instant) -> Result<Vec<SessionId>, HeirFault> {
        let gateway = &prepared.node().gateway;
        let control = gateway.control_channel();
        // Another process has written it until a moment ago.
        control.read_again(&gateway.plan().config).map_err(StartFault::from)?;
        let (mut sessions, mut tunnels, mut restored) = (Vec::new(), Vec::new(), 0);
        loop {
            let message = self.line.receive(ANSWER)?;
            if let Message::Grants { grants } = message {
                restored += gateway.grants().restore(&grants, taken, clock::now());
            } else if let Message::Sessions { sessions: some } = message {
                sessions.extend(some);
            } else if let Message::Flows { news } = message {
                gateway.flows().note(news, clock::now());
            } else if let Message::Throttle { throttle } = message {
                control.restore_throttle(&throttle, taken);
            } else if let Message::Counts { counts } = message {
                gateway.count_in(&counts);
            } else if let Message::Tunnels { sessions } = message {
                tunnels.extend(sessions.iter().filter_map(|id| id.parse::<SessionId>().ok()));
            } else if let Message::Whole { grants, quiesced } = message {
                control.restore(sessions, taken);
                control.end_strangers();
                if let Some(age) = quiesced {
                    let since = taken.checked_sub(Duration::from_millis(age)).unwrap_or(taken);
                    gateway.lifecycle().set_quiesced(true, since);
                }
                tracing::info!(
                    sessions = restored,
                    left_out = grants - restored.min(grants),
                    "sessions taken over"
                );
                return Ok(tunnels);
            } else {
                return Err(out_of_turn());
            }
        }
    }

    /// Whether the other process has died: seen a moment after its line has ended.
    fn is_orphan(&self) -> bool {
        (0..LOOKS).any(|_| {
            std::thread::sleep(LOOK);
            getppid() != self.parent
        })
    }

    fn expect(&mut self, expected: &Message, patience: Duration) -> Result<(), HeirFault> {
        if self.line.receive(patience)? == *expected {
            Ok(())
        } else {
            Err(out_of_turn())
        }
    }
}

fn out_of_turn() -> HeirFault {
    HeirFault::Line("the other process speaks out of turn".to_owned())
}

/// For each step that only computes.
const ANSWER: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;
/// For the other process to come to rest.
const WAITING: Duration = Duration::from_secs(30);
