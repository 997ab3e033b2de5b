//! The end of a node: what is idle goes at once, what runs is finished, and nothing is left.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use crate::rig::{Ask, Frames, Http2, Origin, PATIENCE, Shop, patiently, read, try_read};
use crate::support::raw;

#[test]
fn idle_connections_are_closed_and_running_requests_finished() {
    let (origin, go) = origin();
    let mut gateway = Shop::of(&origin)
        .setup(|setup| setup.node("grace_period = \"10 s\"\n"))
        .start();
    let mut idle = raw::tls(&gateway);
    idle.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut idle).text(), "done");
    let mut half = raw::tls(&gateway);
    half.write_all(b"GET / HTTP/1.1\r\nHost: shop.").unwrap();
    let mut idle_over_http_2 = Frames::connect(&gateway);
    assert!(idle_over_http_2.read_until(Frames::SETTINGS).is_some());
    let mut running = raw::tls(&gateway);
    running.write_all(&Ask::get("shop.test", "/running").bytes()).unwrap();
    origin.wait_for(2);
    let begun = portcullis::clock::now();
    gateway.signal("TERM");
    assert!(raw::is_closed(&mut idle));
    assert!(
        idle_over_http_2.read_until(Frames::GOAWAY).is_some(),
        "it is told, and then closed"
    );
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    go.send(()).unwrap();
    let answer = read(&mut running);
    assert_eq!((answer.status, answer.text()), (200, "done"));
    assert!(raw::is_closed(&mut running));
    let told = try_read(&mut half, false);
    assert!(told.is_err() || told.is_ok_and(|answer| answer.status >= 400));
    assert!(gateway.wait().success());
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(gateway.address).is_err());
}

#[test]
fn targets_see_at_once_that_nobody_will_ask_them_again() {
    let (origin, go) = origin();
    let mut gateway = Shop::of(&origin)
        .probe("path = \"/probe\"\ninterval = \"1 h\"\ntimeout = \"5 s\"\n")
        .start();
    patiently("the only probe is over", || origin.closed() == 1);
    let mut running = raw::tls(&gateway);
    running.write_all(&Ask::get("shop.test", "/running").bytes()).unwrap();
    origin.wait_for(1);
    let mut other = raw::tls(&gateway);
    other.write_all(&Ask::get("shop.test", "/").bytes()).unwrap();
    assert_eq!(read(&mut other).text(), "done");
    assert_eq!((origin.connections(), origin.closed()), (3, 1));
    gateway.signal("TERM");
    patiently("the connection that waits is closed", || origin.closed() == 2);
    go.send(()).unwrap();
    assert_eq!(read(&mut running).text(), "done", "what runs goes on");
    assert!(gateway.wait().success());
}

#[test]
fn a_download_has_the_grace_period_and_holds_nobody_up_after_it() {
    let (origin, go) = origin();
    let mut gateway = Shop::of(&origin)
        .setup(|setup| setup.node("grace_period = \"1 min\"\n"))
        .start();
    let mut long = raw::tls(&gateway);
    long.write_all(&Ask::get("shop.test", "/long").bytes()).unwrap();
    origin.wait_for(1);
    gateway.signal("TERM");
    patiently("it drains", || {
        let mut probe = raw::tls(&gateway);
        probe.write_all(&Ask::get("localhost", "/favicon.ico").bytes()).unwrap();
        read(&mut probe).status == 503
    });
    let mut late = raw::tls(&gateway);
    late.write_all(WEBSOCKET).unwrap();
    let refused = read(&mut late);
    assert_eq!(refused.status, 503);
    // Longer than anything that only has to say goodbye may take.
    std::thread::sleep(Duration::from_secs(5));
    go.send(()).unwrap();
    assert_eq!(read(&mut long).text(), "halfover");
    let answered = portcullis::clock::now();
    assert!(gateway.wait().success());
    assert!(answered.elapsed() < Duration::from_secs(10), "{:?}", answered.elapsed());
}

#[test]
fn a_websocket_is_told_when_the_time_is_over() {
    let origin = Origin::new(|exchange| {
        exchange.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        while let Some(bytes) = exchange.read() {
            exchange.send(bytes);
        }
    });
    let mut gateway = Shop::of(&origin)
        .setup(|setup| setup.node("grace_period = \"2 s\"\n"))
        .start();
    let mut socket = raw::tls(&gateway);
    socket.write_all(WEBSOCKET).unwrap();
    assert_eq!(read(&mut socket).status, 101);
    let begun = portcullis::clock::now();
    gateway.signal("TERM");
    let mut last = [0; 4];
    socket.read_exact(&mut last).unwrap();
    assert_eq!((last[0], u16::from_be_bytes([last[2], last[3]])), (0x88, 1001));
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    let mut words = vec![0; usize::from(last[1]) - 2];
    socket.read_exact(&mut words).unwrap();
    assert_eq!(words, b"node shuts down");
    assert!(raw::is_closed(&mut socket));
    assert!(gateway.wait().success());
}

#[test]
fn over_http_2_too_a_websocket_is_told_when_the_time_is_over() {
    let origin = Origin::new(|exchange| {
        exchange.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        while let Some(bytes) = exchange.read() {
            exchange.send(bytes);
        }
    });
    let mut gateway = Shop::of(&origin)
        .setup(|setup| setup.node("grace_period = \"2 s\"\n"))
        .start();
    let mut connection = Http2::connect(&gateway);
    let (status, socket) = connection.open("shop.test", "/");
    assert_eq!(status, 200);
    let mut socket = socket.unwrap();
    let begun = portcullis::clock::now();
    gateway.signal("TERM");
    let goodbye = b"\x88\x11\x03\xe9node shuts down";
    assert_eq!(socket.receive(goodbye.len()), goodbye, "1001");
    assert!(begun.elapsed() >= Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert_eq!(socket.receive(1), b"", "and that was the end of it");
    assert!(gateway.wait().success());
}

/// A target that answers at once, but for `/running`, which waits for the word, and `/long`, which waits in the middle.
fn origin() -> (Origin, SyncSender<()>) {
    let (go, wait) = sync_channel::<()>(1);
    let wait = Mutex::new(wait);
    let wait = move || wait.lock().recv_timeout(PATIENCE).unwrap();
    let origin = Origin::new(move |exchange| match &*exchange.target() {
        "/long" => {
            exchange.send("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf");
            wait();
            exchange.send("over");
        }
        target => {
            if target == "/running" {
                wait();
            }
            exchange.reply("done");
        }
    });
    (origin, go)
}

const WEBSOCKET: &[u8] = b"GET / HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                           Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n";
