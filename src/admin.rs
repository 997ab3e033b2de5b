//! The operator's side: a small HTTP API on a root-only Unix socket, served on a thread and runtime of its own, so that it
//! answers while the data plane is busy.
//!
//! Whoever can open the socket (mode 0600) is the operator; there is no other sign-in.

use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use axum::extract::{Path as UrlPath, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::fault::Refusal;
use crate::gateway::Gateway;
use crate::grant::Grant;
use crate::observe::{Kind, exposition};
use crate::types::SessionId;

pub mod api;
mod metrics;
mod pools;

use api::{
    External, ExternalList, Finding, FindingList, Launched, NodeStatus, PoolList, Problem, Quiesce, RefusalCount,
    RefusalList, Session, SessionList, Upgrade, Upgraded,
};

/// The running admin side; ends when dropped.
#[derive(Debug)]
pub struct Admin {
    socket: PathBuf,
    /// The socket's number in its file system: another process may have put its own in that place.
    inode: u64,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Binds the socket and starts the thread. `replaces`: whoever answers on it is to be replaced.
    ///
    /// # Errors
    ///
    /// The socket cannot be bound, or another node answers on it.
    pub fn start(gateway: Arc<Gateway>, socket: &Path, replaces: bool) -> io::Result<Self> {
        let listener = bind(socket, replaces)?;
        let inode = std::fs::metadata(socket)?.ino();
        let stop = CancellationToken::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stopped = stop.clone();
        let thread = std::thread::Builder::new().name("admin".to_owned()).spawn(move || {
            runtime.block_on(async move {
                let listener = match UnixListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(fault) => return tracing::error!(%fault, "admin socket lost"),
                };
                let served = axum::serve(listener, router(gateway)).with_graceful_shutdown(stopped.cancelled_owned());
                if let Err(fault) = served.await {
                    tracing::error!(%fault, "admin side stopped");
                }
            });
        })?;
        Ok(Self {
            socket: socket.to_owned(),
            inode,
            stop,
            thread: Some(thread),
        })
    }
}

impl Admin {
    /// Whether the operator who opens the path finds this side.
    pub fn owns_its_path(&self) -> bool {
        std::fs::metadata(&self.socket).is_ok_and(|found| found.ino() == self.inode)
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // A panic there was reported where it happened; here there is nothing left to save.
            let _ = thread.join();
        }
        if self.owns_its_path() {
            let _ = std::fs::remove_file(&self.socket);
        }
    }
}

/// Binds the socket with mode 0600, replacing one that nobody answers on, or any.
fn bind(socket: &Path, replaces: bool) -> io::Result<std::os::unix::net::UnixListener> {
    if socket.exists() && !replaces {
        if std::os::unix::net::UnixStream::connect(socket).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another node answers on this socket",
            ));
        }
        std::fs::remove_file(socket)?;
    }
    // Bound under a private name first: at no moment can anyone else connect.
    let private = socket.with_extension(format!("{}.new", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&private)?;
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&private, socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .route("/api/v1/node", get(node))
        .route("/api/v1/node/quiesce", put(quiesce))
        .route("/api/v1/node/upgrade", post(upgrade))
        .route("/api/v1/sessions", get(sessions))
        .route("/api/v1/sessions/{id}", delete(kill))
        .route("/api/v1/refusals", get(refusals))
        .route("/api/v1/findings", get(findings))
        .route("/api/v1/external", get(external))
        .route("/api/v1/pools", get(pool_list))
        .route("/metrics", get(prometheus))
        .with_state(gateway)
}

async fn node(State(gateway): State<Arc<Gateway>>) -> Json<NodeStatus> {
    Json(status(&gateway))
}

async fn quiesce(
    State(gateway): State<Arc<Gateway>>,
    Json(wanted): Json<Quiesce>,
) -> Result<Json<NodeStatus>, (StatusCode, Json<Problem>)> {
    if gateway.lifecycle().set_quiesced(wanted.quiesced) {
        tracing::info!(quiesced = wanted.quiesced, "quiesce set by the operator");
        Ok(Json(status(&gateway)))
    } else {
        let state = gateway.lifecycle().state().as_str();
        let detail =
            format!("The node is {state}. Quiesce can be set while it is in service, and taken back until it drains.");
        Err((StatusCode::CONFLICT, Json(Problem { detail })))
    }
}

async fn upgrade(
    State(gateway): State<Arc<Gateway>>,
    Json(wanted): Json<Upgrade>,
) -> Result<Json<Upgraded>, (StatusCode, Json<Problem>)> {
    let outcome = gateway.kinship().wish(wanted.binary).await;
    let answer = outcome.map(|pid| Json(Upgraded { pid }));
    answer.map_err(|detail| (StatusCode::CONFLICT, Json(Problem { detail })))
}

async fn sessions(State(gateway): State<Arc<Gateway>>) -> Json<SessionList> {
    let now = Moment::now();
    Json(SessionList {
        sessions: gateway
            .grants()
            .list()
            .iter()
            .map(|grant| session(&gateway, grant, now))
            .collect(),
    })
}

async fn kill(
    State(gateway): State<Arc<Gateway>>,
    UrlPath(id): UrlPath<String>,
) -> Result<StatusCode, (StatusCode, Json<Problem>)> {
    let killed = id.parse::<SessionId>().is_ok_and(|id| gateway.kill(id));
    if killed {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let detail = format!("No live session {id}. `portcullis sessions list` shows those there are.");
        Err((StatusCode::NOT_FOUND, Json(Problem { detail })))
    }
}

async fn refusals(State(gateway): State<Arc<Gateway>>) -> Json<RefusalList> {
    let counters = gateway.grants().watch().counters();
    let pairs = Kind::ALL
        .into_iter()
        .flat_map(|kind| Refusal::ALL.map(|reason| (kind, reason)));
    let counts = pairs.map(|(kind, reason)| RefusalCount {
        reason: reason.code().to_owned(),
        secondary: kind.code().to_owned(),
        count: counters.refusals(kind, reason),
        words: reason.words().to_owned(),
    });
    Json(RefusalList {
        refusals: counts.filter(|of_reason| of_reason.count > 0).collect(),
    })
}

async fn findings(State(gateway): State<Arc<Gateway>>) -> Json<FindingList> {
    let moment = Moment::now();
    let found = gateway.grants().watch().findings(moment.now);
    let told = found.into_iter().map(|finding| Finding {
        code: finding.cause.code().to_owned(),
        holds: finding.holds,
        since: moment.wall_of(finding.since),
        last: moment.wall_of(finding.last),
        count: finding.count,
        words: finding.words,
    });
    Json(FindingList {
        findings: told.collect(),
    })
}

async fn external(State(gateway): State<Arc<Gateway>>) -> Json<ExternalList> {
    let asked = gateway.external();
    let told = asked.findings.iter().map(|finding| External {
        setting: finding.setting.to_owned(),
        address: finding.address.clone(),
        good: finding.outcome.is_good(),
        outcome: finding.outcome.code().to_owned(),
        asked: format!("{:.0}", finding.asked),
        words: finding.outcome.to_string(),
        remedy: finding.outcome.remedy().to_owned(),
    });
    Json(ExternalList {
        external: told.collect(),
    })
}

async fn pool_list(State(gateway): State<Arc<Gateway>>) -> Json<PoolList> {
    let moment = Moment::now();
    Json(PoolList::new(gateway.publisher().pools(moment.now), moment))
}

async fn prometheus(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, exposition::CONTENT_TYPE)],
        metrics::exposition(&gateway),
    )
}

fn status(gateway: &Gateway) -> NodeStatus {
    let now = clock::now();
    let last = gateway.grants().list().iter().map(|grant| grant.hard_end()).max();
    NodeStatus {
        name: gateway.plan().config.node.name.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state: gateway.lifecycle().state().as_str().to_owned(),
        health: if gateway.lifecycle().is_in_service() { 200 } else { 503 },
        sessions: gateway.grants().len(),
        tunnels: gateway.tunnels().len(),
        pending_logins: gateway.control_channel().pending(),
        connections: gateway.caps().counts().open,
        empty_in_seconds: last.map(|end| end.saturating_duration_since(now).as_secs()),
    }
}

fn session(gateway: &Gateway, grant: &Grant, now: Moment) -> Session {
    let launched = |route: &Arc<crate::grant::Route>| Launched {
        desktop: route.desktop().to_string(),
        protocol: route.protocol().to_string(),
    };
    Session {
        id: grant.id().to_string(),
        user: grant.user().to_string(),
        client: grant.client().to_string(),
        desktops: grant.routes().iter().map(launched).collect(),
        tunnel: gateway.tunnels().get(grant.id()).is_some(),
        since: now.wall_of(grant.created()),
        ends: now.wall_of(grant.hard_end()),
        bytes_in: grant.bytes_in(),
        bytes_out: grant.bytes_out(),
    }
}

/// One moment on both clocks, to turn the monotonic times of grants into times of day.
#[derive(Clone, Copy)]
struct Moment {
    now: std::time::Instant,
    wall: jiff::Timestamp,
}

impl Moment {
    fn now() -> Self {
        Self {
            now: clock::now(),
            wall: clock::wall(),
        }
    }

    /// The time of day at `instant`, to the second.
    fn wall_of(self, instant: std::time::Instant) -> String {
        let wall = if instant >= self.now {
            self.wall.checked_add(instant - self.now)
        } else {
            self.wall.checked_sub(self.now - instant)
        };
        wall.map_or_else(|_| String::new(), |wall| format!("{:.0}", wall))
    }
}
