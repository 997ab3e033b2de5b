//! `portcullis doctor`: what is wrong, as the node sees it, or as clients see it from outside.

use clap::{Args, ValueEnum};

use super::api::NodeArguments;
use super::term::Term;
use super::{Exit, explain};
use crate::client::Endpoint;

mod node;
mod outside;

/// Find out what is wrong and what to do about it.
///
/// On the node, it lists what the node has found around it and what it has turned away since its start. From any other
/// machine, with --from outside, it goes the way of a client as far as that leads without a password.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis doctor
  portcullis doctor --from outside desk.example.com desk.example.com:8443

Exit codes: 0 nothing found, 1 something found, 2 usage, 4 unreachable,
  5 not allowed.")]
pub struct Arguments {
    /// With --from outside: the addresses that clients are told, HOST or HOST:PORT
    #[arg(value_name = "HOST[:PORT]", required_if_eq("from", "outside"))]
    addresses: Vec<Endpoint>,
    /// From where to look
    #[arg(long, value_enum, value_name = "WHERE", default_value_t = From::Node)]
    from: From,
    /// With --from outside: how many connections to each address have to reach one node
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    connections: u16,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: NodeArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum From {
    /// The node itself, over its socket or at its admin port
    Node,
    /// As a client
    Outside,
}

/// Runs the command.
pub fn run(arguments: &Arguments, term: Term) -> Exit {
    match arguments.from {
        From::Node if !arguments.addresses.is_empty() => {
            explain(
                "Addresses are for --from outside; the node itself is asked over its --socket or at its admin port.\n",
            );
            Exit::Usage
        }
        From::Node => node::run(&arguments.node, arguments.json, term),
        From::Outside => outside::run(arguments, term),
    }
}
