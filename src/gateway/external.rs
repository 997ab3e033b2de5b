//! Whether the external addresses that clients are told lead to this very node.
//!
//! The node asks each of them for the answer to a mark ([`crate::client::mark`]), as a client outside would: at start, after a
//! reload, again soon while something is wrong, and now and then. What it finds is kept as a [`Report`]; what changes is told
//! in one line of the log.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::Gateway;
use crate::client::Endpoint;
use crate::client::mark::{self, MarkFault};
use crate::clock;
use crate::config::Config;
use crate::types::Mark;

/// What was found about the external addresses when they were last asked; nothing before that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// One for each address that is configured.
    pub findings: Vec<Finding>,
}

/// What was found at one external address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The setting, such as `blast.external_url`.
    pub setting: &'static str,
    /// The address as clients are told it.
    pub address: String,
    /// When it was asked.
    pub asked: Timestamp,
    /// What was there.
    pub outcome: Outcome,
}

/// Who is at an external address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// This node.
    ThisNode,
    /// Another node, at least now and then.
    OtherNode,
    /// Something that is no gateway; with the cause.
    NoGateway(String),
    /// Nobody; with the cause.
    Nobody(String),
}

impl Outcome {
    /// Whether nothing speaks against the address.
    pub fn is_good(&self) -> bool {
        match self {
            Self::ThisNode => true,
            Self::OtherNode | Self::NoGateway(_) | Self::Nobody(_) => false,
        }
    }

    /// The code in logs and metrics.
    pub fn code(&self) -> &'static str {
        match self {
            Self::ThisNode => "this_node",
            Self::OtherNode => "other_node",
            Self::NoGateway(_) => "no_gateway",
            Self::Nobody(_) => "nobody",
        }
    }

    /// Whether a balancer that has not yet taken this node in would look the same.
    fn may_pass(&self) -> bool {
        matches!(self, Self::Nobody(_) | Self::NoGateway(_))
    }

    /// What to do about it; nothing if it is good.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::ThisNode => "",
            Self::OtherNode => {
                "Clients of this node are turned away there. Give it an address, or a port of the common one, that leads to \
                 this node alone"
            }
            Self::NoGateway(_) => "Check host and port, and what listens there",
            Self::Nobody(_) => {
                "Check name, port, balancer and firewall. If only the way back in from the inside is closed, look from \
                 outside instead: portcullis doctor"
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisNode => f.write_str("reaches this node"),
            Self::OtherNode => f.write_str("reaches another node"),
            Self::NoGateway(cause) => write!(f, "reaches no gateway ({cause})"),
            Self::Nobody(cause) => write!(f, "reaches nobody ({cause})"),
        }
    }
}

impl From<MarkFault> for Outcome {
    fn from(fault: MarkFault) -> Self {
        match fault {
            MarkFault::Foreign(cause) => Self::NoGateway(cause),
            MarkFault::Tls(_) => Self::NoGateway(fault.to_string()),
            MarkFault::Unresolved(_) | MarkFault::Connect(_) | MarkFault::TimedOut(_) => {
                Self::Nobody(fault.to_string())
            }
        }
    }
}

/// The last report, and the wish for another one.
#[derive(Debug, Default)]
pub(super) struct External {
    report: ArcSwap<Report>,
    changed: Notify,
}

impl External {
    /// The configuration has changed.
    pub(super) fn ask_again(&self) {
        self.changed.notify_one();
    }
}

impl Gateway {
    /// What was found about the external addresses when they were last asked.
    pub fn external(&self) -> Arc<Report> {
        self.external.report.load_full()
    }

    /// Asks the external addresses, for as long as it is polled. Cancel-safe.
    pub async fn watch_external(self: Arc<Self>) {
        let mut told = Told::default();
        let mut attempt = 0;
        loop {
            let findings = self.ask_external().await;
            if !findings.is_empty() && findings.iter().all(|finding| finding.outcome.is_good()) {
                tracing::debug!(addresses = findings.len(), "external addresses reach this node");
            }
            let pause = match SOON.get(attempt) {
                _ if findings.iter().all(|finding| finding.outcome.is_good()) => SELDOM,
                Some(soon) => *soon,
                None => OFTEN,
            };
            for finding in &findings {
                told.tell(finding, attempt >= SOON.len());
            }
            self.external.report.store(Arc::new(Report { findings }));
            tokio::select! {
                () = sleep(pause) => attempt = (attempt + 1).min(SOON.len()),
                () = self.external.changed.notified() => {
                    told = Told::default();
                    attempt = 0;
                }
            }
        }
    }

    async fn ask_external(&self) -> Vec<Finding> {
        let plan = self.plan.load_full();
        let mut findings = Vec::new();
        for question in questions(&plan.config) {
            let outcome = match question.endpoint.parse() {
                Ok(endpoint) => self.ask(question.kind, &endpoint).await,
                Err(_) => Outcome::Nobody("not an address".to_owned()),
            };
            findings.push(Finding {
                setting: question.setting,
                address: question.shown,
                asked: clock::wall(),
                outcome,
            });
        }
        findings
    }

    /// Several times, because an address that a balancer spreads over the fleet reaches this node now and then.
    async fn ask(&self, kind: Asked, endpoint: &Endpoint) -> Outcome {
        for _ in 0..ASKS {
            let mark = Mark::from_random(uuid::Uuid::new_v4().as_u128());
            let own = self.mark_key.answer(mark);
            let is_this_node = match kind {
                Asked::ByRequest => mark::ask(endpoint, mark, DEADLINE)
                    .await
                    .map(|answered| answered.answer == own),
                Asked::ByName => mark::ask_by_name(endpoint, mark.name(own), DEADLINE).await,
            };
            match is_this_node {
                Ok(true) => {}
                Ok(false) => return Outcome::OtherNode,
                Err(fault) => return fault.into(),
            }
        }
        Outcome::ThisNode
    }
}

/// The faults that the log has told, by setting.
#[derive(Debug, Default)]
struct Told(BTreeMap<&'static str, &'static str>);

impl Told {
    /// Tells what is new. What may pass by itself is told only when there was `patience` with it.
    fn tell(&mut self, finding: &Finding, patience: bool) {
        let Finding {
            setting,
            address,
            outcome,
            ..
        } = finding;
        if outcome.is_good() {
            if self.0.remove(setting).is_some() {
                tracing::info!(setting, outcome = outcome.code(), "{setting} {address} now {outcome}");
            }
        } else if (patience || !outcome.may_pass()) && self.0.insert(setting, outcome.code()) != Some(outcome.code()) {
            let remedy = outcome.remedy();
            tracing::warn!(
                setting,
                outcome = outcome.code(),
                "{setting} {address} {outcome}. {remedy}."
            );
        }
    }
}

/// One external address, and what can be asked there.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    setting: &'static str,
    shown: String,
    endpoint: String,
    kind: Asked,
}

/// How the mark is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// By a request.
    ByRequest,
    /// By the name in the first message of TLS: the port of PCoIP takes no requests.
    ByName,
}

fn questions(config: &Config) -> Vec<Question> {
    let tunnel = config.tunnel.external_url.as_ref().map(|url| Question {
        setting: "tunnel.external_url",
        shown: url.clone(),
        endpoint: url.trim_start_matches("https://").to_owned(),
        kind: Asked::ByRequest,
    });
    let blast = config.blast.external_url.as_ref().map(|url| {
        let endpoint = if url.host.contains(':') {
            format!("[{}]:{}", url.host, url.port)
        } else {
            format!("{}:{}", url.host, url.port)
        };
        Question {
            setting: "blast.external_url",
            shown: format!("https://{endpoint}"),
            endpoint,
            kind: Asked::ByRequest,
        }
    });
    let served = !config.pcoip.bind.is_empty();
    let pcoip = config
        .pcoip
        .external_address
        .filter(|_| served)
        .map(|address| Question {
            setting: "pcoip.external_address",
            shown: address.to_string(),
            endpoint: address.to_string(),
            kind: Asked::ByName,
        });
    [tunnel, blast, pcoip].into_iter().flatten().collect()
}

/// For one question: name, connection, TLS and reply together.
const DEADLINE: Duration = Duration::from_secs(5);
const ASKS: usize = 3;
/// While something is wrong, these pauses come first: a balancer takes a node in after some checks of its own.
const SOON: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(6)];
const OFTEN: Duration = Duration::from_secs(60);
const SELDOM: Duration = Duration::from_secs(600);
