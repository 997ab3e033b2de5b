//! The inventory: the nodes of a fleet, and how the operator reaches each of them.

use std::path::{Path, PathBuf};

use super::document::inventory as document;
use super::environment::{Environment, Process};
use super::read::{check_in, text_of};
use super::report::Faults;
use crate::types::{NodeName, Secret, Thumbprint};

/// A whole checked inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The nodes, in the order in which they are upgraded; at least one.
    pub nodes: Vec<InventoryNode>,
}

/// A node of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InventoryNode {
    /// Its name.
    pub name: NodeName,
    /// Its admin port: `https://HOST[:PORT]`.
    pub admin: String,
    /// File that holds the token.
    pub token_file: PathBuf,
    /// What the certificate of the admin port is held to.
    pub admin_trust: HeldTo,
    /// Where its clients reach it.
    pub front: Option<Front>,
    /// The program that it is to run, as it finds it.
    pub binary: Option<PathBuf>,
    /// The command that restarts it, with its arguments; empty if its supervisor does.
    pub restart: Vec<String>,
}

/// What a certificate is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeldTo {
    /// The authorities of the system.
    System,
    /// Those in a PEM file.
    Authorities(PathBuf),
    /// This very certificate.
    Thumbprint(Thumbprint),
}

/// Where the clients of a node reach it, and who tests that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Front {
    /// `HOST[:PORT]`.
    pub address: String,
    /// What its certificate is held to.
    pub trust: HeldTo,
    /// Who signs in.
    pub login: Option<Login>,
}

/// Who signs in to test a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
    /// The user's domain.
    pub domain: Option<String>,
}

/// Reads and checks the inventory at `path`, and the files that it names. Blocks. Returns it with the warnings.
///
/// # Errors
///
/// All faults at once, with the warnings among them.
pub fn load(path: &Path) -> Result<(Inventory, Faults), Faults> {
    parse(&text_of(path)?, path, &Process)
}

/// Checks the inventory in `text`, which stands in `file`: relative paths start at its folder.
///
/// # Errors
///
/// As [`load`].
pub fn parse(text: &str, file: &Path, environment: &dyn Environment) -> Result<(Inventory, Faults), Faults> {
    check_in(
        text,
        file,
        environment,
        &document::SCHEMA,
        |check, document: document::Inventory, _| Some(check.inventory(document)),
    )
}
