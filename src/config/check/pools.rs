//! Pools, how their targets are spoken to, and how they are probed.

use std::collections::BTreeMap;

use super::Check;
use super::layers::Layers;
use super::web::{Names, Used};
use crate::config::document::{self, BackendProtocol, BackendVersion, ProbeProtocol, Target};
use crate::config::path::SettingPath;
use crate::config::problem::Unpublishable;
use crate::config::web::{
    self, Affinity, Backend, BackendTls, Balance, Ejection, Pool, PoolTarget, Probe, Retries, SameSite,
};

impl Check<'_> {
    pub(super) fn pools(&mut self, pools: BTreeMap<String, document::Pool>) -> BTreeMap<String, Pool> {
        pools
            .into_iter()
            .map(|(name, pool)| {
                let path = SettingPath::of(&["pool", &name]);
                (name, self.pool(pool, &path))
            })
            .collect()
    }

    fn pool(&mut self, pool: document::Pool, path: &SettingPath) -> Pool {
        Pool {
            targets: self.targets(pool.targets, path),
            balance: match pool.balance {
                document::Balance::RoundRobin => Balance::RoundRobin,
                document::Balance::LeastRequests => Balance::LeastRequests,
            },
            slow_start: pool.slow_start.map(|span| span.0),
            panic: pool.panic,
            ejection: pool.ejection.map(|ejection| Ejection {
                failures: ejection.failures,
                base: ejection.base.0,
                max_percent: ejection.max_percent,
            }),
        }
    }

    fn targets(&mut self, targets: Vec<Target>, pool: &SettingPath) -> Vec<PoolTarget> {
        let list = pool.key("targets");
        let mut first: BTreeMap<(String, Option<u16>), usize> = BTreeMap::new();
        let mut built = Vec::new();
        for (index, target) in targets.into_iter().enumerate() {
            let (address, weight, max_requests) = match target {
                Target::Address(address) => (Some(address), 1, None),
                Target::Table(table) => (table.address, table.weight, table.max_requests),
            };
            let Some(address) = address else {
                continue;
            };
            if let Some(other) = first.insert((address.host.clone(), address.port), index) {
                let other = self.places.element(&list, other);
                self.note(self.places.element(&list, index), Unpublishable::SameTarget { other });
            }
            built.push(PoolTarget {
                host: address.host,
                port: address.port,
                weight,
                max_requests,
            });
        }
        if !self.places.lost_part(&list) {
            if built.is_empty() {
                self.note(pool.clone(), Unpublishable::NoTarget);
            } else if built.iter().all(|target| target.weight == 0) {
                self.note(list, Unpublishable::NoWeight);
            }
        }
        built
    }

    pub(super) fn backends(
        &mut self,
        backends: BTreeMap<String, document::Backend>,
        names: &Names,
        used: &mut Used,
    ) -> BTreeMap<String, Backend> {
        backends
            .into_iter()
            .map(|(name, backend)| {
                let path = SettingPath::of(&["backend", &name]);
                if let Some(probe) = &backend.probe {
                    self.refers("probe", probe, names.probes.as_ref(), path.key("probe"));
                    used.probes.insert(probe.clone());
                }
                (name, self.backend(backend, names, &path))
            })
            .collect()
    }

    fn backend(&mut self, backend: document::Backend, names: &Names, path: &SettingPath) -> Backend {
        let without_tls = match backend.protocol {
            Some(BackendProtocol::Http) => Some(r#"protocol = "http""#),
            Some(BackendProtocol::Tcp) => Some(r#"protocol = "tcp""#),
            Some(BackendProtocol::Https | BackendProtocol::Tls) | None => None,
        };
        if let Some(words) = without_tls
            && backend.tls.is_some()
        {
            self.not_with(path.key("tls"), words);
        }
        let is_bytes = backend.protocol.is_some_and(BackendProtocol::is_bytes);
        let is_http2 = backend.version == BackendVersion::Http2;
        if is_bytes {
            self.backend_of_bytes(path, backend.protocol == Some(BackendProtocol::Tls));
        } else if backend.proxy_protocol {
            self.not_with(path.key("proxy_protocol"), "HTTP");
        }
        if is_http2 && backend.dedicated && !is_bytes {
            self.not_with(path.key("dedicated"), r#"version = "2""#);
        }
        let has_tls = match backend.protocol {
            Some(BackendProtocol::Https | BackendProtocol::Tls) => true,
            Some(BackendProtocol::Http | BackendProtocol::Tcp) | None => backend.tls.is_some(),
        };
        let tls = has_tls.then(|| self.backend_tls(backend.tls.unwrap_or_default(), names, &path.key("tls")));
        let usual = if is_bytes { Backend::bytes() } else { Backend::default() };
        let usual_port = if tls.is_some() && !is_bytes { 443 } else { usual.port };
        Backend {
            port: backend.port.unwrap_or(usual_port),
            tls,
            version: if is_bytes {
                web::BackendVersion::Bytes
            } else if is_http2 {
                web::BackendVersion::Http2
            } else {
                web::BackendVersion::Http1
            },
            request_timeout: backend.request_timeout.0,
            idle_timeout: backend.idle_timeout.map_or(usual.idle_timeout, |span| span.0),
            connect_timeout: backend.connect_timeout.0,
            drain: backend.drain.0,
            host: if is_bytes { usual.host } else { backend.host.0 },
            path_override: backend.path_override.map(|path| path.0),
            affinity: backend.affinity.map(|affinity| Affinity {
                cookie: affinity.cookie.0,
                same_site: match affinity.same_site {
                    document::SameSite::Lax => SameSite::Lax,
                    document::SameSite::Strict => SameSite::Strict,
                    document::SameSite::None => SameSite::None,
                },
            }),
            probe: backend.probe,
            retries: Retries {
                max: backend.retries.max,
                budget_percent: backend.retries.budget_percent,
            },
            buffer_requests: backend.buffer_requests,
            buffer_responses: backend.buffer_responses,
            dedicated: backend.dedicated,
            hide_inside: backend.hide_inside,
            proxy_protocol: backend.proxy_protocol,
        }
    }

    fn backend_tls(&mut self, tls: document::BackendTls, names: &Names, path: &SettingPath) -> BackendTls {
        if let Some(certificate) = &tls.certificate {
            self.refers(
                "certificate",
                certificate,
                names.certificates.as_ref(),
                path.key("certificate"),
            );
        }
        for (key, accepts) in [
            ("accept_any_name", tls.accept_any_name),
            ("accept_any_certificate", tls.accept_any_certificate),
        ] {
            if accepts {
                self.note(path.key(key), Unpublishable::Unproven);
            }
        }
        if tls.accept_any_certificate && tls.ca.is_some() {
            self.not_with(path.key("ca"), "accept_any_certificate = true");
        }
        BackendTls {
            ca: tls.ca.and_then(|file| self.file(&file, &path.key("ca"), false)),
            name: tls.name.map(|name| name.0),
            verify_name: !tls.accept_any_name,
            verify_chain: !tls.accept_any_certificate,
            certificate: tls.certificate,
        }
    }

    /// Notes the backends whose clients would need a key that is configured.
    pub(super) fn drawn_key(&mut self, backends: &BTreeMap<String, document::Backend>) {
        for (name, _) in backends.iter().filter(|(_, backend)| backend.affinity.is_some()) {
            let path = SettingPath::of(&["backend", name, "affinity"]);
            self.note(path, Unpublishable::KeyDrawn);
        }
    }

    pub(super) fn probes(
        &mut self,
        probes: BTreeMap<String, document::Probe>,
        layers: &Layers,
    ) -> BTreeMap<String, Probe> {
        probes
            .into_iter()
            .map(|(name, probe)| {
                let path = SettingPath::of(&["probe", &name]);
                let asks_nothing = match probe.protocol {
                    Some(ProbeProtocol::Tcp) => true,
                    Some(ProbeProtocol::Http) => false,
                    None => layers.probes_bytes(&name) && !self.places.lost(&path.key("protocol")),
                };
                (name, self.probe(probe, asks_nothing, &path))
            })
            .collect()
    }

    fn probe(&mut self, probe: document::Probe, asks_nothing: bool, path: &SettingPath) -> Probe {
        for key in ["path", "status", "body"] {
            if asks_nothing && self.places.has(&path.key(key)) {
                self.not_with(path.key(key), r#"protocol = "tcp""#);
            }
        }
        let interval = probe.interval;
        Probe {
            protocol: probe.protocol.map(|protocol| match protocol {
                ProbeProtocol::Http => web::ProbeProtocol::Http,
                ProbeProtocol::Tcp => web::ProbeProtocol::Tcp,
            }),
            path: probe.path.0,
            host: probe.host.map(|host| host.0),
            port: probe.port,
            interval: interval.0,
            timeout: self.within(path, ("timeout", probe.timeout), ("interval", interval)).0,
            threshold: probe.threshold,
            status: probe.status.into_iter().map(|statuses| statuses.0).collect(),
            body: probe.body,
        }
    }
}
