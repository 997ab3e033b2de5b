//! Capsules (RFC 9297) and what they, or QUIC datagrams, carry: UDP payloads under context 0 (RFC 9298).
//!
//! Pure: octets in, payloads out. Whatever is unknown is skipped, as the standards ask; nothing is kept of it.

use bytes::{Buf, Bytes, BytesMut};

use super::varint;

/// The largest UDP payload.
pub const MAX_PAYLOAD: usize = 65_527;

/// Takes the payload out of an HTTP datagram; `None` if its context is not that of UDP payloads, or it has none.
pub fn payload(mut datagram: Bytes) -> Option<Bytes> {
    let (context, length) = varint::read(&datagram)?;
    datagram.advance(length);
    (context == UDP_PAYLOADS && datagram.len() <= MAX_PAYLOAD).then_some(datagram)
}

/// The octets before a UDP payload in an HTTP datagram.
pub fn write_context(out: &mut BytesMut) {
    varint::write(out, UDP_PAYLOADS);
}

/// Writes a UDP payload as a `DATAGRAM` capsule, for a payload that fits in no QUIC datagram.
pub fn write(out: &mut BytesMut, payload: &[u8]) {
    varint::write(out, DATAGRAM);
    varint::write(out, payload.len() as u64 + 1);
    write_context(out);
    out.extend_from_slice(payload);
}

/// Reads the capsules of one stream, however they are cut.
#[derive(Debug, Default)]
pub struct Capsules {
    state: State,
    /// A type and length, or the value of a `DATAGRAM` capsule, as far as they are there.
    partial: BytesMut,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Before or within a capsule's type and length.
    #[default]
    Head,
    /// Within a capsule of which so many octets are to be skipped.
    Skip(u64),
    /// Within a `DATAGRAM` capsule of which so many octets are to come.
    Datagram(usize),
}

/// A `DATAGRAM` capsule that no UDP payload can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a capsule is larger than any datagram")]
pub struct TooLarge;

impl Capsules {
    /// Takes octets from the front of `input` up to the end of a `DATAGRAM` capsule, and gives what is in it: an HTTP
    /// datagram. `None`: all of `input` was taken.
    ///
    /// # Errors
    /// [`TooLarge`]; the stream is not to be read on.
    pub fn read(&mut self, input: &mut Bytes) -> Result<Option<Bytes>, TooLarge> {
        loop {
            match self.state {
                State::Head => {
                    if !self.read_head(input)? {
                        return Ok(None);
                    }
                }
                State::Skip(left) => {
                    let skipped = left.min(input.len() as u64);
                    input.advance(skipped as usize);
                    if skipped < left {
                        self.state = State::Skip(left - skipped);
                        return Ok(None);
                    }
                    self.state = State::Head;
                }
                State::Datagram(left) if self.partial.is_empty() && input.len() >= left => {
                    self.state = State::Head;
                    return Ok(Some(input.split_to(left)));
                }
                State::Datagram(left) => {
                    let part = input.split_to(left.min(input.len()));
                    self.partial.extend_from_slice(&part);
                    if part.len() < left {
                        self.state = State::Datagram(left - part.len());
                        return Ok(None);
                    }
                    self.state = State::Head;
                    return Ok(Some(std::mem::take(&mut self.partial).freeze()));
                }
            }
        }
    }

    /// Whether the stream may end here: not within a capsule.
    pub fn is_at_an_end(&self) -> bool {
        self.state == State::Head && self.partial.is_empty()
    }

    /// Reads a type and length. `false`: more octets are needed.
    fn read_head(&mut self, input: &mut Bytes) -> Result<bool, TooLarge> {
        while input.has_remaining() {
            self.partial.extend_from_slice(&input.split_to(1));
            let Some((kind, start)) = varint::read(&self.partial) else {
                continue;
            };
            let Some((length, _)) = varint::read(&self.partial[start..]) else {
                continue;
            };
            self.partial = BytesMut::new();
            self.state = match usize::try_from(length) {
                _ if kind != DATAGRAM => State::Skip(length),
                Ok(length) if length <= MAX_PAYLOAD + varint::MAX_LENGTH => State::Datagram(length),
                Ok(_) | Err(_) => return Err(TooLarge),
            };
            return Ok(true);
        }
        Ok(false)
    }
}

/// The capsule type of HTTP datagrams.
const DATAGRAM: u64 = 0;
/// The context under which UDP payloads go.
const UDP_PAYLOADS: u64 = 0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A capsule that is not a datagram, and its value.
    fn unknown(kind: u64, value: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        varint::write(&mut out, kind);
        varint::write(&mut out, value.len() as u64);
        out.extend_from_slice(value);
        out.to_vec()
    }

    fn read_all(capsules: &mut Capsules, bytes: &[u8], cut: usize) -> Result<Vec<Bytes>, TooLarge> {
        let mut found = Vec::new();
        for piece in bytes.chunks(cut.max(1)) {
            let mut input = Bytes::copy_from_slice(piece);
            while let Some(datagram) = capsules.read(&mut input)? {
                found.push(datagram);
            }
            assert!(input.is_empty());
        }
        Ok(found)
    }

    #[test]
    fn only_the_context_of_udp_payloads_is_read() {
        assert_eq!(
            payload(Bytes::from_static(b"\0hello")),
            Some(Bytes::from_static(b"hello"))
        );
        assert_eq!(
            payload(Bytes::from_static(b"\0")),
            Some(Bytes::new()),
            "an empty UDP payload is one"
        );
        assert_eq!(payload(Bytes::from_static(b"\x02hello")), None);
        assert_eq!(
            payload(Bytes::from_static(b"\x40\x00x")),
            Some(Bytes::from_static(b"x")),
            "0 can be written long"
        );
        assert_eq!(payload(Bytes::from_static(b"\x40")), None);
        assert_eq!(payload(Bytes::new()), None);
        assert_eq!(payload(Bytes::from(vec![0; MAX_PAYLOAD + 2])), None);
    }

    #[test]
    fn a_capsule_that_no_datagram_fills_is_refused_before_it_is_kept() {
        let mut head = BytesMut::new();
        varint::write(&mut head, DATAGRAM);
        varint::write(&mut head, 1 << 40);
        assert_eq!(Capsules::default().read(&mut head.freeze()), Err(TooLarge));
    }

    proptest! {
        #[test]
        fn datagrams_are_found_among_unknown_capsules_however_they_are_cut(
            capsules in proptest::collection::vec(
                (any::<bool>(), 1..varint::MAX, proptest::collection::vec(any::<u8>(), 0..300)),
                0..12,
            ),
            cut in 1usize..400,
        ) {
            let mut bytes = BytesMut::new();
            let mut sent = Vec::new();
            for (is_datagram, kind, value) in &capsules {
                if *is_datagram {
                    write(&mut bytes, value);
                    sent.push(Bytes::from(value.clone()));
                } else {
                    bytes.extend_from_slice(&unknown(*kind, value));
                }
            }
            let mut reader = Capsules::default();
            let found = read_all(&mut reader, &bytes, cut).unwrap();
            let payloads: Option<Vec<_>> = found.into_iter().map(payload).collect();
            prop_assert_eq!(payloads, Some(sent));
            prop_assert!(reader.is_at_an_end());
        }

        #[test]
        fn any_octets_are_read_the_same_whole_or_cut_and_little_is_kept(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            cut in 1usize..50,
        ) {
            let mut whole = Capsules::default();
            let mut pieces = Capsules::default();
            prop_assert_eq!(read_all(&mut whole, &bytes, usize::MAX), read_all(&mut pieces, &bytes, cut));
            prop_assert!(pieces.partial.len() <= MAX_PAYLOAD + varint::MAX_LENGTH);
        }
    }
}
