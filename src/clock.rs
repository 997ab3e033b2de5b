//! The only clock.
//!
//! Pure parts take `now` as an argument; the rest asks here. Under a paused tokio runtime both answers
//! follow virtual time, so that no test has to sleep.

use std::time::{Duration, Instant};

use jiff::Timestamp;

/// The monotonic time, for deadlines and ages.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The time since the system has started, also while it slept; `None` if the system does not say it.
pub fn uptime() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    Duration::try_from_secs_f64(text.split(' ').next()?.parse().ok()?).ok()
}

/// Which start of the system this is; `None` if the system does not say it.
pub fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

/// The time of day, for people and records; never for deadlines.
pub fn wall() -> Timestamp {
    Timestamp::now()
}
