//! A way to the desktop in place of one that is gone: a gateway that was started again may know the session still.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::report::Report;
use super::{Connect, Door, Stop, Way};
use crate::client::{End, Fault, FaultKind, Notice, Prompter, QuicEnd, Session};
use crate::control::operation::Desktop;

impl Connect {
    /// Opens another way to `desktop`, for as long as the gateway may be on its way back; `ended` is why one is needed.
    ///
    /// # Errors
    /// The session is over with the way, or the gateway does not come back.
    pub(super) async fn open_again(
        &self,
        session: &mut Session,
        (desktop, door): (&Desktop, &Door),
        (ended, notices): (Fault, &mpsc::Sender<Notice>),
        report: &Report,
        prompter: &mut impl Prompter,
    ) -> Result<Way, Stop> {
        if !may_be_replaced(&ended) {
            return Err(Stop::Fault(ended));
        }
        let deadline = Instant::now() + PATIENCE;
        let mut pause = SHORTEST_PAUSE;
        loop {
            let opened = async {
                session.beat().await?;
                self.open(session, desktop, door, notices.clone(), report, prompter)
                    .await
            };
            match opened.await {
                Ok(way) => {
                    report.hint("Connected again. What was open is cut: programs have to connect once more.");
                    return Ok(way);
                }
                // The gateway has said why.
                Err(Stop::Fault(Fault::SessionOver { .. })) if is_explained(&ended) => return Err(Stop::Fault(ended)),
                Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Unreachable && Instant::now() < deadline => {
                    if pause == SHORTEST_PAUSE {
                        report.hint("The way to the desktop is gone. Opening another one …");
                    }
                    sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(stop) => return Err(stop),
            }
        }
    }
}

/// Whether the session may live although a way, or a beat, has come to this.
fn may_be_replaced(ended: &Fault) -> bool {
    if let Fault::Tunnel(end) = ended {
        matches!(
            end,
            End::Stopped { .. } | End::Broken | End::LostContact { .. } | End::NotAdmitted { .. }
        )
    } else if let Fault::Quic(end) = ended {
        matches!(end, QuicEnd::Stopped { .. } | QuicEnd::Lost { .. })
    } else {
        ended.kind() == FaultKind::Unreachable
    }
}

/// Whether a way ended with words of the gateway.
fn is_explained(ended: &Fault) -> bool {
    matches!(
        ended,
        Fault::Tunnel(End::Stopped { .. }) | Fault::Quic(QuicEnd::Stopped { .. })
    )
}

/// For the gateway to come back.
const PATIENCE: Duration = Duration::from_secs(90);
const SHORTEST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
