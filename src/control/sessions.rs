//! The cookie sessions of the control channel: who is signing in, and who has signed in (protocol sheet 1.3).
//!
//! A session begins with the first reply and is known by its cookie alone, of which only a hash is kept. The cookie changes
//! at sign-in, so that one planted before it is worth nothing after it. What has not signed in is bounded in number, in
//! all and by source, and in time; what has is bounded by its grant.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use zeroize::Zeroizing;

use crate::authenticate::Chain;
use crate::grant::{Grant, Randomness as _, SystemRandomness};
use crate::types::{Octets32, SessionId, source_of};

/// All cookie sessions of this node.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    pub(super) entries: papaya::HashMap<Key, Arc<Session>>,
    by_grant: papaya::HashMap<SessionId, Key>,
    pending: Mutex<Pending>,
}

impl Sessions {
    /// The session of that cookie.
    pub(super) fn find(&self, cookie: &str) -> Option<Arc<Session>> {
        self.entries.pin().get(&Key::of(cookie)).cloned()
    }

    /// Begins a session for a client at `client`, which must sign in by `deadline`.
    ///
    /// # Errors
    ///
    /// [`Full`] if there are `limit` sign-ins already, or the source has its share of them.
    pub(super) fn begin(
        &self,
        client: IpAddr,
        chain: Chain,
        deadline: Instant,
        limit: usize,
    ) -> Result<(Arc<Session>, Cookie), Full> {
        let source = source_of(client);
        let cookie = Cookie::draw();
        let key = Key::of(&cookie.0);
        self.pending.lock().enter(key, source, deadline, limit)?;
        let session = Arc::new(Session::new(key, State::SigningIn { chain }));
        self.entries.pin().insert(key, session.clone());
        Ok((session, cookie))
    }

    /// Notes that a session has signed in, and gives it its new cookie.
    pub(super) fn signed_in(&self, session: &Arc<Session>, grant: &Grant) -> Cookie {
        let cookie = Cookie::draw();
        let key = Key::of(&cookie.0);
        let former = std::mem::replace(&mut *session.key.lock(), key);
        let entries = self.entries.pin();
        entries.insert(key, session.clone());
        entries.remove(&former);
        self.by_grant.pin().insert(grant.id(), key);
        self.pending.lock().leave(&former);
        cookie
    }

    /// Forgets the session of a grant that has ended.
    pub(super) fn forget_grant(&self, grant: SessionId) {
        if let Some(key) = self.by_grant.pin().remove(&grant) {
            self.entries.pin().remove(key);
        }
    }

    /// Forgets the sign-ins whose time is over at `now`; how many there were. Costs only what is due.
    pub(super) fn sweep(&self, now: Instant) -> usize {
        let due = self.pending.lock().take_due(now);
        let entries = self.entries.pin();
        due.iter().filter(|key| entries.remove(*key).is_some()).count()
    }

    /// How long a sign-in may still take; `None` if it is none.
    pub(super) fn time_left(&self, key: &Key, now: Instant) -> Option<Duration> {
        let pending = self.pending.lock();
        let mut deadlines = pending.deadlines.iter().rev();
        let (deadline, _) = deadlines.find(|(_, other)| other == key)?;
        Some(deadline.saturating_duration_since(now))
    }

    /// Takes over a sign-in of another process. It was let in there: no limit holds it up.
    pub(super) fn adopt_sign_in(&self, cookie: &Octets32, chain: Chain, deadline: Instant) {
        let key = Key(cookie.0);
        let source = source_of(chain.client());
        // Without a limit there is always a place.
        let _ = self.pending.lock().enter(key, source, deadline, usize::MAX);
        self.entries
            .pin()
            .insert(key, Arc::new(Session::new(key, State::SigningIn { chain })));
    }

    /// Takes over a session of another process that has signed in.
    pub(super) fn adopt_signed_in(&self, cookie: &Octets32, grant: Arc<Grant>) {
        let key = Key(cookie.0);
        self.by_grant.pin().insert(grant.id(), key);
        self.entries
            .pin()
            .insert(key, Arc::new(Session::new(key, State::SignedIn { grant })));
    }

    /// What is known of the cookie of a grant's session.
    pub(super) fn cookie_of(&self, grant: SessionId) -> Option<Octets32> {
        self.by_grant.pin().get(&grant).map(|key| key.octets())
    }

    /// Sign-ins that are in the middle.
    pub(super) fn pending(&self) -> usize {
        self.pending.lock().sources_of.len()
    }
}

/// One client's cookie session.
#[derive(Debug)]
pub(super) struct Session {
    key: Mutex<Key>,
    /// Held while one envelope is answered, across its waits: envelopes of one client are answered one after another.
    pub(super) state: tokio::sync::Mutex<State>,
}

impl Session {
    fn new(key: Key, state: State) -> Self {
        Self {
            key: Mutex::new(key),
            state: tokio::sync::Mutex::new(state),
        }
    }
}

/// How far a session has come.
#[derive(Debug)]
pub(super) enum State {
    /// Screens are due.
    SigningIn {
        /// Which, and how many attempts are left.
        chain: Chain,
    },
    /// The user is who they say.
    SignedIn {
        /// What that permits.
        grant: Arc<Grant>,
    },
}

/// The node has as many sign-ins in the middle as it may have, in all or from one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The value of a session cookie: 192 random bits.
pub(super) struct Cookie(Zeroizing<String>);

impl Cookie {
    fn draw() -> Self {
        let mut bits = Zeroizing::new([0_u8; 24]);
        SystemRandomness.fill(&mut *bits);
        Self(Zeroizing::new(URL_SAFE_NO_PAD.encode(*bits)))
    }

    /// The value, to be sent to the client and nowhere else.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Cookie {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cookie(…)")
    }
}

/// What is kept of a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key([u8; 32]);

impl Key {
    pub(super) fn octets(self) -> Octets32 {
        Octets32(self.0)
    }

    fn of(cookie: &str) -> Self {
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, cookie.as_bytes()).as_ref());
        Self(key)
    }
}

/// Sign-ins in the middle, in the order in which their time runs out.
#[derive(Debug, Default)]
struct Pending {
    deadlines: VecDeque<(Instant, Key)>,
    sources_of: HashMap<Key, IpAddr>,
    by_source: HashMap<IpAddr, usize>,
}

impl Pending {
    fn enter(&mut self, key: Key, source: IpAddr, deadline: Instant, limit: usize) -> Result<(), Full> {
        let of_source = self.by_source.get(&source).copied().unwrap_or_default();
        let share = (limit / SOURCE_SHARE).max(1);
        if self.sources_of.len() >= limit || of_source >= share {
            return Err(Full);
        }
        if self.deadlines.len() > 2 * self.sources_of.len() + FEW {
            self.deadlines.retain(|(_, key)| self.sources_of.contains_key(key));
        }
        self.deadlines.push_back((deadline, key));
        self.sources_of.insert(key, source);
        self.by_source.insert(source, of_source + 1);
        Ok(())
    }

    fn leave(&mut self, key: &Key) {
        let Some(source) = self.sources_of.remove(key) else {
            return;
        };
        if let Some(count) = self.by_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&source);
            }
        }
    }

    /// Takes out what is due. A reload that shortens the time lets an older entry go no later than it would have.
    fn take_due(&mut self, now: Instant) -> Vec<Key> {
        let mut due = Vec::new();
        while let Some(&(deadline, key)) = self.deadlines.front() {
            let over = !self.sources_of.contains_key(&key);
            if deadline > now && !over {
                break;
            }
            self.deadlines.pop_front();
            self.leave(&key);
            if !over {
                due.push(key);
            }
        }
        due
    }
}

/// Entries that have left stay in the queue until they are due or outnumber the others by more than this.
const FEW: usize = 64;

/// One source may hold this fraction of the sign-ins in the middle.
const SOURCE_SHARE: usize = 4;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_source_gets_its_share_and_others_are_still_served() {
        let (mut pending, now) = (Pending::default(), crate::clock::now());
        let greedy = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
        let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
        for n in 0..2 {
            pending.enter(key(n), greedy, now, 8).unwrap();
        }
        assert_eq!(pending.enter(key(9), greedy, now, 8), Err(Full));
        assert_eq!(pending.enter(key(9), other, now, 8), Ok(()));
        pending.leave(&key(0));
        assert_eq!(pending.enter(key(0), greedy, now, 8), Ok(()));
    }

    #[test]
    fn what_is_due_leaves_and_gives_its_place_back() {
        let (mut pending, now) = (Pending::default(), crate::clock::now());
        let client = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let second = Duration::from_secs(1);
        for n in 0..3 {
            pending.enter(key(n), client, now + second * u32::from(n), 100).unwrap();
        }
        pending.leave(&key(1));
        assert_eq!(pending.take_due(now + second), [key(0)]);
        assert_eq!(pending.sources_of.len(), 1);
        assert_eq!(pending.take_due(now + second * 9), [key(2)]);
        assert!(pending.by_source.is_empty());
    }

    #[test]
    fn clients_that_come_and_go_leave_no_trail() {
        let (mut pending, now) = (Pending::default(), crate::clock::now());
        for _ in 0..10_000 {
            pending.enter(key(1), IpAddr::V4(Ipv4Addr::LOCALHOST), now, 8).unwrap();
            pending.leave(&key(1));
        }
        assert!(pending.deadlines.len() <= FEW + 1);
    }

    fn key(n: u8) -> Key {
        Key([n; 32])
    }
}
