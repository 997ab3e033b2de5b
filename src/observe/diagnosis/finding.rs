//! Findings: what was found, since when, how often, and the words for it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use super::Crowds;
use crate::observe::counters::Kind;
use crate::observe::places::Places;
use crate::types::NodeName;

/// What is wrong: one closed list, the same in the log, the API, the metrics and the documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// Many users show one address.
    LbSnatDetected,
    /// A client's connections on different ports reach different nodes.
    AffinityLost,
    /// A client comes back to another node, or to one that has forgotten its session.
    PersistenceLost,
    /// Datagrams do not reach this node.
    UdpNeverArrives,
    /// What is announced to clients does not reach this node.
    LaunchNeverArrives,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 5] = [
        Self::LbSnatDetected,
        Self::AffinityLost,
        Self::PersistenceLost,
        Self::UdpNeverArrives,
        Self::LaunchNeverArrives,
    ];

    /// The code in log, metric and API.
    pub fn code(self) -> &'static str {
        match self {
            Self::LbSnatDetected => "lb_snat_detected",
            Self::AffinityLost => "affinity_lost",
            Self::PersistenceLost => "persistence_lost",
            Self::UdpNeverArrives => "udp_never_arrives",
            Self::LaunchNeverArrives => "launch_never_arrives",
        }
    }
}

/// Something wrong, as people are told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What is wrong.
    pub cause: Cause,
    /// When this episode began.
    pub since: Instant,
    /// When it was last seen.
    pub last: Instant,
    /// How often it was seen in this episode.
    pub count: u64,
    /// Whether it holds: it was seen lately, and not seen to be mended.
    pub holds: bool,
    /// The cause and the remedy, in one line.
    pub words: String,
}

impl Finding {
    /// An episode is over when nothing of it was seen for this long.
    pub const AWAY: Duration = Duration::from_secs(10 * 60);
}

/// What a finding is about.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Subject {
    Crowd {
        client: IpAddr,
        users: usize,
    },
    Misrouted {
        kind: Kind,
        owner: NodeName,
        local: SocketAddr,
        balancer: Option<IpAddr>,
    },
    Moved {
        owner: NodeName,
        local: SocketAddr,
        balancer: Option<IpAddr>,
    },
    Restarted {
        up: Duration,
    },
    NoDatagram {
        kind: Kind,
        times: u64,
    },
    NeverComes {
        kind: Kind,
        times: u64,
    },
}

impl Subject {
    pub(super) fn cause(&self) -> Cause {
        match self {
            Self::Crowd { .. } => Cause::LbSnatDetected,
            Self::Misrouted { .. } => Cause::AffinityLost,
            Self::Moved { .. } | Self::Restarted { .. } => Cause::PersistenceLost,
            Self::NoDatagram { .. } => Cause::UdpNeverArrives,
            Self::NeverComes { .. } => Cause::LaunchNeverArrives,
        }
    }

    /// What makes it the same trouble as another, whatever the numbers are by now.
    fn without_numbers(&self) -> Self {
        match self.clone() {
            Self::Crowd { client, .. } => Self::Crowd { client, users: 0 },
            Self::Restarted { .. } => Self::Restarted { up: Duration::ZERO },
            Self::NoDatagram { kind, .. } => Self::NoDatagram { kind, times: 0 },
            Self::NeverComes { kind, .. } => Self::NeverComes { kind, times: 0 },
            same @ (Self::Misrouted { .. } | Self::Moved { .. }) => same,
        }
    }

    fn words(&self, places: &Places) -> String {
        let node = &places.node;
        match self {
            Self::Crowd { client, users } => format!(
                "{users} users signed in from {client} within {} min. If that is a balancer, it replaces the clients' \
                 addresses: list it under listener.NAME.balancers and have it send the PROXY protocol. If the users are \
                 behind one NAT, affinity by address brings them all to one node: give each node an address or ports of \
                 its own (docs/load-balancers.md).",
                Crowds::WINDOW.as_secs() / 60
            ),
            Self::Misrouted {
                kind,
                owner,
                local,
                balancer,
            } => format!(
                "A valid grant of {owner} arrived at {node} on {local} {}: clients sign in at one node, and reach another \
                 one for {} on port {}. Give both ports one affinity table (docs/load-balancers.md).",
                From(*balancer),
                kind.words(),
                local.port()
            ),
            Self::Moved { owner, local, balancer } => format!(
                "A valid grant of {owner} arrived at {node} on {local} {}, where users sign in too: the balancer has no \
                 affinity by client, or an affinity for each of its ports, or it forgets it before the session is over \
                 (keep it for 90 min or more), or {owner} is out of service. See docs/load-balancers.md.",
                From(*balancer)
            ),
            Self::Restarted { up } => format!(
                "Clients come back with tokens that {node} issued and does not know: it was started {} ago, which ended \
                 the sessions before. Their users have to sign in again; quiesce before a restart.",
                Span(*up)
            ),
            Self::NoDatagram { kind, times } => {
                let port = places
                    .udp_port(*kind)
                    .map_or_else(String::new, |port| format!(" port {port}"));
                format!(
                    "No datagram came within {} of a {} connection over TCP, {times} times on end: clients fall back to TCP \
                     without a word, or show a black screen. Let UDP{port} and its replies through firewall and \
                     balancer, with the clients' addresses unchanged.",
                    Span(places.first_datagram),
                    kind.words(),
                )
            }
            Self::NeverComes { kind, times } => format!(
                "{} was announced {times} times on end and never came within {}: {} does not lead to {node}, or its port is \
                 closed. {}, or open the port.",
                capital(kind.words()),
                Span(places.first_use),
                places.told(*kind),
                places.remedy(*kind)
            ),
        }
    }
}

/// From where something came, in words.
struct From(Option<IpAddr>);

impl fmt::Display for From {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(balancer) => write!(f, "from balancer {balancer}"),
            None => f.write_str("from no listed balancer"),
        }
    }
}

/// A span in its largest unit that leaves something: `90 s`, `12 min`, `3 h`.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..=119 => write!(f, "{seconds} s"),
            seconds @ 120..=7199 => write!(f, "{} min", seconds / 60),
            seconds => write!(f, "{} h", seconds / 3600),
        }
    }
}

fn capital(words: &str) -> String {
    let mut chars = words.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The findings of this node: those that hold, and the latest of those that held.
#[derive(Debug, Default)]
pub(super) struct Book(Vec<Record>);

#[derive(Debug)]
struct Record {
    /// Without its numbers.
    subject: Subject,
    finding: Finding,
    /// It has come up, and nobody was told yet.
    is_fresh: bool,
}

impl Record {
    fn holds(&self, now: Instant) -> bool {
        self.finding.holds && now.saturating_duration_since(self.finding.last) <= Finding::AWAY
    }
}

impl Book {
    /// The most findings that are kept.
    pub(super) const MOST: usize = 64;

    /// It was seen, at `now`.
    pub(super) fn strike(&mut self, subject: &Subject, places: &Places, now: Instant) {
        let words = subject.words(places);
        let subject = subject.without_numbers();
        if let Some(record) = self.0.iter_mut().find(|record| record.subject == subject) {
            if !record.holds(now) {
                record.finding.since = now;
                record.finding.count = 0;
                record.is_fresh = true;
            }
            record.finding.holds = true;
            record.finding.last = now;
            record.finding.count += 1;
            record.finding.words = words;
            return;
        }
        if self.0.len() >= Self::MOST {
            let oldest = (0..self.0.len()).min_by_key(|place| {
                let record = &self.0[*place];
                (record.holds(now), record.finding.last)
            });
            oldest.map(|place| self.0.swap_remove(place));
        }
        self.0.push(Record {
            finding: Finding {
                cause: subject.cause(),
                since: now,
                last: now,
                count: 1,
                holds: true,
                words,
            },
            subject,
            is_fresh: true,
        });
    }

    /// Those of which the opposite was seen are over.
    pub(super) fn mended(&mut self, is: impl Fn(&Subject) -> bool) {
        for record in self.0.iter_mut().filter(|record| is(&record.subject)) {
            record.finding.holds = false;
        }
    }

    /// Those that have come up since the last call.
    pub(super) fn take_begun(&mut self, now: Instant) -> Vec<Finding> {
        let fresh = self.0.iter_mut().filter(|record| record.is_fresh);
        fresh
            .map(|record| {
                record.is_fresh = false;
                record.told(now)
            })
            .collect()
    }

    pub(super) fn list(&self, now: Instant) -> Vec<Finding> {
        let mut findings: Vec<_> = self.0.iter().map(|record| record.told(now)).collect();
        findings.sort_by_key(|finding| (finding.holds, finding.last));
        findings.reverse();
        findings
    }
}

impl Record {
    fn told(&self, now: Instant) -> Finding {
        Finding {
            holds: self.holds(now),
            ..self.finding.clone()
        }
    }
}

#[cfg(test)]
impl Book {
    pub(super) fn check_invariants(&self) {
        assert!(self.0.len() <= Self::MOST);
        for (place, record) in self.0.iter().enumerate() {
            assert!(record.finding.since <= record.finding.last && record.finding.count > 0);
            let again = self.0[place + 1..].iter().any(|other| other.subject == record.subject);
            assert!(!again, "one record a trouble");
        }
    }
}
