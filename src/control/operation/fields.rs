//! How single fields are read and written: section by section the same few forms.

use crate::control::xml::Element;
use crate::types::Secret;

/// What is wrong with an operation or an answer that is well-formed XML.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A field that must be there is not, or is empty.
    #[error("the field {field} is missing")]
    Missing {
        /// Its name.
        field: &'static str,
    },
    /// A field is not a whole number, or not one in its range.
    #[error("the field {field} is not a number in its range")]
    NotANumber {
        /// Its name.
        field: &'static str,
    },
    /// A field is not of the form that it must have.
    #[error("the field {field} is not of the form that it must have")]
    Malformed {
        /// Its name.
        field: &'static str,
    },
    /// A field has more entries than are accepted.
    #[error("the field {field} has more than {limit} entries")]
    TooMany {
        /// Its name.
        field: &'static str,
        /// The most entries.
        limit: usize,
    },
}

/// The words that mean true. All else means false.
const TRUE: [&str; 5] = ["1", "true", "TRUE", "yes", "YES"];

/// Whether a word means true.
pub(in crate::control) fn is_true(word: &str) -> bool {
    TRUE.contains(&word)
}

/// The word for a flag.
pub(in crate::control) fn flag_word(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

impl Element {
    /// The text of a child, to the letter; `None` if the child is absent or empty.
    pub(in crate::control) fn optional(&self, field: &str) -> Option<String> {
        self.child(field)
            .map(Self::text)
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    }

    /// The text of a child, to the letter; empty if it is absent.
    pub(in crate::control) fn string(&self, field: &str) -> String {
        self.optional(field).unwrap_or_default()
    }

    /// The text of a child that must be there and not be empty.
    pub(in crate::control) fn required(&self, field: &'static str) -> Result<String, Flaw> {
        self.optional(field).ok_or(Flaw::Missing { field })
    }

    /// The text of a child, in custody.
    pub(in crate::control) fn secret(&self, field: &str) -> Option<Secret> {
        self.optional(field).map(Secret::new)
    }

    /// A child that is a word of the protocol; `None` if it is absent or blank.
    pub(in crate::control) fn optional_word(&self, field: &str) -> Option<String> {
        self.child(field)
            .map(Self::word)
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
    }

    /// A flag; absent means false.
    pub(in crate::control) fn flag(&self, field: &str) -> bool {
        self.optional_flag(field).unwrap_or_default()
    }

    /// A flag, or `None` if it is absent.
    pub(in crate::control) fn optional_flag(&self, field: &str) -> Option<bool> {
        self.child(field).map(|child| is_true(child.word()))
    }

    /// A whole number; `None` if it is absent or blank.
    pub(in crate::control) fn number<N: TryFrom<i64>>(&self, field: &'static str) -> Result<Option<N>, Flaw> {
        let Some(word) = self.child(field).map(Self::word).filter(|word| !word.is_empty()) else {
            return Ok(None);
        };
        let number: i64 = word.parse().map_err(|_| Flaw::NotANumber { field })?;
        N::try_from(number).map(Some).map_err(|_| Flaw::NotANumber { field })
    }

    /// Writes a text, or nothing if there is none.
    pub(in crate::control) fn push_optional(&mut self, field: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.push_leaf(field, text);
        }
    }

    /// Writes a secret, or nothing if there is none.
    pub(in crate::control) fn push_secret(&mut self, field: &str, secret: Option<&Secret>) {
        self.push_optional(field, secret.map(Secret::expose));
    }

    /// Writes a flag, also a false one.
    pub(in crate::control) fn push_flag(&mut self, field: &str, flag: bool) {
        self.push_leaf(field, flag_word(flag));
    }

    /// Writes a number, or nothing if there is none.
    pub(in crate::control) fn push_number(&mut self, field: &str, number: Option<impl Into<i64>>) {
        self.push_optional(field, number.map(|number| number.into().to_string()).as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(text: &str) -> Element {
        Element::new("x").with(Element::new("Field").with_text(text))
    }

    #[test]
    fn only_five_words_mean_true() {
        for yes in ["1", "true", "TRUE", "yes", "YES", " true\n"] {
            assert!(field(yes).flag("field"), "{yes:?}");
        }
        for no in ["", "0", "True", "y", "on", "false", "2"] {
            assert!(!field(no).flag("field"), "{no:?}");
        }
        assert_eq!(Element::new("x").optional_flag("field"), None);
    }

    #[test]
    fn numbers_are_whole_and_decimal() {
        assert_eq!(field(" -1\n").number::<i64>("field"), Ok(Some(-1)));
        assert_eq!(field("").number::<i64>("field"), Ok(None));
        assert_eq!(field("65535").number::<u16>("field"), Ok(Some(65535)));
        for bad in ["65536", "-1", "0x10", "1.0", "ten"] {
            assert_eq!(
                field(bad).number::<u16>("field"),
                Err(Flaw::NotANumber { field: "field" }),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn text_is_kept_to_the_letter_and_words_are_not() {
        assert_eq!(field(" a \n").string("field"), " a \n");
        assert_eq!(field(" a \n").optional_word("field").as_deref(), Some("a"));
    }
}
