//! What the node tells of itself: the log, the counts of what happened, and what it finds wrong around it.
//!
//! Levels: TRACE a packet, DEBUG a deviation, INFO a session or tunnel that opened or closed and a configuration that was
//! applied, WARN what someone should look at, ERROR what is broken. Values are fields, never formatted in. Tokens and
//! passwords never get here; names of people only where a session opens or closes.

use tracing::{Level, Subscriber};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload;
use tracing_subscriber::util::{SubscriberInitExt as _, TryInitError};
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt};

use crate::config::{Log, LogFormat};
use crate::fault::{CloseReason, Refusal, Source};

pub mod access;
mod counters;
pub mod diagnosis;
pub mod exposition;
mod places;
mod tally;
pub mod traffic;
mod watch;

pub use counters::{Aside, Counters, Kind};
pub use diagnosis::{Cause, Finding};
pub use places::Places;
pub use tally::Tally;
pub use watch::{Arrival, Refused, Watch};

/// The running log: its level can be changed while it runs, its form cannot.
#[derive(Debug)]
pub struct Logging {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl Logging {
    /// Starts logging to standard error, once a process.
    ///
    /// # Errors
    ///
    /// [`LogFault`] if the level cannot be read, or a log is already running.
    pub fn start(log: &Log) -> Result<Self, LogFault> {
        let (filter, handle) = reload::Layer::new(filter(&log.level)?);
        tracing_subscriber::registry()
            .with(filter)
            .with(output(log.format))
            .try_init()?;
        Ok(Self { filter: handle })
    }

    /// Changes the level.
    ///
    /// # Errors
    ///
    /// [`LogFault`] if the level cannot be read; the former one stays.
    pub fn set_level(&self, level: &str) -> Result<(), LogFault> {
        self.filter.reload(filter(level)?)?;
        Ok(())
    }
}

/// Why the log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogFault {
    /// The level is neither a level nor a list of directives.
    #[error("log.level {level:?} cannot be read: {cause}. Write \"info\", or \"info,portcullis::tunnel=debug\"")]
    Level {
        /// As configured.
        level: String,
        /// What the parser said.
        cause: tracing_subscriber::filter::ParseError,
    },
    /// Another log runs in this process.
    #[error("a log is already running: {0}")]
    Running(#[from] TryInitError),
    /// The log is gone.
    #[error("the log does not take a new level: {0}")]
    Gone(#[from] reload::Error),
}

/// `tracing::event!` at a level that is known only at run time.
macro_rules! tell {
    ($level:expr, $($rest:tt)+) => {
        match $level {
            tracing::Level::ERROR => tracing::error!($($rest)+),
            tracing::Level::WARN => tracing::warn!($($rest)+),
            tracing::Level::INFO => tracing::info!($($rest)+),
            tracing::Level::DEBUG => tracing::debug!($($rest)+),
            tracing::Level::TRACE => tracing::trace!($($rest)+),
        }
    };
}
pub(crate) use tell;

/// The level at which an end is told: what is broken louder than what a client or a rule did.
pub fn level_of(reason: CloseReason) -> Level {
    match (reason, reason.source()) {
        // A desktop that is switched off does that to its connections.
        (CloseReason::UpstreamClosed, _) => Level::INFO,
        (CloseReason::Refused(Refusal::SisterNode), _) | (_, Source::Upstream) => Level::WARN,
        (_, Source::Internal) => Level::ERROR,
        (CloseReason::TlsFailed | CloseReason::Timeout | CloseReason::Idle | CloseReason::ClientClosed, _) => {
            Level::DEBUG
        }
        // They come by the thousand; the log has said so once.
        (CloseReason::HandshakeRate, _) => Level::DEBUG,
        (_, Source::Client | Source::Policy) => Level::INFO,
    }
}

fn filter(level: &str) -> Result<EnvFilter, LogFault> {
    let filter = EnvFilter::try_new(level).map_err(|cause| LogFault::Level {
        level: level.to_owned(),
        cause,
    })?;
    // It has a line for every socket whose device cannot segment; ours says it once.
    let quiet = "quinn_udp=warn".parse().ok().filter(|_| !level.contains("quinn_udp"));
    Ok(match quiet {
        Some(quiet) => filter.add_directive(quiet),
        None => filter,
    })
}

fn output<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let layer = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Json => layer
            .json()
            .flatten_event(true)
            .with_current_span(true)
            .with_span_list(false)
            // A line has one `target`: the one of a pool.
            .with_target(false)
            .boxed(),
        LogFormat::Text => layer.with_ansi(false).with_target(false).boxed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_level_is_refused_with_the_remedy() {
        let fault = filter("info,portcullis=loud").unwrap_err();
        assert!(fault.to_string().contains("Write \"info\""), "{fault}");
    }

    #[test]
    fn a_misrouted_secondary_makes_someone_look() {
        assert_eq!(level_of(CloseReason::Refused(Refusal::SisterNode)), Level::WARN);
        assert_eq!(level_of(CloseReason::Refused(Refusal::UnknownToken)), Level::INFO);
        assert_eq!(level_of(CloseReason::Internal), Level::ERROR);
    }
}
