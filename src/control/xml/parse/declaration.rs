//! The XML declaration `<?xml version="1.0" encoding="…" standalone="…"?>`.

use super::super::chars;

/// What a document says of itself at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::control) struct Declaration<'a> {
    /// The name of the encoding, as written.
    pub(in crate::control) encoding: Option<&'a str>,
}

impl<'a> Declaration<'a> {
    /// Parses a whole declaration, `<?xml` to `?>`. On failure it says after how many octets.
    pub(in crate::control) fn parse(raw: &'a str) -> Result<Self, usize> {
        let mut rest = raw
            .strip_prefix("<?xml")
            .and_then(|raw| raw.strip_suffix("?>"))
            .ok_or(0usize)?;
        let end = raw.len() - 2;
        let version = pseudo_attribute(&mut rest, "version").ok_or(end - rest.len())?;
        if version != Some("1.0") {
            return Err(end - rest.len());
        }
        let encoding = pseudo_attribute(&mut rest, "encoding").ok_or(end - rest.len())?;
        if encoding.is_some_and(|name| !is_encoding_name(name)) {
            return Err(end - rest.len());
        }
        let standalone = pseudo_attribute(&mut rest, "standalone").ok_or(end - rest.len())?;
        if standalone.is_some_and(|value| value != "yes" && value != "no") {
            return Err(end - rest.len());
        }
        if rest.chars().all(chars::is_space) {
            Ok(Self { encoding })
        } else {
            Err(end - rest.len())
        }
    }
}

/// Takes `name="value"` with the white space before it off the front: `Some(None)` if something else stands there,
/// `None` if it is that but not well formed.
fn pseudo_attribute<'a>(rest: &mut &'a str, name: &str) -> Option<Option<&'a str>> {
    let inner = rest.trim_start_matches(chars::is_space);
    let Some(after) = inner.strip_prefix(name).filter(|_| inner.len() < rest.len()) else {
        return Some(None);
    };
    let after = after
        .trim_start_matches(chars::is_space)
        .strip_prefix('=')?
        .trim_start_matches(chars::is_space);
    let quote = after.chars().next().filter(|&c| c == '"' || c == '\'')?;
    let (value, after) = after[1..].split_once(quote)?;
    *rest = after;
    Some(Some(value))
}

/// The production `EncName`.
fn is_encoding_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}
