//! HTTP/1.x on one connection: served until it ends or a request leaves HTTP with it, closed so that the client can read
//! the last answer whole.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer;
use super::departure::Destination;
use crate::fault::{CloseReason, WebFault};
use crate::wire::boxed::boxed;
use crate::wire::h1::server::{End, Server};
use crate::wire::{Sink, Source};

/// What becomes of a connection after an exchange.
pub(super) enum Next {
    /// It goes on, unless the answer said that it does not.
    KeepOpen,
    /// It ends.
    Close(CloseReason),
    /// The request is not answered: it leaves HTTP, and takes the connection with it.
    Leave(Destination),
    /// The request is not answered: it has to be made again over HTTP/1.1.
    NeedsHttp1,
}

/// Whoever answers the requests of a connection, whichever version of HTTP brought them.
pub(super) trait Respond: Sync {
    /// Answers a request. What it does not read of the body is read away or refused by the connection.
    fn respond<B: Source, A: Sink>(
        &self,
        request: Request<()>,
        body: B,
        answer: A,
    ) -> impl Future<Output = Next> + Send;

    /// Answers what is no request; the connection ends after it.
    fn refuse<A: Sink>(&self, fault: WebFault, mut answer: A) -> impl Future<Output = ()> + Send {
        async move {
            let words = answer::closing(answer::text(fault.status(), fault.words()));
            // Whether it is read or not, there is nothing else to say.
            let _ = answer::send(&mut answer, words).await;
        }
    }
}

/// Serves requests until a side ends the connection or a request leaves with it, and then that to its end; says why it
/// ended.
///
/// An idle connection ends when the drain begins. One that comes later is answered once: the balancer must be able to see
/// that the node drains. What has left HTTP ends as its destination does.
pub(super) async fn serve<IO, R>(
    io: IO,
    head_timeout: Duration,
    respond: R,
    draining: &CancellationToken,
) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
    R: Respond,
{
    // Each part in a box of its own: a tunnel stays for hours, and nothing of the server is to stay with it.
    match boxed(|| speak(io, head_timeout, respond, draining)).await {
        Spoken::Ended { io, reason } => {
            if let Some(io) = io {
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
        /// The connection, if there is somebody to take leave of.
        io: Option<IO>,
        reason: CloseReason,
    },
    Left {
        io: IO,
        to: Destination,
        /// What came after the request's head, as it came.
        early: Bytes,
    },
}

async fn speak<IO, R>(io: IO, head_timeout: Duration, respond: R, draining: &CancellationToken) -> Spoken<IO>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send,
    R: Respond,
{
    let mut server = Server::new(io);
    let closing = server.closing();
    // Asked once: the server is its waker. Asked at each turn, one lock would be shared by all connections.
    let ends_it = Waker::from(closing.clone());
    let mut drained = pin!(draining.cancelled());
    if drained.as_mut().poll(&mut Context::from_waker(&ends_it)).is_ready() {
        closing.begin_with_the_answer();
    }
    loop {
        let next = match server.next(head_timeout).await {
            Ok((request, body, answer)) => respond.respond(request, body, answer).await,
            Err(End::Refused(fault)) => {
                respond.refuse(fault, server.refusal()).await;
                Next::Close(reason_of(fault))
            }
            Err(End::Completed | End::Unread) => Next::Close(CloseReason::Completed),
            Err(End::Idle) => Next::Close(CloseReason::Timeout),
            Err(End::BrokeOff) => Next::Close(CloseReason::ClientClosed),
        };
        match next {
            Next::KeepOpen => {}
            Next::NeedsHttp1 => {
                return Spoken::Ended {
                    io: None,
                    reason: CloseReason::Internal,
                };
            }
            Next::Close(reason) => {
                // An answer that broke off must not look like one that ended.
                let is_whole = server.is_answered() && reason != CloseReason::ClientClosed;
                let io = is_whole.then(|| server.into_io());
                return Spoken::Ended { io, reason };
            }
            Next::Leave(to) => {
                return match server.leave().await {
                    Ok((io, early)) => Spoken::Left { io, to, early },
                    Err(mut io) => {
                        // Somebody has read of the body what nobody can give back.
                        let refusal = answer::head(&answer::bad_request());
                        let written = io.write_all(&refusal).await;
                        Spoken::Ended {
                            io: written.is_ok().then_some(io),
                            reason: CloseReason::Malformed,
                        }
                    }
                };
            }
        }
    }
}

/// Closes our side first and reads on for a moment: closing with bytes unread would reset the connection, and the client
/// would lose the answer that it has not read yet.
pub(super) async fn linger<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) {
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

/// Why a connection ends on which no request came.
fn reason_of(fault: WebFault) -> CloseReason {
    if fault == WebFault::ClientTimeout {
        CloseReason::Timeout
    } else if fault == WebFault::HeadTooLarge {
        CloseReason::TooLarge
    } else {
        CloseReason::Malformed
    }
}

/// How long, and how many bytes, a closed connection is read on.
const LINGER: Duration = Duration::from_secs(5);
const LINGER_BYTES: usize = 16 * 1024 * 1024;

#[cfg(test)]
pub(super) mod tests {
    use http::StatusCode;
    use tokio::io::DuplexStream;

    use super::super::Speaker;
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

    /// Has `/leave` leave after so many polls, `/read` leave after a look into its body; answers everything else with a
    /// length that grows with the path.
    struct Leaving(usize);

    impl Respond for Leaving {
        async fn respond<B: Source, A: Sink>(&self, request: Request<()>, mut body: B, mut answer: A) -> Next {
            for _ in 0..self.0 {
                tokio::task::yield_now().await;
            }
            match request.uri().path() {
                "/leave" => return Next::Leave(Destination::Echo),
                "/read" => {
                    let _ = body.frame().await;
                    return Next::Leave(Destination::Echo);
                }
                _ => {}
            }
            let mut response = answer::text(StatusCode::OK, "");
            *response.body_mut() = Bytes::from("stayed\n".repeat(request.uri().path().len()));
            while let Some(frame) = body.frame().await {
                frame.unwrap();
            }
            answer::send(&mut answer, response).await.unwrap();
            Next::KeepOpen
        }
    }

    /// A client with room for `room` bytes on the way, and what becomes of its connection.
    fn connect(room: usize, waits: usize) -> (DuplexStream, impl Future<Output = CloseReason>) {
        let (client, server) = tokio::io::duplex(room);
        let served = async move {
            let draining = CancellationToken::new();
            serve(server, Duration::from_secs(5), Leaving(waits), &draining).await
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

    #[test]
    fn a_connection_that_waits_has_no_room_for_what_it_may_be_asked() {
        fn room<F>(_: fn(DuplexStream, Duration, Speaker<'static>, &'static CancellationToken) -> F) -> usize {
            size_of::<F>()
        }
        assert!(room(speak) <= 3 * 1024, "{}", room(speak));
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
    async fn a_head_with_bare_line_feeds_is_refused() {
        let (client, served) = connect(1000, 0);
        let stream = HEAD.replace("\r\n", "\n") + "5\r\nhello";
        let (text, reason) = tokio::join!(talk(client, [stream.as_bytes()]), served);
        assert!(text.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{text}");
        assert!(text.contains("\r\nConnection: close\r\n"), "{text}");
        assert_eq!(reason, CloseReason::Malformed);
    }

    #[tokio::test]
    async fn a_request_that_waited_leaves_whole_too() {
        let rest = "5\r\nhello";
        let (client, served) = connect(1000, 3);
        let stream = format!("{HEAD}{rest}");
        let (text, _) = tokio::join!(talk(client, [stream.as_bytes()]), served);
        assert_eq!(text, rest);
    }

    #[tokio::test]
    async fn a_request_whose_body_was_read_does_not_leave() {
        for rest in ["5\r\nhello", "5\r\n", "5", "0\r\n\r\n", "nonsense\r\n\r\n"] {
            let (client, served) = connect(1000, 0);
            let stream = format!("{}{rest}", HEAD.replace("/leave", "/read"));
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
