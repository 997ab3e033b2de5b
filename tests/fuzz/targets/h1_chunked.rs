//! The body of a message in chunked transfer coding, whatever its segmentation.

#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;
use portcullis::wire::h1::framing::{Decoder, Framing};
use portcullis::wire::{BodyFault, Frame};

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let whole = read(stream, stream.len().max(1));
    assert_eq!(read(stream, usize::from(piece) + 1), whole);
    assert!(whole.0.len() <= stream.len());
});

/// The content, how many trailers, and how many bytes lie behind the end.
fn read(stream: &[u8], piece: usize) -> (Vec<u8>, usize, Result<Option<usize>, BodyFault>) {
    let (mut decoder, mut input) = (Decoder::new(Framing::Chunked), BytesMut::new());
    let (mut content, mut trailers, mut came) = (Vec::new(), 0, 0);
    let mut pieces = stream.chunks(piece);
    loop {
        match decoder.next(&mut input) {
            Ok(Some(Frame::Data(data))) => content.extend_from_slice(&data),
            Ok(Some(Frame::Trailers(fields))) => trailers = fields.len(),
            Ok(None) if decoder.is_over() => return (content, trailers, Ok(Some(stream.len() - came + input.len()))),
            Ok(None) => match pieces.next() {
                Some(piece) => {
                    input.extend_from_slice(piece);
                    came += piece.len();
                }
                None => return (content, trailers, Ok(None)),
            },
            Err(fault) => return (content, trailers, Err(fault)),
        }
    }
}
