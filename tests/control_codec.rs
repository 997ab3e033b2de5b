//! Properties of the control codec: whatever one end writes, the other reads as the same, and whatever arrives, the
//! codec neither panics nor exceeds its limits.

#[path = "control_codec/strategies.rs"]
mod strategies;

use std::fmt::Write;

use portcullis::control::encoding::decode;
use portcullis::control::envelope::{Reply, Request, Version};
use portcullis::control::operation::Operation;
use portcullis::control::screen::{Screen, Submission};
use portcullis::control::xml::{Element, Limits, Node, is_text, parse, write};
use proptest::prelude::*;

use strategies::{answers, operations, screen, submission, tree, xml_text};

proptest! {
    #[test]
    fn a_tree_survives_its_text(tree in tree()) {
        let parsed = parse(&write(&tree), &Limits::default()).unwrap();
        prop_assert!(parsed == tree);
    }

    #[test]
    fn a_tree_is_the_same_in_each_encoding(tree in tree()) {
        let document = write(&tree);
        for body in encodings(&document) {
            let parsed = parse(&decode(&body).unwrap(), &Limits::default()).unwrap();
            prop_assert!(parsed == tree);
        }
    }

    #[test]
    fn a_request_survives_its_text(operations in operations()) {
        let request = Request { version: Version::NEWEST, operations };
        let body = request.write().unwrap();
        prop_assert_eq!(Request::read(body.as_bytes(), &Limits::default()).unwrap(), request);
    }

    #[test]
    fn a_request_to_an_older_server_stays_readable(operations in operations(), version in versions()) {
        let request = Request { version, operations };
        let body = request.write().unwrap();
        let read = Request::read(body.as_bytes(), &Limits::default()).unwrap();
        let kinds = |request: &Request| request.operations.iter().map(|it| it.kind()).collect::<Vec<_>>();
        prop_assert_eq!(kinds(&read), kinds(&request));
        prop_assert_eq!(read.write().unwrap(), body);
    }

    #[test]
    fn a_reply_survives_its_text(answers in answers(), failure in strategies::failure()) {
        for reply in [Reply::Answers(answers), Reply::Failed(failure)] {
            let body = reply.write(Version::NEWEST);
            prop_assert_eq!(Reply::read(body.as_bytes(), &Limits::default()).unwrap(), reply);
        }
    }

    #[test]
    fn a_reply_to_an_older_client_stays_readable(answers in answers(), version in versions()) {
        let body = Reply::Answers(answers).write(version);
        let read = Reply::read(body.as_bytes(), &Limits::default()).unwrap();
        prop_assert_eq!(read.write(version), body);
    }

    #[test]
    fn a_screen_and_its_submission_survive_their_text(screen in screen(), submission in submission()) {
        let reread = |element: Element| parse(&write(&element), &Limits::default()).unwrap();
        prop_assert_eq!(Screen::read(&reread(screen.write())).unwrap(), screen);
        prop_assert_eq!(Submission::read(&reread(submission.write())).unwrap(), submission);
    }

    #[test]
    fn any_text_that_xml_can_carry_arrives_to_the_letter(text in xml_text(), cdata in any::<bool>()) {
        let inside = if cdata {
            format!("<![CDATA[{}]]>", text.replace('\r', "").replace("]]>", "]]]]><![CDATA[>"))
        } else {
            text.chars().fold(String::new(), |mut out, c| {
                write!(out, "&#{};", u32::from(c)).unwrap();
                out
            })
        };
        let root = parse(&format!("<a>{inside}</a>"), &Limits::default()).unwrap();
        let expected = if cdata { text.replace('\r', "") } else { text };
        prop_assert_eq!(root.text(), expected);
    }

    #[test]
    fn arbitrary_octets_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..512)) {
        let _ = Request::read(&body, &Limits::default());
        let _ = Reply::read(&body, &Limits::default());
    }

    #[test]
    fn what_looks_like_xml_is_read_or_refused_within_limits(text in strategies::near_xml(), limits in limits()) {
        if let Ok(root) = parse(&text, &limits) {
            prop_assert!(is_within(&root, &limits));
            // What was read can be written, and is then read as the same.
            let wide = Limits { bytes: usize::MAX, ..limits };
            prop_assert!(parse(&write(&root), &wide).unwrap() == root);
        }
    }

    #[test]
    fn a_mutilated_request_is_read_or_refused(
        operations in operations(), place in any::<prop::sample::Index>(), octet in any::<u8>(), cut in any::<bool>(),
    ) {
        let request = Request { version: Version::NEWEST, operations };
        let mut body = request.write().unwrap().as_bytes().to_vec();
        let place = place.index(body.len());
        if cut {
            body.truncate(place);
        } else {
            body[place] = octet;
        }
        if let Ok(read) = Request::read(&body, &Limits::default()) {
            read.write().unwrap();
        }
        let _ = Reply::read(&body, &Limits::default());
    }
}

/// The seeds of the fuzz target are examples of everything that known clients and servers send, and of a few things
/// that are refused.
#[test]
fn every_seed_of_the_fuzz_target_is_what_its_name_says() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/corpus/xml_envelope");
    for seed in std::fs::read_dir(folder).unwrap() {
        let seed = seed.unwrap();
        let name = seed.file_name().into_string().unwrap();
        let body = std::fs::read(seed.path()).unwrap();
        let limits = Limits::default();
        match name.as_str() {
            "client_bug" | "doctype" | "markup" => assert!(Request::read(&body, &limits).is_err(), "{name}"),
            name if name.starts_with("reply_") => assert!(Reply::read(&body, &limits).is_ok(), "{name}"),
            name => {
                let request = Request::read(&body, &limits).unwrap_or_else(|refused| panic!("{name}: {refused}"));
                let invalid = |operation: &Operation| matches!(operation, Operation::Invalid { .. });
                assert!(!request.operations.iter().any(invalid), "{name}");
            }
        }
    }
}

/// The document as each encoding that can hold it writes it.
fn encodings(document: &str) -> Vec<Vec<u8>> {
    let bare = document
        .strip_prefix(r#"<?xml version="1.0" encoding="UTF-8"?>"#)
        .unwrap_or(document);
    let declared = |name: &str| format!("<?xml version=\"1.0\" encoding=\"{name}\"?>{bare}");
    let little = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let big = |text: &str| text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>();
    let mut bodies = vec![
        bare.as_bytes().to_vec(),
        document.as_bytes().to_vec(),
        format!("\u{feff}{document}").into_bytes(),
        little(&format!("\u{feff}{bare}")),
        big(&format!("\u{feff}{bare}")),
        little(&format!("\u{feff}{}", declared("utf-16"))),
        big(&declared("UTF-16BE")),
        little(&declared("UTF-16LE")),
    ];
    let latin1 = declared("ISO-8859-1")
        .chars()
        .map(|c| u8::try_from(u32::from(c)).ok())
        .collect::<Option<_>>();
    bodies.extend(latin1);
    if bare.is_ascii() {
        bodies.push(declared("US-ASCII").into_bytes());
    }
    bodies
}

fn is_within(root: &Element, limits: &Limits) -> bool {
    let mut pending = vec![(root, 1)];
    let (mut elements, mut attributes) = (0, 0);
    while let Some((element, depth)) = pending.pop() {
        elements += 1;
        attributes += element.attributes.len();
        let values_fit = element
            .attributes
            .iter()
            .all(|it| it.value.len() <= limits.text && is_text(&it.value));
        let texts_fit = element.children.iter().all(|node| match node {
            Node::Text(text) => text.len() <= limits.text && is_text(text),
            Node::Element(_) => true,
        });
        if depth > limits.depth || element.attributes.len() > limits.attributes || !values_fit || !texts_fit {
            return false;
        }
        pending.extend(element.elements().map(|child| (child, depth + 1)));
    }
    elements <= limits.elements && attributes <= limits.total_attributes
}

fn versions() -> impl Strategy<Value = Version> {
    prop::sample::select(vec![
        Version::V1_0,
        Version::V2_0,
        Version::V4_5,
        Version::V9_0,
        Version::V14_0,
    ])
}

fn limits() -> impl Strategy<Value = Limits> {
    (1..400usize, 1..6usize, 1..12usize, 0..4usize, 0..6usize, 0..20usize).prop_map(
        |(bytes, depth, elements, attributes, total_attributes, text)| Limits {
            bytes,
            depth,
            elements,
            attributes,
            total_attributes,
            text,
        },
    )
}
