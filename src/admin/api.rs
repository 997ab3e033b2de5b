//! The documents of the admin API: what the node sends and the CLI reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// How the node is: `GET /api/v1/node`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node's name.
    pub name: String,
    /// The program's version.
    pub version: String,
    /// For how long the program runs, in seconds.
    #[serde(default)]
    pub uptime_seconds: u64,
    /// When it started (ISO 8601, UTC): another process has another time, to the millisecond.
    #[serde(default)]
    pub started: String,
    /// Where the file of the running program is; absent if another one is in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<PathBuf>,
    /// A hash of the settings in force, but for those that each node of a fleet has for itself.
    #[serde(default)]
    pub configuration: String,
    /// `starting`, `serving`, `quiesced` or `draining`.
    pub state: String,
    /// What the balancer's health check is answered: 200, 404 or 503.
    pub health: u16,
    /// How it is quiesced; absent if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesced: Option<Quiesced>,
    /// Live sessions.
    pub sessions: usize,
    /// As many as there may be; 0 if it is not said.
    #[serde(default)]
    pub sessions_max: usize,
    /// Open tunnels.
    pub tunnels: usize,
    /// Sign-ins in the middle.
    pub pending_logins: usize,
    /// Open client connections.
    pub connections: usize,
    /// When the last live session will have ended at the latest, in seconds from now; absent without sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_in_seconds: Option<u64>,
    /// Secondary connections turned away and errors of the web, as they stand at `/metrics`.
    #[serde(default)]
    pub errors: u64,
    /// Whether another process can take over; absent if it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub can_hand_over: Option<bool>,
    /// What came of the last upgrade.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_upgrade: Option<LastUpgrade>,
}

/// What came of the last upgrade in place.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct LastUpgrade {
    /// When (ISO 8601, UTC).
    pub at: String,
    /// The program that was to take over.
    pub program: PathBuf,
    /// Why it did not; absent if it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The configuration in force: `GET /api/v1/node/configuration`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct NodeConfiguration {
    /// The file that it was read from.
    pub file: PathBuf,
    /// As in [`NodeStatus`].
    pub fingerprint: String,
    /// Every setting that is written, by its path. Secrets are not told.
    pub settings: BTreeMap<String, String>,
}

/// How a node is quiesced.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Quiesced {
    /// Since when (ISO 8601, UTC).
    pub since: String,
    /// For how long by now.
    pub seconds: u64,
    /// How the balancer learns of it: `503`, `two-step` or `agent`.
    pub answer: String,
    /// When 404 becomes 503 at the latest, in seconds from now; absent if it has, or if there are no two steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ends_in_seconds: Option<u64>,
    /// Whether new sign-ins are refused.
    pub refuses_logins: bool,
}

/// The body of `PUT /api/v1/node/quiesce`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quiesce {
    /// Whether the node is to be out of service.
    pub quiesced: bool,
}

/// The body of `POST /api/v1/node/upgrade`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The program that is to take over, as the node finds it.
    pub binary: PathBuf,
}

/// The answer to it, once the new process serves.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Upgraded {
    /// The id of the process that serves.
    pub pid: u32,
}

/// Whether a program could take over: the answer to `POST /api/v1/node/upgrade/check`, whose body is an [`Upgrade`].
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct UpgradeCheck {
    /// The program's version.
    pub version: String,
    /// SHA-256 of its file, in hexadecimal digits.
    pub sha256: String,
    /// The same of the program that runs.
    pub running_sha256: String,
    /// What the program finds wrong with the configuration as it stands on the disk; empty if it takes it.
    pub faults: Vec<String>,
}

/// The live sessions: `GET /api/v1/sessions`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct SessionList {
    /// One a session, oldest first.
    pub sessions: Vec<Session>,
}

/// A live session.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Session {
    /// The session's id, as it stands in the log.
    pub id: String,
    /// The user.
    pub user: String,
    /// The client's address at sign-in.
    pub client: String,
    /// Desktops that were launched, with their protocols.
    pub desktops: Vec<Launched>,
    /// Whether a tunnel is open.
    pub tunnel: bool,
    /// When the session began (ISO 8601, UTC).
    pub since: String,
    /// When it ends at the latest (ISO 8601, UTC).
    pub ends: String,
    /// Bytes from the client to desktops.
    pub bytes_in: u64,
    /// Bytes from desktops to the client.
    pub bytes_out: u64,
}

/// A desktop that a session launched.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Launched {
    /// The desktop's id.
    pub desktop: String,
    /// What it speaks.
    pub protocol: String,
}

/// Secondary connections that were turned away since the node started: `GET /api/v1/refusals`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct RefusalList {
    /// One for each secondary and reason that occurred.
    pub refusals: Vec<RefusalCount>,
}

/// How often a secondary was turned away for a reason.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct RefusalCount {
    /// The code, as it stands in the log.
    pub reason: String,
    /// Of which secondary: `tunnel`, `blast`, `pcoip`, `quic`, `rdp` or `udp`.
    pub secondary: String,
    /// How often.
    pub count: u64,
    /// What the reason means.
    pub words: String,
}

/// What the node finds wrong around it: `GET /api/v1/findings`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct FindingList {
    /// Those that hold first, the latest first; then those that held.
    pub findings: Vec<Finding>,
}

/// Something wrong around the node.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Finding {
    /// The code, as it stands in the log.
    pub code: String,
    /// Whether it holds.
    pub holds: bool,
    /// When it began (ISO 8601, UTC).
    pub since: String,
    /// When it was last seen (ISO 8601, UTC).
    pub last: String,
    /// How often it was seen since it began.
    pub count: u64,
    /// The cause and the remedy.
    pub words: String,
}

/// Where the external addresses lead: `GET /api/v1/external`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ExternalList {
    /// One for each that is configured, as it was when it was last asked.
    pub external: Vec<External>,
}

/// Where one external address leads.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct External {
    /// The setting, such as `blast.external_url`.
    pub setting: String,
    /// The address as clients are told it.
    pub address: String,
    /// Whether nothing speaks against it.
    pub good: bool,
    /// The code, as it stands in the log.
    pub outcome: String,
    /// When it was asked (ISO 8601, UTC).
    pub asked: String,
    /// What was there.
    pub words: String,
    /// What to do; empty if it is good.
    pub remedy: String,
}

/// The pools in use: `GET /api/v1/pools`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct PoolList {
    /// One for each pool and backend by which a rule uses it.
    pub pools: Vec<Pool>,
    /// The names of targets.
    pub names: Vec<Name>,
}

/// A pool as one backend speaks to it.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Pool {
    /// The pool's name.
    pub pool: String,
    /// The backend's name; absent for the default one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Whether so few targets are healthy that all are taken to be.
    pub panic: bool,
    /// Its targets; those that are being drained come last.
    pub targets: Vec<Target>,
}

/// A target at one of its addresses.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Target {
    /// Name or address, as configured.
    pub host: String,
    /// Where requests go.
    pub address: String,
    /// `unknown`, `healthy` or `unhealthy`.
    pub condition: String,
    /// Since when (ISO 8601, UTC).
    pub since: String,
    /// Its weight.
    pub weight: u16,
    /// Requests that it has at this moment.
    pub requests: u32,
    /// How long it will still be left out for its answers to users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejected_seconds: Option<u64>,
    /// How long it will still be there for clients that stay with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub draining_seconds: Option<u64>,
    /// The last results of its probe, the newest first.
    pub results: Vec<ProbeResult>,
}

/// What came of one probe.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct ProbeResult {
    /// When it ended (ISO 8601, UTC).
    pub at: String,
    /// How long it took.
    pub milliseconds: u64,
    /// The address that was asked.
    pub address: String,
    /// The status of a healthy answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// What was wrong, as it stands in the log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The same for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// Whether users' requests that went well stood in for it.
    pub excused: bool,
    /// Version and cipher suite, over TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<String>,
    /// When the target's certificate expires (ISO 8601, UTC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate_expires: Option<String>,
}

/// A name of targets.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub name: String,
    /// The addresses in use.
    pub addresses: Vec<String>,
    /// Why they cannot be renewed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// For how long that has been so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault_seconds: Option<u64>,
}

/// How much the holder of a token may do; each includes the ones before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// See everything but tokens
    Read,
    /// Quiesce, and end sessions
    Operate,
    /// Make and revoke tokens, upgrade and end the node
    Admin,
}

impl Scope {
    /// The word in API, CLI and log.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }
}

/// The tokens: `GET /api/v1/tokens`.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct TokenList {
    /// One a token, by name.
    pub tokens: Vec<Token>,
}

/// What is known of a token. The token itself is not.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Token {
    /// Its name, as it stands in the log.
    pub name: String,
    /// How much its holder may do.
    pub scope: Scope,
    /// When it was made (ISO 8601, UTC).
    pub created: String,
    /// From when on it is refused (ISO 8601, UTC); absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Whether that is over.
    pub expired: bool,
}

/// The body of `POST /api/v1/tokens`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// Its name.
    pub name: String,
    /// How much its holder may do.
    pub scope: Scope,
    /// When it ends, in seconds from now; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// A token that was made, told this once.
#[derive(Serialize, Deserialize)]
pub struct MadeToken {
    /// Its name.
    pub name: String,
    /// How much its holder may do.
    pub scope: Scope,
    /// From when on it is refused (ISO 8601, UTC); absent if never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// The token.
    pub token: String,
}

/// Why a call was refused (RFC 9457).
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub struct Problem {
    /// The status in words.
    #[serde(default)]
    pub title: String,
    /// The status.
    #[serde(default)]
    pub status: u16,
    /// What is wrong and what to do.
    pub detail: String,
}
