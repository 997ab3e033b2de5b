//! A certificate and its key, from files.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::Timestamp;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::{CertifiedKey, SigningKey};
use x509_parser::prelude::{ASN1Time, FromDer, GeneralName, ParsedExtension, X509Certificate, X509Extension};
use zeroize::Zeroizing;

use super::certificates::Leaf;
use super::faults::{LoadFault, Problem, Warning, WarningKind};
use super::staple::Staple;
use crate::config;

/// A certificate that can be served.
pub(super) struct Pair {
    pub(super) leaf: Leaf,
    pub(super) file: PathBuf,
    pub(super) key: Arc<CertifiedKey>,
    /// The same with an OCSP response, until that expires.
    pub(super) stapled: Option<(Arc<CertifiedKey>, Timestamp)>,
    pub(super) warnings: Vec<Warning>,
}

/// A certificate of this node with its key, to be shown to a server that asks for one. Blocks on the file system.
///
/// # Errors
/// Every fault of its files.
pub fn own_certificate(
    name: &str,
    files: Option<&config::Certificate>,
    now: Timestamp,
) -> Result<Arc<CertifiedKey>, Vec<LoadFault>> {
    load_pair(name, files, now).map(|pair| pair.key)
}

/// Reads chain and key, and checks all that can be known without a client.
pub(super) fn load_pair(
    name: &str,
    files: Option<&config::Certificate>,
    now: Timestamp,
) -> Result<Pair, Vec<LoadFault>> {
    let fault = |file: &Path, problem| LoadFault {
        certificate: name.to_owned(),
        file: file.to_owned(),
        problem,
    };
    let Some(files) = files else {
        return Err(vec![fault(Path::new(""), Problem::NotConfigured)]);
    };
    let chain = read_chain(&files.chain).map_err(|problem| fault(&files.chain, problem));
    let key = read_key(&files.key).map_err(|problem| fault(&files.key, problem));
    let (chain, key) = match (chain, key) {
        (Ok(chain), Ok(key)) => (chain, key),
        (chain, key) => return Err([chain.err(), key.err()].into_iter().flatten().collect()),
    };
    let parsed = parse_chain(&chain).map_err(|problem| vec![fault(&files.chain, problem)])?;
    let Some(leaf) = leaf_of(&parsed, key.as_ref()) else {
        return Err(vec![fault(&files.chain, Problem::Mismatch { key: files.key.clone() })]);
    };
    let staple = files.ocsp.as_ref().map(|file| {
        let staple = read_binary(file).and_then(|der| Staple::read(der, parsed[leaf].raw_serial()));
        staple.map_err(|problem| vec![fault(file, problem)])
    });
    let staple = staple.transpose()?;
    let order = in_order(&parsed, leaf);
    let leaf = Leaf {
        certificate: name.to_owned(),
        names: names_of(&parsed[leaf]),
        not_before: timestamp(parsed[leaf].validity().not_before),
        not_after: timestamp(parsed[leaf].validity().not_after),
    };
    let expired = staple.as_ref().filter(|staple| staple.until < now);
    let warnings = warnings_of(&leaf, order.iter().copied().eq(0..chain.len()), now)
        .chain(expired.map(|staple| WarningKind::OcspExpired(staple.until)))
        .map(|kind| Warning {
            certificate: name.to_owned(),
            file: files.chain.clone(),
            kind,
        })
        .collect();
    let served = order.into_iter().map(|at| chain[at].clone()).collect();
    let key = CertifiedKey::new(served, key);
    let stapled = staple.map(|Staple { der, until }| {
        let mut key = key.clone();
        key.ocsp = Some(der);
        (Arc::new(key), until)
    });
    Ok(Pair {
        leaf,
        file: files.chain.clone(),
        key: Arc::new(key),
        stapled,
        warnings,
    })
}

pub(super) fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let bytes = read(file)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<_, _>>()
        .map_err(|_| Problem::DamagedPem)?;
    if chain.is_empty() {
        Err(Problem::NoCertificate)
    } else {
        Ok(chain)
    }
}

fn read_key(file: &Path) -> Result<Arc<dyn SigningKey>, Problem> {
    let bytes = read(file)?;
    if bytes.windows(ENCRYPTED.len()).any(|window| window == ENCRYPTED) {
        return Err(Problem::EncryptedKey);
    }
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|cause| {
        if matches!(cause, pem::Error::NoItemsFound) {
            Problem::NoKey
        } else {
            Problem::DamagedPem
        }
    })?;
    any_supported_type(&Zeroizing::new(key)).map_err(|_| Problem::UnusableKey)
}

/// The text of a PEM file, wiped when dropped.
fn read(file: &Path) -> Result<Zeroizing<Vec<u8>>, Problem> {
    let mut bytes = Zeroizing::new(read_binary(file)?);
    if bytes.first() == Some(&DER_SEQUENCE) {
        return Err(Problem::Binary);
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    Ok(bytes)
}

fn read_binary(file: &Path) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|open| open.take(MAX_FILE + 1).read_to_end(&mut bytes))
        .map_err(|cause| Problem::Unreadable(cause.kind()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Problem::TooLarge);
    }
    Ok(bytes)
}

fn parse_chain<'a>(chain: &'a [CertificateDer<'_>]) -> Result<Vec<X509Certificate<'a>>, Problem> {
    chain
        .iter()
        .enumerate()
        .map(|(at, der)| match X509Certificate::from_der(der) {
            Ok((_, certificate)) => Ok(certificate),
            Err(_) => Err(Problem::DamagedCertificate(at + 1)),
        })
        .collect()
}

/// The certificate that certifies the key.
fn leaf_of(chain: &[X509Certificate<'_>], key: &dyn SigningKey) -> Option<usize> {
    let key = key.public_key()?;
    chain
        .iter()
        .position(|certificate| certificate.public_key().raw == key.as_ref())
}

/// The leaf, each certificate followed by its issuer; then others that issued one of these (cross certificates).
fn in_order(chain: &[X509Certificate<'_>], leaf: usize) -> Vec<usize> {
    let issued = |issuer: usize, subject: usize| chain[issuer].subject().as_raw() == chain[subject].issuer().as_raw();
    let mut order = vec![leaf];
    let mut last = leaf;
    while let Some(issuer) = (0..chain.len()).find(|at| !order.contains(at) && issued(*at, last)) {
        order.push(issuer);
        last = issuer;
    }
    while let Some(cross) = (0..chain.len()).find(|at| !order.contains(at) && order.iter().any(|of| issued(*at, *of))) {
        order.push(cross);
    }
    order
}

/// The host names and addresses of a certificate in DER; none if it cannot be read.
pub(super) fn names_in(der: &CertificateDer<'_>) -> Vec<String> {
    X509Certificate::from_der(der)
        .map(|(_, certificate)| names_of(&certificate))
        .unwrap_or_default()
}

/// The host names and addresses of a certificate, in lower case: from the subject's alternative names, and from the
/// common name only if there are none at all (RFC 6125, 6.4.4).
fn names_of(certificate: &X509Certificate<'_>) -> Vec<String> {
    let extensions = certificate.extensions().iter().map(X509Extension::parsed_extension);
    let mut alternatives = Vec::new();
    let mut has_alternatives = false;
    for extension in extensions {
        if let ParsedExtension::SubjectAlternativeName(names) = extension {
            has_alternatives = true;
            alternatives.extend(names.general_names.iter().filter_map(name_of));
        }
    }
    if has_alternatives {
        return alternatives;
    }
    let common_names = certificate
        .subject()
        .iter_common_name()
        .filter_map(|name| name.as_str().ok());
    common_names.map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn name_of(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name {
        Some(name.trim_end_matches('.').to_ascii_lowercase())
    } else if let GeneralName::IPAddress(bytes) = name {
        address(bytes).map(|address| address.to_string())
    } else {
        None
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|octets| IpAddr::V6(Ipv6Addr::from(octets))))
        .ok()
}

fn warnings_of(leaf: &Leaf, ordered: bool, now: Timestamp) -> impl Iterator<Item = WarningKind> {
    let expired = (now > leaf.not_after).then_some(WarningKind::Expired(leaf.not_after));
    let early = (now < leaf.not_before).then_some(WarningKind::NotYetValid(leaf.not_before));
    let nameless = leaf.names.is_empty().then_some(WarningKind::Nameless);
    let reordered = (!ordered).then_some(WarningKind::Reordered);
    [expired, early, nameless, reordered].into_iter().flatten()
}

fn timestamp(time: ASN1Time) -> Timestamp {
    Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MAX)
}

/// No chain comes near it.
const MAX_FILE: u64 = 1024 * 1024;
const DER_SEQUENCE: u8 = 0x30;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// Stands in both forms of an encrypted PEM key.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    use tempfile::TempDir;

    use super::*;
    use crate::secure::self_signed;

    #[test]
    fn names_come_from_the_alternative_names_in_lower_case() {
        let files = Files::new();
        let made = self_signed(
            &["GW.Test".into(), "*.gw.test".into(), "192.0.2.1".into(), "::1".into()],
            now(),
        )
        .unwrap();
        let pair = files.load(&made.chain, made.key.expose()).unwrap();
        assert_eq!(pair.leaf.names, ["gw.test", "*.gw.test", "192.0.2.1", "::1"]);
        assert_eq!(pair.warnings, []);
    }

    #[test]
    fn the_common_name_counts_only_without_alternative_names() {
        let files = Files::new();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Old.Test");
        let old = params.self_signed(&key).unwrap().pem();
        assert_eq!(files.load(&old, &key.serialize_pem()).unwrap().leaf.names, ["old.test"]);
        params.subject_alt_names = CertificateParams::new(["new.test".to_owned()])
            .unwrap()
            .subject_alt_names;
        let new = params.self_signed(&key).unwrap().pem();
        assert_eq!(files.load(&new, &key.serialize_pem()).unwrap().leaf.names, ["new.test"]);
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let files = Files::new();
        let (one, other) = (made(), made());
        let fault = files.load(&one.chain, other.key.expose()).unwrap_err().remove(0);
        assert_eq!(fault.problem, Problem::Mismatch { key: files.key() });
        assert_eq!(fault.file, files.chain());
        assert!(fault.to_string().starts_with("certificate `gw`: "), "{fault}");
    }

    #[test]
    fn every_fault_is_told_with_its_file() {
        let made = made();
        let (chain, key) = (made.chain.as_str(), made.key.expose());
        let damaged = chain.replace("-----END CERTIFICATE-----", "");
        let twisted = chain.replacen("MII", "MIJ", 1).replacen("MIIB", "MIJB", 1);
        let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n";
        for (chain, key, problems) in [
            ("", "", vec![Problem::NoCertificate, Problem::NoKey]),
            (key, chain, vec![Problem::NoCertificate, Problem::NoKey]),
            (&damaged, encrypted, vec![Problem::DamagedPem, Problem::EncryptedKey]),
            ("\x30\u{2}", "\x30\u{2}", vec![Problem::Binary, Problem::Binary]),
            (&"x".repeat(MAX_FILE as usize + 1), key, vec![Problem::TooLarge]),
            (&twisted, key, vec![Problem::DamagedCertificate(1)]),
            (
                chain,
                "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
                vec![Problem::UnusableKey],
            ),
        ] {
            let faults = Files::new().load(chain, key).unwrap_err();
            assert_eq!(
                faults.iter().map(|fault| fault.problem.clone()).collect::<Vec<_>>(),
                problems
            );
        }
        let missing = config::Certificate {
            chain: "/nonexistent/a".into(),
            key: "/nonexistent/b".into(),
            ocsp: None,
        };
        let faults = load_pair("gw", Some(&missing), now()).map(drop).unwrap_err();
        assert_eq!(faults.len(), 2);
        let told = faults[1].to_string();
        assert_eq!(
            told,
            "certificate `gw`: /nonexistent/b cannot be read (entity not found); check the path"
        );
        let told = load_pair("gw", None, now()).map(drop).unwrap_err()[0].to_string();
        assert!(told.starts_with("certificate `gw` is not configured; add it"), "{told}");
    }

    #[test]
    fn a_certificate_out_of_its_time_is_a_warning() {
        let files = Files::new();
        let made = made();
        let days = |days: i64| now() + SignedDuration::from_hours(24 * days);
        let kinds = |at| {
            let pair = files.load_at(&made.chain, made.key.expose(), at).unwrap();
            pair.warnings
                .into_iter()
                .map(|warning| warning.kind)
                .collect::<Vec<_>>()
        };
        assert!(matches!(kinds(days(100))[..], [WarningKind::Expired(_)]));
        assert!(matches!(kinds(days(-100))[..], [WarningKind::NotYetValid(_)]));
        assert_eq!(kinds(days(1)), []);
    }

    #[test]
    fn a_chain_is_served_leaf_first_whatever_its_order() {
        let root = Authority::root("root");
        let middle = root.authority("middle");
        let key = KeyPair::generate().unwrap();
        let leaf = middle.leaf("gw.test", &key);
        let stranger = made();
        let wanted: Vec<_> = [&leaf, &middle.pem, &root.pem]
            .map(|pem| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap())
            .into();
        for (chain, ordered) in [
            ([&leaf, &middle.pem, &root.pem, &String::new()], true),
            ([&root.pem, &middle.pem, &leaf, &String::new()], false),
            ([&middle.pem, &leaf, &stranger.chain, &root.pem], false),
        ] {
            let pair = Files::new()
                .load(&chain.map(String::as_str).concat(), &key.serialize_pem())
                .unwrap();
            assert_eq!(pair.key.cert, wanted);
            assert_eq!(pair.warnings.is_empty(), ordered);
        }
    }

    #[test]
    fn a_cross_certificate_stays_in_the_chain() {
        let (old, new) = (Authority::root("old"), Authority::root("new"));
        let middle = old.authority("middle");
        let crossed = new.certify(&middle);
        let key = KeyPair::generate().unwrap();
        let leaf = middle.leaf("gw.test", &key);
        let pair = Files::new()
            .load(&[leaf, middle.pem, crossed].concat(), &key.serialize_pem())
            .unwrap();
        assert_eq!((pair.key.cert.len(), pair.warnings.len()), (3, 0));
    }

    #[test]
    fn files_from_windows_are_read() {
        let made = made();
        let windows = |text: &str| format!("\u{feff}{}", text.replace('\n', "\r\n"));
        assert!(
            Files::new()
                .load(&windows(&made.chain), &windows(made.key.expose()))
                .is_ok()
        );
    }

    fn now() -> Timestamp {
        "2026-11-29T12:00:00Z".parse().unwrap()
    }

    fn made() -> crate::secure::SelfSigned {
        self_signed(&["gw.test".into()], now()).unwrap()
    }

    impl std::fmt::Debug for Pair {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.leaf.fmt(f)
        }
    }

    struct Files(TempDir);

    impl Files {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn chain(&self) -> PathBuf {
            self.0.path().join("chain.pem")
        }

        fn key(&self) -> PathBuf {
            self.0.path().join("key.pem")
        }

        fn load(&self, chain: &str, key: &str) -> Result<Pair, Vec<LoadFault>> {
            self.load_at(chain, key, now())
        }

        fn load_at(&self, chain: &str, key: &str, at: Timestamp) -> Result<Pair, Vec<LoadFault>> {
            std::fs::write(self.chain(), chain).unwrap();
            std::fs::write(self.key(), key).unwrap();
            load_pair(
                "gw",
                Some(&config::Certificate {
                    chain: self.chain(),
                    key: self.key(),
                    ocsp: None,
                }),
                at,
            )
        }
    }

    struct Authority {
        params: CertificateParams,
        key: KeyPair,
        pem: String,
    }

    impl Authority {
        fn root(name: &str) -> Self {
            let (params, key) = Self::prepared(name);
            let pem = params.self_signed(&key).unwrap().pem();
            Self { params, key, pem }
        }

        fn authority(&self, name: &str) -> Self {
            let (params, key) = Self::prepared(name);
            let pem = params.signed_by(&key, &self.issuer()).unwrap().pem();
            Self { params, key, pem }
        }

        fn certify(&self, other: &Self) -> String {
            other.params.signed_by(&other.key, &self.issuer()).unwrap().pem()
        }

        fn leaf(&self, name: &str, key: &KeyPair) -> String {
            let mut params = CertificateParams::new([name.to_owned()]).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            params.signed_by(key, &self.issuer()).unwrap().pem()
        }

        fn issuer(&self) -> Issuer<'_, &KeyPair> {
            Issuer::from_params(&self.params, &self.key)
        }

        fn prepared(name: &str) -> (CertificateParams, KeyPair) {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, name);
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            (params, KeyPair::generate().unwrap())
        }
    }
}
