//! The pools as operators read them.

use super::api::{Name, Pool, PoolList, ProbeResult, Target};
use super::routes::Moment;
use crate::upstream::{self, NameView, PoolView, PoolsView, TargetView};

impl PoolList {
    /// How everything stood at `moment`.
    pub(super) fn new(view: PoolsView, moment: Moment) -> Self {
        Self {
            pools: view.pools.into_iter().map(|pool| Pool::new(pool, moment)).collect(),
            names: view.names.into_iter().map(Name::new).collect(),
        }
    }
}

impl Pool {
    fn new(view: PoolView, moment: Moment) -> Self {
        Self {
            pool: view.pool,
            backend: view.backend,
            panic: view.is_panic,
            targets: view
                .targets
                .into_iter()
                .map(|target| Target::new(target, moment))
                .collect(),
        }
    }
}

impl Target {
    fn new(view: TargetView, moment: Moment) -> Self {
        let seconds = |left: std::time::Duration| left.as_secs();
        Self {
            host: view.host,
            address: view.address.to_string(),
            condition: view.condition.code().to_owned(),
            since: moment.wall_of(moment.now - view.for_),
            weight: view.weight,
            requests: view.in_flight,
            ejected_seconds: view.ejected.map(seconds),
            draining_seconds: view.draining.map(seconds),
            results: view.results.into_iter().map(ProbeResult::new).collect(),
        }
    }
}

impl ProbeResult {
    fn new(result: upstream::ProbeResult) -> Self {
        let (status, fault) = match result.outcome {
            Ok(status) => (status, None),
            Err(fault) => (None, Some(fault)),
        };
        let tls = result.tls.as_deref();
        Self {
            at: format!("{:.0}", result.at),
            milliseconds: result.took.as_millis().try_into().unwrap_or(u64::MAX),
            address: result.address.to_string(),
            status,
            reason: fault.as_ref().map(|fault| fault.code().to_owned()),
            words: fault.map(|fault| fault.to_string()),
            excused: result.is_excused,
            tls: tls.map(|tls| format!("{} {}", tls.version, tls.suite)),
            certificate_expires: tls.and_then(|tls| tls.not_after).map(|expires| format!("{expires:.0}")),
        }
    }
}

impl Name {
    fn new(view: NameView) -> Self {
        Self {
            name: view.name,
            addresses: view.addresses.iter().map(ToString::to_string).collect(),
            fault: view.fault.map(|(fault, _)| fault.to_string()),
            fault_seconds: view.fault.map(|(_, lasting)| lasting.as_secs()),
        }
    }
}
