//! The control channel's sessions as another process of this node takes them over: cookies, sign-ins in the middle, and
//! what was counted of failures.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Control;
use super::sessions::{Session, Sessions, State};
use crate::authenticate::{Chain, ChainSnapshot, ThrottleSnapshot};
use crate::broker::{Directory, StateFault};
use crate::config::{self, Config};
use crate::grant::{Grant, Store};
use crate::types::{Octets32, SessionId};

/// A cookie session as data. The cookie itself is not in it, only its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSnapshot {
    cookie: Octets32,
    state: StateSnapshot,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateSnapshot {
    /// A sign-in in the middle, and how long it may still take.
    SigningIn { chain: ChainSnapshot, left: Duration },
    /// The grant's id.
    SignedIn { grant: String },
}

impl Control {
    /// All cookie sessions as data. While an envelope is answered its session is not among them: to be called while
    /// none is.
    pub fn snapshot(&self, now: Instant) -> Vec<SessionSnapshot> {
        self.sessions.snapshot(now)
    }

    /// What was counted of failed sign-ins.
    pub fn throttled(&self, now: Instant) -> ThrottleSnapshot {
        self.throttle.lock().snapshot(now)
    }

    /// What is known of the cookie of a session that has signed in.
    pub fn cookie_of(&self, session: SessionId) -> Option<Octets32> {
        self.sessions.cookie_of(session)
    }

    /// Has a cookie lead to a grant that was kept.
    pub fn adopt(&self, cookie: &Octets32, grant: Arc<Grant>) {
        self.sessions.adopt_signed_in(cookie, grant);
    }

    /// Takes over the cookie sessions that another process had at the moment `taken`, after its grants.
    pub fn restore(&self, sessions: Vec<SessionSnapshot>, taken: Instant) {
        let settings = self.settings.load();
        self.sessions
            .restore(sessions, &self.grants, &settings.authentication, taken);
    }

    /// Goes on counting failed sign-ins.
    pub fn restore_throttle(&self, throttle: &ThrottleSnapshot, taken: Instant) {
        self.throttle.lock().restore(throttle, taken);
    }

    /// Reads once more what users have changed, after another process has written it. Blocks on the file system.
    ///
    /// # Errors
    /// The file cannot be read; nothing has changed then.
    pub fn read_again(&self, config: &Config) -> Result<(), StateFault> {
        self.directory.store(Arc::new(Directory::load(config)?));
        Ok(())
    }

    /// Writes what users have changed and is not on the disk yet.
    ///
    /// # Errors
    /// The disk refuses it.
    pub async fn flush(&self) -> Result<(), StateFault> {
        let directory = self.directory.load_full();
        directory.flush().await
    }
}

impl Sessions {
    fn snapshot(&self, now: Instant) -> Vec<SessionSnapshot> {
        let entries = self.entries.pin();
        let snapshot = |(key, session): (&_, &Arc<Session>)| {
            let state = session.state.try_lock().ok()?;
            let state = match &*state {
                State::SigningIn { chain } => StateSnapshot::SigningIn {
                    chain: chain.snapshot(),
                    left: self.time_left(key, now)?,
                },
                State::SignedIn { grant } => StateSnapshot::SignedIn {
                    grant: grant.id().to_string(),
                },
            };
            let cookie = key.octets();
            Some(SessionSnapshot { cookie, state })
        };
        entries.iter().filter_map(snapshot).collect()
    }

    fn restore(
        &self,
        sessions: Vec<SessionSnapshot>,
        grants: &Store,
        authentication: &config::Authentication,
        taken: Instant,
    ) {
        let mut sign_ins = Vec::new();
        for SessionSnapshot { cookie, state } in sessions {
            match state {
                StateSnapshot::SigningIn { chain, left } => sign_ins.push((left, cookie, chain)),
                StateSnapshot::SignedIn { grant } => {
                    // One whose grant did not come along begins again.
                    if let Some(grant) = grant.parse().ok().and_then(|id| grants.get(id)) {
                        self.adopt_signed_in(&cookie, grant);
                    }
                }
            }
        }
        // They are swept in the order in which they come.
        sign_ins.sort_by_key(|(left, ..)| *left);
        for (left, cookie, chain) in sign_ins {
            let chain = Chain::restored(chain, authentication);
            self.adopt_sign_in(&cookie, chain, taken + left);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::authenticate::{Answer, Authenticated, Due};
    use crate::fault::CloseReason;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn grants() -> Store {
        let limits = config::Session {
            lifetime: Duration::from_secs(3600),
            idle: None,
            heartbeat: Duration::from_secs(60),
            login_timeout: Duration::from_secs(300),
            first_use: Duration::from_secs(60),
            max: 9,
            per_user: 9,
            connections: 9,
        };
        Store::new("gw-1".parse().unwrap(), None, limits)
    }

    fn authentication() -> config::Authentication {
        config::Authentication {
            disclaimer: Some("terms".to_owned()),
            domains: vec!["LAB".to_owned()],
            attempts: 3,
            throttle: config::Throttle {
                per_user: 9,
                per_source: 9,
                window: Duration::from_secs(60),
            },
        }
    }

    #[tokio::test]
    async fn cookies_find_their_sessions_in_another_process() {
        let now = crate::clock::now();
        let (before, after) = (Sessions::default(), Sessions::default());
        let (old, new) = (grants(), grants());
        let mut chain = Chain::new(&authentication(), CLIENT);
        chain.answer(Answer::Disclaimer { accept: true });
        let deadline = now + Duration::from_secs(100);
        let (_, half_way) = before.begin(CLIENT, chain, deadline, 9).unwrap();
        let [stays, ends] = [(); 2].map(|()| {
            let chain = Chain::new(&authentication(), CLIENT);
            let (session, _) = before.begin(CLIENT, chain, deadline, 9).unwrap();
            let grant = old.mint(Authenticated::for_test("ann", CLIENT, now), now).unwrap();
            *session.state.try_lock().unwrap() = State::SignedIn { grant: grant.clone() };
            (before.signed_in(&session, &grant), grant)
        });
        let written = serde_json::to_string(&before.snapshot(now)).unwrap();
        assert!(!written.contains(half_way.expose()) && !written.contains(stays.0.expose()));
        let snapshots = old.snapshot(now);
        old.revoke(ends.1.id(), CloseReason::Logout);
        let live: Vec<_> = (snapshots.into_iter())
            .filter(|grant| grant.id() != Some(ends.1.id()))
            .collect();
        new.restore(&live, now, now);
        after.restore(serde_json::from_str(&written).unwrap(), &new, &authentication(), now);

        let found = after.find(half_way.expose()).unwrap();
        let state = found.state.lock().await;
        let State::SigningIn { chain } = &*state else {
            panic!("in the middle")
        };
        assert!(
            matches!(chain.due(), Due::Password { .. }),
            "the disclaimer is behind it"
        );
        assert_eq!(after.pending(), 1);
        let found = after.find(stays.0.expose()).unwrap();
        let state = found.state.lock().await;
        let State::SignedIn { grant } = &*state else {
            panic!("signed in")
        };
        assert_eq!(grant.id(), stays.1.id());
        assert!(after.find(ends.0.expose()).is_none());
        assert_eq!(after.sweep(deadline), 1, "the time of the sign-in runs on");
        after.forget_grant(stays.1.id());
        assert!(after.find(stays.0.expose()).is_none());
    }
}
