//! Sessions that survive the death of their node (`state.persist_grants`), and those that must not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::client::{Credentials, Unattended};
use portcullis::clock;
use portcullis::types::Secret;
use serde_json::Value;
use support::client::{echo, launch, open_tunnel, reach_at};
use support::raw::{self, SignedIn, message, post, sign_in};
use support::{Gateway, PASSWORD, PATIENCE, Setup, Target, portcullis};
use tokio::time::timeout;

fn persistent() -> Setup {
    Setup::default().section("[state]\npersist_grants = true\n")
}

/// The files in which the gateway keeps its sessions, oldest first.
fn journals(gateway: &Gateway) -> Vec<PathBuf> {
    let entries = fs::read_dir(gateway.folder().join("state/grants"))
        .into_iter()
        .flatten();
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "journal"))
        .collect();
    files.sort();
    files
}

/// Waits until what has changed is written: that is all that a crash may lose.
fn settle(gateway: &Gateway) {
    let size = || -> u64 {
        let files = journals(gateway);
        files
            .iter()
            .filter_map(|file| Some(fs::metadata(file).ok()?.len()))
            .sum()
    };
    let (mut last, mut same) = (size(), 0);
    while same < 15 {
        std::thread::sleep(Duration::from_millis(20));
        let now = size();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
}

fn kill(pid: u32) {
    let killed = Command::new("kill").arg("-KILL").arg(pid.to_string()).status().unwrap();
    assert!(killed.success());
}

/// Whether the cookie leads to a session that is signed in.
fn is_signed_in(gateway: &Gateway, session: &SignedIn) -> bool {
    let answer = post(gateway, Some(&session.cookie), &message("<get-desktops/>"));
    answer.text().contains("<result>ok</result>")
}

fn tunnel_status(gateway: &Gateway, session: &SignedIn) -> u16 {
    raw::open_tunnel(gateway, &session.token).1.status
}

fn log_out(gateway: &Gateway, session: &SignedIn) {
    let answer = post(gateway, Some(&session.cookie), &message("<do-logout/>"));
    assert!(answer.text().contains("<result>ok</result>"), "{}", answer.text());
}

fn restored(gateway: &Gateway) -> u64 {
    let line = gateway.wait_for("a word on kept sessions", |line| {
        line["message"] == "sessions kept from before"
    });
    line["sessions"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_crash_a_client_opens_its_tunnel_again_without_signing_in() {
    let target = Target::echo();
    let setup = persistent().desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup);
    // The way to the gateway, whatever port it has.
    let way = Arc::new(Mutex::new(gateway.address));
    let leads = way.clone();
    let network = Target::new(move |client| {
        let to = *leads.lock();
        pass(&client, to);
    });
    let credentials = Credentials {
        user: Some("ann".to_owned()),
        password: Some(Secret::new(PASSWORD)),
        domain: None,
        accept_disclaimer: true,
    };
    let reached = reach_at(&gateway, network.address).await.unwrap();
    let mut session = reached.sign_in(credentials, &mut Unattended).await.unwrap();
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"before").await, b"before");
    let other = sign_in(&gateway, "ann");
    assert_eq!(tunnel_status(&gateway, &other), 200);
    settle(&gateway);

    gateway.restart();
    assert_eq!(restored(&gateway), 2);
    *way.lock() = gateway.address;
    timeout(PATIENCE, tunnel.ended()).await.unwrap();
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"after").await, b"after");
    assert_eq!(
        tunnel_status(&gateway, &other),
        200,
        "a token that was used is good again"
    );
    let listed = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");

    // What was kept once is kept on.
    log_out(&gateway, &other);
    gateway.restart();
    assert_eq!(restored(&gateway), 1);
    assert!(!is_signed_in(&gateway, &other));
    assert_eq!(tunnel_status(&gateway, &other), 403);
}

/// `portcullis connect`. Dropped, it is killed.
struct Connected {
    child: Child,
    /// Where its desktop is reached.
    door: SocketAddr,
}

impl Connected {
    fn to(gateway: &Gateway, address: SocketAddr, arguments: &[&str]) -> Self {
        let mut child = portcullis()
            .args(["connect", &address.to_string(), "--user", "ann", "--ca"])
            .arg(gateway.chain())
            .args(["--desktop", "shell", "-L", "127.0.0.1:0"])
            .args(arguments)
            .env("PORTCULLIS_PASSWORD", PASSWORD)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        Self {
            child,
            door: line.trim().parse().unwrap(),
        }
    }

    /// Whether the desktop sends back what a program sends it.
    fn echoes(&self) -> bool {
        let echo = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect(self.door)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"hello")?;
            let mut back = [0; 5];
            stream.read_exact(&mut back)?;
            Ok(back == *b"hello")
        };
        echo().unwrap_or(false)
    }

    /// Its last words, once it has ended.
    fn last_words(mut self) -> String {
        let mut words = String::new();
        let mut err = self.child.stderr.take().unwrap();
        err.read_to_string(&mut words).unwrap();
        words
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // One that has ended cannot be killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn after_a_crash_connect_goes_on_at_its_port_without_signing_in() {
    let target = Target::echo();
    let setup = persistent().desktop("shell", target.address, "ssh");
    let mut gateway = Gateway::start(&setup);
    let way = Arc::new(Mutex::new(gateway.address));
    let leads = way.clone();
    let network = Target::new(move |client| {
        let to = *leads.lock();
        pass(&client, to);
    });
    let connected = Connected::to(&gateway, network.address, &[]);
    assert!(connected.echoes());
    settle(&gateway);
    gateway.restart();
    *way.lock() = gateway.address;
    let deadline = clock::now() + PATIENCE;
    while !connected.echoes() {
        assert!(clock::now() < deadline, "the desktop is reached again");
        std::thread::sleep(Duration::from_millis(50));
    }
    let opened = gateway
        .lines()
        .into_iter()
        .filter(|line| line["message"] == "session opened");
    assert_eq!(opened.count(), 0, "nobody has signed in again");

    // Whoever was ended is not let in, and connect says why it ends.
    let listed = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let id = listed["sessions"][0]["id"].as_str().unwrap();
    assert!(gateway.operator(&["sessions", "kill", id]).status().unwrap().success());
    let words = connected.last_words();
    assert!(words.contains("Connected again"), "{words}");
    assert!(words.contains("session was ended"), "{words}");
}

#[test]
fn connect_ends_when_the_gateway_comes_back_without_its_session() {
    let target = Target::echo();
    let mut gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let way = Arc::new(Mutex::new(gateway.address));
    let leads = way.clone();
    let network = Target::new(move |client| {
        let to = *leads.lock();
        pass(&client, to);
    });
    let connected = Connected::to(&gateway, network.address, &[]);
    assert!(connected.echoes());
    gateway.restart();
    *way.lock() = gateway.address;
    let words = connected.last_words();
    assert!(words.contains("session is over"), "{words}");
}

/// Carries bytes both ways until a side ends.
fn pass(client: &TcpStream, to: SocketAddr) {
    let Ok(inside) = TcpStream::connect(to) else { return };
    std::thread::scope(|scope| {
        for (mut from, mut to) in [(client, &inside), (&inside, client)] {
            scope.spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
}

#[test]
fn a_session_that_was_ended_never_comes_back_however_soon_the_crash() {
    let mut gateway = Gateway::start(&persistent().user("bob", "").user("eve", ""));
    for round in 0..4 {
        let (stays, leaves, killed) = (
            sign_in(&gateway, "ann"),
            sign_in(&gateway, "bob"),
            sign_in(&gateway, "eve"),
        );
        settle(&gateway);
        let sessions = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
        let sessions: Value = serde_json::from_slice(&sessions.stdout).unwrap();
        let of_eve = sessions["sessions"]
            .as_array()
            .unwrap()
            .iter()
            .find(|one| one["user"] == "eve");
        let id = of_eve.unwrap()["id"].as_str().unwrap().to_owned();
        if round % 2 == 0 {
            assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
            log_out(&gateway, &leaves);
        } else {
            log_out(&gateway, &leaves);
            assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
        }
        // The moment after the answer.
        gateway.restart();
        assert!(is_signed_in(&gateway, &stays));
        for ended in [&leaves, &killed] {
            assert!(!is_signed_in(&gateway, ended));
            assert_eq!(tunnel_status(&gateway, ended), 403);
        }
        log_out(&gateway, &stays);
    }
}

#[test]
fn the_time_of_a_session_runs_on_while_the_node_is_down() {
    let setup = persistent().section("[session]\nlifetime = \"4 s\"\n");
    let mut gateway = Gateway::start(&setup);
    let opened = clock::now();
    let session = sign_in(&gateway, "ann");
    settle(&gateway);
    gateway.restart();
    if clock::now() - opened < Duration::from_secs(3) {
        assert!(is_signed_in(&gateway, &session), "it has its time");
    }
    kill(gateway.pid());
    std::thread::sleep(Duration::from_secs(5).saturating_sub(clock::now() - opened));
    gateway.restart();
    assert_eq!(restored(&gateway), 0);
    assert!(!is_signed_in(&gateway, &session));
}

#[test]
fn a_drain_keeps_sessions_for_the_next_start() {
    let mut gateway = Gateway::start(&persistent());
    let session = sign_in(&gateway, "ann");
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.restart();
    assert!(is_signed_in(&gateway, &session));
}

#[test]
fn users_who_are_gone_when_it_starts_again_are_not_let_in() {
    let mut gateway = Gateway::start(&persistent().user("bob", ""));
    let (ann, bob) = (sign_in(&gateway, "ann"), sign_in(&gateway, "bob"));
    settle(&gateway);
    let file = gateway.folder().join("gw.toml");
    let text = fs::read_to_string(&file).unwrap();
    let disabled = text.replace("[directory.user.bob]", "[directory.user.bob]\ndisabled = true");
    fs::write(&file, &disabled).unwrap();
    gateway.restart();
    assert!(is_signed_in(&gateway, &ann));
    assert!(!is_signed_in(&gateway, &bob));
    fs::write(&file, &text).unwrap();
    gateway.restart();
    assert!(is_signed_in(&gateway, &ann));
    assert!(!is_signed_in(&gateway, &bob), "that ended it for good");
}

#[test]
fn without_the_setting_nothing_is_kept_and_what_was_is_removed() {
    let mut gateway = Gateway::start(&Setup::default());
    let session = sign_in(&gateway, "ann");
    gateway.restart();
    assert!(!is_signed_in(&gateway, &session));
    assert!(!gateway.folder().join("state/grants").exists());

    let file = gateway.folder().join("gw.toml");
    let text = fs::read_to_string(&file).unwrap();
    let keeps = format!("{text}\n[state]\npersist_grants = true\n");
    fs::write(&file, &keeps).unwrap();
    gateway.restart();
    let session = sign_in(&gateway, "ann");
    settle(&gateway);
    fs::write(&file, &text).unwrap();
    gateway.restart();
    assert_eq!(journals(&gateway), [] as [PathBuf; 0]);
    fs::write(&file, &keeps).unwrap();
    gateway.restart();
    assert!(
        !is_signed_in(&gateway, &session),
        "it ended with the start that kept nothing"
    );
}

#[test]
fn a_record_that_was_not_written_to_its_end_is_as_if_it_never_was() {
    let mut gateway = Gateway::start(&persistent().user("bob", ""));
    let ann = sign_in(&gateway, "ann");
    settle(&gateway);
    let whole = fs::metadata(&journals(&gateway)[0]).unwrap().len();
    let bob = sign_in(&gateway, "bob");
    settle(&gateway);
    kill(gateway.pid());
    gateway.wait();
    let file = fs::OpenOptions::new().write(true).open(&journals(&gateway)[0]).unwrap();
    file.set_len(whole + 5).unwrap();
    gateway.restart();
    assert_eq!(restored(&gateway), 1);
    assert!(is_signed_in(&gateway, &ann) && !is_signed_in(&gateway, &bob));
}

/// What is done to the files, and what is said of it.
struct Fault<'a>(&'a dyn Fn(&Gateway), &'a str);

#[test]
fn what_cannot_be_believed_is_said_and_the_node_starts_without_it() {
    let mut gateway = Gateway::start(&persistent());
    let (key, toml) = (
        gateway.folder().join("state/grants/key"),
        gateway.folder().join("gw.toml"),
    );
    let text = fs::read_to_string(&toml).unwrap();
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    let damage = |at_end: bool| {
        move |gateway: &Gateway| {
            let file = &journals(gateway)[0];
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
            let mut octets = fs::read(file).unwrap();
            let at = if at_end { octets.len() - 1 } else { 3 };
            octets[at] ^= 1;
            fs::write(file, octets).unwrap();
        }
    };
    let another_key = |gateway: &Gateway| {
        let _ = fs::write(gateway.folder().join("state/grants/key"), "ab".repeat(32));
    };
    let another_node = |gateway: &Gateway| {
        let toml = gateway.folder().join("gw.toml");
        let text = fs::read_to_string(&toml).unwrap();
        fs::write(toml, text.replace("name = \"gw-1\"", "name = \"gw-2\"")).unwrap();
    };
    let emptied = |gateway: &Gateway| fs::write(&journals(gateway)[0], "").unwrap();
    let faults: [Fault<'_>; 5] = [
        Fault(&damage(true), "damaged at octet"),
        Fault(&damage(false), "not a file of kept sessions"),
        Fault(&another_key, "under another key"),
        Fault(&another_node, "of the node `gw-1`"),
        Fault(&emptied, "not a file of kept sessions"),
    ];
    for Fault(spoil, words) in faults {
        let session = sign_in(&gateway, "ann");
        settle(&gateway);
        kill(gateway.pid());
        gateway.wait();
        spoil(&gateway);
        gateway.restart();
        gateway.wait_for(words, |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("sessions are not restored: ") && message.contains(words)
        });
        assert!(!is_signed_in(&gateway, &session), "{words}");
        fs::write(&toml, &text).unwrap();
        gateway.restart();
        // Sessions are kept from then on as ever.
        let session = sign_in(&gateway, "ann");
        settle(&gateway);
        gateway.restart();
        assert!(is_signed_in(&gateway, &session), "{words}");
        log_out(&gateway, &session);
    }
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    gateway.restart();
    gateway.wait_for("the key", |line| {
        line["message"] == "sessions cannot be kept: a restart will end them"
            && line["fault"].as_str().unwrap().contains("chmod 600")
    });
    sign_in(&gateway, "ann");
}

#[test]
fn two_nodes_do_not_share_one_folder() {
    let gateway = Gateway::start(&Setup::default());
    let second = portcullis()
        .arg("serve")
        .arg("--config")
        .arg(gateway.folder().join("gw.toml"))
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1), "{words}");
    assert!(words.contains("another process keeps its state there"), "{words}");
}

/// A process that took over. Dropped, it is killed.
struct Heir(u32);

impl Drop for Heir {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-KILL").arg(self.0.to_string()).status();
    }
}

fn upgrade(gateway: &Gateway) -> Heir {
    let binary = env!("CARGO_BIN_EXE_portcullis");
    let output = gateway
        .operator(&["upgrade", "--json", "--binary", binary])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", gateway.log_text());
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    Heir(told["pid"].as_u64().unwrap().try_into().unwrap())
}

#[test]
fn when_both_processes_of_a_handover_are_killed_sessions_go_on_and_ended_ones_do_not() {
    let mut gateway = Gateway::start(&persistent().user("bob", ""));
    let (before, ended) = (sign_in(&gateway, "ann"), sign_in(&gateway, "ann"));
    // Keeps the old process.
    let (_tunnel, answer) = raw::open_tunnel(&gateway, &before.token);
    assert_eq!(answer.status, 200);
    let heir = upgrade(&gateway);
    let after = sign_in(&gateway, "bob");
    settle(&gateway);
    log_out(&gateway, &ended);
    kill(heir.0);
    kill(gateway.pid());
    gateway.restart();
    assert_eq!(restored(&gateway), 2);
    assert!(is_signed_in(&gateway, &before) && is_signed_in(&gateway, &after));
    assert!(!is_signed_in(&gateway, &ended));
    assert_eq!(journals(&gateway).len(), 1, "one process, one file");
}

#[test]
fn a_handover_that_fails_leaves_sessions_as_well_kept_as_they_were() {
    let mut gateway = Gateway::start(&persistent());
    let before = sign_in(&gateway, "ann");
    let script = gateway.folder().join("dies");
    fs::write(&script, "#!/bin/sh\nexit 7\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o700)).unwrap();
    let failed = gateway
        .operator(&["upgrade", "--binary", script.to_str().unwrap()])
        .status()
        .unwrap();
    assert!(!failed.success());
    let after = sign_in(&gateway, "ann");
    settle(&gateway);
    gateway.restart();
    assert!(is_signed_in(&gateway, &before) && is_signed_in(&gateway, &after));
}

#[test]
fn a_process_that_has_handed_over_leaves_no_file_behind() {
    let mut gateway = Gateway::start(&persistent());
    let session = sign_in(&gateway, "ann");
    let heir = upgrade(&gateway);
    assert!(gateway.wait().success());
    let deadline = clock::now() + PATIENCE;
    while journals(&gateway).len() > 1 {
        assert!(clock::now() < deadline, "{:?}", journals(&gateway));
        std::thread::sleep(Duration::from_millis(20));
    }
    settle(&gateway);
    kill(heir.0);
    gateway.restart();
    assert!(is_signed_in(&gateway, &session));
}

#[test]
fn a_file_that_has_outgrown_what_lives_is_written_anew_and_forgets_no_end() {
    let mut gateway = Gateway::start(&persistent().user("bob", ""));
    let (ann, bob) = (sign_in(&gateway, "ann"), sign_in(&gateway, "bob"));
    settle(&gateway);
    let file = journals(&gateway).remove(0);
    let size = || fs::metadata(&file).unwrap().len();
    log_out(&gateway, &bob);
    let mut stream = raw::tls(&gateway);
    let (mut largest, deadline) = (size(), clock::now() + 3 * PATIENCE);
    while size() >= largest {
        assert!(clock::now() < deadline, "{largest} octets");
        largest = size();
        for _ in 0..20 {
            let answer = raw::post_on(
                &mut stream,
                Some(&ann.cookie),
                message("<get-tunnel-connection/>").as_bytes(),
            );
            assert!(answer.text().contains("<connection-id>"), "{}", answer.text());
        }
    }
    assert!(largest < 2 * 1024 * 1024, "{largest} octets");
    gateway.restart();
    assert_eq!(restored(&gateway), 1);
    assert!(is_signed_in(&gateway, &ann) && !is_signed_in(&gateway, &bob));
}
