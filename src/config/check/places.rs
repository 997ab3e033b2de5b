//! Where the settings of a document stand in its text.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::path::SettingPath;

/// Where the settings of a document stand, and which of them were taken out as faulty.
pub(in crate::config) struct Places {
    offsets: BTreeMap<SettingPath, usize>,
    kept: BTreeMap<SettingPath, Vec<usize>>,
    removed: BTreeSet<SettingPath>,
}

impl Places {
    /// The places of what is left of a document, after `removed` was taken out and `kept` was left of some lists.
    pub(in crate::config) fn of(
        root: &Spanned<DeTable<'_>>,
        kept: BTreeMap<SettingPath, Vec<usize>>,
        removed: BTreeSet<SettingPath>,
    ) -> Self {
        let mut places = Self {
            offsets: BTreeMap::new(),
            kept,
            removed,
        };
        places.table(root.get_ref(), &SettingPath::default());
        places
    }

    /// Whether the setting is written, and sound.
    pub(super) fn has(&self, path: &SettingPath) -> bool {
        self.offsets.contains_key(path)
    }

    /// Offset of the setting's value; of the table or list around it if it is not written.
    pub(super) fn offset(&self, path: &SettingPath) -> usize {
        let mut around = Some(path.clone());
        while let Some(path) = around {
            if let Some(offset) = self.offsets.get(&path) {
                return *offset;
            }
            around = path.parent();
        }
        0
    }

    /// Whether the setting, or something that it stands in, was taken out.
    pub(super) fn lost(&self, path: &SettingPath) -> bool {
        self.removed.iter().any(|removed| path.is_within(removed))
    }

    /// Whether the setting, something that it stands in or something in it was taken out.
    pub(super) fn lost_part(&self, path: &SettingPath) -> bool {
        self.removed
            .iter()
            .any(|removed| removed.is_within(path) || path.is_within(removed))
    }

    /// Whether `setting` is not wholly known for all entries of the named tables in `table`.
    pub(super) fn lost_some(&self, table: &SettingPath, setting: &str) -> bool {
        let concerns = |below: SettingPath| below.depth() <= 1 || below.nth_key(1) == Some(setting);
        self.lost(table)
            || self
                .removed
                .iter()
                .filter_map(|removed| removed.below(table))
                .any(concerns)
    }

    /// The names that were taken out of a table.
    pub(super) fn lost_names<'a>(&'a self, table: &'a SettingPath) -> impl Iterator<Item = &'a str> {
        self.removed
            .iter()
            .filter(|path| path.parent().as_ref() == Some(table))
            .filter_map(SettingPath::last_key)
    }

    /// The path of an element of a list, which may have lost elements before it.
    pub(super) fn element(&self, list: &SettingPath, index: usize) -> SettingPath {
        let written = self.kept.get(list).and_then(|kept| kept.get(index)).copied();
        list.index(written.unwrap_or(index))
    }

    fn table(&mut self, table: &DeTable<'_>, path: &SettingPath) {
        for (key, value) in table {
            self.value(value, path.key(key.get_ref()));
        }
    }

    fn value(&mut self, value: &Spanned<DeValue<'_>>, path: SettingPath) {
        match value.get_ref() {
            DeValue::Table(table) => self.table(table, &path),
            DeValue::Array(list) => {
                for (index, element) in list.iter().enumerate() {
                    self.value(element, self.element(&path, index));
                }
            }
            DeValue::String(_)
            | DeValue::Integer(_)
            | DeValue::Float(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_) => {}
        }
        self.offsets.insert(path, value.span().start);
    }
}
