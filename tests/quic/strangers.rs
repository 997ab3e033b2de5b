//! Who is not answered, and who has to prove an address first.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis::listen::RETRY_ABOVE;
use tokio::time::timeout;

use super::PATIENCE;
use super::peer::{Peer, endpoint};
use super::support::{Gateway, Setup};

fn answer(gateway: &Gateway, packet: &[u8]) -> Option<Vec<u8>> {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    socket.send_to(packet, gateway.address).unwrap();
    let mut buffer = [0; 2048];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

/// A long header of version 1 with connection ids of eight octets.
fn long(first: u8, version: u32, length: usize) -> Vec<u8> {
    let mut packet = vec![first];
    packet.extend_from_slice(&version.to_be_bytes());
    packet.extend_from_slice(&[8, 1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 7, 6, 5, 4, 3, 2, 1]);
    packet.resize(length, 0x55);
    packet
}

#[test]
fn what_is_not_ours_gets_no_answer() {
    let gateway = Gateway::start(&Setup::default().listener("udp = true\n"));
    let mut short = vec![0x45; 1200];
    short[1..9].copy_from_slice(b"stranger");
    for (what, packet) in [
        ("nothing", vec![]),
        ("a byte", vec![0]),
        (
            "a DNS query",
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07example\x03com\x00\x00\x01\x00\x01".to_vec(),
        ),
        ("a DTLS hello", vec![0x16; 400]),
        ("a packet of a connection that is not here", short.clone()),
        ("a short one of the kind", short[..60].to_vec()),
        ("a handshake of a connection that is not here", long(0xe3, 1, 1200)),
        ("0-RTT of a connection that is not here", long(0xd3, 1, 1200)),
        ("an Initial that is too small", long(0xc3, 1, 600)),
        ("an Initial that no key opens", long(0xc3, 1, 1200)),
        ("an unknown version in a small packet", long(0xc3, 0x0a0a_0a0a, 600)),
    ] {
        assert_eq!(answer(&gateway, &packet), None, "{what}");
    }
    let negotiation = answer(&gateway, &long(0xc3, 0x0a0a_0a0a, 1200)).expect("a list of versions");
    assert_eq!(&negotiation[1..5], [0; 4]);
    assert!(negotiation.len() < 1200);
}

/// Passes datagrams of one client on, and the node's back, unless it is told to swallow those.
async fn relay(node: SocketAddr, swallow: bool, saw_retry: Arc<AtomicBool>) -> SocketAddr {
    let outside = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let inside = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    inside.connect(node).await.unwrap();
    let address = outside.local_addr().unwrap();
    tokio::task::spawn(async move {
        let (mut up, mut down) = ([0; 2048], [0; 2048]);
        let mut client = None;
        loop {
            tokio::select! {
                Ok((length, from)) = outside.recv_from(&mut up) => {
                    client = Some(from);
                    let _ = inside.send(&up[..length]).await;
                }
                Ok(length) = inside.recv(&mut down) => {
                    if down[0] & 0xf0 == 0xf0 {
                        saw_retry.store(true, Ordering::SeqCst);
                    }
                    if let (Some(client), false) = (client, swallow) {
                        let _ = outside.send_to(&down[..length], client).await;
                    }
                }
            }
        }
    });
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_an_address_proves_itself_before_the_node_works_for_it() {
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .section("[limits]\nhandshake_timeout = \"60 s\"\n"),
    );
    let seen = || Arc::new(AtomicBool::new(false));
    let before = seen();
    let honest = relay(gateway.address, false, before.clone()).await;
    Peer::connect_to(honest, &gateway.chain()).await;
    assert!(!before.load(Ordering::SeqCst), "without load there is no Retry");

    // Whoever never answers, or never asked: their handshakes stay open.
    let silent = seen();
    let mut endpoints = Vec::new();
    let mut pending = Vec::new();
    for _ in 0..RETRY_ABOVE + 8 {
        let swallowing = relay(gateway.address, true, silent.clone()).await;
        let endpoint = endpoint(&gateway.chain());
        pending.push(endpoint.connect(swallowing, "localhost").unwrap());
        endpoints.push(endpoint);
    }
    let load = async {
        while !silent.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, load).await.expect("a Retry for the last of them");

    let under_load = seen();
    let honest = relay(gateway.address, false, under_load.clone()).await;
    let peer = Peer::connect_to(honest, &gateway.chain()).await;
    assert!(under_load.load(Ordering::SeqCst), "the honest client was asked, too");
    assert_eq!(peer.get("/favicon.ico").await.0, 200);
}
