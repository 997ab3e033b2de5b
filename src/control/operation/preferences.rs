//! Named values: preferences, and what a client says of its machine.

use super::Flaw;
use crate::control::xml::Element;

/// A preference of the user, kept for the client; its meaning is the client's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Such as `globalPreferredProtocol`.
    pub name: String,
    /// Its value.
    pub value: String,
}

impl Preference {
    /// The most preferences that one request may set.
    pub const MAX: usize = 256;

    /// Reads the `user-preferences` of an operation or answer; none if there is no such element.
    pub(super) fn read_all(parent: &Element) -> Result<Vec<Self>, Flaw> {
        let section = parent.child("user-preferences");
        let named = named_values(section, "user-preferences", "preference", Self::MAX)?;
        Ok(named.into_iter().map(|(name, value)| Self { name, value }).collect())
    }

    pub(super) fn write_all(preferences: &[Self], parent: &mut Element) {
        let mut section = Element::new("user-preferences");
        for Self { name, value } in preferences {
            section.push(Element::new("preference").with_attribute("name", name).with_text(value));
        }
        parent.push(section);
    }
}

/// What a client says of its machine, in the order in which it said it. Nothing of it is proven.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(pub Vec<Info>);

/// One statement of an [`Environment`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Such as `Machine_Name`, `Client_Version`, `Type`.
    pub name: String,
    /// The value.
    pub value: String,
}

impl Environment {
    /// The most statements that are read.
    pub const MAX: usize = 256;

    /// The value of the first statement of that name, in any case.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|info| info.name.eq_ignore_ascii_case(name))
            .map(|info| info.value.as_str())
    }

    pub(super) fn read(parent: &Element) -> Result<Self, Flaw> {
        let section = parent.child("environment-information");
        let named = named_values(section, "environment-information", "info", Self::MAX)?;
        Ok(Self(
            named.into_iter().map(|(name, value)| Info { name, value }).collect(),
        ))
    }

    /// Writes the section, unless it is empty.
    pub(super) fn write(&self, parent: &mut Element) {
        if self.0.is_empty() {
            return;
        }
        let mut section = Element::new("environment-information");
        for Info { name, value } in &self.0 {
            section.push(Element::new("info").with_attribute("name", name).with_text(value));
        }
        parent.push(section);
    }
}

/// The elements `<item name="…">value</item>` of a section.
fn named_values(
    section: Option<&Element>,
    field: &'static str,
    item: &str,
    limit: usize,
) -> Result<Vec<(String, String)>, Flaw> {
    let mut named = Vec::new();
    for element in section.iter().flat_map(|section| section.named(item)) {
        if named.len() >= limit {
            return Err(Flaw::TooMany { field, limit });
        }
        let name = element.attribute("name").ok_or(Flaw::Malformed { field })?;
        named.push((name.to_owned(), element.text().to_owned()));
    }
    Ok(named)
}
