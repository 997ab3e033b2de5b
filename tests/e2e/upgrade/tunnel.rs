//! Tunnels of the program's own client, behind a way that gives them an address of their own.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};

use portcullis::client::{Channel, Credentials, Notice, Reached, Session, Tunnel, Unattended};
use portcullis::types::Secret;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::client::{BUSY, Client};
use super::site::{BALANCER, user};
use crate::e2e::balancer::rig::Node;
use crate::support::PASSWORD;
use crate::support::client::{self, echo};

/// A session with its tunnel and an open channel.
pub(super) struct Tunnelled {
    session: Session,
    tunnel: Tunnel,
    channel: Channel,
    notices: mpsc::Receiver<Notice>,
    turns: u8,
    _way: DropGuard,
}

pub(super) fn open(client: &Client, _: Node) -> Tunnelled {
    let balancer = SocketAddr::from((BALANCER, client.site.first));
    let (way, guard) = client.runtime.block_on(way(client.address(), balancer));
    let is_busy = |signed_in: &Result<_, Box<dyn Error>>| {
        let fault = signed_in.as_ref().err();
        fault.is_some_and(|fault| fault.to_string().contains(BUSY))
    };
    let signed_in = client.unless(is_busy, || client.runtime.block_on(sign_in(client, way)));
    client.runtime.block_on(async {
        let mut session = signed_in.unwrap();
        let (tunnel, notices) = client::open_tunnel(&mut session).await;
        let channel = client::launch(&mut session, &tunnel, "shell").await;
        Tunnelled {
            session,
            tunnel,
            channel,
            notices,
            turns: client.load.number,
            _way: guard,
        }
    })
}

async fn sign_in(client: &Client, way: SocketAddr) -> Result<Session, Box<dyn Error>> {
    let settings = client::settings(&client.site.roots);
    let reached = Reached::dial(way.to_string().parse()?, settings, &mut Unattended).await?;
    let credentials = Credentials {
        user: Some(user(client.load.number)),
        password: Some(Secret::new(PASSWORD)),
        domain: None,
        accept_disclaimer: true,
    };
    Ok(reached.sign_in(credentials, &mut Unattended).await?)
}

/// An echo; at times a word on the control channel, or another channel.
pub(super) fn turn(client: &Client, _: Node, tunnelled: &mut Tunnelled) {
    let Tunnelled {
        session,
        tunnel,
        channel,
        notices,
        turns,
        _way,
    } = tunnelled;
    *turns = turns.wrapping_add(1);
    let octets = [*turns; 500];
    client.runtime.block_on(async {
        assert_eq!(echo(channel, &octets).await, octets, "octets of the tunnel");
        if turns.is_multiple_of(8) {
            let beat = async { session.beat().await.expect("the control channel") };
            client.ask(beat).await;
        }
        if *turns % 16 == 3 {
            let mut another = client.ask(client::launch(session, tunnel, "shell")).await;
            assert_eq!(echo(&mut another, &octets).await, octets, "octets of another channel");
            another.close().await;
        }
    });
    while let Ok(notice) = notices.try_recv() {
        assert_ne!(notice, Notice::ContactLost, "the tunnel's connection was cut");
    }
}

/// A port of this machine from which connections go to the balancer from that address.
async fn way(from: SocketAddr, balancer: SocketAddr) -> (SocketAddr, DropGuard) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let (stopped, spawning) = (stop.clone(), tasks.clone());
    let pass = async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            tasks.spawn(async move {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind(from).unwrap();
                let mut outside = socket.connect(balancer).await.unwrap();
                let _ = copy_bidirectional(&mut inside, &mut outside).await;
            });
        }
    };
    spawning.spawn(async move { stopped.run_until_cancelled(pass).await });
    (address, stop.drop_guard())
}
