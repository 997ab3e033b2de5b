//! The place of a setting in the document.

use std::fmt;

/// The place of a setting in the document, written as TOML writes it: `directory.user."a.okafor".groups[0]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SettingPath(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Segment {
    Key(String),
    Index(usize),
}

impl SettingPath {
    /// The path through the tables `keys`, outermost first.
    pub fn of(keys: &[&str]) -> Self {
        Self(keys.iter().map(|key| Segment::Key((*key).to_owned())).collect())
    }

    /// The setting `key` of the table at this path.
    pub fn key(&self, key: &str) -> Self {
        self.with(Segment::Key(key.to_owned()))
    }

    /// The element `index` of the list at this path, from 0.
    pub fn index(&self, index: usize) -> Self {
        self.with(Segment::Index(index))
    }

    /// Whether this is the document itself.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this is `other`, or something within it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.0.starts_with(&other.0)
    }

    /// The path from `table` down to this; `None` if this stands elsewhere.
    pub(super) fn below(&self, table: &Self) -> Option<Self> {
        self.0.strip_prefix(table.0.as_slice()).map(|rest| Self(rest.to_vec()))
    }

    /// How many keys and places it has.
    pub(super) fn depth(&self) -> usize {
        self.0.len()
    }

    /// The table or list that this stands in; `None` for the document itself.
    pub(super) fn parent(&self) -> Option<Self> {
        self.0.split_last().map(|(_, before)| Self(before.to_vec()))
    }

    /// The last key, if this is a setting of a table.
    pub(super) fn last_key(&self) -> Option<&str> {
        self.nth_key(self.depth().checked_sub(1)?)
    }

    /// The key at that depth, from 0.
    pub(super) fn nth_key(&self, depth: usize) -> Option<&str> {
        match self.0.get(depth)? {
            Segment::Key(key) => Some(key),
            Segment::Index(_) => None,
        }
    }

    fn with(&self, segment: Segment) -> Self {
        let mut longer = self.clone();
        longer.0.push(segment);
        longer
    }
}

impl fmt::Display for SettingPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Key(key) => write!(f, "{}{}", if place == 0 { "" } else { "." }, TomlKey(key))?,
                Segment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A key as TOML writes it: bare where that is allowed, else quoted.
pub(super) struct TomlKey<'a>(pub(super) &'a str);

impl fmt::Display for TomlKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !self.0.is_empty() && self.0.chars().all(bare) {
            f.write_str(self.0)
        } else {
            Quoted(self.0).fmt(f)
        }
    }
}

/// A text in quotes, shortened, with control characters escaped: safe for a terminal.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Quoted<'_> {
    /// The longest text shown whole, in characters.
    const MAX: usize = 80;
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        for (place, c) in self.0.chars().enumerate() {
            if place == Self::MAX {
                return f.write_str("…\"");
            }
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c.is_control() || is_direction(c) => write!(f, "\\u{:04X}", u32::from(c))?,
                c => write!(f, "{c}")?,
            }
        }
        f.write_str("\"")
    }
}

/// Characters that reorder what a terminal shows.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_it_is_written() {
        let path = SettingPath::of(&["directory", "user", "a.okafor", "groups"]).index(2);
        assert_eq!(path.to_string(), "directory.user.\"a.okafor\".groups[2]");
        assert!(path.is_within(&SettingPath::of(&["directory"])));
        assert!(!path.is_within(&SettingPath::of(&["direct"])));
    }

    #[test]
    fn nothing_that_moves_a_cursor_gets_through() {
        let hostile = SettingPath::of(&["a\u{1b}[2Jb\n\u{202e}"]);
        assert_eq!(hostile.to_string(), "\"a\\u001B[2Jb\\u000A\\u202E\"");
    }

    #[test]
    fn long_texts_are_shortened() {
        let text = Quoted(&"x".repeat(10_000)).to_string();
        assert_eq!(text.chars().count(), Quoted::MAX + 3);
    }
}
