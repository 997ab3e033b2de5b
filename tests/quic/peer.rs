//! A QUIC client that does whatever a test wants.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use h3::client::{RequestStream, SendRequest};
use h3::ext::Protocol;
use http::{Method, Request, StatusCode};
use portcullis::tunnel::masque::wire::{BidiStream, Connection, Opener};
use quinn::crypto::rustls::QuicClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

use super::support::raw::{self, SignedIn, message};
use super::support::{Gateway, PATIENCE};

pub(crate) type Stream = RequestStream<BidiStream<Bytes>, Bytes>;

pub(crate) struct Peer {
    pub(crate) connection: quinn::Connection,
    pub(crate) requests: SendRequest<Opener, Bytes>,
    _driver: tokio::task::JoinHandle<()>,
}

impl Peer {
    pub(crate) async fn connect(gateway: &Gateway) -> Self {
        Self::connect_to(gateway.address, &gateway.chain()).await
    }

    pub(crate) async fn connect_to(address: SocketAddr, chain: &Path) -> Self {
        Self::connect_from(&endpoint(chain), address).await
    }

    pub(crate) async fn connect_from(endpoint: &quinn::Endpoint, address: SocketAddr) -> Self {
        let connecting = endpoint.connect(address, "localhost").unwrap();
        let connection = timeout(PATIENCE, connecting)
            .await
            .expect("in time")
            .expect("a handshake");
        let (mut driver, requests) = h3::client::builder()
            .send_grease(false)
            .enable_datagram(true)
            .build(Connection::new(connection.clone()))
            .await
            .unwrap();
        let driver = tokio::task::spawn(async move {
            let _ = std::future::poll_fn(|cx| driver.poll_close(cx)).await;
        });
        Self {
            connection,
            requests,
            _driver: driver,
        }
    }

    /// Sends the head of a request, and gives the answer's status with the stream.
    pub(crate) async fn ask(&self, request: Request<()>) -> (StatusCode, Stream) {
        let asked = async {
            let mut stream = self.requests.clone().send_request(request).await.unwrap();
            let answer = stream.recv_response().await.unwrap();
            (answer.status(), stream)
        };
        timeout(PATIENCE, asked).await.expect("an answer in time")
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Vec<u8>) {
        let request = Request::get(format!("https://localhost{path}")).body(()).unwrap();
        let asked = async {
            let mut stream = self.requests.clone().send_request(request).await.unwrap();
            stream.finish().await.unwrap();
            (stream.recv_response().await.unwrap().status(), stream)
        };
        let (status, mut stream) = timeout(PATIENCE, asked).await.expect("an answer in time");
        (status, read_all(&mut stream).await)
    }

    /// `CONNECT` to a route; `authorization` is the whole field.
    pub(crate) async fn connect_stream(&self, place: &str, authorization: Option<&str>) -> (StatusCode, Stream) {
        self.ask(connect(&format!("https://{place}/"), authorization, None))
            .await
    }

    /// `CONNECT-UDP` to a route.
    pub(crate) async fn connect_udp(&self, place: &str, token: &str) -> (StatusCode, Stream) {
        let uri = format!("https://localhost/.well-known/masque/udp/{place}/");
        let authorization = format!("Bearer {token}");
        self.ask(connect(&uri, Some(&authorization), Some(Protocol::CONNECT_UDP)))
            .await
    }
}

fn connect(uri: &str, authorization: Option<&str>, protocol: Option<Protocol>) -> Request<()> {
    let mut request = Request::builder().method(Method::CONNECT).uri(uri);
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    if let Some(protocol) = protocol {
        request = request.extension(protocol).header("capsule-protocol", "?1");
    }
    request.body(()).unwrap()
}

/// A client's endpoint that trusts this certificate.
pub(crate) fn endpoint(chain: &Path) -> quinn::Endpoint {
    let mut endpoint = quinn::Endpoint::client(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    endpoint.set_default_client_config(config(chain));
    endpoint
}

pub(crate) fn config(chain: &Path) -> quinn::ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(chain).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"h3".to_vec()];
    quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls).unwrap()))
}

/// Reads to the end of the answer.
pub(crate) async fn read_all(stream: &mut Stream) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while let Some(mut piece) = stream.recv_data().await.unwrap() {
            body.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
        }
    };
    timeout(PATIENCE, reading).await.expect("the end in time");
    body
}

/// Reads as many octets.
pub(crate) async fn read(stream: &mut Stream, length: usize) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        while body.len() < length {
            let mut piece = stream.recv_data().await.unwrap().expect("more octets");
            body.extend_from_slice(&piece.copy_to_bytes(piece.remaining()));
        }
    };
    timeout(PATIENCE, reading).await.expect("the octets in time");
    body
}

/// A signed-in user who has asked for QUIC.
pub(crate) struct User {
    pub(crate) user: SignedIn,
    pub(crate) token: String,
    pub(crate) port: u16,
}

pub(crate) fn sign_in(gateway: &Gateway) -> User {
    let user = raw::sign_in(gateway, "ann");
    let asked = message("<get-tunnel-connection><quic>true</quic></get-tunnel-connection>");
    let answer = raw::post(gateway, Some(&user.cookie), &asked);
    let quic = raw::element(answer.text(), "quic").expect("QUIC is offered");
    User {
        token: raw::element(quic, "token").unwrap().to_owned(),
        port: raw::element(quic, "port").unwrap().parse().unwrap(),
        user,
    }
}

/// Launches a desktop over QUIC; gives `name:port`.
pub(crate) fn launch(gateway: &Gateway, user: &User, desktop: &str) -> String {
    let asked = message(&format!(
        "<get-desktop-connection><desktop-id>{desktop}</desktop-id><quic>true</quic></get-desktop-connection>"
    ));
    let answer = raw::post(gateway, Some(&user.user.cookie), &asked);
    let part = |name| raw::element(answer.text(), name).unwrap_or_else(|| panic!("{}", answer.text()));
    format!("{}:{}", part("address"), part("port"))
}
