//! The way to desktops over QUIC: each connection of a local program is a `CONNECT` stream.
//!
//! The gateway is held to the same trust as over TCP. A stream of its own stays open for as long as the session lives,
//! and tells how it ended. A client whose address changes keeps its connection; one whose connection is lost is told so.

use std::fmt;
use std::future::poll_fn;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::error::StreamError;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, StatusCode};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{IdleTimeout, TransportConfig, VarInt};
use rustls::version::TLS13;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::endpoint::Endpoint;
use super::http::AGENT;
use super::trust::Trust;
use super::tunnel::{Channel, Notice, RaiseFault, Upward, splice};
use super::words::printable_line;
use crate::control::operation;
use crate::secure::judged_over;
use crate::tunnel::masque::wire::{BidiStream, Connection, Opener};
use crate::types::Thumbprint;

/// An open way over QUIC. Dropped, it is closed, and local connections with it.
#[derive(Debug)]
pub struct Quic {
    core: Arc<Core>,
    ended: watch::Receiver<Option<QuicEnd>>,
    _open: DropGuard,
}

/// Why no way over QUIC was opened. Short, since it is told as the reason for another way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuicFault {
    /// The gateway does not offer it.
    #[error("the gateway serves no QUIC")]
    NotOffered,
    /// Nothing came back in time.
    #[error("UDP does not arrive")]
    Silent,
    /// The gateway did not admit the session's stream.
    #[error("the gateway does not admit QUIC (status {status})")]
    NotAdmitted {
        /// The status of its answer.
        status: u16,
    },
    /// No agreement.
    #[error("QUIC failed: {0}")]
    Failed(String),
}

/// Why a way over QUIC is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuicEnd {
    /// The gateway ended it, with its words.
    #[error("the gateway ended the session: {reason}")]
    Stopped {
        /// The gateway's words, fit for a terminal.
        reason: String,
    },
    /// The connection broke: what was open is cut.
    #[error("the connection to the gateway is lost ({problem}), and what was open over it is cut. Connect again")]
    Lost {
        /// The library's words.
        problem: String,
    },
    /// The client closed it.
    #[error("the connection to the gateway was closed")]
    Closed,
}

/// What opening channels takes.
struct Core {
    requests: SendRequest<Opener, Bytes>,
    authorization: HeaderValue,
    tasks: TaskTracker,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Core(…)")
    }
}

type Stream = RequestStream<BidiStream<Bytes>, Bytes>;

impl Quic {
    /// Connects, and has the session's stream opened. `sibling` is the certificate that the gateway showed over TCP.
    ///
    /// # Errors
    /// Within a second if nothing comes back.
    pub(super) async fn open(
        trust: &Trust,
        gateway: &Endpoint,
        offered: &operation::Quic,
        sibling: Option<Thumbprint>,
        tasks: &TaskTracker,
    ) -> Result<Self, QuicFault> {
        let text = gateway.to_string();
        let host = text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host);
        let endpoint: Endpoint = format!("{host}:{}", offered.port).parse().map_err(failed)?;
        let config = config(trust, &endpoint, sibling)?;
        let connection = timeout(HANDSHAKE, dial(&endpoint, config))
            .await
            .map_err(|_| QuicFault::Silent)??;

        let mut builder = h3::client::builder();
        builder.send_grease(false);
        let built = timeout(ANSWER, builder.build(Connection::new(connection.clone()))).await;
        let (mut driver, mut requests) = built.map_err(|_| QuicFault::Silent)?.map_err(failed)?;
        tasks.spawn(async move { drop(poll_fn(|cx| driver.poll_close(cx)).await) });

        let mut authorization = HeaderValue::try_from(format!("Bearer {}", offered.token.expose())).map_err(failed)?;
        authorization.set_sensitive(true);
        let request = request(Method::GET, &format!("https://{endpoint}/session"), &authorization)?;
        let asked = async {
            let mut session: Stream = requests.send_request(request).await?;
            session.finish().await?;
            let answer = session.recv_response().await?;
            Ok::<_, StreamError>((answer.status(), session))
        };
        let (status, session) = timeout(ANSWER, asked)
            .await
            .map_err(|_| QuicFault::Silent)?
            .map_err(failed)?;
        if status != StatusCode::OK {
            return Err(QuicFault::NotAdmitted {
                status: status.as_u16(),
            });
        }

        let stop = CancellationToken::new();
        let (end, ended) = watch::channel(None);
        let core = Arc::new(Core {
            requests,
            authorization,
            tasks: tasks.clone(),
        });
        let open = stop.clone().drop_guard();
        tasks.spawn(async move {
            let how = tokio::select! {
                () = stop.cancelled() => QuicEnd::Closed,
                how = the_end(session, &connection) => how,
            };
            connection.close(VarInt::from_u32(NO_ERROR), b"");
            end.send_replace(Some(how));
        });
        Ok(Self {
            core,
            ended,
            _open: open,
        })
    }

    /// Opens a channel to the desktop that was launched under this name.
    ///
    /// # Errors
    /// The gateway does not open it, or the connection is lost.
    pub async fn raise(&self, route: &str) -> Result<Channel, RaiseFault> {
        self.core.raise(route).await
    }

    /// Takes in the programs that connect to `listener`, each to the desktop that was launched under this name.
    pub fn serve(&self, listener: TcpListener, route: &str, notices: mpsc::Sender<Notice>) {
        let (core, route) = (self.core.clone(), route.to_owned());
        let mut ended = self.ended.clone();
        self.core.tasks.spawn(async move {
            tokio::select! {
                // A way that is gone takes in nobody.
                _ = ended.wait_for(Option::is_some) => {}
                () = accept(listener, core, route, notices) => {}
            }
        });
    }

    /// Waits until it is over and says why. Cancel-safe.
    pub async fn ended(&self) -> QuicEnd {
        let mut ended = self.ended.clone();
        let end = ended.wait_for(Option::is_some).await;
        end.ok().and_then(|end| end.clone()).unwrap_or(QuicEnd::Closed)
    }
}

impl Core {
    async fn raise(&self, route: &str) -> Result<Channel, RaiseFault> {
        let refused = |problem: String| RaiseFault::Refused { problem };
        let request = request(Method::CONNECT, &format!("https://{route}:1/"), &self.authorization)
            .map_err(|fault| refused(fault.to_string()))?;
        let mut requests = self.requests.clone();
        let asked = async {
            let mut stream: Stream = requests.send_request(request).await?;
            let answer = stream.recv_response().await?;
            let problem = if answer.status() == StatusCode::OK {
                None
            } else {
                Some(words(&mut stream, answer.status()).await)
            };
            Ok::<_, StreamError>((stream, problem))
        };
        let answered = timeout(DESKTOP, asked).await;
        match answered {
            Ok(Ok((stream, None))) => {
                let (up, upward) = mpsc::channel(QUEUE);
                let (downward, down) = mpsc::channel(QUEUE);
                self.tasks.spawn(carry(stream, upward, downward));
                Ok(Channel::new(up, down))
            }
            Ok(Ok((_, Some(problem)))) => Err(refused(problem)),
            Ok(Err(StreamError::ConnectionError { .. })) => Err(RaiseFault::Over),
            Ok(Err(error)) => Err(refused(error.to_string())),
            Err(_) => Err(refused("no answer in time".to_owned())),
        }
    }
}

/// Carries one channel until its program has closed it. The end of either direction is told by itself.
async fn carry(stream: Stream, mut up: mpsc::Receiver<Upward>, down: mpsc::Sender<Bytes>) {
    let (mut sender, mut receiver) = stream.split();
    let upward = async {
        while let Some(upward) = up.recv().await {
            let sent = match upward {
                Upward::Data { octets, .. } => sender.send_data(octets).await,
                Upward::HalfClosed { .. } => sender.finish().await,
                Upward::Closed { .. } => break,
            };
            if sent.is_err() {
                // The desktop takes no more; what it sends is still received.
                while let Some(Upward::Data { .. } | Upward::HalfClosed { .. }) = up.recv().await {}
                return;
            }
        }
        // What was sent before still arrives.
        let _ = sender.finish().await;
    };
    let downward = async {
        while let Ok(Some(mut piece)) = receiver.recv_data().await {
            if down.send(piece.copy_to_bytes(piece.remaining())).await.is_err() {
                break;
            }
        }
        drop(down);
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = upward => {}
        () = downward => {}
    }
}

async fn accept(listener: TcpListener, core: Arc<Core>, route: String, notices: mpsc::Sender<Notice>) {
    loop {
        let Ok((program, _)) = listener.accept().await else {
            // Out of file descriptors, most likely: some will be given back.
            sleep(PAUSE).await;
            continue;
        };
        let (core, route, notices) = (core.clone(), route.clone(), notices.clone());
        core.tasks.clone().spawn(async move {
            match core.raise(&route).await {
                Ok(channel) => splice(program, channel).await,
                Err(RaiseFault::Refused { problem }) => {
                    // Nobody listens to many of them.
                    let _ = notices.try_send(Notice::Refused(problem));
                }
                Err(RaiseFault::NoPort | RaiseFault::Over) => {}
            }
        });
    }
}

/// Waits for the gateway's last words, or the end of the connection.
async fn the_end(mut session: Stream, connection: &quinn::Connection) -> QuicEnd {
    let mut reason = Vec::new();
    while reason.len() < WORDS {
        match session.recv_data().await {
            Ok(Some(mut piece)) => reason.extend_from_slice(&piece.copy_to_bytes(piece.remaining())),
            Ok(None) => {
                let reason = printable_line(String::from_utf8_lossy(&reason).trim());
                return QuicEnd::Stopped { reason };
            }
            Err(error) => {
                let problem = connection.close_reason().map(|reason| reason.to_string());
                return QuicEnd::Lost {
                    problem: problem.unwrap_or_else(|| error.to_string()),
                };
            }
        }
    }
    QuicEnd::Stopped {
        reason: printable_line(&String::from_utf8_lossy(&reason)),
    }
}

/// What the gateway says to an answer that is no success.
async fn words(stream: &mut Stream, status: StatusCode) -> String {
    let mut words = Vec::new();
    while let Ok(Some(mut piece)) = stream.recv_data().await {
        words.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
        if words.len() > WORDS {
            break;
        }
    }
    let words = printable_line(String::from_utf8_lossy(&words).trim());
    if words.is_empty() { status.to_string() } else { words }
}

fn request(method: Method, uri: &str, authorization: &HeaderValue) -> Result<Request<()>, QuicFault> {
    Request::builder()
        .method(method)
        .uri(uri)
        .header(AUTHORIZATION, authorization)
        .header(USER_AGENT, AGENT)
        .body(())
        .map_err(failed)
}

/// Connects to the first address that answers; each has its share of the time.
async fn dial(endpoint: &Endpoint, config: quinn::ClientConfig) -> Result<quinn::Connection, QuicFault> {
    let addresses: Vec<_> = lookup_host((endpoint.host(), endpoint.port()))
        .await
        .map_err(failed)?
        .take(MOST_ADDRESSES)
        .collect();
    let share = HANDSHAKE / u32::try_from(addresses.len()).unwrap_or(1).max(1);
    let mut fault = QuicFault::Silent;
    for address in addresses {
        fault = match timeout(share, connect(endpoint, address, config.clone())).await {
            Ok(Ok(connection)) => return Ok(connection),
            Ok(Err(fault)) => fault,
            Err(_) => QuicFault::Silent,
        };
    }
    Err(fault)
}

async fn connect(
    endpoint: &Endpoint,
    address: SocketAddr,
    config: quinn::ClientConfig,
) -> Result<quinn::Connection, QuicFault> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    // Not bound to one address of this machine: it may change.
    let local = quinn::Endpoint::client(any).map_err(failed)?;
    let connecting = local.connect_with(config, address, endpoint.host()).map_err(failed)?;
    connecting.await.map_err(|error| {
        if error == quinn::ConnectionError::TimedOut {
            QuicFault::Silent
        } else {
            failed(error)
        }
    })
}

fn config(trust: &Trust, endpoint: &Endpoint, sibling: Option<Thumbprint>) -> Result<quinn::ClientConfig, QuicFault> {
    let verifier = trust.verifier(endpoint, sibling).map_err(failed)?;
    let mut tls = judged_over(&[&TLS13], verifier).map_err(failed)?.with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    // A session taken up again would not show its certificate.
    tls.resumption = rustls::client::Resumption::disabled();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).map_err(failed)?));
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(IDLE_MS))))
        .keep_alive_interval(Some(KEEP_ALIVE));
    config.transport_config(Arc::new(transport));
    Ok(config)
}

fn failed(problem: impl fmt::Display) -> QuicFault {
    QuicFault::Failed(printable_line(&problem.to_string()))
}

/// For the handshake: another way must still be begun within the second.
const HANDSHAKE: Duration = Duration::from_millis(900);
/// For the gateway to answer, once it is known to be there.
const ANSWER: Duration = Duration::from_secs(10);
/// For the gateway to have reached a desktop.
const DESKTOP: Duration = Duration::from_secs(20);
/// More often than home routers forget where datagrams belong.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Silence after which the connection is lost, in milliseconds.
const IDLE_MS: u32 = 60_000;
const MOST_ADDRESSES: usize = 3;
/// Pieces that wait in either direction of a channel.
const QUEUE: usize = 8;
/// The most octets of the gateway's words.
const WORDS: usize = 1024;
const PAUSE: Duration = Duration::from_millis(100);
/// `H3_NO_ERROR`.
const NO_ERROR: u32 = 0x100;
