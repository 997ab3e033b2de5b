//! A token of another protocol, against a whole node in this process: the only way to have one issued that no client is
//! told of yet.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

mod support;

use std::io::Write as _;
use std::net::TcpStream;
use std::sync::Arc;

use parking_lot::Mutex;
use portcullis::grant::Secondary;
use portcullis::node::Node;
use support::{Gateway, Setup, Target, raw};

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_another_protocol_opens_no_tunnel() {
    let log = Lines::default();
    let sink = log.clone();
    tracing_subscriber::fmt()
        .json()
        .with_writer(move || sink.clone())
        .init();
    let target = Target::echo();
    let files = Gateway::files(&Setup::default().desktop("shell", target.address, "ssh"));
    let (config, _) = portcullis::config::load(&files.path().join("gw.toml")).unwrap();
    let node = Node::start(config).unwrap();
    let address = node.addresses()[0];
    let chain = files.path().join("chain.pem");

    let stream = || raw::tls_over(TcpStream::connect(address).unwrap(), &chain);
    let first = raw::post_on(&mut stream(), None, raw::message("<get-configuration/>").as_bytes());
    let cookie = first.session_cookie().unwrap();
    let password = raw::password_message("ann", support::PASSWORD, "");
    raw::post_on(&mut stream(), Some(&cookie), password.as_bytes());

    let grant = node.gateway().grants().list().remove(0);
    let token = node
        .gateway()
        .grants()
        .announce(&grant, Secondary::Blast, portcullis::clock::now());
    let mut tunnel = stream();
    let head = format!(
        "POST /ice/tunnel?{} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
        token.as_str()
    );
    tunnel.write_all(head.as_bytes()).unwrap();
    assert_eq!(raw::read_answer(&mut tunnel).status, 403);
    assert_eq!(target.dialled(), 0);
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    assert!(text.contains("\"reason\":\"wrong_protocol\""), "{text}");
    assert!(!text.contains(token.as_str()));
    node.stop().await;
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
