//! `quiesce on --wait`: until nobody is left, with progress.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{ask, in_words, set};
use crate::admin::api::NodeStatus;
use crate::cli::api::{CallFault, NodeArguments};
use crate::cli::{Exit, explain, print};
use crate::clock;

/// Quiesces a node and waits until it is empty, for `limit` at the most.
///
/// # Errors
/// The node cannot be asked, also not again for [`PATIENCE`].
pub(super) async fn run(node: &NodeArguments, limit: Duration, json: bool) -> Result<Exit, CallFault> {
    let form = match (json, std::io::stderr().is_terminal()) {
        (true, _) => Form::Events,
        (false, true) => Form::OneLine,
        (false, false) => Form::Lines,
    };
    let mut progress = Progress::new(form);
    tokio::select! {
        exit = watch(node, limit, &mut progress) => exit,
        _ = tokio::signal::ctrl_c() => {
            progress.leave();
            explain("Stopped waiting. The node stays quiesced; the same command goes on.\n");
            Ok(Exit::Interrupted)
        }
    }
}

async fn watch(node: &NodeArguments, limit: Duration, progress: &mut Progress) -> Result<Exit, CallFault> {
    let began = clock::now();
    let mut status = set(node, true).await?;
    let mut answered = clock::now();
    loop {
        let now = clock::now();
        let end = End::of(&status).or_else(|| (now.duration_since(began) >= limit).then_some(End::TimedOut));
        if let Some(end) = end {
            return Ok(progress.end(&status, end));
        }
        progress.tell(&status, now);
        tokio::time::sleep(PAUSE).await;
        match ask(node).await {
            Ok(next) => {
                status = next;
                answered = clock::now();
            }
            Err(fault) if fault.may_pass() && clock::now().duration_since(answered) < PATIENCE => {}
            Err(fault) => {
                progress.leave();
                return Err(fault);
            }
        }
    }
}

/// How the wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Empty,
    BackInService,
    TimedOut,
}

impl End {
    /// Whether it ends by itself.
    fn of(status: &NodeStatus) -> Option<Self> {
        match status.state.as_str() {
            "quiesced" | "draining" => (status.sessions == 0 && status.pending_logins == 0).then_some(Self::Empty),
            _ => Some(Self::BackInService),
        }
    }

    /// The word in events.
    fn code(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::BackInService => "back_in_service",
            Self::TimedOut => "timed_out",
        }
    }

    fn exit(self) -> Exit {
        match self {
            Self::Empty => Exit::Done,
            Self::BackInService => Exit::Changed,
            Self::TimedOut => Exit::HalfWay,
        }
    }

    fn words(self, status: &NodeStatus) -> String {
        let name = &status.name;
        match self {
            Self::Empty => format!("{name} is empty: no session, no sign-in. It stays quiesced.\n"),
            Self::BackInService => {
                let state = &status.state;
                format!("{name} is {state}: somebody else has put it back. Nothing was waited for any longer.\n")
            }
            Self::TimedOut => format!(
                "{}\nThe time is over. The node stays quiesced; the same command goes on.\n",
                in_words(status)
            ),
        }
    }
}

/// What is shown while it lasts.
struct Progress {
    form: Form,
    told: Option<(Instant, String)>,
}

/// To whom it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A terminal: one line, redrawn.
    OneLine,
    /// A file or pipe: a line a minute.
    Lines,
    /// A program: an object a line, whenever something changes, and every minute.
    Events,
}

#[derive(Serialize)]
struct Event<'a> {
    schema: &'static str,
    event: &'static str,
    node: &'a NodeStatus,
}

impl Progress {
    fn new(form: Form) -> Self {
        Self { form, told: None }
    }

    fn tell(&mut self, status: &NodeStatus, now: Instant) {
        let Some(text) = self.text(status, now) else { return };
        if self.form == Form::Events {
            print(&text, Exit::Done);
        } else {
            explain(&text);
        }
    }

    /// What is to be shown at `now`, if anything.
    fn text(&mut self, status: &NodeStatus, now: Instant) -> Option<String> {
        let counts = format!("{} {} {}", status.health, status.sessions, status.pending_logins);
        let is_due = self.told.as_ref().is_none_or(|(at, before)| {
            now.duration_since(*at) >= MINUTE || self.form == Form::Events && *before != counts
        });
        if is_due {
            self.told = Some((now, counts));
        }
        match self.form {
            // Back to the start of the line, and away with what is left of the one before.
            Form::OneLine => Some(format!("\r{}\u{1b}[K", in_words(status))),
            Form::Lines => is_due.then(|| format!("{}\n", in_words(status))),
            Form::Events => is_due.then(|| event("waiting", status)),
        }
    }

    fn end(&mut self, status: &NodeStatus, end: End) -> Exit {
        self.leave();
        if self.form == Form::Events {
            return print(&event(end.code(), status), end.exit());
        }
        if end == End::Empty {
            return print(&end.words(status), end.exit());
        }
        explain(&end.words(status));
        end.exit()
    }

    /// Ends the line that is redrawn.
    fn leave(&mut self) {
        if self.form == Form::OneLine && self.told.is_some() {
            explain("\n");
        }
    }
}

fn event(event: &'static str, node: &NodeStatus) -> String {
    let event = Event {
        schema: "portcullis.quiesce.v1",
        event,
        node,
    };
    // What is made of plain fields can always be written.
    serde_json::to_string(&event).map_or_else(|_| String::new(), |line| line + "\n")
}

const PAUSE: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// With a node that does not answer.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::super::tests::quiesced;
    use super::*;

    #[test]
    fn it_is_over_when_no_session_and_no_sign_in_is_left() {
        assert_eq!(End::of(&quiesced(1, 0)), None);
        assert_eq!(End::of(&quiesced(0, 1)), None);
        assert_eq!(End::of(&quiesced(0, 0)), Some(End::Empty));
        let mut back = quiesced(3, 0);
        back.state = "serving".to_owned();
        assert_eq!(End::of(&back), Some(End::BackInService));
    }

    #[test]
    fn a_file_gets_a_line_a_minute_and_a_program_what_changes() {
        let now = clock::now();
        let mut lines = Progress::new(Form::Lines);
        assert!(lines.text(&quiesced(2, 0), now).is_some());
        assert_eq!(lines.text(&quiesced(1, 0), now + MINUTE / 2), None);
        assert!(lines.text(&quiesced(1, 0), now + MINUTE).is_some());
        let mut events = Progress::new(Form::Events);
        assert!(events.text(&quiesced(2, 0), now).is_some());
        assert_eq!(events.text(&quiesced(2, 0), now + PAUSE), None);
        let line = events.text(&quiesced(1, 0), now + PAUSE).unwrap();
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["schema"], "portcullis.quiesce.v1");
        assert_eq!(
            (&event["event"], &event["node"]["sessions"]),
            (&"waiting".into(), &1.into())
        );
        assert!(events.text(&quiesced(1, 0), now + PAUSE + MINUTE).is_some());
    }

    #[test]
    fn a_terminal_has_one_line_that_is_redrawn() {
        let now = clock::now();
        let mut line = Progress::new(Form::OneLine);
        for moment in [now, now + PAUSE] {
            let text = line.text(&quiesced(2, 0), moment).unwrap();
            assert!(
                text.starts_with('\r') && text.ends_with("\u{1b}[K") && !text.contains('\n'),
                "{text:?}"
            );
        }
    }
}
