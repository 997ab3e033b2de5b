//! Patterns of hosts and paths, as the application gateway's rules have them.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// A host name, or a pattern of several: `*` stands for any number of characters, dots among them, `?` for one. Or an
/// address; of IPv6 it is written in brackets, and kept without them in its one spelling.
///
/// Lower case, without a dot at the end. `*` at most once in a label and twice in a name, at most four wildcards in all,
/// no two of them beside each other (behaviour sheet of the application gateway, section 1).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern(String);

impl HostPattern {
    /// The pattern as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is one name and no pattern.
    pub fn is_exact(&self) -> bool {
        !self.0.contains(['*', '?'])
    }

    /// Whether a host, in lower case, without port and without a dot at the end, is one of them.
    pub fn matches(&self, host: &str) -> bool {
        matches(self.0.as_bytes(), host.as_bytes(), |wanted, byte| {
            wanted == b'?' || wanted == byte
        })
    }

    /// Whether every host of `other` is one of this too, as far as their texts show it: `*.a.com` covers `?.b.a.com`.
    pub fn covers(&self, other: &Self) -> bool {
        // What stands for any number of characters is not one character.
        let stands_for = |wanted, byte| wanted == byte || (wanted == b'?' && byte != b'*');
        matches(self.0.as_bytes(), other.0.as_bytes(), stands_for)
    }
}

/// Backtracks to the last `*` only: linear in the host for each wildcard.
fn matches(pattern: &[u8], text: &[u8], stands_for: impl Fn(u8, u8) -> bool) -> bool {
    let (mut at, mut seen) = (0, 0);
    let mut star = None;
    while seen < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(&wanted) if stands_for(wanted, text[seen]) => {
                at += 1;
                seen += 1;
            }
            _ => {
                let Some((back, from)) = star else {
                    return false;
                };
                star = Some((back, from + 1));
                at = back + 1;
                seen = from + 1;
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

impl FromStr for HostPattern {
    type Err = InvalidHostPattern;

    fn from_str(text: &str) -> Result<Self, InvalidHostPattern> {
        if let Some(address) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr = address.parse().map_err(|_| InvalidHostPattern)?;
            return Ok(Self(address.to_string()));
        }
        let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        let stars = text.matches('*').count();
        let wildcards = stars + text.matches('?').count();
        let letters = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-.*?".contains(&byte));
        let labels = text
            .split('.')
            .all(|label| !label.is_empty() && label.matches('*').count() <= 1);
        let beside = ["**", "*?", "?*"].iter().any(|pair| text.contains(pair));
        let sound = letters && labels && !beside && stars <= 2 && wildcards <= 4 && text.len() <= 253;
        if sound { Ok(Self(text)) } else { Err(InvalidHostPattern) }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.contains(':') {
            write!(f, "[{}]", self.0)
        } else {
            f.write_str(&self.0)
        }
    }
}

/// A text that is no host pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a host is letters, digits, - and . with at most four wildcards (* for any characters, ? for one), \
     * once in a label and twice in all; or an IPv6 address in brackets"
)]
pub struct InvalidHostPattern;

/// A path, or every path that begins so: `/images/*`, `/images*`. Letters match in either case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathPattern {
    /// As it was written, without the `*`.
    literal: String,
    is_prefix: bool,
}

impl PathPattern {
    /// What stands before the `*`, or the whole.
    pub fn literal(&self) -> &str {
        &self.literal
    }

    /// Whether whatever begins so matches.
    pub fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    /// Whether a path, normalised and without its query, matches.
    pub fn matches(&self, path: &str) -> bool {
        let literal = self.literal.as_bytes();
        let begins = path
            .as_bytes()
            .get(..literal.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(literal));
        begins && (self.is_prefix || path.len() == literal.len())
    }
}

impl FromStr for PathPattern {
    type Err = InvalidPathPattern;

    fn from_str(text: &str) -> Result<Self, InvalidPathPattern> {
        let (literal, is_prefix) = text.strip_suffix('*').map_or((text, false), |literal| (literal, true));
        let sound = literal.starts_with('/')
            && literal
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"*?#".contains(&byte));
        if sound {
            let literal = literal.to_owned();
            Ok(Self { literal, is_prefix })
        } else {
            Err(InvalidPathPattern)
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.literal)?;
        f.write_str(if self.is_prefix { "*" } else { "" })
    }
}

/// A text that is no path pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a path begins with / and has neither ? nor #; * may stand at its end only")]
pub struct InvalidPathPattern;

#[cfg(test)]
mod tests {
    use super::*;

    fn host(pattern: &str, host: &str) -> bool {
        pattern.parse::<HostPattern>().unwrap().matches(host)
    }

    #[test]
    fn a_star_spans_labels_and_never_the_apex() {
        assert!(host("*.contoso.com", "a.contoso.com"));
        assert!(host("*.contoso.com", "a.b.contoso.com"));
        assert!(!host("*.contoso.com", "contoso.com"));
        assert!(host("shop?.contoso.com", "shop1.contoso.com"));
        assert!(!host("shop?.contoso.com", "shop12.contoso.com"));
        assert!(host("*.a*.x", "b.ab.x"));
        assert!(host("Shop.Contoso.COM.", "shop.contoso.com"));
    }

    #[test]
    fn a_pattern_covers_what_it_matches_whatever_stands_in_for_the_others_wildcards() {
        let covers = |one: &str, other: &str| {
            let (one, other): (HostPattern, HostPattern) = (one.parse().unwrap(), other.parse().unwrap());
            one.covers(&other)
        };
        assert!(covers("*.a.com", "x.a.com") && covers("*.a.com", "*.a.com") && covers("*.a.com", "*.b?.a.com"));
        assert!(covers("?.a.com", "?.a.com"));
        assert!(!covers("?.a.com", "*.a.com") && !covers("x.a.com", "*.a.com") && !covers("*.a.com", "a.com"));
        assert!(!covers("*.a.com", "*a.com") && !covers("a*.com", "*a.com"));
    }

    #[test]
    fn an_address_of_ipv6_has_one_spelling() {
        let pattern: HostPattern = "[2001:DB8:0::1]".parse().unwrap();
        assert!(pattern.is_exact() && pattern.matches("2001:db8::1") && !pattern.matches("2001:db8::2"));
        assert_eq!(
            (pattern.as_str(), pattern.to_string().as_str()),
            ("2001:db8::1", "[2001:db8::1]")
        );
        assert_eq!(pattern.to_string().parse(), Ok(pattern));
        for text in [
            "2001:db8::1",
            "[2001:db8::*]",
            "[::1",
            "[fe80::1%eth0]",
            "[192.0.2.1]",
            "[]",
        ] {
            assert_eq!(text.parse::<HostPattern>(), Err(InvalidHostPattern), "{text}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for text in [
            "",
            ".",
            "a..b",
            "**.a",
            "*?.a",
            "?*.a",
            "a_b",
            "*.*.*.a",
            "*a*.b",
            "?.?.?.?.?",
            "a/b",
            "a:1",
        ] {
            assert_eq!(text.parse::<HostPattern>(), Err(InvalidHostPattern), "{text}");
        }
    }

    #[test]
    fn a_path_matches_whole_or_by_its_beginning_in_either_case() {
        let is = |pattern: &str, path: &str| pattern.parse::<PathPattern>().unwrap().matches(path);
        assert!(is("/images/*", "/IMAGES/a.png") && is("/images*", "/images") && is("/images*", "/images2/x"));
        assert!(!is("/images/*", "/images") && is("/exact/", "/Exact/") && !is("/exact/", "/exact/more"));
        for text in ["images", "/a/*/b", "/*.jpg", "/a?b", "/a#b", "", "/a b"] {
            assert_eq!(text.parse::<PathPattern>(), Err(InvalidPathPattern), "{text}");
        }
    }
}
