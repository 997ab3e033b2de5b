//! The document of an inventory: the nodes of a fleet, as they are written.

use std::path::PathBuf;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::Deserialize;

use super::format::{BaseUrl, Name, Path, Thumbprint};
use super::json_schema;

/// The nodes of a fleet, and how the operator reaches them.
///
/// Relative paths start at the folder of this file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[schemars(title = "Portcullis inventory")]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Inventory {
    /// The nodes, in the order in which they are upgraded.
    #[schemars(required, length(min = 1, max = 256))]
    pub node: Option<Vec<Node>>,
}

/// A node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Node {
    /// Its name, as its own configuration has it.
    #[schemars(required, example = "gw-1")]
    pub name: Option<Name>,
    /// Its admin port.
    #[schemars(required, example = "https://gw-1.example.com:9443")]
    pub admin: Option<BaseUrl>,
    /// File that holds a token, and nothing else: of scope `read` to look, `operate` to quiesce, `admin` to upgrade.
    #[schemars(required, example = "gw-1.token")]
    pub token_file: Option<PathBuf>,
    /// Authorities that the certificate of the admin port is held to. Left out: the system's.
    pub ca: Option<PathBuf>,
    /// Thumbprint that the certificate of the admin port has to have.
    pub thumbprint: Option<Thumbprint>,
    /// Where clients reach this very node, past the balancer: the way that is tested.
    #[schemars(example = "https://gw-1.example.com")]
    pub url: Option<BaseUrl>,
    /// Authorities that the certificate of the node is held to there. Left out: the system's.
    pub url_ca: Option<PathBuf>,
    /// Thumbprint that the certificate of the node has to have there.
    pub url_thumbprint: Option<Thumbprint>,
    /// The program that the node is to run, as the node finds it.
    #[schemars(example = "/usr/local/bin/portcullis")]
    pub binary: Option<Path>,
    /// Command, run here, that restarts the node. Left out: the node is left to its supervisor once it is empty.
    #[schemars(length(min = 1), example = ["ssh", "gw-1", "systemctl", "restart", "portcullis"])]
    pub restart: Option<Vec<String>>,
    /// Who signs in to test the node.
    pub login: Option<Login>,
}

/// Who signs in to test a node.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct Login {
    /// The user.
    #[schemars(required, length(min = 1), example = &"probe")]
    pub user: Option<String>,
    /// File that holds the password. A newline at its end does not count.
    #[schemars(required, example = "probe.password")]
    pub password_file: Option<PathBuf>,
    /// The user's domain.
    pub domain: Option<String>,
}

/// The schema, made once.
pub(in crate::config) static SCHEMA: LazyLock<serde_json::Value> = LazyLock::new(json_schema::of::<Inventory>);
