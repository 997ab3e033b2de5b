//! The shape of secrets. Nothing here may repeat a value.

use serde_json::Value as Json;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Shape, unknown, words};
use crate::config::path::SettingPath;
use crate::config::problem::{Kind, Problem};

impl Shape {
    /// Checks a secret: `{ file = … }` and the like, or the secret itself where the schema allows it. Whether it stays.
    pub(super) fn secret(&mut self, schema: &Json, value: &Spanned<DeValue<'_>>, path: &SettingPath) -> bool {
        let inline = schema["anyOf"].as_array();
        let kept = inline.and_then(|choices| choices.iter().find(|choice| choice["type"] == "object"));
        let at = value.span().start;
        match value.get_ref() {
            DeValue::String(_) if inline.is_some() => true,
            DeValue::String(_) => self.refuse(path, at, Problem::SecretInline),
            DeValue::Table(table) => self.source(kept.unwrap_or(schema), table, at, path),
            other @ (DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)) => {
                let expected = if inline.is_some() { Kind::Text } else { Kind::Table };
                let remedy = Problem::SecretSource.remedy();
                let problem = Problem::WrongType {
                    expected,
                    found: words::kind_of(other),
                    remedy,
                };
                self.refuse(path, at, problem)
            }
        }
    }

    /// Exactly one source, and a text.
    fn source(&mut self, schema: &Json, table: &DeTable<'_>, at: usize, path: &SettingPath) -> bool {
        let mut sound = true;
        for (key, value) in table {
            let place = path.key(key.get_ref());
            if schema["properties"].get(key.get_ref().as_ref()).is_none() {
                sound = self.refuse(&place, key.span().start, unknown(schema, key.get_ref()));
            } else if !value.get_ref().is_str() {
                let remedy = Problem::SecretSource.remedy();
                let found = words::kind_of(value.get_ref());
                let problem = Problem::WrongType {
                    expected: Kind::Text,
                    found,
                    remedy,
                };
                sound = self.refuse(&place, value.span().start, problem);
            } else if value.get_ref().as_str() == Some("") {
                let problem = Problem::BadLength {
                    count: 0,
                    unit: "characters",
                    min: 1,
                    max: None,
                };
                sound = self.refuse(&place, value.span().start, problem);
            }
        }
        if !sound {
            self.removed.insert(path.clone());
            return false;
        }
        table.len() == 1 || self.refuse(path, at, Problem::SecretSource)
    }
}
