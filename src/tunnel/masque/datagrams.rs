//! Which stream a connection's datagrams belong to (RFC 9297 section 2.1).

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use parking_lot::Mutex;
use quinn::{SendDatagramError, VarInt};
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

use super::{capsule, varint};
use crate::observe::{Aside, Watch};

/// The datagrams of one connection, parted by stream.
#[derive(Debug)]
pub struct Datagrams {
    connection: quinn::Connection,
    streams: Mutex<HashMap<u64, mpsc::Sender<Bytes>>>,
    watch: Arc<Watch>,
}

impl Datagrams {
    /// Those of `connection`, of which nobody else reads any. What is dropped of them is counted with `watch`.
    pub fn new(connection: quinn::Connection, watch: Arc<Watch>) -> Arc<Self> {
        Arc::new(Self {
            connection,
            streams: Mutex::default(),
            watch,
        })
    }

    /// Hands datagrams to their streams until the connection ends. One for a stream that waits for none is dropped, and
    /// so is one that its stream does not take in time.
    pub async fn run(self: Arc<Self>) {
        while let Ok(datagram) = self.connection.read_datagram().await {
            let Some((stream, datagram)) = part(datagram) else {
                let code = VarInt::from_u32(H3_DATAGRAM_ERROR);
                return self.connection.close(code, b"a datagram without a stream");
            };
            if let Some(queue) = self.streams.lock().get(&stream) {
                // What a slow stream does not take is lost, as it may be on any network.
                if let Err(TrySendError::Full(_)) = queue.try_send(datagram) {
                    self.watch.counters().datagram(Aside::ToDesktop);
                }
            }
        }
    }

    /// Those of the stream with this id, from now on.
    pub(super) fn of_stream(self: &Arc<Self>, stream: u64) -> Flow {
        let (queue, received) = mpsc::channel(QUEUE);
        let answers = self.answers_of(stream);
        self.streams.lock().insert(answers.number, queue);
        Flow {
            answers,
            datagrams: self.clone(),
            received,
        }
    }

    /// The way back of the stream with this id.
    pub(super) fn answers_of(&self, stream: u64) -> Answers {
        Answers {
            connection: self.connection.clone(),
            number: stream / 4,
            watch: self.watch.clone(),
        }
    }
}

/// The datagrams of one stream; dropped, they are nobody's.
#[derive(Debug)]
pub(super) struct Flow {
    answers: Answers,
    datagrams: Arc<Datagrams>,
    received: mpsc::Receiver<Bytes>,
}

/// The datagrams to the client of one stream.
#[derive(Debug)]
pub(super) struct Answers {
    connection: quinn::Connection,
    number: u64,
    watch: Arc<Watch>,
}

/// Why a payload went as no datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    /// It is larger than the path or the client takes at this moment, or the client takes none.
    DoesNotFit,
    /// The connection is lost.
    Lost,
}

impl Flow {
    /// The next UDP payload of the client. Cancel-safe; pending for ever once the connection has ended.
    pub(super) async fn receive(&mut self) -> Bytes {
        loop {
            match self.received.recv().await {
                Some(datagram) => {
                    if let Some(payload) = capsule::payload(datagram) {
                        return payload;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// As [`Answers::send`].
    pub(super) fn send(&self, payload: &[u8]) -> Result<(), Unsent> {
        self.answers.send(payload)
    }
}

impl Answers {
    /// Sends a UDP payload to the client, without waiting: what the network does not take is lost.
    pub(super) fn send(&self, payload: &[u8]) -> Result<(), Unsent> {
        let mut out = BytesMut::with_capacity(varint::MAX_LENGTH + 1 + payload.len());
        varint::write(&mut out, self.number);
        capsule::write_context(&mut out);
        out.extend_from_slice(payload);
        // The library makes room by dropping what has waited longest, and does not say so.
        let is_full = self.connection.datagram_send_buffer_space() < out.len();
        match self.connection.send_datagram(out.freeze()) {
            Ok(()) => {
                if is_full {
                    self.watch.counters().datagram(Aside::ToClient);
                }
                Ok(())
            }
            Err(SendDatagramError::TooLarge | SendDatagramError::Disabled | SendDatagramError::UnsupportedByPeer) => {
                self.watch.counters().datagram(Aside::InStream);
                Err(Unsent::DoesNotFit)
            }
            Err(SendDatagramError::ConnectionLost(_)) => Err(Unsent::Lost),
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.datagrams.streams.lock().remove(&self.answers.number);
    }
}

/// Takes a QUIC datagram apart into a quarter of its stream's id and the HTTP datagram.
fn part(mut datagram: Bytes) -> Option<(u64, Bytes)> {
    let (number, length) = varint::read(&datagram)?;
    datagram.advance(length);
    (number <= varint::MAX / 4).then_some((number, datagram))
}

/// Datagrams that wait for one stream.
const QUEUE: usize = 256;
/// The code of RFC 9297.
const H3_DATAGRAM_ERROR: u32 = 0x33;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_names_its_stream() {
        assert_eq!(
            part(Bytes::from_static(b"\x02\x00x")),
            Some((2, Bytes::from_static(b"\x00x")))
        );
        assert_eq!(part(Bytes::from_static(b"\x40\x02")), Some((2, Bytes::new())));
        assert_eq!(part(Bytes::new()), None);
        assert_eq!(part(Bytes::from_static(&[0xff; 8])), None, "larger than any stream's");
    }
}
