//! A service manager that keeps the listening sockets of a node (sd_notify(3), sd_listen_fds(3)), as the test plays it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use portcullis::clock;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use support::raw::{self, read_head};
use support::{Gateway, PATIENCE, Setup, portcullis};
use tempfile::TempDir;

/// What the manager was told, and what it keeps.
struct Manager {
    socket: UnixDatagram,
    stored: BTreeMap<String, OwnedFd>,
    ready: bool,
}

impl Manager {
    fn new(folder: &Path) -> Self {
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            socket,
            stored: BTreeMap::new(),
            ready: false,
        }
    }

    /// Hears until it is as wanted.
    fn until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            let mut bytes = [0; 4096];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut room);
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let received = recvmsg(&self.socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
            let mut descriptors = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(some) = message {
                    descriptors.extend(some);
                }
            }
            let words = String::from_utf8(bytes[..received.bytes].to_vec()).unwrap();
            let name = words
                .lines()
                .find_map(|line| line.strip_prefix("FDNAME="))
                .map(str::to_owned);
            if words.lines().any(|line| line == "FDSTOREREMOVE=1") {
                self.stored.remove(&name.unwrap());
            } else if words.lines().any(|line| line == "FDSTORE=1") {
                assert_eq!(descriptors.len(), 1, "{words}");
                // What it has already it does not take twice.
                self.stored.entry(name.unwrap()).or_insert(descriptors.remove(0));
            }
            self.ready |= words.lines().any(|line| line == "READY=1");
        }
    }

    /// The two sockets that it keeps, under the numbers at which services look for them.
    fn pass(&self, command: &Path, config: &Path) -> Command {
        let names: Vec<_> = self.stored.keys().cloned().collect();
        let [first, second] = &self.stored.values().collect::<Vec<_>>()[..] else {
            panic!("two sockets, not {names:?}");
        };
        let mut shell = Command::new("sh");
        shell
            .args([
                "-c",
                "export LISTEN_PID=$$; exec 3<&0 4<&1 0</dev/null 1>/dev/null; exec \"$@\"",
                "sh",
            ])
            .arg(command)
            .args(["serve", "--config"])
            .arg(config)
            .env("LISTEN_FDS", "2")
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdin(Stdio::from(first.try_clone().unwrap()))
            .stdout(Stdio::from(second.try_clone().unwrap()));
        shell
    }
}

/// A node under the manager. Dropped, it is killed.
struct Service(Child);

impl Service {
    fn start(mut command: Command, files: &TempDir) -> Self {
        let log = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(files.path().join("log"));
        let child = command
            .env("NOTIFY_SOCKET", files.path().join("notify"))
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn address_of(socket: &OwnedFd) -> SocketAddr {
    TcpListener::from(socket.try_clone().unwrap()).local_addr().unwrap()
}

fn ask(address: SocketAddr, chain: &Path) -> u16 {
    let mut stream = raw::tls_over(TcpStream::connect(address).unwrap(), chain);
    stream
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    read_head(&mut stream).status
}

#[test]
fn who_waits_while_a_node_has_crashed_is_served_by_the_next() {
    let files = Gateway::files(&Setup::default().section("[admin]\nbind = [\"127.0.0.1:0\"]\n"));
    let (config, chain) = (files.path().join("gw.toml"), files.path().join("chain.pem"));
    let program = Path::new(env!("CARGO_BIN_EXE_portcullis"));
    let mut manager = Manager::new(files.path());
    let mut command = portcullis();
    command.args(["serve", "--config"]).arg(&config);
    let service = Service::start(command, &files);
    manager.until(|manager| manager.ready && manager.stored.len() == 2);
    let clients = address_of(&manager.stored["connections-127.0.0.1_0"]);
    let operators = address_of(&manager.stored["operators-127.0.0.1_0"]);
    assert_eq!(ask(clients, &chain), 200);

    service.kill();
    let waiting = {
        let chain = chain.clone();
        std::thread::spawn(move || ask(clients, &chain))
    };
    manager.ready = false;
    let service = Service::start(manager.pass(program, &config), &files);
    manager.until(|manager| manager.ready);
    assert_eq!(waiting.join().unwrap(), 200, "who came in between");
    assert_eq!(ask(clients, &chain), 200);
    TcpStream::connect(operators).unwrap();
    assert_eq!(manager.stored.len(), 2);

    // What a reload takes away is kept by nobody.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(
        &config,
        text.replace("\"127.0.0.1:0\"]\ncertificates", "\"127.0.0.2:0\"]\ncertificates"),
    )
    .unwrap();
    let hung_up = Command::new("kill")
        .arg("-HUP")
        .arg(service.0.id().to_string())
        .status();
    assert!(hung_up.unwrap().success());
    manager.until(|manager| manager.stored.contains_key("connections-127.0.0.2_0") && manager.stored.len() == 2);
    refuses(clients);

    // Nor what a node does not know any more that is started again.
    service.kill();
    let elsewhere = address_of(&manager.stored["connections-127.0.0.2_0"]);
    fs::write(&config, text).unwrap();
    manager.ready = false;
    let _service = Service::start(manager.pass(program, &config), &files);
    manager.until(|manager| manager.ready && !manager.stored.contains_key("connections-127.0.0.2_0"));
    refuses(elsewhere);
}

/// Waits until nobody listens there.
fn refuses(address: SocketAddr) {
    let deadline = clock::now() + PATIENCE;
    while TcpStream::connect(address).is_ok() {
        assert!(clock::now() < deadline, "somebody listens at {address}");
        sleep(Duration::from_millis(10));
    }
}
