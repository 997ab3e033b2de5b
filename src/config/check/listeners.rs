//! Listeners, their addresses and their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::Check;
use crate::config::document;
use crate::config::document::format::Bind;
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::config::{Certificate, Listener};

impl Check<'_> {
    /// The certificates whose files are there.
    pub(super) fn certificates(
        &mut self,
        certificates: BTreeMap<String, document::Certificate>,
    ) -> BTreeMap<String, Certificate> {
        let mut built = BTreeMap::new();
        for (name, certificate) in certificates {
            let path = SettingPath::of(&["certificate", &name]);
            let chain = certificate
                .chain
                .and_then(|file| self.file(&file, &path.key("chain"), false));
            let key = certificate
                .key
                .and_then(|file| self.file(&file, &path.key("key"), true));
            if let (Some(chain), Some(key)) = (chain, key) {
                built.insert(name, Certificate { chain, key });
            }
        }
        built
    }

    /// The listeners that are whole. `certificates` are the names of all certificates, faulty or not, if they are known.
    pub(super) fn listeners(
        &mut self,
        listeners: BTreeMap<String, document::Listener>,
        health: &document::Health,
        certificates: Option<&BTreeSet<String>>,
    ) -> BTreeMap<String, Listener> {
        let mut addresses = Addresses::default();
        let mut built = BTreeMap::new();
        for (name, listener) in listeners {
            let path = SettingPath::of(&["listener", &name]);
            self.binds(
                &mut addresses,
                listener.bind.as_deref().unwrap_or_default(),
                &path.key("bind"),
            );
            self.balancers(&listener, &path.key("balancers"));
            for (index, certificate) in listener.certificates.iter().flatten().enumerate() {
                self.reference(
                    "certificate",
                    certificate,
                    certificates,
                    &path.key("certificates"),
                    index,
                );
            }
            if let (Some(bind), Some(certificates)) = (listener.bind, listener.certificates) {
                let bind = bind.into_iter().map(|bind| bind.0).collect();
                let balancers = listener.balancers.into_iter().map(|network| network.0).collect();
                built.insert(
                    name,
                    Listener {
                        bind,
                        balancers,
                        certificates,
                    },
                );
            }
        }
        self.binds(&mut addresses, &health.bind, &SettingPath::of(&["health", "bind"]));
        self.unused(certificates.into_iter().flatten(), &built);
        built
    }

    fn binds(&mut self, addresses: &mut Addresses, binds: &[Bind], list: &SettingPath) {
        for (index, bind) in binds.iter().enumerate() {
            let path = self.places.element(list, index);
            if let Err(problem) = addresses.claim(bind.0, &path) {
                self.note(path, problem);
            }
        }
    }

    fn balancers(&mut self, listener: &document::Listener, list: &SettingPath) {
        for (index, network) in listener.balancers.iter().enumerate() {
            if network.0.prefix_len() == 0 {
                self.note(self.places.element(list, index), Problem::EveryoneBalances);
            }
        }
    }

    fn unused<'n>(&mut self, certificates: impl Iterator<Item = &'n String>, listeners: &BTreeMap<String, Listener>) {
        if self.places.lost_some(&SettingPath::of(&["listener"]), "certificates") {
            return;
        }
        let served: BTreeSet<&String> = listeners.values().flat_map(|listener| &listener.certificates).collect();
        for name in certificates.filter(|name| !served.contains(name)) {
            self.note(SettingPath::of(&["certificate", name]), Problem::UnusedCertificate);
        }
    }
}

/// The addresses that are taken, and by which setting.
#[derive(Default)]
struct Addresses(Vec<(SocketAddr, SettingPath)>);

impl Addresses {
    /// Takes an address, unless somebody else would be listening on it too.
    fn claim(&mut self, address: SocketAddr, path: &SettingPath) -> Result<(), Problem> {
        let met = self.0.iter().find(|(taken, _)| meet(*taken, address)).cloned();
        self.0.push((address, path.clone()));
        match met {
            None => Ok(()),
            Some((taken, other)) if taken == address => Err(Problem::AddressTaken { address, other }),
            Some((other_address, other)) => Err(Problem::AddressOverlap {
                address,
                other_address,
                other,
            }),
        }
    }
}

/// Whether one connection could reach both. Port 0 is a port of the system's choice, never the same one.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let wildcard = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (wildcard || one.ip() == other.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(one: &str, other: &str) -> bool {
        meet(one.parse().unwrap(), other.parse().unwrap())
    }

    #[test]
    fn a_wildcard_meets_every_address_of_its_family() {
        assert!(met("0.0.0.0:443", "10.0.0.1:443"));
        assert!(met("10.0.0.1:443", "0.0.0.0:443"));
        assert!(met("[::]:443", "[fd00::1]:443"));
        assert!(!met("[::]:443", "10.0.0.1:443"));
        assert!(!met("0.0.0.0:443", "0.0.0.0:8443"));
        assert!(!met("10.0.0.1:443", "10.0.0.2:443"));
        assert!(!met("0.0.0.0:0", "0.0.0.0:0"));
    }
}
