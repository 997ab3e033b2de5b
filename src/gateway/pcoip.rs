//! The steps of a PCoIP connection: the pipeline without HTTP.

use std::sync::Arc;

use ipnet::IpNet;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::server::TlsStream;
use tracing::Level;

use super::conversation::tell;
use super::lifecycle::State;
use super::{Gateway, Plan};
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::grant::{Denied, Granted};
use crate::listen::{Accepted, Facts, Incoming, Permit, Pieces, Prefixed};
use crate::observe::{self, Kind, Refused};
use crate::secure;
use crate::tunnel::pcoip::{self, Joined};
use crate::types::{Mark, SessionId};

/// The port of PCoIP, ready to serve.
#[derive(Clone, Debug)]
pub struct PcoipDoor {
    /// Peers whose PROXY header is believed.
    pub balancers: Arc<[IpNet]>,
    /// TLS with its certificates; `None`: the client's own passes to the agent.
    pub tls: Option<Arc<rustls::ServerConfig>>,
}

impl Gateway {
    /// Takes a PCoIP connection from its first byte to its end. Never fails: what goes wrong ends it, with a reason.
    pub async fn serve_pcoip(self: Arc<Self>, incoming: Incoming) {
        let mut known = Known {
            facts: incoming.facts().clone(),
            session: None,
            is_mark: false,
        };
        // Boxed, because a connection stays for hours and needs the room of its arrival for a moment.
        let reason = match Box::pin(self.arrive_at_pcoip(incoming, &mut known)).await {
            Ok(arrived) => arrived.go_on().await,
            Err(reason) => reason,
        };
        let Known {
            facts,
            session,
            is_mark,
        } = known;
        self.grants.watch().counters().closed(reason);
        let level = if is_mark {
            Level::DEBUG
        } else {
            observe::level_of(reason)
        };
        tell!(
            level,
            reason = reason.code(),
            session = session.map(tracing::field::display),
            client = %facts.client,
            via = (facts.peer.ip() != facts.client.ip()).then(|| tracing::field::display(facts.peer)),
            local = %facts.local,
            listener = &*facts.listener,
            ms = clock::now().saturating_duration_since(facts.since).as_millis(),
            "PCoIP connection closed"
        );
    }

    /// Who connects, what for, whether that is granted, and the way to the agent. Before the grant nothing is agreed and
    /// nothing is dialled.
    async fn arrive_at_pcoip(&self, incoming: Incoming, known: &mut Known) -> Result<Arrived, CloseReason> {
        let plan = self.plan.load_full();
        // A port that a reload has just closed: its last connections find nobody.
        let door = plan.pcoip.as_ref().ok_or(CloseReason::Drained)?;
        let deadline = Instant::now() + plan.config.limits.handshake_timeout;
        let asks = async {
            let mut accepted = incoming.accept(&door.balancers).await?;
            let name = secure::name_asked_for(accepted.io_mut()).await?;
            Ok((accepted, name))
        };
        let (accepted, name) = timeout_at(deadline, asks).await.unwrap_or(Err(CloseReason::Timeout))?;
        known.facts = accepted.facts().clone();
        if name.as_deref().is_some_and(|name| self.asks_itself(name)) {
            known.is_mark = true;
            let (mut io, ..) = accepted.into_parts();
            pcoip::turn_away(&mut io, pcoip::OWN_MARK).await;
            return Err(CloseReason::Completed);
        }
        let granted = match self.admit_pcoip(name.as_deref(), &known.facts) {
            Ok(granted) => granted,
            Err(denied) => {
                known.session = denied.session;
                let reason = self.deny_pcoip(&denied, &known.facts);
                let (mut io, ..) = accepted.into_parts();
                pcoip::turn_away(&mut io, pcoip::ACCESS_DENIED).await;
                return Err(reason);
            }
        };
        let session = granted.grant().id();
        known.session = Some(session);
        let secured = timeout_at(deadline, Client::of(accepted, door));
        let (client, permit) = secured.await.unwrap_or(Err(CloseReason::Timeout))?;
        let joined = self.join_pcoip(&plan, granted, door.tls.is_some(), &known.facts).await;
        match joined {
            Ok(joined) => Ok(Arrived {
                client,
                joined,
                _permit: permit,
            }),
            Err(reason) => {
                let denied = Denied {
                    reason,
                    owner: None,
                    session: Some(session),
                };
                Err(self.deny_pcoip(&denied, &known.facts))
            }
        }
    }

    /// Whether a name carries a mark with this node's answer.
    fn asks_itself(&self, name: &str) -> bool {
        Mark::in_name(name).is_some_and(|(mark, answer)| self.mark_key.answer(mark) == answer)
    }

    fn admit_pcoip(&self, name: Option<&str>, facts: &Facts) -> Result<Granted, Denied> {
        if self.lifecycle.state() == State::Draining {
            return Err(Denied {
                reason: Refusal::Quiesced,
                owner: None,
                session: None,
            });
        }
        pcoip::admit(&self.grants, name, facts, clock::now())
    }

    async fn join_pcoip(
        &self,
        plan: &Plan,
        granted: Granted,
        terminates_tls: bool,
        facts: &Facts,
    ) -> Result<Joined, Refusal> {
        let desktop = granted.route().map(|route| route.desktop().clone());
        let desktop = desktop.ok_or(Refusal::Revoked)?;
        // A reload may have taken the desktop away.
        let configured = plan.config.directory.desktops.get(&desktop).ok_or(Refusal::Revoked)?;
        let session = granted.grant().id();
        let way = (&plan.agents, &configured.agent);
        match Joined::dial(granted, way, terminates_tls, (&self.flows, facts)).await {
            Ok(joined) => {
                tracing::info!(%session, %desktop, client = %facts.client, "PCoIP connection opened");
                Ok(joined)
            }
            Err(cause) => {
                tracing::debug!(%session, %desktop, cause = cause.code(), "agent not reached");
                Err(Refusal::TargetUnreachable)
            }
        }
    }

    /// Counts a refusal and says so to the log in full; the client learns hardly anything.
    fn deny_pcoip(&self, denied: &Denied, facts: &Facts) -> CloseReason {
        let reason = CloseReason::Refused(denied.reason);
        let refused = Refused {
            reason: denied.reason,
            owner: denied.owner.as_ref(),
            arrival: facts.arrival(),
        };
        self.grants.watch().refused(Kind::Pcoip, &refused, clock::now());
        tell!(
            observe::level_of(reason),
            reason = denied.reason.code(),
            owner = denied.owner.as_ref().map(tracing::field::display),
            session = denied.session.map(tracing::field::display),
            client = %facts.client,
            via = %facts.peer,
            local = %facts.local,
            step = if denied.reason == Refusal::TargetUnreachable { "upstream" } else { "grant" },
            "pcoip refused: {}",
            denied.reason.words()
        );
        reason
    }
}

/// What is known of a connection, for its last line.
struct Known {
    facts: Facts,
    session: Option<SessionId>,
    /// Whether this node asks itself.
    is_mark: bool,
}

/// A connection that is ready for its bytes.
struct Arrived {
    client: Client,
    joined: Joined,
    _permit: Permit,
}

impl Arrived {
    async fn go_on(self) -> CloseReason {
        match self.client {
            Client::Tls(mut io) => self.joined.go_on(&mut io).await,
            Client::Untouched(mut io) => self.joined.go_on(&mut io).await,
        }
    }
}

/// The client's stream: with TLS that ends here, or with its own.
enum Client {
    Tls(Pieces<Box<TlsStream<Prefixed<TcpStream>>>>),
    Untouched(Prefixed<TcpStream>),
}

impl Client {
    async fn of(accepted: Accepted, door: &PcoipDoor) -> Result<(Self, Permit), CloseReason> {
        let Some(tls) = &door.tls else {
            let (io, _facts, permit) = accepted.into_parts();
            return Ok((Self::Untouched(io), permit));
        };
        let (io, _facts, _tls, permit) = secure::handshake(accepted, tls.clone()).await?.into_parts();
        Ok((Self::Tls(io), permit))
    }
}
