//! What a hostile, slow or confused client gets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use support::raw::{self, connect_from, message, post, read_answer, read_head, tls_over};
use support::{Gateway, PATIENCE, Setup};

#[test]
fn slow_clients_are_closed_in_time_and_do_not_stop_others() {
    let limits = "[limits]\nhandshake_timeout = \"1 s\"\nhead_timeout = \"1 s\"\nbody_timeout = \"1 s\"\n";
    let gateway = Gateway::start(&Setup::default().section(limits));
    let began = portcullis::clock::now();
    let mut silent: Vec<_> = (0..200).map(|_| TcpStream::connect(gateway.address).unwrap()).collect();
    let mut slow_head = raw::tls(&gateway);
    slow_head.write_all(b"G").unwrap();
    let mut slow_body = raw::tls(&gateway);
    let head = "POST /broker/xml HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nContent-Length: 100\r\n\r\n<";
    slow_body.write_all(head.as_bytes()).unwrap();
    assert!(
        post(&gateway, None, &message("<get-configuration/>"))
            .text()
            .contains("windows-password")
    );
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(raw::is_closed(stream));
    }
    assert_eq!(read_answer(&mut slow_body).status, 408);
    assert!(raw::is_closed(&mut slow_head) || began.elapsed() < Duration::from_secs(10));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    gateway.wait_for("their reason", |line| line["reason"] == "timeout");
}

#[test]
fn a_source_has_its_share_of_connections_and_others_have_theirs() {
    let gateway = Gateway::start(&Setup::default().section("[limits]\nconnections_per_source = 3\n"));
    let mut held: Vec<_> = (0..3).map(|_| raw::tls(&gateway)).collect();
    for stream in &mut held {
        stream
            .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert_eq!(read_head(stream).status, 200);
    }
    let mut fourth = TcpStream::connect(gateway.address).unwrap();
    fourth.set_read_timeout(Some(PATIENCE)).unwrap();
    assert!(raw::is_closed(&mut fourth));
    gateway.wait_for("the reason", |line| line["reason"] == "source_limit");
    let mut other = tls_over(connect_from([127, 0, 0, 9], gateway.address), &gateway.chain());
    other
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut other).status, 200);
}

#[test]
fn sign_ins_in_the_middle_are_bounded() {
    let gateway = Gateway::start(&Setup::default().section("[limits]\npending_logins = 8\n"));
    for _ in 0..2 {
        assert_eq!(post(&gateway, None, &message("<get-configuration/>")).status, 200);
    }
    let refused = post(&gateway, None, &message("<get-configuration/>"));
    assert_eq!((refused.status, refused.header("retry-after")), (503, vec!["10"]));
    let other = connect_from([127, 0, 0, 9], gateway.address);
    let answer = raw::post_on(
        &mut tls_over(other, &gateway.chain()),
        None,
        message("<get-configuration/>").as_bytes(),
    );
    assert_eq!(answer.status, 200, "another source still signs in");
}

#[test]
fn a_user_has_as_many_sessions_as_they_may_have() {
    let gateway = Gateway::start(&Setup::default().section("[session]\nper_user = 1\n"));
    let first = raw::sign_in(&gateway, "ann");
    let cookie = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    let second = post(
        &gateway,
        Some(&cookie),
        &raw::password_message("ann", support::PASSWORD, ""),
    );
    assert!(
        second.text().contains("<error-code>SERVER_BUSY</error-code>"),
        "{}",
        second.text()
    );
    assert!(
        post(&gateway, Some(&first.cookie), &message("<get-desktops/>"))
            .text()
            .contains("<result>ok</result>")
    );
}

/// Framing that two parsers could read differently never gets past the first.
#[test]
fn ambiguous_framing_is_refused_and_the_connection_closed() {
    let gateway = Gateway::start(&Setup::default());
    for (fields, version) in [
        ("Content-Length: 4\r\nContent-Length: 5\r\n", "1.1"),
        ("Content-Length: 4, 5\r\n", "1.1"),
        ("Content-Length: -4\r\n", "1.1"),
        ("Transfer-Encoding: chunked, identity\r\n", "1.1"),
        ("Transfer-Encoding: chunked\r\n", "1.0"),
        ("Content-Length: 4\r\nContent-Length: 4\r\n", "1.1"),
        ("Transfer-Encoding: identity, chunked\r\n", "1.1"),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "1.1"),
        ("Transfer-Encoding : chunked\r\n", "1.1"),
        ("A: b\nTransfer-Encoding: chunked\r\n", "1.1"),
        ("Host: y\r\n", "1.1"),
        (" Folded: yes\r\n", "1.1"),
        ("Bad Name: x\r\n", "1.1"),
    ] {
        let mut stream = raw::tls(&gateway);
        let head = format!("POST /broker/xml HTTP/{version}\r\nHost: x\r\nContent-Type: text/xml\r\n{fields}\r\nabcd");
        stream.write_all(head.as_bytes()).unwrap();
        let answer = read_answer(&mut stream);
        assert_eq!(answer.status, 400, "{fields:?}");
        assert!(raw::is_closed(&mut stream), "{fields:?}");
    }
}

/// With both lengths none counts, and nothing after the head is taken for a request.
#[test]
fn a_body_with_two_lengths_smuggles_nothing() {
    let gateway = Gateway::start(&Setup::default());
    let mut stream = raw::tls(&gateway);
    let smuggled = "0\r\n\r\nGET /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n";
    let head = format!(
        "POST /broker/xml HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n{smuggled}",
        smuggled.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let mut rest = Vec::new();
    stream.sock.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    drop(stream.read_to_end(&mut rest));
    let text = String::from_utf8_lossy(&rest);
    assert!(text.starts_with("HTTP/1.1 400 "), "{text}");
    assert_eq!(text.matches("HTTP/1.1 ").count(), 1, "{text}");
}

#[test]
fn a_chunk_that_is_all_extension_is_cut_off_early() {
    let gateway = Gateway::start(&Setup::default());
    for start in ["1;".to_owned() + &"a".repeat(1024 * 1024), "0".repeat(1024 * 1024)] {
        let mut stream = raw::tls(&gateway);
        let head =
            "POST /broker/xml HTTP/1.1\r\nHost: x\r\nContent-Type: text/xml\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // The gateway may close while this is written.
        drop(stream.write_all(start.as_bytes()));
        let mut answer = Vec::new();
        stream.sock.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        drop(stream.read_to_end(&mut answer));
        assert!(!String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200"));
    }
    assert_eq!(post(&gateway, None, &message("<get-configuration/>")).status, 200);
}

#[test]
fn a_host_that_is_no_authority_is_400_and_a_good_one_comes_back_whole() {
    let gateway = Gateway::start(&Setup::default());
    let ask = |fields: &str| {
        let text = message("<get-configuration/>");
        let head = format!(
            "POST /broker/xml HTTP/1.1\r\n{fields}Content-Type: text/xml\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        raw::request(&gateway, &head, text.as_bytes()).status
    };
    for bad in [
        "",
        "Host: [::1\r\n",
        "Host: ::1:8443\r\n",
        "Host: a@b\r\n",
        "Host: a\r\nHost: b\r\n",
        "Host: gw.test:99999\r\n",
    ] {
        assert_eq!(ask(bad), 400, "{bad:?}");
    }
    for good in [
        "Host: GW.TEST\r\n",
        "Host: gw.test.\r\n",
        "Host: [2001:db8::1]:8443\r\n",
        "Host: [::1]\r\n",
    ] {
        assert_eq!(ask(good), 200, "{good:?}");
    }
    let user = raw::sign_in(&gateway, "ann");
    let text = message("<get-tunnel-connection/>");
    let head = format!(
        "POST /broker/xml HTTP/1.1\r\nHost: [2001:db8::1]:8443\r\nCookie: {}\r\nContent-Type: text/xml\r\nContent-Length: {}\r\n\r\n",
        user.cookie,
        text.len()
    );
    let answer = raw::request(&gateway, &head, text.as_bytes());
    assert_eq!(
        raw::element(answer.text(), "server1"),
        Some("https://[2001:db8::1]:8443")
    );
}

#[test]
fn another_path_is_404_and_another_method_405() {
    let gateway = Gateway::start(&Setup::default());
    for (line, status) in [
        ("POST /", 405),
        ("GET /portal/info.jsp", 404),
        ("POST /broker/xml/", 404),
        ("POST /x/../broker/xml", 404),
        ("GET /broker/xml", 405),
        ("GET /ice/tunnel?x", 405),
        ("DELETE /favicon.ico", 405),
    ] {
        assert_eq!(
            raw::request(&gateway, &format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n"), b"").status,
            status,
            "{line}"
        );
    }
}

#[test]
fn plain_http_on_the_tls_port_is_told_so() {
    let gateway = Gateway::start(&Setup::default());
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let answer = read_answer(&mut stream);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("https://"));
}

#[test]
fn an_http_1_0_client_gets_a_plain_body() {
    let gateway = Gateway::start(&Setup::default());
    let text = message("<get-configuration/>");
    let head = format!(
        "POST /broker/xml HTTP/1.0\r\nContent-Type: text/xml\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    let answer = raw::request(&gateway, &head, text.as_bytes());
    assert_eq!(answer.status, 200);
    assert!(answer.header("transfer-encoding").is_empty());
}

#[test]
fn a_listed_balancer_names_the_client_and_nobody_else_does() {
    let gateway = Gateway::start(&Setup::default().listener("balancers = [\"127.0.0.2/32\"]\n"));
    let text = message("<get-configuration/>");

    let mut listed = connect_from([127, 0, 0, 2], gateway.address);
    // Split in the middle: segments are the network's business.
    listed.write_all(b"PROXY TCP4 203.0.113.").unwrap();
    std::thread::sleep(Duration::from_millis(50));
    listed.write_all(b"7 127.0.0.1 40000 443\r\n").unwrap();
    let mut stream = tls_over(listed, &gateway.chain());
    assert_eq!(raw::post_on(&mut stream, None, text.as_bytes()).status, 200);
    drop(stream);
    gateway.wait_for("the client's address", |line| {
        line["message"] == "connection closed"
            && line["client"] == "203.0.113.7:40000"
            && line["via"].as_str().is_some_and(|via| via.starts_with("127.0.0.2:"))
    });

    let mut without = connect_from([127, 0, 0, 2], gateway.address);
    without.set_read_timeout(Some(PATIENCE)).unwrap();
    without.write_all(&[0x16, 3, 1, 0, 5]).unwrap();
    assert!(
        raw::is_closed(&mut without),
        "from a listed balancer the header is required"
    );
    gateway.wait_for("the reason", |line| line["reason"] == "proxy_header");

    let mut liar = connect_from([127, 0, 0, 3], gateway.address);
    liar.set_read_timeout(Some(PATIENCE)).unwrap();
    liar.write_all(b"PROXY TCP4 198.51.100.1 127.0.0.1 1 443\r\n").unwrap();
    assert!(raw::is_closed(&mut liar), "from anyone else it is not believed");
    assert!(!gateway.log_text().contains("198.51.100.1"));
}

#[test]
fn a_source_that_begins_handshakes_too_fast_is_closed_and_told_once() {
    let limits = "[limits]\nhandshakes_per_source = 1\nconnections_per_source = 1000\n";
    let setup = Setup::default()
        .listener("balancers = [\"127.0.0.5\"]\n")
        .section(limits);
    let gateway = Gateway::start(&setup);
    let mut held: Vec<_> = (0..10).map(|_| TcpStream::connect(gateway.address).unwrap()).collect();
    let refused: Vec<_> = (0..30)
        .map(|_| TcpStream::connect(gateway.address).unwrap())
        .filter_map(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            matches!(stream.read(&mut [0]), Ok(0)).then_some(stream)
        })
        .collect();
    assert!(refused.len() >= 15, "{} of 30", refused.len());
    let said = |line: &serde_json::Value| line["level"] == "WARN" && line["source"] == "127.0.0.1";
    gateway.wait_for("the word on it", said);
    gateway.wait_for("the reason of one", |line| {
        line["reason"] == "handshake_rate" && line["level"] == "DEBUG"
    });
    assert_eq!(gateway.lines().iter().filter(|line| said(line)).count(), 1);

    // A health check of the balancer is judged by itself, and its clients by theirs.
    for header in [
        &b"PROXY UNKNOWN\r\n"[..],
        b"PROXY TCP4 192.0.2.7 192.0.2.1 5000 443\r\n",
    ] {
        let mut stream = connect_from([127, 0, 0, 5], gateway.address);
        stream.write_all(header).unwrap();
        let mut stream = tls_over(stream, &gateway.chain());
        stream
            .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert_eq!(read_head(&mut stream).status, 200);
    }
    held.clear();
}

/// Old sessions stay whole, and a place that becomes free is there for the next user.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_node_turns_new_users_away_and_keeps_the_others() {
    let target = support::Target::echo();
    let setup = Setup::default().section("[session]\nmax = 3\n");
    let gateway = Gateway::start(&setup.desktop("shell", target.address, "ssh"));
    let mut users = Vec::new();
    for _ in 0..3 {
        let mut session = support::client::sign_in(&gateway).await;
        let (tunnel, notices) = support::client::open_tunnel(&mut session).await;
        let channel = support::client::launch(&mut session, &tunnel, "shell").await;
        users.push((session, tunnel, notices, channel));
    }
    let turned_away = || {
        let answer = post(&gateway, None, &message("<get-configuration/>"));
        assert_eq!((answer.status, answer.header("retry-after")), (503, vec!["10"]));
        assert!(answer.session_cookie().is_none());
    };
    turned_away();
    turned_away();
    let told = |line: &serde_json::Value| line["level"] == "WARN" && line["sessions"] == 3;
    gateway.wait_for("the word on it", told);
    assert_eq!(gateway.lines().iter().filter(|line| told(line)).count(), 1);
    for (session, _, _, channel) in &mut users {
        assert_eq!(support::client::echo(channel, b"still here").await, b"still here");
        session.beat().await.unwrap();
    }
    let (session, ..) = users.pop().unwrap();
    session.log_out().await;
    let user = raw::sign_in(&gateway, "ann");
    assert!(!user.token.is_empty());
    turned_away();
}
