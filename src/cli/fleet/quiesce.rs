//! `fleet quiesce on|off NODE…`.

use std::time::Duration;

use clap::Args;
use futures_util::future::join_all;

use super::drain::{self, Drained};
use super::member::Member;
use super::progress::Progress;
use super::{Action, Fleet, status};
use crate::cli::quiesce::in_words;
use crate::cli::span::Span;
use crate::cli::{Exit, explain};

/// Take nodes out of the balancer's service, or put them back
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis fleet quiesce on gw-1 --wait --timeout 10h --inventory fleet.toml
  portcullis fleet quiesce off gw-1 gw-2 --inventory fleet.toml

Exit codes with --wait: 0 all are empty, 6 somebody put one back in service,
  7 the timeout is over; the nodes stay quiesced.")]
pub(super) struct Arguments {
    /// `on`: out of service; `off`: back
    action: Action,
    /// The nodes
    #[arg(required = true, value_name = "NODE")]
    nodes: Vec<String>,
    /// With `on`: wait until no session and no sign-in is left on them
    #[arg(long)]
    wait: bool,
    /// With --wait: for how long at the most, such as 10h; without, until they are empty
    #[arg(long, value_name = "SPAN", requires = "wait")]
    timeout: Option<Span>,
    #[command(flatten)]
    pub(super) fleet: Fleet,
}

/// Runs the command.
pub(super) async fn run(arguments: &Arguments, members: Vec<Member>) -> Exit {
    if arguments.wait && arguments.action == Action::Off {
        explain("--wait goes with `on`.\n");
        return Exit::Usage;
    }
    let known = |name: &&String| members.iter().any(|member| member.name == **name);
    if let Some(unknown) = arguments.nodes.iter().find(|name| !known(name)) {
        explain(&format!("There is no node {unknown} in the inventory.\n"));
        return Exit::Usage;
    }
    let is_meant = |member: &Member| arguments.nodes.contains(&member.name);
    let members: Vec<_> = members.into_iter().filter(is_meant).collect();
    let quiesced = arguments.action == Action::On;
    let asked = join_all(members.iter().map(|member| member.quiesce(quiesced))).await;
    let all_did = asked.iter().all(Result::is_ok);
    if !arguments.wait || !all_did {
        return status::show(&members, &asked, arguments.fleet.json);
    }
    let progress = Progress::new("portcullis.fleet-quiesce.v1", arguments.fleet.json);
    let limit = arguments.timeout.map_or(Duration::MAX, |span| span.0);
    let exits = join_all(members.iter().map(|member| wait(member, limit, &progress))).await;
    let worst = [
        Exit::Unreachable,
        Exit::NotAllowed,
        Exit::Failed,
        Exit::Changed,
        Exit::HalfWay,
    ];
    worst
        .into_iter()
        .find(|exit| exits.contains(exit))
        .unwrap_or(Exit::Done)
}

async fn wait(member: &Member, limit: Duration, progress: &Progress) -> Exit {
    let told = |status: &_| progress.waiting(status, &in_words(status));
    match drain::empty(member, limit, told).await {
        Ok(Drained::Empty) => {
            progress.node(
                "empty",
                &member.name,
                "is empty: no session, no sign-in. It stays quiesced.",
            );
            Exit::Done
        }
        Ok(Drained::BackInService) => {
            progress.node(
                "back_in_service",
                &member.name,
                "somebody else has put it back in service.",
            );
            Exit::Changed
        }
        Ok(Drained::TimedOut(status)) => {
            let words = format!("the time is over: {}. It stays quiesced.", in_words(&status));
            progress.node("timed_out", &member.name, &words);
            Exit::HalfWay
        }
        Err(fault) => {
            progress.node("fault", &member.name, &fault.to_string());
            fault.exit()
        }
    }
}
