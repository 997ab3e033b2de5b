//! The framing of a tunnel in HTTP: chunked transfer coding (RFC 9112, section 7.1).
//!
//! Reading is a state machine over bytes, whatever their segmentation, that holds none of them: it says which of them
//! are content. It is stricter than it would have to be where two readers could disagree: a line ends with CRLF, a size
//! has at most sixteen digits, a trailer is a field, and what comes beside the content is bounded for each chunk.

use std::fmt;

/// Reads chunked transfer coding.
#[derive(Clone, Debug, Default)]
pub struct Deframer {
    state: State,
    /// What is left of the chunk, or its size as far as it was read.
    size: u64,
    /// How many digits the size has, or how many octets were passed over since.
    passed: u16,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    SizeSpace,
    Extension,
    SizeEnd,
    Content,
    ContentCr,
    ContentLf,
    Trailer,
    TrailerName,
    TrailerValue,
    TrailerEnd,
    LastLf,
    Over,
}

impl Deframer {
    /// A reader at the beginning of a body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes bytes off the front of `input`: up to the end of the next piece of content, which it returns, or all of
    /// them. After the end of the body nothing is taken.
    ///
    /// # Errors
    /// The bytes are no chunked coding, or too much of them is beside the content. What follows has no meaning then.
    pub fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, FramingFault> {
        while let [byte, rest @ ..] = *input
            && !self.is_over()
        {
            if self.state == State::Content {
                let length = usize::try_from(self.size).unwrap_or(usize::MAX).min(input.len());
                let (content, rest) = input.split_at(length);
                *input = rest;
                self.size -= length as u64;
                if self.size == 0 {
                    self.state = State::ContentCr;
                }
                return Ok(Some(content));
            }
            self.state = self.step(self.state, *byte)?;
            *input = rest;
        }
        Ok(None)
    }

    /// Whether the body is at its end.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    fn step(&mut self, state: State, byte: u8) -> Result<State, FramingFault> {
        match (state, byte) {
            (State::Size, _) => self.step_size(byte),
            (State::SizeSpace | State::Extension, b'\r') => Ok(State::SizeEnd),
            (State::SizeSpace, b' ' | b'\t') => self.pass(byte, MAX_EXTENSIONS, state),
            (State::Extension, _) | (State::SizeSpace, b';') => self.pass(byte, MAX_EXTENSIONS, State::Extension),
            (State::SizeEnd, b'\n') if self.size == 0 => {
                self.passed = 0;
                Ok(State::Trailer)
            }
            (State::SizeEnd, b'\n') => Ok(State::Content),
            (State::ContentCr, b'\r') => Ok(State::ContentLf),
            (State::ContentLf, b'\n') => {
                self.passed = 0;
                Ok(State::Size)
            }
            (State::Trailer, b'\r') => Ok(State::LastLf),
            (State::Trailer | State::TrailerName, _) if is_of_a_name(byte) => {
                self.pass(byte, MAX_TRAILERS, State::TrailerName)
            }
            (State::TrailerName, b':') => self.pass(byte, MAX_TRAILERS, State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerEnd),
            (State::TrailerValue, b'\t' | b' '..=b'~' | 0x80..) => self.pass(byte, MAX_TRAILERS, State::TrailerValue),
            (State::TrailerEnd, b'\n') => Ok(State::Trailer),
            (State::Trailer | State::TrailerName | State::TrailerValue, _) if byte != b'\n' => {
                Err(FramingFault::Trailer)
            }
            (State::LastLf, b'\n') => Ok(State::Over),
            _ => Err(FramingFault::LineEnd),
        }
    }

    fn step_size(&mut self, byte: u8) -> Result<State, FramingFault> {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            b'\r' | b';' | b' ' | b'\t' if self.passed > 0 => {
                self.passed = 0;
                return self.step(State::SizeSpace, byte);
            }
            _ => return Err(FramingFault::Size),
        };
        if self.passed == 0 {
            self.size = 0;
        }
        if self.passed == MAX_DIGITS {
            return Err(FramingFault::TooLong);
        }
        self.passed += 1;
        self.size = self.size << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn pass(&mut self, byte: u8, limit: u16, then: State) -> Result<State, FramingFault> {
        if byte == b'\n' {
            return Err(FramingFault::LineEnd);
        }
        if self.passed == limit {
            return Err(FramingFault::TooLong);
        }
        self.passed += 1;
        Ok(then)
    }
}

/// Whether a name of a field may have `byte` (RFC 9110, section 5.6.2).
fn is_of_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Why bytes are no chunked transfer coding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FramingFault {
    /// Not a size in hexadecimal.
    Size,
    /// A line or a chunk does not end with CRLF.
    LineEnd,
    /// What stands where trailers do is no field.
    Trailer,
    /// A size, an extension or the trailer is too long.
    TooLong,
}

impl fmt::Display for FramingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Size => "not a chunk size",
            Self::LineEnd => "no CRLF where one has to be",
            Self::Trailer => "a trailer that is no field",
            Self::TooLong => "a chunk with too much beside its content",
        })
    }
}

impl std::error::Error for FramingFault {}

/// As many digits as a number of 64 bits has.
const MAX_DIGITS: u16 = 16;
/// The most octets of extensions that a chunk may have. No client of a tunnel is known to send any.
const MAX_EXTENSIONS: u16 = 256;
/// The most octets of trailer fields, which nobody reads.
const MAX_TRAILERS: u16 = 4096;

#[cfg(test)]
mod tests {
    use std::io;

    use http_body_util::BodyExt;
    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use proptest::prelude::*;

    use super::*;

    /// The content of `stream`, cut at the given lengths, and whether its end was there.
    fn read(stream: &[u8], cuts: &[usize]) -> Result<(Vec<u8>, bool), FramingFault> {
        let (mut deframer, mut rest, mut content) = (Deframer::new(), stream, Vec::new());
        let mut cuts = cuts.iter().copied().cycle();
        while !rest.is_empty() && !deframer.is_over() {
            let (mut piece, after) = rest.split_at(cuts.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
            while let Some(found) = deframer.next(&mut piece)? {
                assert!(!found.is_empty());
                content.extend_from_slice(found);
            }
            assert!(piece.is_empty() || deframer.is_over());
            rest = after;
        }
        Ok((content, deframer.is_over()))
    }

    fn whole(stream: &[u8]) -> Result<(Vec<u8>, bool), FramingFault> {
        read(stream, &[usize::MAX])
    }

    #[test]
    fn content_is_found_and_the_end_too() {
        assert_eq!(whole(b"3\r\nabc\r\n"), Ok((b"abc".to_vec(), false)));
        let stream = b"3;x=\"y\"\r\nabc\r\n000A \t\r\n0123456789\r\n0\r\nTrailer: x\r\nMore: y\r\n\r\n";
        assert_eq!(whole(stream), Ok((b"abc0123456789".to_vec(), true)));
    }

    #[test]
    fn nothing_is_taken_after_the_end() {
        let mut input = &b"0\r\n\r\nGET / HTTP/1.1\r\n"[..];
        let mut deframer = Deframer::new();
        assert_eq!(deframer.next(&mut input), Ok(None));
        assert!(deframer.is_over());
        assert_eq!(input, b"GET / HTTP/1.1\r\n");
    }

    #[test]
    fn content_in_one_piece_is_not_cut() {
        let stream = b"5\r\n\r\n0\r\n\r\n";
        let mut input = &stream[..];
        assert_eq!(Deframer::new().next(&mut input), Ok(Some(&b"\r\n0\r\n"[..])));
    }

    #[test]
    fn every_other_line_end_is_refused() {
        for stream in [
            &b"3\r\rabc"[..],
            b"3;x\nabc",
            b"3\r\nabc\n",
            b"3\r\nabcd",
            b"3\r\nabc\r\r",
            b"0\r\n\n",
            b"0\r\nTrailer: x\n",
            b"0\r\nTrailer: x\r\r",
            b"0\r\nTrailer\n",
            b"0\r\n\r\r",
        ] {
            assert_eq!(
                whole(stream),
                Err(FramingFault::LineEnd),
                "{:?}",
                stream.escape_ascii().to_string()
            );
        }
        for stream in [
            &b"\r\n"[..],
            b"3\nabc",
            b";x\r\n",
            b" 3\r\n",
            b"-3\r\n",
            b"0x3\r\n",
            b"3\r\nabc\r\n\r\n",
        ] {
            assert_eq!(
                whole(stream),
                Err(FramingFault::Size),
                "{:?}",
                stream.escape_ascii().to_string()
            );
        }
    }

    #[test]
    fn a_trailer_that_is_no_field_is_refused() {
        for trailer in [
            "Trailer\r\n",
            ": x\r\n",
            " Folded: x\r\n",
            "Trailer : x\r\n",
            "Trailer: \0",
            "a\x7f: x\r\n",
        ] {
            let stream = format!("0\r\nA: b\r\n{trailer}\r\n");
            assert_eq!(whole(stream.as_bytes()), Err(FramingFault::Trailer), "{trailer:?}");
        }
    }

    #[test]
    fn what_is_beside_the_content_is_bounded() {
        assert_eq!(whole(b"ffffffffffffffff\r\nx"), Ok((b"x".to_vec(), false)));
        assert_eq!(whole(b"0000000000000001\r\nx"), Ok((b"x".to_vec(), false)));
        assert_eq!(whole(b"00000000000000001"), Err(FramingFault::TooLong));
        let extended = |length| whole(format!("1;{}\r\nx", "a".repeat(length)).as_bytes());
        assert!(extended(usize::from(MAX_EXTENSIONS) - 1).is_ok());
        assert_eq!(extended(usize::from(MAX_EXTENSIONS)), Err(FramingFault::TooLong));
        let trailed = |length| whole(format!("0\r\nA:{}\r\n\r\n", "a".repeat(length)).as_bytes());
        assert!(trailed(usize::from(MAX_TRAILERS) - 2).is_ok());
        assert_eq!(trailed(usize::from(MAX_TRAILERS) - 1), Err(FramingFault::TooLong));
        let fields = "0\r\n".to_owned() + &"A: b\r\n".repeat(usize::from(MAX_TRAILERS));
        assert_eq!(whole(fields.as_bytes()), Err(FramingFault::TooLong));
    }

    proptest! {
        #[test]
        fn content_survives_any_segmentation(
            sent in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..300), 0..12),
            cuts in proptest::collection::vec(1..90usize, 1..20),
        ) {
            let mut stream = Vec::new();
            for chunk in &sent {
                stream.extend_from_slice(format!("{:x};e\r\n", chunk.len()).as_bytes());
                stream.extend_from_slice(chunk);
                stream.extend_from_slice(b"\r\n");
            }
            stream.extend_from_slice(b"0\r\n\r\n");
            prop_assert_eq!(read(&stream, &cuts), Ok((sent.concat(), true)));
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_mean_the_same_in_any_segmentation(
            bytes in proptest::collection::vec(
                prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b'0'), Just(b';'), any::<u8>()],
                0..200,
            ),
            cuts in proptest::collection::vec(1..9usize, 1..9),
        ) {
            prop_assert_eq!(read(&bytes, &cuts), whole(&bytes));
        }

        /// Whatever is read here to its end, the HTTP library reads the same way.
        #[test]
        fn a_body_that_is_read_means_the_same_to_the_http_library(
            sent in proptest::collection::vec("[a-z\r\n0;]{1,20}", 0..4),
            beside in "(;[a-z]{0,3}|[ \t])?",
            trailers in proptest::collection::vec("[a-z(: \t]{0,3}:?[a-z \t:\x7fé]{0,3}\r\n", 0..3),
            wrong in proptest::option::of((any::<prop::sample::Index>(), "[\r\n01;:ax ]")),
        ) {
            let chunks = sent.iter().map(|chunk| format!("{:x}{beside}\r\n{chunk}\r\n", chunk.len()));
            let mut stream = chunks.collect::<String>().into_bytes();
            stream.extend_from_slice(format!("0\r\n{}\r\n", trailers.concat()).as_bytes());
            if let Some((place, byte)) = wrong {
                let place = place.index(stream.len());
                stream[place] = byte.as_bytes()[0];
            }
            if let Ok((content, true)) = whole(&stream) {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                prop_assert_eq!(runtime.block_on(by_the_http_library(stream)), Some(content));
            }
        }
    }

    async fn by_the_http_library(chunked: Vec<u8>) -> Option<Vec<u8>> {
        let head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let sent = tokio::io::join(io::Cursor::new([&head[..], &chunked].concat()), tokio::io::sink());
        let content = parking_lot::Mutex::new(None);
        let service = service_fn(async |request: http::Request<hyper::body::Incoming>| {
            let body = request.into_body().collect().await?.to_bytes();
            *content.lock() = Some(body.to_vec());
            Ok::<_, hyper::Error>(http::Response::new(String::new()))
        });
        let served = http1::Builder::new()
            .keep_alive(false)
            .half_close(true)
            .serve_connection(TokioIo::new(sent), service);
        // Whether the connection ends well is another matter: the bytes behind the body may be anything.
        drop(served.await);
        content.into_inner()
    }
}
