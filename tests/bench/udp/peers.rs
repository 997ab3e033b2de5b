//! The proxies, each in processes of its own.

use std::net::{SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::load::Sink;
use super::support::agent::{connect, echoes, free_port, launch};
use super::support::raw::Stream;
use super::support::{Gateway, Setup};

/// A proxy between a client and the sink.
pub(crate) trait Proxy {
    fn name(&self) -> &'static str;
    /// A client's way through it.
    fn open(&self) -> Way;
}

pub(crate) struct Way {
    pub(crate) socket: UdpSocket,
    pub(crate) pids: Vec<u32>,
    /// Ours needs a connection beside the datagrams.
    _connection: Option<Stream>,
}

/// Those that are here: ours first, nginx second if it is here.
pub(crate) fn all(sink: &Sink) -> Vec<Box<dyn Proxy>> {
    let mut proxies: Vec<Box<dyn Proxy>> = vec![Box::new(Ours::start(sink))];
    proxies.extend(Nginx::start(sink.address).map(|nginx| Box::new(nginx) as Box<dyn Proxy>));
    proxies.extend(Socat::start(sink.address).map(|socat| Box::new(socat) as Box<dyn Proxy>));
    proxies
}

struct Ours {
    gateway: Gateway,
    pcoip: SocketAddr,
}

impl Ours {
    fn start(sink: &Sink) -> Self {
        let port = free_port();
        let setup = Setup::default()
            .node("grace_period = \"1 s\"\nworkers = 2\n")
            .section(&format!(
                "[pcoip]\nbind = [\"127.0.0.1:{port}\"]\ncertificates = [\"own\"]\n"
            ))
            .desktop_for(
                "desk",
                sink.target.address,
                "pcoip",
                "users = [\"ann\"]\nagent = { tls = false }",
            );
        let gateway = Gateway::start(&setup);
        launch(&gateway);
        let pcoip = SocketAddr::from(([127, 0, 0, 1], port));
        Self { gateway, pcoip }
    }
}

impl Proxy for Ours {
    fn name(&self) -> &'static str {
        "ours"
    }

    fn open(&self) -> Way {
        let mut connection = connect(&self.gateway, self.pcoip);
        assert!(echoes(&mut connection, b"open"));
        Way {
            socket: client(self.pcoip),
            pids: vec![self.gateway.pid()],
            _connection: Some(connection),
        }
    }
}

struct Nginx {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Nginx {
    fn start(to: SocketAddr) -> Option<Self> {
        let folder = TempDir::new().ok()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
        let load = if std::path::Path::new(module).exists() {
            format!("load_module {module};\n")
        } else {
            String::new()
        };
        let root = folder.path().display();
        let text = format!(
            "{load}daemon off;\nworker_processes 2;\npid {root}/pid;\nerror_log {root}/error.log;\n\
             events {{ worker_connections 1024; }}\n\
             stream {{ server {{ listen {address} udp reuseport; proxy_pass {to}; proxy_timeout 120s; }} }}\n"
        );
        std::fs::write(folder.path().join("nginx.conf"), text).ok()?;
        let child = quietly(Command::new("nginx").arg("-c").arg(folder.path().join("nginx.conf")))?;
        std::thread::sleep(Duration::from_millis(500));
        Some(Self {
            child,
            address,
            _folder: folder,
        })
    }
}

impl Proxy for Nginx {
    fn name(&self) -> &'static str {
        "nginx"
    }

    fn open(&self) -> Way {
        Way {
            socket: client(self.address),
            pids: family(self.child.id()),
            _connection: None,
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Its workers end with it only when it is asked.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

struct Socat {
    to: SocketAddr,
    running: std::cell::RefCell<Option<Child>>,
}

impl Socat {
    fn start(to: SocketAddr) -> Option<Self> {
        quietly(Command::new("socat").arg("-V"))?.wait().ok()?;
        Some(Self {
            to,
            running: std::cell::RefCell::default(),
        })
    }

    fn stop(&self) {
        if let Some(mut child) = self.running.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Proxy for Socat {
    fn name(&self) -> &'static str {
        "socat"
    }

    /// It serves one client, so each way has one of its own.
    fn open(&self) -> Way {
        self.stop();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut command = Command::new("socat");
        command
            .arg(format!("UDP4-LISTEN:{},bind=127.0.0.1,reuseaddr", address.port()))
            .arg(format!("UDP4:{}", self.to));
        let child = quietly(&mut command).expect("socat is here");
        std::thread::sleep(Duration::from_millis(200));
        let pids = vec![child.id()];
        self.running.replace(Some(child));
        Way {
            socket: client(address),
            pids,
            _connection: None,
        }
    }
}

impl Drop for Socat {
    fn drop(&mut self) {
        self.stop();
    }
}

fn client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let _ = socket2::SockRef::from(&socket).set_send_buffer_size(8 << 20);
    socket.connect(to).expect("an address of loopback");
    socket
}

fn quietly(command: &mut Command) -> Option<Child> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()
}

/// A process and its children.
fn family(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(pid).chain(children).collect()
}
