//! `portcullis doctor`: what it prints, to the letter.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use support::agent::free_port;
use support::{Gateway, PATIENCE, Setup, portcullis, raw};
use tempfile::NamedTempFile;

#[test]
fn on_a_node_with_nothing_wrong_it_says_so() {
    let gateway = Gateway::start(&Setup::default());
    let output = gateway.operator(&["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "ok    gw-1 is serving, health 200\n");
    assert_eq!(text(&output.stderr), "Nothing is found wrong around the node.\n");
}

#[test]
fn on_the_node_findings_and_refusals_are_listed() {
    let gateway = Gateway::start(&Setup::default().section("[session]\nfirst_use = \"1 s\"\n"));
    for _ in 0..3 {
        raw::sign_in(&gateway, "ann");
    }
    gateway.wait_for("the finding", |line| line["finding"] == "launch_never_arrives");
    for _ in 0..2 {
        raw::open_tunnel(&gateway, "nonsense");
    }
    let output = gateway.operator(&["doctor"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        without_times(&text(&output.stdout)),
        "\
ok    gw-1 is serving, health 200
FAIL  launch_never_arrives once since TIME
      The HTTPS tunnel was announced 3 times on end and never came within 1 s: the name under which clients ask for this \
node does not lead to gw-1, or its port is closed. Set tunnel.external_url, or open the port.

Turned away since the start:
       2  tunnel  malformed          unreadable token
"
    );
    assert_eq!(text(&output.stderr), "1 finding holds.\n");

    let json = gateway.operator(&["doctor", "--json"]).output().unwrap();
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["schema"], "portcullis.doctor.v1");
    assert_eq!(document["node"]["name"], "gw-1");
    assert_eq!(document["findings"][0]["code"], "launch_never_arrives");
    assert_eq!(document["refusals"][0]["count"], 2);
    let since: jiff::Timestamp = document["findings"][0]["since"].as_str().unwrap().parse().unwrap();
    assert!(since <= portcullis::clock::wall());
}

#[test]
fn on_the_node_an_external_address_that_leads_elsewhere_is_named() {
    let other = Gateway::start(&Setup::default().named("gw-2"));
    let url = format!("https://{}", other.address);
    let gateway = Gateway::start(&Setup::default().section(&format!("[tunnel]\nexternal_url = \"{url}\"\n")));
    gateway.wait_for("the self-check", |line| line["outcome"] == "other_node");
    let expected = format!("FAIL  tunnel.external_url {url} reaches another node\n      Clients of this node");
    let deadline = portcullis::clock::now() + PATIENCE;
    loop {
        let output = gateway.operator(&["doctor"]).output().unwrap();
        let said = text(&output.stdout);
        if said.contains(&expected) {
            assert_eq!(output.status.code(), Some(1));
            return;
        }
        assert!(portcullis::clock::now() < deadline, "{said}");
    }
}

#[test]
fn from_outside_a_sound_node_holds_every_step() {
    let gateway = Gateway::start(&Setup::default());
    let addresses = [gateway.address, round_robin([gateway.address; 2])];
    let output = outside(&addresses, &[&gateway], &[]);
    assert_eq!(
        without_days(&named(&text(&output.stdout), &addresses)),
        "\
ok    1 Listen   ONE, TWO
ok    2 TLS      TLS 1.3, chain complete, N days left
ok    3 Route    /favicon.ico answers 200: in service
ok    6 Grant    one node behind 2 addresses, 10 connections each
skip  7 Tunnel   no HTTP/3 is offered: UDP not looked at
"
    );
    assert_eq!(
        text(&output.stderr),
        "Every step held. The others need a sign-in: portcullis connect\n"
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn from_outside_a_udp_port_that_answers_is_named() {
    let address = format!("127.0.0.1:{}", free_port());
    let gateway = Gateway::start(&Setup::default().bind(&[&address]).listener("udp = true\n"));
    let said = text(&outside(&[gateway.address], &[&gateway], &[]).stdout);
    let expected = format!("ok    7 Tunnel   UDP {} answers QUIC\n", gateway.address.port());
    assert!(said.contains(&expected), "{said}");
}

#[test]
fn from_outside_a_port_that_leads_to_another_node_is_named() {
    let (one, two) = (
        Gateway::start(&Setup::default()),
        Gateway::start(&Setup::default().named("gw-2")),
    );
    let addresses = [one.address, two.address];
    let output = outside(&addresses, &[&one, &two], &["--connections", "2"]);
    assert_eq!(output.status.code(), Some(1));
    let said = named(&text(&output.stdout), &addresses);
    assert!(
        said.contains(
            "FAIL  6 Grant    TWO leads to another node than ONE\n      Give both ports one affinity table \
             (docs/load-balancers.md, \"Affinity\").\n"
        ),
        "{said}"
    );
    assert_eq!(text(&output.stderr), "1 of 4 steps failed.\n");

    let json = outside(&addresses, &[&one, &two], &["--connections", "2", "--json"]);
    assert_eq!(json.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["schema"], "portcullis.doctor.v1");
    let outcomes: Vec<_> = document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| {
            format!(
                "{} {}",
                line["step"].as_str().unwrap(),
                line["outcome"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(
        outcomes,
        ["listen ok", "secure ok", "route ok", "grant fail", "tunnel skip"]
    );
}

#[test]
fn from_outside_a_balancer_that_spreads_one_client_is_named() {
    let (one, two) = (
        Gateway::start(&Setup::default()),
        Gateway::start(&Setup::default().named("gw-2")),
    );
    let balancer = round_robin([one.address, two.address]);
    let output = outside(&[balancer], &[&one, &two], &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = named(&text(&output.stdout), &[balancer]);
    assert!(
        said.contains("FAIL  6 Grant    ONE: 2 nodes in 10 connections of one client\n"),
        "{said}"
    );
}

#[test]
fn from_outside_a_quiesced_node_is_out_of_service() {
    let gateway = Gateway::start(&Setup::default());
    assert!(gateway.operator(&["quiesce", "on"]).output().unwrap().status.success());
    let output = outside(&[gateway.address], &[&gateway], &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = named(&text(&output.stdout), &[gateway.address]);
    assert!(
        said.contains("FAIL  3 Route    ONE: /favicon.ico answers 503: out of service\n"),
        "{said}"
    );
}

#[test]
fn from_outside_a_certificate_of_nobody_is_named_and_the_rest_is_looked_at() {
    let (gateway, other) = (Gateway::start(&Setup::default()), Gateway::start(&Setup::default()));
    let output = outside(&[gateway.address], &[&other], &[]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stdout);
    let line = said.lines().find(|line| line.contains("2 TLS")).unwrap();
    assert!(
        line.starts_with("FAIL") && line.contains("the certificate is refused"),
        "{said}"
    );
    assert!(
        said.contains("ok    6 Grant    one node, 10 connections each\n"),
        "{said}"
    );
}

#[test]
fn from_outside_nobody_at_the_address_is_exit_4() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let output = portcullis()
        .args(["doctor", "--from", "outside", &address.to_string()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(
        named(&text(&output.stdout), &[address]),
        "\
FAIL  1 Listen   ONE: connection refused
      Check name, port, balancer and firewall, and that a node behind it is in service.
skip  2 TLS      not reached
skip  3 Route    not reached
skip  6 Grant    not reached
skip  7 Tunnel   not reached
"
    );
}

#[test]
fn addresses_and_places_that_do_not_fit_are_usage_errors() {
    for arguments in [
        &["doctor", "--from", "outside"][..],
        &["doctor", "desk.example.com"],
        &["doctor", "--from", "outside", "not a host"],
    ] {
        let output = portcullis().args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

/// Looks from outside, trusting the certificates of these nodes.
fn outside(addresses: &[SocketAddr], nodes: &[&Gateway], options: &[&str]) -> Output {
    let chains: Vec<_> = nodes
        .iter()
        .map(|node| std::fs::read_to_string(node.chain()).unwrap())
        .collect();
    let authorities = NamedTempFile::new().unwrap();
    std::fs::write(authorities.path(), chains.concat()).unwrap();
    let mut command: Command = portcullis();
    command
        .args(["doctor", "--from", "outside", "--ca"])
        .arg(authorities.path())
        .args(options)
        .args(addresses.iter().map(SocketAddr::to_string));
    command.output().unwrap()
}

/// A balancer that has never heard of affinity.
fn round_robin(nodes: [SocketAddr; 2]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let turn = AtomicUsize::new(0);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let node = TcpStream::connect(nodes[turn.fetch_add(1, Ordering::SeqCst) % 2]).unwrap();
            for (mut from, mut to) in [(client.try_clone().unwrap(), node.try_clone().unwrap()), (node, client)] {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    address
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn named(text: &str, addresses: &[SocketAddr]) -> String {
    let names = ["ONE", "TWO"].into_iter().zip(addresses);
    names.fold(text.to_owned(), |text, (name, address)| {
        text.replace(&address.to_string(), name)
    })
}

/// `365 days left` says how old the test is, and nothing else.
fn without_days(text: &str) -> String {
    let (before, rest) = text.split_once(" days left").unwrap();
    format!(
        "{}N days left{rest}",
        before.trim_end_matches(|c: char| c.is_ascii_digit())
    )
}

fn without_times(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let (time, rest) = word.split_once('\n').unwrap_or((word, ""));
        match time.parse::<jiff::Timestamp>() {
            Ok(_) => format!("TIME\n{rest}"),
            Err(_) => word.to_owned(),
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
