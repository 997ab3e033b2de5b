//! An upgrade in place: another process takes over, and nobody notices.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::client::{Credentials, Notice, Unattended};
use portcullis::clock;
use portcullis::types::Secret;
use rustls::HandshakeKind;
use serde_json::Value;
use support::client::{echo, launch, open_tunnel, reach_at, sign_in};
use support::heir::{Heir, kill, upgrade, upgrade_by_signal, upgrade_to};
use support::raw::{self, element, message, password_message, post, post_on, read_answer, read_head};
use support::{Gateway, PASSWORD, PATIENCE, Setup, Target};
use tokio::time::timeout;

fn health_on(stream: &mut raw::Stream) -> raw::Answer {
    stream
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    read_head(stream)
}

fn health(gateway: &Gateway) -> u16 {
    health_on(&mut raw::tls(gateway)).status
}

/// An application: `/slow` sends [`DOWNLOAD`] bytes over two seconds, `/ws` sends back what comes, everything else is `ok`.
fn application() -> Target {
    Target::new(|mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") {
            if !matches!(stream.read(&mut byte), Ok(1)) {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        if head.starts_with("GET /slow ") {
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {DOWNLOAD}\r\n\r\n");
            for _ in 0..40 {
                if stream.write_all(&vec![b'x'; DOWNLOAD / 40]).is_err() {
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        } else if head.starts_with("GET /ws ") {
            // The key of RFC 6455, section 1.3, and its answer.
            let _ = stream.write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                  Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n",
            );
            let mut writer = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut writer);
        } else {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
        }
    })
}

const DOWNLOAD: usize = 4_000_000;

fn published(application: &Target) -> String {
    format!(
        "[probe.quick]\npath = \"/probe\"\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 2\n\
         [pool.shop]\ntargets = [\"{}\"]\n[backend.shop]\nprobe = \"quick\"\n\
         [rule.shop]\nhosts = [\"gw.test\"]\npriority = 10\npool = \"shop\"\nbackend = \"shop\"\n",
        application.address
    )
}

fn web(gateway: &Gateway) -> raw::Stream {
    let stream = TcpStream::connect(gateway.address).unwrap();
    raw::tls_named(stream, &gateway.chain(), "gw.test")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_cuts_nobody_and_what_comes_next_is_served_by_the_new_process() {
    let (target, application) = (Target::echo(), application());
    let setup = Setup::default()
        .section(&published(&application))
        .desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup);
    let old = gateway.pid();
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"before").await, b"before");
    let half_way = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    let (mut kept, mut kept_for_web) = (raw::tls(&gateway), web(&gateway));
    assert_eq!(health_on(&mut kept).status, 200);
    kept_for_web
        .write_all(b"GET /one HTTP/1.1\r\nHost: gw.test\r\n\r\n")
        .unwrap();
    assert_eq!(read_answer(&mut kept_for_web).text(), "ok");
    let mut download = web(&gateway);
    download
        .write_all(b"GET /slow HTTP/1.1\r\nHost: gw.test\r\n\r\n")
        .unwrap();
    let mut socket = web(&gateway);
    socket
        .write_all(
            b"GET /ws HTTP/1.1\r\nHost: gw.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    assert_eq!(read_head(&mut socket).status, 101);

    let heir = upgrade(&gateway);
    assert_ne!(heir.0, old);

    // What is open goes on.
    assert_eq!(echo(&mut channel, b"after").await, b"after");
    socket.write_all(b"\x81\x80\0\0\0\0").unwrap();
    let mut frame = [0; 2];
    socket.read_exact(&mut frame).unwrap();
    assert_eq!(frame[0], 0x81);
    assert_eq!(read_answer(&mut download).body.len(), DOWNLOAD);
    // A connection that waited is answered, and told that it was the last time.
    let answer = health_on(&mut kept);
    assert_eq!((answer.status, answer.header("connection")), (200, vec!["close"]));
    kept_for_web
        .write_all(b"GET /two HTTP/1.1\r\nHost: gw.test\r\n\r\n")
        .unwrap();
    let answer = read_answer(&mut kept_for_web);
    assert_eq!((answer.text(), answer.header("connection")), ("ok", vec!["close"]));
    // Who comes next is served: by cookie, by a sign-in in its middle, by a tunnel of the old process.
    assert_eq!(health(&gateway), 200);
    let answer = post(&gateway, Some(&half_way), &password_message("ann", PASSWORD, ""));
    assert!(answer.text().contains("<result>ok</result>"), "{}", answer.text());
    let mut second = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut second, b"once more").await, b"once more");
    let mut other = sign_in(&gateway).await;
    let (_other_tunnel, _notices) = open_tunnel(&mut other).await;
    let sessions = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let sessions: Value = serde_json::from_slice(&sessions.stdout).unwrap();
    assert_eq!(sessions["sessions"].as_array().unwrap().len(), 3, "{sessions}");

    let asked = clock::now();
    session.log_out().await;
    timeout(PATIENCE, tunnel.ended()).await.unwrap();
    let took = clock::now() - asked;
    assert!(
        took < Duration::from_secs(1),
        "the tunnel in the old process is cut: {took:?}"
    );
    drop((socket, channel, second, kept, kept_for_web, download));
    assert!(
        gateway.wait().success(),
        "the old process ends with its last connection"
    );
    assert_eq!(health(&gateway), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_processes_in_a_row_keep_their_tunnels_and_hear_of_every_end() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut heirs: Vec<Heir> = Vec::new();
    let mut users = Vec::new();
    for _ in 0..3 {
        let mut session = sign_in(&gateway).await;
        let (tunnel, notices) = open_tunnel(&mut session).await;
        let channel = launch(&mut session, &tunnel, "shell").await;
        users.push((session, tunnel, channel, notices));
        let serving = heirs.last().map_or(gateway.pid(), |heir| heir.0);
        heirs.push(upgrade_by_signal(&gateway, serving));
    }
    for (session, tunnel, channel, _) in &mut users {
        assert_eq!(echo(channel, b"still here").await, b"still here");
        let mut another = launch(session, tunnel, "shell").await;
        assert_eq!(echo(&mut another, b"through all of them").await, b"through all of them");
    }
    for (session, tunnel, ..) in users {
        let asked = clock::now();
        session.log_out().await;
        timeout(PATIENCE, tunnel.ended()).await.unwrap();
        assert!(clock::now() - asked < Duration::from_secs(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_process_holds_no_port_of_the_one_that_took_over() {
    let target = Target::echo();
    let setup = Setup::default()
        .section("[admin]\nbind = [\"127.0.0.1:0\"]\n[quiesce]\nagent = [\"127.0.0.1:0\"]\n")
        .desktop("shell", target.address, "ssh");
    let gateway = Gateway::start(&setup);
    let ports = [gateway.address, gateway.admin_port().0, gateway.agent_address()];
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    drop(upgrade(&gateway));
    let deadline = clock::now() + PATIENCE;
    for port in ports {
        while let Err(fault) = TcpListener::bind(port) {
            assert!(clock::now() < deadline, "{port}: {fault}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(echo(&mut channel, b"still open").await, b"still open");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_lost_contact_comes_back_to_its_tunnel_in_the_old_process() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let (way, open) = (gateway.address, Arc::new(Mutex::new(Vec::new())));
    let streams = open.clone();
    let network = Target::new(move |client| {
        let inside = TcpStream::connect(way).unwrap();
        let both = [(&client, &inside), (&inside, &client)];
        streams
            .lock()
            .extend([client.try_clone().unwrap(), inside.try_clone().unwrap()]);
        std::thread::scope(|scope| {
            for (mut from, mut to) in both {
                scope.spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        });
    });
    let credentials = Credentials {
        user: Some("ann".to_owned()),
        password: Some(Secret::new(PASSWORD)),
        domain: None,
        accept_disclaimer: true,
    };
    let reached = reach_at(&gateway, network.address).await.unwrap();
    let mut session = reached.sign_in(credentials, &mut Unattended).await.unwrap();
    let (tunnel, mut notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let _heir = upgrade(&gateway);
    for stream in open.lock().drain(..) {
        let _ = stream.shutdown(Shutdown::Both);
    }
    loop {
        let notice = timeout(PATIENCE, notices.recv())
            .await
            .unwrap()
            .expect("the tunnel lives");
        if matches!(notice, Notice::ContactRegained) {
            break;
        }
    }
    assert_eq!(echo(&mut channel, b"back again").await, b"back again");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_of_the_new_process_ends_sessions_of_the_old_one() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let token = raw::sign_in(&gateway, "ann").token;
    let _heir = upgrade(&gateway);
    let (_, answer) = raw::open_tunnel(&gateway, &token);
    assert_eq!(answer.status, 200, "a token that was announced before is good after");
    let opened = gateway.wait_for("a session", |line| line["message"] == "session opened");
    let id = opened["session"].as_str().unwrap();
    assert!(gateway.operator(&["sessions", "kill", id]).status().unwrap().success());
    let end = timeout(PATIENCE, tunnel.ended()).await.unwrap();
    assert!(format!("{end:?}").contains("session was ended"), "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_cannot_take_over_leaves_the_old_process_as_it_was() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let good = fs::read_to_string(gateway.folder().join("gw.toml")).unwrap();
    let own = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let crashes = script(&gateway, "crashes", "exit 7");
    let hangs = script(&gateway, "hangs", "exec sleep 1000");
    let dies = script(&gateway, "dies", "kill -9 $$");
    let renamed = good.replace("name = \"gw-1\"", "name = \"gw-2\"");
    for (binary, text, words) in [
        (crashes, &good, "exit status: 7"),
        (dies, &good, "signal: 9"),
        (gateway.folder().join("missing"), &good, "cannot be started"),
        (own.clone(), &"nonsense = 1".to_owned(), "nonsense"),
        (own.clone(), &renamed, "node.name"),
        (hangs, &good, "in time"),
    ] {
        fs::write(gateway.folder().join("gw.toml"), text).unwrap();
        let output = upgrade_to(&gateway, &binary);
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(
            told.contains("the running process goes on") && told.contains(words),
            "{told}"
        );
        gateway.wait_for("a clear line", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("not handed over, this process goes on") && message.contains(words)
        });
        assert_eq!(health(&gateway), 200);
        assert_eq!(echo(&mut channel, b"as before").await, b"as before");
        raw::sign_in(&gateway, "ann");
    }
    fs::write(gateway.folder().join("gw.toml"), &good).unwrap();
    let _heir = upgrade(&gateway);
    assert_eq!(echo(&mut channel, b"as before").await, b"as before");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_one_process_leaves_the_other_what_it_has() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"before").await, b"before");
    let first = upgrade(&gateway);
    let mut later = sign_in(&gateway).await;
    let (later_tunnel, _notices) = open_tunnel(&mut later).await;
    let mut later_channel = launch(&mut later, &later_tunnel, "shell").await;
    kill("KILL", gateway.pid());
    timeout(PATIENCE, tunnel.ended()).await.unwrap();
    assert_eq!(echo(&mut later_channel, b"goes on").await, b"goes on");
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"again").await, b"again");

    let second = upgrade_by_signal(&gateway, first.0);
    kill("KILL", second.0);
    gateway.wait_for("the news of it", |line| {
        line["message"]
            .as_str()
            .is_some_and(|words| words.contains("took over is no more"))
    });
    assert_eq!(echo(&mut later_channel, b"goes on").await, b"goes on");
    assert!(
        TcpStream::connect(gateway.address).is_err(),
        "nobody is let in any more"
    );
}

#[test]
fn a_quiesced_node_is_quiesced_after_it_and_wrong_passwords_go_on_counting() {
    let setup = Setup::default().section("[authentication.throttle]\nper_user = 3\n");
    let gateway = Gateway::start(&setup);
    let mut open = raw::tls(&gateway);
    let cookie = post_on(&mut open, None, message("<get-configuration/>").as_bytes());
    let cookie = cookie.session_cookie().unwrap();
    for _ in 0..3 {
        post(&gateway, Some(&cookie), &password_message("ann", "wrong", ""));
    }
    assert!(gateway.operator(&["quiesce", "on"]).status().unwrap().success());
    let _heir = upgrade(&gateway);
    assert_eq!(health(&gateway), 503);
    assert!(gateway.operator(&["quiesce", "off"]).status().unwrap().success());
    assert_eq!(health(&gateway), 200);
    let first = post(&gateway, None, &message("<get-configuration/>"));
    assert!(element(first.text(), "name").is_some(), "{}", first.text());
    let cookie = first.session_cookie().unwrap();
    let answer = post(&gateway, Some(&cookie), &password_message("ann", PASSWORD, ""));
    assert!(!answer.text().contains("<user-sid>"), "{}", answer.text());
    gateway.wait_for("the throttle", |line| {
        line["message"] == "sign-in throttled after too many failures"
    });
}

/// A program of one line.
fn script(gateway: &Gateway, name: &str, line: &str) -> PathBuf {
    let path = gateway.folder().join(name);
    fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

#[test]
fn the_operators_side_answers_all_along() {
    let setup = Setup::default().section("[admin]\nbind = [\"127.0.0.1:0\"]\n[quiesce]\nagent = [\"127.0.0.1:0\"]\n");
    let mut gateway = Gateway::start(&setup);
    let made = gateway
        .operator(&["token", "create", "--name", "watch", "--scope", "read"])
        .output()
        .unwrap();
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let (operators, agents) = (gateway.admin_port().0, gateway.agent_address());
    let certificate = gateway.folder().join("state/admin.pem");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let ask_node = move || {
        let mut stream = raw::tls_over(TcpStream::connect(operators).unwrap(), &certificate);
        write!(
            stream,
            "GET /api/v1/node HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n\r\n"
        )
        .unwrap();
        read_answer(&mut stream).status == 200
    };
    let ask_agent = move || {
        let mut line = String::new();
        TcpStream::connect(agents).unwrap().read_to_string(&mut line).unwrap();
        line.starts_with("up")
    };
    let count = |ask: Box<dyn Fn() -> bool + Send>| {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut answers = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                assert!(ask());
                answers += 1;
                std::thread::sleep(Duration::from_millis(20));
            }
            answers
        })
    };
    let asking = [count(Box::new(ask_node)), count(Box::new(ask_agent))];
    let first = upgrade(&gateway);
    assert!(gateway.wait().success());
    let second = upgrade_by_signal(&gateway, first.0);
    std::thread::sleep(Duration::from_millis(200));
    stop.store(true, std::sync::atomic::Ordering::SeqCst);
    for answers in asking {
        assert!(answers.join().unwrap() > 10, "it was asked all the time");
    }
    let status = gateway.operator(&["quiesce", "status"]).status().unwrap();
    assert!(status.success(), "on the socket too");
    drop(second);
}

#[test]
fn a_client_takes_its_session_of_tls_up_again_in_the_new_process() {
    let gateway = Gateway::start(&Setup::default());
    let settings = Arc::new(raw::settings(&gateway.chain()));
    let connect = || {
        let mut stream = raw::tls_with(settings.clone(), TcpStream::connect(gateway.address).unwrap());
        assert_eq!(health_on(&mut stream).status, 200);
        stream.conn.handshake_kind()
    };
    assert_eq!(connect(), Some(HandshakeKind::Full));
    let _first = upgrade(&gateway);
    assert_eq!(connect(), Some(HandshakeKind::Resumed));
    let _second = upgrade(&gateway);
    assert_eq!(connect(), Some(HandshakeKind::Resumed));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_the_new_configuration_drops_takes_nobody_in_and_keeps_what_is_open() {
    let target = Target::echo();
    let with_two = |second: &str| Setup::default().section(second).desktop("shell", target.address, "ssh");
    let second = "[listener.second]\nbind = [\"127.0.0.2:0\"]\ncertificates = [\"own\"]\n";
    let gateway = Gateway::start(&with_two(second));
    let addresses = gateway.addresses();
    let dropped = *addresses
        .iter()
        .find(|address| address.ip().to_string() == "127.0.0.2")
        .unwrap();
    let credentials = Credentials {
        user: Some("ann".to_owned()),
        password: Some(Secret::new(PASSWORD)),
        domain: None,
        accept_disclaimer: true,
    };
    let network = Target::new(move |client| {
        let inside = TcpStream::connect(dropped).unwrap();
        std::thread::scope(|scope| {
            for (mut from, mut to) in [(&client, &inside), (&inside, &client)] {
                scope.spawn(move || {
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        });
    });
    let reached = reach_at(&gateway, network.address).await.unwrap();
    let mut session = reached.sign_in(credentials, &mut Unattended).await.unwrap();
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let mut kept = raw::tls_over(TcpStream::connect(dropped).unwrap(), &gateway.chain());
    assert_eq!(health_on(&mut kept).status, 200);

    gateway.configure(&with_two(""));
    let _heir = upgrade(&gateway);
    let deadline = clock::now() + PATIENCE;
    // What the backlog takes in the moment of the change, nobody answers.
    while TcpStream::connect_timeout(&dropped, Duration::from_secs(1))
        .map_err(|fault| fault.kind())
        .err()
        != Some(ErrorKind::ConnectionRefused)
    {
        assert!(clock::now() < deadline, "the address is closed");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(TcpListener::bind(dropped).is_ok(), "and free");
    assert_eq!(health(&gateway), 200);
    assert_eq!(echo(&mut channel, b"goes on").await, b"goes on");
    let answer = health_on(&mut kept);
    assert_eq!((answer.status, answer.header("connection")), (404, vec!["close"]));
}

#[test]
fn connections_of_the_old_process_count_towards_the_limit() {
    let limits = "[limits]\nconnections = 5\nconnections_per_source = 5\n";
    let gateway = Gateway::start(&Setup::default().section(limits));
    let tunnels: Vec<_> = (0..3)
        .map(|_| raw::open_tunnel(&gateway, &raw::sign_in(&gateway, "ann").token))
        .collect();
    assert!(tunnels.iter().all(|(_, answer)| answer.status == 200));
    let _heir = upgrade(&gateway);
    let (mut one, mut two) = (raw::tls(&gateway), raw::tls(&gateway));
    assert_eq!((health_on(&mut one).status, health_on(&mut two).status), (200, 200));
    let is_refused = || {
        let mut more = raw::tls(&gateway);
        more.conn.complete_io(&mut more.sock).is_err()
    };
    let deadline = clock::now() + PATIENCE;
    while !is_refused() {
        assert!(clock::now() < deadline, "a sixth is let in");
    }
    drop((tunnels, one));
    while is_refused() {
        assert!(clock::now() < deadline, "there are places again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_in_which_nothing_is_open_any_more_end_without_delay() {
    let target = Target::echo();
    let setup = Setup::default().desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup.listener("udp = true\n"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let heir = upgrade(&gateway);
    // It ends the session with itself, and with that the tunnel in the old one.
    kill("TERM", heir.0);
    timeout(PATIENCE, tunnel.ended()).await.unwrap();
    let deadline = clock::now() + PATIENCE;
    // Nothing but its exit status may be left of it.
    while fs::read(format!("/proc/{}/cmdline", heir.0)).is_ok_and(|words| !words.is_empty()) {
        assert!(clock::now() < deadline, "{}", gateway.log_text());
        std::thread::sleep(Duration::from_millis(10));
    }
    // The way in has gone with the new one.
    assert_eq!(gateway.wait().code(), Some(1));
    let cut = |line: &Value| line["message"] == "connections cut at the end";
    assert!(!gateway.lines().iter().any(cut), "{}", gateway.log_text());
}
