//! The only clock.
//!
//! Pure parts take `now` as an argument; the rest asks here. Under a paused tokio runtime both answers
//! follow virtual time, so that no test has to sleep.

use std::time::Instant;

use jiff::Timestamp;

/// The monotonic time, for deadlines and ages.
pub fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The time of day, for people and records; never for deadlines.
pub fn wall() -> Timestamp {
    Timestamp::now()
}
