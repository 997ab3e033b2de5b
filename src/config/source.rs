//! Where a configuration comes from, and its settings as they are written: what tells one node's from another's.

use std::collections::BTreeMap;
use std::path::PathBuf;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value as Json;
use toml::de::{DeTable, DeValue};

use super::path::SettingPath;
use crate::types::Octets32;

/// The file of a configuration, and what stands in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The file as its user named it.
    pub file: PathBuf,
    /// Every setting that is written, with its value. Of a secret only that it is there, or where it is kept.
    pub written: BTreeMap<String, String>,
}

impl Source {
    /// What stands in a document that follows the schema.
    pub(super) fn of(schema: &Json, root: &DeTable<'_>, file: PathBuf) -> Self {
        let mut source = Self {
            file,
            written: BTreeMap::new(),
        };
        source.table(schema, root, &SettingPath::default());
        source
    }

    /// A hash of all settings in which the nodes of a fleet are to be alike, in hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        let alike: BTreeMap<_, _> = (self.written.iter())
            .filter(|(path, _)| !is_of_one_node(path))
            .collect();
        // What is made of texts can always be written.
        let text = serde_json::to_vec(&alike).unwrap_or_default();
        let hash = digest(&SHA256, &text);
        let octets = hash.as_ref().try_into().map(Octets32).unwrap_or(Octets32([0; 32]));
        octets.digits().as_str().to_owned()
    }

    fn table(&mut self, schema: &Json, table: &DeTable<'_>, path: &SettingPath) {
        for (key, value) in table {
            let key = key.get_ref().as_ref();
            let known = schema["properties"].get(key);
            let below = known.unwrap_or(&schema["additionalProperties"]);
            self.value(below, value.get_ref(), &path.key(key));
        }
    }

    fn value(&mut self, schema: &Json, value: &DeValue<'_>, path: &SettingPath) {
        let text = match value {
            DeValue::Table(table) => {
                let choices = schema["anyOf"].as_array().into_iter().flatten();
                let mut tables = choices.filter(|choice| choice["type"] == "object");
                let below = tables.next().unwrap_or(schema);
                return self.table(below, table, path);
            }
            DeValue::Array(list) => {
                for (index, element) in list.iter().enumerate() {
                    self.value(&schema["items"], element.get_ref(), &path.index(index));
                }
                return;
            }
            DeValue::String(_) if schema["writeOnly"] == true => "a secret".to_owned(),
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(truth) => truth.to_string(),
            DeValue::Datetime(date) => date.to_string(),
        };
        self.written.insert(path.to_string(), text);
    }
}

/// Whether each node of a fleet has its own value of a setting: names, addresses, certificates.
pub fn is_of_one_node(path: &str) -> bool {
    const TABLES: [&str; 2] = ["certificate.", "fleet."];
    const SETTINGS: [&str; 3] = ["node.name", "node.state_dir", "node.admin_socket"];
    const LAST: [&str; 6] = [
        "bind",
        "agent",
        "external_url",
        "external_address",
        "external_port",
        "allowed_hosts",
    ];
    let last = path.split('[').next().unwrap_or_default();
    let last = last.rsplit('.').next().unwrap_or_default();
    TABLES.iter().any(|table| path.starts_with(table)) || SETTINGS.contains(&path) || LAST.contains(&last)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::environment::Process;
    use crate::config::parse;

    fn source(text: &str) -> Source {
        let folder = tempfile::tempdir().unwrap();
        for name in ["chain.pem", "key.pem", "secret"] {
            std::fs::write(folder.path().join(name), "0123456789abcdef0123456789abcdef").unwrap();
        }
        let (config, _) = parse(text, &folder.path().join("gw.toml"), &Process).unwrap_or_else(|f| panic!("{f}"));
        assert_eq!(config.source.file.file_name(), Path::new("gw.toml").file_name());
        config.source
    }

    fn node(name: &str, more: &str) -> String {
        format!(
            "[node]\nname = \"{name}\"\nrecognition_key = {{ file = \"secret\" }}\n\
             [listener.public]\nbind = [\"127.0.0.1:0\"]\ncertificates = [\"own\"]\n\
             [certificate.own]\nchain = \"chain.pem\"\nkey = \"key.pem\"\n\
             [directory.user.ann]\npassword_hash = \"{HASH}\"\n{more}"
        )
    }

    const HASH: &str = "$argon2id$v=19$m=7168,t=5,p=1$cG9ydGN1bGxpcy1zYWx0$h1gvFaspW1nL7eoKOHdjtJ/yblQQuvpl1qRMO2GWaVI";

    #[test]
    fn settings_are_told_as_they_are_written_and_secrets_are_not() {
        let source = source(&node(
            "gw-1",
            "groups = [\"a\", \"b\"]\n[limits]\nconnections = 1_000\n",
        ));
        let of = |path: &str| source.written.get(path).map(String::as_str);
        assert_eq!(of("limits.connections"), Some("1000"));
        assert_eq!(of("directory.user.ann.groups[1]"), Some("b"));
        assert_eq!(of("directory.user.ann.password_hash"), Some("a secret"));
        assert_eq!(of("node.recognition_key.file"), Some("secret"));
        assert!(!format!("{:?}", source.written).contains("argon2id"));
    }

    #[test]
    fn the_fingerprint_is_of_what_a_fleet_has_in_common() {
        let one = source(&node("gw-1", "[limits]\nconnections = 1000\n")).fingerprint();
        assert_eq!(one.len(), 64);
        assert_eq!(
            one,
            source(&node("gw-2", "[limits]\nconnections = 1000\n")).fingerprint()
        );
        assert_ne!(
            one,
            source(&node("gw-1", "[limits]\nconnections = 1001\n")).fingerprint()
        );
        for path in [
            "listener.public.bind[0]",
            "node.name",
            "certificate.own.chain",
            "tunnel.external_url",
        ] {
            assert!(is_of_one_node(path), "{path}");
        }
        for path in ["node.workers", "limits.connections", "directory.desktop.bind.name"] {
            assert!(!is_of_one_node(path), "{path}");
        }
    }
}
