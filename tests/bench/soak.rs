//! A node that publishes an application for a while, with everything that clients and targets do: `cargo bench --bench soak`,
//! ten minutes; `-- --minutes 1`: a glance.
//!
//! Clients of HTTP/1.1 and HTTP/2 ask and post, WebSockets echo, bodies of 10 MiB go both ways, some clients go away in the
//! middle, some read slowly; every ten seconds one of three targets dies and comes back three seconds later. It fails if a
//! request went wrong while all targets were there, if one got another's answer, or if the node's memory at the end is more
//! than 1.2 times that of the end of the first minute.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "it says what it saw, and fails where it cannot go on"
)]

#[path = "idle_sessions/process.rs"]
#[allow(dead_code, reason = "another benchmark uses the rest")]
mod process;
#[path = "../support/web.rs"]
mod rig;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use process::Process;
use rig::{Ask, Exchange, Http, Origin, Shop};
use support::{Gateway, raw};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return; // `cargo test --all-targets` starts benchmarks too
    }
    let minutes = arguments.iter().skip_while(|argument| *argument != "--minutes").nth(1);
    let minutes: u64 = minutes.map_or(10, |minutes| minutes.parse().expect("minutes"));
    process::raise_file_limit().unwrap();
    let soak = Soak::default();
    let targets = Mutex::new([0, 1, 2].map(|_| Origin::new(answer)));
    let all: Vec<_> = targets.lock().iter().map(Origin::quoted).collect();
    let gateway = Shop::with_targets(&all)
        .backend("request_timeout = \"10 s\"\nidle_timeout = \"30 s\"")
        .table("[limits]\nconnections_per_source = 5000\nhandshakes_per_source = 1000000")
        .start();
    let node = Process::new(gateway.pid());
    let (mut first, mut last) = (0, 0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn({
                let (soak, gateway) = (&soak, &gateway);
                move || soak.ask(gateway, Http::BOTH[number % 2], number)
            });
        }
        for number in 0..3 {
            scope.spawn({
                let (soak, gateway) = (&soak, &gateway);
                move || soak.talk(gateway, number)
            });
        }
        scope.spawn(|| soak.carry(&gateway));
        scope.spawn(|| soak.abandon(&gateway));
        scope.spawn(|| soak.dawdle(&gateway));
        scope.spawn(|| soak.kill(&targets));
        for minute in 1..=minutes {
            sleep(Duration::from_secs(60));
            last = node.memory().unwrap().pss;
            if minute == 1 {
                first = last;
            }
            println!(
                "# minute {minute}: {last} KiB, {} done",
                soak.done.load(Ordering::Relaxed)
            );
        }
        soak.is_over.store(true, Ordering::SeqCst);
    });
    let wrong = soak.wrong.into_inner();
    let explained = soak.explained.into_inner();
    println!(
        "done {}, while a target was away {explained:?}, unexplained {wrong:?}",
        soak.done.load(Ordering::Relaxed)
    );
    println!("memory {first} KiB after a minute, {last} KiB at the end");
    assert!(wrong.is_empty(), "{wrong:?}");
    assert!(last as f64 <= first as f64 * 1.2, "{last} KiB, at first {first}");
}

/// What the target does: says what it was asked, echoes a WebSocket, gives much, takes much.
fn answer(exchange: &mut Exchange<'_>) {
    let target = exchange.target();
    if exchange.seen().has("upgrade") {
        exchange.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        while let Some(bytes) = exchange.read() {
            exchange.send(bytes);
        }
        exchange.close();
    } else if target.starts_with("/large") {
        exchange.body();
        exchange.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {LARGE}\r\n\r\n"));
        let piece = vec![7; 1 << 20];
        (0..LARGE >> 20).for_each(|_| exchange.send(&piece));
    } else {
        let length = exchange.body().len();
        exchange.reply(&format!("{target} {length}"));
    }
    exchange.forget();
}

const LARGE: usize = 10 << 20;

#[derive(Default)]
struct Soak {
    is_over: AtomicBool,
    done: AtomicU64,
    /// When a target died, for the last time.
    died: Mutex<Option<Instant>>,
    explained: Mutex<BTreeMap<String, u64>>,
    wrong: Mutex<BTreeMap<String, u64>>,
}

impl Soak {
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn count(&self, what: Result<(), String>) {
        match what {
            Ok(()) => drop(self.done.fetch_add(1, Ordering::Relaxed)),
            Err(what) => {
                // From its death until its probes have said so, and for what ran on it.
                let is_near = |died: Instant| died.elapsed() < Duration::from_secs(9);
                let list = if self.died.lock().is_some_and(is_near) {
                    &self.explained
                } else {
                    &self.wrong
                };
                *list.lock().entry(what).or_default() += 1;
            }
        }
    }

    /// Small requests, one after another on one connection.
    fn ask(&self, gateway: &Gateway, http: Http, number: usize) {
        let mut browser = http.connect(gateway);
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let target = format!("/ask-{number}-{turn}");
            let ask = if turn % 3 == 0 {
                Ask::post("shop.test", &target, vec![b'x'; turn % 5000])
            } else {
                Ask::get("shop.test", &target)
            };
            let expected = format!("{target} {}", ask.body.as_ref().map_or(0, Vec::len));
            let told = browser.try_ask(&ask);
            if told.is_err() {
                browser = http.connect(gateway);
            }
            self.count(match told {
                Ok(answer) if answer.status == 200 => {
                    assert_eq!(answer.text(), expected, "somebody else's answer");
                    Ok(())
                }
                Ok(answer) => Err(format!("{http:?} {} {}", ask.method, answer.status)),
                Err(fault) => Err(format!("{http:?} {} {:?}", ask.method, fault.kind())),
            });
        }
    }

    /// A WebSocket that is opened again where it ends.
    fn talk(&self, gateway: &Gateway, number: usize) {
        while self.goes_on() {
            let mut stream = raw::tls(gateway);
            let ask = format!(
                "GET /talk-{number} HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
            );
            stream.write_all(ask.as_bytes()).unwrap();
            match rig::try_read(&mut stream, false) {
                Ok(answer) if answer.status == 101 => {}
                Ok(answer) => {
                    self.count(Err(format!("websocket {}", answer.status)));
                    continue;
                }
                Err(fault) => {
                    self.count(Err(format!("websocket {:?}", fault.kind())));
                    continue;
                }
            }
            let sent = [number as u8; 500];
            let mut back = [0; 500];
            while self.goes_on() {
                let echoed = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut back));
                if let Err(fault) = echoed {
                    self.count(Err(format!("websocket cut: {:?}", fault.kind())));
                    break;
                }
                assert_eq!(sent, back, "somebody else's words");
                self.count(Ok(()));
                sleep(Duration::from_millis(20));
            }
        }
    }

    /// Much, in either direction.
    fn carry(&self, gateway: &Gateway) {
        let body = vec![b'u'; LARGE];
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let http = Http::BOTH[turn / 2 % 2];
            let (ask, expected) = if turn % 2 == 0 {
                (Ask::get("shop.test", "/large"), LARGE)
            } else {
                (
                    Ask::post("shop.test", "/up", body.clone()),
                    format!("/up {LARGE}").len(),
                )
            };
            self.count(match http.connect(gateway).try_ask(&ask) {
                Ok(answer) if answer.status == 200 && answer.body.len() == expected => Ok(()),
                Ok(answer) => Err(format!("{http:?} {} large {}", ask.method, answer.status)),
                Err(fault) => Err(format!("{http:?} {} large {:?}", ask.method, fault.kind())),
            });
        }
    }

    /// Goes away in the middle of whatever.
    fn abandon(&self, gateway: &Gateway) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let mut stream = raw::tls(gateway);
            let bytes = match turn % 4 {
                0 => Ask::get("shop.test", "/large").bytes(),
                1 => b"POST /half HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 1000\r\n\r\nhalf".to_vec(),
                2 => b"GET / HTTP/1.1\r\nHost: sh".to_vec(),
                _ => Ask::get("shop.test", "/x").bytes(),
            };
            let _ = stream.write_all(&bytes);
            let _ = stream.sock.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = stream.read(&mut [0; 1000]);
            self.done.fetch_add(1, Ordering::Relaxed);
            sleep(Duration::from_millis(20));
        }
    }

    /// Reads slowly, and writes slowly.
    fn dawdle(&self, gateway: &Gateway) {
        while self.goes_on() {
            let mut stream = raw::tls(gateway);
            for byte in Ask::get("shop.test", "/large-slow").bytes().chunks(8) {
                stream.write_all(byte).unwrap();
                sleep(Duration::from_millis(20));
            }
            let mut buffer = vec![0; 64 * 1024];
            let mut left = LARGE;
            let told = loop {
                if left == 0 || !self.goes_on() {
                    break Ok(());
                }
                match stream.read(&mut buffer) {
                    Ok(0) => break Err("slow: ended early".to_owned()),
                    Ok(read) => left -= read.min(left),
                    Err(fault) => break Err(format!("slow: {:?}", fault.kind())),
                }
                sleep(Duration::from_millis(10));
            };
            self.count(told);
        }
    }

    /// One target after another dies and comes back.
    fn kill(&self, targets: &Mutex<[Origin; 3]>) {
        let mut turn = 0;
        while self.goes_on() {
            sleep(Duration::from_secs(10));
            let mut targets = targets.lock();
            let address = targets[turn % 3].address;
            *self.died.lock() = Some(portcullis::clock::now());
            targets[turn % 3].stop();
            sleep(Duration::from_secs(3));
            targets[turn % 3] = Origin::at(address, answer);
            turn += 1;
        }
    }
}
