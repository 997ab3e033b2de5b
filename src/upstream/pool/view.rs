//! What an operator sees of a pool.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Condition, Pool, TargetId};
use crate::upstream::probe::ProbeResult;

/// A pool as one backend speaks to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Its name.
    pub pool: String,
    /// The backend's name; `None` is the default one.
    pub backend: Option<String>,
    /// Whether so few targets are healthy that all are taken to be.
    pub is_panic: bool,
    /// The targets, in the order of the configuration; behind them those that are being drained.
    pub targets: Vec<TargetView>,
}

/// A target at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetView {
    /// Which.
    pub id: TargetId,
    /// As configured.
    pub host: String,
    /// Where.
    pub address: SocketAddr,
    /// What its probe says.
    pub condition: Condition,
    /// For how long it has said so.
    pub for_: Duration,
    /// Its weight.
    pub weight: u16,
    /// Requests that it has.
    pub in_flight: u32,
    /// How long it will still be left out for its answers to users.
    pub ejected: Option<Duration>,
    /// How long it will still be there for clients that stay with it.
    pub draining: Option<Duration>,
    /// The last results of its probe, the newest first.
    pub results: Vec<ProbeResult>,
}

/// How many targets of a pool there are of each kind; those that are being drained are not among them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Census {
    /// The pool's name.
    pub pool: String,
    /// The backend's name; `None` is the default one.
    pub backend: Option<String>,
    /// By condition.
    pub by_condition: [(Condition, u64); 3],
    /// Left out for their answers to users.
    pub ejected: u64,
}

impl Pool {
    /// How many targets it has of each kind at `now`.
    pub(in crate::upstream) fn census(&self, now: Instant) -> Census {
        let core = self.core.lock();
        let mut by_condition = [Condition::Healthy, Condition::Unhealthy, Condition::Unknown].map(|kind| (kind, 0));
        let mut ejected = 0;
        for entry in core.entries.iter().filter(|entry| entry.leaving.is_none()) {
            let condition = entry.member.check.condition();
            for (_, count) in by_condition.iter_mut().filter(|(kind, _)| *kind == condition) {
                *count += 1;
            }
            ejected += u64::from(entry.ejections.out_until(now).is_some());
        }
        Census {
            pool: self.name().to_owned(),
            backend: self.backend().map(str::to_owned),
            by_condition,
            ejected,
        }
    }

    /// How it stands at `now`.
    pub fn view(&self, now: Instant) -> PoolView {
        self.keep_up(now);
        let core = self.core.lock();
        let targets = core.entries.iter().map(|entry| {
            let member = &entry.member;
            let known = member.check.known();
            TargetView {
                id: member.id.clone(),
                host: member.host.to_string(),
                address: member.address,
                condition: known.condition(),
                for_: now.saturating_duration_since(known.since()),
                weight: entry.weight,
                in_flight: member.in_flight.load(Ordering::Relaxed),
                ejected: entry.ejections.out_until(now).map(|until| until.duration_since(now)),
                draining: entry.leaving.map(|leaving| leaving.at.saturating_duration_since(now)),
                results: known.results().cloned().collect(),
            }
        });
        PoolView {
            pool: self.name().to_owned(),
            backend: self.backend().map(str::to_owned),
            is_panic: self.round.load().is_panic,
            targets: targets.collect(),
        }
    }
}
