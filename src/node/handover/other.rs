//! What two processes of one node do for each other after a handover.
//!
//! Ends of sessions go both ways. The new process has the word on whose time is over; the old one tells it which sessions
//! are used there, and serves the tunnels that it has: the new one asks it for their ports.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::link::{End, Link};
use super::message::{Activity, BATCH, COUNTS, Decoder, Message};
use crate::clock;
use crate::fault::CloseReason;
use crate::gateway::Gateway;
use crate::grant::{Grant, RouteSnapshot};
use crate::node::workers::Tasks;
use crate::observe::Tally;
use crate::tunnel::https::{Asked, Elsewhere, ListenFault};
use crate::types::SessionId;

/// The other process, as this one deals with it.
pub(super) struct Other {
    gateway: Arc<Gateway>,
    link: Arc<Link>,
    tasks: Tasks,
    /// Tunnels of the other process.
    tunnels: Mutex<HashMap<SessionId, CancellationToken>>,
    questions: Mutex<HashMap<u64, oneshot::Sender<Result<u16, ListenFault>>>>,
    question: AtomicU64,
    passed_on: AtomicBool,
    /// What the other process knows of the counts here.
    told_counts: Mutex<Tally>,
}

impl Other {
    pub(super) fn new(gateway: Arc<Gateway>, link: Arc<Link>, tasks: Tasks) -> Arc<Self> {
        Arc::new(Self {
            gateway,
            link,
            tasks,
            tunnels: Mutex::default(),
            questions: Mutex::default(),
            question: AtomicU64::new(0),
            passed_on: AtomicBool::new(false),
            told_counts: Mutex::default(),
        })
    }

    /// Notes what the other process knows of the counts here.
    pub(super) fn note_counts(&self, told: Tally) {
        *self.told_counts.lock() = told;
    }

    /// Keeps the places of tunnels of the other process, and passes on what is asked of them.
    pub(super) fn note_tunnels(self: &Arc<Self>, sessions: &[SessionId]) {
        for session in sessions {
            if let Some(place) = self.gateway.tunnels().note_elsewhere(*session) {
                let gone = CancellationToken::new();
                self.tunnels.lock().insert(*session, gone.clone());
                let other = self.clone();
                self.tasks.spawn(async move {
                    gone.run_until_cancelled(other.pass_on(place)).await;
                });
            }
        }
    }

    async fn pass_on(&self, mut place: Elsewhere) {
        let session = place.session().to_string();
        while let Some(asked) = place.asked().await {
            match asked {
                Asked::Listen {
                    route,
                    single_use,
                    answer,
                } => {
                    let id = self.question.fetch_add(1, Ordering::Relaxed);
                    {
                        let mut questions = self.questions.lock();
                        questions.retain(|_, asking| !asking.is_closed());
                        questions.insert(id, answer);
                    }
                    self.link.say(&Message::Listen {
                        id,
                        session: session.clone(),
                        route: RouteSnapshot::from(&*route),
                        single_use,
                    });
                }
                Asked::Unlisten { route } => self.link.say(&Message::Unlisten {
                    session: session.clone(),
                    route: route.number(),
                }),
                Asked::Replaced => {
                    self.link.say(&Message::Replaced { session });
                    return;
                }
            }
        }
    }

    /// Hears the other process until the link ends; `None` if `until` is over before, and all that was said by then is on its
    /// way.
    pub(super) async fn hear(self: &Arc<Self>, decoder: Decoder, until: impl Future<Output = ()>) -> Option<End> {
        let over = async {
            until.await;
            self.link.taken().await;
        };
        let end = tokio::select! {
            end = self.link.run(decoder, |come| self.handle_all(come)) => Some(end),
            () = over => None,
        };
        for gone in std::mem::take(&mut *self.tunnels.lock()).into_values() {
            gone.cancel();
        }
        self.questions.lock().clear();
        end
    }

    /// Whether the other process has handed over itself.
    pub(super) fn has_passed_on(&self) -> bool {
        self.passed_on.load(Ordering::Acquire)
    }

    /// Tells the other process what happens here to sessions that are its as well, of `tunnels` that have ended, and what is
    /// counted, until it is dropped.
    pub(super) async fn report(&self, mut tunnels: Vec<SessionId>) {
        let mut ticks = interval(REPORT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = HashMap::new();
        let mut told_open = None;
        let mut counts_due = clock::now();
        loop {
            ticks.tick().await;
            let connections = self.gateway.caps().of_the_node();
            if told_open.replace(connections) != Some(connections) {
                self.link.say(&Message::Open { connections });
            }
            let open = self.gateway.tunnels();
            tunnels.retain(|session| {
                let lives = open.get(*session).is_some();
                if !lives {
                    let session = session.to_string();
                    self.link.say(&Message::TunnelGone { session });
                }
                lives
            });
            if self.link.is_busy() {
                continue;
            }
            let now = clock::now();
            if now >= counts_due {
                counts_due = now + COUNTING;
                self.tell_counts();
            }
            let grants = self.gateway.grants().list();
            let used: Vec<_> = grants
                .iter()
                .filter_map(|grant| news_of(grant, &mut told, now))
                .collect();
            for some in used.chunks(BATCH) {
                let sessions = some.to_vec();
                self.link.say(&Message::Active { sessions });
            }
            told.retain(|session, _| self.gateway.grants().get(*session).is_some());
        }
    }

    /// Tells the other process what was counted here since it was told last.
    pub(super) fn tell_counts(&self) {
        let mut told = self.told_counts.lock();
        let counted = self.gateway.tally();
        for counts in counted.since(&told).into_parts(COUNTS) {
            self.link.say(&Message::Counts { counts });
        }
        *told = counted;
    }

    fn handle_all(self: &Arc<Self>, come: Vec<Message>) {
        let mut ends = Vec::new();
        for message in come {
            if let Message::Ended { session, reason } = message {
                ends.push((session, reason));
            } else {
                self.handle(message);
            }
        }
        self.end(&ends);
    }

    fn handle(self: &Arc<Self>, message: Message) {
        match message {
            Message::Active { sessions } => self.note_activity(&sessions),
            Message::Open { connections } => self.gateway.caps().set_before(connections),
            Message::TunnelGone { session } => {
                let gone = session.parse().ok().and_then(|id| self.tunnels.lock().remove(&id));
                if let Some(gone) = gone {
                    gone.cancel();
                }
            }
            Message::Listened { id, port, fault } => {
                if let Some(answer) = self.questions.lock().remove(&id) {
                    // Who asked may have given up.
                    let _ = answer.send(port.ok_or_else(|| fault.unwrap_or(ListenFault::Gone)));
                }
            }
            Message::Listen {
                id,
                session,
                route,
                single_use,
            } => {
                let other = self.clone();
                self.tasks.spawn(async move {
                    let listened = other.listen(&session, &route, single_use).await;
                    let (port, fault) = (listened.as_ref().ok().copied(), listened.err());
                    other.link.say(&Message::Listened { id, port, fault });
                });
            }
            Message::Unlisten { session, route } => self.unlisten(&session, route),
            Message::Replaced { session } => {
                let id = session.parse().ok();
                if let Some(tunnel) = id.and_then(|id| self.gateway.tunnels().get(id)) {
                    tunnel.replace();
                }
            }
            Message::Counts { counts } => self.gateway.count_in(&counts),
            Message::Flows { news } => self.gateway.flows().note(news, clock::now()),
            Message::PassedOn {} => {
                self.passed_on.store(true, Ordering::Release);
                self.gateway.flows().note_passed_on();
            }
            Message::Hello { .. }
            | Message::Sockets { .. }
            | Message::WaysBack { .. }
            | Message::Identity { .. }
            | Message::Ready {}
            | Message::Refused { .. }
            | Message::Held {}
            | Message::Take {}
            | Message::Grants { .. }
            | Message::Sessions { .. }
            | Message::Throttle { .. }
            | Message::Tunnels { .. }
            | Message::Whole { .. }
            | Message::Installed { .. }
            | Message::Go {}
            | Message::Serving {}
            | Message::Ended { .. }
            | Message::Unknown => {}
        }
    }

    /// Ends together what has ended together in the other process, at the cost of one wait for a disk.
    fn end(&self, ends: &[(String, String)]) {
        let ends = ends.iter().filter_map(|(session, reason)| {
            let known = CloseReason::ALL.into_iter().find(|known| known.code() == reason);
            Some((session.parse().ok()?, known.unwrap_or(CloseReason::Killed)))
        });
        for (grant, reason) in self.gateway.grants().follow(ends) {
            self.gateway.control_channel().forget(grant.id());
            tracing::info!(
                session = %grant.id(),
                reason = reason.code(),
                "session closed by the other process of this node"
            );
        }
    }

    fn note_activity(&self, sessions: &[Activity]) {
        let now = clock::now();
        let before = |span: Duration| now.checked_sub(span).unwrap_or(now);
        for activity in sessions {
            let id = activity.session.parse().ok();
            let Some(grant) = id.and_then(|id| self.gateway.grants().get(id)) else {
                continue;
            };
            grant.touch(before(activity.inactive));
            if let Some(unbeaten) = activity.unbeaten {
                grant.beat(before(unbeaten));
            }
            grant.count_in(activity.bytes_in);
            grant.count_out(activity.bytes_out);
        }
    }

    async fn listen(&self, session: &str, route: &RouteSnapshot, single_use: bool) -> Result<u16, ListenFault> {
        let id = session.parse().map_err(|_| ListenFault::Gone)?;
        let route = self.gateway.grants().adopt_route(id, route).ok_or(ListenFault::Gone)?;
        let tunnel = self.gateway.tunnels().get(id).ok_or(ListenFault::Gone)?;
        tunnel.listen(route, single_use).await
    }

    fn unlisten(self: &Arc<Self>, session: &str, number: u32) {
        let id = session.parse().ok();
        let Some(grant) = id.and_then(|id| self.gateway.grants().get(id)) else {
            return;
        };
        let route = grant.routes().into_iter().find(|route| route.id().number() == number);
        if let Some(route) = route.and_then(|route| grant.remove_route(route.id()))
            && let Some(tunnel) = self.gateway.tunnels().get(grant.id())
        {
            self.tasks.spawn(async move { tunnel.unlisten(route.id()).await });
        }
    }
}

/// What of a grant was told last: when it was active and heard of, and its bytes.
type Told = (Instant, Option<Instant>, u64, u64);

/// What is to be told of a grant; `None` if nothing has happened since it was told last.
fn news_of(grant: &Grant, told: &mut HashMap<SessionId, Told>, now: Instant) -> Option<Activity> {
    let (active, beat) = (grant.last_activity(), grant.last_beat());
    let (bytes_in, bytes_out) = (grant.bytes_in(), grant.bytes_out());
    let current = (active, beat, bytes_in, bytes_out);
    let last = told.insert(grant.id(), current)?;
    (last != current).then(|| Activity {
        session: grant.id().to_string(),
        inactive: now.saturating_duration_since(active),
        unbeaten: beat.map(|beat| now.saturating_duration_since(beat)),
        bytes_in: bytes_in.saturating_sub(last.2),
        bytes_out: bytes_out.saturating_sub(last.3),
    })
}

/// How often the other process is told what was counted.
const COUNTING: Duration = Duration::from_secs(5);
/// How often the other process is told of what can wait.
const REPORT: Duration = Duration::from_millis(500);
