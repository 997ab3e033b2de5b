//! The PROXY header of a balancer: required from those that are listed, believed from nobody else.

use portcullis::fault::CloseReason;
use proxy_header::{ProxiedAddress, ProxyHeader};
use tokio::io::AsyncWriteExt;

use super::{Gate, Store, agree, client, limits};

fn gate(balancers: &[&str]) -> (Gate, Store) {
    let store = Store::new().with("gw", &["gw.test"]);
    (
        Gate::with(store.load(&["gw"]).unwrap(), &limits(100, 100), balancers),
        store,
    )
}

fn v2(source: &str, destination: &str) -> Vec<u8> {
    let addresses = ProxiedAddress::stream(source.parse().unwrap(), destination.parse().unwrap());
    let mut bytes = vec![0; 256];
    let length = ProxyHeader::with_address(addresses)
        .encode_to_slice_v2(&mut bytes)
        .unwrap();
    bytes.truncate(length);
    bytes
}

#[tokio::test]
async fn a_listed_balancer_names_the_client() {
    let (mut gate, store) = gate(&["192.0.2.0/24", "127.0.0.0/8"]);
    let tls = std::sync::Arc::new(client(&store));
    for (header, named) in [
        (
            b"PROXY TCP4 203.0.113.9 127.0.0.1 4711 443\r\n".to_vec(),
            Some("203.0.113.9:4711"),
        ),
        (v2("203.0.113.9:4711", "127.0.0.1:443"), Some("203.0.113.9:4711")),
        (v2("[2001:db8::7]:1", "[::1]:443"), Some("[2001:db8::7]:1")),
        (v2("[::ffff:203.0.113.9]:4711", "[::1]:443"), Some("203.0.113.9:4711")),
        (
            b"PROXY TCP6 ::ffff:203.0.113.9 ::1 4711 443\r\n".to_vec(),
            Some("203.0.113.9:4711"),
        ),
        (b"PROXY UNKNOWN\r\n".to_vec(), None),
        (b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0".to_vec(), None),
    ] {
        let mut io = gate.connect().await;
        io.write_all(&header).await.unwrap();
        let _client = agree(&tls, io, "gw.test").await.unwrap();
        let secured = gate.outcome().await.unwrap();
        let facts = secured.facts();
        assert_eq!(
            facts.client.to_string(),
            named.map_or(facts.peer.to_string(), str::to_owned)
        );
        assert_eq!(facts.peer.ip().to_string(), "127.0.0.1");
        assert_eq!(facts.local, gate.address);
    }
}

#[tokio::test]
async fn a_header_and_a_client_hello_may_be_cut_anywhere() {
    let (mut gate, store) = gate(&["127.0.0.1/32"]);
    let tls = std::sync::Arc::new(client(&store));
    for header in [
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4711 443\r\n".to_vec(),
        v2("203.0.113.9:4711", "127.0.0.1:443"),
    ] {
        let mut io = gate.connect().await;
        io.set_nodelay(true).unwrap();
        for byte in header {
            io.write_all(&[byte]).await.unwrap();
            tokio::task::yield_now().await;
        }
        let _client = agree(&tls, io, "gw.test").await.unwrap();
        assert_eq!(
            gate.outcome().await.unwrap().facts().client.to_string(),
            "203.0.113.9:4711"
        );
    }
}

#[tokio::test]
async fn a_listed_balancer_must_send_one() {
    let (mut gate, store) = gate(&["127.0.0.1/32"]);
    let tls = std::sync::Arc::new(client(&store));
    let io = gate.connect().await;
    assert!(agree(&tls, io, "gw.test").await.is_err());
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::ProxyHeader);

    let mut io = gate.connect().await;
    io.write_all(b"PROXY TCP4 203.0.113.9").await.unwrap();
    drop(io);
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::ProxyHeader);

    drop(gate.connect().await);
    assert_eq!(
        gate.outcome().await.unwrap_err(),
        CloseReason::ClientClosed,
        "a probe of the port"
    );
}

#[tokio::test]
async fn nobody_else_is_believed() {
    let (mut gate, store) = gate(&["192.0.2.0/24"]);
    let tls = std::sync::Arc::new(client(&store));
    for header in [
        b"PROXY TCP4 203.0.113.9 127.0.0.1 4711 443\r\n".to_vec(),
        v2("203.0.113.9:4711", "127.0.0.1:443"),
    ] {
        let mut io = gate.connect().await;
        io.write_all(&header).await.unwrap();
        assert!(agree(&tls, io, "gw.test").await.is_err());
        assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::ProxyHeader);
    }
    let _client = agree(&tls, gate.connect().await, "gw.test").await.unwrap();
    let secured = gate.outcome().await.unwrap();
    assert_eq!(secured.facts().client, secured.facts().peer);
}

#[tokio::test(start_paused = true)]
async fn a_balancer_that_stops_in_the_middle_is_closed_at_the_deadline() {
    let (mut gate, _store) = gate(&["127.0.0.1/32"]);
    let mut io = gate.connect().await;
    io.write_all(b"PROXY TCP4 203.0.113.9").await.unwrap();
    let start = tokio::time::Instant::now();
    assert_eq!(gate.outcome().await.unwrap_err(), CloseReason::Timeout);
    assert_eq!(start.elapsed().as_secs(), 10);
    assert_eq!(gate.caps.counts().open, 0);
}
