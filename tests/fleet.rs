//! Nodes that carry misrouted connections to each other: to the owner of the grant, once, and judged there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use portcullis::tunnel::rdp::blob;
use support::authority::Authority;
use support::raw::{self, message};
use support::{Gateway, PATIENCE, Setup, Target};

#[test]
fn a_misrouted_tunnel_reaches_its_owner_and_both_logs_say_so() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    let (mut stream, answer) = raw::open_tunnel(&fleet.other, &user.token);
    assert_eq!(answer.status, 200);
    authenticate(&mut stream, &user.token);
    let client = stream.sock.local_addr().unwrap().to_string();
    fleet.other.wait_for("the carrying", |line| {
        line["message"] == "connection carried to its own node" && line["owner"] == "gw-1" && line["client"] == *client
    });
    // The client's own address, and who brought it.
    assert!(
        raw::post(&fleet.owner, Some(&user.cookie), &message("<do-logout/>"))
            .text()
            .contains("ok")
    );
    fleet.owner.wait_for("the end of the carried connection", |line| {
        line["message"] == "connection closed" && line["relayed_by"] == "gw-2" && line["client"] == *client
    });
    assert!(ends(&mut stream), "the end of the session ends what was carried");
}

#[test]
fn a_carried_connection_is_judged_by_the_owner() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    raw::post(&fleet.owner, Some(&user.cookie), &message("<do-logout/>"));
    let (mut stream, mut answer) = raw::open_tunnel(&fleet.other, &user.token);
    answer.body = vec![0; 13];
    stream.read_exact(&mut answer.body).unwrap();
    assert_eq!((answer.status, answer.text()), (403, "not admitted\n"));
    assert!(raw::is_closed(&mut stream));
    fleet.owner.wait_for("the refusal", |line| line["reason"] == "revoked");
    assert_eq!(fleet.targets.0.dialled(), 0);
}

#[test]
fn without_its_owner_a_connection_is_refused_like_any_other() {
    let mut fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    fleet.owner.signal("KILL");
    fleet.owner.wait();
    let (mut stream, mut answer) = raw::open_tunnel(&fleet.other, &user.token);
    answer.body = vec![0; 13];
    stream.read_exact(&mut answer.body).unwrap();
    assert_eq!((answer.status, answer.text()), (403, "not admitted\n"));
    fleet.other.wait_for("the refusal", |line| {
        line["reason"] == "sister_node" && line["owner"] == "gw-1"
    });
}

#[test]
fn a_misrouted_websocket_reaches_its_owner() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    let reply = launch(&fleet.owner, &user, "screen", "");
    let (_, token) = reply
        .split_once("&quot;r&quot;:&quot;")
        .or(reply.split_once("\"r\":\""))
        .unwrap();
    let token = token.split(['&', '"']).next().unwrap();
    let mut stream = raw::tls(&fleet.other);
    let request = format!(
        "GET /r/{token}/d/X/?vauth=1 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 101);
    stream.write_all(b"through two gates").unwrap();
    let mut back = [0; 17];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"through two gates");
    fleet.other.wait_for("the carrying", |line| {
        line["message"] == "connection carried to its own node" && line["owner"] == "gw-1"
    });
}

#[test]
fn a_misrouted_rdp_client_reaches_its_owner() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    let reply = launch(&fleet.owner, &user, "shell", "<preconnection>true</preconnection>");
    let token = raw::element(&reply, "token").unwrap();
    let line = fleet
        .other
        .wait_for("the port of RDP", |line| line["message"] == "listening for RDP");
    let address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&blob::encode(token)).unwrap();
    stream.write_all(b"rdp").unwrap();
    let mut back = [0; 3];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"rdp");
    drop(stream);
    fleet.owner.wait_for("the end of the carried connection", |line| {
        line["relayed_by"] == "gw-2" && line["listener"] == "fleet" && line["desktop"] == "shell"
    });
}

#[test]
fn only_secondaries_are_carried() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    // The cookie of another node is no cookie: the message begins a session here.
    let answer = raw::post(&fleet.other, Some(&user.cookie), &message("<get-desktops/>"));
    assert!(answer.text().contains("NOT_AUTHENTICATED"), "{}", answer.text());
}

#[test]
fn a_node_that_does_not_prove_its_name_is_given_nothing() {
    let fleet = Fleet::new();
    let user = raw::sign_in(&fleet.owner, "ann");
    // gw-2 now believes that gw-1 is where a stranger listens with a certificate of the same authority.
    let impostor = Gateway::start(&fleet.setup("gw-3", &[]));
    let before = impostor.lines().len();
    fleet
        .other
        .reload(&fleet.setup("gw-2", &[("gw-1", fleet_address(&impostor))]));
    let (_stream, answer) = raw::open_tunnel(&fleet.other, &user.token);
    assert_eq!(answer.status, 403);
    impostor.wait_for_after(before, "the broken handshake", |line| line["listener"] == "fleet");
}

#[test]
fn a_stranger_on_the_port_of_the_fleet_gets_nothing() {
    let fleet = Fleet::new();
    let address = fleet_address(&fleet.owner);
    let before = fleet.owner.lines().len();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain
        .write_all(b"POST /ice/tunnel HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
    // TLS without a certificate.
    let mut stream = raw::tls_over(TcpStream::connect(address).unwrap(), &fleet.authority.certificate());
    let spoken = stream.write_all(b"\0\0").and_then(|()| stream.flush());
    assert!(spoken.is_err() || raw::is_closed(&mut stream));
    fleet.owner.wait_for_after(before, "the refused handshake", |line| {
        line["listener"] == "fleet" && line["reason"] == "tls_failed"
    });
}

/// Two nodes that know each other.
struct Fleet {
    authority: Authority,
    /// A desktop, and an agent of Blast.
    targets: (Target, Target),
    /// gw-1
    owner: Gateway,
    /// gw-2
    other: Gateway,
}

impl Fleet {
    fn new() -> Self {
        let authority = Authority::default();
        let targets = (Target::echo(), Target::new(agent));
        let start = |name, peers: &[(&str, SocketAddr)]| Gateway::start(&setup(&authority, &targets, name, peers));
        let owner = start("gw-1", &[]);
        let other = start("gw-2", &[("gw-1", fleet_address(&owner))]);
        let peers = [("gw-2", fleet_address(&other))];
        owner.reload(&setup(&authority, &targets, "gw-1", &peers));
        Self {
            authority,
            targets,
            owner,
            other,
        }
    }

    fn setup(&self, name: &str, peers: &[(&str, SocketAddr)]) -> Setup {
        setup(&self.authority, &self.targets, name, peers)
    }
}

fn setup(authority: &Authority, targets: &(Target, Target), name: &str, peers: &[(&str, SocketAddr)]) -> Setup {
    let peers: Vec<_> = peers.iter().map(|(peer, at)| format!("{peer} = \"{at}\"")).collect();
    let fleet = format!(
        "[fleet]\nbind = [\"127.0.0.2:0\"]\ncertificate = \"fleet\"\nca = {:?}\npeers = {{ {} }}\n{}",
        authority.certificate().display().to_string(),
        peers.join(", "),
        authority.table("fleet", name)
    );
    Setup::default()
        .named(name)
        .node("grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n")
        .section(&fleet)
        .section("[rdp]\nbind = [\"127.0.0.3:0\"]\n")
        .desktop("shell", targets.0.address, "rdp")
        .desktop_for(
            "screen",
            targets.1.address,
            "blast",
            "users = [\"ann\"]\nagent = { tls = false }",
        )
}

fn fleet_address(gateway: &Gateway) -> SocketAddr {
    let line = gateway.wait_for("the port of the fleet", |line| {
        line["message"] == "listening for the other nodes"
    });
    line["address"].as_str().unwrap().parse().unwrap()
}

/// The reply to a launch of the desktop.
fn launch(gateway: &Gateway, user: &raw::SignedIn, desktop: &str, asked: &str) -> String {
    let request = format!("<get-desktop-connection><desktop-id>{desktop}</desktop-id>{asked}</get-desktop-connection>");
    let answer = raw::post(gateway, Some(&user.cookie), &message(&request));
    assert!(answer.text().contains("<result>ok</result>"), "{}", answer.text());
    answer.text().to_owned()
}

/// Agrees to every WebSocket, and sends back whatever comes.
fn agent(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut byte = [0];
    let mut writer = stream.try_clone().unwrap();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let _ = writer.write_all(
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
          Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
    );
    let _ = std::io::copy(&mut stream, &mut writer);
}

/// Goes through the tunnel's handshake to its end.
fn authenticate(stream: &mut raw::Stream, token: &str) {
    raw::send_chunk(stream, &raw::init_chunk());
    raw::send_chunk(stream, &raw::start_chunk(token));
    let mut seen = Vec::new();
    // "authenticated", in base64.
    while !seen.windows(20).any(|window| window == b"YXV0aGVudGljYXRlZA==") {
        let mut some = [0; 256];
        let length = stream.read(&mut some).expect("the tunnel's handshake");
        assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&some[..length]);
    }
}

/// Whether the stream ends, whatever still comes.
fn ends(stream: &mut raw::Stream) -> bool {
    let deadline = portcullis::clock::now() + Duration::from_secs(10);
    while portcullis::clock::now() < deadline {
        if matches!(stream.read(&mut [0; 1024]), Ok(0) | Err(_)) {
            return true;
        }
    }
    false
}
