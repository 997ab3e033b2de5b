//! The routes behind the ports that the client listens on.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::grant::{Route, RouteId};
use crate::tunnel::https::registry::ListenFault;
use crate::tunnel::https::session::{ListenRefusal, Session};

/// Which route is behind which port name.
#[derive(Default)]
pub(super) struct Ports {
    open: Vec<Port>,
    /// For names of further ports of one route.
    last: u32,
}

struct Port {
    name: String,
    route: Arc<Route>,
    single_use: bool,
    used: bool,
    cid: i32,
    client_port: Option<u16>,
    waiting: Vec<Answer>,
}

/// Where the client's port is waited for.
pub(super) type Answer = oneshot::Sender<Result<u16, ListenFault>>;

impl Ports {
    /// Has the client listen for `route`. A port that does so already is shared.
    pub(super) fn listen(&mut self, session: &mut Session, route: Arc<Route>, single_use: bool, answer: Answer) {
        let same = |port: &&mut Port| port.route.id() == route.id() && port.single_use == single_use && !port.used;
        if let Some(port) = self.open.iter_mut().find(same) {
            match port.client_port {
                Some(client_port) => reply(answer, Ok(client_port)),
                None => {
                    port.waiting.retain(|asker| !asker.is_closed());
                    port.waiting.push(answer);
                }
            }
            return;
        }
        let name = self.free_name(&route);
        // The client has no use for the inside address: it is told the desktop's id.
        match session.listen(&name, (route.desktop().as_str(), route.target().port), single_use) {
            Err(refusal) => reply(answer, Err(refusal.into())),
            Ok(cid) => self.open.push(Port {
                name,
                route,
                single_use,
                used: false,
                cid,
                client_port: None,
                waiting: vec![answer],
            }),
        }
    }

    /// Takes all ports of a route back; the channels that ended by it.
    pub(super) fn unlisten(&mut self, session: &mut Session, route: RouteId) -> Vec<u32> {
        let gone = self.open.extract_if(.., |port| port.route.id() == route);
        gone.flat_map(|port| session.unlisten(&port.name)).collect()
    }

    /// The client's answer to a listing.
    pub(super) fn answered(&mut self, cid: i32, client_port: Result<u16, String>) {
        let Some(place) = self.open.iter().position(|port| port.cid == cid) else {
            return;
        };
        let answer = client_port.map_err(|words| ListenFault::Refused { words });
        for waiting in std::mem::take(&mut self.open[place].waiting) {
            reply(waiting, answer.clone());
        }
        match answer {
            Ok(client_port) => self.open[place].client_port = Some(client_port),
            Err(_) => drop(self.open.swap_remove(place)),
        }
    }

    /// The client closed a port.
    pub(super) fn closed(&mut self, name: &str) {
        self.open.retain(|port| port.name != name);
    }

    /// A connection is raised behind a port: what is to be dialled.
    pub(super) fn raised(&mut self, name: &str) -> Option<Arc<Route>> {
        let port = self.open.iter_mut().find(|port| port.name == name)?;
        port.used = port.single_use;
        Some(port.route.clone())
    }

    fn free_name(&mut self, route: &Route) -> String {
        let name = route.port_name();
        if self.open.iter().all(|port| port.name != name) {
            return name;
        }
        self.last = self.last.wrapping_add(1) % 10_000;
        format!("{name}.{}", self.last)
    }
}

impl From<ListenRefusal> for ListenFault {
    fn from(refusal: ListenRefusal) -> Self {
        match refusal {
            ListenRefusal::NotReady => Self::NotReady,
            ListenRefusal::TooMany | ListenRefusal::Name => Self::TooMany,
        }
    }
}

/// The asker may have given up meanwhile.
fn reply(to: Answer, answer: Result<u16, ListenFault>) {
    drop(to.send(answer));
}
