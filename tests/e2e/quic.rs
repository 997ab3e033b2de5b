//! QUIC with peers of another make: aioquic over a network that misbehaves, and Chromium.

use std::collections::{HashMap, HashSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use tempfile::TempDir;

use super::peer::{path_of, tool};
use crate::rig::{Origin, Shop};
use crate::support::raw::{self, element, message};
use crate::support::{Gateway, Setup, Target};

fn gateway(address: SocketAddr) -> Gateway {
    Gateway::start(
        &Setup::default()
            .listener("udp = true\n")
            .desktop("shell", address, "ssh"),
    )
}

/// Signs in, launches the desktop over QUIC, and has the other client play a scenario.
fn play(scenario: &str, gateway: &Gateway) -> Value {
    let user = raw::sign_in(gateway, "ann");
    let ask = |operation: &str| raw::post(gateway, Some(&user.cookie), &message(operation));
    let offer = ask("<get-tunnel-connection><quic>true</quic></get-tunnel-connection>");
    let token = element(offer.text(), "token").expect("QUIC is offered").to_owned();
    let launched =
        ask("<get-desktop-connection><desktop-id>shell</desktop-id><quic>true</quic></get-desktop-connection>");
    let part = |name| element(launched.text(), name).expect("a launch");
    let place = format!("{}:{}", part("address"), part("port"));
    let port = gateway.address.port().to_string();
    let mut command = python("masque.py");
    command.args([scenario, "127.0.0.1", &port]).arg(gateway.chain());
    let found = told(command.args([&token, &place]), gateway);
    println!("{scenario}: {found}");
    found
}

/// A program of another make.
fn python(program: &str) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = here.join("target/python-peers/bin/python");
    assert!(python.exists(), "aioquic is not installed: install it with tests/run");
    let mut command = Command::new(python);
    command.arg(here.join("tests/e2e").join(program)).stdin(Stdio::null());
    command
}

/// What such a program has found.
fn told(command: &mut Command, gateway: &Gateway) -> Value {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}\n{}", gateway.log_text());
    serde_json::from_slice(&output.stdout).unwrap()
}

fn udp_echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

#[test]
fn another_client_connects_and_half_closes() {
    let target = Target::new(|mut stream| {
        let mut question = Vec::new();
        stream.read_to_end(&mut question).unwrap();
        std::thread::sleep(Duration::from_secs(1));
        stream.write_all(&question).unwrap();
    });
    let found = play("bytes", &gateway(target.address));
    assert_eq!((&found["status"], &found["length"]), (&"200".into(), &1_000_000.into()));
    assert_eq!(found["asked"], found["sha256"]);
}

#[test]
fn another_client_is_refused_without_a_grant() {
    let target = Target::echo();
    let found = play("refused", &gateway(target.address));
    assert_eq!(found["status"], "403");
    assert_eq!(target.dialled(), 0);
}

#[test]
fn another_clients_datagrams_are_answered() {
    let found = play("datagrams", &gateway(udp_echo()));
    assert_eq!((&found["status"], &found["answered"]), (&"200".into(), &500.into()));
}

#[test]
fn a_download_goes_on_when_the_clients_port_changes() {
    const PIECES: usize = 200;
    const PIECE: usize = 32 * 1024;
    let target = Target::new(|mut stream| {
        stream.read_exact(&mut [0; 2]).unwrap();
        for number in 0..PIECES {
            stream.write_all(&[number as u8; PIECE]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let found = play("rebinding", &gateway(target.address));
    let sent: Vec<u8> = (0..PIECES).flat_map(|number| [number as u8; PIECE]).collect();
    let expected: String = digest(&SHA256, &sent)
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!((&found["ports"], &found["length"]), (&2.into(), &sent.len().into()));
    assert_eq!(found["sha256"], expected);
    let pause = found["longest_pause"].as_f64().unwrap();
    assert!(pause < 3.0, "it stood still for {pause} s");
}

/// Each way loses 12 %.
#[test]
fn large_datagrams_go_on_over_a_network_that_loses_some() {
    let (echo, reached) = counting_echo();
    let gateway = gateway(echo);
    let found = play("loss", &gateway);
    let count = |name: &str| found[name].as_f64().unwrap();
    let reached = reached.lock().len() as f64;
    let (up, down) = (reached / count("sent"), count("echoed") / reached);
    let said = format!(
        "{up:.3} of {found} came to the desktop, and {down:.3} of that back\n{}",
        metrics(&gateway)
    );
    assert!((0.85..=0.91).contains(&up), "{said}");
    // What goes within the stream for a moment, because the path is taken to be narrower, is sent again where it was lost.
    assert!((0.85..=0.95).contains(&down), "{said}");
    assert!(
        count("in_stream") < 0.1 * reached,
        "the size that the path takes was lost: {said}"
    );
    assert!(count("longest_pause") < 1.0 + count("held_up"), "{said}");
    for towards in ["client", "desktop"] {
        let none = format!("portcullis_quic_datagrams_dropped_total{{towards=\"{towards}\"}} 0\n");
        assert!(metrics(&gateway).contains(&none), "the gateway dropped some: {said}");
    }
}

/// As [`udp_echo`], with the numbers at the beginning of what it has got.
fn counting_echo() -> (SocketAddr, Arc<Mutex<HashSet<[u8; 4]>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let numbers: Arc<Mutex<HashSet<[u8; 4]>>> = Arc::default();
    let counted = numbers.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            counted.lock().insert(buffer[..4].try_into().unwrap());
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    (address, numbers)
}

fn metrics(gateway: &Gateway) -> String {
    let mut stream = UnixStream::connect(gateway.folder().join("admin.sock")).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let quic = answer.lines().filter(|line| line.starts_with("portcullis_quic"));
    quic.map(|line| format!("{line}\n")).collect()
}

/// A port at which the node is reached by UDP and by nothing else.
fn by_udp_only(node: SocketAddr) -> u16 {
    let outside = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = outside.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut clients: HashMap<SocketAddr, UdpSocket> = HashMap::new();
        let mut buffer = [0; 65_536];
        while let Ok((length, client)) = outside.recv_from(&mut buffer) {
            let inside = clients.entry(client).or_insert_with(|| {
                let inside = UdpSocket::bind("127.0.0.1:0").unwrap();
                inside.connect(node).unwrap();
                let (back, outside) = (inside.try_clone().unwrap(), outside.try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut buffer = [0; 65_536];
                    while let Ok(length) = back.recv(&mut buffer) {
                        let _ = outside.send_to(&buffer[..length], client);
                    }
                });
                inside
            });
            let _ = inside.send(&buffer[..length]);
        }
    });
    port
}

#[test]
fn another_client_asks_an_application_over_http3() {
    let origin = Origin::new(|exchange| {
        let body = exchange.body();
        let seen = exchange.seen();
        if seen.method() == "HEAD" {
            // A length without a body aioquic takes for a fault, also here.
            return exchange.send("HTTP/1.1 200 OK\r\nX-Target: /head\r\n\r\n");
        }
        let mut answer = format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-Target: {}\r\n\r\n",
            seen.target()
        );
        let mut body = &body[..];
        while !body.is_empty() {
            let (piece, rest) = body.split_at(body.len().min(10_000));
            exchange.send(format!("{answer}{:x}\r\n", piece.len()));
            exchange.send(piece);
            (answer, body) = ("\r\n".to_owned(), rest);
        }
        let sum = seen.trailers.first().map_or("none", |(_, sum)| sum);
        exchange.send(format!("{answer}0\r\nx-sum: {sum}\r\n\r\n"));
    });
    let gateway = Shop::of(&origin).setup(|setup| setup.listener("udp = true\n")).start();
    let port = gateway.address.port().to_string();
    let mut command = python("http3.py");
    command.args(["127.0.0.1", &port]).arg(gateway.chain());
    let found = told(command.arg("shop.test"), &gateway);

    let section = |what: &str, number: usize| found[what]["sections"][number].clone();
    assert_eq!(
        (&section("get", 0)[":status"], &section("get", 0)["x-target"]),
        (&"200".into(), &"/b?c".into())
    );
    assert_eq!(
        (&section("head", 0)["x-target"], &found["head"]["length"]),
        (&"/head".into(), &0.into())
    );
    assert_eq!(found["post"]["sha256"], found["sent"]);
    assert_eq!(found["trailers"]["sha256"], found["sent"]);
    assert_eq!(section("trailers", 1)["x-sum"], "42");
    for (number, answer) in found["many"].as_array().unwrap().iter().enumerate() {
        assert_eq!(answer["sections"][0]["x-target"], format!("/echo?{number}"));
        assert_eq!(answer["length"], number * 1000);
    }
    let get = origin.seen().into_iter().find(|seen| seen.method() == "GET").unwrap();
    assert!(!get.has("transfer-encoding"), "{}", get.head);
}

/// No TCP leads to that port: what the browser shows came over HTTP/3.
#[test]
fn a_browser_reaches_the_page_over_http3() {
    let gateway = gateway(Target::echo().address);
    let folder = TempDir::new().unwrap();
    let port = by_udp_only(gateway.address);
    let output = tool("timeout")
        .arg("60")
        .arg(path_of("chromium"))
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("--origin-to-force-quic-on=localhost:{port}"))
        .arg(format!(
            "--ignore-certificate-errors-spki-list={}",
            key_of(&gateway.chain())
        ))
        .arg("--host-resolver-rules=MAP localhost 127.0.0.1")
        .arg(format!("https://localhost:{port}/"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let page = String::from_utf8_lossy(&output.stdout);
    let command = format!("portcullis connect localhost:{port}");
    assert!(
        page.contains(&command),
        "{page}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The hash of a certificate's public key, as the browser wants it.
fn key_of(chain: &Path) -> String {
    let certificate = CertificateDer::from_pem_file(chain).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
    let key = digest(&SHA256, parsed.public_key().raw);
    base64::engine::general_purpose::STANDARD.encode(key)
}
