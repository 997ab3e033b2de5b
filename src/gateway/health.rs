//! The health check on a port of its own, in plain HTTP.

use std::sync::Arc;

use http::{Request, StatusCode};

use super::http1::{self, Next, Respond};
use super::lifecycle::Lifecycle;
use super::{Gateway, answer, sent};
use crate::listen::Incoming;
use crate::route::{self, Routed};
use crate::wire::{Sink, Source};

impl Gateway {
    /// Answers the health check on a plain connection: nothing else is served there.
    pub async fn serve_health(self: Arc<Self>, incoming: Incoming) {
        let Ok(accepted) = incoming.accept(&[]).await else {
            return;
        };
        let (io, _facts, _permit) = accepted.into_parts();
        let head_timeout = self.plan().config.limits.head_timeout;
        let health = HealthOnly(&self.lifecycle);
        http1::serve(io, head_timeout, health, self.kinship.leaving()).await;
    }
}

/// Answers the health check and nothing else.
struct HealthOnly<'a>(&'a Lifecycle);

impl Respond for HealthOnly<'_> {
    async fn respond<B: Source, A: Sink>(&self, request: Request<()>, _body: B, mut answer: A) -> Next {
        let response = match route::route(request.method(), request.uri()) {
            Ok(Routed::Health) => answer::health(self.0.is_in_service(), request.method()),
            _ => answer::text(StatusCode::NOT_FOUND, "only the health check is answered here\n"),
        };
        sent(answer::send(&mut answer, response).await)
    }
}
