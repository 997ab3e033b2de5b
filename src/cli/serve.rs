//! `portcullis serve`: runs a node until a signal ends it.

use std::path::{Path, PathBuf};

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Exit, explain};
use crate::config::{self, Config};
use crate::node::{Node, Service};
use crate::observe::Logging;

/// Run a node.
///
/// SIGHUP puts a changed configuration in force, or refuses it whole and says why. SIGTERM and SIGINT drain: the health
/// check answers 503, no session begins, tunnels run on until the grace period is over; the same signal again ends it
/// at once.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis serve --config /etc/portcullis/portcullis.toml
  PORTCULLIS_CONFIG=gw.toml portcullis serve

Exit codes: 0 drained, 1 could not start, 2 usage, 3 invalid configuration.")]
pub struct Arguments {
    /// The configuration file.
    #[arg(long, env = "PORTCULLIS_CONFIG", value_name = "FILE")]
    config: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let config = match config::load(&arguments.config) {
        Ok((config, warnings)) => {
            explain(&warnings.text(|_, word| word.to_owned()));
            config
        }
        Err(faults) => {
            explain(&format!(
                "{}{}\n",
                faults.text(|_, word| word.to_owned()),
                faults.summary()
            ));
            return Exit::Invalid;
        }
    };
    match start(config, &arguments.config) {
        Ok(()) => Exit::Done,
        Err(fault) => {
            explain(&format!("Not started. {fault:#}\n"));
            Exit::Failed
        }
    }
}

fn start(config: Config, file: &Path) -> anyhow::Result<()> {
    let logging = Logging::start(&config.log)?;
    let node = Node::start(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        // Whoever reads "in service" may send a signal the moment after.
        let signals = Signals::new()?;
        announce(&node);
        live(&node, signals, &logging, file).await;
        node.stop().await;
        Ok(())
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

/// From in service to drained.
async fn live(node: &Node, mut signals: Signals, logging: &Logging, file: &Path) {
    let house = node.keep_house();
    tokio::pin!(house);
    loop {
        tokio::select! {
            () = &mut house => {}
            wanted = signals.next() => match wanted {
                Wanted::Reload => reload(node, logging, file).await,
                Wanted::End => break,
            },
        }
    }
    let drain = node.drain();
    tokio::pin!(drain);
    loop {
        tokio::select! {
            () = &mut house => {}
            () = &mut drain => {
                tracing::info!("drained");
                return;
            }
            wanted = signals.next() => if wanted == Wanted::End {
                tracing::warn!("second signal: ending at once");
                return;
            },
        }
    }
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
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            reload: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next signal. Cancel-safe.
    async fn next(&mut self) -> Wanted {
        tokio::select! {
            _ = self.reload.recv() => Wanted::Reload,
            _ = self.terminate.recv() => Wanted::End,
            _ = self.interrupt.recv() => Wanted::End,
        }
    }
}

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Reload,
    End,
}
