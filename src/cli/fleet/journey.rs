//! The way of a user through a node: the health check, a sign-in, a tunnel.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::member::Front;
use crate::client::{Credentials, Doors, Reached, Session, Settings, Unattended};
use crate::config::inventory::Login;

/// Goes the way of a user through a node, past the balancer; says how far that is.
///
/// # Errors
/// What did not hold, in words.
pub(super) async fn walk(front: &Front) -> Result<&'static str, String> {
    let tasks = TaskTracker::new();
    let settings = Settings {
        trust: front.trust.clone(),
        accept_new: false,
        quic: false,
        locale: None,
        tasks: tasks.clone(),
    };
    let walked = async {
        let dialled = Reached::dial(front.endpoint.clone(), settings, &mut Unattended).await;
        let mut reached = dialled.map_err(|fault| fault.to_string())?;
        match reached.is_in_service().await {
            Ok(true) => {}
            Ok(false) => return Err(format!("/favicon.ico of {} does not answer 200", front.endpoint)),
            Err(fault) => return Err(format!("/favicon.ico of {}: {fault}", front.endpoint)),
        }
        match &front.login {
            Some(login) => sign_in(reached, login).await,
            None => Ok("health check"),
        }
    };
    let outcome = timeout(PATIENCE, walked).await;
    outcome.unwrap_or_else(|_| Err(format!("{} did not let a user through in time", front.endpoint)))
}

async fn sign_in(reached: Reached, login: &Login) -> Result<&'static str, String> {
    let credentials = Credentials {
        user: Some(login.user.clone()),
        password: Some(login.password.clone()),
        domain: login.domain.clone(),
        accept_disclaimer: true,
    };
    let signed_in = reached.sign_in(credentials, &mut Unattended).await;
    let mut session = signed_in.map_err(|fault| format!("the sign-in of {}: {fault}", login.user))?;
    let outcome = open_tunnel(&mut session).await;
    // Whatever came of it, the session is not to stay for hours.
    session.log_out().await;
    outcome.map(|()| "health check, sign-in and tunnel")
}

async fn open_tunnel(session: &mut Session) -> Result<(), String> {
    let (notices, _) = mpsc::channel(1);
    let tunnel = session.open_tunnel(Doors::Held, notices, &mut Unattended).await;
    tunnel.map(drop).map_err(|fault| format!("the tunnel: {fault}"))
}

/// For all of it.
const PATIENCE: Duration = Duration::from_secs(30);
