//! A [`Door`] as the socket of a QUIC endpoint, which gets only what no flow claims.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use quinn::{AsyncUdpSocket, UdpPoller};
use quinn_udp::{RecvMeta, Transmit};

use super::Door;

impl AsyncUdpSocket for Door {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable {
            door: self,
            waiting: Mutex::default(),
        })
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.socket().try_send(transmit)
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.receive(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.socket().local())
    }

    fn max_transmit_segments(&self) -> usize {
        self.socket().segments().0
    }

    fn max_receive_segments(&self) -> usize {
        self.socket().segments().1
    }

    fn may_fragment(&self) -> bool {
        self.socket().may_fragment()
    }
}

/// One of those who wait until the socket takes more. Many may wait at one time, each for itself.
struct Writable {
    door: Arc<Door>,
    waiting: Mutex<Option<Waiting>>,
}

type Waiting = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut slot = self.waiting.lock();
        let waiting = slot.get_or_insert_with(|| {
            let door = self.door.clone();
            Box::pin(async move { door.socket().writable().await })
        });
        let polled = waiting.as_mut().poll(cx);
        if polled.is_ready() {
            *slot = None;
        }
        polled
    }
}

impl fmt::Debug for Writable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writable").finish_non_exhaustive()
    }
}
