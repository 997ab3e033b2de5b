//! HTTP/1.1 on one connection: served until it ends, closed so that the client can read the last answer whole.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::answer::Reply;
use crate::fault::CloseReason;

/// Serves requests until a side ends the connection; says why it ended.
///
/// An idle connection ends when the drain begins. One that comes later is answered once: the balancer must be able to see
/// that the node drains.
pub(super) async fn serve<IO, F, R>(
    io: IO,
    head_timeout: Duration,
    respond: F,
    draining: &CancellationToken,
) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin,
    F: Fn(Request<Incoming>) -> R + Unpin,
    R: Future<Output = Result<Response<Reply>, Infallible>>,
{
    let late = draining.is_cancelled();
    let mut connection = Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .half_close(true)
        .keep_alive(!late)
        .title_case_headers(true)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(io), service_fn(|request| Box::pin(respond(request))));
    let served = {
        let mut served = pin!(poll_fn(|cx| connection.poll_without_shutdown(cx)));
        tokio::select! {
            served = &mut served => Some(served),
            () = draining.cancelled(), if !late => None,
        }
    };
    let served = match served {
        Some(served) => served,
        None => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    let io = connection.into_parts().io.into_inner();
    let reason = served.map_or_else(|fault| reason_of(&fault), |()| CloseReason::Completed);
    if reason != CloseReason::ClientClosed {
        Box::pin(linger(io)).await;
    }
    reason
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
