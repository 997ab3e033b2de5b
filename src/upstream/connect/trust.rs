//! What a target has to prove, compiled from the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::{TLS12, TLS13};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::config::web::BackendTls;

/// TLS to targets, ready to be used.
#[derive(Clone, Debug)]
pub struct Trusted {
    pub(super) config: Arc<ClientConfig>,
    pub(super) checks_name: bool,
    /// What was read from files.
    read: Arc<Read>,
}

/// What decides whom a connection was made with, as far as it does not stand in the configuration itself.
#[derive(Debug)]
struct Read {
    authorities: Vec<CertificateDer<'static>>,
    own: Option<Arc<CertifiedKey>>,
}

impl Trusted {
    /// What `tls` says, with this node's certificate if it names one. Blocks on the file system.
    ///
    /// # Errors
    /// The authorities cannot be used.
    pub fn load(tls: &BackendTls, own: Option<Arc<CertifiedKey>>, http2: bool) -> Result<Self, TrustFault> {
        let issuers = match (&tls.ca, tls.verify_chain) {
            (_, false) => None,
            (Some(file), true) => Some(Issuers::in_file(file)?),
            (None, true) => Some(Issuers::of_the_system()?),
        };
        Self::of(issuers, tls.verify_name, own, http2).map_err(|cause| TrustFault::Setup(cause.to_string()))
    }

    /// Whether the files of both said the same: connections of the one are as good as the other's.
    pub fn is_as_read(&self, other: &Self) -> bool {
        let chain = |read: &Read| read.own.as_ref().map(|own| own.cert.clone());
        self.read.authorities == other.read.authorities && chain(&self.read) == chain(&other.read)
    }

    fn of(
        issuers: Option<Issuers>,
        checks_name: bool,
        own: Option<Arc<CertifiedKey>>,
        http2: bool,
    ) -> Result<Self, Error> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let read = Arc::new(Read {
            authorities: issuers
                .as_ref()
                .map(|issuers| issuers.pinned.clone())
                .unwrap_or_default(),
            own: own.clone(),
        });
        let verifier = Verifier {
            provider: provider.clone(),
            issuers,
            checks_name,
        };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match own {
            Some(own) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(own))),
            None => builder.with_no_client_auth(),
        };
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        if http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(Self {
            config: Arc::new(config),
            checks_name,
            read,
        })
    }
}

/// Why the targets of a backend cannot be trusted at all.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustFault {
    /// A file of authorities.
    #[error("{}: {problem}. Give a PEM file with the certificates of the targets' authority", file.display())]
    Authorities {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The system has no authorities.
    #[error("the system knows no certificate authorities: install ca-certificates, or give the backend a ca")]
    NoSystemAuthorities,
    /// The cryptographic library.
    #[error("TLS to targets cannot be set up: {0}")]
    Setup(String),
}

/// Who may have issued certificates.
#[derive(Debug)]
struct Issuers {
    roots: RootCertStore,
    /// Certificates that are believed as they are: those of the file. A target that certifies itself shows one of them.
    pinned: Vec<CertificateDer<'static>>,
}

impl Issuers {
    fn in_file(file: &Path) -> Result<Self, TrustFault> {
        let fault = |problem: String| TrustFault::Authorities {
            file: file.to_owned(),
            problem,
        };
        let mut issuers = Self {
            roots: RootCertStore::empty(),
            pinned: Vec::new(),
        };
        for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| fault(cause.to_string()))? {
            let certificate = certificate.map_err(|cause| fault(cause.to_string()))?;
            issuers
                .roots
                .add(certificate.clone())
                .map_err(|cause| fault(cause.to_string()))?;
            issuers.pinned.push(certificate);
        }
        if issuers.pinned.is_empty() {
            return Err(fault("there is no certificate in it".to_owned()));
        }
        Ok(issuers)
    }

    fn of_the_system() -> Result<Self, TrustFault> {
        let mut roots = RootCertStore::empty();
        // One that cannot be read is none of those that vouch; the others still do.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(TrustFault::NoSystemAuthorities);
        }
        Ok(Self {
            roots,
            pinned: Vec::new(),
        })
    }
}

/// Holds a target's certificate to what the configuration wants, and to nothing else.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// `None`: anyone, at any time.
    issuers: Option<Issuers>,
    checks_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        match &self.issuers {
            Some(issuers) if issuers.pinned.contains(end_entity) => in_its_time(end_entity, now)?,
            Some(issuers) => verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &issuers.roots,
                intermediates,
                now,
                self.provider.signature_verification_algorithms.all,
            )?,
            None => {}
        }
        if self.checks_name {
            verify_server_name(&certificate, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn in_its_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let (_, certificate) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = certificate.validity();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > validity.not_after.timestamp() {
        Err(CertificateError::Expired.into())
    } else if now < validity.not_before.timestamp() {
        Err(CertificateError::NotValidYet.into())
    } else {
        Ok(())
    }
}

/// Sessions that can be resumed, by name.
const SESSIONS: usize = 256;
