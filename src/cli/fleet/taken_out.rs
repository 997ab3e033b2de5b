//! Which nodes an upgrade has taken out of service and not yet put back: kept beside the inventory, so that the next run
//! may go on with them, and leaves alone what somebody else has taken out.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::broker::replace_file;

/// The nodes that are out. While it lives, no other upgrade of the same inventory runs on this machine.
#[derive(Debug)]
pub(super) struct TakenOut {
    file: PathBuf,
    names: RefCell<BTreeSet<String>>,
    _lock: File,
}

#[derive(Default, Serialize, Deserialize)]
struct Document {
    taken_out: BTreeSet<String>,
}

impl TakenOut {
    /// What an earlier run has left. Blocks.
    ///
    /// # Errors
    /// Another upgrade runs, or the file cannot be read: in words.
    pub(super) fn load(inventory: &Path) -> Result<Self, String> {
        let unreadable = |file: &Path, fault: &dyn std::fmt::Display| format!("{}: {fault}", file.display());
        let lock = File::open(inventory).map_err(|fault| unreadable(inventory, &fault))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| "Another upgrade of this inventory is running.".to_owned())?;
        let mut name = OsString::from(inventory);
        name.push(".taken-out");
        let file = PathBuf::from(name);
        let document = match std::fs::read(&file) {
            Ok(bytes) => serde_json::from_slice::<Document>(&bytes).map_err(|fault| unreadable(&file, &fault))?,
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => Document::default(),
            Err(fault) => return Err(unreadable(&file, &fault)),
        };
        Ok(Self {
            file,
            names: RefCell::new(document.taken_out),
            _lock: lock,
        })
    }

    /// Whether an upgrade has taken the node out.
    pub(super) fn has(&self, name: &str) -> bool {
        self.names.borrow().contains(name)
    }

    /// Notes a node that is about to be taken out. Blocks.
    ///
    /// # Errors
    /// It cannot be kept: the node is not to be taken out.
    pub(super) fn note(&self, name: &str) -> Result<(), String> {
        self.names.borrow_mut().insert(name.to_owned());
        self.keep()
    }

    /// Forgets a node that is back in service. Blocks.
    ///
    /// # Errors
    /// The file still names it.
    pub(super) fn forget(&self, name: &str) -> Result<(), String> {
        self.names.borrow_mut().remove(name);
        self.keep()
    }

    fn keep(&self) -> Result<(), String> {
        let taken_out = self.names.borrow().clone();
        let kept = if taken_out.is_empty() {
            match std::fs::remove_file(&self.file) {
                Err(fault) if fault.kind() != io::ErrorKind::NotFound => Err(fault),
                Ok(()) | Err(_) => Ok(()),
            }
        } else {
            let text = serde_json::to_vec(&Document { taken_out });
            text.map_err(io::Error::from)
                .and_then(|text| replace_file(&self.file, &text))
        };
        kept.map_err(|fault| format!("{}: {fault}", self.file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_is_known_to_the_next_run_and_only_one_runs() {
        let folder = tempfile::tempdir().unwrap();
        let inventory = folder.path().join("fleet.toml");
        std::fs::write(&inventory, "").unwrap();
        let first = TakenOut::load(&inventory).unwrap();
        assert!(TakenOut::load(&inventory).unwrap_err().contains("Another upgrade"));
        first.note("gw-3").unwrap();
        drop(first);
        let second = TakenOut::load(&inventory).unwrap();
        assert!(second.has("gw-3") && !second.has("gw-1"));
        second.forget("gw-3").unwrap();
        drop(second);
        assert!(!folder.path().join("fleet.toml.taken-out").exists());
        std::fs::write(folder.path().join("fleet.toml.taken-out"), "{").unwrap();
        assert!(TakenOut::load(&inventory).unwrap_err().contains("taken-out"));
    }
}
