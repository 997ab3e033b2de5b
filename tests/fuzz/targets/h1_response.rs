//! The head of an answer as targets of HTTP/1.x send it.

#![no_main]

use bytes::Bytes;
use http::Method;
use libfuzzer_sys::fuzz_target;
use portcullis::wire::h1::framing::Framing;
use portcullis::wire::h1::head::{Scan, response};
use portcullis::wire::h1::render::{put_fields, put_status};

fuzz_target!(|data: &[u8]| {
    let Ok(Some(end)) = Scan::default().end(data) else { return };
    let bytes = Bytes::copy_from_slice(&data[..end]);
    let to_head = response(&bytes, &Method::HEAD);
    let Ok(head) = response(&bytes, &Method::GET) else {
        assert!(to_head.is_err());
        return;
    };
    assert_eq!(to_head.expect("the method decides on the body alone").framing, Framing::None);
    let mut again = Vec::new();
    put_status(head.response.version(), head.response.status(), &mut again);
    put_fields(head.response.headers(), &mut again);
    again.extend_from_slice(b"\r\n");
    assert_eq!(Scan::default().end(&again), Ok(Some(again.len())));
    let again = response(&Bytes::from(again), &Method::GET).expect("what was written can be read");
    assert_eq!((again.framing, again.persistent), (head.framing, head.persistent));
    assert_eq!(again.response.headers(), head.response.headers());
});
