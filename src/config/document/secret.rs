//! Where a secret is kept.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::types::Secret;

/// Where a secret is kept outside of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) enum KeySource {
    /// In a file.
    File(std::path::PathBuf),
    /// In an environment variable.
    Env(String),
    /// In a credential that the service manager passes.
    Credential(String),
}

/// A password hash, or where it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::config) enum HashSource {
    /// In the configuration itself.
    Inline(Secret),
    /// Elsewhere.
    Kept(KeySource),
}

/// The settings of a secret's table, with their descriptions.
pub(in crate::config) const SOURCES: [(&str, &str); 3] = [
    ("file", "File that holds it; a newline at the end does not count."),
    ("env", "Environment variable that holds it."),
    (
        "credential",
        "Credential that the service manager passes ($CREDENTIALS_DIRECTORY/NAME).",
    ),
];

impl<'de> Deserialize<'de> for KeySource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(SourceVisitor)? {
            HashSource::Kept(source) => Ok(source),
            HashSource::Inline(_) => Err(Error::custom("a secret stands in the configuration")),
        }
    }
}

impl<'de> Deserialize<'de> for HashSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SourceVisitor)
    }
}

struct SourceVisitor;

impl<'de> Visitor<'de> for SourceVisitor {
    type Value = HashSource;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret or where it is kept")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<HashSource, E> {
        Ok(HashSource::Inline(Secret::new(text)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HashSource, A::Error> {
        let Some((key, value)) = map.next_entry::<String, String>()? else {
            return Err(Error::custom("a secret names no source"));
        };
        let source = match key.as_str() {
            "file" => KeySource::File(value.into()),
            "env" => KeySource::Env(value),
            "credential" => KeySource::Credential(value),
            _ => return Err(Error::custom("a secret names an unknown source")),
        };
        match map.next_key::<String>()? {
            None => Ok(HashSource::Kept(source)),
            Some(_) => Err(Error::custom("a secret names several sources")),
        }
    }
}

impl JsonSchema for KeySource {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "KeySource".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let properties: serde_json::Map<String, serde_json::Value> = SOURCES
            .iter()
            .map(|(name, about)| {
                let property = serde_json::json!({ "type": "string", "minLength": 1, "description": about });
                ((*name).to_owned(), property)
            })
            .collect();
        json_schema!({
            "type": "object",
            "writeOnly": true,
            "additionalProperties": false,
            "minProperties": 1,
            "maxProperties": 1,
            "properties": properties,
        })
    }
}

impl JsonSchema for HashSource {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "HashSource".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let kept = KeySource::json_schema(generator);
        json_schema!({ "writeOnly": true, "anyOf": [{ "type": "string" }, kept] })
    }
}
