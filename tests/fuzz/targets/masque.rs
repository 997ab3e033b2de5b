//! HTTP/3 frames, capsules and datagrams: no octets panic, and what comes out does not depend on how they are cut.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use portcullis::tunnel::masque::capsule::{Capsules, MAX_PAYLOAD, payload};
use portcullis::tunnel::masque::frames::Frames;

fuzz_target!(|data: &[u8]| {
    let Some((&cut, data)) = data.split_first() else { return };
    let cut = usize::from(cut % 32) + 1;

    let whole = datagrams(data, data.len().max(1));
    assert_eq!(whole, datagrams(data, cut));
    for datagram in whole.into_iter().flatten() {
        assert!(payload(datagram).is_none_or(|payload| payload.len() <= MAX_PAYLOAD));
    }
    for begin in [Frames::of_request, Frames::of_one_direction] {
        let whole = pieces(begin(), data, data.len().max(1));
        let parts = pieces(begin(), data, cut);
        assert_eq!(whole.is_some(), parts.is_some());
        if let (Some(whole), Some(parts)) = (whole, parts) {
            assert_eq!(whole, parts);
            assert!(whole.len() <= data.len());
        }
    }
});

fn datagrams(data: &[u8], cut: usize) -> Option<Vec<Bytes>> {
    let mut capsules = Capsules::default();
    let mut found = Vec::new();
    for part in data.chunks(cut) {
        let mut input = Bytes::copy_from_slice(part);
        while let Some(datagram) = capsules.read(&mut input).ok()? {
            found.push(datagram);
        }
        assert!(input.is_empty());
    }
    Some(found)
}

fn pieces(mut frames: Frames, data: &[u8], cut: usize) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    for part in data.chunks(cut) {
        let mut input = Bytes::copy_from_slice(part);
        while let Some(piece) = frames.next(&mut input).ok()? {
            assert!(!piece.is_empty());
            found.extend_from_slice(&piece);
        }
        assert!(input.is_empty());
    }
    Some(found)
}
