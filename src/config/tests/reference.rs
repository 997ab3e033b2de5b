//! docs/portcullis.toml tells the truth: it holds every setting, and the defaults of the program.

use serde_json::Value as Json;

use super::*;
use crate::config::document::format::{self, TimeSpan};
use crate::config::{SettingPath, schema};

const REFERENCE: &str = include_str!("../../../docs/portcullis.toml");

/// The reference with every setting that is off turned on.
pub(super) fn all_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => setting.to_owned(),
        _ => line.to_owned(),
    };
    REFERENCE.lines().map(on).collect::<Vec<_>>().join("\n")
}

/// A setting of the schema: its path (`*` for a name of one's choice), its schema, and whether it is mandatory.
struct Setting {
    path: Vec<String>,
    schema: Json,
    mandatory: bool,
}

fn settings(schema: &Json, path: &[String], mandatory: bool, found: &mut Vec<Setting>) {
    let below = |key: &str| path.iter().cloned().chain([key.to_owned()]).collect::<Vec<_>>();
    if schema["writeOnly"] != true && schema["type"] == "object" {
        if schema["additionalProperties"].is_object() {
            return settings(&schema["additionalProperties"], &below("*"), false, found);
        }
        let required: Vec<_> = schema["required"].as_array().into_iter().flatten().collect();
        for (key, property) in schema["properties"].as_object().unwrap() {
            settings(property, &below(key), required.iter().any(|name| *name == key), found);
        }
    } else {
        found.push(Setting {
            path: path.to_vec(),
            schema: schema.clone(),
            mandatory,
        });
    }
}

fn all_settings() -> Vec<Setting> {
    let mut found = Vec::new();
    settings(&schema(), &[], true, &mut found);
    assert!(found.len() > 40);
    found
}

fn value_at<'a>(mut table: &'a toml::Value, path: &[String]) -> Option<&'a toml::Value> {
    for key in path {
        let inner = table.as_table()?;
        table = if key == "*" {
            inner.values().next()?
        } else {
            inner.get(key)?
        };
    }
    Some(table)
}

fn same(written: &toml::Value, default: &Json) -> bool {
    match (written.as_str(), default.as_str()) {
        (Some(written), Some(default)) => match (written.parse::<TimeSpan>(), default.parse::<TimeSpan>()) {
            (Ok(written), Ok(default)) => written == default,
            _ => written == default,
        },
        _ => serde_json::to_value(written).unwrap() == *default,
    }
}

#[test]
fn the_reference_is_valid_and_so_is_each_setting_that_is_off() {
    for text in [REFERENCE, &all_on()] {
        let (_, warnings) = checked(text).unwrap_or_else(|faults| panic!("{faults}"));
        assert!(warnings.is_empty(), "{warnings}");
    }
}

#[test]
fn the_reference_holds_every_setting_and_its_default() {
    let (as_is, on): (toml::Value, toml::Value) =
        (toml::from_str(REFERENCE).unwrap(), toml::from_str(&all_on()).unwrap());
    for Setting {
        path,
        schema,
        mandatory,
    } in all_settings()
    {
        let name = path.join(".");
        assert!(value_at(&on, &path).is_some(), "{name} is not in docs/portcullis.toml");
        let written = value_at(&as_is, &path);
        match schema.get("default") {
            // By default nobody is entitled, of which the reference would warn.
            Some(_) if name == "directory.desktop.*.users" => {}
            Some(default) => assert!(same(written.unwrap(), default), "{name}: the default is {default}"),
            // The four protocols are no settings of their own: a desktop has one or more of them.
            None if mandatory || name.contains(".protocols.") => assert!(written.is_some(), "{name} is mandatory"),
            None => assert!(written.is_none(), "{name} is off by default"),
        }
    }
}

#[test]
fn what_is_left_out_is_what_the_reference_says() {
    let (reference, _) = checked(REFERENCE).unwrap();
    let (small, _) = checked(&with_ann("")).unwrap();
    assert_eq!(small.node, reference.node);
    assert_eq!(small.log, reference.log);
    assert_eq!(small.health, reference.health);
    assert_eq!(small.limits, reference.limits);
    assert_eq!(small.session, reference.session);
    assert_eq!(small.tunnel, reference.tunnel);
    assert_eq!(small.blast, reference.blast);
    assert_eq!(small.pcoip, reference.pcoip);
    assert_eq!(small.rdp, reference.rdp);
    assert_eq!(small.udp, reference.udp);
    assert_eq!(small.fleet, reference.fleet);
    assert_eq!(small.authentication, reference.authentication);
}

#[test]
fn every_form_that_the_schema_names_is_checked() {
    for Setting { path, schema, .. } in all_settings() {
        let texts = [&schema, &schema["items"]]
            .into_iter()
            .filter(|schema| schema["type"] == "string");
        for form in texts.filter_map(|schema| schema["format"].as_str()) {
            // No form allows this.
            assert!(
                format::check(form, "\0").is_err(),
                "{}: nothing checks the form {form}",
                path.join(".")
            );
        }
    }
}

#[test]
fn every_setting_of_the_schema_is_described() {
    fn described(schema: &Json, path: &SettingPath) {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = path.key(key);
            assert!(property["description"].is_string(), "{path} has no description");
            described(property, &path);
        }
        if schema["additionalProperties"].is_object() {
            described(&schema["additionalProperties"], &path.key("*"));
        }
    }
    described(&schema(), &SettingPath::default());
}

#[test]
fn the_schema_speaks_of_nothing_that_toml_lacks() {
    let schema = schema();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    let text = schema.to_string();
    assert!(!text.contains("null") && !text.contains("$ref"), "{schema:#}");
}
