//! Upgrades in place under datagrams: flows beside PCoIP and Blast, and QUIC.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test that cannot go on has failed"
)]
#[allow(dead_code, reason = "of another test")]
#[path = "quic/peer.rs"]
mod peer;
mod support;

use std::collections::HashSet;
use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use peer::{Peer, read};
use portcullis::clock;
use portcullis::tunnel::masque::varint;
use serde_json::Value;
use support::agent::{self, Agent, ask, datagrams, echoes, first, is_silent, launch, launch_again, reach};
use support::heir::{kill, upgrade, upgrade_to};
use support::raw::{self, Stream, message};
use support::{Gateway, PATIENCE, Setup};
use tokio::sync::oneshot;
use tokio::time::timeout;

const HOME: [u8; 4] = [127, 0, 0, 1];
const ELSEWHERE: [u8; 4] = [127, 0, 0, 2];

/// A flow in which a numbered datagram goes out every few milliseconds, and comes back.
struct Beat {
    over: Arc<AtomicBool>,
    deaf: Arc<AtomicBool>,
    heard: Arc<Mutex<HashSet<u32>>>,
    sending: JoinHandle<u32>,
    hearing: JoinHandle<()>,
    socket: UdpSocket,
}

impl Beat {
    fn start(socket: UdpSocket) -> Self {
        let (over, deaf) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let heard = Arc::<Mutex<HashSet<u32>>>::default();
        let (sender, receiver) = (socket.try_clone().unwrap(), socket.try_clone().unwrap());
        let (ended, closed, ears) = (over.clone(), deaf.clone(), heard.clone());
        let sending = std::thread::spawn(move || {
            let mut number = 0_u32;
            while !ended.load(Ordering::SeqCst) {
                sender.send(&numbered(number)).unwrap();
                number += 1;
                std::thread::sleep(Duration::from_millis(3));
            }
            number
        });
        let hearing = std::thread::spawn(move || {
            let mut buffer = [0; 2000];
            while !closed.load(Ordering::SeqCst) {
                let length = receiver.recv(&mut buffer).unwrap();
                let number: [u8; 4] = buffer[length - 4..length].try_into().unwrap();
                ears.lock().insert(u32::from_be_bytes(number));
            }
        });
        let beat = Self {
            over,
            deaf,
            heard,
            sending,
            hearing,
            socket,
        };
        beat.goes_on();
        beat
    }

    /// Waits for some more.
    fn goes_on(&self) {
        let before = self.heard.lock().len();
        self.wait_for(before + 20);
    }

    fn wait_for(&self, count: usize) {
        let deadline = clock::now() + PATIENCE;
        while self.heard.lock().len() < count {
            assert!(
                clock::now() < deadline,
                "{} of {count} came back",
                self.heard.lock().len()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Every datagram that was sent has come back.
    fn loses_nothing(self) -> UdpSocket {
        self.over.store(true, Ordering::SeqCst);
        let sent = self.sending.join().unwrap();
        let heard = self.heard;
        let deadline = clock::now() + Duration::from_secs(5);
        while heard.lock().len() < sent as usize && clock::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        let lost: Vec<_> = (0..sent).filter(|number| !heard.lock().contains(number)).collect();
        assert!(lost.is_empty(), "lost of {sent}: {lost:?}");
        self.deaf.store(true, Ordering::SeqCst);
        self.socket.send(&numbered(sent)).unwrap();
        self.hearing.join().unwrap();
        self.socket
    }
}

fn numbered(number: u32) -> Vec<u8> {
    let mut datagram = first(60);
    datagram.extend_from_slice(&number.to_be_bytes());
    datagram
}

/// PCoIP to `desk` and Blast to `screen`.
fn setup(desk: &Agent, screen: &Agent) -> (Setup, SocketAddr) {
    let (setup, pcoip) = agent::setup(desk, "");
    let lines = "users = [\"ann\"]\nagent = { tls = false }";
    let setup = setup
        .listener("udp = true\n")
        .section("[udp]\nfirst_datagram = \"60 s\"\n")
        .desktop_for("screen", screen.target.address, "blast", lines);
    (setup, pcoip)
}

fn open_blast(gateway: &Gateway, cookie: &str) -> Stream {
    let launch = message("<get-desktop-connection><desktop-id>screen</desktop-id></get-desktop-connection>");
    let reply = raw::post(gateway, Some(cookie), &launch);
    let ticket = raw::element(reply.text(), "token").unwrap().replace("&quot;", "\"");
    let ticket: Value = serde_json::from_str(&ticket).unwrap();
    let head = format!(
        "GET /r/{}/d/00000000-0000-0000-0000-000000000000/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        ticket["r"].as_str().unwrap()
    );
    let mut stream = raw::tls(gateway);
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 101);
    assert!(echoes(&mut stream, b"bytes"));
    stream
}

/// A further session of `ann`, whose connection to `desk` comes from that address.
fn connect_from(gateway: &Gateway, source: [u8; 4], pcoip: SocketAddr) -> Stream {
    let user = raw::sign_in(gateway, "ann");
    let launched = launch_again(gateway, &user.cookie, "desk");
    let name = format!("{}.localhost", agent::labels(&launched.token));
    let mut stream = raw::tls_named(raw::connect_from(source, pcoip), &gateway.chain(), &name);
    assert!(echoes(&mut stream, b"from there"));
    stream
}

/// The id of the session that was opened first.
fn first_session(gateway: &Gateway) -> String {
    let opened = gateway.wait_for("a session", |line| line["message"] == "session opened");
    opened["session"].as_str().unwrap().to_owned()
}

#[test]
fn flows_lose_no_datagram_over_three_upgrades_and_end_with_their_session() {
    let (desk, screen) = (Agent::echo(), Agent::websocket());
    let (setup, pcoip) = setup(&desk, &screen);
    let gateway = Gateway::start(&setup);
    let launched = launch(&gateway);
    let (_desk, _screen) = (reach(&gateway, pcoip), open_blast(&gateway, &launched.cookie));
    let flows = [pcoip, gateway.address].map(|to| Beat::start(datagrams(HOME, to)));
    let mut heirs = Vec::new();
    for _ in 0..3 {
        heirs.push(upgrade(&gateway));
        flows.iter().for_each(Beat::goes_on);
    }
    // What begins beside a connection of the first process is let in there.
    let late = datagrams(HOME, pcoip);
    assert_eq!(ask(&late, &first(100)), first(100));
    // Another session is served by the last process.
    let _elsewhere = connect_from(&gateway, ELSEWHERE, pcoip);
    let of_elsewhere = datagrams(ELSEWHERE, pcoip);
    assert_eq!(ask(&of_elsewhere, &first(100)), first(100));
    // Sessions of two processes behind one address are not told apart, as those of one are not.
    let before = gateway.lines().len();
    let same_address = connect_from(&gateway, HOME, pcoip);
    let whose = datagrams(HOME, pcoip);
    whose.send(&first(100)).unwrap();
    gateway.wait_for_after(before, "the reason", |line| line["reason"] == "ambiguous_address");
    assert!(is_silent(&whose));
    drop(same_address);

    flows.iter().for_each(Beat::goes_on);
    let sockets = flows.map(Beat::loses_nothing);
    let of_the_beat = |(from, datagram): (SocketAddr, Vec<u8>)| (datagram.len() == numbered(0).len()).then_some(from);
    let ports: HashSet<_> = desk.heard().into_iter().filter_map(of_the_beat).collect();
    assert_eq!(ports.len(), 1, "one port for the flow's life");

    let (id, before, asked) = (first_session(&gateway), gateway.lines().len(), clock::now());
    assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
    for protocol in ["pcoip", "blast"] {
        let line = gateway.wait_for_after(before, "the end of a flow", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("flow of datagrams closed") && line["protocol"] == protocol
        });
        assert_eq!(
            (&line["session"], &line["reason"]),
            (&id.as_str().into(), &"killed".into())
        );
    }
    assert!(clock::now() - asked < Duration::from_secs(1));
    for socket in &sockets {
        socket.send(&first(100)).unwrap();
        assert!(is_silent(socket));
    }

    for pid in [gateway.pid(), heirs[0].0, heirs[1].0] {
        kill("KILL", pid);
    }
    assert_eq!(
        ask(&of_elsewhere, &first(101)),
        first(101),
        "it is the last process's own"
    );
}

#[test]
fn flows_go_on_when_no_other_process_takes_over_or_the_one_that_did_dies() {
    let (desk, screen) = (Agent::echo(), Agent::websocket());
    let (setup, pcoip) = setup(&desk, &screen);
    let gateway = Gateway::start(&setup);
    let launched = launch(&gateway);
    let (_desk, _screen) = (reach(&gateway, pcoip), open_blast(&gateway, &launched.cookie));
    let flows = [pcoip, gateway.address].map(|to| Beat::start(datagrams(HOME, to)));
    let output = upgrade_to(&gateway, Path::new("/bin/false"));
    assert_eq!(output.status.code(), Some(1));
    flows.iter().for_each(Beat::goes_on);
    let heir = upgrade(&gateway);
    flows.iter().for_each(Beat::goes_on);
    let sockets = flows.map(Beat::loses_nothing);

    kill("KILL", heir.0);
    gateway.wait_for("the news of it", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.contains("took over is no more")
    });
    for socket in &sockets {
        assert_eq!(ask(socket, &first(100)), first(100));
    }
}

/// A stream of bytes and one of datagrams to `shell`, which sends everything back.
struct Open {
    peer: Peer,
    bytes: peer::Stream,
    datagrams: peer::Stream,
}

impl Open {
    async fn over(endpoint: &quinn::Endpoint, gateway: &Gateway, user: &peer::User) -> Self {
        let place = peer::launch(gateway, user, "shell");
        let peer = Peer::connect_from(endpoint, gateway.address).await;
        let bearer = format!("Bearer {}", user.token);
        let (status, bytes) = peer.connect_stream(&place, Some(&bearer)).await;
        assert_eq!(status, 200);
        let (status, datagrams) = peer.connect_udp(&place.replace(':', "/"), &user.token).await;
        assert_eq!(status, 200);
        Self { peer, bytes, datagrams }
    }

    /// Bytes and a datagram go there and come back.
    async fn echoes(&mut self, number: u64) {
        let stream = self.datagrams.id().into_inner();
        let mut datagram = BytesMut::new();
        varint::write(&mut datagram, stream / 4);
        varint::write(&mut datagram, 0);
        datagram.extend_from_slice(&number.to_be_bytes());
        let datagram = datagram.freeze();
        self.peer.connection.send_datagram(datagram.clone()).unwrap();
        let sent = Bytes::copy_from_slice(&number.to_be_bytes());
        self.bytes.send_data(sent).await.unwrap();
        assert_eq!(read(&mut self.bytes, 8).await, number.to_be_bytes());
        let answer = timeout(PATIENCE, self.peer.connection.read_datagram()).await;
        assert_eq!(answer.expect("no datagram is lost").unwrap(), datagram);
    }

    /// Both streams have ended, or do so now.
    async fn ends(&mut self) {
        for stream in [&mut self.bytes, &mut self.datagrams] {
            let ended = timeout(PATIENCE, async { while let Ok(Some(_)) = stream.recv_data().await {} });
            ended.await.unwrap();
        }
    }
}

/// A way to the gateway for one client, which holds back what that sends once it was asked to prove its address, until it
/// may `go_on`.
async fn doubtful(gateway: SocketAddr, asked: Arc<AtomicBool>, go_on: oneshot::Receiver<()>) -> SocketAddr {
    let outside = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let inside = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    inside.connect(gateway).await.unwrap();
    let address = outside.local_addr().unwrap();
    tokio::task::spawn(async move {
        let (mut up, mut down) = ([0; 2048], [0; 2048]);
        let (mut client, mut go_on) = (None, Some(go_on));
        loop {
            tokio::select! {
                Ok((length, from)) = outside.recv_from(&mut up) => {
                    client = Some(from);
                    if asked.load(Ordering::SeqCst)
                        && let Some(go_on) = go_on.take()
                    {
                        let _ = go_on.await;
                    }
                    let _ = inside.send(&up[..length]).await;
                }
                Ok(length) = inside.recv(&mut down) => {
                    if down[0] & 0xf0 == RETRY {
                        asked.store(true, Ordering::SeqCst);
                    }
                    if let Some(client) = client {
                        let _ = outside.send_to(&down[..length], client).await;
                    }
                }
            }
        }
    });
    address
}

/// The first four bits of a Retry.
const RETRY: u8 = 0xf0;

#[tokio::test(flavor = "multi_thread")]
async fn who_was_asked_to_prove_an_address_before_an_upgrade_is_let_in_after_it() {
    let setup = Setup::default()
        .listener("udp = true\n")
        .section("[limits]\nhandshakes_per_source = 1\n");
    let gateway = Gateway::start(&setup);
    let endpoint = peer::endpoint(&gateway.chain());
    let deadline = clock::now() + PATIENCE;
    // A source that comes too fast is asked.
    let (connecting, go_on) = loop {
        assert!(clock::now() < deadline, "somebody is asked");
        let (asked, (go_on, held)) = (Arc::<AtomicBool>::default(), oneshot::channel());
        let way = doubtful(gateway.address, asked.clone(), held).await;
        let mut connecting = endpoint.connect(way, "localhost").unwrap();
        let is_asked = async {
            while !asked.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            _let_in = &mut connecting => {}
            () = is_asked => break (connecting, go_on),
        }
    };
    let _heir = tokio::task::block_in_place(|| upgrade(&gateway));
    go_on.send(()).unwrap();
    let connection = timeout(PATIENCE, connecting).await.expect("in time");
    connection.expect("a handshake");
}

#[tokio::test(flavor = "multi_thread")]
async fn quic_connections_go_on_over_three_upgrades_whatever_port_they_come_from() {
    let agent = Agent::echo();
    let setup = Setup::default()
        .listener("udp = true\n")
        .desktop("shell", agent.target.address, "ssh")
        .desktop("other", agent.target.address, "ssh");
    let gateway = Arc::new(Gateway::start(&setup));
    let user = peer::sign_in(&gateway);
    let endpoint = peer::endpoint(&gateway.chain());
    let mut open = vec![Open::over(&endpoint, &gateway, &user).await];
    let idle = Peer::connect(&gateway).await;
    let (mut number, mut heirs) = (0, Vec::new());
    for round in 0..3 {
        let upgraded = gateway.clone();
        let upgrading = tokio::task::spawn_blocking(move || upgrade(&upgraded));
        let mut more = 20;
        while more > 0 {
            number += 1;
            for connection in &mut open {
                connection.echoes(number).await;
            }
            more -= u32::from(upgrading.is_finished());
        }
        heirs.push(upgrading.await.unwrap());
        // Connections of two, and then of more processes, from one port of the client, and then from another.
        open.push(Open::over(&endpoint, &gateway, &user).await);
        if round == 1 {
            endpoint.rebind(UdpSocket::bind("127.0.0.1:0").unwrap()).unwrap();
        }
        for connection in &mut open {
            connection.echoes(number).await;
        }
    }
    timeout(PATIENCE, idle.connection.closed())
        .await
        .expect("a connection without streams is told to go");
    // What was launched later is known to the last process only, and reached over the first one's connection.
    let place = peer::launch(&gateway, &user, "other");
    let bearer = format!("Bearer {}", user.token);
    let (status, mut late) = open[0].peer.connect_stream(&place, Some(&bearer)).await;
    assert_eq!(status, 200);
    late.send_data(Bytes::from_static(b"carried")).await.unwrap();
    assert_eq!(read(&mut late, 7).await, b"carried");
    let (status, refused) = open[0]
        .peer
        .connect_stream(&place, Some("Bearer gw-1.wrong.token"))
        .await;
    assert_eq!(status, 403);
    drop(refused);

    let (id, asked) = (first_session(&gateway), clock::now());
    assert!(gateway.operator(&["sessions", "kill", &id]).status().unwrap().success());
    for connection in &mut open {
        connection.ends().await;
    }
    assert!(clock::now() - asked < Duration::from_secs(1));

    let user = peer::sign_in(&gateway);
    let mut last = Open::over(&endpoint, &gateway, &user).await;
    for pid in [gateway.pid(), heirs[0].0, heirs[1].0] {
        kill("KILL", pid);
    }
    last.echoes(number).await;
}
