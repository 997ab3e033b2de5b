//! The wait until a quiesced node is empty.

use std::time::Duration;

use super::member::{Member, MemberFault, SILENCE};
use crate::admin::api::NodeStatus;
use crate::clock;

/// How the wait ended.
#[derive(Debug)]
pub(super) enum Drained {
    /// Nobody is there any more.
    Empty,
    /// Somebody else has put the node back in service.
    BackInService,
    /// The time is over.
    TimedOut(Box<NodeStatus>),
}

/// Waits until no session and no sign-in is left on a node, for `limit` at the most. `tell` hears of every answer.
///
/// Cancel-safe: dropped, it leaves the node as it is.
///
/// # Errors
/// The node cannot be asked, also not again for [`SILENCE`].
pub(super) async fn empty(
    member: &Member,
    limit: Duration,
    mut tell: impl FnMut(&NodeStatus),
) -> Result<Drained, MemberFault> {
    let began = clock::now();
    let mut answered = began;
    loop {
        match member.status().await {
            Ok(status) => {
                answered = clock::now();
                if !matches!(status.state.as_str(), "quiesced" | "draining") {
                    return Ok(Drained::BackInService);
                }
                if status.sessions == 0 && status.pending_logins == 0 {
                    return Ok(Drained::Empty);
                }
                if answered.duration_since(began) >= limit {
                    return Ok(Drained::TimedOut(Box::new(status)));
                }
                tell(&status);
            }
            Err(fault) if fault.may_pass() && clock::now().duration_since(answered) < SILENCE => {}
            Err(fault) => return Err(fault),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

pub(super) const PAUSE: Duration = Duration::from_secs(1);
