//! What can be wrong with a document, and where.

use std::fmt;

/// A document that was refused.
///
/// It names the place and the rule, never the text found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {kind}")]
pub struct Error {
    /// What is wrong.
    pub kind: ErrorKind,
    /// Where it begins.
    pub at: Position,
}

/// A place in the text of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Octets of UTF-8 before it.
    pub offset: usize,
    /// The line, from 1.
    pub line: usize,
    /// The character within the line, from 1.
    pub column: usize,
}

impl Position {
    /// The place after `offset` octets of `text` (or the last one before it that is between two characters).
    pub(super) fn find(text: &str, offset: usize) -> Self {
        let boundary = (0..=offset.min(text.len()))
            .rev()
            .find(|&at| text.is_char_boundary(at))
            .unwrap_or(0);
        let before = &text[..boundary];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            offset: before.len(),
            line: before.bytes().filter(|&b| b == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// What is wrong with a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ErrorKind {
    /// The text is longer than it may be.
    #[error("the document is larger than {limit} octets")]
    TooLarge {
        /// The most octets.
        limit: usize,
    },
    /// Too many elements within each other.
    #[error("elements lie more than {limit} deep within each other")]
    TooDeep {
        /// The greatest depth.
        limit: usize,
    },
    /// Too many elements.
    #[error("the document has more than {limit} elements")]
    TooManyElements {
        /// The most elements.
        limit: usize,
    },
    /// Too many attributes, of one element or in all.
    #[error("there are more than {limit} attributes")]
    TooManyAttributes {
        /// The most attributes.
        limit: usize,
    },
    /// A run of text or an attribute's value is too long.
    #[error("a text is longer than {limit} octets")]
    TextTooLong {
        /// The most octets.
        limit: usize,
    },
    /// A control character or a non-character.
    #[error("a character that XML does not allow (U+{code:04X})")]
    IllegalCharacter {
        /// Its number.
        code: u32,
    },
    /// A document type declaration.
    #[error("a document type declaration (DOCTYPE) is not allowed")]
    DocumentType,
    /// An entity other than `amp lt gt quot apos`.
    #[error("an entity other than amp, lt, gt, quot and apos")]
    UnknownEntity,
    /// A character reference that stands for no character.
    #[error("a character reference that stands for no character that XML allows")]
    BadReference,
    /// An ampersand that begins no reference.
    #[error("an ampersand that begins no reference; in text it is written &amp;")]
    LoneAmpersand,
    /// `]]>` in text.
    #[error("the sequence ]]> in text; it is written ]]&gt;")]
    CdataEnd,
    /// An XML declaration that is not well formed, not at the start, or not of version 1.0.
    #[error("the XML declaration is not well formed, not at the very start, or not of version 1.0")]
    BadDeclaration,
    /// A processing instruction without a name, or with a reserved one.
    #[error("a processing instruction that is not well formed")]
    BadInstruction,
    /// A name that is none.
    #[error("a name that is not an XML name")]
    BadName,
    /// An attribute that is not `name="value"`, or one without white space before it.
    #[error("an attribute that is not well formed")]
    BadAttribute,
    /// Two attributes of one name.
    #[error("an attribute that the element has already")]
    DuplicateAttribute,
    /// An end tag that closes another element than the open one, or none.
    #[error("an end tag that does not match the open element")]
    MismatchedEnd,
    /// An element that is not closed.
    #[error("an element that is never closed")]
    UnclosedElement,
    /// A tag, comment, CDATA section or processing instruction without its end.
    #[error("a tag, comment, CDATA section or instruction without its end")]
    UnclosedMarkup,
    /// Other markup that is not XML.
    #[error("markup that is not well formed")]
    BadMarkup,
    /// No element at all.
    #[error("the document has no element")]
    NoRoot,
    /// A second root element.
    #[error("a second root element")]
    SecondRoot,
    /// Text before or after the root.
    #[error("text outside the root element")]
    TextOutsideRoot,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_characters_and_never_splits_one() {
        let text = "ä\nöö<";
        let at = Position::find(text, text.len() - 1);
        assert_eq!((at.line, at.column), (2, 3));
        assert_eq!(Position::find(text, 1).offset, 0);
        assert_eq!(Position::find(text, 999).offset, text.len());
    }
}
