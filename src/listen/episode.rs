//! One log line for a trouble, however often it strikes.

use std::time::{Duration, Instant};

/// A trouble that comes in spells. A spell is over when the trouble has stayed away for a minute.
#[derive(Debug, Default)]
pub struct Episode {
    last: Option<Instant>,
}

impl Episode {
    /// The trouble struck: `true` if that begins a spell, and so deserves a line.
    pub fn begins(&mut self, now: Instant) -> bool {
        let quiet = self.last.is_none_or(|last| now.duration_since(last) > OVER_AFTER);
        self.last = Some(now);
        quiet
    }
}

const OVER_AFTER: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spell_speaks_once_and_a_later_one_again() {
        let start = crate::clock::now();
        let mut episode = Episode::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(episode.begins(at(0)));
        assert!(!episode.begins(at(50)));
        assert!(!episode.begins(at(100)));
        assert!(episode.begins(at(161)));
    }
}
