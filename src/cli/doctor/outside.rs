//! What clients see: the gate line as far as it is passed without a password.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use http::StatusCode;
use serde::Serialize;

use super::Arguments;
use crate::cli::api;
use crate::cli::term::{Ink, Term};
use crate::cli::{Exit, explain, print};
use crate::client::probe::{self, Front};
use crate::client::{DialCause, Endpoint, Trust, mark};
use crate::clock;
use crate::types::{Mark, MarkAnswer, Step};

pub(super) fn run(arguments: &Arguments, term: Term) -> Exit {
    let trust = match arguments.node.ca.as_deref().map(Trust::authorities).transpose() {
        Ok(trust) => trust.unwrap_or_else(|| Trust::system(None)),
        Err(fault) => {
            explain(&format!("{fault}.\n"));
            return Exit::Failed;
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(fault) => {
            explain(&format!("Cannot begin: {fault}.\n"));
            return Exit::Failed;
        }
    };
    let walk = Walk {
        addresses: &arguments.addresses,
        trust,
        connections: arguments.connections,
    };
    let found = runtime.block_on(walk.go());
    let exit = found.exit();
    if arguments.json {
        return print(&api::document("doctor", &found), exit);
    }
    let exit = print(&term.shown(&found.words(term)), exit);
    explain(&found.verdict());
    exit
}

/// All that was found, step by step.
#[derive(Debug, Serialize)]
struct Found {
    steps: Vec<Line>,
}

/// What was found at one step.
#[derive(Debug, Serialize)]
struct Line {
    #[serde(serialize_with = "code")]
    step: Step,
    outcome: Outcome,
    words: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Outcome {
    Ok,
    Warn,
    Fail,
    /// It was not looked at.
    Skip,
}

fn code<S: serde::Serializer>(step: &Step, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(step.code())
}

impl Line {
    fn ok(step: Step, words: String) -> Self {
        Self {
            step,
            outcome: Outcome::Ok,
            words,
            remedy: None,
        }
    }

    fn fail(step: Step, words: String, remedy: &'static str) -> Self {
        Self {
            step,
            outcome: Outcome::Fail,
            words,
            remedy: Some(remedy),
        }
    }

    fn skip(step: Step, words: &str) -> Self {
        Self {
            step,
            outcome: Outcome::Skip,
            words: words.to_owned(),
            remedy: None,
        }
    }
}

impl Found {
    fn exit(&self) -> Exit {
        let unreachable = |line: &Line| line.step == Step::Secure && line.outcome == Outcome::Skip;
        if self.steps.iter().any(unreachable) {
            Exit::Unreachable
        } else if self.failed() > 0 {
            Exit::Failed
        } else {
            Exit::Done
        }
    }

    fn failed(&self) -> usize {
        self.steps.iter().filter(|line| line.outcome == Outcome::Fail).count()
    }

    fn words(&self, term: Term) -> String {
        let mut text = String::new();
        for line in &self.steps {
            let (ink, mark) = match line.outcome {
                Outcome::Ok => (Ink::Good, "ok"),
                Outcome::Warn => (Ink::Warn, "warn"),
                Outcome::Fail => (Ink::Bad, "FAIL"),
                Outcome::Skip => (Ink::Dim, "skip"),
            };
            let mark = term.paint(ink, &format!("{mark:<4}"));
            let (number, label) = (line.step.number(), line.step.label());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{mark}  {number} {label:<8} {}", line.words);
            if let Some(remedy) = line.remedy {
                let _ = writeln!(text, "      {remedy}");
            }
        }
        text
    }

    fn verdict(&self) -> String {
        let walked = self.steps.iter().filter(|line| line.outcome != Outcome::Skip).count();
        match self.failed() {
            0 => "Every step held. The others need a sign-in: portcullis connect\n".to_owned(),
            failed => format!(
                "{failed} of {walked} {} failed.\n",
                if walked == 1 { "step" } else { "steps" }
            ),
        }
    }
}

/// The way to a gateway at these addresses.
struct Walk<'a> {
    addresses: &'a [Endpoint],
    trust: Trust,
    connections: u16,
}

impl Walk<'_> {
    async fn go(&self) -> Found {
        let (open, listen) = self.listen().await;
        if open.is_empty() {
            let skipped = [Step::Secure, Step::Route, Step::Grant, Step::Tunnel];
            let mut steps = vec![listen];
            steps.extend(skipped.map(|step| Line::skip(step, "not reached")));
            return Found { steps };
        }
        let secure = self.secure(&open).await;
        let (route, fronts) = route(&open).await;
        let grant = self.grant(&open).await;
        let tunnel = tunnel(&fronts).await;
        Found {
            steps: vec![listen, secure, route, grant, tunnel],
        }
    }

    async fn listen(&self) -> (Vec<&Endpoint>, Line) {
        let (mut open, mut closed) = (Vec::new(), Vec::new());
        for address in self.addresses {
            match probe::knock(address, LIMIT).await {
                Ok(()) => open.push(address),
                Err(fault) => closed.push(format!("{}: {}", named(address), reason(&fault))),
            }
        }
        let line = if closed.is_empty() {
            Line::ok(Step::Listen, listed(&open))
        } else {
            Line::fail(
                Step::Listen,
                closed.join("; "),
                "Check name, port, balancer and firewall, and that a node behind it is in service.",
            )
        };
        (open, line)
    }

    async fn secure(&self, open: &[&Endpoint]) -> Line {
        let mut agreed = Vec::new();
        let mut soonest: Option<i64> = None;
        for address in open {
            match probe::secure(address, &self.trust).await {
                Ok((facts, expires)) => {
                    agreed.push(facts.version);
                    let left = expires.map(|expires| (expires.as_second() - clock::wall().as_second()).div_euclid(DAY));
                    soonest = [soonest, left].into_iter().flatten().min();
                }
                Err(fault) => {
                    let remedy = match &fault.cause {
                        DialCause::Certificate(_) => {
                            "Serve the whole chain for this name; with a private authority, give it with --ca."
                        }
                        DialCause::Connect(_)
                        | DialCause::TimedOut
                        | DialCause::Handshake(_)
                        | DialCause::Known(_)
                        | DialCause::Address(_)
                        | DialCause::Setup(_) => "Check that this port is a gateway's, and that TLS reaches it.",
                    };
                    return Line::fail(Step::Secure, first_line(&fault.to_string()), remedy);
                }
            }
        }
        agreed.dedup();
        let versions = agreed.join(" and ");
        let Some(days) = soonest else {
            return Line::ok(Step::Secure, format!("{versions}, chain complete"));
        };
        let days_left = if days == 1 { "1 day" } else { &format!("{days} days") };
        let mut line = Line::ok(Step::Secure, format!("{versions}, chain complete, {days_left} left"));
        if days < SOON {
            line.outcome = Outcome::Warn;
            line.remedy = Some("Renew the certificate; SIGHUP takes it into service.");
        }
        line
    }

    async fn grant(&self, open: &[&Endpoint]) -> Line {
        let mark = Mark::from_random(uuid::Uuid::new_v4().as_u128());
        let mut first: Option<(MarkAnswer, &Endpoint)> = None;
        for address in open {
            let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
            let mut elsewhere = 0_usize;
            for _ in 0..self.connections {
                let answer = match mark::ask(address, mark, LIMIT).await {
                    Ok(answered) => answered.answer,
                    Err(fault) => {
                        return Line::fail(
                            Step::Grant,
                            format!("{}: {fault}", named(address)),
                            "Check what listens there.",
                        );
                    }
                };
                *nodes.entry(answer.to_string()).or_default() += 1;
                let (expected, _) = *first.get_or_insert((answer, address));
                elsewhere += usize::from(answer != expected);
            }
            let all = self.connections;
            if nodes.len() > 1 {
                let words = format!(
                    "{}: {} nodes in {all} connections of one client",
                    named(address),
                    nodes.len()
                );
                return Line::fail(
                    Step::Grant,
                    words,
                    "Have the balancer keep a client at one node (docs/load-balancers.md, \"Affinity\").",
                );
            }
            if let Some((_, first)) = first.filter(|_| elsewhere > 0) {
                let words = format!("{} leads to another node than {}", named(address), named(first));
                return Line::fail(
                    Step::Grant,
                    words,
                    "Give both ports one affinity table (docs/load-balancers.md, \"Affinity\").",
                );
            }
        }
        let addresses = if open.len() == 1 {
            "one node".to_owned()
        } else {
            format!("one node behind {} addresses", open.len())
        };
        Line::ok(
            Step::Grant,
            format!("{addresses}, {} connections each", self.connections),
        )
    }
}

async fn route<'a>(open: &[&'a Endpoint]) -> (Line, Vec<(&'a Endpoint, Front)>) {
    let mut fronts = Vec::new();
    for address in open {
        match probe::front(address, LIMIT).await {
            Ok(front) => fronts.push((*address, front)),
            Err(fault) => {
                let words = format!("{}: {fault}", named(address));
                return (Line::fail(Step::Route, words, "Check what listens there."), fronts);
            }
        }
    }
    let bad = fronts.iter().find(|(_, front)| front.health != StatusCode::OK);
    let line = match bad {
        None => Line::ok(Step::Route, "/favicon.ico answers 200: in service".to_owned()),
        Some((address, front)) => {
            let out_of_service = front.health == StatusCode::SERVICE_UNAVAILABLE;
            let words = format!(
                "{}: /favicon.ico answers {}: {}",
                named(address),
                front.health.as_u16(),
                if out_of_service { "out of service" } else { "no gateway" }
            );
            let remedy = if out_of_service {
                "The node is quiesced or drains: a balancer that checks /favicon.ico sends nobody there."
            } else {
                "Check what listens there."
            };
            Line::fail(Step::Route, words, remedy)
        }
    };
    (line, fronts)
}

/// Whether the ports on which HTTP/3 is offered answer.
async fn tunnel(fronts: &[(&Endpoint, Front)]) -> Line {
    let mut ports: Vec<(&Endpoint, u16)> = Vec::new();
    for (address, port) in fronts
        .iter()
        .filter_map(|(address, front)| Some((*address, front.quic?)))
    {
        if !ports
            .iter()
            .any(|(known, of)| (known.host(), *of) == (address.host(), port))
        {
            ports.push((address, port));
        }
    }
    if ports.is_empty() {
        return Line::skip(Step::Tunnel, "no HTTP/3 is offered: UDP not looked at");
    }
    for (address, port) in &ports {
        let words = match probe::answers_quic(address, *port).await {
            Ok(true) => continue,
            Ok(false) => format!(
                "UDP {}:{port} does not answer, though HTTP/3 is offered",
                address.host()
            ),
            Err(fault) => format!("UDP {}:{port}: {}", address.host(), reason(&fault)),
        };
        return Line::fail(
            Step::Tunnel,
            words,
            "Let this UDP port and its replies through firewall and balancer (docs/load-balancers.md, \"UDP\").",
        );
    }
    let ports: Vec<_> = ports.iter().map(|(_, port)| port.to_string()).collect();
    Line::ok(Step::Tunnel, format!("UDP {} answers QUIC", ports.join(", ")))
}

/// The address with its port, also if that is the usual one.
fn named(address: &Endpoint) -> String {
    if address.host().contains(':') {
        format!("[{}]:{}", address.host(), address.port())
    } else {
        format!("{}:{}", address.host(), address.port())
    }
}

fn listed(addresses: &[&Endpoint]) -> String {
    let names: Vec<_> = addresses.iter().map(|address| named(address)).collect();
    names.join(", ")
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// The system's words without its number.
fn reason(fault: &std::io::Error) -> String {
    let words = fault.to_string();
    let words = words.split(" (os error").next().unwrap_or_default();
    words.to_lowercase()
}

/// For one question to one address.
const LIMIT: Duration = Duration::from_secs(5);
const DAY: i64 = 24 * 3600;
/// Days left of a certificate that are few.
const SOON: i64 = 14;
