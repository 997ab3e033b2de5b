//! The live grants as another process of this node takes them over.
//!
//! A grant is written as data ([`GrantSnapshot`]) and made of it again; a restored store admits what the one before
//! admitted. Times are spans from the moment of the snapshot, so that they mean the same in another process; whoever
//! restores says which moment that was, and one that is too early only shortens what is left. What cannot be read, is
//! over or has ended does not come back.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Entry, Store};
use crate::authenticate::Method;
use crate::grant::admission::{Scope, Secondary};
use crate::grant::changes::Marks;
use crate::grant::token::{Digest, GrantSecret, Issued};
use crate::grant::{Grant, LONGEST, Route, RouteId, Routes, Times, Tokens};
use crate::types::{DesktopId, Octets32, Protocol, SessionId, Target, UserName};

/// A live grant as data. It is a credential: it holds what its tokens are derived from.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantSnapshot {
    id: String,
    user: String,
    methods: Vec<String>,
    client: IpAddr,
    secret: Octets32,
    /// Since when, and until when at the latest.
    age: Duration,
    left: Duration,
    idle: Option<Duration>,
    silence: Duration,
    inactive: Duration,
    unbeaten: Option<Duration>,
    bytes_in: u64,
    bytes_out: u64,
    generation: u64,
    tokens: Vec<TokenSnapshot>,
    last_route: u32,
    routes: Vec<RouteSnapshot>,
}

/// What of a grant changes by its being used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UseSnapshot {
    id: String,
    inactive: Duration,
    unbeaten: Option<Duration>,
    bytes_in: u64,
    bytes_out: u64,
}

impl UseSnapshot {
    /// Of which grant.
    pub fn id(&self) -> Option<SessionId> {
        self.id.parse().ok()
    }
}

/// A token as data: only its hash is known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TokenSnapshot {
    secondary: String,
    route: Option<u32>,
    generation: u64,
    digest: Octets32,
    /// How long it may still be used first; `None` if that is over.
    first_use: Option<Duration>,
    used: bool,
}

/// A route as data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteSnapshot {
    id: u32,
    desktop: String,
    protocol: String,
    host: String,
    port: u16,
}

impl GrantSnapshot {
    /// Whose it is.
    pub fn id(&self) -> Option<SessionId> {
        self.id.parse().ok()
    }

    /// The same grant, looked at `later`, if it was not used since.
    #[must_use]
    pub fn aged(mut self, later: Duration) -> Self {
        self.age = self.age.saturating_add(later);
        self.left = self.left.saturating_sub(later);
        self.inactive = self.inactive.saturating_add(later);
        self.unbeaten = self.unbeaten.map(|unbeaten| unbeaten.saturating_add(later));
        for token in &mut self.tokens {
            token.first_use = token.first_use.and_then(|left| left.checked_sub(later));
        }
        self
    }

    /// The same grant as it was used, looked at in the same moment.
    #[must_use]
    pub fn used(mut self, by: &UseSnapshot) -> Self {
        self.inactive = self.inactive.min(by.inactive);
        self.unbeaten = by.unbeaten.or(self.unbeaten);
        self.bytes_in = self.bytes_in.max(by.bytes_in);
        self.bytes_out = self.bytes_out.max(by.bytes_out);
        self
    }
}

impl fmt::Debug for GrantSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantSnapshot")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl From<&Route> for RouteSnapshot {
    fn from(route: &Route) -> Self {
        Self {
            id: route.id().0,
            desktop: route.desktop().to_string(),
            protocol: route.protocol().wire_name().to_owned(),
            host: route.target().host.clone(),
            port: route.target().port,
        }
    }
}

impl RouteSnapshot {
    /// `None` if this version does not know its protocol.
    fn restored(&self, session: &CancellationToken) -> Option<Arc<Route>> {
        let target = Target {
            host: self.host.clone(),
            port: self.port,
        };
        let protocol = Protocol::from_wire(&self.protocol)?;
        let desktop = DesktopId::new(self.desktop.clone());
        let route = Route::new(RouteId(self.id), desktop, protocol, target, session.child_token());
        Some(Arc::new(route))
    }
}

impl Store {
    /// All live grants as data, as they are at `now`, oldest first.
    pub fn snapshot(&self, now: Instant) -> Vec<GrantSnapshot> {
        let grants = self.list();
        grants.iter().filter_map(|grant| grant.snapshot(now)).collect()
    }

    /// The live grant `id` as data, as it is at `now`. What changes of it after that is noted ([`Changes`]).
    ///
    /// [`Changes`]: crate::grant::Changes
    pub fn snapshot_of(&self, id: SessionId, now: Instant) -> Option<GrantSnapshot> {
        let grant = self.get(id)?;
        grant.marks.clear();
        grant.snapshot(now)
    }

    /// How the live grant `id` was used until `now`. What changes of it after that is noted.
    pub fn use_of(&self, id: SessionId, now: Instant) -> Option<UseSnapshot> {
        let grant = self.get(id)?;
        grant.marks.clear_use();
        Some(UseSnapshot {
            id: id.to_string(),
            inactive: now.saturating_duration_since(grant.last_activity()),
            unbeaten: grant.last_beat().map(|beat| now.saturating_duration_since(beat)),
            bytes_in: grant.bytes_in(),
            bytes_out: grant.bytes_out(),
        })
    }

    /// Takes over what another process had at the moment `taken`; how many grants that were. A grant that is here
    /// already stays as it is; one that is over at `now` or cannot be read is left out.
    pub fn restore(&self, snapshots: &[GrantSnapshot], taken: Instant, now: Instant) -> usize {
        let restored = |snapshot: &&GrantSnapshot| self.restore_one(snapshot, taken, now).is_some();
        snapshots.iter().filter(restored).count()
    }

    fn restore_one(&self, snapshot: &GrantSnapshot, taken: Instant, now: Instant) -> Option<()> {
        let grant = Arc::new(snapshot.restored(self, taken)?);
        if grant.overdue(now).is_some() {
            return None;
        }
        {
            let sessions = self.sessions.pin();
            let mut ledger = self.ledger.lock();
            if sessions.contains_key(&grant.id) {
                return None;
            }
            ledger.enter(&grant);
            ledger.arm(&grant, grant.next_look(now));
            sessions.insert(grant.id, grant.clone());
        }
        let desktops: HashSet<_> = grant.routes().iter().map(|route| route.desktop().clone()).collect();
        for desktop in &desktops {
            self.occupancy.enter(desktop, None);
        }
        let entries = self.tokens.pin();
        for issued in &grant.tokens.lock().issued {
            let live = Entry::Live {
                grant: grant.clone(),
                scope: issued.scope,
                generation: issued.generation,
                use_by: issued.use_by,
                used: AtomicBool::new(issued.used),
            };
            entries.insert(issued.digest, live);
        }
        Some(())
    }

    /// Adds a route that another process of this node has given to the session.
    pub fn adopt_route(&self, session: SessionId, route: &RouteSnapshot) -> Option<Arc<Route>> {
        let grant = self.get(session)?;
        let mut routes = grant.routes.lock();
        if grant.revocation().is_some() || routes.open.len() >= Route::MAX {
            return None;
        }
        if let Some(known) = routes.open.iter().find(|known| known.id().0 == route.id) {
            return Some(known.clone());
        }
        let route = route.restored(&grant.revoked)?;
        if !routes.open.iter().any(|other| other.desktop() == route.desktop()) {
            self.occupancy.enter(route.desktop(), None);
        }
        routes.last = routes.last.max(route.id().0);
        routes.open.push(route.clone());
        grant.note_change();
        Some(route)
    }
}

impl Grant {
    /// `None` if it has ended.
    fn snapshot(&self, now: Instant) -> Option<GrantSnapshot> {
        let (secret, generation, tokens) = {
            let tokens = self.tokens.lock();
            let issued = tokens.issued.iter().map(|issued| TokenSnapshot::of(issued, now));
            (tokens.secret.octets(), tokens.generation, issued.collect())
        };
        let (last_route, routes) = {
            let routes = self.routes.lock();
            let open = routes.open.iter().map(|route| RouteSnapshot::from(&**route));
            (routes.last, open.collect())
        };
        // Looked at last: the end wipes what was just read.
        self.revocation().is_none().then(|| GrantSnapshot {
            id: self.id.to_string(),
            user: self.user.to_string(),
            methods: self.methods.iter().map(|method| method.code().to_owned()).collect(),
            client: self.client,
            secret,
            age: now.saturating_duration_since(self.created),
            left: self.times.hard_end.saturating_duration_since(now),
            idle: self.times.idle,
            silence: self.times.silence,
            inactive: now.saturating_duration_since(self.last_activity()),
            unbeaten: self.last_beat().map(|beat| now.saturating_duration_since(beat)),
            bytes_in: self.bytes_in(),
            bytes_out: self.bytes_out(),
            generation,
            tokens,
            last_route,
            routes,
        })
    }
}

impl GrantSnapshot {
    fn restored(&self, store: &Store, taken: Instant) -> Option<Grant> {
        let revoked = CancellationToken::new();
        let methods: Option<Vec<_>> = self.methods.iter().map(|code| Method::from_code(code)).collect();
        let routes: Vec<_> = (self.routes.iter().take(Route::MAX))
            .filter_map(|route| route.restored(&revoked))
            .collect();
        let issued = self.tokens.iter().filter_map(|token| token.restored(taken)).collect();
        let before = |span: Duration| taken.checked_sub(span).unwrap_or(taken);
        let grant = Grant {
            id: self.id()?,
            user: UserName::new(&self.user),
            methods: methods?,
            client: self.client,
            created: before(self.age),
            times: Times {
                hard_end: taken + self.left.min(LONGEST),
                idle: self.idle.map(|idle| idle.min(LONGEST)),
                silence: self.silence.min(LONGEST),
            },
            active: 0.into(),
            beaten: 0.into(),
            armed: 0.into(),
            connections: 0.into(),
            bytes_in: self.bytes_in.into(),
            bytes_out: self.bytes_out.into(),
            tokens: Mutex::new(Tokens {
                secret: GrantSecret::of(&self.secret),
                generation: self.generation,
                issued,
            }),
            routes: Mutex::new(Routes {
                last: self.last_route,
                open: routes,
            }),
            occupancy: store.occupancy.clone(),
            changes: store.changes.clone(),
            marks: Marks::default(),
            ended: OnceLock::new(),
            revoked,
        };
        grant.touch(before(self.inactive));
        if let Some(unbeaten) = self.unbeaten {
            grant.beat(before(unbeaten));
        }
        Some(grant)
    }
}

impl TokenSnapshot {
    fn of(issued: &Issued, now: Instant) -> Self {
        Self {
            secondary: issued.scope.secondary.code().to_owned(),
            route: issued.scope.route.map(|route| route.0),
            generation: issued.generation,
            digest: issued.digest.octets(),
            first_use: issued.use_by.checked_duration_since(now),
            used: issued.used,
        }
    }

    /// `None` if this version does not know its secondary.
    fn restored(&self, taken: Instant) -> Option<Issued> {
        let secondary = Secondary::ALL
            .into_iter()
            .find(|secondary| secondary.code() == self.secondary)?;
        let over = || taken.checked_sub(Duration::from_nanos(1)).unwrap_or(taken);
        Some(Issued {
            scope: Scope {
                secondary,
                route: self.route.map(RouteId),
            },
            generation: self.generation,
            digest: Digest::of(&self.digest),
            use_by: self.first_use.map_or_else(over, |left| taken + left.min(LONGEST)),
            used: self.used,
        })
    }
}
