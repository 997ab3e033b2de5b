//! Heads, read from bytes (RFC 9112).
//!
//! Nothing is forgiven that two readers could understand differently: a line ends with CRLF and has no other control in
//! it, a field begins at the start of its line with a name that touches its colon, a body is delimited in exactly one way.

use std::ops::Range;

use bytes::{Buf as _, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version};
use memchr::{memchr, memchr_iter};

use super::framing::Framing;
use crate::fault::WebFault;

/// The largest head, in bytes: room for the cookies of a whole single sign-on.
pub const HEAD_MAX: usize = 64 * 1024;

/// The most fields of a head.
pub const FIELDS_MAX: usize = 128;

/// Why bytes are no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadFault {
    /// The first line, or a line that does not end with CRLF.
    #[error("a line of the head is malformed")]
    Line,
    /// Not HTTP/1.0 or 1.1.
    #[error("the version of HTTP is not 1.0 or 1.1")]
    Version,
    /// `CONNECT`, after which HTTP is over.
    #[error("the method cannot be served")]
    Method,
    /// A field that is none, such as one with a space before its colon, or one that goes on in the next line.
    #[error("a field of the head is malformed")]
    Field,
    /// `Host` is missing, repeated, malformed, or not what the target says.
    #[error("Host is missing, repeated or malformed")]
    Host,
    /// The body is delimited in no way or in two, or in one that is not known here.
    #[error("the body is delimited ambiguously")]
    Framing,
    /// More bytes or fields than a head may have.
    #[error("the head is larger than it may be")]
    TooLarge,
}

impl HeadFault {
    /// What the sender of such a request is answered.
    pub fn of_request(self) -> WebFault {
        match self {
            Self::Line | Self::Field | Self::Framing => WebFault::InvalidRequest,
            Self::Version => WebFault::InvalidVersion,
            Self::Method => WebFault::InvalidMethod,
            Self::Host => WebFault::InvalidHost,
            Self::TooLarge => WebFault::HeadTooLarge,
        }
    }
}

/// Looks for the end of a head, or of a trailer section, in bytes that come piece by piece. Every byte is looked at once.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Bytes that were looked at.
    looked: usize,
    /// Where the line that is not at its end yet begins.
    line: usize,
    /// Lines before it.
    lines: usize,
}

impl Scan {
    /// The length of the head, with the empty line at its end; `None` if that has not come. `bytes` are all that came of
    /// it, those of the last call before the others.
    ///
    /// # Errors
    /// [`HeadFault::Line`] for a line feed alone, [`HeadFault::TooLarge`].
    pub fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, HeadFault> {
        let start = self.looked;
        for at in memchr_iter(b'\n', bytes.get(start..).unwrap_or_default()) {
            let feed = start + at;
            if feed >= HEAD_MAX {
                return Err(HeadFault::TooLarge);
            }
            if feed == self.line || bytes[feed - 1] != b'\r' {
                return Err(HeadFault::Line);
            }
            if feed == self.line + 1 {
                return Ok(Some(feed + 1));
            }
            self.line = feed + 1;
            self.lines += 1;
            if self.lines > FIELDS_MAX + 1 {
                return Err(HeadFault::TooLarge);
            }
        }
        self.looked = bytes.len();
        if bytes.len() >= HEAD_MAX {
            return Err(HeadFault::TooLarge);
        }
        Ok(None)
    }
}

/// Drops the empty lines that some clients send behind the body of their last request (RFC 9112 section 2.2), two at
/// most. `false`: what is there may be the beginning of one.
pub fn skip_empty_lines(bytes: &mut BytesMut) -> bool {
    for _ in 0..2 {
        match bytes[..] {
            [b'\r', b'\n', ..] => bytes.advance(2),
            [] | [b'\r'] => return false,
            _ => return true,
        }
    }
    true
}

/// The head of a request.
#[derive(Debug)]
pub struct RequestHead {
    /// What is asked. Fields are as they came, those about framing and the connection too.
    pub request: Request<()>,
    /// How the body is delimited.
    pub framing: Framing,
    /// Whether the client is ready for another exchange on this connection.
    pub persistent: bool,
    /// Whether the client waits with its body for `100 Continue`.
    pub expects: bool,
    /// Whether the client reads trailers.
    pub takes_trailers: bool,
}

/// The head of an answer.
#[derive(Debug)]
pub struct ResponseHead {
    /// What is answered, with the fields as they came.
    pub response: Response<()>,
    /// How the body is delimited.
    pub framing: Framing,
    /// Whether the server is ready for another exchange on this connection, as far as its head says.
    pub persistent: bool,
}

/// Reads the head of a request: all of its bytes, to the empty line, and no others.
///
/// # Errors
/// [`HeadFault`] says what is wrong with it. Nothing that follows on the connection has a meaning then.
pub fn request(head: &Bytes) -> Result<RequestHead, HeadFault> {
    let mut lines = Lines { head, at: 0 };
    let line = lines.next()?;
    let [method, target, version] = request_line(&head[line.clone()])?;
    let method = Method::from_bytes(method).map_err(|_| HeadFault::Line)?;
    let version = version_of(version)?;
    let start = line.start + method.as_str().len() + 1;
    let uri = target_of(&method, head.slice(start..start + target.len()))?;
    let mut notes = Notes::default();
    let headers = lines.fields(&mut notes, ADDED_TO_REQUESTS)?;
    check_host(&uri, version, (notes.hosts, notes.host.as_ref()))?;
    let framing = notes.framing(version)?.unwrap_or(Framing::None);
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    *request.headers_mut() = headers;
    Ok(RequestHead {
        request,
        framing,
        persistent: notes.is_persistent(version),
        expects: notes.expects && version == Version::HTTP_11 && framing != Framing::None,
        takes_trailers: notes.takes_trailers && version == Version::HTTP_11,
    })
}

/// Reads the head of an answer to a request with the method `asked`: all of its bytes, to the empty line, and no others.
///
/// # Errors
/// [`HeadFault`] says what is wrong with it. Nothing that follows on the connection has a meaning then.
pub fn response(head: &Bytes, asked: &Method) -> Result<ResponseHead, HeadFault> {
    let mut lines = Lines { head, at: 0 };
    let line = lines.next()?;
    let (version, status) = status_line(&head[line])?;
    let mut notes = Notes::default();
    let headers = lines.fields(&mut notes, ADDED_TO_ANSWERS)?;
    // Judged even where there is no body: a server that is confused about its framing is confused about the next answer.
    let declared = notes.framing(version)?;
    let bodiless = asked == Method::HEAD
        || status.is_informational()
        || status == StatusCode::NO_CONTENT
        || status == StatusCode::NOT_MODIFIED;
    let framing = match declared {
        _ if bodiless => Framing::None,
        Some(framing) => framing,
        None => Framing::UntilClose,
    };
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = version;
    *response.headers_mut() = headers;
    Ok(ResponseHead {
        response,
        framing,
        persistent: notes.is_persistent(version) && framing != Framing::UntilClose,
    })
}

/// Reads a trailer section: all of its bytes, to the empty line, and no others.
///
/// # Errors
/// A field that is none, or that would have had to be in the head.
pub fn trailers(section: &Bytes) -> Result<HeaderMap, HeadFault> {
    let mut notes = Notes::default();
    let trailers = Lines { head: section, at: 0 }.fields(&mut notes, 0)?;
    if notes.lengths > 0 || notes.codings > 0 || notes.hosts > 0 || trailers.contains_key(CONNECTION) {
        return Err(HeadFault::Framing);
    }
    Ok(trailers)
}

/// The lines of a head.
struct Lines<'a> {
    head: &'a Bytes,
    at: usize,
}

impl Lines<'_> {
    /// Where the next line is, without its end.
    fn next(&mut self) -> Result<Range<usize>, HeadFault> {
        let rest = &self.head[self.at..];
        let feed = memchr(b'\n', rest).ok_or(HeadFault::Line)?;
        let end = feed.checked_sub(1).filter(|end| rest[*end] == b'\r');
        let line = self.at..self.at + end.ok_or(HeadFault::Line)?;
        self.at += feed + 1;
        Ok(line)
    }

    /// The fields, from here to the empty line, which must be the end; with room for so many that are `added` to them.
    fn fields(mut self, notes: &mut Notes, added: usize) -> Result<HeaderMap, HeadFault> {
        let count = memchr_iter(b'\n', &self.head[self.at..]).count();
        if count > FIELDS_MAX + 1 {
            return Err(HeadFault::TooLarge);
        }
        let mut fields = match count {
            1 => HeaderMap::new(),
            _ => HeaderMap::with_capacity(count + added),
        };
        loop {
            let line = self.next()?;
            if line.is_empty() {
                return if self.at == self.head.len() {
                    Ok(fields)
                } else {
                    Err(HeadFault::Line)
                };
            }
            let (name, value) = self.field(line)?;
            notes.note(&name, &value);
            fields.try_append(name, value).map_err(|_| HeadFault::TooLarge)?;
        }
    }

    fn field(&self, line: Range<usize>) -> Result<(HeaderName, HeaderValue), HeadFault> {
        let text = &self.head[line.clone()];
        let colon = memchr(b':', text).ok_or(HeadFault::Field)?;
        // No token has a space in it: none before the colon, and none at the start of a line that is folded.
        let name = HeaderName::from_bytes(&text[..colon]).map_err(|_| HeadFault::Field)?;
        let value = &text[colon + 1..];
        let is_space = |byte: &&u8| **byte == b' ' || **byte == b'\t';
        let lead = value.iter().take_while(is_space).count();
        let tail = value[lead..].iter().rev().take_while(is_space).count();
        let start = line.start + colon + 1 + lead;
        // The type holds no control but the tab, whatever came.
        let value = HeaderValue::from_maybe_shared(self.head.slice(start..line.end - tail));
        Ok((name, value.map_err(|_| HeadFault::Field)?))
    }
}

/// What the fields say about their message and its connection.
#[derive(Debug, Default)]
struct Notes {
    /// `Content-Length` fields, and the value of the first.
    lengths: usize,
    length: Option<u64>,
    /// `Transfer-Encoding` fields, and whether the first is `chunked` and nothing else.
    codings: usize,
    chunked: bool,
    hosts: usize,
    host: Option<HeaderValue>,
    close: bool,
    keep_alive: bool,
    expects: bool,
    takes_trailers: bool,
}

impl Notes {
    fn note(&mut self, name: &HeaderName, value: &HeaderValue) {
        if *name == HOST {
            self.hosts += 1;
            self.host = Some(value.clone());
        } else if *name == CONTENT_LENGTH {
            self.lengths += 1;
            self.length = length_of(value.as_bytes());
        } else if *name == TRANSFER_ENCODING {
            self.codings += 1;
            self.chunked = value.as_bytes().eq_ignore_ascii_case(b"chunked");
        } else if *name == CONNECTION {
            self.close |= lists(value, b"close");
            self.keep_alive |= lists(value, b"keep-alive");
        } else if *name == EXPECT {
            self.expects |= value.as_bytes().eq_ignore_ascii_case(b"100-continue");
        } else if *name == TE {
            self.takes_trailers |= lists(value, b"trailers");
        }
    }

    /// How the body is delimited; `None` if nothing says so.
    fn framing(&self, version: Version) -> Result<Option<Framing>, HeadFault> {
        match (self.codings, self.lengths) {
            (0, 0) => Ok(None),
            (0, 1) => self.length.map(Framing::Exact).map(Some).ok_or(HeadFault::Framing),
            (1, 0) if self.chunked && version == Version::HTTP_11 => Ok(Some(Framing::Chunked)),
            _ => Err(HeadFault::Framing),
        }
    }

    fn is_persistent(&self, version: Version) -> bool {
        !self.close && (version == Version::HTTP_11 || self.keep_alive)
    }
}

/// Whether a list of tokens has this one.
pub(super) fn lists(value: &HeaderValue, token: &[u8]) -> bool {
    let mut listed = value.as_bytes().split(|byte| *byte == b',');
    listed.any(|listed| listed.trim_ascii().eq_ignore_ascii_case(token))
}

/// A length in decimal digits and nothing else.
fn length_of(text: &[u8]) -> Option<u64> {
    let is_decimal = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(text).ok().filter(|_| is_decimal)?.parse().ok()
}

/// Method, target and version: one space between them, none elsewhere.
fn request_line(line: &[u8]) -> Result<[&[u8]; 3], HeadFault> {
    let mut parts = line.split(|byte| *byte == b' ');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(method), Some(target), Some(version), None) => Ok([method, target, version]),
        _ => Err(HeadFault::Line),
    }
}

/// Version and status; what comes after them is for people.
fn status_line(line: &[u8]) -> Result<(Version, StatusCode), HeadFault> {
    let (version, rest) = line.split_at_checked(HTTP_1.len() + 1).ok_or(HeadFault::Line)?;
    let version = version_of(version)?;
    let (status, reason) = match rest {
        [b' ', a, b, c, reason @ ..] => ([*a, *b, *c], reason),
        _ => return Err(HeadFault::Line),
    };
    let is_text = |byte: &u8| *byte == b'\t' || (*byte >= b' ' && *byte != 0x7f);
    if !reason.iter().all(is_text) || reason.first().is_some_and(|byte| *byte != b' ') {
        return Err(HeadFault::Line);
    }
    let status = StatusCode::from_bytes(&status).map_err(|_| HeadFault::Line)?;
    Ok((version, status))
}

fn version_of(text: &[u8]) -> Result<Version, HeadFault> {
    match text.strip_prefix(HTTP_1) {
        Some(b"1") => return Ok(Version::HTTP_11),
        Some(b"0") => return Ok(Version::HTTP_10),
        _ => {}
    }
    match text.strip_prefix(b"HTTP/") {
        Some([major, b'.', minor]) if major.is_ascii_digit() && minor.is_ascii_digit() => Err(HeadFault::Version),
        _ => Err(HeadFault::Line),
    }
}

/// The target in one of the forms that are served: a path, a URL, or `*` for the server itself.
fn target_of(method: &Method, target: Bytes) -> Result<Uri, HeadFault> {
    if method == Method::CONNECT {
        return Err(HeadFault::Method);
    }
    // No other byte has a place there; a fragment is the client's own business and would be dropped in silence.
    if !target.iter().all(|byte| byte.is_ascii_graphic() && *byte != b'#') {
        return Err(HeadFault::Line);
    }
    let is_path = target.first() == Some(&b'/');
    let is_server = target == "*" && method == Method::OPTIONS;
    let uri = Uri::from_maybe_shared(target).map_err(|_| HeadFault::Line)?;
    let is_scheme = |scheme: &str| scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    let is_url = uri.scheme_str().is_some_and(is_scheme);
    match uri.authority() {
        None if is_path || is_server => Ok(uri),
        // A user's name and password have no place in a request.
        Some(authority) if is_url && !authority.as_str().contains('@') => with_path(uri),
        _ => Err(HeadFault::Line),
    }
}

/// A URL whose path may be left out, with the path that it means.
fn with_path(uri: Uri) -> Result<Uri, HeadFault> {
    match uri.path_and_query() {
        Some(target) if target.as_str().starts_with('?') => {
            let target = format!("/{}", target.as_str()).parse().map_err(|_| HeadFault::Line)?;
            let mut parts = uri.into_parts();
            parts.path_and_query = Some(target);
            Uri::from_parts(parts).map_err(|_| HeadFault::Line)
        }
        _ => Ok(uri),
    }
}

/// Makes sure that a request has one `Host`, as its version asks for it, and the same that its target says. `hosts` are how
/// many there are, and one of them.
///
/// # Errors
/// [`HeadFault::Host`].
pub fn check_host(uri: &Uri, version: Version, hosts: (usize, Option<&HeaderValue>)) -> Result<(), HeadFault> {
    let host = match hosts {
        (0, _) if version != Version::HTTP_11 => return Ok(()),
        (1, Some(host)) => host.as_bytes(),
        _ => return Err(HeadFault::Host),
    };
    let is_of_host = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+;=:[]%".contains(byte);
    if host.is_empty() || !host.iter().all(is_of_host) {
        return Err(HeadFault::Host);
    }
    let is_https = uri
        .scheme_str()
        .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
    let default = if is_https { &b":443"[..] } else { b":80" };
    let bare = |text: &[u8]| text.strip_suffix(default).unwrap_or(text).to_ascii_lowercase();
    match uri.authority() {
        Some(authority) if bare(authority.as_str().as_bytes()) != bare(host) => Err(HeadFault::Host),
        _ => Ok(()),
    }
}

const HTTP_1: &[u8] = b"HTTP/1.";

/// As many fields as a gateway adds.
const ADDED_TO_REQUESTS: usize = 6;
const ADDED_TO_ANSWERS: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(head: &str) -> Result<RequestHead, HeadFault> {
        request(&Bytes::copy_from_slice(head.as_bytes()))
    }

    /// The fault of a request with these fields behind its `Host`.
    fn fault(fields: &str) -> Option<HeadFault> {
        read(&format!("POST / HTTP/1.1\r\nHost: x\r\n{fields}\r\n")).err()
    }

    #[test]
    fn a_request_is_read_as_it_came() {
        let head = read(
            "POST /a/../b?c=%2F HTTP/1.1\r\nhost:  gw.test:8443 \r\nX-One: 1\r\nx-one:\t2\t\r\nEmpty:\r\n\
             Content-Length: 007\r\nExpect: 100-Continue\r\nTE: trailers, deflate\r\n\r\n",
        )
        .unwrap();
        assert_eq!(head.request.method(), Method::POST);
        assert_eq!(head.request.uri(), "/a/../b?c=%2F");
        assert_eq!(head.request.headers()["host"], "gw.test:8443");
        let ones: Vec<_> = head.request.headers().get_all("x-one").iter().collect();
        assert_eq!(ones, ["1", "2"]);
        assert_eq!(head.request.headers()["empty"], "");
        assert_eq!(head.framing, Framing::Exact(7));
        assert!(head.persistent && head.expects && head.takes_trailers);
    }

    #[test]
    fn a_connection_goes_on_as_version_and_fields_say() {
        for (version, fields, persistent) in [
            ("1.1", "", true),
            ("1.1", "Connection: keep-alive\r\n", true),
            ("1.1", "Connection: x, CLOSE\r\n", false),
            ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", false),
            ("1.0", "", false),
            ("1.0", "Connection: Keep-Alive\r\n", true),
            ("1.0", "Connection: keep-alive, close\r\n", false),
        ] {
            let head = read(&format!("GET / HTTP/{version}\r\nHost: x\r\n{fields}\r\n")).unwrap();
            assert_eq!(head.persistent, persistent, "{version} {fields}");
        }
    }

    #[test]
    fn first_lines_that_could_be_read_differently_are_refused() {
        for line in [
            "",
            "GET",
            "GET /",
            "GET / ",
            " GET / HTTP/1.1",
            "GET  / HTTP/1.1",
            "GET /  HTTP/1.1",
            "GET / HTTP/1.1 ",
            "GET\t/ HTTP/1.1",
            "GET /a b HTTP/1.1",
            "GET /a#b HTTP/1.1",
            "GET /\u{e9} HTTP/1.1",
            "GET /\0 HTTP/1.1",
            "GET /a\rb HTTP/1.1",
            "G(T / HTTP/1.1",
            "GET / http/1.1",
            "GET / HTTP/11",
            "GET * HTTP/1.1",
            "GET example.com HTTP/1.1",
            "GET example.com:443 HTTP/1.1",
            "GET ftp://x/ HTTP/1.1",
            "GET http:///a HTTP/1.1",
            "GET http://user@x/ HTTP/1.1",
        ] {
            assert_eq!(
                read(&format!("{line}\r\nHost: x\r\n\r\n")).err(),
                Some(HeadFault::Line),
                "{line:?}"
            );
        }
        for version in ["0.9", "1.2", "2.0", "3.0"] {
            let head = read(&format!("GET / HTTP/{version}\r\nHost: x\r\n\r\n"));
            assert_eq!(head.err(), Some(HeadFault::Version));
        }
        assert_eq!(read("PRI * HTTP/2.0\r\n\r\n").err(), Some(HeadFault::Version));
        assert_eq!(
            read("CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n").err(),
            Some(HeadFault::Method)
        );
        assert!(read("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").is_ok());
        for (target, path) in [
            ("http://x?a", "/?a"),
            ("http://x", "/"),
            ("http://x/?a", "/?a"),
            ("/?a", "/?a"),
        ] {
            let head = read(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n")).unwrap();
            assert_eq!(head.request.uri().path_and_query().unwrap().as_str(), path, "{target}");
        }
    }

    #[test]
    fn a_body_that_is_delimited_in_two_ways_or_none_is_refused() {
        for fields in [
            "Content-Length: 4\r\nContent-Length: 4\r\n",
            "Content-Length: 4\r\nContent-Length: 5\r\n",
            "Content-Length: 4, 4\r\n",
            "Content-Length: +4\r\n",
            "Content-Length: -4\r\n",
            "Content-Length: 0x4\r\n",
            "Content-Length: 4 4\r\n",
            "Content-Length:\r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "Transfer-Encoding: identity, chunked\r\n",
            "Transfer-Encoding: chunked, identity\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: xchunked\r\n",
            "Transfer-Encoding: chunked;q=1\r\n",
            "Transfer-Encoding: \u{b}chunked\r\n",
            "Transfer-Encoding:\r\n",
        ] {
            let expected = if fields.contains('\u{b}') {
                HeadFault::Field
            } else {
                HeadFault::Framing
            };
            assert_eq!(fault(fields), Some(expected), "{fields:?}");
        }
        let old = "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(read(old).err(), Some(HeadFault::Framing));
        let chunked = read("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n").unwrap();
        assert_eq!(chunked.framing, Framing::Chunked);
    }

    #[test]
    fn fields_that_are_none_are_refused() {
        for fields in [
            " Folded: yes\r\n",
            "A: b\r\n c\r\n",
            "A: b\r\n\tc\r\n",
            "A : b\r\n",
            "A\t: b\r\n",
            "A b: c\r\n",
            ": b\r\n",
            "nothing\r\n",
            "A: b\0c\r\n",
            "A: b\rc\r\n",
            "A: b\r\r\n",
            "A: b\u{c}\r\n",
            "A: b\u{7f}\r\n",
            "A\u{e9}: b\r\n",
        ] {
            assert_eq!(fault(fields), Some(HeadFault::Field), "{fields:?}");
        }
        for fields in ["A: b\n", "A: b\nTransfer-Encoding: chunked\r\n"] {
            assert_eq!(fault(fields), Some(HeadFault::Line), "{fields:?}");
        }
        assert_eq!(fault("under_score: 1\r\ndot.ted: \u{e9}\r\n"), None);
    }

    #[test]
    fn there_is_one_host_and_the_target_says_the_same() {
        for head in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost:\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: b@a\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            "GET http://a:81/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET https://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert_eq!(read(head).err(), Some(HeadFault::Host), "{head:?}");
        }
        for head in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET http://a/ HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: [2001:db8::1]:8443\r\n\r\n",
            "GET http://A/x HTTP/1.1\r\nHost: a:80\r\n\r\n",
            "GET HTTPS://a:443?x HTTP/1.1\r\nHost: a\r\n\r\n",
        ] {
            assert!(read(head).is_ok(), "{head:?} {:?}", read(head));
        }
    }

    #[test]
    fn a_head_has_bounds() {
        let fields = |count: usize| "A: b\r\n".repeat(count);
        let scan = |bytes: &[u8]| Scan::default().end(bytes);
        let head = |count| format!("GET / HTTP/1.1\r\nHost: x\r\n{}\r\n", fields(count - 1));
        assert!(scan(head(FIELDS_MAX).as_bytes()).is_ok() && read(&head(FIELDS_MAX)).is_ok());
        assert_eq!(scan(head(FIELDS_MAX + 1).as_bytes()), Err(HeadFault::TooLarge));
        assert_eq!(read(&head(FIELDS_MAX + 1)).err(), Some(HeadFault::TooLarge));
        let long = |length: usize| format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(length - 23));
        assert_eq!(scan(long(HEAD_MAX).as_bytes()), Ok(Some(HEAD_MAX)));
        assert_eq!(scan(long(HEAD_MAX + 1).as_bytes()), Err(HeadFault::TooLarge));
        assert_eq!(scan(&[b'a'; HEAD_MAX - 1]), Ok(None));
        assert_eq!(scan(&[b'a'; HEAD_MAX]), Err(HeadFault::TooLarge));
        assert_eq!(scan(b"GET / HTTP/1.1\n\n"), Err(HeadFault::Line));
        assert_eq!(scan(b"\n"), Err(HeadFault::Line));
    }

    #[test]
    fn empty_lines_before_a_request_are_passed() {
        for (bytes, begun, left) in [
            ("", false, ""),
            ("\r", false, "\r"),
            ("\r\n", false, ""),
            ("\r\nGET", true, "GET"),
            ("\r\n\r\nGET", true, "GET"),
            ("\r\n\r\n\r\n", true, "\r\n"),
            ("\n", true, "\n"),
            ("G", true, "G"),
        ] {
            let mut rest = BytesMut::from(bytes);
            assert_eq!(
                (skip_empty_lines(&mut rest), &rest[..]),
                (begun, left.as_bytes()),
                "{bytes:?}"
            );
        }
    }

    #[test]
    fn answers_are_delimited_as_their_status_and_fields_say() {
        let framing = |text: &str, asked: &Method| {
            let head = response(&Bytes::copy_from_slice(text.as_bytes()), asked)?;
            Ok((head.response.status().as_u16(), head.framing, head.persistent))
        };
        let get = Method::GET;
        for (text, expected) in [
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
                Ok((200, Framing::Exact(5), true)),
            ),
            ("HTTP/1.1 200\r\n\r\n", Ok((200, Framing::UntilClose, false))),
            (
                "HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n",
                Ok((200, Framing::Chunked, true)),
            ),
            ("HTTP/1.1 204 Nothing\tat all\r\n\r\n", Ok((204, Framing::None, true))),
            (
                "HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n",
                Ok((304, Framing::None, true)),
            ),
            (
                "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n",
                Ok((103, Framing::None, true)),
            ),
            (
                "HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n",
                Ok((200, Framing::Exact(5), false)),
            ),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
                Ok((200, Framing::Exact(0), true)),
            ),
            (
                "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\n",
                Ok((200, Framing::UntilClose, false)),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err(HeadFault::Framing),
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
                Err(HeadFault::Framing),
            ),
            (
                "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
                Err(HeadFault::Framing),
            ),
            ("HTTP/2 200 OK\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.2 200 OK\r\n\r\n", Err(HeadFault::Version)),
            ("HTTP/1.1 20 OK\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.1 2000 OK\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.1  200 OK\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.1 099 OK\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.1 200 O\0K\r\n\r\n", Err(HeadFault::Line)),
            ("HTTP/1.1 200 OK\r\nA : b\r\n\r\n", Err(HeadFault::Field)),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\n\r\n", Err(HeadFault::Field)),
        ] {
            assert_eq!(framing(text, &get), expected, "{text:?}");
        }
        let head = framing("HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n", &Method::HEAD);
        assert_eq!(head, Ok((200, Framing::None, true)));
    }

    proptest! {
        /// Whatever is read here, another strict reader reads the same way.
        #[test]
        fn a_head_means_the_same_to_another_reader(
            mut head in "(GET|POST|X) (/[a-z?]{0,3}|\\*|http://x) HTTP/1\\.[01]\r\n(Host: x\r\n)?([a-cX-Z-]{1,3}:[ \t]?[a-c ]{0,3}\r\n){0,4}\r\n",
            wrong in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut bytes = std::mem::take(&mut head).into_bytes();
            for (place, byte) in wrong {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
            let bytes = Bytes::from(bytes);
            let mut fields = [httparse::EMPTY_HEADER; 16];
            let mut other = httparse::Request::new(&mut fields);
            let parsed = other.parse(&bytes);
            if let Ok(Some(end)) = Scan::default().end(&bytes)
                && let Ok(read) = request(&bytes.slice(..end))
            {
                prop_assert_eq!(parsed, Ok(httparse::Status::Complete(end)));
                prop_assert_eq!(other.method, Some(read.request.method().as_str()));
                let version = if read.request.version() == Version::HTTP_11 { 1 } else { 0 };
                prop_assert_eq!(other.version, Some(version));
                let mut theirs: Vec<_> =
                    other.headers.iter().map(|field| (field.name.to_ascii_lowercase(), field.value.to_vec())).collect();
                let mut ours: Vec<_> = read
                    .request
                    .headers()
                    .iter()
                    .map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_vec()))
                    .collect();
                theirs.sort();
                ours.sort();
                prop_assert_eq!(ours, theirs);
            }
        }

        #[test]
        fn the_end_is_found_however_the_bytes_are_cut(
            bytes in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(b'a')], 0..40),
            cuts in proptest::collection::vec(1..5usize, 1..9),
        ) {
            let whole = Scan::default().end(&bytes);
            let (mut scan, mut length, mut found) = (Scan::default(), 0, Ok(None));
            for cut in cuts.iter().cycle() {
                if found != Ok(None) || length == bytes.len() {
                    break;
                }
                length = (length + cut).min(bytes.len());
                found = scan.end(&bytes[..length]);
            }
            prop_assert_eq!(found, whole);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let bytes = Bytes::from(bytes);
            let _ = (request(&bytes), response(&bytes, &Method::GET), trailers(&bytes));
        }
    }
}
