//! What comes out of a session, for its driver.

use std::sync::Arc;

use bytes::Bytes;

#[cfg(doc)]
use super::Session;

/// What happened, for the driver to act upon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The client is authenticated; ports can be listed.
    Ready,
    /// The client answered a [`Session::listen`].
    Listening {
        /// What `listen` returned.
        cid: i32,
        /// The port on the client, or the client's words for why there is none.
        port: Result<u16, String>,
    },
    /// The client closed a port. Its channels go on.
    Unlistened {
        /// The port's name.
        port_name: Arc<str>,
    },
    /// A program connected to a port: dial what is behind it, then call [`Session::raised`].
    Raise {
        /// The new channel.
        channel: u32,
        /// The port's name, one that was listed.
        port_name: Arc<str>,
    },
    /// Octets of a channel for its desktop.
    Data {
        /// The channel.
        channel: u32,
        /// At least one octet.
        octets: Bytes,
    },
    /// The client sends no more on the channel: deliver what came, then close that direction. The channel goes on
    /// until [`Session::lower`], unless it was lowered here before.
    Lower {
        /// The channel.
        channel: u32,
    },
    /// The client gave a channel up while it was being raised, or takes no more of its desktop; it is gone.
    Abandon {
        /// The channel.
        channel: u32,
    },
}

/// What time brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alarm {
    /// The client did not authenticate in time.
    NotStarted,
    /// Nothing was heard for too long: the connection is given up, the tunnel waits for the client's return.
    LostContact,
    /// The client did not come back in time.
    NotResumed,
}

/// A port cannot be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenRefusal {
    /// The client is not authenticated yet, or the tunnel is ending.
    #[error("the tunnel is not ready")]
    NotReady,
    /// There are as many as there may be.
    #[error("the tunnel has as many ports as it may have")]
    TooMany,
    /// The name is listed already, or too long.
    #[error("the port name cannot be used")]
    Name,
}
