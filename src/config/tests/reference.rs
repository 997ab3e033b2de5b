//! docs/portcullis.toml tells the truth: it holds every setting, and the defaults of the program.

use serde_json::Value as Json;

use super::*;
use crate::config::document::format::{self, TimeSpan};
use crate::config::{SettingPath, schema, web};

const REFERENCE: &str = include_str!("../../../docs/portcullis.toml");

/// The reference with every setting that is off turned on.
pub(super) fn all_on() -> String {
    let on = |line: &str| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()) => {
            setting.to_owned()
        }
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
    if let Some(entries) = tables_of(schema) {
        return settings(entries, &below("*"), false, found);
    }
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

/// The schema of the tables in a list, if there can be tables in it.
fn tables_of(schema: &Json) -> Option<&Json> {
    let items = &schema["items"];
    let choices = items["anyOf"].as_array().into_iter().flatten();
    [items]
        .into_iter()
        .chain(choices)
        .find(|choice| choice["type"] == "object")
}

fn all_settings() -> Vec<Setting> {
    let mut found = Vec::new();
    settings(&schema(), &[], true, &mut found);
    assert!(found.len() > 120);
    found
}

/// The setting at a path, of the first entry; or of any that has it.
fn value_at<'a>(value: &'a toml::Value, path: &[String], of_any: bool) -> Option<&'a toml::Value> {
    let Some((key, rest)) = path.split_first() else {
        return Some(value);
    };
    let entries: Vec<_> = match (value.as_table(), value.as_array()) {
        (Some(table), _) if key == "*" => table.values().collect(),
        (_, Some(list)) if key == "*" => list.iter().filter(|entry| entry.is_table()).collect(),
        _ => value.get(key).into_iter().collect(),
    };
    let mut entries = entries.into_iter().take(if of_any { usize::MAX } else { 1 });
    entries.find_map(|entry| value_at(entry, rest, of_any))
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

/// What is off by default, but shown in use: what it names would be reported as unused, or something else would miss it.
const IN_USE: [&str; 8] = [
    "backend.*.probe",
    "listener.*.certificates",
    "pool.*.targets.*.max_requests",
    "rewrite.*.rule.*.query",
    "rewrite.*.rule.*.when.*.matches",
    "rule.*.hosts",
    "rule.*.path.*.pool",
    "rule.*.pool",
];

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
        let shown = value_at(&on, &path, true);
        assert!(shown.is_some(), "{name} is not in docs/portcullis.toml");
        let (_, table) = path.split_last().unwrap();
        // A table that is off shows the defaults in it.
        let is_on = value_at(&as_is, table, false).is_some();
        let written = value_at(&as_is, &path, false);
        match schema.get("default") {
            // By default nobody is entitled, of which the reference would warn.
            Some(_) if name == "directory.desktop.*.users" => {}
            Some(default) => {
                let written = written.filter(|_| is_on).or(shown);
                assert!(same(written.unwrap(), default), "{name}: the default is {default}");
            }
            None if !is_on => {}
            // The four protocols are no settings of their own: a desktop has one or more of them.
            None if mandatory || name.contains(".protocols.") => assert!(written.is_some(), "{name} is mandatory"),
            None if IN_USE.contains(&name.as_str()) => {}
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
    assert_eq!(small.admin, reference.admin);
    assert_eq!(small.quiesce, reference.quiesce);
    assert_eq!(small.limits, reference.limits);
    assert_eq!(small.session, reference.session);
    assert_eq!(small.tunnel, reference.tunnel);
    assert_eq!(small.blast, reference.blast);
    assert_eq!(small.pcoip, reference.pcoip);
    assert_eq!(small.rdp, reference.rdp);
    assert_eq!(small.udp, reference.udp);
    assert_eq!(small.fleet, reference.fleet);
    assert_eq!(small.authentication, reference.authentication);
    assert_eq!(small.web.error_pages, reference.web.error_pages);
    assert_eq!(small.web.forwarded, reference.web.forwarded);
    assert_eq!(small.web.access_log, reference.web.access_log);
    assert_eq!(small.web.affinity_key, reference.web.affinity_key);
    assert_eq!(small.web.resolvers, reference.web.resolvers);
    let (shop, images) = (&reference.web.pools["shop"], &reference.web.pools["images"]);
    let without_targets = |pool: &web::Pool| web::Pool {
        targets: Vec::new(),
        ..pool.clone()
    };
    assert_eq!(without_targets(shop), without_targets(images));
    assert_eq!(reference.web.probes["shop"], web::Probe::default());
    let backend = web::Backend {
        probe: None,
        ..reference.web.backends["shop"].clone()
    };
    assert_eq!(backend, web::Backend::default());
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
            if let Some(table) = tables_of(property) {
                described(table, &path.key("*"));
            }
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
