//! A node that looks whether its external addresses lead to itself, and how it can be told from another one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use portcullis::client::Endpoint;
use portcullis::client::mark::{self, MarkFault};
use portcullis::types::Mark;
use serde_json::Value;
use support::raw::{read_answer, request, tls_over};
use support::{Gateway, PATIENCE, Setup};

#[tokio::test(flavor = "multi_thread")]
async fn all_ports_of_a_node_give_one_answer_and_those_of_another_a_different_one() {
    let one = Gateway::start(&Setup::default().bind(&["127.0.0.1:0", "127.0.0.2:0"]));
    let other = Gateway::start(&Setup::default());
    let mark = Mark::from_random(uuid::Uuid::new_v4().as_u128());
    let answers = async |addresses: &[SocketAddr]| {
        let mut answers = Vec::new();
        for address in addresses {
            let endpoint: Endpoint = address.to_string().parse().unwrap();
            answers.push(mark::ask(&endpoint, mark, PATIENCE).await.unwrap());
        }
        answers
    };
    let [first, second] = answers(&one.addresses()).await.try_into().unwrap();
    assert_eq!(first, second);
    let of_other = answers(&other.addresses()).await[0];
    assert_ne!((first.answer, first.thumbprint), (of_other.answer, of_other.thumbprint));
    assert_ne!(first.answer, of_other.answer);
    let another = Mark::from_random(uuid::Uuid::new_v4().as_u128());
    let endpoint = one.address.to_string().parse().unwrap();
    let again = mark::ask(&endpoint, another, PATIENCE).await.unwrap();
    assert_ne!(again.answer, first.answer, "every mark has its own answer");
}

#[test]
fn the_answer_to_a_mark_tells_nothing_else_and_anything_else_is_not_found() {
    let gateway = Gateway::start(
        &Setup::default()
            .named("secret-name")
            .section("[health]\nbind = [\"127.0.0.3:0\"]"),
    );
    let ask = |query: &str| {
        let head = format!("GET /.well-known/portcullis/mark{query} HTTP/1.1\r\nHost: x\r\n\r\n");
        request(&gateway, &head, b"")
    };
    let answer = ask("?00112233445566778899aabbccddeeff");
    assert_eq!((answer.status, answer.text().len()), (200, 16));
    assert_eq!(answer.header("cache-control"), ["no-store"]);
    assert!(!answer.head.contains("secret-name"), "{}", answer.head);
    for query in ["", "?", "?0011", "?00112233445566778899aabbccddeefff"] {
        assert_eq!(ask(query).status, 404, "{query:?}");
    }
    let mut plain = std::net::TcpStream::connect(gateway.health_addresses()[0]).unwrap();
    let head = "GET /.well-known/portcullis/mark?00112233445566778899aabbccddeeff HTTP/1.1\r\nHost: x\r\n\r\n";
    std::io::Write::write_all(&mut plain, head.as_bytes()).unwrap();
    assert_eq!(
        read_answer(&mut plain).status,
        404,
        "not where nothing proves who answers"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_gateway_is_told_apart() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = silent.local_addr().unwrap().to_string().parse().unwrap();
    let asked = mark::ask(&endpoint, Mark::from_random(1), Duration::from_millis(300)).await;
    assert!(matches!(asked, Err(MarkFault::TimedOut(_))), "{asked:?}");
    drop(silent);
    let asked = mark::ask(&endpoint, Mark::from_random(1), PATIENCE).await;
    assert!(matches!(asked, Err(MarkFault::Connect(_))), "{asked:?}");
}

#[test]
fn addresses_that_lead_to_the_node_itself_are_quiet() {
    let address = free_address();
    let port = address.port();
    for tls in ["certificates = [\"own\"]", "tls = \"pass\""] {
        let external = format!(
            "[tunnel]\nexternal_url = \"https://localhost:{port}\"\n\
             [blast]\nexternal_url = \"https://127.0.0.1:{port}?udpport=8443\"\n{}",
            pcoip(tls, &free_address())
        );
        let gateway = Gateway::start(&Setup::default().bind(&[&address.to_string()]).section(&external));
        gateway.wait_for("the look", |line| {
            line["message"] == "external addresses reach this node" && line["addresses"] == 3
        });
        // What a node asks of itself is nobody's business: no warning, no refusal, nothing about clients.
        gateway.wait_for("the end of a question", |line| {
            line["message"] == "PCoIP connection closed" && line["level"] == "DEBUG"
        });
        let log = gateway.log_text();
        assert!(!gateway.lines().iter().any(warns) && !log.contains("refused"), "{log}");
    }
}

#[test]
fn an_address_that_leads_to_another_node_is_named_with_its_setting() {
    let (own, at_other) = ("certificates = [\"own\"]", free_address());
    let other = Setup::default().named("gw-2").section(&pcoip(own, &at_other));
    let other = Gateway::start(&other);
    let url = format!("https://127.0.0.1:{}", other.address.port());
    let elsewhere = format!("bind = [\"127.0.0.4:0\"]\n{own}\nexternal_address = \"{at_other}\"\n");
    let gateway =
        Gateway::start(&Setup::default().section(&format!("[blast]\nexternal_url = \"{url}\"\n[pcoip]\n{elsewhere}")));
    let line = gateway.wait_for("the fault", |line| {
        warns(line) && line["setting"] == "blast.external_url"
    });
    let words = line["message"].as_str().unwrap();
    assert!(
        words.starts_with(&format!("blast.external_url {url} reaches another node. ")),
        "{words}"
    );
    assert_eq!(line["outcome"], "other_node");
    gateway.wait_for("the other fault", |line| {
        warns(line) && line["setting"] == "pcoip.external_address" && line["outcome"] == "other_node"
    });

    // A reload asks again.
    let before = gateway.lines().len();
    gateway.reload(&Setup::default().section(&format!("[tunnel]\nexternal_url = \"{url}\"\n")));
    gateway.wait_for_after(before, "the fault of the new setting", |line| {
        warns(line) && line["setting"] == "tunnel.external_url"
    });
    let told = gateway
        .lines()
        .into_iter()
        .filter(|line| line["setting"] == "tunnel.external_url");
    assert_eq!(told.count(), 1, "{}", gateway.log_text());
}

#[test]
fn an_address_for_pcoip_that_leads_to_another_port_is_named() {
    let address = free_address();
    let pcoip =
        format!("[pcoip]\nbind = [\"127.0.0.4:0\"]\ncertificates = [\"own\"]\nexternal_address = \"{address}\"\n");
    let gateway = Gateway::start(&Setup::default().bind(&[&address.to_string()]).section(&pcoip));
    let line = gateway.wait_for("the fault", warns);
    let words = line["message"].as_str().unwrap();
    assert!(
        words.starts_with(&format!(
            "pcoip.external_address {address} reaches no gateway (it takes in strangers)"
        )),
        "{words}"
    );
}

#[test]
fn an_address_at_which_nobody_answers_is_told_after_some_patience() {
    let nobody = free_address();
    let external = format!("[tunnel]\nexternal_url = \"https://{nobody}\"\n");
    let gateway = Gateway::start(&Setup::default().section(&external));
    let line = gateway.wait_for("the fault", warns);
    let words = line["message"].as_str().unwrap();
    assert!(
        words.starts_with(&format!(
            "tunnel.external_url https://{nobody} reaches nobody (no connection"
        )),
        "{words}"
    );
}

/// TLS that answers the health check is what matters to users; a mark must not count as a client's business.
#[test]
fn marks_leave_no_line_at_info() {
    let gateway = Gateway::start(&Setup::default());
    let mut stream = tls_over(std::net::TcpStream::connect(gateway.address).unwrap(), &gateway.chain());
    let head = "GET /.well-known/portcullis/mark?00112233445566778899aabbccddeeff HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream).status, 200);
    let line = gateway.wait_for("its line", |line| line["message"] == "connection closed");
    assert_eq!(line["level"], "DEBUG");
}

/// A port for PCoIP that is told to clients as it is.
fn pcoip(tls: &str, address: &SocketAddr) -> String {
    format!("[pcoip]\nbind = [\"{address}\"]\n{tls}\nexternal_address = \"{address}\"\n")
}

fn warns(line: &Value) -> bool {
    line["level"] == "WARN" && line["setting"].is_string()
}

/// An address at which nobody listens.
fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
