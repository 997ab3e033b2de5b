//! What a tunnel is opened with, and its bounds.

use std::time::Duration;

use crate::types::Secret;

/// What a tunnel is opened with.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The connection-id under which it was opened.
    pub connection_id: Secret,
    /// The credential of a reconnect.
    pub reconnect_secret: Secret,
    /// Silence after which a side gives the connection up.
    pub lost_contact: Duration,
    /// How long the tunnel waits without a connection.
    pub reconnect_window: Duration,
    /// What is left of the user's session.
    pub session_left: Duration,
    /// Its bounds.
    pub limits: Limits,
}

/// The bounds of one tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the opening to a right `start`.
    pub start_timeout: Duration,
    /// Chunks that a client may send before it is authenticated.
    pub chunks_before_start: u32,
    /// Unacknowledged chunks above which no channel data is sent.
    pub window_chunks: usize,
    /// Unacknowledged octets above which no channel data is sent.
    pub window_octets: usize,
    /// Chunks not yet transmitted above which no channel data is sent: what waits there is latency for all channels.
    pub backlog: usize,
    /// Unacknowledged chunks of any kind above which the client is taken for broken.
    pub unacknowledged: usize,
    /// Listening ports at one time.
    pub listeners: usize,
    /// Channels at one time.
    pub channels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            start_timeout: Duration::from_secs(10),
            chunks_before_start: 8,
            window_chunks: 128,
            window_octets: 1024 * 1024,
            backlog: 8,
            unacknowledged: 1024,
            listeners: 32,
            channels: 64,
        }
    }
}
