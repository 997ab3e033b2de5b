//! One node's turn: another program takes over, is seen to work, and serves; or the node goes back to what it was.

use std::cell::Cell;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::drain::{self, Drained, PAUSE};
use super::journey;
use super::member::{Member, MemberFault};
use super::preflight::Ready;
use super::progress::Progress;
use super::taken_out::TakenOut;
use super::upgrade::{Arguments, Method};
use crate::admin::api::NodeStatus;
use crate::cli::quiesce::in_words;
use crate::cli::span;
use crate::clock;

/// A node whose turn it is.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) member: &'a Member,
    pub(super) ready: &'a Ready,
    /// The program that is to take over.
    pub(super) binary: &'a Path,
    pub(super) arguments: &'a Arguments,
    pub(super) progress: &'a Progress,
    pub(super) taken_out: &'a TakenOut,
    /// Whether sessions were ended for it, whose clients come back in vain for a while.
    pub(super) has_cut: Cell<bool>,
    /// Cancelled by the operator, who wants no more than is under way.
    pub(super) stop: &'a CancellationToken,
}

/// Why a turn ended early, and what to do: whole sentences.
#[derive(Debug)]
pub(super) struct Stopped(pub(super) String);

impl From<String> for Stopped {
    fn from(words: String) -> Self {
        Self(words)
    }
}

/// What became of a process that was to be replaced.
enum Back {
    /// Another one serves.
    Other,
    /// It is still there.
    Same,
    /// Nobody answers: why.
    Silent(String),
}

impl Turn<'_> {
    /// Takes the turn.
    ///
    /// # Errors
    /// The node has not come through it; how it was left is in the words.
    pub(super) async fn take(&self) -> Result<(), Stopped> {
        let name = &self.member.name;
        let before = self.errors_before().await;
        if self.ready.runs_it() {
            // An earlier run came so far.
            self.progress.node("resumed", name, "runs the program already");
        } else {
            match self.arguments.method {
                Method::Handover => self.hand_over().await?,
                Method::Restart => self.restart().await?,
            }
        }
        match self.put_back_and_verify(before).await {
            Ok(words) => {
                self.taken_out.forget(name)?;
                self.progress.node("in_service", name, &words);
                Ok(())
            }
            Err(words) => Err(self.roll_back(&words).await),
        }
    }

    async fn hand_over(&self) -> Result<(), Stopped> {
        let sessions = self.ready.status.sessions;
        let words = format!("handing over to {}, with {sessions} sessions", self.binary.display());
        self.progress.node("handing_over", &self.member.name, &words);
        let replaced = self.replace_by(self.binary, &self.ready.status.started).await;
        match replaced.map_err(|fault| Stopped(format!("{fault} It serves as before.")))? {
            Back::Other => Ok(()),
            Back::Same => Err(Stopped("The process before still answers.".to_owned())),
            Back::Silent(why) => Err(self.lost(&why)),
        }
    }

    /// Has a program take over from the process that started then.
    async fn replace_by(&self, program: &Path, started: &str) -> Result<Back, MemberFault> {
        match self.member.hand_over(program).await {
            Ok(_) => {}
            // The process before may have gone with the answer: who answers next tells what became of it.
            Err(fault) if fault.may_pass() => {}
            Err(fault) => return Err(fault),
        }
        Ok(self.process_after(started).await)
    }

    async fn restart(&self) -> Result<(), Stopped> {
        let name = &self.member.name;
        self.taken_out.note(name)?;
        let status = match self.member.quiesce(true).await {
            Ok(status) => status,
            Err(fault) => return Err(self.back_as_it_was(&fault.to_string()).await),
        };
        self.progress.node("quiesced", name, &in_words(&status));
        self.drain().await?;
        self.progress.node("restarting", name, "restarting");
        let asked = if self.member.restart.is_empty() {
            match self.member.end().await {
                // Nothing was done: nothing is waited for.
                Err(fault) if !fault.may_pass() => return Err(self.back_as_it_was(&fault.to_string()).await),
                outcome => outcome.map_err(|fault| fault.to_string()),
            }
        } else {
            self.run_command().await
        };
        if let Err(why) = &asked {
            self.progress.node("fault", name, why);
        }
        match self.other_process().await {
            Back::Other => Ok(()),
            Back::Same => {
                let why = asked.err().unwrap_or_else(|| "It was not restarted.".to_owned());
                Err(self.back_as_it_was(&why).await)
            }
            Back::Silent(why) => Err(self.lost(&why)),
        }
    }

    /// Waits until nobody is there any more, or as long as is to be waited.
    async fn drain(&self) -> Result<(), Stopped> {
        let limit = self.arguments.drain.0;
        let told = |status: &NodeStatus| self.progress.waiting(status, &in_words(status));
        let drained = tokio::select! {
            drained = drain::empty(self.member, limit, told) => drained,
            () = self.stop.cancelled() => return Err(self.back_as_it_was("Interrupted.").await),
        };
        match drained {
            Ok(Drained::Empty) => Ok(()),
            Ok(Drained::TimedOut(status)) if self.arguments.cut => {
                let words = format!("cutting {} sessions: the time is over", status.sessions);
                self.progress.node("cutting", &self.member.name, &words);
                self.has_cut.set(true);
                Ok(())
            }
            Ok(Drained::TimedOut(status)) => {
                let (left, span) = (status.sessions, span::in_words(limit.as_secs()));
                let why = format!(
                    "{left} sessions are left after {span}. Give more time with --drain, or end them with --cut."
                );
                Err(self.back_as_it_was(&why).await)
            }
            Ok(Drained::BackInService) => {
                self.taken_out.forget(&self.member.name)?;
                Err(Stopped("Somebody else has put it back in service.".to_owned()))
            }
            Err(fault) => Err(self.lost(&fault.to_string())),
        }
    }

    /// Runs the command of the inventory.
    async fn run_command(&self) -> Result<(), String> {
        let Some((program, arguments)) = self.member.restart.split_first() else {
            return Ok(());
        };
        let mut command = Command::new(program);
        let ran = command.args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
        match timeout(self.arguments.patience.0, ran).await {
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let said = String::from_utf8_lossy(&output.stderr);
                let last = crate::client::printable_line(said.lines().last().unwrap_or_default());
                Err(format!("`{program}` failed ({}): {last}", output.status))
            }
            Ok(Err(fault)) => Err(format!("`{program}` cannot be run: {fault}.")),
            Err(_) => Err(format!("`{program}` does not end.")),
        }
    }

    /// Waits until another process answers than before.
    async fn other_process(&self) -> Back {
        self.process_after(&self.ready.status.started).await
    }

    async fn process_after(&self, started: &str) -> Back {
        let deadline = clock::now() + self.arguments.patience.0;
        loop {
            let found = match self.member.status().await {
                Ok(status) if status.started == started => Back::Same,
                Ok(status) if matches!(status.state.as_str(), "serving" | "quiesced") => return Back::Other,
                Ok(status) => Back::Silent(format!("It is {}.", status.state)),
                Err(fault) => Back::Silent(fault.to_string()),
            };
            if clock::now() >= deadline {
                return found;
            }
            sleep(PAUSE / 4).await;
        }
    }

    /// Puts the node in service, and looks whether it does what it did.
    async fn put_back_and_verify(&self, before: Errors) -> Result<String, String> {
        let status = self.member.status().await.map_err(|fault| fault.to_string())?;
        if status.state == "quiesced" && self.taken_out.has(&self.member.name) {
            self.member.quiesce(false).await.map_err(|fault| fault.to_string())?;
        }
        if !self.runs_it().await? {
            // The process before may have answered, a moment before it went.
            sleep(SETTLE).await;
            if !self.runs_it().await? {
                return Err(format!("It runs another program than {}.", self.binary.display()));
            }
        }
        let walked = self.walk().await?;
        let second = self.count_errors(before).await?;
        let walked = walked.map_or_else(String::new, |walked| format!("; {walked} hold"));
        let (version, sessions) = (&second.version, second.sessions);
        Ok(format!("in service with {version}, {sessions} sessions{walked}"))
    }

    /// Counts errors for a while, and again for as long as those may come whose sessions were ended; how the node is then.
    async fn count_errors(&self, before: Errors) -> Result<NodeStatus, String> {
        let deadline = clock::now() + self.arguments.patience.0;
        loop {
            let first = self.member.status().await.map_err(|fault| fault.to_string())?;
            self.pause().await;
            let second = self.member.status().await.map_err(|fault| fault.to_string())?;
            if first.started != second.started {
                return Err("It has started once more.".to_owned());
            }
            let errors = Errors {
                count: second.errors.saturating_sub(first.errors),
                span: self.arguments.watch.0,
            };
            if !errors.is_worse_than(before) {
                return Ok(second);
            }
            if !self.has_cut.get() || clock::now() >= deadline {
                return Err(format!(
                    "{errors}; before: {before}. Its log says which: secondaries refused, errors of the web."
                ));
            }
            let words = format!("{errors}, maybe of those who were cut: counting once more");
            self.progress.node("waiting", &self.member.name, &words);
        }
    }

    async fn runs_it(&self) -> Result<bool, String> {
        let check = self
            .member
            .check(self.binary)
            .await
            .map_err(|fault| fault.to_string())?;
        Ok(check.sha256 == check.running_sha256)
    }

    async fn walk(&self) -> Result<Option<&'static str>, String> {
        match &self.member.front {
            None => Ok(None),
            Some(front) => {
                let walked = journey::walk(front).await;
                walked
                    .map(Some)
                    .map_err(|words| format!("A user does not get through: {words}."))
            }
        }
    }

    /// The node is not what it was: hands it back to the program before, or takes it out of service.
    async fn roll_back(&self, fault: &str) -> Stopped {
        let name = &self.member.name;
        self.progress.node("fault", name, fault);
        let status = &self.ready.status;
        let before = status.program.as_deref().filter(|program| *program != self.binary);
        let Some(before) = before.filter(|_| self.arguments.method == Method::Handover && !self.ready.runs_it()) else {
            return self.leave_out(fault).await;
        };
        self.progress
            .node("rolling_back", name, &format!("handing back to {}", before.display()));
        match self.hand_back(before).await {
            Ok(()) => Stopped(format!(
                "{fault} It was handed back to {} and serves as before.",
                before.display()
            )),
            Err(why) => {
                self.leave_out(&format!("{fault} It could not be handed back: {why}"))
                    .await
            }
        }
    }

    async fn hand_back(&self, before: &Path) -> Result<(), String> {
        let status = self.member.status().await.map_err(|fault| fault.to_string())?;
        let replaced = self.replace_by(before, &status.started).await;
        match replaced.map_err(|fault| fault.to_string())? {
            Back::Other => self.walk().await.map(drop),
            Back::Same => Err("The process before still answers.".to_owned()),
            Back::Silent(why) => Err(why),
        }
    }

    /// Takes a node out of service that nobody is to be sent to.
    async fn leave_out(&self, fault: &str) -> Stopped {
        let name = &self.member.name;
        let noted = self.taken_out.note(name);
        let quiesced = self.member.quiesce(true).await;
        let state = match (noted, quiesced) {
            (_, Err(why)) => format!("It could not be taken out of service: {why}"),
            (Err(why), Ok(_)) => format!("It is quiesced, which could not be kept: {why}."),
            (Ok(()), Ok(_)) => format!(
                "It is quiesced: nobody new is sent there. To put it back as it is: portcullis fleet quiesce off {name}"
            ),
        };
        Stopped(format!("{fault} {state}"))
    }

    /// Nothing was done to the node but quiesce: takes that back.
    async fn back_as_it_was(&self, why: &str) -> Stopped {
        let name = &self.member.name;
        match self.member.quiesce(false).await {
            Ok(_) => match self.taken_out.forget(name) {
                Ok(()) => Stopped(format!("{why} It is back in service, as it was.")),
                Err(fault) => Stopped(format!("{why} It is back in service, but {fault}.")),
            },
            Err(fault) => Stopped(format!("{why} It could not be put back in service: {fault}")),
        }
    }

    /// The node does not answer.
    fn lost(&self, why: &str) -> Stopped {
        // If it cannot be kept, the next run finds the node in service, or says why not.
        let _ = self.taken_out.note(&self.member.name);
        Stopped(format!("{why} Look at its log, and start it."))
    }

    /// Errors since the checks.
    async fn errors_before(&self) -> Errors {
        let since = clock::now().duration_since(self.ready.asked);
        if since < self.arguments.watch.0 {
            self.pause().await;
        }
        let span = clock::now().duration_since(self.ready.asked);
        let status = self.member.status().await.ok();
        let same = status.filter(|status| status.started == self.ready.status.started);
        let count = same.map_or(0, |status| status.errors.saturating_sub(self.ready.status.errors));
        Errors { count, span }
    }

    /// As long as errors are counted.
    async fn pause(&self) {
        sleep(self.arguments.watch.0).await;
    }
}

/// How many errors there were in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Errors {
    count: u64,
    span: Duration,
}

impl Errors {
    /// Whether there are far more in the same time; a few more say nothing.
    fn is_worse_than(self, before: Self) -> bool {
        let expected = u128::from(before.count) * self.span.as_millis() / before.span.as_millis().max(1);
        u128::from(self.count) > u128::from(FEW) + expected * 3
    }
}

impl std::fmt::Display for Errors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} errors in {}", self.count, span::in_words(self.span.as_secs()))
    }
}

/// Errors that are no more than chance, whatever was before.
const FEW: u64 = 10;
/// For a process that has handed over, and closes its side of the operator.
const SETTLE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_more_errors_than_before_are_a_fault_and_a_few_are_not() {
        let of = |count, seconds| Errors {
            count,
            span: Duration::from_secs(seconds),
        };
        assert!(!of(10, 10).is_worse_than(of(0, 60)));
        assert!(of(11, 10).is_worse_than(of(0, 60)));
        // One a second before: ten in as long, and three times as many are still nothing.
        assert!(!of(40, 10).is_worse_than(of(60, 60)));
        assert!(of(41, 10).is_worse_than(of(60, 60)));
        assert!(!of(0, 10).is_worse_than(of(0, 0)));
    }
}
