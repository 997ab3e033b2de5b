//! Heads, written as bytes. What is in them was checked by its type: no value has a line end in it.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Request, StatusCode, Version};
use jiff::Timestamp;

use super::framing::Framing;

/// Puts the head of a request of HTTP/1.1: its target without scheme and authority, `Host` first, and the framing of the
/// body in place of whatever the fields say about it. `Connection` stays as it is.
pub fn put_request(request: &Request<()>, framing: Framing, out: &mut Vec<u8>) {
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.push(b' ');
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    if target.starts_with('?') {
        // A URL may leave its path out, a request may not.
        out.push(b'/');
    }
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    if let Some(host) = request.headers().get(HOST) {
        put_field(&HOST, host.as_bytes(), out);
    }
    for (name, value) in request.headers() {
        if *name != HOST && !is_framing(name) {
            put_field(name, value.as_bytes(), out);
        }
    }
    put_framing(framing, out);
    out.extend_from_slice(b"\r\n");
}

/// Puts the first line of an answer.
pub fn put_status(version: Version, status: StatusCode, out: &mut Vec<u8>) {
    if version == Version::HTTP_11 && status == StatusCode::OK {
        out.extend_from_slice(b"HTTP/1.1 200 OK\r\n");
        return;
    }
    out.extend_from_slice(if version == Version::HTTP_10 {
        b"HTTP/1.0 "
    } else {
        b"HTTP/1.1 "
    });
    out.extend_from_slice(status.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(status.canonical_reason().unwrap_or_default().as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Puts all fields.
pub fn put_fields(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        put_field(name, value.as_bytes(), out);
    }
}

/// Puts all fields but those about framing and the connection.
pub fn put_end_to_end(fields: &HeaderMap, out: &mut Vec<u8>) {
    for (name, value) in fields {
        if !is_framing(name) && *name != CONNECTION {
            put_field(name, value.as_bytes(), out);
        }
    }
}

/// Puts a field, its name in title case: some clients know it in no other.
pub fn put_field(name: &HeaderName, value: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(name.as_str().as_bytes());
    let mut starts = true;
    for letter in &mut out[start..] {
        if starts {
            letter.make_ascii_uppercase();
        }
        starts = *letter == b'-';
    }
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Puts the field that delimits a body, if there is one.
pub fn put_framing(framing: Framing, out: &mut Vec<u8>) {
    match framing {
        Framing::None | Framing::UntilClose => {}
        Framing::Exact(length) => {
            out.extend_from_slice(b"Content-Length: ");
            put_decimal(length, out);
            out.extend_from_slice(b"\r\n");
        }
        Framing::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
    }
}

/// Puts `Date` (RFC 9110 section 5.6.7).
pub fn put_date(now: Timestamp, out: &mut Vec<u8>) {
    const DAYS: [&[u8; 3]; 7] = [b"Thu", b"Fri", b"Sat", b"Sun", b"Mon", b"Tue", b"Wed"];
    const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let seconds = now.as_second().max(0) as u64;
    let (day, second) = (seconds / 86_400, (seconds % 86_400) as u32);
    // Days since 1 March of the year 0, so that the day that comes and goes is the last of a year.
    let days = day + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let date = (of_year - (153 * from_march + 2) / 5 + 1) as u32;
    let month = (from_march + 2) % 12;
    let year = (era * 400 + year_of_era + u64::from(month < 2)) as u32;
    let mut text = *b"Date: Thu, 01 Jan 1970 00:00:00 GMT\r\n";
    let month = month as usize * 3;
    text[6..9].copy_from_slice(DAYS[(day % 7) as usize]);
    text[14..17].copy_from_slice(&MONTHS[month..month + 3]);
    for (at, number) in [
        (11, date),
        (18, year / 100),
        (20, year % 100),
        (23, second / 3_600),
        (26, second / 60 % 60),
        (29, second % 60),
    ] {
        text[at] = b'0' + (number / 10 % 10) as u8;
        text[at + 1] = b'0' + (number % 10) as u8;
    }
    out.extend_from_slice(&text);
}

/// Puts the size of a chunk, with its line end.
pub fn put_size(size: usize, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        out.push(DIGITS[size >> (4 * digit) & 15]);
    }
    out.extend_from_slice(b"\r\n");
}

fn put_decimal(number: u64, out: &mut Vec<u8>) {
    let mut text = [0; 20];
    let mut at = text.len();
    let mut rest = number;
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&text[at..]);
}

/// Whether a field says how a body is delimited.
fn is_framing(name: &HeaderName) -> bool {
    *name == CONTENT_LENGTH || *name == TRANSFER_ENCODING
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use jiff::fmt::rfc2822::DateTimePrinter;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_request_is_written_with_one_framing() {
        let request = Request::put("http://gw.test/a?b")
            .header("x-one", "1")
            .header("content-length", "9")
            .header("transfer-encoding", "chunked")
            .header("host", "inside")
            .body(())
            .unwrap();
        let mut out = Vec::new();
        put_request(&request, Framing::Exact(18_446_744_073_709_551_615), &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "PUT /a?b HTTP/1.1\r\nHost: inside\r\nX-One: 1\r\nContent-Length: 18446744073709551615\r\n\r\n"
        );
    }

    #[test]
    fn names_are_written_in_title_case() {
        let mut out = Vec::new();
        let fields = [("set-cookie", "A=b"), ("x--y-", "Z"), ("under_score", "")];
        let fields = fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        put_fields(&HeaderMap::from_iter(fields), &mut out);
        assert_eq!(out, b"Set-Cookie: A=b\r\nX--Y-: Z\r\nUnder_score: \r\n");
    }

    #[test]
    fn sizes_are_hexadecimal_without_padding() {
        for (size, text) in [
            (0, "0"),
            (9, "9"),
            (16, "10"),
            (0xABCDEF, "ABCDEF"),
            (usize::MAX, "FFFFFFFFFFFFFFFF"),
        ] {
            let mut out = Vec::new();
            put_size(size, &mut out);
            assert_eq!(out, format!("{text}\r\n").into_bytes());
        }
    }

    proptest! {
        #[test]
        fn dates_are_those_of_the_calendar(second in 0..8_000_000_000_i64) {
            let time = Timestamp::from_second(second).unwrap();
            let mut out = Vec::new();
            put_date(time, &mut out);
            let expected = DateTimePrinter::new().timestamp_to_rfc9110_string(&time).unwrap();
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("Date: {expected}\r\n"));
        }
    }
}
