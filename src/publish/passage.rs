//! One connection whose bytes pass as they are, from its rule to its target.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::lane::Lane;
use super::passages::{Course, Passage};
use super::path::host_of;
use super::{Published, Publisher};
use crate::clock;
use crate::config::web::Action;
use crate::fault::{CloseReason, WebFault};
use crate::inspect::guard::Denied;
use crate::listen::Facts;
use crate::route::web::Site;
use crate::tunnel::relay::{Passed, pass_counted};
use crate::upstream::connect::Io;
use crate::upstream::{Lease, Outcome, TargetId};

/// How far a connection came, for its line in the log.
#[derive(Debug, Default)]
pub struct Led {
    site: Option<Arc<Site>>,
    lane: Option<Arc<Lane>>,
    /// The target that was asked last.
    pub target: Option<SocketAddr>,
    /// Further targets that were asked.
    pub retries: u32,
    /// What was in the way.
    pub fault: Option<WebFault>,
    /// Bytes of the client that the target has taken.
    pub received: u64,
    /// Bytes of the target that the client has taken.
    pub sent: u64,
}

impl Led {
    /// The rule's name.
    pub fn rule(&self) -> Option<&str> {
        self.site.as_ref().map(|site| site.name.as_str())
    }

    /// The pool's name.
    pub fn pool(&self) -> Option<&str> {
        self.lane.as_ref().map(|lane| lane.forward.pool.as_str())
    }

    fn stop(&mut self, fault: WebFault, reason: CloseReason) -> CloseReason {
        self.fault = Some(fault);
        reason
    }
}

/// A connection to a target that waits for a client's bytes.
#[derive(Debug)]
pub struct Joined {
    io: Io,
    idle: Duration,
    lease: Lease,
    passage: Passage,
}

impl Publisher {
    /// Leads a client that asks for `name` within TLS, or for none, to a target of its rule's pool. Before the client is
    /// known to be admitted nothing is dialled.
    ///
    /// Cancel-safe: a connection that is not complete is given up.
    ///
    /// # Errors
    /// Why it ends here; `led` has more.
    pub async fn lead(
        &self,
        published: &Published,
        facts: &Facts,
        name: &str,
        led: &mut Led,
    ) -> Result<Joined, CloseReason> {
        let lane = self.admit(published, facts, name, led)?;
        let course = Course {
            listener: facts.listener.clone(),
            pool: lane.forward.pool.as_str().into(),
            backend: lane.backend().unwrap_or_default().into(),
        };
        let passage = self.passages.open(&course, clock::now()).ok_or(CloseReason::Drained)?;
        match self.reach(&lane, facts, led).await {
            Ok((io, lease)) => Ok(Joined {
                io,
                idle: lane.way.settings().idle_timeout,
                lease,
                passage,
            }),
            Err(fault) => Err(led.stop(fault, CloseReason::NoTarget)),
        }
    }

    fn admit(&self, published: &Published, facts: &Facts, name: &str, led: &mut Led) -> Result<Arc<Lane>, CloseReason> {
        let Some(site) = published.table.site(&facts.listener, name) else {
            return Err(led.stop(WebFault::NoRule, CloseReason::NoRule));
        };
        led.site = Some(site.clone());
        let grounds = published.grounds.get(site.index).ok_or(CloseReason::Internal)?;
        let admitted = grounds.guard.admit(facts.client.ip(), &self.rates, clock::now());
        admitted.map_err(|denied| match denied {
            Denied::Address => led.stop(denied.fault(), CloseReason::AddressDenied),
            Denied::Rate { .. } => led.stop(denied.fault(), CloseReason::RateLimited),
        })?;
        debug_assert!(matches!(site.rule.action, Action::Forward(_)), "the check sees to it");
        let lane = grounds.lane(None).ok_or(CloseReason::Internal)?;
        led.lane = Some(lane.clone());
        Ok(lane.clone())
    }

    /// Asks targets in turn, as often as the backend allows, until one takes the connection.
    async fn reach(&self, lane: &Lane, facts: &Facts, led: &mut Led) -> Result<(Io, Lease), WebFault> {
        let pool = self.pools.find(&lane.forward.pool, lane.backend());
        // A configuration that has just been put away had it.
        let pool = pool.ok_or(WebFault::NoTarget)?;
        let is_tls = lane.way.connector().is_tls();
        let client = Some((facts.client, facts.local));
        let mut tried: Vec<TargetId> = Vec::new();
        let mut failed = None;
        lane.way.budget().deposit();
        loop {
            let picked = pool.pick_besides(&tried, clock::now());
            // That there is no other says less than what was wrong with the first.
            let lease = picked.map_err(|fault| failed.unwrap_or(fault))?;
            led.retries = tried.len() as u32;
            let address = lease.address();
            led.target = Some(address);
            let host = host_of(lease.host(), address.port(), is_tls);
            let host = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
            match lane.way.dial(address, host, client).await {
                Ok(io) => {
                    lease.report(Outcome::Connected, clock::now());
                    return Ok((io, lease));
                }
                Err(fault) => {
                    tracing::debug!(
                        pool = lane.forward.pool,
                        target = %lease.target(),
                        cause = fault.code(),
                        "target not reached: {fault}"
                    );
                    lease.report(Outcome::Failed(fault.web()), clock::now());
                    if led.retries >= lane.way.settings().retries.max || !lane.way.budget().withdraw() {
                        return Err(fault.web());
                    }
                    failed = Some(fault.web());
                    tried.push(lease.target().clone());
                }
            }
        }
    }
}

impl Joined {
    /// Passes bytes both ways until both sides have ended, one is lost, nothing passes for too long, or the target or the
    /// way to it was taken away and its time is over. What breaks off reaches the target as a break.
    ///
    /// Not cancel-safe: dropped, the target sees an end in order.
    pub async fn carry<C>(self, client: &mut C, led: &mut Led) -> Passed
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let Self {
            mut io,
            idle,
            lease,
            passage,
        } = self;
        let count = |received, sent| {
            passage.count(received, sent);
            led.received += received;
            led.sent += sent;
        };
        let drained = Passed {
            reason: CloseReason::Drained,
            is_whole: false,
        };
        let passed = tokio::select! {
            passed = pass_counted(client, &mut io, idle, count, |_| {}) => passed,
            () = lease.cut().cancelled() => drained,
            () = passage.cut().cancelled() => drained,
        };
        if passed.reason != CloseReason::Completed {
            io.abort_at_end();
        }
        passed
    }
}
