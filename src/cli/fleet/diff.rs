//! `fleet diff`: in what the nodes differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::Args;
use futures_util::future::join_all;
use serde::Serialize;

use super::Fleet;
use super::member::{Member, MemberFault};
use super::status::exit_of;
use crate::cli::{Exit, api, explain, print};
use crate::config::is_of_one_node;

/// In which version and which settings the nodes differ
///
/// Compared are the settings in force, as they are written: a default that is written out differs from one that is not.
/// Not compared is what each node has for itself (its name, its folders, addresses, [certificate] and [fleet]), what files
/// hold that settings name, and secrets.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis fleet diff --inventory fleet.toml
  portcullis fleet diff --inventory fleet.toml --json

Exit codes: 0 no difference, 3 differences, 4 a node does not answer, 5 one
  refuses the token.")]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) fleet: Fleet,
}

/// Runs the command.
pub(super) async fn run(arguments: &Arguments, members: &[Member]) -> Exit {
    let asked = join_all(members.iter().map(settings)).await;
    let mut nodes = Vec::new();
    for (member, outcome) in members.iter().zip(&asked) {
        match outcome {
            Ok(settings) => nodes.push((member.name.as_str(), settings)),
            Err(fault) => explain(&format!("{}: {fault}\n", member.name)),
        }
    }
    let found = Found {
        differences: differences(&nodes),
    };
    let mut exit = exit_of(&asked);
    if exit == Exit::Done && !found.differences.is_empty() {
        exit = Exit::Invalid;
    }
    if arguments.fleet.json {
        return print(&api::document("fleet-diff", &found), exit);
    }
    let exit = print(&words(&found.differences), exit);
    let count = match found.differences.len() {
        0 => "No difference".to_owned(),
        1 => "1 difference".to_owned(),
        many => format!("{many} differences"),
    };
    explain(&format!(
        "{count} between {} nodes. Not compared: names, folders, addresses, certificates, files and secrets.\n",
        nodes.len()
    ));
    exit
}

/// What is compared of a node. One of an earlier version tells only what it tells.
async fn settings(member: &Member) -> Result<BTreeMap<String, String>, MemberFault> {
    let status = member.status().await?;
    let mut settings = match member.configuration().await {
        Ok(told) => told.settings,
        Err(fault) if fault.is_unknown_call() => {
            BTreeMap::from([("configuration".to_owned(), "not told by this version".to_owned())])
        }
        Err(fault) => return Err(fault),
    };
    settings.retain(|path, _| !is_of_one_node(path));
    // No setting has this name: settings stand in tables.
    settings.insert("version".to_owned(), status.version);
    Ok(settings)
}

#[derive(Serialize)]
struct Found {
    differences: Vec<Difference>,
}

/// A setting that is not the same on all nodes.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    setting: String,
    values: Vec<Value>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Value {
    /// `None`: it is not written there.
    value: Option<String>,
    nodes: Vec<String>,
}

fn differences(nodes: &[(&str, &BTreeMap<String, String>)]) -> Vec<Difference> {
    let paths: BTreeSet<_> = nodes.iter().flat_map(|(_, settings)| settings.keys()).collect();
    let mut differences = Vec::new();
    for path in paths {
        let mut values: Vec<Value> = Vec::new();
        for (name, settings) in nodes {
            let value = settings.get(path);
            match values.iter_mut().find(|known| known.value.as_ref() == value) {
                Some(known) => known.nodes.push((*name).to_owned()),
                None => values.push(Value {
                    value: value.cloned(),
                    nodes: vec![(*name).to_owned()],
                }),
            }
        }
        if values.len() > 1 {
            let setting = path.clone();
            differences.push(Difference { setting, values });
        }
    }
    differences
}

fn words(differences: &[Difference]) -> String {
    let mut text = String::new();
    for Difference { setting, values } in differences {
        let shown = |value: &Value| value.value.clone().unwrap_or_else(|| "(not written)".to_owned());
        let width = values
            .iter()
            .map(|value| shown(value).chars().count())
            .max()
            .unwrap_or(0);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{setting}");
        for value in values {
            let _ = writeln!(text, "  {:width$}  {}", shown(value), value.nodes.join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_told_with_who_has_what() {
        let of = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let pairs = pairs.iter();
            pairs
                .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
                .collect()
        };
        let one = of(&[("version", "0.2.0"), ("limits.connections", "10000")]);
        let two = of(&[("version", "0.2.0"), ("session.max", "5")]);
        assert_eq!(differences(&[("gw-1", &one), ("gw-2", &one)]), []);
        let found = differences(&[("gw-1", &one), ("gw-2", &two), ("gw-3", &one)]);
        assert_eq!(
            words(&found),
            "limits.connections\n  10000          gw-1, gw-3\n  (not written)  gw-2\n\
             session.max\n  (not written)  gw-1, gw-3\n  5              gw-2\n"
        );
    }
}
