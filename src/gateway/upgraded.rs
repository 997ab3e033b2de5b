//! What has left HTTP on a stream that shares its connection with others (RFC 8441, RFC 9220): its bytes travel as the
//! bodies of an exchange that is not over until they are.

use std::future::pending;
use std::io;

use bytes::{Bytes, BytesMut};
use http::header::SEC_WEBSOCKET_ACCEPT;
use http::{Method, Response, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};

use super::departure::Destination;
use crate::fault::CloseReason;
use crate::wire::h1::framing::{Decoder, Framing};
use crate::wire::h1::head::{self, Scan};
use crate::wire::{Frame, Gone, Sink, Source};

/// Goes on with the exchange to its end, and says why it ended. The destination believes to have a connection of
/// HTTP/1.1: its `101` is told as `200`, any other answer as it is.
pub(super) async fn over_stream<B: Source, A: Sink>(to: Destination, body: B, mut answer: A) -> CloseReason {
    let (mut near, far) = tokio::io::duplex(PIPE);
    let (reader, writer) = tokio::io::split(far);
    let to_its_end = async {
        let reason = to.go_on(&mut near, Bytes::new()).await;
        drop(near);
        Ok(reason)
    };
    let up = async {
        up(body, writer).await;
        pending::<()>().await;
    };
    tokio::select! {
        ended = async { tokio::try_join!(to_its_end, down(reader, &mut answer)) } => {
            ended.map_or(CloseReason::ClientClosed, |(reason, ())| reason)
        }
        () = up => CloseReason::ClientClosed,
    }
}

/// The client's bytes, to their end.
async fn up<B: Source>(mut body: B, mut writer: WriteHalf<DuplexStream>) {
    while let Some(Ok(Frame::Data(data))) = body.frame().await {
        if writer.write_all(&data).await.is_err() {
            return;
        }
    }
    // Whoever reads there sees the end, and says goodbye.
    let _ = writer.shutdown().await;
}

/// The answer and what follows it, to its end.
async fn down<A: Sink>(mut reader: ReadHalf<DuplexStream>, answer: &mut A) -> Result<(), Gone> {
    let (mut input, mut scan) = (BytesMut::new(), Scan::default());
    let end = loop {
        match scan.end(&input) {
            Ok(Some(end)) => break end,
            Ok(None) => {}
            Err(_) => return Err(Gone),
        }
        if !matches!(read(&mut reader, &mut input).await, Ok(1..)) {
            return Err(Gone);
        }
    };
    let head = head::response(&input.split_to(end).freeze(), &Method::GET).map_err(|_| Gone)?;
    let (mut response, mut framing): (Response<()>, _) = (head.response, head.framing);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        *response.status_mut() = StatusCode::OK;
        response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        framing = Framing::UntilClose;
    }
    answer.head(response, framing.length()).await?;
    answer.flush().await?;
    let mut decoder = Decoder::new(framing);
    loop {
        match decoder.next(&mut input) {
            Ok(Some(Frame::Data(data))) => answer.data(data).await?,
            Ok(Some(Frame::Trailers(_))) => {}
            Ok(None) if decoder.is_over() => return answer.finish(None).await,
            Ok(None) => match read(&mut reader, &mut input).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => decoder.end().map_err(|_| Gone)?,
            },
            Err(_) => return Err(Gone),
        }
    }
}

/// Reads as much as there is. Without room of its own the buffer would grow by a few bytes each time, and each time be a
/// frame.
async fn read(reader: &mut ReadHalf<DuplexStream>, input: &mut BytesMut) -> io::Result<usize> {
    input.reserve(PIPE);
    reader.read_buf(input).await
}

/// What may wait in each direction, in bytes.
const PIPE: usize = 16 * 1024;
