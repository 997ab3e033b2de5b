//! A client of bytes against the server, in memory and virtual time.

use std::collections::VecDeque;
use std::io;

use http::header::{CONTENT_LENGTH, ETAG};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::*;
use crate::wire::Sink as _;

const LIMIT: Duration = Duration::from_secs(30);

/// A server and its client.
fn pair() -> (Server<DuplexStream>, DuplexStream) {
    let (server, client) = duplex(1024 * 1024);
    (Server::new(server), client)
}

/// A server to which all of this came at once, and nothing after it.
async fn sent(bytes: impl AsRef<[u8]>) -> (Server<DuplexStream>, DuplexStream) {
    let (server, mut client) = pair();
    client.write_all(bytes.as_ref()).await.unwrap();
    (server, client)
}

/// What the client has got until now, without the dates.
async fn got(client: &mut DuplexStream) -> String {
    let mut bytes = vec![0; 1024 * 1024];
    let length = poll_fn(|cx| {
        let mut buffer = ReadBuf::new(&mut bytes);
        let _ = Pin::new(&mut *client).poll_read(cx, &mut buffer);
        Poll::Ready(buffer.filled().len())
    })
    .await;
    let text = String::from_utf8(bytes[..length].to_vec()).unwrap();
    let is_date = |line: &&str| line.starts_with("Date: ");
    text.split_inclusive("\r\n").filter(|line| !is_date(line)).collect()
}

fn status(status: u16) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = StatusCode::from_u16(status).unwrap();
    head
}

/// Answers the next request with `words`, having read its body or not; what the body was.
async fn serve(server: &mut Server<DuplexStream>, reads: bool, words: &'static str) -> Result<Vec<u8>, End> {
    let (_, mut body, mut answer) = server.next(LIMIT).await?;
    let mut read = Vec::new();
    while reads && let Some(frame) = body.frame().await {
        if let Frame::Data(data) = frame.unwrap() {
            read.extend_from_slice(&data);
        }
    }
    answer
        .head(status(200), Length::Exact(words.len() as u64))
        .await
        .unwrap();
    answer.last(Bytes::from_static(words.as_bytes())).await.unwrap();
    Ok(read)
}

#[tokio::test]
async fn requests_are_answered_in_order_however_many_came_at_once() {
    let stream = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello\r\n\
                  POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nyou\r\n0\r\n\r\n\
                  GET /c HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\nGET /d HTTP/1.1\r\nHost: x\r\n\r\n";
    let (mut server, mut client) = sent(stream).await;
    assert_eq!(serve(&mut server, true, "one").await, Ok(b"hello".to_vec()));
    assert_eq!(serve(&mut server, true, "two").await, Ok(b"you".to_vec()));
    assert_eq!(serve(&mut server, true, "").await, Ok(vec![]));
    assert_eq!(serve(&mut server, true, "").await, Err(End::Completed));
    assert_eq!(
        got(&mut client).await,
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\noneHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\ntwo\
         HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
}

#[tokio::test]
async fn an_answer_is_framed_as_its_client_reads_it() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n";
    for (request, expected) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n", chunked),
        ("HEAD / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"),
        (
            "GET / HTTP/1.0\r\n\r\n",
            "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nbody",
        ),
        (
            "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
            "HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nbody",
        ),
    ] {
        let (mut server, mut client) = sent(request).await;
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        answer.head(status(200), Length::Unknown).await.unwrap();
        answer.data(Bytes::from_static(b"body")).await.unwrap();
        answer.finish(None).await.unwrap();
        assert_eq!(got(&mut client).await, expected, "{request}");
    }
    let (mut server, mut client) = sent("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").await;
    serve(&mut server, true, "body").await.unwrap();
    assert_eq!(
        got(&mut client).await,
        "HTTP/1.0 200 OK\r\nContent-Length: 4\r\nConnection: keep-alive\r\n\r\nbody"
    );
}

#[tokio::test]
async fn answers_that_have_no_body_get_none_whatever_is_sent() {
    for (method, code, declared, expected) in [
        (
            "HEAD",
            200,
            Some("12345"),
            "HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n",
        ),
        ("HEAD", 200, None, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n"),
        (
            "GET",
            304,
            Some("12345"),
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 12345\r\n\r\n",
        ),
        ("GET", 204, Some("12345"), "HTTP/1.1 204 No Content\r\n\r\n"),
    ] {
        let (mut server, mut client) = sent(format!("{method} / HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        let mut head = status(code);
        if let Some(length) = declared {
            head.headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        answer.head(head, Length::Exact(4)).await.unwrap();
        answer.data(Bytes::from_static(b"body")).await.unwrap();
        answer.finish(None).await.unwrap();
        assert_eq!(got(&mut client).await, expected);
        client.shutdown().await.unwrap();
        assert_eq!(server.next(LIMIT).await.err(), Some(End::Completed));
    }
}

#[tokio::test]
async fn trailers_go_to_whom_they_are_of_use() {
    let trailers = HeaderMap::from_iter([(ETAG, HeaderValue::from_static("x"))]);
    for (fields, expected) in [("TE: trailers\r\n", "0\r\nEtag: x\r\n\r\n"), ("", "0\r\n\r\n")] {
        let (mut server, mut client) = sent(format!("GET / HTTP/1.1\r\nHost: x\r\n{fields}\r\n")).await;
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        answer.head(status(200), Length::Unknown).await.unwrap();
        answer.finish(Some(trailers.clone())).await.unwrap();
        let text = got(&mut client).await;
        assert!(text.ends_with(&format!("\r\n\r\n{expected}")), "{text}");
    }
    let (mut server, _client) =
        sent("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nEtag: x\r\n\r\n").await;
    let (_, mut body, _) = server.next(LIMIT).await.unwrap();
    assert_eq!(body.frame().await, Some(Ok(Frame::Data(Bytes::from_static(b"x")))));
    assert_eq!(body.frame().await, Some(Ok(Frame::Trailers(trailers))));
    assert_eq!(body.frame().await, None);
}

const EXPECTS: &str = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
const CONTINUE: &str = "HTTP/1.1 100 Continue\r\n\r\n";

#[tokio::test]
async fn a_client_that_waits_for_100_gets_it_once_when_its_body_is_asked_for() {
    for passed_on in [false, true] {
        let (mut server, mut client) = sent(EXPECTS).await;
        let (_, mut body, mut answer) = server.next(LIMIT).await.unwrap();
        assert!(body.expects());
        assert_eq!(got(&mut client).await, "");
        if passed_on {
            answer.inform(status(100)).await.unwrap();
            assert_eq!(got(&mut client).await, CONTINUE);
        }
        let asked = poll_fn(|cx| Poll::Ready(body.poll_frame(cx).is_pending())).await;
        assert!(asked);
        assert_eq!(got(&mut client).await, if passed_on { "" } else { CONTINUE });
        answer.inform(status(100)).await.unwrap();
        answer.inform(status(103)).await.unwrap();
        client.write_all(b"body").await.unwrap();
        assert_eq!(body.frame().await, Some(Ok(Frame::Data(Bytes::from_static(b"body")))));
        answer.head(status(200), Length::NONE).await.unwrap();
        answer.finish(None).await.unwrap();
        assert_eq!(
            got(&mut client).await,
            "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        );
        client.write_all(EXPECTS.as_bytes()).await.unwrap();
        assert!(server.next(LIMIT).await.is_ok());
    }
}

#[tokio::test]
async fn a_client_that_did_not_wait_for_100_gets_none() {
    let (mut server, mut client) = sent(EXPECTS.to_owned() + "bo").await;
    let (_, mut body, _) = server.next(LIMIT).await.unwrap();
    assert!(body.frame().await.is_some());
    assert!(poll_fn(|cx| Poll::Ready(body.poll_frame(cx).is_pending())).await);
    assert_eq!(got(&mut client).await, "");
}

#[tokio::test]
async fn who_is_answered_instead_of_100_is_not_read_any_more() {
    let (mut server, mut client) = sent(EXPECTS).await;
    let (_, mut body, mut answer) = server.next(LIMIT).await.unwrap();
    answer.head(status(413), Length::NONE).await.unwrap();
    answer.finish(None).await.unwrap();
    assert_eq!(body.frame().await, Some(Err(BodyFault::BrokeOff)));
    assert_eq!(
        got(&mut client).await,
        "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(server.next(LIMIT).await.err(), Some(End::Unread));
}

#[tokio::test]
async fn what_is_not_read_of_a_body_is_read_away_up_to_a_bound() {
    let next = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for (length, chunked, expected) in [
        (100, false, Ok(vec![])),
        (DRAIN_MAX, false, Ok(vec![])),
        (DRAIN_MAX, true, Ok(vec![])),
        (DRAIN_MAX + 1, false, Err(End::Unread)),
        (DRAIN_MAX + 1, true, Err(End::Unread)),
    ] {
        let (framing, body) = if chunked {
            let body = format!("{length:x}\r\n{}\r\n0\r\n\r\n", "x".repeat(length));
            ("Transfer-Encoding: chunked".to_owned(), body)
        } else {
            (format!("Content-Length: {length}"), "x".repeat(length))
        };
        let (mut server, _client) = sent(format!("POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{body}{next}")).await;
        assert_eq!(serve(&mut server, false, "no").await, Ok(vec![]));
        assert_eq!(serve(&mut server, false, "no").await, expected, "{length} {chunked}");
    }
    let (mut server, _client) = sent("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\nx").await;
    assert_eq!(serve(&mut server, false, "no").await, Ok(vec![]));
    assert_eq!(serve(&mut server, false, "no").await, Err(End::Unread));
}

#[tokio::test]
async fn an_answer_of_another_length_than_announced_breaks_off() {
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    for pieces in [&["ab"][..], &["abc", "d"], &["abcd"], &[]] {
        let (mut server, mut client) = sent(get.repeat(2)).await;
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        answer.head(status(200), Length::Exact(3)).await.unwrap();
        let mut written = Ok(());
        for piece in pieces {
            written = answer.data(Bytes::from_static(piece.as_bytes())).await;
        }
        if written.is_ok() {
            assert_eq!(answer.finish(None).await, Err(Gone));
        }
        assert_eq!(server.next(LIMIT).await.err(), Some(End::BrokeOff));
        let text = got(&mut client).await;
        assert!(!text.contains('d') || !text.ends_with('d'), "{text}");
    }
    let (mut server, _client) = sent(get).await;
    drop(server.next(LIMIT).await.unwrap());
    assert_eq!(server.next(LIMIT).await.err(), Some(End::BrokeOff));
}

#[tokio::test]
async fn what_is_no_request_is_refused_and_nothing_after_it_is_read() {
    for (stream, fault) in [
        ("GET / HTTP/1.1\r\nHost: x\r\nA : b\r\n\r\n", WebFault::InvalidRequest),
        ("GET / HTTP/1.1\nHost: x\n\n", WebFault::InvalidRequest),
        ("GET / HTTP/1.1\r\n\r\n", WebFault::InvalidHost),
        ("GET / HTTP/2.0\r\n\r\n", WebFault::InvalidVersion),
        ("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n", WebFault::InvalidMethod),
        (
            &format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(129)),
            WebFault::HeadTooLarge,
        ),
    ] {
        let (mut server, mut client) = sent(stream.to_owned() + "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        assert_eq!(
            server.next(LIMIT).await.err(),
            Some(End::Refused(fault)),
            "{stream:.40}"
        );
        let mut answer = server.refusal();
        answer.head(status(400), Length::Exact(2)).await.unwrap();
        answer.last(Bytes::from_static(b"no")).await.unwrap();
        assert!(server.is_answered());
        assert_eq!(
            got(&mut client).await,
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
        );
        assert_eq!(server.next(LIMIT).await.err(), Some(End::Completed));
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_comes_in_time_or_not_at_all() {
    for (begun, end) in [("", End::Idle), ("GET / HT", End::Refused(WebFault::ClientTimeout))] {
        let (mut server, _client) = sent(format!("GET / HTTP/1.1\r\nHost: x\r\n\r\n{begun}")).await;
        serve(&mut server, true, "first").await.unwrap();
        tokio::time::sleep(LIMIT * 3).await;
        let began = clock::now();
        assert_eq!(server.next(LIMIT).await.err(), Some(end));
        assert_eq!(clock::now() - began, LIMIT);
    }
}

#[tokio::test]
async fn a_client_that_goes_between_requests_has_completed_and_in_one_has_broken_off() {
    for (stream, end) in [
        ("", End::Completed),
        ("\r\n", End::Completed),
        ("GET / HT", End::BrokeOff),
    ] {
        let (mut server, client) = sent(stream).await;
        drop(client);
        assert_eq!(server.next(LIMIT).await.err(), Some(end), "{stream}");
    }
    let (mut server, client) = sent("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nshort").await;
    drop(client);
    let (_, mut body, _) = server.next(LIMIT).await.unwrap();
    assert!(matches!(body.frame().await, Some(Ok(Frame::Data(_)))));
    assert_eq!(body.frame().await, Some(Err(BodyFault::BrokeOff)));
}

#[tokio::test]
async fn a_server_that_closes_ends_between_requests_or_with_the_answer_that_is_due() {
    let get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    let (mut server, _client) = sent("").await;
    let closing = server.closing();
    let (end, ()) = tokio::join!(async { server.next(LIMIT).await.err() }, async {
        tokio::task::yield_now().await;
        closing.begin();
    });
    assert_eq!(end, Some(End::Completed));

    let (mut server, mut client) = sent(get).await;
    let closing = server.closing();
    let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
    closing.begin();
    answer.head(status(204), Length::NONE).await.unwrap();
    answer.finish(None).await.unwrap();
    assert_eq!(
        got(&mut client).await,
        "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(server.next(LIMIT).await.err(), Some(End::Completed));

    let (mut server, mut client) = sent("").await;
    server.closing().begin_with_the_answer();
    let (served, ()) = tokio::join!(serve(&mut server, true, ""), async {
        tokio::task::yield_now().await;
        client.write_all(get.as_bytes()).await.unwrap();
    });
    assert_eq!(served, Ok(vec![]));
    assert_eq!(server.next(LIMIT).await.err(), Some(End::Completed));
}

#[tokio::test]
async fn a_client_is_seen_to_go_while_its_answer_is_prepared() {
    let (mut server, mut client) = sent("GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /next").await;
    let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
    let is_gone = poll_fn(|cx| Poll::Ready(answer.poll_gone(cx).is_ready())).await;
    assert!(!is_gone);
    let gone = poll_fn(|cx| answer.poll_gone(cx));
    let ((), ()) = tokio::join!(gone, async {
        client.write_all(b"...").await.unwrap();
        drop(client);
    });
}

#[tokio::test]
async fn a_connection_leaves_with_everything_behind_the_head() {
    let (mut server, mut client) = sent(EXPECTS.to_owned() + "early").await;
    drop(server.next(LIMIT).await.unwrap());
    let (_io, early) = server.leave().await.unwrap();
    assert_eq!(early, "early");
    assert_eq!(got(&mut client).await, CONTINUE);

    let (mut server, _client) = sent(EXPECTS.to_owned() + "early").await;
    let (_, mut body, _) = server.next(LIMIT).await.unwrap();
    assert!(body.frame().await.is_some());
    assert!(server.leave().await.is_err());
}

/// A connection that takes down what is written at once, and takes no more than `room` at a time.
struct Recorder {
    input: VecDeque<u8>,
    writes: Vec<Vec<u8>>,
    room: usize,
}

impl AsyncRead for Recorder {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let input = &mut self.get_mut().input;
        let length = buffer.remaining().min(input.len());
        if length == 0 {
            return Poll::Pending;
        }
        buffer.put_slice(&input.drain(..length).collect::<Vec<_>>());
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Recorder {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = slices.iter().flat_map(|slice| slice.iter().copied()).take(this.room);
        this.writes.push(bytes.collect());
        Poll::Ready(Ok(this.writes.last().map_or(0, Vec::len)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn recorder(input: &str, room: usize) -> Server<Recorder> {
    Server::new(Recorder {
        input: input.bytes().collect(),
        writes: Vec::new(),
        room,
    })
}

#[tokio::test]
async fn head_and_first_data_go_out_in_one_write_and_the_end_with_the_last() {
    for (length, size) in [(Length::Exact(5), 5), (Length::Unknown, 5), (Length::Unknown, 50_000)] {
        let mut server = recorder("GET / HTTP/1.1\r\nHost: x\r\n\r\n", usize::MAX);
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        answer.head(status(200), length).await.unwrap();
        answer.last(Bytes::from(vec![b'x'; size])).await.unwrap();
        assert_eq!(server.into_io().writes.len(), 1);
    }
    let mut server = recorder("GET / HTTP/1.1\r\nHost: x\r\n\r\n", usize::MAX);
    let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
    answer.head(status(200), Length::Exact(100_000)).await.unwrap();
    answer.data(Bytes::from(vec![b'x'; 50_000])).await.unwrap();
    answer.data(Bytes::from(vec![b'x'; 50_000])).await.unwrap();
    answer.finish(None).await.unwrap();
    assert_eq!(server.into_io().writes.len(), 2);
}

#[tokio::test]
async fn what_is_written_in_parts_arrives_whole() {
    let mut expected = Vec::new();
    for room in [usize::MAX, 1, 7, 100, 3000] {
        let mut server = recorder("GET / HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n", room);
        let (_, _, mut answer) = server.next(LIMIT).await.unwrap();
        answer.inform(status(103)).await.unwrap();
        let mut head = status(200);
        head.headers_mut().insert("date", HeaderValue::from_static("today"));
        answer.head(head, Length::Unknown).await.unwrap();
        for size in [1, 3000, 2, 5000] {
            answer.data(Bytes::from(vec![b'x'; size])).await.unwrap();
        }
        answer
            .finish(Some(HeaderMap::from_iter([(ETAG, HeaderValue::from_static("x"))])))
            .await
            .unwrap();
        let written = server.into_io().writes.concat();
        if expected.is_empty() {
            expected = written;
        } else {
            assert!(written == expected, "{room}");
        }
    }
}

proptest! {
    /// However a stream of requests is cut, it is answered the same.
    #[test]
    fn a_stream_means_the_same_however_it_is_cut(
        requests in proptest::collection::vec(
            prop_oneof![
                Just("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
                Just("\r\nPOST /long HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\nGET / HTTP/"),
                Just("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n\r\n0\r\n\r\n1;x\r\nx\r\n0\r\nA: b\r\n\r\n"),
                Just("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"),
                Just("GET / HTTP/1.1\r\nHost : x\r\n\r\n"),
                Just("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello!"),
            ],
            1..6,
        ),
        reads in any::<bool>(),
        cuts in proptest::collection::vec(1..60usize, 1..6),
    ) {
        let stream = requests.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let whole = runtime.block_on(talk(&stream, &[usize::MAX], reads));
        prop_assert_eq!(runtime.block_on(talk(&stream, &cuts, reads)), whole);
    }
}

/// What a server that echoes makes of a stream: what it wrote, and how it ended.
async fn talk(stream: &str, cuts: &[usize], reads: bool) -> (String, Option<End>) {
    let (mut server, mut client) = pair();
    let (served, ()) = tokio::join!(
        async {
            loop {
                let (request, mut body, mut answer) = match server.next(LIMIT).await {
                    Ok(next) => next,
                    Err(end) => return Some(end),
                };
                let mut echo = request.uri().path().as_bytes().to_vec();
                while reads && let Some(frame) = body.frame().await {
                    match frame {
                        Ok(Frame::Data(data)) => echo.extend_from_slice(&data),
                        Ok(Frame::Trailers(fields)) => echo.extend_from_slice(format!("{fields:?}").as_bytes()),
                        Err(_) => return None,
                    }
                }
                answer
                    .head(status(200), Length::Exact(echo.len() as u64))
                    .await
                    .unwrap();
                answer.last(echo.into()).await.unwrap();
            }
        },
        async {
            let (mut rest, mut cuts) = (stream.as_bytes(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
                rest = after;
            }
            client.shutdown().await.unwrap();
        }
    );
    drop(server);
    (got(&mut client).await, served)
}
