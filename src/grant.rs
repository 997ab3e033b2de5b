//! Step 6: the session grant, and what is admitted against it.
//!
//! [`Store`] keeps the live [`Grant`]s of this node in memory. A sign-in mints one ([`Store::mint`]); a secondary
//! protocol is told a [`Token`] of it ([`Store::announce`]) and is let in against that token only ([`Store::admit`]),
//! which yields [`Granted`], the proof that every tunnel takes by value.
//!
//! The module is pure: `now` is an argument, randomness is injected ([`Randomness`]), nothing sleeps, spawns or logs. It may
//! import `authenticate` and what stands above it.
//!
//! Invariants, checked by the simulation after each step:
//! - A grant is live exactly until its one [`CloseReason`] is set. Nothing is admitted after that, nor after its
//!   deadline, whether or not the sweep has come by.
//! - Every live grant is counted once in the total and once for its user, and is armed once for the next time at
//!   which it may have to end.
//! - A token opens one secondary of one grant. A grant has at most two tokens for one secondary: the newest, and the one
//!   before it while that is in use.

mod admission;
pub mod changes;
mod ledger;
mod random;
mod route;
#[cfg(test)]
mod simulation;
mod store;
mod token;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

pub use self::admission::{Denied, Granted, Secondary};
pub use self::changes::Changes;
use self::changes::Marks;
use self::ledger::Occupancy;
pub use self::random::{Randomness, SystemRandomness};
pub use self::route::{Route, RouteId, RouteRefusal};
pub use self::store::snapshot::{GrantSnapshot, RouteSnapshot, UseSnapshot};
pub use self::store::{HearsOfEnds, MintRefusal, Store};
pub use self::token::Token;
use self::token::{GrantSecret, Issued};
use crate::authenticate::{Authenticated, Method};
use crate::config;
use crate::fault::CloseReason;
use crate::types::{DesktopId, Protocol, SessionId, Target, UserName};

/// A session: what one sign-in permits, until it ends.
///
/// It keeps the session times (lifetime, idle, heartbeat) with which it was minted; a reload changes those of later ones.
#[derive(Debug)]
pub struct Grant {
    id: SessionId,
    user: UserName,
    methods: Vec<Method>,
    client: IpAddr,
    created: Instant,
    times: Times,
    /// Time of the last activity, in nanoseconds since `created`.
    active: AtomicU64,
    /// Time of the last heartbeat, in nanoseconds since `created`, plus one; 0 is never.
    beaten: AtomicU64,
    /// The deadline under which the ledger has it, in nanoseconds since `created`. Changed under the ledger's lock only.
    armed: AtomicU64,
    connections: AtomicUsize,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    tokens: Mutex<Tokens>,
    routes: Mutex<Routes>,
    occupancy: Arc<Occupancy>,
    changes: Arc<Changes>,
    marks: Marks,
    ended: OnceLock<CloseReason>,
    revoked: CancellationToken,
}

impl Grant {
    fn new(
        id: SessionId,
        who: Authenticated,
        secret: GrantSecret,
        limits: &config::Session,
        occupancy: Arc<Occupancy>,
        changes: Arc<Changes>,
        now: Instant,
    ) -> Self {
        Self {
            id,
            client: who.client(),
            methods: who.methods().to_vec(),
            user: who.into_user(),
            created: now,
            times: Times::new(limits, now),
            active: AtomicU64::new(0),
            beaten: AtomicU64::new(0),
            armed: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            tokens: Mutex::new(Tokens {
                secret,
                generation: 0,
                issued: Vec::new(),
            }),
            routes: Mutex::new(Routes {
                last: 0,
                open: Vec::new(),
            }),
            occupancy,
            changes,
            marks: Marks::default(),
            ended: OnceLock::new(),
            revoked: CancellationToken::new(),
        }
    }

    /// The session's identifier.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Whose session it is.
    pub fn user(&self) -> &UserName {
        &self.user
    }

    /// How the user signed in.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// From where the user signed in, after the PROXY header.
    pub fn client(&self) -> IpAddr {
        self.client
    }

    /// When it was minted.
    pub fn created(&self) -> Instant {
        self.created
    }

    /// When it ends whatever happens.
    pub fn hard_end(&self) -> Instant {
        self.times.hard_end
    }

    /// Notes activity of the user: the idle time starts again. Cheap enough for every message.
    pub fn touch(&self, now: Instant) {
        self.active.fetch_max(self.offset(now), Ordering::Relaxed);
        self.marks.used(self.id, &self.changes);
    }

    /// When the user was last active.
    pub fn last_activity(&self) -> Instant {
        self.at(self.active.load(Ordering::Relaxed))
    }

    /// Notes a heartbeat of the client. From the first on, three missed ones end the session.
    pub fn beat(&self, now: Instant) {
        self.beaten
            .fetch_max(self.offset(now).saturating_add(1), Ordering::Relaxed);
        self.marks.used(self.id, &self.changes);
    }

    /// Notes that what others keep of it is not what it is any more.
    pub fn note_change(&self) {
        self.marks.alter(self.id, &self.changes);
    }

    /// When the client last sent a heartbeat; `None` if it never has.
    pub fn last_beat(&self) -> Option<Instant> {
        let beaten = self.beaten.load(Ordering::Relaxed);
        beaten.checked_sub(1).map(|offset| self.at(offset))
    }

    /// Permits `target` to be dialled in this session, as `protocol` of `desktop`.
    ///
    /// The same desktop, protocol and target again is the same route. A session counts once against `max_sessions`
    /// of a desktop, however many routes it has there; the place is given back with its last route, or with the grant.
    ///
    /// # Errors
    /// The grant has ended, the desktop has as many sessions as it may have, or the session has [`Route::MAX`] routes.
    pub fn add_route(
        &self,
        desktop: &DesktopId,
        protocol: Protocol,
        target: &Target,
        max_sessions: Option<usize>,
    ) -> Result<Arc<Route>, RouteRefusal> {
        let mut routes = self.routes.lock();
        if self.ended.get().is_some() {
            return Err(RouteRefusal::Ended);
        }
        if let Some(same) = routes
            .open
            .iter()
            .find(|route| route.leads_to(desktop, protocol, target))
        {
            return Ok(same.clone());
        }
        if routes.open.len() >= Route::MAX {
            return Err(RouteRefusal::TooMany);
        }
        if !routes.open.iter().any(|route| route.desktop() == desktop) && !self.occupancy.enter(desktop, max_sessions) {
            return Err(RouteRefusal::DesktopFull);
        }
        routes.last += 1;
        let route = Arc::new(Route::new(
            RouteId(routes.last),
            desktop.clone(),
            protocol,
            target.clone(),
            self.revoked.child_token(),
        ));
        routes.open.push(route.clone());
        self.note_change();
        Ok(route)
    }

    /// The routes of this session, oldest first.
    pub fn routes(&self) -> Vec<Arc<Route>> {
        self.routes.lock().open.clone()
    }

    /// The route of that number.
    pub fn route(&self, id: RouteId) -> Option<Arc<Route>> {
        self.routes.lock().open.iter().find(|route| route.id() == id).cloned()
    }

    /// The route of that name, see [`Route::port_name`].
    pub fn route_named(&self, name: &str) -> Option<Arc<Route>> {
        self.routes
            .lock()
            .open
            .iter()
            .find(|route| route.port_name() == name)
            .cloned()
    }

    /// Takes a route away. Its secondaries learn it from [`Route::ended`]; ports of a tunnel are for the caller to take back.
    pub fn remove_route(&self, id: RouteId) -> Option<Arc<Route>> {
        let mut routes = self.routes.lock();
        let place = routes.open.iter().position(|route| route.id() == id)?;
        let route = routes.open.remove(place);
        route.end();
        self.note_change();
        if !routes.open.iter().any(|other| other.desktop() == route.desktop()) {
            self.occupancy.leave(route.desktop());
        }
        Some(route)
    }

    /// Open connections of this session.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Counts bytes that came from the client.
    pub fn count_in(&self, bytes: u64) {
        self.bytes_in.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that went to the client.
    pub fn count_out(&self, bytes: u64) {
        self.bytes_out.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that came from the client so far.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in.load(Ordering::Relaxed)
    }

    /// Bytes that went to the client so far.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.load(Ordering::Relaxed)
    }

    /// Why it has ended; `None` while it lives.
    pub fn revocation(&self) -> Option<CloseReason> {
        self.ended.get().copied()
    }

    /// Waits until it has ended, and says why. Cancel-safe; any number may wait.
    pub async fn revoked(&self) -> CloseReason {
        self.revoked.cancelled().await;
        self.revocation().unwrap_or(CloseReason::Internal)
    }

    /// The reason for which its time is over at `now`, whether or not the sweep has come by.
    fn overdue(&self, now: Instant) -> Option<CloseReason> {
        let (deadline, reason) = self.deadline();
        (deadline <= now).then_some(reason)
    }

    /// When it ends if nothing more is heard of it, and as what.
    fn deadline(&self) -> (Instant, CloseReason) {
        let hard = (self.times.hard_end, CloseReason::Expired);
        let idle = self
            .times
            .idle
            .map(|idle| (self.last_activity() + idle, CloseReason::SessionIdle));
        let lost = self
            .last_beat()
            .map(|beat| (beat + self.times.silence, CloseReason::HeartbeatLost));
        [idle, lost]
            .into_iter()
            .flatten()
            .fold(hard, |soonest, other| if other.0 < soonest.0 { other } else { soonest })
    }

    /// When to look at it next. A first heartbeat can bring the end nearer, but never nearer than this.
    fn next_look(&self, now: Instant) -> Instant {
        let (deadline, _) = self.deadline();
        if self.last_beat().is_some() {
            deadline
        } else {
            deadline.min(now + self.times.silence)
        }
    }

    fn offset(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.created).as_nanos()).unwrap_or(u64::MAX / 2)
    }

    fn at(&self, offset: u64) -> Instant {
        self.created + Duration::from_nanos(offset)
    }
}

/// The session times of one grant.
#[derive(Debug)]
struct Times {
    hard_end: Instant,
    idle: Option<Duration>,
    /// The silence of a client that has ever beaten, after which it is lost.
    silence: Duration,
}

impl Times {
    fn new(limits: &config::Session, now: Instant) -> Self {
        Self {
            hard_end: now + limits.lifetime.min(LONGEST),
            idle: limits.idle.map(|idle| idle.min(LONGEST)),
            silence: limits.heartbeat.saturating_mul(MISSED_BEATS).min(LONGEST),
        }
    }
}

#[derive(Debug)]
struct Tokens {
    secret: GrantSecret,
    generation: u64,
    issued: Vec<Issued>,
}

#[derive(Debug)]
struct Routes {
    last: u32,
    open: Vec<Arc<Route>>,
}

/// A client that misses this many heartbeats is gone.
const MISSED_BEATS: u32 = 3;

/// Longer times are cut to this, so that no deadline overflows the clock.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::fault::Refusal;
    use crate::types::Secret;

    #[tokio::test]
    async fn a_token_opens_its_tunnel_until_the_grant_ends() {
        let now = crate::clock::now();
        let store = Store::new("gw-1".parse().unwrap(), None, limits());
        let grant = store.mint(ann(now), now).unwrap();
        let token = store.announce(&grant, Secondary::Tunnel, now);
        let granted = store.admit(token.as_str(), Secondary::Tunnel, now).unwrap();
        assert_eq!(granted.grant().id(), grant.id());

        assert!(store.revoke(grant.id(), CloseReason::Logout));
        assert_eq!(granted.grant().revoked().await, CloseReason::Logout);
        let denied = store.admit(token.as_str(), Secondary::Tunnel, now).unwrap_err();
        assert_eq!(
            denied,
            Denied {
                reason: Refusal::Revoked,
                owner: None,
                session: Some(grant.id())
            }
        );
    }

    #[test]
    fn a_token_of_a_sister_node_is_refused_by_name() {
        let now = crate::clock::now();
        let key = Secret::new("fleet");
        let [one, two] = ["gw-1", "gw-2"].map(|name| Store::new(name.parse().unwrap(), Some(&key), limits()));
        let grant = one.mint(ann(now), now).unwrap();
        let token = one.announce(&grant, Secondary::Tunnel, now);
        let denied = two.admit(token.as_str(), Secondary::Tunnel, now).unwrap_err();
        assert_eq!(
            denied,
            Denied {
                reason: Refusal::SisterNode,
                owner: "gw-1".parse().ok(),
                session: None
            }
        );
    }

    #[test]
    fn only_the_first_use_has_to_come_soon() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let (prompt, tardy) = (
            store.announce(&grant, Secondary::Tunnel, now),
            store.announce(&grant, Secondary::Blast, now),
        );
        assert!(store.admit(prompt.as_str(), Secondary::Tunnel, now).is_ok());
        let later = now + Duration::from_secs(121);
        assert!(store.admit(prompt.as_str(), Secondary::Tunnel, later).is_ok());
        assert_eq!(refusal(&store, &tardy, Secondary::Blast, later), Refusal::WindowMissed);
    }

    #[test]
    fn a_token_in_use_lives_until_its_successor_is_used() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let first = store.announce(&grant, Secondary::Tunnel, now);
        let open = store.admit(first.as_str(), Secondary::Tunnel, now).unwrap();
        let second = store.announce(&grant, Secondary::Tunnel, now);
        let third = store.announce(&grant, Secondary::Tunnel, now);
        assert_eq!(refusal(&store, &second, Secondary::Tunnel, now), Refusal::UnknownToken);
        assert!(store.admit(first.as_str(), Secondary::Tunnel, now).is_ok());
        assert!(store.admit(third.as_str(), Secondary::Tunnel, now).is_ok());
        assert_eq!(refusal(&store, &first, Secondary::Tunnel, now), Refusal::UnknownToken);
        assert_eq!(open.grant().revocation(), None, "what was admitted goes on");
    }

    #[test]
    fn tokens_of_two_routes_do_not_touch_each_other() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let (one, two) = (route(&grant, "one"), route(&grant, "two"));
        let first = store.announce_route(&grant, Secondary::Blast, &one, now);
        let second = store.announce_route(&grant, Secondary::Blast, &two, now);
        let admitted = store.admit(first.as_str(), Secondary::Blast, now).unwrap();
        assert_eq!(admitted.route().map(|route| route.id()), Some(one.id()));
        assert!(store.admit(second.as_str(), Secondary::Blast, now).is_ok());
        grant.remove_route(one.id());
        assert_eq!(refusal(&store, &first, Secondary::Blast, now), Refusal::Revoked);
        assert!(store.admit(second.as_str(), Secondary::Blast, now).is_ok());
    }

    #[test]
    fn tokens_of_routes_that_are_gone_are_forgotten() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        for n in 0..50 {
            let route = route(&grant, &format!("d{n}"));
            let token = store.announce_route(&grant, Secondary::Blast, &route, now);
            assert!(store.admit(token.as_str(), Secondary::Blast, now).is_ok());
            grant.remove_route(route.id());
        }
        assert!(grant.tokens.lock().issued.len() <= 1);
        store.check_invariants();
    }

    #[tokio::test]
    async fn a_route_ends_when_it_is_taken_away_and_with_its_session() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let (one, two) = (route(&grant, "one"), route(&grant, "two"));
        grant.remove_route(one.id());
        one.ended().await;
        store.revoke(grant.id(), CloseReason::Logout);
        two.ended().await;
    }

    #[test]
    fn an_address_admits_only_if_it_says_whose_the_connection_is() {
        let now = crate::clock::now();
        let store = Store::new("gw-1".parse().unwrap(), None, limits());
        let from = |store: &Store, at: Instant| {
            let admitted = store.admit_from(CLIENT, Secondary::Pcoip, at);
            admitted
                .map(|granted| granted.grant().id())
                .map_err(|denied| denied.reason)
        };
        assert_eq!(from(&store, now), Err(Refusal::AddressMismatch));
        let grant = store.mint(ann(now), now).unwrap();
        assert_eq!(from(&store, now), Err(Refusal::NotAnnounced));
        let desk = route(&grant, "desk");
        store.announce_route(&grant, Secondary::Pcoip, &desk, now);
        let late = now + Duration::from_secs(121);
        assert_eq!(from(&store, late), Err(Refusal::WindowMissed));
        assert_eq!(from(&store, now), Ok(grant.id()));
        assert_eq!(from(&store, late), Ok(grant.id()), "a reconnect");
        // A second launch of the same desktop is the same desktop.
        store.announce_route(&grant, Secondary::Pcoip, &desk, now);
        assert_eq!(from(&store, now), Ok(grant.id()));

        let other = store.mint(ann(now), now).unwrap();
        assert_eq!(from(&store, now), Ok(grant.id()));
        store.announce_route(&other, Secondary::Pcoip, &route(&other, "desk"), now);
        assert_eq!(from(&store, now), Err(Refusal::AmbiguousAddress));
        store.revoke(grant.id(), CloseReason::Logout);
        assert_eq!(from(&store, now), Ok(other.id()));
    }

    #[test]
    fn nothing_is_said_of_an_address_that_everybody_has() {
        let now = crate::clock::now();
        let limits = config::Session {
            per_user: 1000,
            ..limits()
        };
        let store = Store::new("gw-1".parse().unwrap(), None, limits);
        for _ in 0..=Store::CROWD {
            store.mint(ann(now), now).unwrap();
        }
        let denied = store.admit_from(CLIENT, Secondary::Pcoip, now).unwrap_err();
        assert_eq!(denied.reason, Refusal::LbSnatDetected);
    }

    #[test]
    fn a_place_comes_back_when_the_proof_is_dropped() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let token = store.announce(&grant, Secondary::Tunnel, now);
        let mut held: Vec<_> = (0..8)
            .map(|_| store.admit(token.as_str(), Secondary::Tunnel, now).unwrap())
            .collect();
        assert_eq!(refusal(&store, &token, Secondary::Tunnel, now), Refusal::FlowLimit);
        held.pop();
        assert!(store.admit(token.as_str(), Secondary::Tunnel, now).is_ok());
    }

    #[test]
    fn tokens_of_ended_grants_are_remembered_within_bounds() {
        let now = crate::clock::now();
        let (store, grant) = store_with_grant(now);
        let oldest = store.announce(&grant, Secondary::Tunnel, now);
        store.revoke(grant.id(), CloseReason::Killed);
        assert_eq!(refusal(&store, &oldest, Secondary::Tunnel, now), Refusal::Revoked);
        for _ in 0..ledger::Ledger::REMEMBERED {
            store.announce(&grant, Secondary::Tunnel, now);
        }
        assert_eq!(refusal(&store, &oldest, Secondary::Tunnel, now), Refusal::UnknownToken);
        store.check_invariants();
    }

    /// A disk that is busy until another task has had its turn.
    struct Disk(Mutex<std::sync::mpsc::Receiver<()>>);

    impl HearsOfEnds for Disk {
        fn ended(&self, _: &[(SessionId, CloseReason)]) {
            let free = self.0.lock().recv_timeout(Duration::from_secs(20));
            free.expect("others go on meanwhile");
        }
    }

    #[tokio::test]
    async fn an_end_that_waits_for_a_disk_keeps_no_worker() {
        let (store, grant) = store_with_grant(crate::clock::now());
        let store = Arc::new(store);
        let (free, busy) = std::sync::mpsc::sync_channel(1);
        let disk: Arc<dyn HearsOfEnds> = Arc::new(Disk(busy.into()));
        store.tell_of_ends(&disk);
        let ending = store.revoke_aside(grant.id(), CloseReason::Logout);
        let others = async {
            assert!(grant.revocation().is_none(), "it ends once that is written");
            free.send(()).unwrap();
        };
        let (ended, ()) = tokio::join!(ending, others);
        assert!(ended && grant.revocation().is_some());
    }

    #[test]
    fn port_names_fit_the_tunnels_messages() {
        for protocol in Protocol::ALL {
            let target = Target {
                host: "vdi-1".to_owned(),
                port: 1,
            };
            let name = Route::new(
                RouteId(u32::MAX),
                DesktopId::new("d"),
                protocol,
                target,
                CancellationToken::new(),
            )
            .port_name();
            assert!(
                name.len() <= 23 && name.bytes().all(|octet| octet.is_ascii_graphic()),
                "{name}"
            );
        }
    }

    fn refusal(store: &Store, token: &Token, secondary: Secondary, now: Instant) -> Refusal {
        store.admit(token.as_str(), secondary, now).unwrap_err().reason
    }

    fn store_with_grant(now: Instant) -> (Store, Arc<Grant>) {
        let store = Store::new("gw-1".parse().unwrap(), None, limits());
        let grant = store.mint(ann(now), now).unwrap();
        (store, grant)
    }

    fn ann(now: Instant) -> Authenticated {
        Authenticated::for_test("ann", CLIENT, now)
    }

    fn route(grant: &Grant, desktop: &str) -> Arc<Route> {
        let target = Target {
            host: format!("{desktop}.inside"),
            port: 22443,
        };
        grant
            .add_route(&DesktopId::new(desktop), Protocol::Blast, &target, None)
            .unwrap()
    }

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn limits() -> config::Session {
        config::Session {
            lifetime: Duration::from_secs(36_000),
            idle: None,
            heartbeat: Duration::from_secs(1_800),
            login_timeout: Duration::from_secs(300),
            first_use: Duration::from_secs(120),
            max: 100,
            per_user: 10,
            connections: 8,
        }
    }
}
