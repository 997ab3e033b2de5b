//! The load: clients on threads of this process, each thread with its own runtime, in phases that all threads share.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use portcullis::clock::now;
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::process::{Child, Cpu, Shares};

/// What a client does with its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// HTTP requests on one connection.
    Small,
    /// Connects, handshakes in full, makes one request, and closes; again and again.
    Fresh,
    /// Reads as fast as bytes come.
    Down,
    /// Like `Down`, from an upstream.
    Tunnel,
    /// Like `Down`; the server lets others run after each piece.
    YieldingDown,
    /// Sends 128 bytes and awaits them back.
    Echo,
    /// Like `Echo`, with a pause after each.
    Paced,
    /// Like `Echo`; the server passes the bytes through another task of the same worker.
    Near,
    /// Like `Echo`; the server passes the bytes through a task of another worker.
    Far,
}

impl Kind {
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Small | Self::Fresh => b"http/1.1",
            Self::Down => b"down",
            Self::YieldingDown => b"yielding",
            Self::Tunnel => b"tunnel",
            Self::Echo | Self::Paced => b"echo",
            Self::Near => b"near",
            Self::Far => b"far",
        }
    }
}

/// The server to load, and the certificate that it has to show.
#[derive(Clone)]
pub(crate) struct Target {
    address: SocketAddr,
    roots: Arc<RootCertStore>,
}

impl Target {
    pub(crate) fn new(address: SocketAddr, certificate: Vec<u8>) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from(certificate))?;
        Ok(Self {
            address,
            roots: Arc::new(roots),
        })
    }

    /// A connector that never resumes.
    fn connector(&self, kind: Kind) -> TlsConnector {
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(self.roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![kind.alpn().to_vec()];
        config.resumption = Resumption::disabled();
        TlsConnector::from(Arc::new(config))
    }

    async fn connect(&self, connector: &TlsConnector) -> anyhow::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        Ok(connector.connect(ServerName::try_from("localhost")?, stream).await?)
    }
}

/// Which clients run on which thread.
pub(crate) struct Plan(Vec<(Kind, usize)>);

impl Plan {
    /// `connections` clients of one kind, spread over `threads`.
    pub(crate) fn even(kind: Kind, connections: usize, threads: usize) -> Self {
        let share = |thread| (connections + thread) / threads; // they add up to all
        Self(
            (0..threads)
                .map(|thread| (kind, share(thread)))
                .filter(|&(_, share)| share > 0)
                .collect(),
        )
    }

    /// Two kinds, each on its own thread.
    pub(crate) fn beside(kind: Kind, connections: usize, other: Kind, others: usize) -> Self {
        Self(vec![(kind, connections), (other, others)])
    }
}

/// What came through, and what the server paid for it.
#[derive(Default)]
pub(crate) struct Outcome {
    /// Exchanges; streams have none.
    pub(crate) units: u64,
    bytes_down: u64,
    /// One an exchange, in nanoseconds, in order of size.
    latencies: Vec<u64>,
    wall: Duration,
    switches: u64,
    cpu: u64,
    cpu_of_workers: Vec<u64>,
    /// Where the connections fell.
    pub(crate) shares: Shares,
}

impl Outcome {
    pub(crate) fn cpu_us_per_unit(&self) -> f64 {
        self.cpu as f64 / 1e3 / self.units as f64
    }

    /// How often a server thread slept or was put off.
    pub(crate) fn switches_per_unit(&self) -> f64 {
        self.switches as f64 / self.units as f64
    }

    pub(crate) fn cpu_ms_per_gbit(&self) -> f64 {
        self.cpu as f64 / 1e6 / (self.bytes_down as f64 * 8.0 / 1e9)
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.units as f64 / self.wall.as_secs_f64()
    }

    pub(crate) fn gbit_per_s(&self) -> f64 {
        self.bytes_down as f64 * 8.0 / 1e9 / self.wall.as_secs_f64()
    }

    /// In microseconds.
    pub(crate) fn percentile(&self, part: f64) -> f64 {
        let place = (self.latencies.len() as f64 * part) as usize;
        self.latencies
            .get(place)
            .map_or(f64::NAN, |&latency| latency as f64 / 1e3)
    }

    /// Its share of the CPU of all workers, in per cent.
    pub(crate) fn busiest_worker(&self) -> f64 {
        let all: u64 = self.cpu_of_workers.iter().sum();
        let most = self.cpu_of_workers.iter().copied().max().unwrap_or(0);
        most as f64 / all as f64 * 100.0
    }

    fn charge(&mut self, before: &Cpu, after: &Cpu) {
        self.switches = after.switches - before.switches;
        self.cpu = after.total - before.total;
        self.cpu_of_workers = after
            .workers
            .iter()
            .zip(&before.workers)
            .map(|(after, before)| after - before)
            .collect();
    }

    fn take_in(&mut self, other: Self) {
        self.units += other.units;
        self.bytes_down += other.bytes_down;
        self.latencies.extend(other.latencies);
    }
}

/// Runs `plan` for `span`; connecting is not counted.
pub(crate) fn run(target: &Target, child: &mut Child, plan: &Plan, span: Duration) -> anyhow::Result<Outcome> {
    let barrier = Barrier::new(plan.0.len() + 1);
    std::thread::scope(|scope| {
        let start = |&(kind, connections)| {
            let barrier = &barrier;
            scope.spawn(move || client_thread(target, kind, connections, span, barrier))
        };
        let threads: Vec<_> = plan.0.iter().map(start).collect();
        barrier.wait(); // connected
        let (shares, before) = (child.shares(), child.cpu());
        barrier.wait(); // work
        let begun = now();
        barrier.wait(); // worked
        let mut outcome = Outcome {
            wall: now() - begun,
            ..Outcome::default()
        };
        let after = child.cpu();
        barrier.wait(); // close
        for thread in threads {
            let Ok(part) = thread.join() else {
                bail!("a client thread panicked")
            };
            outcome.take_in(part?);
        }
        outcome.charge(&before?, &after?);
        outcome.latencies.sort_unstable();
        outcome.shares = shares?;
        Ok(outcome)
    })
}

/// Passes the four barriers whatever happens, so that a fault cannot hang the others.
fn client_thread(
    target: &Target,
    kind: Kind,
    connections: usize,
    span: Duration,
    barrier: &Barrier,
) -> anyhow::Result<Outcome> {
    let connected = Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")
        .and_then(|runtime| {
            let clients =
                runtime.block_on(async { timeout(PATIENCE, connect_all(target, kind, connections)).await? })?;
            Ok((runtime, clients))
        });
    barrier.wait(); // connected
    barrier.wait(); // work
    let worked = connected.and_then(|(runtime, clients)| {
        let (outcome, clients) = runtime.block_on(work_all(clients, now() + span))?;
        Ok((outcome, clients, runtime))
    });
    barrier.wait(); // worked
    barrier.wait(); // close
    worked.map(|(outcome, _, _)| outcome)
}

async fn connect_all(target: &Target, kind: Kind, connections: usize) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        clients.push(Client::connect(target, kind).await?);
    }
    Ok(clients)
}

/// Gives the clients back, because closing is no part of the work.
async fn work_all(clients: Vec<Client>, end: Instant) -> anyhow::Result<(Outcome, Vec<Client>)> {
    let mut running: JoinSet<_> = clients.into_iter().map(|client| work(client, end)).collect();
    let (mut outcome, mut finished) = (Outcome::default(), Vec::new());
    while let Some(done) = running.join_next().await {
        let (part, client) = done??;
        outcome.take_in(part);
        finished.push(client);
    }
    Ok((outcome, finished))
}

async fn work(mut client: Client, end: Instant) -> anyhow::Result<(Outcome, Client)> {
    let mut outcome = Outcome::default();
    let mut begun = now();
    while begun < end {
        let bytes = timeout_at((end + PATIENCE).into(), client.exchange()).await??;
        let done = now();
        if bytes == 0 {
            outcome.units += 1;
            outcome.latencies.push((done - begun).as_nanos() as u64);
        }
        outcome.bytes_down += bytes;
        begun = done;
        if let Client::Echo(_, Some(pause)) = client {
            sleep(pause).await;
            begun = now();
        }
    }
    Ok((outcome, client))
}

/// How long anything may hang before the run is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Between the messages of one light tunnel.
const PAUSE: Duration = Duration::from_millis(10);

enum Client {
    Http(SendRequest<Empty<Bytes>>),
    Fresh(Target, TlsConnector),
    Down(Box<TlsStream<TcpStream>>, Vec<u8>),
    Echo(Box<TlsStream<TcpStream>>, Option<Duration>),
}

impl Client {
    async fn connect(target: &Target, kind: Kind) -> anyhow::Result<Self> {
        let connector = target.connector(kind);
        if kind == Kind::Fresh {
            return Ok(Self::Fresh(target.clone(), connector));
        }
        let stream = target.connect(&connector).await?;
        Ok(match kind {
            Kind::Small | Kind::Fresh => Self::Http(http_on(stream).await?),
            Kind::Down | Kind::YieldingDown | Kind::Tunnel => Self::Down(Box::new(stream), vec![0; 64 * 1024]),
            Kind::Paced => Self::Echo(Box::new(stream), Some(PAUSE)),
            Kind::Echo | Kind::Near | Kind::Far => Self::Echo(Box::new(stream), None),
        })
    }

    /// One exchange; answers the bytes of a stream, 0 for anything else.
    async fn exchange(&mut self) -> anyhow::Result<u64> {
        match self {
            Self::Http(requests) => request(requests).await?,
            Self::Fresh(target, connector) => {
                let stream = target.connect(connector).await?;
                request(&mut http_on(stream).await?).await?;
            }
            Self::Down(stream, buffer) => {
                let length = stream.read(buffer).await?;
                ensure!(length > 0, "the stream ended");
                return Ok(length as u64);
            }
            Self::Echo(stream, _) => {
                let mut message = [0x5a; 128];
                stream.write_all(&message).await?;
                stream.read_exact(&mut message).await?;
            }
        }
        Ok(0)
    }
}

async fn http_on(stream: TlsStream<TcpStream>) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
    let (requests, connection) = handshake(TokioIo::new(stream)).await?;
    Handle::current().spawn(connection);
    Ok(requests)
}

async fn request(requests: &mut SendRequest<Empty<Bytes>>) -> anyhow::Result<()> {
    requests.ready().await?;
    let request = Request::get("/").header("host", "localhost").body(Empty::new())?;
    let body = requests
        .send_request(request)
        .await?
        .into_body()
        .collect()
        .await?
        .to_bytes();
    ensure!(body.len() == 128, "an answer of {} bytes", body.len());
    Ok(())
}

/// Connections that do nothing, held open until dropped.
pub(crate) struct Idle {
    _streams: Vec<TlsStream<TcpStream>>,
    _runtime: Runtime,
}

impl Idle {
    pub(crate) fn open(target: &Target, count: usize) -> anyhow::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let opened = runtime.block_on(async { timeout(PATIENCE, open(target, count)).await? })?;
        Ok(Self {
            _streams: opened,
            _runtime: runtime,
        })
    }
}

/// A few at a time, so that none of them waits for long.
async fn open(target: &Target, count: usize) -> anyhow::Result<Vec<TlsStream<TcpStream>>> {
    let connector = target.connector(Kind::Echo);
    let mut opening = JoinSet::new();
    let mut streams = Vec::with_capacity(count);
    for _ in 0..count {
        if opening.len() == 8
            && let Some(opened) = opening.join_next().await
        {
            streams.push(opened??);
        }
        let (target, connector) = (target.clone(), connector.clone());
        opening.spawn(async move { target.connect(&connector).await });
    }
    while let Some(opened) = opening.join_next().await {
        streams.push(opened??);
    }
    Ok(streams)
}

/// Starts the upstream of the tunnels: a thread that sends on every connection as fast as it can, until it is closed.
pub(crate) fn upstream() -> anyhow::Result<SocketAddr> {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    listener.set_nonblocking(true)?;
    let accept = async move {
        let listener = TcpListener::from_std(listener)?;
        loop {
            let (mut stream, _) = listener.accept().await?;
            Handle::current().spawn(async move { while stream.write_all(&[0x5a; 64 * 1024]).await.is_ok() {} });
        }
    };
    std::thread::Builder::new()
        .name("upstream".to_owned())
        .spawn(move || -> std::io::Result<()> { runtime.block_on(accept) })?;
    Ok(address)
}
