//! What another process of the node says: the decoder of messages, and a store that takes its grants over.

#![no_main]

use std::time::Instant;

use libfuzzer_sys::fuzz_target;
use portcullis::config;
use portcullis::grant::Store;
use portcullis::node::handover::message::{Decoder, Message};

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let store = Store::new("gw-1".parse().expect("a name"), None, limits());
    let mut decoder = Decoder::default();
    for part in stream.chunks(usize::from(piece) + 1) {
        decoder.push(part);
        loop {
            match decoder.next_message() {
                Ok(Some(message)) => take(&store, &message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
});

/// Whatever is read is written and read again as the same.
fn take(store: &Store, message: &Message) {
    if let Ok(bytes) = message.encode() {
        let mut again = Decoder::default();
        again.push(&bytes);
        assert_eq!(again.next_message().as_ref(), Ok(&Some(message.clone())));
    }
    if let Message::Grants { grants } = message {
        let now = Instant::now();
        let restored = store.restore(grants, now, now);
        assert!(restored <= grants.len());
        assert!(store.snapshot(now).len() >= restored);
        store.sweep(now);
    }
}

fn limits() -> config::Session {
    let second = std::time::Duration::from_secs(1);
    config::Session {
        lifetime: second * 3600,
        idle: None,
        heartbeat: second * 60,
        login_timeout: second * 300,
        first_use: second * 60,
        max: 9,
        per_user: 9,
        connections: 9,
    }
}
