//! The head of an answer over HTTP/2 or HTTP/3, where frames say how far the body goes.

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, DATE, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::clock;
use crate::wire::h1::render::put_date;
use crate::wire::{Gone, Length};

/// What a head promises of its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    /// There is none, whatever is given.
    bodiless: bool,
    /// What is left of one whose length was announced.
    left: Option<u64>,
}

impl Extent {
    /// Makes a head ready to be sent in front of a body of that length; with `is_head` it answers `HEAD`.
    pub(super) fn announce(head: &mut Response<()>, length: Length, is_head: bool) -> Self {
        let status = head.status();
        let has_no_length = status == StatusCode::NO_CONTENT || status.is_informational();
        let mut extent = Self {
            bodiless: has_no_length || is_head || status == StatusCode::NOT_MODIFIED,
            left: None,
        };
        let headers = head.headers_mut();
        strip(headers);
        match length {
            Length::Exact(length) if !extent.bodiless => {
                headers.insert(CONTENT_LENGTH, length.into());
                extent.left = Some(length);
            }
            Length::Exact(length) if is_head && length > 0 && !headers.contains_key(CONTENT_LENGTH) => {
                headers.insert(CONTENT_LENGTH, length.into());
            }
            Length::Unknown if !extent.bodiless => drop(headers.remove(CONTENT_LENGTH)),
            Length::Exact(_) | Length::Unknown if has_no_length => drop(headers.remove(CONTENT_LENGTH)),
            Length::Exact(_) | Length::Unknown => {}
        }
        if !headers.contains_key(DATE)
            && let Some(date) = date()
        {
            headers.insert(DATE, date);
        }
        extent
    }

    /// Whether nothing of a body is sent.
    pub(super) fn is_bodiless(self) -> bool {
        self.bodiless
    }

    /// What of `data` is sent.
    ///
    /// # Errors
    /// It is more than was announced, or, being the last, less.
    pub(super) fn take(&mut self, data: Bytes, last: bool) -> Result<Bytes, Gone> {
        if self.bodiless {
            return Ok(Bytes::new());
        }
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(data.len() as u64).ok_or(Gone)?;
            if last && *left > 0 {
                return Err(Gone);
            }
        }
        Ok(data)
    }
}

/// Takes out the fields of a connection of HTTP/1.1, which the later versions do not have (RFC 9113 section 8.2.2, RFC 9114
/// section 4.2).
pub(super) fn strip(headers: &mut HeaderMap) {
    for name in [CONNECTION, TRANSFER_ENCODING, UPGRADE, TE, KEEP_ALIVE, PROXY_CONNECTION] {
        headers.remove(name);
    }
}

fn date() -> Option<HeaderValue> {
    let mut field = Vec::with_capacity(40);
    put_date(clock::wall(), &mut field);
    let value = field.strip_prefix(b"Date: ")?.strip_suffix(b"\r\n")?;
    HeaderValue::from_bytes(value).ok()
}

pub(super) const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
pub(super) const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_head_has_the_length_that_its_body_has_or_that_another_would_have_had() {
        let announce = |status: u16, given: Option<&str>, length, is_head| {
            let mut head = Response::builder().status(status).header("connection", "close");
            if let Some(given) = given {
                head = head.header("content-length", given);
            }
            let mut head = head.body(()).unwrap();
            let extent = Extent::announce(&mut head, length, is_head);
            assert!(!head.headers().contains_key("connection") && head.headers().contains_key("date"));
            let length = head.headers().get("content-length");
            (
                extent.is_bodiless(),
                length.map(|length| length.to_str().unwrap().to_owned()),
            )
        };
        let length = |text: &str| Some(text.to_owned());
        assert_eq!(announce(200, Some("9"), Length::Exact(3), false), (false, length("3")));
        assert_eq!(announce(200, Some("9"), Length::Unknown, false), (false, None));
        assert_eq!(
            announce(200, Some("9"), Length::NONE, true),
            (true, length("9")),
            "HEAD"
        );
        assert_eq!(announce(304, Some("9"), Length::NONE, false), (true, length("9")));
        assert_eq!(announce(204, Some("9"), Length::NONE, false), (true, None));
    }

    proptest! {
        #[test]
        fn what_was_announced_is_sent_or_the_answer_breaks_off(
            announced in 0_u64..20,
            pieces in proptest::collection::vec(0_usize..8, 1..6),
        ) {
            let mut extent = Extent::announce(&mut Response::new(()), Length::Exact(announced), false);
            let last = pieces.len() - 1;
            let sent: Result<usize, Gone> = pieces.iter().enumerate().try_fold(0, |sent, (number, length)| {
                Ok(sent + extent.take(vec![0; *length].into(), number == last)?.len())
            });
            let given: usize = pieces.iter().sum();
            prop_assert_eq!(sent, if given as u64 == announced { Ok(given) } else { Err(Gone) });
        }
    }
}
