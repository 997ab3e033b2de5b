//! What is published, as programs of others ask for it: curl, h2load.

use std::process::Command;

use super::peer::{run, tool};
use crate::rig::{Origin, Shop, second_address};
use crate::support::Gateway;

/// curl that takes the gateway for `shop.test`.
fn curl(gateway: &Gateway, arguments: &[&str]) -> String {
    let mut command: Command = tool("curl");
    command
        .args(["--silent", "--show-error", "--insecure", "--max-time", "20"])
        .args(["--connect-to", &format!("shop.test:443:{}", gateway.address)])
        .args(arguments);
    run(&mut command)
}

#[test]
fn curl_gets_the_same_over_both_versions() {
    let origin = Origin::mirror();
    let gateway = Shop::of(&origin).start();
    for (version, said) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let out = curl(
            &gateway,
            &[
                version,
                "--write-out",
                "%{http_version} %{http_code}",
                "https://shop.test/a/../b?c",
            ],
        );
        assert!(out.starts_with("GET /b?c HTTP/1.1\r\n"), "{out}");
        assert!(out.ends_with(&format!("{said} 200")), "{out}");
        let out = curl(
            &gateway,
            &[version, "--data-binary", "some data", "https://shop.test/post"],
        );
        assert!(out.ends_with("some data"), "{out}");
        let out = curl(&gateway, &[version, "--head", "https://shop.test/head"]);
        assert!(out.contains(" 200"), "{out}");
    }
    if !run(tool("curl").arg("--version")).contains("HTTP3") {
        println!("curl --http3: this curl is built without it, as Debian's is; see `quic` for HTTP/3");
    }
}

#[test]
fn curl_sends_and_takes_much() {
    let origin = Origin::new(|exchange| {
        let body = exchange.body();
        exchange.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()));
        exchange.send(body);
    });
    let gateway = Shop::of(&origin).start();
    let folder = tempfile::tempdir().unwrap();
    let (sent, got) = (folder.path().join("sent"), folder.path().join("got"));
    let body: Vec<u8> = (0..20_000_000_u32).map(|place| (place % 251) as u8).collect();
    std::fs::write(&sent, &body).unwrap();
    let data = format!("@{}", sent.display());
    for version in ["--http1.1", "--http2"] {
        // Over 1 MiB curl expects 100 Continue.
        let out = got.display().to_string();
        curl(
            &gateway,
            &[version, "--data-binary", &data, "--output", &out, "https://shop.test/"],
        );
        assert!(std::fs::read(&got).unwrap() == body, "{version}");
    }
}

#[test]
fn h2load_is_answered_whole() {
    let origin = Origin::new(|exchange| exchange.reply(&"x".repeat(128)));
    let gateway = Shop::of(&origin).hosts("priority = 10").plain().start();
    for (arguments, url) in [
        (
            &["-n5000", "-c10", "-m32"][..],
            format!("https://{}/x", gateway.address),
        ),
        (
            &["-n2000", "-c10", "--h1"],
            format!("http://{}/x", second_address(&gateway)),
        ),
    ] {
        let mut command: Command = tool("h2load");
        let out = run(command.args(arguments).arg(&url));
        let line = out.lines().find(|line| line.starts_with("requests:")).unwrap();
        assert!(line.contains(" 0 failed, 0 errored, 0 timeout"), "{out}");
        let statuses = out.lines().find(|line| line.starts_with("status codes:")).unwrap();
        assert!(statuses.contains(" 0 3xx, 0 4xx, 0 5xx"), "{out}");
    }
}
