//! The folder in which grants are kept: one file a process, numbered in the order in which they were begun.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::form::{self, Batch, Identity, Kept, Moment, Replay, Sealer};
use super::{key, make};
use crate::config::Config;
use crate::node::handover::Keys;
use crate::types::{Secret, SessionId};

/// The folder, and the key to what is in it.
#[derive(Debug)]
pub(super) struct Shelf {
    folder: PathBuf,
    secret: Secret,
}

/// The number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Numbered(u64);

/// What was kept by processes that are no more.
#[derive(Debug)]
pub(super) struct Remembered {
    pub(super) keys: Keys,
    /// As of now.
    pub(super) grants: Vec<Kept>,
}

/// Why nothing of what was kept counts.
#[derive(Debug, thiserror::Error)]
pub(super) enum Forgotten {
    #[error("{}: {why}", file.display())]
    File { file: PathBuf, why: String },
    #[error("{0}")]
    Clock(#[from] form::SetBack),
}

impl Shelf {
    /// The folder of a node. Blocks.
    ///
    /// # Errors
    /// It cannot be made, or there is no key to be had.
    pub(super) fn open(config: &Config) -> io::Result<Self> {
        let folder = folder_of(&config.node.state_dir);
        make(&folder)?;
        let secret = match &config.state.key {
            Some(secret) => secret.clone(),
            None => {
                let file = folder.join("key");
                key::own(&file).map_err(|fault| io::Error::other(format!("{}: {fault}", file.display())))?
            }
        };
        Ok(Self { folder, secret })
    }

    pub(super) fn secret(&self) -> &Secret {
        &self.secret
    }

    /// What was kept of the node's sessions; `None` if nothing was.
    ///
    /// # Errors
    /// Something of it cannot be believed, so that nothing is.
    pub(super) fn remember(&self, node: &str, now: Moment, boot: &str) -> Result<Option<Remembered>, Forgotten> {
        let mut keys = None;
        let mut of_boot: Option<String> = None;
        let mut all = Vec::new();
        for place in places(&self.folder) {
            let file = place.in_(&self.folder);
            let forgotten = |why: String| Forgotten::File {
                file: file.clone(),
                why,
            };
            let octets = fs::read(&file).map_err(|fault| forgotten(fault.to_string()))?;
            let (identity, batches) = form::read(&octets, &self.secret).map_err(|why| forgotten(why.to_string()))?;
            if identity.node != node {
                return Err(forgotten(format!("it is of the node `{}`", identity.node)));
            }
            if *of_boot.get_or_insert(identity.boot.clone()) != identity.boot {
                return Err(forgotten(
                    "it is of another start of the system than the others".to_owned(),
                ));
            }
            keys = Some(identity.keys);
            all.extend(batches);
        }
        let Some(keys) = keys else { return Ok(None) };
        let grants = Replay::of(all).alive(now, of_boot.as_deref() == Some(boot))?;
        Ok(Some(Remembered { keys, grants }))
    }

    /// What stands in the files before `place`, but for those that cannot be read.
    pub(super) fn read_before(&self, place: Numbered, identity: &Identity) -> Vec<Vec<Batch>> {
        let before = places(&self.folder).into_iter().filter(|other| *other < place);
        let read = before.filter_map(|other| {
            let (of, batches) = form::read(&fs::read(other.in_(&self.folder)).ok()?, &self.secret).ok()?;
            (of.node == identity.node).then_some(batches)
        });
        read.collect()
    }

    /// Where the next file goes.
    pub(super) fn next_place(&self) -> io::Result<Numbered> {
        let last = places(&self.folder).last().map_or(0, |place| place.0);
        let next = last
            .checked_add(1)
            .ok_or_else(|| io::Error::other("no number is left"))?;
        Ok(Numbered(next))
    }

    /// Begins a file that is to go to `place`.
    pub(super) fn draft(&self, place: Numbered, sealer: Sealer, identity: &Identity) -> io::Result<Draft> {
        let path = place.beside(&self.folder);
        match fs::remove_file(&path) {
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(sealer.head())?;
        let mut draft = Draft {
            file: Arc::new(file),
            size: sealer.head().len() as u64,
            sealer,
        };
        draft.append(identity)?;
        Ok(draft)
    }

    /// Puts the file that was begun in its place.
    pub(super) fn put(&self, place: Numbered) -> io::Result<()> {
        fs::rename(place.beside(&self.folder), place.in_(&self.folder))
    }

    /// Waits until the disk has the names of the files.
    pub(super) fn sync(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    /// Removes the files before `place`.
    pub(super) fn remove_before(&self, place: Numbered) -> io::Result<()> {
        remove(&self.folder, |other| other < place)
    }

    /// Removes the files before `place`, and that one.
    pub(super) fn remove_to(&self, place: Numbered) -> io::Result<()> {
        remove(&self.folder, |other| other <= place)
    }

    /// Removes the files after `place`.
    pub(super) fn remove_after(&self, place: Numbered) -> io::Result<()> {
        remove(&self.folder, |other| other > place)
    }
}

/// Removes whatever is kept in `node.state_dir`.
///
/// # Errors
/// Something stays.
pub(super) fn clear(state_dir: &Path) -> io::Result<()> {
    remove(&folder_of(state_dir), |_| true)
}

/// A file that is written.
#[derive(Debug)]
pub(super) struct Draft {
    file: Arc<File>,
    sealer: Sealer,
    size: u64,
}

impl Draft {
    pub(super) fn file(&self) -> Arc<File> {
        self.file.clone()
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Gives a record to the system.
    pub(super) fn append<T: serde::Serialize>(&mut self, record: &T) -> io::Result<()> {
        let sealed = (self.sealer.seal(record)).ok_or_else(|| io::Error::other("a record is too long"))?;
        (&*self.file).write_all(&sealed)?;
        self.size += sealed.len() as u64;
        Ok(())
    }

    /// Gives ends to the system.
    pub(super) fn append_ends(&mut self, ids: &HashSet<SessionId>) -> io::Result<()> {
        match Batch::of_ends(ids) {
            Some(batch) if !ids.is_empty() => self.append(&batch),
            Some(_) | None => Ok(()),
        }
    }
}

impl Numbered {
    fn in_(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}{ENDING}", self.0))
    }

    fn beside(self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.new", self.0))
    }
}

fn folder_of(state_dir: &Path) -> PathBuf {
    state_dir.join("grants")
}

/// The files that are there, oldest first.
fn places(folder: &Path) -> Vec<Numbered> {
    let number = |name: &str| name.strip_suffix(ENDING)?.parse().ok().map(Numbered);
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut places: Vec<_> = entries
        .filter_map(|entry| number(entry.file_name().to_str()?))
        .collect();
    places.sort_unstable();
    places
}

fn remove(folder: &Path, which: impl Fn(Numbered) -> bool) -> io::Result<()> {
    let places: Vec<_> = places(folder).into_iter().filter(|place| which(*place)).collect();
    if places.is_empty() {
        return Ok(());
    }
    for place in places {
        fs::remove_file(place.in_(folder))?;
    }
    File::open(folder)?.sync_all()
}

const ENDING: &str = ".journal";
