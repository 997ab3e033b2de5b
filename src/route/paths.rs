//! Patterns of paths, of which the first that matches holds.

use super::path::respell;
use super::trie::{Entry, Trie};
use crate::types::PathPattern;

/// Patterns in their order, ready to be asked.
///
/// They are compared with paths in their one spelling ([`Normal`](super::path::Normal)); a pattern that is written in
/// another (`/%61*`, `/{x}`) stands for the same.
#[derive(Debug)]
pub struct Paths {
    trie: Trie,
    literals: Vec<Box<str>>,
}

impl Paths {
    /// The patterns, the first first.
    pub fn new<'a>(patterns: impl IntoIterator<Item = &'a PathPattern>) -> Self {
        let (literals, is_prefix): (Vec<Box<str>>, Vec<bool>) = patterns
            .into_iter()
            .map(|pattern| (literal(pattern), pattern.is_prefix()))
            .unzip();
        let entries = literals
            .iter()
            .zip(is_prefix)
            .zip(0..)
            .map(|((text, is_prefix), rank)| Entry {
                text: text.as_bytes().to_vec(),
                is_prefix,
                rank,
            });
        let trie = Trie::new(entries);
        Self { trie, literals }
    }

    /// The number, from 0, of the first pattern that matches a path without query. Linear in the path, whatever the
    /// number of patterns.
    pub fn first(&self, path: &str) -> Option<usize> {
        self.trie.first(path.as_bytes()).map(|rank| rank as usize)
    }

    /// What stands before the `*` of a pattern, or the whole: as long as the part of a path that it matched.
    pub fn literal(&self, number: usize) -> &str {
        self.literals.get(number).map_or("", |literal| literal)
    }
}

/// A literal that cannot be spelt anew, as one that ends within an escape, stays.
fn literal(pattern: &PathPattern) -> Box<str> {
    let spelt = respell(pattern.literal()).unwrap_or_else(|_| pattern.literal().to_owned());
    spelt.into_boxed_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_means_the_same_in_any_spelling() {
        let patterns = ["/{id}/*", "/%61bc", "/caf%c3%a9*", "/x%2"]
            .map(|text| format!("{text}{}", if text == "/x%2" { "*" } else { "" }));
        let patterns: Vec<PathPattern> = patterns.iter().map(|text| text.parse().unwrap()).collect();
        let paths = Paths::new(&patterns);
        for (path, found) in [
            ("/%7Bid%7D/x", Some(0)),
            ("/ABC", Some(1)),
            ("/CAF%C3%A9/menu", Some(2)),
            ("/x%2F", Some(3)),
            ("/x", None),
        ] {
            assert_eq!(paths.first(path), found, "{path}");
        }
        assert_eq!(paths.literal(0), "/%7Bid%7D/");
        assert_eq!(paths.literal(9), "");
    }
}
