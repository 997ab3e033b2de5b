use std::future::poll_fn;

use bytes::Bytes;
use http::{Request, Response};
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::wire::{Frame, Length, Unanswered};

#[tokio::test]
async fn a_connection_serves_one_exchange_after_another() {
    let (listener, address) = listener().await;
    let way = way(&Backend::default());
    let server = async {
        let mut socket = accepted(&listener).await;
        for _ in 0..3 {
            read_head(&mut socket).await;
            socket.write_all(OK).await.unwrap();
        }
        socket
    };
    let client = async {
        for expected in [false, true, true] {
            let leased = way.lease(address, Wanted::default(), clock::now()).await.unwrap();
            assert_eq!(leased.is_reused(), expected);
            fetched(leased).await;
        }
    };
    let (_socket, ()) = tokio::join!(server, client);
    assert_eq!(way.idle(), 1);
}

#[tokio::test]
async fn one_that_the_target_closed_is_not_used_again() {
    let (listener, address) = listener().await;
    let way = way(&Backend::default());
    for _ in 0..2 {
        let server = async {
            let mut socket = accepted(&listener).await;
            read_head(&mut socket).await;
            socket.write_all(OK).await.unwrap();
            socket
        };
        let client = async {
            let leased = way.lease(address, Wanted::default(), clock::now()).await.unwrap();
            assert!(!leased.is_reused());
            fetched(leased).await;
        };
        let (socket, ()) = tokio::join!(server, client);
        drop(socket);
        // The event of the close is taken note of when the runtime looks at its sockets.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    way.lanes.sweep(clock::now(), |idle| idle.io().is_quiet(), |_| false);
    assert_eq!(way.idle(), 0);
}

#[tokio::test]
async fn a_clients_own_connection_is_its_own() {
    let (listener, address) = listener().await;
    let way = way(&Backend::default());
    let (ann, bob) = (Own::default(), Own::default());
    let server = async {
        for requests in [2, 1] {
            let mut socket = accepted(&listener).await;
            for _ in 0..requests {
                read_head(&mut socket).await;
                socket.write_all(OK).await.unwrap();
            }
        }
    };
    let client = async {
        for (own, reused) in [(&ann, false), (&ann, true), (&bob, false)] {
            let wanted = Wanted {
                own: Some(own),
                ..Wanted::default()
            };
            let leased = way.lease(address, wanted, clock::now()).await.unwrap();
            assert_eq!(leased.is_reused(), reused);
            fetched(leased).await;
        }
    };
    tokio::join!(server, client);
    assert_eq!((ann.address(), way.idle()), (Some(address), 0));
}

#[tokio::test]
async fn exchanges_of_http2_share_a_connection() {
    let (listener, address) = listener().await;
    let way = way(&http2());
    let server = serve_http2(&listener, 8);
    let client = async {
        let lease = || async { fetched(way.lease(address, Wanted::default(), clock::now()).await.unwrap()).await };
        tokio::join!(lease(), lease(), lease(), lease());
        tokio::join!(lease(), lease(), lease(), lease());
        way.lanes.clear(Shared::clear);
    };
    tokio::join!(server, client);
}

#[tokio::test]
async fn who_waits_for_a_connection_of_http2_that_fails_learns_it_at_once() {
    let (listener, address) = listener().await;
    drop(listener);
    let way = way(&http2());
    let lease = || way.lease(address, Wanted::default(), clock::now());
    let (one, other, third) = tokio::join!(lease(), lease(), lease());
    for leased in [one, other, third] {
        assert_eq!(leased.map(drop).unwrap_err(), ConnectFault::Refused);
    }
    assert_eq!(lease().await.map(drop).unwrap_err(), ConnectFault::Refused);
}

#[tokio::test]
async fn a_request_that_a_going_server_did_not_take_was_not_sent() {
    let (listener, address) = listener().await;
    let way = way(&http2());
    let server = async {
        let socket = accepted(&listener).await;
        let mut connection = ::h2::server::handshake(socket).await.unwrap();
        let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
        respond.send_reset(::h2::Reason::REFUSED_STREAM);
        connection.graceful_shutdown();
        assert!(connection.accept().await.is_none());
    };
    let client = async {
        let leased = way.lease(address, Wanted::default(), clock::now()).await.unwrap();
        let mut exchange = leased.ask(&get(), Length::NONE).unwrap();
        exchange.end(None);
        poll_fn(|cx| exchange.poll_sent(cx)).await.unwrap();
        let head = poll_fn(|cx| exchange.poll_head(cx)).await;
        assert_eq!(head.map(drop).unwrap_err(), Unanswered::Refused);
    };
    tokio::join!(server, client);
    let next = tokio::join!(serve_http2(&listener, 1), async {
        fetched(way.lease(address, Wanted::default(), clock::now()).await.unwrap()).await;
        way.lanes.clear(Shared::clear);
    });
    assert_eq!(next, ((), ()));
}

#[tokio::test]
async fn a_websocket_goes_over_http1_to_a_target_that_takes_none_over_http2() {
    let (listener, address) = listener().await;
    let way = way(&http2());
    let given_up = tokio::sync::Notify::new();
    let server = async {
        let socket = accepted(&listener).await;
        given_up.notified().await;
        let mut connection = ::h2::server::handshake(socket).await.unwrap();
        let over_http1 = async {
            let mut socket = accepted(&listener).await;
            assert!(read_head(&mut socket).await.starts_with("GET / HTTP/1.1\r\n"));
            socket.write_all(OK).await.unwrap();
        };
        tokio::join!(over_http1, async { while connection.accept().await.is_some() {} });
    };
    let client = async {
        // Whoever does not wait for what the target says of itself does not keep it from the next one.
        let impatient = timeout(Duration::from_millis(100), way.lease(address, WEBSOCKET, clock::now()));
        assert!(impatient.await.is_err());
        given_up.notify_one();
        fetched(way.lease(address, WEBSOCKET, clock::now()).await.unwrap()).await;
        way.lanes.clear(Shared::clear);
    };
    tokio::join!(server, client);
}

#[tokio::test]
async fn a_websocket_is_a_stream_of_http2_where_the_target_takes_it() {
    let (listener, address) = listener().await;
    let way = way(&http2());
    let server = async {
        let socket = accepted(&listener).await;
        let mut connection = ::h2::server::Builder::new()
            .enable_connect_protocol()
            .handshake::<_, Bytes>(socket)
            .await
            .unwrap();
        let (mut request, mut respond) = connection.accept().await.unwrap().unwrap();
        assert_eq!(request.method(), "CONNECT");
        let protocol = request.extensions_mut().remove::<::h2::ext::Protocol>();
        assert_eq!(protocol.unwrap().as_str(), "websocket");
        assert_eq!(request.uri(), "http://shop.test/chat");
        let fields = request.headers();
        assert_eq!(fields["sec-websocket-version"], "13");
        for name in ["sec-websocket-key", "upgrade", "connection"] {
            assert!(!fields.contains_key(name), "{fields:?}");
        }
        let echo = async {
            let mut out = respond.send_response(Response::new(()), false).unwrap();
            let mut body = request.into_body();
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                out.send_data(data, false).unwrap();
            }
            out.send_data("bye".into(), true).unwrap();
        };
        tokio::join!(echo, async { while connection.accept().await.is_some() {} });
    };
    let client = async {
        let asked = Request::get("/chat")
            .header("host", "shop.test")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let leased = way.lease(address, WEBSOCKET, clock::now()).await.unwrap();
        let mut exchange = leased.ask(&asked.body(()).unwrap(), Length::NONE).unwrap();
        exchange.end(None);
        poll_fn(|cx| exchange.poll_sent(cx)).await.unwrap();
        let head = poll_fn(|cx| exchange.poll_head(cx)).await.unwrap().response;
        assert_eq!(head.status(), 101);
        assert_eq!(head.headers()["sec-websocket-accept"], "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        let (mut io, early) = exchange.upgrade().unwrap();
        assert!(early.is_empty());
        // More than a window of it.
        let sent = vec![7; 1 << 20];
        let (mut reader, mut writer) = tokio::io::split(&mut io);
        let write = async {
            writer.write_all(&sent).await.unwrap();
            writer.shutdown().await.unwrap();
        };
        let mut all = Vec::new();
        let (_, read) = tokio::join!(write, reader.read_to_end(&mut all));
        read.unwrap();
        assert!(all.strip_suffix(b"bye").is_some_and(|echoed| echoed == sent));
        drop(io);
        way.lanes.clear(Shared::clear);
    };
    tokio::join!(server, client);
}

const WEBSOCKET: Wanted<'_> = Wanted {
    host: "",
    upgrade: true,
    own: None,
};

#[tokio::test]
async fn connections_outlive_a_change_that_does_not_concern_them() {
    let (listener, address) = listener().await;
    let (tasks, certificates) = (TaskTracker::new(), BTreeMap::new());
    let of = |settings: Backend| BTreeMap::from([("shop".to_owned(), settings)]);
    let load = |settings: Backend, before: Option<&Backends>| {
        Backends::load(&of(settings), &certificates, before, clock::wall(), &tasks).unwrap()
    };
    let first = load(Backend::default(), None);
    let server = async {
        let mut socket = accepted(&listener).await;
        read_head(&mut socket).await;
        socket.write_all(OK).await.unwrap();
        socket
    };
    let client = async {
        fetched(
            first
                .way(Some("shop"))
                .lease(address, Wanted::default(), clock::now())
                .await
                .unwrap(),
        )
        .await
    };
    let (_socket, ()) = tokio::join!(server, client);
    let slower = Backend {
        request_timeout: Duration::from_secs(99),
        ..Backend::default()
    };
    let second = load(slower, Some(&first));
    let third = load(http2(), Some(&second));
    let idle = |backends: &Backends| backends.way(Some("shop")).idle();
    assert_eq!((idle(&second), idle(&third)), (1, 0));
    second.close();
    assert_eq!(idle(&second), 0);
}

#[test]
fn every_backend_that_cannot_be_spoken_to_is_told() {
    let empty = NamedTempFile::new().unwrap();
    let tls = |tls: BackendTls| Backend {
        tls: Some(tls),
        ..Backend::default()
    };
    let backends = BTreeMap::from([
        (
            "a".to_owned(),
            tls(BackendTls {
                ca: Some(empty.path().to_owned()),
                verify_chain: true,
                ..BackendTls::default()
            }),
        ),
        (
            "b".to_owned(),
            tls(BackendTls {
                certificate: Some("missing".to_owned()),
                ..BackendTls::default()
            }),
        ),
    ]);
    let tasks = TaskTracker::new();
    let faults = Backends::load(&backends, &BTreeMap::new(), None, clock::wall(), &tasks).unwrap_err();
    let told: Vec<_> = faults.iter().map(ToString::to_string).collect();
    assert!(told[0].starts_with("backend `a`: /"), "{told:?}");
    assert!(
        told[1].starts_with("certificate `missing` is not configured"),
        "{told:?}"
    );
}

fn way(settings: &Backend) -> Way {
    Way::load("shop", settings, &BTreeMap::new(), clock::wall(), &TaskTracker::new()).unwrap()
}

fn http2() -> Backend {
    Backend {
        version: BackendVersion::Http2,
        ..Backend::default()
    }
}

fn get() -> Request<()> {
    Request::get("/").header("host", "shop.test").body(()).unwrap()
}

/// Sends a request, takes the whole answer, and gives the connection back.
async fn fetched(leased: Leased) {
    let mut exchange = leased.ask(&get(), Length::NONE).unwrap();
    exchange.end(None);
    poll_fn(|cx| exchange.poll_sent(cx)).await.unwrap();
    let head = poll_fn(|cx| exchange.poll_head(cx)).await.unwrap();
    assert_eq!(head.response.status(), 200);
    let data = poll_fn(|cx| exchange.poll_frame(cx)).await;
    assert_eq!(data, Some(Ok(Frame::Data(Bytes::from_static(b"ok")))));
    assert_eq!(poll_fn(|cx| exchange.poll_frame(cx)).await, None);
    exchange.release(clock::now());
}

/// Serves so many requests on one connection, and then nothing until the client closes.
async fn serve_http2(listener: &TcpListener, requests: usize) {
    let socket = accepted(listener).await;
    let mut connection = ::h2::server::handshake(socket).await.unwrap();
    let mut served = 0;
    while let Some(request) = connection.accept().await {
        let (request, mut respond) = request.unwrap();
        assert_eq!(request.uri(), "http://shop.test/");
        let mut body = respond.send_response(Response::new(()), false).unwrap();
        body.send_data(Bytes::from_static(b"ok"), true).unwrap();
        served += 1;
    }
    assert_eq!(served, requests);
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

async fn accepted(listener: &TcpListener) -> TcpStream {
    listener.accept().await.unwrap().0
}

async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
