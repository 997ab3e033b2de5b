//! Blast and PCoIP: connections that echo, some with a flow of datagrams beside them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::book::{Kind, Load};
use super::client::Client;
use super::site::{address_of, tls_over};
use crate::e2e::balancer::rig::Node;
use crate::support::agent;
use crate::support::raw::{Stream, connect_from, element, read_head};

/// A connection to a desktop.
pub(super) struct Desktop {
    stream: Stream,
    flow: Option<Flow>,
    turns: u8,
}

/// Datagrams from one port, each with a number of its own.
struct Flow {
    socket: UdpSocket,
    next: u32,
}

pub(super) fn open_blast(client: &Client, node: Node) -> Desktop {
    let cookie = client.finish(&client.begin());
    let reply = client.launch(&cookie, "blast", "<protocol><name>BLAST</name></protocol>");
    let ticket = element(&reply, "token").unwrap().replace("&quot;", "\"");
    let ticket: serde_json::Value = serde_json::from_str(&ticket).unwrap();
    let mut stream = client.connect("localhost");
    let head = format!(
        "GET /r/{}/d/1B2F3C4D-0000-1111-2222-0123456789AB/ HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
         Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        ticket["r"].as_str().unwrap()
    );
    stream.write_all(head.as_bytes()).unwrap();
    let answer = read_head(&mut stream);
    assert_eq!(answer.status, 101, "{}", answer.head);
    // Datagrams pass the balancer by.
    let beside = format!("{}:{}", node.host(), client.site.first);
    Desktop::new(client, stream, Kind::BlastUdp, &beside)
}

pub(super) fn open_pcoip(client: &Client, node: Node) -> Desktop {
    let cookie = client.finish(&client.begin());
    let reply = client.launch(&cookie, "pcoip", "<protocol><name>PCOIP</name></protocol>");
    let told = ["address", "port"].map(|name| element(&reply, name).expect(&reply));
    let at = client.site.pcoip(node);
    assert_eq!(told.join(":"), at, "each node tells its own address");
    let socket = connect_from(address_of(client.load.number), at.parse().unwrap());
    let stream = tls_over(socket, "localhost", &client.tls);
    Desktop::new(client, stream, Kind::PcoipUdp, &at)
}

pub(super) fn turn(client: &Client, _: Node, desktop: &mut Desktop) {
    desktop.turns = desktop.turns.wrapping_add(1);
    desktop.echo();
    if let Some(flow) = &mut desktop.flow {
        flow.ask(&client.load);
    }
}

impl Desktop {
    /// With a flow to that address if the load is of that kind.
    fn new(client: &Client, stream: Stream, with_flow: Kind, to: &str) -> Self {
        let mut desktop = Self {
            stream,
            flow: None,
            turns: client.load.number,
        };
        desktop.echo();
        desktop.flow = (client.load.kind == with_flow).then(|| Flow::open(client, to.parse().unwrap()));
        desktop
    }

    fn echo(&mut self) {
        // As a frame of WebSocket, which is as good for PCoIP as anything.
        let mut frame = vec![self.turns; 102];
        frame[..2].copy_from_slice(&[0x82, 100]);
        let mut back = vec![0; frame.len()];
        self.stream.write_all(&frame).expect("a connection to write on");
        self.stream.read_exact(&mut back).expect("an echo");
        assert_eq!(back, frame);
    }
}

impl Flow {
    fn open(client: &Client, to: SocketAddr) -> Self {
        let socket = agent::datagrams(address_of(client.load.number), to);
        assert_eq!(agent::ask(&socket, &agent::first(40)), agent::first(40));
        socket.set_read_timeout(Some(ANSWER)).unwrap();
        Self { socket, next: 0 }
    }

    /// Sends until something comes back. None of these could open a flow: if that one is gone, none is answered.
    fn ask(&mut self, load: &Load) {
        for _ in 0..ATTEMPTS {
            self.next += 1;
            let datagram = [[9; 20].as_slice(), &self.next.to_be_bytes()].concat();
            self.socket.send(&datagram).expect("the way to the node");
            let mut buffer = [0; 100];
            while let Ok(length) = self.socket.recv(&mut buffer) {
                if buffer[..length] == datagram {
                    return;
                }
            }
            load.lost();
        }
        panic!("the flow of datagrams is lost");
    }
}

/// For a datagram to be answered before it is taken to be lost.
const ANSWER: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 10;
