//! Who is led to a target, and who is not: for whom it is not, nothing is dialled.

use std::io::{Read as _, Write as _};

use crate::rig::{Sql, closed, connect, connect_tls, echoes, ends, name_of, named, patiently, sample};
use crate::support::{Target, raw};

#[test]
fn an_address_that_is_not_admitted_is_closed_before_anything_is_dialled() {
    for (lines, is_admitted) in [
        ("deny = [\"127.0.0.0/8\"]", false),
        ("allow = [\"198.51.100.0/24\"]", false),
        ("allow = [\"127.0.0.1\"]\ndeny = [\"127.0.0.1\"]", false),
        ("allow = [\"127.0.0.1\"]", true),
    ] {
        let target = Target::echo();
        let gateway = Sql::of(&[target.address]).rule(lines).start();
        if is_admitted {
            assert!(echoes(&mut connect(&gateway)), "{lines}");
            continue;
        }
        assert!(ends(&mut connect(&gateway)), "{lines}");
        let line = closed(&gateway, "address_denied");
        assert_eq!(
            (&line["rule"], &line["address"]),
            (&"sql".into(), &serde_json::Value::Null)
        );
        assert_eq!(target.dialled(), 0, "{lines}");
        let counted = sample(
            &gateway,
            r#"portcullis_connections_closed_total{reason="address_denied"}"#,
        );
        assert_eq!(counted, Some(1));
    }
}

#[test]
fn whoever_connects_too_often_is_closed() {
    let target = Target::echo();
    let gateway = Sql::of(&[target.address])
        .rule("rate = { per_second = 1, burst = 3 }")
        .start();
    let served = (0..20).filter(|_| echoes(&mut connect(&gateway))).count();
    assert!((3..20).contains(&served), "{served} of 20");
    closed(&gateway, "rate_limited");
    assert_eq!(target.dialled(), served);
}

#[test]
fn the_name_within_tls_chooses_the_rule_and_an_unknown_one_has_none() {
    let (one, other) = (named("a"), named("b"));
    let sql = Sql::of(&[one.address]).tls().rule("hosts = [\"a.test\", \"*.a.test\"]");
    let second = format!(
        "[rule.other]\nlisteners = [\"sql\"]\nhosts = [\"b.test\"]\npriority = 200\npool = \"other\"\n[pool.other]\ntargets = \
         [\"{}\"]",
        other.address
    );
    // Not probed, so that what is dialled is dialled for clients.
    let gateway = sql
        .table(&second.replace("pool = \"other\"", "pool = \"other\"\nbackend = \"sql\""))
        .start();
    for (name, target) in [("a.test", 'a'), ("x.y.a.test", 'a'), ("b.test", 'b'), ("B.test", 'b')] {
        assert_eq!(name_of(&mut connect_tls(&gateway, name)), Some(target), "{name}");
    }
    let dialled = one.dialled() + other.dialled();
    for name in ["c.test", "test", "a.b.test", "127.0.0.1"] {
        assert_eq!(name_of(&mut connect_tls(&gateway, name)), None, "{name}");
    }
    closed(&gateway, "no_rule");
    patiently("all are counted", || {
        sample(&gateway, r#"portcullis_connections_closed_total{reason="no_rule"}"#) == Some(4)
    });
    assert_eq!(one.dialled() + other.dialled(), dialled);
}

#[test]
fn what_a_balancer_says_of_its_client_counts() {
    let (tell, told) = std::sync::mpsc::sync_channel(16);
    let target = Target::new(move |mut stream| {
        let mut header = [0; 28];
        if stream.read_exact(&mut header).is_ok() {
            tell.send(header).unwrap();
        }
        let _ = stream.write_all(b"a");
    });
    let sql = Sql::of(&[target.address])
        .listener("balancers = [\"127.0.0.1\"]")
        .rule("deny = [\"203.0.113.9\"]")
        .backend("proxy_protocol = true");
    let gateway = sql.start();
    let mut denied = connect(&gateway);
    denied
        .write_all(b"PROXY TCP4 203.0.113.9 203.0.113.1 4711 5432\r\n")
        .unwrap();
    assert!(ends(&mut denied));
    let line = closed(&gateway, "address_denied");
    assert_eq!(line["client"], "203.0.113.9:4711");
    assert_eq!(target.dialled(), 0);

    let mut admitted = connect(&gateway);
    admitted
        .write_all(b"PROXY TCP4 203.0.113.8 203.0.113.1 4712 5432\r\nfirst")
        .unwrap();
    assert_eq!(name_of(&mut admitted), Some('a'));
    let header = told.recv_timeout(crate::support::PATIENCE).unwrap();
    assert_eq!(header[16..20], [203, 0, 113, 8], "the target is told the client");
    assert_eq!(header[24..26], 4712_u16.to_be_bytes());

    let mut without = connect(&gateway);
    without
        .write_all(b"no header at all, but more than enough bytes for one\r\n\r\n")
        .unwrap();
    assert!(ends(&mut without));
    gateway.wait_for("no header", |line| line["reason"] == "proxy_header");
    assert_eq!(target.dialled(), 1);
}

#[test]
fn who_does_not_get_through_the_handshake_is_closed_in_time() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]).setup(|setup| setup.section("[limits]\nhandshake_timeout = \"1 s\""));
    for (sql, kind) in [(sql.clone().tls(), "tls"), (sql.passthrough(), "passthrough")] {
        let gateway = sql.start();
        assert!(ends(&mut connect(&gateway)), "{kind}: silence");
        gateway.wait_for("silence", |line| line["reason"] == "timeout");
        let mut foreign = connect(&gateway);
        foreign.write_all(b"\x00\x00\x00\x08\x04\xd2\x16\x2f").unwrap();
        assert!(ends(&mut foreign), "{kind}: no TLS");
        gateway.wait_for("no TLS", |line| line["reason"] == "tls_failed");
    }
    assert_eq!(target.dialled(), 0);
}

#[test]
fn nobody_is_spoken_to_in_http_where_there_is_none() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]);
    for (sql, kind) in [(sql.clone().tls(), "tls"), (sql.passthrough(), "passthrough")] {
        let gateway = sql.start();
        for bytes in [
            &b"GET / HTTP/1.1\r\nHost: sql.test\r\n\r\n"[..],
            b"hello there\r\n\r\n",
            b"EHLO mail.test\r\n",
        ] {
            let before = gateway.line_count();
            let mut stream = connect(&gateway);
            stream.write_all(bytes).unwrap();
            let mut told = Vec::new();
            // Whether it breaks off or ends: what counts is what was said.
            let _ = stream.read_to_end(&mut told);
            match kind {
                // A fatal alert, and nothing else.
                "tls" => assert_eq!((told.len(), &told[..2], told[5]), (7, &[0x15, 3][..], 2), "{told:?}"),
                _ => assert_eq!(told, b"", "it is for the target to speak"),
            }
            gateway.wait_for_after(before, "no TLS", |line| line["reason"] == "tls_failed");
        }
    }
    assert_eq!(target.dialled(), 0);
}

#[test]
fn one_source_has_no_more_connections_than_its_share() {
    let target = Target::echo();
    let sql = Sql::of(&[target.address]).setup(|setup| setup.section("[limits]\nconnections_per_source = 2"));
    let gateway = sql.start();
    let mut held = [connect(&gateway), connect(&gateway)];
    assert!(held.iter_mut().all(echoes));
    assert!(ends(&mut connect(&gateway)));
    gateway.wait_for("the third", |line| line["reason"] == "source_limit");
    assert_eq!(target.dialled(), 2);
}

#[test]
fn the_session_gateway_is_not_there() {
    let target = Target::echo();
    let gateway = Sql::of(&[target.address]).tls().start();
    let mut stream = connect_tls(&gateway, "localhost");
    let request = b"GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n";
    stream.write_all(request).unwrap();
    let mut back = vec![0; request.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, request, "its bytes go to the target");
    let answer = raw::request(&gateway, "GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n", b"");
    assert_eq!(answer.status, 200, "and on the other listener all is as ever");
}
