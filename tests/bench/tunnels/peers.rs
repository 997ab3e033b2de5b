//! nginx (`stream`) and HAProxy (`mode tcp`): TLS from the client, plain TCP to the target.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use portcullis::clock;
use portcullis::secure::self_signed;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::client;
use crate::proxy::Proxy;

/// Whether a program is there.
pub(crate) fn is_installed(name: &str) -> bool {
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"]
        .iter()
        .any(|folder| Path::new(folder).join(name).is_file())
}

pub(crate) async fn nginx(target: SocketAddr) -> anyhow::Result<Proxy> {
    let (folder, address) = (folder()?, free_port()?);
    let at = folder.path().display();
    let module = "/usr/lib/nginx/modules/ngx_stream_module.so";
    let load = if Path::new(module).is_file() {
        format!("load_module {module};")
    } else {
        String::new()
    };
    let text = format!(
        "{load}\ndaemon off;\nworker_processes 2;\nworker_rlimit_nofile 40000;\npid {at}/pid;\nerror_log {at}/log;\nevents {{ \
         worker_connections 20000; }}\nstream {{ server {{ listen {address} ssl reuseport; ssl_certificate {at}/chain.pem; \
         ssl_certificate_key {at}/key.pem; ssl_protocols TLSv1.2 TLSv1.3; proxy_timeout 1h; proxy_pass {target}; tcp_nodelay \
         on; }} }}\n"
    );
    fs::write(folder.path().join("conf"), text)?;
    let mut command = Command::new("nginx");
    command
        .arg("-c")
        .arg(folder.path().join("conf"))
        .arg("-p")
        .arg(folder.path());
    started(command, folder, address).await
}

pub(crate) async fn haproxy(target: SocketAddr) -> anyhow::Result<Proxy> {
    let (folder, address) = (folder()?, free_port()?);
    let at = folder.path().display();
    let text = format!(
        "global\n nbthread 2\n maxconn 8000\ndefaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n\
         listen t\n bind {address} ssl crt {at}/identity.pem\n server t {target}\n"
    );
    fs::write(folder.path().join("conf"), text)?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-q", "-f"]).arg(folder.path().join("conf"));
    started(command, folder, address).await
}

async fn started(mut command: Command, folder: TempDir, address: SocketAddr) -> anyhow::Result<Proxy> {
    let child = command.stdin(Stdio::null()).spawn().context("cannot start a peer")?;
    let proxy = Proxy {
        child: Some(child),
        address,
        tls: Some(client::tls(&folder.path().join("chain.pem"))?),
        tickets: None,
        _folder: Some(folder),
    };
    for _ in 0..250 {
        if TcpStream::connect(address).await.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(proxy)
}

/// A folder with a certificate and its key, apart and together.
fn folder() -> anyhow::Result<TempDir> {
    let folder = TempDir::new()?;
    let certificate = self_signed(&["localhost".to_owned()], clock::wall())?;
    let (chain, key) = (&certificate.chain, certificate.key.expose());
    fs::write(folder.path().join("chain.pem"), chain)?;
    fs::write(folder.path().join("key.pem"), key)?;
    fs::write(folder.path().join("identity.pem"), format!("{chain}{key}"))?;
    Ok(folder)
}

fn free_port() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}
