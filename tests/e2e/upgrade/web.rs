//! The published application: requests on kept connections, WebSockets, long bodies.

use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{Request, Response};
use portcullis::clock;
use rustls::pki_types::ServerName;
use tokio::net::TcpSocket;
use tokio_rustls::TlsConnector;

use super::client::Client;
use super::site::{BALANCER, PIECE};
use crate::e2e::balancer::rig::Node;
use crate::rig::{self, Ask};
use crate::support::raw::{Stream, read_head};

/// A connection that is kept until the node says that it was the last time.
pub(super) struct Kept {
    stream: Option<(Instant, Stream)>,
    turns: u64,
}

pub(super) fn open(_: &Client, _: Node) -> Kept {
    Kept { stream: None, turns: 0 }
}

/// A request, every third one with a body.
pub(super) fn turn(client: &Client, node: Node, kept: &mut Kept) {
    kept.turns += 1;
    let target = format!("/ask-{}-{}", client.load.number, kept.turns);
    let body = vec![b'x'; if kept.turns.is_multiple_of(3) { 500 } else { 0 }];
    let expected = format!("{target} {}", body.len());
    let ask = match body.len() {
        0 => Ask::get("gw.test", &target),
        _ => Ask::post("gw.test", &target, body),
    };
    let in_force = client.site.in_force(node);
    let kept_stream = kept.stream.take();
    let since = kept_stream.as_ref().map_or_else(clock::now, |(since, _)| *since);
    client.stake(since);
    let mut stream = kept_stream.map_or_else(|| client.connect("gw.test"), |(_, stream)| stream);
    stream.write_all(&ask.bytes()).expect("a connection to write on");
    let answer = rig::try_read(&mut stream, false).expect("an answer");
    assert_eq!((answer.status, answer.text()), (200, expected.as_str()));
    assert_is_in_force(in_force, answer.field("x-turn"));
    client.was_at(answer.field("x-node"));
    if answer.fields("connection") != ["close"] {
        kept.stream = Some((since, stream));
    }
}

/// The answer is of the configuration that was in force when it was asked for, or of a later one.
fn assert_is_in_force(in_force: u64, turn: &str) {
    let turn: u64 = turn.parse().unwrap();
    assert!(turn >= in_force, "answered by turn {turn}, and {in_force} was in force");
}

/// A connection of HTTP/2.
pub(super) struct Kept2 {
    since: Instant,
    send: SendRequest<Bytes>,
    turns: u64,
}

pub(super) fn open_http2(client: &Client, _: Node) -> Kept2 {
    Kept2 {
        since: clock::now(),
        send: client.runtime.block_on(connect_http2(client)),
        turns: 0,
    }
}

pub(super) fn turn_http2(client: &Client, node: Node, kept: &mut Kept2) {
    kept.turns += 1;
    let target = format!("/ask-{}-{}", client.load.number, kept.turns);
    let in_force = client.site.in_force(node);
    client.runtime.block_on(async {
        let answer = ask_http2(client, kept, &target).await;
        let mut answer = answer.expect("an answer");
        assert_eq!(answer.status(), 200);
        let mut text = Vec::new();
        while let Some(piece) = answer.body_mut().data().await {
            text.extend_from_slice(&piece.expect("a whole answer"));
        }
        assert_eq!(text, format!("{target} 0").into_bytes());
        assert_is_in_force(in_force, answer.headers()["x-turn"].to_str().unwrap());
        client.was_at(answer.headers()["x-node"].to_str().unwrap());
    });
}

async fn ask_http2(client: &Client, kept: &mut Kept2, target: &str) -> Result<Response<RecvStream>, h2::Error> {
    client.stake(kept.since);
    // A connection on which the node wants no further request is replaced before the next one.
    let mut send = match kept.send.clone().ready().await {
        Ok(send) => send,
        Err(_) => {
            kept.since = clock::now();
            client.stake(kept.since);
            connect_http2(client).await.ready().await?
        }
    };
    kept.send = send.clone();
    let request = Request::get(format!("https://gw.test{target}")).body(()).unwrap();
    let (answer, _) = send.send_request(request, true)?;
    answer.await
}

async fn connect_http2(client: &Client) -> SendRequest<Bytes> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(client.address()).unwrap();
    let balancer = (BALANCER, client.site.first).into();
    let io = socket.connect(balancer).await.expect("the balancer");
    let mut tls = client.site.trust();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("gw.test").unwrap();
    let io = TlsConnector::from(Arc::new(tls)).connect(name, io).await.expect("TLS");
    let (send, connection) = h2::client::handshake(io).await.expect("HTTP/2");
    // How it ended is seen by whoever asks on it.
    client.runtime.spawn(async move { drop(connection.await) });
    send
}

pub(super) fn open_socket(client: &Client, _: Node) -> Stream {
    let mut stream = client.connect("gw.test");
    stream
        .write_all(
            b"GET /ws HTTP/1.1\r\nHost: gw.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
              Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x3JJHMbDL1EzLkh9GBhXDw==\r\n\r\n",
        )
        .unwrap();
    let answer = read_head(&mut stream);
    assert_eq!(answer.status, 101, "{}", answer.head);
    stream
}

pub(super) fn turn_socket(_: &Client, _: Node, stream: &mut Stream) {
    let frame = b"\x82\x05hello";
    stream.write_all(frame).expect("a connection to write on");
    let mut back = [0; 7];
    stream.read_exact(&mut back).expect("an echo");
    assert_eq!(&back, frame);
}

/// A download that the application ends only when there was a change in its middle.
pub(super) fn download(client: &Client, _: Node, (): &mut ()) {
    client.begin_anew();
    let mut stream = client.connect("gw.test");
    stream
        .write_all(b"GET /download HTTP/1.1\r\nHost: gw.test\r\n\r\n")
        .unwrap();
    let answer = read_head_only(&mut stream);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let body = read_chunks(&mut stream);
    let (pieces, told) = body.split_at(body.len() - 16);
    let told: usize = told.trim().parse().expect("how many pieces there were");
    assert_eq!(pieces, PIECE.repeat(told));
}

/// The same the other way round.
pub(super) fn upload(client: &Client, _: Node, (): &mut ()) {
    client.begin_anew();
    let book = &client.load.book;
    let step = book.step();
    let mut stream = client.connect("gw.test");
    stream
        .write_all(b"POST /upload HTTP/1.1\r\nHost: gw.test\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    let mut sent = 0;
    while !book.has_changed_since(step) {
        let chunk = format!("{:x}\r\n{PIECE}\r\n", PIECE.len());
        stream.write_all(chunk.as_bytes()).expect("a connection to write on");
        stream.flush().unwrap();
        sent += PIECE.len();
        std::thread::sleep(super::PACE / 5);
    }
    stream.write_all(b"0\r\n\r\n").expect("a connection to write on");
    let answer = rig::try_read(&mut stream, false).expect("an answer");
    assert_eq!(
        (answer.status, answer.text()),
        (200, format!("/upload {sent}").as_str())
    );
}

/// The head of an answer whose body is still to come.
fn read_head_only(stream: &mut Stream) -> String {
    let mut head = Vec::new();
    let mut octet = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut octet).expect("a whole head");
        head.push(octet[0]);
    }
    String::from_utf8(head).unwrap()
}

/// A chunked body to its end.
fn read_chunks(stream: &mut impl Read) -> String {
    let mut stream = BufReader::new(stream);
    let mut body = Vec::new();
    loop {
        let mut size = String::new();
        stream.read_line(&mut size).expect("a size");
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or_else(|_| panic!("cut after {} octets", body.len()));
        let mut piece = vec![0; size + 2];
        stream.read_exact(&mut piece).expect("a whole piece");
        body.extend_from_slice(&piece[..size]);
        if size == 0 {
            return String::from_utf8(body).unwrap();
        }
    }
}
