//! Who asks, and how much they may do.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;

use super::api::Scope;
use super::problem::Refused;
use super::tokens::{Holder, Tokens, Unaccepted};
use crate::clock;
use crate::types::source_of;

/// What decides on the admin port.
#[derive(Debug)]
pub(super) struct Access {
    tokens: Arc<Tokens>,
    wrong: Mutex<Wrong>,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(super) enum Caller {
    /// Whoever can open the Unix socket.
    Socket,
    /// The holder of a token.
    Token(Holder),
}

/// Whence a request comes; each connection of the admin port has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin(pub(super) IpAddr);

impl Access {
    pub(super) fn new(tokens: Arc<Tokens>) -> Self {
        Self {
            tokens,
            wrong: Mutex::default(),
        }
    }

    /// Whose token stands in a head. A good one is good however often its source was wrong: guesses at 256 bits are hopeless,
    /// and one bad script must not lock its neighbours out. What is bounded is what wrong ones cost, in the log too.
    fn judge(&self, headers: &HeaderMap, from: IpAddr) -> Result<Holder, Refused> {
        let token = bearer(headers).ok_or_else(|| {
            let words = "A token is needed: Authorization: Bearer pct_… (portcullis token create, on the node).";
            Refused::new(StatusCode::UNAUTHORIZED, words)
        })?;
        let unaccepted = match self.tokens.holder(token, clock::wall()) {
            Ok(holder) => return Ok(holder),
            Err(unaccepted) => unaccepted,
        };
        let source = source_of(from);
        match self.wrong.lock().note(source, clock::now()) {
            Told::Again => {}
            Told::Enough => {
                tracing::warn!(%source, "too many wrong tokens from one source: further ones are not told of for a minute");
                return Err(too_many());
            }
            Told::NotAgain => return Err(too_many()),
        }
        let words = match unaccepted {
            Unaccepted::Unknown => "This token is not known here: it was revoked, or belongs to another node.",
            Unaccepted::Expired => "This token has expired. Make another: portcullis token create, on the node.",
        };
        tracing::warn!(%source, reason = ?unaccepted, "admin token refused");
        Err(Refused::new(StatusCode::UNAUTHORIZED, words))
    }
}

impl Caller {
    fn may(&self, scope: Scope) -> bool {
        match self {
            Self::Socket => true,
            Self::Token(holder) => holder.scope >= scope,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "socket",
            Self::Token(holder) => &holder.name,
        })
    }
}

/// Lets through who shows a good token, as its holder.
pub(super) async fn authenticate(
    State(access): State<Arc<Access>>,
    Extension(Origin(from)): Extension<Origin>,
    mut request: Request,
    next: Next,
) -> Response {
    match access.judge(request.headers(), from) {
        Ok(holder) => {
            request.extensions_mut().insert(Caller::Token(holder));
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

/// Lets through who may do as much as `scope`.
pub(super) async fn require(State(scope): State<Scope>, request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    if caller.is_some_and(|caller| caller.may(scope)) {
        return next.run(request).await;
    }
    let words = format!("This takes a token of scope `{}`.", scope.as_str());
    Refused::new(StatusCode::FORBIDDEN, words).into_response()
}

/// Tells the log of every change that was asked for, and what came of it.
pub(super) async fn audit(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let by = request.extensions().get::<Caller>().map(ToString::to_string);
    let from = request.extensions().get::<Origin>().map(|origin| origin.0);
    let what = format!("{} {}", request.method(), request.uri().path());
    let response = next.run(request).await;
    tracing::info!(
        by,
        from = from.map(tracing::field::display),
        what,
        status = response.status().as_u16(),
        "operator's change"
    );
    response
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn too_many() -> Refused {
    Refused::new(
        StatusCode::TOO_MANY_REQUESTS,
        "Too many wrong tokens from this address. Correct the token.",
    )
}

/// The sources of wrong tokens: a table of a fixed size.
#[derive(Debug, Default)]
struct Wrong {
    sources: HashMap<IpAddr, (u32, Instant)>,
}

/// Whether a wrong token is told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Again,
    /// For the last time.
    Enough,
    NotAgain,
}

impl Wrong {
    fn note(&mut self, source: IpAddr, now: Instant) -> Told {
        let is_over = |since: Instant| now.saturating_duration_since(since) >= WINDOW;
        if self.sources.len() >= MOST_SOURCES && !self.sources.contains_key(&source) {
            self.sources.retain(|_, (_, since)| !is_over(*since));
            if self.sources.len() >= MOST_SOURCES {
                return Told::NotAgain;
            }
        }
        let (count, since) = self.sources.entry(source).or_insert((0, now));
        if is_over(*since) {
            (*count, *since) = (0, now);
        }
        *count = count.saturating_add(1);
        match (*count).cmp(&MOST_WRONG) {
            std::cmp::Ordering::Less => Told::Again,
            std::cmp::Ordering::Equal => Told::Enough,
            std::cmp::Ordering::Greater => Told::NotAgain,
        }
    }
}

/// Wrong tokens of one source within [`WINDOW`] before it is only told that it is too many.
const MOST_WRONG: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
const MOST_SOURCES: usize = 1024;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn source(n: u32) -> IpAddr {
        IpAddr::V4(Ipv4Addr::from(n))
    }

    #[test]
    fn wrong_tokens_are_told_of_a_few_times_a_minute() {
        let (mut wrong, now) = (Wrong::default(), clock::now());
        let told: Vec<_> = (0..12).map(|_| wrong.note(source(1), now)).collect();
        assert!(told[..9].iter().all(|told| *told == Told::Again));
        assert_eq!(told[9..], [Told::Enough, Told::NotAgain, Told::NotAgain]);
        assert_eq!(wrong.note(source(2), now), Told::Again);
        assert_eq!(wrong.note(source(1), now + WINDOW), Told::Again);
    }

    #[test]
    fn a_flood_of_sources_fills_nothing_and_makes_room_in_a_minute() {
        let (mut wrong, now) = (Wrong::default(), clock::now());
        for n in 0..100_000 {
            wrong.note(source(n), now);
        }
        assert_eq!(wrong.sources.len(), MOST_SOURCES);
        assert_eq!(wrong.note(source(200_000), now), Told::NotAgain);
        assert_eq!(wrong.note(source(200_000), now + WINDOW), Told::Again);
    }

    #[test]
    fn only_a_bearer_is_a_token() {
        let read = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(read("Bearer pct_a"), Some("pct_a".to_owned()));
        assert_eq!(read("bearer  pct_a"), Some("pct_a".to_owned()));
        assert_eq!(read("Basic pct_a"), None);
        assert_eq!(read("pct_a"), None);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
