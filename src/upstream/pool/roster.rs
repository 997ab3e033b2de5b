//! Every target of a pool, and what is looked up among them.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Seat;

/// Which target, the same on every node and after every start: `10.0.0.5:8080/backend`, or for one address of a name
/// `shop.example=10.0.0.5:8080/backend`. Affinity is derived from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetId(Arc<str>);

impl TargetId {
    /// That of a target as it is configured, at one of its addresses, spoken to by a backend; `None` is the default one.
    pub fn new(host: &str, address: SocketAddr, backend: Option<&str>) -> Self {
        let backend = backend.unwrap_or("-");
        let id = if host.parse::<IpAddr>().is_ok() {
            format!("{address}/{backend}")
        } else {
            format!("{host}={address}/{backend}")
        };
        Self(id.into())
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TargetId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Every target of a pool, those that are being drained too: for clients that stay with theirs.
#[derive(Debug)]
pub struct Roster {
    pub(super) by_id: HashMap<TargetId, Seat>,
    pub(super) derived: Box<dyn Any + Send + Sync>,
}

impl Roster {
    /// What was derived from the targets; `None` if it is no `T`.
    pub fn derived<T: 'static>(&self) -> Option<&T> {
        self.derived.downcast_ref()
    }

    /// The targets, in no order.
    pub fn targets(&self) -> impl Iterator<Item = &TargetId> {
        self.by_id.keys()
    }
}

/// Makes of a pool's targets what its users look clients up in, so that this costs the same however many there are.
pub trait Derive: fmt::Debug + Send + Sync {
    /// What [`Roster::derived`] gives. Called whenever the targets or the configuration have changed, and never by a
    /// request.
    fn derive(
        &self,
        pool: &str,
        backend: Option<&str>,
        targets: &mut dyn Iterator<Item = &TargetId>,
    ) -> Box<dyn Any + Send + Sync>;
}

/// Derives nothing.
#[cfg(test)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DeriveNothing;

#[cfg(test)]
impl Derive for DeriveNothing {
    fn derive(
        &self,
        _pool: &str,
        _backend: Option<&str>,
        _targets: &mut dyn Iterator<Item = &TargetId>,
    ) -> Box<dyn Any + Send + Sync> {
        Box::new(())
    }
}
