//! The sender and the sink.

use std::fmt;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quinn_udp::{RecvMeta, Transmit, UdpSocketState};

use super::support::Target;
use super::support::agent::first;

const OCTETS: usize = 1200;
/// Datagrams that the sending system cuts out of one buffer.
const BURST: usize = 32;

/// How datagrams come.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    a_second: u64,
    bursts: bool,
}

impl Load {
    pub(crate) const ALL: [Self; 4] = [
        Self {
            a_second: 20_000,
            bursts: false,
        },
        Self {
            a_second: 60_000,
            bursts: false,
        },
        Self {
            a_second: 20_000,
            bursts: true,
        },
        Self {
            a_second: 60_000,
            bursts: true,
        },
    ];

    /// Opens the way, and waits until the sink has heard of it.
    pub(crate) fn warm_up(self, socket: &UdpSocket, sink: &Sink) {
        let before = sink.arrived();
        for _ in 0..200 {
            socket.send(&first(OCTETS)).expect("a datagram is sent");
            std::thread::sleep(Duration::from_millis(10));
            if sink.arrived() > before + 5 {
                return;
            }
        }
        panic!("nothing arrives");
    }

    /// Sends for that long, at an even rate; how many.
    pub(crate) fn run(self, socket: &UdpSocket, span: Duration) -> u64 {
        let state = UdpSocketState::new(socket.into()).expect("a UDP socket");
        socket.set_nonblocking(false).expect("a UDP socket");
        let peer = socket.peer_addr().expect("a connected socket");
        let at_once = if self.bursts { BURST } else { 1 };
        let buffer = vec![7; OCTETS * at_once];
        let start = portcullis::clock::now();
        let mut sent = 0;
        loop {
            let elapsed = start.elapsed();
            if elapsed >= span {
                return sent;
            }
            let due = (elapsed.as_secs_f64() * self.a_second as f64) as u64;
            if sent + at_once as u64 > due {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            if self.bursts {
                let transmit = Transmit {
                    destination: peer,
                    ecn: None,
                    contents: &buffer,
                    segment_size: Some(OCTETS),
                    src_ip: None,
                };
                state.try_send(socket.into(), &transmit).expect("a burst is sent");
            } else {
                socket.send(&buffer).expect("a datagram is sent");
            }
            sent += at_once as u64;
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.bursts { "bursts" } else { "singles" };
        f.pad(&format!("{how} {} /s", self.a_second))
    }
}

/// Where datagrams arrive: it counts them, and answers one in a thousand so that it is there.
pub(crate) struct Sink {
    pub(crate) target: Target,
    pub(crate) address: SocketAddr,
    arrived: Arc<AtomicU64>,
}

impl Sink {
    pub(crate) fn open() -> Self {
        let (target, socket) = (0..50)
            .find_map(|_| {
                let target = Target::echo();
                let socket = UdpSocket::bind(target.address).ok()?;
                Some((target, socket))
            })
            .expect("a port that is free for both");
        let _ = socket2::SockRef::from(&socket).set_recv_buffer_size(8 << 20);
        let arrived = Arc::new(AtomicU64::new(0));
        let count = arrived.clone();
        let address = target.address;
        std::thread::spawn(move || count_arrivals(&socket, &count));
        Self {
            target,
            address,
            arrived,
        }
    }

    pub(crate) fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

fn count_arrivals(socket: &UdpSocket, count: &AtomicU64) {
    let state = UdpSocketState::new(socket.into()).expect("a UDP socket");
    socket.set_nonblocking(false).expect("a UDP socket");
    let mut buffers = vec![vec![0; 65_536]; 8];
    let mut last = None;
    loop {
        let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
        let mut metas = [RecvMeta::default(); 8];
        // One buffer at a time, or the system would wait for all of them.
        let Ok(received) = state.recv(socket.into(), &mut slices[..1], &mut metas[..1]) else {
            continue;
        };
        for meta in &metas[..received] {
            assert_eq!(meta.stride.min(meta.len), OCTETS, "datagrams were joined or cut");
            count.fetch_add((meta.len / OCTETS) as u64, Ordering::Relaxed);
            if last != Some(meta.addr) {
                last = Some(meta.addr);
                let _ = socket.send_to(&[1; 100], meta.addr);
            }
        }
    }
}
