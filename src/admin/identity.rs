//! What the admin port proves to be: a certificate of the configuration, or one of the node's own making.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::ServerConfig;
use zeroize::Zeroizing;

use crate::broker::replace_file;
use crate::config::{self, Config};
use crate::secure::{self, LoadFault};
use crate::types::Thumbprint;

/// A certificate with its key, ready to be shown.
#[derive(Debug)]
pub(super) struct Identity {
    pub(super) tls: Arc<ServerConfig>,
    /// What operators compare.
    pub(super) thumbprint: Thumbprint,
}

/// Why the admin port has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum IdentityFault {
    /// The files cannot be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Load(Vec<LoadFault>),
    /// None could be made and kept.
    #[error("{}: no certificate can be kept there: {problem}; see node.state_dir", file.display())]
    Make {
        /// Where it was to be.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The cryptographic library.
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl Identity {
    /// The configured certificate, or the one that the node has made for itself. Blocks on the file system.
    ///
    /// # Errors
    /// The files cannot be read, or none can be made.
    pub(super) fn load(config: &Config, now: Timestamp) -> Result<Self, IdentityFault> {
        match &config.admin.certificate {
            Some(name) => Self::of_files(name, config.certificates.get(name), now),
            None => Self::own(&config.node.state_dir.join(FILE), || names(config), now),
        }
    }

    /// The certificate in a file, which is made if it is not there.
    fn own(file: &Path, names: impl FnOnce() -> Vec<String>, now: Timestamp) -> Result<Self, IdentityFault> {
        if !file.exists() {
            make(file, &names(), now)?;
        }
        let both = config::Certificate {
            chain: file.to_owned(),
            key: file.to_owned(),
            ocsp: None,
        };
        Self::of_files("of the admin port", Some(&both), now)
    }

    fn of_files(name: &str, files: Option<&config::Certificate>, now: Timestamp) -> Result<Self, IdentityFault> {
        let key = secure::own_certificate(name, files, now).map_err(IdentityFault::Load)?;
        let thumbprint = key.cert.first().map(Thumbprint::of);
        Ok(Self {
            thumbprint: thumbprint.ok_or(rustls::Error::NoCertificatesPresented)?,
            tls: secure::operator_config(key)?,
        })
    }
}

/// The node's name, and its admin addresses.
fn names(config: &Config) -> Vec<String> {
    let addresses = config.admin.bind.iter().map(|address| address.ip());
    let addresses = addresses.filter(|address| !address.is_unspecified());
    [config.node.name.to_string(), "localhost".to_owned()]
        .into_iter()
        .chain(addresses.map(|address| address.to_string()))
        .collect()
}

/// Makes a certificate and keeps it with its key in one file.
fn make(file: &Path, names: &[String], now: Timestamp) -> Result<(), IdentityFault> {
    let fault = |problem: String| IdentityFault::Make {
        file: file.to_owned(),
        problem,
    };
    let made = secure::self_signed_for(names, DAYS, now).map_err(|cause| fault(cause.to_string()))?;
    let text = Zeroizing::new(format!("{}{}", made.chain, made.key.expose()));
    replace_file(file, text.as_bytes()).map_err(|cause| fault(cause.to_string()))
}

const FILE: &str = "admin.pem";
/// Whoever trusts it compares the thumbprint: a new one would have to be compared anew.
const DAYS: i64 = 3650;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_certificate_is_made_once_and_for_its_owner_alone() {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("state").join(FILE);
        let load = || Identity::own(&file, || vec!["gw-1".to_owned()], crate::clock::wall());
        let first = load().unwrap().thumbprint;
        assert_eq!(load().unwrap().thumbprint, first);
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&file, "half a file").unwrap();
        let words = load().unwrap_err().to_string();
        assert!(words.contains("admin.pem"), "{words}");
    }
}
