//! Users, desktops, and who may use what.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::config::document;
use crate::config::nearest::nearest;
use crate::config::password::{self, Cost};
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::config::{Agent, Desktop, Directory, User};
use crate::types::{DesktopId, Protocol, Target, UserName};

impl Check<'_> {
    /// The users and desktops that are whole. `signs_in`: whether there is anywhere to sign in.
    pub(super) fn directory(&mut self, directory: document::Directory, signs_in: bool) -> Directory {
        let names = self.user_names(&directory);
        let groups: BTreeSet<String> = directory
            .user
            .values()
            .flat_map(|user| user.groups.iter().cloned())
            .collect();
        for (id, desktop) in &directory.desktop {
            self.entitlements(
                desktop,
                names.as_ref(),
                &groups,
                &SettingPath::of(&["directory", "desktop", id]),
            );
        }
        if signs_in {
            self.idle_users(&directory);
        }
        let mut built = Directory::default();
        let mut costs = Vec::new();
        for (name, user) in directory.user {
            let path = SettingPath::of(&["directory", "user", &name]);
            if let Some(user) = self.user(user, &path) {
                if let Ok(cost) = password::judge(user.password_hash.expose())
                    && !user.disabled
                {
                    costs.push((path.key("password_hash"), cost));
                }
                built.users.insert(UserName::new(&name), user);
            }
        }
        self.uncommon_costs(costs);
        for (id, desktop) in directory.desktop {
            let path = SettingPath::of(&["directory", "desktop", &id]);
            if let Some(desktop) = self.desktop(&id, desktop, &path) {
                built.desktops.insert(DesktopId::new(id), desktop);
            }
        }
        built
    }

    /// The names of all users, sound or not, as they compare; `None` if they are not known.
    fn user_names(&mut self, directory: &document::Directory) -> Option<BTreeSet<String>> {
        let table = SettingPath::of(&["directory", "user"]);
        let mut first: BTreeMap<UserName, &String> = BTreeMap::new();
        for name in directory.user.keys() {
            if let Some(other) = first.insert(UserName::new(name), name) {
                self.note(
                    table.key(name),
                    Problem::SameUser {
                        other: table.key(other),
                    },
                );
            }
        }
        let names = self.names(&table, directory.user.keys().cloned())?;
        Some(
            names
                .iter()
                .map(|name| UserName::new(name).as_str().to_owned())
                .collect(),
        )
    }

    /// Warns of hashes whose cost tells that the user exists.
    fn uncommon_costs(&mut self, costs: Vec<(SettingPath, Cost)>) {
        let usual = password::most_common(costs.iter().map(|(_, cost)| *cost));
        for (path, cost) in costs {
            if cost != usual {
                self.note(path, Problem::UncommonCost { cost, usual });
            }
        }
    }

    fn user(&mut self, user: document::User, path: &SettingPath) -> Option<User> {
        Some(User {
            password_hash: self.password_hash(user.password_hash?, &path.key("password_hash"))?,
            groups: user.groups,
            disabled: user.disabled,
            must_change_password: user.must_change_password,
        })
    }

    fn desktop(&mut self, id: &str, desktop: document::Desktop, path: &SettingPath) -> Option<Desktop> {
        let host = desktop.address?.0;
        let ports = desktop.protocols?;
        let agent = self.agent(desktop.agent, &path.key("agent"));
        let protocols = self.in_order_written(&ports, &path.key("protocols"));
        Some(Desktop {
            name: desktop.name.unwrap_or_else(|| id.to_owned()),
            protocols: protocols
                .into_iter()
                .map(|(is, port)| {
                    (
                        is,
                        Target {
                            host: host.clone(),
                            port,
                        },
                    )
                })
                .collect(),
            users: desktop.users.iter().map(|name| UserName::new(name)).collect(),
            groups: desktop.groups,
            max_sessions: desktop.max_sessions,
            agent,
        })
    }

    fn agent(&mut self, agent: document::Agent, path: &SettingPath) -> Agent {
        let ca = agent.ca.and_then(|file| self.file(&file, &path.key("ca"), false));
        let name = agent.name.map(|name| name.0);
        match (agent.tls, agent.thumbprint) {
            (false, _) => Agent::Plain,
            (true, Some(thumbprint)) => Agent::Thumbprint(thumbprint.0),
            (true, None) if ca.is_none() && name.is_none() => Agent::System,
            (true, None) => Agent::Certificate { ca, name },
        }
    }

    /// The first is the default, so their order has a meaning that TOML does not keep.
    fn in_order_written(&self, ports: &document::Ports, path: &SettingPath) -> Vec<(Protocol, u16)> {
        let all = [
            (Protocol::Rdp, "rdp", ports.rdp),
            (Protocol::Vnc, "vnc", ports.vnc),
            (Protocol::Ssh, "ssh", ports.ssh),
            (Protocol::Tcp, "tcp", ports.tcp),
            (Protocol::Blast, "blast", ports.blast),
            (Protocol::Pcoip, "pcoip", ports.pcoip),
        ];
        let mut placed: Vec<_> = all
            .into_iter()
            .filter_map(|(protocol, key, port)| Some((self.places.offset(&path.key(key)), protocol, port?)))
            .collect();
        placed.sort_by_key(|(offset, ..)| *offset);
        placed.into_iter().map(|(_, protocol, port)| (protocol, port)).collect()
    }

    fn entitlements(
        &mut self,
        desktop: &document::Desktop,
        names: Option<&BTreeSet<String>>,
        groups: &BTreeSet<String>,
        path: &SettingPath,
    ) {
        for (index, user) in desktop.users.iter().enumerate() {
            let name = UserName::new(user);
            self.reference("user", name.as_str(), names, &path.key("users"), index);
        }
        let known = !self
            .places
            .lost_some(&SettingPath::of(&["directory", "user"]), "groups");
        for (index, group) in desktop.groups.iter().enumerate() {
            if known && !groups.contains(group) {
                let nearest = nearest(group, &Vec::from_iter(groups));
                let problem = Problem::EmptyGroup {
                    name: group.clone(),
                    nearest,
                };
                self.note(self.places.element(&path.key("groups"), index), problem);
            }
        }
        let lost = ["users", "groups"]
            .iter()
            .any(|list| self.places.lost_part(&path.key(list)));
        if desktop.users.is_empty() && desktop.groups.is_empty() && !lost {
            self.note(path.clone(), Problem::NobodyEntitled);
        }
    }

    /// Notes users who may use nothing, and a directory without users.
    fn idle_users(&mut self, directory: &document::Directory) {
        let table = SettingPath::of(&["directory"]);
        let (users, all) = (table.key("user"), table.key("desktop"));
        if directory.user.is_empty() && self.places.lost_names(&users).next().is_none() && !self.places.lost(&users) {
            self.note(table, Problem::NoUser);
            return;
        }
        if self.places.lost_some(&all, "users") || self.places.lost_some(&all, "groups") {
            return;
        }
        let desktops = directory.desktop.values();
        let entitled: BTreeSet<UserName> = desktops
            .clone()
            .flat_map(|desktop| &desktop.users)
            .map(|name| UserName::new(name))
            .collect();
        let groups: BTreeSet<&String> = desktops.flat_map(|desktop| &desktop.groups).collect();
        for (name, user) in &directory.user {
            let path = users.key(name);
            let by_group = user.groups.iter().any(|group| groups.contains(group));
            let known = !self.places.lost_part(&path.key("groups"));
            if known && !by_group && !entitled.contains(&UserName::new(name)) {
                self.note(path, Problem::NoDesktop);
            }
        }
    }
}
