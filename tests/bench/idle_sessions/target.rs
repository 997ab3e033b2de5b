//! Desktops that only move octets.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// Once it has got an octet, sends that many, then closes.
pub(crate) async fn source(octets: usize, tasks: &TaskTracker) -> anyhow::Result<SocketAddr> {
    serve(tasks, move |mut io| async move {
        let piece = vec![0x5a; PIECE];
        let mut left = octets;
        io.read_u8().await?;
        while left > 0 {
            let length = left.min(PIECE);
            io.write_all(&piece[..length]).await?;
            left -= length;
        }
        io.shutdown().await
    })
    .await
}

/// Takes that many octets, then says so with one.
pub(crate) async fn sink(octets: usize, tasks: &TaskTracker) -> anyhow::Result<SocketAddr> {
    serve(tasks, move |mut io| async move {
        let mut piece = vec![0; PIECE];
        let mut left = octets;
        while left > 0 {
            match io.read(&mut piece).await? {
                0 => return Ok(()),
                length => left = left.saturating_sub(length),
            }
        }
        io.write_all(b".").await
    })
    .await
}

/// Sends back what comes.
pub(crate) async fn echo(tasks: &TaskTracker) -> anyhow::Result<SocketAddr> {
    serve(tasks, |mut io| async move {
        let mut piece = vec![0; PIECE];
        loop {
            match io.read(&mut piece).await? {
                0 => return Ok(()),
                length => io.write_all(&piece[..length]).await?,
            }
        }
    })
    .await
}

async fn serve<F, R>(tasks: &TaskTracker, answer: F) -> anyhow::Result<SocketAddr>
where
    F: Fn(TcpStream) -> R + Send + 'static,
    R: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let _ = io.set_nodelay(true);
            let answered = answer(io);
            connections.spawn(async move {
                // What the measurement gets of it is checked there.
                let _ = answered.await;
            });
        }
    });
    Ok(address)
}

const PIECE: usize = 64 * 1024;
