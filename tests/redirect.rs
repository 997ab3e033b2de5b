//! Users who ask for the balancer's name are sent on to the node's own name, once and at the start.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::Write as _;

use support::raw::{self, Answer, element, is_closed, message, read_answer, read_head, tls};
use support::{Gateway, PASSWORD, Setup};

const REDIRECTS: &str = "host_redirects = { \"desk.example.com\" = \"gw-1.example.com\", \"desk.example.com:8443\" = \"gw-1.example.com:9443\" }\n";

fn ask(gateway: &Gateway, request: &str, host: &str, headers: &str, body: &str) -> Answer {
    let mut stream = tls(gateway);
    let length = body.len();
    let head = format!("{request} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let answer = if request.starts_with("HEAD") {
        read_head(&mut stream)
    } else {
        read_answer(&mut stream)
    };
    if answer.status == 307 {
        assert_eq!(answer.header("connection"), ["close"]);
        assert!(is_closed(&mut stream));
    }
    answer
}

#[test]
fn the_first_request_is_sent_on_with_path_and_query() {
    let gateway = Gateway::start(&Setup::default().listener(REDIRECTS));
    let first = message("<get-configuration/>");
    for (request, host, location) in [
        (
            "POST /broker/xml",
            "desk.example.com",
            "https://gw-1.example.com/broker/xml",
        ),
        (
            "POST /broker/xml?x=1",
            "DESK.Example.COM:443",
            "https://gw-1.example.com/broker/xml?x=1",
        ),
        (
            "POST /broker/xml",
            "desk.example.com:8443",
            "https://gw-1.example.com:9443/broker/xml",
        ),
        ("GET /", "desk.example.com", "https://gw-1.example.com/"),
        ("HEAD /", "desk.example.com", "https://gw-1.example.com/"),
        (
            "GET /portal/x?y",
            "desk.example.com",
            "https://gw-1.example.com/portal/x?y",
        ),
    ] {
        let body = if request.starts_with("POST") { &first } else { "" };
        let answer = ask(&gateway, request, host, "Content-Type: text/xml\r\n", body);
        assert_eq!(
            (answer.status, answer.header("location")),
            (307, vec![location]),
            "{request} {host}"
        );
        assert!(answer.session_cookie().is_none());
    }
    // A client that waits before it sends its body reads the answer at once.
    let expects = "Expect: 100-continue\r\nContent-Type: text/xml\r\n";
    let mut stream = tls(&gateway);
    let head = format!("POST /broker/xml HTTP/1.1\r\nHost: desk.example.com\r\n{expects}Content-Length: 9999\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream).status, 307);
    // One that sends a long one without waiting reads it whole.
    let long = "x".repeat(200_000);
    assert_eq!(
        ask(&gateway, "POST /broker/xml", "desk.example.com", "", &long).status,
        307
    );
}

#[test]
fn a_session_health_checks_marks_and_secondaries_stay_where_they_are() {
    let gateway = Gateway::start(&Setup::default().listener(REDIRECTS));
    let own = ask(
        &gateway,
        "POST /broker/xml",
        "gw-1.example.com",
        "",
        &message("<get-configuration/>"),
    );
    assert_eq!(own.status, 200, "this node's own name");
    let cookie = format!("Cookie: {}\r\n", own.session_cookie().unwrap());
    let sign_in = raw::password_message("ann", PASSWORD, "<get-tunnel-connection/>");
    let signed_in = ask(&gateway, "POST /broker/xml", "desk.example.com", &cookie, &sign_in);
    assert_eq!(signed_in.status, 200, "in the middle of a sign-in");
    let cookie = format!("Cookie: other=1; {}\r\n", signed_in.session_cookie().unwrap());
    let list = ask(
        &gateway,
        "POST /broker/xml",
        "desk.example.com",
        &cookie,
        &message("<get-desktops/>"),
    );
    assert_eq!(list.status, 200, "signed in");

    let token = element(signed_in.text(), "connection-id").unwrap().to_owned();
    for (request, status) in [
        ("GET /favicon.ico".to_owned(), 200),
        ("HEAD /favicon.ico".to_owned(), 200),
        (
            "GET /.well-known/portcullis/mark?00112233445566778899aabbccddeeff".to_owned(),
            200,
        ),
    ] {
        assert_eq!(
            ask(&gateway, &request, "desk.example.com", "", "").status,
            status,
            "{request}"
        );
    }

    let mut stream = tls(&gateway);
    let head =
        format!("POST /ice/tunnel?{token} HTTP/1.1\r\nHost: desk.example.com\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_head(&mut stream).status, 200, "the tunnel");

    let stale = "Cookie: JSESSIONID=of-another-node\r\n";
    let answer = ask(
        &gateway,
        "POST /broker/xml",
        "desk.example.com",
        stale,
        &message("<get-configuration/>"),
    );
    assert_eq!(answer.status, 307, "a cookie of nobody here begins a session");
}

#[test]
fn a_full_node_turns_users_away_under_the_balancers_name() {
    let gateway = Gateway::start(&Setup::default().listener(REDIRECTS).section("[session]\nmax = 1\n"));
    raw::sign_in(&gateway, "ann");
    let answer = ask(
        &gateway,
        "POST /broker/xml",
        "desk.example.com",
        "",
        &message("<get-configuration/>"),
    );
    assert_eq!((answer.status, answer.header("retry-after")), (503, vec!["10"]));
}

#[test]
fn a_redirect_that_would_go_on_for_ever_is_refused_with_words() {
    let gateway = Gateway::start(&Setup::default());
    for redirects in [
        "{ \"a.example\" = \"A.example\" }",
        "{ \"a.example\" = \"b.example:8443\", \"b.example\" = \"c.example\" }",
        "{ \"a.example\" = \"b.example\", \"b.example:443\" = \"a.example:8443\" }",
    ] {
        let before = gateway.lines().len();
        let answer = gateway.reload(&Setup::default().listener(&format!("host_redirects = {redirects}\n")));
        assert!(
            answer["message"].as_str().unwrap().starts_with("configuration refused"),
            "{redirects}"
        );
        gateway.wait_for_after(before, "why", |line| {
            let words = line["message"].as_str().unwrap_or_default();
            words.contains("listener.public.host_redirects") && words.contains("Name this node itself")
        });
    }
}
