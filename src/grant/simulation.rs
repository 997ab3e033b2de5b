//! Random traffic against the store and a naive model of it, with a virtual clock.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::*;
use crate::fault::Refusal;
use crate::types::{NodeName, Secret};

#[test]
fn the_store_agrees_with_a_naive_model_whatever_happens() {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            let act = world.act();
            world.check(seed, step, act);
            *seen.entry(act).or_default() += 1;
        }
    }
    for act in WORTH_SEEING {
        let times = seen.get(act).copied().unwrap_or(0);
        assert!(times > 100, "the traffic is too tame: {act} happened {times} times");
    }
}

#[test]
fn the_model_does_not_notice_that_another_process_takes_over() {
    let mut handed_over = 0;
    for seed in 0..SEEDS / 4 {
        let mut world = World::new(seed);
        world.hands_over = true;
        for step in 0..STEPS {
            let act = world.act();
            world.check(seed, step, act);
            handed_over += usize::from(act == "hand over");
        }
    }
    assert!(handed_over > 100, "{handed_over}");
}

#[test]
fn threads_that_mint_admit_and_end_leave_the_store_whole() {
    let start = crate::clock::now();
    for seed in 0..20 {
        let store = store(seed, limits(&mut Dice::new(seed)));
        let known = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (store, known) = (&store, &known);
                scope.spawn(move || disturb(store, known, Dice::new(seed * 4 + thread), start));
            }
        });
        store.check_invariants();
        assert!(
            store.list().iter().all(|grant| grant.connections() == 0),
            "every place was given back"
        );
        store.revoke_all(CloseReason::Drained);
        store.check_invariants();
        assert_eq!((store.len(), store.next_deadline()), (0, None));
    }
}

fn disturb(store: &Store, known: &Mutex<Vec<(Arc<Grant>, Token)>>, mut dice: Dice, start: Instant) {
    let mut now = start;
    let mut held = Vec::new();
    for _ in 0..400 {
        let some = known.lock().get(dice.below(50)).cloned();
        match (dice.below(12), some) {
            (0..3, _) => {
                let who = Authenticated::for_test(USERS[dice.below(USERS.len())], ADDRESS, now);
                if let Ok(grant) = store.mint(who, now) {
                    let token = store.announce(&grant, Secondary::Tunnel, now);
                    known.lock().insert(0, (grant, token));
                }
            }
            (3..7, Some((_, token))) => held.extend(store.admit(token.as_str(), Secondary::Tunnel, now)),
            (7, Some((grant, _))) => {
                let token = store.announce(&grant, Secondary::Tunnel, now);
                known.lock().insert(0, (grant, token));
            }
            (8, Some((grant, _))) => {
                let _ = grant.add_route(&DesktopId::new("d"), Protocol::Rdp, &target(0), Some(3));
                grant.touch(now);
            }
            (9, Some((grant, _))) => {
                store.revoke(grant.id(), CloseReason::Killed);
            }
            (10, _) => {
                now += Duration::from_secs(dice.below(60) as u64);
                store.sweep(now);
            }
            _ => held.clear(),
        }
    }
}

/// The store and the model, side by side.
struct World {
    dice: Dice,
    now: Instant,
    limits: config::Session,
    store: Store,
    sister: Store,
    sessions: Vec<Session>,
    sister_token: Token,
    /// Whether another process takes over now and then.
    hands_over: bool,
}

/// What the model believes of one grant.
struct Session {
    grant: Arc<Grant>,
    user: usize,
    hard: Instant,
    idle: Option<Duration>,
    silence: Duration,
    active: Instant,
    beaten: Option<Instant>,
    tokens: Vec<Believed>,
    routes: Vec<(RouteId, usize)>,
    open: Vec<Granted>,
    ended: Option<CloseReason>,
}

/// What the model believes of one token.
struct Believed {
    token: Token,
    secondary: Secondary,
    use_by: Instant,
    used: bool,
    void: bool,
    ended: Option<CloseReason>,
}

impl Session {
    fn overdue(&self, now: Instant) -> Option<CloseReason> {
        let mut ends = vec![(self.hard, 0, CloseReason::Expired)];
        ends.extend(self.idle.map(|idle| (self.active + idle, 1, CloseReason::SessionIdle)));
        ends.extend(
            self.beaten
                .map(|beat| (beat + self.silence, 2, CloseReason::HeartbeatLost)),
        );
        ends.into_iter()
            .filter(|end| end.0 <= now)
            .min_by_key(|end| (end.0, end.1))
            .map(|end| end.2)
    }

    fn end(&mut self, reason: CloseReason) {
        self.ended = Some(reason);
        self.routes.clear();
        for token in self.tokens.iter_mut().filter(|token| !token.void) {
            token.ended = Some(reason);
        }
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let now = crate::clock::now();
        let limits = limits(&mut dice);
        let sister = named("gw-2", seed + 1_000_000, limits.clone());
        let away = sister.mint(Authenticated::for_test("ann", ADDRESS, now), now).unwrap();
        let sister_token = sister.announce(&away, Secondary::Tunnel, now);
        let store = store(seed, limits.clone());
        Self {
            dice,
            now,
            limits,
            store,
            sister,
            sessions: Vec::new(),
            sister_token,
            hands_over: false,
        }
    }

    /// Does one thing, and compares what the store answers with what the model expects.
    fn act(&mut self) -> &'static str {
        match self.dice.below(40) {
            0..3 => self.mint(),
            3..10 => self.announce(),
            10..20 => self.admit(),
            20 => self.admit_nonsense(),
            21..23 => self.hang_up(),
            23..26 => self.hear(),
            26..29 => self.add_route(),
            29 => self.remove_route(),
            30 => self.revoke(),
            31 if self.dice.below(3) == 0 => self.revoke_user(),
            32..34 => self.sweep(),
            34 => self.reload(),
            35 if self.hands_over && self.dice.below(3) == 0 => self.hand_over(),
            _ => self.wait(),
        }
    }

    fn mint(&mut self) -> &'static str {
        let user = self.dice.below(USERS.len());
        let live = self.live().count();
        let own = self.live().filter(|session| session.user == user).count();
        let expected = if live >= self.limits.max {
            Err(MintRefusal::NodeFull)
        } else if own >= self.limits.per_user {
            Err(MintRefusal::UserFull)
        } else {
            Ok(())
        };
        let minted = self
            .store
            .mint(Authenticated::for_test(USERS[user], ADDRESS, self.now), self.now);
        assert_eq!(minted.as_ref().map(|_| ()).map_err(|&refusal| refusal), expected);
        match expected {
            Err(MintRefusal::NodeFull) => return "mint: node full",
            Err(MintRefusal::UserFull) => return "mint: user full",
            Ok(()) => {}
        }
        if let Ok(grant) = minted {
            self.sessions.push(Session {
                grant,
                user,
                hard: self.now + self.limits.lifetime,
                idle: self.limits.idle,
                silence: self.limits.heartbeat * 3,
                active: self.now,
                beaten: None,
                tokens: Vec::new(),
                routes: Vec::new(),
                open: Vec::new(),
                ended: None,
            });
        }
        "mint"
    }

    fn announce(&mut self) -> &'static str {
        let (now, use_by) = (self.now, self.now + self.limits.first_use);
        let secondary = self.secondary();
        let store = &self.store;
        let Some(session) = pick(&mut self.dice, &mut self.sessions) else {
            return "announce";
        };
        let token = store.announce(&session.grant, secondary, now);
        if session.ended.is_none() {
            for older in session
                .tokens
                .iter_mut()
                .filter(|older| older.secondary == secondary && !older.used)
            {
                older.void = true;
            }
        }
        session.tokens.push(Believed {
            token,
            secondary,
            use_by,
            used: false,
            void: false,
            ended: session.ended,
        });
        "announce"
    }

    fn admit(&mut self) -> &'static str {
        let now = self.now;
        let limit = self.limits.connections;
        let other = self.dice.below(8) == 0;
        let store = &self.store;
        let Some(session) = pick(&mut self.dice, &mut self.sessions) else {
            return "admit";
        };
        let overdue = session.overdue(now);
        let id = session.grant.id();
        let open = session.open.len();
        let Some(at) = (!session.tokens.is_empty()).then(|| self.dice.below(session.tokens.len())) else {
            return "admit";
        };
        let token = &session.tokens[at];
        let secondary = match (other, token.secondary) {
            (false, own) => own,
            (true, Secondary::Tunnel) => Secondary::Blast,
            (true, _) => Secondary::Tunnel,
        };
        let expected = if token.void {
            Err((Refusal::UnknownToken, None))
        } else if let Some(end) = token.ended.or(overdue) {
            let ran_out = [
                CloseReason::Expired,
                CloseReason::SessionIdle,
                CloseReason::HeartbeatLost,
            ]
            .contains(&end);
            Err((if ran_out { Refusal::Expired } else { Refusal::Revoked }, Some(id)))
        } else if other {
            Err((Refusal::WrongProtocol, Some(id)))
        } else if !token.used && now > token.use_by {
            Err((Refusal::WindowMissed, Some(id)))
        } else if open >= limit {
            Err((Refusal::FlowLimit, Some(id)))
        } else {
            Ok(())
        };
        let admitted = store.admit(token.token.as_str(), secondary, now);
        let replaces = session.tokens[..at]
            .iter()
            .any(|older| older.secondary == secondary && !older.void);
        let answer = admitted
            .as_ref()
            .map(|_| ())
            .map_err(|denied| (denied.reason, denied.session));
        assert_eq!(answer, expected);
        if let Ok(granted) = admitted {
            assert!(Arc::ptr_eq(granted.grant(), &session.grant));
            session.open.push(granted);
            session.tokens[at].used = true;
            for older in session.tokens[..at]
                .iter_mut()
                .filter(|older| older.secondary == secondary)
            {
                older.void = true;
            }
        }
        match expected {
            Ok(()) if replaces => "admit: replaces a token in use",
            Ok(()) => "admit",
            Err((reason, _)) => reason.code(),
        }
    }

    fn admit_nonsense(&mut self) -> &'static str {
        let (text, reason) = match self.dice.below(4) {
            0 => (String::new(), Refusal::NoToken),
            1 => ("x".repeat(self.dice.below(300) + 1), Refusal::Malformed),
            2 => (self.sister_token.to_string(), Refusal::SisterNode),
            _ => (
                self.sister_token.as_str().replace("gw-2", "gw-1"),
                Refusal::UnknownToken,
            ),
        };
        let denied = self.store.admit(&text, Secondary::Tunnel, self.now).unwrap_err();
        assert_eq!(denied.reason, reason);
        assert_eq!(denied.owner.is_some(), reason == Refusal::SisterNode);
        assert!(self.sister.len() == 1);
        "admit nonsense"
    }

    fn hang_up(&mut self) -> &'static str {
        if let Some(session) = pick(&mut self.dice, &mut self.sessions) {
            session.open.pop();
        }
        "hang up"
    }

    fn hear(&mut self) -> &'static str {
        let (now, beat) = (self.now, self.dice.below(3) == 0);
        if let Some(session) = pick(&mut self.dice, &mut self.sessions) {
            if beat {
                session.grant.beat(now);
                session.beaten = Some(now);
            } else {
                session.grant.touch(now);
                session.active = now;
            }
        }
        "hear"
    }

    fn add_route(&mut self) -> &'static str {
        let (desktop, max) = (self.dice.below(3), [None, Some(2)][self.dice.below(2)]);
        let occupied = self
            .live()
            .filter(|session| session.routes.iter().any(|route| route.1 == desktop))
            .count();
        let protocol = Protocol::ALL[self.dice.below(2)];
        let Some(session) = pick(&mut self.dice, &mut self.sessions) else {
            return "add route";
        };
        let before = session.grant.routes();
        let same = before
            .iter()
            .any(|route| *route.desktop() == desktop_id(desktop) && route.protocol() == protocol);
        let on_it = session.routes.iter().any(|route| route.1 == desktop);
        let added = session
            .grant
            .add_route(&desktop_id(desktop), protocol, &target(desktop), max);
        if session.ended.is_some() {
            assert_eq!(added.unwrap_err(), RouteRefusal::Ended);
        } else if same {
            assert!(
                before.iter().any(|route| Arc::ptr_eq(route, added.as_ref().unwrap())),
                "the same route again"
            );
        } else if !on_it && max.is_some_and(|max| occupied >= max) {
            assert_eq!(added.unwrap_err(), RouteRefusal::DesktopFull);
            return "add route: desktop full";
        } else {
            session.routes.push((added.unwrap().id(), desktop));
        }
        "add route"
    }

    fn remove_route(&mut self) -> &'static str {
        if let Some(session) = pick(&mut self.dice, &mut self.sessions) {
            let gone = session.routes.pop();
            let id = gone.map_or(RouteId(u32::MAX), |route| route.0);
            assert_eq!(session.grant.remove_route(id).is_some(), gone.is_some());
        }
        "remove route"
    }

    fn revoke(&mut self) -> &'static str {
        let reason = [CloseReason::Logout, CloseReason::Killed, CloseReason::Drained][self.dice.below(3)];
        let store = &self.store;
        if let Some(session) = pick(&mut self.dice, &mut self.sessions) {
            assert_eq!(store.revoke(session.grant.id(), reason), session.ended.is_none());
            if session.ended.is_none() {
                session.end(reason);
            }
        }
        "revoke"
    }

    fn revoke_user(&mut self) -> &'static str {
        let user = self.dice.below(USERS.len());
        let expected = self.live().filter(|session| session.user == user).count();
        let ended = self.store.revoke_user(&UserName::new(USERS[user]), CloseReason::Killed);
        assert_eq!(ended, expected);
        for session in self
            .sessions
            .iter_mut()
            .filter(|session| session.user == user && session.ended.is_none())
        {
            session.end(CloseReason::Killed);
        }
        "revoke user"
    }

    fn sweep(&mut self) -> &'static str {
        let now = self.now;
        let mut expected: Vec<_> = self
            .live()
            .filter_map(|session| session.overdue(now).map(|reason| (session.grant.id(), reason.code())))
            .collect();
        let mut swept: Vec<_> = self
            .store
            .sweep(now)
            .iter()
            .map(|(grant, reason)| (grant.id(), reason.code()))
            .collect();
        expected.sort_unstable();
        swept.sort_unstable();
        assert_eq!(swept, expected);
        let act = expected.first().map_or("sweep", |end| end.1);
        for session in self.sessions.iter_mut().filter(|session| session.ended.is_none()) {
            if let Some(reason) = session.overdue(now) {
                session.end(reason);
            }
        }
        assert!(
            self.store.next_deadline().is_none_or(|next| next > now),
            "what is due was looked at"
        );
        act
    }

    fn reload(&mut self) -> &'static str {
        self.limits = limits(&mut self.dice);
        self.store.set_limits(self.limits.clone());
        "reload"
    }

    /// Another process takes the grants over: what is over or has ended stays behind, the rest goes on as it was.
    fn hand_over(&mut self) -> &'static str {
        let written = serde_json::to_vec(&self.store.snapshot(self.now)).unwrap();
        let read: Vec<GrantSnapshot> = serde_json::from_slice(&written).unwrap();
        let seed = self.dice.roll();
        self.store = store(seed, self.limits.clone());
        let now = self.now;
        let live = |session: &Session| session.ended.is_none() && session.overdue(now).is_none();
        let expected = self.sessions.iter().filter(|session| live(session)).count();
        assert_eq!(self.store.restore(&read, now, now), expected);
        assert_eq!(self.store.restore(&read, now, now), 0, "nothing is taken over twice");
        for session in self.sessions.iter().filter(|session| !live(session)) {
            assert!(self.store.get(session.grant.id()).is_none());
            for token in &session.tokens {
                let denied = self
                    .store
                    .admit(token.token.as_str(), token.secondary, now)
                    .unwrap_err();
                assert_eq!(
                    denied.reason,
                    Refusal::UnknownToken,
                    "what has ended does not come back"
                );
            }
        }
        self.sessions.retain(live);
        for session in &mut self.sessions {
            session.open.clear();
            session.grant = self.store.get(session.grant.id()).unwrap();
        }
        "hand over"
    }

    fn wait(&mut self) -> &'static str {
        let span = [2, 10, 60, 60, 600][self.dice.below(5)];
        self.now += Duration::from_secs(self.dice.below(span) as u64);
        // Grants of long ago teach nothing; keep the model quick.
        if self.sessions.iter().filter(|session| session.ended.is_some()).count() > 5 {
            self.sessions.retain(|session| session.ended.is_none());
        }
        "wait"
    }

    fn check(&self, seed: u64, step: usize, act: &str) {
        let place = format!("seed {seed}, step {step}, {act}");
        self.store.check_invariants();
        assert_eq!(self.store.len(), self.live().count(), "{place}");
        for session in &self.sessions {
            let grant = &session.grant;
            assert_eq!(grant.revocation(), session.ended, "{place}");
            assert_eq!(grant.connections(), session.open.len(), "{place}");
            assert_eq!(grant.last_activity(), session.active, "{place}");
            assert_eq!(grant.last_beat(), session.beaten, "{place}");
            assert_eq!(self.store.get(grant.id()).is_some(), session.ended.is_none(), "{place}");
            let routes: Vec<_> = grant.routes().iter().map(|route| route.id()).collect();
            assert_eq!(
                routes,
                session.routes.iter().map(|route| route.0).collect::<Vec<_>>(),
                "{place}"
            );
        }
        let mut users: BTreeMap<usize, usize> = BTreeMap::new();
        for session in self.live() {
            *users.entry(session.user).or_default() += 1;
        }
        for (number, user) in USERS.iter().enumerate() {
            let own = self.store.by_user(&UserName::new(user)).len();
            assert_eq!(own, users.get(&number).copied().unwrap_or(0), "{place}");
        }
        for desktop in 0..3 {
            let on_it = self
                .live()
                .filter(|session| session.routes.iter().any(|route| route.1 == desktop))
                .count();
            assert_eq!(self.store.sessions_on(&desktop_id(desktop)), on_it, "{place}");
        }
    }

    fn live(&self) -> impl Iterator<Item = &Session> {
        self.sessions.iter().filter(|session| session.ended.is_none())
    }

    fn secondary(&mut self) -> Secondary {
        [Secondary::Tunnel, Secondary::Tunnel, Secondary::Blast][self.dice.below(3)]
    }
}

fn pick<'a>(dice: &mut Dice, sessions: &'a mut [Session]) -> Option<&'a mut Session> {
    if sessions.is_empty() {
        return None;
    }
    let at = dice.below(sessions.len());
    sessions.get_mut(at)
}

fn store(seed: u64, limits: config::Session) -> Store {
    named("gw-1", seed, limits)
}

fn named(name: &str, seed: u64, limits: config::Session) -> Store {
    let label: NodeName = name.parse().unwrap();
    Store::with_randomness(
        label,
        Some(&Secret::new("fleet")),
        limits,
        Box::new(Mutex::new(Dice::new(seed))),
    )
}

fn limits(dice: &mut Dice) -> config::Session {
    config::Session {
        lifetime: Duration::from_secs(1_000 + dice.below(5_000) as u64),
        idle: [None, Some(Duration::from_secs(700))][dice.below(2)],
        heartbeat: Duration::from_secs(60 + dice.below(600) as u64),
        login_timeout: Duration::from_secs(300),
        first_use: Duration::from_secs(60),
        max: 6 + dice.below(10),
        per_user: 1 + dice.below(5),
        connections: 1 + dice.below(4),
    }
}

fn desktop_id(number: usize) -> DesktopId {
    DesktopId::new(format!("desktop-{number}"))
}

fn target(number: usize) -> Target {
    Target {
        host: format!("vdi-{number}"),
        port: 3389,
    }
}

/// SplitMix64: repeatable randomness.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }
}

impl Randomness for Mutex<Dice> {
    fn fill(&self, bytes: &mut [u8]) {
        let mut dice = self.lock();
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&dice.roll().to_le_bytes()[..chunk.len()]);
        }
    }
}

const WORTH_SEEING: [&str; 15] = [
    "mint: node full",
    "mint: user full",
    "unknown_token",
    "expired",
    "revoked",
    "wrong_protocol",
    "window_missed",
    "flow_limit",
    "admit",
    "admit: replaces a token in use",
    "admit nonsense",
    "add route: desktop full",
    "session_expired",
    "session_idle",
    "heartbeat_lost",
];
const SEEDS: u64 = 256;
const STEPS: usize = 500;
const USERS: [&str; 4] = ["ann", "bob", "cat", "dan"];
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
