//! What the tests of a tunnel stand on.

use std::net::{IpAddr, Ipv4Addr};

use http_body::Frame;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::super::*;
use crate::authenticate::Authenticated;
use crate::config;
use crate::fault::Refusal;
use crate::grant::{Route, Secondary, Store};
use crate::tunnel::https::registry::{Handle, ListenFault, Registry, Settings};
use crate::tunnel::https::session::Limits;
use crate::tunnel::https::session::model::Client;
use crate::types::{DesktopId, Protocol, Target};

/// What stands around the tunnels of one session.
#[derive(Clone)]
pub(super) struct Node {
    pub(super) registry: Arc<Registry>,
    pub(super) store: Arc<Store>,
    pub(super) grant: Arc<Grant>,
    pub(super) tasks: TaskTracker,
    pub(super) drain: CancellationToken,
}

impl Node {
    pub(super) fn new() -> Self {
        let now = clock::now();
        let store = Arc::new(Store::new("gw-1".parse().unwrap(), None, session_limits()));
        let who = Authenticated::for_test("ann", IpAddr::V4(Ipv4Addr::LOCALHOST), now);
        let grant = store.mint(who, now).unwrap();
        let drain = CancellationToken::new();
        let registry = Arc::new(Registry::new(drain.clone()));
        Self {
            registry,
            store,
            grant,
            tasks: TaskTracker::new(),
            drain,
        }
    }

    pub(super) fn announce(&self) -> String {
        self.store
            .announce(&self.grant, Secondary::Tunnel, clock::now())
            .to_string()
    }

    pub(super) fn admit(&self, token: &str) -> Granted {
        self.store.admit(token, Secondary::Tunnel, clock::now()).unwrap()
    }

    /// A tunnel whose client has not said anything.
    pub(super) fn open(self) -> Rig {
        let token = self.announce();
        let (upload, stream) = mpsc::channel(1);
        let body = self
            .registry
            .open_over(self.admit(&token), &token, Upload(stream), settings(), &self.tasks);
        Rig {
            node: self,
            token,
            client: Client::default(),
            upload,
            body,
            next_port: 40_000,
        }
    }

    pub(super) async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        assert!(self.registry.is_empty());
        assert_eq!(self.grant.connections(), 0);
    }
}

/// A tunnel and its client.
pub(super) struct Rig {
    pub(super) node: Node,
    token: String,
    pub(super) client: Client,
    upload: mpsc::Sender<Result<Bytes, Broken>>,
    pub(super) body: TunnelBody,
    next_port: u16,
}

impl std::ops::Deref for Rig {
    type Target = Node;

    fn deref(&self) -> &Node {
        &self.node
    }
}

impl Rig {
    pub(super) async fn ready() -> Self {
        let mut rig = Node::new().open();
        rig.start().await;
        rig
    }

    /// The same with a client that knows half-closed channels.
    pub(super) async fn listening() -> Self {
        let mut rig = Node::new().open();
        rig.client.half_close = true;
        rig.start().await;
        rig
    }

    pub(super) async fn start(&mut self) {
        self.client.init();
        let token = self.token.clone();
        self.client.start(&token);
        self.until(|client| client.ready).await;
    }

    pub(super) fn handle(&self) -> Handle {
        self.registry.get(self.grant.id()).unwrap()
    }

    pub(super) async fn desktop(&self) -> (Arc<Route>, LoopbackDesktop) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let target = Target {
            host: "127.0.0.1".into(),
            port,
        };
        let id = DesktopId::new(format!("desktop-{port}"));
        let route = self.grant.add_route(&id, Protocol::Vnc, &target, None).unwrap();
        (route, LoopbackDesktop { listener })
    }

    pub(super) async fn listen(&mut self, route: &Arc<Route>, single_use: bool) -> Result<u16, ListenFault> {
        let (handle, route) = (self.handle(), route.clone());
        self.pump_until(async move { handle.listen(route, single_use).await })
            .await
    }

    pub(super) async fn open_channel(&mut self, channel: i32, route: &Arc<Route>) {
        self.listen(route, false).await.unwrap();
        self.client.raise(channel, &route.port_name());
        self.until(|client| client.channels[&channel].open).await;
    }

    /// Carries bytes between client and tunnel until the client has what is waited for.
    pub(super) async fn until(&mut self, done: impl Fn(&Client) -> bool) {
        while !done(&self.client) {
            let alive = tokio::time::timeout(PATIENCE, self.pump()).await;
            assert!(alive.expect("nothing comes any more"), "the tunnel ended");
        }
    }

    /// Carries what the client has to say, as far as the tunnel takes it. For paused time.
    pub(super) async fn carries_all(&mut self) -> bool {
        while !self.client.wire.is_empty() {
            if tokio::time::timeout(Duration::from_millis(1), self.pump())
                .await
                .is_err()
            {
                return false;
            }
        }
        true
    }

    /// Carries bytes between client and tunnel until `work` is done.
    pub(super) async fn pump_until<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                alive = self.pump() => assert!(alive, "the tunnel ended"),
            }
        }
    }

    /// Cancel-safe: nothing is taken that is not carried.
    pub(super) async fn pump(&mut self) -> bool {
        let ports: Vec<_> = self
            .client
            .ports
            .iter()
            .filter(|port| port.1.is_some())
            .map(|p| p.0.clone())
            .collect();
        for port_name in ports {
            self.next_port += 1;
            self.client.answer_listening(&port_name, Ok(self.next_port));
        }
        tokio::select! {
            place = self.upload.reserve(), if !self.client.wire.is_empty() => {
                let piece = self.client.wire.len().min(7_000);
                if let Ok(place) = place {
                    place.send(Ok(self.client.wire.split_to(piece).freeze()));
                }
                true
            }
            frame = self.body.frame() => {
                let Some(frame) = frame else { return false };
                let chunk = frame.unwrap().into_data().unwrap();
                assert!(chunk.len() >= 5);
                self.client.receive(chunk);
                if self.client.unacknowledged >= 4 {
                    self.client.acknowledge();
                }
                true
            }
        }
    }

    pub(super) async fn lose_connection_mid_chunk(&mut self) {
        let half = self.client.wire.len().min(5_000);
        let piece = self.client.wire.split_to(half).freeze();
        self.upload.send(Ok(piece)).await.unwrap();
        drop(self.upload.send(Err(Broken)).await);
        while self.body.frame().await.is_some() {}
        self.client.disconnect();
    }

    /// The connection is gone at once, with what was on its way.
    pub(super) async fn break_off(&mut self) {
        self.body = Link::new(self.admit(&self.token), http_body_util::Empty::new()).1;
        self.client.disconnect();
        tokio::task::yield_now().await;
    }

    pub(super) fn resume(&mut self) -> Result<(), Refusal> {
        let granted = self.store.admit(&self.token, Secondary::Tunnel, clock::now()).unwrap();
        let (upload, stream) = mpsc::channel(1);
        let secret = self.client.reconnect_secret.clone().unwrap();
        self.body = self.registry.resume_over(granted, secret.expose(), Upload(stream))?;
        self.upload = upload;
        self.client.reconnect();
        Ok(())
    }

    pub(super) async fn body_has_ended(&mut self) -> bool {
        while self.body.frame().await.is_some() {}
        self.ended().await;
        true
    }

    pub(super) async fn end_cleanly(&mut self) {
        self.upload = mpsc::channel(1).0;
        assert!(self.body_has_ended().await);
    }
}

pub(super) struct LoopbackDesktop {
    pub(super) listener: TcpListener,
}

impl LoopbackDesktop {
    pub(super) async fn accept(&mut self) -> TcpStream {
        self.listener.accept().await.unwrap().0
    }

    pub(super) async fn accept_while(&mut self, rig: &mut Rig) -> TcpStream {
        rig.pump_until(self.listener.accept()).await.unwrap().0
    }
}

/// The client's stream as a request body.
pub(super) struct Upload(mpsc::Receiver<Result<Bytes, Broken>>);

impl Body for Upload {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        self.0
            .poll_recv(cx)
            .map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}

pub(super) async fn read(socket: &mut (impl tokio::io::AsyncRead + Unpin), length: usize) -> Vec<u8> {
    let mut octets = vec![0; length];
    socket.read_exact(&mut octets).await.unwrap();
    octets
}

pub(super) fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|place| (place * 31 + place / 251) as u8).collect()
}

pub(super) fn settings() -> Settings {
    Settings {
        lost_contact: LOST_CONTACT,
        reconnect_window: RECONNECT_WINDOW,
        limits: Limits::default(),
    }
}

pub(super) fn session_limits() -> config::Session {
    config::Session {
        lifetime: Duration::from_secs(36_000),
        idle: None,
        heartbeat: Duration::from_secs(1_800),
        login_timeout: Duration::from_secs(300),
        first_use: Duration::from_secs(120),
        max: 100,
        per_user: 10,
        connections: 8,
    }
}

pub(super) const LOST_CONTACT: Duration = Duration::from_secs(60);
pub(super) const RECONNECT_WINDOW: Duration = Duration::from_secs(300);
/// A test that waits longer for one chunk has failed.
const PATIENCE: Duration = Duration::from_secs(20);
