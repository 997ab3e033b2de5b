//! What is admitted against a grant, and what is not: nothing is dialled then, and the log names the one reason.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::time::Duration;

use support::client::{echo, launch, open_tunnel, sign_in};
use support::raw::{self, message};
use support::{Gateway, PATIENCE, Setup, Target};

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_in_user_reaches_the_desktop_that_the_grant_names() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    assert_eq!(echo(&mut channel, b"through the gate").await, b"through the gate");
    assert_eq!(target.dialled(), 1);
    session.log_out().await;
}

#[test]
fn a_tunnel_without_a_token_or_with_a_made_up_one_is_refused() {
    let gateway = Gateway::start(&Setup::default());
    let made_up = format!("gw-1.{}.{}", "A".repeat(43), "A".repeat(11));
    for (token, reasons) in [
        ("", &["no_token"][..]),
        ("x", &["malformed"]),
        (&made_up, &["unknown_token", "malformed"]),
    ] {
        assert_refused(&gateway, token, reasons);
    }
}

#[test]
fn a_token_ends_with_its_session() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let user = raw::sign_in(&gateway, "ann");
    let logged_out = raw::post(&gateway, Some(&user.cookie), &message("<do-logout/>"));
    assert!(logged_out.text().contains("<result>ok</result>"));
    assert_refused(&gateway, &user.token, &["revoked"]);
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_token_ends_when_the_operator_ends_its_session() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let session = session_of(&gateway);
    assert!(
        gateway
            .operator(&["sessions", "kill", &session])
            .status()
            .unwrap()
            .success()
    );
    assert_refused(&gateway, &user.token, &["revoked"]);
}

#[test]
fn a_token_ends_with_the_time_of_its_session() {
    let target = Target::echo();
    let setup = Setup::default().section("[session]\nlifetime = \"2 s\"\n");
    let gateway = Gateway::start(&setup.desktop("shell", target.address, "ssh"));
    let user = raw::sign_in(&gateway, "ann");
    gateway.wait_for("the end of the session", |line| line["reason"] == "session_expired");
    assert_refused(&gateway, &user.token, &["expired"]);
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_token_that_nobody_used_in_time_is_void() {
    let gateway = Gateway::start(&Setup::default().section("[session]\nfirst_use = \"1 s\"\n"));
    let user = raw::sign_in(&gateway, "ann");
    std::thread::sleep(Duration::from_millis(1100));
    assert_refused(&gateway, &user.token, &["window_missed"]);
}

#[test]
fn a_token_that_was_replaced_before_its_use_is_void() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let again = raw::post(&gateway, Some(&user.cookie), &message("<get-tunnel-connection/>"));
    let fresh = raw::element(again.text(), "connection-id").unwrap();
    assert_ne!(fresh, user.token);
    assert_refused(&gateway, &user.token, &["unknown_token"]);
    let (_stream, answer) = raw::open_tunnel(&gateway, fresh);
    assert_eq!(answer.status, 200);
}

/// The client has to repeat the token inside the tunnel: one that came by another's URL is of no use.
#[test]
fn a_tunnel_that_repeats_the_token_of_another_session_is_ended() {
    let target = Target::echo();
    let setup = Setup::default().user("bob", "").desktop("shell", target.address, "ssh");
    let gateway = Gateway::start(&setup);
    let (ann, bob) = (raw::sign_in(&gateway, "ann"), raw::sign_in(&gateway, "bob"));
    let (mut stream, answer) = raw::open_tunnel(&gateway, &ann.token);
    assert_eq!(answer.status, 200);
    raw::send_chunk(&mut stream, &raw::init_chunk());
    raw::send_chunk(&mut stream, &raw::start_chunk(&bob.token));
    gateway.wait_for("the end of the tunnel", |line| {
        line["message"] == "tunnel closed" && line["reason"] == "unknown_token"
    });
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_second_node_refuses_and_names_the_node_that_issued_the_token() {
    let target = Target::echo();
    let key = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let setup = |name| {
        Setup::default()
            .named(name)
            .node(key)
            .desktop("shell", target.address, "ssh")
    };
    let (first, second) = (Gateway::start(&setup("gw-1")), Gateway::start(&setup("gw-2")));
    let user = raw::sign_in(&first, "ann");
    assert_refused(&second, &user.token, &["sister_node"]);
    second.wait_for("the owner", |line| {
        line["reason"] == "sister_node" && line["owner"] == "gw-1"
    });
    assert_eq!(target.dialled(), 0);
}

#[test]
fn a_node_without_the_common_key_knows_no_sisters() {
    let (first, second) = (
        Gateway::start(&Setup::default()),
        Gateway::start(&Setup::default().named("gw-2")),
    );
    let user = raw::sign_in(&first, "ann");
    assert_refused(&second, &user.token, &["unknown_token"]);
}

#[test]
fn a_session_has_as_many_connections_as_it_may_have() {
    let gateway = Gateway::start(&Setup::default().section("[session]\nconnections = 1\n"));
    let user = raw::sign_in(&gateway, "ann");
    let (_open, answer) = raw::open_tunnel(&gateway, &user.token);
    assert_eq!(answer.status, 200);
    assert_refused(&gateway, &user.token, &["flow_limit"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_session_stops_its_tunnel_at_once_and_says_why() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    echo(&mut channel, b"alive").await;
    let id = session_of(&gateway);
    assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
    let end = tokio::time::timeout(PATIENCE, tunnel.ended())
        .await
        .expect("the tunnel ends");
    assert!(format!("{end:?}").contains("session was ended"), "{end:?}");
    gateway.wait_for("the tunnel's line", |line| {
        line["message"] == "tunnel closed" && line["reason"] == "killed" && line["session"] == id.as_str()
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn another_users_desktop_cannot_be_launched() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().user("bob", "").desktop("shell", target.address, "ssh"));
    let bob = raw::sign_in(&gateway, "bob");
    let launch = message("<get-desktop-connection><desktop-id>shell</desktop-id></get-desktop-connection>");
    let answer = raw::post(&gateway, Some(&bob.cookie), &launch);
    assert!(
        answer.text().contains("<error-code>NOT_ENTITLED</error-code>"),
        "{}",
        answer.text()
    );
    assert_eq!(target.dialled(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_of_a_session_is_ever_in_the_log() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let user = raw::sign_in(&gateway, "ann");
    let (stream, _) = raw::open_tunnel(&gateway, &user.token);
    drop(stream);
    assert_refused(&gateway, "not-a-token-but-maybe-a-secret", &["malformed"]);
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    echo(&mut channel, b"words between user and desktop").await;
    session.log_out().await;
    gateway.wait_for("the end", |line| line["reason"] == "logout");
    let log = gateway.log_text();
    let cookie = user.cookie.trim_start_matches("JSESSIONID=");
    for secret in [
        &*user.token,
        cookie,
        support::PASSWORD,
        "not-a-token-but-maybe-a-secret",
        "words between",
    ] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
}

fn assert_refused(gateway: &Gateway, token: &str, reasons: &[&str]) {
    let before = gateway.lines().len();
    let (mut stream, mut answer) = raw::open_tunnel(gateway, token);
    answer.body = vec![0; 13];
    std::io::Read::read_exact(&mut stream, &mut answer.body).unwrap();
    assert_eq!((answer.status, answer.text()), (403, "not admitted\n"));
    assert!(raw::is_closed(&mut stream), "the connection closes after a refusal");
    gateway.wait_for_after(before, "the refusal", |line| {
        line["message"]
            .as_str()
            .is_some_and(|message| message.starts_with("tunnel refused"))
            && reasons.iter().any(|reason| line["reason"] == *reason)
    });
}

/// The id of the only session.
fn session_of(gateway: &Gateway) -> String {
    let output = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1);
    list["sessions"][0]["id"].as_str().unwrap().to_owned()
}
