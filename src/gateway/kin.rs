//! Two processes of one node: once the one has handed over to the other, a request that still reaches the first on a
//! connection of its own is carried to the second, and answered there as the last of its connection; and a client that
//! comes back for a tunnel of the first is carried there.
//!
//! What is carried goes over a Unix socket that only this node's user can open: a letter that says for whom, then the
//! request and everything after it, byte for byte.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{Request, Version};
use parking_lot::Mutex;
use rustls::{CipherSuite, ProtocolVersion};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::conversation::Conversation;
use super::departure::Destination;
use super::http1::{self, Next};
use super::{Gateway, Outcome, Speaker, answer, sister};
use crate::clock;
use crate::fault::CloseReason;
use crate::grant::Secondary;
use crate::listen::Facts;
use crate::route::{Routed, Unrouted};
use crate::secure::{Offer, TlsFacts};
use crate::tunnel::relay;

/// What a process knows of the others of its node.
#[derive(Debug)]
pub struct Kinship {
    /// Shared by whoever changes what a handover takes along; alone in it, the handover.
    turns: RwLock<()>,
    successor: OnceLock<PathBuf>,
    predecessor: ArcSwapOption<PathBuf>,
    /// Cancelled when the connections of this process are to end after their answers.
    leaving: CancellationToken,
    wishes: mpsc::Sender<Wish>,
    unheard: Mutex<Option<mpsc::Receiver<Wish>>>,
}

/// The operator wants another program to take over.
#[derive(Debug)]
pub struct Wish {
    /// The program.
    pub binary: PathBuf,
    /// Told what became of it: the other process's id, or why this one goes on.
    pub answer: oneshot::Sender<Result<u32, String>>,
}

impl Kinship {
    pub(super) fn new(draining: &CancellationToken) -> Self {
        let (wishes, unheard) = mpsc::channel(1);
        Self {
            turns: RwLock::default(),
            successor: OnceLock::new(),
            predecessor: ArcSwapOption::empty(),
            leaving: draining.child_token(),
            wishes,
            unheard: Mutex::new(Some(unheard)),
        }
    }

    /// Waits until nobody changes what a handover takes along, and keeps everybody from it for as long as the answer is
    /// held. Cancel-safe.
    pub async fn hold(&self) -> RwLockWriteGuard<'_, ()> {
        self.turns.write().await
    }

    /// From now on requests belong to the process behind `socket`. There is no way back.
    pub fn hand_over_to(&self, socket: PathBuf) {
        // A second handover of one process is refused before it begins.
        let _ = self.successor.set(socket);
        self.leaving.cancel();
    }

    /// Whether another process has taken over.
    pub fn has_handed_over(&self) -> bool {
        self.successor.get().is_some()
    }

    /// Where the process before this one is, for as long as it has tunnels.
    pub fn follows(&self, socket: Option<PathBuf>) {
        self.predecessor.store(socket.map(Arc::new));
    }

    /// Whether the process before this one is still there.
    pub fn has_predecessor(&self) -> bool {
        self.predecessor.load().is_some()
    }

    /// The wishes for a handover; once, for whoever fulfils them.
    pub fn wishes(&self) -> Option<mpsc::Receiver<Wish>> {
        self.unheard.lock().take()
    }

    /// Wishes for a handover to another program and waits for what becomes of it.
    ///
    /// # Errors
    /// Why this process goes on, in words for the operator.
    pub async fn wish(&self, binary: PathBuf) -> Result<u32, String> {
        let (answer, answered) = oneshot::channel();
        let is_heard = self.unheard.lock().is_none();
        if !is_heard || self.wishes.try_send(Wish { binary, answer }).is_err() {
            return Err("This node cannot be handed over at this moment.".to_owned());
        }
        let never = || "The node ended before it was handed over.".to_owned();
        answered.await.map_err(|_| never())?
    }

    /// Whether somebody fulfils wishes, and another process can still take over.
    pub fn can_hand_over(&self) -> bool {
        self.unheard.lock().is_none() && !self.has_handed_over()
    }

    /// Cancelled when the connections of this process are to end after their answers: it drains, or has handed over.
    pub fn leaving(&self) -> &CancellationToken {
        &self.leaving
    }
}

impl Gateway {
    /// A request that is the successor's. `None` if there is none, or if it was carried here already.
    pub(super) fn to_successor(&self, request: &Request<()>, conversation: &Conversation) -> Option<Destination> {
        let successor = self.kinship.successor.get()?;
        let carried = || Carried::new(successor, request, Letter::of(conversation));
        (!conversation.carried).then(|| Destination::Kin(Box::new(carried())))
    }

    /// A request for a tunnel of the predecessor.
    pub(super) fn to_predecessor(&self, request: &Request<()>, conversation: &Conversation) -> Option<Destination> {
        let predecessor = self.kinship.predecessor.load_full()?;
        let letter = Letter {
            back: true,
            ..Letter::of(conversation)
        };
        Some(Destination::Kin(Box::new(Carried::new(&predecessor, request, letter))))
    }

    /// Reaches the successor for a stream of a QUIC connection that stays here: routes are added there. `None` if there
    /// is none.
    pub(super) async fn successor_for_stream(&self, conversation: &Conversation) -> Option<io::Result<UnixStream>> {
        let successor = self.kinship.successor.get()?;
        let letter = Letter {
            stream: true,
            ..Letter::of(conversation)
        };
        Some(letter.carry_to(successor).await)
    }

    /// Before a request of the session gateway is answered: waits while a handover is going on. The turn is held for as
    /// long as an answer may change what a handover takes along.
    ///
    /// # Errors
    /// What becomes of a request that another process of this node has to answer.
    pub(super) async fn take_turn<'a>(
        &'a self,
        routed: &Result<Routed<'_>, Unrouted>,
        request: &Request<()>,
        conversation: &Conversation,
    ) -> Result<Option<RwLockReadGuard<'a, ()>>, Outcome> {
        let is_quick = match routed {
            Ok(Routed::Control | Routed::Tunnel { .. } | Routed::Resume { .. }) => true,
            // Its agent may take its time.
            Ok(Routed::Blast { .. }) => false,
            Ok(Routed::Health | Routed::Mark(_) | Routed::Portal) | Err(_) => return Ok(None),
        };
        let turn = self.kinship.turns.read().await;
        let mut elsewhere = self.to_successor(request, conversation);
        if let Ok(Routed::Resume { token, .. }) = routed
            && elsewhere.is_none()
            && self.kinship.has_predecessor()
            && self.is_tunnel_elsewhere(token)
        {
            elsewhere = self.to_predecessor(request, conversation);
        }
        match elsewhere {
            // Requests of later versions cannot leave: they have to be made again.
            Some(_) if request.version() > Version::HTTP_11 => Err(Outcome::NeedsHttp1),
            Some(to) => Err(Outcome::Leave(to)),
            None => Ok(is_quick.then_some(turn)),
        }
    }

    /// Whether the tunnel of the session behind a token lives in the process that handed over to this one.
    fn is_tunnel_elsewhere(&self, token: &str) -> bool {
        let admitted = self.grants.admit(token, Secondary::Tunnel, clock::now());
        admitted.is_ok_and(|granted| self.tunnels.lives_elsewhere(granted.grant().id()))
    }

    /// The other processes of this node.
    pub fn kinship(&self) -> &Kinship {
        &self.kinship
    }

    /// Takes a connection that another process of this node carries here, from its letter to its end.
    pub async fn serve_kin(self: Arc<Self>, mut io: UnixStream) {
        let letter = match timeout(LETTER, Letter::read(&mut io)).await {
            Ok(Ok(letter)) => letter,
            Ok(Err(fault)) => return tracing::warn!(%fault, "a connection of another process cannot be read"),
            Err(_) => return tracing::warn!("a connection of another process came without a word"),
        };
        if let Some(successor) = self.kinship.successor.get()
            && !letter.back
        {
            return match letter.carry_to(successor).await {
                Ok(mut other) => drop(relay::pass(&mut io, &mut other).await),
                Err(fault) => tracing::warn!(%fault, "the other process of this node cannot be reached"),
            };
        }
        let is_stream = letter.stream;
        let (facts, tls) = letter.facts();
        let places = self.caps.admit().ok_or(CloseReason::ConnectionLimit);
        let places = places.and_then(|mut permit| permit.claim(facts.client.ip()).map(|()| permit));
        let conversation = Conversation::new(facts, tls, self.grants.watch().clone()).carried();
        let _places = match places {
            Ok(places) => places,
            Err(reason) => return conversation.log(reason),
        };
        if is_stream {
            let plan = self.plan.load_full();
            return Box::pin(self.answer_stream(&mut io, &conversation, &plan)).await;
        }
        let speaker = Speaker {
            gateway: &self,
            conversation: &conversation,
        };
        let head_timeout = self.plan().config.limits.head_timeout;
        let answered_once = CancellationToken::new();
        answered_once.cancel();
        let ended = Box::pin(http1::serve(io, head_timeout, speaker, &answered_once)).await;
        conversation.log(conversation.end().unwrap_or(ended));
    }
}

impl Speaker<'_> {
    /// What becomes of a request that came after the handover, whatever it asks for.
    pub(super) fn carried(&self, request: &Request<()>) -> Option<Next> {
        let may_leave = request.version() <= Version::HTTP_11;
        let to = may_leave.then(|| self.gateway.to_successor(request, self.conversation));
        to.flatten().map(Next::Leave)
    }
}

/// A request on its way to another process of this node.
pub(super) struct Carried {
    to: PathBuf,
    letter: Letter,
    /// The request's head, as it is to be read there.
    head: Vec<u8>,
}

impl Carried {
    fn new(to: &Path, request: &Request<()>, letter: Letter) -> Self {
        Self {
            to: to.to_owned(),
            letter,
            head: sister::head_of(request),
        }
    }

    /// Carries the connection until a side ends it. `early` is what came after the request's head.
    pub(super) async fn go_on<IO>(self, io: &mut IO, early: Bytes) -> CloseReason
    where
        IO: AsyncRead + AsyncWrite + Unpin,
    {
        let reached = async {
            let mut other = self.letter.carry_to(&self.to).await?;
            other.write_all(&self.head).await?;
            other.write_all(&early).await?;
            Ok::<_, io::Error>(other)
        };
        match reached.await {
            Ok(mut other) => {
                drop((self, early));
                relay::pass(io, &mut other).await
            }
            Err(fault) => {
                let client = self.letter.client;
                tracing::warn!(%client, %fault, "the other process of this node cannot be reached");
                // Whether it is still read or not, there is nothing else to say.
                let _ = io.write_all(&answer::head(&answer::unavailable())).await;
                CloseReason::Drained
            }
        }
    }
}

/// For whom a connection is carried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Letter {
    client: SocketAddr,
    peer: SocketAddr,
    local: SocketAddr,
    listener: String,
    relayed_by: Option<String>,
    tls: Option<TlsLetter>,
    /// What follows is no request, but a call for a stream of QUIC.
    #[serde(default)]
    stream: bool,
    /// It comes from the process after this one, and is not sent there again.
    #[serde(default)]
    back: bool,
}

/// What was agreed with the client, in the numbers of TLS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct TlsLetter {
    version: u16,
    suite: u16,
    sni: Option<Box<str>>,
}

impl Letter {
    fn of(conversation: &Conversation) -> Self {
        let facts = &conversation.facts;
        Self {
            client: facts.client,
            peer: facts.peer,
            local: facts.local,
            listener: facts.listener.to_string(),
            relayed_by: facts.relayed_by.as_ref().map(ToString::to_string),
            tls: conversation.tls.as_ref().map(|tls| TlsLetter {
                version: tls.version.into(),
                suite: tls.suite.into(),
                sni: tls.sni.clone(),
            }),
            stream: false,
            back: false,
        }
    }

    /// Reaches another process, and gives it the letter.
    async fn carry_to(&self, process: &Path) -> io::Result<UnixStream> {
        let mut other = UnixStream::connect(process).await?;
        self.write(&mut other).await?;
        Ok(other)
    }

    fn facts(self) -> (Facts, Option<TlsFacts>) {
        let facts = Facts {
            listener: self.listener.into(),
            local: self.local,
            peer: self.peer,
            client: self.client,
            since: clock::now(),
            relayed_by: self.relayed_by.and_then(|name| name.parse().ok()),
        };
        let tls = self.tls.map(|tls| TlsFacts {
            version: ProtocolVersion::from(tls.version),
            suite: CipherSuite::from(tls.suite),
            group: None,
            sni: tls.sni,
            offered: Offer::default(),
            alpn: false,
            h2: false,
            resumed: false,
        });
        (facts, tls)
    }

    async fn write(&self, io: &mut UnixStream) -> io::Result<()> {
        let letter = serde_json::to_vec(self)?;
        let length = u16::try_from(letter.len()).map_err(io::Error::other)?;
        io.write_all(&length.to_be_bytes()).await?;
        io.write_all(&letter).await
    }

    async fn read(io: &mut UnixStream) -> io::Result<Self> {
        let mut letter = vec![0; io.read_u16().await?.into()];
        io.read_exact(&mut letter).await?;
        Ok(serde_json::from_slice(&letter)?)
    }
}

/// For the letter of a process on the same machine.
const LETTER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_letter_is_read_as_it_was_written() {
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        let letter = Letter {
            client: address(1),
            peer: address(2),
            local: address(3),
            listener: "public".to_owned(),
            relayed_by: Some("gw-2".to_owned()),
            tls: Some(TlsLetter {
                version: 0x0304,
                suite: 0x1301,
                sni: Some("gw.test".into()),
            }),
            stream: true,
            back: false,
        };
        let (mut here, mut there) = UnixStream::pair().unwrap();
        letter.write(&mut here).await.unwrap();
        let read = Letter::read(&mut there).await.unwrap();
        assert_eq!(read, letter);
        let (facts, tls) = read.facts();
        assert_eq!((facts.client, facts.local), (address(1), address(3)));
        assert_eq!(tls.unwrap().version, ProtocolVersion::TLSv1_3);
        here.write_all(b"\0\x05nonse").await.unwrap();
        assert!(Letter::read(&mut there).await.is_err());
    }
}
