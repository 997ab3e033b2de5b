use std::collections::VecDeque;
use std::future::poll_fn;

use proptest::prelude::*;
use tokio::io::ReadBuf;

use super::*;

#[tokio::test]
async fn head_and_body_go_out_in_one_write() {
    let mut exchange = ask(&post(), Length::Exact(5), Wire::default());
    sent(&mut exchange, &["hello"], None).await;
    assert_eq!(
        exchange.io.writes,
        ["POST /a?b HTTP/1.1\r\nHost: a.test\r\nContent-Length: 5\r\n\r\nhello"]
    );
}

#[tokio::test]
async fn a_body_of_unknown_length_is_chunked_and_ends_with_its_last_part() {
    let mut exchange = ask(&post(), Length::Unknown, Wire::default());
    sent(&mut exchange, &["hello"], None).await;
    let head = "POST /a?b HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(exchange.io.writes, [format!("{head}5\r\nhello\r\n0\r\n\r\n")]);
}

#[tokio::test]
async fn trailers_go_behind_the_last_chunk() {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-sum", "1".parse().unwrap());
    let mut exchange = ask(&post(), Length::Unknown, Wire::default());
    sent(&mut exchange, &["hello", "world"], Some(trailers)).await;
    assert!(
        exchange
            .io
            .written()
            .ends_with("\r\n\r\n5\r\nhello\r\n5\r\nworld\r\n0\r\nX-Sum: 1\r\n\r\n")
    );
}

#[tokio::test]
async fn a_stream_that_takes_a_byte_at_a_time_gets_the_same() {
    for length in [Length::Exact(10), Length::Unknown] {
        let [mut slow, mut fast] = [1, usize::MAX]
            .map(|takes| Wire {
                takes,
                ..Wire::default()
            })
            .map(|wire| ask(&post(), length, wire));
        sent(&mut slow, &["hello", "world"], None).await;
        sent(&mut fast, &["hello", "world"], None).await;
        assert_eq!(slow.io.written(), fast.io.written());
    }
}

#[tokio::test]
async fn a_request_without_a_body_says_so_where_one_could_be() {
    for (request, says) in [(get(), false), (post(), true)] {
        let mut exchange = ask(&request, Length::NONE, Wire::default());
        sent(&mut exchange, &[], None).await;
        assert_eq!(exchange.io.written().contains("Content-Length: 0\r\n"), says);
    }
}

#[tokio::test]
async fn a_body_of_another_length_than_announced_is_not_sent_as_if_it_were_whole() {
    let mut exchange = ask(&post(), Length::Exact(5), Wire::default());
    exchange.data(Bytes::from_static(b"hell"));
    exchange.end(None);
    assert!(poll_fn(|cx| exchange.poll_sent(cx)).await.is_err());
    let mut exchange = ask(&post(), Length::Exact(5), Wire::default());
    exchange.data(Bytes::from_static(b"hello!"));
    assert!(poll_fn(|cx| exchange.poll_sent(cx)).await.is_err());
    assert!(!exchange.io.written().contains("hello"));
}

#[tokio::test]
async fn every_informational_head_is_handed_out_before_the_answer() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n\
                  Content-Length: 2\r\n\r\nok";
    let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[answer]));
    for status in [100, 103, 200] {
        assert_eq!(head(&mut exchange).await.unwrap().response.status(), status);
    }
    assert_eq!(body(&mut exchange).await, Ok((b"ok".to_vec(), None)));
}

#[tokio::test]
async fn after_101_the_stream_is_handed_out_with_what_came_behind() {
    let mut request = get();
    request.headers_mut().insert(UPGRADE, "websocket".parse().unwrap());
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nfirst frame";
    let mut exchange = ask(&request, Length::NONE, Wire::sends(&[answer]));
    assert_eq!(head(&mut exchange).await.unwrap().response.status(), 101);
    let (_, early) = exchange.upgrade();
    assert_eq!(early, "first frame");
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_no_answer() {
    let mut exchange = ask(
        &get(),
        Length::NONE,
        Wire::sends(&["HTTP/1.1 101 Switching Protocols\r\n\r\n"]),
    );
    assert_eq!(head(&mut exchange).await.unwrap_err(), Unanswered::Malformed);
}

#[tokio::test]
async fn head_204_and_304_have_no_body_whatever_they_say() {
    let mut request = get();
    *request.method_mut() = Method::HEAD;
    let answers = [
        (request, "200 OK\r\nContent-Length: 12345"),
        (get(), "204 No Content"),
        (get(), "304 Not Modified\r\nContent-Length: 7"),
    ];
    for (request, answer) in answers {
        let mut exchange = ask(
            &request,
            Length::NONE,
            Wire::sends(&[&format!("HTTP/1.1 {answer}\r\n\r\n")]),
        );
        sent(&mut exchange, &[], None).await;
        let head = head(&mut exchange).await.unwrap();
        assert_eq!(head.length, Length::NONE);
        assert!(exchange.is_over());
        assert_eq!(body(&mut exchange).await, Ok((Vec::new(), None)));
        assert!(exchange.into_connection().is_some(), "{answer}");
    }
}

#[tokio::test]
async fn only_a_connection_on_which_all_is_over_serves_another_exchange() {
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            true,
        ),
        (
            "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
            true,
        ),
        ("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false),
        (
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n",
            false,
        ),
        ("HTTP/1.1 200 OK\r\n\r\nok", false),
    ];
    for (answer, reusable) in cases {
        let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[answer]));
        sent(&mut exchange, &[], None).await;
        head(&mut exchange).await.unwrap();
        assert_eq!(body(&mut exchange).await, Ok((b"ok".to_vec(), None)), "{answer}");
        assert_eq!(exchange.into_connection().is_some(), reusable, "{answer}");
    }
}

#[tokio::test]
async fn how_long_the_server_keeps_a_connection_is_told() {
    for (field, seconds) in [
        ("Keep-Alive: timeout=5", Some(5)),
        ("Keep-Alive: max=100, Timeout = 15", Some(15)),
        ("Keep-Alive: timeout=soon", None),
        ("Keep-Alive: 5", None),
        ("X: y", None),
    ] {
        let answer = format!("HTTP/1.1 200 OK\r\n{field}\r\nContent-Length: 0\r\n\r\n");
        let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[&answer]));
        head(&mut exchange).await.unwrap();
        assert_eq!(exchange.keeps().map(|keeps| keeps.as_secs()), seconds, "{field}");
    }
}

#[tokio::test]
async fn an_answer_before_the_end_of_the_request_does_not_free_the_connection() {
    let answer = "HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n";
    let mut exchange = ask(&post(), Length::Exact(10), Wire::sends(&[answer]));
    poll_fn(|cx| exchange.poll_sent(cx)).await.unwrap();
    head(&mut exchange).await.unwrap();
    assert_eq!(body(&mut exchange).await, Ok((Vec::new(), None)));
    assert!(exchange.into_connection().is_none());
}

#[tokio::test]
async fn why_there_is_no_answer_is_told() {
    let huge = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(head::HEAD_MAX));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: x\r\n".repeat(1000));
    let cases = [
        ("", Unanswered::Closed),
        ("HTTP/1.1 200 OK\r\nContent-Le", Unanswered::BrokeOff),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", Unanswered::Malformed),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            Unanswered::Malformed,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            Unanswered::Malformed,
        ),
        ("HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n", Unanswered::Malformed),
        ("HTTP/1.1 200 OK\nA: b\n\n", Unanswered::Malformed),
        (&huge, Unanswered::Malformed),
        (&many, Unanswered::Malformed),
    ];
    for (answer, fault) in cases {
        let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[answer]));
        assert_eq!(head(&mut exchange).await.unwrap_err(), fault, "{answer:.40}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_told_from_one_that_ends() {
    let cases = [
        ("Content-Length: 3\r\n\r\nok", Err(BodyFault::BrokeOff)),
        (
            "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
            Err(BodyFault::BrokeOff),
        ),
        ("Transfer-Encoding: chunked\r\n\r\n2\r\nokx", Err(BodyFault::Malformed)),
        ("\r\nok", Ok((b"ok".to_vec(), None))),
    ];
    for (answer, expected) in cases {
        let mut exchange = ask(&get(), Length::NONE, Wire::sends(&["HTTP/1.1 200 OK\r\n", answer]));
        head(&mut exchange).await.unwrap();
        assert_eq!(body(&mut exchange).await, expected, "{answer}");
    }
}

#[tokio::test]
async fn the_end_is_seen_with_the_last_data() {
    let head_line = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let cases = [
        ("2\r\nok\r\n0\r\n\r\n", true),
        ("2\r\nok\r\n0\r\nX-Sum: 1\r\n\r\n", true),
        ("2\r\nok\r\n0\r\n", false),
        ("2\r\nok\r\n", false),
    ];
    for (answer, over) in cases {
        let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[&format!("{head_line}{answer}")]));
        head(&mut exchange).await.unwrap();
        let data = poll_fn(|cx| exchange.poll_frame(cx)).await;
        assert_eq!(data, Some(Ok(Frame::Data(Bytes::from_static(b"ok")))));
        assert_eq!(exchange.is_over(), over, "{answer}");
        assert_eq!(exchange.is_over(), over, "{answer}");
        let rest = body(&mut exchange).await;
        assert_eq!(rest.is_ok(), over, "{answer}");
        assert_eq!(
            rest.is_ok_and(|(_, trailers)| trailers.is_some()),
            answer.contains("X-Sum")
        );
    }
}

#[tokio::test]
async fn nothing_is_held_while_nothing_comes() {
    let (near, mut far) = tokio::io::duplex(64 * 1024);
    let mut exchange = Connection::new(near).ask(&get(), Length::NONE);
    poll_fn(|cx| {
        assert!(exchange.poll_head(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(exchange.reading.input.capacity(), 0);
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nok";
    tokio::io::AsyncWriteExt::write_all(&mut far, answer).await.unwrap();
    poll_fn(|cx| exchange.poll_head(cx)).await.unwrap();
    drop(poll_fn(|cx| exchange.poll_frame(cx)).await);
    poll_fn(|cx| {
        assert!(exchange.poll_frame(cx).is_pending());
        Poll::Ready(())
    })
    .await;
    assert_eq!(exchange.reading.input.capacity(), 0);
}

#[tokio::test]
async fn a_large_body_is_read_in_large_pieces() {
    let length = 1024 * 1024;
    let head_line = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
    let all = head_line + &"x".repeat(length);
    let mut exchange = ask(&get(), Length::NONE, Wire::sends(&[&all]));
    head(&mut exchange).await.unwrap();
    assert_eq!(body(&mut exchange).await.unwrap().0.len(), length);
    assert!(exchange.io.reads < 20, "{} reads", exchange.io.reads);
}

proptest! {
    /// However an answer is cut, it means the same.
    #[test]
    fn cuts_do_not_matter(cuts in prop::collection::vec(0..120_usize, 0..12), chunked in any::<bool>()) {
        let answer: &[u8] = if chunked {
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
              3\r\nabc\r\n4;x=y\r\ndefg\r\n0\r\nX-Sum: 7\r\n\r\n"
        } else {
            b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nabcdefg"
        };
        let mut pieces = VecDeque::new();
        let mut rest = answer;
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            if !piece.is_empty() {
                pieces.push_back(piece.to_vec());
            }
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push_back(rest.to_vec());
        }
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut exchange = ask(&get(), Length::NONE, Wire { pieces, ..Wire::default() });
            sent(&mut exchange, &[], None).await;
            assert_eq!(head(&mut exchange).await.unwrap().response.status(), 103);
            assert_eq!(head(&mut exchange).await.unwrap().response.status(), 200);
            let (data, trailers) = body(&mut exchange).await.unwrap();
            assert_eq!(data, b"abcdefg");
            assert_eq!(trailers.is_some(), chunked);
            assert!(exchange.into_connection().is_some());
        });
    }
}

fn get() -> Request<()> {
    Request::get("/a?b").header("host", "a.test").body(()).unwrap()
}

fn post() -> Request<()> {
    Request::post("/a?b").header("host", "a.test").body(()).unwrap()
}

fn ask(request: &Request<()>, length: Length, wire: Wire) -> Exchange<Wire> {
    Connection::new(wire).ask(request, length)
}

async fn sent(exchange: &mut Exchange<Wire>, parts: &[&'static str], trailers: Option<HeaderMap>) {
    for part in parts {
        poll_fn(|cx| exchange.poll_ready(cx)).await.unwrap();
        exchange.data(Bytes::from_static(part.as_bytes()));
    }
    exchange.end(trailers.as_ref());
    poll_fn(|cx| exchange.poll_sent(cx)).await.unwrap();
}

async fn head(exchange: &mut Exchange<Wire>) -> Result<Head, Unanswered> {
    poll_fn(|cx| exchange.poll_head(cx)).await
}

async fn body(exchange: &mut Exchange<Wire>) -> Result<(Vec<u8>, Option<HeaderMap>), BodyFault> {
    let (mut bytes, mut trailers) = (Vec::new(), None);
    while let Some(frame) = poll_fn(|cx| exchange.poll_frame(cx)).await {
        match frame? {
            Frame::Data(data) => bytes.extend_from_slice(&data),
            Frame::Trailers(fields) => trailers = Some(fields),
        }
    }
    Ok((bytes, trailers))
}

/// A stream that sends what it was given, piece by piece, and keeps what is written.
#[derive(Debug)]
struct Wire {
    pieces: VecDeque<Vec<u8>>,
    reads: usize,
    writes: Vec<String>,
    /// How much it takes of one write.
    takes: usize,
}

impl Default for Wire {
    fn default() -> Self {
        Self {
            pieces: VecDeque::new(),
            reads: 0,
            writes: Vec::new(),
            takes: usize::MAX,
        }
    }
}

impl Wire {
    fn sends(pieces: &[&str]) -> Self {
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        Self {
            pieces: pieces.map(|piece| piece.as_bytes().to_vec()).collect(),
            ..Self::default()
        }
    }

    fn written(&self) -> String {
        self.writes.concat()
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.reads += 1;
        if let Some(mut piece) = self.pieces.pop_front() {
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.pieces.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut bytes: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        bytes.truncate(self.takes);
        let length = bytes.len();
        self.writes.push(String::from_utf8(bytes).unwrap());
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
