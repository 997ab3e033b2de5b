//! The store of live grants.
//!
//! Readers (admission, look-up) go through two lock-free maps and never wait. Changes (mint, end, re-arm) take the ledger's
//! lock for a moment. Lock order: a grant's tokens or routes, then the ledger; the two of one grant are never
//! held together.

mod ends;
#[cfg(test)]
mod invariants;
pub(super) mod snapshot;

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

pub use self::ends::HearsOfEnds;
use super::admission::{Denied, Granted, Place, Scope, Secondary};
use super::changes::Changes;
use super::ledger::{Ledger, Occupancy};
use super::random::{Randomness, SystemRandomness};
use super::token::{Digest, GrantSecret, Issued, Owner, Presented, Recognition, Token, TokenSecret};
use super::{Grant, LONGEST, Route};
use crate::authenticate::Authenticated;
use crate::config;
use crate::fault::{CloseReason, Refusal};
use crate::observe::Watch;
use crate::types::{DesktopId, NodeName, Secret, SessionId, UserName};

/// The live grants of this node.
pub struct Store {
    limits: ArcSwap<config::Session>,
    recognition: Recognition,
    random: Box<dyn Randomness>,
    sessions: papaya::HashMap<SessionId, Arc<Grant>, BuildHasherDefault<Uniform>>,
    tokens: papaya::HashMap<Digest, Entry, BuildHasherDefault<Uniform>>,
    ledger: Mutex<Ledger>,
    occupancy: Arc<Occupancy>,
    changes: Arc<Changes>,
    watch: Arc<Watch>,
    /// Who keeps the same grants: a file, other processes of this node.
    listeners: ArcSwap<Vec<Arc<dyn HearsOfEnds>>>,
}

impl Store {
    /// The most sessions of one address among which an address is looked for.
    pub const CROWD: usize = 64;

    /// An empty store of the node `label`, whose tokens sisters with the same `recognition` key can attribute.
    pub fn new(label: NodeName, recognition: Option<&Secret>, limits: config::Session) -> Self {
        Self::with_randomness(label, recognition, limits, Box::new(SystemRandomness))
    }

    /// The same with the given randomness. Outside tests it must be unpredictable.
    pub fn with_randomness(
        label: NodeName,
        recognition: Option<&Secret>,
        limits: config::Session,
        random: Box<dyn Randomness>,
    ) -> Self {
        Self {
            limits: ArcSwap::from_pointee(limits),
            recognition: Recognition::new(label, recognition, &*random),
            random,
            sessions: papaya::HashMap::default(),
            tokens: papaya::HashMap::default(),
            ledger: Mutex::default(),
            occupancy: Arc::default(),
            changes: Arc::default(),
            watch: Arc::default(),
            listeners: ArcSwap::default(),
        }
    }

    /// What is noted of admissions, refusals and ends. Refusals are noted by whoever tells them to the log.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// What has changed of the grants.
    pub fn changes(&self) -> &Arc<Changes> {
        &self.changes
    }

    /// Puts other limits in force. Counts (total, per user, connections) hold at once for whatever comes next; live
    /// grants keep their times, announced tokens their window.
    pub fn set_limits(&self, limits: config::Session) {
        self.limits.store(Arc::new(limits));
    }

    /// Mints the grant of a user who has signed in.
    ///
    /// # Errors
    /// The node or the user has as many sessions as it may have.
    pub fn mint(&self, who: Authenticated, now: Instant) -> Result<Arc<Grant>, MintRefusal> {
        let limits = self.limits.load();
        let secret = GrantSecret::draw(&*self.random);
        let sessions = self.sessions.pin();
        let mut ledger = self.ledger.lock();
        if sessions.len() >= limits.max {
            return Err(MintRefusal::NodeFull);
        }
        if ledger.users.get(who.user()).map_or(0, Vec::len) >= limits.per_user {
            return Err(MintRefusal::UserFull);
        }
        let mut id = self.draw_id();
        while sessions.contains_key(&id) {
            id = self.draw_id();
        }
        let grant = Arc::new(Grant::new(
            id,
            who,
            secret,
            &limits,
            self.occupancy.clone(),
            self.changes.clone(),
            now,
        ));
        ledger.enter(&grant);
        ledger.arm(&grant, grant.next_look(now));
        sessions.insert(id, grant.clone());
        drop(ledger);
        grant.note_change();
        self.watch.session_begun();
        Ok(grant)
    }

    /// Issues a token for `secondary`, which must be used first within `session.first_use`.
    ///
    /// An earlier token of the same secondary is void at once if it was never used. One in use stays good for reconnects until
    /// the new one is used. A token of an ended grant is refused with the reason of the end.
    pub fn announce(&self, grant: &Arc<Grant>, secondary: Secondary, now: Instant) -> Token {
        self.issue(grant, Scope { secondary, route: None }, now)
    }

    /// Issues a token for `secondary` over one route only; the tokens of other routes stay as they are.
    pub fn announce_route(&self, grant: &Arc<Grant>, secondary: Secondary, route: &Route, now: Instant) -> Token {
        let route = Some(route.id());
        self.issue(grant, Scope { secondary, route }, now)
    }

    fn issue(&self, grant: &Arc<Grant>, scope: Scope, now: Instant) -> Token {
        let entries = self.tokens.pin();
        let routes: HashSet<_> = grant.routes().iter().map(|route| route.id()).collect();
        let mut tokens = grant.tokens.lock();
        if let Some(end) = grant.revocation() {
            drop(tokens);
            let secret = TokenSecret::draw(&*self.random);
            self.remember(secret.digest(), Entry::Ended { session: grant.id, end });
            return self.recognition.write(&secret);
        }
        tokens.issued.retain(|issued| {
            let leads_somewhere = issued
                .scope
                .route
                .is_none_or(|id| routes.contains(&id) || Some(id) == scope.route);
            let keep = leads_somewhere && (issued.scope != scope || issued.used);
            if !keep {
                entries.remove(&issued.digest);
            }
            keep
        });
        tokens.generation += 1;
        let generation = tokens.generation;
        let secret = tokens.secret.derive(scope.secondary, generation);
        let digest = secret.digest();
        let use_by = now + self.limits.load().first_use.min(LONGEST);
        tokens.issued.reserve_exact(1);
        tokens.issued.push(Issued {
            scope,
            generation,
            digest,
            use_by,
            used: false,
        });
        let used = AtomicBool::new(false);
        entries.insert(
            digest,
            Entry::Live {
                grant: grant.clone(),
                scope,
                generation,
                use_by,
                used,
            },
        );
        drop(tokens);
        grant.note_change();
        let route = scope.route.map(|route| route.0);
        self.watch.announced(grant.id, scope.secondary, route, use_by);
        self.recognition.write(&secret)
    }

    /// Admits a connection of `secondary` that shows the token `text`.
    ///
    /// # Errors
    /// [`Denied`] with exactly one reason. Every readable token costs the same work, whatever the reason.
    pub fn admit(&self, text: &str, secondary: Secondary, now: Instant) -> Result<Granted, Denied> {
        if text.is_empty() {
            return Err(Denied::stray(Refusal::NoToken));
        }
        let Some(presented) = Presented::parse(text) else {
            return Err(Denied::stray(Refusal::Malformed));
        };
        let owner = self.recognition.owner(&presented);
        self.admit_digest(presented.digest(), owner, secondary, now)
    }

    /// Admits a connection of `secondary` that shows its token as the first labels of a host name
    /// ([`Token::host_labels`]). `None`: there is no token in the name.
    pub fn admit_host(&self, name: &str, secondary: Secondary, now: Instant) -> Option<Result<Granted, Denied>> {
        let presented = Presented::in_host(name)?;
        Some(match presented {
            None => Err(Denied::stray(Refusal::Malformed)),
            Some(presented) => {
                let owner = self.recognition.owner(&presented);
                self.admit_digest(presented.digest(), owner, secondary, now)
            }
        })
    }

    fn admit_digest(
        &self,
        digest: Digest,
        owner: Owner,
        secondary: Secondary,
        now: Instant,
    ) -> Result<Granted, Denied> {
        let entries = self.tokens.pin();
        let entry = entries.get(&digest);
        match (owner, entry) {
            (Owner::Sister(owner), _) => Err(Denied::sister(owner)),
            (Owner::Stranger, _) => Err(Denied::stray(Refusal::UnknownToken)),
            (Owner::Own, None) => Err(Denied::forgotten(self.recognition.label().clone())),
            (Owner::Own, Some(Entry::Ended { session, end })) => Err(Denied::ended(*session, *end)),
            (
                Owner::Own,
                Some(Entry::Live {
                    grant,
                    scope,
                    generation,
                    use_by,
                    used,
                }),
            ) => {
                if let Some(end) = grant.revocation().or_else(|| grant.overdue(now)) {
                    return Err(Denied::ended(grant.id, end));
                }
                if scope.secondary != secondary {
                    return Err(Denied::of(grant.id, Refusal::WrongProtocol));
                }
                let route = match scope.route.map(|id| grant.route(id)) {
                    Some(None) => return Err(Denied::of(grant.id, Refusal::Revoked)),
                    Some(route) => route,
                    None => None,
                };
                if !used.load(Ordering::Acquire) && now > *use_by {
                    return Err(Denied::of(grant.id, Refusal::WindowMissed));
                }
                let Some(place) = Place::take(grant, self.limits.load().connections) else {
                    return Err(Denied::of(grant.id, Refusal::FlowLimit));
                };
                if !used.load(Ordering::Acquire) {
                    self.first_use(grant, *scope, *generation, used)?;
                }
                match grant.revocation() {
                    Some(end) => Err(Denied::ended(grant.id, end)),
                    None => {
                        self.watch
                            .admitted(grant.id, secondary, scope.route.map(|route| route.0));
                        Ok(Granted::new(place, secondary, route))
                    }
                }
            }
        }
    }

    /// Admits a connection of `secondary` that shows no token, by the address from which it comes: that of exactly one
    /// live grant to which the secondary was announced for a route (secondary protocols sheet 5.3).
    ///
    /// # Errors
    /// [`Denied`] with exactly one reason. Of an address with more than [`CROWD`](Self::CROWD) sessions nothing can be said.
    pub fn admit_from(&self, client: IpAddr, secondary: Secondary, now: Instant) -> Result<Granted, Denied> {
        let sessions = {
            let ledger = self.ledger.lock();
            match ledger.clients.get(&client) {
                None => return Err(Denied::stray(Refusal::AddressMismatch)),
                Some(sessions) if sessions.len() > Self::CROWD => return Err(Denied::stray(Refusal::LbSnatDetected)),
                Some(sessions) => sessions.clone(),
            }
        };
        let mut found = None;
        let mut missed = None;
        for grant in sessions.into_iter().filter_map(|id| self.get(id)) {
            if grant.overdue(now).is_some() {
                continue;
            }
            let announced: Vec<_> = {
                let tokens = grant.tokens.lock();
                let of = |issued: &&Issued| issued.scope.secondary == secondary && issued.scope.route.is_some();
                let in_time = |issued: &Issued| issued.used || now <= issued.use_by;
                tokens
                    .issued
                    .iter()
                    .filter(of)
                    .map(|issued| (issued.scope, issued.digest, in_time(issued)))
                    .collect()
            };
            for (scope, digest, in_time) in announced {
                if !in_time {
                    missed = Some(grant.id);
                    continue;
                }
                // Of two tokens of one route the newer one stands.
                let other = found.replace((grant.id, scope, digest));
                if other.is_some_and(|(id, of, _)| (id, of) != (grant.id, scope)) {
                    return Err(Denied::stray(Refusal::AmbiguousAddress));
                }
            }
        }
        match (found, missed) {
            (Some((.., digest)), _) => self.admit_digest(digest, Owner::Own, secondary, now),
            (None, Some(session)) => Err(Denied::of(session, Refusal::WindowMissed)),
            (None, None) => Err(Denied::stray(Refusal::NotAnnounced)),
        }
    }

    /// When [`sweep`](Self::sweep) is due next; `None` without grants.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.ledger.lock().deadlines.first().map(|&(at, _)| at)
    }

    /// The live grant `id`.
    pub fn get(&self, id: SessionId) -> Option<Arc<Grant>> {
        self.sessions.pin().get(&id).cloned()
    }

    /// All live grants, oldest first.
    pub fn list(&self) -> Vec<Arc<Grant>> {
        let mut grants: Vec<_> = self.sessions.pin().values().cloned().collect();
        grants.sort_unstable_by_key(|grant| (grant.created, grant.id));
        grants
    }

    /// The live grants of `user`, oldest first.
    pub fn by_user(&self, user: &UserName) -> Vec<Arc<Grant>> {
        let ids = self.ledger.lock().users.get(user).cloned().unwrap_or_default();
        ids.into_iter().filter_map(|id| self.get(id)).collect()
    }

    /// How many grants live.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether none lives.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Whether any session has an open connection.
    pub fn is_in_use(&self) -> bool {
        self.sessions.pin().values().any(|grant| grant.connections() > 0)
    }

    /// How many sessions have a route to `desktop`.
    pub fn sessions_on(&self, desktop: &DesktopId) -> usize {
        self.occupancy.sessions(desktop)
    }

    /// Marks a token used, and voids the one that it replaces.
    fn first_use(&self, grant: &Grant, scope: Scope, generation: u64, used: &AtomicBool) -> Result<(), Denied> {
        let entries = self.tokens.pin();
        let mut tokens = grant.tokens.lock();
        let Some(own) = tokens.issued.iter_mut().find(|issued| issued.generation == generation) else {
            // Voided, or the grant ended, between look-up and here.
            return Err(match grant.revocation() {
                Some(end) => Denied::ended(grant.id, end),
                None => Denied::stray(Refusal::UnknownToken),
            });
        };
        own.used = true;
        used.store(true, Ordering::Release);
        grant.note_change();
        tokens.issued.retain(|issued| {
            let keep = issued.scope != scope || issued.generation >= generation;
            if !keep {
                entries.remove(&issued.digest);
            }
            keep
        });
        Ok(())
    }

    fn remember(&self, digest: Digest, ended: Entry) {
        let entries = self.tokens.pin();
        entries.insert(digest, ended);
        if let Some(oldest) = self.ledger.lock().remember(digest) {
            entries.remove(&oldest);
        }
    }

    fn draw_id(&self) -> SessionId {
        let mut bits = [0; 16];
        self.random.fill(&mut bits);
        SessionId::from_random(u128::from_le_bytes(bits))
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("grants", &self.len())
            .finish_non_exhaustive()
    }
}

/// Why no grant was minted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MintRefusal {
    /// `session.max` is reached.
    #[error("the node has as many sessions as it may have")]
    NodeFull,
    /// `session.per_user` is reached.
    #[error("the user has as many sessions as a user may have")]
    UserFull,
}

/// What is known of a token.
enum Entry {
    Live {
        grant: Arc<Grant>,
        scope: Scope,
        generation: u64,
        use_by: Instant,
        used: AtomicBool,
    },
    Ended {
        session: SessionId,
        end: CloseReason,
    },
}

/// Hashes keys that are uniformly random already by taking eight octets of them.
#[derive(Default)]
struct Uniform(u64);

impl Hasher for Uniform {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }

    fn write_u128(&mut self, value: u128) {
        self.0 = (value >> 64) as u64 ^ value as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
