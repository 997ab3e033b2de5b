//! The way to a target that was picked.

use std::sync::Arc;
use std::time::Instant;

use http::header::HOST;
use http::{HeaderMap, HeaderValue};

use super::One;
use crate::fault::WebFault;
use crate::publish::lane::Lane;
use crate::publish::path::host_of;
use crate::upstream::web::{Leased, Wanted};
use crate::upstream::{Lease, Pool};

impl One<'_> {
    /// The pool of a lane.
    pub(super) fn pool(&self, lane: &Lane) -> Result<Arc<Pool>, WebFault> {
        let pools = &self.publisher.pools;
        // A configuration that has just been put away had it.
        let pool = pools.find(&lane.forward.pool, lane.backend());
        pool.ok_or(WebFault::NoTarget)
    }

    /// Puts `Host` for the target, and says what it is. `asked` is what the client asked under, where the request is not
    /// the client's own.
    pub(super) fn host_for(
        &self,
        lane: &Lane,
        lease: &Lease,
        fields: &mut HeaderMap,
        asked: Option<&str>,
    ) -> Option<HeaderValue> {
        let is_tls = lane.way.connector().is_tls();
        let host = lane
            .host
            .value(|| host_of(lease.host(), lease.address().port(), is_tls));
        let host = host.or_else(|| asked.and_then(|asked| HeaderValue::from_str(asked).ok()));
        if let Some(host) = host {
            fields.insert(HOST, host);
        }
        fields.get(HOST).cloned()
    }

    /// A connection to the target, since `now`.
    pub(super) async fn reach(
        &self,
        lane: &Lane,
        lease: &Lease,
        host: Option<&HeaderValue>,
        upgrade: bool,
        now: Instant,
    ) -> Result<Leased, WebFault> {
        let host = host.and_then(|host| host.to_str().ok()).unwrap_or_default();
        let wanted = Wanted {
            host,
            upgrade,
            own: lane.way.settings().dedicated.then_some(self.arrival.own),
        };
        let leased = lane.way.lease(lease.address(), wanted, now).await.map_err(|fault| {
            lane.exchanges.unreached();
            tracing::debug!(
                pool = lane.forward.pool,
                target = %lease.target(),
                cause = fault.code(),
                "target not reached: {fault}"
            );
            fault.web()
        })?;
        if !leased.is_reused() {
            lane.exchanges.connected(leased.since().saturating_duration_since(now));
        }
        Ok(leased)
    }
}
