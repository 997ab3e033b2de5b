//! Fields of a head between two connections (behaviour sheet of the application gateway, section 4).
//!
//! Of a request first everything goes that belongs to the client's connection, and with it whatever the client names in
//! `Connection`; only then come the gateway's own fields, so that no client can take them away or set them.

use std::cell::Cell;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, COOKIE, HOST, TE, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::config::web::{Forwarded, ForwardedMode, HeaderPolicy, UnusualFields};
use crate::grant::{Randomness as _, SystemRandomness};
use crate::types::{put_ip, put_socket};

/// What the gateway knows of a request and tells the target.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Who connected, or who the balancer's PROXY header says did.
    pub peer: SocketAddr,
    /// Who asks: the peer, or whom trusted peers ask for.
    pub client: IpAddr,
    /// The listener's port.
    pub port: u16,
    /// Whether the request came over TLS.
    pub https: bool,
    /// `Host` as it was received: of the request line, of `:authority`, or the field.
    pub host: &'a str,
    /// Path and query as they were received.
    pub url: &'a str,
    /// The request's identifier.
    pub trace: TraceId,
    /// What becomes of fields with unusual names.
    pub unusual: UnusualFields,
}

/// What became of a request's fields.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// What its connection wanted; [`Hop::put`] says it again to a target that speaks HTTP/1.1.
    pub hop: Hop,
    /// `X-Forwarded-For` as it goes out.
    pub forwarded_for: HeaderValue,
    /// How many fields went for their names.
    pub dropped: usize,
    /// Whether the client reads compressed answers; only looked at where the rule compresses.
    pub takes_gzip: bool,
}

/// Makes the head of a request ready for a target: one `Host`, one `Cookie`, the six fields, and nothing of the client's
/// connection. `Expect` and `Content-Length` stay.
///
/// A field goes whose name has other characters than letters, digits, `-`, `_` and `.`, unless it is to pass, or would be
/// read as one of the six by programs that take `_` for `-`.
pub fn prepare(headers: &mut HeaderMap, asked: &Asked<'_>, forwarded: &Forwarded) -> Prepared {
    let hop = Hop::take(headers);
    let dropped = drop_unusual(headers, asked.unusual);
    join_cookies(headers);
    let forwarded_for = put_origin(headers, asked, forwarded);
    Prepared {
        hop,
        forwarded_for,
        dropped,
        takes_gzip: false,
    }
}

/// What a head says of the connection that brought it, as far as the next one has to know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// A WebSocket is asked for, or agreed to.
    pub websocket: bool,
    /// Whoever sent the head reads trailers.
    pub trailers: bool,
}

impl Hop {
    /// Takes out of a head what is of its connection (RFC 9110 section 7.6.1), and all that `Connection` names beside.
    pub fn take(headers: &mut HeaderMap) -> Self {
        let mut hop = Self::default();
        // Most heads have none of them: a look at the names that there are costs less than to ask for each that there may be.
        if !headers.keys().any(is_of_connection) {
            return hop;
        }
        let mut is_upgrade = false;
        let mut options = headers.get_all(CONNECTION).iter().cloned();
        if let Some(first) = options.next() {
            let more: Vec<_> = options.collect();
            headers.remove(CONNECTION);
            for option in more.iter().chain([&first]).flat_map(tokens) {
                is_upgrade |= option.eq_ignore_ascii_case("upgrade");
                if !is_kept(option) {
                    headers.remove(option);
                }
            }
        }
        if is_upgrade {
            hop.websocket = has_token(headers, &UPGRADE, "websocket");
        }
        hop.trailers = has_token(headers, &TE, "trailers");
        let names: Vec<_> = headers.keys().filter(|name| is_of_connection(name)).cloned().collect();
        for name in &names {
            headers.remove(name);
        }
        hop
    }

    /// Says the same to an HTTP/1.1 connection. HTTP/2 has other words for it, except for `TE: trailers`.
    pub fn put(self, headers: &mut HeaderMap) {
        if self.websocket {
            headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        }
        if self.trailers {
            headers.append(CONNECTION, HeaderValue::from_static("TE"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    }
}

/// Whether a field is of the connection that brings it. `Proxy` never is a field of HTTP: programs that put fields into
/// their environment take it for their own proxy.
fn is_of_connection(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "http2-settings"
            | "keep-alive"
            | "proxy"
            | "proxy-authenticate"
            | "proxy-authentication-info"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Whether an option of `Connection` takes no field with it: those that [`Hop::take`] looks at itself, and those without
/// which the message would be another.
fn is_kept(option: &str) -> bool {
    let own = ["close", "keep-alive", "upgrade", "te"];
    let of_message = [HOST.as_str(), CONTENT_LENGTH.as_str()];
    own.iter()
        .chain(&of_message)
        .any(|kept| option.eq_ignore_ascii_case(kept))
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let mut all = headers.get_all(name).iter().flat_map(tokens);
    all.any(|found| found.eq_ignore_ascii_case(token))
}

/// The members of a list, without parameters.
fn tokens(value: &HeaderValue) -> impl Iterator<Item = &str> {
    let members = value.to_str().unwrap_or_default().split(',');
    let bare = members.map(|member| member.split(';').next().unwrap_or_default().trim());
    bare.filter(|token| !token.is_empty())
}

/// Takes out fields whose names a target may read in more than one way. Returns how many.
fn drop_unusual(headers: &mut HeaderMap, wanted: UnusualFields) -> usize {
    let unusual = |name: &&HeaderName| match letters(name) {
        Letters::Plain => false,
        Letters::Dotted => is_own_in_disguise(name.as_str()),
        Letters::Odd => wanted != UnusualFields::Pass || is_own_in_disguise(name.as_str()),
    };
    // Hardly ever any, and then no room is taken.
    let names: Vec<_> = headers.keys().filter(unusual).cloned().collect();
    for name in &names {
        headers.remove(name);
    }
    names.len()
}

/// What a name is made of.
enum Letters {
    /// Letters, digits and `-`.
    Plain,
    /// `_` and `.` among them.
    Dotted,
    /// Others too.
    Odd,
}

fn letters(name: &HeaderName) -> Letters {
    let kinds = name.as_str().bytes().fold(0, |seen, byte| match byte {
        b'a'..=b'z' | b'0'..=b'9' | b'-' => seen,
        b'_' | b'.' => seen | 1,
        _ => seen | 2,
    });
    match kinds {
        0 => Letters::Plain,
        1 => Letters::Dotted,
        _ => Letters::Odd,
    }
}

/// Whether a program that takes whatever is no letter for `-` would take the field for one of the gateway's own.
fn is_own_in_disguise(name: &str) -> bool {
    let dashed = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    OWN.iter()
        .any(|own| own.as_str().len() == name.len() && own.as_str().bytes().eq(name.bytes().map(dashed)))
}

/// Makes one field of the crumbs into which HTTP/2 and HTTP/3 may cut a cookie (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let mut crumbs = headers.get_all(COOKIE).iter();
    if let (Some(first), Some(second)) = (crumbs.next(), crumbs.next()) {
        let mut joined = BytesMut::from(first.as_bytes());
        for crumb in [second].into_iter().chain(crumbs) {
            joined.put_slice(b"; ");
            joined.put_slice(crumb.as_bytes());
        }
        set(headers, &COOKIE, joined.freeze());
    }
}

/// Sets the six fields and `Host`. Returns `X-Forwarded-For`.
fn put_origin(headers: &mut HeaderMap, asked: &Asked<'_>, forwarded: &Forwarded) -> HeaderValue {
    // One piece of memory for all of them.
    let mut room = BytesMut::with_capacity(128 + asked.host.len() + asked.url.len());
    write_forwarded_for(&mut room, headers, asked, forwarded);
    let forwarded_for = room.split().freeze();
    room.put_slice(asked.host.as_bytes());
    let host = room.split().freeze();
    room.put_slice(asked.url.as_bytes());
    let url = room.split().freeze();
    room.put_slice(&asked.trace.digits());
    let trace = room.freeze();

    let mut given = headers.get_all(HOST).iter();
    if given.next().is_none_or(|given| given.as_bytes() != host) || given.next().is_some() {
        set(headers, &HOST, host.clone());
    }
    set(headers, &X_FORWARDED_FOR, forwarded_for.clone());
    set(headers, &X_ORIGINAL_HOST, host);
    set(headers, &X_ORIGINAL_URL, url);
    set(headers, &X_APPGW_TRACE_ID, trace);
    let port = match asked.port {
        80 => HeaderValue::from_static("80"),
        443 => HeaderValue::from_static("443"),
        other => other.into(),
    };
    headers.insert(&X_FORWARDED_PORT, port);
    let scheme = if asked.https { "https" } else { "http" };
    headers.insert(&X_FORWARDED_PROTO, HeaderValue::from_static(scheme));
    HeaderValue::from_maybe_shared(forwarded_for).unwrap_or_else(|_| HeaderValue::from_static(""))
}

/// Sets a field, or takes it away if the value cannot be one.
fn set(headers: &mut HeaderMap, name: &HeaderName, value: Bytes) {
    match HeaderValue::from_maybe_shared(value) {
        Ok(value) => drop(headers.insert(name, value)),
        Err(_) => drop(headers.remove(name)),
    }
}

fn write_forwarded_for(room: &mut BytesMut, headers: &HeaderMap, asked: &Asked<'_>, forwarded: &Forwarded) {
    let is_trusted = || {
        let trusted = &forwarded.trusted;
        trusted.is_empty() || trusted.iter().any(|net| net.contains(&asked.peer.ip()))
    };
    let last = match forwarded.mode {
        ForwardedMode::Append => {
            if is_trusted() {
                for line in headers.get_all(&X_FORWARDED_FOR) {
                    let line = line.as_bytes().trim_ascii();
                    if !line.is_empty() {
                        room.put_slice(line);
                        room.put_slice(b", ");
                    }
                }
            }
            asked.peer.ip()
        }
        ForwardedMode::Replace => asked.client,
    };
    // The port of whom a peer asks for is not known.
    if forwarded.port && last == asked.peer.ip() {
        put_socket(room, SocketAddr::new(last, asked.peer.port()));
    } else {
        put_ip(room, last);
    }
}

/// Does to a head what a rule says.
pub fn apply(policy: &HeaderPolicy, headers: &mut HeaderMap) {
    for name in &policy.remove {
        headers.remove(name);
    }
    for (name, value) in &policy.set {
        headers.insert(name, value.clone());
    }
    for (name, value) in &policy.default {
        if !headers.contains_key(name) {
            headers.insert(name, value.clone());
        }
    }
}

/// The value of a cookie of a request; of several of that name the first.
pub fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    headers
        .get_all(COOKIE)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
        .find_map(|pair| pair.trim_ascii().strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

/// The identifier of a request, the same in the log and at the target: 32 hex digits. It is unique, and no secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl TraceId {
    /// The next one of this thread.
    pub fn next() -> Self {
        SEQUENCE.with(|sequence| {
            let (stream, count) = sequence.get();
            let count = count.wrapping_add(GOLDEN);
            sequence.set((stream, count));
            // The lower half never repeats within a thread, because mixing is one to one; the upper half keeps threads
            // and nodes apart.
            Self(u128::from(mix(count ^ stream)) << 64 | u128::from(mix(count)))
        })
    }

    /// The identifier of given bits.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// Its hex digits.
    pub fn digits(self) -> [u8; 32] {
        hex(self.0.to_be_bytes())
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Sixteen octets as 32 hex digits.
pub(super) fn hex(octets: [u8; 16]) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, octet) in digits.chunks_exact_mut(2).zip(octets) {
        pair[0] = HEX[usize::from(octet >> 4)];
        pair[1] = HEX[usize::from(octet & 15)];
    }
    digits
}

/// SplitMix64's finisher: one to one, and every bit of the input moves half of the output.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The odd step that visits every 64-bit number.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

const HEX: &[u8; 16] = b"0123456789abcdef";

thread_local! {
    static SEQUENCE: Cell<(u64, u64)> = {
        let mut seed = [0; 16];
        SystemRandomness.fill(&mut seed);
        let bits = u128::from_be_bytes(seed);
        Cell::new(((bits >> 64) as u64, bits as u64))
    };
}

/// The chain of addresses that a request came by.
pub static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The port that it came to.
pub static X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
/// `http` or `https`.
pub static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// The host that was asked.
pub static X_ORIGINAL_HOST: HeaderName = HeaderName::from_static("x-original-host");
/// The path and query that were asked for.
pub static X_ORIGINAL_URL: HeaderName = HeaderName::from_static("x-original-url");
/// The [`TraceId`].
pub static X_APPGW_TRACE_ID: HeaderName = HeaderName::from_static("x-appgw-trace-id");

/// The six fields that only the gateway sets.
static OWN: [&HeaderName; 6] = [
    &X_FORWARDED_FOR,
    &X_FORWARDED_PORT,
    &X_FORWARDED_PROTO,
    &X_ORIGINAL_HOST,
    &X_ORIGINAL_URL,
    &X_APPGW_TRACE_ID,
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::publish::heads::{head, lines};

    fn asked() -> Asked<'static> {
        Asked {
            peer: "198.51.100.7:50123".parse().unwrap(),
            client: "198.51.100.7".parse().unwrap(),
            port: 443,
            https: true,
            host: "shop.example.com",
            url: "/Test/Coupons?x=1",
            trace: TraceId::from_bits(0xab),
            unusual: UnusualFields::Drop,
        }
    }

    #[test]
    fn the_six_fields_have_their_exact_forms() {
        let mut headers = head(&[("host", "shop.example.com"), ("x-forwarded-for", "203.0.113.9")]);
        let prepared = prepare(&mut headers, &asked(), &Forwarded::default());
        let expected = head(&[
            ("host", "shop.example.com"),
            ("x-forwarded-for", "203.0.113.9, 198.51.100.7:50123"),
            ("x-forwarded-port", "443"),
            ("x-forwarded-proto", "https"),
            ("x-original-host", "shop.example.com"),
            ("x-original-url", "/Test/Coupons?x=1"),
            ("x-appgw-trace-id", "000000000000000000000000000000ab"),
        ]);
        assert_eq!(headers, expected);
        assert_eq!(prepared.forwarded_for, "203.0.113.9, 198.51.100.7:50123");
    }

    #[test]
    fn an_ipv6_client_with_its_port_stands_in_brackets() {
        let mut headers = HeaderMap::new();
        let peer = "[2001:db8::7]:50123".parse().unwrap();
        let client = "2001:db8::7".parse().unwrap();
        let asked = Asked {
            peer,
            client,
            port: 8443,
            https: false,
            ..asked()
        };
        prepare(&mut headers, &asked, &Forwarded::default());
        assert_eq!(lines(&headers, "x-forwarded-for"), ["[2001:db8::7]:50123"]);
        assert_eq!(lines(&headers, "x-forwarded-port"), ["8443"]);
        assert_eq!(lines(&headers, "x-forwarded-proto"), ["http"]);

        let without = Forwarded {
            port: false,
            ..Forwarded::default()
        };
        prepare(&mut headers, &asked, &without);
        assert_eq!(lines(&headers, "x-forwarded-for"), ["[2001:db8::7]:50123, 2001:db8::7"]);
    }

    #[test]
    fn forwarded_for_is_believed_of_trusted_peers_only() {
        let sent = |peer: &str, client: &str, mode| {
            let mut headers = head(&[
                ("x-forwarded-for", "9.9.9.9"),
                ("x-forwarded-for", "203.0.113.9, 127.0.0.2"),
            ]);
            let forwarded = Forwarded {
                mode,
                port: true,
                trusted: vec!["127.0.0.0/8".parse().unwrap()],
            };
            let asked = Asked {
                peer: peer.parse().unwrap(),
                client: client.parse().unwrap(),
                ..asked()
            };
            prepare(&mut headers, &asked, &forwarded);
            lines(&headers, "x-forwarded-for").join("|")
        };
        let append = ForwardedMode::Append;
        assert_eq!(
            sent("127.0.0.3:9", "203.0.113.9", append),
            "9.9.9.9, 203.0.113.9, 127.0.0.2, 127.0.0.3:9"
        );
        assert_eq!(sent("198.51.100.7:9", "198.51.100.7", append), "198.51.100.7:9");
        let replace = ForwardedMode::Replace;
        assert_eq!(sent("127.0.0.3:9", "203.0.113.9", replace), "203.0.113.9");
        assert_eq!(sent("198.51.100.7:9", "198.51.100.7", replace), "198.51.100.7:9");
    }

    #[test]
    fn a_client_cannot_take_away_or_set_what_the_gateway_says() {
        let mut headers = head(&[
            ("connection", "close, X-Forwarded-For, x-appgw-trace-id"),
            ("connection", "x-private, host, content-length"),
            ("x-private", "1"),
            ("content-length", "3"),
            ("host", "shop.example.com"),
            ("x-original-host", "evil"),
            ("x_original_host", "evil"),
            ("x.forwarded_proto", "evil"),
            ("x-forwarded-proto", "evil"),
        ]);
        let prepared = prepare(&mut headers, &asked(), &Forwarded::default());
        assert_eq!(lines(&headers, "x-forwarded-for"), ["198.51.100.7:50123"]);
        assert_eq!(lines(&headers, "x-original-host"), ["shop.example.com"]);
        assert_eq!(lines(&headers, "x-forwarded-proto"), ["https"]);
        assert_eq!(lines(&headers, "content-length"), ["3"]);
        assert_eq!((headers.len(), prepared.dropped), (8, 2));
    }

    #[test]
    fn what_belongs_to_a_connection_stays_with_it() {
        let mut headers = head(&[
            ("keep-alive", "timeout=5"),
            ("te", "gzip"),
            ("transfer-encoding", "chunked"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("proxy", "http://evil"),
            ("upgrade", "h2c"),
            ("connection", "Upgrade, HTTP2-Settings"),
            ("http2-settings", "AAMAAABk"),
            ("expect", "100-continue"),
        ]);
        assert_eq!(Hop::take(&mut headers), Hop::default());
        assert_eq!(headers, head(&[("expect", "100-continue")]));
    }

    #[test]
    fn a_websocket_is_asked_for_in_every_spelling() {
        let spellings: [&[(&str, &str)]; 3] = [
            &[("upgrade", "WebSocket"), ("connection", "Upgrade")],
            &[("upgrade", "websocket"), ("connection", "keep-alive, Upgrade")],
            &[
                ("upgrade", "foo, websocket"),
                ("connection", "keep-alive"),
                ("connection", "upgrade"),
            ],
        ];
        for spelling in spellings {
            let mut headers = head(spelling);
            let hop = Hop::take(&mut headers);
            assert!(hop.websocket && headers.is_empty(), "{spelling:?}");
            hop.put(&mut headers);
            assert_eq!(headers, head(&[("connection", "Upgrade"), ("upgrade", "websocket")]));
        }
        let mut headers = head(&[("upgrade", "websocket")]);
        assert!(!Hop::take(&mut headers).websocket);
    }

    #[test]
    fn trailers_are_asked_for_as_the_client_did() {
        let mut headers = head(&[("te", "gzip;q=0.5, trailers"), ("connection", "TE")]);
        let hop = Hop::take(&mut headers);
        hop.put(&mut headers);
        assert_eq!(headers, head(&[("connection", "TE"), ("te", "trailers")]));
    }

    #[test]
    fn crumbs_become_one_cookie() {
        let mut headers = head(&[("cookie", "a=1"), ("cookie", "b=2; c=3"), ("cookie", "d=4")]);
        prepare(&mut headers, &asked(), &Forwarded::default());
        assert_eq!(lines(&headers, "cookie"), ["a=1; b=2; c=3; d=4"]);
        assert_eq!(cookie(&headers, "c"), Some(&b"3"[..]));
        assert_eq!(cookie(&headers, "C"), None);
    }

    #[test]
    fn there_is_one_host_and_it_is_the_one_that_was_asked() {
        for given in [
            &[][..],
            &[("host", "b")],
            &[("host", "shop.example.com"), ("host", "b")],
        ] {
            let mut headers = head(given);
            prepare(&mut headers, &asked(), &Forwarded::default());
            assert_eq!(lines(&headers, "host"), ["shop.example.com"]);
        }
    }

    #[test]
    fn names_with_underscores_and_periods_pass_and_odd_ones_do_not() {
        let mut headers = head(&[("x_a", "1"), ("x.b", "1"), ("x!c", "1"), ("x~d", "1"), ("x~d", "2")]);
        let prepared = prepare(&mut headers, &asked(), &Forwarded::default());
        assert!(headers.contains_key("x_a") && headers.contains_key("x.b"));
        assert!(!headers.contains_key("x!c") && !headers.contains_key("x~d"));
        assert_eq!(prepared.dropped, 2);
    }

    #[test]
    fn a_policy_sets_defaults_and_removes() {
        let mut headers = head(&[
            ("x-powered-by", "a"),
            ("x-powered-by", "b"),
            ("server", "x"),
            ("x-frame-options", "DENY"),
        ]);
        let field = |name: &str, value: &str| (name.parse().unwrap(), value.parse().unwrap());
        let policy = HeaderPolicy {
            set: vec![field("server", "gate")],
            default: vec![
                field("x-frame-options", "SAMEORIGIN"),
                field("referrer-policy", "same-origin"),
            ],
            remove: vec!["x-powered-by".parse().unwrap()],
        };
        apply(&policy, &mut headers);
        let expected = head(&[
            ("server", "gate"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "same-origin"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn identifiers_of_requests_do_not_repeat() {
        let other = std::thread::spawn(|| (0..10_000).map(|_| TraceId::next()).collect::<Vec<_>>());
        let mut seen: HashSet<_> = (0..10_000).map(|_| TraceId::next()).collect();
        seen.extend(other.join().unwrap());
        assert_eq!(seen.len(), 20_000);
        let id = TraceId::next();
        assert_eq!(id.to_string().as_bytes(), id.digits());
    }

    fn field() -> impl Strategy<Value = (String, String)> {
        const NAMES: &[&str] = &[
            "connection",
            "te",
            "upgrade",
            "keep-alive",
            "transfer-encoding",
            "cookie",
            "host",
            "x-forwarded-for",
            "x_forwarded_for",
            "x-original-url",
            "proxy-authorization",
            "x-a",
            "x~a",
        ];
        const VALUES: &[&str] = &[
            "",
            "close",
            "x-a, te",
            "upgrade, x-forwarded-for",
            "websocket",
            "trailers",
            "a=1",
            ";,,",
            "1.2.3.4",
        ];
        let value = prop_oneof![proptest::sample::select(VALUES).prop_map(str::to_owned), "[ -~]{0,12}"];
        (proptest::sample::select(NAMES).prop_map(str::to_owned), value)
    }

    proptest! {
        /// Whatever a client sends, a target gets one line of each of the gateway's fields, said by the gateway, and
        /// nothing of the client's connection; and doing it again changes nothing but the chain of addresses.
        #[test]
        fn a_target_gets_what_the_gateway_says(fields in proptest::collection::vec(field(), 0..12)) {
            let fields: Vec<_> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            let mut headers = head(&fields);
            prepare(&mut headers, &asked(), &Forwarded::default());
            for (name, value) in [
                ("host", "shop.example.com"),
                ("x-forwarded-port", "443"),
                ("x-forwarded-proto", "https"),
                ("x-original-host", "shop.example.com"),
                ("x-original-url", "/Test/Coupons?x=1"),
                ("x-appgw-trace-id", "000000000000000000000000000000ab"),
            ] {
                prop_assert_eq!(lines(&headers, name), [value]);
            }
            let chain = lines(&headers, "x-forwarded-for");
            prop_assert!(chain.len() == 1 && chain[0].ends_with("198.51.100.7:50123"));
            prop_assert!(headers.get_all("cookie").iter().count() <= 1);
            for name in ["connection", "te", "upgrade", "keep-alive", "transfer-encoding", "proxy-authorization", "x~a", "x_forwarded_for"] {
                prop_assert!(!headers.contains_key(name), "{}", name);
            }
            let mut again = headers.clone();
            prepare(&mut again, &asked(), &Forwarded { mode: ForwardedMode::Replace, ..Forwarded::default() });
            headers.insert("x-forwarded-for", "198.51.100.7:50123".parse().unwrap());
            prop_assert_eq!(again, headers);
        }
    }
}
