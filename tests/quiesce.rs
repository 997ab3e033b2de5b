//! Quiesce: what the balancer is told, who is still served, and the wait until nobody is left.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Stdio};

use serde_json::Value;
use support::raw::{self, connect_from, message, password_message, post, read_answer, read_head};
use support::{Gateway, PASSWORD, PATIENCE, Setup};

fn gateway(quiesce: &str) -> Gateway {
    let sections = format!("[quiesce]\n{quiesce}\n[health]\nbind = [\"[::1]:0\"]\n");
    Gateway::start(&Setup::default().section(&sections))
}

fn operator(gateway: &Gateway, command: &[&str]) {
    let output = gateway.operator(command).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn node(gateway: &Gateway) -> Value {
    let output = gateway.operator(&["quiesce", "status", "--json"]).output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the health check is answered: the same over TLS and on the plain port, to GET and to HEAD.
fn health(gateway: &Gateway) -> u16 {
    let ask = |stream: &mut dyn ReadWrite, method: &str| {
        stream
            .write_all(format!("{method} /favicon.ico HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
            .unwrap();
        let mut stream = stream;
        if method == "HEAD" {
            read_head(&mut stream).status
        } else {
            read_answer(&mut stream).status
        }
    };
    let plain = || {
        let stream = TcpStream::connect(gateway.health_addresses()[0]).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    };
    let answers = [
        ask(&mut raw::tls(gateway), "GET"),
        ask(&mut raw::tls(gateway), "HEAD"),
        ask(&mut plain(), "GET"),
        ask(&mut plain(), "HEAD"),
    ];
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    answers[0]
}

trait ReadWrite: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> ReadWrite for T {}

/// Waits until something holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = portcullis::clock::now() + PATIENCE;
    while !holds() {
        assert!(portcullis::clock::now() < deadline, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Begins a sign-in: its cookie.
fn begin(gateway: &Gateway) -> String {
    post(gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap()
}

/// Ends a sign-in with the right password; whether that went well.
fn finish(gateway: &Gateway, cookie: &str) -> bool {
    let answer = post(
        gateway,
        Some(cookie),
        &password_message("ann", PASSWORD, "<get-tunnel-connection/>"),
    );
    answer.text().contains("<connection-id>")
}

#[test]
fn two_steps_wait_for_who_is_in_the_middle_of_a_sign_in() {
    let gateway = gateway("answer = \"two-step\"\nstep = \"1 s\"\n");
    assert_eq!(health(&gateway), 200);
    let half_done = begin(&gateway);
    operator(&gateway, &["quiesce", "on"]);
    assert_eq!(health(&gateway), 404);
    until("the step is over", || {
        node(&gateway)["quiesced"]["seconds"].as_u64() >= Some(2)
    });
    let status = node(&gateway);
    assert_eq!((&status["health"], &status["pending_logins"]), (&404.into(), &1.into()));
    assert!(
        status["quiesced"]["step_ends_in_seconds"].as_u64() > Some(100),
        "{status}"
    );
    let words = gateway.operator(&["quiesce", "status"]).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    assert!(
        words.starts_with("gw-1 quiesced, health 404 (503 at the latest in 4 min ")
            && words.contains("; 1 sign-in in the middle"),
        "{words}"
    );
    assert!(finish(&gateway, &half_done));
    assert_eq!(health(&gateway), 503);
    operator(&gateway, &["quiesce", "off"]);
    assert_eq!(health(&gateway), 200);
}

#[test]
fn new_sign_ins_are_refused_if_so_configured_and_half_done_ones_are_not() {
    let gateway = gateway("new_logins = \"refuse\"\n");
    let half_done = begin(&gateway);
    operator(&gateway, &["quiesce", "on"]);
    let refused = post(&gateway, None, &message("<get-configuration/>"));
    assert_eq!((refused.status, refused.header("retry-after").len()), (503, 1));
    assert!(finish(&gateway, &half_done));
    operator(&gateway, &["quiesce", "off"]);
    assert!(finish(&gateway, &begin(&gateway)));
}

fn agent(gateway: &Gateway, from: [u8; 4]) -> String {
    let mut stream = connect_from(from, gateway.agent_address());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut line = String::new();
    // Who may not ask is closed, in whatever way.
    let _ = stream.read_to_string(&mut line);
    line
}

#[test]
fn the_agent_check_says_what_the_health_check_does_not() {
    let gateway = gateway(
        "answer = \"agent\"\nagent = [\"127.0.0.1:0\"]\nagent_from = [\"127.0.0.5\"]\n\n[session]\nmax = 4\nper_user = 4\n",
    );
    let line = || agent(&gateway, [127, 0, 0, 5]);
    assert_eq!(agent(&gateway, [127, 0, 0, 6]), "", "it is not listed");
    assert_eq!(line(), "up ready 100%\n");
    raw::sign_in(&gateway, "ann");
    assert_eq!(line(), "up ready 75%\n");
    let half_done = begin(&gateway);
    operator(&gateway, &["quiesce", "on"]);
    assert_eq!((line().as_str(), health(&gateway)), ("up drain\n", 200));
    assert!(finish(&gateway, &half_done));
    let sessions = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let sessions: Value = serde_json::from_slice(&sessions.stdout).unwrap();
    for session in sessions["sessions"].as_array().unwrap() {
        assert_eq!(line(), "up drain\n");
        operator(&gateway, &["sessions", "kill", session["id"].as_str().unwrap()]);
    }
    assert_eq!(line(), "up maint\n", "nobody is left who could be cut");
    operator(&gateway, &["quiesce", "off"]);
    assert_eq!(line(), "up ready 100%\n");
    // Many who connect and read nothing, or send what nobody asked for.
    let _held: Vec<_> = (0..30)
        .map(|_| connect_from([127, 0, 0, 7], gateway.agent_address()))
        .collect();
    let mut talks = connect_from([127, 0, 0, 5], gateway.agent_address());
    talks.write_all(b"gw-1\n").unwrap();
    assert_eq!(support::read_all(&mut talks), b"up ready 100%\n");
}

/// A wait in the background: the process, and its first event.
fn wait_for_empty(gateway: &Gateway, more: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut command = gateway.operator(&["quiesce", "on", "--wait", "--json"]);
    let mut child = command.args(more).stdout(Stdio::piped()).spawn().unwrap();
    let mut events = BufReader::new(child.stdout.take().unwrap());
    let first = event(&mut events);
    assert_eq!(
        (&first["schema"], &first["event"]),
        (&"portcullis.quiesce.v1".into(), &"waiting".into())
    );
    assert_eq!(first["node"]["sessions"], 1);
    (child, events)
}

fn event(events: &mut impl BufRead) -> Value {
    let mut line = String::new();
    events.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn the_wait_ends_well_when_the_last_session_has_ended() {
    let gateway = gateway("");
    let user = raw::sign_in(&gateway, "ann");
    let (mut child, mut events) = wait_for_empty(&gateway, &[]);
    assert_eq!(health(&gateway), 503);
    post(&gateway, Some(&user.cookie), &message("<do-logout/>"));
    assert_eq!(event(&mut events)["event"], "empty");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let again = gateway.operator(&["quiesce", "on", "--wait"]).output().unwrap();
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        "gw-1 is empty: no session, no sign-in. It stays quiesced.\n"
    );
}

#[test]
fn the_wait_ends_with_another_code_when_time_is_over_or_somebody_else_decides() {
    let gateway = gateway("");
    let _user = raw::sign_in(&gateway, "ann");
    let (mut child, mut events) = wait_for_empty(&gateway, &["--timeout", "1s"]);
    let last = event(&mut events);
    assert_eq!(
        (&last["event"], &last["node"]["state"]),
        (&"timed_out".into(), &"quiesced".into())
    );
    assert_eq!(child.wait().unwrap().code(), Some(7));

    let (mut child, mut events) = wait_for_empty(&gateway, &[]);
    operator(&gateway, &["quiesce", "off"]);
    assert_eq!(event(&mut events)["event"], "back_in_service");
    assert_eq!(child.wait().unwrap().code(), Some(6));

    let (mut child, _events) = wait_for_empty(&gateway, &[]);
    let sent = std::process::Command::new("kill")
        .arg("-INT")
        .arg(child.id().to_string())
        .status();
    assert!(sent.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(node(&gateway)["state"], "quiesced");
    let misused = gateway.operator(&["quiesce", "off", "--wait"]).output().unwrap();
    assert_eq!(misused.status.code(), Some(2));
}
