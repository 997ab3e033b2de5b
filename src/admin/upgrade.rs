//! Another program takes over: whether it could, and the word for it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use aws_lc_rs::digest::{Context, SHA256};
use axum::Json;
use axum::extract::State;
use axum::extract::rejection::JsonRejection;
use axum::http::StatusCode;
use rustix::process::{Signal, getpid, kill_process};
use serde::Deserialize;
use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::api::{Upgrade, UpgradeCheck, Upgraded};
use super::problem::Refused;
use super::routes::Side;
use crate::types::Octets32;

/// Has another program take over.
pub(super) async fn upgrade(
    State(side): State<Side>,
    wanted: Result<Json<Upgrade>, JsonRejection>,
) -> Result<Json<Upgraded>, Refused> {
    let Json(Upgrade { binary }) = wanted?;
    let outcome = side.gateway().kinship().wish(binary).await;
    outcome.map(|pid| Json(Upgraded { pid })).map_err(conflict)
}

/// Looks at a program, and asks it what it thinks of the configuration on the disk.
pub(super) async fn check(
    State(side): State<Side>,
    wanted: Result<Json<Upgrade>, JsonRejection>,
) -> Result<Json<UpgradeCheck>, Refused> {
    let Json(Upgrade { binary }) = wanted?;
    let file = side.gateway().plan().config.source.file.clone();
    let unusable = |why: &str| conflict(format!("{} cannot take over: {why}.", binary.display()));
    let hash = |path: PathBuf| async move { spawn_blocking(move || sha256(&path)).await? };
    let sha256 = hash(binary.clone()).await.map_err(|fault| unusable(&words(&fault)))?;
    let running_sha256 = hash(OWN.into()).await.map_err(|fault| unusable(&words(&fault)))?;
    let (_, version) = ask(&binary, &["--version".as_ref()])
        .await
        .map_err(|why| unusable(&why))?;
    let version = version.trim().strip_prefix("portcullis ").map(str::to_owned);
    let version = version.ok_or_else(|| unusable("it is another program"))?;
    let asked = ask(&binary, &["check".as_ref(), "--json".as_ref(), file.as_ref()]).await;
    let (_, report) = asked.map_err(|why| unusable(&why))?;
    let report = serde_json::from_str::<Report>(&report);
    let faults = report
        .map_err(|_| unusable("it cannot check a configuration"))?
        .errors();
    Ok(Json(UpgradeCheck {
        version,
        sha256,
        running_sha256,
        faults,
    }))
}

/// Drains and ends this process, as SIGTERM does; whoever looks after it starts it again.
pub(super) async fn end(State(side): State<Side>) -> Result<StatusCode, Refused> {
    if !side.gateway().kinship().can_hand_over() {
        return Err(conflict("This process heeds no signals.".to_owned()));
    }
    let sent = kill_process(getpid(), Signal::TERM);
    sent.map_err(|fault| conflict(format!("The node cannot be ended: {fault}.")))?;
    Ok(StatusCode::ACCEPTED)
}

/// Where the file of the running program is, if it is still the one that runs.
pub(super) fn program() -> Option<PathBuf> {
    let path = std::fs::read_link(OWN).ok()?;
    // What Linux calls a file that was removed or replaced.
    let gone = path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)");
    (!gone).then_some(path)
}

fn conflict(detail: String) -> Refused {
    Refused::new(StatusCode::CONFLICT, detail)
}

fn words(fault: &io::Error) -> String {
    let text = fault.to_string();
    text.split(" (os error").next().unwrap_or_default().to_lowercase()
}

/// Of a regular file, in hexadecimal digits. Blocks.
fn sha256(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let mut file = file.take(PROGRAM_MAX);
    let mut context = Context::new(&SHA256);
    let mut piece = vec![0; 1024 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => break,
            length => context.update(&piece[..length]),
        }
    }
    let hash = context.finish().as_ref().try_into().map(Octets32);
    let hash = hash.map_err(|_| io::Error::other("it has no hash"))?;
    Ok(hash.digits().as_str().to_owned())
}

/// What a program writes to its standard output before it ends.
async fn ask(binary: &Path, arguments: &[&std::ffi::OsStr]) -> Result<(ExitStatus, String), String> {
    let mut command = Command::new(binary);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let asked = async {
        let mut child = command.spawn()?;
        let mut text = String::new();
        if let Some(out) = child.stdout.take() {
            out.take(ANSWER_MAX).read_to_string(&mut text).await?;
        }
        Ok((child.wait().await?, text))
    };
    match timeout(ANSWER, asked).await {
        Ok(Ok(answered)) => Ok(answered),
        Ok(Err(fault)) => Err(words(&fault)),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

/// What `portcullis check --json` says.
#[derive(Deserialize)]
struct Report {
    file: String,
    valid: bool,
    faults: Vec<ReportedFault>,
}

#[derive(Deserialize)]
struct ReportedFault {
    severity: String,
    line: Option<u64>,
    path: String,
    what: String,
    remedy: String,
}

impl Report {
    /// One a line; empty if the configuration is valid.
    fn errors(self) -> Vec<String> {
        let Self { file, valid, faults } = self;
        let errors = faults.into_iter().filter(|fault| !valid && fault.severity == "error");
        errors
            .map(|fault| {
                let line = fault.line.map_or_else(String::new, |line| format!(":{line}"));
                format!("{file}{line}: {}: {}. {}", fault.path, fault.what, fault.remedy)
            })
            .collect()
    }
}

/// The file of the running program, also when another one has taken its name.
const OWN: &str = "/proc/self/exe";
/// Longest program, in bytes.
const PROGRAM_MAX: u64 = 4 * 1024 * 1024 * 1024;
/// Longest answer of a program that is asked, in bytes.
const ANSWER_MAX: u64 = 4 * 1024 * 1024;
const ANSWER: Duration = Duration::from_secs(20);
