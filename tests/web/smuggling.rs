//! Requests that two readers would read in two ways: refused, and nothing of them reaches the application.

use std::io::Write as _;

use crate::rig::{Frames, Origin, Shop, access_line, read, try_read};
use crate::support::{Gateway, raw};

/// What would be a second request if the first were read in another way.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: shop.test\r\n\r\n";

/// Sends bytes, and a further request behind them: the status, and whether the connection was closed behind the answer.
fn refused(gateway: &Gateway, bytes: &[u8]) -> (u16, bool) {
    let mut stream = raw::tls(gateway);
    stream.write_all(bytes).unwrap();
    // It may be closed by now.
    let _ = stream.write_all(HIDDEN.as_bytes());
    let Ok(answer) = try_read(&mut stream, false) else {
        return (0, true);
    };
    (answer.status, try_read(&mut stream, false).is_err())
}

fn post(fields: &str, body: &str) -> Vec<u8> {
    format!("POST /first HTTP/1.1\r\nHost: shop.test\r\n{fields}\r\n{body}").into_bytes()
}

#[test]
fn a_body_whose_end_is_said_twice_or_oddly_is_refused_and_the_connection_closed() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for (fields, body) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n"),
        ("Content-Length: 4\r\nContent-Length: 4\r\n", "body"),
        ("Content-Length: 4\r\nContent-Length: 5\r\n", "body"),
        ("Content-Length: 4, 4\r\n", "body"),
        ("Content-Length: +4\r\n", "body"),
        ("Content-Length: -1\r\n", ""),
        ("Content-Length: 0x4\r\n", "body"),
        ("Content-Length: 4 4\r\n", "body"),
        ("Content-Length: \r\n", ""),
        ("Content-Length: 99999999999999999999999\r\n", ""),
        ("Transfer-Encoding: identity, chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n"),
        (
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        (
            "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n",
        ),
        ("Transfer-Encoding: identity\r\n", ""),
        ("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: chunked;x=y\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n"),
        ("Transfer-Encoding:\r\n", ""),
        ("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ("Content-Length : 4\r\n", "body"),
        ("X-A: b\r\n Content-Length: 4\r\n", "body"),
        ("X-A: b\r\n\tfolded\r\n", ""),
        ("X-A: b\nContent-Length: 4\r\n", "body"),
        ("X-A: b\rContent-Length: 4\r\n", "body"),
        ("X-A: b\0c\r\n", ""),
        ("X-A\r\n", ""),
        (": b\r\n", ""),
        ("X A: b\r\n", ""),
        ("X-A: b\x01\r\n", ""),
        ("X-\u{e4}: b\r\n", ""),
    ] {
        let (status, is_closed) = refused(&gateway, &post(fields, body));
        assert!(
            [400, 501].contains(&status) && is_closed,
            "{fields:?}: {status}, closed {is_closed}"
        );
    }
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
    let line = access_line(&gateway, |line| line["http_status"] == 400);
    assert_eq!(line["error_info"], "invalid_request", "{line}");
}

#[test]
fn http_1_0_has_no_chunks() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let request = b"POST /first HTTP/1.0\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    let (status, is_closed) = refused(&gateway, request);
    assert!(status == 400 && is_closed, "{status}");
    assert!(origin.seen().is_empty());
}

#[test]
fn a_request_line_that_is_none_is_refused() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    for line in [
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET / x HTTP/1.1",
        "G(T / HTTP/1.1",
        "GET /\x01 HTTP/1.1",
        "GET shop.test/ HTTP/1.1",
        "GET  HTTP/1.1",
        "GET / HTTP/1.1\nX: y",
    ] {
        let (status, is_closed) = refused(&gateway, format!("{line}\r\nHost: shop.test\r\n\r\n").as_bytes());
        assert!(status == 400 && is_closed, "{line:?}: {status}, closed {is_closed}");
    }
    // A bare LF anywhere.
    let (status, is_closed) = refused(&gateway, b"GET / HTTP/1.1\nHost: shop.test\n\n");
    assert!([0, 400].contains(&status) && is_closed, "{status}");
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn chunks_that_are_none_break_the_request_off() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    for body in [
        "x\r\n",
        "-1\r\n\r\n",
        "+1\r\na\r\n0\r\n\r\n",
        "0x1\r\na\r\n0\r\n\r\n",
        " 1\r\na\r\n0\r\n\r\n",
        "1\na\n0\n\n",
        "1\r\nab\r\n0\r\n\r\n",
        "1\r\na0\r\n\r\n",
        "fffffffffffffffff\r\n",
        "1;a\nb\r\na\r\n0\r\n\r\n",
        "1\r\na\r\n0\r\nX-A: b\r\n c\r\n\r\n",
        "1\r\na\r\n0\r\nX A: b\r\n\r\n",
    ] {
        let (status, is_closed) = refused(&gateway, &post("Transfer-Encoding: chunked\r\n", body));
        assert!(
            [0, 400].contains(&status) && is_closed,
            "{body:?}: {status}, closed {is_closed}"
        );
    }
    assert!(
        origin
            .seen()
            .iter()
            .all(|seen| seen.target() == "/first" && !seen.is_whole),
        "{:?}",
        origin.seen()
    );
}

#[test]
fn more_framing_than_body_is_refused_early() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let extension = format!("1;{}\r\na\r\n0\r\n\r\n", "a".repeat(1 << 20));
    let zeros = format!("{}1\r\na\r\n0\r\n\r\n", "0".repeat(1 << 20));
    let trailers = format!("1\r\na\r\n0\r\n{}\r\n", "X-A: b\r\n".repeat(100_000));
    let small = format!(
        "{}0\r\n\r\n",
        "1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\na\r\n".repeat(20_000)
    );
    for (name, body) in [
        ("extension", extension),
        ("zeros", zeros),
        ("trailers", trailers),
        ("many", small),
    ] {
        let mut stream = raw::tls(&gateway);
        stream.write_all(&post("Transfer-Encoding: chunked\r\n", "")).unwrap();
        let mut written = 0;
        for piece in body.as_bytes().chunks(4096) {
            if stream.write_all(piece).is_err() {
                break;
            }
            written += piece.len();
        }
        let status = try_read(&mut stream, false).map_or(0, |answer| answer.status);
        assert!([0, 400, 413].contains(&status), "{name}: {status} after {written}");
    }
    assert!(
        origin.seen().iter().all(|seen| !seen.is_whole),
        "none of them came whole"
    );
}

#[test]
fn small_extensions_and_trailers_are_no_fault() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    let body = "3;a=b\r\nabc\r\n003\r\ndef\r\n0\r\nX-End: yes\r\n\r\n";
    stream.write_all(&post("Transfer-Encoding: chunked\r\n", body)).unwrap();
    assert_eq!(read(&mut stream).status, 200);
    let seen = origin.only();
    assert_eq!(
        (seen.body.as_slice(), seen.fields("content-length").len()),
        (&b"abcdef"[..], 0)
    );
    assert!(
        !String::from_utf8_lossy(&seen.framed).contains("a=b"),
        "extensions are for one hop"
    );
}

#[test]
fn requests_behind_each_other_are_answered_in_their_order() {
    let origin = Origin::new(|exchange| {
        let target = exchange.target();
        exchange.reply(&target);
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    let mut bytes = Vec::new();
    for number in 0..10 {
        bytes.extend(format!("POST /{number} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 4\r\n\r\nbody").bytes());
    }
    stream.write_all(&bytes).unwrap();
    for number in 0..10 {
        assert_eq!(read(&mut stream).text(), format!("/{number}"));
    }
}

#[test]
fn over_http_2_what_would_break_http_1_is_refused() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let base = Frames::get("shop.test", "/first");
    for extra in [
        ("transfer-encoding", "chunked"),
        ("connection", "close"),
        ("upgrade", "h2c"),
        ("keep-alive", "1"),
        ("proxy-connection", "close"),
        ("te", "gzip"),
        ("x-a", "b\r\nx-c: d"),
        ("x-a", "b\nx-c: d"),
        ("x-a", "b\0"),
        ("x-a\r\nx-c", "d"),
        ("X-Upper", "d"),
        ("x a", "d"),
        ("host", "other.test"),
        (":path", "/second"),
        (":unknown", "x"),
        ("content-length", "5"),
        ("content-length", "x"),
    ] {
        let fields: Vec<_> = base.iter().copied().chain([extra]).collect();
        assert!(is_refused(&gateway, &fields), "{extra:?}");
    }
    for target in ["/x HTTP/1.1\r\nX-A: b", "/a b", "x", ""] {
        assert!(is_refused(&gateway, &Frames::get("shop.test", target)), "{target:?}");
    }
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

/// Whether a request with these fields gets 400, or its stream or connection ended.
pub(crate) fn is_refused(gateway: &Gateway, fields: &[(&str, &str)]) -> bool {
    let mut frames = Frames::connect(gateway);
    let end = Frames::END_STREAM | Frames::END_HEADERS;
    frames.write(Frames::HEADERS, end, 1, &Frames::block(fields)).unwrap();
    while let Some(frame) = frames.read() {
        match frame.kind {
            // Static table: 12 is :status 400; 8 would be 200.
            Frames::HEADERS => return frame.payload[0] == 0x80 | 12,
            Frames::RST_STREAM | Frames::GOAWAY => return true,
            _ => {}
        }
    }
    true
}
