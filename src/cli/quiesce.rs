//! `portcullis quiesce on|off|status`.

use clap::{Args, ValueEnum};
use http::Method;

use super::socket::{self, SocketArguments, call};
use super::{Exit, explain, print};
use crate::admin::api::{NodeStatus, Quiesce};

/// Take the node out of the balancer's service, put it back, or see how far it has emptied
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  portcullis quiesce on\n  portcullis quiesce status --json")]
pub struct Arguments {
    /// `on`: the health check answers 503; `off`: 200 again; `status`: what holds now
    action: Action,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    socket: SocketArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Action {
    On,
    Off,
    Status,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let wanted = match arguments.action {
        Action::On => Some(Quiesce { quiesced: true }),
        Action::Off => Some(Quiesce { quiesced: false }),
        Action::Status => None,
    };
    let (method, path) = match wanted {
        Some(_) => (Method::PUT, "/api/v1/node/quiesce"),
        None => (Method::GET, "/api/v1/node"),
    };
    let socket = &arguments.socket.socket;
    match socket::wait(call::<NodeStatus>(socket, method, path, wanted.as_ref())) {
        Ok(status) if arguments.json => print(&socket::document("node", &status), Exit::Done),
        Ok(status) => print(&format!("{}\n", in_words(&status)), Exit::Done),
        Err(fault) => {
            explain(&format!("{fault}\n"));
            fault.exit()
        }
    }
}

/// `gw-1 quiesced, health 503: 12 sessions left, at the latest for 3 h 20 min`
fn in_words(status: &NodeStatus) -> String {
    let NodeStatus {
        name,
        state,
        health,
        sessions,
        ..
    } = status;
    let noun = if *sessions == 1 { "session" } else { "sessions" };
    let left = match (state.as_str(), status.empty_in_seconds) {
        ("quiesced" | "draining", Some(seconds)) => format!(" left, at the latest for {}", span(seconds)),
        _ => String::new(),
    };
    format!("{name} {state}, health {health}: {sessions} {noun}{left}")
}

/// A span in the two units that matter: `3 h 20 min`, `45 s`.
fn span(seconds: u64) -> String {
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, min, s) => format!("{min} min {s} s"),
        (h, min, _) => format!("{h} h {min} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiesced_node_says_what_is_left_and_for_how_long() {
        let status = NodeStatus {
            name: "gw-1".into(),
            version: "0.1.0".into(),
            state: "quiesced".into(),
            health: 503,
            sessions: 1,
            tunnels: 1,
            pending_logins: 0,
            connections: 2,
            empty_in_seconds: Some(12_059),
        };
        assert_eq!(
            in_words(&status),
            "gw-1 quiesced, health 503: 1 session left, at the latest for 3 h 20 min"
        );
    }
}
