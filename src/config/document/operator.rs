//! The part of the document about the operator's side: the admin port, and how the node leaves the balancer's service.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::format::{Bind, Network, TimeSpan};

/// The operator's API over TLS, beside the socket.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Admin {
    /// Addresses with ports, usually port 9443 of a management address. None: only the socket.
    pub bind: Vec<Bind>,
    /// Whether `bind` may name every address of this node, those on the Internet side too.
    pub allow_any_address: bool,
    /// Certificate that is shown there. Left out: one that vouches for itself, made once and kept in `node.state_dir`.
    #[schemars(example = &"main")]
    pub certificate: Option<String>,
}

/// How the node leaves the balancer's service.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(in crate::config) struct Quiesce {
    /// How the balancer learns of it: "503" at the health check at once; "two-step": 404 first, then 503; or "agent": the
    /// health check stays 200, and the agent check says it.
    pub answer: QuiesceAnswer,
    /// How long 404 is answered before 503, with "two-step". Sign-ins in the middle are waited for beyond it.
    #[schemars(extend("x-minimum" = "1 s", "x-maximum" = "1 h"))]
    pub step: TimeSpan,
    /// What becomes of new sign-ins that still arrive: "serve" or "refuse".
    pub new_logins: NewLogins,
    /// Addresses with ports on which the agent check of HAProxy is answered. None: no agent check.
    pub agent: Vec<Bind>,
    /// Who may ask there, as addresses or networks. None: whoever reaches the address.
    pub agent_from: Vec<Network>,
}

/// How the balancer learns that the node is quiesced.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, PartialEq, Eq, Serialize)]
pub(in crate::config) enum QuiesceAnswer {
    /// 503 at once.
    #[serde(rename = "503")]
    Unavailable,
    /// 404, then 503.
    #[serde(rename = "two-step")]
    TwoStep,
    /// By the agent check.
    #[serde(rename = "agent")]
    Agent,
}

/// What becomes of new sign-ins while the node is quiesced.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum NewLogins {
    /// They are served.
    Serve,
    /// They are refused.
    Refuse,
}

impl Default for Quiesce {
    fn default() -> Self {
        Self {
            answer: QuiesceAnswer::Unavailable,
            step: TimeSpan::seconds(30),
            new_logins: NewLogins::Serve,
            agent: Vec::new(),
            agent_from: Vec::new(),
        }
    }
}
