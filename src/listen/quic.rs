//! Step 1 for QUIC: who may begin a handshake, and at what price.
//!
//! [`accept_quic`] waits for no client. While few handshakes are open, whoever comes may begin one; from
//! [`RETRY_ABOVE`] on, an address must first prove that it receives (a Retry, which costs the node no memory); from
//! [`MOST_HANDSHAKES`] on, nobody is answered. What is no QUIC of this node gets no answer at all: a packet without a
//! connection is dropped by its connection id, not answered with a reset.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use quinn::congestion::CubicConfig;
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, TransportConfig, VarInt};
use tokio_util::sync::CancellationToken;

use super::episode::Episode;
use super::ids::{ConnectionIds, Generator};
use super::{Caps, Facts, Permit};
use crate::clock;
use crate::types::canonical;

/// A QUIC endpoint on a socket that others use as well.
///
/// Connection ids prove by themselves that this process made them: the packets of strangers are dropped unanswered.
///
/// # Errors
/// What the runtime needs is lacking.
pub fn quic_endpoint(
    socket: Arc<dyn AsyncUdpSocket>,
    config: quinn::ServerConfig,
    ids: Arc<ConnectionIds>,
) -> io::Result<Endpoint> {
    let mut endpoint = EndpointConfig::default();
    endpoint.cid_generator(move || Box::new(Generator(ids.clone())));
    Endpoint::new_with_abstract_socket(endpoint, Some(config), socket, Arc::new(quinn::TokioRuntime))
}

/// What a QUIC connection may take, and when it is given up: after a silence of `lost_contact`.
pub fn quic_transport(lost_contact: Duration) -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    let mut mtu = MtuDiscoveryConfig::default();
    mtu.black_hole_cooldown(NARROW);
    let idle = lost_contact
        .as_millis()
        .try_into()
        .map_or(VarInt::MAX, VarInt::from_u32);
    transport
        .max_idle_timeout(Some(IdleTimeout::from(idle)))
        .keep_alive_interval(Some(lost_contact / 3))
        .max_concurrent_bidi_streams(VarInt::from_u32(STREAMS))
        .max_concurrent_uni_streams(VarInt::from_u32(CONTROL_STREAMS))
        .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
        .receive_window(VarInt::from_u32(CONNECTION_WINDOW))
        .send_window(CONNECTION_WINDOW.into())
        .crypto_buffer_size(CRYPTO_BUFFER)
        .datagram_receive_buffer_size(Some(DATAGRAM_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_BUFFER)
        .mtu_discovery_config(Some(mtu))
        .congestion_controller_factory(Arc::new(CubicConfig::default()));
    Arc::new(transport)
}

/// A client that has sent its first packet.
#[derive(Debug)]
pub struct Arriving {
    incoming: quinn::Incoming,
    facts: Facts,
    permit: Permit,
    handshake: Handshake,
}

impl Arriving {
    /// What is known so far.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Takes it apart. Whoever uses the connection keeps the permit for as long, and the handshake until it is over.
    pub fn into_parts(self) -> (quinn::Incoming, Facts, Permit, Handshake) {
        (self.incoming, self.facts, self.permit, self.handshake)
    }
}

/// An open handshake; dropped, it is over.
#[derive(Debug)]
pub struct Handshake(Arc<AtomicUsize>);

impl Handshake {
    fn begin(open: &Arc<AtomicUsize>) -> Self {
        open.fetch_add(1, Ordering::Relaxed);
        Self(open.clone())
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Takes clients in until `stop` is cancelled; then none any more, until those that are here have gone. Once `leaving` is
/// cancelled, only those are taken in that this process has told to come again.
///
/// `handler` is called for each client that may begin a handshake; it must not wait, so it spawns the client's task.
pub async fn accept_quic(
    endpoint: Endpoint,
    name: Arc<str>,
    caps: Arc<Caps>,
    handler: impl Fn(Arriving),
    (leaving, stop): (CancellationToken, CancellationToken),
) {
    let local = endpoint.local_addr().ok();
    let gate = Gate {
        name,
        caps,
        local,
        open: Arc::default(),
    };
    let mut full = Episode::default();
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            incoming = endpoint.accept() => incoming,
        };
        let Some(incoming) = incoming else { return };
        if leaving.is_cancelled() && incoming.may_retry() {
            incoming.ignore();
        } else if let Some(arriving) = gate.judge(incoming, &mut full) {
            handler(arriving);
        }
    }
    loop {
        tokio::select! {
            () = endpoint.wait_idle() => return,
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => incoming.ignore(),
                None => return,
            }
        }
    }
}

struct Gate {
    name: Arc<str>,
    caps: Arc<Caps>,
    local: Option<SocketAddr>,
    open: Arc<AtomicUsize>,
}

impl Gate {
    fn judge(&self, incoming: quinn::Incoming, full: &mut Episode) -> Option<Arriving> {
        let open = self.open.load(Ordering::Relaxed);
        let proven = incoming.remote_address_validated();
        let peer = canonical(incoming.remote_address());
        if !proven && (open >= RETRY_ABOVE || !self.caps.begins_unproven(peer.ip())) {
            // An address that was asked once already is not asked again by the library.
            let _ = incoming.retry();
            return None;
        }
        let since = clock::now();
        let permit = (open < MOST_HANDSHAKES).then(|| self.caps.admit()).flatten();
        let Some(mut permit) = permit else {
            if full.begins(since) {
                tracing::warn!(
                    listener = &*self.name,
                    open = self.caps.counts().open,
                    handshakes = open,
                    "node is full, answering no further QUIC clients; see limits.connections"
                );
            }
            incoming.ignore();
            return None;
        };
        let paced = if proven {
            permit.begin_handshake(peer.ip())
        } else {
            Ok(())
        };
        if let Err(reason) = paced.and_then(|()| permit.claim(peer.ip())) {
            tracing::debug!(client = %peer, listener = &*self.name, reason = reason.code(), "QUIC client not answered");
            incoming.ignore();
            return None;
        }
        let bound = self.local.unwrap_or(peer);
        let local = incoming
            .local_ip()
            .map_or(bound, |ip| SocketAddr::new(ip, bound.port()));
        let facts = Facts {
            listener: self.name.clone(),
            local: canonical(local),
            peer,
            client: peer,
            since,
            relayed_by: None,
        };
        Some(Arriving {
            incoming,
            facts,
            permit,
            handshake: Handshake::begin(&self.open),
        })
    }
}

/// Open handshakes from which on an address has to prove itself first.
pub const RETRY_ABOVE: usize = 64;
/// Open handshakes from which on nobody is answered.
const MOST_HANDSHAKES: usize = 4096;

/// Streams that a client may have open at one time. A session has fewer connections than that.
const STREAMS: u32 = 256;
/// HTTP/3 has three streams of one direction, and some clients open idle ones.
const CONTROL_STREAMS: u32 = 8;
/// What a client may send on one stream before it is read: a desktop over 50 ms at 150 Mbit/s.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// The same for all streams of a connection, in each direction.
const CONNECTION_WINDOW: u32 = 2 * 1024 * 1024;
/// A handshake with a post-quantum key share takes less than a tenth of it.
const CRYPTO_BUFFER: usize = 16 * 1024;
/// How long a path is taken for a narrow one after its largest packets were lost several times. Where every eighth packet is
/// lost, that happens by chance, about once in 5,000 packets, and with the library's minute large datagrams would not fit for as
/// long. A path that is narrow in truth is asked once more, and then believed.
const NARROW: Duration = Duration::from_secs(1);
/// Datagrams that wait, in each direction; the oldest are dropped.
const DATAGRAM_BUFFER: usize = 256 * 1024;
