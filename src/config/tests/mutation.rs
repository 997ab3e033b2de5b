//! Mutations: whatever is done to a configuration, the answer is a fault at the right place, and never a panic.

use proptest::prelude::*;
use toml::{Table, Value};

use super::reference::all_on;
use super::*;
use crate::config::{Fault, SettingPath};

/// What is done to one setting.
#[derive(Clone, Debug)]
enum Mutation {
    Remove,
    Rename,
    Retype(Value),
}

fn mutations() -> Vec<Mutation> {
    let values = [
        Value::String("strange".to_owned()),
        Value::String(String::new()),
        Value::Integer(-1),
        Value::Integer(i64::MAX),
        Value::Float(f64::NAN),
        Value::Boolean(true),
        Value::Datetime("1979-05-27T07:32:00Z".parse().unwrap()),
        Value::Array(vec![Value::Integer(1), Value::Array(Vec::new())]),
        Value::Table(Table::from_iter([("strange".to_owned(), Value::Integer(1))])),
    ];
    let retypes = values.into_iter().map(Mutation::Retype);
    [Mutation::Remove, Mutation::Rename]
        .into_iter()
        .chain(retypes)
        .collect()
}

/// Every table and setting of a document.
fn paths(table: &Table, above: &[String], found: &mut Vec<Vec<String>>) {
    for (key, value) in table {
        let path: Vec<String> = above.iter().cloned().chain([key.clone()]).collect();
        if let Value::Table(inner) = value {
            paths(inner, &path, found);
        }
        found.push(path);
    }
}

fn apply(mutation: &Mutation, root: &mut Table, path: &[String]) -> SettingPath {
    let (last, before) = path.split_last().unwrap();
    let table = before
        .iter()
        .fold(root, |table, key| table[key].as_table_mut().unwrap());
    let mut named: Vec<&str> = path.iter().map(String::as_str).collect();
    let renamed = format!("{last}_x");
    match mutation {
        Mutation::Remove => drop(table.remove(last)),
        Mutation::Rename => {
            let value = table.remove(last).unwrap();
            table.insert(renamed.clone(), value);
            *named.last_mut().unwrap() = &renamed;
        }
        Mutation::Retype(value) => drop(table.insert(last.clone(), value.clone())),
    }
    SettingPath::of(&named)
}

/// Whether a fault speaks of the setting: it stands there, in it or just around it, or its words name it.
fn speaks_of(fault: &Fault, mutated: &SettingPath, key: &str) -> bool {
    let around = mutated.parent().unwrap();
    fault.path.is_within(mutated) || fault.path == around || fault.words().contains(key)
}

#[test]
fn every_mutation_of_the_reference_is_named_or_harmless() {
    let whole: Table = toml::from_str(&all_on()).unwrap();
    let mut all = Vec::new();
    paths(&whole, &[], &mut all);
    assert!(all.len() > 60);
    for path in &all {
        for mutation in mutations() {
            let mut root = whole.clone();
            let mutated = apply(&mutation, &mut root, path);
            if let Err(faults) = checked(&toml::to_string(&root).unwrap()) {
                let key = path.last().unwrap();
                assert!(
                    faults.iter().any(|fault| speaks_of(fault, &mutated, key)),
                    "{mutated} after {mutation:?}:\n{faults}"
                );
                let foreseen = faults.iter().all(|fault| fault.problem != Problem::Unforeseen);
                assert!(foreseen, "{mutated} after {mutation:?}:\n{faults}");
            }
        }
    }
}

#[test]
fn deep_and_wide_texts_are_refused_without_harm() {
    let deep = format!("{SMALL}x = {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(checked(&deep).is_err());
    let dotted = format!("{SMALL}{}x = 1", "a.".repeat(100_000));
    assert!(checked(&dotted).is_err());
    let key = format!("{SMALL}{} = 1", "k".repeat(900_000));
    assert!(checked(&key).unwrap_err().to_string().len() < 1_000_000);
}

/// Pieces from which nearly-TOML is made.
fn piece() -> impl Strategy<Value = String> {
    let known = [
        "[node]",
        "[listener.public]",
        "[[listener]]",
        "[certificate.main]",
        "[directory.user.ann]",
        "[directory]",
        "[directory.desktop.a]",
        "[session]",
        "[",
        "]",
        "{",
        "}",
        "=",
        ".",
        ",",
        "\"",
        "'''",
        "\n",
        "\r\n",
        "#",
        "name",
        "bind",
        "user.x.groups",
        "password_hash",
        "recognition_key",
        "protocols",
        "rdp",
        "idle",
        "\"10 h\"",
        "\"120\"",
        "= { file = \"/x\" }",
        "= 5",
        "= -0x5",
        "= 1e999",
        "= nan",
        "= [\"0.0.0.0:443\", 5]",
        "= 1979-05-27",
        "\u{0}",
        "groups = [\"a\\u0007\"]",
        "groups = [\"b\\u0007\"]",
        "é",
        "\u{202e}",
        "= \"$argon2id$v=19$m=8,t=1,p=1$c2FsdHNhbHQ$aGFzaA\"",
    ];
    proptest::sample::select(known.to_vec()).prop_map(str::to_owned)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_text_never_panics(text in ".{0,400}") {
        let _ = checked(&text);
    }

    #[test]
    fn nearly_toml_never_panics(pieces in proptest::collection::vec(piece(), 0..60), glue in "[ \n]?") {
        let faults = match checked(&pieces.join(&glue)) {
            Ok((_, faults)) | Err(faults) => faults,
        };
        let all = faults.to_string();
        prop_assert!(all.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", all);
    }

    #[test]
    fn a_torn_reference_never_panics(from in 0usize..8_000, length in 0usize..200, insert in ".{0,8}") {
        let whole: Vec<char> = all_on().chars().collect();
        let from = from.min(whole.len());
        let to = (from + length).min(whole.len());
        let torn: String = whole[..from].iter().copied().chain(insert.chars()).chain(whole[to..].iter().copied()).collect();
        let _ = checked(&torn);
    }
}
