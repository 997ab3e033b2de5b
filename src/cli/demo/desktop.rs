//! The demo's desktops: two small services on loopback that really answer, standing in for a data centre.

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::clock;

/// The first line that the shell says to whoever reaches it.
pub(super) const BANNER: &str = "Portcullis demo desktop";

/// Both desktops, running until dropped.
#[derive(Debug)]
pub(super) struct Desktops {
    /// Lines of text: `nc` shows it.
    pub(super) shell: SocketAddr,
    /// A page: a browser shows it.
    pub(super) page: SocketAddr,
}

impl Desktops {
    /// Starts both on free ports of loopback, in `tasks`.
    pub(super) async fn start(tasks: &TaskTracker) -> std::io::Result<Self> {
        let shell = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let page = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let desktops = Self {
            shell: shell.local_addr()?,
            page: page.local_addr()?,
        };
        tasks.spawn(serve(shell, tasks.clone(), answer_lines));
        tasks.spawn(serve(page, tasks.clone(), answer_page));
        Ok(desktops)
    }
}

async fn serve<F, R>(listener: TcpListener, tasks: TaskTracker, answer: F)
where
    F: Fn(TcpStream) -> R,
    R: Future<Output = std::io::Result<()>> + Send + 'static,
{
    loop {
        match listener.accept().await {
            Ok((io, _)) => {
                let answered = answer(io);
                tasks.spawn(async move {
                    // A visitor who leaves in the middle is no news.
                    let _ = answered.await;
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn answer_lines(mut io: TcpStream) -> std::io::Result<()> {
    let (reading, mut writing) = io.split();
    let mut lines = BufReader::new(reading.take(MOST_BYTES)).lines();
    writing
        .write_all(format!("{BANNER}\r\nType help, time, quit, or anything to have it repeated.\r\n> ").as_bytes())
        .await?;
    while let Some(line) = lines.next_line().await? {
        let answer = match line.trim() {
            "quit" | "exit" => break,
            "help" => "help, time, quit; anything else is repeated".to_owned(),
            "time" => clock::wall().to_string(),
            other => other.to_owned(),
        };
        writing.write_all(format!("{answer}\r\n> ").as_bytes()).await?;
    }
    writing.write_all(b"Goodbye.\r\n").await
}

async fn answer_page(mut io: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < HEAD_MAX {
        if io.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{PAGE}",
        PAGE.len()
    );
    io.write_all(answer.as_bytes()).await?;
    io.shutdown().await
}

const PAGE: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Portcullis demo</title>\
<body style=\"font:16px/1.5 system-ui;max-width:36rem;margin:4rem auto;padding:0 1rem\">\
<h1>You are inside</h1><p>This page is served by a desktop behind the gateway. Your browser spoke to a port of your own \
machine; <code>portcullis connect</code> carried it through the HTTPS tunnel, against your session's grant.</p></body></html>";

/// What one visitor may say.
const MOST_BYTES: u64 = 1024 * 1024;
const HEAD_MAX: usize = 16 * 1024;
const PAUSE: Duration = Duration::from_millis(100);
