//! Changes of the configuration, and the end of the node: nobody is cut whom it does not concern, and nobody before time.

use std::time::Duration;

use crate::rig::{Sql, at, breaks, closed, connect, connect_to, echoes, name_of, named, patiently};
use crate::support::{Gateway, Target};

const SECOND: &str = "127.0.0.4";

/// A second listener, whose rule leads to the same pool.
fn second() -> String {
    format!(
        "[listener.second]\nprotocol = \"tcp\"\nbind = [\"{SECOND}:0\"]\n[rule.second]\nlisteners = [\"second\"]\npriority = \
         200\npool = \"sql\"\nbackend = \"sql\""
    )
}

/// How many passages were cut.
fn drained(gateway: &Gateway) -> usize {
    let lines = gateway.lines();
    let is_it = |line: &&serde_json::Value| line["message"] == "passage closed" && line["reason"] == "drained";
    lines.iter().filter(is_it).count()
}

#[test]
fn a_change_that_does_not_concern_it_leaves_a_passage_alone() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]).backend("drain = \"1 s\"");
    let gateway = sql.start();
    let mut stream = connect(&gateway);
    assert!(echoes(&mut stream));
    let begun = portcullis::clock::now();
    let mut change = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        change += 1;
        let elsewhere = format!(
            "[pool.other]\ntargets = [\"10.0.0.1:80\"]\n[rule.other]\nhosts = [\"h{change}.test\"]\npriority = 1\npool = \"other\""
        );
        // Its own rule changes too, but not where it leads.
        let sql = sql
            .clone()
            .rule(&format!("deny = [\"198.51.{}.{}\"]", change / 250, change % 250));
        sql.table(&elsewhere).apply(&gateway);
        assert!(echoes(&mut stream));
    }
    assert_eq!((target.dialled(), drained(&gateway)), (1, 0));
}

#[test]
fn a_target_that_is_taken_away_keeps_its_connections_for_its_drain() {
    let (old, new) = (named("o"), named("n"));
    let sql = Sql::of(&[old.address]).backend("drain = \"2 s\"");
    let gateway = sql.start();
    let mut stream = connect(&gateway);
    assert_eq!(name_of(&mut stream), Some('o'));
    let begun = portcullis::clock::now();
    sql.targets(&[new.address]).apply(&gateway);
    assert_eq!(name_of(&mut connect(&gateway)), Some('n'));
    assert!(echoes(&mut stream), "it goes on");
    assert!(
        breaks(&mut stream),
        "until its time is over; and that is no end in order"
    );
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    let line = closed(&gateway, "drained");
    assert_eq!(line["address"], old.address.to_string().as_str());
}

#[test]
fn a_listener_that_goes_takes_its_own_passages_and_no_others() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]).backend("drain = \"1 s\"");
    let gateway = sql.clone().table(&second()).start();
    let address = at(&gateway, SECOND.parse().unwrap());
    let (mut stays, mut goes) = (connect(&gateway), connect_to(address));
    assert!(echoes(&mut stays) && echoes(&mut goes));
    sql.apply(&gateway);
    assert!(echoes(&mut goes), "it goes on for a while");
    assert!(breaks(&mut goes));
    assert_eq!(closed(&gateway, "drained")["listener"], "second");
    patiently("nobody listens there", || {
        std::net::TcpStream::connect(address).is_err()
    });
    assert!(echoes(&mut stays));
    assert_eq!(drained(&gateway), 1);
}

#[test]
fn a_rule_that_leads_elsewhere_lets_what_it_led_run_out() {
    let (old, new) = (named("o"), named("n"));
    let sql = Sql::of(&[old.address]).backend("drain = \"1 s\"");
    let other = format!("[pool.other]\ntargets = [\"{}\"]", new.address);
    let keeps = second();
    let gateway = sql.clone().table(&keeps).start();
    let mut stream = connect(&gateway);
    assert_eq!(name_of(&mut stream), Some('o'));
    // The second listener still leads to the first pool, so that it stays.
    sql.table(&keeps).table(&other).leads_to("other").apply(&gateway);
    assert_eq!(name_of(&mut connect(&gateway)), Some('n'));
    assert!(breaks(&mut stream));
    closed(&gateway, "drained");
}

#[test]
fn what_comes_back_in_time_goes_on() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]).backend("drain = \"2 s\"");
    let with = sql.clone().table(&second());
    let gateway = with.start();
    let mut stream = connect_to(at(&gateway, SECOND.parse().unwrap()));
    assert!(echoes(&mut stream));
    sql.apply(&gateway);
    with.apply(&gateway);
    let begun = portcullis::clock::now();
    while begun.elapsed() < Duration::from_secs(4) {
        assert!(echoes(&mut stream));
    }
    assert_eq!(drained(&gateway), 0);
}

#[test]
fn a_listener_may_become_another_kind() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]);
    let gateway = sql.start();
    assert!(echoes(&mut connect(&gateway)));
    sql.tls().apply(&gateway);
    assert!(echoes(&mut crate::rig::connect_tls(&gateway, "db.test")));
}

#[test]
fn the_node_waits_for_its_passages_and_takes_in_no_more() {
    let target = Target::echo();
    let mut gateway = Sql::of(&[target.address])
        .setup(|setup| setup.node("grace_period = \"60 s\"\n"))
        .start();
    let mut stream = connect(&gateway);
    assert!(echoes(&mut stream));
    gateway.signal("TERM");
    patiently("nobody new is taken in", || !echoes(&mut connect(&gateway)));
    closed(&gateway, "drained");
    let dialled = target.dialled();
    assert!(!echoes(&mut connect(&gateway)));
    assert_eq!(target.dialled(), dialled);
    assert!(echoes(&mut stream), "who is here stays");
    let begun = portcullis::clock::now();
    drop(stream);
    assert!(gateway.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn at_the_end_of_the_grace_period_they_are_cut() {
    let target = Target::echo();
    let mut gateway = Sql::of(&[target.address])
        .setup(|setup| setup.node("grace_period = \"2 s\"\n"))
        .start();
    let mut stream = connect(&gateway);
    assert!(echoes(&mut stream));
    let begun = portcullis::clock::now();
    gateway.signal("TERM");
    assert!(breaks(&mut stream));
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    closed(&gateway, "drained");
    assert!(gateway.wait().success());
}
