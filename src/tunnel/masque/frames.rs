//! What may reach the HTTP/3 library of a stream's octets, and in which pieces.
//!
//! The library (h3 0.0.8) keeps every frame but `DATA` until it is whole, however long it says to be; it reads on while
//! it hands out little frames; and it takes an empty `DATA` frame for the end. So its input is put in order here: frames
//! over [`MAX_HELD`] end the stream, unknown and empty ones are taken out, and a frame's head is a piece of its own, so
//! that the library never reads more than it hands out.
//!
//! Pure: octets in, pieces out.

use bytes::{Buf, Bytes, BytesMut};

use super::varint;

/// The largest frame that is kept whole: the head of a request, with room for the cookies of a single sign-on.
pub const MAX_HELD: u64 = 64 * 1024;

/// Puts the octets of one stream in order.
#[derive(Debug)]
pub struct Frames {
    state: State,
    /// A stream's type, or a frame's type and length, as far as they are there.
    partial: BytesMut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Within the type of a stream of one direction.
    StreamType,
    /// Before or within a frame's type and length.
    Head,
    /// Within a frame that is handed on, so many octets before its end.
    Pass(u64),
    /// Within a frame that is left out, so many octets before its end.
    Skip(u64),
    /// Within a stream without frames.
    Plain,
}

/// A frame that is too large to be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame is larger than {MAX_HELD} octets")]
pub struct TooLarge;

impl Frames {
    /// For a stream that carries a request and its answer.
    pub fn of_request() -> Self {
        Self::at(State::Head)
    }

    /// For a stream of one direction.
    pub fn of_one_direction() -> Self {
        Self::at(State::StreamType)
    }

    fn at(state: State) -> Self {
        Self {
            state,
            partial: BytesMut::new(),
        }
    }

    /// Takes octets from the front of `input` and gives the next piece; `None`: all of `input` was taken.
    ///
    /// # Errors
    /// [`TooLarge`]; the stream is not to be read on.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, TooLarge> {
        while input.has_remaining() {
            match self.state {
                State::StreamType => {
                    self.partial.extend_from_slice(&input.split_to(1));
                    if let Some((kind, _)) = varint::read(&self.partial) {
                        self.state = if kind == CONTROL { State::Head } else { State::Plain };
                        return Ok(Some(std::mem::take(&mut self.partial).freeze()));
                    }
                }
                State::Head => {
                    self.partial.extend_from_slice(&input.split_to(1));
                    if let Some(head) = self.read_head()? {
                        return Ok(Some(head));
                    }
                }
                State::Pass(left) => {
                    let piece = input.split_to(left.min(input.len() as u64) as usize);
                    self.state = match left - piece.len() as u64 {
                        0 => State::Head,
                        left => State::Pass(left),
                    };
                    return Ok(Some(piece));
                }
                State::Skip(left) => {
                    let skipped = left.min(input.len() as u64);
                    input.advance(skipped as usize);
                    self.state = match left - skipped {
                        0 => State::Head,
                        left => State::Skip(left),
                    };
                }
                State::Plain => return Ok(Some(input.split_to(input.len()))),
            }
        }
        Ok(None)
    }

    /// A frame's type and length, once they are all there and if the frame is handed on.
    fn read_head(&mut self) -> Result<Option<Bytes>, TooLarge> {
        let Some((kind, start)) = varint::read(&self.partial) else {
            return Ok(None);
        };
        let Some((length, _)) = varint::read(&self.partial[start..]) else {
            return Ok(None);
        };
        let head = std::mem::take(&mut self.partial).freeze();
        match (Kind::of(kind), length) {
            (Kind::Data | Kind::Unknown, 0) => Ok(None),
            (Kind::Unknown, length) => {
                self.state = State::Skip(length);
                Ok(None)
            }
            (Kind::Held, length) if length > MAX_HELD => Err(TooLarge),
            (Kind::Held, 0) => Ok(Some(head)),
            (Kind::Data | Kind::Held, length) => {
                self.state = State::Pass(length);
                Ok(Some(head))
            }
        }
    }
}

/// How a frame is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Handed on as it comes.
    Data,
    /// Kept by the library until it is whole.
    Held,
    /// Without meaning here.
    Unknown,
}

impl Kind {
    fn of(kind: u64) -> Self {
        match kind {
            0x0 => Self::Data,
            // HEADERS, CANCEL_PUSH, SETTINGS, PUSH_PROMISE, GOAWAY, MAX_PUSH_ID, and those that HTTP/3 forbids.
            0x1 | 0x3..=0x5 | 0x7 | 0xd | 0x2 | 0x6 | 0x8 | 0x9 => Self::Held,
            _ => Self::Unknown,
        }
    }
}

/// The type of the one stream of one direction that has frames.
const CONTROL: u64 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u64, value: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        varint::write(&mut out, kind);
        varint::write(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out.to_vec()
    }

    fn pieces(frames: &mut Frames, bytes: &[u8], cut: usize) -> Result<Vec<Bytes>, TooLarge> {
        let mut found = Vec::new();
        for part in bytes.chunks(cut.max(1)) {
            let mut input = Bytes::copy_from_slice(part);
            while let Some(piece) = frames.next(&mut input)? {
                found.push(piece);
            }
            assert!(input.is_empty());
        }
        Ok(found)
    }

    #[test]
    fn a_head_that_says_to_be_endless_is_refused_at_once() {
        for kind in [0x1, 0x4, 0x5, 0x7] {
            let mut bytes = BytesMut::new();
            varint::write(&mut bytes, kind);
            varint::write(&mut bytes, MAX_HELD + 1);
            assert_eq!(Frames::of_request().next(&mut bytes.freeze()), Err(TooLarge), "{kind}");
        }
    }

    #[test]
    fn a_frames_head_is_a_piece_of_its_own() {
        let bytes = [
            frame(0, b"one"),
            frame(0, b""),
            frame(0x21, b"grease"),
            frame(0, b"two"),
        ]
        .concat();
        let found = pieces(&mut Frames::of_request(), &bytes, usize::MAX).unwrap();
        assert_eq!(found, [&b"\0\x03"[..], b"one", b"\0\x03", b"two"]);
    }

    #[test]
    fn streams_of_one_direction_have_frames_only_if_they_control() {
        let control = [vec![0], frame(0x4, b"settings"), frame(0x21, b"grease")].concat();
        let found = pieces(&mut Frames::of_one_direction(), &control, 1).unwrap().concat();
        assert_eq!(found, [vec![0], frame(0x4, b"settings")].concat());
        let other = [vec![0x2], vec![1; 300]].concat();
        assert_eq!(
            pieces(&mut Frames::of_one_direction(), &other, 7).unwrap().concat(),
            other
        );
    }

    proptest! {
        #[test]
        fn what_has_a_meaning_comes_through_in_order_however_it_is_cut(
            frames in proptest::collection::vec((0u64..0x30, proptest::collection::vec(any::<u8>(), 0..200)), 0..12),
            cut in 1usize..300,
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, value)| frame(*kind, value)).collect();
            let expected: Vec<u8> = frames
                .iter()
                .filter(|(kind, value)| match Kind::of(*kind) {
                    Kind::Data => !value.is_empty(),
                    Kind::Held => true,
                    Kind::Unknown => false,
                })
                .flat_map(|(kind, value)| frame(*kind, value))
                .collect();
            let found = pieces(&mut Frames::of_request(), &bytes, cut).unwrap();
            prop_assert!(found.iter().all(|piece| !piece.is_empty()));
            prop_assert_eq!(found.concat(), expected);
        }

        #[test]
        fn any_octets_give_the_same_whole_or_cut(bytes: Vec<u8>, cut in 1usize..20, is_request: bool) {
            let frames = || if is_request { Frames::of_request() } else { Frames::of_one_direction() };
            let whole = pieces(&mut frames(), &bytes, usize::MAX).map(|found| found.concat());
            let cut = pieces(&mut frames(), &bytes, cut).map(|found| found.concat());
            prop_assert_eq!(whole.is_err(), cut.is_err());
            if let (Ok(whole), Ok(cut)) = (whole, cut) {
                prop_assert_eq!(whole, cut);
            }
        }
    }
}
