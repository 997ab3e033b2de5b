//! What the user reads meanwhile, on standard error: the gate line as it is passed, and where it stopped.

use std::io::{self, IsTerminal};

use super::Stop;
use crate::cli::term::{Ink, Term};
use crate::cli::{Exit, explain};
use crate::client::{DialCause, DialFault, End, Fault, HttpFault};
use crate::types::Step;

/// Writes progress and faults.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report {
    term: Term,
    /// Whether somebody watches: a script is told faults only.
    watched: bool,
}

impl Report {
    pub(super) fn new(term: Term) -> Self {
        let watched = io::stderr().is_terminal();
        // The terminal's colour was decided for standard output.
        let term = Term {
            colour: term.colour && watched,
            ..term
        };
        Self { term, watched }
    }

    /// A step was passed.
    pub(super) fn passed(&self, step: Step, words: &str) {
        if self.watched {
            self.line(Ink::Good, "ok", step, words);
        }
    }

    /// Something to know.
    pub(super) fn hint(&self, words: &str) {
        explain(&format!("{}\n", self.term.shown(words)));
    }

    /// The command ended before it was done.
    pub(super) fn failed(&self, stop: &Stop) -> Exit {
        match stop {
            Stop::Fault(fault) => self.line(Ink::Bad, "FAIL", step_of(fault), &stop.to_string()),
            Stop::Interrupted | Stop::Given(_) | Stop::Listen { .. } | Stop::Command { .. } | Stop::Io(..) => {
                self.hint(&format!("{stop}."));
            }
        }
        stop.exit()
    }

    fn line(&self, ink: Ink, verdict: &str, step: Step, words: &str) {
        let verdict = self.term.paint(ink, &format!("{verdict:<4}"));
        let words = words.replace('\n', "\n      ");
        let line = format!("{verdict}  {} {:<8} {words}\n", step.number(), step.label());
        explain(&self.term.shown(&line));
    }
}

/// The step of the gate line at which the client was stopped.
fn step_of(fault: &Fault) -> Step {
    match fault {
        Fault::Http(HttpFault::Dial(DialFault { cause, .. })) => match cause {
            DialCause::Connect(_) | DialCause::TimedOut | DialCause::Address(_) => Step::Listen,
            DialCause::Handshake(_) | DialCause::Certificate(_) | DialCause::Known(_) | DialCause::Setup(_) => {
                Step::Secure
            }
        },
        Fault::Http(HttpFault::Broken { .. } | HttpFault::TimedOut { .. } | HttpFault::Redirect { .. }) => Step::Route,
        Fault::Http(HttpFault::Status { .. } | HttpFault::TooLarge { .. })
        | Fault::Reply(_)
        | Fault::NoAnswer { .. } => Step::Route,
        Fault::Unwritable(_)
        | Fault::Version
        | Fault::SignIn { .. }
        | Fault::Unanswered { .. }
        | Fault::Declined
        | Fault::UnknownScreen(_)
        | Fault::Endless => Step::Authenticate,
        Fault::Failed(_)
        | Fault::SessionOver { .. }
        | Fault::NoDesktop
        | Fault::Choice { .. }
        | Fault::Protocol { .. }
        | Fault::Tunnel(End::NotAdmitted { .. }) => Step::Grant,
        Fault::Bypass
        | Fault::NotInTunnel { .. }
        | Fault::NoPreconnection
        | Fault::Tunnel(_)
        | Fault::Quic(_)
        | Fault::NoQuic(_) => Step::Tunnel,
        Fault::Raise(_) => Step::Upstream,
    }
}
