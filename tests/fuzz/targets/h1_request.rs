//! The head of a request as clients of HTTP/1.x send it.

#![no_main]

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use libfuzzer_sys::fuzz_target;
use portcullis::wire::h1::framing::Framing;
use portcullis::wire::h1::head::{FIELDS_MAX, HEAD_MAX, Scan, request};
use portcullis::wire::h1::render::put_request;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let found = Scan::default().end(stream);
    let (mut scan, mut in_pieces, mut length) = (Scan::default(), Ok(None), 0);
    while in_pieces == Ok(None) && length < stream.len() {
        length = (length + usize::from(piece) + 1).min(stream.len());
        in_pieces = scan.end(&stream[..length]);
    }
    assert_eq!(in_pieces, found);
    let Ok(Some(end)) = found else { return };
    assert!(end <= HEAD_MAX);
    let Ok(head) = request(&Bytes::copy_from_slice(&stream[..end])) else { return };
    let fields = head.request.headers();
    assert!(fields.len() <= FIELDS_MAX);
    let framed = fields.get_all(CONTENT_LENGTH).iter().count() + fields.get_all(TRANSFER_ENCODING).iter().count();
    assert_eq!(framed, usize::from(head.framing != Framing::None));
    // Written again, it is one head, and means the same.
    let mut again = Vec::new();
    put_request(&head.request, head.framing, &mut again);
    assert_eq!(Scan::default().end(&again), Ok(Some(again.len())));
    if fields.contains_key("host") {
        let again = request(&Bytes::from(again)).expect("what was written can be read");
        assert_eq!((again.framing, again.request.method()), (head.framing, head.request.method()));
        assert_eq!(again.request.headers().len(), fields.len());
    }
});
