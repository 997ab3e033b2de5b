//! Octets to text: which encoding a body is in, and nothing guessed.
//!
//! A password must arrive as the very string that was typed. So an encoding is either certain or the body is refused;
//! an octet that the encoding has no meaning for is refused too, never replaced. The header `Content-Type` has no say:
//! clients are known to send a wrong one.

use super::xml::Declaration;

/// Decodes a body: UTF-8, UTF-16 (either order) or ISO-8859-1.
///
/// The byte order mark decides; without one, UTF-16 is known by `<?xml` at the start. What the XML declaration names
/// must agree with that. Without both it is UTF-8. The byte order mark is taken off.
///
/// # Errors
///
/// See [`Error`]. None of them repeats text of the body except the name of an encoding.
pub fn decode(body: &[u8]) -> Result<String, Error> {
    let (family, content) = Family::of(body)?;
    match family {
        Family::Utf16 { order, marked } => {
            let text = utf16(content, order)?;
            let allowed = ["UTF-16", order.label()];
            match declared(&text) {
                Some(name) if !allowed.iter().any(|label| name.eq_ignore_ascii_case(label)) => Err(contradiction(
                    name,
                    if marked {
                        Evidence::ByteOrderMark
                    } else {
                        Evidence::Content
                    },
                )),
                Some(_) | None => Ok(text),
            }
        }
        Family::Ascii { marked } => {
            let label = match declared_in_ascii(content) {
                None => Label::Utf8,
                Some(name) => match Label::of(name) {
                    None => return Err(Error::Unsupported { name: Name::new(name) }),
                    Some(Label::Utf16) => return Err(contradiction(name, Evidence::Content)),
                    Some(label) if marked && label != Label::Utf8 => {
                        return Err(contradiction(name, Evidence::ByteOrderMark));
                    }
                    Some(label) => label,
                },
            };
            label.decode(content)
        }
    }
}

/// Why a body is not text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An encoding that is not read here.
    #[error("the encoding {name} is not supported; send UTF-8")]
    Unsupported {
        /// Its name.
        name: Name,
    },
    /// The declaration names another encoding than the octets are in.
    #[error("the document declares the encoding {declared}, but {evidence}")]
    Contradiction {
        /// The name that the XML declaration gives.
        declared: Name,
        /// What speaks against it.
        evidence: Evidence,
    },
    /// An octet that has no meaning in the encoding.
    #[error("octet {offset} of the body is not valid {encoding}")]
    Invalid {
        /// The encoding by which the body was read.
        encoding: &'static str,
        /// Octets of the body (after its byte order mark) before the fault.
        offset: usize,
    },
}

/// What speaks against a declared encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The byte order mark at the start.
    ByteOrderMark,
    /// The octets in which the declaration itself is written.
    Content,
}

impl std::fmt::Display for Evidence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ByteOrderMark => "its byte order mark is another one's",
            Self::Content => "it is not written in it",
        })
    }
}

/// The name of an encoding, shortened, fit for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    /// The longest name shown, in characters.
    const MAX: usize = 40;

    fn new(name: &str) -> Self {
        let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        Self(name.chars().filter(plain).take(Self::MAX).collect())
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn contradiction(declared: &str, evidence: Evidence) -> Error {
    Error::Contradiction {
        declared: Name::new(declared),
        evidence,
    }
}

/// What the first octets show.
enum Family {
    /// Two octets a unit.
    Utf16 { order: Order, marked: bool },
    /// An encoding in which ASCII is ASCII; with a byte order mark it is UTF-8.
    Ascii { marked: bool },
}

impl Family {
    /// The family of a body, and the body without its byte order mark.
    fn of(body: &[u8]) -> Result<(Self, &[u8]), Error> {
        let unsupported = |name| Err(Error::Unsupported { name: Name::new(name) });
        match body {
            [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] | [b'<', 0, 0, 0, ..] | [0, 0, 0, b'<', ..] => {
                unsupported("UTF-32")
            }
            [0x4c, 0x6f, 0xa7, 0x94, ..] => unsupported("EBCDIC"),
            [0xef, 0xbb, 0xbf, rest @ ..] => Ok((Self::Ascii { marked: true }, rest)),
            [0xff, 0xfe, rest @ ..] => Ok((
                Self::Utf16 {
                    order: Order::Little,
                    marked: true,
                },
                rest,
            )),
            [0xfe, 0xff, rest @ ..] => Ok((
                Self::Utf16 {
                    order: Order::Big,
                    marked: true,
                },
                rest,
            )),
            [b'<', 0, b'?', 0, ..] => Ok((
                Self::Utf16 {
                    order: Order::Little,
                    marked: false,
                },
                body,
            )),
            [0, b'<', 0, b'?', ..] => Ok((
                Self::Utf16 {
                    order: Order::Big,
                    marked: false,
                },
                body,
            )),
            _ => Ok((Self::Ascii { marked: false }, body)),
        }
    }
}

/// Which octet of a UTF-16 unit comes first.
#[derive(Clone, Copy)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn label(self) -> &'static str {
        match self {
            Self::Little => "UTF-16LE",
            Self::Big => "UTF-16BE",
        }
    }
}

/// The encodings that a declaration may name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    Utf8,
    Utf16,
    Ascii,
    Latin1,
}

impl Label {
    /// By the names that IANA has registered, in any case.
    fn of(name: &str) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "utf-8" | "utf8" | "csutf8" => Some(Self::Utf8),
            "utf-16" | "utf-16le" | "utf-16be" | "utf16" => Some(Self::Utf16),
            "us-ascii" | "ascii" | "ansi_x3.4-1968" | "ansi_x3.4-1986" | "iso-ir-6" | "iso646-us" | "us" | "ibm367"
            | "cp367" | "csascii" => Some(Self::Ascii),
            "iso-8859-1" | "iso_8859-1" | "iso8859-1" | "iso-ir-100" | "latin1" | "l1" | "ibm819" | "cp819"
            | "csisolatin1" => Some(Self::Latin1),
            _ => None,
        }
    }

    fn decode(self, content: &[u8]) -> Result<String, Error> {
        match self {
            Self::Latin1 => Ok(content.iter().copied().map(char::from).collect()),
            Self::Ascii => match content.iter().position(|octet| !octet.is_ascii()) {
                Some(offset) => Err(Error::Invalid {
                    encoding: "US-ASCII",
                    offset,
                }),
                None => utf8(content),
            },
            Self::Utf8 | Self::Utf16 => utf8(content),
        }
    }
}

fn utf8(content: &[u8]) -> Result<String, Error> {
    match str::from_utf8(content) {
        Ok(text) => Ok(text.to_owned()),
        Err(fault) => Err(Error::Invalid {
            encoding: "UTF-8",
            offset: fault.valid_up_to(),
        }),
    }
}

fn utf16(content: &[u8], order: Order) -> Result<String, Error> {
    let invalid = |offset| Error::Invalid {
        encoding: order.label(),
        offset,
    };
    let (pairs, odd) = content.as_chunks::<2>();
    let units = pairs.iter().map(|&pair| match order {
        Order::Little => u16::from_le_bytes(pair),
        Order::Big => u16::from_be_bytes(pair),
    });
    let mut text = String::with_capacity(pairs.len());
    let mut offset = 0;
    for unit in char::decode_utf16(units) {
        let c = unit.map_err(|_| invalid(offset))?;
        offset += 2 * c.len_utf16();
        text.push(c);
    }
    if odd.is_empty() {
        Ok(text)
    } else {
        Err(invalid(content.len() - 1))
    }
}

/// The encoding that the text declares. A declaration that is not well formed names none: the parser refuses it.
fn declared(text: &str) -> Option<&str> {
    let end = text.starts_with("<?xml").then(|| text.find("?>")).flatten()?;
    Declaration::parse(&text[..end + 2]).ok()?.encoding
}

/// The same for octets of which only the ASCII ones are certain. The declaration itself must be ASCII.
fn declared_in_ascii(content: &[u8]) -> Option<&str> {
    let ascii = content
        .iter()
        .position(|octet| !octet.is_ascii())
        .unwrap_or(content.len());
    declared(str::from_utf8(&content[..ascii]).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: &str = "Grüße, 世界 🦀";

    fn utf16_octets(text: &str, order: Order) -> Vec<u8> {
        let octets = |unit: u16| match order {
            Order::Little => unit.to_le_bytes(),
            Order::Big => unit.to_be_bytes(),
        };
        text.encode_utf16().flat_map(octets).collect()
    }

    fn latin1(text: &str) -> Vec<u8> {
        text.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect()
    }

    #[test]
    fn utf8_is_read_with_and_without_a_byte_order_mark() {
        let text = format!("<?xml version=\"1.0\" encoding=\"utf-8\"?><a>{WORDS}</a>");
        assert_eq!(decode(text.as_bytes()).unwrap(), text);
        assert_eq!(decode(format!("\u{feff}{text}").as_bytes()).unwrap(), text);
        assert_eq!(decode(WORDS.as_bytes()).unwrap(), WORDS);
        assert_eq!(decode(b"").unwrap(), "");
    }

    #[test]
    fn utf16_is_read_in_both_orders_with_a_mark_or_by_its_declaration() {
        for (order, name) in [(Order::Little, "UTF-16LE"), (Order::Big, "utf-16be")] {
            for declaration in [
                "<?xml version=\"1.0\"?>".to_owned(),
                format!("<?xml version='1.0' encoding='{name}'?>"),
            ] {
                let text = format!("{declaration}<a>{WORDS}</a>");
                assert_eq!(decode(&utf16_octets(&text, order)).unwrap(), text);
                assert_eq!(decode(&utf16_octets(&format!("\u{feff}{text}"), order)).unwrap(), text);
            }
            let bare = format!("<a>{WORDS}</a>");
            assert_eq!(decode(&utf16_octets(&format!("\u{feff}{bare}"), order)).unwrap(), bare);
        }
    }

    #[test]
    fn latin1_is_read_by_any_of_its_names() {
        for name in [
            "ISO-8859-1",
            "iso_8859-1",
            "Latin1",
            "L1",
            "cp819",
            "IBM819",
            "iso-ir-100",
            "csISOLatin1",
        ] {
            let text = format!("<?xml version=\"1.0\" encoding=\"{name}\"?><a>Grüße\u{ff}</a>");
            assert_eq!(decode(&latin1(&text)).unwrap(), text);
        }
    }

    #[test]
    fn ascii_is_read_and_nothing_beyond_it() {
        let text = "<?xml version=\"1.0\" encoding=\"US-ASCII\"?><a>plain</a>";
        assert_eq!(decode(text.as_bytes()).unwrap(), text);
        let beyond = text.replace("plain", "plän");
        assert_eq!(
            decode(beyond.as_bytes()),
            Err(Error::Invalid {
                encoding: "US-ASCII",
                offset: 46
            })
        );
    }

    #[test]
    fn other_encodings_are_refused_by_name() {
        for name in [
            "windows-1252",
            "UTF-7",
            "ibm037",
            "GB18030",
            "ISO-8859-15",
            "ISO-2022-JP",
            "UTF-32",
            "UCS-2",
        ] {
            let text = format!("<?xml version=\"1.0\" encoding=\"{name}\"?><a/>");
            assert_eq!(
                decode(text.as_bytes()),
                Err(Error::Unsupported { name: Name::new(name) })
            );
        }
        let unsupported = |name| Err(Error::Unsupported { name: Name::new(name) });
        assert_eq!(decode(b"\xff\xfe\0\0<\0\0\0"), unsupported("UTF-32"));
        assert_eq!(decode(b"\0\0\0<\0\0\0?"), unsupported("UTF-32"));
        assert_eq!(decode(b"\x4c\x6f\xa7\x94\x93"), unsupported("EBCDIC"));
    }

    #[test]
    fn a_name_in_an_error_is_short_and_plain() {
        let text = format!("<?xml version=\"1.0\" encoding=\"x{}\"?><a/>", "y".repeat(5000));
        assert!(decode(text.as_bytes()).unwrap_err().to_string().len() < 100);
    }

    #[test]
    fn a_declaration_that_contradicts_the_octets_is_refused() {
        let declared = |name: &str| format!("<?xml version=\"1.0\" encoding=\"{name}\"?><a/>");
        let contradiction = |body: &[u8], evidence| {
            let error = decode(body).unwrap_err();
            assert!(
                matches!(error, Error::Contradiction { evidence: found, .. } if found == evidence),
                "{error}"
            );
        };
        let marked = |name: &str| format!("\u{feff}{}", declared(name));
        contradiction(marked("ISO-8859-1").as_bytes(), Evidence::ByteOrderMark);
        contradiction(marked("UTF-16").as_bytes(), Evidence::Content);
        contradiction(declared("UTF-16").as_bytes(), Evidence::Content);
        contradiction(&utf16_octets(&marked("UTF-8"), Order::Little), Evidence::ByteOrderMark);
        contradiction(
            &utf16_octets(&marked("UTF-16BE"), Order::Little),
            Evidence::ByteOrderMark,
        );
        contradiction(&utf16_octets(&declared("ISO-8859-1"), Order::Big), Evidence::Content);
    }

    #[test]
    fn invalid_octets_are_refused_where_they_stand_and_never_replaced() {
        let invalid = |encoding, offset| Err(Error::Invalid { encoding, offset });
        assert_eq!(decode(b"<a>\xff</a>"), invalid("UTF-8", 3));
        assert_eq!(decode(b"<a>\xc0\xaf</a>"), invalid("UTF-8", 3), "an overlong form");
        assert_eq!(decode(b"<a>\xed\xa0\x80</a>"), invalid("UTF-8", 3), "half of a pair");
        assert_eq!(
            decode(b"\xff\xfe<\0\x00\xd8a\0"),
            invalid("UTF-16LE", 2),
            "a lone first half"
        );
        assert_eq!(
            decode(b"\xfe\xff\0<\xdc\x00"),
            invalid("UTF-16BE", 2),
            "a lone second half"
        );
        assert_eq!(decode(b"\xfe\xff\0<\0"), invalid("UTF-16BE", 2), "half a unit");
    }
}
