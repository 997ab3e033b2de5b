//! What is told while something goes on: a line for people, or an object a line for programs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::admin::api::NodeStatus;
use crate::cli::{Exit, explain, print};
use crate::clock;

/// Tells of events as they happen.
#[derive(Debug)]
pub(super) struct Progress {
    schema: &'static str,
    json: bool,
    /// When and what was last told of a node that is waited for.
    waiting: RefCell<HashMap<String, (Instant, usize)>>,
}

/// Something that happened.
#[derive(Debug, Serialize)]
pub(super) struct Event<'a> {
    schema: &'static str,
    at: String,
    event: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    words: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a NodeStatus>,
}

impl Progress {
    pub(super) fn new(schema: &'static str, json: bool) -> Self {
        Self {
            schema,
            json,
            waiting: RefCell::default(),
        }
    }

    /// Tells of a node.
    pub(super) fn node(&self, event: &'static str, name: &str, words: &str) {
        self.tell(event, Some(name), words, None);
    }

    /// Tells of the whole.
    pub(super) fn all(&self, event: &'static str, words: &str) {
        self.tell(event, None, words, None);
    }

    /// Tells how a node is that is waited for: to programs whenever something changes, else once a minute.
    pub(super) fn waiting(&self, status: &NodeStatus, words: &str) {
        let (now, count) = (clock::now(), status.sessions + status.pending_logins);
        let mut waiting = self.waiting.borrow_mut();
        let is_due = waiting
            .get(&status.name)
            .is_none_or(|(at, before)| now.duration_since(*at) >= MINUTE || self.json && *before != count);
        if is_due {
            waiting.insert(status.name.clone(), (now, count));
            self.tell("waiting", Some(&status.name), words, Some(status));
        }
    }

    fn tell(&self, event: &'static str, name: Option<&str>, words: &str, node: Option<&NodeStatus>) {
        if !self.json {
            let text = match name {
                // What is told of a status begins with the name.
                Some(name) if !words.starts_with(name) => format!("{name}  {words}\n"),
                Some(_) | None => format!("{words}\n"),
            };
            if event == DONE {
                print(&text, Exit::Done);
            } else {
                explain(&text);
            }
            return;
        }
        let event = Event {
            schema: self.schema,
            at: format!("{:.0}", clock::wall()),
            event,
            name,
            words,
            node,
        };
        // What is made of plain fields can always be written; whether somebody reads on changes nothing.
        if let Ok(line) = serde_json::to_string(&event) {
            print(&format!("{line}\n"), Exit::Done);
        }
    }
}

/// The event that is the outcome.
pub(super) const DONE: &str = "done";
const MINUTE: Duration = Duration::from_secs(60);
