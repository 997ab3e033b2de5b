//! What holds of a store whenever nothing is in the middle of a change.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use super::{Entry, Store};
use crate::grant::Grant;
use crate::types::DesktopId;

impl Store {
    /// Panics with words if an invariant does not hold. For tests, between operations.
    pub(crate) fn check_invariants(&self) {
        let grants = self.list();
        assert_eq!(grants.len(), self.len(), "the count is that of the map");
        let mut desktops: HashMap<DesktopId, usize> = HashMap::new();
        let mut issued = 0;
        for grant in &grants {
            assert!(grant.revocation().is_none(), "{} ended but is listed", grant.id());
            self.check_ledger(grant);
            self.check_tokens(grant);
            issued += grant.tokens.lock().issued.len();
            for desktop in grant
                .routes()
                .iter()
                .map(|route| route.desktop().clone())
                .collect::<std::collections::HashSet<_>>()
            {
                *desktops.entry(desktop).or_default() += 1;
            }
        }
        {
            let ledger = self.ledger.lock();
            assert_eq!(
                ledger.deadlines.len(),
                grants.len(),
                "every live grant is armed once, and nothing else"
            );
            assert_eq!(
                ledger.users.values().map(Vec::len).sum::<usize>(),
                grants.len(),
                "users' counts make the total"
            );
            assert!(
                ledger.users.values().all(|sessions| !sessions.is_empty()),
                "no user is kept without a session"
            );
            assert_eq!(
                ledger.clients.values().map(Vec::len).sum::<usize>(),
                grants.len(),
                "addresses' counts make the total"
            );
        }
        self.check_entries(issued);
        self.occupancy.check(&desktops);
    }

    fn check_ledger(&self, grant: &Grant) {
        let ledger = self.ledger.lock();
        let armed = grant.at(grant.armed.load(Ordering::Relaxed));
        assert!(
            ledger.deadlines.contains(&(armed, grant.id)),
            "{} is not armed where it says",
            grant.id
        );
        assert!(armed <= grant.deadline().0, "{} is armed after its end", grant.id);
        let sessions = ledger
            .users
            .get(&grant.user)
            .map_or(0, |ids| ids.iter().filter(|&&id| id == grant.id).count());
        assert_eq!(sessions, 1, "{} is counted once for its user", grant.id);
    }

    fn check_tokens(&self, grant: &Grant) {
        let tokens = grant.tokens.lock();
        let entries = self.tokens.pin();
        for token in &tokens.issued {
            let Some(Entry::Live {
                grant: owner,
                scope,
                generation,
                used,
                ..
            }) = entries.get(&token.digest)
            else {
                panic!("a token of {} is not in the map", grant.id);
            };
            assert_eq!(
                (owner.id, *scope, *generation),
                (grant.id, token.scope, token.generation)
            );
            assert_eq!(used.load(Ordering::Relaxed), token.used);
            let same: Vec<_> = tokens
                .issued
                .iter()
                .filter(|other| other.scope == token.scope)
                .collect();
            match same[..] {
                [_] => {}
                [older, newer] => {
                    assert!(
                        older.generation < newer.generation && older.used && !newer.used,
                        "only one in use is kept"
                    );
                }
                _ => panic!("{} has {} tokens of one scope", grant.id, same.len()),
            }
        }
    }

    fn check_entries(&self, issued: usize) {
        let entries = self.tokens.pin();
        let live = entries
            .values()
            .filter(|entry| matches!(entry, Entry::Live { .. }))
            .count();
        assert_eq!(live, issued, "every live token is known to its grant");
        assert_eq!(
            entries.len() - live,
            self.ledger.lock().remembered(),
            "every ended token will be forgotten"
        );
    }
}
