//! CONNECT-UDP: datagrams of admitted streams, as QUIC datagrams and as capsules.

use std::net::UdpSocket;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use portcullis::tunnel::masque::capsule::{self, Capsules};
use portcullis::tunnel::masque::varint;
use tokio::time::timeout;

use super::PATIENCE;
use super::peer::{Peer, launch, sign_in};
use super::support::{Gateway, Setup};

/// Sends every datagram back to whoever sent it; `quit` ends it.
fn udp_echo() -> std::net::SocketAddr {
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
    let mut capsules = Capsules::default();
    let coming_back = async {
        loop {
            let mut piece = stream.recv_data().await.unwrap().expect("the stream is open");
            let mut piece = piece.copy_to_bytes(piece.remaining());
            if let Some(datagram) = capsules.read(&mut piece).unwrap() {
                return capsule::payload(datagram).unwrap();
            }
        }
    };
    assert!(timeout(PATIENCE, coming_back).await.unwrap() == large);
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
