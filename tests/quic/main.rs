//! QUIC as its clients and its enemies meet it: what is admitted, what is not answered, and what outlives a change.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]
mod admission;
mod carried;
mod datagrams;
mod peer;
#[path = "../support/web.rs"]
mod rig;
mod strangers;
#[path = "../support/mod.rs"]
mod support;
mod web;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use peer::{Peer, launch, read, read_all, sign_in};
use portcullis::client::QuicFault;
use support::client;
use support::{Gateway, PATIENCE, Setup, Target, portcullis};
use tokio::time::timeout;

/// One listener over TCP and UDP, and the desktop `shell`.
fn setup(target: &Target) -> Setup {
    Setup::default()
        .listener("udp = true\n")
        .desktop("shell", target.address, "ssh")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_in_user_reaches_the_desktop_over_quic_and_half_closes() {
    // It answers only once it has everything.
    let target = Target::new(|mut stream| {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        stream.write_all(&question).unwrap();
    });
    let gateway = Gateway::start(&setup(&target));
    let mut session = client::sign_in(&gateway).await;
    let quic = session.open_quic().await.unwrap();
    let desktop = session.desktops()[0].clone();
    let (_, route) = session.launch_over_quic(&desktop, None).await.unwrap();
    assert_eq!(target.dialled(), 0, "nothing is dialled before a program asks");
    let mut channel = quic.raise(&route).await.unwrap();
    let question = vec![7; 1_000_000];
    let sender = channel.sender();
    let asking = async {
        sender.send(Bytes::from(question.clone())).await.unwrap();
        sender.finish().await;
    };
    let answering = async {
        let mut answer = Vec::new();
        while let Some(piece) = channel.receive().await {
            answer.extend_from_slice(&piece);
        }
        answer
    };
    let ((), answer) = timeout(PATIENCE, async { tokio::join!(asking, answering) })
        .await
        .unwrap();
    assert!(answer == question);
    gateway.wait_for("the stream's line", |line| {
        line["message"] == "QUIC stream closed" && line["reason"] == "completed"
    });
    session.log_out().await;
    let end = timeout(PATIENCE, quic.ended()).await.unwrap();
    assert!(end.to_string().contains("logged out"), "{end}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desktop_that_refuses_is_told_in_words_and_is_no_fault_of_the_session() {
    // It has the port, so that nobody else gets it, and does not listen.
    let closed = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    closed.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = closed.local_addr().unwrap().as_socket().unwrap();
    let gateway = Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", address, "ssh"),
    );
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let peer = Peer::connect(&gateway).await;
    let bearer = format!("Bearer {}", user.token);
    let (status, mut stream) = peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 502);
    assert_eq!(read_all(&mut stream).await, b"the desktop refuses connections\n");
    gateway.wait_for("the reason", |line| line["reason"] == "target_unreachable");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_served_over_both_and_tcp_tells_where_quic_is() {
    let gateway = Gateway::start(&setup(&Target::echo()));
    let peer = Peer::connect(&gateway).await;
    let (status, page) = peer.get("/").await;
    assert_eq!(status, 200);
    assert!(
        String::from_utf8(page)
            .unwrap()
            .contains("portcullis connect localhost")
    );
    assert_eq!(peer.get("/favicon.ico").await.0, 200);
    assert_eq!(peer.get("/nothing").await.0, 404);
    assert_eq!(peer.get("/broker/xml").await.0, 405);

    let head = format!("GET / HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", gateway.address.port());
    let answer = support::raw::request(&gateway, &head, b"");
    assert_eq!(answer.status, 200);
    assert_eq!(
        answer.header("alt-svc"),
        [format!("h3=\":{}\"; ma=3600", gateway.address.port())]
    );
    assert!(answer.header("content-security-policy")[0].starts_with("default-src 'none'; style-src 'sha256-"));
    assert!(!answer.text().contains("gw-1") && !answer.text().contains(env!("CARGO_PKG_VERSION")));

    assert!(gateway.operator(&["quiesce", "on"]).status().unwrap().success());
    assert_eq!(peer.get("/favicon.ico").await.0, 503);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_client_that_asks_learns_of_quic_and_only_where_it_is_served() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = support::raw::sign_in(&gateway, "ann");
    let plain = support::raw::message("<get-tunnel-connection/>");
    let answer = support::raw::post(&gateway, Some(&user.cookie), &plain);
    assert!(!answer.text().contains("quic"));
    let offered = sign_in(&gateway);
    assert_eq!(offered.port, 443, "the port under which the client asked");

    let without = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let session = client::sign_in(&without).await;
    assert_eq!(session.open_quic().await.unwrap_err(), QuicFault::NotOffered);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_changes_the_certificate_of_new_connections_and_cuts_no_open_one() {
    let target = Target::echo();
    let setup = setup(&target);
    let gateway = Gateway::start(&setup);
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let peer = Peer::connect(&gateway).await;
    let (status, mut stream) = peer
        .connect_stream(&place, Some(&format!("Bearer {}", user.token)))
        .await;
    assert_eq!(status, 200);

    let fresh = portcullis::secure::self_signed(&["localhost".to_owned()], portcullis::clock::wall()).unwrap();
    let old = gateway.folder().join("old.pem");
    std::fs::copy(gateway.chain(), &old).unwrap();
    std::fs::write(gateway.chain(), &fresh.chain).unwrap();
    std::fs::write(gateway.folder().join("key.pem"), fresh.key.expose()).unwrap();
    let word = gateway.reload(&setup);
    assert!(
        word["message"].as_str().unwrap().starts_with("configuration applied"),
        "{word}"
    );

    stream.send_data(Bytes::from_static(b"still here")).await.unwrap();
    assert_eq!(read(&mut stream, 10).await, b"still here");
    let _fresh = Peer::connect(&gateway).await;
    let stale = peer::endpoint(&old).connect(gateway.address, "localhost").unwrap();
    assert!(
        timeout(PATIENCE, stale).await.unwrap().is_err(),
        "the old certificate is gone"
    );

    // A listener that serves UDP no more keeps its clients, and takes in nobody.
    let word = gateway.reload(&Setup::default().desktop("shell", target.address, "ssh"));
    assert!(
        word["message"].as_str().unwrap().starts_with("configuration applied"),
        "{word}"
    );
    stream.send_data(Bytes::from_static(b"and still")).await.unwrap();
    assert_eq!(read(&mut stream, 9).await, b"and still");
    let nobody = peer::endpoint(&gateway.chain())
        .connect(gateway.address, "localhost")
        .unwrap();
    assert!(timeout(Duration::from_millis(500), nobody).await.is_err(), "no answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_ends_its_streams_and_says_why() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let mut session = client::sign_in(&gateway).await;
    let quic = session.open_quic().await.unwrap();
    let desktop = session.desktops()[0].clone();
    let (_, route) = session.launch_over_quic(&desktop, None).await.unwrap();
    let mut channel = quic.raise(&route).await.unwrap();
    assert_eq!(client::echo(&mut channel, b"alive").await, b"alive");
    let list = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let id = list["sessions"][0]["id"].as_str().unwrap().to_owned();
    assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
    let end = timeout(PATIENCE, quic.ended()).await.unwrap();
    assert!(end.to_string().contains("session was ended"), "{end}");
    assert_eq!(timeout(PATIENCE, channel.receive()).await.unwrap(), None);
    gateway.wait_for("the stream's line", |line| {
        line["message"] == "QUIC stream closed" && line["reason"] == "killed" && line["session"] == id.as_str()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_waits_for_streams_and_then_tells_their_clients() {
    let target = Target::echo();
    let mut gateway = Gateway::start(&setup(&target));
    let mut session = client::sign_in(&gateway).await;
    let quic = session.open_quic().await.unwrap();
    let desktop = session.desktops()[0].clone();
    let (_, route) = session.launch_over_quic(&desktop, None).await.unwrap();
    let mut channel = quic.raise(&route).await.unwrap();
    gateway.signal("TERM");
    gateway.wait_for("the drain", |line| line["message"] == "draining");
    assert_eq!(
        client::echo(&mut channel, b"within the grace").await,
        b"within the grace"
    );
    let end = timeout(PATIENCE, quic.ended()).await.unwrap();
    assert!(end.to_string().contains("node shuts down"), "{end}");
    assert!(gateway.wait().success());
}

/// Behind a firewall that lets no UDP through, at a port of its own.
fn without_udp(gateway: &Gateway) -> (u16, UdpSocket) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hole = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let inside = gateway.address;
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let node = TcpStream::connect(inside).unwrap();
            for (mut from, mut to) in [(client.try_clone().unwrap(), node.try_clone().unwrap()), (node, client)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (port, hole)
}

#[tokio::test(flavor = "multi_thread")]
async fn where_udp_is_dropped_the_tunnel_is_there_within_a_second() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let (port, _hole) = without_udp(&gateway);
    let reached = client::reach_at(&gateway, ([127, 0, 0, 1], port).into()).await.unwrap();
    let credentials = portcullis::client::Credentials {
        user: Some("ann".to_owned()),
        password: Some(portcullis::types::Secret::new(support::PASSWORD)),
        domain: None,
        accept_disclaimer: true,
    };
    let mut session = reached
        .sign_in(credentials, &mut portcullis::client::Unattended)
        .await
        .unwrap();
    let since = portcullis::clock::now();
    assert_eq!(session.open_quic().await.unwrap_err(), QuicFault::Silent);
    let waited = portcullis::clock::now() - since;
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    let (tunnel, _notices) = client::open_tunnel(&mut session).await;
    let mut channel = client::launch(&mut session, &tunnel, "shell").await;
    assert_eq!(
        client::echo(&mut channel, b"by the other way").await,
        b"by the other way"
    );
    session.log_out().await;
}

/// What `ssh` does with its ProxyCommand, over each way.
#[test]
fn the_program_itself_takes_the_way_that_is_there() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let (port, _hole) = without_udp(&gateway);
    let streams = |gateway: &Gateway| {
        let lines = gateway.lines();
        lines
            .iter()
            .filter(|line| line["message"] == "QUIC stream closed")
            .count()
    };
    let open = gateway.address.port();
    for (port, transport, over_quic) in [
        (open, "auto", 1),
        (port, "auto", 1),
        (open, "https", 1),
        (open, "quic", 2),
    ] {
        let mut child = portcullis()
            .args([
                "connect",
                &format!("127.0.0.1:{port}"),
                "--user",
                "ann",
                "--accept-disclaimer",
                "--stdio",
            ])
            .args(["--transport", transport, "--ca"])
            .arg(gateway.chain())
            .env("PORTCULLIS_PASSWORD", support::PASSWORD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(b"through the gate").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.stdout, b"through the gate", "{transport}: {said}");
        assert!(output.status.success(), "{transport}: {said}");
        let deadline = portcullis::clock::now() + PATIENCE;
        while streams(&gateway) < over_quic && portcullis::clock::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(streams(&gateway), over_quic, "{transport} at {port}");
    }
}
