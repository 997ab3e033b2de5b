//! A channel: one connection of a local program, through the tunnel, to the desktop.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::tunnel::https::chunk::MAX_DATA;

/// One open channel.
///
/// Whoever holds it must end with [`close`](Self::close), which closes it for both directions.
#[derive(Debug)]
pub struct Channel {
    pub(super) number: i32,
    pub(super) up: mpsc::Sender<Upward>,
    pub(super) down: mpsc::Receiver<Bytes>,
}

/// What channels have for the gateway, in order.
#[derive(Debug)]
pub(in crate::client) enum Upward {
    /// Octets of a program.
    Data {
        /// The channel.
        channel: i32,
        /// At most [`MAX_DATA`].
        octets: Bytes,
    },
    /// The program sends no more.
    HalfClosed {
        /// The channel.
        channel: i32,
    },
    /// The program closed its connection.
    Closed {
        /// The channel.
        channel: i32,
    },
}

/// The tunnel of a channel is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the tunnel is over")]
pub struct TunnelOver;

/// The sending side of a [`Channel`]. It does not keep the channel open.
#[derive(Clone, Debug)]
pub struct ChannelSender {
    number: i32,
    up: mpsc::Sender<Upward>,
}

impl Channel {
    /// The only channel between these ends.
    pub(in crate::client) fn new(up: mpsc::Sender<Upward>, down: mpsc::Receiver<Bytes>) -> Self {
        Self { number: 0, up, down }
    }

    /// The next octets of the desktop; `None` when the desktop, or the tunnel, has closed the channel and everything
    /// that was sent before has been received. Cancel-safe.
    pub async fn receive(&mut self) -> Option<Bytes> {
        self.down.recv().await
    }

    /// A handle with which octets are sent to the desktop.
    pub fn sender(&self) -> ChannelSender {
        ChannelSender {
            number: self.number,
            up: self.up.clone(),
        }
    }

    /// Closes the channel for both directions, after what was sent.
    pub async fn close(self) {
        // A tunnel that is over has closed it already.
        let _ = self.up.send(Upward::Closed { channel: self.number }).await;
    }
}

impl ChannelSender {
    /// Sends octets to the desktop. It waits while the gateway has not acknowledged what it has.
    ///
    /// Not cancel-safe: a part may have been sent.
    ///
    /// # Errors
    /// The tunnel is over.
    pub async fn send(&self, mut octets: Bytes) -> Result<(), TunnelOver> {
        while !octets.is_empty() {
            let piece = octets.split_to(octets.len().min(MAX_DATA));
            let upward = Upward::Data {
                channel: self.number,
                octets: piece,
            };
            self.up.send(upward).await.map_err(|_| TunnelOver)?;
        }
        Ok(())
    }

    /// Has the desktop told that nothing more will be sent. What it sends is still received.
    ///
    /// A gateway that does not know half-closed channels does not tell it; the channel goes on as it was.
    pub async fn finish(&self) {
        // A tunnel that is over has closed it already.
        let _ = self.up.send(Upward::HalfClosed { channel: self.number }).await;
    }
}

/// Joins a local program's connection to a channel until both directions are done.
///
/// * Everything that the desktop sent reaches the program, then the end of the stream.
/// * A program that only shuts its sending side still receives; the desktop is told, if the gateway can tell it. The
///   channel is closed when the program has closed its connection fully. The system tells the two apart by probing:
///   within about a minute and a quarter, if the desktop has not closed before.
pub(in crate::client) async fn splice(stream: TcpStream, mut channel: Channel) {
    let _ = stream.set_nodelay(true);
    probe_often(&stream);
    let (mut read, mut write) = stream.into_split();
    let sender = channel.sender();

    let upward = async {
        match upward(&mut read, &sender).await {
            // The program may still listen: only a broken connection shows that it does not.
            Ended::InOrder => {
                sender.finish().await;
                closed_fully(&read).await;
            }
            Ended::Broken => {}
        }
    };
    tokio::select! {
        biased;
        () = downward(&mut channel.down, &mut write) => {
            // To close with unread octets would reset the connection and destroy what the program has yet to read.
            let _ = timeout(LAST_WORDS, drain(&mut read)).await;
        }
        () = upward => {}
    }
    channel.close().await;
}

enum Ended {
    InOrder,
    Broken,
}

async fn upward(read: &mut OwnedReadHalf, sender: &ChannelSender) -> Ended {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(MAX_DATA);
        match (&mut *read).take(MAX_DATA as u64).read_buf(&mut buffer).await {
            Ok(0) => return Ended::InOrder,
            Ok(_) => {
                if sender.send(buffer.split().freeze()).await.is_err() {
                    return Ended::InOrder;
                }
            }
            Err(_) => return Ended::Broken,
        }
    }
}

/// Delivers until the channel is closed, or the program takes no more.
async fn downward(down: &mut mpsc::Receiver<Bytes>, write: &mut OwnedWriteHalf) {
    while let Some(octets) = down.recv().await {
        if write.write_all(&octets).await.is_err() {
            return;
        }
    }
    let _ = write.shutdown().await;
}

/// Waits until the system reports that the other end of a connection is gone.
async fn closed_fully(read: &OwnedReadHalf) {
    while let Ok(ready) = read.ready(Interest::ERROR).await {
        if ready.is_error() {
            return;
        }
    }
}

async fn drain(read: &mut OwnedReadHalf) {
    let mut scrap = vec![0; MAX_DATA];
    while read.read(&mut scrap).await.is_ok_and(|octets| octets > 0) {}
}

/// A half-closed end answers probes for as long as a program holds it; one without a program is forgotten by the system
/// after a minute, and the next probe is answered with a reset.
fn probe_often(stream: &TcpStream) {
    let probes = TcpKeepalive::new()
        .with_time(PROBE_INTERVAL)
        .with_interval(PROBE_INTERVAL)
        .with_retries(4);
    // Without probes, the end is seen when the desktop sends something.
    let _ = SockRef::from(stream).set_tcp_keepalive(&probes);
}

const PROBE_INTERVAL: Duration = Duration::from_secs(15);
/// How long a program may go on sending to a desktop that has closed.
const LAST_WORDS: Duration = Duration::from_secs(30);
