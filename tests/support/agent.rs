//! A desktop's PCoIP agent, and its clients: connections with bytes, and datagrams beside them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::raw::{self, Stream, element, message};
use super::{Gateway, PATIENCE, Setup, Target};

/// Datagrams, each with the address from which it came.
pub type Heard = Vec<(SocketAddr, Vec<u8>)>;

/// An agent that echoes over TCP and UDP at one port.
pub struct Agent {
    pub target: Target,
    heard: Arc<Mutex<Heard>>,
    datagrams: Arc<AtomicUsize>,
}

impl Agent {
    /// Echoes everything.
    pub fn echo() -> Self {
        Self::answering(|datagram| vec![datagram.to_vec()])
    }

    /// Answers each datagram with these.
    pub fn answering(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        Self::with(Target::echo, answers)
    }

    /// Agrees to every WebSocket and echoes what follows; and its datagrams.
    pub fn websocket() -> Self {
        let agree = |mut stream: TcpStream| {
            let mut head = Vec::new();
            let mut octet = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut octet).is_ok() {
                head.push(octet[0]);
            }
            let agreed = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
            let _ = stream.write_all(agreed.as_bytes());
            let mut back = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut back);
        };
        Self::with(|| Target::new(agree), |datagram| vec![datagram.to_vec()])
    }

    fn with(serve: impl Fn() -> Target, answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        let (target, socket) = Self::at_one_port(serve);
        let heard: Arc<Mutex<Heard>> = Arc::default();
        let datagrams = Arc::new(AtomicUsize::new(0));
        let (kept, count) = (heard.clone(), datagrams.clone());
        std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                let mut kept = kept.lock();
                if kept.len() < 1000 {
                    kept.push((from, buffer[..length].to_vec()));
                }
                for answer in answers(&buffer[..length]) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self {
            target,
            heard,
            datagrams,
        }
    }

    /// Has a port for connections and none for datagrams.
    pub fn without_datagrams() -> Self {
        Self {
            target: Target::echo(),
            heard: Arc::default(),
            datagrams: Arc::default(),
        }
    }

    fn at_one_port(serve: impl Fn() -> Target) -> (Target, UdpSocket) {
        let pair = |_| {
            let target = serve();
            let socket = UdpSocket::bind(target.address).ok()?;
            Some((target, socket))
        };
        (0..50).find_map(pair).expect("a port that is free for both")
    }

    /// What it heard, with the port from which it came.
    pub fn heard(&self) -> Heard {
        self.heard.lock().clone()
    }

    /// How many datagrams it got.
    pub fn datagrams(&self) -> usize {
        self.datagrams.load(Ordering::SeqCst)
    }
}

/// A port that nobody has, for connections and datagrams.
pub fn free_port() -> u16 {
    let port = |_| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        UdpSocket::bind(address).is_ok().then_some(address.port())
    };
    (0..50).find_map(port).expect("a port that is free for both")
}

/// A gateway with PCoIP on a port of its own, and the desktop `desk` with that agent, which speaks no TLS.
pub fn setup(agent: &Agent, pcoip: &str) -> (Setup, SocketAddr) {
    let port = free_port();
    let setup = Setup::default()
        .section(&format!(
            "[pcoip]\nbind = [\"127.0.0.1:{port}\"]\ncertificates = [\"own\"]\n{pcoip}"
        ))
        .desktop_for(
            "desk",
            agent.target.address,
            "pcoip",
            "users = [\"ann\"]\nagent = { tls = false }",
        );
    (setup, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A user whose desktop is launched.
pub struct Launched {
    pub cookie: String,
    pub address: SocketAddr,
    pub token: String,
}

/// Signs in and launches `desk`.
pub fn launch(gateway: &Gateway) -> Launched {
    let user = raw::sign_in(gateway, "ann");
    launch_again(gateway, &user.cookie, "desk")
}

/// Launches a desktop in a session that is there.
pub fn launch_again(gateway: &Gateway, cookie: &str, desktop: &str) -> Launched {
    let operation = format!(
        "<get-desktop-connection><desktop-id>{desktop}</desktop-id><protocol><name>PCOIP</name></protocol></get-desktop-connection>"
    );
    let answer = raw::post(gateway, Some(cookie), &message(&operation));
    let text = answer.text();
    let field = |name| element(text, name).expect(text);
    Launched {
        cookie: cookie.to_owned(),
        address: SocketAddr::new(field("address").parse().unwrap(), field("port").parse().unwrap()),
        token: field("token").to_owned(),
    }
}

/// Connects to the port of PCoIP and agrees TLS.
pub fn connect(gateway: &Gateway, to: SocketAddr) -> Stream {
    let mut stream = raw::tls_over(TcpStream::connect(to).unwrap(), &gateway.chain());
    stream.conn.complete_io(&mut stream.sock).unwrap();
    stream
}

/// The same, and waits until the gateway has reached the agent.
pub fn reach(gateway: &Gateway, to: SocketAddr) -> Stream {
    let mut stream = connect(gateway, to);
    assert!(echoes(&mut stream, b"is anybody there"));
    stream
}

/// Sends bytes through a connection and has them back.
pub fn echoes(stream: &mut (impl std::io::Read + std::io::Write), bytes: &[u8]) -> bool {
    let mut back = vec![0; bytes.len()];
    stream.write_all(bytes).is_ok() && stream.flush().is_ok() && stream.read_exact(&mut back).is_ok() && back == bytes
}

/// A socket for datagrams from that address of loopback, connected to the gateway.
pub fn datagrams(from: [u8; 4], to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(SocketAddr::from((from, 0))).unwrap();
    socket.connect(to).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Whether nothing comes for a while.
pub fn is_silent(socket: &UdpSocket) -> bool {
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let silent = socket.recv(&mut [0; 65_536]).is_err();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    silent
}

/// A datagram that may be the first of a flow: header, index, sequence number, `octets` in all.
pub fn first(octets: usize) -> Vec<u8> {
    let mut datagram = vec![7; octets];
    datagram[..12].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 0, 1]);
    datagram
}

/// Sends a datagram and has the answer.
pub fn ask(socket: &UdpSocket, datagram: &[u8]) -> Vec<u8> {
    socket.send(datagram).unwrap();
    let mut buffer = vec![0; 65_536];
    let length = socket.recv(&mut buffer).expect("an answer");
    buffer.truncate(length);
    buffer
}

/// A token's labels in a host name, as a client of any make writes them: base 32 of the secret, and of the MAC with the
/// node's name.
pub fn labels(token: &str) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let (rest, mac) = token.rsplit_once('.').unwrap();
    let (node, secret) = rest.rsplit_once('.').unwrap();
    let decode = |text| URL_SAFE_NO_PAD.decode(text).unwrap();
    let recognised = [decode(mac), node.as_bytes().to_vec()].concat();
    format!("t-{}.{}", base32(&decode(secret)), base32(&recognised))
}

fn base32(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digits = bits.as_bytes().chunks(5).map(|group| {
        let mut group = String::from_utf8(group.to_vec()).unwrap();
        while group.len() < 5 {
            group.push('0');
        }
        let place = usize::from_str_radix(&group, 2).unwrap();
        char::from(b"abcdefghijklmnopqrstuvwxyz234567"[place])
    });
    digits.collect()
}
