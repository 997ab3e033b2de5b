//! What the gateway granted with `authenticated`.

use std::time::Duration;

use crate::types::Secret;

/// The tunnel's timers and the credential of its resumption, held to sane bounds.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    secret: Option<Secret>,
    lost_contact: Duration,
    disconnected: Duration,
}

impl Terms {
    /// From the fields of the message, in milliseconds.
    pub(super) fn new(secret: Option<Secret>, lost_contact_ms: i64, disconnected_ms: i64) -> Self {
        Self {
            secret,
            lost_contact: within(lost_contact_ms, SHORTEST_CONTACT, LONGEST),
            disconnected: within(disconnected_ms, Duration::ZERO, LONGEST),
        }
    }

    /// Whether a broken connection can be replaced.
    pub(super) fn can_resume(&self) -> bool {
        self.secret.is_some() && self.disconnected > Duration::ZERO
    }

    /// The credential of a resumption.
    pub(super) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Silence after which the connection is given up.
    pub(super) fn lost_contact(&self) -> Duration {
        self.lost_contact
    }

    /// How long the gateway waits for a resumption.
    pub(super) fn disconnected(&self) -> Duration {
        self.disconnected
    }

    /// How often the client asks whether the gateway is there.
    pub(super) fn echo_interval(&self) -> Duration {
        self.lost_contact / 3
    }
}

fn within(milliseconds: i64, least: Duration, most: Duration) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or(0)).clamp(least, most)
}

/// A gateway cannot make the client ask more often than three times in this time …
const SHORTEST_CONTACT: Duration = Duration::from_secs(1);
/// … nor wait for longer than a day.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
