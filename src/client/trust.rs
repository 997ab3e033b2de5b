//! Whether a gateway is the one that it says it is.
//!
//! A certificate is held, in this order, to
//!
//! 1. the thumbprint that was given (`--thumbprint`), and nothing else;
//! 2. the certificate authorities that were given (`--ca`), and nothing else;
//! 3. the certificate authorities of the system, and if they do not know the issuer or the name, to what was accepted
//!    before: trust on first use, remembered in [`KnownGateways`].
//!
//! Whatever the mode, the gateway must prove that it holds the certificate's key: handshake signatures are checked.

mod known;
mod verifier;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::endpoint::Endpoint;
use crate::secure::{Authorities, authorities_in, authorities_of_the_system};
use crate::types::Thumbprint;
use parking_lot::Mutex;

pub use self::known::{KnownFault, KnownGateways};
pub(super) use self::verifier::HeldTo;
pub use self::verifier::Judgement;

/// What certificates are held to. Clones share what was accepted.
#[derive(Clone)]
pub struct Trust {
    basis: Basis,
    /// What was accepted in this run, also when it could not be remembered.
    accepted: Arc<Mutex<HashMap<Endpoint, Thumbprint>>>,
    known: Option<Arc<KnownGateways>>,
}

/// What decides first.
#[derive(Clone)]
enum Basis {
    Thumbprint(Thumbprint),
    /// With the certificates themselves: one of them may be the gateway's own.
    Authorities(Authorities, Arc<[Thumbprint]>),
    /// `None`: the system has no authorities at all.
    System(Option<Authorities>),
}

impl Trust {
    /// Trusts the authorities of the system, and what was accepted before and is remembered in `known`.
    ///
    /// Authorities that cannot be read are left out: with none left, every gateway is one to be asked about.
    pub fn system(known: Option<KnownGateways>) -> Self {
        let authorities = authorities_of_the_system().and_then(|roots| Authorities::new(roots).ok());
        Self::new(Basis::System(authorities), known)
    }

    /// Trusts the authorities in a PEM file, and nothing else.
    ///
    /// A certificate in the file that calls itself an authority may be the gateway's own, as `openssl req -x509` makes it.
    ///
    /// # Errors
    /// The file cannot be read, or holds no certificate that can be an authority.
    pub fn authorities(file: &Path) -> Result<Self, AuthorityFault> {
        let fault = |problem: String| AuthorityFault {
            file: file.to_owned(),
            problem,
        };
        let (roots, certificates) = authorities_in(file).map_err(fault)?;
        let authorities = Authorities::new(roots).map_err(|error| fault(error.to_string()))?;
        let given = certificates.iter().map(Thumbprint::of).collect();
        Ok(Self::new(Basis::Authorities(authorities, given), None))
    }

    /// Trusts one certificate, whatever its name, issuer and dates say.
    pub fn thumbprint(thumbprint: Thumbprint) -> Self {
        Self::new(Basis::Thumbprint(thumbprint), None)
    }

    /// Accepts a certificate that was [`Judgement::Unknown`], and remembers it for later runs.
    ///
    /// # Errors
    /// It could not be remembered. It is accepted for this run nevertheless.
    pub fn accept(&self, endpoint: &Endpoint, thumbprint: Thumbprint) -> Result<(), KnownFault> {
        self.accepted.lock().insert(endpoint.clone(), thumbprint);
        match &self.known {
            Some(known) => known.remember(endpoint, thumbprint),
            None => Ok(()),
        }
    }

    /// Where accepted certificates are remembered.
    pub fn remembered_in(&self) -> Option<&Path> {
        self.known.as_ref().map(|known| known.file())
    }

    /// The judge of one handshake with `endpoint`.
    ///
    /// `sibling` is the certificate that was already accepted for the gateway which sent the client to this endpoint:
    /// who shows the same one again is the same gateway under another name.
    ///
    /// # Errors
    /// What is remembered cannot be read.
    pub(super) fn verifier(&self, endpoint: &Endpoint, sibling: Option<Thumbprint>) -> Result<Arc<HeldTo>, KnownFault> {
        let mut given = None;
        let (pinned, authorities, expected) = match &self.basis {
            Basis::Thumbprint(thumbprint) => (Some(*thumbprint), None, None),
            Basis::Authorities(authorities, certificates) => {
                given = Some(certificates.clone());
                (None, Some(authorities.clone()), None)
            }
            Basis::System(authorities) => (None, authorities.clone(), self.expected(endpoint)?),
        };
        Ok(Arc::new(HeldTo::new(
            pinned,
            authorities,
            given,
            matches!(self.basis, Basis::System(_)),
            expected,
            sibling,
        )))
    }

    fn new(basis: Basis, known: Option<KnownGateways>) -> Self {
        Self {
            basis,
            accepted: Arc::default(),
            known: known.map(Arc::new),
        }
    }

    fn expected(&self, endpoint: &Endpoint) -> Result<Option<Thumbprint>, KnownFault> {
        if let Some(thumbprint) = self.accepted.lock().get(endpoint) {
            return Ok(Some(*thumbprint));
        }
        match &self.known {
            Some(known) => known.thumbprint_of(endpoint),
            None => Ok(None),
        }
    }
}

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.basis {
            Basis::Thumbprint(_) => "Trust(thumbprint)",
            Basis::Authorities(..) => "Trust(authorities)",
            Basis::System(_) => "Trust(system)",
        })
    }
}

/// A file of certificate authorities that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}. Give a PEM file with the certificates of the authority", file.display())]
pub struct AuthorityFault {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it.
    pub problem: String,
}

impl AuthorityFault {
    #[cfg(test)]
    fn is_about(&self, words: &str) -> bool {
        self.to_string().contains(words)
    }
}

impl From<KnownFault> for io::Error {
    fn from(fault: KnownFault) -> Self {
        Self::other(fault)
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;

    use super::*;

    #[test]
    fn a_file_without_authorities_is_refused_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let refused = |text: &str| {
            std::fs::write(&file, text).unwrap();
            Trust::authorities(&file).unwrap_err()
        };
        assert!(refused("").is_about("ca.pem: there is no certificate in it"));
        assert!(refused("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_about("ca.pem"));
        assert!(
            Trust::authorities(&folder.path().join("none"))
                .unwrap_err()
                .is_about("none")
        );
    }

    #[test]
    fn what_was_accepted_is_expected_even_if_nothing_can_be_remembered() {
        let trust = Trust::system(None);
        let endpoint: Endpoint = "gw.example".parse().unwrap();
        let thumbprint = Thumbprint::of(&CertificateDer::from_slice(b"certificate"));
        assert_eq!(trust.expected(&endpoint).unwrap(), None);
        let clone = trust.clone();
        clone.accept(&endpoint, thumbprint).unwrap();
        assert_eq!(trust.expected(&endpoint).unwrap(), Some(thumbprint));
    }
}
