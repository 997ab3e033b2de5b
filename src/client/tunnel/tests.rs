//! The whole tunnel over loopback: programs on real sockets, a model gateway behind real TLS.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::StatusCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::client::model::{Gateway, Identity, Inside, TunnelModel, listen_request, serve, wait_until};
use crate::client::trust::Trust;
use crate::tunnel::https::message::Message;

struct Bench {
    inside: Arc<Inside>,
    tunnel: Tunnel,
    notices: mpsc::Receiver<Notice>,
    _gateway: Gateway,
}

async fn opened(inside: &Arc<Inside>, doors: Doors) -> Result<Bench, End> {
    let identity = Identity::new("localhost");
    let served = inside.clone();
    let gateway = serve(identity.server_config(), move |request| {
        std::future::ready(served.clone().serve(request))
    })
    .await;
    let dialer = Dialer::new(Trust::thumbprint(identity.thumbprint()));
    let place = Place::new(gateway.endpoint(), Secret::new("ks7"), None);
    let tasks = TaskTracker::new();
    let exchange = place.dial(&dialer, &tasks).await.unwrap();
    let (sender, notices) = mpsc::channel(16);
    let tunnel = Tunnel::open(exchange, dialer, place, doors, sender, &tasks).await?;
    Ok(Bench {
        inside: inside.clone(),
        tunnel,
        notices,
        _gateway: gateway,
    })
}

impl Bench {
    async fn new(doors: Doors) -> Self {
        let bench = opened(&Inside::new(), doors).await.unwrap();
        bench.inside.wait(|model| model.port.is_some()).await;
        bench
    }

    fn port(&self) -> u16 {
        self.inside.model.lock().port.unwrap()
    }

    async fn program(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port())).await.unwrap()
    }
}

fn octets(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|place| (place.wrapping_mul(31) >> 3) as u8 ^ seed)
        .collect()
}

fn send_all(model: &mut TunnelModel, channel: u32, octets: &[u8]) {
    octets.chunks(10_240).for_each(|piece| model.data(channel, piece));
}

#[tokio::test]
async fn the_request_is_the_published_one() {
    let bench = Bench::new(Doors::Loopback).await;
    assert_eq!(*bench.inside.targets.lock(), ["/ice/tunnel?ks7"]);
}

#[tokio::test]
async fn a_program_that_shuts_its_sending_side_gets_the_whole_answer() {
    let bench = Bench::new(Doors::Loopback).await;
    let (question, reply) = (octets(1 << 20, 1), octets(1 << 20, 2));
    let mut program = bench.program().await;
    program.write_all(&question).await.unwrap();
    program.shutdown().await.unwrap();
    assert_eq!(bench.inside.received(1, question.len()).await, question);
    bench.inside.act(|model| {
        send_all(model, 1, &reply);
        model.send(&Message::Lower { channel: 1 });
    });
    let mut received = Vec::new();
    program.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, reply);
    bench.inside.is_lowered(1).await;
}

#[tokio::test]
async fn what_the_desktop_sent_before_it_closed_arrives_although_the_program_goes_on_sending() {
    let bench = Bench::new(Doors::Loopback).await;
    let reply = octets(300_000, 3);
    let mut program = bench.program().await;
    program.write_all(b"hello").await.unwrap();
    bench.inside.received(1, 5).await;
    bench.inside.act(|model| {
        send_all(model, 1, &reply);
        model.send(&Message::Lower { channel: 1 });
    });
    let mut first = [0; 1];
    program.read_exact(&mut first).await.unwrap();
    // Unread octets at the closing end would reset the connection and destroy the rest.
    program.write_all(&octets(10_000, 4)).await.unwrap();
    let mut rest = Vec::new();
    program.read_to_end(&mut rest).await.unwrap();
    assert_eq!([&first[..], &rest].concat(), reply);
}

#[tokio::test]
async fn nothing_is_lost_when_the_connection_breaks_in_the_middle() {
    let mut bench = Bench::new(Doors::Loopback).await;
    let (question, reply) = (octets(2 << 20, 5), octets(2 << 20, 6));
    let (mut read, mut write) = bench.program().await.into_split();
    let sent = question.clone();
    let sending = async {
        write.write_all(&sent).await.unwrap();
        write.shutdown().await.unwrap();
    };
    let reading = async {
        let mut received = Vec::new();
        read.read_to_end(&mut received).await.unwrap();
        received
    };
    let gateway = async {
        bench.inside.received(1, 1).await;
        for part in 0..4 {
            bench
                .inside
                .act(|model| send_all(model, 1, &reply[part << 19..(part + 1) << 19]));
            bench.inside.received(1, part << 18).await;
            bench.inside.break_connection();
            let connections = part + 2;
            wait_until(&bench.inside.changed, || {
                bench.inside.connections.load(Ordering::SeqCst) >= connections
            })
            .await;
        }
        assert_eq!(bench.inside.received(1, question.len()).await, question);
        bench.inside.act(|model| model.send(&Message::Lower { channel: 1 }));
    };
    let ((), received, ()) = tokio::join!(sending, reading, gateway);
    assert_eq!(received.len(), reply.len());
    assert!(received == reply);
    assert!(
        bench.inside.targets.lock()[1..]
            .iter()
            .all(|target| target == "/ice/reconnect?ks7&s1")
    );
    assert_eq!(bench.notices.recv().await, Some(Notice::ContactLost));
    assert_eq!(bench.notices.recv().await, Some(Notice::ContactRegained));
}

#[tokio::test]
async fn a_gateway_that_refuses_the_resumption_is_the_end() {
    let bench = Bench::new(Doors::Loopback).await;
    *bench.inside.refusal.lock() = Some(StatusCode::FORBIDDEN);
    bench.inside.break_connection();
    assert_eq!(bench.tunnel.ended().await, End::NotAdmitted { status: 403 });
}

#[tokio::test]
async fn a_gateway_that_does_not_admit_the_tunnel_is_told_apart() {
    let inside = Inside::new();
    *inside.refusal.lock() = Some(StatusCode::NOT_FOUND);
    let end = opened(&inside, Doors::Held).await.err();
    assert_eq!(end, Some(End::NotAdmitted { status: 404 }));
}

#[tokio::test]
async fn a_program_that_is_gone_closes_its_channel() {
    let bench = Bench::new(Doors::Loopback).await;
    let mut program = bench.program().await;
    program.write_all(b"bye").await.unwrap();
    bench.inside.received(1, 3).await;
    bench.inside.act(|model| model.data(1, b"unread"));
    program.readable().await.unwrap();
    // With something unread, the system resets the connection.
    drop(program);
    bench.inside.is_lowered(1).await;
}

#[tokio::test]
async fn the_end_of_a_program_is_seen_when_the_desktop_sends_after_it_closed() {
    let bench = Bench::new(Doors::Loopback).await;
    let mut program = bench.program().await;
    program.write_all(b"bye").await.unwrap();
    drop(program);
    bench.inside.received(1, 3).await;
    let lowered = bench.inside.is_lowered(1);
    tokio::pin!(lowered);
    loop {
        tokio::select! {
            () = &mut lowered => break,
            () = tokio::task::yield_now() => bench.inside.act(|model| {
                if model.out.is_empty() {
                    model.data(1, b"anyone?");
                }
            }),
        }
    }
}

#[tokio::test]
async fn a_channel_that_is_refused_closes_the_program_and_says_why() {
    let mut bench = Bench::new(Doors::Loopback).await;
    bench.inside.act(|model| model.refuse = true);
    let mut program = bench.program().await;
    let mut received = Vec::new();
    assert_eq!(program.read_to_end(&mut received).await.unwrap_or_default(), 0);
    assert_eq!(
        bench.notices.recv().await,
        Some(Notice::Refused("desktop does not answer".into()))
    );
    let raised = bench.tunnel.raise(bench.port()).await;
    assert_eq!(
        raised.err(),
        Some(RaiseFault::Refused {
            problem: "desktop does not answer".into()
        })
    );
}

#[tokio::test]
async fn a_port_for_one_connection_takes_one() {
    let inside = Inside::new();
    inside.model.lock().max_connections = 1;
    let bench = opened(&inside, Doors::Loopback).await.unwrap();
    inside.wait(|model| model.port.is_some()).await;
    let mut program = bench.program().await;
    program.write_all(b"one").await.unwrap();
    inside.received(1, 3).await;
    let second = TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port())).await;
    assert_eq!(second.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    inside.act(|model| model.send(&Message::Lower { channel: 1 }));
    assert_eq!(program.read(&mut [0; 1]).await.unwrap(), 0);
    drop(program);
    let gone = Message::UnlistenReply {
        port_name: Some("rdp1".into()),
        problem: None,
    };
    inside.wait(|model| model.messages.contains(&gone)).await;
}

#[tokio::test]
async fn no_more_connections_are_served_at_a_time_than_the_gateway_allows() {
    let bench = Bench::new(Doors::Loopback).await;
    let mut programs = Vec::new();
    for channel in 1..=5_u32 {
        let mut program = bench.program().await;
        program.write_all(b"x").await.unwrap();
        programs.push(program);
        if channel <= 4 {
            bench.inside.received(channel, 1).await;
        }
    }
    assert_eq!(bench.inside.model.lock().desktops.len(), 4);
    bench.inside.act(|model| model.send(&Message::Lower { channel: 2 }));
    assert_eq!(programs[1].read(&mut [0; 1]).await.unwrap(), 0);
    programs.remove(1);
    bench.inside.received(5, 1).await;
}

#[tokio::test]
async fn a_port_that_is_taken_back_closes_with_its_connections() {
    let bench = Bench::new(Doors::Loopback).await;
    let mut program = bench.program().await;
    program.write_all(b"x").await.unwrap();
    bench.inside.received(1, 1).await;
    bench.inside.act(|model| {
        model.data(1, b"last words");
        model.send(&Message::UnlistenRequest {
            port_name: "rdp1".into(),
        });
    });
    let mut received = Vec::new();
    program.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last words");
    bench.inside.is_lowered(1).await;
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port())).await.is_err());
    assert_eq!(bench.tunnel.raise(bench.port()).await.err(), Some(RaiseFault::NoPort));
}

#[tokio::test]
async fn the_first_port_is_the_given_socket_and_others_are_any() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let bench = Bench::new(Doors::Given(listener)).await;
    assert_eq!(bench.port(), port);
    bench.inside.act(|model| {
        let mut second = listen_request(4);
        if let Message::ListenRequest { port_name, .. } = &mut second {
            *port_name = "rdp2".into();
        }
        model.port = None;
        model.send(&second);
        // The same name again is refused.
        model.send(&Message::ListenRequest {
            cid: 10,
            port_name: "rdp2".into(),
            client_port: -1,
            server_host: String::new(),
            server_port: 1,
            max_connections: 1,
        });
    });
    bench
        .inside
        .wait(|model| model.port.is_some_and(|second| second != port))
        .await;
    let refused = |message: &Message| matches!(message, Message::ListenReply { cid: 10, port: Err(_) });
    bench.inside.wait(|model| model.messages.iter().any(refused)).await;
}

#[tokio::test]
async fn without_a_socket_octets_go_through_a_channel() {
    let bench = Bench::new(Doors::Held).await;
    let mut channel = bench.tunnel.raise(bench.port()).await.unwrap();
    assert!(
        TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port())).await.is_err(),
        "nothing listens"
    );
    channel.sender().send(Bytes::from(octets(25_000, 7))).await.unwrap();
    assert_eq!(bench.inside.received(1, 25_000).await, octets(25_000, 7));
    bench.inside.act(|model| {
        model.data(1, b"answer");
        model.send(&Message::Lower { channel: 1 });
    });
    assert_eq!(channel.receive().await.unwrap(), "answer");
    assert_eq!(channel.receive().await, None);
    channel.close().await;
    assert_eq!(bench.tunnel.raise(9).await.err(), Some(RaiseFault::NoPort));
}

#[tokio::test]
async fn a_program_that_does_not_read_holds_the_desktop_up_and_not_the_memory() {
    let bench = Bench::new(Doors::Held).await;
    let mut channel = bench.tunnel.raise(bench.port()).await.unwrap();
    let reply = octets(8 << 20, 8);
    bench.inside.act(|model| send_all(model, 1, &reply));
    // Whatever the socket buffers take, the client acknowledges no more than its own queues hold.
    let acknowledged = |model: &TunnelModel| model.acks.iter().copied().max().unwrap_or_default();
    bench.inside.wait(|model| acknowledged(model) >= 32).await;
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    assert!(
        acknowledged(&bench.inside.model.lock()) < 60,
        "{}",
        acknowledged(&bench.inside.model.lock())
    );
    let mut received = Vec::new();
    while received.len() < reply.len() {
        received.extend(channel.receive().await.unwrap());
    }
    assert!(received == reply);
}

#[tokio::test]
async fn the_gateways_last_words_are_the_reason_and_programs_are_closed() {
    let mut bench = Bench::new(Doors::Loopback).await;
    let mut program = bench.program().await;
    program.write_all(b"x").await.unwrap();
    bench.inside.received(1, 1).await;
    bench.inside.act(|model| {
        model.data(1, b"last");
        model.send(&Message::SystemMessage {
            text: "closing soon".into(),
        });
        model.send(&Message::Stop {
            reason: "logged out".into(),
        });
    });
    let mut received = Vec::new();
    program.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"last");
    assert_eq!(
        bench.tunnel.ended().await,
        End::Stopped {
            reason: "logged out".into()
        }
    );
    assert_eq!(bench.notices.recv().await, Some(Notice::Said("closing soon".into())));
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, bench.port())).await.is_err());
    assert_eq!(bench.tunnel.raise(1).await.err(), Some(RaiseFault::Over));
}

#[tokio::test]
async fn what_is_not_the_protocol_is_the_end() {
    let bench = Bench::new(Doors::Held).await;
    bench
        .inside
        .act(|model| model.out.push_back(Bytes::from_static(b"X;1;")));
    assert!(matches!(bench.tunnel.ended().await, End::Chunk(_)));
}

#[tokio::test]
async fn a_dropped_tunnel_closes_its_programs() {
    let bench = Bench::new(Doors::Loopback).await;
    let mut program = bench.program().await;
    program.write_all(b"x").await.unwrap();
    bench.inside.received(1, 1).await;
    drop(bench.tunnel);
    assert_eq!(program.read(&mut [0; 1]).await.unwrap_or_default(), 0);
}
