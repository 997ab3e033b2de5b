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

/// A step from a table or list to what is in it.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Place(usize),
}

/// Every table and setting of a document, and every table in a list.
fn paths(value: &Value, above: &[Step], found: &mut Vec<Vec<Step>>) {
    let inner: Vec<(Step, &Value)> = match value {
        Value::Table(table) => table
            .iter()
            .map(|(key, value)| (Step::Key(key.clone()), value))
            .collect(),
        Value::Array(list) => {
            let tables = list.iter().enumerate().filter(|(_, value)| value.is_table());
            tables.map(|(place, value)| (Step::Place(place), value)).collect()
        }
        Value::String(_) | Value::Integer(_) | Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) => Vec::new(),
    };
    for (step, value) in inner {
        let path: Vec<Step> = above.iter().cloned().chain([step]).collect();
        paths(value, &path, found);
        found.push(path);
    }
}

fn apply(mutation: &Mutation, root: &mut Value, path: &[Step]) -> SettingPath {
    let (last, before) = path.split_last().unwrap();
    let around = before.iter().fold(root, |value, step| match step {
        Step::Key(key) => &mut value.as_table_mut().unwrap()[key.as_str()],
        Step::Place(place) => &mut value.as_array_mut().unwrap()[*place],
    });
    let place = before.iter().fold(SettingPath::default(), |path, step| match step {
        Step::Key(key) => path.key(key),
        Step::Place(place) => path.index(*place),
    });
    match (last, around) {
        (Step::Key(key), Value::Table(table)) => {
            let renamed = format!("{key}_x");
            match mutation {
                Mutation::Remove => drop(table.remove(key)),
                Mutation::Rename => {
                    let value = table.remove(key).unwrap();
                    table.insert(renamed.clone(), value);
                    return place.key(&renamed);
                }
                Mutation::Retype(value) => drop(table.insert(key.clone(), value.clone())),
            }
            place.key(key)
        }
        (Step::Place(index), Value::Array(list)) => {
            match mutation {
                Mutation::Remove | Mutation::Rename => drop(list.remove(*index)),
                Mutation::Retype(value) => list[*index] = value.clone(),
            }
            place.index(*index)
        }
        _ => unreachable!("a path leads through what is there"),
    }
}

/// Whether a fault speaks of the setting: it stands there, in it or just around it, or its words name it.
fn speaks_of(fault: &Fault, mutated: &SettingPath, key: &str) -> bool {
    let around = mutated.parent().unwrap();
    fault.path.is_within(mutated) || fault.path == around || fault.words().contains(key)
}

#[test]
fn every_mutation_of_the_reference_is_named_or_harmless() {
    let whole = Value::Table(toml::from_str(&all_on()).unwrap());
    let mut all = Vec::new();
    paths(&whole, &[], &mut all);
    assert!(all.len() > 200);
    for path in &all {
        for mutation in mutations() {
            let mut root = whole.clone();
            let mutated = apply(&mutation, &mut root, path);
            if let Err(faults) = checked(&toml::to_string(&root).unwrap()) {
                let key = path.iter().rev().find_map(|step| match step {
                    Step::Key(key) => Some(key),
                    Step::Place(_) => None,
                });
                assert!(
                    faults.iter().any(|fault| speaks_of(fault, &mutated, key.unwrap())),
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
        "[pool.a]",
        "[rule.a]",
        "[[rule.a.path]]",
        "[[rewrite.a.rule]]",
        "paths = [\"/a*\"]",
        "pool = \"a\"",
        "redirect = { listener = \"public\" }",
        "path = \"/{var_uri_path_1}\"",
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
    fn a_torn_reference_never_panics(from in 0usize..24_000, length in 0usize..200, insert in ".{0,8}") {
        let whole: Vec<char> = all_on().chars().collect();
        let from = from.min(whole.len());
        let to = (from + length).min(whole.len());
        let torn: String = whole[..from].iter().copied().chain(insert.chars()).chain(whole[to..].iter().copied()).collect();
        let _ = checked(&torn);
    }
}
