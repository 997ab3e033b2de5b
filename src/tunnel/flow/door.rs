//! Where datagrams come in.

use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use quinn_udp::{BATCH_SIZE, RecvMeta};
use tokio_util::sync::CancellationToken;

use super::Flows;
use super::first::Port;
use crate::listen::ConnectionIds;
use crate::listen::pipe::{Inlet, Outlet, pipe};
use crate::listen::udp::{Received, Shared, poll_batch};

/// A shared socket with the flow table before it: whoever reads here gets only what no flow claims.
///
/// On a listener's port that is QUIC's. When it is dropped, the flows that came in here end.
///
/// Several processes of the node can have a door at one socket. The last of them reads it, and passes back what belongs
/// to a flow or a connection of the one before it; to clients and desktops all of them send by themselves.
#[derive(Debug)]
pub struct Door {
    pub(super) socket: Arc<Shared>,
    pub(super) flows: Arc<Flows>,
    pub(super) port: Port,
    pub(super) shut: CancellationToken,
    ids: Arc<ConnectionIds>,
    /// The way to the process before this one.
    before: Option<Outlet>,
    /// What the process after this one passes back.
    passed_back: Inlet,
    /// The other end, until that process has it.
    way_back: Mutex<Option<Outlet>>,
    /// The socket is read by another process.
    left: AtomicBool,
}

impl Door {
    /// Puts the table before a socket, in the runtime of the caller. `before`: another process has flows and connections
    /// there.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(
        socket: Shared,
        flows: Arc<Flows>,
        port: Port,
        ids: Arc<ConnectionIds>,
        before: Option<Outlet>,
    ) -> io::Result<Self> {
        let (passed_back, way_back) = pipe()?;
        match port {
            Port::Pcoip => socket.let_fragment(),
            // QUIC finds out what passes.
            Port::Listener => {}
        }
        Ok(Self {
            socket: Arc::new(socket),
            flows,
            port,
            shut: CancellationToken::new(),
            ids,
            before,
            passed_back,
            way_back: Mutex::new(Some(way_back)),
            left: AtomicBool::new(false),
        })
    }

    /// The way by which another process passes back what belongs here.
    ///
    /// # Errors
    /// No descriptor is left, or the way was taken.
    pub fn to_hand_over(&self) -> io::Result<OwnedFd> {
        let way_back = self.way_back.lock();
        way_back.as_ref().ok_or(io::ErrorKind::NotConnected)?.to_hand_over()
    }

    /// Leaves the socket to the process that has the way back, for as long as it has it.
    pub fn leave(&self) {
        self.left.store(true, Ordering::Release);
        *self.way_back.lock() = None;
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
            let mut count = ready!(self.poll_recv(cx, &mut buffers[..most], &mut metas[..most]))?;
            if let Some(before) = &self.before {
                let keeps = |buffer: &mut [u8], meta: &mut _| self.is_any_for_here(before, buffer, meta);
                count = keep(&mut buffers[..count], &mut metas[..count], keeps);
            }
            let mut foreign = [false; BATCH_SIZE];
            {
                let received: [_; BATCH_SIZE] = std::array::from_fn(|at| match (metas.get(at), buffers.get(at)) {
                    (Some(meta), Some(buffer)) if at < count => Received::new(meta, buffer),
                    (Some(_) | None, _) => Received::default(),
                });
                self.sort(&received[..count], |at| foreign[at] = true);
            }
            let mut foreign = foreign.into_iter();
            let kept = keep(&mut buffers[..count], &mut metas[..count], |_, _| {
                foreign.next() == Some(true)
            });
            if kept > 0 {
                return Poll::Ready(Ok(kept));
            }
        }
    }

    /// Serves the flows where nothing else is spoken, until `stop` is cancelled: what no flow claims is dropped.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let serve = poll_fn(|cx| {
            loop {
                let polled = poll_batch(
                    |buffers, metas| self.poll_recv(cx, buffers, metas),
                    |received| self.sort(received, |_| {}),
                );
                if let Err(cause) = ready!(polled) {
                    tracing::debug!(local = %self.socket.local(), %cause, "receiving failed");
                }
            }
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = serve => {}
        }
    }

    /// What came to the socket, if this process reads it, and what another one passes back.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        match self.passed_back.poll_recv(cx, buffers, metas) {
            Poll::Ready(Some(count)) => return Poll::Ready(Ok(count)),
            // The process that read it is no more, or serves the address no more.
            Poll::Ready(None) if !self.flows.has_passed_on() => self.left.store(false, Ordering::Release),
            Poll::Ready(None) | Poll::Pending => {}
        }
        if self.left.load(Ordering::Acquire) {
            return Poll::Pending;
        }
        self.socket.poll_recv(cx, buffers, metas)
    }

    /// Passes back what is for a connection of the process before this one. Whether there is something else in the
    /// buffer, which is then all that it holds.
    fn is_any_for_here(&self, before: &Outlet, buffer: &mut [u8], meta: &mut RecvMeta) -> bool {
        let is_of_before = |datagram: &[u8]| self.ids.is_of_another(datagram);
        let received = Received::new(meta, buffer);
        let of_before = received.datagrams().filter(|one| is_of_before(one)).count();
        if of_before == 0 {
            return true;
        }
        if of_before == received.count() {
            // Clients that it has asked to prove their address come here once it is no more.
            return !before.pass_on(&received);
        }
        // One client has connections here and there.
        let mut kept = 0;
        for start in (0..received.octets()).step_by(meta.stride.max(1)) {
            let end = meta.len.min(start + meta.stride);
            if is_of_before(&buffer[start..end]) {
                before.pass_on(&Received::new(meta, &[]).single(&buffer[start..end]));
            } else {
                buffer.copy_within(start..end, kept);
                kept += end - start;
            }
        }
        meta.len = kept;
        true
    }

    /// Passes back what belongs to a flow of the process before this one.
    pub(super) fn pass_back(&self, received: &[Received<'_>]) {
        if let Some(before) = &self.before {
            for received in received {
                before.pass_on(received);
            }
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

/// Brings the buffers that are kept to the front; how many they are.
fn keep(
    buffers: &mut [IoSliceMut<'_>],
    metas: &mut [RecvMeta],
    mut keeps: impl FnMut(&mut [u8], &mut RecvMeta) -> bool,
) -> usize {
    let mut kept = 0;
    for at in 0..buffers.len().min(metas.len()) {
        if keeps(&mut buffers[at], &mut metas[at]) {
            metas.swap(kept, at);
            buffers.swap(kept, at);
            kept += 1;
        }
    }
    kept
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut.cancel();
    }
}
