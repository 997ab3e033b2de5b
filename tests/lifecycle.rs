//! Health, quiesce, drain and reload: what a balancer, an operator and the users in between see.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use bytes::Bytes;
use support::client::{echo, launch, open_tunnel, receive, sign_in};
use support::raw::{self, message, post, read_answer, read_head};
use support::{Gateway, PATIENCE, Setup, Target};

fn health(gateway: &Gateway, method: &str) -> u16 {
    let mut stream = raw::tls(gateway);
    stream
        .write_all(format!("{method} /favicon.ico HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .unwrap();
    let answer = if method == "HEAD" {
        read_head(&mut stream)
    } else {
        read_answer(&mut stream)
    };
    assert!(
        answer.header("set-cookie").is_empty(),
        "a health check begins no session"
    );
    answer.status
}

#[test]
fn the_health_check_is_200_and_in_quiesce_503() {
    let gateway = Gateway::start(&Setup::default());
    assert_eq!((health(&gateway, "GET"), health(&gateway, "HEAD")), (200, 200));
    assert!(gateway.operator(&["quiesce", "on"]).status().unwrap().success());
    assert_eq!((health(&gateway, "GET"), health(&gateway, "HEAD")), (503, 503));
    assert!(gateway.operator(&["quiesce", "off"]).status().unwrap().success());
    assert_eq!(health(&gateway, "GET"), 200);
}

#[test]
fn the_plain_health_port_answers_the_health_check_and_nothing_else() {
    let gateway = Gateway::start(&Setup::default().section("[health]\nbind = [\"[::1]:0\"]\n"));
    let address = gateway.health_addresses()[0];
    let ask = |request: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        read_answer(&mut stream).status
    };
    assert_eq!(ask("GET /favicon.ico HTTP/1.0\r\n\r\n"), 200);
    assert_eq!(
        ask("POST /broker/xml HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
        404
    );
    assert!(gateway.operator(&["quiesce", "on"]).status().unwrap().success());
    assert_eq!(ask("GET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n"), 503);
}

#[test]
fn one_keep_alive_connection_asks_again_and_again() {
    let gateway = Gateway::start(&Setup::default());
    let mut stream = raw::tls(&gateway);
    for _ in 0..3 {
        stream
            .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert_eq!(read_head(&mut stream).status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quiesced_node_goes_on_for_who_is_there_and_serves_who_still_arrives() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert!(gateway.operator(&["quiesce", "on"]).status().unwrap().success());
    assert_eq!(echo(&mut channel, b"still here").await, b"still here");
    let late = sign_in(&gateway).await;
    let status = gateway.operator(&["quiesce", "status"]).output().unwrap();
    let words = String::from_utf8(status.stdout).unwrap();
    assert!(
        words.starts_with("gw-1 quiesced, health 503: 2 sessions left, at the latest for 9 h 59 min"),
        "{words}"
    );
    late.log_out().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_leaves_tunnels_until_the_grace_period_is_over_and_ends_with_0() {
    let target = Target::echo();
    let setup = Setup::default()
        .node("grace_period = \"2 s\"\n")
        .desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup);
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    echo(&mut channel, b"before").await;
    // Idle keep-alive, half a head, and a handshake that never comes: none of them may hold the end up.
    let mut idle = raw::tls(&gateway);
    idle.write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    read_head(&mut idle);
    let mut half = raw::tls(&gateway);
    half.write_all(b"POST /broker/xml HTTP/1.1\r\nHost:").unwrap();
    let _silent = TcpStream::connect(gateway.address).unwrap();

    let began = portcullis::clock::now();
    gateway.signal("TERM");
    gateway.wait_for("the drain", |line| line["message"] == "draining");
    assert_eq!(health(&gateway, "GET"), 503, "the balancer must see it");
    assert!(raw::is_closed(&mut idle), "an idle connection is closed at once");
    assert!(began.elapsed() < Duration::from_millis(1500));
    assert_eq!(echo(&mut channel, b"during").await, b"during");
    gateway.wait_for("still open", |line| {
        line["message"] == "still open" && line["tunnels"] == 1
    });
    assert_eq!(
        post(&gateway, None, &message("<get-configuration/>")).status,
        503,
        "no session begins"
    );
    let end = tokio::time::timeout(PATIENCE, tunnel.ended()).await.unwrap();
    assert!(format!("{end:?}").contains("node shuts down"), "{end:?}");
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert!(gateway.wait().success());
    gateway.wait_for("the tunnel's end", |line| {
        line["message"] == "tunnel closed" && line["reason"] == "drained"
    });
}

#[test]
fn a_drain_without_tunnels_is_over_at_once() {
    let mut gateway = Gateway::start(&Setup::default().node("grace_period = \"1 h\"\n"));
    let _session = raw::sign_in(&gateway, "ann");
    let began = portcullis::clock::now();
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_the_node_at_once() {
    let target = Target::echo();
    let setup = Setup::default()
        .node("grace_period = \"1 h\"\n")
        .desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup);
    let mut session = sign_in(&gateway).await;
    let (_tunnel, _notices) = open_tunnel(&mut session).await;
    gateway.signal("TERM");
    gateway.wait_for("still open", |line| line["message"] == "still open");
    gateway.signal("TERM");
    gateway.wait();
}

/// The transfer goes on through both, whole: what is open does not depend on what is configured after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_lives_through_a_good_and_a_bad_reload() {
    const LENGTH: usize = 4 * 1024 * 1024;
    let target = Target::new(|mut stream| {
        // Slowly enough for two reloads to happen in the middle.
        let piece: Vec<u8> = (0..LENGTH / 64).map(|n| n as u8).collect();
        for _ in 0..64 {
            if stream.write_all(&piece).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let setup = Setup::default().desktop("shell", target.address, "ssh");
    let gateway = Gateway::start(&setup);
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let first = receive(&mut channel, 1).await.len();

    let applied = gateway.reload(&setup.clone().user("carol", ""));
    assert_eq!(applied["message"], "configuration applied");
    let refused = gateway.reload_text("[node]\nname = \"gw-1\"\nnonsense = 1\n");
    assert_eq!(
        refused["message"],
        "configuration refused, the one before stays in force"
    );
    gateway.wait_for("the fault", |line| {
        line["message"].as_str().is_some_and(|words| words.contains("nonsense"))
    });

    let rest = receive(&mut channel, LENGTH - first).await.len();
    assert_eq!(first + rest, LENGTH);
    raw::sign_in(&gateway, "carol");
}

#[test]
fn new_certificate_files_are_served_and_a_bad_pair_is_not() {
    let gateway = Gateway::start(&Setup::default());
    let mut open = raw::tls(&gateway);
    let old = std::fs::read(gateway.chain()).unwrap();
    let names = ["localhost".to_owned()];
    let fresh = portcullis::secure::self_signed(&names, portcullis::clock::wall()).unwrap();

    // Half a pair: the new chain with the old key.
    std::fs::write(gateway.chain(), &fresh.chain).unwrap();
    let text = std::fs::read_to_string(gateway.folder().join("gw.toml")).unwrap();
    let refused = gateway.reload_text(&text);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .starts_with("configuration refused"),
        "{refused}"
    );
    std::fs::write(gateway.folder().join("old.pem"), &old).unwrap();
    let stream = TcpStream::connect(gateway.address).unwrap();
    let mut with_old = raw::tls_over(stream, &gateway.folder().join("old.pem"));
    with_old
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut with_old).status, 200, "the old one is still served");

    std::fs::write(gateway.folder().join("key.pem"), fresh.key.expose()).unwrap();
    assert_eq!(gateway.reload_text(&text)["message"], "configuration applied");
    let mut with_new = raw::tls(&gateway);
    with_new
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut with_new).status, 200);
    open.write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut open).status, 200, "what was open stays open");
}

#[test]
fn an_ocsp_response_is_sent_along_as_long_as_it_holds() {
    let gateway = Gateway::start(&Setup::default());
    let text = std::fs::read_to_string(gateway.folder().join("gw.toml")).unwrap();
    let stapled = text.replacen("[certificate.own]\n", "[certificate.own]\nocsp = \"own.ocsp\"\n", 1);
    let asked = || {
        let address = gateway.address.to_string();
        openssl(
            &gateway,
            &["s_client", "-status", "-connect", &address, "-CAfile", "chain.pem"],
        )
    };
    assert!(asked().contains("OCSP response: no response sent"));

    let refused = gateway.reload_text(&stapled);
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .starts_with("configuration refused"),
        "{refused}"
    );
    answer_for(&gateway);
    assert_eq!(gateway.reload_text(&stapled)["message"], "configuration applied");
    assert!(asked().contains("Cert Status: good"), "{}", asked());

    let before = gateway.lines().len();
    let file = gateway.folder().join("own.ocsp");
    let mut answer = std::fs::read(&file).unwrap();
    let time = b"\x18\x0f20";
    let next = answer.windows(time.len()).rposition(|bytes| bytes == time).unwrap();
    answer[next + time.len()..][..2].copy_from_slice(b"20");
    std::fs::write(&file, answer).unwrap();
    assert_eq!(gateway.reload_text(&stapled)["message"], "configuration applied");
    gateway.wait_for_after(before, "the warning", |line| {
        line["message"]
            .as_str()
            .is_some_and(|words| words.contains("its OCSP response expired at"))
    });
    assert!(asked().contains("OCSP response: no response sent"));
}

/// Has the gateway's own certificate vouch for itself for a week, in `own.ocsp`.
fn answer_for(gateway: &Gateway) {
    let serial = openssl(gateway, &["x509", "-in", "chain.pem", "-noout", "-serial"]);
    let serial = serial.trim().trim_start_matches("serial=");
    let index = format!("V\t491231235959Z\t\t{serial}\tunknown\t/CN=localhost\n");
    std::fs::write(gateway.folder().join("index.txt"), index).unwrap();
    let serial = format!("0x{serial}");
    let ask = [
        "ocsp",
        "-index",
        "index.txt",
        "-CA",
        "chain.pem",
        "-rsigner",
        "chain.pem",
        "-rkey",
        "key.pem",
    ];
    let about = [
        "-issuer",
        "chain.pem",
        "-serial",
        &serial,
        "-respout",
        "own.ocsp",
        "-ndays",
        "7",
    ];
    openssl(gateway, &[&ask[..], &about].concat());
}

/// What it says, in the gateway's folder.
fn openssl(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = std::process::Command::new("openssl")
        .args(arguments)
        .current_dir(gateway.folder())
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_reload_moves_listeners_and_refuses_what_needs_a_restart() {
    let gateway = Gateway::start(&Setup::default());
    let before = gateway.address;
    let moved = Setup::default().bind(&["127.0.0.1:0", "[::1]:0"]);
    assert_eq!(gateway.reload(&moved)["message"], "configuration applied");
    assert!(
        TcpStream::connect(before).is_ok(),
        "an address that stays is not bound again"
    );
    let v6 = gateway
        .addresses()
        .into_iter()
        .find(|address| address.is_ipv6())
        .expect("a second listener");
    let mut stream = raw::tls_over(TcpStream::connect(v6).unwrap(), &gateway.chain());
    stream
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut stream).status, 200);
    assert_eq!(gateway.reload(&Setup::default())["message"], "configuration applied");
    let deadline = portcullis::clock::now() + PATIENCE;
    while TcpStream::connect(v6).is_ok() {
        assert!(portcullis::clock::now() < deadline, "an address that is gone is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    let renamed = gateway.reload(&Setup::default().named("gw-9"));
    assert!(renamed["message"].as_str().unwrap().contains("node.name"), "{renamed}");
}

#[test]
fn a_user_who_is_taken_out_of_the_configuration_is_out() {
    let gateway = Gateway::start(&Setup::default().user("bob", ""));
    let bob = raw::sign_in(&gateway, "bob");
    assert_eq!(gateway.reload(&Setup::default())["message"], "configuration applied");
    let answer = post(&gateway, Some(&bob.cookie), &message("<get-desktops/>"));
    assert!(answer.text().contains("NOT_AUTHENTICATED"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_shuts_its_side_and_waits_gets_the_whole_answer() {
    const LENGTH: usize = 1024 * 1024;
    let target = Target::new(|mut stream| {
        let mut question = vec![0; LENGTH];
        stream.read_exact(&mut question).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(&question).unwrap();
    });
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let question: Vec<u8> = (0..LENGTH).map(|n| (n / 7) as u8).collect();
    channel.sender().send(Bytes::from(question.clone())).await.unwrap();
    assert_eq!(receive(&mut channel, LENGTH).await, question);
    assert!(
        tokio::time::timeout(PATIENCE, channel.receive())
            .await
            .unwrap()
            .is_none(),
        "then the end"
    );
}
