//! The judge of one handshake.

use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::verify_server_name;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, Error};

use crate::secure::{Authorities, Judge, Shown, in_its_time};
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
pub(in crate::client) struct HeldTo {
    pinned: Option<Thumbprint>,
    authorities: Option<Authorities>,
    /// The certificates of the authorities that were given.
    given: Option<Arc<[Thumbprint]>>,
    /// An unknown certificate may be asked about.
    first_use: bool,
    expected: Option<Thumbprint>,
    sibling: Option<Thumbprint>,
    judgement: Mutex<Option<(Judgement, Thumbprint)>>,
}

impl HeldTo {
    pub(super) fn new(
        pinned: Option<Thumbprint>,
        authorities: Option<Authorities>,
        given: Option<Arc<[Thumbprint]>>,
        first_use: bool,
        expected: Option<Thumbprint>,
        sibling: Option<Thumbprint>,
    ) -> Self {
        Self {
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

    fn judgement_of(&self, shown: Shown<'_>, thumbprint: Thumbprint) -> Judgement {
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
            Some(authorities) => authorities.judge(shown),
            None => Err(Error::InvalidCertificate(CertificateError::UnknownIssuer)),
        };
        let is_given = || self.given.as_ref().is_some_and(|given| given.contains(&thumbprint));
        let verified = match verified {
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if is_its_own_issuer(&other.to_string()) && is_given() =>
            {
                verify_alone(shown)
            }
            verified => verified,
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

impl Judge for HeldTo {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        let thumbprint = Thumbprint::of(shown.certificate);
        let judgement = self.judgement_of(shown, thumbprint);
        let trusted = judgement == Judgement::Trusted;
        *self.judgement.lock() = Some((judgement, thumbprint));
        if trusted {
            Ok(())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }
}

/// Name and dates of a certificate that needs nobody to vouch for it.
fn verify_alone(shown: Shown<'_>) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(shown.certificate)?, shown.name)?;
    in_its_time(shown.certificate, shown.now)
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
