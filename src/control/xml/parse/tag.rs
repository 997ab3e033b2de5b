//! One start tag: name and attributes.

use super::super::{Attribute, Element, ErrorKind, Limits, chars};
use super::{Fault, resolve};

/// Parses `<name a="1" b='2'>` or `<name/>`. A fault's place is counted from the `<`.
///
/// The count of attributes is held to its limit while they are read. A tag with 100,000 of them costs no more than
/// one with a few, and the comparison of each with each stays small.
pub(super) fn parse(raw: &str, limits: &Limits) -> Result<Element, Fault> {
    let inside = raw
        .strip_prefix('<')
        .and_then(|raw| raw.strip_suffix('>'))
        .unwrap_or_default();
    let inside = inside.strip_suffix('/').unwrap_or(inside);
    let mut cursor = Cursor {
        rest: inside,
        offset: 1,
    };
    let name = cursor.name()?;
    let mut element = Element::new(name);
    while cursor.spaces() > 0 && !cursor.rest.is_empty() {
        if element.attributes.len() >= limits.attributes {
            return Err(Fault(
                ErrorKind::TooManyAttributes {
                    limit: limits.attributes,
                },
                cursor.offset,
            ));
        }
        let start = cursor.offset;
        let attribute = cursor.attribute(limits)?;
        if element.attributes.iter().any(|other| other.name == attribute.name) {
            return Err(Fault(ErrorKind::DuplicateAttribute, start));
        }
        element.attributes.push(attribute);
    }
    if cursor.rest.is_empty() {
        Ok(element)
    } else {
        Err(Fault(ErrorKind::BadAttribute, cursor.offset))
    }
}

/// What is left of a tag, and after how many octets of it.
struct Cursor<'a> {
    rest: &'a str,
    offset: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, octets: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(octets);
        self.rest = rest;
        self.offset += octets;
        taken
    }

    /// Skips white space and says how much there was.
    fn spaces(&mut self) -> usize {
        let octets = self.rest.len() - self.rest.trim_start_matches(chars::is_space).len();
        self.take(octets).len()
    }

    fn name(&mut self) -> Result<&'a str, Fault> {
        let start = self.offset;
        let end = self
            .rest
            .find(|c| chars::is_space(c) || c == '=')
            .unwrap_or(self.rest.len());
        let name = self.take(end);
        if chars::is_name(name) {
            Ok(name)
        } else {
            Err(Fault(ErrorKind::BadName, start))
        }
    }

    fn attribute(&mut self, limits: &Limits) -> Result<Attribute, Fault> {
        let name = self.name()?;
        self.spaces();
        self.expect('=')?;
        self.spaces();
        let quote = self.rest.chars().next().filter(|&c| c == '"' || c == '\'');
        let quote = quote.ok_or(Fault(ErrorKind::BadAttribute, self.offset))?;
        self.expect(quote)?;
        let start = self.offset;
        let end = self.rest.find(quote).ok_or(Fault(ErrorKind::BadAttribute, start))?;
        let value = normalise(self.take(end), start, limits.text)?;
        self.expect(quote)?;
        Ok(Attribute {
            name: name.to_owned(),
            value,
        })
    }

    fn expect(&mut self, c: char) -> Result<(), Fault> {
        if !self.rest.starts_with(c) {
            return Err(Fault(ErrorKind::BadAttribute, self.offset));
        }
        self.take(c.len_utf8());
        Ok(())
    }
}

/// The value with references resolved and other white space turned into blanks, as XML demands.
fn normalise(raw: &str, offset: usize, limit: usize) -> Result<String, Fault> {
    let mut value = String::new();
    let mut rest = raw;
    let here = |rest: &str| offset + raw.len() - rest.len();
    while let Some(c) = rest.chars().next() {
        let at = here(rest);
        let mut octets = c.len_utf8();
        match c {
            '<' => return Err(Fault(ErrorKind::BadAttribute, at)),
            '&' => {
                let end = rest.find(';').ok_or(Fault(ErrorKind::LoneAmpersand, at))?;
                value.push(resolve(&rest[1..end]).map_err(|kind| Fault(kind, at))?);
                octets = end + 1;
            }
            '\r' if rest.starts_with("\r\n") => {
                value.push(' ');
                octets = 2;
            }
            '\r' | '\n' | '\t' => value.push(' '),
            c => value.push(c),
        }
        if value.len() > limit {
            return Err(Fault(ErrorKind::TextTooLong { limit }, at));
        }
        rest = &rest[octets..];
    }
    Ok(value)
}
