//! RDP of clients that know no gateway: who shows a token before the first byte of RDP reaches the desktop, and nobody else.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::tunnel::rdp::blob;
use serde_json::Value;
use support::raw::{self, connect_from, element, message};
use support::{Gateway, PATIENCE, Setup, Target};

#[test]
fn a_client_with_a_token_reaches_the_desktop_with_all_its_bytes() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = User::sign_in(&gateway, "ann");
    let launched = user.launch("office");
    assert_eq!(launched.address, "localhost");
    assert_eq!(launched.port, rdp_address(&gateway).port());

    // A real client sends blob and request in one segment, and comes again with the same blob.
    for _ in 0..2 {
        let mut stream = connect(&gateway);
        stream
            .write_all(&[&blob::encode(&launched.token), REQUEST].concat())
            .unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(support::read_all(&stream), REQUEST);
    }
    assert_eq!(target.dialled(), 2);
    let line = gateway.wait_for("the connection's line", |line| {
        is_end(line) && line["reason"] == "completed"
    });
    assert_eq!((&line["desktop"], &line["listener"]), (&"office".into(), &"rdp".into()));
    assert!(line["session"].is_string() && line["client"].is_string(), "{line}");
    assert!(!gateway.log_text().contains(&launched.token), "the token is in the log");
}

#[test]
fn a_slow_blob_is_read_however_it_is_cut() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    let mut stream = connect(&gateway);
    stream.set_nodelay(true).unwrap();
    for byte in blob::encode(&launched.token) {
        stream.write_all(&[byte]).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    stream.write_all(REQUEST).unwrap();
    let mut back = [0; REQUEST.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, REQUEST);
}

#[test]
fn who_brings_no_token_or_no_blob_is_closed_without_a_byte_and_nothing_is_dialled() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let _live = User::sign_in(&gateway, "ann").launch("office");
    let made_up = format!("gw-1.{}.{}", "A".repeat(43), "A".repeat(11));
    let version_1 = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
    for (bytes, reasons) in [
        (REQUEST, &["no_token"][..]),
        (&blob::encode(""), &["no_token"]),
        (&version_1, &["malformed"]),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &["malformed"]),
        (&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], &["malformed"]),
        (&blob::encode(&"x".repeat(126)), &["malformed"]),
        (&blob::encode(&"x".repeat(4000)), &["malformed"]),
        (&blob::encode("not-a-token"), &["malformed"]),
        (&blob::encode(&made_up), &["unknown_token", "malformed"]),
    ] {
        assert_refused(&gateway, bytes, reasons);
    }
    assert_eq!(target.dialled(), 0);
    assert!(
        !gateway.log_text().contains("not-a-token"),
        "what was shown is in the log"
    );
}

#[test]
fn a_token_ends_with_its_session_and_with_its_route() {
    let target = Target::echo();
    let setup = setup(&target).user("bob", "");
    let gateway = Gateway::start(&setup);
    let user = User::sign_in(&gateway, "ann");
    let launched = user.launch("office");
    user.post("<kill-session><session-id>SESSION:office</session-id></kill-session>");
    assert_refused(&gateway, &blob::encode(&launched.token), &["revoked"]);

    let again = user.launch("office");
    user.post("<do-logout/>");
    assert_refused(&gateway, &blob::encode(&again.token), &["revoked"]);
    assert_eq!(target.dialled(), 0);
}

#[test]
fn an_open_connection_ends_with_its_session() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = User::sign_in(&gateway, "ann");
    let launched = user.launch("office");
    let mut stream = connect(&gateway);
    stream
        .write_all(&[&blob::encode(&launched.token), REQUEST].concat())
        .unwrap();
    stream.read_exact(&mut [0; REQUEST.len()]).unwrap();
    user.post("<do-logout/>");
    assert!(raw::is_closed(&mut stream));
    gateway.wait_for("its line", |line| is_end(line) && line["reason"] == "logout");
}

#[test]
fn a_token_ends_with_the_time_of_its_session() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[session]\nlifetime = \"1 s\"\n"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    gateway.wait_for("the end of the session", |line| line["reason"] == "session_expired");
    assert_refused(&gateway, &blob::encode(&launched.token), &["expired"]);
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_token_that_nobody_used_in_time_is_void() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[session]\nfirst_use = \"1 s\"\n"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    std::thread::sleep(Duration::from_millis(1100));
    assert_refused(&gateway, &blob::encode(&launched.token), &["window_missed"]);
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_token_of_another_secondary_opens_nothing_here_and_this_one_nothing_there() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = User::sign_in(&gateway, "ann");
    let launched = user.launch("office");
    assert_refused(&gateway, &blob::encode(&user.tunnel_token), &["wrong_protocol"]);
    let (_stream, answer) = raw::open_tunnel(&gateway, &launched.token);
    assert_eq!(answer.status, 403);
    gateway.wait_for("the reason", |line| line["reason"] == "wrong_protocol");
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_session_has_as_many_connections_as_it_may_have() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[session]\nconnections = 1\n"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    let hello = [&blob::encode(&launched.token), REQUEST].concat();
    let mut open = connect(&gateway);
    open.write_all(&hello).unwrap();
    open.read_exact(&mut [0; REQUEST.len()]).unwrap();
    assert_refused(&gateway, &hello, &["flow_limit"]);
    assert_eq!(target.dialled(), 1);
}

#[test]
fn a_second_node_refuses_and_names_the_node_that_issued_the_token() {
    let target = Target::echo();
    let key = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let [first, second] = ["gw-1", "gw-2"].map(|name| Gateway::start(&setup(&target).named(name).node(key)));
    let launched = User::sign_in(&first, "ann").launch("office");
    assert_refused(&second, &blob::encode(&launched.token), &["sister_node"]);
    second.wait_for("the owner", |line| is_end(line) && line["owner"] == "gw-1");
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_desktop_that_is_not_there_is_told_in_the_log_and_not_to_the_client() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let gateway = Gateway::start(&Setup::default().section(RDP).desktop("office", address, "rdp"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    assert_refused(&gateway, &blob::encode(&launched.token), &["target_unreachable"]);
    gateway.wait_for("the cause", |line| {
        is_end(line) && line["fault"] == "the desktop refuses connections" && line["level"] == "WARN"
    });
}

#[test]
fn a_blob_that_does_not_come_in_time_is_not_waited_for() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target).section("[limits]\nhandshake_timeout = \"500 ms\"\n"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    let whole = blob::encode(&launched.token);
    for part in [0, 1, 17, whole.len() - 1] {
        assert_refused(&gateway, &whole[..part], &["timeout"]);
    }
    assert_eq!(target.dialled(), 0);
}

#[test]
fn the_client_is_whom_a_listed_balancer_names() {
    let target = Target::echo();
    let rdp = "[rdp]\nbind = [\"127.0.0.2:0\"]\nbalancers = [\"127.0.0.5\"]\n";
    let gateway = Gateway::start(&Setup::default().section(rdp).desktop("office", target.address, "rdp"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    let hello = [&blob::encode(&launched.token), REQUEST].concat();
    let header: &[u8] = b"PROXY TCP4 192.0.2.33 192.0.2.1 5000 3389\r\n";

    let mut stream = connect_from([127, 0, 0, 5], rdp_address(&gateway));
    stream.write_all(&[header, &hello].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(support::read_all(&stream), REQUEST);
    gateway.wait_for("the client's address", |line| {
        is_end(line) && line["client"] == "192.0.2.33:5000" && line["reason"] == "completed"
    });

    let mut bare = connect_from([127, 0, 0, 5], rdp_address(&gateway));
    bare.write_all(&hello).unwrap();
    assert!(raw::is_closed(&mut bare));
    gateway.wait_for("its reason", |line| is_end(line) && line["reason"] == "proxy_header");
    // From anyone else, a header is no blob.
    assert_refused(&gateway, header, &["malformed"]);
    assert_eq!(target.dialled(), 1);
}

#[test]
fn only_rdp_of_a_gateway_that_serves_it_can_be_launched_so() {
    let target = Target::echo();
    let without = Gateway::start(&Setup::default().desktop("office", target.address, "rdp"));
    let refused = User::sign_in(&without, "ann").post(&launch_operation("office"));
    assert!(
        refused.contains("The gateway has no port for clients of RDP."),
        "{refused}"
    );

    let gateway = Gateway::start(&setup(&target).desktop("shell", target.address, "ssh"));
    let refused = User::sign_in(&gateway, "ann").post(&launch_operation("shell"));
    assert!(refused.contains("Only RDP can be launched"), "{refused}");
}

#[test]
fn the_configured_address_is_told() {
    let target = Target::echo();
    let told = |address: &str| {
        let setup = Setup::default().section(&format!("{RDP}external_address = \"{address}\"\n"));
        let gateway = Gateway::start(&setup.desktop("office", target.address, "rdp"));
        let launched = User::sign_in(&gateway, "ann").post(&launch_operation("office"));
        let of = |name| element(&launched, name).unwrap().to_owned();
        (of("address"), of("port"), rdp_address(&gateway).port().to_string())
    };
    let (host, port, _) = told("gw-1.example.com:13389");
    assert_eq!((&*host, &*port), ("gw-1.example.com", "13389"));
    let (host, port, own) = told("[2001:db8::1]");
    assert_eq!((&*host, port), ("2001:db8::1", own));
}

#[test]
fn a_reload_takes_the_port_away_and_leaves_open_connections() {
    let target = Target::echo();
    let gateway = Gateway::start(&setup(&target));
    let user = User::sign_in(&gateway, "ann");
    let launched = user.launch("office");
    let address = rdp_address(&gateway);
    let mut open = connect(&gateway);
    open.write_all(&[&blob::encode(&launched.token), REQUEST].concat())
        .unwrap();
    open.read_exact(&mut [0; REQUEST.len()]).unwrap();
    gateway.reload(&Setup::default().desktop("office", target.address, "rdp"));
    assert!(TcpStream::connect(address).is_err(), "nobody listens there any more");
    open.write_all(b"still").unwrap();
    let mut back = [0; 5];
    open.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"still");
}

/// The drain leaves an open connection until the grace period is over.
#[test]
fn a_drain_waits_for_open_connections() {
    let target = Target::echo();
    let mut gateway = Gateway::start(&setup(&target).node("grace_period = \"20 s\"\n"));
    let launched = User::sign_in(&gateway, "ann").launch("office");
    let mut open = connect(&gateway);
    open.write_all(&[&blob::encode(&launched.token), REQUEST].concat())
        .unwrap();
    open.read_exact(&mut [0; REQUEST.len()]).unwrap();
    gateway.signal("TERM");
    gateway.wait_for("the drain", |line| line["message"] == "still open");
    open.write_all(b"still").unwrap();
    open.read_exact(&mut [0; 5]).unwrap();
    let begun = portcullis::clock::now();
    drop(open);
    assert!(gateway.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(10), "it waited on in vain");
}

/// A user who is signed in.
struct User<'a> {
    gateway: &'a Gateway,
    cookie: String,
    tunnel_token: String,
}

struct Launched {
    address: String,
    port: u16,
    token: String,
}

impl<'a> User<'a> {
    fn sign_in(gateway: &'a Gateway, name: &str) -> Self {
        let user = raw::sign_in(gateway, name);
        Self {
            gateway,
            cookie: user.cookie,
            tunnel_token: user.token,
        }
    }

    /// Posts operations, in which `SESSION` stands for the only session; gives the reply.
    fn post(&self, operations: &str) -> String {
        let operations = if operations.contains("SESSION") {
            operations.replace("SESSION", &session_of(self.gateway))
        } else {
            operations.to_owned()
        };
        let answer = raw::post(self.gateway, Some(&self.cookie), &message(&operations));
        answer.text().to_owned()
    }

    fn launch(&self, desktop: &str) -> Launched {
        let reply = self.post(&launch_operation(desktop));
        let text = |name| element(&reply, name).expect(name).to_owned();
        Launched {
            address: text("address"),
            port: text("port").parse().unwrap(),
            token: text("token"),
        }
    }
}

fn launch_operation(desktop: &str) -> String {
    format!(
        "<get-desktop-connection><desktop-id>{desktop}</desktop-id><preconnection>true</preconnection></get-desktop-connection>"
    )
}

fn session_of(gateway: &Gateway) -> String {
    let output = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["sessions"][0]["id"].as_str().unwrap().to_owned()
}

fn setup(target: &Target) -> Setup {
    Setup::default().section(RDP).desktop("office", target.address, "rdp")
}

fn rdp_address(gateway: &Gateway) -> SocketAddr {
    gateway.rdp_addresses()[0]
}

fn connect(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(rdp_address(gateway)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn assert_refused(gateway: &Gateway, bytes: &[u8], reasons: &[&str]) {
    let before = gateway.lines().len();
    let mut stream = connect(gateway);
    stream.write_all(bytes).unwrap();
    assert!(raw::is_closed(&mut stream), "closed without a byte: {reasons:?}");
    gateway.wait_for_after(before, &format!("one of {reasons:?}"), |line| {
        is_end(line) && reasons.iter().any(|reason| line["reason"] == *reason)
    });
}

fn is_end(line: &Value) -> bool {
    let message = line["message"].as_str().unwrap_or_default();
    message.starts_with("RDP connection closed")
}

const RDP: &str = "[rdp]\nbind = [\"127.0.0.2:0\"]\n";

/// The first request of RDP, as TPKT carries it.
const REQUEST: &[u8] = b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0\x08\0\x03\0\0\0";
