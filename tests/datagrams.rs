//! Datagrams beside a PCoIP connection: let in while it is open, dropped for one reason each, and harmless from strangers.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::Write as _;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use support::agent::{self, Agent, ask, datagrams, echoes, first, is_silent, launch, launch_again, reach};
use support::raw::{self, Stream, message};
use support::{Gateway, PATIENCE, Setup};

const HOME: [u8; 4] = [127, 0, 0, 1];

#[test]
fn datagrams_pass_both_ways_beside_an_open_connection() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let (_session, _connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    assert_eq!(ask(&socket, &first(12)), first(12));
    for octets in [1, 100, 1200, 1472, 9000, 65_507, 1] {
        assert_eq!(ask(&socket, &vec![9; octets]), vec![9; octets]);
    }
    let ports: Vec<_> = agent.heard().into_iter().map(|(from, _)| from).collect();
    assert!(
        ports.iter().all(|port| *port == ports[0]),
        "one port for the flow's life: {ports:?}"
    );
    assert_eq!(agent.target.dialled(), 1);
}

#[test]
fn a_burst_arrives_whole_as_single_datagrams() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let (_session, _connection) = open(&gateway, pcoip);
    assert_burst_arrives(&datagrams(HOME, pcoip));
}

#[test]
fn clients_of_ipv6_are_served_alike() {
    let agent = Agent::websocket();
    for address in ["[::1]:0", "[::]:0"] {
        let setup = with_blast(Setup::default().bind(&[address]), &agent);
        let gateway = Gateway::start(&setup);
        let to = SocketAddr::from((Ipv6Addr::LOCALHOST, gateway.address.port()));
        let _connection = open_blast(&gateway);
        let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        socket.connect(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(ask(&socket, &[0x45; 12]), [0x45; 12]);
        assert_eq!(ask(&socket, &[0x45; 9000]), [0x45; 9000]);
        assert_burst_arrives(&socket);
    }
}

/// Every answer says which datagram it is for; all of one size, so that both systems may join them on their way.
fn assert_burst_arrives(socket: &UdpSocket) {
    socket2::SockRef::from(socket).set_recv_buffer_size(4 << 20).unwrap();
    ask(socket, &first(40));
    ask(socket, &first(40));
    let mut seen = [false; 200];
    for round in 0..10 {
        for n in 0..20_u8 {
            socket.send(&[round * 20 + n; 1200]).unwrap();
        }
        socket.send(&[255; 77]).unwrap();
        for _ in 0..21 {
            let mut buffer = [0; 3000];
            let length = socket.recv(&mut buffer).unwrap();
            assert!([1200, 77].contains(&length), "datagrams were joined or cut: {length}");
            if length == 1200 {
                assert!(buffer[..1200].iter().all(|octet| *octet == buffer[0]));
                seen[usize::from(buffer[0])] = true;
            }
        }
    }
    assert!(seen.iter().all(|seen| *seen));
}

#[test]
fn without_an_open_connection_nothing_comes_through() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let launched = launch(&gateway);
    let socket = datagrams(HOME, pcoip);
    assert_dropped(&gateway, &socket, &first(100), "address_mismatch");
    let connection = reach(&gateway, launched.address);
    let elsewhere = datagrams([127, 0, 0, 2], pcoip);
    assert_dropped(&gateway, &elsewhere, &first(100), "address_mismatch");
    assert_eq!(agent.datagrams(), 0);
    assert_eq!(ask(&socket, &first(100)), first(100));
    drop(connection);
}

#[test]
fn only_what_may_be_a_first_datagram_opens_a_flow() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let (_session, _connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    assert_dropped(&gateway, &socket, &first(100)[..11], "malformed");
    for datagram in [&[][..], &[1], &[0; 12], &[9, 9, 9, 9, 0, 0, 0, 0, 9, 9, 9, 9]] {
        socket.send(datagram).unwrap();
    }
    assert!(is_silent(&socket));
    assert_eq!(agent.datagrams(), 0);
}

#[test]
fn the_first_datagram_has_to_come_soon() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "[udp]\nfirst_datagram = \"1 s\"\n");
    let (_session, mut connection) = open(&gateway, pcoip);
    std::thread::sleep(Duration::from_millis(1200));
    let socket = datagrams(HOME, pcoip);
    assert_dropped(&gateway, &socket, &first(100), "window_missed");
    assert!(echoes(&mut connection, b"the connection is none the worse"));
    let _reconnect = reach(&gateway, pcoip);
    assert_eq!(ask(&socket, &first(100)), first(100), "a reconnect has its own time");
}

#[test]
fn two_sessions_of_one_address_are_not_told_apart() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let (_one, _first_connection) = open(&gateway, pcoip);
    let other = raw::sign_in(&gateway, "ann");
    // The other session's connection comes while the first one's is open, before it is announced twice.
    let socket = datagrams(HOME, pcoip);
    assert_eq!(ask(&socket, &first(20)), first(20));
    let second = launch_again(&gateway, &other.cookie, "desk");
    let name = format!("{}.localhost", agent::labels(&second.token));
    let stream = std::net::TcpStream::connect(pcoip).unwrap();
    let mut stream = raw::tls_named(stream, &gateway.chain(), &name);
    assert!(echoes(&mut stream, b"the second"));
    let late = datagrams(HOME, pcoip);
    assert_dropped(&gateway, &late, &first(100), "ambiguous_address");
    assert_eq!(ask(&socket, &first(21)), first(21), "a flow that is open stays");
    drop(stream);
    gateway.wait_for("its end", |line| line["message"] == "PCoIP connection closed");
    assert_eq!(ask(&late, &first(22)), first(22));
}

#[test]
fn a_session_has_as_many_flows_as_it_may() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "[udp]\nflows_per_session = 2\n");
    let (_session, _connection) = open(&gateway, pcoip);
    let sockets: Vec<_> = (0..3).map(|_| datagrams(HOME, pcoip)).collect();
    assert_eq!(ask(&sockets[0], &first(30)), first(30));
    assert_eq!(ask(&sockets[1], &first(31)), first(31));
    assert_dropped(&gateway, &sockets[2], &first(32), "flow_limit");
    assert_eq!(agent.datagrams(), 2);
}

#[test]
fn an_agent_that_does_not_answer_ends_the_flow() {
    let agent = Agent::answering(|_| Vec::new());
    let (gateway, pcoip) = start(&agent, "[udp]\nagent_answer = \"300 ms\"\n");
    let (_session, mut connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    socket.send(&first(100)).unwrap();
    let line = gateway.wait_for("the reason", |line| line["reason"] == "agent_silent");
    assert_eq!(line["level"], "WARN", "{line}");
    assert!(echoes(&mut connection, b"the connection is none the worse"));
    assert!(is_silent(&socket));
}

#[test]
fn an_agent_without_a_port_for_datagrams_ends_the_flow_at_once() {
    let agent = Agent::without_datagrams();
    let (gateway, pcoip) = start(&agent, "");
    let (_session, _connection) = open(&gateway, pcoip);
    datagrams(HOME, pcoip).send(&first(100)).unwrap();
    gateway.wait_for("the reason", |line| line["reason"] == "target_unreachable");
}

#[test]
fn a_flow_ends_with_its_connection_and_with_its_session() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "");
    let (session, connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    ask(&socket, &first(100));
    drop(connection);
    let closed = |line: &serde_json::Value| {
        line["message"]
            .as_str()
            .unwrap_or_default()
            .starts_with("flow of datagrams closed")
    };
    gateway.wait_for("its end", closed);
    let before = agent.datagrams();
    assert_dropped(&gateway, &socket, &first(100), "address_mismatch");
    assert_eq!(agent.datagrams(), before);

    let connection = reach(&gateway, pcoip);
    assert_eq!(ask(&socket, &first(100)), first(100));
    let lines = gateway.lines().len();
    raw::post(&gateway, Some(&session), &message("<do-logout/>"));
    let line = gateway.wait_for_after(lines, "its end", closed);
    assert_eq!(line["reason"], "logout", "{line}");
    let before = agent.datagrams();
    socket.send(&first(100)).unwrap();
    assert!(is_silent(&socket));
    assert_eq!(agent.datagrams(), before);
    drop(connection);
}

#[test]
fn a_silent_client_keeps_its_port_and_an_idle_flow_ends() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "[udp]\nidle = \"2 s\"\n");
    let (_session, _connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    ask(&socket, &first(50));
    std::thread::sleep(Duration::from_millis(1500));
    ask(&socket, &first(51));
    let heard = agent.heard();
    assert_eq!(heard[0].0, heard[1].0);
    gateway.wait_for("its end", |line| {
        line["reason"] == "idle"
            && line["message"]
                .as_str()
                .is_some_and(|text| text.starts_with("flow of datagrams"))
    });
}

#[test]
fn an_address_that_proved_nothing_gets_at_most_three_times_what_it_sent() {
    let agent = Agent::answering(|datagram| match datagram.len() {
        100 => vec![vec![5; 1000]; 50],
        _ => vec![vec![6; 10_000]; 3],
    });
    let (gateway, pcoip) = start(&agent, "");
    let (_session, _connection) = open(&gateway, pcoip);
    let socket = datagrams(HOME, pcoip);
    socket.send(&first(100)).unwrap();
    assert!(is_silent(&socket), "1,000 octets for 100 are too many");
    socket.send(&[1; 12]).unwrap();
    let mut buffer = [0; 65_536];
    for _ in 0..3 {
        assert_eq!(socket.recv(&mut buffer).unwrap(), 10_000, "it went on after the answer");
    }
}

#[test]
fn hostile_datagrams_leave_no_state_and_get_no_answer() {
    let agent = Agent::echo();
    let (gateway, pcoip) = start(&agent, "[udp]\nflows_per_session = 2\nstrays_per_source = 50\n");
    let (_session, _connection) = open(&gateway, pcoip);
    let genuine = datagrams(HOME, pcoip);
    ask(&genuine, &first(100));
    let lines = gateway.lines().len();
    let memory = resident(gateway.pid());
    let descriptors = open_descriptors(gateway.pid());

    // Many sources, a few datagrams each: whatever they say.
    let huge = first(65_507);
    let sockets: Vec<_> = (0..400_u16)
        .map(|n| UdpSocket::bind(SocketAddr::from(([127, 1, (n >> 8) as u8, n as u8], 0))).unwrap())
        .collect();
    for (n, socket) in sockets.iter().enumerate() {
        socket.set_nonblocking(true).unwrap();
        for datagram in [&first(100)[..], &[1], &first(1200)] {
            let _ = socket.send_to(datagram, pcoip);
        }
        if n % 20 == 0 {
            let _ = socket.send_to(&huge, pcoip);
        }
    }
    // One source, very many; and the first datagram of another's flow, replayed from elsewhere and from its own address.
    for n in 0..20_000_usize {
        let _ = sockets[n % 3].send_to(&first(100), pcoip);
        if n % 100 == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let replays: Vec<_> = (0..50).map(|_| datagrams(HOME, pcoip)).collect();
    for socket in &replays {
        socket.send(&first(100)).unwrap();
    }

    assert_eq!(ask(&genuine, &first(99)), first(99), "the genuine flow goes on");
    std::thread::sleep(Duration::from_millis(300));
    let mut reflected = 0;
    for socket in &sockets {
        while let Ok(length) = socket.recv(&mut [0; 65_536]) {
            reflected += length;
        }
    }
    assert_eq!(reflected, 0, "strangers get nothing back");
    let answered = replays.iter().filter(|socket| !is_silent_now(socket)).count();
    assert!(answered <= 1, "{answered} replays were answered, one flow was left");
    let after = open_descriptors(gateway.pid());
    assert!(
        after <= descriptors + 2,
        "{after} descriptors after {descriptors}: one flow more at most"
    );
    let grown = resident(gateway.pid()).saturating_sub(memory);
    assert!(grown < 8 * 1024, "{grown} KiB more");
    let told: Vec<_> = gateway.lines().split_off(lines);
    let told = told
        .iter()
        .filter(|line| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.starts_with("datagrams refused"))
        })
        .count();
    assert!((1..=60).contains(&told), "{told} lines for 21,000 datagrams");
    assert!(agent.datagrams() <= 4);
}

#[test]
fn blasts_datagrams_pass_beside_its_websocket_and_quic_goes_on_at_the_same_port() {
    let agent = Agent::websocket();
    let pcoip = agent::free_port();
    let setup = with_blast(Setup::default(), &agent).section(&format!(
        "[pcoip]\nbind = [\"127.0.0.1:{pcoip}\"]\ncertificates = [\"own\"]\n"
    ));
    let gateway = Gateway::start(&setup);
    let stream = open_blast(&gateway);

    let socket = datagrams(HOME, gateway.address);
    for octets in [12, 1, 1200, 3000] {
        assert_eq!(ask(&socket, &vec![0x45; octets]), vec![0x45; octets]);
    }
    let quic = datagrams(HOME, gateway.address);
    let mut unknown = vec![0; 1200];
    unknown[..8].copy_from_slice(&[0xc0, 0x1a, 0x2a, 0x3a, 0x4a, 8, 1, 2]);
    let versions = ask(&quic, &unknown);
    assert_eq!(
        (versions[0] & 0x80, &versions[1..5]),
        (0x80, &[0; 4][..]),
        "a version negotiation"
    );
    quic.send(&[0x45; 100]).unwrap();
    assert!(is_silent(&quic), "what began as QUIC is not Blast's");
    assert_eq!(agent.datagrams(), 4);

    let other = datagrams(HOME, SocketAddr::from(([127, 0, 0, 1], pcoip)));
    assert_dropped(&gateway, &other, &first(100), "not_announced");
    drop(stream);
    gateway.wait_for("the end of the flow", |line| {
        line["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("flow of datagrams closed"))
    });
    socket.send(&first(100)).unwrap();
    assert!(is_silent(&socket));
    assert_eq!(agent.datagrams(), 4);
}

#[test]
fn blasts_port_says_nothing_to_strangers() {
    let agent = Agent::echo();
    let (setup, _) = agent::setup(&agent, "");
    let gateway = Gateway::start(&setup.listener("udp = true\n"));
    let socket = datagrams(HOME, gateway.address);
    for datagram in [&first(100)[..], &[0x40; 30], &[1], &[]] {
        socket.send(datagram).unwrap();
    }
    assert!(is_silent(&socket));
    assert_eq!(agent.datagrams(), 0);
}

fn start(agent: &Agent, sections: &str) -> (Gateway, SocketAddr) {
    let (setup, pcoip) = agent::setup(agent, "");
    (Gateway::start(&setup.section(sections)), pcoip)
}

/// A listener with datagrams, and a desktop for Blast.
fn with_blast(setup: Setup, agent: &Agent) -> Setup {
    let lines = "users = [\"ann\"]\nagent = { tls = false }";
    setup
        .listener("udp = true\n")
        .desktop_for("desk", agent.target.address, "blast", lines)
}

/// Signs in, launches and opens the WebSocket of Blast, which carries bytes.
fn open_blast(gateway: &Gateway) -> Stream {
    let user = raw::sign_in(gateway, "ann");
    let launch = message("<get-desktop-connection><desktop-id>desk</desktop-id></get-desktop-connection>");
    let reply = raw::post(gateway, Some(&user.cookie), &launch);
    let ticket = raw::element(reply.text(), "token").unwrap().replace("&quot;", "\"");
    let ticket: serde_json::Value = serde_json::from_str(&ticket).unwrap();
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

/// Signs in, launches and connects: the session's cookie and the connection, which carries bytes.
fn open(gateway: &Gateway, pcoip: SocketAddr) -> (String, Stream) {
    let launched = launch(gateway);
    (launched.cookie, reach(gateway, pcoip))
}

/// Nothing comes back, and the log has the one reason.
fn assert_dropped(gateway: &Gateway, socket: &UdpSocket, datagram: &[u8], reason: &str) {
    let before = gateway.lines().len();
    socket.send(datagram).unwrap();
    let line = gateway.wait_for_after(before, reason, |line| {
        line["message"]
            .as_str()
            .is_some_and(|text| text.starts_with("datagrams refused"))
    });
    assert_eq!(line["reason"], reason, "{line}");
    assert!(is_silent(socket), "{reason}");
}

fn is_silent_now(socket: &UdpSocket) -> bool {
    socket.set_nonblocking(true).unwrap();
    socket.recv(&mut [0; 65_536]).is_err()
}

/// Kibibytes in memory.
fn resident(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn open_descriptors(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
