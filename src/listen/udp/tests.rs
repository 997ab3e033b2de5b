use std::future::poll_fn;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;

use super::*;

#[tokio::test]
async fn a_client_is_answered_from_the_address_to_which_it_sent() {
    for bind in ["127.0.0.1:0", "0.0.0.0:0"] {
        let shared = Shared::new(bind_udp(bind.parse().unwrap()).unwrap()).unwrap();
        let to = SocketAddr::new("127.0.0.3".parse().unwrap(), shared.local().port());
        let to = if bind.starts_with('0') { to } else { shared.local() };
        let client = client(to);
        client.send(b"hello").unwrap();
        let mut seen = Vec::new();
        poll_fn(|cx| {
            poll_batch(
                |buffers, metas| shared.poll_recv(cx, buffers, metas),
                |received| seen.extend(received.iter().map(|one| (one.from, one.to))),
            )
        })
        .await
        .unwrap();
        assert_eq!(seen, [(client.local_addr().unwrap(), Some(to.ip()))]);
        let way = shared.way_to(client.local_addr().unwrap(), shared.reached(Some(to.ip())));
        assert_eq!(way.send(b"answer").sent, 1);
        let long = vec![5; 6 * 100];
        let meta = RecvMeta {
            len: 600,
            stride: 100,
            ..RecvMeta::default()
        };
        assert_eq!(way.send_all(&[Received::new(&meta, &long)]).sent, 6);
        let mut buffer = [0; 1000];
        assert_eq!(
            client.recv(&mut buffer).unwrap(),
            6,
            "a connected socket takes it from there only"
        );
        for _ in 0..6 {
            assert_eq!(client.recv(&mut buffer).unwrap(), 100);
        }
    }
}

#[tokio::test]
async fn datagrams_that_the_system_joined_stay_apart() {
    // What `sender` puts into one buffer goes to `from`, and on to `far`, as single datagrams.
    let far = UdpSocket::bind("127.0.0.1:0").unwrap();
    far.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let to = Connected::towards(far.local_addr().unwrap()).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let from = Connected::towards(sender.local_addr().unwrap()).unwrap();
    let state = UdpSocketState::new((&sender).into()).unwrap();
    for (octets, size) in [
        (12_000, 1200),
        (11_901, 1200),
        (1201, 1200),
        (40, 1),
        (3_600, 1200),
        (1, 1200),
        (0, 1200),
    ] {
        let bytes: Vec<u8> = (0..octets).map(|n| (n / size) as u8).collect();
        let transmit = Transmit {
            destination: from.io.local_addr().unwrap(),
            ecn: None,
            contents: &bytes,
            segment_size: Some(size),
            src_ip: None,
        };
        state.try_send((&sender).into(), &transmit).unwrap();
        let expected: Vec<&[u8]> = if octets == 0 {
            vec![&[]]
        } else {
            bytes.chunks(size).collect()
        };
        let mut passed = 0;
        while passed < expected.len() {
            poll_fn(|cx| from.poll_receive(cx, |received| passed += to.way().send_all(received).sent))
                .await
                .unwrap();
        }
        let mut buffer = [0; 65_536];
        for datagram in expected {
            let length = far.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], datagram);
        }
    }
}

#[tokio::test]
async fn a_port_where_nobody_listens_is_said_to_be_one() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let socket = Connected::towards(gone).unwrap();
    socket.way().send(b"hello");
    socket.is_refused().await;
    socket.way().send(b"again");
    socket.is_refused().await;
}

#[test]
fn a_device_that_cannot_segment_costs_one_try_and_no_datagram() {
    for errno in [Errno::IO, Errno::INVAL] {
        let (mut singles, tries) = (Vec::new(), AtomicUsize::new(0));
        let bytes = vec![7; 100 * 1200 + 5];
        let sent = send_cut(
            &bytes,
            1200,
            64,
            |_| {
                tries.fetch_add(1, Ordering::Relaxed);
                Err(errno.into())
            },
            |datagram| {
                singles.push(datagram.len());
                Sent {
                    sent: 1,
                    ..Sent::default()
                }
            },
        );
        assert_eq!(tries.into_inner(), 1);
        assert!(sent.offload_failed && sent.sent == 101 && sent.lost == 0, "{sent:?}");
        assert_eq!((singles.len(), singles[100]), (101, 5));
    }
}

proptest! {
    /// However datagrams are joined on their way in, what goes out is the same datagrams in the same order.
    #[test]
    fn no_datagram_is_joined_to_another(
        buffers in proptest::collection::vec((1_usize..50, 1_usize..40, 0_usize..40), 0..20),
        most in 1_usize..70,
    ) {
        let mut expected = Vec::new();
        let mut passed = Vec::new();
        for (size, whole, last) in buffers {
            let bytes: Vec<u8> = (0..size * whole + last.min(size)).map(|n| n as u8).collect();
            let received = Received::new(
                &RecvMeta { len: bytes.len(), stride: size, ..RecvMeta::default() },
                &bytes,
            );
            expected.extend(received.datagrams().map(<[u8]>::to_vec));
            prop_assert_eq!(received.datagrams().count(), received.count());
            let parts = RefCell::new(Vec::new());
            send_cut(
                &bytes,
                size,
                most,
                |part| {
                    parts.borrow_mut().extend(part.chunks(size).map(<[u8]>::to_vec));
                    Ok(())
                },
                |datagram| {
                    parts.borrow_mut().push(datagram.to_vec());
                    Sent::default()
                },
            );
            passed.extend(parts.into_inner());
        }
        prop_assert_eq!(passed, expected);
    }

    /// Runs of single datagrams end where sizes change, and an empty one is never joined.
    #[test]
    fn runs_are_of_one_size(lengths in proptest::collection::vec(0_usize..4, 1..20)) {
        let bytes = [0; 10];
        let received: Vec<_> = lengths
            .iter()
            .map(|length| Received::new(&RecvMeta { len: *length, stride: *length, ..RecvMeta::default() }, &bytes))
            .collect();
        let run = run_of(&received);
        prop_assert!(run >= 1 && run <= lengths.len());
        prop_assert!(lengths[..run - 1].iter().all(|length| *length == lengths[0]));
        prop_assert!(run == 1 || (1..=lengths[0]).contains(&lengths[run - 1]));
    }
}

fn client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(to).unwrap();
    socket
}
