//! `portcullis sessions list|kill`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use http::Method;

use super::api::{self, CallFault, NodeArguments, call};
use super::{Exit, explain, print};
use crate::admin::api::{Session, SessionList};
use crate::types::SessionId;

/// See who is on this node, or end a session
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  portcullis sessions list\n  portcullis sessions kill 6f0c…")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every live session, oldest first
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// End a session at once: its tunnel stops, its user must sign in again
    Kill {
        /// The session's id, as `sessions list` shows it
        id: SessionId,
        #[command(flatten)]
        node: NodeArguments,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let outcome = match &arguments.command {
        Command::List { json, node } => list(node, *json),
        Command::Kill { id, node } => kill(node, *id),
    };
    outcome.unwrap_or_else(|fault| {
        explain(&format!("{fault}\n"));
        fault.exit()
    })
}

fn list(node: &NodeArguments, json: bool) -> Result<Exit, CallFault> {
    let listed = call::<SessionList>(node, Method::GET, "/api/v1/sessions", None::<&()>);
    let list = api::wait(listed)?;
    if json {
        return Ok(print(&api::document("sessions", &list), Exit::Done));
    }
    let exit = print(&table(&list.sessions), Exit::Done);
    explain(&format!("{} in all\n", list.sessions.len()));
    Ok(exit)
}

fn kill(node: &NodeArguments, id: SessionId) -> Result<Exit, CallFault> {
    let path = format!("/api/v1/sessions/{id}");
    api::wait(call::<Option<()>>(node, Method::DELETE, &path, None::<&()>))?;
    Ok(print(&format!("Session {id} ended.\n"), Exit::Done))
}

/// Columns as wide as their widest value.
fn table(sessions: &[Session]) -> String {
    let mut rows = vec![["ID", "USER", "CLIENT", "DESKTOP", "STATE", "SINCE"].map(str::to_owned)];
    rows.extend(sessions.iter().map(|session| {
        let launched: Vec<_> = session
            .desktops
            .iter()
            .map(|d| format!("{} {}", d.desktop, d.protocol))
            .collect();
        let desktops = if launched.is_empty() {
            "-".to_owned()
        } else {
            launched.join(", ")
        };
        let state = if session.tunnel { "tunnel open" } else { "signed in" };
        [
            &session.id,
            &session.user,
            &session.client,
            &desktops,
            state,
            &session.since,
        ]
        .map(|cell| cell.to_string())
    }));
    let widths: [usize; 6] = std::array::from_fn(|column| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            // Writing to a string cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
