//! Blast: who gets to the agent of a desktop by WebSocket, and who does not; nothing is dialled then.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use support::raw::{self, Answer, SignedIn, Stream, message};
use support::{Gateway, PATIENCE, Setup, Target};

#[test]
fn a_launched_desktop_is_reached_with_its_token_as_often_as_the_client_wants() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    for round in 0..3 {
        let (mut stream, answer) = open(&gateway, &path(&ticket));
        assert_eq!(answer.status, 101, "{}", answer.head);
        let words = format!("round {round}");
        assert_eq!(echo(&mut stream, words.as_bytes()), words.as_bytes());
    }
    let (mut one, _) = open(&gateway, &path(&ticket));
    let (mut two, _) = open(&gateway, &path(&ticket));
    assert_eq!(echo(&mut two, b"second"), b"second");
    assert_eq!(echo(&mut one, b"first"), b"first");
    assert_eq!(agent.dialled(), 5);
    gateway.wait_for("the end of a connection", |line| {
        line["message"] == "connection closed" && line["session"].is_string() && line["reason"] == "client_closed"
    });
}

#[test]
fn a_launch_says_where_the_client_asked_and_which_certificate_it_will_see() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let reply = launch_reply(&gateway, &user);
    assert_eq!(raw::element(&reply, "address"), Some("localhost"));
    assert_eq!(raw::element(&reply, "protocol"), Some("BLAST"));
    let ticket = ticket_of(&reply);
    assert_eq!(ticket["a"].as_str().unwrap().len(), 40);
    let output = std::process::Command::new("openssl")
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(gateway.chain())
        .output();
    if let Ok(output) = output {
        let shown = String::from_utf8(output.stdout).unwrap();
        let (_, digits) = shown.trim().split_once('=').unwrap();
        assert_eq!(ticket["thumbprint256"], digits.replace(':', " "));
    }
    let told = Setup::default().section("[blast]\nexternal_url = \"https://gw.example.com:8443\"\n");
    let gateway = Gateway::start(&desk(told, agent.address(), PLAIN));
    let reply = launch_reply(&gateway, &raw::sign_in(&gateway, "ann"));
    let told = (raw::element(&reply, "address"), raw::element(&reply, "port"));
    assert_eq!(told, (Some("gw.example.com"), Some("8443")));
}

#[test]
fn the_agent_gets_its_own_path_and_the_websocket_as_the_client_sent_it() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    let token = ticket["r"].as_str().unwrap();
    let fields = format!(
        "Origin: https://localhost\r\nSec-WebSocket-Key: {{odd}}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: \
         binary, vmware-vvc\r\nSec-WebSocket-Extensions: permessage-deflate\r\nCookie: {}\r\nX-Forwarded-For: 1.2.3.4\r\n",
        user.cookie
    );
    for (asked, expected) in [
        (
            format!("/r/{token}/d/{GUID}/?vauth=abc"),
            format!("/d/{GUID}/?vauth=abc"),
        ),
        (format!("/r/{token}"), "/".to_owned()),
        (format!("/d/{token}/?vauth=abc"), format!("/d/{token}/?vauth=abc")),
    ] {
        let (_stream, answer) = ask(
            &gateway,
            &asked,
            "Upgrade: websocket\r\nConnection: Upgrade\r\n",
            &fields,
        );
        assert_eq!(answer.status, 101, "{}", answer.head);
        assert_eq!(answer.header("sec-websocket-protocol"), ["vmware-vvc"]);
        assert!(answer.header("set-cookie").is_empty(), "{}", answer.head);
        let head = agent.next_head();
        assert_eq!(head.lines().next(), Some(&*format!("GET {expected} HTTP/1.1")));
        for kept in ["{odd}", "binary, vmware-vvc", "permessage-deflate", "https://localhost"] {
            assert!(head.contains(kept), "{kept} is missing: {head}");
        }
        for secret in ["JSESSIONID", "1.2.3.4"] {
            assert!(!head.contains(secret), "{head}");
        }
    }
}

#[test]
fn a_handshake_is_understood_in_every_spelling() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    for upgrade in [
        "Upgrade: WebSocket\r\nConnection: Upgrade\r\n",
        "upgrade: websocket\r\nconnection: keep-alive, Upgrade\r\n",
        "Connection: keep-alive\r\nUpgrade: websocket\r\nConnection: UPGRADE\r\n",
    ] {
        let (mut stream, answer) = ask(&gateway, &path(&ticket), upgrade, "");
        assert_eq!(answer.status, 101, "{upgrade}");
        assert_eq!(echo(&mut stream, b"x"), b"x");
    }
    let dialled = agent.dialled();
    let not_one = |upgrade: &str, fields: &str| ask(&gateway, &path(&ticket), upgrade, fields).1.status;
    assert_eq!(not_one("", ""), 426);
    assert_eq!(not_one("Upgrade: websocket\r\nConnection: close\r\n", ""), 426);
    assert_eq!(not_one(UPGRADE, "Content-Length: 3\r\n"), 400);
    let answer = raw::request(
        &gateway,
        &format!("POST {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path(&ticket)),
        b"",
    );
    assert_eq!((answer.status, answer.header("allow")), (405, vec!["GET"]));
    assert_eq!(agent.dialled(), dialled);
}

#[test]
fn bytes_sent_right_behind_the_handshake_reach_the_agent() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let mut stream = raw::tls(&gateway);
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\nearly",
        path(&ticket)
    );
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 101);
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"early");
}

#[test]
fn without_a_token_of_this_node_nobody_gets_through() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    let made_up = format!("gw-1.{}.{}", "A".repeat(43), "A".repeat(11));
    for (path, reasons) in [
        (format!("/r//d/{GUID}/"), &["no_token"][..]),
        (format!("/d/{GUID}/?vauth=abc"), &["no_token"]),
        ("/r/x/".to_owned(), &["malformed"]),
        (format!("/r/{made_up}/"), &["unknown_token", "malformed"]),
        // The tunnel's token opens the tunnel.
        (format!("/r/{}/", user.token), &["wrong_protocol"]),
    ] {
        assert_refused(&gateway, &path, reasons);
    }
    // Nor does the route's token open a tunnel.
    let (_, answer) = raw::open_tunnel(&gateway, ticket["r"].as_str().unwrap());
    assert_eq!(answer.status, 403);
    assert_eq!(agent.dialled(), 0);
}

#[test]
fn a_token_ends_with_its_session_or_its_desktop() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    assert_eq!(post(&gateway, &user, "<do-logout/>"), "ok");
    assert_refused(&gateway, &path(&ticket), &["revoked"]);

    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    let (mut stream, _) = open(&gateway, &path(&ticket));
    let list = raw::post(&gateway, Some(&user.cookie), &message("<get-desktops/>"));
    let session = raw::element(list.text(), "session-id").unwrap();
    post(
        &gateway,
        &user,
        &format!("<kill-session><session-id>{session}</session-id></kill-session>"),
    );
    assert_eq!(closing_frame(&mut stream), 1001);
    assert_refused(&gateway, &path(&ticket), &["revoked", "unknown_token"]);
    assert_eq!(agent.dialled(), 1);
}

#[test]
fn a_token_ends_with_the_time_of_its_session_and_so_does_what_is_open() {
    let agent = Agent::echo();
    let setup = Setup::default().section("[session]\nlifetime = \"2 s\"\n");
    let gateway = Gateway::start(&desk(setup, agent.address(), PLAIN));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let (mut stream, answer) = open(&gateway, &path(&ticket));
    assert_eq!(answer.status, 101);
    assert_eq!(closing_frame(&mut stream), 1001);
    gateway.wait_for("the connection's line", |line| {
        line["message"] == "connection closed" && line["reason"] == "session_expired"
    });
    assert_refused(&gateway, &path(&ticket), &["expired"]);
    assert_eq!(agent.dialled(), 1);
}

#[test]
fn a_token_that_nobody_used_in_time_is_void() {
    let agent = Agent::echo();
    let setup = Setup::default().section("[session]\nfirst_use = \"1 s\"\n");
    let gateway = Gateway::start(&desk(setup, agent.address(), PLAIN));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    std::thread::sleep(Duration::from_millis(1100));
    assert_refused(&gateway, &path(&ticket), &["window_missed"]);
    assert_eq!(agent.dialled(), 0);
}

#[test]
fn a_second_node_refuses_and_names_the_node_that_issued_the_token() {
    let agent = Agent::echo();
    let key = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let node = |name| Gateway::start(&setup(agent.address()).named(name).node(key));
    let (first, second) = (node("gw-1"), node("gw-2"));
    let ticket = launch(&first, &raw::sign_in(&first, "ann"));
    assert_refused(&second, &path(&ticket), &["sister_node"]);
    second.wait_for("the owner", |line| {
        line["reason"] == "sister_node" && line["owner"] == "gw-1"
    });
    assert_eq!(agent.dialled(), 0);
}

#[test]
fn a_session_has_as_many_connections_as_it_may_have() {
    let agent = Agent::echo();
    let setup = Setup::default().section("[session]\nconnections = 2\n");
    let gateway = Gateway::start(&desk(setup, agent.address(), PLAIN));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let (one, _) = open(&gateway, &path(&ticket));
    let (_two, answer) = open(&gateway, &path(&ticket));
    assert_eq!(answer.status, 101);
    assert_refused(&gateway, &path(&ticket), &["flow_limit"]);
    drop(one);
    gateway.wait_for("the end of the first", |line| line["reason"] == "client_closed");
    assert_eq!(open(&gateway, &path(&ticket)).1.status, 101);
}

#[test]
fn only_allowed_hosts_are_served() {
    let agent = Agent::echo();
    let setup = Setup::default().section("[blast]\nallowed_hosts = [\"gw.test\", \"localhost:9999\"]\n");
    let gateway = Gateway::start(&desk(setup, agent.address(), PLAIN));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    assert_refused(&gateway, &path(&ticket), &["host_not_allowed"]);
    assert_eq!(agent.dialled(), 0);
    let mut stream = raw::tls(&gateway);
    let request = format!("GET {} HTTP/1.1\r\nHost: GW.test:8443\r\n{UPGRADE}\r\n", path(&ticket));
    stream.write_all(request.as_bytes()).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 101);
}

#[test]
fn a_desktop_that_is_not_there_is_said_to_be_unreachable() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::start(&setup(gone));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let (_, answer) = open(&gateway, &path(&ticket));
    assert_eq!(answer.status, 502);
    gateway.wait_for("the reason", |line| {
        line["reason"] == "target_unreachable" && line["level"] == "WARN"
    });
}

#[test]
fn an_agent_that_speaks_something_else_is_said_not_to_answer() {
    let target = Target::new(|mut stream| {
        let _ = stream.write_all(b"SSH-2.0-something else\r\n");
        let _ = stream.read(&mut [0; 1000]);
    });
    let gateway = Gateway::start(&setup(target.address));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    assert_eq!(open(&gateway, &path(&ticket)).1.status, 504);
    gateway.wait_for("the reason", |line| line["reason"] == "agent_silent");
}

#[test]
fn an_agent_that_says_nothing_is_given_up() {
    let target = Target::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let gateway = Gateway::start(&setup(target.address));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    assert_eq!(open(&gateway, &path(&ticket)).1.status, 504);
    gateway.wait_for("the reason", |line| line["reason"] == "agent_silent");
}

#[test]
fn an_agent_that_declines_is_heard_but_nothing_is_relayed() {
    let agent = Agent::answering(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nSet-Cookie: inside=1\r\n\r\nnot today",
    );
    let gateway = Gateway::start(&setup(agent.address()));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let mut stream = raw::tls(&gateway);
    let request = format!("GET {} HTTP/1.1\r\nHost: localhost\r\n{UPGRADE}\r\n", path(&ticket));
    stream.write_all(request.as_bytes()).unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_eq!((answer.status, answer.text()), (403, "not today"));
    assert!(answer.header("set-cookie").is_empty());
    assert!(raw::is_closed(&mut stream));
}

#[test]
fn an_agent_has_to_be_the_one_that_is_configured() {
    let agent = Agent::echo();
    let other = "11:".repeat(31) + "11";
    let lines = format!("[directory.desktop.desk.agent]\nthumbprint = \"{other}\"\n");
    let gateway = Gateway::start(&desk(Setup::default(), agent.address(), &lines));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    assert_eq!(open(&gateway, &path(&ticket)).1.status, 502);
    gateway.wait_for("the reason", |line| line["reason"] == "target_unreachable");
    assert_eq!(agent.heads.lock().try_iter().count(), 0, "nothing was asked of it");
}

#[test]
fn each_side_may_end_first_and_still_hear_the_other() {
    let agent = Agent::serving(|mut stream| {
        let asked = support::read_all(&mut stream);
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(&asked).unwrap();
    });
    let gateway = Gateway::start(&setup(agent.address()));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let (mut stream, _) = open(&gateway, &path(&ticket));
    let question: Vec<_> = (0..1 << 20).map(|n: u32| n as u8).collect();
    stream.write_all(&question).unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let answer = support::read_all(&mut stream);
    assert!(answer == question, "{} bytes came back", answer.len());
    gateway.wait_for("an end in order", |line| {
        line["message"] == "connection closed" && line["session"].is_string() && line["reason"] == "completed"
    });
}

#[test]
fn three_hundred_half_closed_connections_leave_nothing_behind() {
    let agent = Agent::serving(|mut stream| drop(support::read_all(&mut stream)));
    let gateway = Gateway::start(&setup(agent.address()));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{}/fd", gateway.pid()))
            .unwrap()
            .count()
    };
    let before = descriptors();
    for _ in 0..300 {
        let (mut stream, answer) = open(&gateway, &path(&ticket));
        assert_eq!(answer.status, 101);
        stream.write_all(b"last words").unwrap();
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        stream.sock.shutdown(Shutdown::Write).unwrap();
        assert_eq!(support::read_all(&mut stream), b"");
    }
    let deadline = portcullis::clock::now() + PATIENCE;
    while descriptors() > before {
        assert!(
            portcullis::clock::now() < deadline,
            "{} descriptors, {before} before",
            descriptors()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_drain_tells_what_is_open_and_takes_nothing_new() {
    let agent = Agent::echo();
    let node = "grace_period = \"2 s\"\n";
    let mut gateway = Gateway::start(&setup(agent.address()).node(node));
    let ticket = launch(&gateway, &raw::sign_in(&gateway, "ann"));
    let (mut stream, _) = open(&gateway, &path(&ticket));
    gateway.signal("TERM");
    gateway.wait_for("the drain", |line| line["message"] == "draining");
    let (_, answer) = open(&gateway, &path(&ticket));
    assert_eq!((answer.status, answer.header("retry-after").len()), (503, 1));
    assert_eq!(echo(&mut stream, b"still here"), b"still here");
    assert_eq!(closing_frame(&mut stream), 1001);
    stream.conn.send_close_notify();
    let _ = stream.flush();
    drop(stream);
    gateway.wait_for("the end", |line| {
        line["message"] == "connection closed" && line["reason"] == "drained"
    });
    assert!(gateway.wait().success());
}

#[test]
fn no_token_is_ever_in_the_log() {
    let agent = Agent::echo();
    let gateway = Gateway::start(&setup(agent.address()));
    let user = raw::sign_in(&gateway, "ann");
    let ticket = launch(&gateway, &user);
    let (mut stream, _) = open(&gateway, &path(&ticket));
    echo(&mut stream, b"words between user and desktop");
    drop(stream);
    assert_refused(&gateway, "/r/perhaps-a-secret/d/?vauth=perhaps-another", &["malformed"]);
    post(&gateway, &user, "<do-logout/>");
    assert_refused(&gateway, &path(&ticket), &["revoked"]);
    let log = gateway.log_text();
    for secret in [
        ticket["r"].as_str().unwrap(),
        ticket["a"].as_str().unwrap(),
        "perhaps-a-secret",
        "perhaps-another",
        "words between",
    ] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

/// An agent of a desktop: notes what it was asked, agrees, and then does as it was told.
struct Agent {
    target: Target,
    heads: Arc<Mutex<mpsc::Receiver<String>>>,
}

impl Agent {
    fn echo() -> Self {
        Self::serving(|mut stream| {
            let mut writer = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut writer);
            let _ = writer.shutdown(Shutdown::Write);
        })
    }

    fn serving(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::new(AGREED, serve)
    }

    fn answering(answer: &'static str) -> Self {
        Self::new(answer, |mut stream| drop(stream.read_to_end(&mut Vec::new())))
    }

    fn new(answer: &'static str, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let (heads, asked) = mpsc::sync_channel(1000);
        let target = Target::new(move |mut stream| {
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read(&mut byte) {
                    Ok(1) => head.push(byte[0]),
                    _ => return,
                }
            }
            let _ = heads.try_send(String::from_utf8_lossy(&head).into_owned());
            if stream.write_all(answer.as_bytes()).is_ok() {
                serve(stream);
            }
        });
        Self {
            target,
            heads: Arc::new(Mutex::new(asked)),
        }
    }

    fn address(&self) -> SocketAddr {
        self.target.address
    }

    fn dialled(&self) -> usize {
        self.target.dialled()
    }

    /// The next request that it was asked.
    fn next_head(&self) -> String {
        self.heads.lock().recv_timeout(PATIENCE).unwrap()
    }
}

/// A gateway with the desktop `desk`, whose agent speaks no TLS.
fn setup(agent: SocketAddr) -> Setup {
    desk(Setup::default(), agent, PLAIN)
}

fn desk(setup: Setup, agent: SocketAddr, lines: &str) -> Setup {
    setup.desktop_for("desk", agent, "blast", &format!("users = [\"ann\"]\n{lines}"))
}

/// Launches `desk`; the ticket of the reply.
fn launch(gateway: &Gateway, user: &SignedIn) -> Value {
    ticket_of(&launch_reply(gateway, user))
}

fn launch_reply(gateway: &Gateway, user: &SignedIn) -> String {
    let launch = "<get-desktop-connection><desktop-id>desk</desktop-id><protocol><name>BLAST</name></protocol>\
                  </get-desktop-connection>";
    let reply = raw::post(gateway, Some(&user.cookie), &message(launch));
    assert!(reply.text().contains("<result>ok</result>"), "{}", reply.text());
    reply.text().to_owned()
}

fn ticket_of(reply: &str) -> Value {
    let token = raw::element(reply, "token").unwrap().replace("&quot;", "\"");
    serde_json::from_str(&token).unwrap()
}

fn post(gateway: &Gateway, user: &SignedIn, operation: &str) -> String {
    let reply = raw::post(gateway, Some(&user.cookie), &message(operation));
    raw::element(reply.text(), "result").unwrap().to_owned()
}

/// Where a client goes with its ticket.
fn path(ticket: &Value) -> String {
    format!("/r/{}/d/{GUID}/?vauth=abc", ticket["r"].as_str().unwrap())
}

fn open(gateway: &Gateway, path: &str) -> (Stream, Answer) {
    ask(gateway, path, UPGRADE, "")
}

fn ask(gateway: &Gateway, path: &str, upgrade: &str, fields: &str) -> (Stream, Answer) {
    let mut stream = raw::tls(gateway);
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}{fields}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let answer = raw::read_head(&mut stream);
    (stream, answer)
}

fn echo(stream: &mut Stream, bytes: &[u8]) -> Vec<u8> {
    // As a frame, so that the gateway sees where it ends.
    let mut frame = vec![0x82, u8::try_from(bytes.len()).unwrap()];
    frame.extend_from_slice(bytes);
    stream.write_all(&frame).unwrap();
    let mut heard = vec![0; frame.len()];
    stream.read_exact(&mut heard).unwrap();
    heard.split_off(2)
}

/// The code of the closing frame that comes next, with the end of the stream behind it.
fn closing_frame(stream: &mut Stream) -> u16 {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[0], 0x88, "a closing frame");
    let words = support::read_all(&mut *stream);
    assert_eq!(words.len() + 2, usize::from(head[1]), "and nothing behind it");
    u16::from_be_bytes([head[2], head[3]])
}

fn assert_refused(gateway: &Gateway, path: &str, reasons: &[&str]) {
    let before = gateway.lines().len();
    let (mut stream, mut answer) = open(gateway, path);
    answer.body = vec![0; 13];
    stream.read_exact(&mut answer.body).unwrap();
    assert_eq!((answer.status, answer.text()), (403, "not admitted\n"));
    assert!(raw::is_closed(&mut stream), "the connection closes after a refusal");
    gateway.wait_for_after(before, "the refusal", |line| {
        line["message"]
            .as_str()
            .is_some_and(|message| message.starts_with("blast refused"))
            && reasons.iter().any(|reason| line["reason"] == *reason)
    });
}

const GUID: &str = "1B2F3C4D-0000-1111-2222-0123456789AB";
const UPGRADE: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
const PLAIN: &str = "[directory.desktop.desk.agent]\ntls = false\n";
const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: \
                      abc=\r\nSec-WebSocket-Protocol: vmware-vvc\r\nSet-Cookie: inside=1\r\n\r\n";
