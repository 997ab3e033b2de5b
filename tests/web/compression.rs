//! Compression, where a rule wants it and the client reads it.

use std::io::{Read as _, Write as _};
use std::sync::mpsc::sync_channel;

use flate2::read::MultiGzDecoder;

use crate::rig::{Answer, Ask, Http, Origin, PATIENCE, Shop, access_line_of};
use crate::support::raw;

/// A page that is worth it.
fn page() -> String {
    (0..400)
        .map(|number| format!("<li>entry {number} of the list</li>\n"))
        .collect()
}

/// Says as path and fields want it: the fields that the test sends as `x-answer` lines, and the page.
fn origin() -> Origin {
    Origin::new(|exchange| {
        exchange.body();
        let seen = exchange.seen();
        let fields: String = seen
            .fields("x-answer")
            .iter()
            .map(|line| format!("{line}\r\n"))
            .collect();
        let status = if seen.target() == "/part" { 206 } else { 200 };
        let body = if seen.target() == "/short" {
            "short".to_owned()
        } else {
            page()
        };
        exchange.reply_with(status, &fields, &body);
    })
}

fn ask(target: &str, answer: &[&str]) -> Ask {
    let ask = Ask::get("shop.test", target).with("accept-encoding", "br;q=0.1, gzip");
    answer.iter().fold(ask, |ask, line| ask.with("x-answer", line))
}

fn unpacked(answer: &Answer) -> String {
    let mut text = String::new();
    MultiGzDecoder::new(&*answer.body).read_to_string(&mut text).unwrap();
    text
}

const HTML: &str = "Content-Type: text/html";

#[test]
fn text_is_compressed_for_whoever_reads_it_where_the_rule_says_so() {
    let origin = origin();
    let gateway = Shop::of(&origin).rule("compress = true").start();
    assert!(gateway.log_text().contains("BREACH"), "whoever starts it is warned");
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let target = format!("/{http:?}");
        let answer = browser.ask(&ask(&target, &[HTML, "ETag: \"v1\"", "Accept-Ranges: bytes"]));
        assert_eq!(
            (answer.status, answer.field("content-encoding")),
            (200, "gzip"),
            "{http:?}"
        );
        assert_eq!(
            (answer.field("vary"), answer.field("etag")),
            ("Accept-Encoding", "W/\"v1\"")
        );
        assert!(
            !answer.has("content-length") && !answer.has("accept-ranges"),
            "{answer:?}"
        );
        assert_eq!(unpacked(&answer), page());
        assert!(answer.body.len() < page().len() / 3, "{}", answer.body.len());
        let line = access_line_of(&gateway, &target);
        assert_eq!(line["sent_bytes"], answer.body.len(), "what went to the client");
        // The same fields for HEAD, and no body behind them.
        let mut head = ask("/head", &[HTML]);
        head.method = "HEAD".to_owned();
        let answer = browser.ask(&head);
        assert_eq!(
            (answer.field("content-encoding"), answer.body.len()),
            ("gzip", 0),
            "{http:?}"
        );
        assert!(!answer.has("content-length"), "{answer:?}");
        // The connection is as good as before; the client that does not read it gets it as it is.
        let answer = browser.ask(&Ask::get("shop.test", "/plain").with("x-answer", HTML));
        assert_eq!(
            (answer.text(), answer.field("vary")),
            (page().as_str(), "Accept-Encoding")
        );
        assert!(
            !answer.has("content-encoding") && answer.has("content-length"),
            "{answer:?}"
        );
        let refusing = Ask::get("shop.test", "/")
            .with("accept-encoding", "gzip;q=0")
            .with("x-answer", HTML);
        assert!(!browser.ask(&refusing).has("content-encoding"), "{http:?}");
    }
    assert_eq!(
        origin.seen()[0].field("accept-encoding"),
        "br;q=0.1, gzip",
        "the target may do it itself"
    );
}

#[test]
fn what_must_not_be_compressed_is_not() {
    let origin = origin();
    let gateway = Shop::of(&origin).rule("compress = true").start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (target, fields) in [
            ("/part", &[HTML, "Content-Range: bytes 0-15999/20000"][..]),
            ("/short", &[HTML]),
            ("/picture", &["Content-Type: image/png"]),
            ("/untyped", &[]),
            ("/encoded", &[HTML, "Content-Encoding: br"]),
            ("/kept", &[HTML, "Cache-Control: public, no-transform"]),
            ("/events", &["Content-Type: text/event-stream"]),
        ] {
            let answer = browser.ask(&ask(target, fields));
            let expected = if target == "/short" { "short".to_owned() } else { page() };
            assert_eq!(answer.text(), expected, "{http:?} {target}");
            let encoding = answer.fields("content-encoding");
            assert!(
                encoding.is_empty() || encoding == ["br"],
                "{http:?} {target}: {encoding:?}"
            );
            assert_eq!(answer.field("content-length"), expected.len().to_string());
        }
    }
}

#[test]
fn by_default_nothing_is() {
    let origin = origin();
    let gateway = Shop::of(&origin).start();
    let answer = Http::One.connect(&gateway).ask(&ask("/", &[HTML]));
    assert_eq!(answer.text(), page());
    assert!(!answer.has("content-encoding") && !answer.has("vary"));
}

#[test]
fn each_piece_goes_out_as_it_comes() {
    let (go, wait) = sync_channel::<()>(1);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n");
        wait.lock().recv_timeout(PATIENCE).unwrap();
        exchange.send("5\r\n last\r\n0\r\n\r\n");
    });
    let gateway = Shop::of(&origin).rule("compress = true").start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&ask("/", &[]).bytes()).unwrap();
    // The head is read as it is, and of the body what is there: enough to read the first word.
    crate::rig::browser::read_fields(&mut stream).unwrap();
    let mut chunked = Vec::new();
    let mut first = [0; 5];
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        chunked.push(byte[0]);
        let body = chunked
            .split(|byte| *byte == b'\n')
            .skip(1)
            .collect::<Vec<_>>()
            .join(&b'\n');
        if MultiGzDecoder::new(&*body).read_exact(&mut first).is_ok() {
            break;
        }
    }
    assert_eq!(&first, b"first", "before the target has sent the rest");
    go.send(()).unwrap();
    let mut rest = Vec::new();
    while !rest.ends_with(b"0\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        rest.push(byte[0]);
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_made_to_look_whole() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send(format!(
            "HTTP/1.1 200 OK\r\n{HTML}\r\nContent-Length: 20000\r\n\r\n{}",
            page()
        ));
        exchange.close();
    });
    let gateway = Shop::of(&origin).rule("compress = true").start();
    for http in Http::BOTH {
        let told = http.connect(&gateway).try_ask(&ask("/", &[]));
        assert!(told.is_err(), "{http:?}: {told:?}");
    }
}
