//! A user's client: the program's own, as a library.

use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use portcullis::client::{
    Channel, Credentials, Doors, Fault, Notice, Reached, Session, Settings, Trust, Tunnel, Unattended,
};
use portcullis::types::Secret;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::{Gateway, PASSWORD, PATIENCE};

/// How a client goes about it that trusts the gateway's own certificate.
pub fn settings(chain: &Path) -> Settings {
    Settings {
        trust: Trust::authorities(chain).unwrap(),
        accept_new: false,
        quic: true,
        locale: None,
        tasks: TaskTracker::new(),
    }
}

/// Reaches a gateway at one of its addresses.
pub async fn reach_at(gateway: &Gateway, address: SocketAddr) -> Result<Reached, Fault> {
    let endpoint = address.to_string().parse().unwrap();
    Reached::dial(endpoint, settings(&gateway.chain()), &mut Unattended).await
}

/// Signs a user in.
pub async fn sign_in_as(gateway: &Gateway, user: &str, password: &str) -> Result<Session, Fault> {
    let credentials = Credentials {
        user: Some(user.to_owned()),
        password: Some(Secret::new(password)),
        domain: None,
        accept_disclaimer: true,
    };
    reach_at(gateway, gateway.address)
        .await?
        .sign_in(credentials, &mut Unattended)
        .await
}

/// Signs `ann` in.
pub async fn sign_in(gateway: &Gateway) -> Session {
    sign_in_as(gateway, "ann", PASSWORD).await.unwrap()
}

/// Opens the session's tunnel; what happens to it comes from the second part.
pub async fn open_tunnel(session: &mut Session) -> (Tunnel, mpsc::Receiver<Notice>) {
    let (notices, told) = mpsc::channel(64);
    let tunnel = session
        .open_tunnel(Doors::Held, notices, &mut Unattended)
        .await
        .unwrap();
    (tunnel, told)
}

/// Launches a desktop and opens a channel to it.
pub async fn launch(session: &mut Session, tunnel: &Tunnel, desktop: &str) -> Channel {
    let desktop = session
        .desktops()
        .iter()
        .find(|known| known.id == desktop)
        .unwrap()
        .clone();
    let launched = session.launch(&desktop, None).await.unwrap();
    tunnel.raise(launched.port).await.unwrap()
}

/// Sends octets and waits until as many came back.
pub async fn echo(channel: &mut Channel, octets: &[u8]) -> Vec<u8> {
    channel.sender().send(Bytes::copy_from_slice(octets)).await.unwrap();
    receive(channel, octets.len()).await
}

/// Waits for as many octets.
pub async fn receive(channel: &mut Channel, length: usize) -> Vec<u8> {
    let mut received = Vec::new();
    while received.len() < length {
        let octets = timeout(PATIENCE, channel.receive()).await.expect("octets in time");
        received.extend_from_slice(&octets.expect("the channel is open"));
    }
    received
}
