//! The first bytes of a connection: what decides between TLS and plain HTTP, and the TLS library's reading of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::secure::{Offer, Opening};
use rustls::server::Acceptor;

fuzz_target!(|data: &[u8]| {
    let _ = Opening::of(data);
    let offer = Offer::of(data);
    let _ = offer.to_string();
    let mut acceptor = Acceptor::default();
    let mut rest = data;
    while !rest.is_empty() {
        match acceptor.read_tls(&mut rest) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match acceptor.accept() {
            Ok(None) => {}
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                // A hello in one record, as all but odd clients send it, is read by both alike.
                let read: Vec<u16> = hello.cipher_suites().iter().map(|suite| u16::from(*suite)).collect();
                assert!(offer.suites().is_empty() || offer.suites() == read, "{offer}");
                let _ = (hello.server_name(), hello.signature_schemes(), hello.alpn().map(Iterator::count));
                return;
            }
            Err(_) => return,
        }
    }
});
