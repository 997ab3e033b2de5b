//! What the node itself says.

use std::fmt::Write as _;

use http::Method;
use serde::Serialize;

use crate::admin::api::{External, ExternalList, Finding, FindingList, NodeStatus, RefusalCount, RefusalList};
use crate::cli::api::{self, CallFault, NodeArguments, call};
use crate::cli::term::{Ink, Term};
use crate::cli::{Exit, explain, print};

/// All that the node says, as one document.
#[derive(Debug, Serialize)]
struct Said {
    node: NodeStatus,
    external: Vec<External>,
    findings: Vec<Finding>,
    refusals: Vec<RefusalCount>,
}

pub(super) fn run(node: &NodeArguments, json: bool, term: Term) -> Exit {
    let said = match api::wait(ask(node)) {
        Ok(said) => said,
        Err(fault) => {
            explain(&format!("{fault}\n"));
            return fault.exit();
        }
    };
    let holding = said.findings.iter().filter(|finding| finding.holds).count()
        + said.external.iter().filter(|address| !address.good).count();
    let exit = if holding == 0 { Exit::Done } else { Exit::Failed };
    if json {
        return print(&api::document("doctor", &said), exit);
    }
    let exit = print(&term.shown(&words(&said, term)), exit);
    explain(&match holding {
        0 => "Nothing is found wrong around the node.\n".to_owned(),
        1 => "1 finding holds.\n".to_owned(),
        many => format!("{many} findings hold.\n"),
    });
    exit
}

async fn ask(node: &NodeArguments) -> Result<Said, CallFault> {
    let nothing = None::<&()>;
    Ok(Said {
        node: call(node, Method::GET, "/api/v1/node", nothing).await?,
        external: call::<ExternalList>(node, Method::GET, "/api/v1/external", nothing)
            .await?
            .external,
        findings: call::<FindingList>(node, Method::GET, "/api/v1/findings", nothing)
            .await?
            .findings,
        refusals: call::<RefusalList>(node, Method::GET, "/api/v1/refusals", nothing)
            .await?
            .refusals,
    })
}

fn words(said: &Said, term: Term) -> String {
    let mut text = String::new();
    let NodeStatus {
        name, state, health, ..
    } = &said.node;
    let (ink, mark) = if *health == 200 {
        (Ink::Good, "ok")
    } else {
        (Ink::Warn, "warn")
    };
    let mark = term.paint(ink, &format!("{mark:<4}"));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{mark}  {name} is {state}, health {health}");
    for external in &said.external {
        let (ink, mark) = if external.good {
            (Ink::Good, "ok")
        } else {
            (Ink::Bad, "FAIL")
        };
        let mark = term.paint(ink, &format!("{mark:<4}"));
        let External {
            setting,
            address,
            words,
            remedy,
            ..
        } = external;
        let _ = writeln!(text, "{mark}  {setting} {address} {words}");
        if !remedy.is_empty() {
            let _ = writeln!(text, "      {remedy}.");
        }
    }
    for finding in &said.findings {
        let (ink, mark, since) = if finding.holds {
            (Ink::Bad, "FAIL", format!("since {}", finding.since))
        } else {
            (Ink::Dim, "was", format!("until {}", finding.last))
        };
        let mark = term.paint(ink, &format!("{mark:<4}"));
        let times = if finding.count == 1 {
            "once".to_owned()
        } else {
            format!("{} times", finding.count)
        };
        let _ = writeln!(
            text,
            "{mark}  {} {times} {since}\n      {}",
            finding.code, finding.words
        );
    }
    if !said.refusals.is_empty() {
        text.push_str("\nTurned away since the start:\n");
    }
    for refusal in &said.refusals {
        let RefusalCount {
            reason,
            secondary,
            count,
            words,
        } = refusal;
        let _ = writeln!(text, "{count:>8}  {secondary:<7} {reason:<18} {words}");
    }
    text
}
