//! `portcullis serve`: runs a node until a signal ends it.

use std::path::{Path, PathBuf};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::{Exit, explain};
use crate::config::{self, Config};
use crate::gateway::kin::Wish;
use crate::node::handover::Heir;
use crate::node::{Node, Service, systemd};
use crate::observe::Logging;

/// Run a node.
///
/// SIGHUP puts a changed configuration in force, or refuses it whole and says why. SIGTERM and SIGINT drain: the health
/// check answers 503, no session begins, tunnels run on until the grace period is over; the same signal again ends it
/// at once. SIGUSR2 hands over to a new process of the program that then stands in the place of this one, see
/// `portcullis upgrade`.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis serve --config /etc/portcullis/portcullis.toml
  PORTCULLIS_CONFIG=gw.toml portcullis serve

Exit codes: 0 drained, 1 could not start, or the process that took over has died, 2 usage, 3 invalid configuration.")]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, env = "PORTCULLIS_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let heir = match Heir::of_environment() {
        Ok(heir) => heir,
        Err(fault) => {
            explain(&format!("Not started. {fault}\n"));
            return Exit::Failed;
        }
    };
    let config = match config::load(&arguments.config) {
        Ok((config, warnings)) => {
            explain(&warnings.text(|_, word| word.to_owned()));
            config
        }
        Err(faults) => {
            let words = format!("{}{}\n", faults.text(|_, word| word.to_owned()), faults.summary());
            explain(&words);
            if let Some(heir) = heir {
                heir.refuse(&words);
            }
            return Exit::Invalid;
        }
    };
    match start(config, &arguments.config, heir) {
        Ok(exit) => exit,
        Err(fault) => {
            explain(&format!("Not started. {fault:#}\n"));
            Exit::Failed
        }
    }
}

fn start(config: Config, file: &Path, heir: Option<Heir>) -> anyhow::Result<Exit> {
    // Where a later program is found, whatever becomes of the file of this one.
    let program = std::env::current_exe()?;
    let logging = Logging::start(&config.log)?;
    let node = match heir {
        Some(heir) => {
            let node = heir.serve(config)?;
            node.gateway().lifecycle().note_upgrade(program.clone(), None);
            node
        }
        None => Node::start(config)?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Whoever reads "in service" may send a signal the moment after.
        let signals = Signals::new()?;
        announce(&node);
        systemd::notify("READY=1");
        let life = Life {
            node: &node,
            logging: &logging,
            file,
            program: &program,
        };
        life.live(signals).await;
        // Whoever looks after the service has to start it again.
        let exit = if node.is_bereft() { Exit::Failed } else { Exit::Done };
        node.stop().await;
        Ok(exit)
    })
}

fn announce(node: &Node) {
    let plan = node.gateway().plan();
    let name = &plan.config.node.name;
    for (service, address) in node.bound() {
        match service {
            Service::Clients(_) => tracing::info!(%address, "listening"),
            Service::Rdp => tracing::info!(%address, "listening for RDP"),
            Service::Health => tracing::info!(%address, "answering the plain health check"),
            Service::Peers => tracing::info!(%address, "listening for the other nodes"),
            Service::Pcoip => tracing::info!(%address, "listening for PCoIP"),
        }
    }
    tracing::info!(node = %name, version = env!("CARGO_PKG_VERSION"), "in service");
}

/// What a running node is steered with.
struct Life<'a> {
    node: &'a Node,
    logging: &'a Logging,
    file: &'a Path,
    /// What takes over unless another program is named.
    program: &'a Path,
}

impl Life<'_> {
    /// From in service to the end.
    async fn live(&self, mut signals: Signals) {
        let mut wishes = self.node.gateway().kinship().wishes();
        let house = self.node.keep_house();
        tokio::pin!(house);
        loop {
            let wanted = tokio::select! {
                () = &mut house => continue,
                wanted = signals.next() => wanted,
                Some(wish) = next_of(&mut wishes) => Wanted::Upgrade(Some(wish)),
            };
            match wanted {
                Wanted::Reload => reload(self.node, self.logging, self.file).await,
                Wanted::End => break,
                Wanted::Upgrade(wish) => {
                    let handed_over = tokio::select! {
                        handed_over = self.hand_over(wish) => handed_over,
                        () = signals.end() => break,
                    };
                    if handed_over {
                        return self.empty(&mut signals).await;
                    }
                }
            }
        }
        self.drain(&mut signals).await;
    }

    /// Hands over, or says why not.
    async fn hand_over(&self, wish: Option<Wish>) -> bool {
        let (binary, answer) = match wish {
            Some(Wish { binary, answer }) => (binary, Some(answer)),
            None => (self.program.to_owned(), None),
        };
        let outcome = self.node.hand_over(&binary, self.file).await;
        let answered = match &outcome {
            Ok(pid) => {
                tracing::info!(pid, "handed over: another process serves, what is open here goes on");
                systemd::notify(&format!("MAINPID={pid}"));
                Ok(*pid)
            }
            Err(fault) => {
                tracing::error!(binary = %binary.display(), "not handed over, this process goes on: {fault}");
                let lifecycle = self.node.gateway().lifecycle();
                lifecycle.note_upgrade(binary, Some(fault.to_string()));
                Err(format!("Not handed over, the running process goes on: {fault}."))
            }
        };
        if let Some(answer) = answer {
            // Who asked may have given up.
            let _ = answer.send(answered);
        }
        outcome.is_ok()
    }

    /// From handed over to the end of what is open.
    async fn empty(&self, signals: &mut Signals) {
        let house = self.node.keep_house();
        tokio::select! {
            () = house => {}
            () = self.node.emptied() => return tracing::info!("handed over, and nothing is open any more"),
            () = signals.end() => {}
        }
        self.node.part();
        self.drain(signals).await;
    }

    async fn drain(&self, signals: &mut Signals) {
        let house = self.node.keep_house();
        tokio::select! {
            () = house => {}
            () = self.node.drain() => tracing::info!("drained"),
            () = signals.end() => tracing::warn!("second signal: ending at once"),
        }
    }
}

/// The next wish, if anybody can have one. Cancel-safe.
async fn next_of(wishes: &mut Option<mpsc::Receiver<Wish>>) -> Option<Wish> {
    wishes.as_mut()?.recv().await
}

async fn reload(node: &Node, logging: &Logging, file: &Path) {
    let (config, warnings) = match config::load(file) {
        Ok(loaded) => loaded,
        Err(faults) => {
            for fault in faults.iter() {
                tracing::error!("{}", fault.words());
            }
            return tracing::error!(file = %file.display(), "configuration refused, the one before stays in force");
        }
    };
    for warning in warnings.iter() {
        tracing::warn!("{}", warning.words());
    }
    let level = config.log.level.clone();
    match node.reload(config).await {
        Ok(()) => {
            if let Err(fault) = logging.set_level(&level) {
                tracing::error!("{fault}");
            }
            announce(node);
            tracing::info!(file = %file.display(), "configuration applied");
        }
        Err(fault) => {
            tracing::error!(file = %file.display(), "configuration refused, the one before stays in force: {fault}");
        }
    }
}

struct Signals {
    reload: Signal,
    terminate: Signal,
    interrupt: Signal,
    upgrade: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            upgrade: signal(SignalKind::user_defined2())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.reload.recv() => Wanted::Reload,
            _ = self.terminate.recv() => Wanted::End,
            _ = self.interrupt.recv() => Wanted::End,
            _ = self.upgrade.recv() => Wanted::Upgrade(None),
        }
    }

    /// Waits for the next signal that ends the node; others are not heeded. Cancel-safe.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// What a signal, or the operator, asks for.
#[derive(Debug)]
enum Wanted {
    Reload,
    End,
    /// Of whom, unless it was a signal.
    Upgrade(Option<Wish>),
}
