//! UDP: sockets that all peers share, sockets of one peer, and batches of datagrams.
//!
//! The system may hand over several datagrams of one sender as one buffer (GRO): [`Received::datagrams`] takes it apart by
//! its stride, always. Sending puts runs of datagrams of one size together again (GSO) where that pays, and does without
//! for the life of a socket whose device cannot do it.
//!
//! A datagram that a socket does not take at once is lost, as on any network; nobody waits.

use std::array;
use std::cell::RefCell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::task::{Context, Poll, ready};

use quinn_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, set_ip_mtu_discover};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;

use super::BindFault;

/// Opens a UDP socket, non-blocking, for exactly that address: an IPv6 one takes no IPv4 datagrams.
///
/// # Errors
/// [`BindFault`], whose text names the address and what to do.
pub fn bind_udp(address: SocketAddr) -> Result<UdpSocket, BindFault> {
    let bound = || {
        let socket = open(address)?;
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    bound().map_err(|cause| BindFault { address, cause })
}

fn open(family: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(family), Type::DGRAM, Some(Protocol::UDP))?;
    if family.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    // The system gives as much of it as its limits allow.
    let _ = socket.set_recv_buffer_size(BUFFER);
    let _ = socket.set_send_buffer_size(BUFFER);
    Ok(socket)
}

/// What came in pieces, and was put together here, goes on in pieces. (Over IPv6 what is too long is lost.)
fn let_fragment(socket: impl AsFd) {
    let _ = set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DONT);
}

/// A buffer filled by the system: one datagram, or several of one sender.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Who sent it.
    pub from: SocketAddr,
    /// To which address of this node it was sent, if the system says so.
    pub to: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    bytes: &'a [u8],
    stride: usize,
}

impl Default for Received<'_> {
    fn default() -> Self {
        Self::new(&RecvMeta::default(), &[])
    }
}

impl<'a> Received<'a> {
    /// What `meta` says of `buffer`.
    pub fn new(meta: &RecvMeta, buffer: &'a [u8]) -> Self {
        let bytes = &buffer[..meta.len.min(buffer.len())];
        Self {
            from: meta.addr,
            to: meta.dst_ip,
            ecn: meta.ecn,
            bytes,
            stride: meta.stride,
        }
    }

    /// The datagrams, one by one; the last one may be shorter than the others.
    pub fn datagrams(self) -> impl Iterator<Item = &'a [u8]> {
        // An empty datagram is one, too.
        let (first, rest) = self.bytes.split_at(self.stride.min(self.bytes.len()));
        std::iter::once(first).chain(rest.chunks(self.stride.max(1)))
    }

    /// The first of the datagrams.
    pub fn first(&self) -> &'a [u8] {
        &self.bytes[..self.stride.min(self.bytes.len())]
    }

    /// One of the datagrams, by itself.
    pub fn single(self, datagram: &'a [u8]) -> Self {
        Self {
            bytes: datagram,
            stride: datagram.len(),
            ..self
        }
    }

    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn ecn(&self) -> Option<EcnCodepoint> {
        self.ecn
    }

    /// The octets of all of them.
    pub fn octets(&self) -> usize {
        self.bytes.len()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.bytes.len().div_ceil(self.stride.max(1)).max(1)
    }

    fn is_single(&self) -> bool {
        self.bytes.len() <= self.stride
    }
}

/// A socket for everybody who sends to its address.
#[derive(Debug)]
pub struct Shared {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
}

impl Shared {
    /// Takes a bound socket into the runtime of the caller.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let local = socket.local_addr()?;
        let io = tokio::net::UdpSocket::from_std(socket)?;
        Ok(Self { io, state, local })
    }

    /// Lets the network cut what is too long for it, where nobody asks for the longest datagram that passes.
    pub fn let_fragment(&self) {
        let_fragment(&self.io);
    }

    /// The address to which it is bound.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The address of this node to which a buffer was sent.
    pub fn reached(&self, to: Option<IpAddr>) -> SocketAddr {
        SocketAddr::new(to.unwrap_or(self.local.ip()), self.local.port())
    }

    /// The way to a client, from the address of this node to which it sends.
    pub fn way_to(&self, client: SocketAddr, local: SocketAddr) -> Way<'_> {
        Way {
            io: &self.io,
            state: &self.state,
            peer: client,
            // A socket for one address needs not be told which.
            from: self.local.ip().is_unspecified().then_some(local.ip()),
            is_connected: false,
        }
    }

    /// Receives as many buffers as there are. Cancel-safe.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.io.poll_recv_ready(cx))?;
            let mut count = None;
            // The readiness is taken back when the socket was emptied, so that nobody has to find that out by asking again.
            let asked = self.io.try_io(Interest::READABLE, || {
                let received = self.state.recv((&self.io).into(), buffers, metas)?;
                count = Some(received);
                if received < buffers.len().min(BATCH_SIZE) {
                    Err(would_block())
                } else {
                    Ok(())
                }
            });
            match (count, asked) {
                (Some(count), _) => return Poll::Ready(Ok(count)),
                (None, Err(cause)) if cause.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(cause)),
                (None, _) => {}
            }
        }
    }

    /// Sends, or says that it would have to wait.
    ///
    /// # Errors
    /// `WouldBlock` only: what cannot be sent for another reason is lost.
    pub fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.io
            .try_io(Interest::WRITABLE, || self.state.send((&self.io).into(), transmit))
    }

    /// Waits until sending may succeed. Cancel-safe.
    pub async fn writable(&self) -> io::Result<()> {
        self.io.writable().await
    }

    /// Datagrams that one call may send, and that one buffer may hold.
    pub fn segments(&self) -> (usize, usize) {
        (self.state.max_gso_segments(), self.state.gro_segments())
    }

    /// Whether datagrams may be cut on their way.
    pub fn may_fragment(&self) -> bool {
        self.state.may_fragment()
    }
}

/// A socket for one peer, on a port of the system's choice, which stays the same for its life.
#[derive(Debug)]
pub struct Connected {
    io: tokio::net::UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
}

impl Connected {
    /// Opens one, in the runtime of the caller.
    ///
    /// # Errors
    /// What the system says.
    pub fn towards(peer: SocketAddr) -> io::Result<Self> {
        let socket = open(peer)?;
        socket.connect(&peer.into())?;
        let state = UdpSocketState::new((&socket).into())?;
        let_fragment(&socket);
        let io = tokio::net::UdpSocket::from_std(socket.into())?;
        Ok(Self { io, state, peer })
    }

    /// The way to its peer.
    pub fn way(&self) -> Way<'_> {
        Way {
            io: &self.io,
            state: &self.state,
            peer: self.peer,
            from: None,
            is_connected: true,
        }
    }

    /// Waits until the system says that nobody listens at the peer's port, unless a call that sends or receives is told
    /// that first. Cancel-safe.
    pub async fn is_refused(&self) {
        while self.io.ready(Interest::ERROR).await.is_ok() {
            let refused = self.io.try_io(Interest::ERROR, || match self.io.take_error() {
                Ok(Some(cause)) if cause.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                Ok(_) | Err(_) => Err(would_block()),
            });
            if refused.is_ok() {
                return;
            }
        }
        std::future::pending().await
    }

    /// Receives what is there, a batch at most, and hands it to `each` before it returns. Nothing is kept.
    ///
    /// # Errors
    /// What the system has to say of the peer, for instance that nobody listens there.
    pub fn poll_receive(&self, cx: &mut Context<'_>, mut each: impl FnMut(&[Received<'_>])) -> Poll<io::Result<()>> {
        ready!(self.io.poll_recv_ready(cx))?;
        let mut outcome = Ok(());
        // The readiness is taken back when the socket was emptied, so that nobody has to find that out by asking again.
        let _ = self.io.try_io(Interest::READABLE, || {
            let received = with_batch(
                |buffers, metas| self.state.recv((&self.io).into(), buffers, metas),
                |received| {
                    // Others can have come before it was connected.
                    if received.iter().all(|one| one.from == self.peer) {
                        each(received);
                    }
                },
            );
            match received {
                Ok(count) if count < SLOTS => Err(would_block()),
                Ok(_) => Ok(()),
                Err(cause) if cause.kind() == io::ErrorKind::WouldBlock => Err(cause),
                Err(cause) => {
                    outcome = Err(cause);
                    Ok(())
                }
            }
        });
        Poll::Ready(outcome)
    }
}

/// Where datagrams are sent: a socket, and the peer.
#[derive(Clone, Copy, Debug)]
pub struct Way<'a> {
    io: &'a tokio::net::UdpSocket,
    state: &'a UdpSocketState,
    peer: SocketAddr,
    from: Option<IpAddr>,
    is_connected: bool,
}

impl Way<'_> {
    /// Sends one datagram.
    pub fn send(self, datagram: &[u8]) -> Sent {
        let sent = if self.is_connected {
            rustix::net::send(self.io, datagram, SendFlags::NOSIGNAL).map_err(io::Error::from)
        } else if self.from.is_none() {
            rustix::net::sendto(self.io, datagram, SendFlags::NOSIGNAL, &self.peer).map_err(io::Error::from)
        } else {
            self.transmit(datagram, None).map(|()| datagram.len())
        };
        match sent {
            Ok(_) => Sent {
                sent: 1,
                ..Sent::default()
            },
            Err(cause) => Sent::lost(1, &cause),
        }
    }

    /// Sends all of it, with as few calls as may be.
    pub fn send_all(self, received: &[Received<'_>]) -> Sent {
        let mut total = Sent::default();
        let mut rest = received;
        while let [first, others @ ..] = rest {
            let alike = if first.is_single() { run_of(rest) } else { 1 };
            if alike < LEAST_RUN || self.state.max_gso_segments() < LEAST_RUN {
                total += self.send_run(first.bytes, first.stride);
                rest = others;
                continue;
            }
            let (run, others) = rest.split_at(alike);
            total += RUN.with_borrow_mut(|joined| {
                joined.clear();
                for received in run {
                    joined.extend_from_slice(received.bytes);
                }
                self.send_run(joined, first.bytes.len())
            });
            rest = others;
        }
        total
    }

    /// Sends datagrams of one size, of which only the last may be shorter.
    fn send_run(self, bytes: &[u8], size: usize) -> Sent {
        let most = self.state.max_gso_segments();
        let several = |part: &[u8]| self.transmit(part, Some(size));
        send_cut(bytes, size, most, several, |datagram| self.send(datagram))
    }

    fn transmit(self, contents: &[u8], segment_size: Option<usize>) -> io::Result<()> {
        let transmit = Transmit {
            destination: self.peer,
            ecn: None,
            contents,
            segment_size,
            src_ip: self.from,
        };
        self.state.try_send(self.io.into(), &transmit)
    }
}

/// Sends `bytes` as datagrams of `size`: by `several`, at most `most` at once, while there are enough and it works; else
/// one by one.
fn send_cut(
    bytes: &[u8],
    size: usize,
    most: usize,
    several: impl Fn(&[u8]) -> io::Result<()>,
    mut single: impl FnMut(&[u8]) -> Sent,
) -> Sent {
    if bytes.len() <= size {
        return single(bytes);
    }
    let mut total = Sent::default();
    let size = size.max(1);
    let most = most.min(MOST_SENT / size);
    let mut rest = bytes;
    while rest.len() > size * (LEAST_RUN - 1) && most >= LEAST_RUN {
        let (part, others) = rest.split_at(rest.len().min(most * size));
        let count = part.len().div_ceil(size);
        match several(part) {
            Ok(()) => total.sent += count,
            Err(cause) if is_about_offload(&cause) => {
                total.offload_failed = true;
                break;
            }
            Err(cause) => total += Sent::lost(count, &cause),
        }
        rest = others;
    }
    for datagram in rest.chunks(size) {
        total += single(datagram);
    }
    total
}

/// How many single datagrams from the start have one size; the last may be shorter, but not empty.
fn run_of(received: &[Received<'_>]) -> usize {
    let mut lengths = received.iter().take_while(|one| one.is_single()).map(Received::octets);
    let Some(size) = lengths.next().filter(|size| *size > 0) else {
        return 1;
    };
    let mut count = 1;
    for length in lengths {
        if length == 0 || length > size {
            break;
        }
        count += 1;
        if length < size {
            break;
        }
    }
    count
}

/// What became of datagrams that were to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Datagrams that the system took.
    pub sent: usize,
    /// Datagrams that it did not take.
    pub lost: usize,
    /// The system said that nobody listens there.
    pub refused: bool,
    /// Sending several at once failed, and is not tried again on this socket.
    pub offload_failed: bool,
}

impl Sent {
    fn lost(count: usize, cause: &io::Error) -> Self {
        Self {
            lost: count,
            refused: cause.kind() == io::ErrorKind::ConnectionRefused,
            ..Self::default()
        }
    }
}

impl std::ops::AddAssign for Sent {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.lost += other.lost;
        self.refused |= other.refused;
        self.offload_failed |= other.offload_failed;
    }
}

/// Has `receive` fill room of this thread and hands it to `each` before it returns.
///
/// # Errors
/// Those of `receive`.
pub fn poll_batch(
    receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> Poll<io::Result<usize>>,
    each: impl FnMut(&[Received<'_>]),
) -> Poll<io::Result<()>> {
    let mut polled = Poll::Pending;
    let outcome = with_batch(
        |buffers, metas| match receive(buffers, metas) {
            Poll::Ready(received) => {
                polled = Poll::Ready(());
                received
            }
            Poll::Pending => Err(would_block()),
        },
        each,
    );
    polled.map(|()| outcome.map(drop))
}

/// Has `receive` fill the room of this thread, and `each` see what came.
fn with_batch(
    receive: impl FnOnce(&mut [IoSliceMut<'_>], &mut [RecvMeta]) -> io::Result<usize>,
    mut each: impl FnMut(&[Received<'_>]),
) -> io::Result<usize> {
    SLOTS_OF_THREAD.with_borrow_mut(|slots| {
        let mut metas = [RecvMeta::default(); SLOTS];
        let count = {
            let mut parts = slots.chunks_mut(SLOT);
            let mut buffers: [_; SLOTS] =
                array::from_fn(|_| IoSliceMut::new(parts.next().map_or(&mut [], |part| &mut part[..MOST])));
            receive(&mut buffers, &mut metas)?
        };
        let received: [_; SLOTS] = array::from_fn(|slot| Received::new(&metas[slot], &slots[slot * SLOT..][..MOST]));
        each(&received[..count]);
        Ok(count)
    })
}

thread_local! {
    /// Room for one batch: nothing waits while it is in use, so no flow needs room of its own.
    static SLOTS_OF_THREAD: RefCell<Box<[u8]>> = RefCell::new(vec![0; SLOTS * SLOT].into());
    /// Room to join datagrams of one size.
    static RUN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Whether an error of sending several datagrams at once may be about that, and not about the datagrams.
fn is_about_offload(cause: &io::Error) -> bool {
    matches!(Errno::from_io_error(cause), Some(Errno::IO | Errno::INVAL))
}

fn would_block() -> io::Error {
    io::ErrorKind::WouldBlock.into()
}

/// As much as an IP packet may hold, and so as much as one buffer of several datagrams may.
const MOST: usize = 65_535;
/// As much as may be sent at once, whatever the IP version.
const MOST_SENT: usize = 65_507;
/// A slot is a little longer, so that the first octets of all slots do not fall on the same lines of the cache.
const SLOT: usize = 65_536 + 576;
/// Buffers that are received at one time.
const SLOTS: usize = 16;
/// Below so many, sending them one by one is as cheap.
const LEAST_RUN: usize = 4;
const BUFFER: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests;
