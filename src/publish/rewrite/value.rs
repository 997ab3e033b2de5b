//! What a template becomes.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::COOKIE;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::types::{Variable, is_of_path, is_of_query};

/// What conditions captured, and what an answer needs of its request.
pub(super) type Slots = Vec<Vec<u8>>;

/// A template, ready to be filled.
#[derive(Debug)]
pub(super) enum Value {
    /// Always the same.
    Constant(HeaderValue),
    /// Of these pieces.
    Made(Vec<Piece>),
}

/// A piece of a value.
#[derive(Debug)]
pub(super) enum Piece {
    /// Itself.
    Text(String),
    /// A variable as it is when the value is made.
    Live(Variable),
    /// What is in a slot.
    Slot(usize),
}

impl Value {
    pub(super) fn new(pieces: Vec<Piece>) -> Self {
        if let [Piece::Text(text)] = pieces.as_slice()
            && let Ok(constant) = HeaderValue::from_str(text)
        {
            return Self::Constant(constant);
        }
        Self::Made(pieces)
    }

    /// Whether such a variable stands in it, other than by its groups.
    pub(super) fn shows(&self, is_meant: impl Fn(&Variable) -> bool) -> bool {
        match self {
            Self::Constant(_) => false,
            Self::Made(pieces) => pieces
                .iter()
                .any(|piece| matches!(piece, Piece::Live(variable) if is_meant(variable))),
        }
    }

    /// The value as bytes.
    pub(super) fn bytes<'k>(&self, slots: &Slots, known: impl Fn(&Variable) -> Option<Cow<'k, [u8]>>) -> Cow<'_, [u8]> {
        let pieces = match self {
            Self::Constant(value) => return value.as_bytes().into(),
            Self::Made(pieces) => pieces,
        };
        let mut made = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Text(text) => made.extend_from_slice(text.as_bytes()),
                Piece::Live(variable) => made.extend_from_slice(&known(variable).unwrap_or_default()),
                Piece::Slot(slot) => made.extend_from_slice(&slots[*slot]),
            }
        }
        made.into()
    }

    /// The value as that of a field; `None` if it is empty or cannot be one.
    pub(super) fn field<'k>(
        &self,
        slots: &Slots,
        known: impl Fn(&Variable) -> Option<Cow<'k, [u8]>>,
    ) -> Option<HeaderValue> {
        if let Self::Constant(value) = self {
            return Some(value.clone());
        }
        let made = self.bytes(slots, known).into_owned();
        let field = HeaderValue::from_maybe_shared(Bytes::from(made)).ok();
        field.filter(|field| !field.is_empty())
    }
}

/// A path of what a value came out as: what cannot stand in a path is percent-encoded, and it begins with `/`.
pub(super) fn path(value: &[u8]) -> String {
    let mut path = String::with_capacity(value.len() + 1);
    if !value.starts_with(b"/") {
        path.push('/');
    }
    encode(&mut path, value, is_of_path);
    path
}

/// A query of what a value came out as: what cannot stand in a query is percent-encoded.
pub(super) fn query(value: &[u8]) -> String {
    let mut query = String::with_capacity(value.len());
    encode(&mut query, value, is_of_query);
    query
}

/// Adds `value` to `text`, with `%` and two digits for whatever `stays` does not let stand. `%` stays: what comes of a
/// URL is encoded already.
pub(super) fn encode(text: &mut String, value: &[u8], stays: impl Fn(char) -> bool) {
    for byte in value {
        if stays(char::from(*byte)) {
            text.push(char::from(*byte));
        } else {
            text.push('%');
            for half in [byte >> 4, byte & 15] {
                text.push(char::from(HEX[usize::from(half)]));
            }
        }
    }
}

/// The value of a field: its lines joined as a list.
pub(super) fn joined<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<Cow<'a, [u8]>> {
    let mut lines = headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let first = lines.next()?;
    let Some(second) = lines.next() else {
        return Some(first.into());
    };
    let between: &[u8] = if *name == COOKIE { b"; " } else { b", " };
    let mut joined = first.to_vec();
    for line in [second].into_iter().chain(lines) {
        joined.extend_from_slice(between);
        joined.extend_from_slice(line);
    }
    Some(joined.into())
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";
