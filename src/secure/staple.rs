//! An answer of OCSP that is sent along with a certificate (RFC 6066 section 8, RFC 6960), from a file.
//!
//! The node does not ask for it: whoever fetches it puts the file there and reloads. It is looked at as far as a client
//! would refuse the certificate for it; the signature is the client's to check.

use jiff::Timestamp;
use x509_parser::asn1_rs::{Any, Class, FromDer, GeneralizedTime, Tag};

use super::faults::Problem;

/// What an answer says of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Staple {
    /// As it is sent.
    pub(super) der: Vec<u8>,
    /// Until when it holds.
    pub(super) until: Timestamp,
}

impl Staple {
    /// Reads an answer about the certificate of that serial number, which is in DER without its head.
    ///
    /// # Errors
    /// It is none, speaks of another certificate, or does not say that this one is good.
    pub(super) fn read(der: Vec<u8>, serial: &[u8]) -> Result<Self, Problem> {
        let answers = answers_in(&der).ok_or(Problem::NoOcspResponse)?;
        let of_this = answers.iter().find(|answer| answer.serial == serial);
        let answer = of_this.ok_or(Problem::OcspOfAnother)?;
        if !answer.is_good {
            return Err(Problem::OcspNotGood);
        }
        let until = answer.until;
        Ok(Self { der, until })
    }
}

struct Answer<'a> {
    serial: &'a [u8],
    is_good: bool,
    until: Timestamp,
}

/// `OCSPResponse` with the status `successful`, which holds a `BasicOCSPResponse` (RFC 6960 section 4.2.1).
fn answers_in(der: &[u8]) -> Option<Vec<Answer<'_>>> {
    let mut response = children(&whole(der)?)?.into_iter();
    let status = response.next().filter(|status| status.tag() == Tag::Enumerated)?;
    if status.data != [0] {
        return None;
    }
    let bytes = whole(context(&response.next()?, 0)?)?;
    let basic = children(&bytes)?
        .into_iter()
        .nth(1)
        .filter(|basic| basic.tag() == Tag::OctetString)?;
    let data = children(children(&whole(basic.data)?)?.first()?)?;
    // Version and responder may stand before the time.
    let mut behind = data
        .into_iter()
        .skip_while(|part| part.tag() != Tag::GeneralizedTime)
        .skip(1);
    children(&behind.next()?)?.iter().map(answer).collect()
}

/// A `SingleResponse`.
fn answer<'a>(response: &Any<'a>) -> Option<Answer<'a>> {
    let mut parts = children(response)?.into_iter();
    let serial = children(&parts.next()?)?
        .into_iter()
        .nth(3)
        .filter(|serial| serial.tag() == Tag::Integer)?;
    let is_good = context(&parts.next()?, 0).is_some();
    let _since = parts.next()?;
    // Without it there is always something newer, and nothing to tell how old is too old.
    let until = parts.next().and_then(|next| time_in(context(&next, 0)?));
    Some(Answer {
        serial: serial.data,
        is_good,
        until: until.unwrap_or(Timestamp::MAX),
    })
}

fn time_in(der: &[u8]) -> Option<Timestamp> {
    let (_, time) = GeneralizedTime::from_der(der).ok()?;
    Timestamp::from_second(time.utc_datetime().ok()?.unix_timestamp()).ok()
}

/// The one value in DER.
fn whole(der: &[u8]) -> Option<Any<'_>> {
    let (rest, value) = Any::from_der(der).ok()?;
    rest.is_empty().then_some(value)
}

/// What a sequence holds.
fn children<'a>(sequence: &Any<'a>) -> Option<Vec<Any<'a>>> {
    if sequence.tag() != Tag::Sequence {
        return None;
    }
    let mut rest = sequence.data;
    let mut children = Vec::new();
    while !rest.is_empty() {
        let (behind, child) = Any::from_der(rest).ok()?;
        children.push(child);
        rest = behind;
    }
    Some(children)
}

/// What stands under a tag of the context.
fn context<'a>(value: &Any<'a>, number: u32) -> Option<&'a [u8]> {
    (value.class() == Class::ContextSpecific && value.tag() == Tag(number)).then_some(value.data)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERIAL: &[u8] = &[0x0b, 0xad];

    fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let contents = parts.concat();
        let length = match contents.len() {
            short @ ..0x80 => vec![short as u8],
            long => [&[0x82][..], &(long as u16).to_be_bytes()].concat(),
        };
        [&[tag][..], &length, &contents].concat()
    }

    /// An answer with that status: 0x80 is good, 0x82 unknown.
    fn response(serial: &[u8], status: u8, next: Option<&str>) -> Vec<u8> {
        let id = der(
            0x30,
            &[&der(0x30, &[]), &der(4, &[b"n"]), &der(4, &[b"k"]), &der(2, &[serial])],
        );
        let next = next
            .map(|time| der(0xa0, &[&der(0x18, &[time.as_bytes()])]))
            .unwrap_or_default();
        let since = der(0x18, &[b"20261101000000Z"]);
        let single = der(0x30, &[&id, &[status, 0], &since, &next]);
        let data = der(
            0x30,
            &[&der(0xa2, &[&der(4, &[b"responder"])]), &since, &der(0x30, &[&single])],
        );
        let basic = der(0x30, &[&data, &der(0x30, &[]), &der(3, &[b"\0"])]);
        let bytes = der(
            0x30,
            &[&der(6, &[&[0x2b, 6, 1, 5, 5, 7, 48, 1, 1]]), &der(4, &[&basic])],
        );
        der(0x30, &[&[10, 1, 0], &der(0xa0, &[&bytes])])
    }

    #[test]
    fn a_good_answer_holds_for_its_time() {
        let good = response(SERIAL, 0x80, Some("20261108000000Z"));
        let staple = Staple::read(good.clone(), SERIAL).unwrap();
        assert_eq!(staple.der, good);
        assert_eq!(staple.until.to_string(), "2026-11-08T00:00:00Z");
        let endless = Staple::read(response(SERIAL, 0x80, None), SERIAL).unwrap();
        assert_eq!(endless.until, Timestamp::MAX);
    }

    #[test]
    fn what_a_client_would_refuse_is_refused() {
        let unknown = response(SERIAL, 0x82, None);
        assert_eq!(Staple::read(unknown, SERIAL), Err(Problem::OcspNotGood));
        let other = response(b"\x01", 0x80, None);
        assert_eq!(Staple::read(other, SERIAL), Err(Problem::OcspOfAnother));
        // `tryLater`
        let later = der(0x30, &[&[10, 1, 3]]);
        for none in [later, Vec::new(), b"-----BEGIN".to_vec()] {
            assert_eq!(Staple::read(none, SERIAL), Err(Problem::NoOcspResponse));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_in_the_file_it_is_read_to_an_end(at in 0_usize..200, byte: u8, bytes: Vec<u8>) {
            let _ = Staple::read(bytes, SERIAL);
            let mut bent = response(SERIAL, 0x80, Some("20261108000000Z"));
            let at = at % bent.len();
            bent[at] = byte;
            let _ = Staple::read(bent.clone(), SERIAL);
            bent.truncate(at);
            prop_assert_eq!(Staple::read(bent, SERIAL), Err(Problem::NoOcspResponse));
        }
    }
}
