//! What a signed-in user asks for: the tunnel, the desktops, a launch, preferences.

use std::sync::Arc;

use super::operation::{
    Body, Connection, Desktop, DesktopState, ErrorCode, Failure, Launch, LaunchItems, LaunchItemsRequest,
    LaunchRequest, OfferedProtocol, Preference, Quic, Tunnel, TunnelConnection, TunnelRequest,
};
use super::service::Turn;
use super::ticket;
use crate::broker;
use crate::clock;
use crate::fault::CloseReason;
use crate::grant::{Grant, Route, RouteRefusal, Secondary};
use crate::route::masque;
use crate::tunnel::https::{Handle, ListenFault};
use crate::types::{DesktopId, Protocol, Secret, SessionId};

impl Turn<'_> {
    /// `get-tunnel-connection`: announces a token. The gateway owns the tunnel, so a bypass is never granted.
    pub(super) fn tunnel(&self, grant: &Arc<Grant>, request: &TunnelRequest) -> Body {
        let token = self.control.grants.announce(grant, Secondary::Tunnel, clock::now());
        let base = self.base_url();
        Body::Tunnel(TunnelConnection::Tunnel(Tunnel {
            connection_id: Secret::new(token.as_str()),
            server1: base.clone(),
            server2: Some(base),
            generation: 0,
            status_port: 0,
            quic: self.quic_port().filter(|_| request.quic).map(|port| Quic {
                port,
                token: Secret::new(
                    self.control
                        .grants
                        .announce(grant, Secondary::Quic, clock::now())
                        .as_str(),
                ),
            }),
        }))
    }

    /// `get-desktops`.
    pub(super) fn desktops(&self, grant: &Grant, supported: &[String]) -> Body {
        Body::Desktops(self.list(grant, supported))
    }

    /// `get-launch-items`: desktops; there are no applications and no sessions to share.
    pub(super) fn launch_items(&self, grant: &Grant, request: LaunchItemsRequest) -> Body {
        Body::LaunchItems(LaunchItems {
            desktops: request.desktops.map(|supported| self.list(grant, &supported)),
            applications: request.applications.map(|_| Vec::new()),
            application_sessions: request.application_sessions,
            shadow_sessions: request.shadow_sessions.is_some(),
        })
    }

    /// `get-desktop-connection`: adds a route to the grant and answers how the client gets to it.
    pub(super) async fn launch(&self, grant: &Arc<Grant>, request: LaunchRequest) -> Result<Body, Failure> {
        let id = DesktopId::new(request.id);
        let desktop = self.control.directory.load().desktop_for(grant.user(), &id);
        let desktop = desktop.ok_or_else(|| Failure::new(ErrorCode::NotEntitled))?;
        let (protocol, target) = choose(&desktop, request.protocol.as_deref())?;
        if request.preconnection {
            return self.launch_preconnection(grant, &desktop, protocol, target);
        }
        let tunnel = self.control.tunnels.get(grant.id());
        let over_quic = request.quic && self.exchange.quic && !protocol.has_own_secondary();
        if !protocol.has_own_secondary() && tunnel.is_none() && !over_quic {
            return Err(Failure::new(ErrorCode::DesktopNotAvailable)
                .with_user_message("The tunnel to the gateway is not open."));
        }
        let former = grant.routes();
        let route = grant
            .add_route(&desktop.id, protocol, target, desktop.max_sessions)
            .map_err(route_failure)?;
        let way = match tunnel {
            _ if over_quic => Ok(Connection {
                address: route.port_name(),
                port: masque::PORT,
                ..Connection::default()
            }),
            Some(tunnel) if !protocol.has_own_secondary() => self.through_the_tunnel(&tunnel, &route).await,
            Some(_) | None if protocol == Protocol::Blast => self.blast(grant, &route),
            Some(_) | None => self.pcoip(grant, &route),
        };
        let way = way.inspect_err(|_| {
            // A route that was there before may be in use.
            if former.iter().all(|former| former.id() != route.id()) {
                grant.remove_route(route.id());
            }
        })?;
        tracing::info!(session = %grant.id(), desktop = %desktop.id, %protocol, "desktop launched");
        Ok(Body::Launch(Launch::Connect(Box::new(Connection {
            id: desktop.id.to_string(),
            protocol: Some(protocol.wire_name().to_owned()),
            user_name: Some(grant.user().to_string()),
            ..way
        }))))
    }

    /// Has the client listen for the desktop, on a port of its own.
    async fn through_the_tunnel(&self, tunnel: &Handle, route: &Arc<Route>) -> Result<Connection, Failure> {
        let port = tunnel.listen(route.clone(), false).await;
        Ok(Connection {
            address: "localhost".to_owned(),
            port: port.map_err(|fault| listen_failure(&fault))?,
            ..Connection::default()
        })
    }

    /// Announces a Blast connection to this very node: its address, the route's token, and the certificate to expect.
    fn blast(&self, grant: &Arc<Grant>, route: &Arc<Route>) -> Result<Connection, Failure> {
        let settings = self.control.settings.load();
        let (host, port) = match &settings.blast_url {
            Some(url) => (url.host.clone(), url.port),
            None => self.asked_at(),
        };
        let datagrams = settings.blast_url.as_ref().and_then(|url| url.udp_port);
        let datagrams = datagrams.filter(|_| settings.serves_udp);
        let certificate =
            (self.exchange.shown)(&host, port).ok_or_else(|| Failure::new(ErrorCode::DesktopLaunchError))?;
        let token = self
            .control
            .grants
            .announce_route(grant, Secondary::Blast, route, clock::now());
        Ok(Connection {
            address: host,
            port,
            token: Some(Secret::new(ticket::blast(token.as_str(), &certificate, datagrams))),
            ..Connection::default()
        })
    }

    /// The name and port under which the client asked, or else the address at which its connection is.
    fn asked_at(&self) -> (String, u16) {
        match self.exchange.authority {
            Some(authority) => {
                let host = authority.host().trim_start_matches('[').trim_end_matches(']');
                (host.to_owned(), authority.port_u16().unwrap_or(HTTPS))
            }
            None => (self.exchange.local.ip().to_string(), self.exchange.local.port()),
        }
    }

    /// `kill-session`: ends the user's session on a desktop, from whichever client it was launched.
    pub(super) async fn kill_session(&self, grant: &Grant, session_id: &str) -> Result<Body, Failure> {
        let gone = || Failure::new(ErrorCode::DesktopNotAvailable).with_user_message("There is no such session.");
        let (session, desktop) = session_id.split_once(':').ok_or_else(gone)?;
        let session: SessionId = session.parse().map_err(|_| gone())?;
        let owner = self
            .control
            .grants
            .get(session)
            .filter(|owner| owner.user() == grant.user())
            .ok_or_else(gone)?;
        let routes: Vec<_> = owner
            .routes()
            .into_iter()
            .filter(|route| route.desktop().as_str() == desktop)
            .collect();
        if routes.is_empty() {
            return Err(gone());
        }
        for route in routes {
            owner.remove_route(route.id());
            if let Some(tunnel) = self.control.tunnels.get(session) {
                tunnel.unlisten(route.id()).await;
            }
        }
        tracing::info!(%session, desktop, reason = CloseReason::Killed.code(), "desktop session closed by its user");
        Ok(Body::Empty)
    }

    /// `reset-desktop`: the gateway has no power over desktops, and says so.
    pub(super) fn reset(&self, grant: &Grant, desktop: String) -> Failure {
        let entitled = self
            .control
            .directory
            .load()
            .desktop_for(grant.user(), &DesktopId::new(desktop));
        if entitled.is_none() {
            return Failure::new(ErrorCode::NotEntitled);
        }
        Failure::new(ErrorCode::UnsupportedOperation)
            .with_user_message("This desktop cannot be reset from here. Ask whoever runs it.")
    }

    /// `get-user-global-preferences`.
    pub(super) fn preferences(&self, grant: &Grant) -> Body {
        Body::Preferences(written(self.control.directory.load().preferences(grant.user(), None)))
    }

    /// `set-user-global-preferences`.
    pub(super) fn set_preferences(&self, grant: &Grant, preferences: Vec<Preference>) -> Result<Body, Failure> {
        self.keep(grant, None, preferences)?;
        Ok(self.preferences(grant))
    }

    /// `set-user-desktop-preferences`.
    pub(super) fn set_desktop_preferences(
        &self,
        grant: &Grant,
        desktop_id: String,
        preferences: Vec<Preference>,
    ) -> Result<Body, Failure> {
        let id = DesktopId::new(desktop_id.as_str());
        self.keep(grant, Some(&id), preferences)?;
        let preferences = written(self.control.directory.load().preferences(grant.user(), Some(&id)));
        Ok(Body::DesktopPreferences {
            desktop_id,
            preferences,
        })
    }

    fn keep(&self, grant: &Grant, desktop: Option<&DesktopId>, preferences: Vec<Preference>) -> Result<(), Failure> {
        let directory = self.control.directory.load();
        if let Some(id) = desktop
            && directory.desktop_for(grant.user(), id).is_none()
        {
            return Err(Failure::new(ErrorCode::NotEntitled));
        }
        let changes = preferences
            .into_iter()
            .map(|preference| (preference.name, preference.value))
            .collect();
        directory
            .set_preferences(grant.user(), desktop, changes)
            .map_err(|fault| {
                tracing::warn!(session = %grant.id(), "preferences not kept: {fault}");
                Failure {
                    message: fault.to_string(),
                    ..Failure::new(ErrorCode::InvalidRequest)
                }
            })
    }

    fn list(&self, grant: &Grant, supported: &[String]) -> Vec<Desktop> {
        let directory = self.control.directory.load();
        let sessions = self.control.grants.by_user(grant.user());
        directory
            .desktops_of(grant.user())
            .into_iter()
            .map(|desktop| {
                let on_it = |session: &&Arc<Grant>| session.routes().iter().any(|route| *route.desktop() == desktop.id);
                let session = sessions.iter().find(on_it);
                Desktop {
                    id: desktop.id.to_string(),
                    name: desktop.name.clone(),
                    kind: Some("free".to_owned()),
                    state: self.state_of(session),
                    session_id: session.map(|session| format!("{}:{}", session.id(), desktop.id)),
                    protocols: offered(&desktop),
                    protocol_match: matches(&desktop, supported),
                    preferences: written(directory.preferences(grant.user(), Some(&desktop.id))),
                    ..Desktop::default()
                }
            })
            .collect()
    }

    fn state_of(&self, session: Option<&Arc<Grant>>) -> DesktopState {
        match session {
            None => DesktopState::Idle,
            Some(session) if session.connections() > 0 || self.control.tunnels.get(session.id()).is_some() => {
                DesktopState::Connected
            }
            Some(_) => DesktopState::Disconnected,
        }
    }

    /// Where the client finds QUIC, if its listener serves UDP: at the port of the base URL.
    fn quic_port(&self) -> Option<u16> {
        if !self.exchange.quic {
            return None;
        }
        let url: http::Uri = self.base_url().parse().ok()?;
        Some(url.port_u16().unwrap_or(HTTPS))
    }

    /// Where the client reaches this very node: as configured, or else as it did for this message.
    fn base_url(&self) -> String {
        let settings = self.control.settings.load();
        if let Some(url) = &settings.external_url {
            return url.clone();
        }
        match self.exchange.authority {
            Some(authority) => format!("https://{}:{}", authority.host(), authority.port_u16().unwrap_or(HTTPS)),
            None => format!("https://{}", self.exchange.local),
        }
    }
}

/// The protocol that the client asks for, or the desktop's default.
fn choose<'a>(
    desktop: &'a broker::Desktop,
    wanted: Option<&str>,
) -> Result<(Protocol, &'a crate::types::Target), Failure> {
    let offered = desktop.protocols.iter().map(|(protocol, target)| (*protocol, target));
    let chosen = match wanted.filter(|name| !name.is_empty()) {
        None => offered.into_iter().next(),
        Some(name) => {
            Protocol::from_wire(name).and_then(|wanted| offered.into_iter().find(|(protocol, _)| *protocol == wanted))
        }
    };
    chosen.ok_or_else(|| {
        Failure::new(ErrorCode::DesktopLaunchError).with_user_message("The desktop does not offer this protocol.")
    })
}

fn offered(desktop: &broker::Desktop) -> Vec<OfferedProtocol> {
    let named = desktop.protocols.iter().enumerate();
    named
        .map(|(n, (protocol, _))| OfferedProtocol {
            name: protocol.wire_name().to_owned(),
            is_default: n == 0,
        })
        .collect()
}

/// A client that does not say what it supports is taken to support everything.
fn matches(desktop: &broker::Desktop, supported: &[String]) -> bool {
    let speaks = |protocol: Protocol| supported.iter().any(|name| Protocol::from_wire(name) == Some(protocol));
    supported.is_empty() || desktop.protocols.iter().any(|(protocol, _)| speaks(*protocol))
}

fn written(preferences: Vec<(String, String)>) -> Vec<Preference> {
    preferences
        .into_iter()
        .map(|(name, value)| Preference { name, value })
        .collect()
}

pub(super) fn route_failure(refusal: RouteRefusal) -> Failure {
    let (code, words) = match refusal {
        RouteRefusal::Ended => (ErrorCode::NotAuthenticated, "The session has ended. Sign in again."),
        RouteRefusal::TooMany => (
            ErrorCode::DesktopLaunchError,
            "This session has launched as much as it may.",
        ),
        RouteRefusal::DesktopFull => (
            ErrorCode::DesktopNotAvailable,
            "The desktop is in use by others. Try again later.",
        ),
    };
    Failure::new(code).with_user_message(words)
}

fn listen_failure(fault: &ListenFault) -> Failure {
    Failure {
        message: fault.to_string(),
        ..Failure::new(ErrorCode::DesktopLaunchError)
    }
    .with_user_message("The tunnel to the gateway did not take the desktop. Try again.")
}

const HTTPS: u16 = 443;
