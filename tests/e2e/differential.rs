//! The same bytes to this node, to nginx and to HAProxy, configured alike, before the same application: what each of them
//! answers and what the application gets. Where they differ, the reason stands beside it.

mod cases;

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use super::peer::{Peer, tool};
use crate::rig::{Origin, Shop, second_address};

/// What became of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    /// This status, and nothing reached the application; 0 is closed without an answer.
    Refuse(u16),
    /// The application got a request with this target, and the client its answer.
    Pass(&'static str),
    /// It passed, and the application has got so many requests.
    PassMany(usize),
}

struct Case {
    bytes: &'static str,
    ours: Did,
    nginx: Did,
    haproxy: Did,
    /// Why they differ; empty where they do not.
    why: &'static str,
}

const fn case(bytes: &'static str, [ours, nginx, haproxy]: [Did; 3], why: &'static str) -> Case {
    Case {
        bytes,
        ours,
        nginx,
        haproxy,
        why,
    }
}

#[test]
fn every_difference_has_its_reason() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).plain().start();
    let (nginx, haproxy) = (Other::nginx(origin.address), Other::haproxy(origin.address));
    let mut faults = Vec::new();
    for case in &cases::ALL {
        for (name, address, expected) in [
            ("ours", second_address(&gateway), case.ours),
            ("nginx", nginx.address, case.nginx),
            ("haproxy", haproxy.address, case.haproxy),
        ] {
            let (status, targets) = send(address, case.bytes, &origin);
            let is_so = match expected {
                Did::Refuse(expected) => status == expected && targets.is_empty(),
                Did::Pass(target) => targets == [target] && status == 200,
                Did::PassMany(count) => targets.len() == count && status == 200,
            };
            if !is_so {
                faults.push(format!(
                    "{name}: {:?}\n  not {expected:?}, but {status} {targets:?}",
                    case.bytes
                ));
            }
        }
        let differs = case.ours != case.nginx || case.ours != case.haproxy;
        if differs == case.why.is_empty() {
            faults.push(format!(
                "{:?}: a reason for a difference, and for nothing else",
                case.bytes
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Sends bytes: the first status that comes back, and what the application was asked for meanwhile.
fn send(to: SocketAddr, bytes: &str, origin: &Origin) -> (u16, Vec<String>) {
    let before = origin.seen().len();
    let mut stream = TcpStream::connect(to).unwrap();
    // Whoever waits for more than came would wait for long: what has come by then is what there is.
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..length]);
        // Whatever else there is follows at once.
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    }
    let text = String::from_utf8_lossy(&answer);
    let status = text
        .split(' ')
        .nth(1)
        .and_then(|status| status.get(..3))
        .and_then(|status| status.parse().ok());
    let targets = origin.seen()[before..]
        .iter()
        .map(|seen| seen.target().to_owned())
        .collect();
    (status.unwrap_or(0), targets)
}

/// nginx or HAProxy, without TLS.
struct Other {
    address: SocketAddr,
    _peer: Peer,
    _folder: TempDir,
}

impl Other {
    fn nginx(target: SocketAddr) -> Self {
        Self::start("nginx", |folder, address| {
            format!(
                "daemon off;\nworker_processes 1;\npid {folder}/pid;\nerror_log {folder}/error.log;\nevents {{}}\nhttp {{\n\
                 access_log off;\nclient_body_temp_path {folder}/body;\nproxy_temp_path {folder}/proxy;\nfastcgi_temp_path {folder}/f;\n\
                 uwsgi_temp_path {folder}/u;\nscgi_temp_path {folder}/s;\n\
                 server {{ listen {address}; server_name shop.test; location / {{ proxy_pass http://{target};\n\
                 proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
                 proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; proxy_set_header X-Forwarded-Proto $scheme; }} }} }}\n"
            )
        })
    }

    fn haproxy(target: SocketAddr) -> Self {
        Self::start("haproxy", |_, address| {
            format!(
                "defaults\n mode http\n timeout connect 5s\n timeout client 5s\n timeout server 5s\nfrontend f\n bind {address}\n\
                 option forwardfor\n http-request set-header X-Forwarded-Proto http\n default_backend b\nbackend b\n server s {target}\n"
            )
        })
    }

    fn start(name: &str, configuration: impl Fn(&str, SocketAddr) -> String) -> Self {
        let folder = TempDir::new().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let file = folder.path().join("conf");
        fs::write(&file, configuration(&folder.path().display().to_string(), address)).unwrap();
        let mut command: Command = tool(name);
        if name == "nginx" {
            command.arg("-c").arg(&file).arg("-p").arg(folder.path());
        } else {
            command.args(["-db", "-f"]).arg(&file);
        }
        let mut peer = Peer::start(&mut command, folder.path());
        peer.wait_for("its port", || TcpStream::connect(address).ok());
        Self {
            address,
            _peer: peer,
            _folder: folder,
        }
    }
}
