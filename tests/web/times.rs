//! How long anybody waits for anybody.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};

use crate::rig::{Ask, Frames, Http, Origin, PATIENCE, Shop, access_line, access_line_of, read, send, try_read};
use crate::support::raw;

#[test]
fn a_target_that_does_not_answer_in_time_is_504() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.wait_until_closed();
    });
    let gateway = Shop::of(&origin).backend("request_timeout = \"1 s\"").start();
    for http in Http::BOTH {
        let target = format!("/{http:?}");
        let before = origin.seen().len();
        let begun = portcullis::clock::now();
        let answer = http.connect(&gateway).ask(&Ask::post("shop.test", &target, "body"));
        let taken = begun.elapsed();
        assert_eq!(answer.status, 504, "{http:?}");
        assert!(
            taken >= Duration::from_millis(900) && taken < Duration::from_secs(6),
            "{taken:?}"
        );
        assert_eq!(origin.seen().len(), before + 1, "a POST is not tried again");
        let line = access_line_of(&gateway, &target);
        assert_eq!(line["error_info"], "upstream_timeout");
        assert!(line["time_taken"].as_f64().unwrap() >= 0.9, "{line}");
    }
}

/// An address at which connections are neither accepted nor refused, for as long as what is returned beside it lives.
fn unanswering() -> (std::net::SocketAddr, Vec<socket2::Socket>) {
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let listener = socket();
    listener
        .bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut kept = vec![listener];
    // Once its queue is full, the system answers nobody.
    loop {
        let next = socket();
        let connected = next.connect_timeout(&address, Duration::from_millis(300));
        kept.push(next);
        if connected.is_err() {
            return (address.as_socket().unwrap(), kept);
        }
    }
}

#[test]
fn a_connection_that_does_not_come_about_has_a_time_of_its_own() {
    let (address, _kept) = unanswering();
    let origin = Origin::named("shop");
    let shop = Shop::with_targets(&[format!("\"{address}\"")])
        .probe("path = \"/probe\"\ninterval = \"1 h\"\ntimeout = \"1 min\"\nthreshold = 20\n")
        .backend("connect_timeout = \"1 s\"\nrequest_timeout = \"1 min\"");
    let gateway = shop.start();
    for http in Http::BOTH {
        let target = format!("/{http:?}");
        let begun = portcullis::clock::now();
        let answer = http.connect(&gateway).ask(&Ask::post("shop.test", &target, "body"));
        let taken = begun.elapsed();
        assert_eq!(answer.status, 502, "{http:?}");
        assert!(
            taken >= Duration::from_millis(900) && taken < Duration::from_secs(15),
            "{taken:?}"
        );
        assert_eq!(access_line_of(&gateway, &target)["error_info"], "connect_failed");
    }
    // Another target is tried, for a POST too: nothing was sent.
    shop.targets(&[format!("\"{address}\""), origin.quoted()])
        .apply(&gateway);
    for number in 0..4 {
        let answer = Http::One
            .connect(&gateway)
            .ask(&Ask::post("shop.test", &format!("/{number}"), "body"));
        assert_eq!((answer.status, answer.text()), (200, "shop"), "{number}");
    }
}

#[test]
fn a_target_that_falls_silent_in_its_answer_ends_it() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this");
        exchange.wait_until_closed();
    });
    let gateway = Shop::of(&origin).backend("idle_timeout = \"1 s\"").start();
    for http in Http::BOTH {
        let told = http.connect(&gateway).try_ask(&Ask::get("shop.test", "/silent"));
        assert!(told.is_err(), "{http:?}: {told:?}");
        let line = access_line(&gateway, |line| line["http_version"] == http.name());
        assert_eq!(line["error_info"], "upstream_timeout", "{line}");
    }
}

#[test]
fn an_answer_that_goes_on_may_take_longer_than_any_timeout() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n");
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(300));
            exchange.send("x");
        }
    });
    let gateway = Shop::of(&origin)
        .backend("idle_timeout = \"1 s\"\nrequest_timeout = \"1 s\"")
        .start();
    for http in Http::BOTH {
        assert_eq!(
            http.connect(&gateway).ask(&Ask::get("shop.test", "/")).text(),
            "xxxxxxxx",
            "{http:?}"
        );
    }
}

#[test]
fn a_slow_upload_is_no_fault_of_the_target() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).backend("request_timeout = \"1 s\"").start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /slow HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\n")
        .unwrap();
    for _ in 0..8 {
        std::thread::sleep(Duration::from_millis(300));
        stream.write_all(b"x").unwrap();
    }
    assert!(read(&mut stream).text().ends_with("xxxxxxxx"));
}

#[test]
fn a_client_that_does_not_finish_its_body_is_not_waited_for_for_ever() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin)
        .backend("request_timeout = \"1 s\"")
        .table("[limits]\nbody_timeout = \"1 s\"")
        .start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /never HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nx")
        .unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.status, 408);
    assert!(raw::is_closed(&mut stream), "what is left of the body will never come");
    let line = access_line_of(&gateway, "/never");
    assert_eq!(line["error_info"], "client_timeout", "{line}");
    assert!(origin.seen().iter().all(|seen| !seen.is_whole));
}

#[test]
fn clients_that_send_nothing_or_little_are_closed_and_stop_nobody() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .table("[limits]\nhead_timeout = \"2 s\"\nconnections_per_source = 1000")
        .start();
    let mut idle: Vec<_> = (0..50)
        .map(|number| {
            let mut stream = raw::tls(&gateway);
            if number % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\nHost: shop").unwrap();
            } else {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
            stream
        })
        .collect();
    assert_eq!(send(&gateway, Ask::get("shop.test", "/").bytes()).text(), "shop");
    for stream in &mut idle {
        let told = try_read(stream, false);
        assert!(told.is_err() || told.is_ok_and(|answer| answer.status == 408));
    }
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_thousand_clients_that_say_nothing_stop_nobody_and_are_closed() {
    // Both ends of a thousand connections: the gateway inherits the limit.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin)
        .table("[limits]\nhandshake_timeout = \"3 s\"\nconnections_per_source = 2000\nhandshakes_per_source = 10000")
        .start();
    let mut silent: Vec<_> = (0..1000)
        .map(|_| TcpStream::connect(gateway.address).unwrap())
        .collect();
    let begun = portcullis::clock::now();
    for http in Http::BOTH {
        assert_eq!(
            http.connect(&gateway).ask(&Ask::get("shop.test", "/")).text(),
            "shop",
            "{http:?}"
        );
    }
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    for stream in &mut silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        assert!(raw::is_closed(stream));
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    gateway.wait_for("their reason", |line| line["reason"] == "timeout");
}

#[test]
fn an_idle_connection_is_kept_for_a_while_and_then_closed() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).table("[limits]\nhead_timeout = \"2 s\"").start();
    let mut stream = raw::tls(&gateway);
    for _ in 0..2 {
        stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
        assert_eq!(read(&mut stream).text(), "shop");
    }
    let mut rest = Vec::new();
    let begun = portcullis::clock::now();
    stream.read_to_end(&mut rest).unwrap();
    assert!(
        rest.is_empty() && begun.elapsed() >= Duration::from_millis(1500),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn an_idle_connection_of_http_2_is_told_and_closed() {
    let origin = Origin::named("shop");
    let gateway = Shop::of(&origin).table("[limits]\nhead_timeout = \"2 s\"").start();
    let mut frames = Frames::connect(&gateway);
    let get = Frames::block(&Frames::get("shop.test", "/"));
    let end = Frames::END_STREAM | Frames::END_HEADERS;
    for id in [1, 3] {
        frames.write(Frames::HEADERS, end, id, &get).unwrap();
        assert_eq!(frames.read_until(Frames::HEADERS).expect("an answer").id, id);
    }
    let begun = portcullis::clock::now();
    assert!(frames.read_until(Frames::GOAWAY).is_some());
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    while frames.read().is_some() {}
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn the_target_may_begin_before_the_client_has_finished() {
    let (go, wait) = sync_channel::<()>(1);
    let wait = parking_lot::Mutex::new(wait);
    let origin = Origin::new(move |exchange| {
        exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly");
        wait.lock().recv_timeout(PATIENCE).unwrap();
    });
    let gateway = Shop::of(&origin).start();
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(b"POST /early HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 8\r\n\r\nhalf")
        .unwrap();
    let answer = read(&mut stream);
    assert_eq!(answer.text(), "early");
    go.send(()).unwrap();
}
