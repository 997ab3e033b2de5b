//! A client of HTTP/2 against the server, in memory and virtual time.

use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, SendStream};
use http::{HeaderMap, Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::super::departure::Destination;
use super::*;
use crate::wire::{Frame, Length, Sink, Source};

const IDLE: Duration = Duration::from_secs(30);

/// Does what the path says.
struct Paths;

impl Respond for Paths {
    async fn respond<B: Source, A: Sink>(&self, request: Request<()>, mut body: B, mut answer: A) -> Next {
        let mut head = Response::new(());
        match request.uri().path() {
            "/echo" => {
                let length = body.length();
                answer.head(head, length).await.unwrap();
                while let Some(frame) = body.frame().await {
                    match frame {
                        Ok(Frame::Data(data)) => answer.data(data).await.unwrap(),
                        Ok(Frame::Trailers(trailers)) => {
                            answer.finish(Some(trailers)).await.unwrap();
                            return Next::KeepOpen;
                        }
                        Err(_) => return Next::KeepOpen,
                    }
                }
                answer.finish(None).await.unwrap();
            }
            "/hints" => {
                *head.status_mut() = StatusCode::EARLY_HINTS;
                answer.inform(head).await.unwrap();
                let mut head = Response::new(());
                head.headers_mut()
                    .insert("connection", HeaderValue::from_static("close"));
                answer.head(head, Length::Exact(4)).await.unwrap();
                answer.last(Bytes::from_static(b"body")).await.unwrap();
            }
            "/short" => {
                answer.head(head, Length::Exact(4)).await.unwrap();
                answer.data(Bytes::from_static(b"bod")).await.unwrap();
                assert!(answer.finish(None).await.is_err());
            }
            "/early" => {
                *head.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
                answer.head(head, Length::NONE).await.unwrap();
                answer.finish(None).await.unwrap();
            }
            "/leave" => return Next::Leave(Destination::Echo),
            "/gone" => poll_fn(|cx| answer.poll_gone(cx)).await,
            _ => return Next::NeedsHttp1,
        }
        Next::KeepOpen
    }
}

/// A client, and what becomes of its connection; `during` is what it does.
async fn with_client<T, F: Future<Output = T>>(
    draining: &CancellationToken,
    during: impl FnOnce(SendRequest<Bytes>) -> F,
) -> (T, CloseReason) {
    let (server, client) = tokio::io::duplex(64 * 1024);
    let served = serve(server, IDLE, Paths, draining);
    let asked = async {
        let (requests, connection) = h2::client::handshake::<DuplexStream>(client).await.unwrap();
        let mut connection = pin!(connection);
        let mut during = pin!(during(requests));
        let done = poll_fn(|cx| {
            let _ended = connection.as_mut().poll(cx);
            during.as_mut().poll(cx)
        })
        .await;
        (done, connection.await.is_ok())
    };
    let ((done, _), reason) = tokio::join!(asked, served);
    (done, reason)
}

fn request(method: &str, path: &str) -> Request<()> {
    let uri = format!("https://gw.test{path}");
    Request::builder()
        .method(method)
        .uri(uri)
        .version(Version::HTTP_2)
        .body(())
        .unwrap()
}

async fn send(requests: &SendRequest<Bytes>, request: Request<()>, ends: bool) -> (ResponseFuture, SendStream<Bytes>) {
    requests
        .clone()
        .ready()
        .await
        .unwrap()
        .send_request(request, ends)
        .unwrap()
}

/// The answer, read to its end.
async fn read(answer: ResponseFuture) -> Result<(StatusCode, HeaderMap, Vec<u8>, Option<HeaderMap>), h2::Error> {
    let (head, mut body) = answer.await?.into_parts();
    let mut bytes = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len()).unwrap();
        bytes.extend_from_slice(&data);
    }
    let trailers = body.trailers().await?;
    Ok((head.status, head.headers, bytes, trailers))
}

/// Writes all of it as the server lets it, and then the trailers.
async fn write(stream: &mut SendStream<Bytes>, mut data: Bytes, trailers: Option<HeaderMap>) {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let room = poll_fn(|cx| stream.poll_capacity(cx)).await.unwrap().unwrap();
        let piece = data.split_to(room.min(data.len()));
        stream.send_data(piece, data.is_empty() && trailers.is_none()).unwrap();
    }
    if let Some(trailers) = trailers {
        stream.send_trailers(trailers).unwrap();
    }
}

#[tokio::test]
async fn bodies_and_trailers_pass_both_ways_and_exchanges_side_by_side() {
    let body = Bytes::from((0..3_000_000_u32).map(|n| (n / 7) as u8).collect::<Vec<_>>());
    let (told, sent) = (CancellationToken::new(), body.clone());
    let (answers, _) = with_client(&told.clone(), async |requests| {
        let (held, _open) = send(&requests, request("POST", "/echo"), false).await;
        let (first, mut stream) = send(&requests, request("POST", "/echo"), false).await;
        let trailers = HeaderMap::from_iter([(http::header::ETAG, HeaderValue::from_static("x"))]);
        let ((), first) = tokio::join!(write(&mut stream, sent, Some(trailers)), read(first));
        let (second, _) = send(&requests, request("GET", "/hints"), true).await;
        let second = read(second).await;
        drop(held);
        told.cancel();
        (first.unwrap(), second.unwrap())
    })
    .await;
    let ((status, _, echoed, trailers), (_, headers, hinted, _)) = answers;
    assert_eq!(status, StatusCode::OK);
    assert!(echoed == body);
    assert_eq!(trailers.unwrap()["etag"], "x");
    assert_eq!(hinted, b"body");
    assert_eq!(headers["content-length"], "4");
    assert!(headers.contains_key("date") && !headers.contains_key("connection"));
}

#[tokio::test]
async fn what_is_answered_before_its_body_or_not_at_all_disturbs_nobody() {
    let told = CancellationToken::new();
    let ((), reason) = with_client(&told.clone(), async |requests| {
        let (early, stream) = send(&requests, request("POST", "/early"), false).await;
        assert_eq!(read(early).await.unwrap().0, StatusCode::PAYLOAD_TOO_LARGE);
        drop(stream);
        let (short, _) = send(&requests, request("GET", "/short"), true).await;
        assert_eq!(read(short).await.unwrap_err().reason(), Some(Reason::INTERNAL_ERROR));
        let (other, _) = send(&requests, request("GET", "/tunnel"), true).await;
        assert_eq!(read(other).await.unwrap_err().reason(), Some(Reason::HTTP_1_1_REQUIRED));
        let (gone, mut stream) = send(&requests, request("POST", "/gone"), false).await;
        stream.send_reset(Reason::CANCEL);
        drop(gone);
        let (fine, _) = send(&requests, request("HEAD", "/hints"), true).await;
        let (status, headers, body, _) = read(fine).await.unwrap();
        assert_eq!(
            (status, &headers["content-length"], body),
            (StatusCode::OK, &HeaderValue::from(4), vec![])
        );
        told.cancel();
    })
    .await;
    assert_eq!(reason, CloseReason::Completed);
}

#[tokio::test]
async fn what_is_no_request_of_ours_is_refused() {
    let told = CancellationToken::new();
    with_client(&told.clone(), async |requests| {
        let mut twice = request("GET", "/echo");
        twice.headers_mut().insert(HOST, HeaderValue::from_static("other.test"));
        let mut same = request("GET", "/hints");
        same.headers_mut().insert(HOST, HeaderValue::from_static("GW.test:443"));
        let connect = Request::connect("gw.test:443")
            .version(Version::HTTP_2)
            .body(())
            .unwrap();
        for (request, status) in [(twice, 400), (same, 200), (connect, 405), (request("GET", "?x"), 400)] {
            let (answer, _stream) = send(&requests, request, true).await;
            assert_eq!(read(answer).await.unwrap().0, status);
        }
        told.cancel();
    })
    .await;
}

#[tokio::test]
async fn a_websocket_leaves_http_within_its_stream() {
    let told = CancellationToken::new();
    with_client(&told.clone(), async |requests| {
        let (hints, _) = send(&requests, request("GET", "/hints"), true).await;
        read(hints).await.unwrap();
        let mut asked = request("CONNECT", "/leave");
        asked.extensions_mut().insert(Protocol::from_static("websocket"));
        let (answer, mut stream) = send(&requests, asked, false).await;
        let agreed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
                      Sec-WebSocket-Protocol: binary\r\n\r\nhello";
        stream.send_data(Bytes::from(agreed), false).unwrap();
        let (head, mut body) = answer.await.unwrap().into_parts();
        assert_eq!(
            (head.status, &head.headers["sec-websocket-protocol"]),
            (StatusCode::OK, &HeaderValue::from_static("binary"))
        );
        assert!(!head.headers.contains_key("sec-websocket-accept"));
        assert_eq!(body.data().await.unwrap().unwrap(), "hello");
        stream.send_data(Bytes::from_static(b"world"), true).unwrap();
        assert_eq!(body.data().await.unwrap().unwrap(), "world");
        while let Some(data) = body.data().await {
            assert!(data.unwrap().is_empty());
        }
        told.cancel();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_ends_when_it_is_idle() {
    let began = clock::now();
    let ((), reason) = with_client(&CancellationToken::new(), async |requests| {
        let (hints, _) = send(&requests, request("GET", "/hints"), true).await;
        read(hints).await.unwrap();
        // Held open: a client that drops it ends the connection itself.
        tokio::time::sleep(IDLE * 2).await;
        drop(requests);
    })
    .await;
    assert_eq!(reason, CloseReason::Completed);
    assert!(clock::now() - began < IDLE * 3);
    let (silent, server) = tokio::io::duplex(1000);
    assert_eq!(
        serve(server, IDLE, Paths, &CancellationToken::new()).await,
        CloseReason::Timeout
    );
    drop(silent);
}

/// Counts how often it is woken.
#[derive(Default)]
struct Counted(std::sync::atomic::AtomicUsize);

impl Wake for Counted {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_connection_is_woken_but_for_what_its_turn_is_to_come_for() {
    let task = Arc::new(Counted::default());
    let woken = || task.0.load(Ordering::Relaxed);
    let nudge = Arc::new(Nudge::default());
    let waker = Waker::from(nudge.clone());
    nudge.set_task(&task.clone().into());
    waker.wake_by_ref();
    assert_eq!(woken(), 1, "between two turns");
    nudge.begin();
    waker.wake_by_ref();
    assert_eq!(woken(), 1, "while its exchanges write");
    nudge.end();
    waker.wake_by_ref();
    assert_eq!(woken(), 2, "from its turn on");
}

/// A client that speaks in frames of its own.
struct Raw(DuplexStream);

impl Raw {
    const GOAWAY: u8 = 7;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const SETTINGS: u8 = 4;

    async fn greet(mut io: DuplexStream) -> Self {
        io.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        let mut raw = Self(io);
        raw.say(Self::SETTINGS, 0, 0, &[]).await;
        raw
    }

    async fn say(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        let mut frame = vec![0, 0, length, kind, flags];
        frame.extend_from_slice(&stream.to_be_bytes());
        frame.extend_from_slice(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    /// Asks for `/early`.
    async fn ask(&mut self, stream: u32) {
        // Fields of the static table, and two that are spelled out.
        let fields = b"\x82\x87\x04\x06/early\x01\x07gw.test";
        self.say(Self::HEADERS, 0x5, stream, fields).await;
    }

    /// The next frame of that kind; its stream and payload. `None`: the server has closed.
    async fn next(&mut self, wanted: u8) -> Option<(u32, Vec<u8>)> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let [high, middle, low, kind, _, stream @ ..] = head;
            let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            if kind == wanted {
                return Some((u32::from_be_bytes(stream), payload));
            }
        }
    }

    /// The last stream that counts.
    async fn last(&mut self) -> u32 {
        let (_, payload) = self.next(Self::GOAWAY).await.unwrap();
        u32::from_be_bytes(payload[..4].try_into().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_client_asks_before_it_has_heard_of_the_end_is_answered() {
    let (server, client) = tokio::io::duplex(64 * 1024);
    let draining = CancellationToken::new();
    let asking = async {
        let mut raw = Raw::greet(client).await;
        raw.ask(1).await;
        assert_eq!(raw.next(Raw::HEADERS).await.unwrap().0, 1);
        let began = clock::now();
        draining.cancel();
        assert_eq!(raw.last().await, i32::MAX as u32, "none is the last yet");
        let (_, ping) = raw.next(Raw::PING).await.unwrap();
        raw.say(Raw::PING, 1, 0, &ping).await;
        // In the same breath, and from far away.
        raw.ask(3).await;
        assert_eq!(raw.next(Raw::HEADERS).await.unwrap().0, 3);
        tokio::time::sleep(Duration::from_millis(300)).await;
        raw.ask(5).await;
        assert_eq!(raw.next(Raw::HEADERS).await.unwrap().0, 5);
        assert_eq!(raw.last().await, 5);
        let took = clock::now() - began;
        assert!((CROSSING..CROSSING + LAST_WORDS).contains(&took), "{took:?}");
        assert_eq!(raw.next(Raw::HEADERS).await, None);
    };
    let served = serve(server, IDLE, Paths, &draining);
    let ((), reason) = tokio::join!(asking, served);
    assert_eq!(reason, CloseReason::Completed);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_the_ping_is_not_waited_for() {
    let (server, client) = tokio::io::duplex(64 * 1024);
    let draining = CancellationToken::new();
    draining.cancel();
    let asking = async {
        let mut raw = Raw::greet(client).await;
        assert_eq!(raw.last().await, i32::MAX as u32);
        assert_eq!(raw.next(Raw::HEADERS).await, None);
    };
    let began = clock::now();
    let ((), reason) = tokio::join!(asking, serve(server, IDLE, Paths, &draining));
    assert_eq!(reason, CloseReason::Timeout);
    assert!(clock::now() - began < CROSSING + LAST_WORDS * 2);
}
