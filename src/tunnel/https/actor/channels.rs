//! The channels of a tunnel: raised, served in turn, given up.

use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::desktop::Desktop;
use super::{CHUNKS_A_TURN, Tunnel};
use crate::upstream;

impl Tunnel {
    /// A program of the client wants to reach what is behind a port. Only what the grant still permits is dialled.
    pub(super) fn raise(&mut self, channel: u32, port_name: &str, now: Instant) {
        self.grant.touch(now);
        let route = self.ports.raised(port_name);
        let route = route.filter(|route| self.grant.routes().iter().any(|open| open.id() == route.id()));
        let Some(route) = route else {
            self.session
                .raised(channel, Err("the desktop is not permitted any more".to_owned()));
            return;
        };
        self.tally.channels += 1;
        let dial = Box::pin(async move { upstream::dial(route.target(), DIAL_LIMIT).await });
        self.desktops.push(Desktop::dialling(channel, dial, now));
    }

    pub(super) fn drop_desktop(&mut self, channel: u32) {
        self.desktops.retain(|desktop| desktop.channel() != channel);
    }

    /// Moves octets between all desktops and the session. `true`: there may be more.
    pub(super) fn serve_desktops(&mut self, cx: &mut Context<'_>, now: Instant) -> bool {
        let count = self.desktops.len();
        let mut moved = false;
        for step in 0..count {
            moved |= self.serve((self.turn + step) % count, cx, now);
        }
        self.turn = if count == 0 { 0 } else { (self.turn + 1) % count };
        self.desktops.retain(|desktop| !desktop.is_over());
        moved
    }

    fn serve(&mut self, place: usize, cx: &mut Context<'_>, now: Instant) -> bool {
        let desktop = &mut self.desktops[place];
        let channel = desktop.channel();
        match desktop.poll_dial(cx, now) {
            Poll::Pending => return false,
            Poll::Ready(Ok(false)) => {}
            Poll::Ready(Ok(true)) => self.session.raised(channel, Ok(())),
            Poll::Ready(Err(fault)) => {
                tracing::debug!(session = %self.grant.id(), channel, reason = fault.code(), "desktop not reached");
                self.session.raised(channel, Err(fault.to_string()));
                desktop.abort();
                return false;
            }
        }
        let Ok(mut moved) = desktop.write(cx, now) else {
            self.session.forget(channel);
            desktop.abort();
            return false;
        };
        for _ in 0..CHUNKS_A_TURN {
            if !self.session.is_window_open() {
                break;
            }
            match desktop.poll_read(cx, now) {
                Poll::Pending => return moved,
                Poll::Ready(Ok(Some(octets))) => {
                    self.grant.count_out(octets.octets().len() as u64);
                    self.tally.octets_out += octets.octets().len() as u64;
                    self.session.send(channel, octets);
                    moved = true;
                }
                Poll::Ready(Ok(None)) => self.session.lower(channel),
                Poll::Ready(Err(_)) => {
                    self.session.forget(channel);
                    desktop.abort();
                    return moved;
                }
            }
        }
        moved
    }

    /// Ends the channels that are stuck, or half-closed and silent. Not while the client is away: they wait for it.
    pub(super) fn give_up_desktops(&mut self, now: Instant) {
        if !self.session.is_attached() {
            return;
        }
        let (session, lost_contact) = (&mut self.session, self.lost_contact);
        let client_listens = session.keeps_lowered();
        self.desktops.retain(|desktop| {
            let stays = desktop
                .deadline(lost_contact, client_listens)
                .is_none_or(|deadline| now < deadline);
            if !stays {
                session.forget(desktop.channel());
            }
            stays
        });
    }
}

/// How long a desktop has to accept a connection. Clients wait for it with a window open.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
