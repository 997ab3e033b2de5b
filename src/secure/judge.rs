//! Servers that have to prove who they are, each way of judging them in its own place, the rest of the handshake here.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WantsClientCert, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    SupportedProtocolVersion,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Decides whether a certificate will do.
pub trait Judge: fmt::Debug + Send + Sync {
    /// Judges what a server shows.
    ///
    /// # Errors
    /// It will not do; the handshake ends with this.
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error>;
}

/// What a server shows of itself.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its certificate.
    pub certificate: &'a CertificateDer<'a>,
    /// What is to lead from it to an authority.
    pub intermediates: &'a [CertificateDer<'a>],
    /// Who it should be.
    pub name: &'a ServerName<'a>,
    /// The time of day.
    pub now: UnixTime,
}

/// Settings for TLS 1.2 and 1.3 in which `judge` decides. Whatever it decides, the server must hold the certificate's key.
///
/// # Errors
/// The cryptographic library refuses.
pub fn judged_by(judge: Arc<dyn Judge>) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    judged_over(&[&TLS13, &TLS12], judge)
}

/// As [`judged_by`], with other versions of TLS.
///
/// # Errors
/// The cryptographic library refuses.
pub fn judged_over(
    versions: &[&'static SupportedProtocolVersion],
    judge: Arc<dyn Judge>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let court = Arc::new(Court {
        judge,
        provider: provider.clone(),
    });
    Ok(ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .dangerous()
        .with_custom_certificate_verifier(court))
}

/// A [`Judge`], and the signatures of the handshake.
#[derive(Debug)]
struct Court {
    judge: Arc<dyn Judge>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Court {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let shown = Shown {
            certificate,
            intermediates,
            name,
            now,
        };
        self.judge.judge(shown).map(|()| ServerCertVerified::assertion())
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

/// Holds servers to certificate authorities: chain, dates and name.
#[derive(Clone, Debug)]
pub struct Authorities(Arc<WebPkiServerVerifier>);

impl Authorities {
    /// Those of `roots`.
    ///
    /// # Errors
    /// There are none.
    pub fn new(roots: RootCertStore) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map(Self)
            .map_err(|cause| Error::General(cause.to_string()))
    }
}

impl Judge for Authorities {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        let Shown {
            certificate,
            intermediates,
            name,
            now,
        } = shown;
        self.0
            .verify_server_cert(certificate, intermediates, name, &[], now)
            .map(drop)
    }
}

/// Whether a certificate is in its time.
///
/// # Errors
/// It has expired, is not valid yet, or cannot be read.
pub fn in_its_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
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

/// The certificate authorities in a PEM file, and the certificates themselves. Blocks on the file system.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn authorities_in(file: &Path) -> Result<(RootCertStore, Vec<CertificateDer<'static>>), String> {
    let mut roots = RootCertStore::empty();
    let mut certificates = Vec::new();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|cause| cause.to_string())? {
        let certificate = certificate.map_err(|cause| cause.to_string())?;
        roots.add(certificate.clone()).map_err(|cause| cause.to_string())?;
        certificates.push(certificate);
    }
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok((roots, certificates))
}

/// The certificate authorities that the system trusts; `None` if there are none. Blocks on the file system.
pub fn authorities_of_the_system() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    // One that cannot be read is none of those that vouch; the others still do.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then_some(roots)
}
