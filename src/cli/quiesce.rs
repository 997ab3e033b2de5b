//! `portcullis quiesce on|off|status`.

use std::time::Duration;

use clap::{Args, ValueEnum};
use http::Method;

use super::api::{self, NodeArguments, call};
use super::span::{self, Span};
use super::{Exit, explain, print};
use crate::admin::api::{NodeStatus, Quiesce};

mod wait;

/// Take the node out of the balancer's service, put it back, or see how far it has emptied
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis quiesce on --wait --timeout 10h
  portcullis quiesce status --json

Exit codes with --wait: 0 empty, 6 somebody put it back in service,
  7 the timeout is over and somebody is still there, 130 interrupted; the node
  stays quiesced after 7 and 130, and the same command goes on.")]
pub struct Arguments {
    /// `on`: out of service, as [quiesce] of its configuration says; `off`: back; `status`: what holds now
    action: Action,
    /// With `on`: wait until no session and no sign-in is left
    #[arg(long)]
    wait: bool,
    /// With --wait: for how long at the most, such as 10h; without, until it is empty
    #[arg(long, value_name = "SPAN", requires = "wait")]
    timeout: Option<Span>,
    /// Print one JSON document; with --wait, one a line whenever something changes
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    On,
    Off,
    Status,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    if arguments.wait && arguments.action != Action::On {
        explain("--wait goes with `on`.\n");
        return Exit::Usage;
    }
    let node = &arguments.node;
    let asked = api::wait(async {
        if arguments.wait {
            let timeout = arguments.timeout.map_or(Duration::MAX, |span| span.0);
            return wait::run(node, timeout, arguments.json).await;
        }
        let status = match arguments.action {
            Action::On => set(node, true).await?,
            Action::Off => set(node, false).await?,
            Action::Status => ask(node).await?,
        };
        let text = if arguments.json {
            api::document("node", &status)
        } else {
            format!("{}\n", in_words(&status))
        };
        Ok(print(&text, Exit::Done))
    });
    asked.unwrap_or_else(|fault| {
        explain(&format!("{fault}\n"));
        fault.exit()
    })
}

async fn set(node: &NodeArguments, quiesced: bool) -> Result<NodeStatus, api::CallFault> {
    let wanted = Quiesce { quiesced };
    call(node, Method::PUT, "/api/v1/node/quiesce", Some(&wanted)).await
}

async fn ask(node: &NodeArguments) -> Result<NodeStatus, api::CallFault> {
    call(node, Method::GET, "/api/v1/node", None::<&()>).await
}

/// `gw-1 quiesced, health 503: 12 sessions left, at the latest for 3 h 20 min`
pub(super) fn in_words(status: &NodeStatus) -> String {
    let NodeStatus {
        name,
        state,
        health,
        sessions,
        pending_logins,
        ..
    } = status;
    let step = status
        .quiesced
        .as_ref()
        .and_then(|quiesced| quiesced.step_ends_in_seconds);
    let step = step.map_or_else(String::new, |left| {
        format!(" (503 at the latest in {})", span::in_words(left))
    });
    let noun = if *sessions == 1 { "session" } else { "sessions" };
    let left = match (state.as_str(), status.empty_in_seconds) {
        ("quiesced" | "draining", Some(seconds)) => format!(" left, at the latest for {}", span::in_words(seconds)),
        _ => String::new(),
    };
    let middle = match pending_logins {
        0 => String::new(),
        1 => "; 1 sign-in in the middle".to_owned(),
        many => format!("; {many} sign-ins in the middle"),
    };
    format!("{name} {state}, health {health}{step}: {sessions} {noun}{left}{middle}")
}

#[cfg(test)]
pub(in crate::cli) mod tests {
    use super::*;
    use crate::admin::api::Quiesced;

    /// A quiesced node.
    pub(in crate::cli) fn quiesced(sessions: usize, pending_logins: usize) -> NodeStatus {
        NodeStatus {
            name: "gw-1".into(),
            version: "0.1.0".into(),
            uptime_seconds: 7,
            state: "quiesced".into(),
            health: 503,
            quiesced: Some(Quiesced {
                since: "2026-11-30T12:00:00Z".into(),
                seconds: 5,
                answer: "503".into(),
                step_ends_in_seconds: None,
                refuses_logins: false,
            }),
            sessions,
            tunnels: sessions,
            pending_logins,
            connections: 2,
            empty_in_seconds: (sessions > 0).then_some(12_059),
            started: "2026-11-30T11:59:58.250Z".into(),
            program: None,
            configuration: "5eed".into(),
            sessions_max: 10_000,
            errors: 0,
            can_hand_over: Some(true),
            last_upgrade: None,
        }
    }

    #[test]
    fn a_quiesced_node_says_what_is_left_and_for_how_long() {
        assert_eq!(
            in_words(&quiesced(1, 0)),
            "gw-1 quiesced, health 503: 1 session left, at the latest for 3 h 20 min"
        );
        let mut first_step = quiesced(0, 2);
        first_step.health = 404;
        if let Some(quiesced) = &mut first_step.quiesced {
            quiesced.step_ends_in_seconds = Some(28);
        }
        assert_eq!(
            in_words(&first_step),
            "gw-1 quiesced, health 404 (503 at the latest in 28 s): 0 sessions; 2 sign-ins in the middle"
        );
    }
}
