//! What is admitted over QUIC, and what is not: one answer to all, nothing dialled, and the reason in the log.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;

use super::peer::{Peer, Stream, launch, read, read_all, sign_in};
use super::rig::patiently;
use super::setup;
use super::support::raw::{self, message};
use super::support::{Gateway, Setup, Target};

async fn assert_refused(gateway: &Gateway, place: &str, authorization: Option<&str>, reasons: &[&str]) {
    let before = gateway.lines().len();
    let peer = Peer::connect(gateway).await;
    let (status, mut stream) = peer.connect_stream(place, authorization).await;
    assert_same_refusal(status, &mut stream).await;
    gateway.wait_for_after(before, "the refusal", |line| {
        reasons.iter().any(|reason| line["reason"] == *reason) && line["step"] == "grant"
    });
}

async fn assert_same_refusal(status: StatusCode, stream: &mut Stream) {
    assert_eq!(status, 403);
    assert_eq!(read_all(stream).await, b"not admitted\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_good_token_is_refused_and_nothing_is_dialled() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let made_up = format!("Bearer gw-1.{}.{}", "A".repeat(43), "A".repeat(11));
    let of_the_tunnel = format!("Bearer {}", user.user.token);
    let bearer = format!("Bearer {}", user.token);
    for (authorization, reasons) in [
        (None, &["no_token"][..]),
        (Some("Bearer x"), &["malformed"]),
        (Some(&*user.token), &["malformed"]),
        (Some("Basic YTpi"), &["malformed"]),
        (Some(&*made_up), &["unknown_token", "malformed"]),
        (Some(&*of_the_tunnel), &["wrong_protocol", "unknown_token"]),
    ] {
        assert_refused(&gateway, &place, authorization, reasons).await;
    }
    // A good token reaches what its session launched, and no address.
    let inside = target.address.to_string();
    for place in [&*inside, "ssh-2:1", "127.0.0.1:1", "ssh-1:22"] {
        assert_refused(&gateway, place, Some(&bearer), &["not_announced"]).await;
    }
    assert_eq!(target.dialled(), 0);

    let peer = Peer::connect(&gateway).await;
    let (status, mut stream) = peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 200);
    stream.send_data(Bytes::from_static(b"through")).await.unwrap();
    assert_eq!(read(&mut stream, 7).await, b"through");

    let logged_out = raw::post(&gateway, Some(&user.user.cookie), &message("<do-logout/>"));
    assert!(logged_out.text().contains("<result>ok</result>"));
    assert_refused(&gateway, &place, Some(&bearer), &["revoked"]).await;
    assert_eq!(target.dialled(), 1);
    assert!(!gateway.log_text().contains(&user.token), "the token is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_tunnel_opens_no_quic() {
    let gateway = Gateway::start(&setup(&Target::echo()));
    let user = raw::sign_in(&gateway, "ann");
    let bearer = format!("Bearer {}", user.token);
    assert_refused(&gateway, "ssh-1:1", Some(&bearer), &["wrong_protocol"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_has_its_time() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[session]\nfirst_use = \"1 s\"\nlifetime = \"3 s\"\n"));
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let bearer = format!("Bearer {}", user.token);
    std::thread::sleep(Duration::from_millis(1100));
    assert_refused(&gateway, &place, Some(&bearer), &["window_missed"]).await;
    gateway.wait_for("the end of the session", |line| line["reason"] == "session_expired");
    assert_refused(&gateway, &place, Some(&bearer), &["expired"]).await;
    assert_eq!(target.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_as_many_streams_as_it_may_have() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[session]\nconnections = 1\n"));
    let user = sign_in(&gateway);
    let place = launch(&gateway, &user, "shell");
    let bearer = format!("Bearer {}", user.token);
    let peer = Peer::connect(&gateway).await;
    let (status, _open) = peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 200);
    assert_refused(&gateway, &place, Some(&bearer), &["flow_limit"]).await;
    // It takes its connections a moment after they are there.
    patiently("the first one", || target.dialled() == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_refuses_and_names_the_node_that_issued_the_token() {
    let target = Target::echo();
    let key = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let node = |name| Gateway::start(&setup(&target).named(name).node(key));
    let (first, second) = (node("gw-1"), node("gw-2"));
    let user = sign_in(&first);
    let bearer = format!("Bearer {}", user.token);
    assert_refused(&second, "ssh-1:1", Some(&bearer), &["sister_node"]).await;
    second.wait_for("the owner", |line| {
        line["reason"] == "sister_node" && line["owner"] == "gw-1"
    });
    assert_eq!(target.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_without_an_end_costs_its_stream_and_nothing_else() {
    let gateway = Gateway::start(&Setup::default().listener("udp = true\n"));
    let peer = Peer::connect(&gateway).await;
    let (mut send, mut recv) = peer.connection.open_bi().await.unwrap();
    // HEADERS of a gibibyte.
    send.write_all(&[0x01, 0xc0, 0, 0, 0, 0x40, 0, 0, 0]).await.unwrap();
    let reset = tokio::time::timeout(super::PATIENCE, recv.read(&mut [0; 16]))
        .await
        .expect("in time");
    assert!(reset.is_err() || matches!(reset, Ok(None)), "{reset:?}");
    assert_eq!(peer.get("/favicon.ico").await.0, 200, "the connection goes on");
}
