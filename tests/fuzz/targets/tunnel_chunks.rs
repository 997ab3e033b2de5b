//! The client's bytes in a tunnel: the chunk decoder, and the server's session before and after its opening.

#![no_main]

use std::time::{Duration, Instant};

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use portcullis::tunnel::https::chunk::{Chunk, Decoder, Payload};
use portcullis::tunnel::https::message::Message;
use portcullis::tunnel::https::session::{Event, Limits, Session, Terms};
use portcullis::types::Secret;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let piece = usize::from(piece) + 1;
    decode(stream, piece);
    feed(opened(), stream, piece);
    feed(started(), stream, piece);
});

/// Whatever is read is written and read again as the same.
fn decode(stream: &[u8], piece: usize) {
    let mut decoder = Decoder::new();
    for part in stream.chunks(piece) {
        let mut part = Bytes::copy_from_slice(part);
        loop {
            match decoder.decode(&mut part) {
                Ok(Some(chunk)) => {
                    let again = Decoder::new().decode(&mut chunk.encode());
                    assert_eq!(again, Ok(Some(chunk)));
                }
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fn feed(mut session: Session, stream: &[u8], piece: usize) {
    let mut now = Instant::now();
    for part in stream.chunks(piece) {
        now += Duration::from_millis(20);
        session.tick(now);
        let mut part = Bytes::copy_from_slice(part);
        loop {
            match session.receive(&mut part, now) {
                Ok(Some(event)) => act(&mut session, event),
                Ok(None) => break,
                Err(violation) => {
                    session.stop(violation.close_reason().words());
                    break;
                }
            }
        }
        // Half of what is due, so that chunks wait in it too.
        session.transmit(now);
        session.check_invariants();
    }
    while session.transmit(now).is_some() {}
    assert!(session.is_drained());
}

fn act(session: &mut Session, event: Event) {
    match event {
        Event::Raise { channel, port_name } => {
            assert_eq!(&*port_name, "rdp-1", "a port that was never listed");
            session.raised(channel, if channel % 3 == 0 { Err("no answer".to_owned()) } else { Ok(()) });
        }
        Event::Data { channel, octets } => {
            assert!(!octets.is_empty());
            if session.is_window_open() {
                session.send(channel, Payload::copy_from(&octets));
            }
        }
        Event::Lower { channel } => session.lower(channel),
        Event::Ready | Event::Listening { .. } | Event::Unlistened { .. } | Event::Abandon { .. } => {}
    }
}

fn opened() -> Session {
    let terms = Terms {
        connection_id: Secret::new("k3y"),
        reconnect_secret: Secret::new("r1"),
        lost_contact: Duration::from_secs(60),
        reconnect_window: Duration::from_secs(300),
        session_left: Duration::from_secs(36_000),
        limits: Limits::default(),
    };
    Session::new(terms, Instant::now())
}

fn started() -> Session {
    let mut session = opened();
    let now = Instant::now();
    let init = Message::Init { kind: "C".to_owned(), version: [3, 1, 4], cid: "77".to_owned() };
    let start = Message::Start {
        address: String::new(),
        host: String::new(),
        cap_id: Secret::new("k3y"),
        kind: "C".to_owned(),
        clock: 0,
        half_close: true,
    };
    let chunks = [init.to_chunk(1, None), start.to_chunk(2, None)];
    let mut bytes: Bytes = chunks.iter().flat_map(Chunk::encode).collect();
    assert_eq!(session.receive(&mut bytes, now), Ok(Some(Event::Ready)));
    session.listen("rdp-1", ("vm7", 3389), false).expect("a ready session lists a port");
    session
}
