//! A connection that a balancer brought to the wrong node: carried to the node that minted its grant, and judged there.

use std::sync::Arc;

use bytes::Bytes;
use http::header::EXPECT;
use http::{HeaderMap, Request};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{Gateway, answer};
use crate::clock;
use crate::fault::{CloseReason, Refusal};
use crate::fleet::{Errand, Fleet, Kind, ReachFault};
use crate::grant::Denied;
use crate::listen::Facts;
use crate::observe::{self, Arrival, Refused, Watch};
use crate::tunnel::relay;
use crate::types::NodeName;

/// The way to the node that minted the grant.
pub(super) struct Sister {
    fleet: Arc<Fleet>,
    owner: NodeName,
    errand: Errand,
    what: observe::Kind,
    arrival: Arrival,
    watch: Arc<Watch>,
}

impl Gateway {
    /// The way to the node that minted the grant of who was turned away. `None` if it is not known or cannot be reached,
    /// or if another node has carried the connection already: it is carried once.
    pub(super) fn sister(&self, what: observe::Kind, kind: Kind, denied: &Denied, facts: &Facts) -> Option<Sister> {
        let owner = denied.owner.as_ref()?;
        let fleet = self.plan().fleet.clone()?;
        (facts.relayed_by.is_none() && fleet.knows(owner)).then(|| Sister {
            fleet,
            owner: owner.clone(),
            errand: Errand {
                kind,
                client: facts.client,
                local: facts.local,
            },
            what,
            arrival: facts.arrival(),
            watch: self.grants.watch().clone(),
        })
    }
}

impl Sister {
    /// Reaches the owner and sends it the first of the client's bytes. `None`, after a line in the log, if that fails: the
    /// client has still to be turned away.
    pub(super) async fn reach(&self, first: &[u8]) -> Option<TlsStream<TcpStream>> {
        let Errand { client, local, .. } = self.errand;
        let reached = async {
            let mut owner = self.fleet.reach(&self.owner, &self.errand).await?;
            let sent = owner.write_all(first).await.and(owner.flush().await);
            sent.map_err(ReachFault::Connect)?;
            Ok::<_, ReachFault>(owner)
        };
        match reached.await {
            Ok(owner) => {
                self.watch.carried(self.what, &self.owner, self.arrival, clock::now());
                tracing::info!(owner = %self.owner, %client, %local, step = "grant", "connection carried to its own node");
                Some(owner)
            }
            Err(fault) => {
                tracing::warn!(
                    reason = Refusal::SisterNode.code(),
                    owner = %self.owner,
                    %client,
                    %local,
                    step = "grant",
                    "not carried to its own node: {fault}"
                );
                None
            }
        }
    }
}

/// A request on its way to its owner.
pub(super) struct Carried {
    sister: Sister,
    /// The request's head, as the owner is to read it.
    head: Vec<u8>,
}

impl Carried {
    /// Takes a request that has only just been read.
    pub(super) fn new<B>(sister: Sister, request: &Request<B>) -> Self {
        Self {
            sister,
            head: head_of(request),
        }
    }

    /// Carries the connection until a side ends it. `early` is what came after the request's head.
    pub(super) async fn go_on<IO>(mut self, io: &mut IO, early: Bytes) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        self.head.extend_from_slice(&early);
        let Some(mut owner) = self.sister.reach(&self.head).await else {
            let refused = Refused {
                reason: Refusal::SisterNode,
                owner: Some(&self.sister.owner),
                arrival: self.sister.arrival,
            };
            self.sister.watch.refused(self.sister.what, &refused, clock::now());
            // Whether it is still read or not, there is nothing else to say.
            let _ = io.write_all(&answer::refused_in_bytes()).await;
            return CloseReason::Refused(Refusal::SisterNode);
        };
        drop((self.head, early));
        relay::pass(io, &mut owner).await
    }
}

/// A request's head in bytes. The server has granted what the client expected, so nobody else is asked for it.
pub(super) fn head_of<B>(request: &Request<B>) -> Vec<u8> {
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    let mut head = format!("{} {target} {:?}\r\n", request.method(), request.version()).into_bytes();
    let fields: &HeaderMap = request.headers();
    for (name, value) in fields.iter().filter(|(name, _)| *name != EXPECT) {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_the_same_once_more() {
        let request = Request::post("https://gw.test/ice/tunnel?gw-1.a.b")
            .header("Host", "gw.test")
            .header("X-One", "1")
            .header("X-One", "2")
            .header("Expect", "100-continue")
            .header("Transfer-Encoding", "chunked")
            .body(())
            .unwrap();
        let head = String::from_utf8(head_of(&request)).unwrap();
        assert_eq!(
            head,
            "POST /ice/tunnel?gw-1.a.b HTTP/1.1\r\nhost: gw.test\r\nx-one: 1\r\nx-one: 2\r\ntransfer-encoding: chunked\r\n\r\n"
        );
    }
}
