//! Users who sign in, open a tunnel each and leave it idle.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use portcullis::client::{Credentials, Doors, Endpoint, Reached, Session, Settings, Trust, Tunnel, Unattended};
use portcullis::clock;
use portcullis::types::Secret;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::task::TaskTracker;

use crate::node::{Node, PASSWORD, user};

/// All of them, signed in.
pub(crate) struct Crowd {
    members: Vec<Member>,
    /// From the first one's first byte to the last one's open tunnel.
    pub(crate) took: Duration,
    tasks: TaskTracker,
}

struct Member {
    session: Session,
    tunnel: Tunnel,
    took: Duration,
}

impl Crowd {
    /// Signs those users in, as many at a time as wait for their password to be checked without being told "busy".
    pub(crate) fn sign_in(
        node: &Node,
        users: Range<usize>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<Self>>> {
        let tasks = TaskTracker::new();
        let endpoint: Endpoint = node.address.to_string().parse()?;
        let settings = settings(node, &tasks)?;
        Ok(async move {
            let (began, places) = (clock::now(), Arc::new(Semaphore::new(AT_A_TIME)));
            let mut entering = JoinSet::new();
            for number in users {
                let (endpoint, settings, places) = (endpoint.clone(), settings.clone(), places.clone());
                entering.spawn(async move {
                    let _place = places.acquire().await?;
                    let entered = enter(endpoint, settings, number).await;
                    entered.with_context(|| user(number))
                });
            }
            let mut members = Vec::new();
            while let Some(member) = entering.join_next().await {
                members.push(member??);
            }
            Ok(Self {
                members,
                took: clock::now() - began,
                tasks,
            })
        })
    }

    /// How long one of them took, in milliseconds.
    pub(crate) fn percentile(&self, share: f64) -> f64 {
        let mut took: Vec<_> = self.members.iter().map(|member| member.took).collect();
        took.sort_unstable();
        let place = (share * took.len() as f64) as usize;
        let took = took.get(place.min(took.len().saturating_sub(1)));
        took.copied().unwrap_or_default().as_secs_f64() * 1e3
    }

    /// Logs all of them out and waits until their connections are closed.
    pub(crate) fn log_out(self, runtime: &Runtime) -> anyhow::Result<()> {
        runtime.block_on(async {
            let places = Arc::new(Semaphore::new(AT_A_TIME));
            let mut leaving = JoinSet::new();
            for member in self.members {
                let places = places.clone();
                leaving.spawn(async move {
                    let _place = places.acquire().await?;
                    member.session.log_out().await;
                    drop(member.tunnel);
                    anyhow::Ok(())
                });
            }
            while let Some(left) = leaving.join_next().await {
                left??;
            }
            self.tasks.close();
            self.tasks.wait().await;
            Ok(())
        })
    }
}

/// How clients go about it that trust the node's certificate.
pub(crate) fn settings(node: &Node, tasks: &TaskTracker) -> anyhow::Result<Settings> {
    Ok(Settings {
        trust: Trust::authorities(&node.chain())?,
        accept_new: false,
        quic: true,
        locale: None,
        tasks: tasks.clone(),
    })
}

/// Signs a user in.
pub(crate) async fn sign_in(endpoint: Endpoint, settings: Settings, number: usize) -> anyhow::Result<Session> {
    let credentials = Credentials {
        user: Some(user(number)),
        password: Some(Secret::new(PASSWORD)),
        ..Credentials::default()
    };
    let reached = Reached::dial(endpoint, settings, &mut Unattended).await?;
    Ok(reached.sign_in(credentials, &mut Unattended).await?)
}

/// Opens the session's tunnel.
pub(crate) async fn open_tunnel(session: &mut Session) -> anyhow::Result<Tunnel> {
    let (notices, _unread) = mpsc::channel(1);
    Ok(session.open_tunnel(Doors::Held, notices, &mut Unattended).await?)
}

async fn enter(endpoint: Endpoint, settings: Settings, number: usize) -> anyhow::Result<Member> {
    let began = clock::now();
    let mut session = sign_in(endpoint, settings, number).await?;
    let tunnel = open_tunnel(&mut session).await?;
    Ok(Member {
        session,
        tunnel,
        took: clock::now() - began,
    })
}

const AT_A_TIME: usize = 32;
