//! HTTP/2 in front: the same gateway, and what hostile clients try with it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use h2::ext::Protocol;
use http::{Request, Version};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use support::agent::Agent;
use support::heir::upgrade;
use support::raw::{self, message};
use support::{Gateway, Setup};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A client that speaks in frames of its own.
struct Frames(TlsStream<TcpStream>);

impl Frames {
    const GOAWAY: u8 = 7;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;

    async fn connect(gateway: &Gateway) -> Self {
        let mut io = connect(gateway).await;
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        io.write_all(preface).await.unwrap();
        Self(io)
    }

    async fn send(&mut self, frames: &[Vec<u8>]) {
        self.0.write_all(&frames.concat()).await.unwrap();
        self.0.flush().await.unwrap();
    }

    /// The payload of the next frame of that kind.
    async fn next(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            self.0.read_exact(&mut payload).await.unwrap();
            if head[3] == wanted {
                return payload;
            }
        }
    }
}

/// A request for the health check.
fn health_check(stream: u8) -> Vec<u8> {
    let fields = b"\x82\x87\x04\x0c/favicon.ico\x01\x09localhost";
    let head = [0, 0, fields.len() as u8, Frames::HEADERS, 5, 0, 0, 0, stream];
    [&head[..], fields].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_asks_before_it_has_heard_that_another_process_serves_is_answered() {
    let gateway = Gateway::start(&Setup::default());
    let mut client = Frames::connect(&gateway).await;
    client.send(&[health_check(1)]).await;
    assert_eq!(client.next(Frames::HEADERS).await[0], OK);
    let _heir = tokio::task::block_in_place(|| upgrade(&gateway));
    assert_eq!(client.next(Frames::GOAWAY).await[..4], [0x7f, 0xff, 0xff, 0xff]);
    // Clients answer pings before they send what waits.
    let ping = client.next(Frames::PING).await;
    let pong = [&[0, 0, 8, Frames::PING, 1, 0, 0, 0, 0], &ping[..]].concat();
    client.send(&[pong, health_check(3)]).await;
    assert_eq!(client.next(Frames::HEADERS).await[0], OK);
    assert_eq!(client.next(Frames::GOAWAY).await[..4], [0, 0, 0, 3]);
}

/// `:status: 200` in the static table.
const OK: u8 = 0x88;

fn tls(gateway: &Gateway) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(gateway.chain()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config)
}

async fn connect(gateway: &Gateway) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(tls(gateway)).connect(name, stream).await.unwrap()
}

/// A client, with its connection in a task of its own.
async fn client(gateway: &Gateway) -> SendRequest<Bytes> {
    let (requests, connection) = h2::client::handshake(connect(gateway).await).await.unwrap();
    #[allow(clippy::disallowed_methods, reason = "a test has no tracker")]
    tokio::spawn(async move {
        drop(connection.await);
    });
    requests
}

fn request(method: &str, path: &str) -> http::request::Builder {
    let uri = format!("https://localhost{path}");
    Request::builder().method(method).uri(uri).version(Version::HTTP_2)
}

/// Asks with a body, and reads the answer to its end.
async fn ask(
    requests: &SendRequest<Bytes>,
    request: http::request::Builder,
    body: &str,
) -> Result<(u16, http::HeaderMap, String), h2::Error> {
    let request = request.body(()).unwrap();
    let (answer, mut stream) = requests.clone().ready().await?.send_request(request, body.is_empty())?;
    if !body.is_empty() {
        stream.send_data(Bytes::copy_from_slice(body.as_bytes()), true)?;
    }
    let (head, mut body) = answer.await?.into_parts();
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data?);
    }
    Ok((
        head.status.as_u16(),
        head.headers,
        String::from_utf8_lossy(&text).into_owned(),
    ))
}

#[tokio::test]
async fn control_messages_and_pages_are_served_side_by_side() {
    let gateway = Gateway::start(&Setup::default());
    let requests = client(&gateway).await;
    let text = message("<get-configuration/>");
    let post = || request("POST", "/broker/xml").header("content-type", "text/xml");
    let (control, page, head) = tokio::join!(
        ask(&requests, post(), &text),
        ask(&requests, request("GET", "/portal"), ""),
        ask(&requests, request("HEAD", "/favicon.ico"), ""),
    );
    let (status, headers, text) = control.unwrap();
    assert_eq!(status, 200);
    assert!(text.contains("windows-password"), "{text}");
    assert!(headers.contains_key("set-cookie") && headers.contains_key("date"));
    assert_eq!(page.unwrap().0, 200);
    assert_eq!(head.unwrap().0, 200);
    let (answer, mut stream) = requests.clone().send_request(post().body(()).unwrap(), false).unwrap();
    stream.send_data(Bytes::from(vec![b'x'; 300_000]), true).unwrap();
    assert_eq!(answer.await.unwrap().status(), 413);
    assert_eq!(
        ask(&requests, request("GET", "/portal"), "").await.unwrap().0,
        200,
        "the connection goes on"
    );
}

#[tokio::test]
async fn a_tunnel_is_asked_to_come_over_http_1_1() {
    let gateway = Gateway::start(&Setup::default());
    let requests = client(&gateway).await;
    let refused = ask(&requests, request("POST", "/ice/tunnel?gw-1.a.b"), "x")
        .await
        .unwrap_err();
    assert_eq!(refused.reason(), Some(Reason::HTTP_1_1_REQUIRED));
}

#[tokio::test]
async fn cookies_in_many_crumbs_pass_and_a_head_that_is_too_large_is_431() {
    let gateway = Gateway::start(&Setup::default());
    let requests = client(&gateway).await;
    let crumbs = |count: usize| {
        (0..count).fold(request("GET", "/portal"), |request, n| {
            request.header("cookie", format!("c{n}={}", "x".repeat(60)))
        })
    };
    assert_eq!(ask(&requests, crumbs(120), "").await.unwrap().0, 200);
    assert_eq!(ask(&requests, crumbs(1500), "").await.unwrap().0, 431);
    assert_eq!(
        ask(&requests, crumbs(1), "").await.unwrap().0,
        200,
        "the connection goes on"
    );
}

#[tokio::test]
async fn a_websocket_is_served_within_a_stream() {
    let agent = Agent::websocket();
    let plain = "users = [\"ann\"]\n[directory.desktop.desk.agent]\ntls = false\n";
    let setup = Setup::default().desktop_for("desk", agent.target.address, "blast", plain);
    let gateway = Gateway::start(&setup);
    let path = launched(&gateway);
    let requests = client(&gateway).await;
    assert_eq!(ask(&requests, request("GET", "/portal"), "").await.unwrap().0, 200);
    let mut asked = request("CONNECT", &path)
        .header("sec-websocket-version", "13")
        .body(())
        .unwrap();
    asked.extensions_mut().insert(Protocol::from_static("websocket"));
    let (answer, mut stream) = requests
        .clone()
        .ready()
        .await
        .unwrap()
        .send_request(asked, false)
        .unwrap();
    let (head, mut body) = answer.await.unwrap().into_parts();
    assert_eq!(head.status, 200);
    let frame = b"\x82\x05hello";
    stream.send_data(Bytes::from_static(frame), false).unwrap();
    let mut heard = Vec::new();
    while heard.len() < frame.len() {
        heard.extend_from_slice(&body.data().await.unwrap().unwrap());
    }
    assert_eq!(heard, frame);
    let mut unknown = request("CONNECT", "/r/gw-1.a.b/d/x/").body(()).unwrap();
    unknown.extensions_mut().insert(Protocol::from_static("websocket"));
    let (answer, _stream) = requests
        .clone()
        .ready()
        .await
        .unwrap()
        .send_request(unknown, false)
        .unwrap();
    assert_eq!(answer.await.unwrap().status(), 403);
}

/// Where a client goes that has launched `desk`.
fn launched(gateway: &Gateway) -> String {
    let user = raw::sign_in(gateway, "ann");
    let launch = "<get-desktop-connection><desktop-id>desk</desktop-id><protocol><name>BLAST</name></protocol>\
                  </get-desktop-connection>";
    let reply = raw::post(gateway, Some(&user.cookie), &message(launch));
    let ticket = raw::element(reply.text(), "token").unwrap().replace("&quot;", "\"");
    let ticket: serde_json::Value = serde_json::from_str(&ticket).unwrap();
    format!("/r/{}/d/x/?vauth=abc", ticket["r"].as_str().unwrap())
}

/// What a client writes before its first frame, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// `GET /` of `localhost`, compressed by the static table.
const GET: &[u8] = b"\x82\x87\x84\x41\x09localhost";

/// Writes all of it unless the gateway closes before, and says whether it closes at all.
fn closes_after(gateway: &Gateway, mut frames: impl Iterator<Item = Vec<u8>>) -> bool {
    let stream = std::net::TcpStream::connect(gateway.address).unwrap();
    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
    stream.set_write_timeout(Some(support::PATIENCE)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let session = rustls::ClientConnection::new(tls(gateway), name).unwrap();
    let mut stream = rustls::StreamOwned::new(session, stream);
    stream.write_all(PREFACE).unwrap();
    let written = frames
        .try_for_each(|frame| stream.write_all(&frame))
        .and_then(|()| stream.flush());
    if let Err(fault) = &written {
        return !matches!(fault.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    }
    let mut rest = [0; 16 * 1024];
    loop {
        match stream.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(fault) => return !matches!(fault.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }
}

#[test]
fn floods_end_their_own_connection_and_nobody_elses() {
    const HEADERS: u8 = 1;
    const RESET: u8 = 3;
    const CONTINUATION: u8 = 9;
    let gateway = Gateway::start(&Setup::default());
    let continued = std::iter::once(frame(HEADERS, 0, 1, GET));
    let continuations = continued.chain((0..20_000).map(|_| frame(CONTINUATION, 0, 1, b"\x00\x01a\x01b")));
    assert!(closes_after(&gateway, continuations));
    let resets = (0..10_000).flat_map(|n| {
        let stream = 2 * n + 1;
        [
            frame(HEADERS, 0x05, stream, GET),
            frame(RESET, 0, stream, &[0, 0, 0, 8]),
        ]
    });
    let began = portcullis::clock::now();
    assert!(closes_after(&gateway, resets));
    assert!(began.elapsed() < support::PATIENCE);
    assert_eq!(raw::post(&gateway, None, &message("<get-configuration/>")).status, 200);
}
