//! How grants end: whoever keeps them is told first, then everything that holds them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tokio::task::spawn_blocking;
use zeroize::Zeroize;

use super::{Entry, Store};
use crate::fault::CloseReason;
use crate::grant::Grant;
use crate::types::{SessionId, UserName};

/// Whoever has to know that a grant ends before it does.
pub trait HearsOfEnds: Send + Sync {
    /// Takes note of grants that end now, in a way that the death of this process does not undo. They end when it
    /// returns. May block for as long as a disk takes. One can be told twice.
    fn ended(&self, ends: &[(SessionId, CloseReason)]);
}

impl Store {
    /// Has `listener` told of every grant that ends from now on, before anybody else learns of it, other listeners too.
    pub fn tell_first_of_ends(&self, listener: &Arc<dyn HearsOfEnds>) {
        self.listeners.rcu(|known| {
            let mut all = vec![listener.clone()];
            all.extend_from_slice(known);
            all
        });
    }

    /// Has `listener` told of every grant that ends from now on, before anybody else learns of it.
    pub fn tell_of_ends(&self, listener: &Arc<dyn HearsOfEnds>) {
        self.listeners.rcu(|known| {
            let mut all = Vec::clone(known);
            all.push(listener.clone());
            all
        });
    }

    /// Takes back [`tell_of_ends`](Self::tell_of_ends).
    pub fn tell_no_more(&self, listener: &Arc<dyn HearsOfEnds>) {
        self.listeners.rcu(|known| {
            let others = known.iter().filter(|other| !Arc::ptr_eq(other, listener));
            others.cloned().collect::<Vec<_>>()
        });
    }

    /// Ends the grant `id`. `false` if there is none.
    pub fn revoke(&self, id: SessionId, reason: CloseReason) -> bool {
        self.get(id)
            .is_some_and(|grant| !self.end(vec![(grant, reason)]).is_empty())
    }

    /// Ends the grant `id` on a thread that may wait: whoever keeps grants writes the end to a disk first. `false` if there is
    /// none.
    ///
    /// Cancel-safe in that the grant ends also if nobody waits any more.
    pub async fn revoke_aside(self: &Arc<Self>, id: SessionId, reason: CloseReason) -> bool {
        let store = self.clone();
        let revoked = spawn_blocking(move || store.revoke(id, reason)).await;
        debug_assert!(revoked.is_ok(), "an end does not panic");
        revoked.unwrap_or(false)
    }

    /// Ends grants that have ended in another process of the node and were counted there; those that it has ended.
    pub fn follow(&self, ends: impl Iterator<Item = (SessionId, CloseReason)>) -> Vec<(Arc<Grant>, CloseReason)> {
        let known = ends.filter_map(|(id, reason)| Some((self.get(id)?, reason)));
        self.end_uncounted(known.collect())
    }

    /// Ends all grants of `user`; how many there were.
    pub fn revoke_user(&self, user: &UserName, reason: CloseReason) -> usize {
        self.revoke_together(self.by_user(user), reason).len()
    }

    /// Ends all grants; which there were.
    pub fn revoke_all(&self, reason: CloseReason) -> Vec<Arc<Grant>> {
        self.revoke_together(self.list(), reason)
    }

    /// Ends these grants at the cost of one end to whoever keeps them; those that it has ended.
    pub fn revoke_together(&self, grants: Vec<Arc<Grant>>, reason: CloseReason) -> Vec<Arc<Grant>> {
        let ends = grants.into_iter().map(|grant| (grant, reason)).collect();
        self.end(ends).into_iter().map(|(grant, _)| grant).collect()
    }

    /// Ends the grants whose time is over at `now`, and says which and why. Costs only what is due.
    pub fn sweep(&self, now: Instant) -> Vec<(Arc<Grant>, CloseReason)> {
        let mut ended = Vec::new();
        loop {
            let due = self.ledger.lock().take_due(now, SWEEP_BATCH);
            if due.is_empty() {
                return ended;
            }
            let mut over = Vec::new();
            for grant in due.into_iter().filter_map(|id| self.get(id)) {
                match grant.overdue(now) {
                    Some(reason) => over.push((grant, reason)),
                    None => self.arm_again(&grant, now),
                }
            }
            ended.extend(self.end(over));
        }
    }

    /// Ends grants, each once; those that it has ended.
    fn end(&self, ends: Vec<(Arc<Grant>, CloseReason)>) -> Vec<(Arc<Grant>, CloseReason)> {
        let ended = self.end_uncounted(ends);
        for (_, reason) in &ended {
            self.watch.session_ended(*reason);
        }
        ended
    }

    /// The same without counting them. Whoever keeps them is told of all at once, and first: if this process ends in the
    /// middle, it has ended more than anybody knows of, never less.
    fn end_uncounted(&self, mut ends: Vec<(Arc<Grant>, CloseReason)>) -> Vec<(Arc<Grant>, CloseReason)> {
        ends.retain(|(grant, _)| grant.revocation().is_none());
        if ends.is_empty() {
            return ends;
        }
        let told: Vec<_> = ends.iter().map(|(grant, reason)| (grant.id, *reason)).collect();
        let tell = |listeners: &[Arc<dyn HearsOfEnds>]| listeners.iter().for_each(|listener| listener.ended(&told));
        let listeners = self.listeners.load_full();
        tell(&listeners);
        ends.retain(|(grant, reason)| grant.ended.set(*reason).is_ok());
        let since = self.listeners.load_full();
        if !Arc::ptr_eq(&listeners, &since) {
            // One that came in between may have found the grants alive.
            tell(&since);
        }
        for (grant, reason) in &ends {
            self.part_with(grant, *reason);
        }
        ends
    }

    /// Everything that holds a grant that has ended learns the reason; its tokens are remembered as ended.
    fn part_with(&self, grant: &Grant, reason: CloseReason) {
        let issued = {
            let mut tokens = grant.tokens.lock();
            tokens.secret.zeroize();
            std::mem::take(&mut tokens.issued)
        };
        for token in issued {
            self.remember(
                token.digest,
                Entry::Ended {
                    session: grant.id,
                    end: reason,
                },
            );
        }
        let desktops: HashSet<_> = std::mem::take(&mut grant.routes.lock().open)
            .iter()
            .map(|route| route.desktop().clone())
            .collect();
        for desktop in &desktops {
            self.occupancy.leave(desktop);
        }
        {
            let sessions = self.sessions.pin();
            let mut ledger = self.ledger.lock();
            ledger.leave(grant);
            sessions.remove(&grant.id);
        }
        grant.revoked.cancel();
        self.watch.session_gone(grant.id);
    }

    fn arm_again(&self, grant: &Grant, now: Instant) {
        let mut ledger = self.ledger.lock();
        // A grant that ends after this look is taken out by its end, which needs the same lock.
        if grant.revocation().is_none() {
            ledger.arm(grant, grant.next_look(now));
        }
    }
}

/// How many grants are looked at under one hold of the ledger's lock.
const SWEEP_BATCH: usize = 256;
