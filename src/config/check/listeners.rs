//! Listeners, their addresses and their certificates.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::{Check, secondary};
use crate::config::document;
use crate::config::document::format::{Bind, Network};
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::config::{Certificate, Listener, ListenerProtocol};
use crate::types::Authority;

/// What binds addresses or serves certificates beside the listeners.
pub(super) struct Others<'a> {
    pub(super) health: &'a document::Health,
    pub(super) pcoip: &'a document::Pcoip,
    pub(super) rdp: &'a document::Rdp,
    pub(super) fleet: &'a document::Fleet,
    pub(super) admin: &'a document::Admin,
    pub(super) quiesce: &'a document::Quiesce,
    pub(super) backends: &'a BTreeMap<String, document::Backend>,
}

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
            let ocsp = certificate
                .ocsp
                .and_then(|file| self.file(&file, &path.key("ocsp"), false));
            if let (Some(chain), Some(key)) = (chain, key) {
                built.insert(name, Certificate { chain, key, ocsp });
            }
        }
        built
    }

    /// The listeners that are whole. `certificates` are the names of all certificates, faulty or not, if they are known.
    pub(super) fn listeners(
        &mut self,
        listeners: BTreeMap<String, document::Listener>,
        others: &Others<'_>,
        certificates: Option<&BTreeSet<String>>,
    ) -> BTreeMap<String, Listener> {
        let mut addresses = Addresses::default();
        let mut served = BTreeSet::new();
        let mut built = BTreeMap::new();
        for (name, listener) in listeners {
            let path = SettingPath::of(&["listener", &name]);
            self.binds(
                &mut addresses,
                listener.bind.as_deref().unwrap_or_default(),
                &path.key("bind"),
            );
            self.balancers(&listener.balancers, &path.key("balancers"));
            for (index, certificate) in listener.certificates.iter().flatten().enumerate() {
                self.reference(
                    "certificate",
                    certificate,
                    certificates,
                    &path.key("certificates"),
                    index,
                );
                served.insert(certificate.clone());
            }
            if let Some(listener) = self.listener(listener, &path) {
                built.insert(name, listener);
            }
        }
        for (table, key, binds) in [
            ("health", "bind", &others.health.bind),
            ("pcoip", "bind", &others.pcoip.bind),
            ("rdp", "bind", &others.rdp.bind),
            ("fleet", "bind", &others.fleet.bind),
            ("admin", "bind", &others.admin.bind),
            ("quiesce", "agent", &others.quiesce.agent),
        ] {
            self.binds(&mut addresses, binds, &SettingPath::of(&[table, key]));
        }
        for (table, balancers) in [("pcoip", &others.pcoip.balancers), ("rdp", &others.rdp.balancers)] {
            self.balancers(balancers, &SettingPath::of(&[table, "balancers"]));
        }
        let list = SettingPath::of(&["pcoip", "certificates"]);
        for (index, certificate) in others.pcoip.certificates.iter().enumerate() {
            self.reference("certificate", certificate, certificates, &list, index);
        }
        for (table, certificate) in [
            ("fleet", &others.fleet.certificate),
            ("admin", &others.admin.certificate),
        ] {
            if let Some(name) = certificate {
                let path = SettingPath::of(&[table, "certificate"]);
                self.refers("certificate", name, certificates, path);
            }
        }
        served.extend(
            others
                .pcoip
                .certificates
                .iter()
                .chain(&others.fleet.certificate)
                .chain(&others.admin.certificate)
                .cloned(),
        );
        let of_backends = others.backends.values();
        served.extend(of_backends.filter_map(|backend| backend.tls.as_ref()?.certificate.clone()));
        self.unused_certificates(certificates.into_iter().flatten(), &served);
        built
    }

    fn listener(&mut self, listener: document::Listener, path: &SettingPath) -> Option<Listener> {
        let host_redirects = self.host_redirects(listener.host_redirects, &path.key("host_redirects"));
        let certificates = listener.certificates.unwrap_or_default();
        let passes_tls = listener.tls == document::TlsEnd::Passthrough;
        let (protocol, words) = match listener.protocol {
            document::ListenerProtocol::Https => (ListenerProtocol::Https, r#"protocol = "https""#),
            document::ListenerProtocol::Http => (ListenerProtocol::Http, r#"protocol = "http""#),
            document::ListenerProtocol::Tls if passes_tls => (ListenerProtocol::Passthrough, r#"protocol = "tls""#),
            document::ListenerProtocol::Tls => (ListenerProtocol::Tls, r#"protocol = "tls""#),
            document::ListenerProtocol::Tcp => (ListenerProtocol::Tcp, r#"protocol = "tcp""#),
        };
        let is_https = protocol == ListenerProtocol::Https;
        if passes_tls && protocol != ListenerProtocol::Passthrough {
            self.not_with(path.key("tls"), words);
        }
        if !is_https {
            for (key, is) in [
                ("udp", listener.udp),
                ("session_gateway", listener.session_gateway),
                ("host_redirects", true),
            ] {
                if is && self.places.has(&path.key(key)) {
                    self.not_with(path.key(key), words);
                }
            }
        }
        let (needs, instead) = match protocol {
            ListenerProtocol::Https => (true, r#"certificates = ["main"], or protocol = "http""#),
            ListenerProtocol::Tls => (true, r#"certificates = ["main"], or tls = "passthrough""#),
            ListenerProtocol::Passthrough => (false, r#"tls = "passthrough""#),
            ListenerProtocol::Http | ListenerProtocol::Tcp => (false, words),
        };
        if needs && certificates.is_empty() {
            self.missing(&path.key("certificates"), instead);
            return None;
        }
        if !needs && self.places.has(&path.key("certificates")) {
            self.not_with(path.key("certificates"), instead);
        }
        let (session_gateway, udp) = (is_https && listener.session_gateway, is_https && listener.udp);
        Some(Listener {
            protocol,
            session_gateway,
            bind: secondary::addresses(&listener.bind?),
            balancers: secondary::networks(&listener.balancers),
            certificates,
            udp,
            host_redirects,
            external_port: listener.external_port,
            error_pages: self.error_pages(listener.error_pages, &path.key("error_pages")),
        })
    }

    /// The redirects; one that leads to what is itself redirected would go on for ever.
    fn host_redirects(
        &mut self,
        redirects: BTreeMap<String, document::format::Authority>,
        path: &SettingPath,
    ) -> BTreeMap<Authority, Authority> {
        // The names have been checked with the shape.
        let named: Vec<(String, Authority, Authority)> = redirects
            .into_iter()
            .filter_map(|(name, to)| Some((name.clone(), name.parse().ok()?, to.0)))
            .collect();
        for (name, _, to) in &named {
            let asked = Authority {
                port: to.port.or(Some(HTTPS)),
                ..to.clone()
            };
            if let Some((again, ..)) = named.iter().find(|(_, from, _)| from.covers(&asked)) {
                let problem = Problem::RedirectLoop {
                    target: to.to_string(),
                    other: path.key(again),
                };
                self.note(path.key(name), problem);
            }
        }
        named.into_iter().map(|(_, from, to)| (from, to)).collect()
    }

    fn binds(&mut self, addresses: &mut Addresses, binds: &[Bind], list: &SettingPath) {
        for (index, bind) in binds.iter().enumerate() {
            let path = self.places.element(list, index);
            if let Err(problem) = addresses.claim(bind.0, &path) {
                self.note(path, problem);
            }
        }
    }

    fn balancers(&mut self, balancers: &[Network], list: &SettingPath) {
        for (index, network) in balancers.iter().enumerate() {
            if network.0.prefix_len() == 0 {
                self.note(self.places.element(list, index), Problem::EveryoneBalances);
            }
        }
    }

    fn unused_certificates<'n>(&mut self, all: impl Iterator<Item = &'n String>, served: &BTreeSet<String>) {
        let listeners = SettingPath::of(&["listener"]);
        let lacking = |path: &SettingPath| path.is_within(&listeners) && path.last_key() == Some("certificates");
        if self.places.lost_some(&listeners, "certificates") || self.found.iter().any(|found| lacking(&found.path)) {
            return;
        }
        for name in all.filter(|name| !served.contains(*name)) {
            self.note(SettingPath::of(&["certificate", name]), Problem::UnusedCertificate);
        }
    }
}

/// The port of a name without one.
const HTTPS: u16 = 443;

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
