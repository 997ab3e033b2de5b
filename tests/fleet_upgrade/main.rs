//! A fleet from one command: how its nodes are, in what they differ, and the way of all of them to another program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

#[path = "../support/mod.rs"]
mod support;

mod older;
mod restart;
mod rig;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use rig::{Fleet, NEXT, OLD, fleet, kill, last_words, private, script, setup, stderr, told};
use support::Gateway;
use support::raw::{self, message, post};

#[test]
fn an_upgrade_stops_where_it_fails_and_goes_on_when_that_is_mended() {
    let fleet = Fleet::of_four();
    let session = raw::sign_in(&fleet.nodes[0], "ann");
    let crashes = format!("case $1 in serve) exit 7;; *) exec {} \"$@\";; esac", NEXT.display());
    let crashes = script(&fleet.folder.path().join("crashes"), &crashes);
    fleet.inventory(|index| if index == 2 { crashes.clone() } else { NEXT.clone() });

    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "checked"), ["gw-1", "gw-2", "gw-3", "gw-4"]);
    assert_eq!(told(&events, "handing_over"), ["gw-1", "gw-2", "gw-3"]);
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-3: Not handed over, the running process goes on: the new process ended")
            && words.contains("In service: gw-1, gw-2, gw-3, gw-4.")
            && words.contains("the same command goes on"),
        "{words}"
    );
    assert_eq!(fleet.program(1), *NEXT);
    assert_eq!(
        [fleet.program(2), fleet.program(3)],
        [PathBuf::from(OLD), PathBuf::from(OLD)]
    );

    fleet.inventory(|_| NEXT.clone());
    let (code, events) = fleet.upgrade(&["--batch", "2"]);
    assert_eq!(code, Some(0), "{events:#?}");
    let mut together = told(&events, "handing_over");
    together.sort_unstable();
    assert_eq!(together, ["gw-3", "gw-4"]);
    assert_eq!(last_words(&events), "4 nodes run the program of the inventory.");
    assert_eq!(fleet.program(2), *NEXT);
    // Nobody was cut, and the node knows how it came to run.
    let launch = post(
        &fleet.nodes[0],
        Some(&session.cookie),
        &message("<get-tunnel-connection/>"),
    );
    assert!(launch.text().contains("<result>ok</result>"), "{}", launch.text());
    let status = fleet.run(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        status["nodes"][0]["node"]["last_upgrade"]["program"],
        NEXT.to_str().unwrap()
    );

    let again = fleet.run(&["upgrade", "--watch", "1s"]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        "4 nodes run the program of the inventory.\n"
    );
}

#[test]
fn a_node_that_lets_nobody_through_any_more_is_taken_out_and_three_serve() {
    let fleet = Fleet::of_four();
    fleet.inventory(|_| NEXT.clone());
    // Read when another process starts, and not before.
    let file = fleet.nodes[2].folder().join("gw.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("probe", "nobody")).unwrap();

    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    assert_eq!(told(&events, "rolling_back"), ["gw-3"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-3: A user does not get through: the sign-in of probe")
            && words.contains("In service: gw-1, gw-2, gw-4. Out of service: gw-3.")
            && words.contains("portcullis fleet quiesce off gw-3"),
        "{words}"
    );
    assert_eq!(fleet.states(), ["serving", "serving", "quiesced", "serving"]);

    fs::write(&file, &good).unwrap();
    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(0), "{events:#?}");
    assert_eq!(told(&events, "handing_over"), ["gw-3", "gw-4"]);
    assert_eq!(fleet.states(), ["serving"; 4]);
    assert_eq!(fleet.program(2), *NEXT);
}

#[test]
fn a_node_that_runs_something_else_is_handed_back_to_what_it_ran() {
    let fleet = Fleet::start(&["gw-1", "gw-2"].map(setup));
    let other = script(
        &fleet.folder.path().join("other"),
        &format!("exec {} \"$@\"", NEXT.display()),
    );
    fleet.inventory(|_| other.clone());
    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "rolling_back"), ["gw-1"]);
    let words = last_words(&events);
    assert!(
        words.contains("It runs another program than")
            && words.contains(&format!("handed back to {OLD} and serves as before")),
        "{words}"
    );
    assert_eq!(fleet.states(), ["serving"; 2]);
    assert_eq!(fleet.program(0), Path::new(OLD));
}

#[test]
fn a_node_with_far_more_errors_than_before_is_handed_back() {
    let fleet = Fleet::start(&["gw-1", "gw-2"].map(setup));
    fleet.inventory(|_| NEXT.clone());
    let is_over = AtomicBool::new(false);
    let (code, events) = std::thread::scope(|scope| {
        // What another program may bring: that it turns away who was let in before.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                if was_handed_over(&fleet.nodes[1]) {
                    assert_eq!(raw::open_tunnel(&fleet.nodes[1], "nobody").1.status, 403);
                } else {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
        });
        let outcome = fleet.upgrade_watching("3s");
        is_over.store(true, Ordering::Relaxed);
        outcome
    });
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(
        [told(&events, "in_service"), told(&events, "rolling_back")],
        [["gw-1"], ["gw-2"]]
    );
    let words = last_words(&events);
    assert!(
        words.contains(" errors in 3 s; before: 0 errors in ")
            && words.contains("Its log says which: secondaries refused, errors of the web.")
            && words.contains(&format!("It was handed back to {OLD} and serves as before."))
            && words.contains("In service: gw-1, gw-2. Out of service: none.")
            && words.contains("the same command goes on"),
        "{words}"
    );
    assert_eq!([fleet.program(0), fleet.program(1)], [NEXT.clone(), PathBuf::from(OLD)]);

    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(0), "{events:#?}");
    assert_eq!(told(&events, "in_service"), ["gw-2"]);
}

fn was_handed_over(node: &Gateway) -> bool {
    let mut lines = node.lines().into_iter();
    lines.any(|line| {
        line["message"]
            .as_str()
            .is_some_and(|words| words.starts_with("handed over:"))
    })
}

#[test]
fn nothing_is_changed_unless_every_check_of_every_node_holds() {
    let fleet = Fleet::of_four();
    fleet.inventory(|index| {
        if index == 1 {
            "/nowhere/portcullis".into()
        } else {
            NEXT.clone()
        }
    });
    let file = fleet.nodes[3].folder().join("gw.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("grace_period", "grace_peroid")).unwrap();
    let output = fleet.run(&["upgrade"]);
    let words = stderr(&output);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{words}");
    assert!(
        words.contains("gw-1  ok: ")
            && words.contains("health check, sign-in and tunnel hold")
            && words.contains("gw-2  /nowhere/portcullis cannot take over: no such file or directory.")
            && words.contains("gw.toml:5: node.grace_peroid: no such setting. Did you mean grace_period?")
            && words.ends_with("Nothing was changed.\n"),
        "{words}"
    );
    fs::write(&file, &good).unwrap();
    fleet.inventory(|_| NEXT.clone());
    let quiesced = fleet.run(&["quiesce", "on", "gw-4"]);
    assert!(quiesced.status.success());
    let output = fleet.run(&["upgrade"]);
    assert_eq!(output.status.code(), Some(3));
    let words = stderr(&output);
    assert!(
        words.contains("gw-4  It is quiesced, and not by an upgrade of this inventory."),
        "{words}"
    );
    assert!(fleet.run(&["quiesce", "off", "gw-4"]).status.success());
    kill("KILL", &fleet.nodes[0].pid().to_string());
    let (code, events) = fleet.upgrade(&["--check"]);
    assert_eq!(code, Some(4), "{events:#?}");
    for node in &fleet.nodes[1..] {
        assert!(!node.log_text().contains("handing over"));
    }
}

#[test]
fn status_diff_and_quiesce_speak_of_all_nodes() {
    let nodes = [
        setup("gw-1"),
        setup("gw-2").section("[limits]\nconnections = 5000\n"),
        setup("gw-3"),
    ];
    let fleet = Fleet::start(&nodes);
    fleet.inventory(|_| NEXT.clone());
    let output = fleet.run(&["status"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        (rows.len(), rows[1][0], rows[1][2].trim(), rows[1][6].trim()),
        (4, "gw-1", "serving", "200"),
        "{text}"
    );
    assert_eq!(rows[1][5], rows[3][5], "name and addresses do not count");
    assert_ne!(rows[1][5], rows[2][5]);

    let output = fleet.run(&["diff"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "limits.connections\n  (not written)  gw-1, gw-3\n  5000           gw-2\n"
    );
    assert!(stderr(&output).starts_with("1 difference between 3 nodes. Not compared: names"));
    fleet.nodes[1].reload(&nodes[2].clone().named("gw-2"));
    let output = fleet.run(&["diff", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &told["differences"]),
        (Some(0), &Value::Array(vec![]))
    );

    let output = fleet.run(&["quiesce", "on", "gw-3", "gw-1"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    assert_eq!(fleet.states(), ["quiesced", "serving", "quiesced"]);
    let output = fleet.run(&["quiesce", "on", "gw-1", "--wait", "--json"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &event["event"]), (Some(0), &"empty".into()));
    assert_eq!(event["schema"], "portcullis.fleet-quiesce.v1");
    raw::sign_in(&fleet.nodes[0], "ann");
    let output = fleet.run(&["quiesce", "on", "gw-1", "--wait", "--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("1 session left"), "{}", stderr(&output));
    assert_eq!(fleet.run(&["quiesce", "off", "gw-9"]).status.code(), Some(2));

    // An address that leads to another node than the one that is meant.
    let text = fs::read_to_string(fleet.file()).unwrap();
    fs::write(fleet.file(), text.replace("\"gw-2\"", "\"gw-7\"")).unwrap();
    let output = fleet.run(&["status"]);
    assert!(stderr(&output).contains("calls itself gw-2"), "{}", stderr(&output));
    fs::write(fleet.file(), text).unwrap();
    kill("KILL", &fleet.nodes[1].pid().to_string());
    let output = fleet.run(&["status"]);
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("gw-2  -") && text.contains("unreachable"), "{text}");
}

#[test]
fn every_fault_of_the_inventory_is_told_at_once_with_its_line() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("fleet.toml");
    private(&folder.path().join("token"), "pct_x\n");
    let text = "[[node]]\nname = \"gw-1\"\nadmin = \"http://gw-1:9443\"\ntoken_file = \"token\"\nbinray = \"/x\"\n\
                [[node]]\nname = \"gw-1\"\nadmin = \"https://gw-1:9443\"\ntoken_file = \"none\"\nca = \"token\"\n\
                thumbprint = \"00\"\nlogin = { user = \"probe\" }\n[[node]]\n";
    fs::write(&file, text).unwrap();
    let output = fleet(&file, &["status"]).output().unwrap();
    let words = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{words}");
    for expected in [
        "fleet.toml:3:9 ",
        "node[0].admin: \"http://gw-1:9443\" is no base URL",
        "fleet.toml:5:1 ",
        "node[0].binray: no such setting. Did you mean binary?",
        "node[1].name: \"gw-1\" is in the list a second time",
        "node[1].token_file: ",
        "node[1].thumbprint: \"00\" is no SHA-256 thumbprint",
        "node[1].login.password_file: is missing",
        "node[1].url: is missing",
        "node[2].name: is missing",
        "node[2].admin: is missing",
        "node[2].token_file: is missing",
    ] {
        assert!(words.contains(expected), "{expected}\n{words}");
    }
}
