//! A certificate authority of the test's own.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// An authority with a folder for what it issues. Its own certificate is `ca.pem`.
pub struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Default for Authority {
    fn default() -> Self {
        let folder = TempDir::new().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }
}

impl Authority {
    /// Its certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Issues a certificate for a host name or an address: the files of chain and key.
    pub fn issue(&self, name: &str) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |suffix: &str| self.folder.path().join(format!("{name}{suffix}"));
        std::fs::write(file(".crt"), certificate.pem()).unwrap();
        super::write_private(&file(".key"), &key.serialize_pem());
        (file(".crt"), file(".key"))
    }

    /// The table of a certificate in a gateway's configuration.
    pub fn table(&self, table: &str, name: &str) -> String {
        let (chain, key) = self.issue(name);
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        format!(
            "[certificate.{table}]\nchain = {}\nkey = {}\n",
            quoted(&chain),
            quoted(&key)
        )
    }
}
