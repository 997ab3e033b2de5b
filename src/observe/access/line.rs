//! How a line is written: JSON with the members in one order, of bytes that anybody may have sent.
//!
//! Written once for every request: what has a fixed length in memory is copied as that, without a call, and cut to what
//! it is.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use jiff::Timestamp;

use super::Line;
use crate::types::{AccessField, put_ip, put_socket};

/// Which fields a line has: a bit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields(u64);

impl Fields {
    /// These; none is all.
    pub(super) fn of(fields: &BTreeSet<AccessField>) -> Self {
        if fields.is_empty() {
            return Self(u64::MAX);
        }
        Self(fields.iter().fold(0, |bits, &field| bits | bit(field)))
    }

    fn has(self, field: AccessField) -> bool {
        self.0 & bit(field) != 0
    }
}

fn bit(field: AccessField) -> u64 {
    1 << (field as u64)
}

/// Appends a line with its end. A field without a value is left out.
pub(super) fn render(out: &mut Vec<u8>, line: &Line<'_>, node: &str, fields: Fields) {
    let from = out.len();
    out.reserve(ROOM);
    for field in AccessField::ALL {
        if fields.has(field) {
            Member { field, out }.put(line, node);
        }
    }
    match out.get_mut(from) {
        // The comma before the first.
        Some(comma) => *comma = b'{',
        None => out.push(b'{'),
    }
    out.extend_from_slice(b"}\n");
}

/// A field that is put into a line, if it turns out to have a value.
struct Member<'a> {
    field: AccessField,
    out: &'a mut Vec<u8>,
}

impl<'a> Member<'a> {
    fn put(self, line: &Line<'_>, node: &str) {
        let served = line.target.as_ref();
        match self.field {
            AccessField::TimeStamp => self.timestamp(line.begun),
            AccessField::InstanceId => self.text(node),
            AccessField::ListenerName => self.text(line.listener),
            AccessField::RuleName => self.some(line.rule, Self::text),
            AccessField::BackendPoolName => self.some(line.pool, Self::text),
            AccessField::BackendSettingName => self.some(line.backend, Self::text),
            AccessField::ClientIp => self.address(line.client.ip()),
            AccessField::ClientPort => self.number(line.client.port()),
            AccessField::HttpMethod => self.text(line.method),
            AccessField::OriginalRequestUriWithArgs => self.string(line.original_target),
            AccessField::RequestUri => self.text(line.path),
            AccessField::RequestQuery => self.some(line.query, Self::text),
            AccessField::UserAgent => self.some(line.user_agent, Self::string),
            AccessField::HttpStatus => self.number(line.status),
            AccessField::HttpVersion => self.word(line.version),
            AccessField::ReceivedBytes => self.number(line.received),
            AccessField::SentBytes => self.number(line.sent),
            AccessField::ClientResponseTime => self.seconds(line.answering),
            AccessField::TimeTaken => self.seconds(line.taken),
            AccessField::TransactionId => self.word(line.trace),
            AccessField::SslEnabled => self.word(if line.tls.is_some() { "on" } else { "off" }),
            AccessField::SslCipher => self.some(line.tls.map(|(_, cipher)| cipher), Self::word),
            AccessField::SslProtocol => self.some(line.tls.map(|(version, _)| version), Self::word),
            AccessField::ServerRouted => self.some(served.map(|served| served.address), Self::socket),
            AccessField::ServerStatus => self.some(served.and_then(|served| served.status), Self::number),
            AccessField::ServerResponseLatency => self.some(served.and_then(|served| served.latency), Self::seconds),
            AccessField::UpstreamSourcePort => self.some(served.and_then(|served| served.source_port), Self::number),
            AccessField::ServerReused => self.some(served.map(|served| served.reused), Self::boolean),
            AccessField::Retries => self.number(line.retries),
            AccessField::DroppedFields => self.some(
                Some(line.dropped_fields as u64).filter(|count| *count > 0),
                Self::number,
            ),
            AccessField::OriginalHost => self.text(line.original_host),
            AccessField::Host => self.some(line.host, Self::text),
            AccessField::ErrorInfo => self.some(line.fault.map(|fault| fault.code()), Self::word),
            AccessField::ContentType => self.some(line.content_type, Self::string),
        }
    }

    /// Puts the name, and what the value goes behind.
    fn begin(self) -> &'a mut Vec<u8> {
        let Name { text, length } = &NAMES[self.field as usize];
        let end = self.out.len() + length;
        self.out.extend_from_slice(text);
        self.out.truncate(end);
        self.out
    }

    fn some<T>(self, value: Option<T>, put: impl FnOnce(Self, T)) {
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn text(self, text: &str) {
        self.string(text.as_bytes());
    }

    /// A string of whatever came: what is no UTF-8 becomes U+FFFD, and what is longer than [`MOST_BYTES`] is cut.
    fn string(self, bytes: &[u8]) {
        let out = self.begin();
        out.push(b'"');
        if bytes.len() <= MOST_BYTES && is_plain(bytes) {
            out.extend_from_slice(bytes);
        } else {
            escaped(out, bytes);
        }
        out.push(b'"');
    }

    /// A string of this program's own, which needs no escaping.
    fn word(self, text: &str) {
        debug_assert!(is_plain(text.as_bytes()), "{text:?}");
        let out = self.begin();
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }

    fn number(self, number: impl Into<u64>) {
        decimal(self.begin(), number.into());
    }

    /// Seconds to the microsecond, such as `0.000123`.
    fn seconds(self, duration: Duration) {
        let out = self.begin();
        decimal(out, duration.as_secs());
        let mut text = *b".000000";
        pad(&mut text[1..], duration.subsec_micros());
        out.extend_from_slice(&text);
    }

    fn boolean(self, is: bool) {
        self.begin().extend_from_slice(if is { b"true" } else { b"false" });
    }

    fn address(self, address: IpAddr) {
        let out = self.begin();
        out.push(b'"');
        put_ip(out, address.to_canonical());
        out.push(b'"');
    }

    fn socket(self, address: SocketAddr) {
        let out = self.begin();
        out.push(b'"');
        put_socket(out, address);
        out.push(b'"');
    }

    /// `"2026-11-30T16:01:09.123Z"`. The part to the second is made once a second.
    fn timestamp(self, at: Timestamp) {
        thread_local! {
            static SECOND: Cell<(i64, [u8; SECOND_LENGTH])> = const { Cell::new((i64::MIN, [0; SECOND_LENGTH])) };
        }
        let milliseconds = at.as_millisecond();
        let second = milliseconds.div_euclid(1000);
        let (mut known, mut text) = SECOND.get();
        if known != second {
            let made = at.strftime("\"%Y-%m-%dT%H:%M:%S.").to_string();
            // Years have four digits: the clock is at 9999 at most.
            let Ok(made) = made.into_bytes().try_into() else { return };
            (known, text) = (second, made);
            SECOND.set((known, text));
        }
        let out = self.begin();
        out.extend_from_slice(&text);
        let mut end = *b"000Z\"";
        pad(&mut end[..3], milliseconds.rem_euclid(1000) as u32);
        out.extend_from_slice(&end);
    }
}

/// A comma, the name of a field in quotation marks, and a colon; with what fills it up.
struct Name {
    text: [u8; NAME_ROOM],
    length: usize,
}

/// What stands before the value of each field.
static NAMES: [Name; AccessField::ALL.len()] = {
    let mut names = [const {
        Name {
            text: [b' '; NAME_ROOM],
            length: 0,
        }
    }; AccessField::ALL.len()];
    let mut at = 0;
    while at < names.len() {
        let name = AccessField::ALL[at].name().as_bytes();
        let text = &mut names[at].text;
        (text[0], text[1]) = (b',', b'"');
        let mut letter = 0;
        while letter < name.len() {
            text[2 + letter] = name[letter];
            letter += 1;
        }
        (text[2 + letter], text[3 + letter]) = (b'"', b':');
        names[at].length = 4 + letter;
        at += 1;
    }
    names
};

/// Whether it can stand in a string as it is, as nearly all does.
fn is_plain(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| PLAIN[usize::from(*byte)])
}

/// Every byte of every string is looked up here.
static PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut byte = b' ';
    while byte < 0x7f {
        plain[byte as usize] = byte != b'"' && byte != b'\\';
        byte += 1;
    }
    plain
};

/// Appends a string that is too long, or has something in it that cannot stand there as it is.
#[cold]
fn escaped(out: &mut Vec<u8>, bytes: &[u8]) {
    let kept = bytes.get(..MOST_BYTES).unwrap_or(bytes);
    for chunk in kept.utf8_chunks() {
        valid(out, chunk.valid().as_bytes());
        let is_cut = kept.len() < bytes.len() && kept.as_ptr_range().end == chunk.invalid().as_ptr_range().end;
        if !chunk.invalid().is_empty() && !is_cut {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    if kept.len() < bytes.len() {
        out.extend_from_slice("…".as_bytes());
    }
}

fn valid(out: &mut Vec<u8>, mut bytes: &[u8]) {
    let needs = |byte: &u8| matches!(byte, 0..=0x1f | b'"' | b'\\' | 0x7f);
    while let Some(place) = bytes.iter().position(needs) {
        out.extend_from_slice(&bytes[..place]);
        match bytes[place] {
            byte @ (b'"' | b'\\') => out.extend_from_slice(&[b'\\', byte]),
            byte => {
                out.extend_from_slice(b"\\u00");
                out.extend([byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        bytes = &bytes[place + 1..];
    }
    out.extend_from_slice(bytes);
}

fn decimal(out: &mut Vec<u8>, mut number: u64) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Fills the whole of it with the last digits of a number.
fn pad(digits: &mut [u8], mut number: u32) {
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// The longest text of a field; URIs may be longer.
const MOST_BYTES: usize = 4096;
/// Room for most lines.
const ROOM: usize = 1024;
/// Room for the longest name, and what stands around it.
const NAME_ROOM: usize = 40;
/// How long the part of a time to the second is, with the point behind it and the mark before it.
const SECOND_LENGTH: usize = 21;
