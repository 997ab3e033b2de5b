//! What pools share of a target's health.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::ProbeResult;
use super::health::{Health, Noted};
use crate::upstream::pool::{Condition, Pool};

/// The health of a target as one backend speaks to it: one for all pools that have it. Reading it takes no lock.
#[derive(Debug)]
pub(in crate::upstream) struct Check {
    health: Mutex<Health>,
    condition: AtomicU8,
    epoch: Instant,
    /// When it became healthy; times are in nanoseconds after the epoch, from 1 on, and 0 is never.
    healthy_since: AtomicU64,
    /// When a user last had a good answer of it, give or take [`OFTEN_ENOUGH`].
    answered: AtomicU64,
    pools: Mutex<Vec<Weak<Pool>>>,
}

impl Check {
    /// That of a target of which nothing is known.
    pub(in crate::upstream) fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self {
            health: Mutex::new(Health::new(now)),
            condition: AtomicU8::new(code_of(Condition::Unknown)),
            epoch: now,
            healthy_since: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            pools: Mutex::default(),
        })
    }

    /// What is known.
    pub(in crate::upstream) fn condition(&self) -> Condition {
        match self.condition.load(Ordering::Acquire) {
            0 => Condition::Unknown,
            1 => Condition::Healthy,
            _ => Condition::Unhealthy,
        }
    }

    /// Since when it is healthy, if it is.
    pub(in crate::upstream) fn healthy_since(&self) -> Option<Instant> {
        let is_healthy = self.condition() == Condition::Healthy;
        is_healthy.then(|| self.time(&self.healthy_since)).flatten()
    }

    /// All that is known.
    pub(in crate::upstream) fn known(&self) -> Health {
        self.health.lock().clone()
    }

    /// A user had a good answer of it.
    pub(in crate::upstream) fn answered(&self, now: Instant) {
        let last = self.time(&self.answered);
        if last.is_none_or(|last| now.saturating_duration_since(last) >= OFTEN_ENOUGH) {
            self.answered.store(self.nanos(now), Ordering::Relaxed);
        }
    }

    /// Whether a user had a good answer of it since `then`.
    pub(in crate::upstream) fn has_answered_since(&self, then: Instant) -> bool {
        self.time(&self.answered).is_some_and(|answered| answered >= then)
    }

    /// Takes in the result of a probe, and tells the pools if the condition is another; says whether it is.
    pub(in crate::upstream) fn note(&self, result: ProbeResult, threshold: u32, now: Instant) -> Noted {
        let mut health = self.health.lock();
        let noted = health.note(result, threshold, now);
        if noted == Noted::Changed {
            self.healthy_since.store(self.nanos(now), Ordering::Relaxed);
            self.condition.store(code_of(health.condition()), Ordering::Release);
            self.pools.lock().retain(|pool| {
                let pool = pool.upgrade();
                pool.is_some_and(|pool| {
                    pool.look_again();
                    true
                })
            });
        }
        noted
    }

    /// From now on `pool` is told when the condition changes.
    pub(in crate::upstream) fn tell(&self, pool: &Weak<Pool>) {
        let mut pools = self.pools.lock();
        if !pools.iter().any(|known| known.ptr_eq(pool)) {
            pools.push(pool.clone());
        }
    }

    fn nanos(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.epoch).as_nanos();
        u64::try_from(since).unwrap_or(u64::MAX - 1).saturating_add(1)
    }

    fn time(&self, of: &AtomicU64) -> Option<Instant> {
        let nanos = of.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.epoch + Duration::from_nanos(nanos))
    }
}

fn code_of(condition: Condition) -> u8 {
    match condition {
        Condition::Unknown => 0,
        Condition::Healthy => 1,
        Condition::Unhealthy => 2,
    }
}

/// What is noted for each request need not be written for each.
const OFTEN_ENOUGH: Duration = Duration::from_millis(100);
