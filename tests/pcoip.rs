//! PCoIP over TCP: who is let in, by which sign, and that nothing is dialled for anybody else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use support::agent::{self, Agent, connect, echoes, free_port, launch, launch_again};
use support::raw::{self, connect_from, is_closed, message};
use support::{Gateway, PATIENCE, Setup};

/// The alert of whoever is not let in.
const ACCESS_DENIED: [u8; 7] = [21, 3, 3, 0, 2, 2, 49];

#[test]
fn a_launched_desktop_is_reached_from_the_address_of_its_session() {
    let agent = Agent::echo();
    let (setup, pcoip) = agent::setup(&agent, "");
    let gateway = Gateway::start(&setup);
    let launched = launch(&gateway);
    assert_eq!(launched.address, pcoip, "the address to which the client came");
    let mut stream = connect(&gateway, pcoip);
    assert!(echoes(&mut stream, b"through the gate"));
    assert!(echoes(&mut stream, &[7; 100_000]), "more than one record");
    let mut second = connect(&gateway, pcoip);
    assert!(echoes(&mut second, b"a reconnect"));
    assert_eq!(agent.target.dialled(), 2);
    drop((stream, second));
    let closed = gateway.wait_for("its end", |line| line["message"] == "PCoIP connection closed");
    assert!(closed["session"].is_string(), "{closed}");
    assert!(!gateway.log_text().contains(&launched.token));
}

#[test]
fn the_configured_address_is_told() {
    let agent = Agent::echo();
    let (setup, _) = agent::setup(&agent, "external_address = \"203.0.113.10:14172\"\n");
    let gateway = Gateway::start(&setup);
    assert_eq!(launch(&gateway).address.to_string(), "203.0.113.10:14172");
}

#[test]
fn without_a_reason_to_come_nobody_is_let_in() {
    let agent = Agent::echo();
    let (setup, pcoip) = agent::setup(&agent, "");
    let setup = setup.section("[session]\nfirst_use = \"1 s\"\n");
    let gateway = Gateway::start(&setup);
    assert_refused(&gateway, connect_to(pcoip), "localhost", "address_mismatch");
    let user = raw::sign_in(&gateway, "ann");
    assert_refused(&gateway, connect_to(pcoip), "localhost", "not_announced");
    let launched = launch_again(&gateway, &user.cookie, "desk");
    let elsewhere = connect_from([127, 0, 0, 9], pcoip);
    assert_refused(&gateway, elsewhere, "localhost", "address_mismatch");
    std::thread::sleep(std::time::Duration::from_millis(1100));
    assert_refused(&gateway, connect_to(pcoip), "localhost", "window_missed");
    launch_again(&gateway, &user.cookie, "desk");
    launch(&gateway);
    assert_refused(&gateway, connect_to(pcoip), "localhost", "ambiguous_address");
    let over = raw::post(&gateway, Some(&launched.cookie), &message("<do-logout/>"));
    assert!(over.text().contains("<result>ok</result>"));
    assert_eq!(agent.target.dialled(), 0);
}

#[test]
fn a_token_in_the_name_lets_in_from_anywhere() {
    let agent = Agent::echo();
    let (setup, pcoip) = agent::setup(&agent, "");
    let gateway = Gateway::start(&setup);
    let launched = launch(&gateway);
    launch(&gateway);
    let name = format!("{}.localhost", agent::labels(&launched.token)).to_ascii_uppercase();
    let mut stream = raw::tls_named(connect_from([127, 0, 0, 8], pcoip), &gateway.chain(), &name);
    assert!(echoes(&mut stream, b"by name"));

    let changed = name.replacen(['A', 'B', 'C'], "D", 1);
    assert_refused(&gateway, connect_to(pcoip), &changed, "unknown_token");
    let cut = format!("{}.localhost", name.split('.').next().unwrap());
    assert_refused(&gateway, connect_to(pcoip), &cut, "malformed");
    raw::post(&gateway, Some(&launched.cookie), &message("<do-logout/>"));
    assert!(is_closed(&mut stream), "the connection ends with its session");
    assert_refused(&gateway, connect_to(pcoip), &name, "revoked");
    assert_eq!(agent.target.dialled(), 1);
}

#[test]
fn a_token_of_another_node_names_its_owner() {
    let agent = Agent::echo();
    let key = "recognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let (one, _) = agent::setup(&agent, "");
    let (two, pcoip) = agent::setup(&agent, "");
    let one = Gateway::start(&one.node(key));
    let two = Gateway::start(&two.named("gw-2").node(key));
    let name = format!("{}.localhost", agent::labels(&launch(&one).token));
    assert_refused(&two, connect_to(pcoip), &name, "sister_node");
    let line = two.wait_for("the owner", |line| {
        line["reason"] == "sister_node" && line["owner"].is_string()
    });
    assert_eq!(line["owner"], "gw-1");
    assert_eq!(agent.target.dialled(), 0);
}

#[test]
fn what_is_no_tls_is_not_let_in() {
    let agent = Agent::echo();
    let (setup, pcoip) = agent::setup(&agent, "");
    let gateway = Gateway::start(&setup.section("[limits]\nhandshake_timeout = \"1 s\"\n"));
    launch(&gateway);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 600], b"\x16\x03\x01"] {
        let mut stream = connect_to(pcoip);
        stream.write_all(bytes).unwrap();
        assert!(is_closed(&mut stream), "{bytes:?}");
    }
    assert_eq!(agent.target.dialled(), 0);
}

#[test]
fn the_balancer_says_who_comes() {
    let agent = Agent::echo();
    let (setup, pcoip) = agent::setup(&agent, "balancers = [\"127.0.0.1/32\"]\n");
    let gateway = Gateway::start(&setup);
    launch(&gateway);
    let through = |client: &str| {
        let mut stream = connect_to(pcoip);
        write!(stream, "PROXY TCP4 {client} 192.0.2.80 40000 4172\r\n").unwrap();
        stream
    };
    let mut stream = raw::tls_over(through("127.0.0.1"), &gateway.chain());
    assert!(echoes(&mut stream, b"behind a balancer"));
    assert_refused(&gateway, through("198.51.100.7"), "localhost", "address_mismatch");
    assert_eq!(agent.target.dialled(), 1);
}

#[test]
fn tls_passes_untouched_where_that_is_configured() {
    // The far end is another gateway's HTTPS port: its certificate is what the client must see.
    let far = Gateway::start(&Setup::default().named("far"));
    let port = free_port();
    let setup = Setup::default()
        .section(&format!("[pcoip]\nbind = [\"127.0.0.1:{port}\"]\ntls = \"pass\"\n"))
        .desktop("desk", far.address, "pcoip");
    let gateway = Gateway::start(&setup);
    let launched = launch(&gateway);
    let mut stream = raw::tls_over(TcpStream::connect(launched.address).unwrap(), &far.chain());
    stream
        .write_all(b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .unwrap();
    assert_eq!(raw::read_answer(&mut stream).status, 200);
    let elsewhere = connect_from([127, 0, 0, 9], launched.address);
    assert_refused(&gateway, elsewhere, "localhost", "address_mismatch");
}

#[test]
fn an_agent_that_is_not_who_it_should_be_gets_nothing() {
    let far = Gateway::start(&Setup::default().named("far"));
    let port = free_port();
    let wrong = ["00"; 32].join(":");
    let setup = Setup::default()
        .section(&format!(
            "[pcoip]\nbind = [\"127.0.0.1:{port}\"]\ncertificates = [\"own\"]\n"
        ))
        .desktop_for(
            "desk",
            far.address,
            "pcoip",
            &format!("users = [\"ann\"]\nagent = {{ thumbprint = \"{wrong}\" }}"),
        );
    let gateway = Gateway::start(&setup);
    let mut stream = connect(&gateway, launch(&gateway).address);
    // The client's own handshake is over by then: it sees an end without a byte.
    let _ = stream.write_all(b"anybody there?");
    assert!(is_closed(&mut stream));
    gateway.wait_for("the reason", |line| {
        line["reason"] == "target_unreachable" && line["step"] == "upstream"
    });
}

#[test]
fn the_port_comes_and_goes_with_a_reload_and_cuts_no_connection() {
    let agent = Agent::echo();
    let (with, pcoip) = agent::setup(&agent, "");
    let without = Setup::default().desktop_for(
        "desk",
        agent.target.address,
        "pcoip",
        "users = [\"ann\"]\nagent = { tls = false }",
    );
    let gateway = Gateway::start(&with);
    launch(&gateway);
    let mut stream = connect(&gateway, pcoip);
    assert!(echoes(&mut stream, b"before"));
    let socket = agent::datagrams([127, 0, 0, 1], pcoip);
    assert_eq!(agent::ask(&socket, &agent::first(100)), agent::first(100));
    let other = with.clone().section("[udp]\nidle = \"300 s\"\n");
    assert_eq!(gateway.reload(&other)["message"], "configuration applied");
    assert_eq!(
        agent::ask(&socket, &agent::first(101)),
        agent::first(101),
        "a flow goes on"
    );
    assert_eq!(gateway.reload(&without)["message"], "configuration applied");
    gateway.wait_for("the end of the flow", |line| {
        line["reason"] == "drained" && line["message"].as_str().is_some_and(|text| text.starts_with("flow of"))
    });
    assert!(TcpStream::connect(pcoip).map_or(true, |mut late| is_closed(&mut late)));
    assert!(echoes(&mut stream, b"after"));
    assert_eq!(gateway.reload(&with)["message"], "configuration applied");
    let mut again = connect(&gateway, pcoip);
    assert!(echoes(&mut again, b"again"));
    let ports = agent.heard().len();
    assert_eq!(agent::ask(&socket, &agent::first(102)), agent::first(102));
    assert_eq!(agent.heard().len(), ports + 1);
}

/// Nothing but the alert comes back, and the log has the one reason.
fn assert_refused(gateway: &Gateway, mut stream: TcpStream, name: &str, reason: &str) {
    let before = gateway.lines().len();
    let mut client = client(name);
    let mut hello = Vec::new();
    client.write_tls(&mut hello).unwrap();
    stream.write_all(&hello).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, ACCESS_DENIED, "{reason}");
    let line = gateway.wait_for_after(before, reason, |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("pcoip refused")
    });
    assert_eq!(line["reason"], reason, "{line}");
}

fn connect_to(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).unwrap()
}

fn client(name: &str) -> ClientConnection {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    ClientConnection::new(Arc::new(config), name).unwrap()
}
