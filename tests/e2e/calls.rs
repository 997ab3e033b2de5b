//! gRPC through a gateway, called and answered by its own library: TLS and HTTP/2 in front, HTTP/2 without TLS behind.

use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::peer::{Peer, line, python, run};
use crate::rig::{Shop, access_line_of};

#[test]
fn calls_of_every_kind_end_through_a_gateway_as_without_it() {
    let folder = TempDir::new().unwrap();
    let (_agent, mut said) = Peer::start_speaking(peer().arg("agent"), folder.path());
    let agent = format!("127.0.0.1:{}", line(&mut said));
    // The library answers no GET, which is all that a probe can ask: the pool is used whatever the probes say.
    let gateway = Shop::with_targets(&[format!("\"{agent}\"")])
        .backend("version = \"2\"")
        .pool("panic = 100")
        .start();
    let direct: Value = serde_json::from_str(&run(peer().args(["client", &agent]))).unwrap();
    let mut through = peer();
    through
        .args(["client", &gateway.address.to_string()])
        .arg(gateway.chain());
    let through: Value = serde_json::from_str(&run(&mut through)).unwrap();
    assert_eq!(
        direct,
        json!({
            "unary": ["hello", "OK", {"x-begun": "yes"}, {"x-length": "5", "x-bytes-bin": "b'\\x00\\xff'"}],
            "large": true,
            "empty": true,
            "server streams": [true, "OK", {"x-counted": "200"}],
            "client streams": "500000",
            "both stream": [true, "OK"],
            "refused": ["NOT_FOUND", "no such article: ü", {"x-why": "because"}],
            "broken off": [["one", "two"], "DATA_LOSS", "no more", {}],
            "unknown": "UNIMPLEMENTED",
            "given up": "DEADLINE_EXCEEDED",
            "is told": "yes",
            "side by side": true,
        })
    );
    for (what, came) in direct.as_object().unwrap() {
        assert_eq!(through[what], *came, "{what}\n{}", gateway.log_text());
    }
    let given_up = access_line_of(&gateway, "/shop.Calls/dream");
    assert_eq!(given_up["error_info"], "client_closed", "{given_up}");
    println!(
        "gRPC: {} kinds of calls end as without a gateway",
        direct.as_object().unwrap().len()
    );
}

fn peer() -> Command {
    python("grpcio", "calls.py")
}
