//! The target behind every proxy: answers from memory on connections that stay open.

use std::net::SocketAddr;

use anyhow::bail;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use crate::client::length_in;

/// 128 bytes.
pub(crate) const SMALL: &str = "/small";
/// 10 MiB.
pub(crate) const LARGE: &str = "/large";
/// Takes a body, and answers 128 bytes.
pub(crate) const UP: &str = "/up";

pub(crate) const LARGE_BYTES: usize = 10 << 20;

/// Starts it on a port of its own, on every address of loopback.
pub(crate) async fn start(tasks: &TaskTracker) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("0.0.0.0:0").await?;
    let port = listener.local_addr()?.port();
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(async move {
                // A proxy that goes away has what it wanted.
                let _ = serve(stream).await;
            });
        }
    });
    Ok(SocketAddr::from(([127, 0, 0, 1], port)))
}

async fn serve(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let end = loop {
            if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                read => filled += read,
            }
        };
        let head = std::str::from_utf8(&buffer[..end])?;
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let length = if head.starts_with("POST") { length_in(head)? } else { 0 };
        let here = (filled - end).min(length);
        buffer.copy_within(end + here..filled, 0);
        filled -= end + here;
        let mut left = length - here;
        while left > 0 {
            // All that comes is of the body: the next request waits for the answer.
            match stream.read(&mut buffer).await? {
                0 => bail!("ended early"),
                read => left -= read.min(left),
            }
        }
        if path == LARGE {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: {LARGE_BYTES}\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await?;
            let piece = [7; 256 * 1024];
            for _ in 0..LARGE_BYTES / piece.len() {
                stream.write_all(&piece).await?;
            }
        } else {
            stream.write_all(SMALL_ANSWER).await?;
        }
    }
}

const SMALL_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 128\r\n\r\n\
      0123456789012345678901234567890123456789012345678901234567890123\
      0123456789012345678901234567890123456789012345678901234567890123";
