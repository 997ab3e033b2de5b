//! `fleet upgrade`: every node to another program, one after the other, until something does not hold.

use std::cell::Cell;

use clap::{Args, ValueEnum};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use super::member::Member;
use super::preflight::{self, Ready, Unfit};
use super::progress::{DONE, Progress};
use super::taken_out::TakenOut;
use super::turn::{Stopped, Turn};
use crate::admin::api::NodeStatus;
use crate::cli::span::Span;
use crate::cli::{Exit, explain};

/// Upgrade the nodes one after the other, each to the program that the inventory names
///
/// All nodes are checked first: whether they answer, serve, let a user through, and whether the program takes their
/// configuration. Then each node has its turn, and is checked again before the next. At the first fault the node is put
/// back to what it was, or taken out of service, and nothing else is begun; the same command goes on from there.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis fleet upgrade --inventory fleet.toml --check
  portcullis fleet upgrade --inventory fleet.toml --method restart --drain 8h

Exit codes: 0 all nodes run it, 3 a check does not hold, 4 a node does not
  answer, 5 one refuses the token: with these nothing was changed; 7 stopped
  half-way, the same command goes on; 130 interrupted twice.")]
pub(super) struct Arguments {
    /// How a node changes its program
    #[arg(long, value_enum, default_value_t = Method::Handover)]
    pub(super) method: Method,
    /// How many nodes have their turn at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) batch: u16,
    /// Only check
    #[arg(long)]
    pub(super) check: bool,
    /// With `restart`: how long to wait until a node is empty, such as 8h
    #[arg(long, value_name = "SPAN", default_value = "10h")]
    pub(super) drain: Span,
    /// With `restart`: when that is over, restart though sessions are left
    #[arg(long)]
    pub(super) cut: bool,
    /// How long a node may take until it is back
    #[arg(long, value_name = "SPAN", default_value = "2min")]
    pub(super) patience: Span,
    /// How long errors are counted before and after each turn
    #[arg(long, value_name = "SPAN", default_value = "10s")]
    pub(super) watch: Span,
    #[command(flatten)]
    pub(super) fleet: Fleet,
}

/// How a node changes its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Method {
    /// In place: nobody is cut
    Handover,
    /// Quiesce, wait until it is empty, restart
    Restart,
}

/// Runs the command.
pub(super) async fn run(arguments: &Arguments, members: &[Member]) -> Exit {
    let taken_out = match TakenOut::load(&arguments.fleet.inventory) {
        Ok(taken_out) => taken_out,
        Err(words) => {
            explain(&format!("{words}\n"));
            return Exit::Failed;
        }
    };
    let stop = CancellationToken::new();
    let upgrade = Upgrade {
        arguments,
        members,
        taken_out: &taken_out,
        progress: Progress::new("portcullis.fleet-upgrade.v1", arguments.fleet.json),
        stop: &stop,
    };
    tokio::select! {
        exit = upgrade.run() => exit,
        () = interrupted_twice(&stop) => Exit::Interrupted,
    }
}

/// The first time the operator wants no more than is under way, the second time not even that.
async fn interrupted_twice(stop: &CancellationToken) {
    for words in ["Stopping as soon as no node is half-way. Once more: at once.\n", ""] {
        if tokio::signal::ctrl_c().await.is_err() {
            // Signals cannot be received: nobody can interrupt.
            return std::future::pending().await;
        }
        explain(words);
        stop.cancel();
    }
}

#[derive(Debug)]
struct Upgrade<'a> {
    arguments: &'a Arguments,
    members: &'a [Member],
    taken_out: &'a TakenOut,
    progress: Progress,
    stop: &'a CancellationToken,
}

/// A node that is to have its turn.
#[derive(Debug)]
struct Due<'a> {
    member: &'a Member,
    ready: Ready,
}

impl Upgrade<'_> {
    async fn run(&self) -> Exit {
        let due = match self.check_all().await {
            Ok(due) => due,
            Err(exit) => {
                self.progress.all("refused", "Nothing was changed.");
                return exit;
            }
        };
        if self.arguments.check {
            self.progress
                .all(DONE, &format!("Every check holds; {} to do.", nodes(due.len())));
            return Exit::Done;
        }
        for batch in due.chunks(self.arguments.batch.into()) {
            let names: Vec<_> = batch.iter().map(|due| due.member.name.as_str()).collect();
            if self.stop.is_cancelled() {
                return self.stopped(&format!("Interrupted before {}.", names.join(", "))).await;
            }
            if let Err(words) = self.others_serve(&names).await {
                return self.stopped(&words).await;
            }
            let turns = join_all(batch.iter().map(|due| self.turn(due))).await;
            let faults: Vec<_> = names
                .iter()
                .zip(&turns)
                .filter_map(|(name, turn)| Some(format!("{name}: {}", turn.as_ref().err()?.0)))
                .collect();
            if !faults.is_empty() {
                return self.stopped(&faults.join("\n")).await;
            }
        }
        let done = format!("{} run the program of the inventory.", nodes(self.members.len()));
        self.progress.all(DONE, &done);
        Exit::Done
    }

    /// Looks at all nodes; says what does not hold. Gives those that are due, the ones first that an earlier run left.
    async fn check_all(&self) -> Result<Vec<Due<'_>>, Exit> {
        let method = self.arguments.method;
        let looked = self
            .members
            .iter()
            .map(|member| preflight::look(member, method, self.taken_out));
        let (mut ready, mut exits) = (Vec::new(), Vec::new());
        for (member, outcome) in self.members.iter().zip(join_all(looked).await) {
            match outcome {
                Ok(fit) => {
                    self.progress.node("checked", &member.name, &words_of(&fit));
                    ready.push(Due { member, ready: fit });
                }
                Err(Unfit { faults, exit }) => {
                    for fault in faults {
                        self.progress.node("fault", &member.name, &fault);
                    }
                    exits.push(exit);
                }
            }
        }
        let worst = [Exit::Unreachable, Exit::NotAllowed]
            .into_iter()
            .find(|exit| exits.contains(exit));
        if let Some(exit) = worst.or(exits.first().copied()) {
            return Err(exit);
        }
        let all: Vec<NodeStatus> = ready.iter().map(|due| due.ready.status.clone()).collect();
        let is_left = |due: &Due<'_>| self.taken_out.has(&due.member.name);
        let mut due: Vec<_> = ready
            .into_iter()
            .filter(|due| is_left(due) || !due.ready.is_done())
            .collect();
        due.sort_by_key(|due| !is_left(due));
        for batch in due.chunks(self.arguments.batch.into()) {
            let names: Vec<_> = batch.iter().map(|due| due.member.name.as_str()).collect();
            match preflight::can_be_missed(&names, &all, method) {
                Ok(None) => {}
                Ok(Some(hint)) => self.progress.all("hint", &hint),
                Err(fault) => {
                    self.progress.all("fault", &fault);
                    return Err(Exit::Invalid);
                }
            }
        }
        Ok(due)
    }

    /// No node is taken out while another one is, but for those that an earlier run has left.
    async fn others_serve(&self, batch: &[&str]) -> Result<(), String> {
        let is_other = |member: &&Member| !batch.contains(&member.name.as_str()) && !self.taken_out.has(&member.name);
        let others: Vec<_> = self.members.iter().filter(is_other).collect();
        let asked = join_all(others.iter().map(|member| member.status())).await;
        for (member, outcome) in others.iter().zip(asked) {
            let name = &member.name;
            match outcome {
                Ok(status) if status.state == "serving" => {}
                Ok(status) => {
                    return Err(format!(
                        "{name} is {} meanwhile: no other node is taken out.",
                        status.state
                    ));
                }
                Err(fault) => return Err(format!("{name}: {fault} No other node is taken out.")),
            }
        }
        Ok(())
    }

    async fn turn(&self, due: &Due<'_>) -> Result<(), Stopped> {
        let Due { member, ready } = due;
        // Without it the check has failed.
        let Some(binary) = member.binary.as_deref() else {
            return Ok(());
        };
        let turn = Turn {
            member,
            ready,
            binary,
            arguments: self.arguments,
            progress: &self.progress,
            taken_out: self.taken_out,
            has_cut: Cell::new(false),
            stop: self.stop,
        };
        turn.take().await
    }

    /// Says where it stopped, how the nodes are left, and how to go on.
    async fn stopped(&self, why: &str) -> Exit {
        let asked = join_all(self.members.iter().map(Member::status)).await;
        let (mut serving, mut out) = (Vec::new(), Vec::new());
        for (member, outcome) in self.members.iter().zip(asked) {
            let is_serving = outcome.is_ok_and(|status| status.state == "serving");
            if is_serving { &mut serving } else { &mut out }.push(member.name.as_str());
        }
        let list = |names: &[&str]| {
            if names.is_empty() {
                "none".to_owned()
            } else {
                names.join(", ")
            }
        };
        let words = format!(
            "Stopped. {why}\nIn service: {}. Out of service: {}.\nOnce that is mended, the same command goes on.",
            list(&serving),
            list(&out)
        );
        self.progress.all("stopped", &words);
        Exit::HalfWay
    }
}

/// `0.1.0 to 0.2.0, 12 sessions; health check, sign-in and tunnel hold`
fn words_of(ready: &Ready) -> String {
    let (from, to, sessions) = (&ready.status.version, &ready.check.version, ready.status.sessions);
    let step = if ready.runs_it() {
        format!("ok: runs it already ({from})")
    } else {
        format!("ok: {from} to {to}")
    };
    let walked = ready
        .walked
        .map_or_else(String::new, |walked| format!("; {walked} hold"));
    format!("{step}, {sessions} sessions{walked}")
}

fn nodes(count: usize) -> String {
    if count == 1 {
        "1 node".to_owned()
    } else {
        format!("{count} nodes")
    }
}
