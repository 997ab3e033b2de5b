//! How many connections one source may have.

use std::net::SocketAddr;

use portcullis::fault::CloseReason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::{Gate, Store, agree, client, limits};

async fn from(source: &str, gate: &Gate) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(source.parse().unwrap(), 0)).unwrap();
    socket.connect(gate.address).await.unwrap()
}

#[tokio::test]
async fn a_source_has_its_share_and_no_more_while_others_are_served() {
    let store = Store::new().with("gw", &["gw.test"]);
    let tls = std::sync::Arc::new(client(&store));
    let mut gate = Gate::with(store.load(&["gw"]).unwrap(), &limits(100, 2), &[]);
    let mut held = Vec::new();
    for _ in 0..2 {
        let io = agree(&tls, from("127.0.0.1", &gate).await, "gw.test").await.unwrap();
        held.push((io, gate.outcome().await.unwrap()));
    }
    let mut third = from("127.0.0.1", &gate).await;
    assert_eq!(third.read(&mut [0]).await.unwrap(), 0, "closed");
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::SourceLimit);

    let _other = agree(&tls, from("127.0.0.2", &gate).await, "gw.test").await.unwrap();
    let _secured = gate.outcome().await.unwrap();
    assert_eq!((gate.caps.counts().open, gate.caps.counts().sources), (3, 2));

    held.clear();
    assert_eq!((gate.caps.counts().open, gate.caps.counts().sources), (1, 1));
    let _again = agree(&tls, from("127.0.0.1", &gate).await, "gw.test").await.unwrap();
    assert!(gate.outcome().await.is_ok());
}

#[tokio::test]
async fn behind_a_balancer_the_clients_are_the_sources() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::with(store.load(&["gw"]).unwrap(), &limits(100, 1), &["127.0.0.1/32"]);
    let tls = std::sync::Arc::new(client(&store));
    let mut held = Vec::new();
    for client in ["203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8:0:1::1"] {
        let family = if client.contains(':') { "TCP6" } else { "TCP4" };
        let own = if client.contains(':') { "::1" } else { "127.0.0.1" };
        let mut io = gate.connect().await;
        io.write_all(format!("PROXY {family} {client} {own} 1 443\r\n").as_bytes())
            .await
            .unwrap();
        held.push(agree(&tls, io, "gw.test").await.unwrap());
    }
    let mut secured = Vec::new();
    for _ in &held {
        secured.push(gate.outcome().await.unwrap());
    }
    let mut io = gate.connect().await;
    io.write_all(b"PROXY TCP6 2001:db8::ffff ::1 1 443\r\n").await.unwrap();
    assert_eq!(
        gate.outcome().await.unwrap_err(),
        CloseReason::SourceLimit,
        "one site of IPv6 is one source"
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_closed_at_the_deadline_and_its_places_are_free() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::with(store.load(&["gw"]).unwrap(), &limits(100, 100), &[]);
    let mut silent = gate.connect().await;
    let mut slow = gate.connect().await;
    slow.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc").await.unwrap();
    let start = tokio::time::Instant::now();
    for _ in 0..2 {
        assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::Timeout);
    }
    assert_eq!(start.elapsed().as_secs(), 10);
    assert_eq!(silent.read(&mut [0]).await.unwrap(), 0);
    let counts = gate.caps.counts();
    assert_eq!((counts.open, counts.sources), (0, 0));
}
