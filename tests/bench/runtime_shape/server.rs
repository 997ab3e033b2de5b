//! The server under test: one process, one shape, TLS 1.3; the ALPN name says what a connection is for.

use std::convert::Infallible;
use std::io::{BufRead, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Shape {
    /// One multi-thread runtime.
    OneRuntime,
    /// A current-thread runtime per core, each with its own `SO_REUSEPORT` socket.
    OwnSockets,
    /// A current-thread runtime per core, all accepting from one shared socket.
    SharedSocket,
    /// A current-thread runtime per core; one acceptor hands each connection to the one with the fewest.
    HandOver,
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::OneRuntime, Self::OwnSockets, Self::SharedSocket, Self::HandOver];

    /// The letter by which the table and the decision name it.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::OneRuntime => "a",
            Self::OwnSockets => "b",
            Self::SharedSocket => "c",
            Self::HandOver => "d",
        }
    }

    pub(crate) fn from_letter(letter: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.letter() == letter)
    }
}

/// Serves until standard input ends.
///
/// The first line on standard output is the port and the certificate (DER in base64); after that every line on
/// standard input is answered by how many connections (and streams among them) each worker has.
pub(crate) fn serve(shape: Shape, workers: usize, upstream: SocketAddr) -> anyhow::Result<()> {
    let (tls, certificate) = acceptor()?;
    let runtimes = runtimes(shape, workers)?;
    let server = Arc::new(Server {
        tls,
        upstream,
        workers: runtimes
            .iter()
            .map(|runtime| Worker::of(runtime.handle().clone()))
            .collect(),
    });
    let address = listen(shape, &server)?;
    for (index, runtime) in runtimes.into_iter().enumerate() {
        let worker = std::thread::Builder::new().name(format!("worker-{index}"));
        worker.spawn(move || runtime.block_on(std::future::pending::<()>()))?;
    }

    let mut out = std::io::stdout().lock();
    writeln!(out, "{} {}", address.port(), BASE64_STANDARD.encode(certificate))?;
    out.flush()?;
    for line in std::io::stdin().lock().lines() {
        line?;
        writeln!(out, "{}", server.shares())?;
        out.flush()?;
    }
    std::process::exit(0)
}

fn acceptor() -> anyhow::Result<(TlsAcceptor, Vec<u8>)> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let certificate = made.cert.der().clone();
    let mut config = rustls::ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)?;
    config.alpn_protocols = ["http/1.1", "down", "yielding", "tunnel", "echo", "near", "far"]
        .map(|name| name.into())
        .to_vec();
    config.send_tls13_tickets = 1;
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new()?;
    Ok((TlsAcceptor::from(Arc::new(config)), certificate.to_vec()))
}

/// The runtimes of a shape; every worker thread, whoever starts it, is named `worker…`.
fn runtimes(shape: Shape, workers: usize) -> std::io::Result<Vec<Runtime>> {
    if shape == Shape::OneRuntime {
        let mut builder = Builder::new_multi_thread();
        return Ok(vec![
            builder
                .worker_threads(workers)
                .thread_name("worker")
                .enable_all()
                .build()?,
        ]);
    }
    (0..workers)
        .map(|_| Builder::new_current_thread().enable_all().build())
        .collect()
}

/// Starts the accept loops of a shape on one port.
fn listen(shape: Shape, server: &Arc<Server>) -> anyhow::Result<SocketAddr> {
    let first = bind(0, shape == Shape::OwnSockets)?;
    let address = first.local_addr()?;
    match shape {
        Shape::OneRuntime => accept_on(0, first, server),
        Shape::OwnSockets => {
            for index in 1..server.workers.len() {
                accept_on(index, bind(address.port(), true)?, server);
            }
            accept_on(0, first, server);
        }
        Shape::SharedSocket => {
            for index in 1..server.workers.len() {
                accept_on(index, first.try_clone()?, server);
            }
            accept_on(0, first, server);
        }
        Shape::HandOver => {
            let (runtime, server) = (Builder::new_current_thread().enable_all().build()?, server.clone());
            let acceptor = std::thread::Builder::new().name("acceptor".to_owned());
            acceptor.spawn(move || runtime.block_on(accept(first, server, None)))?;
        }
    }
    Ok(address)
}

fn bind(port: u16, shared_port: bool) -> std::io::Result<StdListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared_port)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

struct Server {
    tls: TlsAcceptor,
    upstream: SocketAddr,
    workers: Vec<Worker>,
}

struct Worker {
    handle: Handle,
    open: AtomicUsize,
    streams: AtomicUsize,
}

impl Worker {
    fn of(handle: Handle) -> Self {
        Self {
            handle,
            open: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
        }
    }
}

impl Server {
    /// As `process::Shares` reads it.
    fn shares(&self) -> String {
        let share = |worker: &Worker| {
            let (open, streams) = (
                worker.open.load(Ordering::Relaxed),
                worker.streams.load(Ordering::Relaxed),
            );
            format!("{open},{streams}")
        };
        self.workers.iter().map(share).collect::<Vec<_>>().join(" ")
    }

    fn least_loaded(&self) -> usize {
        let load = |&index: &usize| self.workers[index].open.load(Ordering::Relaxed);
        (0..self.workers.len()).min_by_key(load).unwrap_or(0)
    }
}

/// A connection's place among those of its worker.
struct Seat {
    server: Arc<Server>,
    index: usize,
    stream: bool,
}

impl Seat {
    fn take(server: Arc<Server>, index: usize) -> Self {
        server.workers[index].open.fetch_add(1, Ordering::Relaxed);
        Self {
            server,
            index,
            stream: false,
        }
    }

    fn is_a_stream(&mut self) {
        self.stream = true;
        self.server.workers[self.index].streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Where an actor of this connection runs: its own worker, or the next one.
    fn actor_home(&self, elsewhere: bool) -> &Handle {
        let workers = &self.server.workers;
        &workers[(self.index + usize::from(elsewhere)) % workers.len()].handle
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let worker = &self.server.workers[self.index];
        worker.open.fetch_sub(1, Ordering::Relaxed);
        if self.stream {
            worker.streams.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn accept_on(index: usize, listener: StdListener, server: &Arc<Server>) {
    server.workers[index]
        .handle
        .spawn(accept(listener, server.clone(), Some(index)));
}

/// Accepts for worker `here`, or for whichever has the fewest connections.
async fn accept(listener: StdListener, server: Arc<Server>, here: Option<usize>) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let index = here.unwrap_or_else(|| server.least_loaded());
        let seat = Seat::take(server.clone(), index);
        if here.is_some() {
            Handle::current().spawn(connection(seat, stream));
        } else {
            let stream = stream.into_std()?;
            server.workers[index]
                .handle
                .spawn(async move { connection(seat, TcpStream::from_std(stream)?).await });
        }
    }
}

/// A connection to its end; its faults are its own.
async fn connection(mut seat: Seat, stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let stream = seat.server.tls.accept(stream).await?;
    match stream.get_ref().1.alpn_protocol() {
        Some(kind @ (b"down" | b"yielding")) => {
            let yielding = kind == b"yielding";
            seat.is_a_stream();
            down(stream, yielding).await
        }
        Some(b"tunnel") => tunnel(stream, seat.server.upstream).await,
        Some(b"echo") => echo(stream).await,
        Some(b"near") => relay(stream, seat.actor_home(false)).await,
        Some(b"far") => relay(stream, seat.actor_home(true)).await,
        _ => http(stream).await,
    }
}

async fn http(stream: TlsStream<TcpStream>) -> std::io::Result<()> {
    let answer = |_: Request<Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(&[b'x'; 128]))))
    };
    let served = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
    served.await.map_err(std::io::Error::other)
}

async fn down(mut stream: TlsStream<TcpStream>, yielding: bool) -> std::io::Result<()> {
    static PIECE: [u8; 64 * 1024] = [0x5a; 64 * 1024];
    loop {
        stream.write_all(&PIECE).await?;
        if yielding {
            tokio::task::yield_now().await;
        }
    }
}

/// What a tunnel does with a desktop that has much to send.
async fn tunnel(mut stream: TlsStream<TcpStream>, upstream: SocketAddr) -> std::io::Result<()> {
    let mut upstream = TcpStream::connect(upstream).await?;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = upstream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length]).await?;
    }
}

async fn echo(mut stream: TlsStream<TcpStream>) -> std::io::Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length]).await?;
    }
}

/// An echo whose bytes pass through another task and back, as those of a tunnel pass through its actor.
async fn relay(mut stream: TlsStream<TcpStream>, home: &Handle) -> std::io::Result<()> {
    let (to_actor, mut from_connection) = mpsc::channel::<Bytes>(8);
    let (to_connection, mut from_actor) = mpsc::channel::<Bytes>(8);
    home.spawn(async move {
        while let Some(bytes) = from_connection.recv().await {
            if to_connection.send(bytes).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = [0; 1024];
    loop {
        let length = stream.read(&mut buffer).await?;
        if length == 0 || to_actor.send(Bytes::copy_from_slice(&buffer[..length])).await.is_err() {
            return Ok(());
        }
        let Some(bytes) = from_actor.recv().await else {
            return Ok(());
        };
        stream.write_all(&bytes).await?;
    }
}
