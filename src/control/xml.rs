//! A small XML tree, read strictly and written plainly.
//!
//! Reading is held to [`Limits`] and refuses what the protocol has no use for: document type definitions, entities
//! other than the five predefined ones, a second root. Text is kept to the letter, for a password may start with a
//! blank. Names are compared without regard to case.
//!
//! Text is wiped when a tree is dropped (a buffer that it outgrew on the way is not). Neither reading, writing nor
//! dropping recurses.

mod chars;
mod error;
mod parse;
mod write;

use std::fmt;

use zeroize::Zeroize;

pub use chars::is_text;
pub use error::{Error, ErrorKind, Position};
pub(super) use parse::Declaration;
pub use parse::parse;
pub use write::write;

/// How large a document may be. What exceeds one of these is refused before it takes memory or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Octets of the body as received, and of its text in UTF-8.
    pub bytes: usize,
    /// Elements within each other, the root included.
    pub depth: usize,
    /// Elements in all.
    pub elements: usize,
    /// Attributes of one element.
    pub attributes: usize,
    /// Attributes of all elements together.
    pub total_attributes: usize,
    /// Octets of one run of text, or of one attribute's value, in UTF-8.
    pub text: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes: 256 * 1024,
            depth: 32,
            elements: 16_384,
            attributes: 16,
            total_attributes: 4_096,
            text: 64 * 1024,
        }
    }
}

/// An element with its attributes and children.
///
/// `Debug` shows names and numbers only: text may be a password.
pub struct Element {
    /// The name as written, with its prefix if it has one.
    pub name: String,
    /// The attributes in document order; no two have one name.
    pub attributes: Vec<Attribute>,
    /// Elements and runs of text in document order; two runs of text never follow each other in a parsed tree.
    pub children: Vec<Node>,
}

/// An attribute of an [`Element`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The name as written.
    pub name: String,
    /// The value, references resolved.
    pub value: String,
}

/// A child of an [`Element`].
pub enum Node {
    /// An element.
    Element(Element),
    /// A run of text, references resolved.
    Text(String),
}

impl Element {
    /// An element without content. `name` must be a valid XML name.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        debug_assert!(chars::is_name(&name), "not an XML name");
        Self {
            name,
            attributes: Vec::new(),
            children: Vec::new(),
        }
    }

    /// The same element with one more attribute.
    #[must_use]
    pub fn with_attribute(mut self, name: &str, value: impl Into<String>) -> Self {
        self.attributes.push(Attribute {
            name: name.to_owned(),
            value: value.into(),
        });
        self
    }

    /// The same element with one more run of text; nothing if that is empty.
    #[must_use]
    pub fn with_text(mut self, text: &str) -> Self {
        if !text.is_empty() {
            self.children.push(Node::Text(text.to_owned()));
        }
        self
    }

    /// The same element with one more child.
    #[must_use]
    pub fn with(mut self, child: Self) -> Self {
        self.push(child);
        self
    }

    /// Appends a child.
    pub fn push(&mut self, child: Self) {
        self.children.push(Node::Element(child));
    }

    /// Appends a child that holds nothing but `text`.
    pub fn push_leaf(&mut self, name: &str, text: &str) {
        self.push(Self::new(name).with_text(text));
    }

    /// Whether this is the element's name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The value of the first attribute of that name.
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes
            .iter()
            .find(|a| a.name.eq_ignore_ascii_case(name))
            .map(|a| a.value.as_str())
    }

    /// The child elements in order.
    pub fn elements(&self) -> impl Iterator<Item = &Self> {
        self.children.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            Node::Text(_) => None,
        })
    }

    /// The child elements of that name in order.
    pub fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Self> {
        self.elements().filter(move |element| element.is(name))
    }

    /// The first child element of that name.
    pub fn child(&self, name: &str) -> Option<&Self> {
        self.elements().find(|element| element.is(name))
    }

    /// The first run of text, to the letter; empty if there is none.
    pub fn text(&self) -> &str {
        let mut texts = self.children.iter().filter_map(|node| match node {
            Node::Text(text) => Some(text.as_str()),
            Node::Element(_) => None,
        });
        texts.next().unwrap_or_default()
    }

    /// The first run of text without white space at its ends: for numbers and other words of the protocol.
    pub fn word(&self) -> &str {
        self.text().trim_matches(chars::is_space)
    }
}

impl PartialEq for Element {
    fn eq(&self, other: &Self) -> bool {
        let mut pending = vec![(self, other)];
        while let Some((one, two)) = pending.pop() {
            if one.name != two.name || one.attributes != two.attributes || one.children.len() != two.children.len() {
                return false;
            }
            for pair in one.children.iter().zip(&two.children) {
                match pair {
                    (Node::Element(a), Node::Element(b)) => pending.push((a, b)),
                    (Node::Text(a), Node::Text(b)) if a == b => {}
                    (Node::Element(_) | Node::Text(_), Node::Element(_) | Node::Text(_)) => return false,
                }
            }
        }
        true
    }
}

impl Eq for Element {}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "<{}> ({} attributes, {} children)",
            self.name,
            self.attributes.len(),
            self.children.len()
        )
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(element) => element.fmt(f),
            Self::Text(text) => write!(f, "text of {} octets", text.len()),
        }
    }
}

impl Drop for Element {
    fn drop(&mut self) {
        let mut pending = std::mem::take(&mut self.children);
        while let Some(node) = pending.pop() {
            match node {
                Node::Element(mut element) => pending.append(&mut element.children),
                Node::Text(mut text) => text.zeroize(),
            }
        }
    }
}
