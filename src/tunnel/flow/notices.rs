//! What is said of datagrams that were turned away: every one is counted, few are told.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::fault::Refusal;

/// Decides which refusals deserve a line in the log: the first of a source and reason within a minute, and in all not more
/// than a few a second, from however many sources they come. Of a fixed size.
#[derive(Debug)]
pub(super) struct Notices {
    told: Box<[Option<(u64, Instant)>]>,
    hasher: RandomState,
    /// Lines of the current second.
    second: Option<Instant>,
    lines: u32,
    unsaid: u64,
}

impl Notices {
    /// The most lines a second.
    pub(super) const LINES: u32 = 5;
    const PLACES: usize = 1024;
    const ONCE_IN: Duration = Duration::from_secs(60);

    /// Whether to tell of this one; if so, how many were passed over in silence since the last line.
    pub(super) fn note(&mut self, client: IpAddr, reason: Refusal, now: Instant) -> Option<u64> {
        let print = self.hasher.hash_one((client, reason));
        let place = &mut self.told[print as usize % Self::PLACES];
        let again = place.is_some_and(|(who, at)| who == print && now.saturating_duration_since(at) < Self::ONCE_IN);
        if again || !self.has_line(now) {
            self.unsaid += 1;
            return None;
        }
        self.told[print as usize % Self::PLACES] = Some((print, now));
        Some(std::mem::take(&mut self.unsaid))
    }

    fn has_line(&mut self, now: Instant) -> bool {
        let same = self
            .second
            .is_some_and(|second| now.saturating_duration_since(second) < Duration::from_secs(1));
        if !same {
            self.second = Some(now);
            self.lines = 0;
        }
        self.lines += 1;
        self.lines <= Self::LINES
    }
}

impl Default for Notices {
    fn default() -> Self {
        Self {
            told: vec![None; Self::PLACES].into(),
            hasher: RandomState::new(),
            second: None,
            lines: 0,
            unsaid: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_told_of_once_a_minute_for_each_reason() {
        let start = crate::clock::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut notices = Notices::default();
        let client = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(notices.note(client, Refusal::WindowMissed, start), Some(0));
        for _ in 0..1000 {
            assert_eq!(notices.note(client, Refusal::WindowMissed, at(30)), None);
        }
        assert_eq!(notices.note(client, Refusal::Malformed, at(31)), Some(1000));
        assert_eq!(notices.note(client, Refusal::WindowMissed, at(60)), Some(0));
    }

    #[test]
    fn a_flood_of_sources_is_a_few_lines_a_second() {
        let start = crate::clock::now();
        let mut notices = Notices::default();
        let lines = (0..50_000_u32).filter(|n| {
            let now = start + Duration::from_micros(u64::from(*n) * 100);
            notices
                .note(IpAddr::V4((*n).into()), Refusal::AddressMismatch, now)
                .is_some()
        });
        assert!(lines.count() <= 6 * Notices::LINES as usize);
    }
}
