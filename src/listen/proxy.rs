//! The PROXY protocol header, versions 1 and 2: bytes in, decision out.
//!
//! The grammar is the `proxy-header` crate's; this adds the bounds and the early refusal that a socket needs.

use std::net::{IpAddr, SocketAddr};

use proxy_header::{ParseConfig, ProxiedAddress, ProxyHeader};

/// The longest version 1 header, with its line end (section 2.1 of the specification).
pub const MAX_V1: usize = 107;

/// The longest version 2 header that is read: addresses take at most 232 bytes, the rest is for additions.
pub const MAX_V2: usize = 4096;

/// How far a header has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More bytes are needed: at least so many in all, which is never more than the longest header.
    Incomplete {
        /// Bytes from the start of the header.
        at_least: usize,
    },
    /// The header is whole.
    Complete {
        /// The client; `None` if the balancer speaks for itself (`LOCAL`) or does not know (`UNKNOWN`).
        client: Option<SocketAddr>,
        /// The length of the header; what follows is the client's.
        length: usize,
    },
}

/// Why bytes are no PROXY header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// They start neither version.
    #[error("the bytes are no PROXY header")]
    Foreign,
    /// They start one but go on wrongly.
    #[error("the PROXY header is malformed")]
    Malformed,
    /// The header would be longer than is read.
    #[error("the PROXY header is longer than {MAX_V2} bytes")]
    TooLong,
}

/// Reads a header from the start of `bytes`, which may be any part of it and may go on after it.
///
/// The answer for a header does not depend on how it is cut: every proper part of it is [`Progress::Incomplete`].
pub fn decode(bytes: &[u8]) -> Result<Progress, Fault> {
    if starts(bytes, V1_START) {
        decode_v1(&bytes[..bytes.len().min(MAX_V1)])
    } else if starts(bytes, V2_START) {
        decode_v2(bytes)
    } else {
        Err(Fault::Foreign)
    }
}

/// Whether these first bytes of a connection are those of a header, as far as they go (at least six bytes).
pub fn looks_like_header(bytes: &[u8]) -> bool {
    bytes.len() >= V1_START.len() && (starts(bytes, V1_START) || starts(bytes, V2_START))
}

/// The header of version 2 by which a target is told who connected and where to; `None`: this node speaks for itself.
pub fn encode(client: Option<(SocketAddr, SocketAddr)>) -> Vec<u8> {
    let header = match client {
        Some((source, destination)) => {
            let (source, destination) = of_one_family(source, destination);
            ProxyHeader::with_address(ProxiedAddress::stream(source, destination))
        }
        None => ProxyHeader::with_local(),
    };
    let mut bytes = Vec::new();
    let encoded = header.encode_v2(&mut bytes);
    debug_assert!(encoded.is_ok(), "two addresses of one family fit");
    bytes
}

/// A header has room for two addresses of one family: IPv4 beside IPv6 becomes an IPv4-mapped address.
fn of_one_family(one: SocketAddr, other: SocketAddr) -> (SocketAddr, SocketAddr) {
    if one.is_ipv4() == other.is_ipv4() {
        return (one, other);
    }
    let mapped = |address: SocketAddr| match address.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), address.port()),
        IpAddr::V6(_) => address,
    };
    (mapped(one), mapped(other))
}

fn decode_v1(bytes: &[u8]) -> Result<Progress, Fault> {
    // The shortest whole header is `PROXY UNKNOWN\r\n`; after that each further byte may be the last.
    let more = Progress::Incomplete {
        at_least: (bytes.len() + 1).max(b"PROXY UNKNOWN\r\n".len()),
    };
    match ProxyHeader::parse(bytes, CONFIG) {
        Ok((header, length)) => Ok(complete(&header, length)),
        Err(proxy_header::Error::BufferTooShort) if bytes.len() < MAX_V1 => Ok(more),
        Err(_) => Err(Fault::Malformed),
    }
}

fn decode_v2(bytes: &[u8]) -> Result<Progress, Fault> {
    let Some(&[high, low]) = bytes.get(V2_FIXED - 2..V2_FIXED) else {
        return Ok(Progress::Incomplete { at_least: V2_FIXED });
    };
    let length = V2_FIXED + usize::from(u16::from_be_bytes([high, low]));
    if length > MAX_V2 {
        return Err(Fault::TooLong);
    }
    let Some(header) = bytes.get(..length) else {
        return Ok(Progress::Incomplete { at_least: length });
    };
    match ProxyHeader::parse(header, CONFIG) {
        Ok((header, length)) => Ok(complete(&header, length)),
        Err(_) => Err(Fault::Malformed),
    }
}

fn complete(header: &ProxyHeader<'_>, length: usize) -> Progress {
    Progress::Complete {
        client: header.proxied_address().map(|addresses| addresses.source),
        length,
    }
}

/// Whether `bytes` and `start` agree as far as both go.
fn starts(bytes: &[u8], start: &[u8]) -> bool {
    let common = bytes.len().min(start.len());
    bytes[..common] == start[..common]
}

const V1_START: &[u8] = b"PROXY ";
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Signature, version and command, family, length.
const V2_FIXED: usize = 16;
const CONFIG: ParseConfig = ParseConfig {
    include_tlvs: false,
    allow_v1: true,
    allow_v2: true,
};

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proxy_header::{ProxiedAddress, Tlv};

    use super::*;

    #[test]
    fn a_version_1_line_names_the_client() {
        let progress = decode(b"PROXY TCP4 192.0.2.7 198.51.100.1 4711 443\r\n\x16\x03").unwrap();
        let client = Some("192.0.2.7:4711".parse().unwrap());
        assert_eq!(progress, Progress::Complete { client, length: 44 });
    }

    #[test]
    fn the_longest_version_1_line_is_read() {
        let ip = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let line = format!("PROXY TCP6 {ip} {ip} 65535 65535\r\n");
        assert!(matches!(
            decode(line.as_bytes()),
            Ok(Progress::Complete { client: Some(_), .. })
        ));
        let unknown = format!("PROXY UNKNOWN {ip} {ip} 65535 65535\r\n");
        assert_eq!(unknown.len(), MAX_V1);
        assert_eq!(
            decode(unknown.as_bytes()),
            Ok(Progress::Complete {
                client: None,
                length: MAX_V1
            })
        );
    }

    #[test]
    fn a_version_1_line_over_the_limit_is_refused_wherever_its_end_is() {
        let long = format!("PROXY UNKNOWN {}\r\n", "x".repeat(MAX_V1));
        assert_eq!(decode(long.as_bytes()), Err(Fault::Malformed));
        let padded = format!("PROXY TCP4 192.0.2.7 198.51.100.1 {:0>80} 443\r\n", 1);
        assert_eq!(decode(padded.as_bytes()), Err(Fault::Malformed));
    }

    #[test]
    fn local_and_unknown_name_nobody() {
        for header in [
            &b"PROXY UNKNOWN\r\n"[..],
            b"\r\n\r\n\0\r\nQUIT\n\x20\x00\x00\x00",
            b"\r\n\r\n\0\r\nQUIT\n\x21\x00\x00\x00",
            b"\r\n\r\n\0\r\nQUIT\n\x20\x11\x00\x0c\xc0\x00\x02\x07\xc6\x33\x64\x01\x12\x34\x01\xbb",
        ] {
            assert_eq!(
                decode(header),
                Ok(Progress::Complete {
                    client: None,
                    length: header.len()
                }),
                "{header:?}"
            );
        }
    }

    #[test]
    fn what_cannot_become_a_header_is_refused_at_its_first_wrong_byte() {
        for bytes in [&b"\x16\x03\x01"[..], b"GET / HTTP/1.1", b"PROXYx", b"PX", b"\r\n\r\r"] {
            assert_eq!(decode(bytes), Err(Fault::Foreign), "{bytes:?}");
        }
        for bytes in [
            &b"PROXY TCP9 1.1.1.1 1.1.1.1 1 1\r\n"[..],
            b"\r\n\r\n\0\r\nQUIT\n\x31\x11\x00\x00",
        ] {
            assert_eq!(decode(bytes), Err(Fault::Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn a_version_2_header_that_announces_too_much_is_refused_before_it_is_read() {
        assert_eq!(decode(b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"), Err(Fault::TooLong));
    }

    #[test]
    fn additions_are_skipped() {
        let mut header = ProxyHeader::with_address(addresses("192.0.2.7:1", "192.0.2.8:2"));
        header.append_tlv(Tlv::Authority("gw.example".into()));
        header.append_tlv(Tlv::Custom(0xEE, vec![7; 3000].into()));
        let mut bytes = vec![0; MAX_V2];
        let length = header.encode_to_slice_v2(&mut bytes).unwrap();
        let client = Some("192.0.2.7:1".parse().unwrap());
        assert_eq!(decode(&bytes), Ok(Progress::Complete { client, length }));
    }

    #[test]
    fn what_is_written_is_read_as_it_was_meant() {
        let read = |header: &[u8]| match decode(header) {
            Ok(Progress::Complete { client, length }) if length == header.len() => client,
            other => panic!("{other:?}"),
        };
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(read(&encode(None)), None);
        for (client, local, expected) in [
            ("192.0.2.7:4711", "192.0.2.1:443", "192.0.2.7:4711"),
            ("[2001:db8::7]:1", "[2001:db8::1]:443", "[2001:db8::7]:1"),
            ("192.0.2.7:4711", "[2001:db8::1]:443", "[::ffff:192.0.2.7]:4711"),
            ("[2001:db8::7]:1", "192.0.2.1:443", "[2001:db8::7]:1"),
        ] {
            let header = encode(Some((address(client), address(local))));
            assert_eq!(read(&header), Some(address(expected)), "{client} {local}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_of_a_header_is_incomplete_and_the_whole_is_always_the_same(
            source in any::<IpAddr>(), port in any::<u16>(), v2 in any::<bool>(),
            additions in proptest::collection::vec(any::<u8>(), 0..300), rest in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let source = SocketAddr::new(source, port);
            let destination: SocketAddr =
                if source.is_ipv4() { "127.0.0.1:443".parse().unwrap() } else { "[::1]:443".parse().unwrap() };
            let mut bytes = vec![0; 1024];
            let mut header = ProxyHeader::with_address(ProxiedAddress::stream(source, destination));
            let length = if v2 {
                header.append_tlv(Tlv::Custom(0xE0, additions.into()));
                header.encode_to_slice_v2(&mut bytes).unwrap()
            } else {
                header.encode_to_slice_v1(&mut bytes).unwrap()
            };
            bytes.truncate(length);
            for cut in 0..length {
                match decode(&bytes[..cut]) {
                    Ok(Progress::Incomplete { at_least }) => prop_assert!(at_least > cut && at_least <= length),
                    other => prop_assert!(false, "{cut} of {length}: {other:?}"),
                }
            }
            bytes.extend(rest);
            prop_assert_eq!(decode(&bytes), Ok(Progress::Complete { client: Some(source), length }));
        }

        #[test]
        fn no_bytes_panic_or_ask_for_more_than_the_bound(
            start in proptest::sample::select(vec![&b""[..], b"PROXY ", b"PROXY TCP4 ", b"PROXY UNKNOWN", V2_START,
                b"\r\n\r\n\0\r\nQUIT\n\x21\x11"]),
            tail in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let bytes = [start, &tail].concat();
            match decode(&bytes) {
                Ok(Progress::Incomplete { at_least }) => prop_assert!(at_least > bytes.len() && at_least <= MAX_V2),
                Ok(Progress::Complete { length, .. }) => prop_assert!(length <= bytes.len()),
                Err(_) => {}
            }
        }
    }

    fn addresses(source: &str, destination: &str) -> ProxiedAddress {
        ProxiedAddress::stream(source.parse().unwrap(), destination.parse().unwrap())
    }
}
