//! HTTP/1.1 from the client's end: one exchange after another on a connection to a server.
//!
//! Both directions are polled by whoever has the exchange, in one task. The head of a request is written together with
//! the first part of its body if that is there. Room for reading is held only while bytes are in it.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, UPGRADE};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::framing::{Decoder, Encoder, Framing};
use super::head::{self, Scan};
use super::render::put_request;
use crate::wire::{BodyFault, Frame, Length, Unanswered};

/// A connection to a server that is asked nothing. It holds no buffer.
#[derive(Debug)]
pub struct Connection<IO> {
    io: IO,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Connection<IO> {
    /// A connection on which nothing was sent yet.
    pub fn new(io: IO) -> Self {
        Self { io }
    }

    /// The stream.
    pub fn io(&mut self) -> &mut IO {
        &mut self.io
    }

    /// Begins an exchange: `request`, whose body is as long as `length`. Nothing is written before the exchange is polled.
    ///
    /// `Connection` goes out as it is; framing is that of `length`, whatever the fields say.
    pub fn ask(self, request: &Request<()>, length: Length) -> Exchange<IO> {
        let framing = match length {
            Length::NONE if !says_length(request) => Framing::None,
            Length::Exact(_) | Length::Unknown => Framing::of(length),
        };
        let mut out = Vec::with_capacity(HEAD_ROOM);
        put_request(request, framing, &mut out);
        Exchange {
            io: self.io,
            writing: Writing {
                out,
                written: 0,
                data: Bytes::new(),
                behind: b"",
                began: false,
                unflushed: true,
                encoder: Encoder::new(framing),
                queued: Queued::Part,
            },
            reading: Reading {
                input: BytesMut::new(),
                room: SMALL,
                heard: false,
                at_end: false,
                fault: None,
            },
            stage: Stage::Head(Scan::default()),
            method: request.method().clone(),
            upgrades: request.headers().contains_key(UPGRADE),
            persistent: true,
            keeps: None,
        }
    }
}

/// Whether a request without a body says so: if it did, or if its method would have one (RFC 9110 section 8.6).
fn says_length(request: &Request<()>) -> bool {
    let method = request.method();
    *method == Method::POST
        || *method == Method::PUT
        || *method == Method::PATCH
        || request.headers().contains_key(CONTENT_LENGTH)
}

/// The `timeout` of `Keep-Alive`, by which many servers say when they will close.
fn keeps(headers: &HeaderMap) -> Option<Duration> {
    let field = headers.get(KEEP_ALIVE)?.to_str().ok()?;
    let mut parameters = field.split(',').filter_map(|parameter| parameter.split_once('='));
    let (_, seconds) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("timeout"))?;
    Some(Duration::from_secs(seconds.trim().parse::<u32>().ok()?.into()))
}

/// One exchange. Dropped before its end, it closes the connection.
///
/// The request: [`poll_ready`](Self::poll_ready), then [`data`](Self::data), and so on; one [`end`](Self::end); and
/// [`poll_sent`](Self::poll_sent) until all is out. The answer: [`poll_head`](Self::poll_head) until it is final, then
/// [`poll_frame`](Self::poll_frame). The two do not wait for each other.
#[derive(Debug)]
pub struct Exchange<IO> {
    io: IO,
    writing: Writing,
    reading: Reading,
    stage: Stage,
    method: Method,
    upgrades: bool,
    /// Whether the connection can serve another exchange, as far as the answer's head says.
    persistent: bool,
    /// How long the server keeps it for that.
    keeps: Option<Duration>,
}

/// What has not been written.
#[derive(Debug)]
struct Writing {
    /// The head, or what goes before a part of the body.
    out: Vec<u8>,
    /// How much of it is written.
    written: usize,
    /// A part of the body.
    data: Bytes,
    /// What goes behind it.
    behind: &'static [u8],
    /// Something was written: the server may have seen some of the request.
    began: bool,
    /// Something was written that the stream may still hold.
    unflushed: bool,
    encoder: Encoder,
    queued: Queued,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queued {
    /// More of the request will come.
    Part,
    /// All that was to be sent is written or in the queue.
    All,
    /// The body was not the one that was announced.
    Short,
}

/// What was read and not understood yet.
#[derive(Debug)]
struct Reading {
    input: BytesMut,
    /// How much is read at once.
    room: usize,
    /// The server has sent something.
    heard: bool,
    at_end: bool,
    /// Came behind what was read last.
    fault: Option<io::Error>,
}

#[derive(Debug)]
enum Stage {
    Head(Scan),
    Body {
        decoder: Decoder,
        /// Found while looking for the end.
        ahead: Option<Result<Frame, BodyFault>>,
    },
    /// HTTP is over.
    Upgraded,
}

/// The head of a final answer.
#[derive(Debug)]
pub struct Head {
    /// The head, with the fields as they came.
    pub response: Response<()>,
    /// How long the body is. None after `HEAD`, 204 and 304, whatever the fields say.
    pub length: Length,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Exchange<IO> {
    /// Ready when the next part of the body can be taken: the one before is written, or is the head, which waits for it.
    ///
    /// # Errors
    /// The server reads no more. Its answer may still come.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let writing = &self.writing;
        if !writing.began && writing.data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        self.writing.poll_write(&mut self.io, cx)
    }

    /// Takes the next part of the body.
    pub fn data(&mut self, data: Bytes) {
        let writing = &mut self.writing;
        debug_assert!(writing.data.is_empty(), "asked whether it is ready");
        match writing.encoder.data(data.len(), &mut writing.out) {
            Ok(Some(behind)) => {
                writing.data = data;
                writing.behind = behind;
            }
            Ok(None) => {}
            Err(_) => writing.queued = Queued::Short,
        }
    }

    /// Takes the end of the body. May follow [`data`](Self::data) at once, and is written with it then.
    pub fn end(&mut self, trailers: Option<&HeaderMap>) {
        let writing = &mut self.writing;
        if writing.queued != Queued::Part {
            return;
        }
        // Behind data that still waits.
        let mut end = Vec::new();
        let waits = !(writing.data.is_empty() && writing.behind.is_empty());
        let out = if waits { &mut end } else { &mut writing.out };
        writing.queued = match writing.encoder.end(trailers, out) {
            Ok(()) => Queued::All,
            Err(_) => Queued::Short,
        };
        if end == LAST_CHUNK && writing.behind == CHUNK_END {
            writing.behind = DATA_AND_LAST_CHUNK;
        } else if !end.is_empty() {
            writing.join(&end);
        }
    }

    /// Writes what was taken; ready when all of it is out.
    ///
    /// # Errors
    /// The server reads no more. Its answer may still come.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.writing.poll_write(&mut self.io, cx))?;
        if self.writing.unflushed {
            ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.writing.unflushed = false;
        }
        match self.writing.queued {
            Queued::Part | Queued::All => Poll::Ready(Ok(())),
            Queued::Short => Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
        }
    }

    /// Whether some of the request may have reached the server.
    pub fn began(&self) -> bool {
        self.writing.began
    }

    /// The next head: informational ones, and one that is not. After `101` the stream is [the caller's](Self::upgrade).
    ///
    /// # Errors
    /// There will be none. The exchange is over.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Unanswered>> {
        let Stage::Head(scan) = &mut self.stage else {
            return Poll::Ready(Err(Unanswered::Malformed));
        };
        let end = loop {
            match scan.end(&self.reading.input) {
                Ok(Some(end)) => break end,
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(Unanswered::Malformed)),
            }
            match ready!(self.reading.poll_fill(&mut self.io, cx)) {
                Ok(read) if read > 0 => {}
                Ok(_) | Err(_) if self.reading.heard => return Poll::Ready(Err(Unanswered::BrokeOff)),
                Ok(_) | Err(_) => return Poll::Ready(Err(Unanswered::Closed)),
            }
        };
        *scan = Scan::default();
        let bytes = self.reading.input.split_to(end).freeze();
        let Ok(head) = head::response(&bytes, &self.method) else {
            return Poll::Ready(Err(Unanswered::Malformed));
        };
        let status = head.response.status();
        if status == StatusCode::SWITCHING_PROTOCOLS {
            if !self.upgrades {
                return Poll::Ready(Err(Unanswered::Malformed));
            }
            self.stage = Stage::Upgraded;
        } else if !status.is_informational() {
            self.persistent = head.persistent;
            self.keeps = keeps(head.response.headers());
            self.stage = Stage::Body {
                decoder: Decoder::new(head.framing),
                ahead: None,
            };
        }
        Poll::Ready(Ok(Head {
            response: head.response,
            length: head.framing.length(),
        }))
    }

    /// The next frame of the answer's body; `None` after the last.
    ///
    /// # Errors
    /// The rest will not come.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        let Stage::Body { decoder, ahead } = &mut self.stage else {
            return Poll::Ready(None);
        };
        if let Some(found) = ahead.take() {
            return Poll::Ready(Some(found));
        }
        loop {
            match decoder.next(&mut self.reading.input) {
                Ok(None) if decoder.is_over() => return Poll::Ready(None),
                Ok(None) => {}
                Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                Err(fault) => return Poll::Ready(Some(Err(fault))),
            }
            self.reading.expect(decoder.left());
            match ready!(self.reading.poll_fill(&mut self.io, cx)) {
                Ok(read) if read > 0 => {}
                Ok(_) => return Poll::Ready(decoder.end().err().map(Err)),
                Err(_) => return Poll::Ready(Some(Err(BodyFault::BrokeOff))),
            }
        }
    }

    /// Whether no more data will come: the body's end, and trailers if it has any, are already here.
    pub fn is_over(&mut self) -> bool {
        let Stage::Body { decoder, ahead } = &mut self.stage else {
            return false;
        };
        if ahead.is_none() && !decoder.is_over() && !self.reading.input.is_empty() {
            *ahead = decoder.next(&mut self.reading.input).transpose();
        }
        decoder.is_over() && !matches!(ahead, Some(Ok(Frame::Data(_)) | Err(_)))
    }

    /// How long the server says that it keeps the connection while nothing is asked.
    pub fn keeps(&self) -> Option<Duration> {
        self.keeps
    }

    /// The connection, for another exchange; `None` if it cannot serve one.
    pub fn into_connection(self) -> Option<Connection<IO>> {
        let Stage::Body { decoder, .. } = &self.stage else {
            return None;
        };
        let sent = self.writing.queued == Queued::All && self.writing.is_empty() && !self.writing.unflushed;
        // Bytes behind the answer belong to none.
        let read = decoder.is_over() && self.reading.is_at_rest();
        (self.persistent && sent && read).then_some(Connection { io: self.io })
    }

    /// The stream after `101`, and what the server sent behind that.
    pub fn upgrade(self) -> (IO, Bytes) {
        (self.io, self.reading.input.freeze())
    }
}

impl Writing {
    fn is_empty(&self) -> bool {
        self.written == self.out.len() && self.data.is_empty() && self.behind.is_empty()
    }

    /// Copies everything that waits into one piece, with `end` behind it.
    fn join(&mut self, end: &[u8]) {
        self.out.extend_from_slice(&self.data);
        self.out.extend_from_slice(self.behind);
        self.out.extend_from_slice(end);
        self.data = Bytes::new();
        self.behind = b"";
    }

    fn poll_write(&mut self, io: &mut (impl AsyncWrite + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            let out = &self.out[self.written..];
            let written = if self.data.is_empty() && self.behind.is_empty() {
                Pin::new(&mut *io).poll_write(cx, out)
            } else {
                let parts = [out, &self.data, self.behind].map(IoSlice::new);
                let from = usize::from(out.is_empty());
                Pin::new(&mut *io).poll_write_vectored(cx, &parts[from..])
            };
            let written = ready!(written)?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.began = true;
            self.unflushed = true;
            self.advance(written);
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        let of_out = written.min(self.out.len() - self.written);
        self.written += of_out;
        let of_data = (written - of_out).min(self.data.len());
        if of_data == self.data.len() {
            // Dropped now, so that its room can be used for the next part.
            self.data = Bytes::new();
        } else {
            self.data.advance(of_data);
        }
        self.behind = &self.behind[written - of_out - of_data..];
    }
}

impl Reading {
    /// Reads some; 0 at the end of the stream. In bulk, as much as is there: TLS gives one record at a time.
    fn poll_fill(&mut self, io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Err(fault));
        }
        if self.room == SMALL {
            return self.poll_fill_little(io, cx);
        }
        if self.input.capacity() - self.input.len() < self.room {
            self.input.reserve(self.room);
        }
        let mut filled = 0;
        while filled < self.room {
            match pin!(io.read_buf(&mut self.input)).poll(cx) {
                Poll::Ready(Ok(0)) => {
                    self.at_end = true;
                    break;
                }
                Poll::Ready(Ok(read)) => filled += read,
                Poll::Ready(Err(fault)) if filled > 0 => {
                    self.fault = Some(fault);
                    break;
                }
                Poll::Pending if filled > 0 => break,
                Poll::Ready(Err(fault)) => return Poll::Ready(Err(fault)),
                Poll::Pending => {
                    // Held while nothing comes, it would be held by every connection that waits.
                    if self.input.is_empty() {
                        self.input = BytesMut::new();
                    }
                    return Poll::Pending;
                }
            }
        }
        self.note(filled);
        Poll::Ready(Ok(filled))
    }

    /// The same by way of the stack, where little is expected, and nothing at first: room is made for what came, and for
    /// nothing else.
    fn poll_fill_little(&mut self, io: &mut (impl AsyncRead + Unpin), cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut scratch = [MaybeUninit::uninit(); SMALL];
        let mut buffer = ReadBuf::uninit(&mut scratch);
        if Pin::new(io).poll_read(cx, &mut buffer)?.is_pending() {
            if self.input.is_empty() {
                self.input = BytesMut::new();
            }
            return Poll::Pending;
        }
        let filled = buffer.filled().len();
        self.input.extend_from_slice(buffer.filled());
        self.at_end = filled == 0;
        self.note(filled);
        Poll::Ready(Ok(filled))
    }

    fn note(&mut self, filled: usize) {
        if filled > 0 {
            self.heard = true;
            self.room = if filled < SMALL { SMALL } else { LARGE };
        }
    }

    /// Whether nothing came that was not understood.
    fn is_at_rest(&self) -> bool {
        self.input.is_empty() && !self.at_end && self.fault.is_none()
    }

    /// Sets how much is read at once by how much is still to come, if that is known.
    fn expect(&mut self, left: Option<u64>) {
        if let Some(left) = left {
            self.room = usize::try_from(left).unwrap_or(LARGE).clamp(1, LARGE);
        }
    }
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Room for the head of a request.
const HEAD_ROOM: usize = 1024;
/// How much is read at once: of heads and bodies that come in small pieces, and of those that come in bulk.
const SMALL: usize = 8 * 1024;
const LARGE: usize = 64 * 1024;
/// What ends a chunk, a body without trailers, and both.
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
const DATA_AND_LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

#[cfg(test)]
mod tests;
