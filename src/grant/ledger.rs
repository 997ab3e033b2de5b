//! What is counted and timed about the grants: everything that only a change needs, behind one short lock.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;

use super::Grant;
use super::token::Digest;
use crate::types::{DesktopId, SessionId, UserName};

/// Counts, deadlines and the tokens of ended grants.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) users: HashMap<UserName, Vec<SessionId>>,
    pub(super) clients: HashMap<IpAddr, Vec<SessionId>>,
    pub(super) deadlines: BTreeSet<(Instant, SessionId)>,
    ended: VecDeque<Digest>,
}

impl Ledger {
    /// How many tokens of ended grants are remembered.
    pub(super) const REMEMBERED: usize = 32_768;

    pub(super) fn enter(&mut self, grant: &Grant) {
        self.users.entry(grant.user.clone()).or_default().push(grant.id);
        self.clients.entry(grant.client).or_default().push(grant.id);
    }

    /// Arms `grant` for the next look at it.
    pub(super) fn arm(&mut self, grant: &Grant, at: Instant) {
        grant.armed.store(grant.offset(at), Ordering::Relaxed);
        self.deadlines.insert((armed_at(grant), grant.id));
    }

    /// Takes out at most `most` grants that are due for a look.
    pub(super) fn take_due(&mut self, now: Instant, most: usize) -> Vec<SessionId> {
        let mut due = Vec::new();
        while due.len() < most {
            match self.deadlines.first() {
                Some(&(at, id)) if at <= now => {
                    self.deadlines.pop_first();
                    due.push(id);
                }
                Some(_) | None => break,
            }
        }
        due
    }

    pub(super) fn leave(&mut self, grant: &Grant) {
        self.deadlines.remove(&(armed_at(grant), grant.id));
        strike(&mut self.users, &grant.user, grant.id);
        strike(&mut self.clients, &grant.client, grant.id);
    }

    /// Remembers a token of an ended grant; gives back the one to be forgotten for it.
    pub(super) fn remember(&mut self, digest: Digest) -> Option<Digest> {
        self.ended.push_back(digest);
        if self.ended.len() > Self::REMEMBERED {
            self.ended.pop_front()
        } else {
            None
        }
    }

    /// How many tokens of ended grants are remembered just now.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.ended.len()
    }
}

/// Takes a session out of the list of `whose`, and the list with its last one.
fn strike<K: Eq + Hash>(lists: &mut HashMap<K, Vec<SessionId>>, whose: &K, id: SessionId) {
    if let Some(sessions) = lists.get_mut(whose) {
        sessions.retain(|&other| other != id);
        if sessions.is_empty() {
            lists.remove(whose);
        }
    }
}

fn armed_at(grant: &Grant) -> Instant {
    grant.at(grant.armed.load(Ordering::Relaxed))
}

/// How many sessions are on each desktop.
#[derive(Debug, Default)]
pub(super) struct Occupancy(Mutex<HashMap<DesktopId, usize>>);

impl Occupancy {
    pub(super) fn enter(&self, desktop: &DesktopId, max: Option<usize>) -> bool {
        let mut desktops = self.0.lock();
        let sessions = desktops.get(desktop).copied().unwrap_or(0);
        if max.is_some_and(|max| sessions >= max) {
            return false;
        }
        desktops.insert(desktop.clone(), sessions + 1);
        true
    }

    pub(super) fn leave(&self, desktop: &DesktopId) {
        let mut desktops = self.0.lock();
        match desktops.get_mut(desktop) {
            Some(sessions) if *sessions > 1 => *sessions -= 1,
            Some(_) => {
                desktops.remove(desktop);
            }
            None => debug_assert!(false, "left a desktop that was not entered"),
        }
    }

    pub(super) fn sessions(&self, desktop: &DesktopId) -> usize {
        self.0.lock().get(desktop).copied().unwrap_or(0)
    }
}

#[cfg(test)]
impl Occupancy {
    /// Panics unless the counts are exactly `expected`.
    pub(super) fn check(&self, expected: &HashMap<DesktopId, usize>) {
        assert_eq!(*self.0.lock(), *expected, "sessions on each desktop");
    }
}
