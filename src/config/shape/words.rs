//! How values read in TOML: what stands there, and what could stand there instead.

use serde_json::Value as Json;
use toml::de::DeValue;

use crate::config::path::{Quoted, SettingPath, TomlKey};
use crate::config::problem::Kind;

pub(super) fn kind_of(value: &DeValue<'_>) -> Kind {
    match value {
        DeValue::String(_) => Kind::Text,
        DeValue::Integer(_) => Kind::Whole,
        DeValue::Float(_) => Kind::Fraction,
        DeValue::Boolean(_) => Kind::Truth,
        DeValue::Datetime(_) => Kind::Date,
        DeValue::Array(_) => Kind::List,
        DeValue::Table(_) => Kind::Table,
    }
}

/// What to write for a setting that is not there: `bind = ["0.0.0.0:443"]`, `[node] with name = "gw-1"`.
pub(super) fn example(path: &SettingPath, name: &str, schema: &Json) -> String {
    if let Some(example) = schema["examples"].get(0) {
        return format!("{} = {}", TomlKey(name), inline(example));
    }
    if schema["additionalProperties"].is_object() {
        return format!("[{path}.NAME]");
    }
    if schema["items"]["type"] == "object" {
        return format!("[[{path}]]");
    }
    let within = schema["required"]
        .get(0)
        .and_then(Json::as_str)
        .map(|first| example(&path.key(first), first, &schema["properties"][first]));
    match within {
        Some(within) => format!("[{path}] with {within}"),
        None => format!("{path}"),
    }
}

/// What to write in place of a value of another kind.
pub(super) fn retyped(schema: &Json, expected: Kind, value: &DeValue<'_>, path: &SettingPath) -> String {
    let instead = match expected {
        Kind::Text => scalar(value).map(|text| format!("\"{text}\"")),
        Kind::Whole => value
            .as_str()
            .filter(|text| text.parse::<i64>().is_ok())
            .map(str::to_owned),
        Kind::Truth => value.as_str().and_then(truth).map(str::to_owned),
        Kind::List if schema["items"]["type"] == "string" => scalar(value).map(|text| {
            if value.is_str() {
                format!("[{}]", Quoted(&text))
            } else {
                format!("[\"{text}\"]")
            }
        }),
        Kind::List | Kind::Table | Kind::Fraction | Kind::Date => None,
    };
    let instead = instead.or_else(|| {
        schema["examples"]
            .get(0)
            .map(|example| format!("for example {}", inline(example)))
    });
    match (instead, expected) {
        (Some(instead), _) => format!("Write {instead}."),
        (None, Kind::Text) => "Write a text in quotes.".to_owned(),
        (None, Kind::Whole) => "Write digits alone.".to_owned(),
        (None, Kind::Fraction) => "Write a number.".to_owned(),
        (None, Kind::Truth) => "Write true or false, without quotes.".to_owned(),
        (None, Kind::Date) => "Write a date.".to_owned(),
        (None, Kind::List) if schema["items"]["type"] == "object" => format!("Write [[{path}]]."),
        (None, Kind::List) => r#"Write a list, such as ["a", "b"]."#.to_owned(),
        (None, Kind::Table) if schema["additionalProperties"].is_object() => format!("Write [{path}.NAME]."),
        (None, Kind::Table) => format!("Write [{path}]."),
    }
}

/// A value that is neither list nor table, as text.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) => Some(number.to_string()),
        DeValue::Float(number) => Some(number.to_string()),
        DeValue::Boolean(truth) => Some(truth.to_string()),
        DeValue::Datetime(date) => Some(date.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => None,
    }
}

fn truth(word: &str) -> Option<&'static str> {
    match word.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some("true"),
        "false" | "no" | "off" | "0" => Some("false"),
        _ => None,
    }
}

/// An example of the schema as inline TOML.
fn inline(example: &Json) -> String {
    match example {
        Json::Null => String::new(),
        Json::Bool(_) | Json::Number(_) => example.to_string(),
        Json::String(text) => Quoted(text).to_string(),
        Json::Array(elements) => format!("[{}]", elements.iter().map(inline).collect::<Vec<_>>().join(", ")),
        Json::Object(members) => {
            let pairs: Vec<_> = members
                .iter()
                .map(|(key, value)| format!("{} = {}", TomlKey(key), inline(value)))
                .collect();
            format!("{{ {} }}", pairs.join(", "))
        }
    }
}
