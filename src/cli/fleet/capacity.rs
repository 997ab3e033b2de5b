//! Whether the nodes that stay have room for everybody.

use crate::admin::api::NodeStatus;

/// Whether nodes can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capacity {
    /// The others take everybody, or do not say how many they take.
    Enough,
    /// Nobody else is in service.
    NobodyElse,
    /// The others take fewer than there are.
    TooLittle {
        /// Sessions of all nodes.
        sessions: usize,
        /// As many as the others take.
        room: usize,
    },
}

/// Whether the nodes `out` can be missed among `all`.
pub(super) fn without(out: &[&str], all: &[NodeStatus]) -> Capacity {
    let mut others = (all.iter())
        .filter(|status| status.state == "serving" && !out.contains(&status.name.as_str()))
        .peekable();
    if others.peek().is_none() {
        return Capacity::NobodyElse;
    }
    let room = others.try_fold(0_usize, |room, status| match status.sessions_max {
        0 => None,
        max => Some(room.saturating_add(max)),
    });
    let sessions = all.iter().map(|status| status.sessions).sum();
    match room {
        Some(room) if room < sessions => Capacity::TooLittle { sessions, room },
        Some(_) | None => Capacity::Enough,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::quiesce::tests::quiesced;

    fn serving(name: &str, sessions: usize, sessions_max: usize) -> NodeStatus {
        NodeStatus {
            name: name.to_owned(),
            state: "serving".to_owned(),
            sessions_max,
            ..quiesced(sessions, 0)
        }
    }

    #[test]
    fn the_others_must_take_everybody() {
        let all = [
            serving("gw-1", 60, 100),
            serving("gw-2", 50, 100),
            serving("gw-3", 0, 5),
        ];
        assert_eq!(without(&["gw-3"], &all), Capacity::Enough);
        let short = Capacity::TooLittle {
            sessions: 110,
            room: 105,
        };
        assert_eq!(without(&["gw-1"], &all), short);
        assert_eq!(without(&["gw-1", "gw-2", "gw-3"], &all), Capacity::NobodyElse);
        let of_an_earlier_version = [serving("gw-1", 60, 100), serving("gw-2", 50, 0)];
        assert_eq!(without(&["gw-1"], &of_an_earlier_version), Capacity::Enough);
    }

    #[test]
    fn who_is_out_of_service_takes_nobody() {
        let all = [serving("gw-1", 1, 100), quiesced(0, 0)];
        assert_eq!(without(&["gw-1"], &all[..1]), Capacity::NobodyElse);
        let mut other = quiesced(0, 0);
        other.name = "gw-2".to_owned();
        assert_eq!(
            without(&["gw-1"], &[serving("gw-1", 1, 100), other]),
            Capacity::NobodyElse
        );
    }
}
