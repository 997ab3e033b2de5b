//! Tree to text.

use super::{Element, Node, chars};

/// Writes a document: declaration and tree, without white space of its own.
///
/// CDATA sections and comments are never written: some clients read only the first text node of an element. Parsing
/// the result gives an equal tree, as long as [`is_text`](super::is_text) holds for every text in it and no two runs
/// of text follow each other; a character that XML cannot carry becomes U+FFFD.
pub fn write(root: &Element) -> String {
    // Roomy, so that a request with a password in it is written without leaving outgrown buffers behind.
    let mut out = String::with_capacity(4096);
    out.push_str(r#"<?xml version="1.0" encoding="UTF-8"?>"#);
    let mut open = Vec::new();
    start(root, &mut out, &mut open);
    while let Some((element, mut rest)) = open.pop() {
        match rest.next() {
            None => {
                out.push_str("</");
                out.push_str(&element.name);
                out.push('>');
            }
            Some(node) => {
                open.push((element, rest));
                match node {
                    Node::Text(text) => escape(text, &mut out, Place::Text),
                    Node::Element(child) => start(child, &mut out, &mut open),
                }
            }
        }
    }
    out
}

/// Writes a start tag, or an empty element whole; the former is put on the stack to be closed later.
fn start<'a>(element: &'a Element, out: &mut String, open: &mut Vec<(&'a Element, std::slice::Iter<'a, Node>)>) {
    out.push('<');
    out.push_str(&element.name);
    for attribute in &element.attributes {
        out.push(' ');
        out.push_str(&attribute.name);
        out.push_str("=\"");
        escape(&attribute.value, out, Place::Attribute);
        out.push('"');
    }
    if element.children.is_empty() {
        out.push_str("/>");
    } else {
        out.push('>');
        open.push((element, element.children.iter()));
    }
}

/// Where a text stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Text,
    Attribute,
}

fn escape(text: &str, out: &mut String, place: Place) {
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\r' => out.push_str("&#13;"),
            '"' if place == Place::Attribute => out.push_str("&quot;"),
            '\n' if place == Place::Attribute => out.push_str("&#10;"),
            '\t' if place == Place::Attribute => out.push_str("&#9;"),
            c if chars::is_char(c) => out.push(c),
            _ => out.push(char::REPLACEMENT_CHARACTER),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Limits, parse};
    use super::*;

    const DECLARATION: &str = r#"<?xml version="1.0" encoding="UTF-8"?>"#;

    #[test]
    fn a_tree_is_written_on_one_line() {
        let mut root = Element::new("broker").with_attribute("version", "15.0");
        root.push(Element::new("set-locale").with(Element::new("result").with_text("ok")));
        root.push_leaf("empty", "");
        let expected = r#"<broker version="15.0"><set-locale><result>ok</result></set-locale><empty/></broker>"#;
        assert_eq!(write(&root), format!("{DECLARATION}{expected}"));
    }

    #[test]
    fn every_character_of_a_text_survives_the_round_trip() {
        let text = " \t\r\n&<>\"']]>&amp;<![CDATA[x]]><!-- y -->äöü🦀\u{85}\u{2028}\u{7f} ";
        let root = Element::new("a").with_attribute("b", text).with_text(text);
        let written = write(&root);
        assert!(!written.contains("<![CDATA[") && !written.contains("<!--") && !written.contains("]]>"));
        assert!(!written.contains('\r'));
        assert!(parse(&written, &Limits::default()).unwrap() == root);
    }

    #[test]
    fn a_character_that_xml_cannot_carry_is_replaced() {
        let root = Element::new("a").with_text("x\0y\u{ffff}z");
        assert_eq!(write(&root), format!("{DECLARATION}<a>x\u{fffd}y\u{fffd}z</a>"));
    }

    #[test]
    fn a_deep_tree_is_written_compared_and_dropped_without_recursion() {
        let deep = || (0..300_000).fold(Element::new("a").with_text("x"), |tree, _| Element::new("a").with(tree));
        let root = deep();
        assert_eq!(write(&root).len(), DECLARATION.len() + 300_001 * 7 + 1);
        assert!(root == deep());
    }

    #[test]
    fn a_tree_is_printed_without_its_texts() {
        let root = Element::new("value").with_attribute("x", "geheim").with_text("hunter2");
        let printed = format!("{root:?} {:?}", root.children);
        assert!(!printed.contains("hunter2") && !printed.contains("geheim"), "{printed}");
    }
}
