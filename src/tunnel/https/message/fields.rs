//! The fields of a message: `key "=" type ":" value "|"`, in any order.

use std::fmt::Display;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::{FieldProblem, MessageFault};
use crate::tunnel::https::chunk::MAX_BODY;

/// The fields of one message as they came. A field is looked up by key and type; the first one counts.
pub(super) struct Fields<'a> {
    message: &'static str,
    body: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'static str, body: &'a [u8]) -> Self {
        Self { message, body }
    }

    pub(super) fn string(&self, key: &'static str) -> Result<String, MessageFault> {
        self.required(key, self.optional_string(key)?)
    }

    pub(super) fn optional_string(&self, key: &'static str) -> Result<Option<String>, MessageFault> {
        self.find(key, b'S').map(|value| self.text(key, value)).transpose()
    }

    pub(super) fn optional_error(&self, key: &'static str) -> Result<Option<String>, MessageFault> {
        self.find(key, b'E').map(|value| self.text(key, value)).transpose()
    }

    pub(super) fn int(&self, key: &'static str) -> Result<i32, MessageFault> {
        self.required(key, self.optional_int(key)?)
    }

    pub(super) fn optional_int(&self, key: &'static str) -> Result<Option<i32>, MessageFault> {
        self.find(key, b'I').map(|value| self.number(key, value)).transpose()
    }

    pub(super) fn long(&self, key: &'static str) -> Result<i64, MessageFault> {
        self.required(key, self.optional_long(key)?)
    }

    pub(super) fn optional_long(&self, key: &'static str) -> Result<Option<i64>, MessageFault> {
        self.find(key, b'L').map(|value| self.number(key, value)).transpose()
    }

    pub(super) fn boolean(&self, key: &'static str) -> Result<bool, MessageFault> {
        let value = self.required(key, self.find(key, b'B'))?;
        Ok([&b"true"[..], b"1", b"yes"]
            .iter()
            .any(|yes| value.eq_ignore_ascii_case(yes)))
    }

    /// A mark that is there or not; one that cannot be read is not there.
    pub(super) fn flag(&self, key: &str) -> bool {
        self.find(key, b'B') == Some(b"true")
    }

    pub(super) fn fault(&self, field: &'static str, problem: FieldProblem) -> MessageFault {
        MessageFault {
            message: self.message,
            field,
            problem,
        }
    }

    fn find(&self, key: &str, kind: u8) -> Option<&'a [u8]> {
        let mut fields = self.body.split(|octet| *octet == b'|');
        fields.find_map(|field| match field.strip_prefix(key.as_bytes())? {
            [b'=', of, b':', value @ ..] if *of == kind => Some(value),
            _ => None,
        })
    }

    fn required<T>(&self, key: &'static str, value: Option<T>) -> Result<T, MessageFault> {
        value.ok_or_else(|| self.fault(key, FieldProblem::Missing))
    }

    fn text(&self, key: &'static str, value: &[u8]) -> Result<String, MessageFault> {
        let octets = STANDARD.decode(value).ok();
        octets
            .and_then(|octets| String::from_utf8(octets).ok())
            .ok_or_else(|| self.fault(key, FieldProblem::Unreadable))
    }

    fn number<T: std::str::FromStr>(&self, key: &'static str, value: &[u8]) -> Result<T, MessageFault> {
        let text = str::from_utf8(value).ok();
        text.and_then(|text| text.parse().ok())
            .ok_or_else(|| self.fault(key, FieldProblem::Unreadable))
    }
}

/// Writes fields, in the order of the calls.
#[derive(Default)]
pub(super) struct Writer {
    out: String,
}

impl Writer {
    pub(super) fn string(&mut self, key: &str, value: &str) -> &mut Self {
        self.text(key, 'S', value)
    }

    pub(super) fn error(&mut self, key: &str, value: &str) -> &mut Self {
        self.text(key, 'E', value)
    }

    pub(super) fn int(&mut self, key: &str, value: i32) -> &mut Self {
        self.plain(key, 'I', value)
    }

    pub(super) fn long(&mut self, key: &str, value: i64) -> &mut Self {
        self.plain(key, 'L', value)
    }

    pub(super) fn boolean(&mut self, key: &str, value: bool) -> &mut Self {
        self.plain(key, 'B', value)
    }

    /// Writes a mark; where it is not set, nothing.
    pub(super) fn flag(&mut self, key: &str, set: bool) -> &mut Self {
        if set { self.boolean(key, true) } else { self }
    }

    pub(super) fn finish(self) -> Bytes {
        debug_assert!(self.out.len() <= MAX_BODY);
        self.out.into()
    }

    fn text(&mut self, key: &str, kind: char, value: &str) -> &mut Self {
        let mut end = value.len().min(MAX_TEXT);
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        self.plain(key, kind, STANDARD.encode(&value[..end]))
    }

    fn plain(&mut self, key: &str, kind: char, value: impl Display) -> &mut Self {
        use std::fmt::Write;
        // Writing to a String cannot fail.
        let _ = write!(self.out, "{key}={kind}:{value}|");
        self
    }
}

/// The most octets of one text that is written: four of them, coded, fit into a body with their keys.
const MAX_TEXT: usize = 2 * 1024;
