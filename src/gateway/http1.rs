//! HTTP/1.1 on one connection: served until it ends or a request leaves HTTP with it, closed so that the client can read
//! the last answer whole.

use std::convert::Infallible;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::{self, Reply};
use super::departure::{Departure, Destination};
use super::headwise::{Gate, Headwise};
use crate::fault::CloseReason;

/// What becomes of a request.
pub(super) enum Outcome {
    /// It is answered, and the connection goes on.
    Answer(Response<Reply>),
    /// It leaves HTTP, and takes the connection with it.
    Leave(Departure),
}

/// Serves requests until a side ends the connection or a request leaves with it, and then that to its end; says why it
/// ended.
///
/// An idle connection ends when the drain begins. One that comes later is answered once: the balancer must be able to see
/// that the node drains. What has left HTTP ends as its destination does.
pub(super) async fn serve<IO, F, R>(
    io: IO,
    head_timeout: Duration,
    respond: F,
    draining: &CancellationToken,
) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R + Unpin,
    R: Future<Output = Outcome>,
{
    // Each part in a box of its own: a tunnel stays for hours, and nothing of the server is to stay with it.
    match Box::pin(speak(io, head_timeout, respond, draining)).await {
        Spoken::Ended { io, reason } => {
            if reason != CloseReason::ClientClosed {
                Box::pin(linger(io)).await;
            }
            reason
        }
        Spoken::Left { mut io, to, early } => {
            let reason = Box::pin(to.go_on(&mut io, early)).await;
            // Whoever closed their side may still want the last words.
            Box::pin(linger(io)).await;
            reason
        }
    }
}

/// How HTTP ended on a connection.
enum Spoken<IO> {
    Ended {
        io: IO,
        reason: CloseReason,
    },
    Left {
        io: IO,
        to: Destination,
        /// What came after the request's head, as it came.
        early: Bytes,
    },
}

async fn speak<IO, F, R>(io: IO, head_timeout: Duration, respond: F, draining: &CancellationToken) -> Spoken<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R + Unpin,
    R: Future<Output = Outcome>,
{
    let io = Headwise::new(io);
    let (gate, leaving) = (io.gate().clone(), Arc::new(Mutex::new(None)));
    let service = service_fn(|request| Box::pin(answer_or_leave(respond(request), &gate, &leaving)));
    let mut late = draining.is_cancelled();
    let mut connection = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .half_close(true)
        .keep_alive(!late)
        .title_case_headers(true)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(io), service);
    let mut drained = pin!(draining.cancelled());
    let served = poll_fn(|cx| {
        if !late && drained.as_mut().poll(cx).is_ready() {
            late = true;
            Pin::new(&mut connection).graceful_shutdown();
        }
        match connection.poll_without_shutdown(cx) {
            Poll::Ready(served) => Poll::Ready(Some(served)),
            Poll::Pending if gate.is_clear() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    if matches!(served, Some(Ok(()))) && !gate.is_flushed() {
        // The server is done before its last bytes are out; polled again, it goes on writing them.
        let written = poll_fn(|cx| {
            let _done = connection.poll_without_shutdown(cx);
            if gate.is_flushed() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        });
        let _ = timeout(LINGER, written).await;
    }
    let parts = connection.into_parts();
    let (mut io, early) = parts.io.into_inner().into_parts();
    if let Some(served) = served {
        let reason = served.map_or_else(|fault| reason_of(&fault), |()| CloseReason::Completed);
        return Spoken::Ended { io, reason };
    }
    let departure = leaving.lock().take();
    match (departure, early) {
        (Some(departure), Some(early)) if parts.read_buf.is_empty() => {
            let (to, first) = departure.into_destination();
            match io.write_all(first).await {
                Ok(()) => Spoken::Left { io, to, early },
                Err(_) => Spoken::Ended {
                    io,
                    reason: CloseReason::ClientClosed,
                },
            }
        }
        _ => {
            // The server has read of the body what nobody can give back.
            let refusal = answer::head(&answer::bad_request());
            let written = io.write_all(&refusal).await;
            let reason = written.map_or(CloseReason::ClientClosed, |()| CloseReason::Malformed);
            Spoken::Ended { io, reason }
        }
    }
}

/// The server's view of a request: answered, or never.
async fn answer_or_leave(
    outcome: impl Future<Output = Outcome>,
    gate: &Gate,
    leaving: &Mutex<Option<Departure>>,
) -> Result<Response<Reply>, Infallible> {
    match outcome.await {
        Outcome::Answer(response) => Ok(response),
        Outcome::Leave(mut departure) => {
            // One that is not whole any more goes nowhere, and is refused outside.
            *leaving.lock() = departure.is_untouched().then_some(departure);
            gate.shut();
            pending().await
        }
    }
}

/// Closes our side first and reads on for a moment: closing with bytes unread would reset the connection, and the client
/// would lose the answer that it has not read yet.
async fn linger<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
    let closed = async {
        io.shutdown().await?;
        let mut scratch = [0; 1024];
        let mut left = LINGER_BYTES;
        while left > 0 {
            match io.read(&mut scratch).await? {
                0 => break,
                n => left = left.saturating_sub(n),
            }
        }
        io::Result::Ok(())
    };
    // Whether it worked or the time is over: the connection is gone after this.
    let _ = timeout(LINGER, closed).await;
}

fn reason_of(fault: &hyper::Error) -> CloseReason {
    if fault.is_timeout() {
        CloseReason::Timeout
    } else if fault.is_parse_too_large() {
        CloseReason::TooLarge
    } else if fault.is_parse() {
        CloseReason::Malformed
    } else {
        CloseReason::ClientClosed
    }
}

/// The largest request head, in bytes: room for the cookies of a whole single sign-on.
const HEAD_MAX: usize = 64 * 1024;

/// How long, and how many bytes, a closed connection is read on.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

#[cfg(test)]
pub(super) mod tests {
    use http::StatusCode;
    use http_body_util::BodyExt;
    use tokio::io::DuplexStream;

    use super::*;

    const HEAD: &str = "POST /leave HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

    /// Where a request goes that left: everything comes back.
    pub(in crate::gateway) async fn echo(io: &mut (impl AsyncRead + AsyncWrite + Unpin), early: Bytes) -> CloseReason {
        io.write_all(&early).await.unwrap();
        io.flush().await.unwrap();
        let mut buffer = [0; 100];
        loop {
            let length = io.read(&mut buffer).await.unwrap();
            if length == 0 {
                return CloseReason::Completed;
            }
            io.write_all(&buffer[..length]).await.unwrap();
        }
    }

    /// Has `/leave` leave after `waits` polls; answers everything else with a length that grows with the path.
    async fn respond(request: Request<Incoming>, waits: usize) -> Outcome {
        for _ in 0..waits {
            tokio::task::yield_now().await;
        }
        if request.uri().path() == "/leave" {
            return Outcome::Leave(Departure::new(request, Destination::Echo));
        }
        let mut response = answer::text(StatusCode::OK, "stayed\n");
        *response.body_mut() = Bytes::from("stayed\n".repeat(request.uri().path().len())).into();
        request.into_body().collect().await.unwrap();
        Outcome::Answer(response)
    }

    /// A client with room for `room` bytes on the way, and what becomes of its connection.
    fn connect(room: usize, waits: usize) -> (DuplexStream, impl Future<Output = CloseReason>) {
        let (client, server) = tokio::io::duplex(room);
        let served = async move {
            let draining = CancellationToken::new();
            serve(
                server,
                Duration::from_secs(5),
                |request| respond(request, waits),
                &draining,
            )
            .await
        };
        (client, served)
    }

    /// Sends `pieces`, each by itself, closes that side, and reads to the end.
    async fn talk(mut client: DuplexStream, pieces: impl IntoIterator<Item = &[u8]>) -> String {
        let (mut reader, mut writer) = tokio::io::split(&mut client);
        let mut text = String::new();
        let sent = async {
            for piece in pieces {
                // A server that closes early is seen by what is read.
                drop(writer.write_all(piece).await);
                tokio::task::yield_now().await;
            }
            drop(writer.shutdown().await);
        };
        let (_, read) = tokio::join!(sent, reader.read_to_string(&mut text));
        read.unwrap();
        text
    }

    #[tokio::test]
    async fn a_request_leaves_with_every_byte_after_its_head_however_it_is_cut() {
        let rest = "5\r\nhello\r\n\r\n\r\n0\r\n\r\nwhatever";
        let stream = format!("{HEAD}{rest}");
        for cut in [1, 2, 7, HEAD.len() - 1, HEAD.len(), HEAD.len() + 1, stream.len()] {
            let (client, served) = connect(1000, 0);
            let (text, reason) = tokio::join!(talk(client, stream.as_bytes().chunks(cut)), served);
            assert_eq!((text.as_str(), reason), (rest, CloseReason::Completed), "{cut}");
        }
    }

    #[tokio::test]
    async fn a_later_request_leaves_after_the_answers_before_it_are_out() {
        let first = format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "long".repeat(30));
        let second = "POST /b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\n\r\n";
        let stream = format!("{first}{second}{HEAD}the rest");
        for (room, cut) in [(50, 1), (50, 1000), (10_000, 1000), (10_000, first.len() + 30)] {
            let (client, served) = connect(room, 0);
            let (text, reason) = tokio::join!(talk(client, stream.as_bytes().chunks(cut)), served);
            assert_eq!(reason, CloseReason::Completed);
            assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "{text}");
            assert_eq!(text.matches("stayed").count(), 121 + 2, "{text}");
            assert!(text.ends_with("stayed\nthe rest"), "{text}");
        }
    }

    #[tokio::test]
    async fn the_last_answer_of_a_connection_is_written_whole_to_a_slow_reader() {
        let (client, served) = connect(50, 0);
        let request = format!(
            "GET /{} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
            "long".repeat(30)
        );
        let (text, reason) = tokio::join!(talk(client, request.as_bytes().chunks(50)), served);
        assert_eq!(
            (text.matches("stayed\n").count(), reason),
            (121, CloseReason::Completed),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_head_with_bare_line_feeds_leaves_whole_too() {
        let (client, served) = connect(1000, 0);
        let stream = HEAD.replace("\r\n", "\n") + "5\r\nhello";
        let (text, _) = tokio::join!(talk(client, [stream.as_bytes()]), served);
        assert_eq!(text, "5\r\nhello");
    }

    #[tokio::test]
    async fn a_request_of_which_the_server_has_read_more_does_not_leave() {
        for rest in [
            "5\r\nhello",
            "5\r\n",
            "5",
            "0\r\n\r\n",
            "2\r\n\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            let (client, served) = connect(1000, 3);
            let stream = format!("{HEAD}{rest}");
            let (text, reason) = tokio::join!(talk(client, [stream.as_bytes()]), served);
            assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{rest:?} {text}");
            assert_eq!(
                (text.matches("HTTP/1.1").count(), reason),
                (1, CloseReason::Malformed),
                "{rest:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_request_that_expects_100_gets_it_once_before_it_leaves() {
        let (mut client, served) = connect(1000, 0);
        let asked = async {
            let head = HEAD.replace("Host: x", "Host: x\r\nExpect: 100-continue");
            client.write_all(head.as_bytes()).await.unwrap();
            let mut told = [0; 25];
            client.read_exact(&mut told).await.unwrap();
            assert_eq!(&told, b"HTTP/1.1 100 Continue\r\n\r\n");
            talk(client, [&b"now"[..]]).await
        };
        let (text, _) = tokio::join!(asked, served);
        assert_eq!(text, "now");
    }
}
