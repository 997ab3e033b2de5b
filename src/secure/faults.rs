//! What can be wrong with a certificate, in words for its operator.

use std::fmt;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;

/// Why a certificate cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LoadFault {
    /// Its name in the configuration.
    pub certificate: String,
    /// The file at fault; empty if the configuration is.
    pub file: PathBuf,
    /// What is wrong.
    pub problem: Problem,
}

impl fmt::Display for LoadFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "certificate `{}`", self.certificate)?;
        if !self.file.as_os_str().is_empty() {
            write!(f, ": {}", self.file.display())?;
        }
        write!(f, " {}; {}", self.problem, self.problem.advice())
    }
}

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It cannot be read.
    #[error("cannot be read ({0})")]
    Unreadable(io::ErrorKind),
    /// It is larger than any certificate.
    #[error("is larger than a mebibyte")]
    TooLarge,
    /// It is binary.
    #[error("is binary (DER or PKCS#12), not PEM")]
    Binary,
    /// Its PEM is damaged.
    #[error("has a damaged PEM section")]
    DamagedPem,
    /// It holds no certificate.
    #[error("holds no certificate")]
    NoCertificate,
    /// A certificate in it cannot be read.
    #[error("certificate number {0} in it is damaged")]
    DamagedCertificate(usize),
    /// It holds no key.
    #[error("holds no private key")]
    NoKey,
    /// The key is encrypted.
    #[error("holds an encrypted key")]
    EncryptedKey,
    /// The key is of a kind that TLS here cannot use.
    #[error("holds no RSA (2048 to 8192 bits), ECDSA (P-256, P-384, P-521) or Ed25519 key")]
    UnusableKey,
    /// The key belongs to another certificate.
    #[error("holds no certificate for the key in {}", key.display())]
    Mismatch {
        /// The key's file.
        key: PathBuf,
    },
    /// It holds no OCSP response that could be sent.
    #[error("holds no successful OCSP response in DER")]
    NoOcspResponse,
    /// The OCSP response is about others.
    #[error("holds an OCSP response that says nothing of this certificate")]
    OcspOfAnother,
    /// The OCSP response does not say "good".
    #[error("holds an OCSP response by which this certificate is revoked or unknown")]
    OcspNotGood,
    /// A listener names a certificate that does not exist.
    #[error("is not configured")]
    NotConfigured,
}

impl Problem {
    /// What the operator can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable(io::ErrorKind::NotFound) => "check the path",
            Self::Unreadable(io::ErrorKind::PermissionDenied) => {
                "let the gateway's user read it, and nobody else (chown, chmod 600)"
            }
            Self::Unreadable(_) => "check that it is a regular file on a sound disk",
            Self::TooLarge => "check the path",
            Self::Binary => "convert it, for example with `openssl x509 -inform DER` or `openssl pkcs12 -nodes`",
            Self::DamagedPem | Self::DamagedCertificate(_) => "copy it again, with all BEGIN and END lines",
            Self::NoCertificate => "put the PEM certificate chain there, leaf first",
            Self::NoKey => "put the PEM key there (PKCS#8, PKCS#1 or SEC1)",
            Self::EncryptedKey => "decrypt it with `openssl pkey -in FILE -out FILE` and protect the file",
            Self::UnusableKey => "have a P-256 key certified (`openssl ecparam -name prime256v1 -genkey -noout`)",
            Self::Mismatch { .. } => "certificate and key must be made together: replace the one that is old",
            Self::NoOcspResponse => "fetch it again (`openssl ocsp … -respout FILE`), or take `ocsp` off",
            Self::OcspOfAnother => "fetch it again for the certificate that is served now",
            Self::OcspNotGood => "have the certificate replaced: clients will refuse it",
            Self::NotConfigured => "add it under [certificates], or take it off the listener",
        }
    }
}

/// Something that an operator should look at; the certificate is served all the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("certificate `{certificate}`: {}: {kind}", file.display())]
pub struct Warning {
    /// Its name in the configuration.
    pub certificate: String,
    /// The chain's file.
    pub file: PathBuf,
    /// What there is to look at.
    pub kind: WarningKind,
}

/// What there is to look at.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WarningKind {
    /// Its time is over.
    #[error("expired at {0}; clients will refuse it")]
    Expired(Timestamp),
    /// Its time has not come.
    #[error("is valid only from {0} on; clients will refuse it, or the node's clock is wrong")]
    NotYetValid(Timestamp),
    /// It names no host.
    #[error("names no host and no address; it is served only as a default")]
    Nameless,
    /// The chain stood in another order, or with certificates that do not belong to it.
    #[error("its chain is out of order; it is served leaf first, each followed by its issuer")]
    Reordered,
    /// The OCSP response is not sent any more.
    #[error("its OCSP response expired at {0} and is not sent; fetch it again")]
    OcspExpired(Timestamp),
    /// Another certificate of the listener, with a key of the same kind, was listed earlier for these names.
    #[error("an earlier certificate of the listener is served instead for {}", names.join(", "))]
    Shadowed {
        /// The names.
        names: Vec<String>,
    },
}
