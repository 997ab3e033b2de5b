//! A client of RDP that knows no gateway, from its first byte to its end.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::Gateway;
use super::conversation::tell;
use crate::clock;
use crate::fault::CloseReason;
use crate::fleet::Kind;
use crate::grant::{Denied, Granted, Secondary};
use crate::listen::{Accepted, Facts, Incoming};
use crate::observe::{self, Refused};
use crate::secure::Secured;
use crate::tunnel::{rdp, relay};
use crate::types::Secret;

impl Gateway {
    /// Takes an RDP connection from its first byte to its end. Who is not admitted is closed without a word, and nothing
    /// is dialled.
    pub async fn serve_rdp(self: Arc<Self>, incoming: Incoming) {
        let mut facts = incoming.facts().clone();
        let end = match Box::pin(self.preconnection(incoming, &mut facts)).await {
            Ok((accepted, token)) => {
                let (mut io, _, _permit) = accepted.into_parts();
                self.rdp(&mut io, &token, &facts).await
            }
            Err(reason) => reason.into(),
        };
        self.rdp_ended(&facts, &end);
    }

    /// The same for one that another node carries here.
    pub(super) async fn rdp_of_peer(&self, secured: Secured) {
        let (mut io, facts, _tls, _permit) = secured.into_parts();
        let limit = self.plan().config.limits.handshake_timeout;
        let end = match timeout(limit, rdp::read_token(&mut io)).await {
            Ok(Ok(token)) => self.rdp(&mut io, &token, &facts).await,
            Ok(Err(reason)) => reason.into(),
            Err(_) => CloseReason::Timeout.into(),
        };
        self.rdp_ended(&facts, &end);
    }

    /// Steps 6 to 8.
    async fn rdp<IO>(&self, io: &mut IO, token: &Secret, facts: &Facts) -> End
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let denied = match self.grants.admit(token.expose(), Secondary::Rdp, clock::now()) {
            Ok(granted) => return relay(io, granted).await,
            Err(denied) => denied,
        };
        if let Some(sister) = self.sister(observe::Kind::Rdp, Kind::Rdp, &denied, facts)
            && let Some(mut owner) = sister.reach(&rdp::blob::encode(token.expose())).await
        {
            return relay::pass(io, &mut owner).await.into();
        }
        End {
            denied: Some(denied),
            ..End::default()
        }
    }

    /// Counts the end and writes the connection's one line.
    fn rdp_ended(&self, facts: &Facts, end: &End) {
        let denied = end.denied.as_ref();
        let reason = end
            .reason
            .or(denied.map(|denied| denied.reason.into()))
            .unwrap_or(CloseReason::Internal);
        let watch = self.grants.watch();
        watch.counters().closed(reason);
        if let CloseReason::Refused(reason) = reason {
            let refused = Refused {
                reason,
                owner: denied.and_then(|denied| denied.owner.as_ref()),
                arrival: facts.arrival(),
            };
            watch.refused(observe::Kind::Rdp, &refused, clock::now());
        }
        let granted = end.granted.as_ref();
        let session = granted.map(|granted| granted.grant().id());
        let route = granted.and_then(|granted| granted.route());
        tell!(
            observe::level_of(reason),
            reason = reason.code(),
            owner = denied.and_then(|denied| denied.owner.as_ref()).map(tracing::field::display),
            session = session.or(denied.and_then(|denied| denied.session)).map(tracing::field::display),
            desktop = route.map(|route| tracing::field::display(route.desktop())),
            client = %facts.client,
            via = (facts.peer.ip() != facts.client.ip()).then(|| tracing::field::display(facts.peer)),
            local = %facts.local,
            relayed_by = facts.relayed_by.as_ref().map(tracing::field::display),
            listener = &*facts.listener,
            fault = end.fault.map(tracing::field::display),
            ms = clock::now().saturating_duration_since(facts.since).as_millis(),
            "RDP connection closed: {}",
            reason.words()
        );
    }

    /// Step 1 and the blob, under one deadline: who connects, and with which token.
    async fn preconnection(&self, incoming: Incoming, facts: &mut Facts) -> Result<(Accepted, Secret), CloseReason> {
        let plan = self.plan.load_full();
        let arrived = async {
            let mut accepted = incoming.accept(&plan.config.rdp.balancers).await?;
            facts.clone_from(accepted.facts());
            let token = rdp::read_token(accepted.io_mut()).await?;
            Ok((accepted, token))
        };
        timeout(plan.config.limits.handshake_timeout, arrived)
            .await
            .unwrap_or(Err(CloseReason::Timeout))
    }
}

/// How a connection ended, for its line in the log.
#[derive(Default)]
struct End {
    reason: Option<CloseReason>,
    denied: Option<Denied>,
    granted: Option<Granted>,
    fault: Option<rdp::Unopened>,
}

impl From<CloseReason> for End {
    fn from(reason: CloseReason) -> Self {
        Self {
            reason: Some(reason),
            ..Self::default()
        }
    }
}

/// Steps 7 and 8.
async fn relay<IO>(io: &mut IO, granted: Granted) -> End
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    let (reason, fault) = match rdp::open(&granted, io).await {
        Ok(reason) => (reason, None),
        Err(fault) => (fault.close_reason(), Some(fault)),
    };
    End {
        reason: Some(reason),
        denied: None,
        granted: Some(granted),
        fault,
    }
}
