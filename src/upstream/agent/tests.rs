use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

#[tokio::test]
async fn an_agent_is_known_by_the_thumbprint_of_its_certificate_alone() {
    let agent = Running::start("another.name", None).await;
    assert_eq!(agent.reached(Agent::Thumbprint(agent.thumbprint)).await, Ok(()));
    let other = Thumbprint::of(&CertificateDer::from(vec![1, 2, 3]));
    assert_eq!(agent.reached(Agent::Thumbprint(other)).await, Err(DialFault::Untrusted));
}

#[tokio::test]
async fn an_agent_is_known_by_its_authority_for_its_name() {
    let authority = Authority::new("agents");
    let agent = Running::start("vdi-1.inside", Some(&authority)).await;
    let by = |name: Option<&str>, authority: &Authority| Agent::Certificate {
        ca: Some(authority.file.path().to_owned()),
        name: name.map(str::to_owned),
    };
    assert_eq!(agent.reached(by(Some("vdi-1.inside"), &authority)).await, Ok(()));
    for wrong in [
        by(Some("vdi-2.inside"), &authority),
        by(None, &authority),
        by(Some("vdi-1.inside"), &Authority::new("others")),
        Agent::System,
    ] {
        assert_eq!(
            agent.reached(wrong.clone()).await,
            Err(DialFault::Untrusted),
            "{wrong:?}"
        );
    }
}

#[tokio::test]
async fn an_agent_without_tls_is_told_from_one_that_lies() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let plain = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(b"SSH-2.0-not-tls\r\n").await.unwrap();
        let _ = socket.read_u8().await;
    };
    let wanted = Agent::Thumbprint(Thumbprint::of(&CertificateDer::from(vec![1])));
    let agents = Agents::of([&wanted]).unwrap();
    let target = target(port);
    let (reached, ()) = tokio::join!(agents.connect(&target, &wanted, LIMIT), plain);
    assert_eq!(reached.unwrap_err(), DialFault::NoTls);
}

#[tokio::test]
async fn an_agent_that_says_nothing_has_as_long_as_the_dial() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let agents = Agents::of([&Agent::System]).unwrap();
    let reached = agents
        .connect(&target(port), &Agent::System, Duration::from_millis(100))
        .await;
    assert_eq!(reached.unwrap_err(), DialFault::Timeout);
}

#[test]
fn every_unusable_file_of_authorities_is_told() {
    let empty = NamedTempFile::new().unwrap();
    for file in [empty.path().to_owned(), PathBuf::from("/nowhere/ca.pem")] {
        let agent = Agent::Certificate {
            ca: Some(file.clone()),
            name: None,
        };
        let faults = Agents::of([&agent]).unwrap_err();
        assert_eq!(faults.len(), 1);
        assert!(
            faults[0].to_string().contains(&*file.to_string_lossy()),
            "{}",
            faults[0]
        );
    }
}

/// An agent that says "hello" over TLS.
struct Running {
    port: u16,
    thumbprint: Thumbprint,
}

impl Running {
    async fn start(name: &str, authority: Option<&Authority>) -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = match authority {
            Some(authority) => params.signed_by(&key, &authority.issuer).unwrap(),
            None => params.self_signed(&key).unwrap(),
        };
        let der = certificate.der().clone();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![der.clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                if let Ok(mut stream) = acceptor.accept(socket).await {
                    stream.write_all(b"hello").await.unwrap();
                    let _ = stream.shutdown().await;
                }
            }
        });
        Self {
            port,
            thumbprint: Thumbprint::of(&der),
        }
    }

    async fn reached(&self, agent: Agent) -> Result<(), DialFault> {
        let agents = Agents::of([&agent]).unwrap();
        let mut upstream = agents.connect(&target(self.port), &agent, LIMIT).await?;
        let mut said = String::new();
        upstream.read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "hello");
        Ok(())
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    file: NamedTempFile,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let file = NamedTempFile::new().unwrap();
        std::fs::write(file.path(), certificate.pem()).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            file,
        }
    }
}

fn target(port: u16) -> Target {
    Target {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

const LIMIT: Duration = Duration::from_secs(10);
