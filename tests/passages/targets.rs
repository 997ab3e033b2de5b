//! Which target gets a connection, and what is known of it.

use std::io::Read as _;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value;

use crate::rig::{Sql, asked, closed, connect, echoes, ends, name_of, named, of_sql, patiently, sample};
use crate::support::{Gateway, Target, read_all, refusing};

/// How a target of the only pool stands.
fn condition(gateway: &Gateway, place: usize) -> Value {
    let mut told: Value = serde_json::from_str(&asked(gateway, "/api/v1/pools")).unwrap();
    told["pools"][0]["targets"][place]["condition"].take()
}

#[test]
fn targets_take_turns() {
    let (one, other) = (named("a"), named("b"));
    let gateway = Sql::of(&[one.address, other.address]).start();
    let names: Vec<_> = (0..4).map(|_| name_of(&mut connect(&gateway)).unwrap()).collect();
    assert!(
        names == ['a', 'b', 'a', 'b'] || names == ['b', 'a', 'b', 'a'],
        "{names:?}"
    );
}

#[test]
fn the_one_with_fewer_connections_is_chosen_if_that_is_wanted() {
    let (one, other) = (named("a"), named("b"));
    let sql = Sql::of(&[one.address, other.address]).pool("balance = \"least_requests\"");
    let gateway = sql.start();
    let held: Vec<_> = (0..20)
        .map(|_| {
            let mut stream = connect(&gateway);
            (name_of(&mut stream).unwrap(), stream)
        })
        .collect();
    let of_a = held.iter().filter(|(name, _)| *name == 'a').count();
    assert!((9..=11).contains(&of_a), "{of_a} of 20");
}

#[test]
fn a_connection_that_does_not_come_about_goes_to_another_target() {
    let target = Target::echo();
    // Both are asked though one is known to be down.
    let sql = Sql::of(&[refusing(), target.address]).pool("panic = 100");
    let gateway = sql.start();
    for _ in 0..6 {
        assert!(echoes(&mut connect(&gateway)));
    }
    patiently("all have ended", || of_sql(&gateway, "") == Some(0));
    let lines = gateway.lines();
    let retries: Vec<_> = lines
        .iter()
        .filter(|line| line["message"] == "passage closed")
        .map(|line| line["retries"].as_u64().unwrap())
        .collect();
    assert!(retries.len() == 6 && retries.iter().sum::<u64>() >= 3, "{retries:?}");
}

#[test]
fn with_no_target_left_the_client_is_closed_and_counted() {
    let gateway = Sql::of(&[refusing(), refusing()]).start();
    assert!(ends(&mut connect(&gateway)));
    let line = closed(&gateway, "no_target");
    assert_eq!(line["fault"], "connect_failed", "{line}");
    assert_eq!(line["level"], "WARN");
    let counted = sample(&gateway, r#"portcullis_connections_closed_total{reason="no_target"}"#);
    assert_eq!(counted, Some(1));
    assert_eq!(of_sql(&gateway, ""), Some(0));
}

#[test]
fn a_target_has_no_more_connections_than_it_may() {
    let target = named("a");
    let capped = format!("{{ address = \"{}\", max_requests = 1 }}", target.address);
    let gateway = Sql::of(&[]).written(&[capped]).start();
    let mut first = connect(&gateway);
    assert_eq!(name_of(&mut first), Some('a'));
    assert!(ends(&mut connect(&gateway)));
    assert_eq!(closed(&gateway, "no_target")["fault"], "saturated");
    drop(first);
    patiently("there is room again", || name_of(&mut connect(&gateway)).is_some());
}

#[test]
fn targets_are_probed_by_a_connection_in_which_nothing_is_said() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let (target, down) = (
        {
            let said = said.clone();
            Target::new(move |mut stream| said.lock().push(read_all(&mut stream)))
        },
        refusing(),
    );
    let gateway = Sql::of(&[target.address, down])
        .probe("interval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 2")
        .start();
    patiently("both are known", || {
        condition(&gateway, 0) == "healthy" && condition(&gateway, 1) == "unhealthy"
    });
    patiently("it was probed several times", || said.lock().len() > 2);
    assert!(said.lock().iter().all(Vec::is_empty), "{:?}", said.lock());
    let told: Value = serde_json::from_str(&asked(&gateway, "/api/v1/pools")).unwrap();
    let results = &told["pools"][0]["targets"];
    assert_eq!(results[1]["results"][0]["reason"], "refused", "{told}");
    assert_eq!(results[0]["results"][0]["reason"], Value::Null, "{told}");
    assert_eq!(results[0]["results"][0]["status"], Value::Null, "{told}");
}

#[test]
fn a_backend_that_nobody_describes_is_tcp_and_is_not_asked_for_pages() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let target = {
        let said = said.clone();
        Target::new(move |mut stream| {
            let mut first = [0; 4];
            let length = stream.read(&mut first).unwrap_or_default();
            said.lock().push(first[..length].to_vec());
        })
    };
    let plain = format!(
        "[listener.plain]\nprotocol = \"tcp\"\nbind = [\"127.0.0.4:0\"]\n[rule.plain]\nlisteners = [\"plain\"]\npriority = \
         1\npool = \"plain\"\n[pool.plain]\ntargets = [\"{}\"]",
        target.address
    );
    let gateway = Sql::of(&[refusing()]).table(&plain).start();
    patiently("the first probe has come", || !said.lock().is_empty());
    assert_eq!(*said.lock(), [b""]);
    let mut stream = crate::rig::connect_to(crate::rig::at(&gateway, "127.0.0.4".parse().unwrap()));
    std::io::Write::write_all(&mut stream, b"word").unwrap();
    patiently("the connection has come", || said.lock().len() > 1);
    assert_eq!(said.lock()[1], b"word");
}

#[test]
fn what_stands_beside_a_target_can_be_asked_by_http() {
    let health = Target::new(|mut stream| {
        let mut head = [0; 512];
        let length = stream.read(&mut head).unwrap_or_default();
        let status = if head[..length].starts_with(b"GET /primary ") {
            200
        } else {
            404
        };
        let answer = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        let _ = std::io::Write::write_all(&mut stream, answer.as_bytes());
    });
    let target = named("a");
    let probe = |path: &str| {
        format!(
            "protocol = \"http\"\npath = \"{path}\"\nport = {}\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 1",
            health.address.port()
        )
    };
    let sql = Sql::of(&[target.address]);
    let gateway = sql.clone().probe(&probe("/primary")).start();
    patiently("it is the primary", || condition(&gateway, 0) == "healthy");
    assert_eq!(name_of(&mut connect(&gateway)), Some('a'));
    sql.probe(&probe("/replica")).apply(&gateway);
    patiently("it is not", || condition(&gateway, 0) == "unhealthy");
    assert!(ends(&mut connect(&gateway)));
    assert_eq!(closed(&gateway, "no_target")["fault"], "no_healthy_target");
}

#[test]
fn a_target_that_wants_it_is_told_the_client_s_address() {
    let (tell, told) = std::sync::mpsc::sync_channel(16);
    let target = Target::new(move |mut stream| {
        let mut bytes = [0; 33];
        tell.send(stream.read_exact(&mut bytes).map(|()| bytes.to_vec()).ok())
            .unwrap();
    });
    let gateway = Sql::of(&[target.address]).backend("proxy_protocol = true").start();
    let mut stream = connect(&gateway);
    std::io::Write::write_all(&mut stream, b"first").unwrap();
    let (client, local) = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
    let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\0\0\x01\x7f\0\0\x03".to_vec();
    expected.extend(client.port().to_be_bytes());
    expected.extend(local.port().to_be_bytes());
    expected.extend(b"first");
    let bytes = told.recv_timeout(crate::support::PATIENCE).unwrap();
    assert_eq!(bytes.as_deref(), Some(expected.as_slice()));
}

#[test]
fn a_probe_with_such_a_header_names_nobody() {
    let (tell, told) = std::sync::mpsc::sync_channel(16);
    let target = Target::new(move |mut stream| drop(tell.send(read_all(&mut stream))));
    let _gateway = Sql::of(&[target.address])
        .backend("proxy_protocol = true")
        .probe("interval = \"1 s\"\ntimeout = \"1 s\"")
        .start();
    let bytes = told.recv_timeout(crate::support::PATIENCE).unwrap();
    assert_eq!(bytes, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0");
}
