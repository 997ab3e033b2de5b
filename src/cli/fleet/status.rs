//! `fleet status`: how every node is.

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;

use super::member::{Member, MemberFault};
use super::{Fleet, table};
use crate::admin::api::NodeStatus;
use crate::cli::span;
use crate::cli::{Exit, api, explain, print};

/// How every node is: version, state, sessions, uptime, configuration, health
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis fleet status --inventory fleet.toml
  portcullis fleet status --inventory fleet.toml --json

CONFIGURATION begins the hash of the settings that nodes have in common.
Exit codes: 0 every node answers, 4 one does not, 5 one refuses the token.")]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) fleet: Fleet,
}

/// Runs the command.
pub(super) async fn run(arguments: &Arguments, members: &[Member]) -> Exit {
    let asked = join_all(members.iter().map(Member::status)).await;
    show(members, &asked, arguments.fleet.json)
}

/// Shows how the nodes are; the exit code of the worst.
pub(super) fn show(members: &[Member], asked: &[Result<NodeStatus, MemberFault>], json: bool) -> Exit {
    let exit = exit_of(asked);
    if json {
        let nodes = members.iter().zip(asked).map(|(member, outcome)| Line {
            name: &member.name,
            node: outcome.as_ref().ok(),
            fault: outcome.as_ref().err().map(ToString::to_string),
        });
        let nodes = Nodes { nodes: nodes.collect() };
        return print(&api::document("fleet", &nodes), exit);
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(members.iter().zip(asked).map(|(member, outcome)| row(member, outcome)));
    let exit = print(&table(&rows), exit);
    for (member, outcome) in members.iter().zip(asked) {
        if let Err(fault) = outcome {
            explain(&format!("{}: {fault}\n", member.name));
        }
    }
    exit
}

/// The exit code that says the worst.
pub(super) fn exit_of<T>(asked: &[Result<T, MemberFault>]) -> Exit {
    let faults = asked.iter().filter_map(|outcome| outcome.as_ref().err());
    let codes: Vec<_> = faults.map(MemberFault::exit).collect();
    let worst = [Exit::Unreachable, Exit::NotAllowed]
        .into_iter()
        .find(|exit| codes.contains(exit));
    worst.or(codes.first().copied()).unwrap_or(Exit::Done)
}

#[derive(Serialize)]
struct Nodes<'a> {
    nodes: Vec<Line<'a>>,
}

#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a NodeStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
}

fn row(member: &Member, outcome: &Result<NodeStatus, MemberFault>) -> [String; 7] {
    let name = member.name.clone();
    match outcome {
        Ok(status) => [
            name,
            status.version.clone(),
            status.state.clone(),
            status.sessions.to_string(),
            span::in_words(status.uptime_seconds),
            status.configuration.chars().take(FINGERPRINT).collect(),
            status.health.to_string(),
        ],
        Err(fault) => {
            let state = if fault.exit() == Exit::Unreachable {
                "unreachable"
            } else {
                "unknown"
            };
            let [version, sessions, uptime, configuration, health] = ["-"; 5].map(str::to_owned);
            [name, version, state.to_owned(), sessions, uptime, configuration, health]
        }
    }
}

const HEAD: [&str; 7] = [
    "NAME",
    "VERSION",
    "STATE",
    "SESSIONS",
    "UPTIME",
    "CONFIGURATION",
    "HEALTH",
];
/// Digits of a hash that are enough to see a difference.
const FINGERPRINT: usize = 12;
