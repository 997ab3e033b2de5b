use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tempfile::{NamedTempFile, TempDir};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use super::*;
use crate::clock;
use crate::config::Certificate;
use crate::config::web::BackendTls;
use crate::secure::own_certificate;

/// Nothing is verified but what a test adds.
fn trusting() -> BackendTls {
    BackendTls {
        verify_name: false,
        verify_chain: false,
        ..BackendTls::default()
    }
}

#[tokio::test]
async fn a_target_is_held_to_its_authority_and_its_name() {
    let (authority, other) = (Authority::new("inside"), Authority::new("others"));
    let target = Target::start(Shown::by(&authority, "shop.inside")).await;
    let checked = |ca: &Authority| BackendTls {
        ca: Some(ca.file()),
        verify_name: true,
        verify_chain: true,
        ..trusting()
    };
    let reach = async |tls: BackendTls, name: &str| target.reached(&tls, Some(name), false).await;
    assert_eq!(reach(checked(&authority), "shop.inside").await, Ok(()));
    assert_eq!(
        reach(checked(&authority), "else.inside").await,
        Err(ConnectFault::NameMismatch)
    );
    assert_eq!(
        reach(checked(&other), "shop.inside").await,
        Err(ConnectFault::UnknownAuthority)
    );
    assert_eq!(reach(checked(&authority), "no name").await, Err(ConnectFault::NoName));
    let any_name = BackendTls {
        verify_name: false,
        ..checked(&authority)
    };
    assert_eq!(reach(any_name.clone(), "else.inside").await, Ok(()));
    assert_eq!(reach(any_name, "no name").await, Ok(()));
    let any_issuer = BackendTls {
        verify_chain: false,
        ..checked(&other)
    };
    assert_eq!(reach(any_issuer.clone(), "shop.inside").await, Ok(()));
    assert_eq!(reach(any_issuer, "else.inside").await, Err(ConnectFault::NameMismatch));
    assert_eq!(reach(trusting(), "else.inside").await, Ok(()));
}

#[tokio::test]
async fn a_target_has_to_be_in_its_time() {
    let authority = Authority::new("inside");
    let checked = BackendTls {
        ca: Some(authority.file()),
        verify_chain: true,
        ..trusting()
    };
    for (years, fault) in [
        ((2001, 2002), ConnectFault::Expired),
        ((2901, 2902), ConnectFault::NotYetValid),
    ] {
        let shown = Shown::in_years(&authority, "shop.inside", years);
        let target = Target::start(shown).await;
        assert_eq!(target.reached(&checked, Some("shop.inside"), false).await, Err(fault));
        let unchecked = trusting();
        assert_eq!(target.reached(&unchecked, Some("shop.inside"), false).await, Ok(()));
    }
}

#[tokio::test]
async fn a_target_that_certifies_itself_is_known_by_its_certificate() {
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["shop.inside".to_owned()]).unwrap();
        params.is_ca = is_ca;
        let certificate = params.self_signed(&key).unwrap();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        let target = Target::start(Shown {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            ..Shown::by(&Authority::new("unused"), "unused")
        })
        .await;
        let pinned = BackendTls {
            ca: Some(file.path().to_owned()),
            verify_name: true,
            verify_chain: true,
            ..trusting()
        };
        assert_eq!(target.reached(&pinned, Some("shop.inside"), false).await, Ok(()));
        let fault = target.reached(&pinned, Some("else.inside"), false).await;
        assert_eq!(fault, Err(ConnectFault::NameMismatch));
    }
}

#[tokio::test]
async fn a_target_that_wants_a_certificate_is_shown_the_configured_one() {
    let (authority, folder) = (Authority::new("inside"), TempDir::new().unwrap());
    let target = Target::start(Shown {
        clients: Some(authority.certificate()),
        ..Shown::by(&authority, "shop.inside")
    })
    .await;
    let tls = BackendTls {
        ca: Some(authority.file()),
        verify_chain: true,
        certificate: Some("own".to_owned()),
        ..trusting()
    };
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["gw.test".to_owned()]).unwrap();
    let own = own.signed_by(&key, &authority.issuer).unwrap();
    let files = Certificate {
        chain: folder.path().join("own.crt"),
        key: folder.path().join("own.key"),
        ocsp: None,
    };
    std::fs::write(&files.chain, own.pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    let own = own_certificate("own", Some(&files), clock::wall()).unwrap();
    let trusted = Trusted::load(&tls, Some(own), false).unwrap();
    assert_eq!(
        target.answered(Connector::tls(LIMIT, trusted, None)).await,
        Some("hello".to_owned())
    );
    let trusted = Trusted::load(&tls, None, false).unwrap();
    assert_eq!(target.answered(Connector::tls(LIMIT, trusted, None)).await, None);
}

#[tokio::test]
async fn http2_is_agreed_or_there_is_no_connection() {
    let authority = Authority::new("inside");
    let speaks = Target::start(Shown {
        alpn: vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        ..Shown::by(&authority, "shop.inside")
    })
    .await;
    let silent = Target::start(Shown::by(&authority, "shop.inside")).await;
    let other = Target::start(Shown {
        alpn: vec![b"http/1.1".to_vec()],
        ..Shown::by(&authority, "shop.inside")
    })
    .await;
    let tls = trusting();
    assert_eq!(speaks.reached(&tls, None, true).await, Ok(()));
    assert_eq!(silent.reached(&tls, None, true).await, Err(ConnectFault::NoHttp2));
    assert_eq!(other.reached(&tls, None, true).await, Err(ConnectFault::NoHttp2));
    assert_eq!(other.reached(&tls, None, false).await, Ok(()));
}

#[tokio::test]
async fn the_name_of_the_configuration_goes_before_that_of_the_request() {
    let trusted = Trusted::load(&trusting(), None, false).unwrap();
    let named = Connector::tls(LIMIT, trusted.clone(), Some("fixed.inside"));
    assert_eq!(named.name("shop.test:8443"), Some("fixed.inside"));
    let unnamed = Connector::tls(LIMIT, trusted, None);
    for (host, name) in [
        ("shop.test:8443", Some("shop.test")),
        ("shop.test.", Some("shop.test")),
        ("[2001:db8::1]:80", Some("2001:db8::1")),
        ("192.0.2.1", Some("192.0.2.1")),
        ("", None),
    ] {
        assert_eq!(unnamed.name(host), name);
    }
    assert_eq!(Connector::plain(LIMIT).name("shop.test"), None);
}

#[tokio::test]
async fn what_is_agreed_is_told() {
    let authority = Authority::new("inside");
    let target = Target::start(Shown::in_years(&authority, "shop.inside", (2020, 2900))).await;
    let trusted = Trusted::load(&trusting(), None, false).unwrap();
    let io = Connector::tls(LIMIT, trusted, None)
        .connect(target.address, None)
        .await
        .unwrap();
    let tls = io.tls().unwrap();
    assert_eq!(tls.version, Some(ProtocolVersion::TLSv1_3));
    assert_eq!(tls.not_after.unwrap().to_string(), "2900-01-01T00:00:00Z");
}

#[tokio::test]
async fn what_is_not_there_is_told_from_what_is_no_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let trusted = Trusted::load(&trusting(), None, false).unwrap();
    let connector = Connector::tls(Duration::from_millis(50), trusted.clone(), None);
    let reached = connector.connect(address, None).await.map(drop);
    assert_eq!(reached, Err(ConnectFault::TlsTimeout));
    let connector = Connector::tls(LIMIT, trusted, None);
    let (silent, _) = listener.accept().await.unwrap();
    drop(silent);
    let plain = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        let _ = socket.read_u8().await;
    };
    let (reached, ()) = tokio::join!(connector.connect(address, None), plain);
    assert_eq!(reached.map(drop), Err(ConnectFault::NoTls));
    let closes = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await;
    };
    let (reached, ()) = tokio::join!(connector.connect(address, None), closes);
    assert_eq!(reached.map(drop), Err(ConnectFault::TlsClosed));
    drop(listener);
    let reached = connector.connect(address, None).await.map(drop);
    assert_eq!(reached, Err(ConnectFault::Refused));
    assert_eq!(ConnectFault::Refused.web(), WebFault::ConnectFailed);
}

#[tokio::test]
async fn a_connection_is_quiet_until_it_is_closed_or_spoken_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connector = Connector::plain(LIMIT);
    for says in ["", "HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let mut io = connector.connect(address, None).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        assert!(io.is_quiet());
        far.write_all(says.as_bytes()).await.unwrap();
        drop(far);
        let Stream::Plain(stream) = &io.stream else {
            panic!("no TLS was asked for")
        };
        stream.readable().await.unwrap();
        assert!(!io.is_quiet());
    }
}

#[test]
fn every_unusable_file_of_authorities_is_told_with_what_to_do() {
    let empty = NamedTempFile::new().unwrap();
    for file in [empty.path().to_owned(), PathBuf::from("/nowhere/ca.pem")] {
        let tls = BackendTls {
            ca: Some(file.clone()),
            verify_chain: true,
            ..trusting()
        };
        let told = Trusted::load(&tls, None, false).unwrap_err().to_string();
        assert!(told.starts_with(&*file.to_string_lossy()), "{told}");
        assert!(told.ends_with("Give a PEM file with the certificates of the targets' authority"));
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: NamedTempFile,
    der: CertificateDer<'static>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).unwrap();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            file,
            der: certificate.der().clone(),
        }
    }

    fn file(&self) -> PathBuf {
        self.file.path().to_owned()
    }

    fn certificate(&self) -> CertificateDer<'static> {
        self.der.clone()
    }
}

/// What a target shows and wants.
struct Shown {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    clients: Option<CertificateDer<'static>>,
    alpn: Vec<Vec<u8>>,
}

impl Shown {
    fn by(authority: &Authority, name: &str) -> Self {
        Self::in_years(authority, name, (2020, 2900))
    }

    fn in_years(authority: &Authority, name: &str, (from, to): (i32, i32)) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let certificate = params.signed_by(&key, &authority.issuer).unwrap();
        Self {
            chain: vec![certificate.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            clients: None,
            alpn: Vec::new(),
        }
    }
}

/// A target that says `hello` to whoever agrees TLS with it.
struct Target {
    address: SocketAddr,
    _tasks: TaskTracker,
}

impl Target {
    async fn start(shown: Shown) -> Self {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match shown.clients {
            None => builder.with_no_client_auth(),
            Some(certificate) => {
                let mut roots = RootCertStore::empty();
                roots.add(certificate).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(shown.chain, shown.key).unwrap();
        config.alpn_protocols = shown.alpn;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = TaskTracker::new();
        let each = tasks.clone();
        tasks.spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                each.spawn(async move {
                    if let Ok(mut stream) = acceptor.accept(socket).await {
                        let _ = stream.write_all(b"hello").await;
                        let _ = stream.read_u8().await;
                    }
                });
            }
        });
        Self { address, _tasks: tasks }
    }

    async fn reached(&self, tls: &BackendTls, name: Option<&str>, http2: bool) -> Result<(), ConnectFault> {
        let trusted = Trusted::load(tls, None, http2).unwrap();
        Connector::tls(LIMIT, trusted, None)
            .connect(self.address, name)
            .await
            .map(drop)
    }

    async fn answered(&self, connector: Connector) -> Option<String> {
        let mut io = connector.connect(self.address, None).await.ok()?;
        let mut answer = [0; 5];
        io.read_exact(&mut answer).await.ok()?;
        String::from_utf8(answer.to_vec()).ok()
    }
}

const LIMIT: Duration = Duration::from_secs(10);
