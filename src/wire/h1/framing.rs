//! Where a body begins and ends (RFC 9112 sections 6 and 7), as state machines over bytes.

use bytes::{Buf as _, Bytes, BytesMut};
use http::HeaderMap;

use super::head::{HeadFault, Scan, trailers};
use super::render::{put_fields, put_size};
use crate::wire::{BodyFault, Frame, Length};

/// How a body is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    None,
    /// It has so many bytes.
    Exact(u64),
    /// It comes in chunks.
    Chunked,
    /// It ends with the connection; never a request's.
    UntilClose,
}

impl Framing {
    /// How long the body is, as far as that is known.
    pub fn length(self) -> Length {
        match self {
            Self::None => Length::NONE,
            Self::Exact(length) => Length::Exact(length),
            Self::Chunked | Self::UntilClose => Length::Unknown,
        }
    }

    /// How a body of that length is delimited in HTTP/1.1.
    pub fn of(length: Length) -> Self {
        match length {
            Length::Exact(length) => Self::Exact(length),
            Length::Unknown => Self::Chunked,
        }
    }
}

/// Finds the frames of a body. However the bytes are cut, they mean the same.
///
/// In chunked coding, small chunks that came together make one frame, because each frame costs its reader a write.
#[derive(Clone, Debug)]
pub struct Decoder {
    state: State,
    /// What is left of the chunk, or of a body whose length is known.
    left: u64,
    /// Digits of the chunk's size as far as it was read.
    digits: u8,
    /// Bytes of chunk lines that say nothing, and bytes of the body, which excuse them.
    waste: u64,
    passed: u64,
    /// How far the trailer section was looked through.
    scan: Scan,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A body of known length.
    Exact,
    UntilClose,
    Size,
    /// White space behind a size.
    Space,
    Extension,
    SizeFeed,
    Content,
    ContentReturn,
    ContentFeed,
    Trailers,
    Over,
    Faulty(BodyFault),
}

impl Decoder {
    /// A reader at the beginning of a body.
    pub fn new(framing: Framing) -> Self {
        let (state, left) = match framing {
            Framing::None | Framing::Exact(0) => (State::Over, 0),
            Framing::Exact(length) => (State::Exact, length),
            Framing::Chunked => (State::Size, 0),
            Framing::UntilClose => (State::UntilClose, 0),
        };
        Self {
            state,
            left,
            digits: 0,
            waste: 0,
            passed: 0,
            scan: Scan::default(),
        }
    }

    /// Takes the next frame off the front of `input`; `None` if more has to come, or the body is [over](Self::is_over).
    /// What is left in `input` has to be there again at the next call, with what came behind it. Behind the end of the
    /// body nothing is taken.
    ///
    /// # Errors
    /// The bytes are no chunked coding, or too many of them are beside the body. What follows has no meaning then.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, BodyFault> {
        match self.state {
            State::Exact => {
                let data = self.take(input);
                if self.left == 0 {
                    self.state = State::Over;
                }
                Ok(data.map(Frame::Data))
            }
            State::UntilClose if input.is_empty() => Ok(None),
            State::UntilClose => Ok(Some(Frame::Data(input.split().freeze()))),
            State::Over => Ok(None),
            State::Size
            | State::Space
            | State::Extension
            | State::SizeFeed
            | State::Content
            | State::ContentReturn
            | State::ContentFeed
            | State::Trailers => self.next_of_chunks(input),
            State::Faulty(fault) => Err(fault),
        }
    }

    /// Whether the body is at its end.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The connection is at its end, and with it a body that has no other.
    ///
    /// # Errors
    /// [`BodyFault::BrokeOff`] if more should have come.
    pub fn end(&mut self) -> Result<(), BodyFault> {
        match self.state {
            State::UntilClose | State::Over => {
                self.state = State::Over;
                Ok(())
            }
            State::Faulty(fault) => Err(fault),
            State::Exact
            | State::Size
            | State::Space
            | State::Extension
            | State::SizeFeed
            | State::Content
            | State::ContentReturn
            | State::ContentFeed
            | State::Trailers => Err(BodyFault::BrokeOff),
        }
    }

    /// What is left of a body whose length is known.
    pub fn left(&self) -> Option<u64> {
        match self.state {
            State::Exact => Some(self.left),
            State::Over => Some(0),
            State::UntilClose
            | State::Size
            | State::Space
            | State::Extension
            | State::SizeFeed
            | State::Content
            | State::ContentReturn
            | State::ContentFeed
            | State::Trailers
            | State::Faulty(_) => None,
        }
    }

    fn next_of_chunks(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, BodyFault> {
        let mut gathered = BytesMut::new();
        loop {
            if let Err(fault) = self.pass_lines(input) {
                self.state = State::Faulty(fault);
            }
            if self.state == State::Content && !input.is_empty() {
                let length = self.left.min(input.len() as u64) as usize;
                if gathered.is_empty() && (length >= COPIED_MAX || input.len() <= length + END) {
                    let data = self.take_chunk(input);
                    return Ok(data.map(Frame::Data));
                }
                if length < COPIED_MAX {
                    gathered.extend_from_slice(&input[..length]);
                    drop(self.take_chunk(input));
                    continue;
                }
            }
            if !gathered.is_empty() {
                return Ok(Some(Frame::Data(gathered.freeze())));
            }
            return match self.state {
                State::Trailers => self.trailers(input),
                State::Faulty(fault) => Err(fault),
                State::Exact
                | State::UntilClose
                | State::Size
                | State::Space
                | State::Extension
                | State::SizeFeed
                | State::Content
                | State::ContentReturn
                | State::ContentFeed
                | State::Over => Ok(None),
            };
        }
    }

    fn take_chunk(&mut self, input: &mut BytesMut) -> Option<Bytes> {
        let data = self.take(input);
        if self.left == 0 {
            self.state = State::ContentReturn;
        }
        data
    }

    fn take(&mut self, input: &mut BytesMut) -> Option<Bytes> {
        let length = self.left.min(input.len() as u64) as usize;
        self.left -= length as u64;
        self.passed += length as u64;
        (length > 0).then(|| input.split_to(length).freeze())
    }

    /// Passes everything up to the next content, or to the trailers.
    fn pass_lines(&mut self, input: &mut BytesMut) -> Result<(), BodyFault> {
        let mut passed = 0;
        for byte in input.iter() {
            if matches!(self.state, State::Content | State::Trailers) {
                break;
            }
            self.state = self.step(*byte)?;
            passed += 1;
        }
        input.advance(passed);
        Ok(())
    }

    fn step(&mut self, byte: u8) -> Result<State, BodyFault> {
        match (self.state, byte) {
            (State::Size, _) => self.step_size(byte),
            (State::Space | State::Extension, b'\r') => Ok(State::SizeFeed),
            (State::Space, b';') => self.wasted(State::Extension),
            (State::Space | State::Extension, b' ' | b'\t') => self.wasted(self.state),
            (State::Extension, 0x21..=0x7e | 0x80..) => self.wasted(State::Extension),
            (State::SizeFeed, b'\n') if self.left == 0 => Ok(State::Trailers),
            (State::SizeFeed, b'\n') => Ok(State::Content),
            (State::ContentReturn, b'\r') => Ok(State::ContentFeed),
            (State::ContentFeed, b'\n') => {
                self.digits = 0;
                Ok(State::Size)
            }
            _ => Err(BodyFault::Malformed),
        }
    }

    fn step_size(&mut self, byte: u8) -> Result<State, BodyFault> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' if self.digits > 0 => return Ok(State::SizeFeed),
            b';' | b' ' | b'\t' if self.digits > 0 => {
                self.state = State::Space;
                return self.step(byte);
            }
            _ => return Err(BodyFault::Malformed),
        };
        if self.digits == DIGITS_MAX {
            return Err(BodyFault::TooLarge);
        }
        self.digits += 1;
        self.left = self.left << 4 | u64::from(digit);
        if self.left == 0 && self.digits > 1 {
            return self.wasted(State::Size);
        }
        Ok(State::Size)
    }

    /// Counts a byte that says nothing. A long body may have more of them than a short one: some servers pad each size.
    fn wasted(&mut self, then: State) -> Result<State, BodyFault> {
        self.waste += 1;
        if self.waste > WASTE_MAX + self.passed / EXCUSE {
            return Err(BodyFault::TooLarge);
        }
        Ok(then)
    }

    fn trailers(&mut self, input: &mut BytesMut) -> Result<Option<Frame>, BodyFault> {
        let end = match self.scan.end(input) {
            Ok(Some(end)) if end <= TRAILERS_MAX => end,
            Ok(None) if input.len() <= TRAILERS_MAX => return Ok(None),
            Ok(_) | Err(HeadFault::TooLarge) => return self.fail(BodyFault::TooLarge),
            Err(_) => return self.fail(BodyFault::Malformed),
        };
        if end == 2 {
            input.advance(end);
            self.state = State::Over;
            return Ok(None);
        }
        let section = input.split_to(end).freeze();
        match trailers(&section) {
            Ok(trailers) => {
                self.state = State::Over;
                Ok(Some(Frame::Trailers(trailers)))
            }
            Err(HeadFault::TooLarge) => self.fail(BodyFault::TooLarge),
            Err(_) => self.fail(BodyFault::Malformed),
        }
    }

    fn fail(&mut self, fault: BodyFault) -> Result<Option<Frame>, BodyFault> {
        self.state = State::Faulty(fault);
        Err(fault)
    }
}

/// Says what goes before, between and behind the bytes of a body that is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoder {
    framing: Framing,
    /// What is still to come of a body whose length is known.
    left: u64,
}

/// More bytes than were announced, or fewer: the connection cannot go on, since its peer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a body of another length than announced")]
pub struct LengthFault;

impl Encoder {
    /// A writer at the beginning of a body.
    pub fn new(framing: Framing) -> Self {
        let left = match framing {
            Framing::Exact(length) => length,
            Framing::None | Framing::Chunked | Framing::UntilClose => 0,
        };
        Self { framing, left }
    }

    /// Puts what goes before `length` bytes of the body, and returns what goes behind them. `None`: this body has no
    /// bytes on the wire, whoever sends them, as after `HEAD`.
    ///
    /// # Errors
    /// [`LengthFault`] for more than was announced; nothing of it may be written.
    pub fn data(&mut self, length: usize, out: &mut Vec<u8>) -> Result<Option<&'static [u8]>, LengthFault> {
        match self.framing {
            Framing::None => Ok(None),
            Framing::Exact(_) => {
                self.left = self.left.checked_sub(length as u64).ok_or(LengthFault)?;
                Ok(Some(b""))
            }
            // A chunk of none would be the last.
            Framing::Chunked if length == 0 => Ok(Some(b"")),
            Framing::Chunked => {
                put_size(length, out);
                Ok(Some(b"\r\n"))
            }
            Framing::UntilClose => Ok(Some(b"")),
        }
    }

    /// Puts what goes behind the body.
    ///
    /// # Errors
    /// [`LengthFault`] for less than was announced.
    pub fn end(&mut self, trailers: Option<&HeaderMap>, out: &mut Vec<u8>) -> Result<(), LengthFault> {
        match self.framing {
            Framing::None | Framing::UntilClose => {}
            Framing::Exact(_) if self.left > 0 => return Err(LengthFault),
            Framing::Exact(_) => {}
            Framing::Chunked => {
                out.extend_from_slice(b"0\r\n");
                if let Some(trailers) = trailers {
                    put_fields(trailers, out);
                }
                out.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }
}

/// As many digits as a number of 64 bits has.
const DIGITS_MAX: u8 = 16;
/// The most bytes of a body's chunk lines that say nothing (extensions, padding), and how many bytes of the body excuse
/// one more.
const WASTE_MAX: u64 = 16 * 1024;
const EXCUSE: u64 = 64;
/// The largest trailer section, in bytes.
const TRAILERS_MAX: usize = 16 * 1024;
/// Chunks below this are copied together.
const COPIED_MAX: usize = 16 * 1024;
/// What follows the last chunk at its shortest.
const END: usize = b"\r\n0\r\n\r\n".len();

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    /// What a stream holds: the body, its trailers, and the bytes behind its end; or the fault and the body before it.
    type Read = (Vec<u8>, Option<HeaderMap>, Result<Option<Vec<u8>>, BodyFault>);

    fn read(framing: Framing, stream: &[u8], cuts: &[usize]) -> Read {
        let (mut decoder, mut input, mut rest) = (Decoder::new(framing), BytesMut::new(), stream);
        let (mut body, mut trailers) = (Vec::new(), None);
        let mut cuts = cuts.iter().copied().cycle();
        loop {
            match decoder.next(&mut input) {
                Err(fault) => return (body, trailers, Err(fault)),
                Ok(Some(Frame::Data(data))) => {
                    assert!(!data.is_empty() && trailers.is_none());
                    body.extend_from_slice(&data);
                }
                Ok(Some(Frame::Trailers(fields))) => assert!(trailers.replace(fields).is_none()),
                Ok(None) if decoder.is_over() => {
                    input.extend_from_slice(rest);
                    return (body, trailers, Ok(Some(input.to_vec())));
                }
                Ok(None) if rest.is_empty() => return (body, trailers, decoder.end().map(|()| None)),
                Ok(None) => {
                    let (piece, after) = rest.split_at(cuts.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
                    input.extend_from_slice(piece);
                    rest = after;
                }
            }
        }
    }

    fn chunked(stream: &str) -> Result<(String, String), BodyFault> {
        let (body, _, end) = read(Framing::Chunked, stream.as_bytes(), &[usize::MAX]);
        let end = end?.expect("chunked coding says where it ends");
        Ok((String::from_utf8(body).unwrap(), String::from_utf8(end).unwrap()))
    }

    #[test]
    fn a_body_ends_where_its_framing_says() {
        let ended = |framing| read(framing, b"hello, more", &[2]);
        assert_eq!(
            ended(Framing::Exact(5)),
            (b"hello".to_vec(), None, Ok(Some(b", more".to_vec())))
        );
        assert_eq!(ended(Framing::None), (vec![], None, Ok(Some(b"hello, more".to_vec()))));
        assert_eq!(ended(Framing::UntilClose), (b"hello, more".to_vec(), None, Ok(None)));
        assert_eq!(
            ended(Framing::Exact(50)),
            (b"hello, more".to_vec(), None, Err(BodyFault::BrokeOff))
        );
        let owned = |body: &str, end: &str| Ok((body.to_owned(), end.to_owned()));
        assert_eq!(chunked("5\r\nhello\r\n0\r\n\r\nGET /"), owned("hello", "GET /"));
        assert_eq!(
            chunked("2;x=\"y\" ;z\r\nhe\r\n003 \t\r\nllo\r\n0;last\r\n\r\n"),
            owned("hello", "")
        );
        assert_eq!(
            chunked("A\r\n0123456789\r\n0a\r\n0123456789\r\n00\r\n\r\n\r\n"),
            owned(&"0123456789".repeat(2), "\r\n")
        );
        assert_eq!(chunked("5\r\nhello\r\n0\r\n\r"), Err(BodyFault::BrokeOff));
    }

    #[test]
    fn every_other_line_end_and_size_is_refused() {
        for stream in [
            "5\nhello\r\n0\r\n\r\n",
            "5\r\rhello",
            "5\r\nhello\n0\r\n\r\n",
            "5\r\nhello!",
            "5\r\nhello\r\r",
            "5;x\nhello\r\n0\r\n\r\n",
            "5;\0\r\nhello",
            "5;\u{7f}\r\nhello",
            "\r\n5",
            " 5\r\nhello",
            "-5\r\nhello",
            "+5\r\nhello",
            "0x5\r\nhello",
            "5 5\r\nhello",
            "g\r\n",
            ";x\r\n",
            "0\r\n\n",
            "0\n\n",
            "0\r\nA: b\n\r\n",
            "0\r\nA : b\r\n\r\n",
            "0\r\nA: b\r\n c\r\n\r\n",
            "0\r\nContent-Length: 5\r\n\r\n",
            "0\r\nTransfer-Encoding: chunked\r\n\r\n",
            "0\r\nHost: x\r\n\r\n",
        ] {
            assert_eq!(chunked(stream), Err(BodyFault::Malformed), "{stream:?}");
        }
        for stream in [
            "00000000000000005\r\nhello".to_owned(),
            "fffffffffffffffff\r\n".to_owned(),
            format!("1;{}\r\nx", "a".repeat(17_000)),
            format!("{}0\r\n\r\n", "00000001\r\nx\r\n".repeat(3_000)),
            format!("0\r\nA: {}\r\n\r\n", "b".repeat(17_000)),
            format!("0\r\n{}\r\n", "A: b\r\n".repeat(129)),
        ] {
            assert_eq!(chunked(&stream), Err(BodyFault::TooLarge), "{stream:.40}");
        }
        let padded = format!(
            "{}0\r\n\r\n",
            format!("00001000\r\n{}\r\n", "x".repeat(4096)).repeat(5_000)
        );
        assert!(chunked(&padded).is_ok(), "a server that pads its sizes");
    }

    #[test]
    fn small_chunks_that_came_together_are_one_frame_and_large_ones_are_not_copied() {
        let stream = format!(
            "4\r\nlong\r\n2\r\ner\r\n8000\r\n{}\r\n1\r\n!\r\n0\r\n\r\n",
            "x".repeat(0x8000)
        );
        let mut input = BytesMut::from(stream.as_bytes());
        let mut decoder = Decoder::new(Framing::Chunked);
        let mut frames = Vec::new();
        while let Some(Frame::Data(data)) = decoder.next(&mut input).unwrap() {
            frames.push(data.len());
        }
        assert_eq!((frames, decoder.is_over()), (vec![6, 0x8000, 1], true));
    }

    #[test]
    fn a_body_of_another_length_than_announced_is_not_written() {
        let mut out = Vec::new();
        let mut encoder = Encoder::new(Framing::Exact(5));
        assert_eq!(encoder.data(3, &mut out), Ok(Some(&b""[..])));
        assert_eq!(encoder.end(None, &mut out), Err(LengthFault));
        assert_eq!(encoder.data(3, &mut out), Err(LengthFault));
        assert_eq!(Encoder::new(Framing::None).data(3, &mut out), Ok(None));
        assert!(out.is_empty());
    }

    fn encode(framing: Framing, pieces: &[Vec<u8>], trailers: Option<&HeaderMap>) -> Vec<u8> {
        let (mut encoder, mut out) = (Encoder::new(framing), Vec::new());
        for piece in pieces {
            let behind = encoder.data(piece.len(), &mut out).unwrap().unwrap();
            out.extend_from_slice(piece);
            out.extend_from_slice(behind);
        }
        encoder.end(trailers, &mut out).unwrap();
        out
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..8),
            cuts in proptest::collection::vec(1..90usize, 1..9),
            trailer in proptest::option::of("[ -~]{1,20}"),
        ) {
            let body = pieces.concat();
            let trailers = trailer.map(|value| {
                HeaderMap::from_iter([(http::header::ETAG, HeaderValue::try_from(value.trim()).unwrap())])
            });
            let stream = encode(Framing::Chunked, &pieces, trailers.as_ref());
            prop_assert_eq!(read(Framing::Chunked, &stream, &cuts), (body.clone(), trailers, Ok(Some(vec![]))));
            let exact = Framing::Exact(body.len() as u64);
            prop_assert_eq!(read(exact, &encode(exact, &pieces, None), &cuts), (body, None, Ok(Some(vec![]))));
        }

        #[test]
        fn arbitrary_bytes_mean_the_same_however_they_are_cut(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), Just(b';'), Just(b':'), any::<u8>()],
                0..200,
            ),
            start in prop_oneof![Just(""), Just("1\r\nx\r\n"), Just("0\r\n"), Just("0\r\nA:b\r\n")],
            cuts in proptest::collection::vec(1..9usize, 1..9),
        ) {
            let bytes = [start.as_bytes(), &bytes].concat();
            let whole = read(Framing::Chunked, &bytes, &[usize::MAX]);
            prop_assert_eq!(read(Framing::Chunked, &bytes, &cuts), whole);
        }
    }
}
