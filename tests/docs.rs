//! What the documents promise: their configuration parses, their commands exist, and every reason has its line.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use portcullis::config::environment::{Contents, Environment};
use portcullis::fault::{CloseReason, Refusal, WebFault};
use portcullis::observe::Cause;
use zeroize::Zeroizing;

/// A world in which every file exists: secrets are password hashes, and only their owner may read them.
struct EveryFileExists;

impl Environment for EveryFileExists {
    fn variable(&self, _name: &str) -> Option<Zeroizing<String>> {
        None
    }

    fn read(&self, _path: &Path, _limit: u64) -> io::Result<Contents> {
        let hash = "$argon2id$v=19$m=19456,t=2,p=1$cG9ydGN1bGxpcy1zYWx0$h1gvFaspW1nL7eoKOHdjtJ/yblQQuvpl1qRMO2GWaVI";
        Ok(Contents {
            bytes: Zeroizing::new(hash.as_bytes().to_vec()),
            mode: 0o600,
        })
    }
}

#[test]
fn the_first_configuration_of_the_readme_is_sound() {
    let readme = fs::read_to_string("README.md").unwrap();
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let (config, warnings) = portcullis::config::parse(text, Path::new("gw.toml"), &EveryFileExists)
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(config.directory.desktops.len(), 1);
}

#[test]
fn every_step_of_publishing_is_sound() {
    let text = fs::read_to_string("docs/publishing.md").unwrap();
    let snippets: Vec<&str> = text
        .split("```toml\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert!(snippets.len() > 8, "the document shows configurations");
    let least: toml::Table = toml::from_str(snippets[0]).unwrap();
    for snippet in &snippets {
        let mut whole = least.clone();
        add(&mut whole, toml::from_str(snippet).unwrap());
        let whole = toml::to_string(&whole).unwrap();
        let (config, warnings) = portcullis::config::parse(&whole, Path::new("gw.toml"), &EveryFileExists)
            .unwrap_or_else(|faults| panic!("{snippet}\n{faults}"));
        assert!(warnings.is_empty(), "{snippet}\n{warnings}");
        assert!(config.web.rules.contains_key("shop"));
    }
}

#[test]
fn the_inventory_of_the_upgrades_is_sound() {
    let text = fs::read_to_string("docs/upgrades.md").unwrap();
    let (_, rest) = text.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let (inventory, warnings) = portcullis::config::inventory::parse(text, Path::new("fleet.toml"), &EveryFileExists)
        .unwrap_or_else(|faults| panic!("{faults}"));
    assert!(warnings.is_empty(), "{warnings}");
    assert_eq!(inventory.nodes.len(), 2);
}

/// Adds settings to a table: tables grow together, everything else is replaced.
fn add(table: &mut toml::Table, more: toml::Table) {
    for (key, value) in more {
        match (table.get_mut(&key), value) {
            (Some(toml::Value::Table(inner)), toml::Value::Table(more)) => add(inner, more),
            (_, value) => drop(table.insert(key, value)),
        }
    }
}

#[test]
fn every_fault_of_the_web_has_its_line_with_its_status() {
    let publishing = fs::read_to_string("docs/publishing.md").unwrap();
    for fault in WebFault::ALL {
        let line = format!("| `{}` | {} |", fault.code(), fault.status().as_u16());
        assert!(publishing.contains(&line), "docs/publishing.md lacks: {line}");
    }
}

#[test]
fn every_reason_has_its_line_for_operators() {
    let operations = fs::read_to_string("docs/operations.md").unwrap();
    let closes = CloseReason::ALL.into_iter().map(CloseReason::code);
    let refusals = Refusal::ALL.map(Refusal::code);
    for code in closes.chain(refusals).chain(Cause::ALL.map(Cause::code)) {
        let in_a_table = operations
            .lines()
            .any(|line| line.starts_with('|') && line.contains(&format!("`{code}`")));
        assert!(in_a_table, "{code} has no line in docs/operations.md");
    }
}

/// Whether a command really works is asserted where its subject is tested; here it must exist, with all its options.
#[test]
fn every_command_in_the_documents_exists() {
    let mut commands = 0;
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("portcullis ")) {
            let line = line.split(" #").next().unwrap_or_default();
            let words: Vec<_> = line.split_whitespace().collect();
            let verbs = words
                .iter()
                .take_while(|word| word.chars().all(|c| c.is_ascii_lowercase() || c == '-'))
                .take(2);
            let verbs: Vec<_> = verbs.filter(|word| !word.starts_with("--")).collect();
            let mut help = Command::new(env!("CARGO_BIN_EXE_portcullis"));
            // `quiesce on`: the second word is an argument, which help names as a possible value.
            let nouns = if verbs
                .first()
                .is_some_and(|noun| matches!(**noun, "sessions" | "token" | "fleet"))
            {
                2
            } else {
                1
            };
            let output = help.args(verbs.iter().take(nouns)).arg("--help").output().unwrap();
            let known = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success(), "{}: portcullis {line}", file.display());
            for option in words.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
                assert!(
                    known.contains(*option),
                    "{}: portcullis {line}: no {option}",
                    file.display()
                );
            }
            commands += 1;
        }
    }
    assert!(commands > 5, "the documents show commands");
}

#[test]
fn every_link_between_the_documents_leads_somewhere() {
    for file in documents() {
        let text = fs::read_to_string(&file).unwrap();
        let folder = file.parent().unwrap();
        for link in text.match_indices("](").map(|(at, _)| &text[at + 2..]) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            let inside = !target.is_empty() && !target.contains("://");
            assert!(!inside || folder.join(target).exists(), "{}: {target}", file.display());
        }
    }
}

fn documents() -> Vec<std::path::PathBuf> {
    let mut files = vec!["README.md".into()];
    for folder in ["docs", "docs/decisions"] {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    files
}
