//! A route: one inside address that a session may have dialled.

use std::fmt;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::types::{DesktopId, Protocol, Target};

/// One inside address that a grant permits to be dialled, and as what.
#[derive(Debug)]
pub struct Route {
    id: RouteId,
    desktop: DesktopId,
    protocol: Protocol,
    target: Target,
    ended: CancellationToken,
}

impl Route {
    /// The most routes that one session may have.
    pub const MAX: usize = 256;

    pub(super) fn new(
        id: RouteId,
        desktop: DesktopId,
        protocol: Protocol,
        target: Target,
        ended: CancellationToken,
    ) -> Self {
        Self {
            id,
            desktop,
            protocol,
            target,
            ended,
        }
    }

    /// Its number within the session.
    pub fn id(&self) -> RouteId {
        self.id
    }

    /// The desktop to which it leads.
    pub fn desktop(&self) -> &DesktopId {
        &self.desktop
    }

    /// What is spoken over it.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// What to dial.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The name by which a tunnel knows it: protocol and number, at most 23 octets.
    pub fn port_name(&self) -> String {
        format!("{}-{}", self.protocol.wire_name().to_ascii_lowercase(), self.id)
    }

    /// Waits until it is taken away, or its session ends. Cancel-safe; any number may wait.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    pub(super) fn leads_to(&self, desktop: &DesktopId, protocol: Protocol, target: &Target) -> bool {
        self.desktop == *desktop && self.protocol == protocol && self.target == *target
    }
}

/// The number of a route within its session; never used twice there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RouteId(pub(super) u32);

impl RouteId {
    /// As a number.
    pub fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RouteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a session gets no further route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteRefusal {
    /// The session is over.
    #[error("the session has ended")]
    Ended,
    /// The desktop's `max_sessions` is reached.
    #[error("the desktop has as many sessions as it may have")]
    DesktopFull,
    /// The session has [`Route::MAX`] routes.
    #[error("the session has as many routes as it may have")]
    TooMany,
}
