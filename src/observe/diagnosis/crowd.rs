//! How many users stand behind one address.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::types::UserName;

/// The sign-ins of the last while, by address.
#[derive(Debug, Default)]
pub(super) struct Crowds {
    latest: VecDeque<(Instant, IpAddr, Mark)>,
    by_address: HashMap<IpAddr, HashMap<Mark, usize>>,
}

/// A user without the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mark(u64);

impl Crowds {
    /// The most sign-ins that are remembered.
    pub(super) const MOST: usize = 8192;
    /// How long each is.
    pub(super) const WINDOW: Duration = Duration::from_secs(15 * 60);
    /// As many users of one address are no crowd.
    pub(super) const USUAL: usize = 20;

    /// Notes a sign-in; how many users there are at that address, if they are a crowd.
    pub(super) fn enter(&mut self, user: &UserName, client: IpAddr, now: Instant) -> Option<usize> {
        let mut hasher = DefaultHasher::new();
        user.hash(&mut hasher);
        let mark = Mark(hasher.finish());
        while self.latest.len() >= Self::MOST || self.latest.front().is_some_and(|(at, ..)| *at + Self::WINDOW < now) {
            self.leave();
        }
        self.latest.push_back((now, client, mark));
        let users = self.by_address.entry(client).or_default();
        *users.entry(mark).or_default() += 1;
        (users.len() > Self::USUAL).then_some(users.len())
    }

    fn leave(&mut self) {
        let Some((_, client, mark)) = self.latest.pop_front() else {
            return;
        };
        let Some(users) = self.by_address.get_mut(&client) else {
            return;
        };
        if let Some(times) = users.get_mut(&mark) {
            *times -= 1;
            if *times == 0 {
                users.remove(&mark);
            }
        }
        if users.is_empty() {
            self.by_address.remove(&client);
        }
    }

    #[cfg(test)]
    pub(super) fn check_invariants(&self) {
        assert!(self.latest.len() <= Self::MOST);
        let counted: usize = self.by_address.values().flat_map(HashMap::values).sum();
        assert_eq!(counted, self.latest.len(), "each sign-in is counted once");
        assert!(self.by_address.values().all(|users| !users.is_empty()));
    }
}
