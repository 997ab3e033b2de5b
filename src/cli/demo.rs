//! `portcullis demo`: a whole node with embedded defaults, and the whole journey through it.

use std::net::SocketAddr;

use clap::Args;
use tokio_util::task::TaskTracker;

use super::term::{Ink, Term};
use super::{Exit, explain, print};
use crate::config::{self, Log, LogFormat};
use crate::node::Node;
use crate::observe::Logging;

mod desktop;
mod journey;
mod setting;

use desktop::Desktops;
use journey::Journey;
use setting::Setting;

/// Run a node on this machine, and the journey of a user through it.
///
/// Nothing is set up before and nothing but the user's data directory is written. The node has a certificate of its own, two
/// users and two desktops that answer. The eight steps of the journey are printed with what was found and how long
/// each took; the node stays up until Ctrl-C.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis demo
  portcullis demo --once

Exit codes: 0 every step held, 1 one did not, 2 usage, 130 interrupted before the end of the journey.")]
pub struct Arguments {
    /// End after the journey.
    #[arg(long)]
    once: bool,
    /// What the node tells on standard error.
    #[arg(long, value_name = "LEVEL", default_value = "warn")]
    log: String,
}

/// Runs the command.
pub fn run(arguments: &Arguments, term: Term) -> Exit {
    match demonstrate(arguments, term) {
        Ok(exit) => exit,
        Err(fault) => {
            explain(&format!("The demo did not start. {fault:#}\n"));
            Exit::Failed
        }
    }
}

fn demonstrate(arguments: &Arguments, term: Term) -> anyhow::Result<Exit> {
    Logging::start(&Log {
        format: LogFormat::Text,
        level: arguments.log.clone(),
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let tasks = TaskTracker::new();
        let desktops = Desktops::start(&tasks).await?;
        let setting = Setting::prepare(&desktops)?;
        let (config, _) =
            config::load(&setting.config).map_err(|faults| anyhow::anyhow!("{}", faults.text(|_, w| w.into())))?;
        let node = Node::start(config)?;
        let address = *node
            .addresses()
            .first()
            .ok_or_else(|| anyhow::anyhow!("no address was bound"))?;
        let exit = show(arguments, term, &node, address, &setting, tasks).await;
        node.gateway().lifecycle().drain();
        node.stop().await;
        Ok(exit)
    })
}

async fn show(
    arguments: &Arguments,
    term: Term,
    node: &Node,
    address: SocketAddr,
    setting: &Setting,
    tasks: TaskTracker,
) -> Exit {
    print(&setting.introduction(address), Exit::Done);
    let journey = Journey::new(address, setting, tasks);
    let held = tokio::select! {
        held = journey.run(|line| {
            print(&term.shown(&line.words(term)), Exit::Done);
        }) => held,
        _ = tokio::signal::ctrl_c() => return Exit::Interrupted,
    };
    let Ok(took) = held else { return Exit::Failed };
    let ending = if arguments.once { "" } else { "   (Ctrl-C ends)" };
    let summary = format!("Every step held in {} ms.{ending}\n", took.as_millis());
    print(&term.paint(Ink::Good, &summary), Exit::Done);
    if arguments.once {
        return Exit::Done;
    }
    print(&setting.what_to_try(address), Exit::Done);
    tokio::select! {
        () = node.keep_house() => {}
        _ = tokio::signal::ctrl_c() => explain("\n"),
    }
    Exit::Done
}
