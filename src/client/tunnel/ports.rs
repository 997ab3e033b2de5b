//! The local ports that the gateway asks for, and the programs that connect to them.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::channel::{Channel, splice};
use super::driver::{Call, Order, RaiseFault};

/// How the client listens for local programs.
#[derive(Debug)]
pub enum Doors {
    /// On 127.0.0.1, on the port that the gateway names, or any.
    Loopback,
    /// The first port that the gateway asks for is this socket; others are on 127.0.0.1.
    Given(TcpListener),
    /// Nowhere: channels are opened with [`Tunnel::raise`](super::Tunnel::raise) only.
    Held,
}

/// The open ports by the names that the gateway gave them.
#[derive(Debug)]
pub(super) struct Ports {
    doors: Doors,
    open: HashMap<String, Port>,
    last_held: u16,
}

#[derive(Debug)]
struct Port {
    number: u16,
    _accepting: Option<DropGuard>,
}

/// A port to be opened.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) name: String,
    pub(super) port: Option<u16>,
    pub(super) max_connections: Option<u16>,
}

impl Ports {
    pub(super) fn new(doors: Doors) -> Self {
        Self {
            doors,
            open: HashMap::new(),
            last_held: 0,
        }
    }

    /// Opens a port and gives its number, or the words for why it cannot.
    pub(super) fn open(
        &mut self,
        wanted: Wanted,
        orders: &mpsc::Sender<Order>,
        tasks: &TaskTracker,
    ) -> Result<u16, String> {
        if self.open.contains_key(&wanted.name) {
            return Err("a port of that name is open".to_owned());
        }
        if self.open.len() >= MAX_PORTS {
            return Err("too many ports".to_owned());
        }
        let Some(listener) = self.listener(wanted.port).map_err(|error| error.to_string())? else {
            self.last_held += 1;
            self.open.insert(
                wanted.name,
                Port {
                    number: self.last_held,
                    _accepting: None,
                },
            );
            return Ok(self.last_held);
        };
        let number = listener.local_addr().map_err(|error| error.to_string())?.port();
        let stop = CancellationToken::new();
        let accepting = Some(stop.clone().drop_guard());
        let acceptor = Acceptor {
            listener,
            single_use: wanted.max_connections == Some(1),
            places: Arc::new(Semaphore::new(
                wanted.max_connections.unwrap_or(u16::MAX).min(MAX_CONNECTIONS).into(),
            )),
            name: wanted.name.clone(),
            orders: orders.clone(),
            tasks: tasks.clone(),
        };
        tasks.spawn(async move { stop.run_until_cancelled(acceptor.run()).await });
        self.open.insert(
            wanted.name,
            Port {
                number,
                _accepting: accepting,
            },
        );
        Ok(number)
    }

    /// Closes a port; connections made to it live on. `false`: there is none of that name.
    pub(super) fn close(&mut self, name: &str) -> bool {
        self.open.remove(name).is_some()
    }

    /// The name of the port with that number.
    pub(super) fn name_of(&self, number: u16) -> Option<&str> {
        self.open
            .iter()
            .find(|(_, port)| port.number == number)
            .map(|(name, _)| name.as_str())
    }

    /// Whether a port of that name is open.
    pub(super) fn is_open(&self, name: &str) -> bool {
        self.open.contains_key(name)
    }

    /// `None`: no socket listens.
    fn listener(&mut self, port: Option<u16>) -> io::Result<Option<TcpListener>> {
        match std::mem::replace(&mut self.doors, Doors::Loopback) {
            Doors::Held => {
                self.doors = Doors::Held;
                Ok(None)
            }
            Doors::Given(listener) => Ok(Some(listener)),
            Doors::Loopback => {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.unwrap_or(0)));
                let listener = std::net::TcpListener::bind(address)?;
                listener.set_nonblocking(true)?;
                TcpListener::from_std(listener).map(Some)
            }
        }
    }
}

/// Accepts the programs that connect to one port.
struct Acceptor {
    listener: TcpListener,
    single_use: bool,
    places: Arc<Semaphore>,
    name: String,
    orders: mpsc::Sender<Order>,
    tasks: TaskTracker,
}

impl Acceptor {
    async fn run(self) {
        // The semaphore is never closed.
        while let Ok(place) = self.places.clone().acquire_owned().await {
            let Ok((stream, _)) = self.listener.accept().await else {
                // Out of file descriptors, most likely: some will be given back.
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let (name, orders) = (self.name.clone(), self.orders.clone());
            if self.single_use {
                drop(self.listener);
                // Detached: closing the port must not cut the connection.
                self.tasks.spawn(async move {
                    serve(stream, name.clone(), &orders).await;
                    let _ = orders.send(Order::Used { port_name: name }).await;
                });
                return;
            }
            self.tasks.spawn(async move {
                serve(stream, name, &orders).await;
                drop(place);
            });
        }
    }
}

/// Carries one local connection to its end. A channel that is refused closes it.
async fn serve(stream: TcpStream, port_name: String, orders: &mpsc::Sender<Order>) {
    if let Ok(channel) = raise(Call::Name(port_name), orders).await {
        splice(stream, channel).await;
    }
}

/// Asks the driver for a channel.
pub(super) async fn raise(port: Call, orders: &mpsc::Sender<Order>) -> Result<Channel, RaiseFault> {
    let (reply, answer) = oneshot::channel();
    orders
        .send(Order::Raise { port, reply })
        .await
        .map_err(|_| RaiseFault::Over)?;
    answer.await.unwrap_or(Err(RaiseFault::Over))
}

/// Ports that a gateway can have the client open.
const MAX_PORTS: usize = 64;
/// Connections that one port takes at a time, whatever the gateway allows.
const MAX_CONNECTIONS: u16 = 64;
const PAUSE: Duration = Duration::from_millis(100);
