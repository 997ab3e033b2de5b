//! CONNECT-UDP: datagrams of admitted streams, as QUIC datagrams and as capsules.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use portcullis::tunnel::masque::capsule::{self, Capsules};
use portcullis::tunnel::masque::varint;
use tokio::time::timeout;

use super::PATIENCE;
use super::peer::{self, Peer, Stream, launch, sign_in};
use super::rig::patiently;
use super::support::{Gateway, Setup};

/// Sends every datagram back to whoever sent it; `quit` ends it.
fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    serve_echo(socket);
    address
}

pub(crate) fn serve_echo(socket: UdpSocket) {
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
}

pub(crate) fn datagram(stream: u64, context: u64, payload: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    varint::write(&mut out, stream / 4);
    varint::write(&mut out, context);
    out.extend_from_slice(payload);
    out.freeze()
}

/// Passes datagrams to and from a gateway, until what comes from there is kept.
struct OneWay {
    address: SocketAddr,
    mutes: Arc<AtomicBool>,
}

impl OneWay {
    fn to(gateway: SocketAddr) -> Self {
        let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = outside.local_addr().unwrap();
        let mutes: Arc<AtomicBool> = Arc::default();
        let muted = mutes.clone();
        std::thread::spawn(move || {
            let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
            inside.connect(gateway).unwrap();
            let mut buffer = [0; 65_536];
            let (length, client) = outside.recv_from(&mut buffer).unwrap();
            inside.send(&buffer[..length]).unwrap();
            let (back, to_client) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
            std::thread::spawn(move || {
                let mut buffer = [0; 65_536];
                while let Ok(length) = back.recv(&mut buffer) {
                    if !muted.load(Ordering::SeqCst) {
                        let _ = to_client.send_to(&buffer[..length], client);
                    }
                }
            });
            while let Ok(length) = outside.recv(&mut buffer) {
                let _ = inside.send(&buffer[..length]);
            }
        });
        Self { address, mutes }
    }
}

fn metrics(gateway: &Gateway) -> String {
    let mut stream = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The next datagram that comes within a stream.
async fn next_capsule(stream: &mut Stream) -> Bytes {
    let mut capsules = Capsules::default();
    let coming = async {
        loop {
            let mut piece = stream.recv_data().await.unwrap().expect("the stream is open");
            let mut piece = piece.copy_to_bytes(piece.remaining());
            if let Some(datagram) = capsules.read(&mut piece).unwrap() {
                return capsule::payload(datagram).unwrap();
            }
        }
    };
    timeout(PATIENCE, coming).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_reach_the_desktop_and_come_back_each_to_its_stream() {
    let target = udp_echo();
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", target, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell").replace(':', "/");
    let peer = Peer::connect(&gateway).await;
    let (status, one) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let (status, two) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let (one, two) = (one.id().into_inner(), two.id().into_inner());
    assert_ne!(one, two);

    peer.connection
        .send_datagram(datagram(one, 2, b"of a context that nobody knows"))
        .unwrap();
    peer.connection
        .send_datagram(datagram(two + 4000, 0, b"of no stream"))
        .unwrap();
    for (stream, payload) in [(one, &b"first"[..]), (two, b"second"), (one, b"")] {
        peer.connection.send_datagram(datagram(stream, 0, payload)).unwrap();
        let answer = timeout(PATIENCE, peer.connection.read_datagram())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(answer, datagram(stream, 0, payload));
    }
    let list = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let session = &list["sessions"][0];
    assert_eq!(
        (&session["bytes_in"], &session["bytes_out"]),
        (&11.into(), &11.into()),
        "{list}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn capsules_carry_datagrams_too_and_what_fits_no_datagram_comes_back_as_one() {
    let target = udp_echo();
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", target, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell").replace(':', "/");
    let peer = Peer::connect(&gateway).await;
    let (status, mut stream) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let large = vec![9; 20_000];
    let mut out = BytesMut::new();
    varint::write(&mut out, 0x1234);
    varint::write(&mut out, 3);
    out.extend_from_slice(b"???");
    capsule::write(&mut out, &large);
    stream.send_data(out.freeze()).await.unwrap();
    assert!(next_capsule(&mut stream).await == large);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_gets_no_datagram_larger_than_it_says_to_take() {
    let target = udp_echo();
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", target, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell").replace(':', "/");
    let mut transport = quinn::TransportConfig::default();
    // That is what it announces too.
    transport.datagram_receive_buffer_size(Some(500));
    let mut config = peer::config(&gateway.chain());
    config.transport_config(Arc::new(transport));
    let mut endpoint = peer::endpoint(&gateway.chain());
    endpoint.set_default_client_config(config);
    let peer = Peer::connect_from(&endpoint, gateway.address).await;
    let (status, mut stream) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let id = stream.id().into_inner();
    peer.connection.send_datagram(datagram(id, 0, &[1; 400])).unwrap();
    let answer = timeout(PATIENCE, peer.connection.read_datagram())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer, datagram(id, 0, &[1; 400]));
    let large = vec![2; 600];
    peer.connection.send_datagram(datagram(id, 0, &large)).unwrap();
    assert!(next_capsule(&mut stream).await == large);
    assert!(metrics(&gateway).contains("portcullis_quic_datagrams_in_stream_total 1\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_path_does_not_take_in_time_is_dropped_and_counted() {
    // A desktop that answers one word with as much as no buffer holds.
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let target = socket.local_addr().unwrap();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let mut buffer = [0; 100];
        let (_, from) = socket.recv_from(&mut buffer).unwrap();
        while wait.try_recv().is_err() {
            for _ in 0..32 {
                let _ = socket.send_to(&[3; 1000], from);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", target, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell").replace(':', "/");
    // What the gateway sends arrives nowhere from here on, so that nothing says that more may come.
    let silent = OneWay::to(gateway.address);
    let peer = Peer::connect_to(silent.address, &gateway.chain()).await;
    let (status, stream) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let id = stream.id().into_inner();
    silent.mutes.store(true, Ordering::SeqCst);
    peer.connection.send_datagram(datagram(id, 0, b"go")).unwrap();
    patiently("some are dropped", || {
        let line = "portcullis_quic_datagrams_dropped_total{towards=\"client\"} ";
        let metrics = metrics(&gateway);
        let count = metrics.lines().find_map(|known| known.strip_prefix(line)).unwrap();
        count.parse::<u64>().unwrap() > 0
    });
    go.send(()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desktop_that_listens_to_no_datagrams_ends_the_stream() {
    let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", closed, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell").replace(':', "/");
    let peer = Peer::connect(&gateway).await;
    let (status, stream) = peer.connect_udp(&place, &user.token).await;
    assert_eq!(status, 200);
    let id = stream.id().into_inner();
    for _ in 0..3 {
        peer.connection.send_datagram(datagram(id, 0, b"anyone?")).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    gateway.wait_for("the stream's end", |line| {
        line["message"] == "QUIC stream closed" && line["reason"] == "agent_silent"
    });
}
