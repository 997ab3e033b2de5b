//! A connection of which nothing is understood, from its handshake to its end: the pipeline without HTTP.

use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::conversation::tell;
use super::http1::linger;
use super::lifecycle::State;
use super::{Door, Gateway, Plan};
use crate::clock;
use crate::config::ListenerProtocol;
use crate::fault::CloseReason;
use crate::listen::{Accepted, Facts, Pieces, Prefixed, abort_at_end};
use crate::observe::level_of;
use crate::publish::Led;
use crate::secure::{self, Secured, TlsFacts};
use crate::tunnel::relay::Passed;

/// A client whose bytes are to pass as they are.
pub(super) enum Client {
    /// TLS ends here.
    Tls(Secured),
    /// TLS ends at the target; this is the name that it is to be for.
    Named(Accepted, Option<Box<str>>),
    /// Nothing is known of it.
    Plain(Accepted),
}

impl Client {
    /// Step 2, as the listener has it. Waits for the client without a limit of its own.
    pub(super) async fn of(mut accepted: Accepted, door: &Door) -> Result<Self, CloseReason> {
        if let Some(tls) = &door.tls {
            return secure::handshake(accepted, tls.clone()).await.map(Self::Tls);
        }
        if door.protocol == ListenerProtocol::Passthrough {
            let name = secure::name_asked_for(accepted.io_mut()).await?;
            return Ok(Self::Named(accepted, name));
        }
        Ok(Self::Plain(accepted))
    }
}

/// A client's stream, beneath which there is a socket.
trait Wire: AsyncRead + AsyncWrite + Unpin {
    fn socket(&self) -> &TcpStream;
}

impl Wire for Prefixed<TcpStream> {
    fn socket(&self) -> &TcpStream {
        self.get_ref()
    }
}

impl Wire for Pieces<Box<TlsStream<Prefixed<TcpStream>>>> {
    fn socket(&self) -> &TcpStream {
        self.get_ref().get_ref().0.get_ref()
    }
}

impl Gateway {
    /// Steps 3 to 8 of a connection whose bytes pass as they are, to its end.
    pub(super) async fn pass_on(&self, client: Client, plan: Arc<Plan>) {
        match client {
            Client::Tls(secured) => {
                let (mut io, facts, tls, _permit) = secured.into_parts();
                let name = tls.sni.clone();
                self.pass_bytes(&mut io, (&facts, Some(&tls), name.as_deref()), plan)
                    .await;
            }
            Client::Named(accepted, name) => {
                let (mut io, facts, _permit) = accepted.into_parts();
                self.pass_bytes(&mut io, (&facts, None, name.as_deref()), plan).await;
            }
            Client::Plain(accepted) => {
                let (mut io, facts, _permit) = accepted.into_parts();
                self.pass_bytes(&mut io, (&facts, None, None), plan).await;
            }
        }
    }

    async fn pass_bytes<C: Wire>(
        &self,
        client: &mut C,
        (facts, tls, name): (&Facts, Option<&TlsFacts>, Option<&str>),
        plan: Arc<Plan>,
    ) {
        let mut led = Led::default();
        let joined = if self.lifecycle.state() == State::Draining {
            Err(CloseReason::Drained)
        } else {
            // In a box of its own: the connection stays for hours.
            let leading = self
                .publisher
                .lead(&plan.web, facts, name.unwrap_or_default(), &mut led);
            Box::pin(leading).await
        };
        // What the plan before is made of need not stay for as long as its connections.
        drop(plan);
        let reason = match joined {
            Ok(joined) => {
                let passed = joined.carry(client, &mut led).await;
                take_leave(client, passed).await;
                passed.reason
            }
            Err(reason) => reason,
        };
        self.passed((facts, tls, name), &led, reason);
    }

    /// Counts the end and writes the connection's one line. Checks of a balancer, which say nothing, stay at DEBUG.
    fn passed(&self, (facts, tls, name): (&Facts, Option<&TlsFacts>, Option<&str>), led: &Led, reason: CloseReason) {
        let is_quiet = reason == CloseReason::Completed && led.received == 0 && led.sent == 0;
        let level = if is_quiet {
            tracing::Level::DEBUG
        } else {
            level_of(reason)
        };
        self.grants.watch().counters().closed(reason);
        tell!(
            level,
            reason = reason.code(),
            client = %facts.client,
            via = (facts.peer.ip() != facts.client.ip()).then(|| tracing::field::display(facts.peer)),
            local = %facts.local,
            listener = &*facts.listener,
            rule = led.rule(),
            pool = led.pool(),
            address = led.target.map(tracing::field::display),
            retries = led.retries,
            fault = led.fault.map(|fault| fault.code()),
            tls = tls.and_then(|tls| tls.version.as_str()),
            sni = name,
            received = led.received,
            sent = led.sent,
            ms = clock::now().saturating_duration_since(facts.since).as_millis(),
            "passage closed"
        );
    }
}

/// Has the client see how its connection ended: in order, or broken off.
async fn take_leave<C: Wire>(client: &mut C, passed: Passed) {
    if passed.reason == CloseReason::UpstreamClosed && passed.is_whole {
        // It has the target's end already, and may have much of what came before still to read.
        Box::pin(linger(client)).await;
    } else if passed.reason != CloseReason::Completed {
        abort_at_end(client.socket());
    }
}
