//! A gateway with a listener `sql`, whose rule of that name leads to the pool of that name.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Gateway, PATIENCE, Setup, Target, raw, refusing};

/// Where the listener `sql` is.
const SQL: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// What is configured.
#[derive(Clone)]
pub(crate) struct Sql {
    setup: Setup,
    protocol: String,
    leads_to: String,
    targets: Vec<String>,
    listener: String,
    rule: String,
    pool: String,
    backend: String,
    probe: String,
    tables: String,
}

impl Sql {
    /// With targets at these addresses, which are not probed before a test is long over.
    pub(crate) fn of(targets: &[SocketAddr]) -> Self {
        Self {
            setup: Setup::default(),
            protocol: "protocol = \"tcp\"\n".to_owned(),
            leads_to: "sql".to_owned(),
            targets: targets.iter().map(|address| format!("\"{address}\"")).collect(),
            listener: String::new(),
            rule: String::new(),
            pool: String::new(),
            backend: "protocol = \"tcp\"\n".to_owned(),
            probe: format!("interval = \"24 h\"\nport = {}\n", refusing().port()),
            tables: String::new(),
        }
    }

    /// Other targets, with the rest as it is.
    pub(crate) fn targets(mut self, targets: &[SocketAddr]) -> Self {
        self.targets = targets.iter().map(|address| format!("\"{address}\"")).collect();
        self
    }

    /// Targets as they are written.
    pub(crate) fn written(mut self, targets: &[String]) -> Self {
        self.targets = targets.to_vec();
        self
    }

    /// Has the rule lead to another pool.
    pub(crate) fn leads_to(mut self, pool: &str) -> Self {
        self.leads_to = pool.to_owned();
        self
    }

    /// Ends TLS of clients under the gateway's own certificate.
    pub(crate) fn tls(mut self) -> Self {
        self.protocol = "protocol = \"tls\"\ncertificates = [\"own\"]\n".to_owned();
        self
    }

    /// Lets TLS of clients pass.
    pub(crate) fn passthrough(mut self) -> Self {
        self.protocol = "protocol = \"tls\"\ntls = \"passthrough\"\n".to_owned();
        self
    }

    /// Adds lines to `[listener.sql]`.
    pub(crate) fn listener(mut self, lines: &str) -> Self {
        self.listener.push_str(lines);
        self.listener.push('\n');
        self
    }

    /// Adds lines to `[rule.sql]`.
    pub(crate) fn rule(mut self, lines: &str) -> Self {
        self.rule.push_str(lines);
        self.rule.push('\n');
        self
    }

    /// Adds lines to `[pool.sql]`.
    pub(crate) fn pool(mut self, lines: &str) -> Self {
        self.pool.push_str(lines);
        self.pool.push('\n');
        self
    }

    /// Replaces the protocol of `[backend.sql]`, and adds lines.
    pub(crate) fn backend_as(mut self, protocol: &str, lines: &str) -> Self {
        self.backend = format!("protocol = \"{protocol}\"\n{lines}\n");
        self
    }

    /// Adds lines to `[backend.sql]`.
    pub(crate) fn backend(mut self, lines: &str) -> Self {
        self.backend.push_str(lines);
        self.backend.push('\n');
        self
    }

    /// Replaces the lines of `[probe.sql]`.
    pub(crate) fn probe(mut self, lines: &str) -> Self {
        self.probe = format!("{lines}\n");
        self
    }

    /// Adds whole tables.
    pub(crate) fn table(mut self, text: &str) -> Self {
        self.tables.push_str(text);
        self.tables.push('\n');
        self
    }

    /// Changes the gateway's own part.
    pub(crate) fn setup(mut self, change: impl FnOnce(Setup) -> Setup) -> Self {
        self.setup = change(self.setup);
        self
    }

    /// The whole.
    pub(crate) fn to_setup(&self) -> Setup {
        self.setup.clone().section(&format!(
            "[listener.sql]\nbind = [\"{SQL}:0\"]\n{}{}\n[rule.sql]\nlisteners = [\"sql\"]\npriority = 100\npool = \
             \"{}\"\nbackend = \"sql\"\n{}\n[pool.sql]\ntargets = [{}]\n{}\n[backend.sql]\nprobe = \"sql\"\n{}\n[probe.sql]\n{}\n{}",
            self.protocol,
            self.listener,
            self.leads_to,
            self.rule,
            self.targets.join(", "),
            self.pool,
            self.backend,
            self.probe,
            self.tables,
        ))
    }

    /// Starts a gateway.
    pub(crate) fn start(&self) -> Gateway {
        Gateway::start(&self.to_setup())
    }

    /// Puts it in force at a gateway that runs; it must be taken.
    pub(crate) fn apply(&self, gateway: &Gateway) {
        let told = gateway.reload(&self.to_setup());
        let message = told["message"].as_str().unwrap();
        assert!(message.starts_with("configuration applied"), "{told}");
    }
}

/// Connects to the listener `sql`.
pub(crate) fn connect(gateway: &Gateway) -> TcpStream {
    connect_to(at(gateway, SQL))
}

/// Connects.
pub(crate) fn connect_to(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Connects with TLS under a name, and takes the gateway's own certificate for it.
pub(crate) fn connect_tls(gateway: &Gateway, name: &str) -> raw::Stream {
    raw::tls_named(connect(gateway), &gateway.chain(), name)
}

/// The listener at an address.
pub(crate) fn at(gateway: &Gateway, ip: IpAddr) -> SocketAddr {
    let found = gateway.addresses().into_iter().find(|address| address.ip() == ip);
    found.expect("the listener")
}

/// A target that says its name, and then sends back what comes.
pub(crate) fn named(name: &'static str) -> Target {
    Target::new(move |mut stream| {
        if stream.write_all(name.as_bytes()).is_err() {
            return;
        }
        let mut writer = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut stream, &mut writer);
        let _ = writer.shutdown(std::net::Shutdown::Write);
    })
}

/// The first byte that comes: a target's name.
pub(crate) fn name_of(stream: &mut impl std::io::Read) -> Option<char> {
    let mut name = [0];
    match stream.read(&mut name) {
        Ok(1) => Some(char::from(name[0])),
        Ok(_) | Err(_) => None,
    }
}

/// Whether what is sent comes back.
pub(crate) fn echoes(stream: &mut (impl std::io::Read + std::io::Write)) -> bool {
    let mut back = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut back).is_ok() && &back == b"ping"
}

/// Whether the connection ends, in whatever way, within the patience.
pub(crate) fn ends(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => true,
        Err(cause) => cause.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

/// Whether the connection breaks off.
pub(crate) fn breaks(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    let ended = stream.read_to_end(&mut rest);
    ended.is_err_and(|cause| cause.kind() == std::io::ErrorKind::ConnectionReset)
}

/// Waits for the line of a passage that ended so.
pub(crate) fn closed(gateway: &Gateway, reason: &str) -> Value {
    gateway.wait_for(&format!("a passage closed: {reason}"), |line| {
        line["message"] == "passage closed" && line["reason"] == reason
    })
}

/// What monitoring reads.
pub(crate) fn metrics(gateway: &Gateway) -> String {
    asked(gateway, "/metrics")
}

/// What the operator's socket answers.
pub(crate) fn asked(gateway: &Gateway, path: &str) -> String {
    let mut socket = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").unwrap();
    raw::read_answer(&mut socket).text().to_owned()
}

/// The value of a sample.
pub(crate) fn sample(gateway: &Gateway, name: &str) -> Option<u64> {
    let metrics = metrics(gateway);
    let value = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map(|value| value.parse().unwrap())
}

/// The sample of a passage's family, for what is configured here.
pub(crate) fn of_sql(gateway: &Gateway, family: &str) -> Option<u64> {
    let labels = r#"{listener="sql",pool="sql",backend="sql"}"#;
    sample(gateway, &format!("portcullis_passages{family}{labels}"))
}

/// Open descriptors of the gateway's process.
pub(crate) fn descriptors(gateway: &Gateway) -> usize {
    fs::read_dir(format!("/proc/{}/fd", gateway.pid())).unwrap().count()
}

/// Waits until something is so.
pub(crate) fn patiently(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = portcullis::clock::now() + PATIENCE;
    while !is_so() {
        assert!(portcullis::clock::now() < deadline, "never so: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
