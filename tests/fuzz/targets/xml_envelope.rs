//! Any octets as a request and as a reply: no panic, and what was read is written and read as the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::control::encoding::decode;
use portcullis::control::envelope::{Reply, Request, Version};
use portcullis::control::operation::{Kind, Operation};
use portcullis::control::xml::{Limits, parse, write};

fuzz_target!(|body: &[u8]| {
    let limits = Limits::default();
    // Escapes make a document longer.
    let wide = Limits {
        bytes: usize::MAX,
        ..limits
    };
    if let Ok(root) = decode(body)
        .map_err(drop)
        .and_then(|text| parse(&text, &limits).map_err(drop))
    {
        assert!(parse(&write(&root), &wide).unwrap() == root);
    }
    if let Ok(request) = Request::read(body, &limits) {
        let written = request.write().unwrap();
        // An invalid operation is written without what is wrong with it.
        if !request
            .operations
            .iter()
            .any(|it| matches!(it, Operation::Invalid { .. }))
        {
            assert_eq!(
                Request::read(written.as_bytes(), &wide).unwrap().write().unwrap(),
                written
            );
        }
    }
    if let Ok(reply) = Reply::read(body, &limits) {
        let written = reply.write(Version::NEWEST);
        // An unknown answer may come to have the name of a known one.
        let known = match &reply {
            Reply::Answers(answers) => answers.iter().all(|it| !matches!(it.kind, Kind::Unknown(_))),
            Reply::Failed(_) => true,
        };
        if known {
            assert_eq!(
                Reply::read(written.as_bytes(), &wide).unwrap().write(Version::NEWEST),
                written
            );
        }
    }
});
