//! What monitoring reads of a node: the same words as in the log, counted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::collections::{BTreeMap, HashSet};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use portcullis::clock;
use portcullis::fault::{CloseReason, Refusal};
use serde_json::Value;
use support::heir::upgrade;
use support::{Gateway, PATIENCE, Setup, Target, raw};

#[test]
fn every_end_that_the_log_tells_is_counted_under_the_same_word() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let (_stream, answer) = raw::open_tunnel(&gateway, &user.token);
    assert_eq!(answer.status, 200);
    let forged = user.token.replace("gw-1", "gw-9");
    for token in ["", "nonsense", &forged] {
        let (_stream, answer) = raw::open_tunnel(&gateway, token);
        assert_eq!(answer.status, 403);
    }
    raw::post(&gateway, Some(&user.cookie), &raw::message("<do-logout/>"));
    gateway.wait_for("the refused connection closed", |line| {
        line["message"] == "connection closed" && line["reason"] == "unknown_token"
    });

    let metrics = metrics(&gateway);
    for line in [
        r#"portcullis_node_info{name="gw-1",version="0.1.0"} 1"#,
        "portcullis_in_service 1",
        "portcullis_sessions 0",
        "portcullis_sessions_begun_total 1",
        r#"portcullis_sessions_ended_total{reason="logout"} 1"#,
        r#"portcullis_sessions_ended_total{reason="killed"} 0"#,
        r#"portcullis_secondaries_admitted_total{secondary="tunnel"} 1"#,
        r#"portcullis_refusals_total{secondary="tunnel",reason="no_token"} 1"#,
        r#"portcullis_refusals_total{secondary="tunnel",reason="malformed"} 1"#,
        r#"portcullis_refusals_total{secondary="tunnel",reason="unknown_token"} 1"#,
        r#"portcullis_refusals_total{secondary="blast",reason="unknown_token"} 0"#,
        r#"portcullis_connections_closed_total{reason="unknown_token"} 1"#,
    ] {
        assert!(metrics.lines().any(|known| known == line), "no {line} in\n{metrics}");
    }
}

#[test]
fn the_text_is_what_prometheus_reads() {
    let gateway = Gateway::start(&Setup::default());
    let metrics = metrics(&gateway);
    let mut family = "";
    let mut typed = HashSet::new();
    let mut samples = HashSet::new();
    for line in metrics.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
            assert!(family.starts_with("portcullis_"), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, family, "TYPE follows its HELP");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert_eq!(kind == "histogram", name.ends_with("_seconds"), "{line}");
            assert!(typed.insert(name), "{name} twice");
        } else {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            let name = sample.split('{').next().unwrap();
            let part = name.strip_prefix(family).expect("samples follow their TYPE");
            let expected: &[&str] = if family.ends_with("_seconds") {
                &["_bucket", "_sum", "_count"]
            } else {
                &[""]
            };
            assert!(expected.contains(&part), "{line}");
            assert!(value.parse::<f64>().unwrap() >= 0.0, "{line}");
            assert!(part == "_sum" || value.parse::<u64>().is_ok(), "{line}");
            assert!(samples.insert(sample), "{sample} twice");
        }
    }
    for reason in Refusal::ALL {
        let label = format!("reason=\"{}\"", reason.code());
        assert!(
            samples.iter().filter(|sample| sample.contains(&label)).count() > 6,
            "{label}"
        );
    }
    for reason in CloseReason::ALL {
        let sample = format!("portcullis_connections_closed_total{{reason=\"{}\"}}", reason.code());
        assert!(samples.contains(&*sample), "{sample}");
    }
}

/// The samples that only grow, by name and labels.
fn counts(gateway: &Gateway) -> BTreeMap<String, f64> {
    let mut counts = BTreeMap::new();
    let mut grows = false;
    for line in metrics(gateway).lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            grows = !kind.ends_with(" gauge");
        } else if grows && !line.starts_with('#') {
            let (sample, value) = line.rsplit_once(' ').unwrap();
            counts.insert(sample.to_owned(), value.parse().unwrap());
        }
    }
    counts
}

/// Waits until the counts are as wanted.
fn wait_for(gateway: &Gateway, wanted: impl Fn(&BTreeMap<String, f64>) -> bool) -> BTreeMap<String, f64> {
    let deadline = clock::now() + PATIENCE;
    loop {
        let counts = counts(gateway);
        if wanted(&counts) {
            return counts;
        }
        assert!(clock::now() < deadline, "{counts:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn counts_go_on_over_handovers_and_hold_what_old_processes_count_later() {
    let shop = Target::new(|mut stream| {
        let _ = stream.read(&mut [0; 1000]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
    });
    let gateway = Gateway::start(&Setup::default().section(&format!(
        "[pool.shop]\ntargets = [\"{}\"]\n[rule.shop]\nhosts = [\"gw.test\"]\npriority = 10\npool = \"shop\"\n",
        shop.address
    )));
    let user = raw::sign_in(&gateway, "ann");
    let (_tunnel, answer) = raw::open_tunnel(&gateway, &user.token);
    assert_eq!(answer.status, 200);
    assert_eq!(raw::open_tunnel(&gateway, "nonsense").1.status, 403);
    let other = raw::sign_in(&gateway, "ann");
    raw::post(&gateway, Some(&other.cookie), &raw::message("<do-logout/>"));
    let mut web = raw::tls(&gateway);
    web.write_all(b"GET / HTTP/1.1\r\nHost: gw.test\r\nConnection: close\r\n\r\n")
        .unwrap();
    assert_eq!(raw::read_answer(&mut web).text(), "ok");
    // A request is counted when its answer is out.
    let mut before = wait_for(&gateway, |counts| {
        let served = [
            "portcullis_sessions_begun_total",
            "portcullis_web_requests_total{rule=\"shop\",class=\"2xx\"}",
            "portcullis_web_request_seconds_count{rule=\"shop\"}",
            "portcullis_pool_first_byte_seconds_count{pool=\"shop\"}",
        ];
        served.iter().all(|sample| counts.get(*sample) >= Some(&1.0))
    });
    let mut old = raw::tls(&gateway);
    old.conn.complete_io(&mut old.sock).unwrap();
    let mut heirs = Vec::new();
    for _ in 0..2 {
        heirs.push(upgrade(&gateway));
        let after = counts(&gateway);
        for (sample, count) in &before {
            assert!(
                after.get(sample) >= Some(count),
                "{sample}: {count}, then {:?}",
                after.get(sample)
            );
        }
        before = after;
    }
    let (begun, ended) = (
        "portcullis_sessions_begun_total",
        "portcullis_sessions_ended_total{reason=\"logout\"}",
    );
    assert_eq!((before[begun], before[ended]), (2.0, 1.0));

    // The end of a session is counted once, and a request by the process that has read it.
    raw::post(&gateway, Some(&user.cookie), &raw::message("<do-logout/>"));
    let refused = "portcullis_web_requests_total{rule=\"\",class=\"4xx\"}";
    old.write_all(b"nonsense\r\n\r\n").unwrap();
    let after = wait_for(&gateway, |counts| counts.contains_key(refused));
    assert_eq!((after[begun], after[ended], after[refused]), (2.0, 2.0, 1.0));
}

#[test]
fn refusals_are_listed_with_their_words() {
    let gateway = Gateway::start(&Setup::default());
    let none: Value = serde_json::from_str(&get(&gateway, "/api/v1/refusals")).unwrap();
    assert_eq!(none["refusals"], serde_json::json!([]));
    for _ in 0..2 {
        assert_eq!(raw::open_tunnel(&gateway, "nonsense").1.status, 403);
    }
    let some: Value = serde_json::from_str(&get(&gateway, "/api/v1/refusals")).unwrap();
    let expected = serde_json::json!([
        {"reason": "malformed", "secondary": "tunnel", "count": 2, "words": "unreadable token"}
    ]);
    assert_eq!(some["refusals"], expected);
}

fn metrics(gateway: &Gateway) -> String {
    get(gateway, "/metrics")
}

/// Asks the operator's socket, and checks that the answer is good.
fn get(gateway: &Gateway, path: &str) -> String {
    let mut stream = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").unwrap();
    let answer = raw::read_answer(&mut stream);
    assert_eq!(answer.status, 200, "{}", answer.head);
    if path == "/metrics" {
        let kind = answer.header("content-type");
        assert_eq!(kind, ["text/plain; version=0.0.4; charset=utf-8"]);
    }
    answer.text().to_owned()
}
