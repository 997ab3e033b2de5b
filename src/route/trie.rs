//! Many patterns, of which the first that matches is found in one walk over the text.

use std::collections::VecDeque;
use std::ops::Range;

/// A compressed trie over texts in lower case. Each stands for itself or for whatever begins so, and has a rank.
///
/// Nodes lie breadth first, so that the children of one lie beside each other.
#[derive(Debug)]
pub(super) struct Trie {
    nodes: Vec<Node>,
    /// The first byte of each node's label; that of the root means nothing.
    firsts: Vec<u8>,
    labels: Vec<u8>,
}

/// A text, and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    /// In any case.
    pub(super) text: Vec<u8>,
    /// Whether whatever begins so matches.
    pub(super) is_prefix: bool,
    /// The lowest that matches is found.
    pub(super) rank: u32,
}

#[derive(Debug)]
struct Node {
    label: Range<u32>,
    children: Range<u32>,
    /// The rank of the text that ends here.
    exact: u32,
    /// The rank of what begins with the text that ends here.
    prefix: u32,
    /// The lowest rank here and below.
    least: u32,
}

impl Trie {
    pub(super) fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut entries: Vec<Entry> = entries
            .into_iter()
            .map(|mut entry| {
                entry.text.make_ascii_lowercase();
                entry
            })
            .collect();
        entries.sort_unstable();
        let mut trie = Self {
            nodes: Vec::new(),
            firsts: Vec::new(),
            labels: Vec::new(),
        };
        trie.grow(&entries);
        trie.sum_up();
        trie
    }

    /// The lowest rank that matches, letters in either case. Linear in the text, whatever the number of entries.
    pub(super) fn first(&self, text: &[u8]) -> Option<u32> {
        let mut best = NONE;
        let mut rest = text;
        let mut at = 0;
        loop {
            let node = &self.nodes[at];
            let label = &self.labels[span(&node.label)];
            let Some((head, tail)) = rest.split_at_checked(label.len()) else {
                break;
            };
            if node.least >= best || !head.eq_ignore_ascii_case(label) {
                break;
            }
            best = best.min(node.prefix);
            let Some(next) = tail.first() else {
                best = best.min(node.exact);
                break;
            };
            let children = span(&node.children);
            let Ok(child) = self.firsts[children.clone()].binary_search(&next.to_ascii_lowercase()) else {
                break;
            };
            at = children.start + child;
            rest = tail;
        }
        (best != NONE).then_some(best)
    }

    /// Makes the nodes from sorted entries.
    fn grow(&mut self, entries: &[Entry]) {
        let mut waiting = VecDeque::from([(entries, 0)]);
        self.plant(0);
        let mut at = 0;
        // All of `these` begin with the same `depth` bytes, which lead to the node `at`.
        while let Some((these, depth)) = waiting.pop_front() {
            let end = shared(these).max(depth);
            self.nodes[at].label = self.write(these.first().map_or(&[][..], |entry| &entry.text[depth..end]));
            let longer = these.partition_point(|entry| entry.text.len() == end);
            let (here, mut below) = these.split_at(longer);
            for entry in here {
                let node = &mut self.nodes[at];
                let rank = if entry.is_prefix {
                    &mut node.prefix
                } else {
                    &mut node.exact
                };
                *rank = entry.rank.min(*rank);
            }
            let children = index(self.nodes.len());
            while let Some(first) = below.first().map(|entry| entry.text[end]) {
                let alike = below.partition_point(|entry| entry.text[end] == first);
                let (child, others) = below.split_at(alike);
                self.plant(first);
                waiting.push_back((child, end));
                below = others;
            }
            self.nodes[at].children = children..index(self.nodes.len());
            at += 1;
        }
    }

    fn plant(&mut self, first: u8) {
        self.firsts.push(first);
        self.nodes.push(Node {
            label: 0..0,
            children: 0..0,
            exact: NONE,
            prefix: NONE,
            least: NONE,
        });
    }

    fn write(&mut self, label: &[u8]) -> Range<u32> {
        let start = index(self.labels.len());
        self.labels.extend_from_slice(label);
        start..index(self.labels.len())
    }

    /// Children lie behind their parents: from the back, each node's children are summed up before it.
    fn sum_up(&mut self) {
        for at in (0..self.nodes.len()).rev() {
            let node = &self.nodes[at];
            let below = self.nodes[span(&node.children)].iter().map(|child| child.least).min();
            self.nodes[at].least = node.exact.min(node.prefix).min(below.unwrap_or(NONE));
        }
    }
}

/// How many bytes sorted entries have in common at their beginning.
fn shared(entries: &[Entry]) -> usize {
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
        return 0;
    };
    first.text.iter().zip(&last.text).take_while(|(a, b)| a == b).count()
}

/// A configuration is far smaller than 4 GiB; of a larger one the end would not be found.
fn index(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(NONE)
}

fn span(range: &Range<u32>) -> Range<usize> {
    range.start as usize..range.end as usize
}

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entries(texts: &[(&str, bool)]) -> Vec<Entry> {
        let ranked = texts.iter().zip(0..);
        ranked
            .map(|((text, is_prefix), rank)| Entry {
                text: text.as_bytes().to_vec(),
                is_prefix: *is_prefix,
                rank,
            })
            .collect()
    }

    #[test]
    fn the_lowest_rank_is_found_not_the_longest_text() {
        let trie = Trie::new(entries(&[
            ("/a/b", true),
            ("/A/b/c", true),
            ("/a/b/d", false),
            ("/a", false),
            ("/", true),
        ]));
        for (text, found) in [
            ("/a/b/c", Some(0)),
            ("/a/b/d", Some(0)),
            ("/a", Some(3)),
            ("/A/", Some(4)),
            ("/x", Some(4)),
            ("", None),
        ] {
            assert_eq!(trie.first(text.as_bytes()), found, "{text}");
        }
        assert_eq!(Trie::new([]).first(b"/a"), None);
        assert_eq!(Trie::new(entries(&[("", true)])).first(b"x"), Some(0));
    }

    #[test]
    fn thousands_that_begin_alike_are_no_matter() {
        let nested: Vec<String> = (0..5_000).map(|length| "a".repeat(length)).collect();
        let trie = Trie::new(entries(
            &nested
                .iter()
                .rev()
                .map(|text| (text.as_str(), true))
                .collect::<Vec<_>>(),
        ));
        assert_eq!(trie.first("a".repeat(6_000).as_bytes()), Some(0));
        assert_eq!(trie.first(b"aaab"), Some(4_996));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_trying_all_in_turn_finds(
            texts in proptest::collection::vec(("[aAb/]{0,5}", any::<bool>()), 0..40),
            asked in proptest::collection::vec("[aAb/c]{0,7}", 20),
        ) {
            let texts: Vec<_> = texts.iter().map(|(text, is_prefix)| (text.as_str(), *is_prefix)).collect();
            let trie = Trie::new(entries(&texts));
            for asked in &asked {
                let lower = asked.to_ascii_lowercase();
                let naive = texts.iter().position(|(text, is_prefix)| {
                    let text = text.to_ascii_lowercase();
                    lower == text || (*is_prefix && lower.starts_with(&text))
                });
                prop_assert_eq!(trie.first(asked.as_bytes()).map(|rank| rank as usize), naive, "{}", asked);
            }
        }
    }
}
