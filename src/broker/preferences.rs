//! What a user has chosen, and how much of it is kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::types::DesktopId;

/// Why preferences are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PreferenceFault {
    /// The user is unknown or disabled.
    #[error("there is no such user")]
    UnknownUser,
    /// The user may not open that desktop, or there is none.
    #[error("the user is not entitled to the desktop")]
    NotEntitled,
    /// A name is empty, long, or has control characters.
    #[error("the name of a preference is empty, longer than 128 bytes, or has control characters")]
    Name,
    /// A value is long or has control characters.
    #[error("the value of a preference is longer than 2048 bytes or has control characters")]
    Value,
    /// Too many names.
    #[error("there are more than 128 preferences in one place")]
    TooMany,
    /// Too much text.
    #[error("the preferences of the user exceed 16 KiB")]
    TooMuch,
}

/// A user's preferences: for all desktops, and for each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Preferences {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    everywhere: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    desktops: BTreeMap<String, BTreeMap<String, String>>,
}

impl Preferences {
    pub(super) fn is_empty(&self) -> bool {
        self.everywhere.is_empty() && self.desktops.is_empty()
    }

    /// Those of one place, in the order of their names.
    pub(super) fn list(&self, desktop: Option<&DesktopId>) -> Vec<(String, String)> {
        let place = match desktop {
            None => Some(&self.everywhere),
            Some(id) => self.desktops.get(id.as_str()),
        };
        let pairs = place.into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// These with all changes made. Desktops that do not exist make room if room is needed.
    pub(super) fn merged(
        &self,
        desktop: Option<&DesktopId>,
        changes: Vec<(String, String)>,
        exists: impl Fn(&DesktopId) -> bool,
    ) -> Result<Self, PreferenceFault> {
        let mut merged = self.clone();
        let place = match desktop {
            None => &mut merged.everywhere,
            Some(id) => merged.desktops.entry(id.as_str().to_owned()).or_default(),
        };
        for (name, value) in changes {
            check(&name, &value)?;
            if value.is_empty() {
                place.remove(&name);
            } else {
                place.insert(name, value);
            }
        }
        if place.len() > MOST {
            return Err(PreferenceFault::TooMany);
        }
        merged.desktops.retain(|_, place| !place.is_empty());
        if merged.bytes() > LARGEST {
            merged.desktops.retain(|id, _| exists(&DesktopId::new(id.as_str())));
        }
        if merged.bytes() > LARGEST {
            return Err(PreferenceFault::TooMuch);
        }
        Ok(merged)
    }

    fn bytes(&self) -> usize {
        let of = |place: &BTreeMap<String, String>| -> usize {
            place.iter().map(|(name, value)| name.len() + value.len()).sum()
        };
        let desktops = self.desktops.iter().map(|(id, place)| id.len() + of(place));
        of(&self.everywhere) + desktops.sum::<usize>()
    }
}

fn check(name: &str, value: &str) -> Result<(), PreferenceFault> {
    if name.is_empty() || name.len() > LONGEST_NAME || name.contains(char::is_control) {
        return Err(PreferenceFault::Name);
    }
    let forbidden = |c: char| c.is_control() && !matches!(c, '\t' | '\n' | '\r');
    if value.len() > LONGEST_VALUE || value.contains(forbidden) {
        return Err(PreferenceFault::Value);
    }
    Ok(())
}

/// Bytes of a name.
const LONGEST_NAME: usize = 128;
/// Bytes of a value.
const LONGEST_VALUE: usize = 2048;
/// Preferences in one place.
const MOST: usize = 128;
/// Bytes of all names, values and desktop ids of a user.
const LARGEST: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    fn set(name: &str, value: &str) -> Result<Preferences, PreferenceFault> {
        Preferences::default().merged(None, vec![pair(name, value)], |_| true)
    }

    #[test]
    fn changes_are_merged_in_their_place_and_an_empty_value_removes() {
        let office = DesktopId::new("office");
        let first = vec![
            pair("screenSize", "Full"),
            pair("protocol", "RDP"),
            pair("screenSize", "Small"),
        ];
        let one = Preferences::default().merged(Some(&office), first, |_| true).unwrap();
        let two = one
            .merged(None, vec![pair("lastUsedDesktop", "office")], |_| true)
            .unwrap();
        assert_eq!(
            two.list(Some(&office)),
            [pair("protocol", "RDP"), pair("screenSize", "Small")]
        );
        assert_eq!(two.list(None), [pair("lastUsedDesktop", "office")]);
        assert_eq!(two.list(Some(&DesktopId::new("lab"))), []);

        let removed = vec![pair("screenSize", ""), pair("protocol", ""), pair("never", "")];
        let three = two.merged(Some(&office), removed, |_| true).unwrap();
        let four = three.merged(None, vec![pair("lastUsedDesktop", "")], |_| true).unwrap();
        assert!(four.is_empty());
    }

    #[test]
    fn names_and_values_have_bounds() {
        assert!(set(&"n".repeat(LONGEST_NAME), &"v".repeat(LONGEST_VALUE)).is_ok());
        assert!(set("note", "two\r\nlines\tand a tab").is_ok());
        for name in ["", "a\nb", &"n".repeat(LONGEST_NAME + 1)] {
            assert_eq!(set(name, "v"), Err(PreferenceFault::Name), "{name:?}");
        }
        for value in ["\u{0}", "\u{1b}[2J", &"v".repeat(LONGEST_VALUE + 1)] {
            assert_eq!(set("n", value), Err(PreferenceFault::Value), "{value:?}");
        }
    }

    #[test]
    fn a_place_has_a_bound_that_removals_make_room_under() {
        let full = (0..MOST).map(|n| pair(&format!("n{n}"), "v")).collect();
        let full = Preferences::default().merged(None, full, |_| true).unwrap();
        let refused = full.merged(None, vec![pair("more", "v")], |_| true);
        assert_eq!(refused, Err(PreferenceFault::TooMany));
        assert!(
            full.merged(None, vec![pair("more", "v"), pair("n0", "")], |_| true)
                .is_ok()
        );
    }

    #[test]
    fn a_user_has_a_bound_and_desktops_that_are_gone_make_room() {
        let value = "v".repeat(LONGEST_VALUE - 3);
        let mut kept = Preferences::default();
        for n in 0..LARGEST / LONGEST_VALUE {
            let id = DesktopId::new(format!("d{n}"));
            kept = kept.merged(Some(&id), vec![pair("n", &value)], |_| true).unwrap();
        }
        let one_more = kept.merged(None, vec![pair("n", "v")], |_| true);
        assert_eq!(one_more, Err(PreferenceFault::TooMuch));
        let change = vec![pair("n", &value)];
        let roomier = kept
            .merged(Some(&DesktopId::new("dx")), change, |id| id.as_str() != "d3")
            .unwrap();
        assert_eq!(roomier.list(Some(&DesktopId::new("d3"))), []);
        assert_eq!(roomier.list(Some(&DesktopId::new("d4"))).len(), 1);
        assert!(roomier.bytes() <= LARGEST);
    }
}
