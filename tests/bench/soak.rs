//! A node that publishes an application for a while, with everything that clients and targets do: `cargo bench --bench soak`,
//! ten minutes; `-- --quick`: one, for a glance.
//!
//! Clients of HTTP/1.1 and HTTP/2 ask and post, WebSockets echo, bodies of 10 MiB go both ways, some clients go away in the
//! middle, some read slowly, some stop; all the time one of three targets dies and comes back. Whatever does not end well is
//! held against what was done to bring it about: a request may fail that was on its way when its target died, and the node's
//! access log has to name that target; whoever went away or stopped is told of there as having done so. It fails if anything is
//! left over on either side, if somebody got another's answer, or if the node's memory at the end is more than 1.2 times that of
//! the end of the first minute.

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
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use portcullis::clock;

use process::Process;
use rig::{Answer, Ask, Exchange, Http, Http2, Origin, Shop, access_lines};
use support::{Gateway, raw};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return; // `cargo test --all-targets` starts benchmarks too
    }
    let is_quick = arguments.iter().any(|argument| argument == "--quick");
    let minute = Duration::from_secs(if is_quick { 6 } else { 60 });
    process::raise_file_limit().unwrap();
    // Not where connections go out from: one of them could have the port of a target that wants to come back.
    let mut targets = [2, 3, 4].map(|host| Origin::at(SocketAddr::from(([127, 0, 0, host], 0)), answer));
    let all: Vec<_> = targets.iter().map(Origin::quoted).collect();
    let gateway = Shop::with_targets(&all)
        .backend("request_timeout = \"30 s\"\nidle_timeout = \"30 s\"")
        // What went well is counted here.
        .access_log("sample_percent = 0")
        .table("[limits]\nconnections_per_source = 5000\nhandshakes_per_source = 1000000")
        .start();
    let node = Process::new(gateway.pid());
    let soak = Soak::new(&gateway);
    let mut memory = Vec::new();
    std::thread::scope(|scope| {
        for number in 0..4 {
            let soak = &soak;
            scope.spawn(move || soak.ask(Http::BOTH[number % 2], number));
        }
        for number in 0..2 {
            let soak = &soak;
            scope.spawn(move || soak.talk(number));
        }
        scope.spawn(|| soak.talk_over_http_2());
        scope.spawn(|| soak.carry());
        scope.spawn(|| soak.abandon());
        scope.spawn(|| soak.dawdle());
        for way in [Stop::Reading, Stop::Writing] {
            let soak = &soak;
            scope.spawn(move || soak.stop(way));
        }
        scope.spawn(|| soak.kill(&mut targets));
        for number in 1..=MINUTES {
            sleep(minute);
            memory.push(node.memory().unwrap().rss);
            println!(
                "# {} s: {} KiB resident, {} done",
                minute.as_secs() * number,
                memory[memory.len() - 1],
                soak.done.load(Ordering::Relaxed)
            );
        }
        soak.is_over.store(true, Ordering::SeqCst);
    });
    soak.settle();
    let (first, last) = (memory[0], memory[memory.len() - 1]);
    println!("memory {first} KiB at first, {last} KiB at the end");
    assert!(
        is_quick || last as f64 <= first as f64 * 1.2,
        "memory grows: {memory:?}"
    );
}

/// What the target does: says what it was asked, echoes a WebSocket, gives much, takes much. Whose the answer is stands in it.
fn answer(exchange: &mut Exchange<'_>) {
    let target = exchange.target();
    let own = exchange.address();
    if exchange.seen().has("upgrade") {
        exchange.send(format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Own: {own}\r\n\r\n"
        ));
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

/// What was done to a request by whoever sent it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Done {
    /// Nothing that could do it harm.
    Nothing,
    /// Its client went away.
    WentAway,
    /// Its client stopped reading, or writing.
    Stopped,
}

/// A request that did not end well, or was not meant to.
#[derive(Debug)]
struct Ended {
    done: Done,
    /// What the client saw.
    saw: String,
    from: Instant,
    to: Instant,
}

/// The end of a WebSocket that should have gone on.
#[derive(Debug)]
struct Cut {
    target: SocketAddr,
    saw: String,
    /// When the last word came back.
    from: Instant,
    to: Instant,
}

/// One time at which a target was away.
#[derive(Debug)]
struct Away {
    target: SocketAddr,
    from: Instant,
    to: Option<Instant>,
}

#[derive(Clone, Copy)]
enum Stop {
    Reading,
    Writing,
}

struct Soak<'a> {
    gateway: &'a Gateway,
    is_over: AtomicBool,
    /// Requests that ended as they should, and words that came back on WebSockets.
    done: AtomicU64,
    /// By their paths, which no two have in common.
    ended: Mutex<BTreeMap<String, Ended>>,
    /// Ends of WebSockets.
    cuts: Mutex<Vec<Cut>>,
    away: Mutex<Vec<Away>>,
}

impl<'a> Soak<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        Self {
            gateway,
            is_over: AtomicBool::new(false),
            done: AtomicU64::new(0),
            ended: Mutex::default(),
            cuts: Mutex::default(),
            away: Mutex::default(),
        }
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    fn count(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    fn end(&self, path: String, done: Done, from: Instant, saw: impl Into<String>) {
        let ended = Ended {
            done,
            saw: saw.into(),
            from,
            to: clock::now(),
        };
        let before = self.ended.lock().insert(path, ended);
        assert!(before.is_none(), "a path of its own");
    }

    fn cut(&self, target: SocketAddr, last: Instant, saw: &str) {
        self.cuts.lock().push(Cut {
            target,
            saw: saw.to_owned(),
            from: last,
            to: clock::now(),
        });
    }

    /// Counts an answer as it should be; anything else is to be explained.
    fn judge(&self, ask: &Ask, from: Instant, told: io::Result<Answer>, is_right: impl FnOnce(&Answer) -> bool) {
        match told {
            Ok(answer) if answer.status == 200 => {
                assert!(is_right(&answer), "somebody else's answer to {}", ask.target);
                self.count();
            }
            Ok(answer) => self.end(ask.target.clone(), Done::Nothing, from, answer.status.to_string()),
            Err(fault) => self.end(ask.target.clone(), Done::Nothing, from, format!("{:?}", fault.kind())),
        }
    }

    /// Small requests, one after another on one connection.
    fn ask(&self, http: Http, number: usize) {
        let mut browser = http.connect(self.gateway);
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
            let from = clock::now();
            let told = browser.try_ask(&ask);
            // Whoever was told that something is wrong comes again.
            if !matches!(&told, Ok(answer) if answer.status == 200) {
                browser = http.connect(self.gateway);
            }
            self.judge(&ask, from, told, |answer| answer.text() == expected);
        }
    }

    /// A WebSocket that is opened again where it ends.
    fn talk(&self, number: usize) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let mut stream = raw::tls(self.gateway);
            let path = format!("/talk-{number}-{turn}");
            let ask = format!(
                "GET {path} HTTP/1.1\r\nHost: shop.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n"
            );
            let from = clock::now();
            let opened = stream
                .write_all(ask.as_bytes())
                .and_then(|()| rig::try_read(&mut stream, false));
            let target: SocketAddr = match opened {
                Ok(answer) if answer.status == 101 => answer.field("x-own").parse().unwrap(),
                Ok(answer) => {
                    self.end(path, Done::Nothing, from, answer.status.to_string());
                    continue;
                }
                Err(fault) => {
                    self.end(path, Done::Nothing, from, format!("{:?}", fault.kind()));
                    continue;
                }
            };
            let sent = [number as u8; 500];
            let mut back = [0; 500];
            let mut last = clock::now();
            while self.goes_on() {
                let echoed = stream.write_all(&sent).and_then(|()| stream.read_exact(&mut back));
                if let Err(fault) = echoed {
                    self.cut(target, last, &format!("{:?}", fault.kind()));
                    break;
                }
                assert_eq!(sent, back, "somebody else's words");
                last = clock::now();
                self.count();
                sleep(Duration::from_millis(20));
            }
        }
    }

    /// The same on a stream of HTTP/2.
    fn talk_over_http_2(&self) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let path = format!("/talk-2-{turn}");
            let from = clock::now();
            let mut connection = Http2::connect(self.gateway);
            let (answer, socket) = connection.open_answered("shop.test", &path);
            let Some(mut socket) = socket else {
                self.end(path, Done::Nothing, from, answer.status.to_string());
                continue;
            };
            let target: SocketAddr = answer.field("x-own").parse().unwrap();
            let mut last = clock::now();
            while self.goes_on() {
                let back = if socket.try_send(&[2; 500]) {
                    socket.receive(500)
                } else {
                    Vec::new()
                };
                if back.len() < 500 {
                    self.cut(target, last, "its end");
                    break;
                }
                assert_eq!(back, [2; 500], "somebody else's words");
                last = clock::now();
                self.count();
                sleep(Duration::from_millis(20));
            }
        }
    }

    /// Much, in either direction.
    fn carry(&self) {
        let body = vec![b'u'; LARGE];
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let http = Http::BOTH[turn / 2 % 2];
            let (ask, expected) = if turn % 2 == 0 {
                (Ask::get("shop.test", &format!("/large-{turn}")), LARGE)
            } else {
                let target = format!("/up-{turn}");
                let said = format!("{target} {LARGE}").len();
                (Ask::post("shop.test", &target, body.clone()), said)
            };
            let from = clock::now();
            let told = http.connect(self.gateway).try_ask(&ask);
            self.judge(&ask, from, told, |answer| answer.body.len() == expected);
        }
    }

    /// Goes away in the middle of whatever.
    fn abandon(&self) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let (path, from) = (format!("/left-{turn}"), clock::now());
            let mut stream = raw::tls(self.gateway);
            let bytes = match turn % 4 {
                0 => Ask::get("shop.test", &format!("/large{path}")).bytes(),
                1 => format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 1000\r\n\r\nhalf").into(),
                2 => b"GET / HTTP/1.1\r\nHost: sh".to_vec(),
                _ => Ask::get("shop.test", &path).bytes(),
            };
            let path = if turn % 4 == 0 { format!("/large{path}") } else { path };
            let _ = stream.write_all(&bytes);
            let _ = stream.sock.set_read_timeout(Some(Duration::from_millis(50)));
            let _ = stream.read(&mut [0; 1000]);
            drop(stream);
            self.end(path, Done::WentAway, from, "");
            sleep(Duration::from_millis(20));
        }
    }

    /// Reads slowly, and writes slowly.
    fn dawdle(&self) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let (path, from) = (format!("/large-slow-{turn}"), clock::now());
            let mut stream = raw::tls(self.gateway);
            for byte in Ask::get("shop.test", &path).bytes().chunks(8) {
                stream.write_all(byte).unwrap();
                sleep(Duration::from_millis(20));
            }
            let mut buffer = vec![0; 64 * 1024];
            // With the head of the answer.
            let mut left = LARGE;
            let told = loop {
                if left == 0 {
                    break Ok(());
                }
                match stream.read(&mut buffer) {
                    Ok(0) => break Err("ended early".to_owned()),
                    Ok(read) => left -= read.min(left),
                    Err(fault) => break Err(format!("{:?}", fault.kind())),
                }
                sleep(Duration::from_millis(10));
            };
            match told {
                Ok(()) => self.count(),
                Err(saw) => self.end(path, Done::Nothing, from, saw),
            }
        }
    }

    /// Stops in the middle, and waits for the node to lose its patience.
    fn stop(&self, way: Stop) {
        let mut turn = 0;
        while self.goes_on() {
            turn += 1;
            let from = clock::now();
            let mut stream = raw::tls(self.gateway);
            let (path, bytes) = match way {
                Stop::Reading => {
                    let path = format!("/large-stopped-{turn}");
                    let bytes = Ask::get("shop.test", &path).bytes();
                    (path, bytes)
                }
                Stop::Writing => {
                    let path = format!("/stopped-{turn}");
                    let head = format!("POST {path} HTTP/1.1\r\nHost: shop.test\r\nContent-Length: 1000\r\n\r\nhalf");
                    (path, head.into())
                }
            };
            stream.write_all(&bytes).unwrap();
            match way {
                // Longer than the node waits for a client that takes nothing.
                Stop::Reading => sleep(Duration::from_secs(40)),
                Stop::Writing => {
                    let patience = Some(Duration::from_secs(90));
                    stream.sock.set_read_timeout(patience).unwrap();
                    let _ = rig::try_read(&mut stream, false);
                }
            }
            self.end(path, Done::Stopped, from, "");
        }
    }

    /// One target after another dies and comes back.
    fn kill(&self, targets: &mut [Origin; 3]) {
        let mut turn = 0;
        while self.goes_on() {
            sleep(Duration::from_secs(7));
            let target = &mut targets[turn % 3];
            let address = target.address;
            self.away.lock().push(Away {
                target: address,
                from: clock::now(),
                to: None,
            });
            target.stop();
            sleep(Duration::from_secs(3));
            *target = Origin::at(address, answer);
            if let Some(away) = self.away.lock().last_mut() {
                away.to = Some(clock::now());
            }
            turn += 1;
        }
    }

    /// Holds what happened against what was done.
    fn settle(&self) {
        // Lines are written in their own time, and the last clients have just gone.
        sleep(Duration::from_secs(3));
        let mut lines: BTreeMap<String, Vec<(String, Option<SocketAddr>)>> = BTreeMap::new();
        for line in access_lines(self.gateway) {
            let path = line["original_request_uri_with_args"].as_str().unwrap_or_default();
            let fault = line["error_info"].as_str().unwrap_or_default().to_owned();
            let target = line["server_routed"].as_str().and_then(|target| target.parse().ok());
            lines.entry(path.to_owned()).or_default().push((fault, target));
        }
        let written: usize = lines.values().map(Vec::len).sum();
        let (ended, cuts) = (self.ended.lock(), self.cuts.lock());
        let mut explained: BTreeMap<String, u64> = BTreeMap::new();
        let mut wrong = Vec::new();
        for (path, ended) in &*ended {
            let told = lines.remove(path).unwrap_or_default();
            match (ended.done, &*told) {
                (Done::Nothing, [(fault, Some(target))])
                    if TARGETS.contains(&&**fault) && self.was_away(*target, ended.from, ended.to) =>
                {
                    *explained.entry(format!("{fault}, its target died")).or_default() += 1;
                }
                (Done::WentAway, []) => *explained.entry("client left, unnoticed".to_owned()).or_default() += 1,
                (Done::WentAway, [(fault, _)]) if fault == "client_closed" => {
                    *explained.entry("client left".to_owned()).or_default() += 1;
                }
                (Done::Stopped, [(fault, _)]) if fault == "client_timeout" => {
                    *explained.entry("client stopped".to_owned()).or_default() += 1;
                }
                // Whatever its client did, the node may have learned first that its target died.
                (Done::WentAway | Done::Stopped, [(fault, Some(target))])
                    if TARGETS.contains(&&**fault)
                        && self.was_away(*target, ended.from, ended.to + Duration::from_secs(1)) =>
                {
                    *explained.entry(format!("{fault}, its target died first")).or_default() += 1;
                }
                _ => wrong.push(format!(
                    "{path}: {:?}, {:?} to its client from {:?} to {:?}, in the log {told:?}",
                    ended.done, ended.saw, ended.from, ended.to
                )),
            }
        }
        for cut in &*cuts {
            if self.was_away(cut.target, cut.from, cut.to) {
                *explained.entry("websocket, its target died".to_owned()).or_default() += 1;
            } else {
                wrong.push(format!("WebSocket: {:?} from {:?} to {:?}", cut.saw, cut.from, cut.to));
            }
        }
        wrong.extend(lines.iter().map(|line| format!("in the log for nothing: {line:?}")));
        let done = self.done.load(Ordering::Relaxed);
        println!(
            "{done} done, {} ended otherwise, {} WebSockets cut, {written} lines in the log, {} deaths of targets",
            ended.len(),
            cuts.len(),
            self.away.lock().len()
        );
        for (why, count) in &explained {
            println!("{count:>8} {why}");
        }
        println!("{:>8} unexplained", wrong.len());
        assert!(wrong.is_empty(), "{wrong:#?}");
        let total: u64 = explained.values().sum();
        assert_eq!(total as usize, ended.len() + cuts.len(), "each end has one explanation");
    }

    /// Whether a target was away at some time between these.
    fn was_away(&self, target: SocketAddr, from: Instant, to: Instant) -> bool {
        self.away
            .lock()
            .iter()
            .any(|away| away.target == target && away.from <= to && away.to.is_none_or(|back| from <= back))
    }
}

/// How the access log says that it was the target.
const TARGETS: [&str; 3] = ["upstream_closed", "connect_failed", "upstream_timeout"];
const LARGE: usize = 10 << 20;
const MINUTES: u64 = 10;
