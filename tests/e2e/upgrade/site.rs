//! Two nodes behind HAProxy, the desktops and the application behind them, and what is done on each node.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use tempfile::TempDir;

use super::book::Book;
use crate::e2e::balancer::rig::{self, Fleet, HaProxy, Node};
use crate::rig::{Exchange, Origin, patiently};
use crate::support::agent::Agent;
use crate::support::raw::{Stream, connect_from};
use crate::support::{Gateway, PATIENCE, Setup, write_private};

mod operator;

pub(super) use operator::Method;

/// All of it. Dropped, every process is ended.
pub(super) struct Site {
    fleet: Mutex<Fleet>,
    /// The balancer's ports.
    pub(super) first: u16,
    pub(super) second: u16,
    haproxy: Mutex<HaProxy>,
    behind: Behind,
    /// The certificates that the nodes may show, in one file.
    pub(super) roots: PathBuf,
    certificates: [[Certificate; 2]; 2],
    /// The program that serves at each node.
    serving: Mutex<[Serving; 2]>,
    /// Processes that took over.
    heirs: Mutex<Vec<(Node, u32)>>,
    /// The turn of the configuration that is in force at each node for sure.
    in_force: [AtomicU64; 2],
    /// What nodes said that were started anew since.
    past_warnings: Mutex<Vec<String>>,
    /// The other builds of the program.
    folder: TempDir,
}

/// What the nodes lead to.
struct Behind {
    shell: Agent,
    blast: Agent,
    pcoip: Agent,
    shops: [Origin; 2],
    /// The ports of PCoIP, of operators, and of clients past the balancer, at each node.
    pcoip_port: u16,
    admin_port: u16,
    inner_port: u16,
    has_datagrams: bool,
}

struct Certificate {
    chain: String,
    key: String,
}

#[derive(Clone, Copy)]
struct Serving {
    pid: u32,
    generation: u32,
}

impl Site {
    pub(super) fn start(book: &Arc<Book>, has_datagrams: bool) -> Self {
        // Before anything is started that could hold one of them open.
        let folder = TempDir::new().unwrap();
        for generation in 1..=GENERATIONS {
            let build = folder.path().join(format!("portcullis-{generation}"));
            fs::copy(env!("CARGO_BIN_EXE_portcullis"), &build).unwrap();
            let mut file = fs::OpenOptions::new().append(true).open(&build).unwrap();
            write!(file, "build {generation}").unwrap();
        }
        let shop = || {
            let book = book.clone();
            Origin::new(move |exchange| sell(exchange, &book))
        };
        let ([pcoip, admin], [inner, _]) = (rig::free_ports(), rig::free_ports());
        let behind = Behind {
            shell: Agent::echo(),
            blast: Agent::websocket(),
            pcoip: Agent::echo(),
            shops: [shop(), shop()],
            pcoip_port: pcoip,
            admin_port: admin,
            inner_port: inner,
            has_datagrams,
        };
        let fleet = Fleet::start(|node, _| behind.setup(node, 0));
        let mut haproxy = HaProxy::start_unhurried(&fleet, &rig::documented("haproxy"));
        for node in Node::BOTH {
            haproxy.wait_for("nodes_443", node, "UP");
        }
        let certificates = Node::BOTH.map(|node| certificates(fleet.gateway(node).folder()));
        let roots = folder.path().join("roots.pem");
        let chains: String = certificates.iter().flatten().map(|one| one.chain.as_str()).collect();
        fs::write(&roots, chains).unwrap();
        operator::write_secrets(folder.path(), &fleet);
        let serving = Node::BOTH.map(|node| Serving {
            pid: fleet.gateway(node).pid(),
            generation: 0,
        });
        Self {
            first: fleet.first,
            second: fleet.second,
            fleet: Mutex::new(fleet),
            haproxy: Mutex::new(haproxy),
            behind,
            roots,
            certificates,
            serving: Mutex::new(serving),
            heirs: Mutex::default(),
            in_force: Default::default(),
            past_warnings: Mutex::default(),
            folder,
        }
    }

    /// A client's TLS connection through the balancer.
    pub(super) fn connect(&self, number: u8, port: u16, name: &str, tls: &Arc<ClientConfig>) -> Stream {
        let balancer = std::net::SocketAddr::from((BALANCER, port));
        tls_over(connect_from(address_of(number), balancer), name, tls)
    }

    /// What clients trust.
    pub(super) fn trust(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_file_iter(&self.roots).unwrap() {
            roots.add(root.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    /// The turn of the configuration that a node has for sure.
    pub(super) fn in_force(&self, node: Node) -> u64 {
        self.in_force[node as usize].load(Ordering::SeqCst)
    }

    /// Hands a node over to a build that it does not run yet.
    pub(super) fn hand_over(&self, node: Node) -> String {
        let serving = self.serving.lock()[node as usize];
        let generation = serving.generation + 1;
        let build = self.build(generation);
        let asked = portcullis::clock::now();
        let arguments = ["upgrade", "--json", "--binary", build.to_str().unwrap()];
        let mut command = self.fleet.lock().gateway(node).operator(&arguments);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {said}", node.name());
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let pid = u32::try_from(told["pid"].as_u64().unwrap()).unwrap();
        self.serves(node, pid, generation);
        let took = portcullis::clock::now() - asked;
        format!(
            "{} handed over to process {pid} in {} ms",
            node.name(),
            took.as_millis()
        )
    }

    /// Keeps which process has taken a node over, and asks both whether it runs that build.
    fn serves(&self, node: Node, pid: u32, generation: u32) {
        self.heirs.lock().push((node, pid));
        let build = self.build(generation);
        assert_eq!(fs::read_link(format!("/proc/{pid}/exe")).unwrap(), build);
        let mut command = (self.fleet.lock().gateway(node)).operator(&["quiesce", "status", "--json"]);
        let status: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
        let told = [&status["program"], &status["last_upgrade"]["program"]];
        assert_eq!(told, [build.to_str().unwrap(); 2], "{status}");
        self.serving.lock()[node as usize] = Serving { pid, generation };
    }

    /// The program as another build: one that does the same, and is another file.
    fn build(&self, generation: u32) -> PathBuf {
        self.folder.path().join(format!("portcullis-{generation}"))
    }

    /// Puts the configuration of that turn in force at a node; every tenth comes with the other certificate.
    pub(super) fn change(&self, node: Node, turn: u64) {
        let fleet = self.fleet.lock();
        let gateway = fleet.gateway(node);
        let setup = self.behind.setup(node, turn);
        let binds = [self.first, self.second].map(|port| format!("{}:{port}", node.host()));
        gateway.configure(&setup.bind(&[&binds[0], &binds[1]]));
        if turn.is_multiple_of(10) {
            let certificate = &self.certificates[node as usize][usize::from(turn.is_multiple_of(20))];
            fs::write(gateway.chain(), &certificate.chain).unwrap();
            write_private(&gateway.folder().join("key.pem"), &certificate.key);
        }
        let before = gateway.line_count();
        signal("HUP", self.serving.lock()[node as usize].pid);
        let told = gateway.wait_for_the_reload(before);
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("configuration applied"), "{told}");
        self.in_force[node as usize].store(turn, Ordering::SeqCst);
    }

    /// Where a client reaches PCoIP at a node.
    pub(super) fn pcoip(&self, node: Node) -> String {
        format!("{}:{}", node.host(), self.behind.pcoip_port)
    }

    /// How often the balancer took a node to be down.
    pub(super) fn downs(&self) -> u32 {
        let haproxy = self.haproxy.lock();
        Node::BOTH.map(|node| haproxy.downs("nodes_443", node)).iter().sum()
    }

    /// Waits until no process is left but those that serve: with nothing open the ones before them end by themselves.
    pub(super) fn wait_until_the_old_have_ended(&self) {
        for node in Node::BOTH {
            let serving = self.serving.lock()[node as usize].pid;
            for pid in self.processes(node).iter().filter(|pid| **pid != serving) {
                patiently("a process that handed over ends", || has_ended(*pid));
            }
        }
    }

    /// The processes of a node: the one that was started, and those that took over and have not ended.
    fn processes(&self, node: Node) -> Vec<u32> {
        let mut processes = vec![self.fleet.lock().gateway(node).pid()];
        let heirs = self.heirs.lock();
        let of_node = heirs.iter().filter(|(of, pid)| *of == node && self.runs_a_build(*pid));
        processes.extend(of_node.map(|(_, pid)| *pid));
        processes
    }

    /// Whether a process runs one of the builds: its number may be another's by now.
    fn runs_a_build(&self, pid: u32) -> bool {
        fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|program| program.starts_with(self.folder.path()))
    }

    /// What the nodes said at level `WARN` and above.
    pub(super) fn warnings(&self) -> String {
        let past = self.past_warnings.lock().concat();
        let of = |node| warnings_of(self.fleet.lock().gateway(node));
        past + &Node::BOTH.map(of).concat()
    }
}

fn warnings_of(gateway: &Gateway) -> String {
    let lines = gateway.lines();
    let worth = |line: &&Value| line["level"] == "WARN" || line["level"] == "ERROR" || line.is_string();
    lines.iter().filter(worth).map(|line| format!("{line}\n")).collect()
}

impl Drop for Site {
    fn drop(&mut self) {
        for (_, pid) in self.heirs.lock().iter().filter(|(_, pid)| self.runs_a_build(*pid)) {
            signal("KILL", *pid);
        }
    }
}

impl Behind {
    /// The configuration of a node at some turn.
    fn setup(&self, node: Node, turn: u64) -> Setup {
        let (host, port, udp) = (node.host(), self.pcoip_port, self.has_datagrams);
        let mut setup = Setup::default()
            .named(node.name())
            .node("grace_period = \"1 s\"\nrecognition_key = { env = \"PORTCULLIS_TEST_RECOGNITION_KEY\" }\n")
            .listener(&format!("balancers = [\"127.0.0.1\"]\nudp = {udp}\n"))
            .section("[authentication]\ndisclaimer = \"For authorised users only.\"\n")
            .section(&format!(
                "[pcoip]\nbind = [\"{host}:{port}\"]\ncertificates = [\"own\"]\nexternal_address = \"{host}:{port}\"\n"
            ))
            .section(&format!("[admin]\nbind = [\"{host}:{}\"]\n", self.admin_port))
            .section(&format!(
                "[listener.inner]\nbind = [\"{host}:{}\"]\ncertificates = [\"own\"]\n",
                self.inner_port
            ))
            .section(&self.published(node, turn));
        setup = setup.user(PROBE, "groups = [\"all\"]");
        for number in 1..=USERS {
            setup = setup.user(&user(number), "groups = [\"all\"]");
        }
        let all = "groups = [\"all\"]\nagent = { tls = false }";
        setup
            .desktop_for("shell", self.shell.target.address, "ssh", "groups = [\"all\"]")
            .desktop_for("blast", self.blast.target.address, "blast", all)
            .desktop_for("pcoip", self.pcoip.target.address, "pcoip", all)
    }

    /// The application, with targets, weights and rules that are others at each turn.
    fn published(&self, node: Node, turn: u64) -> String {
        let [one, two] = &self.shops.each_ref().map(Origin::quoted);
        let targets = match turn % 4 {
            0 => one.clone(),
            1 => format!("{one}, {two}"),
            2 => two.clone(),
            _ => format!("{{ address = {two}, weight = {} }}, {one}", turn % 7 + 1),
        };
        let balance = if turn.is_multiple_of(2) {
            "round_robin"
        } else {
            "least_requests"
        };
        let name = node.name();
        format!(
            "[probe.quick]\npath = \"/probe\"\ninterval = \"1 s\"\ntimeout = \"1 s\"\nthreshold = 2\n\
             [pool.shop]\ntargets = [{targets}]\nbalance = \"{balance}\"\n[backend.shop]\nprobe = \"quick\"\n\
             [rule.shop]\nhosts = [\"gw.test\"]\npriority = {}\npool = \"shop\"\nbackend = \"shop\"\n\
             [rule.shop.response_headers]\nset = {{ X-Node = \"{name}\", X-Turn = \"{turn}\" }}\n\
             [[rule.shop.path]]\npaths = [\"/turn-{turn}/*\"]\nredirect = {{ url = \"https://elsewhere.test\" }}\n\
             [rule.another-{turn}]\nhosts = [\"turn-{turn}.test\"]\npriority = 5\npool = \"shop\"\n",
            turn % 100 + 10,
        )
    }
}

/// What the application does: `/download` lasts for as long as changes take, `/ws` echoes, everything else says what it got.
fn sell(exchange: &mut Exchange<'_>, book: &Book) {
    let step = book.step();
    let target = exchange.target();
    if exchange.seen().has("upgrade") {
        exchange.send("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n");
        while let Some(bytes) = exchange.read() {
            exchange.send(bytes);
        }
        exchange.close();
    } else if target == "/download" {
        exchange.body();
        exchange.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
        let mut pieces: u64 = 0;
        while !book.has_changed_since(step) {
            exchange.send(format!("{:x}\r\n{}\r\n", PIECE.len(), PIECE));
            pieces += 1;
            std::thread::sleep(super::PACE / 5);
        }
        let told = format!("{pieces:>16}");
        exchange.send(format!("10\r\n{told}\r\n0\r\n\r\n"));
    } else {
        let length = exchange.body().len();
        exchange.reply(&format!("{target} {length}"));
    }
    exchange.forget();
}

/// What downloads and uploads are made of.
pub(super) const PIECE: &str = "A piece of what lasts for longer than the process that carries it. ";

/// TLS over a connection that is there.
pub(super) fn tls_over(socket: std::net::TcpStream, name: &str, tls: &Arc<ClientConfig>) -> Stream {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_nodelay(true).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(tls.clone(), name).unwrap(), socket)
}

/// The address of a client.
pub(super) fn address_of(number: u8) -> [u8; 4] {
    [127, 0, 1, number]
}

/// The user who sits at it.
pub(super) fn user(number: u8) -> String {
    format!("user-{number}")
}

/// The certificate that a node has, and another one.
fn certificates(folder: &Path) -> [Certificate; 2] {
    let names = ["localhost", "gw.test", "127.0.0.1"].map(str::to_owned);
    let other = portcullis::secure::self_signed(&names, portcullis::clock::wall()).unwrap();
    let read = |file: &str| fs::read_to_string(folder.join(file)).unwrap();
    [
        Certificate {
            chain: other.chain,
            key: other.key.expose().to_owned(),
        },
        Certificate {
            chain: read("chain.pem"),
            key: read("key.pem"),
        },
    ]
}

fn signal(signal: &str, pid: u32) {
    // One that has ended already is no fault.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
}

/// Whether nothing but its exit status is left of a process.
fn has_ended(pid: u32) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |words| words.is_empty())
}

/// Where HAProxy listens.
pub(super) const BALANCER: [u8; 4] = [127, 0, 0, 10];
const USERS: u8 = 210;
/// Who signs in past the balancer to see whether a node lets users through.
const PROBE: &str = "probe";
/// Builds of the program beside the first.
const GENERATIONS: u32 = 5;
