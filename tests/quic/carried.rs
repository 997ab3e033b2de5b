//! Streams that a balancer brought to the wrong node: carried to the node of their grant, and judged there.

use std::net::{SocketAddr, UdpSocket};

use bytes::{Buf, Bytes};
use tokio::time::timeout;

use super::PATIENCE;
use super::datagrams::{datagram, serve_echo};
use super::peer::{Peer, launch, read, read_all, sign_in};
use super::support::authority::Authority;
use super::support::{Gateway, Target};

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_another_node_are_carried_to_it() {
    let target = Target::echo();
    serve_echo(UdpSocket::bind(target.address).unwrap());
    let (owner, other) = fleet(&target);
    let user = sign_in(&owner);
    let place = launch(&owner, &user, "shell");
    let peer = Peer::connect(&other).await;

    let bearer = format!("Bearer {}", user.token);
    let (status, mut stream) = peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 200);
    stream
        .send_data(Bytes::from_static(b"through two gates"))
        .await
        .unwrap();
    assert_eq!(read(&mut stream, 17).await, b"through two gates");
    stream.finish().await.unwrap();
    assert!(read_all(&mut stream).await.is_empty(), "the end comes through, too");

    let (status, mut stream) = peer.connect_udp(&place.replace(':', "/"), &user.token).await;
    assert_eq!(status, 200);
    let id = stream.id().into_inner();
    peer.connection.send_datagram(datagram(id, 0, b"small")).unwrap();
    let answer = timeout(PATIENCE, peer.connection.read_datagram())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(answer, datagram(id, 0, b"small"));

    other.wait_for("the carrying", |line| {
        line["message"] == "connection carried to its own node" && line["owner"] == "gw-1"
    });
    owner.wait_for("the end of the first stream", |line| {
        line["message"] == "connection closed" && line["relayed_by"] == "gw-2" && line["reason"] == "completed"
    });
    assert_eq!(target.dialled(), 1);

    // The owner's word counts.
    assert!(
        owner
            .operator(&["sessions", "kill", &session(&owner)])
            .status()
            .unwrap()
            .success()
    );
    let ended = async {
        while let Ok(Some(mut piece)) = stream.recv_data().await {
            piece.advance(piece.remaining())
        }
    };
    timeout(PATIENCE, ended)
        .await
        .expect("the stream ends with its session");
    let (status, _) = peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 403);
    owner.wait_for("the refusal", |line| line["reason"] == "revoked");
}

fn session(gateway: &Gateway) -> String {
    let list = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    list["sessions"][0]["id"].as_str().unwrap().to_owned()
}

/// gw-1 and gw-2, which know each other.
fn fleet(target: &Target) -> (Gateway, Gateway) {
    let authority = Authority::default();
    let setup = |name: &str, peers: &[(&str, SocketAddr)]| {
        let peers: Vec<_> = peers.iter().map(|(peer, at)| format!("{peer} = \"{at}\"")).collect();
        let fleet = format!(
            "[fleet]\nbind = [\"127.0.0.2:0\"]\ncertificate = \"fleet\"\nca = {:?}\npeers = {{ {} }}\n{}",
            authority.certificate().display().to_string(),
            peers.join(", "),
            authority.table("fleet", name)
        );
        super::setup(target)
            .named(name)
            .node("grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n")
            .section(&fleet)
    };
    let at = |gateway: &Gateway| -> SocketAddr {
        let line = gateway.wait_for("the port of the fleet", |line| {
            line["message"] == "listening for the other nodes"
        });
        line["address"].as_str().unwrap().parse().unwrap()
    };
    let owner = Gateway::start(&setup("gw-1", &[]));
    let other = Gateway::start(&setup("gw-2", &[("gw-1", at(&owner))]));
    owner.reload(&setup("gw-1", &[("gw-2", at(&other))]));
    (owner, other)
}
