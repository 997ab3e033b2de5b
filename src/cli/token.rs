//! `portcullis token create|list|revoke`.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use http::Method;

use super::api::{self, CallFault, NodeArguments, call};
use super::span::Span;
use super::{Exit, explain, print};
use crate::admin::api::{MadeToken, NewToken, Scope, Token, TokenList};

/// Make, list and revoke the tokens of the admin API
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis token create --name fleet --scope operate --expires 90d
  portcullis token revoke fleet")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a token; it is shown this once
    Create {
        /// Its name, as it will stand in the log
        #[arg(long, value_name = "NAME")]
        name: String,
        /// How much its holder may do; each includes the ones before
        #[arg(long, value_enum)]
        scope: Scope,
        /// When it ends, such as 90d or 12h; without, never
        #[arg(long, value_name = "SPAN")]
        expires: Option<Span>,
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Every token, by name
    List {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Take a token back: it is refused from the next request on
    Revoke {
        /// Its name
        name: String,
        #[command(flatten)]
        node: NodeArguments,
    },
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let outcome = match &arguments.command {
        Command::Create {
            name,
            scope,
            expires,
            json,
            node,
        } => {
            let wanted = NewToken {
                name: name.clone(),
                scope: *scope,
                expires_in_seconds: expires.map(|span| span.0.as_secs()),
            };
            create(node, &wanted, *json)
        }
        Command::List { json, node } => list(node, *json),
        Command::Revoke { name, node } => revoke(node, name),
    };
    outcome.unwrap_or_else(|fault| {
        explain(&format!("{fault}\n"));
        fault.exit()
    })
}

/// The token alone goes to standard output, so that it can be written to a file unseen.
fn create(node: &NodeArguments, wanted: &NewToken, json: bool) -> Result<Exit, CallFault> {
    let made: MadeToken = api::wait(call(node, Method::POST, TOKENS, Some(wanted)))?;
    if json {
        return Ok(print(&api::document("token", &made), Exit::Done));
    }
    let until = made
        .expires
        .as_deref()
        .map_or("no end".to_owned(), |end| format!("until {end}"));
    explain(&format!(
        "Token {}, scope {}, {until}. It is shown this once:\n",
        made.name,
        made.scope.as_str()
    ));
    Ok(print(&format!("{}\n", made.token), Exit::Done))
}

fn list(node: &NodeArguments, json: bool) -> Result<Exit, CallFault> {
    let list: TokenList = api::wait(call(node, Method::GET, TOKENS, None::<&()>))?;
    if json {
        return Ok(print(&api::document("tokens", &list), Exit::Done));
    }
    let exit = print(&table(&list.tokens), Exit::Done);
    explain(&format!("{} in all\n", list.tokens.len()));
    Ok(exit)
}

fn revoke(node: &NodeArguments, name: &str) -> Result<Exit, CallFault> {
    // A name that could lead elsewhere is none that a token has.
    if name.is_empty()
        || name
            .bytes()
            .any(|octet| !octet.is_ascii_alphanumeric() && !b"._-".contains(&octet))
    {
        return Err(CallFault::Refused {
            status: http::StatusCode::NOT_FOUND,
            detail: format!("No token {name:?}. `portcullis token list` shows those there are."),
        });
    }
    let path = format!("{TOKENS}/{name}");
    api::wait(call::<Option<()>>(node, Method::DELETE, &path, None::<&()>))?;
    Ok(print(&format!("Token {name} revoked.\n"), Exit::Done))
}

fn table(tokens: &[Token]) -> String {
    let widest = tokens
        .iter()
        .map(|token| token.name.len())
        .max()
        .unwrap_or_default()
        .max(4);
    let mut text = format!("{:widest$}  SCOPE    CREATED               EXPIRES\n", "NAME");
    for token in tokens {
        let Token {
            name,
            scope,
            created,
            expires,
            expired,
        } = token;
        let expires = expires.as_deref().unwrap_or("never");
        let over = if *expired { " (over)" } else { "" };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:widest$}  {:7}  {created}  {expires}{over}", scope.as_str());
    }
    text
}

const TOKENS: &str = "/api/v1/tokens";
