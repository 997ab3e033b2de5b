//! A network that fails: a relay before the gateway that resets every connection and refuses others for a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use socket2::{Domain, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A running relay.
pub(super) struct Faulty {
    /// Where clients reach the gateway.
    pub(super) address: SocketAddr,
    meter: Arc<Meter>,
    _runtime: Runtime,
}

impl Faulty {
    /// Starts it before the gateway.
    pub(super) fn before(gateway: SocketAddr) -> Self {
        // Bound and never listening, it keeps the port while nobody listens there: connections are refused then.
        let place = socket(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = place.local_addr().unwrap().as_socket().unwrap();
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let (cut, _) = watch::channel(0);
        let meter = Arc::new(Meter {
            left: Mutex::new(None),
            cut,
        });
        let (own, listening) = (meter.clone(), listening(address));
        runtime.spawn(async move {
            serve(listening, gateway, own).await;
            drop(place);
        });
        Self {
            address,
            meter,
            _runtime: runtime,
        }
    }

    /// Fails once this many octets more have been relayed, both ways together.
    pub(super) fn fail_after(&self, octets: usize) {
        *self.meter.left.lock() = Some(octets);
    }

    /// How often it failed.
    pub(super) fn failures(&self) -> usize {
        *self.meter.cut.borrow()
    }
}

/// What may still be relayed.
struct Meter {
    left: Mutex<Option<usize>>,
    cut: watch::Sender<usize>,
}

impl Meter {
    /// How many of these octets pass before it fails, and whether it fails with them.
    fn pass(&self, octets: usize) -> (usize, bool) {
        let mut left = self.left.lock();
        match *left {
            Some(few) if few <= octets => {
                *left = None;
                (few, true)
            }
            Some(many) => {
                *left = Some(many - octets);
                (octets, false)
            }
            None => (octets, false),
        }
    }
}

async fn serve(mut socket: Socket, gateway: SocketAddr, meter: Arc<Meter>) {
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut cut = meter.cut.subscribe();
    loop {
        let listener = TcpListener::from_std(socket.into()).unwrap();
        let mut links = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    links.spawn(link(accepted.unwrap().0, gateway, meter.clone()));
                }
                changed = cut.changed() => break changed.unwrap(),
            }
        }
        drop(listener);
        while links.join_next().await.is_some() {}
        tokio::time::sleep(OUTAGE).await;
        socket = listening(address);
    }
}

/// Relays one connection until both sides have ended, or it is cut.
async fn link(mut client: TcpStream, gateway: SocketAddr, meter: Arc<Meter>) {
    let mut cut = meter.cut.subscribe();
    let mut server = TcpStream::connect(gateway).await.unwrap();
    {
        let (mut client_read, mut client_write) = client.split();
        let (mut server_read, mut server_write) = server.split();
        let both = async {
            tokio::join!(
                relay(&mut client_read, &mut server_write, &meter),
                relay(&mut server_read, &mut client_write, &meter)
            )
        };
        tokio::select! {
            _ = both => return,
            _ = cut.changed() => {}
        }
    }
    for stream in [client, server] {
        // Closed like this, it is reset.
        SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

async fn relay(from: &mut (impl AsyncRead + Unpin), to: &mut (impl AsyncWrite + Unpin), meter: &Meter) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(octets @ 1..) = from.read(&mut buffer).await {
        let (passed, fails) = meter.pass(octets);
        if to.write_all(&buffer[..passed]).await.is_err() {
            break;
        }
        if fails {
            meter.cut.send_modify(|failures| *failures += 1);
            std::future::pending::<()>().await;
        }
    }
    let _ = to.shutdown().await;
}

fn socket(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}

fn listening(address: SocketAddr) -> Socket {
    let socket = socket(address);
    socket.listen(64).unwrap();
    socket
}

/// How long it refuses connections.
const OUTAGE: Duration = Duration::from_secs(1);
