//! The target behind every proxy: agrees to a WebSocket, and then does what the path says.

use std::net::SocketAddr;

use anyhow::bail;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// What a connection is for.
pub(crate) const DOWN: &str = "/down/";
pub(crate) const UP: &str = "/up/";
pub(crate) const ECHO: &str = "/echo/";

/// Starts it on a port of its own.
pub(crate) async fn start(tasks: &TaskTracker) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.spawn(async move {
                // A client that goes away in the middle has what it wanted.
                let _ = serve(stream).await;
            });
        }
    });
    Ok(address)
}

async fn serve(mut stream: TcpStream) -> anyhow::Result<()> {
    stream.set_nodelay(true)?;
    let path = read_path(&mut stream).await?;
    stream.write_all(AGREED).await?;
    let (purpose, bytes) = match path.rsplit_once('/') {
        Some((purpose, bytes)) => (format!("{purpose}/"), bytes.parse::<usize>().unwrap_or(0)),
        None => bail!("no path"),
    };
    let mut buffer = vec![0; 64 * 1024];
    match purpose.as_str() {
        DOWN => {
            // As frames, whose bounds the node looks for.
            let mut left = bytes;
            while left > 0 {
                let length = left.min(buffer.len());
                let payload = length.saturating_sub(10) as u64;
                buffer[..2].copy_from_slice(&[0x82, 127]);
                buffer[2..10].copy_from_slice(&payload.to_be_bytes());
                stream.write_all(&buffer[..length]).await?;
                left -= length;
            }
        }
        UP => {
            let mut left = bytes;
            while left > 0 {
                match stream.read(&mut buffer).await? {
                    0 => bail!("ended early"),
                    length => left -= length.min(left),
                }
            }
            stream.write_all(b"!").await?;
        }
        _ => loop {
            match stream.read(&mut buffer).await? {
                0 => break,
                length => stream.write_all(&buffer[..length]).await?,
            }
        },
    }
    Ok(())
}

async fn read_path(stream: &mut TcpStream) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            bail!("no request");
        }
    }
    let head = String::from_utf8(head)?;
    Ok(head.split(' ').nth(1).unwrap_or_default().to_owned())
}

const AGREED: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n";
