//! A TLS connection to a gateway.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::endpoint::{Endpoint, InvalidEndpoint};
use super::trust::{Judgement, KnownFault, Trust};
use crate::secure::judged_by;
use crate::types::Thumbprint;

/// What was agreed with a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFacts {
    /// Such as `TLS 1.3`.
    pub version: &'static str,
    /// The key exchange, such as `X25519MLKEM768`; `None` where the version has no such name.
    pub group: Option<String>,
    /// The cipher suite, such as `TLS13_AES_256_GCM_SHA384`.
    pub suite: String,
    /// The gateway's certificate.
    pub thumbprint: Thumbprint,
}

impl fmt::Display for TlsFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.group {
            Some(group) => write!(f, "{}, {group}", self.version),
            None => f.write_str(self.version),
        }
    }
}

/// Makes connections to gateways; all of them are held to one [`Trust`].
#[derive(Clone, Debug)]
pub(super) struct Dialer {
    trust: Trust,
}

impl Dialer {
    pub(super) fn new(trust: Trust) -> Self {
        Self { trust }
    }

    /// Connects and agrees TLS, within [`DEADLINE`]. `sibling` is the certificate of the gateway that named this one.
    ///
    /// Cancel-safe: a connection in the making is dropped.
    pub(super) async fn dial(
        &self,
        endpoint: &Endpoint,
        sibling: Option<Thumbprint>,
    ) -> Result<(TlsStream<TcpStream>, TlsFacts), DialFault> {
        let fault = |cause| DialFault {
            endpoint: endpoint.clone(),
            cause,
        };
        match timeout(DEADLINE, self.connect(endpoint, sibling)).await {
            Ok(connected) => connected.map_err(fault),
            Err(_) => Err(fault(DialCause::TimedOut)),
        }
    }

    async fn connect(
        &self,
        endpoint: &Endpoint,
        sibling: Option<Thumbprint>,
    ) -> Result<(TlsStream<TcpStream>, TlsFacts), DialCause> {
        let verifier = self.trust.verifier(endpoint, sibling)?;
        let mut config = judged_by(verifier.clone())?.with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A session taken up again would not show its certificate.
        config.resumption = rustls::client::Resumption::disabled();

        let socket = reach(endpoint).await.map_err(DialCause::Connect)?;
        // Small chunks must not wait for acknowledgements; a socket that cannot do this is merely slower.
        let _ = socket.set_nodelay(true);
        let handshake = TlsConnector::from(Arc::new(config))
            .connect(endpoint.server_name()?, socket)
            .await;
        let judgement = verifier.judgement();
        match (handshake, judgement) {
            (Ok(stream), Some((Judgement::Trusted, thumbprint))) => {
                let facts = facts(&stream, thumbprint);
                Ok((stream, facts))
            }
            (_, Some((judgement, _))) if judgement != Judgement::Trusted => Err(DialCause::Certificate(judgement)),
            (Err(error), _) => Err(DialCause::Handshake(error)),
            (Ok(_), _) => Err(DialCause::Handshake(io::ErrorKind::InvalidData.into())),
        }
    }
}

/// A connection over TLS to what speaks HTTP/1.1 at an endpoint, within [`DEADLINE`].
///
/// # Errors
/// Nobody is there, or the certificate is not to be trusted.
///
/// Cancel-safe: a connection in the making is dropped.
pub(crate) async fn dial(trust: &Trust, endpoint: &Endpoint) -> Result<TlsStream<TcpStream>, DialFault> {
    let dialled = Dialer::new(trust.clone()).dial(endpoint, None).await;
    dialled.map(|(stream, _)| stream)
}

/// Connects to the first address that answers. One that is silent does not use up the time of the others.
pub(super) async fn reach(endpoint: &Endpoint) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in lookup_host((endpoint.host(), endpoint.port())).await? {
        match timeout(ATTEMPT, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => last = error,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

fn facts(stream: &TlsStream<TcpStream>, thumbprint: Thumbprint) -> TlsFacts {
    let (_, connection) = stream.get_ref();
    let version = match connection.protocol_version() {
        Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
        _ => "TLS 1.3",
    };
    let suite = connection
        .negotiated_cipher_suite()
        .map(|suite| format!("{:?}", suite.suite()));
    TlsFacts {
        version,
        group: connection
            .negotiated_key_exchange_group()
            .map(|group| format!("{:?}", group.name())),
        suite: suite.unwrap_or_default(),
        thumbprint,
    }
}

/// A gateway to which no connection was made.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint}: {cause}")]
pub struct DialFault {
    /// The gateway.
    pub endpoint: Endpoint,
    /// Why.
    pub cause: DialCause,
}

/// Why no connection to a gateway was made.
#[derive(Debug, thiserror::Error)]
pub enum DialCause {
    /// No TCP connection.
    #[error("cannot be reached ({0}). Check the address, and that the gateway runs")]
    Connect(io::Error),
    /// Not in time.
    #[error("does not answer within {} s. Check the address, and that no firewall drops the port", DEADLINE.as_secs())]
    TimedOut,
    /// No agreement on TLS.
    #[error("no TLS connection ({0}). Check that this port is a gateway's")]
    Handshake(io::Error),
    /// The certificate is not trusted.
    #[error("{}", certificate_words(.0))]
    Certificate(Judgement),
    /// What is remembered of gateways cannot be used.
    #[error(transparent)]
    Known(#[from] KnownFault),
    /// The address cannot be the name in a certificate.
    #[error(transparent)]
    Address(#[from] InvalidEndpoint),
    /// TLS cannot be set up in this program.
    #[error("TLS cannot be set up: {0}")]
    Setup(#[from] rustls::Error),
}

fn certificate_words(judgement: &Judgement) -> String {
    match judgement {
        Judgement::Trusted => "the certificate is trusted".to_owned(),
        Judgement::Unknown { thumbprint, problem } => format!(
            "the certificate is not trusted: {problem}. Its SHA-256 thumbprint is\n  {thumbprint}\nCompare it with the \
             gateway's; if they are equal, give it with --thumbprint, or --accept-new to remember it, or --ca FILE for \
             its authority"
        ),
        Judgement::Changed { thumbprint, remembered } => format!(
            "THE CERTIFICATE HAS CHANGED. Someone may be reading along, or the gateway has a new certificate.\n  \
             remembered {remembered}\n  shown now  {thumbprint}\nNothing was sent. Ask the gateway's administrator; if \
             the new one is right, remove the gateway's line from known_gateways and connect again"
        ),
        Judgement::NotTheGiven { thumbprint, given } => format!(
            "the certificate is not the given one. Nothing was sent.\n  given     {given}\n  shown now {thumbprint}\n\
             Ask the gateway's administrator for its thumbprint"
        ),
        Judgement::Invalid { thumbprint, problem } => {
            format!("the certificate is refused: {problem}. Its SHA-256 thumbprint is\n  {thumbprint}")
        }
    }
}

/// How long connecting and the TLS handshake may take together.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long one of several addresses may take.
const ATTEMPT: Duration = Duration::from_secs(5);

#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
mod tests {
    use base64::Engine as _;
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
    use rustls::ServerConfig;
    use rustls::pki_types::CertificateDer;
    use rustls::server::{ClientHello, ResolvesServerCert};
    use rustls::sign::CertifiedKey;
    use rustls::version::{TLS12, TLS13};

    use super::super::model::{self, Gateway, Identity, serve};
    use super::super::trust::KnownGateways;
    use super::*;

    async fn gateway(tls: ServerConfig) -> Gateway {
        serve(tls, |_| async { model::status(http::StatusCode::OK) }).await
    }

    async fn dial(trust: &Trust, gateway: &Gateway) -> Result<TlsFacts, DialCause> {
        let dialled = Dialer::new(trust.clone()).dial(&gateway.endpoint(), None).await;
        dialled.map(|(_, facts)| facts).map_err(|fault| fault.cause)
    }

    fn judgement(outcome: Result<TlsFacts, DialCause>) -> Judgement {
        match outcome {
            Ok(_) => Judgement::Trusted,
            Err(DialCause::Certificate(judgement)) => judgement,
            Err(other) => panic!("{other}"),
        }
    }

    /// A server that shows the first certificate and signs with the key of the second.
    #[derive(Debug)]
    struct Thief(Arc<CertifiedKey>);

    impl ResolvesServerCert for Thief {
        fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }
    }

    fn thief(
        shown: &Identity,
        held: &Identity,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let key = provider.key_provider.load_private_key(held.key_der()).unwrap();
        let resolver = Thief(Arc::new(CertifiedKey::new(vec![shown.certificate.clone()], key)));
        ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver))
    }

    #[tokio::test]
    async fn a_given_thumbprint_is_the_only_thing_that_counts() {
        let (identity, other) = (Identity::new("another.example"), Identity::new("localhost"));
        let gateway = gateway(identity.server_config()).await;
        let facts = dial(&Trust::thumbprint(identity.thumbprint()), &gateway).await.unwrap();
        assert_eq!(
            (facts.version, facts.group.as_deref()),
            ("TLS 1.3", Some("X25519MLKEM768"))
        );
        assert_eq!(facts.thumbprint, identity.thumbprint());
        assert_eq!(facts.to_string(), "TLS 1.3, X25519MLKEM768");

        let refused = judgement(dial(&Trust::thumbprint(other.thumbprint()), &gateway).await);
        let expected = Judgement::NotTheGiven {
            thumbprint: identity.thumbprint(),
            given: other.thumbprint(),
        };
        assert_eq!(refused, expected);
    }

    #[tokio::test]
    async fn who_does_not_hold_the_key_is_refused_whatever_the_certificate() {
        let (shown, held) = (Identity::new("localhost"), Identity::new("localhost"));
        for versions in [[&TLS13], [&TLS12]] {
            let gateway = gateway(thief(&shown, &held, &versions)).await;
            let outcome = dial(&Trust::thumbprint(shown.thumbprint()), &gateway).await;
            assert!(matches!(outcome, Err(DialCause::Handshake(_))), "{outcome:?}");
        }
        let honest = gateway(thief(&shown, &shown, &[&TLS12])).await;
        let facts = dial(&Trust::thumbprint(shown.thumbprint()), &honest).await.unwrap();
        assert_eq!(facts.version, "TLS 1.2");
    }

    #[tokio::test]
    async fn a_self_signed_certificate_is_unknown_until_it_is_accepted_and_refused_once_it_changed() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("known"));
        let trust = || Trust::system(Some(known.clone()));
        let identity = Identity::new("localhost");
        let first = gateway(identity.server_config()).await;

        let Judgement::Unknown { thumbprint, problem } = judgement(dial(&trust(), &first).await) else {
            panic!()
        };
        assert_eq!(
            (thumbprint, problem.as_str()),
            (identity.thumbprint(), "no known authority issued it")
        );
        trust().accept(&first.endpoint(), thumbprint).unwrap();
        assert!(dial(&trust(), &first).await.is_ok(), "a later run remembers");

        let impostor = Identity::new("localhost");
        let second = gateway(impostor.server_config()).await;
        std::fs::write(
            known.file(),
            std::fs::read_to_string(known.file())
                .unwrap()
                .replace(&first.endpoint().to_string(), &second.endpoint().to_string()),
        )
        .unwrap();
        let changed = dial(&trust(), &second).await;
        let words = changed.as_ref().unwrap_err().to_string();
        let expected = Judgement::Changed {
            thumbprint: impostor.thumbprint(),
            remembered: identity.thumbprint(),
        };
        assert_eq!(judgement(changed), expected);
        assert!(
            words.contains("THE CERTIFICATE HAS CHANGED") && words.contains("known_gateways"),
            "{words}"
        );
    }

    #[tokio::test]
    async fn a_list_of_gateways_that_cannot_be_read_trusts_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let identity = Identity::new("localhost");
        let gateway = gateway(identity.server_config()).await;
        let outcome = dial(&Trust::system(Some(KnownGateways::new(folder.path()))), &gateway).await;
        assert!(matches!(outcome, Err(DialCause::Known(_))), "{outcome:?}");
    }

    #[tokio::test]
    async fn given_authorities_vouch_for_name_and_dates_and_nobody_is_asked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let authority_key = KeyPair::generate().unwrap();
        let authority = params.self_signed(&authority_key).unwrap();
        std::fs::write(&file, authority.pem()).unwrap();
        let issuer = Issuer::new(params, authority_key);
        let issue = |name: &str, year| {
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let key = KeyPair::generate().unwrap();
            let certificate = params.signed_by(&key, &issuer).unwrap().der().clone();
            Identity {
                certificate: CertificateDer::from(certificate.to_vec()),
                key,
            }
        };
        let trust = Trust::authorities(&file).unwrap();
        let problem = |outcome| match judgement(outcome) {
            Judgement::Trusted => "trusted".to_owned(),
            Judgement::Invalid { problem, .. } => problem,
            other @ (Judgement::Unknown { .. } | Judgement::Changed { .. } | Judgement::NotTheGiven { .. }) => {
                panic!("{other:?}")
            }
        };
        for (identity, expected) in [
            (issue("localhost", 2100), "trusted"),
            (issue("other.example", 2100), "it is for another name"),
            (issue("localhost", 2020), "it has expired"),
            (Identity::new("localhost"), "no known authority issued it"),
        ] {
            let gateway = gateway(identity.server_config()).await;
            assert_eq!(problem(dial(&trust, &gateway).await), expected);
        }
    }

    #[tokio::test]
    async fn a_gateways_own_certificate_is_trusted_when_it_is_given_even_if_it_calls_itself_an_authority() {
        let folder = tempfile::tempdir().unwrap();
        let outcome = async |given: &Identity, shown: &Identity| {
            let file = folder.path().join("own.pem");
            let text = base64::engine::general_purpose::STANDARD.encode(&given.certificate);
            std::fs::write(
                &file,
                format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"),
            )
            .unwrap();
            let gateway = gateway(shown.server_config()).await;
            match judgement(dial(&Trust::authorities(&file).unwrap(), &gateway).await) {
                Judgement::Trusted => "trusted".to_owned(),
                Judgement::Invalid { problem, .. } => problem,
                other @ (Judgement::Unknown { .. } | Judgement::Changed { .. } | Judgement::NotTheGiven { .. }) => {
                    panic!("{other:?}")
                }
            }
        };
        let authority = |name: &str, year| {
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            Identity::with(&params)
        };
        let own = authority("localhost", 2100);
        assert_eq!(outcome(&own, &own).await, "trusted");
        let twin = authority("localhost", 2100);
        assert_ne!(outcome(&own, &twin).await, "trusted");
        let other = authority("other.example", 2100);
        assert_eq!(outcome(&other, &other).await, "it is for another name");
        let old = authority("localhost", 2020);
        assert_eq!(outcome(&old, &old).await, "it has expired");
    }

    #[tokio::test]
    async fn a_self_signed_authority_is_asked_about_like_any_other_unknown_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("known"));
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let identity = Identity::with(&params);
        let gateway = gateway(identity.server_config()).await;
        let asked = judgement(dial(&Trust::system(Some(known)), &gateway).await);
        assert!(matches!(asked, Judgement::Unknown { .. }), "{asked:?}");
    }

    #[tokio::test]
    async fn the_certificate_of_the_gateway_that_named_another_is_trusted_there() {
        let identity = Identity::new("gw.example");
        let gateway = gateway(identity.server_config()).await;
        let dialer = Dialer::new(Trust::system(None));
        assert!(dialer.dial(&gateway.endpoint(), None).await.is_err());
        assert!(
            dialer
                .dial(&gateway.endpoint(), Some(identity.thumbprint()))
                .await
                .is_ok()
        );
        let other = Identity::new("gw.example").thumbprint();
        assert!(dialer.dial(&gateway.endpoint(), Some(other)).await.is_err());
    }

    #[tokio::test]
    async fn a_port_without_a_gateway_is_told_apart() {
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let endpoint = closed.to_string().parse().unwrap();
        let fault = Dialer::new(Trust::system(None))
            .dial(&endpoint, None)
            .await
            .unwrap_err();
        assert!(matches!(fault.cause, DialCause::Connect(_)), "{fault}");

        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = silent.local_addr().unwrap().to_string().parse().unwrap();
        tokio::time::pause();
        let fault = Dialer::new(Trust::system(None))
            .dial(&endpoint, None)
            .await
            .unwrap_err();
        assert!(matches!(fault.cause, DialCause::TimedOut), "{fault}");
    }
}
