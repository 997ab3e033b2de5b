//! What passes, and how it ends.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use socket2::SockRef;

use crate::rig::{Sql, breaks, closed, connect, connect_tls, descriptors, echoes, ends, of_sql, patiently};
use crate::support::{PATIENCE, Target, read_all};

const MEBIBYTE: usize = 1 << 20;

/// Bytes of which no two stretches are alike.
fn octets(count: usize) -> Vec<u8> {
    let step = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 24) as u8)
    };
    std::iter::repeat_n((), count)
        .scan(7_u32, |state, ()| step(state))
        .collect()
}

#[test]
fn a_mebibyte_passes_both_ways_at_the_same_time() {
    let target = Target::echo();
    let gateway = Sql::of(&[target.address]).start();
    let sent = octets(MEBIBYTE);
    let mut stream = connect(&gateway);
    let mut writer = stream.try_clone().unwrap();
    let back = std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(&sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        read_all(&mut stream)
    });
    assert!(back == sent, "{} bytes came back", back.len());
    let line = closed(&gateway, "completed");
    for (field, value) in [
        ("listener", "sql"),
        ("rule", "sql"),
        ("pool", "sql"),
        ("address", target.address.to_string().as_str()),
        ("client", stream.local_addr().unwrap().to_string().as_str()),
    ] {
        assert_eq!(line[field], value, "{line}");
    }
    assert_eq!(
        (line["received"].as_u64(), line["sent"].as_u64()),
        (Some(1 << 20), Some(1 << 20))
    );
    let counted = ["", "_opened_total", "_received_bytes_total", "_sent_bytes_total"];
    let counted = counted.map(|family| of_sql(&gateway, family).unwrap());
    assert_eq!(counted, [0, 1, 1 << 20, 1 << 20]);
}

#[test]
fn within_tls_it_passes_too_and_its_end_as_well() {
    let target = Target::echo();
    let gateway = Sql::of(&[target.address]).tls().start();
    let sent = octets(MEBIBYTE);
    let mut stream = connect_tls(&gateway, "db.test");
    // In turns, so that one thread will do.
    for piece in sent.chunks(16 * 1024) {
        stream.write_all(piece).unwrap();
        let mut back = vec![0; piece.len()];
        stream.read_exact(&mut back).unwrap();
        assert!(back == piece);
    }
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert_eq!(
        read_all(&mut stream),
        b"",
        "an end in order, with the word of TLS for it"
    );
    let line = closed(&gateway, "completed");
    assert_eq!(
        (&line["sni"], &line["tls"]),
        (&"db.test".into(), &"TLSv1_3".into()),
        "{line}"
    );
}

#[test]
fn an_answer_still_comes_after_the_client_has_ended() {
    let target = Target::new(|mut stream| {
        let question = read_all(&mut stream);
        let _ = stream.write_all(&question);
        let _ = stream.write_all(&octets(MEBIBYTE));
    });
    let sql = Sql::of(&[target.address]);
    let expected = [&b"question"[..], &octets(MEBIBYTE)].concat();

    let gateway = sql.start();
    let mut stream = connect(&gateway);
    stream.write_all(b"question").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut stream) == expected);
    closed(&gateway, "completed");

    let gateway = sql.tls().start();
    let mut stream = connect_tls(&gateway, "db.test");
    stream.write_all(b"question").unwrap();
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    assert!(read_all(&mut stream) == expected);
    closed(&gateway, "completed");
}

#[test]
fn a_client_goes_on_after_the_target_has_ended() {
    let (tell, told) = sync_channel(16);
    let target = Target::new(move |mut stream| {
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        tell.send(read_all(&mut stream)).unwrap();
    });
    let gateway = Sql::of(&[target.address]).start();
    let mut stream = connect(&gateway);
    assert_eq!(read_all(&mut stream), b"hello");
    let late = octets(MEBIBYTE);
    stream.write_all(&late).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert!(told.recv_timeout(PATIENCE).unwrap() == late);
    closed(&gateway, "completed");
}

#[test]
fn what_breaks_off_breaks_off_on_the_other_side() {
    let (tell, told) = sync_channel(16);
    let target = Target::new(move |mut stream| {
        let mut first = [0; 4];
        stream.read_exact(&mut first).unwrap();
        if &first == b"part" {
            stream.write_all(b"half of it").unwrap();
            let mut more = [0];
            stream.read_exact(&mut more).unwrap();
            SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            return;
        }
        stream.write_all(b"!").unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        tell.send(breaks(&mut stream)).unwrap();
    });
    let gateway = Sql::of(&[target.address]).start();

    let mut stream = connect(&gateway);
    stream.write_all(b"part").unwrap();
    let mut half = [0; 10];
    stream.read_exact(&mut half).unwrap();
    stream.write_all(b".").unwrap();
    assert!(breaks(&mut stream), "half of an answer must not look whole");
    closed(&gateway, "upstream_closed");

    let mut stream = connect(&gateway);
    stream.write_all(b"gone").unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).unwrap();
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(stream);
    assert!(told.recv_timeout(PATIENCE).unwrap(), "half of a question neither");
    closed(&gateway, "client_closed");
}

#[test]
fn silence_ends_a_passage_and_a_word_now_and_then_keeps_it() {
    let target = Target::echo();
    let gateway = Sql::of(&[target.address]).backend("idle_timeout = \"2 s\"").start();
    let (mut silent, mut talks) = (connect(&gateway), connect(&gateway));
    let begun = portcullis::clock::now();
    silent.set_nonblocking(true).unwrap();
    let mut byte = [0];
    while silent
        .read(&mut byte)
        .is_err_and(|cause| cause.kind() == std::io::ErrorKind::WouldBlock)
    {
        assert!(echoes(&mut talks));
        assert!(begun.elapsed() < PATIENCE, "it never ends");
    }
    assert!(begun.elapsed() > Duration::from_millis(1500), "{:?}", begun.elapsed());
    let line = closed(&gateway, "idle");
    assert_eq!(line["client"], silent.local_addr().unwrap().to_string().as_str());
    assert!(echoes(&mut talks));
}

#[test]
fn three_hundred_passages_leave_nothing_behind() {
    let target = Target::new(|mut stream| drop(read_all(&mut stream)));
    let gateway = Sql::of(&[target.address]).start();
    let mut first = connect(&gateway);
    first.shutdown(Shutdown::Write).unwrap();
    assert!(ends(&mut first));
    patiently("the first is gone", || of_sql(&gateway, "") == Some(0));
    let before = descriptors(&gateway);
    for _ in 0..300 {
        let mut stream = connect(&gateway);
        stream.write_all(b"question").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut stream), b"", "the target saw the end of it");
    }
    assert_eq!(target.dialled(), 301);
    patiently("all descriptors are closed", || descriptors(&gateway) <= before);
    patiently("none is counted as open", || of_sql(&gateway, "") == Some(0));
    assert_eq!(of_sql(&gateway, "_opened_total"), Some(301));
}
