//! A node of the fleet, as the operator reaches it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{Method, StatusCode};
use serde::Serialize;
use tokio::time::sleep;

use crate::admin::api::{NodeConfiguration, NodeStatus, Quiesce, Upgrade, UpgradeCheck, Upgraded};
use crate::cli::Exit;
use crate::cli::api::{CallFault, NodeArguments, NodeUrl, call, call_within};
use crate::cli::upgrade::PATIENCE;
use crate::client::{Endpoint, Trust};
use crate::config::inventory::{HeldTo, InventoryNode, Login};
use crate::types::Thumbprint;

/// A node of the inventory.
#[derive(Debug)]
pub(super) struct Member {
    /// Its name, as it calls itself.
    pub(super) name: String,
    /// Where its clients reach it.
    pub(super) front: Option<Front>,
    /// The program that it is to run.
    pub(super) binary: Option<PathBuf>,
    /// The command that restarts it; empty if its supervisor does.
    pub(super) restart: Vec<String>,
    url: NodeUrl,
    admin: NodeArguments,
}

/// Where the clients of a node reach it.
#[derive(Debug)]
pub(super) struct Front {
    pub(super) endpoint: Endpoint,
    pub(super) trust: Trust,
    /// Who signs in to test it.
    pub(super) login: Option<Login>,
}

/// Why a node does not do what it was asked to.
#[derive(Debug, thiserror::Error)]
pub(super) enum MemberFault {
    /// The call failed.
    #[error(transparent)]
    Call(CallFault),
    /// The node does not know the call.
    #[error(
        "It does not know {0}: it is of an earlier version, which `fleet` cannot do that with. Upgrade it on the node \
         itself: portcullis upgrade."
    )]
    UnknownCall(String),
    /// What answers knows nothing of a node.
    #[error(
        "What answers at {0} is not the admin port of a node, or its version is too old for `fleet`. Correct `admin` of the \
         inventory, or upgrade it on the node itself: portcullis upgrade."
    )]
    NoNode(NodeUrl),
    /// Another node answers.
    #[error("The node at this address calls itself {0}. Correct `name` or `admin` of the inventory.")]
    Misnamed(String),
    /// What the inventory says of it cannot be used.
    #[error("{0}")]
    Inventory(String),
}

impl MemberFault {
    /// The exit code that says so.
    pub(super) fn exit(&self) -> Exit {
        match self {
            Self::Call(fault) => fault.exit(),
            Self::UnknownCall(_) | Self::NoNode(_) | Self::Misnamed(_) | Self::Inventory(_) => Exit::Invalid,
        }
    }

    /// Whether the node does not know the call: it is of an earlier version.
    pub(super) fn is_unknown_call(&self) -> bool {
        matches!(self, Self::UnknownCall(_))
    }

    /// Whether the same call may go well a moment later.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Call(fault) if fault.may_pass())
    }
}

impl Member {
    /// A node as the inventory has it. Blocks on the file system.
    ///
    /// # Errors
    /// An address or a file of authorities that cannot be used.
    pub(super) fn new(node: InventoryNode) -> Result<Self, MemberFault> {
        let unusable = |what: &str, why: &dyn std::fmt::Display| {
            MemberFault::Inventory(format!("{}: `{what}` cannot be used: {why}.", node.name))
        };
        let url = node.admin.parse::<NodeUrl>().map_err(|why| unusable("admin", &why))?;
        let (ca, thumbprint) = parts(node.admin_trust.clone());
        let front = match &node.front {
            None => None,
            Some(front) => Some(Front {
                endpoint: front.address.parse().map_err(|why| unusable("url", &why))?,
                trust: trust(&front.trust).map_err(|why| unusable("url_ca", &why))?,
                login: front.login.clone(),
            }),
        };
        Ok(Self {
            name: node.name.to_string(),
            front,
            url: url.clone(),
            admin: NodeArguments {
                socket: PathBuf::new(),
                node: Some(url),
                token_file: Some(node.token_file),
                ca,
                thumbprint,
            },
            binary: node.binary,
            restart: node.restart,
        })
    }

    /// How the node is.
    pub(super) async fn status(&self) -> Result<NodeStatus, MemberFault> {
        match self.ask(Method::GET, "/api/v1/node", None::<&()>).await {
            Err(MemberFault::UnknownCall(_)) => Err(MemberFault::NoNode(self.url.clone())),
            outcome => self.named(outcome?),
        }
    }

    /// Takes the node out of service, or puts it back.
    pub(super) async fn quiesce(&self, quiesced: bool) -> Result<NodeStatus, MemberFault> {
        let wanted = Quiesce { quiesced };
        self.named(self.ask(Method::PUT, "/api/v1/node/quiesce", Some(&wanted)).await?)
    }

    /// The settings in force.
    pub(super) async fn configuration(&self) -> Result<NodeConfiguration, MemberFault> {
        self.ask(Method::GET, "/api/v1/node/configuration", None::<&()>).await
    }

    /// Whether a program could take over.
    pub(super) async fn check(&self, binary: &Path) -> Result<UpgradeCheck, MemberFault> {
        self.ask(Method::POST, "/api/v1/node/upgrade/check", Some(&upgrade(binary)))
            .await
    }

    /// Has a program take over.
    pub(super) async fn hand_over(&self, binary: &Path) -> Result<Upgraded, MemberFault> {
        let path = "/api/v1/node/upgrade";
        let outcome = call_within(PATIENCE, &self.admin, Method::POST, path, Some(&upgrade(binary))).await;
        outcome.map_err(|fault| known(fault, &Method::POST, path))
    }

    /// Drains and ends the node's process.
    pub(super) async fn end(&self) -> Result<(), MemberFault> {
        self.ask::<Option<()>>(Method::POST, "/api/v1/node/end", None::<&()>)
            .await
            .map(drop)
    }

    /// The same node must answer that the inventory means: whoever takes out another one takes out two.
    fn named(&self, status: NodeStatus) -> Result<NodeStatus, MemberFault> {
        if status.name == self.name {
            Ok(status)
        } else {
            Err(MemberFault::Misnamed(status.name))
        }
    }

    async fn ask<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<T, MemberFault> {
        let outcome = match call(&self.admin, method.clone(), path, body).await {
            // A process that hands over may take a connection and close it. Each of these calls can be made twice.
            Err(fault) if fault.may_pass() => {
                sleep(A_MOMENT).await;
                call(&self.admin, method.clone(), path, body).await
            }
            outcome => outcome,
        };
        outcome.map_err(|fault| known(fault, &method, path))
    }
}

/// The fault of a call that is made of a node itself, and not of something there: it is refused so when nobody knows it.
fn known(fault: CallFault, method: &Method, path: &str) -> MemberFault {
    if matches!(&fault, CallFault::Refused { status, .. } if UNKNOWN.contains(status)) {
        return MemberFault::UnknownCall(format!("{method} {path}"));
    }
    MemberFault::Call(fault)
}

fn upgrade(binary: &Path) -> Upgrade {
    Upgrade {
        binary: binary.to_owned(),
    }
}

fn parts(held_to: HeldTo) -> (Option<PathBuf>, Option<Thumbprint>) {
    match held_to {
        HeldTo::System => (None, None),
        HeldTo::Authorities(file) => (Some(file), None),
        HeldTo::Thumbprint(thumbprint) => (None, Some(thumbprint)),
    }
}

fn trust(held_to: &HeldTo) -> Result<Trust, crate::client::AuthorityFault> {
    match held_to {
        HeldTo::System => Ok(Trust::system(None)),
        HeldTo::Authorities(file) => Trust::authorities(file),
        HeldTo::Thumbprint(thumbprint) => Ok(Trust::thumbprint(*thumbprint)),
    }
}

const UNKNOWN: [StatusCode; 2] = [StatusCode::NOT_FOUND, StatusCode::METHOD_NOT_ALLOWED];
const A_MOMENT: Duration = Duration::from_millis(500);
/// For a node that does not answer while something else goes on.
pub(super) const SILENCE: Duration = Duration::from_secs(60);
