//! Nodes of versions that do not know every call.

use std::fs;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::types::Thumbprint;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::rig::{NEXT, events, fleet, last_words, private, stderr, told};
use crate::support::PATIENCE;

/// A stand-in for the admin port of a node.
struct Older {
    name: &'static str,
    address: SocketAddr,
    thumbprint: String,
    /// The calls that were made.
    heard: Arc<Mutex<Vec<String>>>,
}

impl Older {
    /// It knows these calls beside `GET /api/v1/node` and `PUT /api/v1/node/quiesce`; and all but `calls` are not there.
    fn start(name: &'static str, calls: &'static [&'static str]) -> Self {
        let made = portcullis::secure::self_signed(&["localhost".to_owned()], portcullis::clock::wall()).unwrap();
        let certificate = CertificateDer::from_pem_slice(made.chain.as_bytes()).unwrap();
        let thumbprint = Thumbprint::of(&certificate).to_hex();
        let key = PrivateKeyDer::from_pem_slice(made.key.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let kept = heard.clone();
        std::thread::spawn(move || {
            let mut quiesced = false;
            for socket in listener.incoming().map_while(Result::ok) {
                socket.set_read_timeout(Some(PATIENCE)).unwrap();
                let connection = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(connection, socket);
                let Some((call, body)) = request(&mut stream) else {
                    continue;
                };
                kept.lock().push(format!("{call} {body}").trim().to_owned());
                let is_known = calls.contains(&call.as_str());
                quiesced = body["quiesced"].as_bool().filter(|_| is_known).unwrap_or(quiesced);
                let (status, answer) = match call.as_str() {
                    _ if !is_known => ("404 Not Found", json!({ "detail": "There is nothing here." })),
                    "POST /api/v1/node/upgrade/check" => ("200 OK", check()),
                    _ => ("200 OK", node(name, quiesced)),
                };
                let answer = answer.to_string();
                let length = answer.len();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                // Who asked may have gone.
                let _ = stream.write_all((head + &answer).as_bytes());
                stream.conn.send_close_notify();
                let _ = stream.flush();
            }
        });
        Self {
            name,
            address,
            thumbprint,
            heard,
        }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().clone()
    }
}

/// Method and path of a request, and its body if that is JSON.
fn request(stream: &mut impl Read) -> Option<(String, Value)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut octet = [0];
        stream.read_exact(&mut octet).ok()?;
        head.push(octet[0]);
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    let length = head
        .split("content-length: ")
        .nth(1)
        .and_then(|rest| rest.lines().next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).ok()?;
    let (method, rest) = head.split_once(' ')?;
    let path = rest.split(' ').next()?;
    let body = serde_json::from_slice(&body).unwrap_or_default();
    Some((format!("{} {path}", method.to_ascii_uppercase()), body))
}

/// How a node is, with no more than every version tells.
fn node(name: &str, quiesced: bool) -> Value {
    let state = if quiesced { "quiesced" } else { "serving" };
    json!({
        "name": name, "version": "0.0.9", "state": state, "health": if quiesced { 503 } else { 200 },
        "sessions": 0, "tunnels": 0, "pending_logins": 0, "connections": 0
    })
}

fn check() -> Value {
    json!({ "version": "0.1.0", "sha256": "aa", "running_sha256": "bb", "faults": [] })
}

/// An inventory of them.
fn inventory(nodes: &[&Older]) -> TempDir {
    let folder = TempDir::new().unwrap();
    private(&folder.path().join("token"), "pct_0123456789\n");
    let tables = nodes.iter().map(|node| {
        format!(
            "[[node]]\nname = \"{}\"\nadmin = \"https://{}\"\ntoken_file = \"token\"\nthumbprint = \"{}\"\nbinary = {:?}\n",
            node.name, node.address, node.thumbprint, *NEXT
        )
    });
    fs::write(folder.path().join("fleet.toml"), tables.collect::<String>()).unwrap();
    folder
}

const STATUS: &str = "GET /api/v1/node";
const QUIESCE: &str = "PUT /api/v1/node/quiesce";
const CHECK: &str = "POST /api/v1/node/upgrade/check";

#[test]
fn a_node_that_cannot_check_a_program_is_named_and_nothing_is_changed() {
    let nodes = [
        Older::start("gw-1", &[STATUS, QUIESCE]),
        Older::start("gw-2", &[STATUS, QUIESCE, CHECK]),
    ];
    let folder = inventory(&[&nodes[0], &nodes[1]]);
    let file = folder.path().join("fleet.toml");
    for method in ["handover", "restart"] {
        let output = fleet(&file, &["upgrade", "--method", method]).output().unwrap();
        let words = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{words}");
        assert!(
            words.contains(
                "gw-1  It does not know POST /api/v1/node/upgrade/check: it is of an earlier version, which `fleet` cannot \
                 do that with. Upgrade it on the node itself: portcullis upgrade.\n"
            ) && words.contains("gw-2  ok: 0.0.9 to 0.1.0")
                && words.ends_with("Nothing was changed.\n"),
            "{words}"
        );
    }
    // What every version knows goes on.
    let output = fleet(&file, &["status"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let output = fleet(&file, &["diff"]).output().unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stdout).as_ref()),
        (Some(0), ""),
        "{}",
        stderr(&output)
    );
    for node in &nodes {
        assert!(
            node.heard().iter().all(|call| !call.starts_with("PUT")),
            "{:?}",
            node.heard()
        );
    }
}

#[test]
fn a_node_that_cannot_be_told_to_change_its_program_is_left_in_service() {
    let nodes = ["gw-1", "gw-2"].map(|name| Older::start(name, &[STATUS, QUIESCE, CHECK]));
    let folder = inventory(&[&nodes[0], &nodes[1]]);
    let file = folder.path().join("fleet.toml");
    for (method, call, left) in [
        ("handover", "POST /api/v1/node/upgrade", "It serves as before."),
        ("restart", "POST /api/v1/node/end", "It is back in service, as it was."),
    ] {
        let arguments = ["upgrade", "--method", method, "--watch", "1s", "--json"];
        let output = fleet(&file, &arguments).output().unwrap();
        let events = events(&output);
        assert_eq!(output.status.code(), Some(7), "{events:#?}");
        let words = last_words(&events);
        let expected = format!("gw-1: It does not know {call}: it is of an earlier version");
        assert!(
            words.contains(&expected)
                && words.contains(left)
                && words.contains("In service: gw-1, gw-2. Out of service: none."),
            "{words}"
        );
        assert_eq!(told(&events, "in_service"), Vec::<&str>::new());
    }
    let changes = |node: &Older| {
        let mut heard = node.heard();
        heard.retain(|call| call.starts_with("PUT"));
        heard
    };
    let quiesce = |quiesced: bool| format!("{QUIESCE} {{\"quiesced\":{quiesced}}}");
    assert_eq!(changes(&nodes[0]), [quiesce(true), quiesce(false)]);
    assert_eq!(changes(&nodes[1]), Vec::<String>::new());
}

#[test]
fn what_is_no_node_is_told_so() {
    let nothing = Older::start("gw-1", &[]);
    let folder = inventory(&[&nothing]);
    let file = folder.path().join("fleet.toml");
    for arguments in [&["status"][..], &["upgrade", "--check"]] {
        let output = fleet(&file, arguments).output().unwrap();
        let words = stderr(&output);
        assert!(
            words.contains(&format!(
                "What answers at https://{} is not the admin port of a node, or its version is too old for `fleet`.",
                nothing.address
            )),
            "{words}"
        );
        assert_eq!(output.status.code(), Some(3), "{words}");
    }
}
