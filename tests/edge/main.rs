//! Steps 1 and 2 over real sockets: who is let in, what is agreed, and what hostile or broken clients get.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod caps;
mod descriptors;
mod memory;
mod openssl;
mod proxy;
mod tls;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use ipnet::IpNet;
use portcullis::config::{self, Config};
use portcullis::fault::CloseReason;
use portcullis::listen::{self, Caps};
use portcullis::secure::{self, Certificates, Secured, Tickets, server_config};
use portcullis::types::Secret;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A listener as the node runs it: each connection in its own task, under one deadline.
struct Gate {
    address: SocketAddr,
    caps: Arc<Caps>,
    tls: Arc<ArcSwap<rustls::ServerConfig>>,
    tickets: Tickets,
    /// What became of each connection, in the order in which it was known.
    outcomes: mpsc::Receiver<Result<Secured, CloseReason>>,
    _stop: DropGuard,
}

impl Gate {
    /// Serves other certificates from the next handshake on, as a reload does.
    fn serve(&self, certificates: Certificates) {
        self.tls
            .store(server_config(Arc::new(certificates), &self.tickets).unwrap());
    }

    fn open(certificates: Certificates) -> Self {
        Self::with(certificates, &limits(1000, 1000), &[])
    }

    fn with(certificates: Certificates, limits: &config::Limits, balancers: &[&str]) -> Self {
        let socket = listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = tokio::net::TcpListener::from_std(socket).unwrap();
        let address = listener.local_addr().unwrap();
        let caps = Caps::new(limits);
        let tickets = Tickets::new(&[], portcullis::clock::now()).unwrap();
        let tls = Arc::new(ArcSwap::new(server_config(Arc::new(certificates), &tickets).unwrap()));
        let (sender, outcomes) = mpsc::channel(1000);
        let balancers: Arc<[IpNet]> = balancers.iter().map(|net| net.parse().unwrap()).collect();
        let deadline = limits.handshake_timeout;
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let handler = {
            let (tasks, tls) = (tasks.clone(), Arc::clone(&tls));
            move |incoming: listen::Incoming| {
                let (sender, balancers, tls) = (sender.clone(), Arc::clone(&balancers), Arc::clone(&tls));
                tasks.spawn(async move {
                    let secured = async {
                        let accepted = incoming.accept(&balancers).await?;
                        secure::https_handshake(accepted, tls.load_full()).await
                    };
                    let outcome = tokio::time::timeout(deadline, secured)
                        .await
                        .unwrap_or(Err(CloseReason::Timeout));
                    sender.send(outcome).await.ok();
                });
            }
        };
        tasks.spawn(listen::accept_loop(
            listener,
            "test".into(),
            Arc::clone(&caps),
            handler,
            stop.clone(),
        ));
        Self {
            address,
            caps,
            tls,
            tickets,
            outcomes,
            _stop: stop.drop_guard(),
        }
    }

    async fn outcome(&mut self) -> Result<Secured, CloseReason> {
        self.outcomes.recv().await.unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

fn limits(connections: usize, connections_per_source: usize) -> config::Limits {
    config::Limits {
        connections,
        connections_per_source,
        handshake_timeout: Duration::from_secs(10),
        head_timeout: Duration::from_secs(30),
        body_timeout: Duration::from_secs(30),
        pending_logins: 1,
        handshakes_per_source: 1_000_000,
    }
}

/// Certificates in a directory of their own.
struct Store {
    directory: TempDir,
    configured: BTreeMap<String, config::Certificate>,
}

impl Store {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            configured: BTreeMap::new(),
        }
    }

    /// Adds a P-256 certificate under `name` for these hosts.
    fn with(mut self, name: &str, hosts: &[&str]) -> Self {
        self.renew(name, hosts);
        self
    }

    fn renew(&mut self, name: &str, hosts: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let made = secure::self_signed(&hosts, portcullis::clock::wall()).unwrap();
        std::fs::write(self.chain(name), made.chain).unwrap();
        std::fs::write(self.key(name), made.key.expose()).unwrap();
        self.add(name);
    }

    /// Takes in the files that lie there under that name.
    fn add(&mut self, name: &str) {
        let certificate = config::Certificate {
            chain: self.chain(name),
            key: self.key(name),
            ocsp: None,
        };
        self.configured.insert(name.to_owned(), certificate);
    }

    fn load(&self, served: &[&str]) -> Result<Certificates, Vec<secure::LoadFault>> {
        let config = config(self.configured.clone());
        let served: Vec<_> = served.iter().map(|name| (*name).to_owned()).collect();
        Certificates::load(&config, &served, portcullis::clock::wall())
    }

    fn chain(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.pem"))
    }

    fn key(&self, name: &str) -> PathBuf {
        self.path().join(format!("{name}.key"))
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// A client that trusts the certificates of `store`.
fn client(store: &Store) -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    for certificate in store.configured.values() {
        roots
            .add(CertificateDer::from_pem_file(&certificate.chain).unwrap())
            .unwrap();
    }
    rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn agree(client: &Arc<rustls::ClientConfig>, io: TcpStream, name: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::clone(client)).connect(name, io).await
}

fn config(certificates: BTreeMap<String, config::Certificate>) -> Config {
    Config {
        source: config::Source::default(),
        node: config::Node {
            name: "gw-1".parse().unwrap(),
            state_dir: "/nonexistent".into(),
            admin_socket: "/nonexistent".into(),
            workers: None,
            grace_period: Duration::ZERO,
            recognition_key: None::<Secret>,
        },
        log: config::Log {
            format: config::LogFormat::Text,
            level: "info".into(),
        },
        listeners: BTreeMap::new(),
        certificates,
        health: vec![],
        admin: config::Admin::default(),
        quiesce: config::Quiesce {
            answer: config::QuiesceAnswer::Unavailable,
            agent: vec![],
            agent_from: vec![],
            refuses_logins: false,
        },
        limits: limits(1, 1),
        session: config::Session {
            lifetime: Duration::ZERO,
            idle: None,
            heartbeat: Duration::ZERO,
            login_timeout: Duration::ZERO,
            first_use: Duration::ZERO,
            max: 1,
            per_user: 1,
            connections: 1,
        },
        state: config::State::default(),
        tunnel: config::Tunnel {
            external_url: None,
            lost_contact: Duration::ZERO,
            reconnect_window: Duration::ZERO,
        },
        blast: config::Blast::default(),
        pcoip: config::Pcoip {
            bind: vec![],
            balancers: vec![],
            certificates: vec![],
            terminates_tls: true,
            external_address: None,
        },
        web: config::web::Web::default(),
        rdp: config::Rdp::default(),
        udp: config::Udp {
            first_datagram: Duration::ZERO,
            agent_answer: Duration::ZERO,
            idle: Duration::ZERO,
            flows: 1,
            flows_per_session: 1,
            strays_per_source: 1,
        },
        fleet: config::Fleet::default(),
        authentication: config::Authentication {
            disclaimer: None,
            domains: vec![],
            attempts: 1,
            throttle: config::Throttle {
                per_user: 1,
                per_source: 1,
                window: Duration::ZERO,
            },
        },
        directory: config::Directory::default(),
    }
}
