//! The one spelling of a path: what is routed, what is inspected and what the target gets are the same bytes.
//!
//! A gateway and the target behind it that read a path differently are the oldest way around a rule. So a path is
//! spelt anew once, at the entrance, and whatever a target could still take for another path is refused:
//!
//! | sent | becomes |
//! |---|---|
//! | `/a//b`, `/a/./b`, `/a/x/../b`, `/a/%2e/b` | `/a/b` |
//! | `/%61%7e`, `/%c3%a9`, `/{x}` | `/a~`, `/%C3%A9`, `/%7Bx%7D` |
//! | `/a%2Fb`, `/a%25b`, `/a;v=1/b` | itself |
//! | `/../a`, `/a/..%2fb`, `/%252e%252e/a`, `/..;/a`, `/%c0%ae/a` | 400 |
//! | `\`, `%5c`, `%00`, controls, bytes beyond ASCII, half an escape | 400 |
//!
//! The query stays as it was sent; it has visible ASCII only.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use http::uri::PathAndQuery;

use crate::fault::WebFault;

/// A path with its query, in its one spelling.
///
/// The path begins with `/` and has only what RFC 3986 section 3.3 allows: no empty segment but the last, no dot segment
/// under any number of decodings, no escape of what needs none, escapes in capitals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normal(PathAndQuery);

impl Normal {
    /// What a request asks for, in its one spelling. Copies nothing if it has it already.
    ///
    /// # Errors
    /// [`UnsafePath`], also for the target `*` of `OPTIONS`, which is no path.
    pub fn of(target: &PathAndQuery) -> Result<Self, UnsafePath> {
        match normalise(target.as_str())? {
            Cow::Borrowed(_) => Ok(Self(target.clone())),
            Cow::Owned(text) => Self::own(text),
        }
    }

    /// The same for a text, as rewriting makes one.
    ///
    /// # Errors
    /// [`UnsafePath`].
    pub fn parse(text: &str) -> Result<Self, UnsafePath> {
        Self::own(normalise(text)?.into_owned())
    }

    /// The path.
    pub fn path(&self) -> &str {
        self.0.path()
    }

    /// The query, without its `?`.
    pub fn query(&self) -> Option<&str> {
        self.0.query()
    }

    /// Path and query.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// The same for a [`http::Uri`].
    pub fn path_and_query(&self) -> &PathAndQuery {
        &self.0
    }

    fn own(text: String) -> Result<Self, UnsafePath> {
        PathAndQuery::from_maybe_shared(Bytes::from(text))
            .map(Self)
            .map_err(|_| UnsafePath::Malformed)
    }
}

impl fmt::Display for Normal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a path cannot be made safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsafePath {
    /// It does not begin with `/`.
    #[error("the path does not begin with /")]
    NotAPath,
    /// Half an escape, or a byte that neither path nor query can have.
    #[error("the path or query is malformed")]
    Malformed,
    /// A control character or a space, however it is written.
    #[error("the path has a control character")]
    Control,
    /// A byte beyond ASCII that is not escaped.
    #[error("the path has a byte beyond ASCII that is not escaped")]
    NotAscii,
    /// `\`, which some targets take for `/`.
    #[error("the path has a backslash")]
    Backslash,
    /// It leads out of the root.
    #[error("the path leads above /")]
    AboveRoot,
    /// A dot segment that shows only when it is decoded again, or that has parameters.
    #[error("the path hides a dot segment")]
    HiddenDots,
    /// A character that is written in more bytes than it needs, as no UTF-8 has it.
    #[error("the path has a character in overlong UTF-8")]
    Overlong,
}

impl From<UnsafePath> for WebFault {
    fn from(_: UnsafePath) -> Self {
        Self::UnsafePath
    }
}

/// Path and query with the path in its one spelling; borrowed if it is there already.
fn normalise(raw: &str) -> Result<Cow<'_, str>, UnsafePath> {
    let (path, query) = raw.split_at(raw.find('?').unwrap_or(raw.len()));
    if let Some(odd) = query.bytes().find(|byte| !byte.is_ascii_graphic() || *byte == b'#') {
        return Err(why_not(odd));
    }
    if is_plain(path) {
        return Ok(Cow::Borrowed(raw));
    }
    if !path.is_empty() && !path.starts_with('/') {
        return Err(UnsafePath::NotAPath);
    }
    let mut whole = resolve(&respell(path)?)?;
    let bare = unescape_whole(&whole);
    refuse_hidden(&bare)?;
    whole.push_str(query);
    Ok(if whole == raw {
        Cow::Borrowed(raw)
    } else {
        Cow::Owned(whole)
    })
}

/// Whether nothing can be the matter with a path, as with almost every one.
fn is_plain(path: &str) -> bool {
    let mut after_slash = false;
    path.starts_with('/')
        && path.bytes().all(|byte| {
            let sound = is_path_byte(byte) && !(after_slash && matches!(byte, b'/' | b'.'));
            after_slash = byte == b'/';
            sound
        })
}

/// Escapes what may not stand there, and nothing that may stand there anyway; escapes are in capitals.
///
/// Used for patterns of paths too, which are compared with what this made.
pub(super) fn respell(path: &str) -> Result<String, UnsafePath> {
    let mut spelt = String::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if is_path_byte(byte) {
            spelt.push(byte.into());
            continue;
        }
        let octet = match byte {
            b'%' => octet(rest.next(), rest.next()).ok_or(UnsafePath::Malformed)?,
            b'"' | b'<' | b'>' | b'[' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => byte,
            odd => return Err(why_not(odd)),
        };
        match octet {
            b'\\' => return Err(UnsafePath::Backslash),
            control if control.is_ascii_control() => return Err(UnsafePath::Control),
            letter if is_unreserved(letter) => spelt.push(letter.into()),
            other => {
                spelt.push('%');
                spelt.push(DIGITS[usize::from(other >> 4)].into());
                spelt.push(DIGITS[usize::from(other & 15)].into());
            }
        }
    }
    Ok(spelt)
}

/// Takes empty segments and dot segments out (RFC 3986 section 5.2.4, but that nothing may lead above the root).
fn resolve(path: &str) -> Result<String, UnsafePath> {
    let mut resolved = String::with_capacity(path.len() + 1);
    let mut is_folder = true;
    for segment in path.split('/').skip(1) {
        is_folder = matches!(segment, "" | "." | "..");
        if segment == ".." {
            let parent = resolved.rfind('/').ok_or(UnsafePath::AboveRoot)?;
            resolved.truncate(parent);
        } else if !is_folder {
            resolved.push('/');
            resolved.push_str(segment);
        }
    }
    if is_folder {
        resolved.push('/');
    }
    Ok(resolved)
}

/// The path after as many decodings as there are escapes for, in one pass.
///
/// Escapes never overlap, so that their order does not matter; and what decoding has brought to light once (a separator,
/// dots between two of them, a control) is there ever after. Whatever any number of decodings shows is seen here.
fn unescape_whole(path: &str) -> Vec<u8> {
    let mut bare = Vec::with_capacity(path.len());
    for byte in path.bytes() {
        bare.push(byte);
        while let [before @ .., b'%', high, low] = bare.as_slice()
            && let Some(octet) = octet(Some(*high), Some(*low))
        {
            let before = before.len();
            bare.truncate(before);
            bare.push(octet);
        }
    }
    bare
}

fn refuse_hidden(bare: &[u8]) -> Result<(), UnsafePath> {
    if bare.iter().any(u8::is_ascii_control) {
        return Err(UnsafePath::Control);
    }
    if bare.windows(2).any(|pair| is_overlong(pair[0], pair[1])) {
        return Err(UnsafePath::Overlong);
    }
    let are_dots = |segment: &[u8]| {
        // Servlet containers take parameters off a segment before they look at it.
        let name = segment.split(|&byte| byte == b';').next().unwrap_or_default();
        matches!(name, b"." | b"..")
    };
    if bare.split(|byte| matches!(byte, b'/' | b'\\')).any(are_dots) {
        return Err(UnsafePath::HiddenDots);
    }
    Ok(())
}

/// Whether these bytes begin a character in more bytes than it needs (RFC 3629 section 3).
fn is_overlong(lead: u8, next: u8) -> bool {
    match lead {
        0xC0 | 0xC1 => (0x80..=0xBF).contains(&next),
        0xE0 => (0x80..=0x9F).contains(&next),
        0xF0 => (0x80..=0x8F).contains(&next),
        _ => false,
    }
}

fn why_not(odd: u8) -> UnsafePath {
    match odd {
        b'\\' => UnsafePath::Backslash,
        0..=b' ' | 0x7F => UnsafePath::Control,
        0x80.. => UnsafePath::NotAscii,
        _ => UnsafePath::Malformed,
    }
}

fn octet(high: Option<u8>, low: Option<u8>) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high?)? << 4 | digit(low?)?)
}

/// `pchar` of RFC 3986 section 3.3 without escapes, and `/`.
const fn is_path_byte(byte: u8) -> bool {
    PATH_BYTES[byte as usize]
}

const fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Every byte of every path is looked up here.
const PATH_BYTES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0_u8;
    while byte < 0x80 {
        let is_delimiter = matches!(
            byte,
            b'/' | b':' | b'@' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
        );
        table[byte as usize] = is_unreserved(byte) || is_delimiter;
        byte += 1;
    }
    table
};

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str) -> Result<String, UnsafePath> {
        normalise(text).map(Cow::into_owned)
    }

    #[test]
    fn a_path_has_one_spelling() {
        for (sent, normal) in [
            ("/", "/"),
            ("", "/"),
            ("?x=1", "/?x=1"),
            ("/a/b", "/a/b"),
            ("/a/b/", "/a/b/"),
            ("//a///b//", "/a/b/"),
            ("/a/./b/.", "/a/b/"),
            ("/a/x/../b", "/a/b"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a//../b", "/b"),
            ("/public/%2e%2E/admin", "/admin"),
            ("/....//admin", "/..../admin"),
            ("/.well-known/x", "/.well-known/x"),
            ("/%61%7E%2d%5F", "/a~-_"),
            ("/%c3%a9%20%25", "/%C3%A9%20%25"),
            ("/v1/te%2Fst/x", "/v1/te%2Fst/x"),
            ("/v1/te%2fst/x", "/v1/te%2Fst/x"),
            ("/{a}|[b]^`\"<>", "/%7Ba%7D%7C%5Bb%5D%5E%60%22%3C%3E"),
            ("/a;v=1/b,c:@!$&'()*+=", "/a;v=1/b,c:@!$&'()*+="),
            ("/a%3Bb", "/a%3Bb"),
            ("/a?b=%2e%2e/..//\\%00%zz?{}", "/a?b=%2e%2e/..//\\%00%zz?{}"),
            ("/a/../b?/../c", "/b?/../c"),
        ] {
            assert_eq!(of(sent).as_deref(), Ok(normal), "{sent}");
        }
    }

    #[test]
    fn what_cannot_be_made_safe_is_refused() {
        for (sent, why) in [
            ("*", UnsafePath::NotAPath),
            ("a/b", UnsafePath::NotAPath),
            ("/..", UnsafePath::AboveRoot),
            ("/a/../../b", UnsafePath::AboveRoot),
            ("/%2e%2e/b", UnsafePath::AboveRoot),
            ("/a\\..\\admin", UnsafePath::Backslash),
            ("/a%5C..%5cadmin", UnsafePath::Backslash),
            ("/a%00", UnsafePath::Control),
            ("/a%0d%0aX:%20y", UnsafePath::Control),
            ("/a%7F", UnsafePath::Control),
            ("/a b", UnsafePath::Control),
            ("/a%2500", UnsafePath::Control),
            ("/é", UnsafePath::NotAscii),
            ("/a?é", UnsafePath::NotAscii),
            ("/a? ", UnsafePath::Control),
            ("/100%", UnsafePath::Malformed),
            ("/%2", UnsafePath::Malformed),
            ("/%u002e", UnsafePath::Malformed),
            ("/%+1", UnsafePath::Malformed),
            ("/a#b", UnsafePath::Malformed),
            ("/a?b#c", UnsafePath::Malformed),
            ("/public/..%2fadmin", UnsafePath::HiddenDots),
            ("/public%2F..", UnsafePath::HiddenDots),
            ("/public/%252e%252e/admin", UnsafePath::HiddenDots),
            ("/public/%25252E./admin", UnsafePath::HiddenDots),
            ("/public/%25%32%65%25%32%65/admin", UnsafePath::HiddenDots),
            ("/public/..%255cadmin", UnsafePath::HiddenDots),
            ("/public/..;/admin", UnsafePath::HiddenDots),
            ("/public/.;x=1/admin", UnsafePath::HiddenDots),
            ("/public/..%3bx/admin", UnsafePath::HiddenDots),
            ("/public/%c0%ae%c0%ae/admin", UnsafePath::Overlong),
            ("/public/..%e0%80%af", UnsafePath::Overlong),
            ("/%25f0%2580%2580%25ae", UnsafePath::Overlong),
        ] {
            assert_eq!(of(sent), Err(why), "{sent}");
        }
    }

    #[test]
    fn a_normal_path_is_not_copied() {
        let sent = PathAndQuery::from_static("/shop/list?page=2");
        let normal = Normal::of(&sent).unwrap();
        assert_eq!((normal.path(), normal.query()), ("/shop/list", Some("page=2")));
        assert_eq!(normal.as_str().as_ptr(), sent.as_str().as_ptr());
        let respelt = Normal::of(&PathAndQuery::from_static("/%61?%61")).unwrap();
        assert_eq!(respelt.path_and_query(), "/a?%61");
        assert_eq!(WebFault::from(UnsafePath::Control), WebFault::UnsafePath);
    }

    #[test]
    fn endless_encoding_costs_no_more_than_its_length() {
        let nested = format!("/%{}2e%{0}2e/x", "25".repeat(15_000));
        assert_eq!(of(&nested), Err(UnsafePath::HiddenDots));
    }

    /// What attackers put together.
    fn hostile() -> impl Strategy<Value = String> {
        let pieces = [
            "/", "/", ".", "..", "%2e", "%2E", "%252e", "%25", "25", "2e", "2F", "%2f", "%255c", "%5c", "\\", ";",
            "%3B", "%", "a", "B%41", "%c0%ae", "%C3%A9", "%00", "%2500", "{", "?", "#", " ", "é", "=", "~", "%7e",
            "%32%65",
        ];
        let any_of = proptest::sample::select(pieces.to_vec());
        proptest::collection::vec(any_of, 0..14).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    fn decode_once(bytes: &[u8]) -> Vec<u8> {
        let (mut decoded, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let pair = (bytes.get(at + 1).copied(), bytes.get(at + 2).copied());
            match octet(pair.0, pair.1).filter(|_| bytes[at] == b'%') {
                Some(octet) => {
                    decoded.push(octet);
                    at += 3;
                }
                None => {
                    decoded.push(bytes[at]);
                    at += 1;
                }
            }
        }
        decoded
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn normal_paths_stay_as_they_are(sent in hostile()) {
            if let Ok(normal) = of(&sent) {
                let again = normalise(&normal);
                prop_assert!(matches!(&again, Ok(Cow::Borrowed(text)) if *text == normal), "{normal} {again:?}");
                prop_assert_eq!(normal.split_once('?').map(|(_, query)| query), sent.split_once('?').map(|(_, query)| query));
                prop_assert!(Normal::parse(&sent).is_ok_and(|parsed| parsed.as_str() == normal));
            }
        }

        #[test]
        fn no_number_of_decodings_shows_a_dot_segment(sent in hostile()) {
            let Ok(normal) = of(&sent) else { return Ok(()) };
            let path = normal.split('?').next().unwrap();
            prop_assert!(path.starts_with('/') && !path.contains("//") && !path.contains('\\'));
            prop_assert!(path.bytes().all(|byte| is_path_byte(byte) || byte == b'%'));
            let mut now = path.as_bytes().to_vec();
            loop {
                prop_assert!(!now.iter().any(u8::is_ascii_control));
                for segment in now.split(|byte| b"/\\".contains(byte)) {
                    let name = segment.split(|byte| *byte == b';').next().unwrap();
                    prop_assert!(name != b"." && name != b"..", "{} from {}", path, sent);
                }
                let next = decode_once(&now);
                if next == now {
                    break;
                }
                now = next;
            }
        }

        #[test]
        fn escaping_what_needs_no_escape_changes_nothing(
            path in "(/[a-z0-9._~-]{1,6}){1,5}/?",
            which in proptest::collection::vec(any::<bool>(), 40),
        ) {
            let escaped: String = path.bytes().zip(which).map(|(byte, escape)| {
                if escape && byte != b'/' { format!("%{byte:02x}") } else { char::from(byte).to_string() }
            }).collect();
            prop_assert_eq!(of(&escaped), of(&path));
        }
    }
}
