//! The node itself, with users who have launched a desktop over Blast.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use portcullis::clock;
use portcullis::config::password;
use portcullis::secure::self_signed;
use portcullis::types::Secret;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::client::{self, Stream};
use crate::proxy::Proxy;

/// The route tokens of several sessions, used in turn: one session may have only so many connections.
pub(crate) struct Tickets {
    tokens: Vec<String>,
    used: AtomicUsize,
}

impl Tickets {
    pub(crate) fn next(&self) -> &str {
        let turn = self.used.fetch_add(1, Ordering::Relaxed);
        &self.tokens[turn % self.tokens.len()]
    }
}

pub(crate) async fn start(target: SocketAddr) -> anyhow::Result<Proxy> {
    let folder = TempDir::new()?;
    let certificate = self_signed(&["localhost".to_owned()], clock::wall())?;
    write_private(&folder.path().join("chain.pem"), &certificate.chain)?;
    write_private(&folder.path().join("key.pem"), certificate.key.expose())?;
    let config = folder.path().join("portcullis.toml");
    write_private(&config, &configuration(folder.path(), target)?)?;
    let log = folder.path().join("log");
    let child = Command::new(env!("CARGO_BIN_EXE_portcullis"))
        .args(["serve", "--config"])
        .arg(config)
        .stdin(Stdio::null())
        .stderr(fs::File::create(&log)?)
        .spawn()
        .context("cannot start the node")?;
    let tls = client::tls(&folder.path().join("chain.pem"))?;
    let mut proxy = Proxy {
        child: Some(child),
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls: Some(tls.clone()),
        tickets: None,
        _folder: Some(folder),
    };
    proxy.address = in_service(&log).await?;
    let mut tokens = Vec::new();
    for _ in 0..SESSIONS {
        tokens.push(sign_in_and_launch(proxy.address, &tls).await?);
    }
    proxy.tickets = Some(Tickets {
        tokens,
        used: AtomicUsize::new(0),
    });
    Ok(proxy)
}

async fn in_service(log: &Path) -> anyhow::Result<SocketAddr> {
    for _ in 0..500 {
        let text = fs::read_to_string(log)?;
        if text.contains("in service") {
            let (_, rest) = text.split_once("listening address=").context("no address in the log")?;
            return Ok(rest.split_whitespace().next().unwrap_or_default().parse()?);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bail!("the node does not start:\n{}", fs::read_to_string(log)?)
}

/// The route token of a session of its own.
async fn sign_in_and_launch(address: SocketAddr, tls: &TlsConnector) -> anyhow::Result<String> {
    let mut stream = Stream::connect(address, Some(tls)).await?;
    let (_, cookie) = post(&mut stream, "", "<get-configuration/>").await?;
    let cookie = cookie.context("no cookie")?;
    let value =
        |name: &str, value: &str| format!("<param><name>{name}</name><values><value>{value}</value></values></param>");
    let screen = format!(
        "<do-submit-authentication><screen><name>windows-password</name><params>{}{}{}</params></screen>\
         </do-submit-authentication>",
        value("username", "ann"),
        value("password", PASSWORD),
        value("domain", "")
    );
    let (_, signed_in) = post(&mut stream, &cookie, &screen).await?;
    let cookie = signed_in.context("not signed in")?;
    let launch = "<get-desktop-connection><desktop-id>desk</desktop-id><protocol><name>BLAST</name></protocol>\
                  </get-desktop-connection>";
    let (reply, _) = post(&mut stream, &cookie, launch).await?;
    let reply = reply.replace("&quot;", "\"");
    let (_, rest) = reply.split_once("\"r\":\"").with_context(|| reply.clone())?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

/// Sends a control message; the reply, and the cookie that it sets.
async fn post(stream: &mut Stream, cookie: &str, operations: &str) -> anyhow::Result<(String, Option<String>)> {
    let message = format!("<?xml version=\"1.0\"?><broker version=\"15.0\">{operations}</broker>");
    let request = format!(
        "POST /broker/xml HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nCookie: {cookie}\r\nContent-Length: {}\r\n\r\n{message}",
        message.len()
    );
    stream.write_all(request.as_bytes()).await?;
    let head = stream.head().await?;
    ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
    let field = |name: &str| {
        let lines = head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
            .next()
    };
    let length: usize = field("content-length").context("no length")?.parse()?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    let cookie = field("set-cookie").and_then(|set| set.split(';').next().map(str::to_owned));
    Ok((String::from_utf8(body)?, cookie))
}

fn configuration(folder: &Path, target: SocketAddr) -> anyhow::Result<String> {
    let hash = password::hash(&Secret::new(PASSWORD))?;
    Ok(format!(
        r#"[node]
name = "bench"
state_dir = "{folder}/state"
admin_socket = "{folder}/admin.sock"
workers = 2
grace_period = "1 s"

[listener.public]
bind = ["127.0.0.1:0"]
certificates = ["own"]

[certificate.own]
chain = "{folder}/chain.pem"
key = "{folder}/key.pem"

[limits]
connections_per_source = 50000
handshakes_per_source = 1000000

[session]
per_user = 1000
connections = 1000

[directory.user.ann]
password_hash = "{hash}"

[directory.desktop.desk]
address = "127.0.0.1"
protocols = {{ blast = {port} }}
users = ["ann"]

[directory.desktop.desk.agent]
tls = false
"#,
        folder = folder.display(),
        hash = hash.expose(),
        port = target.port()
    ))
}

fn write_private(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(file)?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    Ok(())
}

const PASSWORD: &str = "open sesame 1";
const SESSIONS: usize = 4;
