//! What a node says by itself when something around it is wrong.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

use serde_json::Value;
use support::{Gateway, Setup, raw};

/// The nodes of one fleet know each other's tokens.
const FLEET: &str = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";

#[test]
fn a_sisters_grant_on_a_second_port_is_lost_affinity_and_told_once() {
    let one = Gateway::start(&Setup::default().node(FLEET).bind(&["127.0.0.1:0", "127.0.0.2:0"]));
    let two = Gateway::start(&Setup::default().named("gw-2").node(FLEET));
    raw::sign_in(&one, "ann");
    let second = one.addresses()[1];
    for _ in 0..3 {
        let user = raw::sign_in(&two, "ann");
        assert_eq!(ask_for_tunnel(&one, second, &user.token), 403);
    }
    let line = one.wait_for("the finding", |line| line["finding"] == "affinity_lost");
    assert_eq!(line["level"], "WARN");
    let words = line["message"].as_str().unwrap();
    let expected = format!("A valid grant of gw-2 arrived at gw-1 on {second} from no listed balancer");
    assert!(words.starts_with(&expected), "{words}");
    assert!(words.contains("Give both ports one affinity table"), "{words}");
    let findings = findings(&one);
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!(findings[0]["code"], "affinity_lost");
    assert_eq!(findings[0]["holds"], true);
    assert_eq!(findings[0]["count"], 3);
    assert_eq!(findings[0]["words"], words);
    let told = one.lines();
    assert_eq!(
        told.iter().filter(|line| line["finding"].is_string()).count(),
        1,
        "once an episode"
    );
}

#[test]
fn tokens_from_before_a_restart_are_known_as_such() {
    let mut gateway = Gateway::start(&Setup::default().node(FLEET));
    let user = raw::sign_in(&gateway, "ann");
    gateway.restart();
    assert_eq!(raw::open_tunnel(&gateway, &user.token).1.status, 403);
    let line = gateway.wait_for("the refusal", |line| line["step"] == "grant");
    assert_eq!(
        (&line["reason"], &line["owner"]),
        (&"unknown_token".into(), &"gw-1".into())
    );
    let line = gateway.wait_for("the finding", |line| line["finding"] == "persistence_lost");
    let words = line["message"].as_str().unwrap();
    assert!(words.contains("gw-1 issued and does not know"), "{words}");
}

#[test]
fn what_nobody_comes_for_names_the_external_url() {
    let setup = Setup::default()
        .section("[session]\nfirst_use = \"1 s\"\n")
        .section("[tunnel]\nexternal_url = \"https://gone.example.com:8443\"\n");
    let gateway = Gateway::start(&setup);
    for _ in 0..3 {
        raw::sign_in(&gateway, "ann");
    }
    let line = gateway.wait_for("the finding", |line| line["finding"] == "launch_never_arrives");
    let words = line["message"].as_str().unwrap();
    assert!(
        words.contains("https://gone.example.com:8443 does not lead to gw-1") && words.contains("tunnel.external_url"),
        "{words}"
    );
    let user = raw::sign_in(&gateway, "ann");
    assert_eq!(raw::open_tunnel(&gateway, &user.token).1.status, 200);
    assert_eq!(findings(&gateway)[0]["holds"], false, "it was seen to be mended");
}

#[test]
fn a_node_with_nothing_wrong_says_so() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    assert_eq!(raw::open_tunnel(&gateway, &user.token).1.status, 200);
    assert_eq!(findings(&gateway), [] as [Value; 0]);
}

/// Asks for a tunnel at one address of a node; the status.
fn ask_for_tunnel(gateway: &Gateway, at: SocketAddr, token: &str) -> u16 {
    let stream = std::net::TcpStream::connect(at).unwrap();
    let mut stream = raw::tls_over(stream, &gateway.chain());
    let head = format!("POST /ice/tunnel?{token} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    raw::read_head(&mut stream).status
}

fn findings(gateway: &Gateway) -> Vec<Value> {
    let mut stream = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    stream
        .write_all(b"GET /api/v1/findings HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let answer: Value = serde_json::from_str(raw::read_answer(&mut stream).text()).unwrap();
    answer["findings"].as_array().unwrap().clone()
}
