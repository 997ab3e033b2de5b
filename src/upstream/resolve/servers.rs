//! Name servers, asked over UDP or, for long answers, TCP; and before them the file of hosts.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::RecordType;
use hickory_resolver::system_conf::parse_resolv_conf;
use parking_lot::Mutex;

use super::hosts::addresses_in;
use super::{Answer, Ask, DnsFault, Family};

/// Name servers: those given, or whichever the system has at the moment.
pub(in crate::upstream) struct Servers {
    given: Option<TokioResolver>,
    hosts: PathBuf,
    resolv_conf: PathBuf,
    /// The system's, with the text that names them.
    system: Mutex<Option<(String, TokioResolver)>>,
}

impl Servers {
    /// Those of `/etc/resolv.conf`, which may change at any time.
    pub(in crate::upstream) fn of_the_system() -> Self {
        Self {
            given: None,
            hosts: "/etc/hosts".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            system: Mutex::default(),
        }
    }

    /// These, at least one. Names are asked for as they are written, without a search list.
    pub(in crate::upstream) fn these(servers: &[SocketAddr]) -> Self {
        let server = |address: &SocketAddr| {
            let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            for connection in &mut connections {
                connection.port = address.port();
            }
            NameServerConfig::new(address.ip(), true, connections.into())
        };
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(server).collect());
        Self {
            given: resolver(config, ResolverOpts::default()),
            ..Self::of_the_system()
        }
    }

    /// The same with other files.
    #[cfg(test)]
    pub(super) fn with_files(mut self, hosts: PathBuf, resolv_conf: PathBuf) -> Self {
        (self.hosts, self.resolv_conf) = (hosts, resolv_conf);
        self
    }

    async fn in_hosts(&self, name: &str) -> Option<Answer> {
        let file = tokio::fs::read_to_string(&self.hosts).await.ok()?;
        let addresses = addresses_in(&file, name);
        let (v4, v6): (Vec<_>, Vec<_>) = addresses.into_iter().partition(IpAddr::is_ipv4);
        let family = |addresses: Vec<IpAddr>| {
            if addresses.is_empty() {
                Family::HasNone(DnsFault::NoAddress)
            } else {
                Family::Has(addresses, HOSTS_HOLD)
            }
        };
        (!v4.is_empty() || !v6.is_empty()).then(|| Answer {
            v4: family(v4),
            v6: family(v6),
        })
    }

    /// Who is asked at the moment; `None` if there is nobody.
    async fn resolver(&self) -> Option<TokioResolver> {
        if let Some(given) = &self.given {
            return Some(given.clone());
        }
        let text = tokio::fs::read_to_string(&self.resolv_conf).await.ok()?;
        let mut system = self.system.lock();
        if let Some((of, resolver)) = &*system
            && *of == text
        {
            return Some(resolver.clone());
        }
        // It is an error to name nobody there.
        let (config, options) = parse_resolv_conf(&text).ok()?;
        let resolver = resolver(config, options)?;
        *system = Some((text, resolver.clone()));
        Some(resolver)
    }
}

impl Ask for Servers {
    fn ask<'a>(&'a self, name: &'a str) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        Box::pin(async move {
            if let Some(answer) = self.in_hosts(name).await {
                return answer;
            }
            let Some(resolver) = self.resolver().await else {
                let none = Family::Failed(DnsFault::NoServer);
                return Answer {
                    v4: none.clone(),
                    v6: none,
                };
            };
            let is_whole = self.given.is_some() && !name.ends_with('.');
            let name = if is_whole { format!("{name}.") } else { name.to_owned() };
            let (v4, v6) = tokio::join!(
                family(&resolver, &name, RecordType::A),
                family(&resolver, &name, RecordType::AAAA)
            );
            Answer { v4, v6 }
        })
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Servers")
            .field("given", &self.given.is_some())
            .finish_non_exhaustive()
    }
}

fn resolver(config: ResolverConfig, mut options: ResolverOpts) -> Option<TokioResolver> {
    // Whoever follows a name asks again when its records have expired, and then wants to know what is true now.
    options.cache_size = 0;
    options.use_hosts_file = ResolveHosts::Never;
    options.timeout = options.timeout.min(MOST_PATIENCE);
    options.attempts = options.attempts.min(MOST_TRIES);
    let builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    let built = builder.with_options(options).build();
    built
        .inspect_err(|cause| tracing::error!(%cause, step = "upstream", "name servers cannot be asked"))
        .ok()
}

async fn family(resolver: &TokioResolver, name: &str, kind: RecordType) -> Family {
    let found = match resolver.lookup(name, kind).await {
        Ok(found) => found,
        Err(cause) => return without_records(&cause),
    };
    let addresses: Vec<_> = found
        .answers()
        .iter()
        .filter_map(|record| record.data.ip_addr())
        .collect();
    // Names that stand for each other count too: one of them may be changed first.
    let holds = found.answers().iter().map(|record| record.ttl).min().unwrap_or(0);
    if addresses.is_empty() {
        Family::HasNone(DnsFault::NoAddress)
    } else {
        Family::Has(addresses, Duration::from_secs(holds.into()))
    }
}

fn without_records(cause: &NetError) -> Family {
    if cause.is_nx_domain() {
        Family::HasNone(DnsFault::NoSuchName)
    } else if cause.is_no_records_found() {
        Family::HasNone(DnsFault::NoAddress)
    } else if matches!(
        cause,
        NetError::Timeout | NetError::Io(_) | NetError::NoConnections | NetError::Busy
    ) {
        Family::Failed(DnsFault::Timeout)
    } else {
        Family::Failed(DnsFault::Refused)
    }
}

/// How long an entry of the file of hosts holds: the file may change at any time.
const HOSTS_HOLD: Duration = Duration::from_secs(5);
/// The longest wait for one name server.
const MOST_PATIENCE: Duration = Duration::from_secs(5);
const MOST_TRIES: usize = 2;
