//! WebSockets as Autobahn's test suite has them: each case ends through a gateway as it ends without one.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use super::peer::{Peer, line, python, run};
use crate::rig::{Shop, second_address};

#[test]
fn autobahns_cases_end_through_a_gateway_as_without_it() {
    let folder = TempDir::new().unwrap();
    let (_agent, mut said) = Peer::start_speaking(peer().arg("agent"), folder.path());
    let agent: SocketAddr = format!("127.0.0.1:{}", line(&mut said)).parse().unwrap();
    let gateway = Shop::with_targets(&[format!("\"{agent}\"")]).plain().start();
    let [direct, over_tls, plain] = thread::scope(|scope| {
        [
            scope.spawn(|| play("ws", agent, None)),
            scope.spawn(|| play("wss", gateway.address, Some(&gateway.chain()))),
            scope.spawn(|| play("ws", second_address(&gateway), None)),
        ]
        .map(|playing| playing.join().unwrap())
    });
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (case, came) in &direct {
        let behavior = came["behavior"].as_str().unwrap();
        *counts.entry(behavior).or_default() += 1;
        assert!(
            ["OK", "INFORMATIONAL"].contains(&behavior),
            "{case} without a gateway: {came}"
        );
        for (way, through) in [("over TLS", &over_tls), ("plain", &plain)] {
            let is_same = match behavior {
                // As the machine has it: which of two bytes is first.
                "INFORMATIONAL" => through[case]["behavior"] == came["behavior"],
                _ => through[case] == *came,
            };
            assert!(is_same, "{case} {way}: {}\nnot {came}", through[case]);
        }
    }
    assert_eq!((direct.len(), over_tls.len(), plain.len()), (CASES, CASES, CASES));
    println!("Autobahn's cases 1-7 and 10, over TLS and plain as without a gateway: {counts:?}");
}

/// What came of each case at that address.
fn play(scheme: &str, address: SocketAddr, authority: Option<&Path>) -> BTreeMap<String, Value> {
    let mut client = peer();
    client.args(["client", &format!("{scheme}://shop.test/echo"), &address.to_string()]);
    client.args(authority);
    serde_json::from_str(&run(&mut client)).unwrap()
}

fn peer() -> Command {
    python("autobahn", "conformance.py")
}

/// How many cases the suite has in these chapters.
const CASES: usize = 247;
