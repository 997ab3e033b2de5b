//! The command line: what the operator types, and the exit codes that scripts read.
//!
//! One file a command, thin. Data goes to standard output; hints, progress and prompts go to standard error.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ColorChoice, Parser, Subcommand};

pub mod api;
pub mod check;
pub mod completions;
pub mod connect;
pub mod demo;
pub mod doctor;
pub mod fleet;
pub mod hash_password;
pub mod quiesce;
pub mod serve;
pub mod sessions;
pub mod span;
pub mod term;
pub mod token;
pub mod upgrade;

use term::{Colour, Term};

/// How a command ended. The codes are the same for every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It did what it was asked to.
    Done = 0,
    /// It failed.
    Failed = 1,
    /// The command line is wrong.
    Usage = 2,
    /// The configuration is invalid, or a check did not hold.
    Invalid = 3,
    /// The node or server cannot be reached.
    Unreachable = 4,
    /// Not signed in, or not allowed.
    NotAllowed = 5,
    /// Somebody else changed it meanwhile.
    Changed = 6,
    /// It stopped half-way and has said where.
    HalfWay = 7,
    /// The operator interrupted it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A secure access gateway: logs users in at the edge and lets nothing else through.
#[derive(Debug, Parser)]
#[command(name = "portcullis", version, color = ColorChoice::Never, disable_help_subcommand = true)]
#[command(after_help = "Examples:
  portcullis demo
  portcullis serve --config /etc/portcullis/portcullis.toml

Exit codes: 0 done, 1 failed, 2 usage, 3 invalid configuration or check,
  4 unreachable, 5 not allowed, 6 changed meanwhile, 7 stopped half-way,
  130 interrupted.")]
pub(crate) struct Arguments {
    /// When to colour the output.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = Colour::Auto)]
    color: Colour,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Serve(serve::Arguments),
    Check(check::Arguments),
    Doctor(Box<doctor::Arguments>),
    Quiesce(quiesce::Arguments),
    Upgrade(upgrade::Arguments),
    Fleet(fleet::Arguments),
    Sessions(sessions::Arguments),
    Token(token::Arguments),
    Connect(Box<connect::Connect>),
    HashPassword(hash_password::Arguments),
    Completions(completions::Arguments),
}

/// Runs the program with the arguments and the environment of this process.
pub fn run() -> Exit {
    run_with(std::env::args_os())
}

/// Runs the program with these arguments, the first of which is the program's name.
pub fn run_with(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(refusal) => return refuse(&refusal),
    };
    let term = Term::of_process(arguments.color);
    match arguments.command {
        Command::Demo(arguments) => demo::run(&arguments, term),
        Command::Serve(arguments) => serve::run(&arguments),
        Command::Check(arguments) => check::run(&arguments, term),
        Command::Doctor(arguments) => doctor::run(&arguments, term),
        Command::Quiesce(arguments) => quiesce::run(&arguments),
        Command::Upgrade(arguments) => upgrade::run(&arguments),
        Command::Fleet(arguments) => fleet::run(&arguments),
        Command::Sessions(arguments) => sessions::run(&arguments),
        Command::Token(arguments) => token::run(&arguments),
        Command::Connect(arguments) => connect::run(*arguments, term),
        Command::HashPassword(arguments) => hash_password::run(&arguments),
        Command::Completions(arguments) => completions::run(&arguments),
    }
}

/// Help and version go to standard output and are no fault; everything else is.
fn refuse(refusal: &clap::Error) -> Exit {
    if matches!(refusal.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return print(&refusal.to_string(), Exit::Done);
    }
    explain(&refusal.to_string());
    Exit::Usage
}

/// Writes data to standard output; `exit` is the outcome if that works.
///
/// A reader that has seen enough (`portcullis … | head`) is no fault.
pub(crate) fn print(text: &str, exit: Exit) -> Exit {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => exit,
        Err(fault) if fault.kind() == io::ErrorKind::BrokenPipe => exit,
        Err(fault) => {
            explain(&format!("Standard output cannot be written: {fault}.\n"));
            Exit::Failed
        }
    }
}

/// Writes a hint or an explanation to standard error. There is nobody left to tell if that fails.
pub(crate) fn explain(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}
