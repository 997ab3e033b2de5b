//! WebSockets: agreed on in whatever spelling, then bytes both ways until either side has enough.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use crate::rig::inside_http2::Inside;
use crate::rig::{Ask, Exchange, Http2, Origin, Shop, access_line_of, patiently, read};
use crate::support::raw::{self, Stream};
use crate::support::{Gateway, PATIENCE};

const AGREED: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                      Sec-WebSocket-Accept: HSmrc0sMlYUkAGmm5OPpG2HaGWk=\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n";

/// Agrees, and then sends back whatever comes.
fn echo() -> Origin {
    Origin::new(agree_and_echo)
}

fn agree_and_echo(exchange: &mut Exchange<'_>) {
    if !exchange.seen().has("upgrade") {
        exchange.reply("no websocket");
        return;
    }
    exchange.send(AGREED);
    while let Some(bytes) = exchange.read() {
        exchange.send(bytes);
    }
    exchange.close();
}

fn ask(fields: &str) -> String {
    format!(
        "GET /socket HTTP/1.1\r\nHost: shop.test\r\n{fields}Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \
         x3JJHMbDL1EzLkh9GBhXDw==\r\nSec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n"
    )
}

const USUAL: &str = "Upgrade: websocket\r\nConnection: Upgrade\r\n";

fn open(gateway: &Gateway) -> Stream {
    let mut stream = raw::tls(gateway);
    stream.write_all(ask(USUAL).as_bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.status, 101, "{answer:?}");
    stream
}

fn echoes(stream: &mut (impl std::io::Read + std::io::Write), bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes).is_ok() && stream.flush().is_ok() && stream.read_exact(&mut back).is_ok() && back == bytes
}

#[test]
fn every_spelling_is_understood_and_the_offer_passes_as_it_is() {
    let origin = echo();
    let gateway = Shop::of(&origin).start();
    for fields in [
        USUAL,
        "Upgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n",
        "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: websocket\r\n",
        "Connection: UPGRADE\r\nUpgrade: WEBSOCKET\r\n",
    ] {
        let mut stream = raw::tls(&gateway);
        stream.write_all(ask(fields).as_bytes()).unwrap();
        let answer = read(&mut stream);
        assert_eq!(answer.status, 101, "{fields:?}");
        assert!(answer.field("upgrade").eq_ignore_ascii_case("websocket"));
        assert!(answer.field("connection").eq_ignore_ascii_case("upgrade"));
        assert_eq!(answer.field("sec-websocket-accept"), "HSmrc0sMlYUkAGmm5OPpG2HaGWk=");
        assert_eq!(answer.field("sec-websocket-extensions"), "permessage-deflate");
        let seen = origin.last();
        assert!(seen.field("upgrade").eq_ignore_ascii_case("websocket"), "{}", seen.head);
        assert!(
            seen.field("connection").eq_ignore_ascii_case("upgrade"),
            "{}",
            seen.head
        );
        assert_eq!(seen.field("sec-websocket-key"), "x3JJHMbDL1EzLkh9GBhXDw==");
        assert_eq!(
            seen.field("sec-websocket-extensions"),
            "permessage-deflate; client_max_window_bits"
        );
        assert!(seen.has("x-forwarded-for"));
        assert!(echoes(&mut stream, b"\x81\x05hello"), "{fields:?}");
        assert!(echoes(&mut stream, &[7; 100_000]));
    }
}

#[test]
fn bytes_right_behind_the_answer_or_the_request_are_not_lost() {
    let origin = Origin::new(|exchange| {
        // The first frames come with the head of the answer.
        exchange.send(format!("{AGREED}\u{1}first frames"));
        while let Some(bytes) = exchange.read() {
            exchange.send(bytes);
        }
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(format!("{}eager", ask(USUAL)).as_bytes()).unwrap();
    assert_eq!(read(&mut stream).status, 101);
    let mut first = [0; 18];
    stream.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"\x01first frameseager");
}

#[test]
fn nothing_passes_before_the_target_has_agreed() {
    let origin = Origin::new(|exchange| {
        // It does not agree, and takes what comes for the next request, as HTTP has it.
        exchange.reply_with(403, "", "no");
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    let hidden = "GET /hidden HTTP/1.1\r\nHost: shop.test\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n";
    stream.write_all(format!("{}{hidden}", ask(USUAL)).as_bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!((answer.status, answer.text()), (403, "no"));
    // If it reaches anybody, then as a request of its own, with the gateway's fields.
    let _ = crate::rig::try_read(&mut stream, false);
    for seen in origin.seen().iter().skip(1) {
        assert_eq!(seen.target(), "/hidden");
        assert_eq!(seen.field("x-original-url"), "/hidden", "{}", seen.head);
        assert!(
            seen.fields("x-forwarded-for").join(",").contains("127.0.0.1"),
            "{}",
            seen.head
        );
    }
}

#[test]
fn an_upgrade_to_anything_else_is_not_passed_on() {
    let origin = echo();
    let gateway = Shop::of(&origin).start();
    for fields in [
        "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
        "Upgrade: TLS/1.0\r\nConnection: Upgrade\r\n",
        "Upgrade: websocket\r\n",
    ] {
        let mut stream = raw::tls(&gateway);
        stream.write_all(ask(fields).as_bytes()).unwrap();
        let answer = read(&mut stream);
        assert_eq!((answer.status, answer.text()), (200, "no websocket"), "{fields:?}");
        assert!(!origin.last().has("http2-settings"), "{}", origin.last().head);
    }
}

#[test]
fn over_http_2_a_websocket_is_a_stream() {
    let origin = echo();
    let gateway = Shop::of(&origin).start();
    let mut connection = Http2::connect(&gateway);
    {
        let (status, socket) = connection.open("shop.test", "/socket?x=1");
        assert_eq!(status, 200);
        let mut socket = socket.unwrap();
        socket.send(b"\x81\x05hello");
        assert_eq!(socket.receive(7), b"\x81\x05hello");
        socket.send(&[7; 50_000]);
        assert_eq!(socket.receive(50_000), [7; 50_000]);
        let seen = origin.only();
        assert_eq!((seen.method(), seen.target()), ("GET", "/socket?x=1"));
        assert!(seen.field("upgrade").eq_ignore_ascii_case("websocket"));
        assert!(
            !seen.field("sec-websocket-key").is_empty(),
            "a target of HTTP/1.1 wants one"
        );
        socket.finish();
        assert_eq!(socket.receive(1), b"", "the end comes back");
    }
    // And the connection goes on.
    assert_eq!(
        connection.ask(&Ask::get("shop.test", "/")).unwrap().text(),
        "no websocket"
    );
}

#[test]
fn a_target_that_refuses_over_http_2_is_heard() {
    let origin = Origin::new(|exchange| exchange.reply_with(403, "", "no"));
    let gateway = Shop::of(&origin).start();
    let mut connection = Http2::connect(&gateway);
    let (status, socket) = connection.open("shop.test", "/socket");
    assert!(status == 403 && socket.is_none(), "{status}");
}

#[test]
fn a_target_of_http_2_takes_it_as_a_stream_of_its_connection() {
    let inside = Inside::echo();
    let gateway = Shop::with_targets(&[format!("\"{}\"", inside.address)])
        .backend("version = \"2\"")
        .start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(ask(USUAL).as_bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.status, 101, "{answer:?}");
    assert!(answer.field("upgrade").eq_ignore_ascii_case("websocket"));
    assert_eq!(answer.field("sec-websocket-accept"), "HSmrc0sMlYUkAGmm5OPpG2HaGWk=");
    assert_eq!(answer.field("sec-websocket-protocol"), "chat");
    assert!(echoes(&mut stream, b"\x81\x05hello"));
    assert!(echoes(&mut stream, &[7; 100_000]));
    let mut connection = Http2::connect(&gateway);
    {
        let (status, socket) = connection.open("shop.test", "/socket?x=1");
        assert_eq!(status, 200);
        let mut socket = socket.unwrap();
        socket.send(&[7; 100_000]);
        assert_eq!(socket.receive(100_000), [7; 100_000]);
        socket.finish();
        assert_eq!(socket.receive(1), b"", "the end comes back");
    }
    assert_eq!(connection.ask(&Ask::get("shop.test", "/a")).unwrap().text(), "/a");
    let called = inside.called();
    let (of_http_1, of_http_2) = (&called[0].head, &called[1].head);
    for (head, target) in [(of_http_1, "/socket"), (of_http_2, "/socket?x=1")] {
        assert_eq!(head.method(), "CONNECT");
        assert_eq!(head.uri().path_and_query().unwrap().as_str(), target);
        assert_eq!(head.headers()["x-original-host"], "shop.test");
        assert!(!head.headers().contains_key("sec-websocket-key"), "{head:?}");
    }
    let line = access_line_of(&gateway, "/socket?x=1");
    assert_eq!(line["http_status"], 101, "{line}");
    assert_eq!(line["received_bytes"], 100_000, "{line}");
}

#[test]
fn the_end_of_one_side_is_the_end_of_the_other() {
    let (ended, seen_end) = std::sync::mpsc::sync_channel(10);
    let origin = Origin::new(move |exchange| {
        exchange.send(AGREED);
        if exchange.seen().target() == "/socket" {
            while exchange.read().is_some() {}
            ended.send(()).unwrap();
        }
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    let stream = open(&gateway);
    drop(stream);
    seen_end
        .recv_timeout(PATIENCE)
        .expect("the target sees the client's end");
    let line = access_line_of(&gateway, "/socket");
    assert_eq!(line["http_status"], 101, "{line}");
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(ask(USUAL).replace("/socket", "/short").as_bytes())
        .unwrap();
    assert_eq!(read(&mut stream).status, 101);
    assert!(raw::is_closed(&mut stream), "the client sees the target's end");
}

#[test]
fn whoever_has_finished_writing_still_reads() {
    let origin = Origin::new(|exchange| {
        exchange.send(AGREED);
        let mut got = 0;
        while let Some(bytes) = exchange.read() {
            got += bytes.len();
        }
        exchange.send(vec![b'x'; got]);
        exchange.close();
    });
    let gateway = Shop::of(&origin).plain().start();
    let mut stream = crate::rig::browser::plain(crate::rig::second_address(&gateway));
    stream.write_all(ask(USUAL).as_bytes()).unwrap();
    assert_eq!(read(&mut stream).status, 101);
    stream.write_all(&vec![7; 1 << 20]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    assert_eq!(back.len(), 1 << 20);
}

#[test]
fn silence_ends_it_and_words_keep_it() {
    let origin = echo();
    let gateway = Shop::of(&origin)
        .backend("idle_timeout = \"2 s\"\nrequest_timeout = \"1 s\"")
        .start();
    let mut stream = open(&gateway);
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        assert!(echoes(&mut stream, b"still here"), "3 s with a word now and then");
    }
    let begun = portcullis::clock::now();
    assert!(raw::is_closed(&mut stream));
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    let line = access_line_of(&gateway, "/socket");
    assert_eq!(line["http_status"], 101, "{line}");
}

#[test]
fn over_http_2_too_silence_ends_it_and_words_keep_it() {
    let origin = echo();
    let gateway = Shop::of(&origin)
        .backend("idle_timeout = \"2 s\"\nrequest_timeout = \"1 s\"")
        .start();
    let mut connection = Http2::connect(&gateway);
    let (_, socket) = connection.open("shop.test", "/socket");
    let mut socket = socket.unwrap();
    for _ in 0..6 {
        std::thread::sleep(Duration::from_millis(500));
        socket.send(b"still here");
        assert_eq!(socket.receive(10), b"still here", "3 s with a word now and then");
    }
    let begun = portcullis::clock::now();
    assert_eq!(socket.receive(1), b"");
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(access_line_of(&gateway, "/socket")["http_status"], 101);
}

#[test]
fn a_change_that_does_not_concern_it_leaves_it() {
    let (origin, other) = (echo(), Origin::named("other"));
    let shop = Shop::of(&origin);
    let gateway = shop.start();
    let mut stream = open(&gateway);
    let mut over_http_2 = Http2::connect(&gateway);
    let (_, socket) = over_http_2.open("shop.test", "/socket");
    let mut socket = socket.unwrap();
    for priority in 20..25 {
        let more = format!(
            "[pool.other]\ntargets = [{}]\n[rule.other]\nhosts = [\"other.test\"]\npriority = {priority}\npool = \"other\"",
            other.quoted()
        );
        shop.clone().table(&more).apply(&gateway);
        assert!(echoes(&mut stream, b"after a change"));
        socket.send(b"after a change");
        assert_eq!(socket.receive(14), b"after a change");
    }
}

#[test]
fn a_target_that_is_taken_away_keeps_it_for_the_time_of_draining() {
    let (origin, other) = (echo(), Origin::named("other"));
    let shop = Shop::of(&origin).backend("drain = \"2 s\"");
    let gateway = shop.start();
    let mut stream = open(&gateway);
    shop.targets(&[other.quoted()]).apply(&gateway);
    let begun = portcullis::clock::now();
    assert!(echoes(&mut stream, b"still here"));
    patiently("new requests go elsewhere", || {
        crate::rig::send(&gateway, Ask::get("shop.test", "/").bytes()).text() == "other"
    });
    assert!(raw::is_closed(&mut stream));
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
}
