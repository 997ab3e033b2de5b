//! Streams and datagrams over QUIC, past the balancer to the node of the sign-in.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use portcullis::tunnel::masque::varint;
use quinn::Endpoint;
use quinn::crypto::rustls::QuicClientConfig;
use tokio::time::timeout;

use super::client::Client;
use crate::e2e::balancer::rig::Node;
use crate::peer::{Peer, Stream, read};
use crate::support::raw::{element, message};

/// A stream to a desktop, which lasts as long as its connection.
pub(super) struct OverQuic {
    peer: Peer,
    stream: Stream,
    turns: u8,
    _endpoint: Endpoint,
}

pub(super) fn open_stream(client: &Client, node: Node) -> OverQuic {
    open(client, node, &async |peer, place, token| {
        peer.connect_stream(place, Some(&format!("Bearer {token}"))).await
    })
}

pub(super) fn open_datagrams(client: &Client, node: Node) -> OverQuic {
    open(client, node, &async |peer, place, token| {
        peer.connect_udp(&place.replace(':', "/"), token).await
    })
}

pub(super) fn turn_stream(client: &Client, _: Node, quic: &mut OverQuic) {
    quic.turns = quic.turns.wrapping_add(1);
    let octets = [quic.turns; 500];
    client.runtime.block_on(async {
        quic.stream.send_data(Bytes::copy_from_slice(&octets)).await.unwrap();
        assert_eq!(read(&mut quic.stream, octets.len()).await, octets);
    });
}

pub(super) fn turn_datagrams(client: &Client, _: Node, quic: &mut OverQuic) {
    client.runtime.block_on(async {
        for _ in 0..ATTEMPTS {
            quic.turns = quic.turns.wrapping_add(1);
            let mut datagram = BytesMut::new();
            varint::write(&mut datagram, quic.stream.id().into_inner() / 4);
            varint::write(&mut datagram, 0);
            datagram.extend_from_slice(&[quic.turns; 100]);
            let datagram = datagram.freeze();
            quic.peer.connection.send_datagram(datagram.clone()).unwrap();
            let answered = async { while quic.peer.connection.read_datagram().await.unwrap() != datagram {} };
            if timeout(ANSWER, answered).await.is_ok() {
                return;
            }
            client.load.lost();
        }
        panic!("the flow of datagrams is lost");
    });
}

type Opened = (http::StatusCode, Stream);

fn open(client: &Client, node: Node, ask: &impl AsyncFn(&Peer, &str, &str) -> Opened) -> OverQuic {
    let cookie = client.finish(&client.begin());
    let asked = message("<get-tunnel-connection><quic>true</quic></get-tunnel-connection>");
    let answer = client.post(Some(&cookie), &asked);
    let offered = element(answer.text(), "quic").expect("QUIC is offered");
    let token = element(offered, "token").unwrap();
    let reply = client.launch(&cookie, "shell", "<quic>true</quic>");
    let place = ["address", "port"].map(|name| element(&reply, name).unwrap()).join(":");
    let to = format!("{}:{}", node.host(), client.site.first);
    client.runtime.block_on(async {
        let mut endpoint = Endpoint::client(client.address()).unwrap();
        let mut tls = client.site.trust();
        tls.alpn_protocols = vec![b"h3".to_vec()];
        let config = QuicClientConfig::try_from(tls).unwrap();
        endpoint.set_default_client_config(quinn::ClientConfig::new(Arc::new(config)));
        let peer = Peer::connect_from(&endpoint, to.parse().unwrap()).await;
        let (status, stream) = ask(&peer, &place, token).await;
        assert_eq!(status, 200);
        OverQuic {
            peer,
            stream,
            turns: client.load.number,
            _endpoint: endpoint,
        }
    })
}

/// For a datagram to be answered before it is taken to be lost.
const ANSWER: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 10;
