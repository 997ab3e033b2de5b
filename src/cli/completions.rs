//! `portcullis completions`: what a shell needs to complete the command line.

use clap::{Args, CommandFactory as _};
use clap_complete::{Shell, generate};

use super::{Exit, print};

/// Print the completions for a shell.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis completions bash > /etc/bash_completion.d/portcullis
  portcullis completions fish > ~/.config/fish/completions/portcullis.fish")]
pub struct Arguments {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let mut script = Vec::new();
    generate(
        arguments.shell,
        &mut super::Arguments::command(),
        "portcullis",
        &mut script,
    );
    print(&String::from_utf8_lossy(&script), Exit::Done)
}
