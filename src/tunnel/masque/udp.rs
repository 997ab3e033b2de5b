//! `CONNECT-UDP`: the datagrams of one stream, and a desktop's.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use h3::error::Code;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UdpSocket;
use tokio::time::sleep_until;

use super::capsule::{self, Capsules};
use super::datagrams::{Datagrams, Flow, Unsent};
use super::stream::Exchange;
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::grant::{Granted, Route};
use crate::tunnel::relay::scratch;

/// Passes datagrams between a stream, whose head is answered, and a desktop's connected socket, until a side ends, the
/// route does, or nothing has passed for `idle`.
///
/// Datagrams of the client come as QUIC datagrams or as capsules on the stream; those of the desktop go as QUIC
/// datagrams, and as capsules where they do not fit. Not cancel-safe: dropped, the stream is reset.
pub async fn relay_datagrams(
    exchange: Exchange,
    datagrams: &Arc<Datagrams>,
    desktop: UdpSocket,
    granted: &Granted,
    route: &Route,
    idle: Duration,
) -> CloseReason {
    let mut flow = datagrams.of_stream(exchange.id().into_inner());
    let (mut sender, mut receiver) = exchange.split();
    let grant = granted.grant();
    let mut capsules = Capsules::default();
    let mut activity = Activity::new(granted, idle);
    let mut ended = pin!(route.ended());
    let mut timer = pin!(sleep_until(activity.due().into()));
    let mut outsized = Vec::new();
    let reason = loop {
        tokio::select! {
            () = &mut ended => break grant.revocation().unwrap_or(CloseReason::Killed),
            payload = flow.receive() => {
                activity.count_in(payload.len());
                if let Err(reason) = pass(&desktop, &payload) {
                    break reason;
                }
            }
            received = receiver.recv_data() => match received {
                Ok(Some(mut piece)) => {
                    let piece = piece.copy_to_bytes(piece.remaining());
                    if let Err(reason) = pass_capsules(&mut capsules, piece, &desktop, &mut activity) {
                        break reason;
                    }
                }
                Ok(None) if capsules.is_at_an_end() => break CloseReason::Completed,
                Ok(None) => break CloseReason::Malformed,
                Err(_) => break CloseReason::ClientClosed,
            },
            ready = desktop.readable() => {
                if ready.is_err() {
                    break CloseReason::Refused(Refusal::AgentSilent);
                }
                for _ in 0..BURST {
                    let received = scratch::with(|scratch| -> io::Result<Result<usize, Unsent>> {
                        let length = desktop.try_recv(scratch)?;
                        let payload = &scratch[..length];
                        let sent = flow.send(payload);
                        if sent == Err(Unsent::DoesNotFit) {
                            outsized.push(Bytes::copy_from_slice(payload));
                        }
                        Ok(sent.map(|()| length))
                    });
                    match received {
                        Ok(Ok(length)) => activity.count_out(length),
                        Ok(Err(Unsent::DoesNotFit)) => break,
                        Ok(Err(Unsent::Lost)) => return CloseReason::ClientClosed,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                        // The desktop says that nobody listens there.
                        Err(_) => {
                            sender.stop_stream(Code::H3_CONNECT_ERROR);
                            receiver.stop_sending(Code::H3_CONNECT_ERROR);
                            return CloseReason::Refused(Refusal::AgentSilent);
                        }
                    }
                }
                for payload in outsized.drain(..) {
                    if sender.send_data(in_capsule(&payload)).await.is_err() {
                        return CloseReason::ClientClosed;
                    }
                    activity.count_out(payload.len());
                }
            }
            () = &mut timer => {
                let due = activity.due();
                if due <= clock::now() {
                    break CloseReason::Idle;
                }
                timer.as_mut().reset(due.into());
            }
        }
    };
    if reason == CloseReason::Malformed {
        sender.stop_stream(Code::H3_DATAGRAM_ERROR);
    } else {
        // An orderly end, best effort: the stream may be gone.
        let _ = sender.finish().await;
    }
    receiver.stop_sending(Code::H3_NO_ERROR);
    reason
}

/// Passes datagrams between a stream, whose head is answered, and the node that has its grant, as capsules, until a side
/// ends. Not cancel-safe: dropped, the stream is reset.
pub async fn pass_datagrams<O>(exchange: Exchange, datagrams: &Arc<Datagrams>, owner: &mut O) -> CloseReason
where
    O: AsyncRead + AsyncWrite + Unpin,
{
    let stream = exchange.id().into_inner();
    let (mut flow, answers) = (datagrams.of_stream(stream), datagrams.answers_of(stream));
    let (mut sender, mut receiver) = exchange.split();
    let (mut from_owner, mut to_owner) = tokio::io::split(owner);
    let up = async {
        loop {
            let octets = tokio::select! {
                payload = flow_payload(&mut flow) => payload,
                received = receiver.recv_data() => match received {
                    // Capsules of the client are the owner's to read.
                    Ok(Some(mut piece)) => piece.copy_to_bytes(piece.remaining()),
                    Ok(None) => return CloseReason::Completed,
                    Err(_) => return CloseReason::ClientClosed,
                },
            };
            let sent = async { to_owner.write_all(&octets).await.and(to_owner.flush().await) };
            if sent.await.is_err() {
                return CloseReason::UpstreamClosed;
            }
        }
    };
    let down = async {
        let mut capsules = Capsules::default();
        let mut room = BytesMut::new();
        loop {
            room.reserve(READ);
            match from_owner.read_buf(&mut room).await {
                Ok(0) => return CloseReason::Completed,
                Ok(_) => {}
                Err(_) => return CloseReason::UpstreamClosed,
            }
            let mut piece = room.split().freeze();
            loop {
                let datagram = match capsules.read(&mut piece) {
                    Ok(Some(datagram)) => datagram,
                    Ok(None) => break,
                    Err(_) => return CloseReason::UpstreamClosed,
                };
                let Some(payload) = capsule::payload(datagram) else {
                    continue;
                };
                match answers.send(&payload) {
                    Ok(()) => {}
                    Err(Unsent::Lost) => return CloseReason::ClientClosed,
                    Err(Unsent::DoesNotFit) => {
                        if sender.send_data(in_capsule(&payload)).await.is_err() {
                            return CloseReason::ClientClosed;
                        }
                    }
                }
            }
        }
    };
    let reason = tokio::select! {
        reason = up => reason,
        reason = down => reason,
    };
    // An orderly end, best effort: the stream may be gone.
    let _ = sender.finish().await;
    receiver.stop_sending(Code::H3_NO_ERROR);
    reason
}

/// Passes datagrams between a node that carries them as capsules and a desktop's connected socket, until a side ends, the
/// route does, or nothing has passed for `idle`. Not cancel-safe.
pub async fn relay_capsules<IO>(
    client: IO,
    desktop: UdpSocket,
    granted: &Granted,
    route: &Route,
    idle: Duration,
) -> CloseReason
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let mut capsules = Capsules::default();
    let mut activity = Activity::new(granted, idle);
    let mut ended = pin!(route.ended());
    let mut timer = pin!(sleep_until(activity.due().into()));
    let mut room = BytesMut::new();
    let mut out = BytesMut::new();
    loop {
        room.reserve(READ);
        tokio::select! {
            () = &mut ended => return granted.grant().revocation().unwrap_or(CloseReason::Killed),
            read = from_client.read_buf(&mut room) => match read {
                Ok(0) if capsules.is_at_an_end() => return CloseReason::Completed,
                Ok(0) => return CloseReason::Malformed,
                Ok(_) => {
                    let piece = room.split().freeze();
                    if let Err(reason) = pass_capsules(&mut capsules, piece, &desktop, &mut activity) {
                        return reason;
                    }
                }
                Err(_) => return CloseReason::ClientClosed,
            },
            ready = desktop.readable() => {
                let received = ready.and_then(|()| scratch::with(|scratch| {
                    let length = desktop.try_recv(scratch)?;
                    capsule::write(&mut out, &scratch[..length]);
                    Ok(length)
                }));
                match received {
                    Ok(length) => activity.count_out(length),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(_) => return CloseReason::Refused(Refusal::AgentSilent),
                }
                let sent = async { to_client.write_all(&out).await.and(to_client.flush().await) };
                if sent.await.is_err() {
                    return CloseReason::ClientClosed;
                }
                out.clear();
            }
            () = &mut timer => {
                let due = activity.due();
                if due <= clock::now() {
                    return CloseReason::Idle;
                }
                timer.as_mut().reset(due.into());
            }
        }
    }
}

async fn flow_payload(flow: &mut Flow) -> Bytes {
    in_capsule(&flow.receive().await)
}

fn in_capsule(payload: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(payload.len() + CAPSULE_HEAD);
    capsule::write(&mut out, payload);
    out.freeze()
}

fn pass_capsules(
    capsules: &mut Capsules,
    mut piece: Bytes,
    desktop: &UdpSocket,
    activity: &mut Activity<'_>,
) -> Result<(), CloseReason> {
    while let Some(datagram) = capsules.read(&mut piece).map_err(|_| CloseReason::TooLarge)? {
        if let Some(payload) = capsule::payload(datagram) {
            activity.count_in(payload.len());
            pass(desktop, &payload)?;
        }
    }
    Ok(())
}

/// Sends to the desktop without waiting: what the network does not take is lost.
fn pass(desktop: &UdpSocket, payload: &[u8]) -> Result<(), CloseReason> {
    match desktop.try_send(payload) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(CloseReason::Refused(Refusal::AgentSilent))
        }
        // Full, or larger than the way to the desktop takes.
        Err(_) => Ok(()),
    }
}

/// What the session is told, and since when nothing has passed.
struct Activity<'a> {
    granted: &'a Granted,
    idle: Duration,
    told: Instant,
    last: Instant,
}

impl<'a> Activity<'a> {
    fn new(granted: &'a Granted, idle: Duration) -> Self {
        let now = clock::now();
        granted.grant().touch(now);
        Self {
            granted,
            idle,
            told: now,
            last: now,
        }
    }

    fn count_in(&mut self, octets: usize) {
        self.granted.grant().count_in(octets as u64);
        self.last = clock::now();
        if self.last.saturating_duration_since(self.told) >= TELL_EVERY {
            self.told = self.last;
            self.granted.grant().touch(self.last);
        }
    }

    fn count_out(&mut self, octets: usize) {
        self.granted.grant().count_out(octets as u64);
        self.last = clock::now();
    }

    fn due(&self) -> Instant {
        self.last + self.idle
    }
}

/// Datagrams of the desktop that are passed on before anything else is looked at.
const BURST: usize = 32;
/// What is read at once of the capsules of another node.
const READ: usize = 16 * 1024;
/// Room for a capsule's type, length and context.
const CAPSULE_HEAD: usize = 16;
/// How often a session learns that its user is active.
const TELL_EVERY: Duration = Duration::from_secs(1);
