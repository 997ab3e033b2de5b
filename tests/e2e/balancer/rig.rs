//! Two nodes and a balancer, each on an address of loopback, and clients with addresses of their own.
//!
//! The balancer is 127.0.0.10, the nodes 127.0.0.11 and 127.0.0.12, clients 127.0.1.1 and on. Ports are free ones. A balancer
//! reaches the nodes from 127.0.0.1.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::ops::RangeInclusive;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::e2e::peer::{Peer, tool};
use crate::support::authority::Authority;
use crate::support::raw::{self, Stream, connect_from, element, message};
use crate::support::{Gateway, PASSWORD, PATIENCE, Setup};

/// A node of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::e2e) enum Node {
    One,
    Two,
}

impl Node {
    pub(in crate::e2e) const BOTH: [Self; 2] = [Self::One, Self::Two];

    pub(in crate::e2e) fn name(self) -> &'static str {
        match self {
            Self::One => "gw-1",
            Self::Two => "gw-2",
        }
    }

    pub(in crate::e2e) fn host(self) -> &'static str {
        match self {
            Self::One => "127.0.0.11",
            Self::Two => "127.0.0.12",
        }
    }
}

/// The tables with which a node reaches the other one, each at one of `ports`.
pub(super) fn relay(authority: &Authority, node: Node, ports: [u16; 2]) -> String {
    let at = |node: Node| format!("{}:{}", node.host(), ports[node as usize]);
    let other = if node == Node::One { Node::Two } else { Node::One };
    format!(
        "[fleet]\nbind = [\"{}\"]\ncertificate = \"fleet\"\nca = {:?}\npeers = {{ {} = \"{}\" }}\n{}",
        at(node),
        authority.certificate().display().to_string(),
        other.name(),
        at(other),
        authority.table("fleet", node.name())
    )
}

/// Two nodes that recognise each other's tokens, with two ports each: those of the balancer.
pub(in crate::e2e) struct Fleet {
    nodes: [Gateway; 2],
    setups: [Setup; 2],
    /// The port on which users sign in.
    pub(in crate::e2e) first: u16,
    /// The other one.
    pub(in crate::e2e) second: u16,
    /// The port at which the nodes answer the agent check, if they do.
    agent: u16,
    tls: Arc<ClientConfig>,
}

impl Fleet {
    /// Starts both, each as `like` makes it.
    pub(in crate::e2e) fn start(like: impl Fn(Node, Setup) -> Setup) -> Self {
        let ([first, second], [agent, _]) = (free_ports(), free_ports());
        let setups = Node::BOTH.map(|node| {
            let setup = like(node, setup(node));
            setup.with(|text| text.replace(":9442", &format!("{}:{agent}", node.host())))
        });
        let nodes = Node::BOTH.map(|node| {
            let binds = [first, second].map(|port| format!("{}:{port}", node.host()));
            Gateway::start(&setups[node as usize].clone().bind(&[&binds[0], &binds[1]]))
        });
        let mut roots = RootCertStore::empty();
        for node in &nodes {
            roots.add(CertificateDer::from_pem_file(node.chain()).unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self {
            nodes,
            setups,
            first,
            second,
            agent,
            tls: Arc::new(tls),
        }
    }

    pub(in crate::e2e) fn gateway(&self, node: Node) -> &Gateway {
        &self.nodes[node as usize]
    }

    /// Runs an operator's command on a node.
    pub(in crate::e2e) fn operator(&self, node: Node, command: &[&str]) {
        let output = self.gateway(node).operator(command).output().unwrap();
        assert!(output.status.success(), "{command:?}");
    }

    /// Ends every session of a node.
    pub(super) fn end_all(&self, node: Node) {
        let output = self
            .gateway(node)
            .operator(&["sessions", "list", "--json"])
            .output()
            .unwrap();
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for session in list["sessions"].as_array().unwrap() {
            self.operator(node, &["sessions", "kill", session["id"].as_str().unwrap()]);
        }
    }

    /// Has a node drain and end.
    pub(super) fn stop(&mut self, node: Node) {
        self.gateway(node).signal("TERM");
        self.nodes[node as usize].wait();
    }

    pub(super) fn restart(&mut self, node: Node) {
        self.nodes[node as usize].restart();
    }

    /// The same with another build of the program.
    pub(in crate::e2e) fn restart_as(&mut self, node: Node, program: &Path) {
        self.nodes[node as usize].restart_as(program);
    }

    /// Takes the port away on which users sign in; the other one stays.
    pub(super) fn close_first_port(&self, node: Node) {
        self.serve_on(node, &[self.second]);
    }

    pub(super) fn open_first_port(&self, node: Node) {
        self.serve_on(node, &[self.first, self.second]);
    }

    fn serve_on(&self, node: Node, ports: &[u16]) {
        let binds: Vec<_> = ports.iter().map(|port| format!("{}:{port}", node.host())).collect();
        let binds: Vec<_> = binds.iter().map(String::as_str).collect();
        let told = self
            .gateway(node)
            .reload(&self.setups[node as usize].clone().bind(&binds));
        assert!(
            told["message"].as_str().unwrap().starts_with("configuration applied"),
            "{told}"
        );
    }

    /// The codes of the findings that hold.
    pub(super) fn findings(&self, node: Node) -> Vec<String> {
        let output = self.gateway(node).operator(&["doctor", "--json"]).output().unwrap();
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let findings = said["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["holds"] == true)
            .map(|finding| finding["code"].as_str().unwrap().to_owned())
            .collect()
    }

    /// A client signs in through the balancer's first port.
    pub(super) fn sign_in(&self, number: u8) -> Client {
        self.sign_in_at(number, self.first)
    }

    /// The same through any port.
    pub(super) fn sign_in_at(&self, number: u8, port: u16) -> Client {
        let mut stream = self.connect(number, port);
        let first = raw::post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
        let cookie = first.session_cookie().expect("a cookie with the first reply");
        let answers = raw::password_message(&user(number), PASSWORD, "<get-tunnel-connection/>");
        let second = raw::post_on(&mut stream, Some(&cookie), answers.as_bytes());
        let cookie = second.session_cookie().expect("a new cookie at the sign-in");
        Client::of(number, cookie, second.text())
    }

    /// A client comes half the way of a sign-in in two screens, and closes its connection: its cookie.
    pub(super) fn begin(&self, number: u8) -> String {
        let mut stream = self.connect(number, self.first);
        let first = raw::post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
        let cookie = first.session_cookie().expect("a cookie with the first reply");
        let accept = "<do-submit-authentication><screen><name>disclaimer</name><params><param><name>accept</name>\
                      <values><value>true</value></values></param></params></screen></do-submit-authentication>";
        let second = raw::post_on(&mut stream, Some(&cookie), message(accept).as_bytes());
        assert!(
            second.text().contains("<name>windows-password</name>"),
            "{}",
            second.text()
        );
        cookie
    }

    /// And the other half, on a connection of its own: `None` if it has to begin anew.
    pub(super) fn finish(&self, number: u8, cookie: &str) -> Option<Client> {
        let mut stream = self.connect(number, self.first);
        let answers = raw::password_message(&user(number), PASSWORD, "<get-tunnel-connection/>");
        let third = raw::post_on(&mut stream, Some(cookie), answers.as_bytes());
        let is_in = element(third.text(), "connection-id").is_some();
        is_in.then(|| Client::of(number, third.session_cookie().expect("a new cookie"), third.text()))
    }

    /// Sign-ins in the middle at a node.
    pub(super) fn half_done(&self, node: Node) -> usize {
        let output = self
            .gateway(node)
            .operator(&["quiesce", "status", "--json"])
            .output()
            .unwrap();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        status["pending_logins"].as_u64().unwrap().try_into().unwrap()
    }

    /// A client that is signed in asks for another token, on a connection of its own.
    pub(super) fn announce_again(&self, client: &Client) -> Client {
        let mut stream = self.connect(client.number, self.first);
        let asks = message("<get-tunnel-connection/>");
        let answer = raw::post_on(&mut stream, Some(&client.cookie), asks.as_bytes());
        Client::of(client.number, client.cookie.clone(), answer.text())
    }

    /// Opens a client's tunnel on a port of the balancer; `None` if it is refused.
    pub(super) fn tunnel(&self, client: &Client, port: u16) -> Option<Tunnel> {
        let mut stream = self.connect(client.number, port);
        let token = &client.token;
        let head =
            format!("POST /ice/tunnel?{token} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let answer = raw::read_head(&mut stream);
        if answer.status != 200 {
            assert_eq!(answer.status, 403);
            return None;
        }
        raw::send_chunk(&mut stream, &raw::init_chunk());
        let mut tunnel = Tunnel {
            stream,
            token: token.clone(),
        };
        assert!(tunnel.hears_a_chunk());
        Some(tunnel)
    }

    fn connect(&self, number: u8, port: u16) -> Stream {
        let balancer: SocketAddr = format!("127.0.0.10:{port}").parse().unwrap();
        let socket = connect_from([127, 0, 1, number], balancer);
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(self.tls.clone(), name).unwrap(), socket)
    }
}

/// A client that is signed in.
#[derive(Debug)]
pub(super) struct Client {
    /// The last octet of its address, and the number of its user.
    pub(super) number: u8,
    cookie: String,
    token: String,
    /// The node that issued its token.
    pub(super) node: Node,
    /// The port at which it was told to open its tunnel.
    pub(super) told: u16,
}

impl Client {
    fn of(number: u8, cookie: String, reply: &str) -> Self {
        let token = element(reply, "connection-id").unwrap_or_else(|| panic!("no token in {reply}"));
        let owner = token.split('.').next().unwrap();
        let node = Node::BOTH.into_iter().find(|node| node.name() == owner).unwrap();
        let server = element(reply, "server1").unwrap();
        let told = server.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
        Self {
            number,
            cookie,
            token: token.to_owned(),
            node,
            told: told.unwrap_or(443),
        }
    }
}

/// An open tunnel in the middle of its opening.
pub(super) struct Tunnel {
    stream: Stream,
    token: String,
}

impl Tunnel {
    /// Whether its node goes on with the opening. Once a tunnel.
    pub(super) fn speaks(&mut self) -> bool {
        raw::send_chunk(&mut self.stream, &raw::start_chunk(&self.token));
        self.hears_a_chunk()
    }

    fn hears_a_chunk(&mut self) -> bool {
        let mut size = Vec::new();
        let mut byte = [0];
        while !size.ends_with(b"\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => size.push(byte[0]),
                Ok(_) | Err(_) => return false,
            }
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        size > 0 && self.stream.read_exact(&mut vec![0; size + 2]).is_ok()
    }
}

/// HAProxy in front of a fleet.
pub(in crate::e2e) struct HaProxy {
    peer: Peer,
    statistics: PathBuf,
    _folder: TempDir,
}

impl HaProxy {
    /// Starts it with a text in which the addresses and ports of the documents stand; it checks the nodes far more often
    /// than that says.
    pub(super) fn start(fleet: &Fleet, text: &str) -> Self {
        Self::start_unhurried(fleet, &text.replace("inter 2s", "inter 100ms"))
    }

    /// The same, and it checks them as often as the text says. A check that is not answered within its interval counts as
    /// failed, which busy nodes need not bear with.
    pub(in crate::e2e) fn start_unhurried(fleet: &Fleet, text: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let statistics = folder.path().join("admin.sock");
        let text = placed(fleet, text)
            .replace("agent-port 9442", &format!("agent-port {}", fleet.agent))
            .replace("/run/haproxy/admin.sock", statistics.to_str().unwrap());
        let file = folder.path().join("haproxy.cfg");
        fs::write(&file, text).unwrap();
        let mut command = tool("haproxy");
        let mut peer = Peer::start(command.arg("-db").arg("-f").arg(&file), folder.path());
        peer.wait_for("answers", || UnixStream::connect(&statistics).ok());
        Self {
            peer,
            statistics,
            _folder: folder,
        }
    }

    /// Waits until it takes a node for this, such as `UP`, `NOLB` or `DOWN`.
    pub(in crate::e2e) fn wait_for(&mut self, backend: &str, node: Node, status: &str) {
        let Self { peer, statistics, .. } = self;
        peer.wait_for(&format!("{backend}/{} {status}", node.name()), || {
            let is = statistic(statistics, backend, node, STATUS)?;
            (is.strip_suffix(" (agent)").unwrap_or(&is) == status).then_some(())
        });
    }

    /// How often it has taken a node to be down.
    pub(in crate::e2e) fn downs(&self, backend: &str, node: Node) -> u32 {
        let times = statistic(&self.statistics, backend, node, CHECKS_DOWN).unwrap();
        times.parse().unwrap()
    }
}

/// A column of what HAProxy tells about a node.
fn statistic(socket: &Path, backend: &str, node: Node, column: usize) -> Option<String> {
    let mut socket = UnixStream::connect(socket).ok()?;
    socket.write_all(b"show stat\n").ok()?;
    let mut table = String::new();
    socket.read_to_string(&mut table).ok()?;
    let row = table
        .lines()
        .find(|row| row.starts_with(&format!("{backend},{},", node.name())))?;
    row.split(',').nth(column).map(str::to_owned)
}

/// Columns of HAProxy's table.
const STATUS: usize = 17;
const CHECKS_DOWN: usize = 22;

/// nginx in front of a fleet.
pub(super) struct Nginx {
    _peer: Peer,
    _folder: TempDir,
}

impl Nginx {
    /// Ports for the sign-in and for each node.
    pub(super) fn ports() -> [u16; 3] {
        let ([a, b], [c, _]) = (free_ports(), free_ports());
        [a, b, c]
    }

    /// Starts it with a text in which the addresses and ports of the documents stand.
    pub(super) fn start(fleet: &Fleet, text: &str, [sign_in, one, two]: [u16; 3]) -> Self {
        let folder = TempDir::new().unwrap();
        let text = placed(
            fleet,
            &text
                .replace("192.0.2.10:443", &format!("127.0.0.10:{sign_in}"))
                .replace("192.0.2.10:10143", &format!("127.0.0.10:{one}"))
                .replace("192.0.2.10:10243", &format!("127.0.0.10:{two}")),
        );
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let place = folder.path().display();
        let file = folder.path().join("nginx.conf");
        let around =
            format!("load_module {module};\ndaemon off;\npid {place}/pid;\nerror_log stderr;\nevents {{}}\n{text}");
        fs::write(&file, around).unwrap();
        let mut command = tool("nginx");
        let mut peer = Peer::start(command.arg("-p").arg(folder.path()).arg("-c").arg(&file), folder.path());
        let at: SocketAddr = format!("127.0.0.10:{sign_in}").parse().unwrap();
        peer.wait_for("answers", || std::net::TcpStream::connect(at).ok());
        Self {
            _peer: peer,
            _folder: folder,
        }
    }
}

/// The documented configuration of HAProxy with other lines in the place of how it checks the nodes.
pub(super) fn checked_by(lines: &str) -> String {
    let whole = documented("haproxy");
    let (before, rest) = whole.split_once("    option httpchk").unwrap();
    let (_, after) = rest.split_once("    server gw-1 10.0.0.11:443\n").unwrap();
    // Servers that track others need the same of it, which the document says.
    let of_both = lines
        .lines()
        .find(|line| line.contains("disable-on-404"))
        .unwrap_or_default();
    let after = after.replace("backend nodes_8443\n", &format!("backend nodes_8443\n{of_both}\n"));
    format!("{before}{lines}    server gw-1 10.0.0.11:443\n{after}")
}

/// How the documented configuration of HAProxy checks the nodes.
pub(super) fn documented_check() -> String {
    let whole = documented("haproxy");
    let (_, rest) = whole.split_once("    option httpchk").unwrap();
    let (lines, _) = rest.split_once("    server gw-1 10.0.0.11:443\n").unwrap();
    format!("    option httpchk{lines}")
}

/// The configuration of that kind in docs/load-balancers.md, to the letter.
pub(in crate::e2e) fn documented(kind: &str) -> String {
    let document = fs::read_to_string("docs/load-balancers.md").unwrap();
    let (_, rest) = document.split_once(&format!("```{kind}\n")).unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    text.to_owned()
}

/// Does something for each number, some at a time.
pub(super) fn all<N: Into<u8>, R: Send>(numbers: impl IntoIterator<Item = N>, each: impl Fn(u8) -> R + Sync) -> Vec<R> {
    let numbers: Vec<u8> = numbers.into_iter().map(Into::into).collect();
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                    let Some(number) = numbers.get(at) else { return };
                    let outcome = each(*number);
                    done.lock().push((at, outcome));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn placed(fleet: &Fleet, text: &str) -> String {
    let Fleet { first, second, .. } = fleet;
    let mut text = text.to_owned();
    for (documented, host) in [
        ("192.0.2.10", "127.0.0.10"),
        ("10.0.0.11", Node::One.host()),
        ("10.0.0.12", Node::Two.host()),
    ] {
        text = text
            .replace(&format!("{documented}:8443"), &format!("{host}:{second}"))
            .replace(&format!("{documented}:443"), &format!("{host}:{first}"));
    }
    text
}

fn setup(node: Node) -> Setup {
    let fleet = "grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n";
    let users: RangeInclusive<u8> = 1..=110;
    users.fold(Setup::default().named(node.name()).node(fleet), |setup, number| {
        setup.user(&user(number), "")
    })
}

fn user(number: u8) -> String {
    format!("user-{number}")
}

/// Two ports that are free at the balancer and at the nodes, for datagrams too.
pub(in crate::e2e) fn free_ports() -> [u16; 2] {
    let mut held = Vec::new();
    let mut found = Vec::new();
    while found.len() < 2 {
        let at_balancer = TcpListener::bind("127.0.0.10:0").unwrap();
        let port = at_balancer.local_addr().unwrap().port();
        let at_nodes = Node::BOTH.map(|node| {
            let datagrams = UdpSocket::bind((node.host(), port));
            TcpListener::bind((node.host(), port)).and_then(|listener| Ok((listener, datagrams?)))
        });
        if at_nodes.iter().all(Result::is_ok) {
            found.push(port);
        }
        held.push((at_balancer, at_nodes));
    }
    [found[0], found[1]]
}
