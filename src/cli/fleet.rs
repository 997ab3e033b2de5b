//! `portcullis fleet status|diff|quiesce|upgrade`: the nodes of an inventory, each by its admin port.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Exit, explain};
use crate::config::inventory;

mod capacity;
mod diff;
mod drain;
mod journey;
mod member;
mod preflight;
mod progress;
mod quiesce;
mod status;
mod taken_out;
mod turn;
mod upgrade;

use member::Member;

/// Look at, quiesce and upgrade the nodes of a fleet
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis fleet status --inventory fleet.toml
  portcullis fleet upgrade --inventory fleet.toml --method handover

The inventory is described in docs/upgrades.md.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Status(status::Arguments),
    Diff(diff::Arguments),
    Quiesce(quiesce::Arguments),
    Upgrade(upgrade::Arguments),
}

/// Which nodes, and for whom the output is.
#[derive(Args, Debug)]
struct Fleet {
    /// The inventory: a TOML file with the nodes
    #[arg(long, env = "PORTCULLIS_INVENTORY", value_name = "FILE")]
    inventory: PathBuf,
    /// Print JSON: one document, or an object a line where there is progress
    #[arg(long)]
    json: bool,
}

/// Out of service, or back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    On,
    Off,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let fleet = match &arguments.command {
        Command::Status(arguments) => &arguments.fleet,
        Command::Diff(arguments) => &arguments.fleet,
        Command::Quiesce(arguments) => &arguments.fleet,
        Command::Upgrade(arguments) => &arguments.fleet,
    };
    let members = match fleet.members() {
        Ok(members) => members,
        Err(exit) => return exit,
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(fault) => {
            explain(&format!("Cannot begin: {fault}.\n"));
            return Exit::Failed;
        }
    };
    runtime.block_on(async {
        match &arguments.command {
            Command::Status(arguments) => status::run(arguments, &members).await,
            Command::Diff(arguments) => diff::run(arguments, &members).await,
            Command::Quiesce(arguments) => quiesce::run(arguments, members).await,
            Command::Upgrade(arguments) => upgrade::run(arguments, &members).await,
        }
    })
}

impl Fleet {
    /// The nodes of the inventory; says every fault of it.
    fn members(&self) -> Result<Vec<Member>, Exit> {
        let (inventory, warnings) = inventory::load(&self.inventory).map_err(|faults| {
            explain(&format!("{faults}{} Nothing was changed.\n", faults.summary()));
            Exit::Invalid
        })?;
        explain(&warnings.to_string());
        let members = inventory.nodes.into_iter().map(Member::new);
        members.collect::<Result<_, _>>().map_err(|fault| {
            explain(&format!("{}: {fault}\n", self.inventory.display()));
            Exit::Invalid
        })
    }
}

/// Columns as wide as their widest value.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; COLUMNS] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}
