//! The document's shape: names, types, ranges and forms of its settings, checked along the JSON Schema.
//!
//! serde stops at the first thing it does not like. This walk goes through the whole tree, notes every fault, and takes
//! what is faulty out, so that serde can read the rest and the later checks can find the rest's faults. What went is
//! remembered: a reference to it is no fault of its own.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::document::format::{self, TimeSpan};
use super::nearest::nearest;
use super::path::SettingPath;
use super::problem::{Kind, Problem, choice};

mod secret;
mod words;

/// What the walk found.
#[derive(Default)]
pub(super) struct Shape {
    /// Faults with their place in the text.
    pub(super) found: Vec<Found>,
    /// What was taken out, or is mandatory and not there.
    pub(super) removed: BTreeSet<SettingPath>,
    /// For lists that lost elements: the places that the remaining ones had.
    pub(super) kept: BTreeMap<SettingPath, Vec<usize>>,
}

/// A fault and its place.
pub(super) struct Found {
    pub(super) path: SettingPath,
    /// Offset in the text, in bytes.
    pub(super) at: usize,
    pub(super) problem: Problem,
}

impl Shape {
    /// Checks the document `root` along `schema` and takes out what is faulty.
    pub(super) fn of(schema: &Json, root: &mut Spanned<DeTable<'_>>) -> Self {
        let mut shape = Self::default();
        let span = root.span();
        shape.table(schema, root.get_mut(), &span, &SettingPath::default());
        shape
    }

    /// Checks a value. Whether it stays.
    fn value(&mut self, schema: &Json, value: &mut Spanned<DeValue<'_>>, path: &SettingPath) -> bool {
        let span = value.span();
        if schema["writeOnly"] == true {
            return self.secret(schema, value, path);
        }
        if let Some(choices) = schema["anyOf"].as_array() {
            let kind = words::kind_of(value.get_ref());
            let meant = choices.iter().find(|choice| expected(choice) == Some(kind));
            return match meant.or(choices.first()) {
                Some(choice) => self.value(choice, value, path),
                None => true,
            };
        }
        if let Some(expected) = expected(schema)
            && expected != words::kind_of(value.get_ref())
        {
            return self.refuse(path, span.start, mistyped(schema, expected, value.get_ref(), path));
        }
        let checked = match value.get_mut() {
            DeValue::Table(table) => return self.table(schema, table, &span, path),
            DeValue::Array(list) => return self.list(schema, list, &span, path),
            DeValue::String(text) => check_text(schema, text),
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix());
                check_number(schema, &number.to_string(), parsed.ok())
            }
            DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) => Ok(()),
        };
        match checked {
            Ok(()) => true,
            Err(problem) => self.refuse(path, span.start, problem),
        }
    }

    fn table(&mut self, schema: &Json, table: &mut DeTable<'_>, span: &Range<usize>, path: &SettingPath) -> bool {
        for name in schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Json::as_str)
        {
            if !table.contains_key(name) {
                let place = path.key(name);
                let example = words::example(&place, name, &schema["properties"][name]);
                self.refuse(&place, span.start, Problem::Missing { example });
            }
        }
        if let Err(problem) = check_length(schema, ["minProperties", "maxProperties"], table.len(), "entries") {
            return self.refuse(path, span.start, problem);
        }
        let entries = std::mem::take(table).into_iter();
        *table = entries
            .filter_map(|(key, mut value)| self.entry(schema, &key, &mut value, path).then_some((key, value)))
            .collect();
        true
    }

    fn entry(
        &mut self,
        schema: &Json,
        key: &Spanned<Cow<'_, str>>,
        value: &mut Spanned<DeValue<'_>>,
        path: &SettingPath,
    ) -> bool {
        let name = key.get_ref().as_ref();
        let place = path.key(name);
        if let Some(known) = schema["properties"].get(name) {
            return self.value(known, value, &place);
        }
        let named = &schema["additionalProperties"];
        if !named.is_object() {
            return self.refuse(&place, key.span().start, unknown(schema, name));
        }
        let form = schema["propertyNames"]["format"].as_str().unwrap_or_default();
        match format::check(form, name) {
            Ok(()) => self.value(named, value, &place),
            Err(problem) => self.refuse(&place, key.span().start, problem),
        }
    }

    fn list(&mut self, schema: &Json, list: &mut DeArray<'_>, span: &Range<usize>, path: &SettingPath) -> bool {
        if let Err(problem) = check_length(schema, ["minItems", "maxItems"], list.len(), "elements") {
            return self.refuse(path, span.start, problem);
        }
        let unique = schema["uniqueItems"] == true;
        let mut seen = BTreeSet::new();
        let (mut elements, mut places) = (Vec::new(), Vec::new());
        let whole = list.len();
        for (index, mut element) in std::mem::replace(list, DeArray::new()).into_iter().enumerate() {
            let place = path.index(index);
            let text = element.get_ref().as_str().filter(|_| unique).map(str::to_owned);
            let keeps = self.value(&schema["items"], &mut element, &place)
                && match text {
                    Some(value) if seen.contains(&value) => {
                        self.refuse(&place, element.span().start, Problem::Repeated { value })
                    }
                    Some(value) => seen.insert(value),
                    None => true,
                };
            if keeps {
                elements.push(element);
                places.push(index);
            }
        }
        *list = elements.into_iter().collect();
        if list.len() < whole {
            self.kept.insert(path.clone(), places);
        }
        true
    }

    /// Notes a fault and that its setting goes.
    fn refuse(&mut self, path: &SettingPath, at: usize, problem: Problem) -> bool {
        self.removed.insert(path.clone());
        self.found.push(Found {
            path: path.clone(),
            at,
            problem,
        });
        false
    }
}

/// The kind of value that the schema asks for, if it asks for one.
fn expected(schema: &Json) -> Option<Kind> {
    if schema["oneOf"].is_array() || schema["enum"].is_array() {
        return Some(Kind::Text);
    }
    match schema["type"].as_str()? {
        "string" => Some(Kind::Text),
        "integer" => Some(Kind::Whole),
        "number" => Some(Kind::Fraction),
        "boolean" => Some(Kind::Truth),
        "array" => Some(Kind::List),
        "object" => Some(Kind::Table),
        _ => None,
    }
}

fn mistyped(schema: &Json, expected: Kind, value: &DeValue<'_>, path: &SettingPath) -> Problem {
    if schema["format"] == TimeSpan::FORM
        && let Some(number) = value.as_integer()
    {
        return Problem::NoUnit {
            number: number.to_string(),
        };
    }
    let remedy = match allowed(schema).as_slice() {
        [] => words::retyped(schema, expected, value, path),
        words => format!("Write {}.", choice(words)),
    };
    Problem::WrongType {
        expected,
        found: words::kind_of(value),
        remedy,
    }
}

fn unknown(schema: &Json, name: &str) -> Problem {
    let known: Vec<String> = schema["properties"]
        .as_object()
        .into_iter()
        .flat_map(|all| all.keys().cloned())
        .collect();
    Problem::UnknownSetting {
        nearest: nearest(name, &known),
        known,
    }
}

fn check_text(schema: &Json, text: &str) -> Result<(), Problem> {
    format::check(schema["format"].as_str().unwrap_or_default(), text)?;
    let words = allowed(schema);
    if !words.is_empty() && !words.iter().any(|word| word == text) {
        return Err(Problem::NotOneOf {
            value: text.to_owned(),
            nearest: nearest(text, &words),
            allowed: words,
        });
    }
    if schema["format"] == TimeSpan::FORM {
        check_span(schema, text)?;
    }
    check_length(schema, ["minLength", "maxLength"], text.chars().count(), "characters")
}

/// The words that an enumeration allows.
fn allowed(schema: &Json) -> Vec<String> {
    let constants = schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|choice| &choice["const"]);
    let listed = schema["enum"].as_array().into_iter().flatten();
    constants
        .chain(listed)
        .filter_map(Json::as_str)
        .map(str::to_owned)
        .collect()
}

fn check_span(schema: &Json, text: &str) -> Result<(), Problem> {
    let span: TimeSpan = text.parse()?;
    let bound = |name: &str| schema[name].as_str().and_then(|bound| bound.parse::<TimeSpan>().ok());
    let (min, max) = (bound("x-minimum"), bound("x-maximum"));
    if min.is_none_or(|min| span >= min) && max.is_none_or(|max| span <= max) {
        return Ok(());
    }
    let quoted = |bound: Option<TimeSpan>| bound.map(|bound| format!("\"{bound}\""));
    Err(Problem::OutOfRange {
        value: format!("\"{text}\""),
        min: quoted(min),
        max: quoted(max),
    })
}

/// `number` is `None` if it does not even fit into 64 bits.
fn check_number(schema: &Json, written: &str, number: Option<i64>) -> Result<(), Problem> {
    let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
    let fits = |number| min.is_none_or(|min| number >= min) && max.is_none_or(|max| number <= max);
    if number.is_some_and(fits) {
        return Ok(());
    }
    let text = |bound: Option<i64>| bound.map(|bound| bound.to_string());
    Err(Problem::OutOfRange {
        value: written.to_owned(),
        min: text(min),
        max: text(max),
    })
}

fn check_length(schema: &Json, [min, max]: [&str; 2], count: usize, unit: &'static str) -> Result<(), Problem> {
    let min = schema[min].as_u64().unwrap_or(0);
    let max = schema[max].as_u64();
    let fits = count as u64 >= min && max.is_none_or(|max| count as u64 <= max);
    if fits {
        Ok(())
    } else {
        Err(Problem::BadLength { count, unit, min, max })
    }
}
