//! Datagrams from the process that reads a UDP socket to the one that read it before and still has flows and connections
//! on it.
//!
//! A pipe is a pair of Unix sockets that keep messages apart. A message is a buffer of datagrams as the system gave it,
//! behind a label that says what the system said of it. Whatever does not fit into the pipe is lost, as on any network:
//! nobody waits.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use quinn_udp::{EcnCodepoint, RecvMeta};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags, SocketFlags,
    SocketType, recvmsg, sendmsg, socketpair,
};
use tokio::io::Interest;

use super::udp::Received;

/// The end into which datagrams are put, by the process that reads the socket.
#[derive(Debug)]
pub struct Outlet(OwnedFd);

/// The end at which they come out.
#[derive(Debug)]
pub struct Inlet {
    io: tokio::net::UnixDatagram,
    closed: AtomicBool,
}

/// Makes a pipe, whose inlet is of the runtime of the caller.
///
/// # Errors
/// No descriptor is left.
pub fn pipe() -> io::Result<(Inlet, Outlet)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (inlet, outlet) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // The system gives as much of it as its limits allow.
    let _ = socket2::SockRef::from(&outlet).set_send_buffer_size(BUFFER);
    let inlet = Inlet {
        io: tokio::net::UnixDatagram::from_std(UnixDatagram::from(inlet))?,
        closed: AtomicBool::new(false),
    };
    Ok((inlet, Outlet(outlet)))
}

impl Outlet {
    /// The end of a pipe that another process has made.
    pub fn new(socket: OwnedFd) -> Self {
        Self(socket)
    }

    /// The end once more, for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn to_hand_over(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Passes a buffer on, or loses it. `false`: nobody is there any more.
    pub fn pass_on(&self, received: &Received<'_>) -> bool {
        let label = Label::of(received).encode();
        let message = [IoSlice::new(&label), IoSlice::new(received.bytes())];
        let mut nothing = SendAncillaryBuffer::default();
        let Err(cause) = sendmsg(&self.0, &message, &mut nothing, SendFlags::NOSIGNAL) else {
            return true;
        };
        tracing::debug!(%cause, octets = received.octets(), "datagrams for the process before this one are lost");
        !matches!(cause, Errno::PIPE | Errno::CONNRESET)
    }
}

impl Inlet {
    /// Receives as many buffers as there are; `None`, from then on, once nobody is left who could put anything in.
    /// Cancel-safe.
    pub fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> Poll<Option<usize>> {
        while !self.closed.load(Ordering::Relaxed) {
            let mut count = 0;
            if ready!(self.io.poll_recv_ready(cx)).is_err() {
                break;
            }
            let received = self.io.try_io(Interest::READABLE, || {
                while let (Some(buffer), Some(meta)) = (buffers.get_mut(count), metas.get_mut(count)) {
                    // A label of another version is no fault of this process: its buffer is lost.
                    if let Some(known) = self.receive(buffer)? {
                        *meta = known;
                        count += 1;
                    }
                }
                Ok(())
            });
            if count > 0 {
                return Poll::Ready(Some(count));
            }
            if received.is_err_and(|cause| cause.kind() != io::ErrorKind::WouldBlock) {
                break;
            }
        }
        self.closed.store(true, Ordering::Relaxed);
        Poll::Ready(None)
    }

    /// One buffer, and what is known of it.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<RecvMeta>> {
        let mut label = [0; LABEL];
        let mut message = [IoSliceMut::new(&mut label), IoSliceMut::new(buffer)];
        let mut nothing = RecvAncillaryBuffer::default();
        let received = recvmsg(&self.io, &mut message, &mut nothing, RecvFlags::DONTWAIT)?;
        let Some(length) = received.bytes.checked_sub(LABEL) else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        let meta = Label::decode(&label).map(|label| label.meta(length));
        Ok(meta.filter(|_| !received.flags.contains(ReturnFlags::TRUNC)))
    }
}

/// What the system said of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    from: SocketAddr,
    to: Option<IpAddr>,
    ecn: Option<EcnCodepoint>,
    stride: u16,
}

impl Label {
    fn of(received: &Received<'_>) -> Self {
        Self {
            from: received.from,
            to: received.to,
            ecn: received.ecn(),
            // No datagram is longer.
            stride: u16::try_from(received.stride()).unwrap_or(u16::MAX),
        }
    }

    fn meta(self, length: usize) -> RecvMeta {
        RecvMeta {
            addr: self.from,
            len: length,
            stride: self.stride.into(),
            ecn: self.ecn,
            dst_ip: self.to,
        }
    }

    /// Version, codepoint, stride, sender's port, both families, both addresses, and the sender's scope.
    fn encode(self) -> [u8; LABEL] {
        let scope = match self.from {
            SocketAddr::V6(from) => from.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let mut label = [0; LABEL];
        label[0] = VERSION;
        label[1] = self.ecn.map_or(0, |ecn| ecn as u8);
        label[2..4].copy_from_slice(&self.stride.to_be_bytes());
        label[4..6].copy_from_slice(&self.from.port().to_be_bytes());
        label[6] = family(Some(self.from.ip()));
        label[7] = family(self.to);
        label[8..24].copy_from_slice(&octets(Some(self.from.ip())));
        label[24..40].copy_from_slice(&octets(self.to));
        label[40..].copy_from_slice(&scope.to_be_bytes());
        label
    }

    /// `None` for a label of another version.
    fn decode(label: &[u8; LABEL]) -> Option<Self> {
        let [version, ecn, s0, s1, p0, p1, from, to, addresses @ .., c0, c1, c2, c3] = label;
        if *version != VERSION {
            return None;
        }
        let (sender, reached) = addresses.split_at(16);
        let port = u16::from_be_bytes([*p0, *p1]);
        let from = match address(*from, sender)? {
            IpAddr::V4(ip) => SocketAddr::from((ip, port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, u32::from_be_bytes([*c0, *c1, *c2, *c3])).into(),
        };
        Some(Self {
            from,
            to: address(*to, reached),
            ecn: EcnCodepoint::from_bits(*ecn),
            stride: u16::from_be_bytes([*s0, *s1]),
        })
    }
}

fn family(ip: Option<IpAddr>) -> u8 {
    match ip {
        None => 0,
        Some(IpAddr::V4(_)) => 4,
        Some(IpAddr::V6(_)) => 6,
    }
}

fn octets(ip: Option<IpAddr>) -> [u8; 16] {
    match ip {
        None => [0; 16],
        Some(IpAddr::V4(ip)) => ip.to_ipv6_mapped().octets(),
        Some(IpAddr::V6(ip)) => ip.octets(),
    }
}

fn address(family: u8, octets: &[u8]) -> Option<IpAddr> {
    let octets: [u8; 16] = octets.try_into().ok()?;
    let [.., a, b, c, d] = octets;
    match family {
        4 => Some(Ipv4Addr::new(a, b, c, d).into()),
        6 => Some(Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

const LABEL: usize = 44;
const VERSION: u8 = 1;
const BUFFER: usize = 4 * 1024 * 1024;

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::time::timeout;

    use super::*;

    fn meta(length: usize, stride: usize) -> RecvMeta {
        RecvMeta {
            addr: "192.0.2.7:4172".parse().unwrap(),
            len: length,
            stride,
            ecn: Some(EcnCodepoint::Ce),
            dst_ip: Some("198.51.100.1".parse().unwrap()),
        }
    }

    async fn receive(inlet: &Inlet) -> Option<Vec<(RecvMeta, Vec<u8>)>> {
        let mut room = [[0; 4096]; 4];
        let mut metas = [RecvMeta::default(); 4];
        let count = {
            let mut buffers = room.each_mut().map(|part| IoSliceMut::new(part));
            poll_fn(|cx| inlet.poll_recv(cx, &mut buffers, &mut metas)).await?
        };
        let taken = (0..count).map(|at| (metas[at], room[at][..metas[at].len].to_vec()));
        Some(taken.collect())
    }

    #[tokio::test]
    async fn buffers_come_out_as_they_were_put_in_until_the_last_outlet_is_closed() {
        let (inlet, outlet) = pipe().unwrap();
        let other = Outlet::new(outlet.to_hand_over().unwrap());
        for (length, stride) in [(3000, 1000), (0, 0), (12, 12)] {
            outlet.pass_on(&Received::new(&meta(length, stride), &vec![7; length]));
        }
        let mut taken = receive(&inlet).await.unwrap();
        taken.sort_by_key(|(meta, _)| meta.len);
        assert_eq!(taken.len(), 3);
        for ((known, bytes), (length, stride)) in taken.into_iter().zip([(0, 0), (12, 12), (3000, 1000)]) {
            let expected = meta(length, stride);
            assert_eq!(
                (known.addr, known.dst_ip, known.stride),
                (expected.addr, expected.dst_ip, stride)
            );
            assert_eq!((known.ecn, bytes), (expected.ecn, vec![7; length]));
        }
        drop(outlet);
        other.pass_on(&Received::new(&meta(1, 1), &[1]));
        assert_eq!(receive(&inlet).await.unwrap().len(), 1);
        drop(other);
        assert!(receive(&inlet).await.is_none());
        assert!(receive(&inlet).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_fit_is_lost_and_nobody_waits() {
        const MANY: usize = 20_000; // more than the system takes
        let (inlet, outlet) = pipe().unwrap();
        for _ in 0..MANY {
            outlet.pass_on(&Received::new(&meta(4000, 4000), &[1; 4000]));
        }
        let mut taken = 0;
        while let Ok(some) = timeout(Duration::from_secs(1), receive(&inlet)).await {
            taken += some.unwrap().len();
        }
        assert!((1..MANY).contains(&taken), "{taken}");
        // Longer than the room there.
        outlet.pass_on(&Received::new(&meta(5000, 5000), &[2; 5000]));
        outlet.pass_on(&Received::new(&meta(5, 5), &[3; 5]));
        assert_eq!(receive(&inlet).await.unwrap()[0].1, [3; 5]);
    }

    proptest! {
        #[test]
        fn a_label_says_what_it_was_told(
            from: SocketAddr, to: Option<IpAddr>, ecn in 0_u8..4, stride: u16,
        ) {
            let from = match from {
                SocketAddr::V6(from) => SocketAddrV6::new(*from.ip(), from.port(), 0, from.scope_id()).into(),
                SocketAddr::V4(_) => from,
            };
            let label = Label { from, to, ecn: EcnCodepoint::from_bits(ecn), stride };
            prop_assert_eq!(Label::decode(&label.encode()), Some(label));
        }

        #[test]
        fn no_label_panics_the_reader(label in proptest::array::uniform32(any::<u8>()), rest in proptest::array::uniform12(any::<u8>())) {
            let mut octets = [0; LABEL];
            octets[..32].copy_from_slice(&label);
            octets[32..].copy_from_slice(&rest);
            let _ = Label::decode(&octets);
        }
    }
}
