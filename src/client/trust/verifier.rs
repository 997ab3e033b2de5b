//! The judge of one handshake.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::types::Thumbprint;

/// What was found about a gateway's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It is trusted.
    Trusted,
    /// No authority vouches for it, and it was never accepted before.
    Unknown {
        /// The certificate's thumbprint.
        thumbprint: Thumbprint,
        /// What the authorities say of it.
        problem: String,
    },
    /// Another certificate was accepted for this gateway before.
    Changed {
        /// The certificate's thumbprint.
        thumbprint: Thumbprint,
        /// That of the accepted one.
        remembered: Thumbprint,
    },
    /// It is not the one that was given.
    NotTheGiven {
        /// The certificate's thumbprint.
        thumbprint: Thumbprint,
        /// The given one.
        given: Thumbprint,
    },
    /// It is refused, and nobody is asked.
    Invalid {
        /// The certificate's thumbprint.
        thumbprint: Thumbprint,
        /// Why.
        problem: String,
    },
}

impl Judgement {
    /// The thumbprint of a certificate that is not trusted.
    pub fn untrusted(&self) -> Option<Thumbprint> {
        match self {
            Self::Trusted => None,
            Self::Unknown { thumbprint, .. }
            | Self::Changed { thumbprint, .. }
            | Self::NotTheGiven { thumbprint, .. }
            | Self::Invalid { thumbprint, .. } => Some(*thumbprint),
        }
    }
}

/// Judges the certificate of one handshake and keeps the judgement.
#[derive(Debug)]
pub(in crate::client) struct Verifier {
    provider: Arc<CryptoProvider>,
    pinned: Option<Thumbprint>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// The certificates of the authorities that were given.
    given: Option<Arc<[Thumbprint]>>,
    /// An unknown certificate may be asked about.
    first_use: bool,
    expected: Option<Thumbprint>,
    sibling: Option<Thumbprint>,
    judgement: Mutex<Option<(Judgement, Thumbprint)>>,
}

impl Verifier {
    pub(super) fn new(
        provider: Arc<CryptoProvider>,
        pinned: Option<Thumbprint>,
        authorities: Option<Arc<WebPkiServerVerifier>>,
        given: Option<Arc<[Thumbprint]>>,
        first_use: bool,
        expected: Option<Thumbprint>,
        sibling: Option<Thumbprint>,
    ) -> Self {
        Self {
            provider,
            pinned,
            authorities,
            given,
            first_use,
            expected,
            sibling,
            judgement: Mutex::new(None),
        }
    }

    /// The judgement and the certificate's thumbprint; `None` if the handshake did not come so far.
    pub(in crate::client) fn judgement(&self) -> Option<(Judgement, Thumbprint)> {
        self.judgement.lock().clone()
    }

    fn judge(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
        thumbprint: Thumbprint,
    ) -> Judgement {
        if let Some(given) = self.pinned {
            return if given == thumbprint {
                Judgement::Trusted
            } else {
                Judgement::NotTheGiven { thumbprint, given }
            };
        }
        if self.sibling == Some(thumbprint) {
            return Judgement::Trusted;
        }
        let verified = match &self.authorities {
            Some(authorities) => authorities.verify_server_cert(certificate, intermediates, name, &[], now),
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        };
        let is_given = || self.given.as_ref().is_some_and(|given| given.contains(&thumbprint));
        let verified = match verified {
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if is_its_own_issuer(&other.to_string()) && is_given() =>
            {
                verify_alone(certificate, name, now)
            }
            verified => verified.map(drop),
        };
        let Err(error) = verified else {
            return Judgement::Trusted;
        };
        let problem = words(&error);
        match self.expected {
            _ if !self.first_use => Judgement::Invalid { thumbprint, problem },
            Some(remembered) if remembered == thumbprint => Judgement::Trusted,
            Some(remembered) => Judgement::Changed { thumbprint, remembered },
            None if may_be_asked(&error) => Judgement::Unknown { thumbprint, problem },
            None => Judgement::Invalid { thumbprint, problem },
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let thumbprint = Thumbprint::of(certificate);
        let judgement = self.judge(certificate, intermediates, name, now, thumbprint);
        let trusted = judgement == Judgement::Trusted;
        *self.judgement.lock() = Some((judgement, thumbprint));
        if trusted {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(Error::InvalidCertificate(
                CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Name and dates of a certificate that needs nobody to vouch for it.
fn verify_alone(certificate: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let (_, parsed) = X509Certificate::from_der(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let validity = parsed.validity();
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now > validity.not_after.timestamp() {
        Err(CertificateError::Expired.into())
    } else if now < validity.not_before.timestamp() {
        Err(CertificateError::NotValidYet.into())
    } else {
        Ok(())
    }
}

/// Whether the fault is one with which a gateway can be genuine: nobody vouches for it, or not for this name.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "every other fault is a refusal, also one that is yet to come"
)]
fn may_be_asked(error: &Error) -> bool {
    let Error::InvalidCertificate(error) = error else {
        return false;
    };
    match error {
        CertificateError::UnknownIssuer
        | CertificateError::NotValidForName
        | CertificateError::NotValidForNameContext { .. } => true,
        CertificateError::Other(other) => is_its_own_issuer(&other.to_string()),
        _ => false,
    }
}

/// A self-signed certificate that says of itself that it is an authority.
fn is_its_own_issuer(error: &str) -> bool {
    error.contains("CaUsedAsEndEntity")
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the library's words for all others")]
fn words(error: &Error) -> String {
    let Error::InvalidCertificate(error) = error else {
        return error.to_string();
    };
    match error {
        CertificateError::UnknownIssuer => "no known authority issued it".to_owned(),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name".to_owned()
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        CertificateError::BadSignature => {
            "its issuer has the name of a known authority, but did not sign it".to_owned()
        }
        CertificateError::Revoked => "it was revoked".to_owned(),
        CertificateError::Other(other) if is_its_own_issuer(&other.to_string()) => "it is self-signed".to_owned(),
        other => other.to_string(),
    }
}
