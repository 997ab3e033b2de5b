//! `portcullis upgrade`.

use std::path::PathBuf;

use clap::Args;
use http::Method;

use super::api::{self, NodeArguments, call_within};
use super::{Exit, explain, print};
use crate::admin::api::{Upgrade, Upgraded};

/// Hand the running node over to another version of the program, without cutting anyone.
///
/// The new process takes the listening sockets and the sessions over once it is healthy: it has loaded everything, and
/// answers the health check on each of its listeners. The old one keeps its open connections until they end. If the new
/// one fails, the old one goes on and says why.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis upgrade --binary /usr/local/bin/portcullis
  portcullis upgrade --binary /opt/portcullis-new/portcullis --json

Exit codes: 0 handed over, 1 not handed over (the running process goes on, and says why), 2 usage, 4 node unreachable,
5 not allowed.")]
pub struct Arguments {
    /// The program that takes over
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArguments,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let binary = match std::path::absolute(&arguments.binary) {
        Ok(binary) => binary,
        Err(fault) => {
            explain(&format!("{}: {fault}\n", arguments.binary.display()));
            return Exit::Usage;
        }
    };
    let wanted = Upgrade { binary };
    let upgraded = call_within(
        PATIENCE,
        &arguments.node,
        Method::POST,
        "/api/v1/node/upgrade",
        Some(&wanted),
    );
    match api::wait::<Upgraded>(upgraded) {
        Ok(upgraded) if arguments.json => print(&api::document("upgrade", &upgraded), Exit::Done),
        Ok(Upgraded { pid }) => print(
            &format!(
                "Handed over: process {pid} serves. The one before it keeps its open connections until they end.\n"
            ),
            Exit::Done,
        ),
        Err(fault) => {
            explain(&format!("{fault}\n"));
            fault.exit()
        }
    }
}

/// Longer than the node gives the new process.
pub(super) const PATIENCE: std::time::Duration = std::time::Duration::from_secs(180);
