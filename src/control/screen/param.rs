//! Parameters of a screen: `params/param/{name, readonly, values/value}`.

use std::fmt;

use crate::control::operation::Flaw;
use crate::control::xml::Element;

/// A parameter as a server sends it: a name and its values.
///
/// `Debug` shows no values, for a screen that is not known here may hold a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Whether the user may not change it.
    pub readonly: bool,
    /// Its values; those that are empty are neither read nor written.
    pub values: Vec<String>,
}

impl Param {
    /// Reads the parameters below `params` of an element.
    pub(in crate::control) fn read_all(parent: &Element) -> Vec<Self> {
        let read = |param: &Element| Self {
            name: param.optional_word("name").unwrap_or_default(),
            readonly: param.child("readonly").is_some(),
            values: values(param).map(str::to_owned).collect(),
        };
        params(parent).map(read).collect()
    }

    /// Writes parameters below `params` of an element.
    pub(in crate::control) fn write_all(list: &[Self], parent: &mut Element) {
        let mut params = Element::new("params");
        for param in list {
            params.push(param.write());
        }
        parent.push(params);
    }

    pub(super) fn write(&self) -> Element {
        element(&self.name, self.readonly, not_empty(&self.values))
    }
}

impl fmt::Debug for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = format_args!("{} values", self.values.len());
        f.debug_struct("Param")
            .field("name", &self.name)
            .field("readonly", &self.readonly)
            .field("values", &values)
            .finish()
    }
}

/// The first value of the parameter of that name which is not empty.
pub(super) fn text<'a>(screen: &'a Element, name: &str) -> Option<&'a str> {
    find(screen, name).and_then(|param| values(param).next())
}

/// All values of the parameter of that name.
pub(super) fn texts(screen: &Element, name: &str) -> Vec<String> {
    find(screen, name)
        .into_iter()
        .flat_map(values)
        .map(str::to_owned)
        .collect()
}

/// The first value of the parameter of that name as a number.
pub(super) fn number(screen: &Element, name: &'static str) -> Result<Option<i64>, Flaw> {
    let number = |text: &str| text.trim().parse().map_err(|_| Flaw::NotANumber { field: name });
    text(screen, name).map(number).transpose()
}

/// Whether the parameter of that name may not be changed.
pub(super) fn is_readonly(screen: &Element, name: &str) -> bool {
    find(screen, name).is_some_and(|param| param.child("readonly").is_some())
}

/// Appends a parameter with one value.
pub(super) fn push(params: &mut Element, name: &str, value: &str) {
    params.push(element(name, false, [value]));
}

/// Appends a parameter with one value, unless there is none or it is empty.
pub(super) fn push_optional(params: &mut Element, name: &str, value: Option<&str>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        push(params, name, value);
    }
}

/// Appends a parameter with those values that are not empty, unless there are none.
pub(super) fn push_all(params: &mut Element, name: &str, values: &[String]) {
    if not_empty(values).next().is_some() {
        params.push(element(name, false, not_empty(values)));
    }
}

fn not_empty(values: &[String]) -> impl Iterator<Item = &str> {
    values.iter().map(String::as_str).filter(|value| !value.is_empty())
}

/// A `param` element.
pub(super) fn element<'a>(name: &str, readonly: bool, values: impl IntoIterator<Item = &'a str>) -> Element {
    let mut param = Element::new("param");
    param.push_leaf("name", name);
    if readonly {
        param.push(Element::new("readonly"));
    }
    let mut list = Element::new("values");
    for value in values {
        list.push_leaf("value", value);
    }
    param.push(list);
    param
}

/// The `param` elements below `params`.
pub(super) fn params(parent: &Element) -> impl Iterator<Item = &Element> {
    parent
        .child("params")
        .into_iter()
        .flat_map(|params| params.named("param"))
}

/// The first `param` element of that name, in any case.
pub(super) fn find<'a>(screen: &'a Element, name: &str) -> Option<&'a Element> {
    params(screen).find(|param| {
        param
            .child("name")
            .is_some_and(|child| child.word().eq_ignore_ascii_case(name))
    })
}

/// The values of a `param` element that are not empty.
fn values(param: &Element) -> impl Iterator<Item = &str> {
    let list = param
        .child("values")
        .into_iter()
        .flat_map(|values| values.named("value"));
    list.map(Element::text).filter(|text| !text.is_empty())
}
