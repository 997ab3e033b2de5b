//! The first bytes of a connection: what decides between TLS and plain HTTP, and the TLS library's reading of them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use portcullis::secure::Opening;
use rustls::server::Acceptor;

fuzz_target!(|data: &[u8]| {
    let _ = Opening::of(data);
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
                let _ = (hello.server_name(), hello.signature_schemes(), hello.alpn().map(Iterator::count));
                return;
            }
            Err(_) => return,
        }
    }
});
