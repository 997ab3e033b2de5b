//! The admin port: who may do what with which token, and what it costs to try without.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use support::raw::{self, Answer, Stream, connect_from, read_answer, tls_over};
use support::{Gateway, PATIENCE, Setup, portcullis};

const ADMIN: &str = "[admin]\nbind = [\"127.0.0.1:0\"]\n";

fn gateway() -> Gateway {
    Gateway::start(&Setup::default().section(ADMIN))
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Makes a token on the node.
fn token(gateway: &Gateway, name: &str, scope: &str) -> String {
    let made = succeeds(&mut gateway.operator(&["token", "create", "--name", name, "--scope", scope]));
    let token = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    assert!(token.starts_with("pct_") && token.len() == 47, "{token}");
    token
}

fn certificate(gateway: &Gateway) -> PathBuf {
    gateway.folder().join("state/admin.pem")
}

/// A connection to the admin port.
fn connect(gateway: &Gateway) -> Stream {
    let (address, _) = gateway.admin_port();
    tls_over(TcpStream::connect(address).unwrap(), &certificate(gateway))
}

/// One request on a connection that stays open, with a token or without.
fn ask_on(stream: &mut Stream, what: &str, token: Option<&str>, body: &str) -> Answer {
    let token = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!(
        "{what} HTTP/1.1\r\nHost: node\r\n{token}Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
    read_answer(stream)
}

fn ask(gateway: &Gateway, what: &str, token: Option<&str>, body: &str) -> Answer {
    ask_on(&mut connect(gateway), what, token, body)
}

/// The document of a refusal, which every error is.
fn problem(answer: &Answer) -> Value {
    assert_eq!(answer.header("content-type"), ["application/problem+json"]);
    let problem: Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(problem["status"], answer.status);
    assert!(problem["detail"].as_str().unwrap().ends_with('.'), "{problem}");
    problem
}

const NODE: &str = "GET /api/v1/node";
const QUIESCE: &str = "PUT /api/v1/node/quiesce";
const TOKENS: &str = "GET /api/v1/tokens";
const ON: &str = "{\"quiesced\": true}";

#[test]
fn each_scope_may_do_what_it_may_and_no_more() {
    let gateway = gateway();
    let [read, operate, admin] = ["read", "operate", "admin"].map(|scope| token(&gateway, scope, scope));
    let status = |what: &str, token: &str, body: &str| ask(&gateway, what, Some(token), body).status;
    for token in [&read, &operate, &admin] {
        assert_eq!(status(NODE, token, ""), 200);
        assert_eq!(status("GET /metrics", token, ""), 200);
        assert_eq!(status("GET /api/v1/sessions", token, ""), 200);
        let settings = ask(&gateway, "GET /api/v1/node/configuration", Some(token), "");
        assert_eq!(settings.status, 200);
        let settings = settings.text();
        assert!(
            settings.contains("\"node.name\":\"gw-1\"") && !settings.contains("argon2id"),
            "{settings}"
        );
    }
    assert_eq!(status(QUIESCE, &read, ON), 403);
    assert_eq!(status("DELETE /api/v1/sessions/0", &read, ""), 403);
    assert_eq!(status(QUIESCE, &operate, ON), 200);
    assert_eq!(status("DELETE /api/v1/sessions/0", &operate, ""), 404);
    let new = "{\"name\": \"more\", \"scope\": \"admin\"}";
    for token in [&read, &operate] {
        assert_eq!(status(TOKENS, token, ""), 403);
        assert_eq!(status("POST /api/v1/tokens", token, new), 403);
        assert_eq!(status("DELETE /api/v1/tokens/admin", token, ""), 403);
        assert_eq!(status("POST /api/v1/node/end", token, ""), 403);
        for upgrade in ["POST /api/v1/node/upgrade", "POST /api/v1/node/upgrade/check"] {
            assert_eq!(status(upgrade, token, "{\"binary\": \"/bin/true\"}"), 403);
        }
    }
    let other = ask(
        &gateway,
        "POST /api/v1/node/upgrade/check",
        Some(&admin),
        "{\"binary\": \"/bin/true\"}",
    );
    assert_eq!(other.status, 409);
    assert!(
        problem(&other)["detail"]
            .as_str()
            .unwrap()
            .contains("it is another program")
    );
    let refused = ask(&gateway, TOKENS, Some(&read), "");
    assert!(problem(&refused)["detail"].as_str().unwrap().contains("`admin`"));
    let made = ask(&gateway, "POST /api/v1/tokens", Some(&admin), new);
    assert_eq!((made.status, made.header("cache-control")), (201, vec!["no-store"]));
    let node: Value = serde_json::from_slice(&ask(&gateway, NODE, Some(&read), "").body).unwrap();
    assert_eq!((&node["state"], &node["name"]), (&"quiesced".into(), &"gw-1".into()));
    assert!(node["version"].is_string() && node["uptime_seconds"].is_u64());

    // Every change is in the log with who made it, also one that was refused; what only looks is not.
    for (by, what, status) in [
        ("read", QUIESCE, 403),
        ("operate", QUIESCE, 200),
        ("admin", "POST /api/v1/tokens", 201),
        ("socket", "POST /api/v1/tokens", 201),
    ] {
        gateway.wait_for(&format!("{by} {what} {status}"), |line| {
            line["message"] == "operator's change"
                && (&line["by"], &line["what"], &line["status"]) == (&by.into(), &what.into(), &status.into())
        });
    }
    assert!(!gateway.log_text().contains("GET /api"));
}

#[test]
fn without_a_good_token_nothing_is_told_not_even_what_there_is() {
    let gateway = gateway();
    let good = token(&gateway, "ops", "admin");
    let garbage = [
        None,
        Some("pct_"),
        Some("pct_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        Some("\u{1f980}"),
        Some(&good[..46]),
    ];
    for token in garbage {
        for what in [NODE, "GET /nothing", "POST /api/v1/node"] {
            let refused = ask(&gateway, what, token, "");
            assert_eq!(
                (refused.status, refused.header("www-authenticate")),
                (401, vec!["Bearer"]),
                "{token:?}"
            );
            problem(&refused);
        }
    }
    let known = |what: &str, body: &str| {
        let refused = ask(&gateway, what, Some(&good), body);
        problem(&refused);
        refused.status
    };
    assert_eq!(known("GET /nothing", ""), 404);
    assert_eq!(known("POST /api/v1/node", ""), 405);
    assert_eq!(known(QUIESCE, "{"), 400);
    assert_eq!(known(QUIESCE, "{\"quiet\": true}"), 422);
    assert_eq!(
        known("POST /api/v1/tokens", "{\"name\": \"socket\", \"scope\": \"read\"}"),
        400
    );
    assert_eq!(
        known("POST /api/v1/tokens", "{\"name\": \"ops\", \"scope\": \"read\"}"),
        409
    );
    let long = format!("{{\"name\": \"{}\", \"scope\": \"read\"}}", "x".repeat(70_000));
    assert_eq!(known("POST /api/v1/tokens", &long), 413);
}

#[test]
fn a_token_ends_at_once_when_it_is_revoked_and_by_itself_when_it_expires() {
    let gateway = gateway();
    let token = token(&gateway, "ops", "read");
    let mut open = connect(&gateway);
    assert_eq!(ask_on(&mut open, NODE, Some(&token), "").status, 200);
    succeeds(&mut gateway.operator(&["token", "revoke", "ops"]));
    assert_eq!(
        ask_on(&mut open, NODE, Some(&token), "").status,
        401,
        "on the same connection too"
    );
    let again = gateway.operator(&["token", "revoke", "ops"]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));

    let create = [
        "token",
        "create",
        "--name",
        "short",
        "--scope",
        "read",
        "--expires",
        "1s",
    ];
    let made = succeeds(&mut gateway.operator(&create));
    let short = String::from_utf8(made.stdout).unwrap();
    let deadline = portcullis::clock::now() + PATIENCE;
    loop {
        let answer = ask(&gateway, NODE, Some(short.trim()), "");
        if answer.status == 401 {
            assert!(problem(&answer)["detail"].as_str().unwrap().contains("expired"));
            break;
        }
        assert!(portcullis::clock::now() < deadline, "it does not expire");
        // A source has so many connections at a time, and the node learns of their ends a moment later.
        std::thread::sleep(Duration::from_millis(50));
    }
    let listed = succeeds(&mut gateway.operator(&["token", "list", "--json"]));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(listed["schema"], "portcullis.tokens.v1");
    assert_eq!(
        (&listed["tokens"][0]["name"], &listed["tokens"][0]["expired"]),
        (&"short".into(), &true.into())
    );
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 1);
}

#[test]
fn a_token_outlives_the_node_and_stands_nowhere_in_clear() {
    let mut gateway = gateway();
    let token = token(&gateway, "ops", "read");
    assert_eq!(ask(&gateway, NODE, Some(&token), "").status, 200);
    let before = gateway.log_text();
    let (_, thumbprint) = gateway.admin_port();
    gateway.restart();
    assert_eq!(ask(&gateway, NODE, Some(&token), "").status, 200);
    assert_eq!(gateway.admin_port().1, thumbprint, "the certificate was kept");
    let state = gateway.folder().join("state");
    for name in ["tokens.json", "admin.pem"] {
        let mode = std::fs::metadata(state.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let kept = std::fs::read_to_string(state.join("tokens.json")).unwrap();
    let secret = &token["pct_".len()..];
    assert!(!kept.contains(secret) && !before.contains(secret) && !gateway.log_text().contains(secret));
}

/// One guess on a connection of its own: the status, if there is an answer at all.
fn guess(address: SocketAddr, certificate: &std::path::Path, token: &str) -> Option<u16> {
    let mut stream = tls_over(connect_from([127, 0, 0, 1], address), certificate);
    let request = format!("{NODE} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).ok()?;
    std::str::from_utf8(&answer[9..]).ok()?.parse().ok()
}

#[test]
fn a_thousand_guesses_cost_little_and_lock_nobody_else_out() {
    let gateway = gateway();
    let good = token(&gateway, "ops", "read");
    let (address, certificate) = (gateway.admin_port().0, certificate(&gateway));
    let mut told = std::collections::BTreeMap::<_, usize>::new();
    for n in 0..1000 {
        *told
            .entry(guess(address, &certificate, &format!("pct_{n:043}")))
            .or_default() += 1;
    }
    assert!(
        told.keys().all(|status| matches!(status, None | Some(401 | 429))),
        "{told:?}"
    );
    // At most a few a minute are looked at and told of; the machine may have taken more than one for all this.
    assert!(told[&Some(401)] <= 60 && told[&Some(429)] > 200, "{told:?}");
    let mut elsewhere = tls_over(connect_from([127, 0, 0, 2], address), &certificate);
    assert_eq!(ask_on(&mut elsewhere, NODE, Some(&good), "").status, 200);
    let log = gateway.lines();
    let lines = log
        .iter()
        .filter(|line| line["message"] == "admin token refused")
        .count();
    assert!(lines <= 60, "{lines} lines");
}

#[test]
fn the_port_speaks_tls_1_3_only_and_holds_nobody_for_ever() {
    let gateway = gateway();
    let (address, _) = gateway.admin_port();
    let mut plain = TcpStream::connect(address).unwrap();
    plain.set_read_timeout(Some(PATIENCE)).unwrap();
    plain
        .write_all(b"GET /api/v1/node HTTP/1.1\r\nHost: node\r\n\r\n")
        .unwrap();
    let answer = read_answer(&mut plain);
    assert!(
        answer.status == 400 && answer.text().contains("HTTPS"),
        "{}",
        answer.text()
    );

    let mut silent: Vec<_> = (0..40).map(|_| TcpStream::connect(address).unwrap()).collect();
    let good = token(&gateway, "ops", "read");
    let mut elsewhere = tls_over(connect_from([127, 0, 0, 2], address), &certificate(&gateway));
    assert_eq!(
        ask_on(&mut elsewhere, NODE, Some(&good), "").status,
        200,
        "one source has a share only"
    );
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(raw::is_closed(stream));
    }
    let mut endless = connect(&gateway);
    let field = format!("X: {}\r\n", "x".repeat(8000));
    let sent = endless
        .write_all(b"GET / HTTP/1.1\r\n")
        .and_then(|()| (0..64).try_for_each(|_| endless.write_all(field.as_bytes())));
    let mut head = [0; 12];
    let refused = sent.is_err() || endless.read_exact(&mut head).is_err() || &head[9..] == b"431";
    assert!(refused, "{}", String::from_utf8_lossy(&head));
}

/// A command asked at the admin port.
fn remote(gateway: &Gateway, arguments: &[&str], token: &str) -> Command {
    let file = gateway.folder().join("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    let mut command = portcullis();
    let url = format!("https://127.0.0.1:{}", gateway.admin_port().0.port());
    command
        .args(arguments)
        .arg("--node")
        .arg(url)
        .arg("--token-file")
        .arg(file);
    command
}

#[test]
fn the_commands_speak_to_a_node_far_away_too() {
    let gateway = gateway();
    let (operate, read) = (token(&gateway, "ops", "operate"), token(&gateway, "eyes", "read"));
    let thumbprint = gateway.admin_port().1;
    let user = raw::sign_in(&gateway, "ann");
    let pinned = ["--thumbprint", thumbprint.as_str()];
    let listed = succeeds(remote(&gateway, &["sessions", "list", "--json"], &read).args(pinned));
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let id = listed["sessions"][0]["id"].as_str().unwrap();

    let forbidden = remote(&gateway, &["sessions", "kill", id], &read)
        .args(pinned)
        .output()
        .unwrap();
    assert_eq!(forbidden.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&forbidden.stderr).contains("`operate`"));
    let unknown = remote(&gateway, &["sessions", "list"], "pct_none")
        .args(pinned)
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(5));
    let unproven = remote(&gateway, &["sessions", "list"], &read).output().unwrap();
    assert_eq!(unproven.status.code(), Some(5));
    let words = String::from_utf8_lossy(&unproven.stderr);
    assert!(words.contains(&thumbprint) && words.contains("--thumbprint"), "{words}");

    let mut kill = remote(&gateway, &["sessions", "kill", id], &operate);
    succeeds(kill.arg("--ca").arg(certificate(&gateway)));
    let answer = raw::post(&gateway, Some(&user.cookie), &raw::message("<get-desktops/>"));
    assert!(answer.text().contains("NOT_AUTHENTICATED"), "{}", answer.text());
    let nobody = portcullis()
        .args(["quiesce", "status", "--node", "https://127.0.0.1:1", "--token-file"])
        .arg(gateway.folder().join("token"))
        .output()
        .unwrap();
    assert_eq!(nobody.status.code(), Some(4));
}
