//! How a line is written: JSON with the members in one order, of bytes that anybody may have sent.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Duration;

use jiff::Timestamp;

use super::{Line, Served};
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
    for (name, field) in NAMES.iter().zip(AccessField::ALL) {
        if !fields.has(field) {
            continue;
        }
        let before = out.len();
        out.extend_from_slice(name);
        if !value(out, field, line, node) {
            out.truncate(before);
        }
    }
    match out.get_mut(from) {
        // The comma before the first.
        Some(comma) => *comma = b'{',
        None => out.push(b'{'),
    }
    out.extend_from_slice(b"}\n");
}

/// What stands before the value of each field.
static NAMES: LazyLock<[Box<[u8]>; AccessField::ALL.len()]> =
    LazyLock::new(|| AccessField::ALL.map(|field| format!(",\"{}\":", field.name()).into_bytes().into()));

/// Appends a field's value; `false` if it has none.
fn value(out: &mut Vec<u8>, field: AccessField, line: &Line<'_>, node: &str) -> bool {
    let served = line.target.as_ref();
    match field {
        AccessField::TimeStamp => timestamp(out, line.begun),
        AccessField::InstanceId => text(out, node),
        AccessField::ListenerName => text(out, line.listener),
        AccessField::RuleName => some(out, line.rule, text),
        AccessField::BackendPoolName => some(out, line.pool, text),
        AccessField::BackendSettingName => some(out, line.backend, text),
        AccessField::ClientIp => address(out, line.client.ip()),
        AccessField::ClientPort => number(out, line.client.port().into()),
        AccessField::HttpMethod => text(out, line.method),
        AccessField::OriginalRequestUriWithArgs => string(out, line.original_target),
        AccessField::RequestUri => text(out, line.path),
        AccessField::RequestQuery => some(out, line.query, text),
        AccessField::UserAgent => some(out, line.user_agent, string),
        AccessField::HttpStatus => number(out, line.status.into()),
        AccessField::HttpVersion => text(out, line.version),
        AccessField::ReceivedBytes => number(out, line.received),
        AccessField::SentBytes => number(out, line.sent),
        AccessField::ClientResponseTime => seconds(out, line.answering),
        AccessField::TimeTaken => seconds(out, line.taken),
        AccessField::TransactionId => text(out, line.trace),
        AccessField::SslEnabled => text(out, if line.tls.is_some() { "on" } else { "off" }),
        AccessField::SslCipher => some(out, line.tls.map(|(_, cipher)| cipher), text),
        AccessField::SslProtocol => some(out, line.tls.map(|(version, _)| version), text),
        AccessField::ServerRouted => some(out, served, routed),
        AccessField::ServerStatus => some(out, served.and_then(|served| served.status), |out, status| {
            number(out, status.into())
        }),
        AccessField::ServerResponseLatency => some(out, served.and_then(|served| served.latency), seconds),
        AccessField::UpstreamSourcePort => some(out, served.and_then(|served| served.source_port), |out, port| {
            number(out, port.into())
        }),
        AccessField::ServerReused => some(out, served, |out, served| boolean(out, served.reused)),
        AccessField::Retries => number(out, line.retries.into()),
        AccessField::DroppedFields => some(
            out,
            Some(line.dropped_fields).filter(|&count| count > 0),
            |out, count| number(out, count as u64),
        ),
        AccessField::OriginalHost => text(out, line.original_host),
        AccessField::Host => some(out, line.host, text),
        AccessField::ErrorInfo => some(out, line.fault, |out, fault| text(out, fault.code())),
        AccessField::ContentType => some(out, line.content_type, string),
    }
}

fn some<T>(out: &mut Vec<u8>, value: Option<T>, render: impl FnOnce(&mut Vec<u8>, T) -> bool) -> bool {
    value.is_some_and(|value| render(out, value))
}

fn text(out: &mut Vec<u8>, text: &str) -> bool {
    string(out, text.as_bytes())
}

/// A string of whatever came: what is no UTF-8 becomes U+FFFD, and what is longer than [`MOST_BYTES`] is cut.
fn string(out: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let kept = bytes.get(..MOST_BYTES).unwrap_or(bytes);
    out.push(b'"');
    if is_plain(bytes) && bytes.len() == kept.len() {
        out.extend_from_slice(bytes);
        out.push(b'"');
        return true;
    }
    for chunk in kept.utf8_chunks() {
        escaped(out, chunk.valid().as_bytes());
        let is_cut = kept.len() < bytes.len() && kept.as_ptr_range().end == chunk.invalid().as_ptr_range().end;
        if !chunk.invalid().is_empty() && !is_cut {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
    if kept.len() < bytes.len() {
        out.extend_from_slice("…".as_bytes());
    }
    out.push(b'"');
    true
}

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

fn escaped(out: &mut Vec<u8>, mut bytes: &[u8]) {
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

fn number(out: &mut Vec<u8>, mut number: u64) -> bool {
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
    true
}

/// Seconds to the microsecond, such as `0.000123`.
fn seconds(out: &mut Vec<u8>, duration: Duration) -> bool {
    number(out, duration.as_secs());
    out.push(b'.');
    padded(out, duration.subsec_micros(), 100_000)
}

/// All digits from that place on, zeros too.
fn padded(out: &mut Vec<u8>, number: u32, mut place: u32) -> bool {
    while place > 0 {
        out.push(b'0' + (number / place % 10) as u8);
        place /= 10;
    }
    true
}

fn boolean(out: &mut Vec<u8>, is: bool) -> bool {
    out.extend_from_slice(if is { b"true" } else { b"false" });
    true
}

fn address(out: &mut Vec<u8>, address: IpAddr) -> bool {
    out.push(b'"');
    put_ip(out, address.to_canonical());
    out.push(b'"');
    true
}

fn routed(out: &mut Vec<u8>, served: &Served) -> bool {
    out.push(b'"');
    put_socket(out, served.address);
    out.push(b'"');
    true
}

/// `"2026-11-30T16:01:09.123Z"`. The part to the second is made once a second.
fn timestamp(out: &mut Vec<u8>, at: Timestamp) -> bool {
    thread_local! {
        static SECOND: RefCell<(i64, String)> = const { RefCell::new((i64::MIN, String::new())) };
    }
    let milliseconds = at.as_millisecond();
    let second = milliseconds.div_euclid(1000);
    SECOND.with_borrow_mut(|(known, text)| {
        if *known != second {
            *text = at.strftime("%Y-%m-%dT%H:%M:%S").to_string();
            *known = second;
        }
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
    });
    out.push(b'.');
    padded(out, milliseconds.rem_euclid(1000) as u32, 100);
    out.extend_from_slice(b"Z\"");
    true
}

/// The longest text of a field; URIs may be longer.
const MOST_BYTES: usize = 4096;
