//! The tunnel chunk: the unit that is numbered, acknowledged and sent again.
//!
//! ```text
//! ack     = "A;" ack-id ";"
//! message = "M;" chunk-id ";" [ack-id] ";" hdr-len ";" hdr ";" body-len ";" body ";"
//! data    = "D;" chunk-id ";" [ack-id] ";" channel-id ";" len ";" octets ";"
//! ```
//!
//! Numbers are hexadecimal; upper case is written, both cases are read, no digit at all is zero. The grammar is that of
//! both directions. A sender puts exactly one chunk into one HTTP chunk; a reader takes the stream as bytes, whatever
//! their segmentation. Nothing is allocated for a length before it was held to its limit.

use std::fmt;
use std::ops::Range;

use bytes::buf::Limit;
use bytes::{BufMut, Bytes, BytesMut};

/// The most octets in a data chunk.
pub const MAX_DATA: usize = 10_240;
/// The most octets in the header of a message chunk.
pub const MAX_HEADER: usize = 256;
/// The most octets in the body of a message chunk.
pub const MAX_BODY: usize = 16 * 1024;

/// One tunnel chunk, of either direction.
///
/// `Debug` shows lengths, not contents: messages carry credentials.
#[derive(Clone, PartialEq, Eq)]
pub enum Chunk {
    /// A lone acknowledgement, which has no number of its own.
    Ack {
        /// The highest chunk number received.
        ack: u32,
    },
    /// A control message.
    Message {
        /// The number in its direction, from 1.
        id: u32,
        /// The highest chunk number received, if there is news.
        ack: Option<u32>,
        /// The field with the message's name.
        header: Bytes,
        /// The message's fields.
        body: Bytes,
    },
    /// Octets of a channel.
    Data {
        /// The number in its direction, from 1.
        id: u32,
        /// The highest chunk number received, if there is news.
        ack: Option<u32>,
        /// The channel's number, chosen by the client.
        channel: u32,
        /// The octets, at most [`MAX_DATA`].
        octets: Bytes,
    },
}

impl Chunk {
    /// Writes the chunk; the result is the whole content of one HTTP chunk.
    ///
    /// The caller keeps `header`, `body` and `octets` within [`MAX_HEADER`], [`MAX_BODY`] and [`MAX_DATA`].
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.size_hint());
        match self {
            // An HTTP chunk of less than ten octets stays in the buffer of some clients: hence two digits.
            Self::Ack { ack } => {
                out.put_slice(b"A;");
                if *ack < 0x10 {
                    out.put_u8(b'0');
                }
                put_number(&mut out, *ack);
            }
            Self::Message { id, ack, header, body } => {
                debug_assert!(header.len() <= MAX_HEADER && body.len() <= MAX_BODY);
                out.put_slice(b"M;");
                put_number(&mut out, *id);
                put_optional(&mut out, *ack);
                put_octets(&mut out, header);
                put_octets(&mut out, body);
            }
            Self::Data {
                id,
                ack,
                channel,
                octets,
            } => {
                debug_assert!(octets.len() <= MAX_DATA);
                out.put_slice(b"D;");
                put_number(&mut out, *id);
                put_optional(&mut out, *ack);
                put_number(&mut out, *channel);
                put_octets(&mut out, octets);
            }
        }
        out.freeze()
    }

    fn size_hint(&self) -> usize {
        match self {
            Self::Ack { .. } => 2 + NUMBER,
            Self::Message { header, body, .. } => 2 + 4 * NUMBER + header.len() + 1 + body.len() + 1,
            Self::Data { octets, .. } => ROOM + octets.len() + 1,
        }
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { ack } => write!(f, "A {ack}"),
            Self::Message { id, ack, header, body } => {
                write!(f, "M {id} ack {ack:?} ({} + {} octets)", header.len(), body.len())
            }
            Self::Data {
                id,
                ack,
                channel,
                octets,
            } => {
                write!(f, "D {id} ack {ack:?} channel {channel} ({} octets)", octets.len())
            }
        }
    }
}

/// Octets for one data chunk, with room before them for the chunk's head.
///
/// A socket is read straight into a payload, and the chunk is finished around the octets: they are not copied.
pub struct Payload {
    buffer: BytesMut,
}

impl Payload {
    /// An empty payload with space for `octets`, at most [`MAX_DATA`].
    pub fn with_capacity(octets: usize) -> Self {
        let mut buffer = BytesMut::with_capacity(ROOM + octets.min(MAX_DATA) + 1);
        buffer.put_bytes(0, ROOM);
        Self { buffer }
    }

    /// A payload with a copy of as much of `octets` as fits into one chunk, in a buffer of that size.
    pub fn copy_from(octets: &[u8]) -> Self {
        let taken = &octets[..octets.len().min(MAX_DATA)];
        let mut payload = Self::with_capacity(taken.len());
        payload.buffer.put_slice(taken);
        payload
    }

    /// The octets so far.
    pub fn octets(&self) -> &[u8] {
        &self.buffer[ROOM..]
    }

    /// Where further octets are written, up to [`MAX_DATA`] in all.
    pub fn spare(&mut self) -> Limit<&mut BytesMut> {
        let left = MAX_DATA - self.octets().len();
        (&mut self.buffer).limit(left)
    }

    /// Finishes the data chunk; the result is the whole content of one HTTP chunk.
    pub fn into_chunk(mut self, id: u32, ack: Option<u32>, channel: u32) -> Bytes {
        let mut head = [0; ROOM];
        let mut rest = &mut head[..];
        rest.put_slice(b"D;");
        put_number(&mut rest, id);
        put_optional(&mut rest, ack);
        put_number(&mut rest, channel);
        put_number(&mut rest, u32::try_from(self.octets().len()).unwrap_or(u32::MAX));
        let start = rest.len();
        self.buffer[start..ROOM].copy_from_slice(&head[..ROOM - start]);
        self.buffer.put_u8(b';');
        self.buffer.freeze().slice(start..)
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} octets)", self.octets().len())
    }
}

/// Reads chunks from a stream of bytes in any segmentation.
///
/// A chunk that lies whole in one piece of input is cut out of it without a copy. After a fault the stream has no
/// meaning any more, and the decoder must not be used again.
#[derive(Default)]
pub struct Decoder {
    partial: BytesMut,
    /// What `partial` needs before it is worth looking at it again.
    least: usize,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next chunk from the front of `input`. `None`: the input is used up, the chunk is not whole yet.
    ///
    /// # Errors
    /// The bytes are not the grammar, or a length is over its limit.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<Chunk>, ChunkFault> {
        if self.partial.is_empty() {
            if input.is_empty() {
                return Ok(None);
            }
            match parse(input) {
                Ok(layout) => {
                    let whole = input.split_to(layout.total);
                    return Ok(Some(layout.cut(&whole)));
                }
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Short { least }) => self.least = least,
            }
        }
        while !input.is_empty() {
            let wanted = self.least - self.partial.len();
            self.partial.put(input.split_to(wanted.min(input.len())));
            if self.partial.len() < self.least {
                break;
            }
            match parse(&self.partial) {
                Ok(layout) => return Ok(Some(layout.cut(&std::mem::take(&mut self.partial).freeze()))),
                Err(Stop::Fault(fault)) => return Err(fault),
                Err(Stop::Short { least }) => self.least = least,
            }
        }
        Ok(None)
    }

    /// Whether a chunk has begun and is not whole yet.
    pub fn is_mid_chunk(&self) -> bool {
        !self.partial.is_empty()
    }

    /// The octets held for a chunk that is not whole yet.
    pub fn held(&self) -> usize {
        self.partial.len()
    }
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoder({} octets held)", self.held())
    }
}

/// Bytes that are not a tunnel chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkFault {
    /// The first octet is none of `A`, `M`, `D`.
    #[error("octet {0:#04x} starts no kind of chunk")]
    Kind(u8),
    /// An octet in a number is no hexadecimal digit.
    #[error("octet {0:#04x} in a number")]
    Digit(u8),
    /// A number has more than eight digits.
    #[error("a number of more than eight digits")]
    LongNumber,
    /// A length is over its limit.
    #[error("a length of {length} where {limit} is the limit")]
    TooLong {
        /// The length that the chunk gave.
        length: u32,
        /// What it may be.
        limit: usize,
    },
    /// A field does not end where its length says.
    #[error("a field that does not end where its length says")]
    Unterminated,
}

/// Why [`parse`] has no chunk.
enum Stop {
    /// Not whole: a chunk has at least so many octets.
    Short {
        least: usize,
    },
    Fault(ChunkFault),
}

/// Where the parts of a whole chunk lie.
struct Layout {
    total: usize,
    parts: Parts,
}

enum Parts {
    Ack {
        ack: u32,
    },
    Message {
        id: u32,
        ack: Option<u32>,
        header: Range<usize>,
        body: Range<usize>,
    },
    Data {
        id: u32,
        ack: Option<u32>,
        channel: u32,
        octets: Range<usize>,
    },
}

impl Layout {
    fn cut(self, whole: &Bytes) -> Chunk {
        debug_assert_eq!(whole.len(), self.total);
        match self.parts {
            Parts::Ack { ack } => Chunk::Ack { ack },
            Parts::Message { id, ack, header, body } => Chunk::Message {
                id,
                ack,
                header: whole.slice(header),
                body: whole.slice(body),
            },
            Parts::Data {
                id,
                ack,
                channel,
                octets,
            } => Chunk::Data {
                id,
                ack,
                channel,
                octets: whole.slice(octets),
            },
        }
    }
}

/// Reads the chunk at the front of `bytes`.
fn parse(bytes: &[u8]) -> Result<Layout, Stop> {
    let mut reader = Reader { bytes, at: 1 };
    let kind = *bytes.first().ok_or(Stop::Short { least: 2 })?;
    if !matches!(kind, b'A' | b'M' | b'D') {
        return Err(Stop::Fault(ChunkFault::Kind(kind)));
    }
    reader.end_of_field()?;
    let parts = match kind {
        b'A' => Parts::Ack {
            ack: reader.number()?.unwrap_or(0),
        },
        b'M' => Parts::Message {
            id: reader.number()?.unwrap_or(0),
            ack: reader.number()?,
            header: reader.octets(MAX_HEADER)?,
            body: reader.octets(MAX_BODY)?,
        },
        _ => Parts::Data {
            id: reader.number()?.unwrap_or(0),
            ack: reader.number()?,
            channel: reader.number()?.unwrap_or(0),
            octets: reader.octets(MAX_DATA)?,
        },
    };
    Ok(Layout {
        total: reader.at,
        parts,
    })
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// A number and its `;`; `None` if there is no digit.
    fn number(&mut self) -> Result<Option<u32>, Stop> {
        let mut value = 0;
        for digits in 0.. {
            let octet = *self.bytes.get(self.at).ok_or(Stop::Short { least: self.at + 1 })?;
            self.at += 1;
            if octet == b';' {
                return Ok((digits > 0).then_some(value));
            }
            let digit = char::from(octet)
                .to_digit(16)
                .ok_or(Stop::Fault(ChunkFault::Digit(octet)))?;
            if digits == MAX_DIGITS {
                break;
            }
            value = value << 4 | digit;
        }
        Err(Stop::Fault(ChunkFault::LongNumber))
    }

    /// A length of at most `limit`, as many octets, and the `;` after each.
    fn octets(&mut self, limit: usize) -> Result<Range<usize>, Stop> {
        let length = self.number()?.unwrap_or(0);
        let end = match usize::try_from(length) {
            Ok(octets) if octets <= limit => self.at + octets,
            _ => return Err(Stop::Fault(ChunkFault::TooLong { length, limit })),
        };
        let range = self.at..end;
        self.at = end;
        self.end_of_field()?;
        Ok(range)
    }

    fn end_of_field(&mut self) -> Result<(), Stop> {
        match self.bytes.get(self.at) {
            None => Err(Stop::Short { least: self.at + 1 }),
            Some(b';') => {
                self.at += 1;
                Ok(())
            }
            Some(_) => Err(Stop::Fault(ChunkFault::Unterminated)),
        }
    }
}

/// Writes a number in upper-case hexadecimal, and its `;`.
fn put_number(out: &mut impl BufMut, value: u32) {
    let digits = (8 - value.leading_zeros() as usize / 4).max(1);
    let mut text = [b';'; NUMBER];
    for (place, digit) in text[..digits].iter_mut().rev().enumerate() {
        *digit = b"0123456789ABCDEF"[(value >> (4 * place) & 0xf) as usize];
    }
    out.put_slice(&text[..=digits]);
}

fn put_optional(out: &mut impl BufMut, value: Option<u32>) {
    match value {
        Some(value) => put_number(out, value),
        None => out.put_slice(b";"),
    }
}

fn put_octets(out: &mut impl BufMut, octets: &[u8]) {
    put_number(out, u32::try_from(octets.len()).unwrap_or(u32::MAX));
    out.put_slice(octets);
    out.put_slice(b";");
}

const MAX_DIGITS: usize = 8;
/// The most octets of a number with its `;`.
const NUMBER: usize = MAX_DIGITS + 1;
/// The most octets of a data chunk before its payload.
const ROOM: usize = 2 + 4 * NUMBER;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_lone_ack_is_written_with_two_digits_at_least() {
        assert_eq!(Chunk::Ack { ack: 5 }.encode(), "A;05;");
        assert_eq!(Chunk::Ack { ack: 0xabc }.encode(), "A;ABC;");
    }

    #[test]
    fn numbers_are_written_without_leading_zeros() {
        let octets = Bytes::from_static(b"a;b;c");
        let chunk = Chunk::Data {
            id: 5,
            ack: Some(0x10),
            channel: u32::MAX,
            octets,
        };
        assert_eq!(chunk.encode(), "D;5;10;FFFFFFFF;5;a;b;c;");
        let none = Chunk::Data {
            id: 0,
            ack: None,
            channel: 1,
            octets: Bytes::new(),
        };
        assert_eq!(none.encode(), "D;0;;1;0;;");
    }

    #[test]
    fn a_payload_becomes_the_same_chunk_as_a_copy() {
        for octets in [&b""[..], b"x", &[b';'; 999], &[7; MAX_DATA]] {
            for (id, ack) in [(1, None), (0xffff_ffff, Some(0xffff_ffff)), (0x10, Some(0))] {
                let copied = Chunk::Data {
                    id,
                    ack,
                    channel: id,
                    octets: Bytes::copy_from_slice(octets),
                };
                assert_eq!(Payload::copy_from(octets).into_chunk(id, ack, id), copied.encode());
            }
        }
    }

    #[test]
    fn a_payload_takes_no_more_than_a_chunk_may_have() {
        let mut payload = Payload::copy_from(&[1; MAX_DATA + 1]);
        assert_eq!(payload.octets().len(), MAX_DATA);
        assert_eq!(payload.spare().remaining_mut(), 0);
    }

    #[test]
    fn lower_case_and_missing_digits_are_read() {
        let mut input = Bytes::from_static(b"D;;aB;;0001;x;");
        let chunk = Decoder::new().decode(&mut input).unwrap().unwrap();
        let octets = Bytes::from_static(b"x");
        assert_eq!(
            chunk,
            Chunk::Data {
                id: 0,
                ack: Some(0xab),
                channel: 0,
                octets
            }
        );
    }

    #[test]
    fn a_chunk_in_one_piece_is_not_copied() {
        let mut input = Bytes::from_static(b"D;1;;1;3;abc;A;1");
        let inside = input.as_ptr_range();
        let Some(Chunk::Data { octets, .. }) = Decoder::new().decode(&mut input).unwrap() else {
            panic!("no data")
        };
        assert!(inside.contains(&octets.as_ptr()));
        assert_eq!(input, "A;1");
    }

    #[test]
    fn a_length_is_judged_before_its_octets_arrive() {
        let over = |text: &'static str| {
            Decoder::new()
                .decode(&mut Bytes::from_static(text.as_bytes()))
                .unwrap_err()
        };
        assert_eq!(
            over("D;1;;1;2801;"),
            ChunkFault::TooLong {
                length: 10_241,
                limit: MAX_DATA
            }
        );
        assert_eq!(
            over("M;1;;101;"),
            ChunkFault::TooLong {
                length: 257,
                limit: MAX_HEADER
            }
        );
        assert_eq!(
            over("M;1;;0;;FFFFFFFF;"),
            ChunkFault::TooLong {
                length: u32::MAX,
                limit: MAX_BODY
            }
        );
        let mut decoder = Decoder::new();
        assert_eq!(decoder.decode(&mut Bytes::from_static(b"D;1;;1;2800;")), Ok(None));
        assert!(decoder.partial.capacity() < 64);
    }

    #[test]
    fn bytes_that_are_no_chunk_are_refused_at_once() {
        let fault = |text: &'static str| {
            Decoder::new()
                .decode(&mut Bytes::from_static(text.as_bytes()))
                .unwrap_err()
        };
        assert_eq!(fault("X"), ChunkFault::Kind(b'X'));
        assert_eq!(fault("d;1"), ChunkFault::Kind(b'd'));
        assert_eq!(fault("AA"), ChunkFault::Unterminated);
        assert_eq!(fault("A;-1;"), ChunkFault::Digit(b'-'));
        assert_eq!(fault("A;000000001;"), ChunkFault::LongNumber);
        assert_eq!(fault("D;1;;1;1;xy"), ChunkFault::Unterminated);
    }

    fn chunks() -> impl Strategy<Value = Chunk> {
        let octets = |most| proptest::collection::vec(any::<u8>(), 0..most).prop_map(Bytes::from);
        prop_oneof![
            any::<u32>().prop_map(|ack| Chunk::Ack { ack }),
            (any::<u32>(), any::<Option<u32>>(), octets(MAX_HEADER), octets(600))
                .prop_map(|(id, ack, header, body)| Chunk::Message { id, ack, header, body }),
            (any::<u32>(), any::<Option<u32>>(), any::<u32>(), octets(600)).prop_map(|(id, ack, channel, octets)| {
                Chunk::Data {
                    id,
                    ack,
                    channel,
                    octets,
                }
            }),
        ]
    }

    /// Decodes `stream`, cut at the given relative lengths.
    fn decode_in_pieces(stream: Bytes, cuts: &[usize]) -> Result<Vec<Chunk>, ChunkFault> {
        let (mut decoder, mut rest, mut read) = (Decoder::new(), stream, Vec::new());
        let mut cuts = cuts.iter().copied().cycle();
        while !rest.is_empty() {
            let mut piece = rest.split_to(cuts.next().unwrap_or(usize::MAX).clamp(1, rest.len()));
            while let Some(chunk) = decoder.decode(&mut piece)? {
                read.push(chunk);
            }
            assert!(piece.is_empty());
            assert!(decoder.held() <= MAX_BODY + MAX_HEADER + 64);
        }
        Ok(read)
    }

    proptest! {
        #[test]
        fn chunks_survive_any_segmentation(
            sent in proptest::collection::vec(chunks(), 0..12),
            cuts in proptest::collection::vec(1..900usize, 1..20),
        ) {
            let stream: Vec<u8> = sent.iter().flat_map(Chunk::encode).collect();
            prop_assert_eq!(decode_in_pieces(stream.into(), &cuts), Ok(sent));
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_mean_the_same_in_any_segmentation(
            bytes in proptest::collection::vec(prop_oneof![Just(b';'), Just(b'D'), Just(b'M'), Just(b'1'), any::<u8>()], 0..200),
            cuts in proptest::collection::vec(1..9usize, 1..9),
        ) {
            let bytes = Bytes::from(bytes);
            prop_assert_eq!(decode_in_pieces(bytes.clone(), &cuts), decode_in_pieces(bytes, &[usize::MAX]));
        }
    }
}
