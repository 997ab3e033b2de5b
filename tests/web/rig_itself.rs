//! That the test's own browsers and applications understand each other, so that a fault is one of what stands between them.

use std::io::Write as _;
use std::net::{Ipv4Addr, UdpSocket};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response};

use crate::rig::inside_http2::{Inside, Said};
use crate::rig::names::{Names, Record};
use crate::rig::{Ask, Http2, Origin, PATIENCE, browser, read, read_head, try_read};

/// What counts as a request of a client, and not as a probe.
fn of_client(ask: Ask) -> Ask {
    ask.with("X-Forwarded-Proto", "https")
}

#[test]
fn over_http_1_every_kind_of_body_comes_as_it_was_sent() {
    let origin = Origin::new(|exchange| match exchange.target().as_str() {
        "/chunked" => {
            exchange.body();
            exchange.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n");
            exchange.send(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-End: 1\r\n\r\n",
            );
        }
        "/close" => {
            exchange.send("HTTP/1.1 200 OK\r\n\r\nuntil the end");
            exchange.close();
        }
        "/broken" => {
            exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
            exchange.reset();
        }
        _ => exchange.reply("hello"),
    });
    let mut stream = browser::plain(origin.address);
    let ask = of_client(Ask::post("shop.test", "/chunked", "some body")).with_trailer("X-Sum", "42");
    stream.write_all(&ask.bytes()).unwrap();
    let answer = read(&mut stream);
    assert_eq!((answer.status, answer.text()), (200, "abcde"));
    assert_eq!(answer.informed, [(103, vec![("link".to_owned(), "x".to_owned())])]);
    assert_eq!(answer.trailers, [("x-end".to_owned(), "1".to_owned())]);
    let seen = origin.only();
    assert_eq!(
        (seen.method(), seen.target(), seen.field("host")),
        ("POST", "/chunked", "shop.test")
    );
    assert_eq!((seen.body.as_slice(), seen.is_whole), (&b"some body"[..], true));
    assert_eq!(seen.framed, b"9\r\nsome body\r\n0\r\nX-Sum: 42\r\n\r\n");
    assert_eq!(seen.trailers, [("x-sum".to_owned(), "42".to_owned())]);

    stream
        .write_all(&of_client(Ask::new("HEAD", "shop.test", "/")).bytes())
        .unwrap();
    assert_eq!(read_head(&mut stream).field("content-length"), "5");
    stream
        .write_all(&of_client(Ask::get("shop.test", "/close")).bytes())
        .unwrap();
    assert_eq!(read(&mut stream).text(), "until the end");
    let mut stream = browser::plain(origin.address);
    stream
        .write_all(&of_client(Ask::get("shop.test", "/broken")).bytes())
        .unwrap();
    assert!(try_read(&mut stream, false).is_err());
    let connections: Vec<_> = origin.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1]);
}

#[test]
fn probes_are_told_apart_and_a_body_that_breaks_off_is_not_whole() {
    let origin = Origin::named("shop");
    origin.answer_probes_with(503);
    let mut stream = browser::plain(origin.address);
    stream.write_all(&Ask::get("shop.test", "/probe").bytes()).unwrap();
    assert_eq!(read(&mut stream).status, 503);
    assert_eq!((origin.probes().len(), origin.seen().len()), (1, 0));
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: x\r\nX-Forwarded-Proto: http\r\nContent-Length: 10\r\n\r\nhalf")
        .unwrap();
    origin.wait_for(1);
    drop(stream);
    crate::rig::patiently("the connection is closed", || origin.closed() == 1);
    let seen = origin.only();
    assert_eq!((seen.body.as_slice(), seen.is_whole), (&b"half"[..], false));
    origin.stop();
    let address = origin.address;
    let again = Origin::at(address, |exchange| exchange.reply("again"));
    let mut stream = browser::plain(again.address);
    stream.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut stream).text(), "well");
}

#[test]
fn over_http_2_heads_bodies_and_trailers_come_as_they_were_sent() {
    let inside = Inside::new(|called| {
        let mut head = Response::new(());
        head.headers_mut()
            .insert("x-path", HeaderValue::from_str(called.head.uri().path()).unwrap());
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        Said {
            head,
            body: vec![Bytes::from(called.body.clone()), Bytes::from_static(b"!")],
            trailers: Some(trailers),
        }
    });
    let mut connection = Http2::plain(inside.address);
    let ask = of_client(Ask::post("shop.test", "/call", vec![b'x'; 40_000])).with_trailer("x-sum", "42");
    let answer = connection.ask(&ask).unwrap();
    assert_eq!(
        (answer.status, answer.body.len(), answer.field("x-path")),
        (200, 40_001, "/call")
    );
    assert_eq!(answer.trailers, [("grpc-status".to_owned(), "0".to_owned())]);
    let called = inside.called().pop().unwrap();
    assert_eq!(
        (called.body.len(), called.trailers.unwrap()["x-sum"].to_str().unwrap()),
        (40_000, "42")
    );
    let asks: Vec<_> = (0..20)
        .map(|number| Ask::get("shop.test", &format!("/{number}")))
        .collect();
    for (number, answer) in connection.ask_all(&asks).iter().enumerate() {
        assert_eq!(answer.field("x-path"), format!("/{number}"));
    }
}

#[test]
fn the_name_server_says_what_it_was_told() {
    let names = Names::start();
    names.set(
        "app.inside.test",
        Record::Addresses(vec![Ipv4Addr::new(127, 0, 0, 21)], 7),
    );
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = |kind: u8| {
        let query = [
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x03app\x06Inside\x04test\0\0".as_slice(),
            &[kind, 0, 1],
        ]
        .concat();
        socket.send_to(&query, names.address).unwrap();
        let mut answer = [0; 512];
        let length = socket.recv(&mut answer).unwrap();
        answer[..length].to_vec()
    };
    let answer = ask(1);
    assert_eq!((&answer[..2], answer[3] & 15, answer[7]), (&b"\x12\x34"[..], 0, 1));
    assert!(answer.ends_with(&[0, 0, 0, 7, 0, 4, 127, 0, 0, 21]));
    assert_eq!(ask(28)[7], 0, "there is no address of IPv6");
    names.set("app.inside.test", Record::NoSuchName);
    assert_eq!(ask(1)[3] & 15, 3);
    assert_eq!(names.asked(), 3);
}
