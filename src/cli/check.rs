//! `portcullis check`: every fault of a configuration, before anything is changed.

use std::path::PathBuf;

use clap::Args;

use super::term::{Ink, Term};
use super::{Exit, print};
use crate::config::{self, Config, Faults, Severity};

/// Check a configuration and name every fault in it.
///
/// The file and everything it refers to are read; nothing is changed and no address is bound. Each fault is one line:
/// place, severity, setting, what is wrong and what to do. Warnings do not make a configuration invalid.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis check /etc/portcullis/portcullis.toml
  portcullis check --schema > portcullis.schema.json

Exit codes: 0 valid (maybe with warnings), 2 usage, 3 invalid.")]
pub struct Arguments {
    /// The configuration file.
    #[arg(value_name = "FILE", required_unless_present = "schema")]
    file: Option<PathBuf>,
    /// Print one JSON document instead of lines.
    #[arg(long, conflicts_with = "schema")]
    json: bool,
    /// Print the JSON Schema of the configuration, for editors.
    #[arg(long, conflicts_with = "file")]
    schema: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments, term: Term) -> Exit {
    let Some(file) = &arguments.file else {
        return print(&format!("{:#}\n", config::schema()), Exit::Done);
    };
    let (faults, config) = match config::load(file) {
        Ok((config, warnings)) => (warnings, Some(config)),
        Err(faults) => (faults, None),
    };
    let exit = if config.is_some() { Exit::Done } else { Exit::Invalid };
    if arguments.json {
        return print(&format!("{:#}\n", faults.json()), exit);
    }
    let lines = faults.text(|severity, word| {
        let ink = match severity {
            Severity::Error => Ink::Bad,
            Severity::Warning => Ink::Warn,
        };
        term.paint(ink, word)
    });
    print(
        &term.shown(&format!("{lines}{}\n", verdict(&faults, config.as_ref()))),
        exit,
    )
}

/// The last line: how many faults, and what follows from them.
fn verdict(faults: &Faults, config: Option<&Config>) -> String {
    match config {
        None => format!("{} Nothing was changed.", faults.summary()),
        Some(_) if !faults.is_empty() => format!("{} {} is valid.", faults.summary(), faults.file()),
        Some(config) => format!(
            "{} is valid: {}, {}, {}, {}.",
            faults.file(),
            counted(config.listeners.len(), "listener"),
            counted(config.certificates.len(), "certificate"),
            counted(config.directory.users.len(), "user"),
            counted(config.directory.desktops.len(), "desktop"),
        ),
    }
}

fn counted(count: usize, word: &str) -> String {
    if count == 1 {
        format!("1 {word}")
    } else {
        format!("{count} {word}s")
    }
}
