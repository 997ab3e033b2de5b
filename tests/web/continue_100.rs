//! `Expect: 100-continue`: nobody waits for somebody who waits.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::rig::browser::read_fields;
use crate::rig::{Ask, Http, Origin, Shop, read};
use crate::support::raw;

const HEAD: &str = "POST /upload HTTP/1.1\r\nHost: shop.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";

#[test]
fn a_target_that_waits_for_the_body_gets_it() {
    // It knows nothing of the expectation, as many do.
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(HEAD.as_bytes()).unwrap();
    let asked = portcullis::clock::now();
    let (_, status, _) = read_fields(&mut stream).unwrap();
    assert_eq!(status, 100);
    assert!(asked.elapsed() < Duration::from_secs(3), "{:?}", asked.elapsed());
    stream.write_all(b"abc").unwrap();
    let answer = read(&mut stream);
    assert_eq!((answer.status, answer.informed.len()), (200, 0), "{answer:?}");
    assert_eq!(origin.only().body, b"abc");
    // The connection goes on.
    stream.write_all(&Ask::get("shop.test", "/next").bytes()).unwrap();
    assert_eq!(read(&mut stream).status, 200);
}

#[test]
fn a_targets_own_100_is_relayed_once() {
    let origin = Origin::new(|exchange| {
        assert_eq!(exchange.seen().field("expect"), "100-continue");
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n");
        exchange.reply("done");
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(HEAD.as_bytes()).unwrap();
    assert_eq!(read_fields(&mut stream).unwrap().1, 100);
    stream.write_all(b"abc").unwrap();
    let answer = read(&mut stream);
    assert_eq!((answer.text(), answer.informed.len()), ("done", 0), "{answer:?}");
}

#[test]
fn a_client_that_does_not_wait_need_not() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(format!("{HEAD}abc").as_bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.status, 200);
    assert!(answer.informed.len() <= 1, "{answer:?}");
    assert_eq!(origin.only().body, b"abc");
}

#[test]
fn a_final_answer_before_the_body_goes_straight_through() {
    for closes in [false, true] {
        let origin = Origin::new(move |exchange| {
            let connection = if closes { "Connection: close\r\n" } else { "" };
            exchange.send(format!(
                "HTTP/1.1 403 Forbidden\r\n{connection}Content-Length: 2\r\n\r\nno"
            ));
            exchange.close();
        });
        let gateway = Shop::of(&origin).start();
        let mut stream = raw::tls(&gateway);
        stream.write_all(HEAD.as_bytes()).unwrap();
        let answer = read(&mut stream);
        assert_eq!((answer.status, answer.text()), (403, "no"));
        assert!(answer.informed.is_empty(), "nobody asked for the body: {answer:?}");
        // Whoever sends it all the same is not cut off by a reset before having read the answer.
        let _ = stream.write_all(b"abc");
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        assert!(rest.is_empty() || ended.is_ok(), "{rest:?}");
    }
}

#[test]
fn where_bodies_are_gathered_first_a_targets_rejection_is_still_read_whole() {
    let origin = Origin::new(|exchange| {
        // It reads nothing of the body.
        exchange.send("HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno");
        exchange.close();
    });
    let gateway = Shop::of(&origin).backend("buffer_requests = true").start();
    for size in [3, 200_000] {
        let mut stream = raw::tls(&gateway);
        let head = HEAD.replace("Content-Length: 3", &format!("Content-Length: {size}"));
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(
            read_fields(&mut stream).unwrap().1,
            100,
            "who gathers has to ask for it"
        );
        stream.write_all(&vec![b'x'; size]).unwrap();
        let answer = read(&mut stream);
        assert_eq!((answer.status, answer.text()), (403, "no"), "{size}");
    }
    let ask = Ask::post("shop.test", "/upload", vec![b'x'; 200_000]);
    let answer = Http::Two.connect(&gateway).ask(&ask);
    assert_eq!((answer.status, answer.text()), (403, "no"));
}

#[test]
fn an_early_answer_to_a_large_body_is_read_whole_by_who_goes_on_sending() {
    let origin = Origin::new(|exchange| {
        exchange.send(format!(
            "HTTP/1.1 413 Too Large\r\nContent-Length: 100000\r\n\r\n{}",
            "x".repeat(100_000)
        ));
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /upload HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 1000000\r\n\r\n")
        .unwrap();
    origin.wait_for(1);
    for _ in 0..10 {
        // It may be closed after the answer, but not before.
        if stream.write_all(&[b'b'; 10_000]).is_err() {
            break;
        }
    }
    let answer = read(&mut stream);
    assert_eq!((answer.status, answer.body.len()), (413, 100_000));
}

#[test]
fn a_body_that_is_too_large_is_refused_before_anybody_is_told_to_send_it() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).rule("max_body = 2").start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(HEAD.as_bytes()).unwrap();
    let answer = read(&mut stream);
    assert!(
        [413, 417].contains(&answer.status) && answer.informed.is_empty(),
        "{answer:?}"
    );
    assert!(origin.seen().is_empty());
}

#[test]
fn an_expectation_that_is_not_known_is_no_reason_to_hang() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    let request = "POST /x HTTP/1.1\r\nHost: shop.test\r\nExpect: the-unexpected\r\nContent-Length: 3\r\n\r\nabc";
    stream.write_all(request.as_bytes()).unwrap();
    let status = read(&mut stream).status;
    assert!([200, 417].contains(&status), "{status}");
}

#[test]
fn over_http_2_the_body_comes_whatever_is_expected() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let ask = Ask::post("shop.test", "/upload", "abc").with("expect", "100-continue");
    let answer = Http::Two.connect(&gateway).ask(&ask);
    assert_eq!(answer.status, 200);
    assert_eq!(origin.only().body, b"abc");
}
