//! What can be asked of a node, and what is answered.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path as UrlPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Extension, Json, Router};
use jiff::SignedDuration;
use tokio::time::timeout;

use super::access::{Access, Caller, audit, authenticate, require};
use super::api::{
    External, ExternalList, Finding, FindingList, LastUpgrade, Launched, MadeToken, NewToken, NodeConfiguration,
    NodeStatus, PoolList, Quiesce, Quiesced, RefusalCount, RefusalList, Scope, Session, SessionList, Token, TokenList,
};
use super::problem::Refused;
use super::tokens::{NotMade, Tokens};
use super::{metrics, upgrade};
use crate::clock;
use crate::fault::Refusal;
use crate::gateway::Gateway;
use crate::grant::Grant;
use crate::observe::{Kind, exposition};

/// What the operator's side speaks about.
#[derive(Clone, Debug)]
pub(super) struct Side {
    gateway: Arc<Gateway>,
    tokens: Arc<Tokens>,
}

impl Side {
    pub(super) fn new(gateway: Arc<Gateway>, tokens: Arc<Tokens>) -> Self {
        Self { gateway, tokens }
    }

    pub(super) fn gateway(&self) -> &Arc<Gateway> {
        &self.gateway
    }

    pub(super) fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// The API as it is on the socket: whoever is there may do everything.
    pub(super) fn for_the_socket(&self) -> Router {
        self.routes().layer(Extension(Caller::Socket))
    }

    /// The API as it is on the admin port: by token.
    pub(super) fn for_the_port(&self, access: &Arc<Access>) -> Router {
        self.routes().layer(from_fn_with_state(access.clone(), authenticate))
    }

    /// Every route, with the scope that it takes.
    fn routes(&self) -> Router {
        let read = Router::new()
            .route("/api/v1/node", get(node))
            .route("/api/v1/node/configuration", get(configuration))
            .route("/api/v1/sessions", get(sessions))
            .route("/api/v1/refusals", get(refusals))
            .route("/api/v1/findings", get(findings))
            .route("/api/v1/external", get(external))
            .route("/api/v1/pools", get(pool_list))
            .route("/metrics", get(prometheus))
            .route_layer(from_fn_with_state(Scope::Read, require));
        let operate = Router::new()
            .route("/api/v1/node/quiesce", put(quiesce))
            .route("/api/v1/sessions/{id}", delete(kill))
            .route_layer(from_fn_with_state(Scope::Operate, require));
        let admin = Router::new()
            .route("/api/v1/node/end", post(upgrade::end))
            .route("/api/v1/tokens", get(tokens).post(create_token))
            .route("/api/v1/tokens/{name}", delete(revoke_token))
            .route_layer(from_fn_with_state(Scope::Admin, require));
        // What runs as the node is for who may do anything; and it has deadlines of its own.
        let upgrade = Router::new()
            .route("/api/v1/node/upgrade", post(upgrade::upgrade))
            .route("/api/v1/node/upgrade/check", post(upgrade::check))
            .route_layer(from_fn_with_state(Scope::Admin, require));
        read.merge(operate)
            .merge(admin)
            .layer(from_fn(in_time))
            .merge(upgrade)
            .fallback(nothing)
            .method_not_allowed_fallback(wrong_method)
            .layer(DefaultBodyLimit::max(BODY_MAX))
            .layer(from_fn(audit))
            .with_state(self.clone())
    }
}

/// Answers within a time, also whoever sends a body slowly; nothing of it is to be kept by anybody.
async fn in_time(request: Request, next: Next) -> Response {
    let answered = timeout(ANSWER, next.run(request)).await;
    let mut response = answered.unwrap_or_else(|_| {
        let words = "The request did not come whole in time.";
        Refused::new(StatusCode::REQUEST_TIMEOUT, words).into_response()
    });
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn nothing(uri: Uri) -> Refused {
    let path: String = uri.path().chars().take(100).collect();
    Refused::new(StatusCode::NOT_FOUND, format!("There is nothing at {path}."))
}

async fn wrong_method(method: Method) -> Refused {
    Refused::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("{method} is not possible here."),
    )
}

async fn node(State(side): State<Side>) -> Json<NodeStatus> {
    Json(status(&side))
}

async fn quiesce(
    State(side): State<Side>,
    Extension(by): Extension<Caller>,
    wanted: Result<Json<Quiesce>, JsonRejection>,
) -> Result<Json<NodeStatus>, Refused> {
    let Json(Quiesce { quiesced }) = wanted?;
    let lifecycle = side.gateway.lifecycle();
    if lifecycle.set_quiesced(quiesced, clock::now()) {
        tracing::info!(%by, quiesced, "quiesce set by the operator");
        Ok(Json(status(&side)))
    } else {
        let state = lifecycle.state().as_str();
        let detail =
            format!("The node is {state}. Quiesce can be set while it is in service, and taken back until it drains.");
        Err(Refused::new(StatusCode::CONFLICT, detail))
    }
}

async fn configuration(State(side): State<Side>) -> Json<NodeConfiguration> {
    let plan = side.gateway.plan();
    let source = &plan.config.source;
    Json(NodeConfiguration {
        file: source.file.clone(),
        fingerprint: source.fingerprint(),
        settings: source.written.clone(),
    })
}

async fn sessions(State(side): State<Side>) -> Json<SessionList> {
    let now = Moment::now();
    Json(SessionList {
        sessions: side
            .gateway
            .grants()
            .list()
            .iter()
            .map(|grant| session(&side.gateway, grant, now))
            .collect(),
    })
}

async fn kill(State(side): State<Side>, UrlPath(id): UrlPath<String>) -> Result<StatusCode, Refused> {
    let killed = match id.parse() {
        Ok(id) => side.gateway.kill(id).await,
        Err(_) => false,
    };
    if killed {
        Ok(StatusCode::NO_CONTENT)
    } else {
        let id: String = id.chars().take(100).collect();
        let detail = format!("No live session {id}. `portcullis sessions list` shows those there are.");
        Err(Refused::new(StatusCode::NOT_FOUND, detail))
    }
}

async fn tokens(State(side): State<Side>) -> Json<TokenList> {
    let now = clock::wall();
    let told = side.tokens.list().into_iter().map(|(name, entry)| Token {
        name,
        scope: entry.scope,
        created: time_of(entry.created),
        expires: entry.expires.map(time_of),
        expired: entry.has_expired(now),
    });
    Json(TokenList { tokens: told.collect() })
}

async fn create_token(
    State(side): State<Side>,
    wanted: Result<Json<NewToken>, JsonRejection>,
) -> Result<(StatusCode, Json<MadeToken>), Refused> {
    let Json(NewToken {
        name,
        scope,
        expires_in_seconds,
    }) = wanted?;
    let now = clock::wall();
    let expires = expires_in_seconds
        .map(|seconds| {
            expiry(now, seconds)
                .ok_or_else(|| Refused::new(StatusCode::BAD_REQUEST, "No token lasts so long, or so short."))
        })
        .transpose()?;
    let token = side.tokens.create(&name, scope, now, expires).map_err(|fault| {
        let status = match fault {
            NotMade::BadName(_) => StatusCode::BAD_REQUEST,
            NotMade::NameTaken(_) | NotMade::Full => StatusCode::CONFLICT,
            NotMade::Unwritable(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Refused::new(status, fault.to_string())
    })?;
    let made = MadeToken {
        name,
        scope,
        expires: expires.map(|expires| format!("{expires:.0}")),
        token: token.expose().to_owned(),
    };
    Ok((StatusCode::CREATED, Json(made)))
}

async fn revoke_token(State(side): State<Side>, UrlPath(name): UrlPath<String>) -> Result<StatusCode, Refused> {
    match side.tokens.revoke(&name) {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => {
            let name: String = name.chars().take(100).collect();
            let detail = format!("No token {name}. `portcullis token list` shows those there are.");
            Err(Refused::new(StatusCode::NOT_FOUND, detail))
        }
        Err(fault) => {
            let detail = format!(
                "The token is refused from now on, but that could not be kept ({fault}): it would hold again after a \
                 restart. See node.state_dir."
            );
            Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, detail))
        }
    }
}

/// The time of day so many seconds after 1970 began.
fn time_of(second: i64) -> String {
    jiff::Timestamp::from_second(second).map_or_else(|_| String::new(), |time| time.to_string())
}

/// The end of a token that is made now; `None` beyond ten years, or at once.
fn expiry(now: jiff::Timestamp, seconds: u64) -> Option<jiff::Timestamp> {
    let span = i64::try_from(seconds)
        .ok()
        .filter(|seconds| (1..=LONGEST_TOKEN).contains(seconds))?;
    now.checked_add(SignedDuration::from_secs(span)).ok()
}

async fn refusals(State(side): State<Side>) -> Json<RefusalList> {
    let counters = side.gateway.grants().watch().counters();
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

async fn findings(State(side): State<Side>) -> Json<FindingList> {
    let moment = Moment::now();
    let found = side.gateway.grants().watch().findings(moment.now);
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

async fn external(State(side): State<Side>) -> Json<ExternalList> {
    let asked = side.gateway.external();
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

async fn pool_list(State(side): State<Side>) -> Json<PoolList> {
    let moment = Moment::now();
    Json(PoolList::new(side.gateway.publisher().pools(moment.now), moment))
}

async fn prometheus(State(side): State<Side>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, exposition::CONTENT_TYPE)],
        metrics::exposition(&side.gateway),
    )
}

fn status(side: &Side) -> NodeStatus {
    let (gateway, moment) = (&side.gateway, Moment::now());
    let last = gateway.grants().list().iter().map(|grant| grant.hard_end()).max();
    let quiesced = gateway.lifecycle().quiesced_since().map(|since| {
        let settings = &gateway.plan().config.quiesce;
        Quiesced {
            since: moment.wall_of(since),
            seconds: moment.now.saturating_duration_since(since).as_secs(),
            answer: settings.answer.as_str().to_owned(),
            step_ends_in_seconds: gateway.step_left().map(whole_seconds),
            refuses_logins: settings.refuses_logins,
        }
    });
    let (plan, lifecycle) = (gateway.plan(), gateway.lifecycle());
    let (started, began) = lifecycle.started();
    NodeStatus {
        name: plan.config.node.name.to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        uptime_seconds: moment.now.saturating_duration_since(started).as_secs(),
        started: format!("{began:.3}"),
        program: upgrade::program(),
        configuration: plan.config.source.fingerprint(),
        state: lifecycle.state().as_str().to_owned(),
        health: gateway.health().status().as_u16(),
        quiesced,
        sessions: gateway.grants().len(),
        sessions_max: plan.config.session.max,
        tunnels: gateway.tunnels().len(),
        pending_logins: gateway.control_channel().pending(),
        connections: gateway.caps().of_the_node(),
        empty_in_seconds: last.map(|end| end.saturating_duration_since(moment.now).as_secs()),
        errors: errors(gateway),
        can_hand_over: Some(gateway.kinship().can_hand_over()),
        last_upgrade: lifecycle.last_upgrade().map(|last| LastUpgrade {
            at: format!("{:.0}", last.at),
            program: last.program,
            fault: last.fault,
        }),
    }
}

/// What went wrong for clients, all in one count.
fn errors(gateway: &Gateway) -> u64 {
    let counters = gateway.grants().watch().counters();
    let turned_away = (Kind::ALL.into_iter())
        .flat_map(|kind| Refusal::ALL.map(|reason| counters.refusals(kind, reason)))
        .sum::<u64>();
    let of_the_web = gateway.publisher().traffic().faults().map(|(_, count)| count);
    turned_away + of_the_web.sum::<u64>()
}

/// A span, rounded up: what has not ended is not told to end in 0 s.
fn whole_seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
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
pub(super) struct Moment {
    pub(super) now: Instant,
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
    pub(super) fn wall_of(self, instant: Instant) -> String {
        let wall = if instant >= self.now {
            self.wall.checked_add(instant - self.now)
        } else {
            self.wall.checked_sub(self.now - instant)
        };
        wall.map_or_else(|_| String::new(), |wall| format!("{:.0}", wall))
    }
}

/// Of a request's body, in bytes.
const BODY_MAX: usize = 64 * 1024;
/// For a request's body and its answer together.
const ANSWER: Duration = Duration::from_secs(30);
/// Ten years, in seconds.
const LONGEST_TOKEN: i64 = 10 * 365 * 24 * 3600;
