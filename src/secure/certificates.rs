//! Which certificate a client is shown.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::SignatureAlgorithm;
use rustls::pki_types::CertificateDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::faults::{LoadFault, Warning, WarningKind};
use super::load::{Pair, load_pair};
use crate::clock;
use crate::config::Config;

/// The certificates of a listener by the names in them. They do not change; a reload makes others.
///
/// A client that asks for a name gets the certificate of that name, else that of the wildcard one label above, else the
/// default: the first that the listener lists. A client that asks for no name or for an IP address gets the default. If
/// several keys can speak for a name, ECDSA comes before Ed25519 before RSA, as far as the client knows them; of one
/// kind, the first that is listed counts.
pub struct Certificates {
    exact: HashMap<Box<str>, Choice>,
    wildcard: HashMap<Box<str>, Choice>,
    default: Choice,
    leaves: Vec<Leaf>,
    warnings: Vec<Warning>,
}

/// A certificate that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// Its name in the configuration.
    pub certificate: String,
    /// The host names and addresses in it.
    pub names: Vec<String>,
    /// When it becomes valid.
    pub not_before: Timestamp,
    /// When it expires.
    pub not_after: Timestamp,
}

impl Certificates {
    /// Reads the certificates of these names, the default first. Blocks on the file system.
    ///
    /// # Errors
    /// Every fault of every certificate, and then nothing of the set is served.
    pub fn load(config: &Config, names: &[String], now: Timestamp) -> Result<Self, Vec<LoadFault>> {
        let mut pairs = Vec::new();
        let mut faults = Vec::new();
        for name in names {
            match load_pair(name, config.certificates.get(name), now) {
                Ok(pair) => pairs.push(pair),
                Err(of_this) => faults.extend(of_this),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        Ok(Self::of(pairs))
    }

    /// The certificates that are served, in the listener's order.
    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    /// What an operator should look at although everything is served.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The certificate that a client of today is shown who asks for `host`; an address is not asked for by name.
    pub fn leaf_for(&self, host: &str) -> Option<CertificateDer<'static>> {
        let name = Some(host.to_ascii_lowercase()).filter(|host| host.parse::<IpAddr>().is_err());
        let Choice(keys) = self.choice(name.as_deref());
        keys.first()?.key.cert.first().cloned()
    }

    /// Whether a certificate speaks for `host` by name, while the one that a client is shown who asks for `shown` does not.
    /// Both are in lower case.
    pub fn has_another_for(&self, host: &str, shown: &str) -> bool {
        let Some(Choice(wanted)) = self.named(host) else {
            return false;
        };
        let Choice(served) = self.choice(Some(shown));
        let speaks = |leaf: usize| {
            let names = self.leaves.get(leaf).map_or(&[][..], |leaf| leaf.names.as_slice());
            names.iter().any(|name| covers(name, host))
        };
        let is_wanted = |leaf: usize| wanted.iter().any(|other| other.leaf == leaf);
        !served.iter().any(|key| is_wanted(key.leaf) || speaks(key.leaf))
    }

    fn of(pairs: Vec<Pair>) -> Self {
        let mut default = Choice::default();
        if let Some(first) = pairs.first() {
            let twins = pairs.iter().enumerate();
            for (leaf, twin) in twins.filter(|(_, pair)| pair.leaf.names == first.leaf.names) {
                default.offer(twin, leaf);
            }
        }
        let mut set = Self {
            exact: HashMap::new(),
            wildcard: HashMap::new(),
            default,
            leaves: Vec::new(),
            warnings: Vec::new(),
        };
        for pair in pairs {
            set.add(pair);
        }
        set
    }

    fn add(&mut self, pair: Pair) {
        let mut shadowed = Vec::new();
        for name in &pair.leaf.names {
            let (table, key) = match name.strip_prefix("*.") {
                Some(parent) => (&mut self.wildcard, parent),
                None => (&mut self.exact, name.as_str()),
            };
            if !table.entry(key.into()).or_default().offer(&pair, self.leaves.len()) {
                shadowed.push(name.clone());
            }
        }
        self.warnings.extend(pair.warnings);
        if !shadowed.is_empty() {
            let kind = WarningKind::Shadowed { names: shadowed };
            self.warnings.push(Warning {
                certificate: pair.leaf.certificate.clone(),
                file: pair.file,
                kind,
            });
        }
        self.leaves.push(pair.leaf);
    }

    fn choice(&self, sni: Option<&str>) -> &Choice {
        sni.and_then(|name| self.named(name)).unwrap_or(&self.default)
    }

    fn named(&self, name: &str) -> Option<&Choice> {
        let name = name.strip_suffix('.').unwrap_or(name);
        let above = || name.split_once('.').and_then(|(_, parent)| self.wildcard.get(parent));
        self.exact.get(name).or_else(above)
    }
}

impl ResolvesServerCert for Certificates {
    /// The TLS library hands the name over in lower case, and nothing if the client wrote an IP address.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Choice(keys) = self.choice(hello.server_name());
        let fits = |served: &&Key| served.key.key.choose_scheme(hello.signature_schemes()).is_some();
        let key = match keys.as_slice() {
            [only] => Some(only),
            several => several.iter().find(fits).or(several.last()),
        }?;
        Some(Arc::clone(key.now()))
    }
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates")
            .field("leaves", &self.leaves)
            .finish_non_exhaustive()
    }
}

/// Whether the name in a certificate speaks for a host; a wildcard does for one label.
fn covers(name: &str, host: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(parent) => host.split_once('.').is_some_and(|(_, above)| above == parent),
        None => name == host,
    }
}

/// The keys that can speak for one name, at most one of a kind, the preferred first.
#[derive(Default)]
struct Choice(Vec<Key>);

#[derive(Clone)]
struct Key {
    key: Arc<CertifiedKey>,
    /// The same with an OCSP response, until that expires.
    stapled: Option<(Arc<CertifiedKey>, Timestamp)>,
    /// The number of its leaf.
    leaf: usize,
}

impl Key {
    fn now(&self) -> &Arc<CertifiedKey> {
        match &self.stapled {
            Some((stapled, until)) if clock::wall() < *until => stapled,
            _ => &self.key,
        }
    }
}

impl Choice {
    /// Takes the pair in, unless one of its kind is there already.
    fn offer(&mut self, pair: &Pair, leaf: usize) -> bool {
        let kind = pair.key.key.algorithm();
        if self.0.iter().any(|other| other.key.key.algorithm() == kind) {
            return false;
        }
        self.0.push(Key {
            key: Arc::clone(&pair.key),
            stapled: pair.stapled.clone(),
            leaf,
        });
        self.0.sort_by_key(|other| cost(other.key.key.algorithm()));
        true
    }
}

/// A signature with RSA costs the node some twenty times one with ECDSA.
fn cost(algorithm: SignatureAlgorithm) -> u8 {
    if algorithm == SignatureAlgorithm::ECDSA {
        0
    } else if algorithm == SignatureAlgorithm::ED25519 {
        1
    } else {
        2
    }
}
