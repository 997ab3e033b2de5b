//! The operator's commands, as the operator types them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::os::unix::fs::PermissionsExt as _;

use support::{Gateway, Setup, portcullis, raw};

#[test]
fn the_socket_may_be_opened_by_its_owner_only() {
    let gateway = Gateway::start(&Setup::default());
    let mode = std::fs::metadata(gateway.folder().join("admin.sock"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn sessions_are_listed_for_people_and_for_scripts() {
    let gateway = Gateway::start(&Setup::default());
    let empty = gateway.operator(&["sessions", "list"]).output().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&empty.stdout).lines().count(),
        1,
        "the head of the table"
    );
    assert_eq!(String::from_utf8_lossy(&empty.stderr), "0 in all\n");

    raw::sign_in(&gateway, "ann");
    let listed = gateway.operator(&["sessions", "list"]).output().unwrap();
    let table = String::from_utf8(listed.stdout).unwrap();
    assert!(table.lines().next().unwrap().starts_with("ID "), "{table}");
    assert!(table.lines().nth(1).unwrap().contains("ann"), "{table}");

    let json = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["schema"], "portcullis.sessions.v1");
    assert_eq!(document["sessions"][0]["user"], "ann");
    assert_eq!(document["sessions"][0]["client"], "127.0.0.1");
    let since: jiff::Timestamp = document["sessions"][0]["since"].as_str().unwrap().parse().unwrap();
    let ends: jiff::Timestamp = document["sessions"][0]["ends"].as_str().unwrap().parse().unwrap();
    assert!(ends > since);
}

#[test]
fn a_session_that_is_ended_is_gone_and_ending_it_again_says_so() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let json = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let id = document["sessions"][0]["id"].as_str().unwrap();
    assert!(
        gateway
            .operator(&["sessions", "kill", id])
            .output()
            .unwrap()
            .status
            .success()
    );
    let again = gateway.operator(&["sessions", "kill", id]).output().unwrap();
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("No live session"));
    let answer = raw::post(&gateway, Some(&user.cookie), &raw::message("<get-desktops/>"));
    assert!(answer.text().contains("NOT_AUTHENTICATED"));
    assert!(answer.session_cookie().is_some(), "the client begins anew");
}

#[test]
fn an_id_that_cannot_be_one_is_a_usage_error() {
    let gateway = Gateway::start(&Setup::default());
    assert_eq!(
        gateway
            .operator(&["sessions", "kill", "xyz"])
            .output()
            .unwrap()
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn no_node_on_the_socket_is_told_with_what_to_do() {
    let output = portcullis()
        .args(["quiesce", "status", "--socket", "/nonexistent/admin.sock"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(4));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(
        words.contains("No node answers on /nonexistent/admin.sock") && words.contains("--socket"),
        "{words}"
    );
}

#[test]
fn two_nodes_do_not_share_a_socket() {
    let gateway = Gateway::start(&Setup::default());
    let folder = gateway.folder();
    let first = std::fs::read_to_string(folder.join("gw.toml")).unwrap();
    let file = folder.join("second.toml");
    std::fs::write(&file, first.replace("/state\"", "/another-state\"")).unwrap();
    let second = portcullis().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&second.stderr).contains("another node"),
        "{}",
        String::from_utf8_lossy(&second.stderr)
    );
}

#[test]
fn a_configuration_with_faults_does_not_start_and_names_them() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("gw.toml");
    std::fs::write(&file, "[node]\nname = \"gw 1\"\nworkers = \"two\"\n").unwrap();
    let output = portcullis().args(["serve", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("node.name") && words.contains("node.workers"), "{words}");
}

#[test]
fn the_demo_goes_the_whole_way() {
    let folder = tempfile::TempDir::new().unwrap();
    let output = portcullis()
        .args(["demo", "--once"])
        .env("XDG_DATA_HOME", folder.path())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}");
    for line in [
        "ok   1 Listen",
        "ok   2 TLS",
        "ok   3 Route",
        "ok   4 Inspect",
        "ok   5 Sign-in",
        "ok   6 Grant",
        "ok   7 Tunnel",
        "ok   8 Backend",
        "Every step held",
    ] {
        assert!(words.contains(line), "{line} is missing in\n{words}");
    }
}
