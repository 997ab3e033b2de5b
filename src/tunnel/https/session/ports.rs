//! The ports that the client listens on for this server, and the channels that came of them.

use std::sync::Arc;

use super::{Limits, ListenRefusal};
use crate::tunnel::https::message::MAX_PORT_NAME;

/// Ports and channels of one tunnel. Small tables: a search through them is cheaper than a map.
#[derive(Debug, Default)]
pub(super) struct Ports {
    listeners: Vec<Listener>,
    channels: Vec<Channel>,
}

/// What a `lower` of the client means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lowered {
    /// The client sends no more.
    HalfClosed,
    /// The client had said that before.
    Again,
    /// The channel was still being raised.
    Raising,
}

impl Ports {
    pub(super) fn list(
        &mut self,
        port_name: &str,
        cid: i32,
        single_use: bool,
        limits: &Limits,
    ) -> Result<(), ListenRefusal> {
        if self.listeners.len() >= limits.listeners {
            return Err(ListenRefusal::TooMany);
        }
        if port_name.is_empty() || port_name.len() > MAX_PORT_NAME || self.listener(port_name).is_some() {
            return Err(ListenRefusal::Name);
        }
        self.listeners.push(Listener {
            port_name: port_name.into(),
            cid,
            state: State::Asked,
            single_use,
        });
        Ok(())
    }

    /// The client's answer to a listing; `false` if nothing was asked.
    pub(super) fn answered(&mut self, cid: i32, listening: bool) -> bool {
        let Some(place) = self
            .listeners
            .iter()
            .position(|known| known.cid == cid && known.state == State::Asked)
        else {
            return false;
        };
        if listening {
            self.listeners[place].state = State::Open;
        } else {
            self.listeners.swap_remove(place);
        }
        true
    }

    /// The port is to be closed: nothing is raised behind it any more. `None` if there is nothing to close.
    pub(super) fn close(&mut self, port_name: &str) -> Option<Vec<u32>> {
        let listener = self
            .listener(port_name)
            .filter(|listener| listener.state != State::Closing)?;
        listener.state = State::Closing;
        let behind = self.channels.iter().filter(|channel| *channel.port_name == *port_name);
        Some(behind.map(|channel| channel.id).collect())
    }

    /// The client closed the port.
    pub(super) fn closed(&mut self, port_name: &str) -> Option<Arc<str>> {
        let place = self.listeners.iter().position(|known| *known.port_name == *port_name)?;
        Some(self.listeners.swap_remove(place).port_name)
    }

    /// Opens channel `number` behind a port, or says in words why not.
    pub(super) fn raise(
        &mut self,
        number: i32,
        port_name: &str,
        limits: &Limits,
    ) -> Result<(u32, Arc<str>), &'static str> {
        let id = u32::try_from(number).map_err(|_| "a channel number is not negative")?;
        if self.channel(id).is_some() {
            return Err("the channel number is in use");
        }
        if self.channels.len() >= limits.channels {
            return Err("too many channels");
        }
        let listener = self.listener(port_name).ok_or("no such port")?;
        match listener.state {
            State::Asked | State::Open => {}
            State::Used => return Err("the port was for one connection"),
            State::Closing => return Err("no such port"),
        }
        if listener.single_use {
            listener.state = State::Used;
        }
        let port_name = listener.port_name.clone();
        self.channels.push(Channel {
            id,
            port_name: port_name.clone(),
            raising: true,
            client_lowered: false,
            server_lowered: false,
        });
        Ok((id, port_name))
    }

    /// The raising of a channel came to its end; `false` if the channel is not being raised any more.
    pub(super) fn settle(&mut self, id: u32, open: bool) -> bool {
        let Some(channel) = self.channel(id).filter(|channel| channel.raising) else {
            return false;
        };
        channel.raising = false;
        if !open {
            self.remove(id);
        }
        true
    }

    /// This side sends no more; `false` if that is no news to the client.
    pub(super) fn lower_here(&mut self, id: u32) -> bool {
        let Some(channel) = self.channel(id).filter(|channel| !channel.server_lowered) else {
            return false;
        };
        channel.server_lowered = true;
        if channel.client_lowered {
            self.remove(id);
        }
        true
    }

    /// The client lowers a channel; `None` if there is none of that number.
    pub(super) fn lower_there(&mut self, number: i32) -> Option<(u32, Lowered)> {
        let id = u32::try_from(number).ok()?;
        let channel = self.channel(id)?;
        if channel.client_lowered {
            return Some((id, Lowered::Again));
        }
        if channel.raising {
            return Some((id, Lowered::Raising));
        }
        channel.client_lowered = true;
        if channel.server_lowered {
            self.remove(id);
        }
        Some((id, Lowered::HalfClosed))
    }

    pub(super) fn remove(&mut self, id: u32) {
        self.channels.retain(|channel| channel.id != id);
    }

    /// Whether the client may send on the channel.
    pub(super) fn takes(&self, id: u32) -> bool {
        self.channels
            .iter()
            .any(|channel| channel.id == id && !channel.client_lowered)
    }

    /// Whether this side may send on the channel.
    pub(super) fn gives(&self, id: u32) -> bool {
        self.channels
            .iter()
            .any(|channel| channel.id == id && !channel.server_lowered)
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.channels.is_empty()
    }

    pub(super) fn check_invariants(&self, limits: &Limits) {
        assert!(self.listeners.len() <= limits.listeners && self.channels.len() <= limits.channels);
        for (place, channel) in self.channels.iter().enumerate() {
            assert!(
                !self.channels[..place].iter().any(|other| other.id == channel.id),
                "two channels of one number"
            );
            assert!(
                !(channel.client_lowered && channel.server_lowered),
                "a channel outlived both its ends"
            );
            assert!(
                !(channel.raising && channel.client_lowered),
                "an abandoned channel is kept"
            );
        }
        for (place, listener) in self.listeners.iter().enumerate() {
            let mut before = self.listeners[..place].iter();
            assert!(
                !before.any(|other| other.port_name == listener.port_name),
                "two ports of one name"
            );
        }
    }

    fn channel(&mut self, id: u32) -> Option<&mut Channel> {
        self.channels.iter_mut().find(|channel| channel.id == id)
    }

    fn listener(&mut self, port_name: &str) -> Option<&mut Listener> {
        self.listeners
            .iter_mut()
            .find(|listener| *listener.port_name == *port_name)
    }
}

#[derive(Debug)]
struct Listener {
    port_name: Arc<str>,
    cid: i32,
    state: State,
    single_use: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Open,
    /// Its single use was made of it.
    Used,
    Closing,
}

#[derive(Debug)]
struct Channel {
    id: u32,
    port_name: Arc<str>,
    raising: bool,
    client_lowered: bool,
    server_lowered: bool,
}
