//! The signals that end a connection.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, the end of the terminal (also what ssh sends to its ProxyCommand), and a request to end.
pub(super) struct Interrupts {
    interrupt: Signal,
    hang_up: Signal,
    terminate: Signal,
    foreground: Foreground,
    hung_up: bool,
}

/// Whether another program is in the foreground: Ctrl-C is that program's, which gets it itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Foreground(Arc<AtomicBool>);

impl Interrupts {
    /// Receives the signals from here on; the process does not die of them any more.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            foreground: Foreground::default(),
            hung_up: false,
        })
    }

    /// What tells that another program is in the foreground.
    pub(super) fn foreground(&self) -> Foreground {
        self.foreground.clone()
    }

    /// Whether the terminal, or ssh, has let go.
    pub(super) fn hung_up(&self) -> bool {
        self.hung_up
    }

    /// The outcome of `work`, or `None` if a signal cut it short.
    pub(super) async fn cut<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                outcome = &mut work => return Some(outcome),
                _ = self.interrupt.recv() => {
                    if !self.foreground.0.load(Ordering::Relaxed) {
                        return None;
                    }
                }
                _ = self.hang_up.recv() => {
                    self.hung_up = true;
                    return None;
                }
                _ = self.terminate.recv() => return None,
            }
        }
    }
}

impl Foreground {
    /// Another program comes to the foreground, or leaves it.
    pub(super) fn set(&self, occupied: bool) {
        self.0.store(occupied, Ordering::Relaxed);
    }
}
