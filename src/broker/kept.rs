//! What users have changed: in memory for those who ask, and on the disk.
//!
//! Memory is read and written under a short lock. The disk belongs to one writer at a time, which writes off the async
//! threads whatever is in memory when its turn comes: those who wait find their change written by the one before them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::config;
use crate::types::{DesktopId, Secret, UserName};

use super::preferences::{PreferenceFault, Preferences};
use super::state_file::{ChangedPassword, Entry, StateFault, StateFile, StateProblem};
use super::users::User;

/// The kept state of all users, shared by every reload.
pub(super) struct Kept {
    memory: RwLock<Memory>,
    disk: Arc<Mutex<Disk>>,
    due: Notify,
}

/// Why a password was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotChanged {
    /// Another change came first: the old password is no longer the user's.
    Overtaken,
    /// The disk refuses it.
    NotKept,
}

#[derive(Clone)]
struct Memory {
    users: BTreeMap<UserName, Arc<Entry>>,
    /// Counts the changes that are written later.
    generation: u64,
}

struct Disk {
    file: StateFile,
    /// The generation that is in the file; `None` after a write that failed.
    written: Option<u64>,
    failing: bool,
}

impl Kept {
    pub(super) fn read(file: StateFile) -> Result<Self, StateFault> {
        let users = file.read()?;
        let disk = Disk {
            file,
            written: Some(0),
            failing: false,
        };
        Ok(Self {
            memory: RwLock::new(Memory { users, generation: 0 }),
            disk: Arc::new(Mutex::new(disk)),
            due: Notify::new(),
        })
    }

    /// Takes note of the users of a configuration. What is kept of others is forgotten after a month: a user who is
    /// missing by mistake is back with the right password, and nobody stays for ever.
    pub(super) fn adopt(&self, configured: &BTreeMap<UserName, config::User>, now: Timestamp) {
        let mut memory = self.memory.write();
        let mut changed = false;
        memory.users.retain(|name, entry| {
            let adopted = entry.adopted(configured.get(name), now);
            changed |= adopted.as_ref() != Some(&**entry);
            let kept = adopted.is_some();
            if let Some(adopted) = adopted {
                *entry = Arc::new(adopted);
            }
            kept
        });
        if changed {
            memory.generation += 1;
            drop(memory);
            self.due.notify_one();
        }
    }

    /// The hash that decides over the user's password, and whether the password must be changed.
    pub(super) fn hash_of(&self, name: &UserName, user: &User) -> (Secret, bool) {
        match self
            .memory
            .read()
            .users
            .get(name)
            .and_then(|entry| entry.in_force(user))
        {
            Some(changed) => (changed.hash.clone(), user.must_change && !changed.demanded),
            None => (user.hash.clone(), user.must_change),
        }
    }

    /// Puts `hash` in the place of `former`, on the disk and then in memory.
    ///
    /// Cancel-safe: dropped before the write it changes nothing; a write that has begun ends, and then counts.
    pub(super) async fn change_password(
        self: &Arc<Self>,
        name: &UserName,
        user: &User,
        former: Secret,
        hash: Secret,
    ) -> Result<(), NotChanged> {
        let disk = timeout(PATIENCE, Arc::clone(&self.disk).lock_owned()).await;
        let mut disk = disk.map_err(|_| NotChanged::NotKept)?;
        if self.hash_of(name, user).0 != former {
            return Err(NotChanged::Overtaken);
        }
        let changed = ChangedPassword {
            hash,
            replaces: user.fingerprint.clone(),
            demanded: user.must_change,
        };
        let (kept, name) = (Arc::clone(self), name.clone());
        // Without a deadline: given up, nobody would know which password is the user's.
        let written = spawn_blocking(move || kept.write(&mut disk, Some((name, changed)))).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(NotChanged::NotKept),
        }
    }

    pub(super) fn preferences(&self, name: &UserName, desktop: Option<&DesktopId>) -> Vec<(String, String)> {
        let entry = self.memory.read().users.get(name).map(Arc::clone);
        entry.map_or_else(Vec::new, |entry| entry.preferences.list(desktop))
    }

    pub(super) fn set_preferences(
        &self,
        name: &UserName,
        desktop: Option<&DesktopId>,
        changes: Vec<(String, String)>,
        exists: impl Fn(&DesktopId) -> bool,
    ) -> Result<(), PreferenceFault> {
        let mut memory = self.memory.write();
        let none = Preferences::default();
        let former = memory.users.get(name).map_or(&none, |entry| &entry.preferences);
        let merged = former.merged(desktop, changes, exists)?;
        if merged != *former {
            let entry = memory.users.entry(name.clone()).or_default();
            Arc::make_mut(entry).preferences = merged;
            memory.generation += 1;
            drop(memory);
            self.due.notify_one();
        }
        Ok(())
    }

    /// Writes what changes, a moment after it changes, until `stop`; then what is left.
    pub(super) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.due.notified() => {
                    let _ = timeout(LULL, stop.cancelled()).await;
                    if self.flush().await.is_err() {
                        let _ = timeout(RETRY, stop.cancelled()).await;
                    }
                }
            }
        }
        // The fault is in the log.
        let _ = self.flush().await;
    }

    /// Writes what is in memory, unless it is on the disk.
    ///
    /// Cancel-safe: a write that has begun ends.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), StateFault> {
        // Without a deadline: the caller wants what is in memory on the disk, and has nothing else to do about it.
        let mut disk = Arc::clone(&self.disk).lock_owned().await;
        let interrupted = disk.file.fault(StateProblem::Unwritable(ErrorKind::Interrupted));
        if disk.written == Some(self.memory.read().generation) {
            return Ok(());
        }
        let kept = Arc::clone(self);
        let written = spawn_blocking(move || kept.write(&mut disk, None)).await;
        written.unwrap_or(Err(interrupted))
    }

    /// Writes what is in memory, with a password that gets there if the disk takes it.
    fn write(
        &self,
        disk: &mut OwnedMutexGuard<Disk>,
        password: Option<(UserName, ChangedPassword)>,
    ) -> Result<(), StateFault> {
        let mut next = self.memory.read().clone();
        if let Some((name, changed)) = password.clone() {
            next.set_password(name, changed);
        }
        if let Err(fault) = disk.write(&next) {
            self.due.notify_one();
            return Err(fault);
        }
        if let Some((name, changed)) = password {
            self.memory.write().set_password(name, changed);
        }
        Ok(())
    }
}

impl Memory {
    fn set_password(&mut self, name: UserName, changed: ChangedPassword) {
        let entry = self.users.entry(name).or_default();
        Arc::make_mut(entry).password = Some(changed);
    }
}

impl Disk {
    /// Tells of a failure once, and of its end.
    fn write(&mut self, memory: &Memory) -> Result<(), StateFault> {
        let written = self.file.write(&memory.users);
        match &written {
            Ok(()) => {
                self.written = Some(memory.generation);
                if std::mem::take(&mut self.failing) {
                    tracing::info!("passwords and preferences are written to the disk again");
                }
            }
            Err(fault) => {
                self.written = None;
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(%fault, "passwords and preferences are not written to the disk");
                }
            }
        }
        written
    }
}

impl Entry {
    /// The password that the user has chosen, unless the configured one was replaced after that.
    fn in_force(&self, user: &User) -> Option<&ChangedPassword> {
        self.password
            .as_ref()
            .filter(|changed| changed.replaces == user.fingerprint)
    }

    /// The entry under another configuration; `None` if it is forgotten.
    fn adopted(&self, configured: Option<&config::User>, now: Timestamp) -> Option<Self> {
        let mut adopted = self.clone();
        match configured {
            Some(user) => {
                adopted.absent_since = None;
                if let Some(changed) = &mut adopted.password {
                    // A demand that was withdrawn and is made again is another demand.
                    changed.demanded &= user.must_change_password;
                }
            }
            None => {
                let since = *adopted.absent_since.get_or_insert(now.as_second());
                if now.as_second().saturating_sub(since) > REMEMBERED {
                    return None;
                }
            }
        }
        (adopted.password.is_some() || !adopted.preferences.is_empty()).then_some(adopted)
    }
}

/// How long a change waits for others before it is written.
const LULL: Duration = Duration::from_secs(1);
/// How long a disk that refused is left alone.
const RETRY: Duration = Duration::from_secs(10);
/// How long a change of password waits for other writes.
const PATIENCE: Duration = Duration::from_secs(3);
/// Seconds for which users who are no longer configured are remembered.
const REMEMBERED: i64 = 30 * 24 * 60 * 60;
