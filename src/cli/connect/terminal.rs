//! Questions on the terminal, whatever standard input and output are.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::thread;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::oneshot;

use crate::cli::explain;
use crate::client::{AnswerKind, Prompter, Question, Unanswered};
use crate::types::Secret;

/// The terminal of this process, if it has one.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: Option<File>,
}

impl Terminal {
    /// Opens the terminal.
    pub(super) fn new() -> Self {
        Self {
            tty: OpenOptions::new().read(true).write(true).open("/dev/tty").ok(),
        }
    }
}

impl Prompter for Terminal {
    fn show(&mut self, text: &str) {
        explain(&format!("{text}\n"));
    }

    /// Cancel-safe: the terminal is left as it was found.
    async fn ask(&mut self, question: &Question) -> Result<Secret, Unanswered> {
        let tty = self.tty.as_ref().ok_or(Unanswered::NoTerminal)?;
        let _restored = Restored::new(tty);
        let (words, kind) = (question.to_string(), question.answer_kind());
        let (sender, answer) = oneshot::channel();
        // A thread of its own: one of the runtime's would hold up its end.
        thread::spawn(move || {
            let answer = match kind {
                AnswerKind::Hidden => rpassword::prompt_password(words).map(Secret::new),
                AnswerKind::Line | AnswerKind::YesOrNo => line(&words),
            };
            // Nobody may be waiting any more.
            let _ = sender.send(answer);
        });
        match answer.await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(Unanswered::Closed),
        }
    }
}

fn line(words: &str) -> io::Result<Secret> {
    let mut tty = OpenOptions::new().read(true).write(true).open("/dev/tty")?;
    tty.write_all(words.as_bytes())?;
    let mut typed = String::new();
    if BufReader::new(tty).read_line(&mut typed)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Secret::new(typed.trim_end_matches(['\n', '\r'])))
}

/// Puts the terminal's modes back when dropped: a question may be cut short while the echo is off.
struct Restored<'a> {
    tty: &'a File,
    modes: Option<Termios>,
}

impl<'a> Restored<'a> {
    fn new(tty: &'a File) -> Self {
        Self {
            tty,
            modes: tcgetattr(tty).ok(),
        }
    }
}

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        if let Some(modes) = &self.modes {
            // There is nobody to tell.
            let _ = tcsetattr(self.tty, OptionalActions::Now, modes);
        }
    }
}
