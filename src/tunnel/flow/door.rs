//! Where datagrams come in.

use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn_udp::{BATCH_SIZE, RecvMeta};
use tokio_util::sync::CancellationToken;

use super::Flows;
use super::first::Port;
use crate::listen::udp::{Received, Shared, poll_batch};

/// A shared socket with the flow table before it: whoever reads here gets only what no flow claims.
///
/// On a listener's port that is QUIC's. When it is dropped, the flows that came in here end.
#[derive(Debug)]
pub struct Door {
    pub(super) socket: Arc<Shared>,
    pub(super) flows: Arc<Flows>,
    pub(super) port: Port,
    pub(super) shut: CancellationToken,
}

impl Door {
    /// Puts the table before a socket.
    pub fn new(socket: Shared, flows: Arc<Flows>, port: Port) -> Self {
        match port {
            Port::Pcoip => socket.let_fragment(),
            // QUIC finds out what passes.
            Port::Listener => {}
        }
        Self {
            socket: Arc::new(socket),
            flows,
            port,
            shut: CancellationToken::new(),
        }
    }

    /// The socket, for sending and for what it is.
    pub fn socket(&self) -> &Shared {
        &self.socket
    }

    /// Receives what no flow claims, as `quinn::AsyncUdpSocket` does. Cancel-safe.
    ///
    /// The buffers change places where something among them was claimed.
    pub fn receive(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            let most = buffers.len().min(metas.len()).min(BATCH_SIZE);
            let count = ready!(self.socket.poll_recv(cx, &mut buffers[..most], &mut metas[..most]))?;
            let mut foreign = [false; BATCH_SIZE];
            {
                let received: [_; BATCH_SIZE] = std::array::from_fn(|at| match (metas.get(at), buffers.get(at)) {
                    (Some(meta), Some(buffer)) if at < count => Received::new(meta, buffer),
                    (Some(_) | None, _) => Received::default(),
                });
                self.sort(&received[..count], |at| foreign[at] = true);
            }
            let mut kept = 0;
            for at in (0..count).filter(|at| foreign[*at]) {
                metas.swap(kept, at);
                buffers.swap(kept, at);
                kept += 1;
            }
            if kept > 0 {
                return Poll::Ready(Ok(kept));
            }
        }
    }

    /// Serves the flows where nothing else is spoken, until `stop` is cancelled: what no flow claims is dropped.
    pub async fn run(self, stop: CancellationToken) {
        let serve = poll_fn(|cx| {
            loop {
                if let Err(cause) = ready!(poll_batch(&self.socket, cx, |received| self.sort(received, |_| {}))) {
                    tracing::debug!(local = %self.socket.local(), %cause, "receiving failed");
                }
            }
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = serve => {}
        }
    }

    /// Passes on what flows claim, a client's datagrams together; `foreign` learns of the rest.
    fn sort(&self, received: &[Received<'_>], mut foreign: impl FnMut(usize)) {
        let mut at = 0;
        while let Some(first) = received.get(at) {
            let of_one = |other: &&Received<'_>| other.from == first.from && other.to == first.to;
            let together = received[at..].iter().take_while(of_one).count();
            if Flows::take(self, &received[at..at + together]) {
                at += together;
            } else {
                foreign(at);
                at += 1;
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut.cancel();
    }
}
