//! The inventory of a fleet.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::Check;
use crate::config::document::inventory as document;
use crate::config::inventory::{Front, HeldTo, Inventory, InventoryNode, Login};
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::types::Thumbprint;

impl Check<'_> {
    /// Checks the nodes. What comes of it is whole only if no error was found.
    pub(in crate::config) fn inventory(&mut self, document: document::Inventory) -> Inventory {
        let list = SettingPath::of(&["node"]);
        let mut names = BTreeSet::new();
        let mut nodes = Vec::new();
        for (index, node) in document.node.unwrap_or_default().into_iter().enumerate() {
            let path = self.places.element(&list, index);
            if let Some(name) = &node.name
                && !names.insert(name.0.clone())
            {
                let value = name.0.to_string();
                self.note(path.key("name"), Problem::Repeated { value });
            }
            nodes.extend(self.node_of_fleet(node, &path));
        }
        Inventory { nodes }
    }

    fn node_of_fleet(&mut self, node: document::Node, path: &SettingPath) -> Option<InventoryNode> {
        let token = node.token_file.as_ref();
        let token_file = token.and_then(|file| self.file(file, &path.key("token_file"), true));
        let admin_trust = self.held_to(
            (node.ca, node.thumbprint.map(|print| print.0)),
            path,
            ["ca", "thumbprint"],
        );
        let front_trust = self.held_to(
            (node.url_ca, node.url_thumbprint.map(|print| print.0)),
            path,
            ["url_ca", "url_thumbprint"],
        );
        let login = node.login.and_then(|login| self.login(login, &path.key("login")));
        if node.url.is_none() && !self.places.lost(&path.key("url")) {
            for needs in ["url_ca", "url_thumbprint", "login"] {
                if self.places.has(&path.key(needs)) {
                    let example = "url = \"https://gw-1.example.com\"";
                    self.missing(&path.key("url"), example);
                }
            }
        }
        let front = node.url.map(|url| Front {
            address: url.0.trim_start_matches("https://").to_owned(),
            trust: front_trust,
            login,
        });
        Some(InventoryNode {
            name: node.name?.0,
            admin: node.admin?.0,
            token_file: token_file?,
            admin_trust,
            front,
            binary: node.binary.map(|path| path.0),
            restart: node.restart.unwrap_or_default(),
        })
    }

    fn held_to(
        &mut self,
        (ca, thumbprint): (Option<PathBuf>, Option<Thumbprint>),
        path: &SettingPath,
        names: [&'static str; 2],
    ) -> HeldTo {
        let file = ca.and_then(|file| self.file(&file, &path.key(names[0]), false));
        match (file, thumbprint) {
            (Some(_), Some(thumbprint)) => {
                self.not_with(path.key(names[0]), names[1]);
                HeldTo::Thumbprint(thumbprint)
            }
            (None, Some(thumbprint)) => HeldTo::Thumbprint(thumbprint),
            (Some(file), None) => HeldTo::Authorities(file),
            (None, None) => HeldTo::System,
        }
    }

    fn login(&mut self, login: document::Login, path: &SettingPath) -> Option<Login> {
        let password = self.password_in(&login.password_file?, &path.key("password_file"));
        Some(Login {
            user: login.user?,
            password: password?,
            domain: login.domain,
        })
    }
}
