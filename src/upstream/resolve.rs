//! The addresses of targets that are configured by name.
//!
//! A name is asked for again when its records expire. What was last known stays in use for as long as nothing better
//! is: a name server that fails or says that there is no such name takes no target away, it rings an alarm.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use super::balance::Dice;
use crate::clock;

mod hosts;
mod name;
mod servers;

pub use name::DnsFault;
pub(super) use name::{Answer, Family, Name};
pub(super) use servers::Servers;

/// Who knows the addresses of names.
pub(super) trait Ask: fmt::Debug + Send + Sync {
    /// Asks for the addresses of `name`, with an end of its own to waiting.
    fn ask<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;
}

/// Keeps `known` up to date: asks at once, whenever the records expire and whenever somebody else is to be asked, and
/// calls `answered` after each answer with whether the addresses are others. Ends when `whom` is dropped. Cancel-safe.
pub(super) async fn follow(
    name: Arc<str>,
    known: Arc<Mutex<Name>>,
    mut whom: watch::Receiver<Arc<dyn Ask>>,
    mut dice: Dice,
    answered: impl Fn(bool),
) {
    loop {
        let asked = whom.borrow_and_update().clone();
        let answer = asked.ask(&name).await;
        let now = clock::now();
        let noted = known.lock().note(answer, now);
        match noted.alarm {
            Some(name::Alarm::Began(fault)) => tracing::warn!(
                name = &*name,
                reason = fault.code(),
                step = "upstream",
                "a target's name cannot be resolved, its last addresses stay in use: {fault}"
            ),
            Some(name::Alarm::Ended) => {
                tracing::info!(
                    name = &*name,
                    step = "upstream",
                    "a target's name can be resolved again"
                );
            }
            None => {}
        }
        if noted.is_moved {
            let addresses = known.lock().addresses();
            tracing::info!(
                name = &*name,
                ?addresses,
                step = "upstream",
                "a target's name has other addresses"
            );
        }
        answered(noted.is_moved);
        tokio::select! {
            () = sleep(name::scattered(noted.again, &mut dice)) => {}
            changed = whom.changed() => if changed.is_err() {
                return;
            }
        }
    }
}

/// A target's name, as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameView {
    /// The name.
    pub name: String,
    /// The addresses in use.
    pub addresses: Vec<IpAddr>,
    /// Why they cannot be renewed, and for how long that has been so.
    pub fault: Option<(DnsFault, Duration)>,
}

impl NameView {
    pub(super) fn of(name: &str, known: &Name, now: Instant) -> Self {
        let fault = known.fault();
        Self {
            name: name.to_owned(),
            addresses: known.addresses(),
            fault: fault.map(|(fault, since)| (fault, now.saturating_duration_since(since))),
        }
    }
}

#[cfg(test)]
mod tests;
