//! The admin port and the agent check: connections bounded in number, in all and by source, and in time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use futures_util::FutureExt as _;
use http::HeaderValue;
use http::header::CONNECTION;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::Origin;
use crate::config::Limits;
use crate::gateway::Gateway;
use crate::listen::{Caps, Incoming, accept_loop};
use crate::secure;

/// Serves operators until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let ends = stop.clone();
    let handler = move |incoming| {
        let conversation = converse(incoming, tls.clone(), router.clone(), stop.clone());
        tasks.spawn(async move {
            let _ = timeout(LONGEST, conversation).await;
        });
    };
    accept_loop(listener, "admin".into(), caps(), handler, ends).await;
}

/// Answers the agent check of HAProxy until `stop`: one line a connection.
pub(super) async fn serve_agent(
    listener: TcpListener,
    gateway: Arc<Gateway>,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let handler = |incoming| {
        let gateway = gateway.clone();
        tasks.spawn(async move {
            let _ = timeout(AGENT, tell(incoming, &gateway)).await;
        });
    };
    accept_loop(listener, "agent".into(), caps(), handler, stop).await;
}

/// One operator's connection, from TLS to its end. After `stop` the request that is on its way is the last, or the one that
/// comes within a moment.
async fn converse(incoming: Incoming, tls: Arc<ServerConfig>, router: Router, stop: CancellationToken) {
    let secured = timeout(HANDSHAKE, async {
        let accepted = incoming.accept(&[]).await?;
        secure::https_handshake(accepted, tls).await
    });
    // What went wrong is in the log at debug, where it happened.
    let Ok(Ok(secured)) = secured.await else { return };
    let (io, facts, _tls, _permit) = secured.into_parts();
    let router = TowerToHyperService::new(router.layer(Extension(Origin(facts.client.ip()))));
    let ends = stop.clone();
    let service = service_fn(move |request| {
        let (answer, ends) = (router.call(request), ends.clone());
        async move {
            let mut answer = answer.await?;
            if ends.is_cancelled() {
                let close = HeaderValue::from_static("close");
                answer.headers_mut().insert(CONNECTION, close);
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(io), service);
    tokio::pin!(served);
    let served = tokio::select! {
        served = served.as_mut() => served,
        () = stop.cancelled().then(|()| sleep(LAST_REQUEST)) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(fault) = served {
        tracing::debug!(client = %facts.client, %fault, "an operator's connection ended");
    }
}

async fn tell(incoming: Incoming, gateway: &Gateway) {
    let Ok(accepted) = incoming.accept(&[]).await else {
        return;
    };
    let (mut io, facts, _permit) = accepted.into_parts();
    if !gateway.may_ask_agent(facts.client.ip()) {
        return tracing::debug!(client = %facts.client, "agent check from an address that is not in quiesce.agent_from");
    }
    let line = gateway.agent_line();
    if io.write_all(line.as_bytes()).await.is_ok() && io.shutdown().await.is_ok() {
        // Closing with unread bytes (agent-send) would reset the connection, and the line could be lost.
        let _ = io.read(&mut [0; 256]).await;
    }
}

/// Operators and balancers are few.
fn caps() -> Arc<Caps> {
    Caps::new(&Limits {
        connections: 64,
        connections_per_source: 32,
        handshakes_per_source: 50,
        handshake_timeout: HANDSHAKE,
        head_timeout: HEAD,
        body_timeout: HEAD,
        pending_logins: 0,
    })
}

const HANDSHAKE: Duration = Duration::from_secs(5);
/// For a head, also the next one on a connection that is kept open.
const HEAD: Duration = Duration::from_secs(15);
const HEAD_MAX: usize = 16 * 1024;
/// For a request of a connection that was opened before the end.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// Of a connection, whatever it does.
const LONGEST: Duration = Duration::from_secs(600);
/// Of an agent check.
const AGENT: Duration = Duration::from_secs(2);
