//! What is of HTTP/2 alone, in front and behind: many at one time, gRPC, and those who abuse it.

use std::fs;
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::rig::inside_http2::{Inside, Said};
use crate::rig::{Ask, Frames, Http, Http2, Origin, PATIENCE, Shop, http2, patiently, read, send};
use crate::support::{Gateway, raw};

const END: u8 = Frames::END_STREAM | Frames::END_HEADERS;

#[test]
fn the_protocol_is_agreed_in_the_handshake_and_without_a_word_it_is_http_1() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let agreed = |protocols: &[&[u8]]| {
        let tcp = TcpStream::connect(gateway.address).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(http2::tls(&gateway, protocols), name).unwrap();
        let mut stream = StreamOwned::new(connection, tcp);
        stream.conn.complete_io(&mut stream.sock).ok()?;
        Some((stream.conn.alpn_protocol().map(<[u8]>::to_vec), stream))
    };
    assert_eq!(agreed(&[b"h2", b"http/1.1"]).unwrap().0.as_deref(), Some(&b"h2"[..]));
    assert_eq!(
        agreed(&[b"http/1.1", b"h2"]).unwrap().0.as_deref(),
        Some(&b"h2"[..]),
        "the server chooses"
    );
    let (protocol, mut stream) = agreed(&[b"http/1.1"]).unwrap();
    assert_eq!(protocol.as_deref(), Some(&b"http/1.1"[..]));
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "shop");
    assert_eq!(agreed(&[]).unwrap().0, None);
    assert!(agreed(&[b"foo"]).is_none(), "alert 120");
}

#[test]
fn many_are_asked_at_one_time_and_none_waits_for_another() {
    let (go, wait) = sync_channel::<()>(0);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        let target = exchange.target();
        if target == "/0" {
            let _ = wait.lock().recv_timeout(PATIENCE);
        }
        exchange.reply(&target);
    });
    let gateway = Shop::of(&origin).start();
    let asks: Vec<_> = (0..100)
        .map(|number| Ask::get("shop.test", &format!("/{number}")))
        .collect();
    let mut connection = Http2::connect(&gateway);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| connection.ask_all(&asks));
        patiently("all but the first are answered", || origin.seen().len() == 100);
        go.send(()).unwrap();
        let answers = asking.join().unwrap();
        for (number, answer) in answers.iter().enumerate() {
            assert_eq!((answer.status, answer.text()), (200, format!("/{number}").as_str()));
        }
    });
}

#[test]
fn a_stream_that_its_client_resets_stops_its_request_only() {
    let (gone, closed) = sync_channel(1);
    let origin = Origin::new(move |exchange| {
        if exchange.target() == "/reset" {
            exchange.wait_until_closed();
            gone.send(()).unwrap();
        } else {
            exchange.reply("shop");
        }
    });
    let gateway = Shop::of(&origin).start();
    let mut frames = Frames::connect(&gateway);
    frames
        .write(
            Frames::HEADERS,
            END,
            1,
            &Frames::block(&Frames::get("shop.test", "/reset")),
        )
        .unwrap();
    origin.wait_for(1);
    frames.write(Frames::RST_STREAM, 0, 1, &8_u32.to_be_bytes()).unwrap();
    closed
        .recv_timeout(PATIENCE)
        .expect("the target's connection is closed");
    frames
        .write(Frames::HEADERS, END, 3, &Frames::block(&Frames::get("shop.test", "/")))
        .unwrap();
    let head = frames.read_until(Frames::HEADERS).expect("the connection goes on");
    assert_eq!(head.id, 3);
}

/// Says what it got, with gRPC's trailers.
fn grpc() -> Inside {
    Inside::new(|called| {
        let mut head = Response::new(());
        head.headers_mut()
            .insert("content-type", HeaderValue::from_static("application/grpc"));
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        trailers.insert("grpc-message", HeaderValue::from_static("fine"));
        let is_bare = called.head.uri().path() == "/bare";
        Said {
            head,
            body: if is_bare {
                Vec::new()
            } else {
                vec![Bytes::from(called.body.clone()), Bytes::from_static(b"!")]
            },
            trailers: Some(trailers),
        }
    })
}

fn behind(inside: &Inside) -> Shop {
    Shop::with_targets(&[format!("\"{}\"", inside.address)]).backend("version = \"2\"")
}

#[test]
fn grpc_passes_with_its_trailers() {
    let inside = grpc();
    let gateway = behind(&inside).start();
    let call = |path: &str| {
        Ask::post("shop.test", path, b"\0\0\0\0\x02hi".to_vec())
            .with("content-type", "application/grpc")
            .with("te", "trailers")
            .with("grpc-timeout", "5S")
    };
    let mut connection = Http2::connect(&gateway);
    for _ in 0..3 {
        let answer = connection.ask(&call("/shop.Service/Call")).unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"\0\0\0\0\x02hi!"[..]));
        assert_eq!(answer.field("content-type"), "application/grpc");
        let expected =
            [("grpc-status", "0"), ("grpc-message", "fine")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(answer.trailers, expected);
    }
    let answer = connection.ask(&call("/bare")).unwrap();
    let status = answer
        .trailers
        .iter()
        .chain(&answer.head)
        .find(|(name, _)| name == "grpc-status");
    assert_eq!(
        status.map(|(_, value)| value.as_str()),
        Some("0"),
        "without a body too: {answer:?}"
    );
    let called = &inside.called()[0];
    assert_eq!(
        (called.head.method().as_str(), called.head.uri().path()),
        ("POST", "/shop.Service/Call")
    );
    assert_eq!(called.head.headers()["te"], "trailers");
    assert_eq!(called.head.headers()["grpc-timeout"], "5S");
    assert!(called.head.headers().contains_key("x-forwarded-for") && !called.head.headers().contains_key("host"));
    // A client of HTTP/1.1 gets them behind the last chunk.
    let answer = Http::One.connect(&gateway).ask(&call("/shop.Service/Call"));
    assert!(
        answer.trailers.contains(&("grpc-status".to_owned(), "0".to_owned())),
        "{answer:?}"
    );
}

#[test]
fn targets_of_http_2_are_asked_on_few_connections() {
    let inside = grpc();
    let gateway = behind(&inside).start();
    let asks: Vec<_> = (0..50).map(|_| Ask::get("shop.test", "/")).collect();
    for answer in Http2::connect(&gateway).ask_all(&asks) {
        assert_eq!(answer.status, 200);
    }
    let connections: std::collections::HashSet<_> = inside.called().iter().map(|called| called.connection).collect();
    assert!(connections.len() <= 16, "{} connections", connections.len());
}

#[test]
fn trailers_of_a_request_reach_a_target_of_http_2() {
    let inside = grpc();
    let gateway = behind(&inside).start();
    for http in Http::BOTH {
        let ask = Ask::post("shop.test", "/", "body").with_trailer("x-sum", "42");
        assert_eq!(http.connect(&gateway).ask(&ask).status, 200, "{http:?}");
        let called = inside.called().pop().unwrap();
        assert_eq!(
            (
                called.body.as_slice(),
                called.trailers.unwrap()["x-sum"].to_str().unwrap()
            ),
            (&b"body"[..], "42")
        );
    }
}

#[test]
fn a_target_that_speaks_another_version_is_502() {
    let (origin, inside) = (Origin::named("one"), grpc());
    let gateway = Shop::of(&origin).backend("version = \"2\"").start();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).status, 502);
    let gateway = Shop::with_targets(&[format!("\"{}\"", inside.address)]).start();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).status, 502);
}

fn resident_kb(gateway: &Gateway) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", gateway.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Whether another client is served meanwhile.
fn serves_others(gateway: &Gateway) {
    let begun = portcullis::clock::now();
    assert_eq!(send(gateway, Ask::get("shop.test", "/").bytes()).text(), "shop");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn a_head_without_end_ends_the_connection() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    serves_others(&gateway);
    let before = resident_kb(&gateway);
    let mut frames = Frames::connect(&gateway);
    let block = Frames::block(&Frames::get("shop.test", "/"));
    frames.write(Frames::HEADERS, Frames::END_STREAM, 1, &block).unwrap();
    let more = Frames::block(&[("x-a", &"b".repeat(1000))]);
    let mut written = 0;
    while written < 20_000 && frames.write(Frames::CONTINUATION, 0, 1, &more).is_ok() {
        written += 1;
    }
    assert!(written < 20_000, "it took 20 MB of one head");
    serves_others(&gateway);
    let grown = resident_kb(&gateway).saturating_sub(before);
    assert!(grown < 50 * 1024, "{grown} KiB");
    assert!(origin.seen().iter().all(|seen| !seen.has("x-a")));
}

#[test]
fn streams_that_are_opened_to_be_reset_end_the_connection() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    serves_others(&gateway);
    let before = resident_kb(&gateway);
    let mut frames = Frames::connect(&gateway);
    let block = Frames::block(&Frames::get("shop.test", "/flood"));
    let mut id = 1;
    while id < 20_000 {
        let opened = frames.write(Frames::HEADERS, END, id, &block);
        let reset = frames.write(Frames::RST_STREAM, 0, id, &8_u32.to_be_bytes());
        if opened.is_err() || reset.is_err() {
            break;
        }
        id += 2;
    }
    serves_others(&gateway);
    let grown = resident_kb(&gateway).saturating_sub(before);
    assert!(grown < 50 * 1024, "{grown} KiB");
    let flood = origin.seen().iter().filter(|seen| seen.target() == "/flood").count();
    assert!(id < 20_000 || flood < 5000, "all of them went on: {flood}");
}

#[test]
fn settings_and_pings_without_end_cost_nobody_else() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let before = resident_kb(&gateway);
    let mut frames = Frames::connect(&gateway);
    // Nobody reads the answers to them.
    for number in 0..50_000_u64 {
        let sent = frames
            .write(Frames::PING, 0, 0, &number.to_be_bytes())
            .and_then(|()| frames.write(Frames::SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]));
        if sent.is_err() {
            break;
        }
        if number % 1000 == 0 && number < 3000 {
            serves_others(&gateway);
        }
    }
    serves_others(&gateway);
    let grown = resident_kb(&gateway).saturating_sub(before);
    assert!(grown < 50 * 1024, "{grown} KiB");
}

#[test]
fn a_window_that_is_never_opened_holds_no_more_than_it_must() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.reply(&"x".repeat(10 << 20));
    });
    let gateway = Shop::of(&origin).start();
    let before = resident_kb(&gateway);
    let mut frames = Frames::connect(&gateway);
    let block = Frames::block(&Frames::get("shop.test", "/"));
    for stream in 0..20 {
        frames.write(Frames::HEADERS, END, stream * 2 + 1, &block).unwrap();
    }
    origin.wait_for(20);
    // What is sent within the windows is read: the rest stays where it is.
    let mut read = 0;
    while read < 65_535 {
        let frame = frames.read_until(Frames::DATA).expect("data");
        read += frame.payload.len();
    }
    let grown = resident_kb(&gateway).saturating_sub(before);
    assert!(grown < 60 * 1024, "{grown} KiB of 200 MiB");
}

#[test]
fn bytes_that_are_no_http_2_end_the_connection() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).start();
    let tcp = TcpStream::connect(gateway.address).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connection = ClientConnection::new(http2::tls(&gateway, &[b"h2"]), name).unwrap();
    let mut stream = StreamOwned::new(connection, tcp);
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
    let mut rest = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
    assert!(!rest.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&rest));
    // Nor the other way round.
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    let _ = std::io::Read::read_to_end(&mut stream, &mut rest);
    assert!(origin.seen().is_empty());
}
