//! Compression of answers on their way to the client, where a rule wants it: gzip (RFC 1952), for text that a target has
//! left as it is.
//!
//! What the client gets is another representation: it has a tag of its own strength, and caches are told on what it depends.
//! Every piece goes out as soon as it has come, so that nothing waits for the rest of a page.

use std::io::Write as _;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{
    ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG,
    VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};

use crate::wire::{Gone, Length, Sink};

/// Whether a client reads gzip, by its `Accept-Encoding` (RFC 9110 section 12.5.3).
pub(super) fn takes_gzip(fields: &HeaderMap) -> bool {
    let (mut named, mut any) = (None, None);
    let lines = fields.get_all(ACCEPT_ENCODING).iter();
    for member in lines
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(','))
    {
        let (coding, weight) = member.split_once(';').unwrap_or((member, ""));
        let coding = coding.trim();
        // Of a weight it only matters whether it is nothing.
        let weight = weight
            .trim()
            .trim_start_matches(['q', 'Q'])
            .trim_start()
            .trim_start_matches('=');
        let wanted = weight.is_empty() || weight.trim().parse::<f32>().is_ok_and(|weight| weight > 0.0);
        if coding.eq_ignore_ascii_case("gzip") || coding.eq_ignore_ascii_case("x-gzip") {
            named = Some(named.unwrap_or(false) || wanted);
        } else if coding == "*" {
            any = Some(wanted);
        }
    }
    named.or(any).unwrap_or(false)
}

/// Makes of an answer's head that of the compressed one, and says whether it did; `takes` is whether the client reads that.
/// An answer that another client would get compressed says that it depends on who asks.
pub(super) fn begin(status: StatusCode, fields: &mut HeaderMap, takes: bool) -> bool {
    if !is_fit(status, fields) {
        return false;
    }
    vary(fields);
    if !takes {
        return false;
    }
    fields.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    for name in [CONTENT_LENGTH, ACCEPT_RANGES] {
        fields.remove(name);
    }
    // The same bytes are no longer promised, but the same meaning is.
    if let Some(tag) = fields.get(ETAG)
        && !tag.as_bytes().starts_with(b"W/")
    {
        match HeaderValue::from_bytes(&[&b"W/"[..], tag.as_bytes()].concat()) {
            Ok(weak) => _ = fields.insert(ETAG, weak),
            Err(_) => _ = fields.remove(ETAG),
        }
    }
    true
}

/// Whether an answer may be compressed, and is worth it.
fn is_fit(status: StatusCode, fields: &HeaderMap) -> bool {
    let has_no_body = matches!(
        status,
        StatusCode::PARTIAL_CONTENT
            | StatusCode::NO_CONTENT
            | StatusCode::NOT_MODIFIED
            | StatusCode::RESET_CONTENT
            | StatusCode::RANGE_NOT_SATISFIABLE
    );
    if status.is_informational() || has_no_body || NEVER.iter().any(|name| fields.contains_key(name)) {
        return false;
    }
    let length = fields
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let directives = fields
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|line| line.to_str().ok());
    let is_to_stay = directives
        .flat_map(|line| line.split(','))
        .any(|directive| directive.trim().eq_ignore_ascii_case("no-transform"));
    length.is_none_or(|length| length >= LEAST) && !is_to_stay && fields.get(CONTENT_TYPE).is_some_and(is_text)
}

/// Whether a type is of text; never one whose pieces must arrive one by one.
fn is_text(kind: &HeaderValue) -> bool {
    let kind = kind.to_str().unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "text/event-stream" || essence.starts_with("application/grpc") {
        return false;
    }
    let ends = ["+json", "+xml"].iter().any(|end| essence.ends_with(end));
    ends || essence.starts_with("text/") || TEXT.contains(&essence.as_str())
}

fn vary(fields: &mut HeaderMap) {
    let members = fields.get_all(VARY).iter().filter_map(|line| line.to_str().ok());
    let is_told = members.flat_map(|line| line.split(',')).any(|member| {
        let member = member.trim();
        member == "*" || member.eq_ignore_ascii_case(ACCEPT_ENCODING.as_str())
    });
    if !is_told {
        fields.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
}

/// A way to the client that compresses the body.
pub(super) struct Compressed<'s, S> {
    sink: &'s mut S,
    encoder: GzEncoder<Vec<u8>>,
    sent: u64,
}

impl<'s, S: Sink> Compressed<'s, S> {
    /// To be given the head that [`begin`] has made.
    pub(super) fn new(sink: &'s mut S) -> Self {
        Self {
            sink,
            encoder: GzEncoder::new(Vec::new(), Compression::fast()),
            sent: 0,
        }
    }

    /// Bytes of the compressed body so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// All that has come, compressed.
    fn packed(&mut self, data: &[u8], is_last: bool) -> Result<Bytes, Gone> {
        let written = self.encoder.write_all(data).and_then(|()| {
            if is_last {
                self.encoder.try_finish()
            } else {
                self.encoder.flush()
            }
        });
        // Memory takes everything.
        written.map_err(|_| Gone)?;
        let packed = std::mem::take(self.encoder.get_mut());
        self.sent += packed.len() as u64;
        Ok(packed.into())
    }
}

impl<S: Sink> Sink for Compressed<'_, S> {
    async fn inform(&mut self, head: Response<()>) -> Result<(), Gone> {
        self.sink.inform(head).await
    }

    async fn head(&mut self, head: Response<()>, _length: Length) -> Result<(), Gone> {
        self.sink.head(head, Length::Unknown).await
    }

    async fn data(&mut self, data: Bytes) -> Result<(), Gone> {
        let packed = self.packed(&data, false)?;
        self.sink.data(packed).await
    }

    async fn last(&mut self, data: Bytes) -> Result<(), Gone> {
        let packed = self.packed(&data, true)?;
        self.sink.last(packed).await
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        self.sink.flush().await
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone> {
        let packed = self.packed(&[], true)?;
        match trailers {
            None => self.sink.last(packed).await,
            Some(trailers) => {
                self.sink.data(packed).await?;
                self.sink.finish(Some(trailers)).await
            }
        }
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.sink.poll_gone(cx)
    }
}

/// Types of text beside `text/…`, `…+json` and `…+xml`.
const TEXT: [&str; 5] = [
    "application/json",
    "application/javascript",
    "application/xml",
    "application/x-javascript",
    "application/x-ndjson",
];

/// With any of these an answer is of a part, is encoded already, or tells of its very bytes.
const NEVER: [HeaderName; 6] = [
    CONTENT_ENCODING,
    CONTENT_RANGE,
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("digest"),
];

/// Bytes below which it is not worth it.
const LEAST: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::heads::{head, lines};

    #[test]
    fn clients_say_whether_they_read_it() {
        for (lines, takes) in [
            (&["gzip"][..], true),
            (&["deflate, GZIP;q=0.5, br"], true),
            (&["br", "x-gzip"], true),
            (&["*"], true),
            (&["gzip;q=0, *"], false),
            (&["*;q=0, gzip"], true),
            (&["gzip; q=0.000"], false),
            (&["gzip;q=nonsense"], false),
            (&["br, deflate"], false),
            (&["identity"], false),
            (&[""], false),
            (&[], false),
        ] {
            let fields: Vec<_> = lines.iter().map(|line| ("accept-encoding", *line)).collect();
            assert_eq!(takes_gzip(&head(&fields)), takes, "{lines:?}");
        }
    }

    #[test]
    fn only_text_of_some_length_is_compressed() {
        let page = [("content-type", "text/html; charset=utf-8"), ("content-length", "1024")];
        let fit = |status: u16, more: &[(&str, &str)]| {
            let mut fields = head(&page);
            for (name, value) in more {
                fields.insert(
                    HeaderName::try_from(*name).unwrap(),
                    HeaderValue::try_from(*value).unwrap(),
                );
            }
            begin(StatusCode::from_u16(status).unwrap(), &mut fields, true)
        };
        assert!(fit(200, &[]) && fit(404, &[]) && fit(200, &[("content-length", "999999")]));
        for kind in [
            "APPLICATION/JSON",
            "image/svg+xml",
            "application/problem+json",
            "text/css",
        ] {
            assert!(fit(200, &[("content-type", kind)]), "{kind}");
        }
        for status in [101, 204, 205, 206, 304, 416] {
            assert!(!fit(status, &[]), "{status}");
        }
        for (name, value) in [
            ("content-length", "1023"),
            ("content-type", "image/png"),
            ("content-type", "text/event-stream;charset=utf-8"),
            ("content-type", "application/grpc+json"),
            ("content-type", ""),
            ("content-encoding", "br"),
            ("content-encoding", "identity"),
            ("content-range", "bytes 0-99/200"),
            ("cache-control", "max-age=1, No-Transform"),
            ("content-digest", "sha-256=:x:"),
        ] {
            assert!(!fit(200, &[(name, value)]), "{name}: {value}");
        }
    }

    #[test]
    fn the_head_says_what_became_of_the_body() {
        let page = || {
            head(&[
                ("content-type", "text/html"),
                ("content-length", "5000"),
                ("etag", "\"a\""),
                ("accept-ranges", "bytes"),
                ("vary", "Origin"),
            ])
        };
        let mut fields = page();
        assert!(begin(StatusCode::OK, &mut fields, true));
        assert_eq!(
            (lines(&fields, "etag"), lines(&fields, "content-encoding")),
            (vec!["W/\"a\""], vec!["gzip"])
        );
        assert_eq!(lines(&fields, "vary"), ["Origin", "Accept-Encoding"]);
        assert!(!fields.contains_key(CONTENT_LENGTH) && !fields.contains_key(ACCEPT_RANGES));
        // Who does not read it gets what there is, and caches know that others do not.
        let mut fields = page();
        assert!(!begin(StatusCode::OK, &mut fields, false));
        assert_eq!(
            (lines(&fields, "etag"), lines(&fields, "content-length")),
            (vec!["\"a\""], vec!["5000"])
        );
        assert_eq!(lines(&fields, "vary"), ["Origin", "Accept-Encoding"]);
        for told in ["*", "Origin, accept-encoding"] {
            let mut fields = head(&[("content-type", "text/html"), ("vary", told), ("etag", "W/\"a\"")]);
            assert!(begin(StatusCode::OK, &mut fields, true));
            assert_eq!(
                (lines(&fields, "vary"), lines(&fields, "etag")),
                (vec![told], vec!["W/\"a\""])
            );
        }
    }
}
