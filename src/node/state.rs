//! What of a node stands on its disk beside what users have changed: the lock that keeps two nodes from one folder, and the
//! grants that are to survive a restart ([`Journal`]).

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::handover::Keys;
use crate::clock;
use crate::config::Config;
use crate::gateway::Gateway;

mod form;
mod journal;
mod key;
mod shelf;

use form::{Identity, Kept, Moment};
pub(super) use journal::Journal;
use shelf::{Remembered, Shelf};

/// What a process has on the disk.
#[derive(Debug, Default)]
pub(super) struct Keeping {
    lock: Option<StateLock>,
    journal: Option<Arc<Journal>>,
}

/// What a node finds on the disk at its start.
#[derive(Debug)]
pub(super) struct Found {
    lock: StateLock,
    shelf: Option<Shelf>,
    /// As of the moment `looked`.
    grants: Vec<Kept>,
    looked: Instant,
}

impl Found {
    /// Takes the node's folder, and reads what is kept there of its sessions; beside it, the keys that it had. Blocks.
    ///
    /// # Errors
    /// Another process has the folder.
    pub(super) fn look(config: &Config) -> Result<(Self, Option<Keys>), StateInUse> {
        let lock = StateLock::take(&config.node.state_dir)?;
        let shelf = shelf_of(config);
        let looked = clock::now();
        let remembered = shelf.as_ref().and_then(|shelf| remember(shelf, config));
        let (keys, grants) = remembered.map(|found| (found.keys, found.grants)).unzip();
        let grants = grants.unwrap_or_default();
        let found = Self {
            lock,
            shelf,
            grants,
            looked,
        };
        Ok((found, keys))
    }

    /// Has the gateway go on with the sessions that were kept, and keeps them from now on. Blocks.
    pub(super) fn restore(self, gateway: &Arc<Gateway>, keys: &Keys) -> Keeping {
        let (grants, control) = (gateway.grants(), gateway.control_channel());
        let mut restored = 0;
        for kept in &self.grants {
            restored += grants.restore(slice::from_ref(&kept.grant), self.looked, clock::now());
            let grant = kept.grant.id().and_then(|id| grants.get(id));
            if let (Some(cookie), Some(grant)) = (&kept.cookie, grant) {
                control.adopt(cookie, grant);
            }
        }
        if self.shelf.is_some() {
            control.end_strangers();
            let over = self.grants.len() - restored;
            tracing::info!(sessions = restored, over, "sessions kept from before");
        }
        Keeping {
            lock: Some(self.lock),
            journal: begin(self.shelf, gateway, keys, false),
        }
    }
}

impl Keeping {
    /// Takes the folder over from a process that goes on with what is open there. Blocks.
    ///
    /// # Errors
    /// Another process has it.
    pub(super) fn take_over(gateway: &Arc<Gateway>, keys: &Keys) -> Result<Self, StateInUse> {
        let plan = gateway.plan();
        let lock = StateLock::take(&plan.config.node.state_dir)?;
        let journal = begin(shelf_of(&plan.config), gateway, keys, true);
        Ok(Self {
            lock: Some(lock),
            journal,
        })
    }

    /// The grants on the disk, if they are kept.
    pub(super) fn journal(&self) -> Option<Arc<Journal>> {
        self.journal.clone()
    }

    /// Leaves the folder to a process that is about to take over.
    pub(super) fn leave(&mut self) {
        self.lock = None;
        if let Some(journal) = &self.journal {
            journal.expect_another();
        }
    }

    /// Takes the folder back: the other process did not take over. Blocks.
    pub(super) fn come_back(&mut self, state_dir: &Path) {
        match StateLock::take(state_dir) {
            Ok(lock) => self.lock = Some(lock),
            Err(fault) => tracing::error!("{fault}"),
        }
        if let Some(journal) = &self.journal {
            journal.go_on_alone();
        }
    }
}

/// Where grants are kept, if they are to be and can be. What is there of a node that keeps none is removed: it would come
/// back once it keeps them again, whatever has ended until then.
fn shelf_of(config: &Config) -> Option<Shelf> {
    let state_dir = &config.node.state_dir;
    if !config.state.persist_grants {
        if let Err(fault) = shelf::clear(state_dir) {
            tracing::warn!(%fault, "sessions that were kept are left in node.state_dir: delete grants/*.journal there");
        }
        return None;
    }
    match Shelf::open(config) {
        Ok(shelf) => Some(shelf),
        Err(fault) => {
            tracing::error!(folder = %state_dir.display(), %fault, "sessions cannot be kept: a restart will end them");
            None
        }
    }
}

fn remember(shelf: &Shelf, config: &Config) -> Option<Remembered> {
    let (Some(mut now), Some(boot)) = (Moment::now(), clock::boot()) else {
        tracing::error!("sessions are not restored: the system does not say how long it runs");
        return None;
    };
    now.up += UPTIME_STEP;
    match shelf.remember(config.node.name.as_str(), now, &boot) {
        Ok(remembered) => remembered,
        Err(why) => {
            tracing::error!("sessions are not restored: {why}");
            None
        }
    }
}

fn begin(shelf: Option<Shelf>, gateway: &Arc<Gateway>, keys: &Keys, overlaps: bool) -> Option<Arc<Journal>> {
    let identity = Identity {
        node: gateway.plan().config.node.name.to_string(),
        keys: keys.clone(),
        boot: clock::boot()?,
    };
    match Journal::begin(shelf?, identity, gateway, overlaps) {
        Ok(journal) => Some(journal),
        Err(fault) => {
            tracing::error!(%fault, "sessions cannot be kept: a restart will end them");
            None
        }
    }
}

/// The right to `node.state_dir`, which one process has at a time. Given back when it is dropped.
#[derive(Debug)]
pub(super) struct StateLock {
    /// Locked for as long as it is open. `None`: nothing can be kept in the folder, so there is nothing to lock.
    _file: Option<File>,
}

impl StateLock {
    /// Takes it; waits a moment for a process that is giving it back. Blocks.
    ///
    /// # Errors
    /// Another process has it.
    pub(super) fn take(folder: &Path) -> Result<Self, StateInUse> {
        let Ok(file) = open(folder) else {
            return Ok(Self { _file: None });
        };
        for _ in 0..LOOKS {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: Some(file) }),
                Err(fault) if fault == rustix::io::Errno::WOULDBLOCK => sleep(LOOK),
                // A file system without locks.
                Err(_) => return Ok(Self { _file: None }),
            }
        }
        Err(StateInUse {
            folder: folder.to_owned(),
        })
    }
}

/// Two processes would change the same files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: another process keeps its state there; give each node a node.state_dir of its own, or end that process",
    folder.display()
)]
pub struct StateInUse {
    folder: PathBuf,
}

fn open(folder: &Path) -> io::Result<File> {
    make(folder)?;
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(folder.join("lock"))
}

/// Makes a folder for its owner alone, unless it is there.
fn make(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// The system's word on how long it runs is so coarse, in milliseconds.
const UPTIME_STEP: u64 = 10;
const LOOK: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time_has_the_folder() {
        let folder = tempfile::TempDir::new().unwrap();
        let state = folder.path().join("state");
        let first = StateLock::take(&state).unwrap();
        assert!(StateLock::take(&state).is_err());
        drop(first);
        assert!(StateLock::take(&state).is_ok());
        assert!(StateLock::take(Path::new("/proc/nothing")).is_ok(), "nothing to share");
    }
}
