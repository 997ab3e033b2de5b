//! Blast with WebSockets of another make: the library `websockets` as client and as agent, and Chromium.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::peer::{Peer, line, python, tool};
use crate::support::raw::{self, element, message};
use crate::support::{Gateway, Setup};

#[test]
fn messages_of_every_kind_pass_unchanged() {
    Scene::new("").play("messages");
}

#[test]
fn close_codes_pass_both_ways() {
    Scene::new("").play("closes");
}

#[test]
fn an_idle_connection_outlives_the_limits_of_http() {
    Scene::new("[limits]\nhead_timeout = \"1 s\"\nbody_timeout = \"1 s\"\nhandshake_timeout = \"1 s\"\n").play("idle");
}

#[test]
fn a_token_that_opens_nothing_is_refused() {
    let scene = Scene::new("");
    let url = scene.url.replace("/r/", "/r/x");
    scene.play_at("refused", &url);
}

#[test]
fn the_end_of_a_session_closes_its_websockets_in_order() {
    let scene = Scene::new("");
    let folder = TempDir::new().unwrap();
    let (mut client, mut stdout) = Peer::start_speaking(&mut scene.client("ended", &scene.url), folder.path());
    assert_eq!(line(&mut stdout).trim(), "ready");
    raw::post(&scene.gateway, Some(&scene.cookie), &message("<do-logout/>"));
    assert!(client.wait().success(), "{}", client.said());
}

#[test]
fn a_browser_gets_through() {
    let scene = Scene::new("");
    let folder = TempDir::new().unwrap();
    let reports = TcpListener::bind("127.0.0.1:0").unwrap();
    let script = format!(
        "const ws = new WebSocket({:?}, ['binary', 'vmware-vvc']);\
         ws.binaryType = 'arraybuffer';\
         ws.onopen = () => {{ ws.send('hello'); ws.send(new Uint8Array(1 << 20).fill(7)); }};\
         const got = [];\
         ws.onmessage = m => {{ got.push(typeof m.data === 'string' ? m.data : m.data.byteLength);\
           if (got.length === 2) ws.send('close 4001'); }};\
         ws.onclose = c => fetch('http://{}/' + ['closed', ws.protocol !== '', ws.extensions, got.join('+'), c.code,\
           c.reason].join('|'), {{ mode: 'no-cors' }});",
        scene.url,
        reports.local_addr().unwrap()
    );
    let page = folder.path().join("page.html");
    fs::write(&page, format!("<body><script>{script}</script></body>")).unwrap();
    let mut chromium = tool("chromium");
    chromium
        .args([
            "--headless",
            "--no-sandbox",
            "--ignore-certificate-errors",
            "--disable-gpu",
        ])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", page.display()));
    let mut browser = Peer::start(&mut chromium, folder.path());
    reports.set_nonblocking(true).unwrap();
    let mut report = browser.wait_for("a report", || reports.accept().ok()).0;
    report.set_nonblocking(false).unwrap();
    let mut head = String::new();
    BufReader::new(&mut report).read_line(&mut head).unwrap();
    let told = head.replace("%7C", "|").replace("%20", " ");
    assert!(
        told.contains("/closed|true|permessage-deflate") && told.contains("|hello+1048576|4001|as you wish "),
        "{told}\n{}",
        scene.gateway.log_text()
    );
}

/// An agent, a gateway before it, and a user who has launched the desktop.
struct Scene {
    gateway: Gateway,
    cookie: String,
    url: String,
    _agent: Peer,
    _folder: TempDir,
}

impl Scene {
    fn new(section: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let (agent, mut stdout) =
            Peer::start_speaking(python("websockets", "websocket.py").arg("agent"), folder.path());
        let port: u16 = line(&mut stdout).trim().parse().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let lines = "users = [\"ann\"]\n[directory.desktop.desk.agent]\ntls = false\n";
        let setup = Setup::default().section(section);
        let gateway = Gateway::start(&setup.desktop_for("desk", address, "blast", lines));
        let user = raw::sign_in(&gateway, "ann");
        let launch = "<get-desktop-connection><desktop-id>desk</desktop-id><protocol><name>BLAST</name></protocol>\
                      </get-desktop-connection>";
        let reply = raw::post(&gateway, Some(&user.cookie), &message(launch));
        let ticket = element(reply.text(), "token").unwrap().replace("&quot;", "\"");
        let ticket: serde_json::Value = serde_json::from_str(&ticket).unwrap();
        let url = format!(
            "wss://127.0.0.1:{}/r/{}/d/1B2F3C4D-0000-1111-2222-0123456789AB/?vauth={}",
            gateway.address.port(),
            ticket["r"].as_str().unwrap(),
            ticket["a"].as_str().unwrap()
        );
        Self {
            gateway,
            cookie: user.cookie,
            url,
            _agent: agent,
            _folder: folder,
        }
    }

    fn play(&self, scenario: &str) {
        self.play_at(scenario, &self.url);
    }

    fn play_at(&self, scenario: &str, url: &str) {
        let output = self.client(scenario, url).stdin(Stdio::null()).output().unwrap();
        assert!(
            output.status.success(),
            "{scenario}: {}\n{}",
            String::from_utf8_lossy(&output.stderr),
            self.gateway.log_text()
        );
        println!("{}", String::from_utf8_lossy(&output.stdout).trim());
    }

    fn client(&self, scenario: &str, url: &str) -> Command {
        let mut command = python("websockets", "websocket.py");
        command.args([scenario, url]).arg(self.gateway.chain());
        command
    }
}
