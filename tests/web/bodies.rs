//! Bodies and what is around them: streamed both ways, delimited as each side needs it, nothing lost and nothing made up.

use std::io::{Read as _, Write as _};
use std::sync::mpsc::sync_channel;

use crate::rig::{Ask, Http, Http2, Origin, PATIENCE, Shop, access_line, read, read_head, send, try_read};
use crate::support::raw;

#[test]
fn a_body_arrives_as_it_was_sent_whatever_its_size() {
    let origin = Origin::new(|exchange| {
        let body = exchange.body();
        exchange.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
        exchange.send(body);
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for size in [0, 1, 1023, 16_384, 16_385, 65_535, 65_536, 1_000_000] {
            let body: Vec<u8> = (0..size).map(|place: usize| (place % 251) as u8).collect();
            let answer = browser.ask(&Ask::post("shop.test", "/", body.clone()));
            assert!(answer.status == 200 && answer.body == body, "{http:?} {size}");
            assert_eq!(
                origin.last().field("content-length"),
                size.to_string(),
                "a length that was said stays"
            );
        }
    }
}

#[test]
fn bodies_without_a_length_pass_in_either_direction() {
    let origin = Origin::new(|exchange| {
        let body = exchange.body();
        match exchange.target().as_str() {
            "/chunked" => {
                exchange.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
                for piece in body.chunks(1000) {
                    exchange.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
                }
                exchange.send("0\r\n\r\n");
            }
            _ => {
                exchange.send("HTTP/1.1 200 OK\r\n\r\n");
                exchange.send(body);
                exchange.close();
            }
        }
    });
    let gateway = Shop::of(&origin).start();
    let body = vec![b'x'; 100_000];
    for http in Http::BOTH {
        for path in ["/chunked", "/closed"] {
            let ask = Ask::post("shop.test", path, body.clone()).with_trailer("x-end", "1");
            let answer = http.connect(&gateway).ask(&ask);
            assert!(
                answer.status == 200 && answer.body == body,
                "{http:?} {path} {}",
                answer.body.len()
            );
            let seen = origin.last();
            assert_eq!(
                (seen.fields("transfer-encoding"), seen.fields("content-length").len()),
                (vec!["chunked"], 0)
            );
        }
    }
}

#[test]
fn nothing_waits_for_the_rest_of_a_body() {
    let (tell, told) = sync_channel::<&str>(4);
    let told = parking_lot::Mutex::new(told);
    let origin = Origin::new(move |exchange| {
        // An answer piece for each piece of the question.
        let next = || told.lock().recv_timeout(PATIENCE).unwrap();
        exchange.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        exchange.send(format!("5\r\n{}\r\n", next()));
        exchange.send(format!("5\r\n{}\r\n", next()));
        exchange.send("0\r\n\r\n");
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /talk HTTP/1.1\r\nHost: shop.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        .unwrap();
    crate::rig::browser::read_fields(&mut stream).expect("the head before the end of the question");
    tell.send("first").unwrap();
    expect(&mut stream, "first");
    tell.send("again").unwrap();
    expect(&mut stream, "again");
}

#[test]
fn over_http_2_nothing_waits_for_the_rest_of_a_body_either() {
    let origin = Origin::new(|exchange| {
        exchange.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        // Whatever comes goes back, the chunks' framing with it.
        for _ in 0..2 {
            let piece = exchange.read_exact("5\r\nhello\r\n".len()).unwrap();
            exchange.send(piece);
        }
        exchange.send("0\r\n\r\n");
        exchange.close();
    });
    // Events are not gathered, not even here.
    let gateway = Shop::of(&origin).backend("buffer_responses = true").start();
    let mut connection = Http2::connect(&gateway);
    let mut talk = connection.begin(&Ask::new("POST", "shop.test", "/talk"), false);
    talk.send(b"hello");
    let (answer, mut stream) = talk.answered();
    assert_eq!(answer.status, 200, "the head before the end of the question");
    assert_eq!(stream.receive(5), b"hello");
    stream.send(b"again");
    assert_eq!(stream.receive(5), b"again");
}

/// Reads until that text has come.
fn expect(stream: &mut impl std::io::Read, text: &str) {
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(text.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&read));
        read.push(byte[0]);
    }
}

#[test]
fn events_are_passed_on_one_by_one_even_where_answers_are_buffered() {
    let (tell, told) = sync_channel::<()>(1);
    let told = parking_lot::Mutex::new(told);
    let origin = Origin::new(move |exchange| {
        exchange.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        exchange.send("b\r\ndata: one\n\n\r\n");
        told.lock().recv_timeout(PATIENCE).unwrap();
        exchange.send("b\r\ndata: two\n\n\r\n0\r\n\r\n");
    });
    let gateway = Shop::of(&origin).backend("buffer_responses = true").start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/events").bytes()).unwrap();
    expect(&mut stream, "data: one");
    tell.send(()).unwrap();
    expect(&mut stream, "data: two");
}

#[test]
fn what_is_buffered_by_choice_is_whole_before_it_goes_on() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin)
        .backend("buffer_requests = true\nbuffer_responses = true")
        .start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /slow HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 6\r\n\r\nabc")
        .unwrap();
    // Another request overtakes it: the first one has not been sent on.
    assert_eq!(send(&gateway, Ask::get("shop.test", "/other").bytes()).status, 200);
    assert_eq!(origin.only().target(), "/other");
    stream.write_all(b"def").unwrap();
    assert!(read(&mut stream).text().ends_with("abcdef"));
}

#[test]
fn a_head_has_the_fields_of_its_get_and_no_body() {
    let origin = Origin::new(|exchange| {
        let is_head = exchange.seen().method() == "HEAD";
        let answer = match exchange.target().as_str() {
            "/length" => "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
            "/chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "/gzip" => "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 99\r\n\r\n",
            _ => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        };
        assert!(is_head || answer.ends_with("ok"));
        exchange.send(answer);
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (path, length) in [("/length", &["12345"][..]), ("/chunked", &[]), ("/gzip", &["99"])] {
            let head = browser.ask(&Ask::new("HEAD", "shop.test", path));
            assert_eq!(
                (head.status, head.fields("content-length").as_slice()),
                (200, length),
                "{http:?} {path}"
            );
            let next = browser.ask(&Ask::get("shop.test", "/next"));
            assert_eq!(next.text(), "ok", "the connection is in step after {path}");
        }
    }
    let of_one: Vec<_> = origin.seen().iter().take(6).map(|seen| seen.connection).collect();
    assert!(
        of_one.windows(2).all(|pair| pair[0] == pair[1]),
        "the target's connection is used on: {of_one:?}"
    );
}

#[test]
fn statuses_without_a_body_have_none() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        match exchange.target().as_str() {
            "/204" => exchange.send("HTTP/1.1 204 No Content\r\n\r\n"),
            "/304" => exchange.send("HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\nContent-Length: 1000\r\n\r\n"),
            _ => exchange.reply("ok"),
        }
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for status in [204, 304] {
            let answer = browser.ask(&Ask::get("shop.test", &format!("/{status}")));
            assert_eq!((answer.status, answer.body.len()), (status, 0), "{http:?}");
            assert!(!answer.has("transfer-encoding"));
            assert_eq!(browser.ask(&Ask::get("shop.test", "/")).text(), "ok");
        }
    }
}

#[test]
fn informational_answers_go_before_the_final_one_and_do_not_mix_with_it() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n");
        exchange.send("HTTP/1.1 102 Processing\r\n\r\n");
        exchange.reply("final");
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        assert_eq!((answer.status, answer.text()), (200, "final"), "{http:?}");
        assert!(!answer.has("link"), "{answer:?}");
        let link = ("link".to_owned(), "</a.css>; rel=preload".to_owned());
        let hints = answer.informed.iter().find(|(status, _)| *status == 103);
        assert!(
            hints.is_some_and(|(_, fields)| fields.contains(&link)),
            "{http:?}: {:?}",
            answer.informed
        );
    }
    // A client that knows none gets none.
    let answer = send(&gateway, "GET / HTTP/1.0\r\nHost: shop.test\r\n\r\n");
    assert_eq!((answer.status, answer.informed.len(), answer.text()), (200, 0, "final"));
}

#[test]
fn fields_behind_a_body_pass_in_either_direction() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 42\r\n\r\n",
        );
    });
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let ask = Ask::post("shop.test", "/", "question")
            .with("te", "trailers")
            .with_trailer("x-count", "8");
        let answer = http.connect(&gateway).ask(&ask);
        assert_eq!(answer.text(), "body");
        assert_eq!(answer.trailers, [("x-sum".to_owned(), "42".to_owned())], "{http:?}");
        let seen = origin.last();
        assert_eq!(seen.trailers, [("x-count".to_owned(), "8".to_owned())], "{http:?}");
    }
}

#[test]
fn fields_behind_a_body_cannot_say_what_stands_in_a_head() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    let ask = Ask::post("shop.test", "/", "question")
        .with_trailer("content-length", "0")
        .with_trailer("transfer-encoding", "chunked")
        .with_trailer("host", "other.test")
        .with_trailer("x-forwarded-for", "1.2.3.4")
        .with_trailer("x-fine", "yes");
    let mut stream = raw::tls(&gateway);
    stream.write_all(&ask.bytes()).unwrap();
    let answer = try_read(&mut stream, false);
    // Refused, or without them.
    if answer.is_ok_and(|answer| answer.status == 200) {
        let names: Vec<_> = origin.last().trailers.iter().map(|(name, _)| name.clone()).collect();
        assert!(
            !names
                .iter()
                .any(|name| ["content-length", "transfer-encoding", "host"].contains(&name.as_str())),
            "{names:?}"
        );
    }
}

#[test]
fn a_part_of_a_thing_stays_as_it_is() {
    let origin = Origin::saying(
        "HTTP/1.1 206 Partial Content\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-4/10\r\nETag: \"e\"\r\n\
         Accept-Ranges: bytes\r\nContent-Length: 5\r\n\r\n01234",
    );
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let ask = Ask::get("shop.test", "/")
            .with("range", "bytes=0-4")
            .with("accept-encoding", "gzip");
        let answer = http.connect(&gateway).ask(&ask);
        assert_eq!((answer.status, answer.text()), (206, "01234"));
        assert_eq!(
            (answer.field("content-range"), answer.field("etag")),
            ("bytes 0-4/10", "\"e\"")
        );
        assert!(!answer.has("content-encoding"));
        let seen = origin.last();
        assert_eq!(
            (seen.field("range"), seen.field("accept-encoding")),
            ("bytes=0-4", "gzip"),
            "{http:?}"
        );
    }
}

#[test]
fn a_client_of_http_1_0_gets_no_chunks_and_keeps_its_connection_if_it_asks() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        match exchange.target().as_str() {
            "/chunked" => exchange.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"),
            _ => exchange.reply("body"),
        }
    });
    let gateway = Shop::of(&origin).start();
    let answer = send(&gateway, "GET /chunked HTTP/1.0\r\nHost: shop.test\r\n\r\n");
    assert_eq!((answer.status, answer.text()), (200, "body"));
    assert!(!answer.has("transfer-encoding"), "{answer:?}");
    let mut stream = raw::tls(&gateway);
    for _ in 0..20 {
        stream
            .write_all(b"GET /length HTTP/1.0\r\nHost: shop.test\r\nConnection: Keep-Alive\r\n\r\n")
            .unwrap();
        let answer = read(&mut stream);
        assert_eq!(answer.text(), "body");
        assert!(answer.field("connection").eq_ignore_ascii_case("keep-alive"));
    }
    stream
        .write_all(b"GET /length HTTP/1.0\r\nHost: shop.test\r\n\r\n")
        .unwrap();
    assert_eq!(read(&mut stream).text(), "body");
    assert!(raw::is_closed(&mut stream), "without the word, it is closed");
    assert_eq!(
        origin.last().head.split(' ').nth(2).unwrap().trim_end().get(..8),
        Some("HTTP/1.1")
    );
}

#[test]
fn a_client_that_reads_slowly_slows_the_target_and_costs_no_memory() {
    let (sent, reached) = sync_channel(1000);
    let origin = Origin::new(move |exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 104857600\r\n\r\n");
        let piece = vec![0; 1 << 20];
        for number in 0..100 {
            exchange.send(&piece);
            let _ = sent.try_send(number);
        }
        exchange.close();
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream.write_all(&Ask::get("shop.test", "/large").bytes()).unwrap();
    let mut some = vec![0; 1000];
    stream.read_exact(&mut some).unwrap();
    // It goes on until the buffers on the way are full, and no further.
    let mut furthest = 0;
    while let Ok(number) = reached.recv_timeout(std::time::Duration::from_millis(500)) {
        furthest = number;
    }
    assert!(
        furthest < 50,
        "{furthest} MiB were taken for a client that reads nothing"
    );
}

#[test]
fn the_log_counts_what_passed() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let answer = http
            .connect(&gateway)
            .ask(&Ask::post("shop.test", "/counted", vec![b'x'; 5000]));
        let line = access_line(&gateway, |line| line["http_version"] == http.name());
        assert_eq!(line["received_bytes"], 5000, "{line}");
        assert_eq!(line["sent_bytes"], answer.body.len(), "{line}");
    }
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(&Ask::new("HEAD", "shop.test", "/head").bytes())
        .unwrap();
    read_head(&mut stream);
    let line = access_line(&gateway, |line| line["http_method"] == "HEAD");
    assert_eq!(line["sent_bytes"], 0, "{line}");
}
