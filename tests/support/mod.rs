//! A whole gateway as its users meet it: the program itself, in a process of its own, with real files, sockets and signals.
//!
//! Every gateway has ports of its own (port 0) and a folder of its own; nothing is shared between tests.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of this")]

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tempfile::TempDir;

pub mod agent;
pub mod authority;
pub mod client;
pub mod heir;
pub mod only;
pub mod raw;

/// The password of every user that [`Setup`] makes.
pub const PASSWORD: &str = "open sesame 1";

/// Its hash, at the least cost that a configuration may have.
pub const PASSWORD_HASH: &str =
    "$argon2id$v=19$m=7168,t=5,p=1$cG9ydGN1bGxpcy1zYWx0$h1gvFaspW1nL7eoKOHdjtJ/yblQQuvpl1qRMO2GWaVI";

/// The longest that anything in a test may take before it is taken to hang.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The program under test.
pub fn portcullis() -> Command {
    Command::new(env!("CARGO_BIN_EXE_portcullis"))
}

/// What a gateway is to be like.
#[derive(Clone, Debug)]
pub struct Setup {
    name: String,
    bind: Vec<String>,
    sections: String,
    listener: String,
    node: String,
    users: Vec<String>,
    desktops: String,
}

impl Default for Setup {
    /// One listener on 127.0.0.1, the user `ann`, no desktop.
    fn default() -> Self {
        Self {
            name: "gw-1".to_owned(),
            bind: vec!["127.0.0.1:0".to_owned()],
            sections: String::new(),
            listener: String::new(),
            node: "grace_period = \"1 s\"\n".to_owned(),
            users: vec![user("ann", "")],
            desktops: String::new(),
        }
    }
}

impl Setup {
    /// The node's name.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_owned();
        self
    }

    /// Replaces the lines of `[node]` beyond name, state and socket.
    pub fn node(mut self, lines: &str) -> Self {
        self.node = lines.to_owned();
        self
    }

    /// Adds lines to `[listener.public]`.
    pub fn listener(mut self, lines: &str) -> Self {
        self.listener.push_str(lines);
        self
    }

    /// Replaces the addresses of the listener.
    pub fn bind(mut self, addresses: &[&str]) -> Self {
        self.bind = addresses.iter().map(|address| (*address).to_owned()).collect();
        self
    }

    /// Adds whole tables, such as `[limits]`.
    pub fn section(mut self, text: &str) -> Self {
        self.sections.push_str(text);
        self.sections.push('\n');
        self
    }

    /// Adds a user with further lines for their table.
    pub fn user(mut self, name: &str, lines: &str) -> Self {
        self.users.push(user(name, lines));
        self
    }

    /// Adds a desktop that `ann` may reach, such as `desktop("shell", address, "ssh")`.
    pub fn desktop(self, id: &str, address: SocketAddr, protocol: &str) -> Self {
        self.desktop_for(id, address, protocol, "users = [\"ann\"]")
    }

    /// Adds a desktop with further lines for its table.
    pub fn desktop_for(mut self, id: &str, address: SocketAddr, protocol: &str, lines: &str) -> Self {
        write!(
            self.desktops,
            "[directory.desktop.{id}]\nname = \"Desktop {id}\"\naddress = \"{}\"\nprotocols = {{ {protocol} = {} }}\n{lines}\n\n",
            address.ip(),
            address.port()
        )
        .unwrap();
        self
    }

    /// Changes the tables that were added.
    pub fn with(mut self, change: impl Fn(&str) -> String) -> Self {
        self.sections = change(&self.sections);
        self
    }

    /// The configuration as text, for a gateway whose files are in `folder`.
    fn text(&self, folder: &Path) -> String {
        let bind: Vec<_> = self.bind.iter().map(|address| format!("{address:?}")).collect();
        format!(
            "[node]\nname = \"{}\"\nstate_dir = \"{folder}/state\"\nadmin_socket = \"{folder}/admin.sock\"\n{}\n\
             [log]\nformat = \"json\"\nlevel = \"debug\"\n\n\
             [listener.public]\nbind = [{}]\ncertificates = [\"own\"]\n{}\n\
             [certificate.own]\nchain = \"{folder}/chain.pem\"\nkey = \"{folder}/key.pem\"\n\n{}\n{}\n{}",
            self.name,
            self.node,
            bind.join(", "),
            self.listener,
            self.sections,
            self.users.concat(),
            self.desktops,
            folder = folder.display(),
        )
    }
}

fn user(name: &str, lines: &str) -> String {
    format!("[directory.user.{name}]\npassword_hash = \"{PASSWORD_HASH}\"\n{lines}\n\n")
}

/// A running gateway. Dropped, it is killed.
pub struct Gateway {
    child: Child,
    folder: TempDir,
    log: Arc<Log>,
    /// Its first address.
    pub address: SocketAddr,
}

#[derive(Default)]
struct Log {
    lines: Mutex<Vec<Value>>,
    more: Condvar,
}

impl Gateway {
    /// Starts a gateway and waits until it is in service.
    pub fn start(setup: &Setup) -> Self {
        let folder = Self::files(setup);
        let (child, log) = spawn(Path::new(env!("CARGO_BIN_EXE_portcullis")), folder.path());
        let mut gateway = Self {
            child,
            folder,
            log,
            address: SocketAddr::from(([0, 0, 0, 0], 0)),
        };
        gateway.wait_until_in_service();
        gateway
    }

    /// The files of a gateway: `gw.toml`, `chain.pem`, `key.pem`.
    pub fn files(setup: &Setup) -> TempDir {
        let folder = TempDir::new().unwrap();
        let names = ["localhost".to_owned(), "gw.test".to_owned(), "127.0.0.1".to_owned()];
        let certificate = portcullis::secure::self_signed(&names, portcullis::clock::wall()).unwrap();
        fs::write(folder.path().join("chain.pem"), &certificate.chain).unwrap();
        write_private(&folder.path().join("key.pem"), certificate.key.expose());
        write_private(&folder.path().join("gw.toml"), &setup.text(folder.path()));
        folder
    }

    /// Starts it again after its end, with the same files and an empty log.
    pub fn restart(&mut self) {
        self.restart_as(Path::new(env!("CARGO_BIN_EXE_portcullis")));
    }

    /// The same with another build of the program.
    pub fn restart_as(&mut self, program: &Path) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        (self.child, self.log) = spawn(program, self.folder.path());
        self.wait_until_in_service();
    }

    fn wait_until_in_service(&mut self) {
        self.wait_for("in service", |line| line["message"] == "in service");
        self.address = self.addresses()[0];
    }

    /// The addresses on which clients are served, in the order in which they were announced.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.announced("listening")
    }

    /// The addresses of the plain health check.
    pub fn health_addresses(&self) -> Vec<SocketAddr> {
        self.announced("answering the plain health check")
    }

    /// The addresses on which RDP is served.
    pub fn rdp_addresses(&self) -> Vec<SocketAddr> {
        self.announced("listening for RDP")
    }

    /// The admin port, and the thumbprint that it tells.
    pub fn admin_port(&self) -> (SocketAddr, String) {
        let line = self.wait_for("the admin port", |line| line["message"] == "answering operators");
        let of = |field: &str| line[field].as_str().unwrap().to_owned();
        (of("address").parse().unwrap(), of("thumbprint"))
    }

    /// The address of the agent check.
    pub fn agent_address(&self) -> SocketAddr {
        let line = self.wait_for("the agent check", |line| line["message"] == "answering the agent check");
        line["address"].as_str().unwrap().parse().unwrap()
    }

    fn announced(&self, message: &str) -> Vec<SocketAddr> {
        let lines = self.lines();
        let of_message = lines.iter().filter(|line| line["message"] == message);
        of_message
            .map(|line| line["address"].as_str().unwrap().parse().unwrap())
            .collect()
    }

    /// The folder with `gw.toml`, `chain.pem`, `key.pem`, `state/` and `admin.sock`.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The node's certificate.
    pub fn chain(&self) -> PathBuf {
        self.folder.path().join("chain.pem")
    }

    /// An operator's command, spoken to this gateway.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let mut command = portcullis();
        command
            .args(arguments)
            .arg("--socket")
            .arg(self.folder.path().join("admin.sock"));
        command
    }

    /// Every line of the log so far.
    pub fn lines(&self) -> Vec<Value> {
        self.log.lines.lock().clone()
    }

    /// How many lines the log has so far.
    pub fn line_count(&self) -> usize {
        self.log.lines.lock().len()
    }

    /// The log so far as text, to search it for what must never be there.
    pub fn log_text(&self) -> String {
        self.lines().iter().map(|line| format!("{line}\n")).collect()
    }

    /// Waits for a line of the log.
    pub fn wait_for(&self, what: &str, matches: impl Fn(&Value) -> bool) -> Value {
        self.wait_for_after(0, what, matches)
    }

    /// The same, passing over the first `before` lines.
    pub fn wait_for_after(&self, before: usize, what: &str, matches: impl Fn(&Value) -> bool) -> Value {
        let deadline = portcullis::clock::now() + PATIENCE;
        let mut lines = self.log.lines.lock();
        loop {
            if let Some(line) = lines.iter().skip(before).find(|line| matches(line)) {
                return line.clone();
            }
            assert!(
                !self.log.more.wait_until(&mut lines, deadline).timed_out(),
                "no line in the log: {what}\n{}",
                lines.iter().map(|line| format!("{line}\n")).collect::<String>()
            );
        }
    }

    /// Sends a signal by its name, such as `HUP`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.child.id().to_string())
            .status()
            .unwrap();
        assert!(sent.success());
    }

    /// Replaces the configuration, which is read when somebody asks for it.
    pub fn configure(&self, setup: &Setup) {
        write_private(&self.folder.path().join("gw.toml"), &setup.text(self.folder.path()));
    }

    /// Replaces the configuration and has it read again; waits for the word of the log on it.
    pub fn reload(&self, setup: &Setup) -> Value {
        self.reload_text(&setup.text(self.folder.path()))
    }

    /// The same with any text.
    pub fn reload_text(&self, text: &str) -> Value {
        write_private(&self.folder.path().join("gw.toml"), text);
        let before = self.line_count();
        self.signal("HUP");
        self.wait_for_the_reload(before)
    }

    /// Waits for the word of the log on a reload, passing over the first `before` lines.
    pub fn wait_for_the_reload(&self, before: usize) -> Value {
        self.wait_for_after(before, "a word on the reload", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("configuration applied") || message.starts_with("configuration refused")
        })
    }

    /// Waits for the process to end by itself.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = portcullis::clock::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                portcullis::clock::now() < deadline,
                "the gateway does not end\n{}",
                self.log_text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn spawn(program: &Path, folder: &Path) -> (Child, Arc<Log>) {
    let mut child = Command::new(program)
        .arg("serve")
        .arg("--config")
        .arg(folder.join("gw.toml"))
        .env(
            "PORTCULLIS_TEST_RECOGNITION_KEY",
            "known to all nodes of this test, 32+",
        )
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let log = Arc::new(Log::default());
    let (stderr, sink) = (child.stderr.take().unwrap(), log.clone());
    std::thread::spawn(move || sink.follow(stderr));
    (child, log)
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Log {
    fn follow(&self, stderr: impl std::io::Read) {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            let value = serde_json::from_str(&line).unwrap_or(Value::String(line));
            self.lines.lock().push(value);
            self.more.notify_all();
        }
    }
}

/// A listening target that counts who dials it, and does with each connection what it was told.
pub struct Target {
    pub address: SocketAddr,
    dialled: Arc<AtomicUsize>,
}

impl Target {
    /// Sends back whatever comes.
    pub fn echo() -> Self {
        Self::new(|mut stream| {
            let mut writer = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut stream, &mut writer);
            let _ = writer.shutdown(std::net::Shutdown::Write);
        })
    }

    /// Handles each connection in a thread of its own.
    pub fn new(serve: impl Fn(std::net::TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let dialled = Arc::new(AtomicUsize::new(0));
        let (count, serve) = (dialled.clone(), Arc::new(serve));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        Self { address, dialled }
    }

    /// How often it was dialled.
    pub fn dialled(&self) -> usize {
        self.dialled.load(Ordering::SeqCst)
    }
}

/// Writes a file that only its owner may read.
pub fn write_private(file: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt as _;
    let _ = fs::remove_file(file);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
}

/// Reads a stream to its end.
pub fn read_all(mut stream: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

/// An address that refuses connections. It is held until the tests have ended: a port that is merely free may be another
/// test's a moment later.
pub fn refusing() -> SocketAddr {
    static HELD: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    HELD.lock().push(socket);
    address
}
