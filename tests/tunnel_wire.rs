//! The tunnel's HTTP exchange, byte by byte: whatever a client may do at its beginning and its end, and what it may not.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{Read as _, Write as _};
use std::thread;

use bytes::Bytes;
use portcullis::tunnel::https::chunk::{Chunk, Decoder};
use portcullis::tunnel::https::message::Message;
use serde_json::Value;
use support::raw::{self, Stream, message};
use support::{Gateway, Setup, Target};

#[test]
fn the_head_of_a_tunnel_is_what_clients_know() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let (_stream, answer) = raw::open_tunnel(&gateway, &user.token);
    let (fields, date) = answer.head.split_once("Date: ").unwrap();
    assert_eq!(
        fields,
        "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n\
         Cache-Control: no-cache, no-store, must-revalidate\r\nTransfer-Encoding: chunked\r\n"
    );
    assert!(date.len() == 33 && date.ends_with(" GMT\r\n\r\n"), "{date}");
}

#[test]
fn a_connection_that_was_used_for_control_messages_becomes_the_tunnel() {
    let gateway = Gateway::start(&Setup::default());
    let mut stream = raw::tls(&gateway);
    let first = raw::post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
    let cookie = first.session_cookie().unwrap();
    let sign_in = raw::password_message("ann", support::PASSWORD, "<get-tunnel-connection/>");
    let second = raw::post_on(&mut stream, Some(&cookie), sign_in.as_bytes());
    let token = raw::element(second.text(), "connection-id").unwrap();
    stream.write_all(head(token, "").as_bytes()).unwrap();
    assert_opens(&mut stream, token);
    gateway.wait_for("the tunnel", |line| line["message"] == "tunnel opened");
}

#[test]
fn a_tunnel_that_comes_in_one_segment_with_the_request_before_it_is_opened() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    let mut stream = raw::tls(&gateway);
    let chunks = framed(&raw::init_chunk()) + &framed(&raw::start_chunk(&token));
    let all = format!(
        "GET /favicon.ico HTTP/1.1\r\nHost: localhost\r\n\r\n{}{chunks}",
        head(&token, "")
    );
    stream.write_all(all.as_bytes()).unwrap();
    assert_eq!(raw::read_answer(&mut stream).status, 200);
    assert_eq!(raw::read_head(&mut stream).status, 200);
    read_past(&mut stream, READY);
}

#[test]
fn a_request_that_comes_byte_by_byte_is_opened() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    let mut stream = raw::tls(&gateway);
    let all = head(&token, "") + &framed(&raw::init_chunk()) + &framed(&raw::start_chunk(&token));
    for byte in all.as_bytes() {
        stream.write_all(&[*byte]).unwrap();
        stream.flush().unwrap();
    }
    assert_eq!(raw::read_head(&mut stream).status, 200);
    read_past(&mut stream, READY);
}

#[test]
fn a_client_that_expects_100_gets_it_and_the_tunnel() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    let mut stream = raw::tls(&gateway);
    stream
        .write_all(head(&token, "Expect: 100-continue\r\n").as_bytes())
        .unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 100);
    assert_opens(&mut stream, &token);
}

#[test]
fn a_client_that_ends_its_stream_and_closes_its_side_reads_the_last_words() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    let (mut stream, answer) = raw::open_tunnel(&gateway, &token);
    assert_eq!(answer.status, 200);
    opens(&mut stream, &token);
    stream.write_all(b"0\r\n\r\n").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    stream.sock.shutdown(std::net::Shutdown::Write).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("an end that TLS knows of");
    assert!(rest.ends_with("\r\n0\r\n\r\n"), "{rest}");
    let is_end = |line: &Value| line["message"] == "tunnel closed" && line["reason"] == "completed";
    gateway.wait_for("the end of the tunnel", is_end);
}

#[test]
fn a_client_that_closes_its_side_in_the_middle_is_gone() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    let (mut stream, _) = raw::open_tunnel(&gateway, &token);
    stream.write_all(b"5\r\nM;1").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("an end that TLS knows of");
    assert_eq!(rest, "0\r\n\r\n");
    wait_for_ends(&gateway, "client_closed", 1);
}

#[test]
fn framing_that_is_odd_or_heavy_ends_the_tunnel() {
    let gateway = Gateway::start(&Setup::default());
    let flood = "1;".to_owned() + &"a".repeat(1024 * 1024);
    let streams = [
        &*flood,
        "00000000000000000000000000000005\r\nhello\r\n",
        "5\nhello\n",
        "5\r\nhello!\r\n",
        "-5\r\nhello\r\n",
        "fffffffffffffffff\r\nhello\r\n",
        "0\r\nTrailer: x\n\r\n",
    ];
    for (count, bytes) in streams.into_iter().enumerate() {
        let token = raw::sign_in(&gateway, "ann").token;
        let (mut stream, answer) = raw::open_tunnel(&gateway, &token);
        assert_eq!(answer.status, 200);
        // The gateway may close while this is written.
        drop(stream.write_all(bytes.as_bytes()).and_then(|()| stream.flush()));
        assert!(raw::is_closed(&mut stream), "{bytes:.40?}");
        drop(stream);
        wait_for_ends(&gateway, "malformed_request", count + 1);
    }
}

#[test]
fn a_request_that_is_not_chunked_is_no_tunnel() {
    let gateway = Gateway::start(&Setup::default());
    let token = raw::sign_in(&gateway, "ann").token;
    for (version, fields) in [
        ("1.1", "Content-Length: 5\r\n"),
        ("1.1", ""),
        ("1.1", "Transfer-Encoding: gzip, chunked\r\n"),
        ("1.0", "Content-Length: 5\r\n"),
    ] {
        let mut stream = raw::tls(&gateway);
        let request = format!("POST /ice/tunnel?{token} HTTP/{version}\r\nHost: localhost\r\n{fields}\r\nhello");
        stream.write_all(request.as_bytes()).unwrap();
        let answer = raw::read_answer(&mut stream);
        assert_eq!(answer.status, 400, "{version} {fields}");
        assert!(raw::is_closed(&mut stream));
    }
    // The token was not used up.
    let (mut stream, answer) = raw::open_tunnel(&gateway, &token);
    assert_eq!(answer.status, 200);
    opens(&mut stream, &token);
}

#[test]
fn a_launch_that_fails_takes_nothing_from_a_desktop_that_is_in_use() {
    let desktop = Target::echo();
    let setup = Setup::default().user("ben", "");
    let lines = "users = [\"ann\", \"ben\"]\nmax_sessions = 1";
    let gateway = Gateway::start(&setup.desktop_for("shell", desktop.address, "ssh", lines));
    let user = raw::sign_in(&gateway, "ann");
    let mut talk = Talk::begin(&gateway, &user.token);
    let launch_as = |cookie: &str| {
        let launch = message("<get-desktop-connection><desktop-id>shell</desktop-id></get-desktop-connection>");
        raw::post(&gateway, Some(cookie), &launch)
    };
    let launch = || launch_as(&user.cookie);

    let (answer, port_name) = thread::scope(|scope| {
        let answer = scope.spawn(launch);
        let port_name = talk.listen(Ok(4000));
        (answer.join().unwrap(), port_name)
    });
    assert_eq!(raw::element(answer.text(), "port"), Some("4000"), "{}", answer.text());
    talk.raise(1, &port_name);
    talk.say(&Message::UnlistenReply {
        port_name: Some(port_name),
        problem: None,
    });
    assert_eq!(talk.echo(1, b"here"), b"here");

    let answer = thread::scope(|scope| {
        let answer = scope.spawn(launch);
        talk.listen(Err("the port is taken".to_owned()));
        answer.join().unwrap()
    });
    assert!(answer.text().contains("DESKTOP_LAUNCH_ERROR"), "{}", answer.text());
    assert_eq!(talk.echo(1, b"still there"), b"still there");
    let other = raw::sign_in(&gateway, "ben");
    let _tunnel = Talk::begin(&gateway, &other.token);
    let answer = launch_as(&other.cookie);
    assert!(answer.text().contains("in use by others"), "{}", answer.text());
}

/// The client's side of a tunnel, chunk by chunk. Nothing is acknowledged: it is over before that is missed.
struct Talk {
    stream: Stream,
    sent: u32,
}

impl Talk {
    fn begin(gateway: &Gateway, token: &str) -> Self {
        let (mut stream, answer) = raw::open_tunnel(gateway, token);
        assert_eq!(answer.status, 200);
        opens(&mut stream, token);
        Self { stream, sent: 2 }
    }

    fn say(&mut self, message: &Message) {
        self.sent += 1;
        self.send(&message.to_chunk(self.sent, None));
    }

    fn send(&mut self, chunk: &Chunk) {
        let chunk = chunk.encode();
        write!(self.stream, "{:X}\r\n", chunk.len()).unwrap();
        self.stream.write_all(&chunk).unwrap();
        self.stream.write_all(b"\r\n").unwrap();
        self.stream.flush().unwrap();
    }

    /// Answers the next demand to listen; the name of the port.
    fn listen(&mut self, port: Result<u16, String>) -> String {
        loop {
            if let Chunk::Message { header, body, .. } = self.next()
                && let Message::ListenRequest { cid, port_name, .. } = Message::decode(&header, &body).unwrap()
            {
                self.say(&Message::ListenReply { cid, port });
                return port_name;
            }
        }
    }

    fn raise(&mut self, channel: i32, port_name: &str) {
        self.say(&Message::RaiseRequest {
            channel,
            port_name: port_name.to_owned(),
        });
        let raised = Message::RaiseReply { channel, problem: None };
        loop {
            if let Chunk::Message { header, body, .. } = self.next()
                && Message::decode(&header, &body).unwrap() == raised
            {
                return;
            }
        }
    }

    fn echo(&mut self, channel: u32, octets: &'static [u8]) -> Vec<u8> {
        self.sent += 1;
        self.send(&Chunk::Data {
            id: self.sent,
            ack: None,
            channel,
            octets: Bytes::from_static(octets),
        });
        let mut back = Vec::new();
        while back.len() < octets.len() {
            match self.next() {
                Chunk::Data { octets, .. } => back.extend_from_slice(&octets),
                Chunk::Message { header, body, .. } => {
                    let message = Message::decode(&header, &body).unwrap();
                    assert!(!matches!(message, Message::Lower { .. }), "the channel was closed");
                }
                Chunk::Ack { .. } => {}
            }
        }
        back
    }

    /// What the gateway sends next: one chunk of the tunnel is one chunk of HTTP.
    fn next(&mut self) -> Chunk {
        let mut length = Vec::new();
        let mut byte = [0];
        while !length.ends_with(b"\r\n") {
            self.stream.read_exact(&mut byte).unwrap();
            length.push(byte[0]);
        }
        let length = std::str::from_utf8(&length).unwrap().trim_end();
        let mut chunk = vec![0; usize::from_str_radix(length, 16).unwrap() + 2];
        self.stream.read_exact(&mut chunk).unwrap();
        chunk.truncate(chunk.len() - 2);
        Decoder::new().decode(&mut Bytes::from(chunk)).unwrap().unwrap()
    }
}

fn head(token: &str, fields: &str) -> String {
    format!("POST /ice/tunnel?{token} HTTP/1.1\r\nHost: localhost\r\n{fields}Transfer-Encoding: chunked\r\n\r\n")
}

fn framed(chunk: &str) -> String {
    format!("{:X}\r\n{chunk}\r\n", chunk.len())
}

/// Reads the head of the answer, and opens the tunnel.
fn assert_opens(stream: &mut Stream, token: &str) {
    assert_eq!(raw::read_head(stream).status, 200);
    opens(stream, token);
}

fn opens(stream: &mut Stream, token: &str) {
    raw::send_chunk(stream, &raw::init_chunk());
    raw::send_chunk(stream, &raw::start_chunk(token));
    read_past(stream, READY);
}

fn read_past(stream: &mut Stream, end: &str) {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(end.as_bytes()) {
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&text));
        text.push(byte[0]);
    }
}

/// Waits for the lines of so many connections that ended for that reason.
fn wait_for_ends(gateway: &Gateway, reason: &str, count: usize) {
    let ended = |line: &Value| line["message"] == "connection closed" && line["reason"] == reason;
    let mut passed = 0;
    for _ in 0..count {
        gateway.wait_for_after(passed, reason, ended);
        passed += gateway.lines()[passed..].iter().position(ended).unwrap() + 1;
    }
}

/// The server's last word before a tunnel is open.
const READY: &str = "cmVhZHk=|;0;;\r\n";
