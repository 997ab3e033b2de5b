use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use http::HeaderMap;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use super::*;
use crate::config::web::{Backend, BackendTls, BackendVersion};
use crate::upstream::web::{Backends, Wanted, Way};
use crate::wire::Gone;

#[tokio::test]
async fn a_request_goes_out_and_its_answer_comes_back() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        for _ in 0..2 {
            let head = read_head(&mut socket).await;
            assert_eq!(head, "GET /a HTTP/1.1\r\nHost: shop.test\r\n\r\n");
            socket
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nok")
                .await
                .unwrap();
        }
        socket
    };
    let client = async {
        let first = rig.get("/a").await;
        let second = rig.get("/a").await;
        (first, second)
    };
    let (_socket, (first, second)) = tokio::join!(target, client);
    let whole = ["head 200 Exact(2)", "last ok"];
    assert_eq!((first.told(), second.told()), (whole.to_vec(), whole.to_vec()));
    assert_eq!((first.sent, first.fault), (2, None));
}

#[tokio::test]
async fn a_head_does_not_wait_for_a_body_that_is_late() {
    let rig = Rig::start().await;
    let (told, mut flushed) = mpsc::channel(1);
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        flushed.recv().await.unwrap();
        socket.write_all(b"2\r\nok\r\n").await.unwrap();
        flushed.recv().await.unwrap();
        socket.write_all(b"0\r\n\r\n").await.unwrap();
    };
    let client = async {
        let mut sink = Client {
            tells: Some(told),
            ..Client::default()
        };
        rig.send(&get("/"), Body::none(), &mut sink, LIMITS).await
    };
    let ((), passed) = tokio::join!(target, client);
    assert_eq!(passed.told(), ["head 200 Unknown", "flush", "data ok", "finish"]);
}

#[tokio::test]
async fn bodies_pass_both_ways_at_the_same_time() {
    let rig = Rig::start().await;
    let (mut send, body) = Body::streamed(Length::Unknown);
    let (told, mut heard) = mpsc::channel(8);
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            .await
            .unwrap();
        for _ in 0..3 {
            assert_eq!(read(&mut socket, 9).await, "4\r\nping\r\n");
            socket.write_all(b"4\r\npong\r\n").await.unwrap();
        }
        assert_eq!(read(&mut socket, 5).await, "0\r\n\r\n");
        socket.write_all(b"0\r\n\r\n").await.unwrap();
    };
    let sender = async {
        for _ in 0..3 {
            send.data("ping").await;
            while heard.recv().await.as_deref() != Some("data pong") {}
        }
        drop(send);
    };
    let client = async {
        let mut sink = Client {
            tells: Some(told),
            ..Client::default()
        };
        rig.send(&post("/"), body, &mut sink, LIMITS).await
    };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!((passed.fault, passed.received, passed.sent), (None, 12, 12));
    assert_eq!(rig.idle(), 1);
}

#[tokio::test]
async fn an_answer_before_the_body_goes_straight_through() {
    let rig = Rig::start().await;
    let (_send, body) = Body::streamed(Length::Exact(1_000_000));
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nno!")
            .await
            .unwrap();
        assert_eq!(
            socket.read(&mut [0; 16]).await.unwrap(),
            0,
            "the connection is not used again"
        );
    };
    let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
    let ((), passed) = tokio::join!(target, client);
    assert_eq!(passed.told(), ["head 413 Exact(3)", "last no!"]);
}

#[tokio::test]
async fn the_continue_of_the_target_lets_the_body_go() {
    let rig = Rig::start().await;
    let (mut send, body) = Body::streamed(Length::Exact(3));
    let polled = body.polled.clone();
    let target = async {
        let mut socket = rig.accepted().await;
        assert!(read_head(&mut socket).await.contains("Expect: 100-continue\r\n"));
        assert!(!polled.load(Ordering::Relaxed), "the body is not asked for before");
        socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await.unwrap();
        assert_eq!(read(&mut socket, 3).await, "abc");
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let sender = async {
        send.data("abc").await;
    };
    let client = async { rig.send(&expecting(), body, &mut Client::default(), LIMITS).await };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!(passed.told(), ["inform 100", "head 200 Exact(0)", "finish"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_knows_no_expect_gets_the_body_after_a_second() {
    let rig = Rig::start().await;
    let (mut send, body) = Body::streamed(Length::Exact(3));
    let started = tokio::time::Instant::now();
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        assert_eq!(read(&mut socket, 3).await, "abc");
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let sender = async { send.data("abc").await };
    let client = async { rig.send(&expecting(), body, &mut Client::default(), LIMITS).await };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!(passed.told(), ["head 200 Exact(0)", "finish"]);
    assert_eq!(started.elapsed().as_secs(), 1);
}

#[tokio::test]
async fn a_refusal_before_the_body_needs_no_body() {
    let rig = Rig::start().await;
    let (_send, body) = Body::streamed(Length::Exact(3));
    let polled = body.polled.clone();
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let client = async { rig.send(&expecting(), body, &mut Client::default(), LIMITS).await };
    let ((), passed) = tokio::join!(target, client);
    assert_eq!(passed.told(), ["head 401 Exact(0)", "finish"]);
    assert!(!polled.load(Ordering::Relaxed));
}

#[tokio::test]
async fn informational_answers_pass_but_a_continue_that_nobody_waits_for() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let interims = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
        let answer = format!("{interims}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        socket.write_all(answer.as_bytes()).await.unwrap();
    };
    let ((), passed) = tokio::join!(target, rig.get("/"));
    assert_eq!(passed.told(), ["inform 103", "head 200 Exact(2)", "last ok"]);
}

#[tokio::test]
async fn a_flood_of_informational_answers_is_no_answer() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let flood = "HTTP/1.1 102 Processing\r\n\r\n".repeat(1000);
        let _ = socket.write_all(flood.as_bytes()).await;
    };
    let ((), passed) = tokio::join!(target, rig.get("/"));
    assert_eq!(passed.fault, Some(WebFault::UpstreamInvalid));
}

#[tokio::test(start_paused = true)]
async fn a_target_that_does_not_answer_is_told_from_a_client_that_does_not_send() {
    let rig = Rig::start().await;
    let started = tokio::time::Instant::now();
    let silent = rig.get("/").await;
    assert_eq!((silent.fault, silent.again), (Some(WebFault::UpstreamTimeout), false));
    assert_eq!(started.elapsed(), LIMITS.request);
    let (mut send, body) = Body::streamed(Length::Exact(100));
    send.data("some").await;
    let stalled = rig.send(&post("/"), body, &mut Client::default(), LIMITS).await;
    assert_eq!((stalled.fault, stalled.received), (Some(WebFault::ClientTimeout), 4));
    assert_eq!(started.elapsed(), 2 * LIMITS.request);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_goes_on_is_no_silence_of_the_target() {
    let rig = Rig::start().await;
    let (mut send, body) = Body::streamed(Length::Exact(4));
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        assert_eq!(read(&mut socket, 4).await, "slow");
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let sender = async {
        for part in ["s", "l", "o", "w"] {
            tokio::time::sleep(LIMITS.request - Duration::from_secs(1)).await;
            send.data(part).await;
        }
    };
    let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!(passed.fault, None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_stops_ends_after_the_idle_time() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
            .await
            .unwrap();
        assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0);
    };
    let ((), passed) = tokio::join!(target, rig.get("/"));
    assert_eq!(passed.fault, Some(WebFault::UpstreamTimeout));
    assert_eq!(passed.told(), ["head 200 Exact(9)", "data ok"]);
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_not_finished() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok")
            .await
            .unwrap();
    };
    let ((), passed) = tokio::join!(target, rig.get("/"));
    assert_eq!(passed.fault, Some(WebFault::UpstreamClosed));
    assert_eq!(passed.told(), ["head 200 Exact(9)", "data ok"]);
}

#[tokio::test]
async fn what_is_no_http_is_said_to_be_none() {
    let rig = Rig::start().await;
    for answer in [
        "SSH-2.0-OpenSSH\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n",
    ] {
        let target = async {
            let mut socket = rig.accepted().await;
            read_head(&mut socket).await;
            socket.write_all(answer.as_bytes()).await.unwrap();
        };
        let ((), passed) = tokio::join!(target, rig.get("/"));
        assert_eq!((passed.fault, passed.again), (Some(WebFault::UpstreamInvalid), false));
    }
}

#[tokio::test]
async fn only_what_may_be_sent_twice_is_sent_again_after_a_close() {
    let cases = [
        (get("/"), "", false, true),
        (post("/"), "", false, false),
        (get("/"), "", true, true),
        (method(Method::PUT), "", true, true),
        (method(Method::DELETE), "", true, true),
        (method(Method::PATCH), "", true, false),
        (post("/"), "", true, false),
        (post("/"), "body", true, false),
        (method(Method::PUT), "body", true, false),
    ];
    for (request, body, reused, again) in cases {
        let rig = Rig::start().await;
        let target = async {
            let mut socket = rig.accepted().await;
            if reused {
                read_head(&mut socket).await;
                socket
                    .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    .await
                    .unwrap();
            }
            read_head(&mut socket).await;
        };
        let client = async {
            if reused {
                rig.get("/").await;
            }
            rig.send(&request, Body::whole(body), &mut Client::default(), LIMITS)
                .await
        };
        let ((), passed) = tokio::join!(target, client);
        assert_eq!(passed.fault, Some(WebFault::UpstreamClosed));
        assert_eq!(passed.again, again, "{} {body:?} {reused}", request.method());
    }
}

#[tokio::test]
async fn nothing_is_sent_again_once_the_target_has_said_something() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
        read_head(&mut socket).await;
        socket.write_all(b"HTTP/1.1 2").await.unwrap();
    };
    let client = async {
        rig.get("/").await;
        rig.get("/").await
    };
    let ((), passed) = tokio::join!(target, client);
    assert_eq!((passed.fault, passed.again), (Some(WebFault::UpstreamClosed), false));
}

#[tokio::test]
async fn trailers_pass_both_ways() {
    let rig = Rig::start().await;
    let (mut send, body) = Body::streamed(Length::Unknown);
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        assert_eq!(read(&mut socket, 22).await, "2\r\nhi\r\n0\r\nX-Sum: 1\r\n\r\n");
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 2\r\n\r\n";
        socket.write_all(answer.as_bytes()).await.unwrap();
    };
    let sender = async {
        send.data("hi").await;
        send.trailers("x-sum", "1").await;
    };
    let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!(passed.told(), ["head 200 Unknown", "data ok", "finish x-sum: 2"]);
}

#[tokio::test]
async fn an_answer_to_head_leaves_the_connection_in_step() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 12345\r\n\r\n")
            .await
            .unwrap();
        read_head(&mut socket).await;
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            .await
            .unwrap();
    };
    let client = async {
        let request = method(Method::HEAD);
        let head = rig.send(&request, Body::none(), &mut Client::default(), LIMITS).await;
        (head, rig.get("/").await)
    };
    let ((), (head, get)) = tokio::join!(target, client);
    assert_eq!(head.told(), ["head 200 Exact(0)", "finish"]);
    assert_eq!(get.told(), ["head 200 Exact(2)", "last ok"]);
}

#[tokio::test]
async fn a_client_that_goes_takes_the_request_with_it() {
    let rig = Rig::start().await;
    let (leave, gone) = oneshot::channel();
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        leave.send(()).unwrap();
        assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0);
    };
    let client = async {
        let mut sink = Client {
            gone: Some(gone),
            ..Client::default()
        };
        rig.send(&get("/"), Body::none(), &mut sink, LIMITS).await
    };
    let ((), passed) = tokio::join!(target, client);
    assert_eq!((passed.fault, passed.again), (Some(WebFault::ClientClosed), false));
}

#[tokio::test]
async fn a_body_that_the_client_does_not_end_is_no_request() {
    for (fault, told) in [
        (BodyFault::BrokeOff, WebFault::ClientClosed),
        (BodyFault::Malformed, WebFault::InvalidRequest),
    ] {
        let rig = Rig::start().await;
        let (mut send, body) = Body::streamed(Length::Unknown);
        let (came, has_come) = oneshot::channel();
        let target = async {
            let mut socket = rig.accepted().await;
            read_head(&mut socket).await;
            assert_eq!(read(&mut socket, 9).await, "4\r\nsome\r\n");
            came.send(()).unwrap();
            let mut rest = String::new();
            socket.read_to_string(&mut rest).await.unwrap();
            assert_eq!(rest, "", "the body is not ended for it");
        };
        let sender = async {
            send.data("some").await;
            has_come.await.unwrap();
            send.0.send(Err(fault)).await.unwrap();
        };
        let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
        let ((), (), passed) = tokio::join!(target, sender, client);
        assert_eq!(passed.fault, Some(told));
    }
}

#[tokio::test]
async fn a_body_above_the_limit_is_refused_announced_or_not() {
    let rig = Rig::start().await;
    let limits = Limits {
        max_body: Some(3),
        ..LIMITS
    };
    let announced = rig
        .send(&post("/"), Body::whole("four"), &mut Client::default(), limits)
        .await;
    assert_eq!((announced.fault, announced.received), (Some(WebFault::BodyTooLarge), 0));
    let (mut send, body) = Body::streamed(Length::Unknown);
    send.data("abc").await;
    send.data("d").await;
    let streamed = rig.send(&post("/"), body, &mut Client::default(), limits).await;
    assert_eq!(streamed.fault, Some(WebFault::BodyTooLarge));
}

#[tokio::test]
async fn a_slow_client_does_not_hold_the_connection() {
    let rig = Rig::start().await;
    let (take, taken) = oneshot::channel();
    let target = async {
        let mut socket = rig.accepted().await;
        for _ in 0..2 {
            read_head(&mut socket).await;
            socket
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                .await
                .unwrap();
        }
    };
    let slow = async {
        let mut sink = Client {
            takes: Some(taken),
            ..Client::default()
        };
        rig.send(&get("/"), Body::none(), &mut sink, LIMITS).await
    };
    let fast = async {
        while rig.idle() == 0 {
            yield_now().await;
        }
        let passed = rig.get("/").await;
        take.send(()).unwrap();
        passed
    };
    let ((), slow, fast) = tokio::join!(target, slow, fast);
    assert_eq!((slow.fault, fast.fault), (None, None));
}

#[tokio::test]
async fn an_answer_that_nobody_wants_frees_the_connection_if_it_is_small() {
    for (length, freed) in [(2, 1), (200_000, 0)] {
        let rig = Rig::start().await;
        let target = async {
            let mut socket = rig.accepted().await;
            read_head(&mut socket).await;
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{}",
                "x".repeat(length)
            );
            let _ = socket.write_all(answer.as_bytes()).await;
        };
        let client = async {
            let leased = rig
                .way
                .lease(rig.address, Wanted::default(), clock::now())
                .await
                .unwrap();
            let (mut timer, mut body, mut sink) = (Timer::default(), Body::none(), Client::default());
            let answer = ask(leased, &get("/"), &mut body, &mut sink, LIMITS, &mut timer).await;
            answer.unwrap().discard().await;
        };
        tokio::join!(target, client);
        assert_eq!(rig.idle(), freed);
    }
}

#[tokio::test]
async fn a_large_body_passes_whole_each_way() {
    let rig = Rig::start().await;
    let size = 3 * 1024 * 1024 + 17;
    let (send, body) = Body::streamed(Length::Exact(size));
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let mut whole = vec![0; size as usize];
        socket.read_exact(&mut whole).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        socket.write_all(head.as_bytes()).await.unwrap();
        socket.write_all(&whole).await.unwrap();
    };
    let sender = async {
        let mut left = size as usize;
        while left > 0 {
            let part = left.min(40_000);
            send.0.send(Ok(Frame::Data(vec![b'x'; part].into()))).await.unwrap();
            left -= part;
        }
    };
    let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!((passed.fault, passed.received, passed.sent), (None, size, size));
}

#[tokio::test]
async fn a_large_body_passes_over_tls() {
    let made = crate::secure::self_signed(&["shop.test".to_owned()], clock::wall()).unwrap();
    let chain = vec![CertificateDer::from_pem_slice(made.chain.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(made.key.expose().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let rig = Rig::of(Backend {
        tls: Some(BackendTls {
            verify_name: false,
            verify_chain: false,
            ..BackendTls::default()
        }),
        ..Backend::default()
    })
    .await;
    let size = 1024 * 1024;
    let (send, body) = Body::streamed(Length::Exact(size));
    let target = async {
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let mut stream = acceptor.accept(rig.accepted().await).await.unwrap();
        read_head(&mut stream).await;
        let mut whole = vec![0; size as usize];
        stream.read_exact(&mut whole).await.unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(&whole).await.unwrap();
        stream.flush().await.unwrap();
        stream
    };
    let sender = async {
        for _ in 0..32 {
            send.0
                .send(Ok(Frame::Data(vec![b'x'; size as usize / 32].into())))
                .await
                .unwrap();
        }
    };
    let client = async { rig.send(&post("/"), body, &mut Client::default(), LIMITS).await };
    let (_stream, (), passed) = tokio::join!(target, sender, client);
    assert_eq!((passed.fault, passed.received, passed.sent), (None, size, size));
    assert_eq!(rig.idle(), 1);
}

#[tokio::test]
async fn an_answer_is_gathered_if_that_is_wanted_but_no_stream_of_events() {
    let limits = Limits {
        gather_answers: true,
        ..LIMITS
    };
    for (kind, told) in [
        ("text/html", vec!["head 200 Exact(4)", "data ab", "last cd"]),
        ("text/event-stream", vec!["head 200 Unknown", "data ab", "last cd"]),
    ] {
        let rig = Rig::start().await;
        let (tells, mut heard) = mpsc::channel(8);
        let target = async {
            let mut socket = rig.accepted().await;
            read_head(&mut socket).await;
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
            socket.write_all(format!("{head}2\r\nab\r\n").as_bytes()).await.unwrap();
            if kind == "text/event-stream" {
                while heard.recv().await.as_deref() != Some("data ab") {}
            } else {
                tokio::time::sleep(Duration::from_millis(1)).await;
                assert!(heard.try_recv().is_err());
            }
            socket.write_all(b"2\r\ncd\r\n0\r\n\r\n").await.unwrap();
        };
        let client = async {
            let mut sink = Client {
                tells: Some(tells),
                ..Client::default()
            };
            rig.send(&get("/"), Body::none(), &mut sink, limits).await
        };
        let ((), passed) = tokio::join!(target, client);
        assert_eq!(passed.told(), told);
    }
}

#[tokio::test]
async fn a_gathered_request_is_sent_with_its_length() {
    let rig = Rig::start().await;
    let (mut send, mut body) = Body::streamed(Length::Unknown);
    send.data("abc").await;
    send.data("def").await;
    drop(send);
    let mut timer = Timer::default();
    let mut gathered = gather(&mut body, &mut timer, LIMITS.request).await.unwrap();
    assert_eq!(gathered.length(), Length::Exact(6));
    let target = async {
        let mut socket = rig.accepted().await;
        assert!(read_head(&mut socket).await.contains("Content-Length: 6\r\n"));
        assert_eq!(read(&mut socket, 6).await, "abcdef");
        socket
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            .await
            .unwrap();
    };
    let client = async {
        let leased = rig
            .way
            .lease(rig.address, Wanted::default(), clock::now())
            .await
            .unwrap();
        let mut sink = Client::default();
        let answer = ask(leased, &post("/"), &mut gathered, &mut sink, LIMITS, &mut timer).await;
        assert_eq!(answer.unwrap().head.status(), 200);
    };
    tokio::join!(target, client);
}

#[tokio::test]
async fn after_101_bytes_pass_both_ways_until_both_have_ended() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\nearly";
        socket.write_all(answer).await.unwrap();
        assert_eq!(read(&mut socket, 4).await, "ping");
        socket.write_all(b"pong").await.unwrap();
        assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0);
    };
    let client = async {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let upgraded = rig.upgraded().await;
        let user = async {
            far.write_all(b"ping").await.unwrap();
            let mut all = [0; 9];
            far.read_exact(&mut all).await.unwrap();
            assert_eq!(&all, b"earlypong");
            far.shutdown().await.unwrap();
        };
        tokio::join!(upgraded.join(&mut near, LIMITS.idle, pending()), user).0
    };
    let ((), carried) = tokio::join!(target, client);
    assert_eq!((carried.received, carried.sent), (4, 9));
}

#[tokio::test(start_paused = true)]
async fn a_websocket_on_which_nothing_passes_is_closed() {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        socket.write_all(answer).await.unwrap();
        assert_eq!(socket.read(&mut [0; 16]).await.unwrap(), 0);
    };
    let client = async {
        let (mut near, _far) = tokio::io::duplex(1024);
        rig.upgraded().await.join(&mut near, LIMITS.idle, pending()).await
    };
    let ((), carried) = tokio::join!(target, client);
    assert_eq!(carried.reason, crate::fault::CloseReason::Idle);
}

/// What a client of a WebSocket reads to its end when it is over after the target has sent `sent` and sends `late` soon.
async fn read_when_over(sent: &'static [u8], late: &'static [u8]) -> Vec<u8> {
    let rig = Rig::start().await;
    let target = async {
        let mut socket = rig.accepted().await;
        read_head(&mut socket).await;
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n";
        socket.write_all(answer).await.unwrap();
        socket.write_all(sent).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        socket.write_all(late).await.unwrap();
        // It ends with the gateway's side.
        let _ = socket.read(&mut [0; 16]).await;
    };
    let client = async {
        let (mut near, mut far) = tokio::io::duplex(1024);
        let over = tokio::time::sleep(Duration::from_millis(100));
        let carried = rig.upgraded().await.join(&mut near, LIMITS.idle, over).await;
        assert_eq!(carried.reason, crate::fault::CloseReason::Drained);
        drop(near);
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        read
    };
    tokio::join!(target, client).1
}

#[tokio::test(start_paused = true)]
async fn a_websocket_that_is_over_is_closed_in_words_between_two_frames() {
    const GOODBYE: &[u8] = b"\x88\x11\x03\xe9node shuts down";
    assert_eq!(
        read_when_over(b"\x81\x02hi", b"").await,
        [b"\x81\x02hi", GOODBYE].concat()
    );
    assert_eq!(
        read_when_over(b"\x81\x02h", b"i\x81\x02ho").await[..4],
        *b"\x81\x02hi",
        "what has begun goes to its end"
    );
    assert_eq!(
        read_when_over(b"\x81\x02h", b"").await,
        b"\x81\x02h",
        "but not for ever"
    );
    let closed = b"\x88\x02\x03\xe8";
    assert_eq!(
        read_when_over(closed, b"").await,
        closed,
        "nothing follows the target's own"
    );
}

#[tokio::test]
async fn a_call_over_http2_has_its_trailers() {
    let rig = Rig::with(BackendVersion::Http2).await;
    let (mut send, body) = Body::streamed(Length::Unknown);
    let target = async {
        let mut connection = ::h2::server::handshake(rig.accepted().await).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let serve = async {
            assert_eq!(request.uri(), "http://shop.test/call");
            let mut body = request.into_body();
            let data = body.data().await.unwrap().unwrap();
            assert_eq!(data, "ask");
            let head = Response::builder()
                .header("content-type", "application/grpc")
                .body(())
                .unwrap();
            let mut answer = respond.send_response(head, false).unwrap();
            answer.send_data("reply".into(), false).unwrap();
            assert!(body.data().await.is_none());
            assert_eq!(body.trailers().await.unwrap().unwrap()["x-sum"], "1");
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", "0".parse().unwrap());
            answer.send_trailers(trailers).unwrap();
        };
        tokio::join!(serve, async { while connection.accept().await.is_some() {} });
    };
    let (tells, mut heard) = mpsc::channel(8);
    let user = async {
        send.data("ask").await;
        while heard.recv().await.as_deref() != Some("data reply") {}
        send.trailers("x-sum", "1").await;
    };
    let client = async {
        let mut sink = Client {
            tells: Some(tells),
            ..Client::default()
        };
        let passed = rig.send(&post("/call"), body, &mut sink, LIMITS).await;
        rig.close();
        passed
    };
    let ((), (), passed) = tokio::join!(target, user, client);
    assert_eq!(passed.fault, None);
    let told: Vec<_> = passed.told().into_iter().filter(|told| *told != "flush").collect();
    assert_eq!(told, ["head 200 Unknown", "data reply", "finish grpc-status: 0"]);
}

#[tokio::test]
async fn a_large_body_passes_over_http2() {
    let rig = Rig::with(BackendVersion::Http2).await;
    let size = 2 * 1024 * 1024;
    let (send, body) = Body::streamed(Length::Exact(size));
    let target = async {
        let mut connection = ::h2::server::handshake(rig.accepted().await).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let serve = async {
            assert_eq!(request.headers()["content-length"], size.to_string());
            let mut body = request.into_body();
            let mut answer = respond.send_response(Response::new(()), false).unwrap();
            while let Some(data) = body.data().await {
                let data = data.unwrap();
                body.flow_control().release_capacity(data.len()).unwrap();
                answer.send_data(data, false).unwrap();
            }
            answer.send_data(Bytes::new(), true).unwrap();
        };
        tokio::join!(serve, async { while connection.accept().await.is_some() {} });
    };
    let sender = async {
        for _ in 0..64 {
            send.0
                .send(Ok(Frame::Data(vec![b'x'; size as usize / 64].into())))
                .await
                .unwrap();
        }
    };
    let client = async {
        let passed = rig.send(&post("/"), body, &mut Client::default(), LIMITS).await;
        rig.close();
        passed
    };
    let ((), (), passed) = tokio::join!(target, sender, client);
    assert_eq!((passed.fault, passed.received, passed.sent), (None, size, size));
}

#[tokio::test]
async fn a_stream_that_was_refused_may_be_sent_again_whatever_its_method() {
    for (reason, again) in [
        (::h2::Reason::REFUSED_STREAM, true),
        (::h2::Reason::INTERNAL_ERROR, false),
    ] {
        let rig = Rig::with(BackendVersion::Http2).await;
        let target = async {
            let mut connection = ::h2::server::handshake(rig.accepted().await).await.unwrap();
            let (_request, mut respond) = connection.accept().await.unwrap().unwrap();
            respond.send_reset(reason);
            while connection.accept().await.is_some() {}
        };
        let client = async {
            let passed = rig.send(&post("/"), Body::none(), &mut Client::default(), LIMITS).await;
            rig.close();
            passed
        };
        let ((), passed) = tokio::join!(target, client);
        assert_eq!((passed.fault, passed.again), (Some(WebFault::UpstreamClosed), again));
    }
}

/// A target and the way to it.
struct Rig {
    listener: TcpListener,
    address: SocketAddr,
    backends: Backends,
    way: Arc<Way>,
}

/// What became of a request.
#[derive(Debug)]
struct Passed {
    told: Vec<String>,
    received: u64,
    sent: u64,
    fault: Option<WebFault>,
    again: bool,
}

impl Passed {
    fn told(&self) -> Vec<&str> {
        self.told.iter().map(String::as_str).collect()
    }
}

impl Rig {
    async fn start() -> Self {
        Self::with(BackendVersion::Http1).await
    }

    async fn with(version: BackendVersion) -> Self {
        let settings = Backend {
            version,
            ..Backend::default()
        };
        Self::of(settings).await
    }

    async fn of(settings: Backend) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let backends = BTreeMap::from([("shop".to_owned(), settings)]);
        let tasks = TaskTracker::new();
        let backends = Backends::load(&backends, &BTreeMap::new(), None, clock::wall(), &tasks).unwrap();
        Self {
            address: listener.local_addr().unwrap(),
            listener,
            way: backends.way(Some("shop")).clone(),
            backends,
        }
    }

    async fn accepted(&self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    async fn get(&self, target: &str) -> Passed {
        self.send(&get(target), Body::none(), &mut Client::default(), LIMITS)
            .await
    }

    async fn send(&self, request: &Request<()>, mut body: Body, sink: &mut Client, limits: Limits) -> Passed {
        let mut timer = Timer::default();
        let leased = self
            .way
            .lease(self.address, Wanted::default(), clock::now())
            .await
            .unwrap();
        match ask(leased, request, &mut body, sink, limits, &mut timer).await {
            Ok(mut answer) => {
                let head = std::mem::replace(&mut answer.head, Response::new(()));
                let relayed = answer.relay(head, sink).await;
                Passed {
                    told: sink.told.clone(),
                    received: relayed.received,
                    sent: relayed.sent,
                    fault: relayed.fault,
                    again: false,
                }
            }
            Err(unforwarded) => Passed {
                told: sink.told.clone(),
                received: unforwarded.received,
                sent: 0,
                fault: Some(unforwarded.fault),
                again: unforwarded.again,
            },
        }
    }

    async fn upgraded(&self) -> Upgraded {
        let request = Request::get("/")
            .header("host", "shop.test")
            .header("connection", "upgrade")
            .header("upgrade", "websocket");
        let leased = self
            .way
            .lease(self.address, Wanted::default(), clock::now())
            .await
            .unwrap();
        let (mut timer, mut body) = (Timer::default(), Body::none());
        let request = request.body(()).unwrap();
        let answer = ask(leased, &request, &mut body, &mut Client::default(), LIMITS, &mut timer).await;
        let answer = answer.unwrap();
        assert!(answer.is_upgrade());
        answer.upgrade().unwrap()
    }

    fn idle(&self) -> usize {
        self.way.idle()
    }

    fn close(&self) {
        self.backends.close();
    }
}

/// The body of a client's request.
struct Body {
    length: Length,
    frames: mpsc::Receiver<Result<Frame, BodyFault>>,
    polled: Arc<AtomicBool>,
}

/// Where a test puts what the client sends; dropped, the body has ended.
struct Sending(mpsc::Sender<Result<Frame, BodyFault>>);

impl Body {
    fn none() -> Self {
        Self::streamed(Length::NONE).1
    }

    fn whole(text: &'static str) -> Self {
        let (send, body) = Self::streamed(Length::Exact(text.len() as u64));
        if !text.is_empty() {
            send.0.try_send(Ok(Frame::Data(text.into()))).unwrap();
        }
        body
    }

    fn streamed(length: Length) -> (Sending, Self) {
        let (send, frames) = mpsc::channel(8);
        let body = Self {
            length,
            frames,
            polled: Arc::default(),
        };
        (Sending(send), body)
    }
}

impl Sending {
    async fn data(&mut self, text: &'static str) {
        self.0.send(Ok(Frame::Data(text.into()))).await.unwrap();
    }

    async fn trailers(&mut self, name: &'static str, value: &str) {
        let mut trailers = HeaderMap::new();
        trailers.insert(name, value.parse().unwrap());
        self.0.send(Ok(Frame::Trailers(trailers))).await.unwrap();
    }
}

impl Source for Body {
    fn length(&self) -> Length {
        self.length
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        self.polled.store(true, Ordering::Relaxed);
        self.frames.poll_recv(cx)
    }
}

/// A client that keeps what it is told, in words.
#[derive(Debug, Default)]
struct Client {
    told: Vec<String>,
    /// Also told there.
    tells: Option<mpsc::Sender<String>>,
    /// Sent when the client goes.
    gone: Option<oneshot::Receiver<()>>,
    /// Sent when the client takes the body.
    takes: Option<oneshot::Receiver<()>>,
}

impl Client {
    async fn tell(&mut self, told: String) {
        if let Some(tells) = &self.tells {
            let _ = tells.send(told.clone()).await;
        }
        self.told.push(told);
    }
}

impl Sink for Client {
    async fn inform(&mut self, head: Response<()>) -> Result<(), Gone> {
        self.tell(format!("inform {}", head.status().as_u16())).await;
        Ok(())
    }

    async fn head(&mut self, head: Response<()>, length: Length) -> Result<(), Gone> {
        self.told.push(format!("head {} {length:?}", head.status().as_u16()));
        Ok(())
    }

    async fn data(&mut self, data: Bytes) -> Result<(), Gone> {
        if data.len() < 64 {
            self.tell(format!("data {}", str::from_utf8(&data).unwrap())).await;
        }
        Ok(())
    }

    async fn last(&mut self, data: Bytes) -> Result<(), Gone> {
        if let Some(takes) = self.takes.take() {
            takes.await.unwrap();
        }
        if data.len() < 64 {
            self.tell(format!("last {}", str::from_utf8(&data).unwrap())).await;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Gone> {
        self.tell("flush".to_owned()).await;
        Ok(())
    }

    async fn finish(&mut self, trailers: Option<HeaderMap>) -> Result<(), Gone> {
        self.tell(format!("finish{}", words(trailers))).await;
        Ok(())
    }

    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.gone {
            Some(gone) => std::pin::Pin::new(gone).poll(cx).map(drop),
            None => Poll::Pending,
        }
    }
}

fn words(trailers: Option<HeaderMap>) -> String {
    let trailers = trailers.unwrap_or_default();
    let words = trailers
        .iter()
        .map(|(name, value)| format!(" {name}: {}", value.to_str().unwrap()));
    words.collect()
}

fn get(target: &str) -> Request<()> {
    Request::get(target).header("host", "shop.test").body(()).unwrap()
}

fn post(target: &str) -> Request<()> {
    Request::post(target).header("host", "shop.test").body(()).unwrap()
}

fn method(method: Method) -> Request<()> {
    let mut request = get("/");
    *request.method_mut() = method;
    request
}

fn expecting() -> Request<()> {
    let mut request = post("/");
    request.headers_mut().insert("expect", "100-continue".parse().unwrap());
    request
}

async fn read_head(socket: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

async fn read(socket: &mut TcpStream, length: usize) -> String {
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes).await.unwrap();
    String::from_utf8(bytes).unwrap()
}

const LIMITS: Limits = Limits {
    request: Duration::from_secs(20),
    idle: Duration::from_secs(60),
    max_body: None,
    gather_answers: false,
};
