//! Desktops, and who is entitled to them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::config;
use crate::types::{DesktopId, Protocol, Target, UserName};

/// A desktop that users may open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desktop {
    /// Its id, which clients quote.
    pub id: DesktopId,
    /// The name shown to users.
    pub name: String,
    /// What it speaks and where; the first is the default. At least one.
    pub protocols: Vec<(Protocol, Target)>,
    /// Sessions that may be on it at one time; `None` is any number.
    pub max_sessions: Option<usize>,
}

/// All desktops, in the order of their ids, with the places of those that a user or a group may open.
pub(super) struct Desktops {
    all: Vec<Arc<Desktop>>,
    by_user: HashMap<UserName, Vec<usize>>,
    by_group: HashMap<String, Vec<usize>>,
}

impl Desktops {
    pub(super) fn new(configured: &BTreeMap<DesktopId, config::Desktop>) -> Self {
        let mut desktops = Self {
            all: Vec::with_capacity(configured.len()),
            by_user: HashMap::new(),
            by_group: HashMap::new(),
        };
        for (place, (id, desktop)) in configured.iter().enumerate() {
            desktops.all.push(Arc::new(Desktop {
                id: id.clone(),
                name: desktop.name.clone(),
                protocols: desktop.protocols.clone(),
                max_sessions: desktop.max_sessions,
            }));
            for user in &desktop.users {
                desktops.by_user.entry(user.clone()).or_default().push(place);
            }
            for group in &desktop.groups {
                desktops.by_group.entry(group.clone()).or_default().push(place);
            }
        }
        desktops
    }

    /// Those that a user of these groups may open, each once.
    pub(super) fn of(&self, user: &UserName, groups: &[String]) -> Vec<Arc<Desktop>> {
        let places: BTreeSet<usize> = self.lists(user, groups).flatten().copied().collect();
        places
            .into_iter()
            .filter_map(|place| self.all.get(place).cloned())
            .collect()
    }

    /// The one of that id, if a user of these groups may open it.
    pub(super) fn entitled(&self, user: &UserName, groups: &[String], id: &DesktopId) -> Option<Arc<Desktop>> {
        let place = self.place(id)?;
        let entitled = self
            .lists(user, groups)
            .any(|places| places.binary_search(&place).is_ok());
        entitled.then(|| self.all.get(place).cloned()).flatten()
    }

    pub(super) fn contains(&self, id: &DesktopId) -> bool {
        self.place(id).is_some()
    }

    fn place(&self, id: &DesktopId) -> Option<usize> {
        self.all.binary_search_by(|desktop| desktop.id.cmp(id)).ok()
    }

    /// The places that the name and each group open; each list ascends, as it was filled in order.
    fn lists<'a>(&'a self, user: &UserName, groups: &'a [String]) -> impl Iterator<Item = &'a Vec<usize>> {
        let by_group = groups.iter().filter_map(|group| self.by_group.get(group));
        self.by_user.get(user).into_iter().chain(by_group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desktop(users: &[&str], groups: &[&str]) -> config::Desktop {
        config::Desktop {
            name: "Desktop".to_owned(),
            protocols: vec![(
                Protocol::Rdp,
                Target {
                    host: "192.0.2.7".to_owned(),
                    port: 3389,
                },
            )],
            users: users.iter().map(|name| UserName::new(name)).collect(),
            groups: groups.iter().map(|&group| group.to_owned()).collect(),
            max_sessions: None,
            agent: config::Agent::System,
        }
    }

    fn desktops() -> Desktops {
        Desktops::new(&BTreeMap::from([
            (DesktopId::new("a"), desktop(&["ann"], &["staff"])),
            (DesktopId::new("b"), desktop(&[], &["staff", "lab"])),
            (DesktopId::new("c"), desktop(&["ben"], &[])),
            (DesktopId::new("d"), desktop(&[], &[])),
        ]))
    }

    fn ids(user: &str, groups: &[&str]) -> Vec<String> {
        let groups: Vec<_> = groups.iter().map(|&group| group.to_owned()).collect();
        let user = UserName::new(user);
        let desktops = desktops();
        let listed: Vec<_> = desktops.of(&user, &groups);
        for id in ["a", "b", "c", "d", "e"] {
            let id = DesktopId::new(id);
            let entitled = desktops.entitled(&user, &groups, &id);
            assert_eq!(
                entitled,
                listed.iter().find(|desktop| desktop.id == id).cloned(),
                "{id}"
            );
        }
        listed.iter().map(|desktop| desktop.id.to_string()).collect()
    }

    #[test]
    fn a_user_has_what_the_name_or_a_group_opens_each_once_and_in_order() {
        assert_eq!(ids("ann", &["lab", "staff"]), ["a", "b"]);
        assert_eq!(ids("ann", &[]), ["a"]);
        assert_eq!(ids("ben", &["lab"]), ["b", "c"]);
        assert_eq!(ids("cat", &[]), [] as [&str; 0]);
        assert_eq!(ids("cat", &["Staff", "nobody"]), [] as [&str; 0]);
    }
}
