//! What a target has to prove, compiled from the configuration.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{WebPkiSupportedAlgorithms, aws_lc_rs};
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, Error, RootCertStore};

use crate::config::web::BackendTls;
use crate::secure::{Judge, Shown, authorities_in, authorities_of_the_system, in_its_time, judged_by};

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
        let read = Arc::new(Read {
            authorities: issuers
                .as_ref()
                .map(|issuers| issuers.pinned.clone())
                .unwrap_or_default(),
            own: own.clone(),
        });
        let builder = judged_by(Arc::new(Wanted {
            algorithms: aws_lc_rs::default_provider().signature_verification_algorithms,
            issuers,
            checks_name,
        }))?;
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
        let (roots, pinned) = authorities_in(file).map_err(|problem| TrustFault::Authorities {
            file: file.to_owned(),
            problem,
        })?;
        Ok(Self { roots, pinned })
    }

    fn of_the_system() -> Result<Self, TrustFault> {
        Ok(Self {
            roots: authorities_of_the_system().ok_or(TrustFault::NoSystemAuthorities)?,
            pinned: Vec::new(),
        })
    }
}

/// Holds a target's certificate to what the configuration wants, and to nothing else.
#[derive(Debug)]
struct Wanted {
    algorithms: WebPkiSupportedAlgorithms,
    /// `None`: anyone, at any time.
    issuers: Option<Issuers>,
    checks_name: bool,
}

impl Judge for Wanted {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        let certificate = ParsedCertificate::try_from(shown.certificate)?;
        match &self.issuers {
            Some(issuers) if issuers.pinned.contains(shown.certificate) => in_its_time(shown.certificate, shown.now)?,
            Some(issuers) => verify_server_cert_signed_by_trust_anchor(
                &certificate,
                &issuers.roots,
                shown.intermediates,
                shown.now,
                self.algorithms.all,
            )?,
            None => {}
        }
        if self.checks_name {
            verify_server_name(&certificate, shown.name)?;
        }
        Ok(())
    }
}

/// Sessions that can be resumed, by name.
const SESSIONS: usize = 256;
