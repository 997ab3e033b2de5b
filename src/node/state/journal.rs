//! The grants on the disk: what changes is written behind, what ends is written ahead.
//!
//! An end is on the disk before anybody learns of it ([`HearsOfEnds`]); ends that come together share one wait for the disk.
//! A new grant, a token, a use is written a moment later, without a wait: a crash may lose it, and its user signs in
//! again. A file that has outgrown what lives is written anew beside itself and renamed. Each process writes a file of its
//! own: in a handover the new one begins the next, and the old one goes on to note ends in its own until it is gone.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

use super::form::{Batch, Identity, Kept, Moment, Sealer};
use super::shelf::{Draft, Numbered, Shelf};
use crate::clock;
use crate::fault::CloseReason;
use crate::gateway::Gateway;
use crate::grant::{Changes, HearsOfEnds};
use crate::types::SessionId;

/// Keeps the grants of one process in a file, for as long as the process lives.
#[derive(Debug)]
pub(in crate::node) struct Journal {
    shelf: Shelf,
    place: Numbered,
    identity: Identity,
    gateway: Weak<Gateway>,
    changes: Arc<Changes>,
    writer: Mutex<Writer>,
    /// How many records are on the disk for sure. Locked before the writer, and while the disk is waited for.
    durable: Mutex<u64>,
    is_closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Writer {
    /// `None` before it is begun, and after it was given up.
    open: Option<Open>,
    /// Records so far.
    written: u64,
    /// What has ended since the file was begun: whatever else is written of it does not count.
    ended: HashSet<SessionId>,
    /// Another process has a file of the same grants: ends are kept for as long as that is there.
    overlaps: bool,
}

#[derive(Debug)]
struct Open {
    draft: Draft,
    /// The size with which it began.
    base: u64,
}

impl Journal {
    /// Begins a file of the gateway's grants, and keeps it from now on. `overlaps`: another process has one too. Without
    /// that, files of others are removed. Blocks.
    ///
    /// # Errors
    /// The disk refuses it. Nothing is kept then, nor left from before.
    pub(super) fn begin(
        shelf: Shelf,
        identity: Identity,
        gateway: &Arc<Gateway>,
        overlaps: bool,
    ) -> io::Result<Arc<Self>> {
        let place = shelf.next_place()?;
        let changes = gateway.grants().changes().clone();
        let journal = Arc::new(Self {
            shelf,
            place,
            identity,
            gateway: Arc::downgrade(gateway),
            changes,
            writer: Mutex::new(Writer {
                overlaps,
                ..Writer::default()
            }),
            durable: Mutex::default(),
            is_closing: AtomicBool::new(false),
        });
        let told: Arc<dyn HearsOfEnds> = journal.clone();
        gateway.grants().tell_first_of_ends(&told);
        journal.changes.watch();
        let begun = journal.rewrite(gateway, true).and_then(|()| {
            if overlaps {
                Ok(())
            } else {
                journal.shelf.remove_before(journal.place)
            }
        });
        let thread = begun.and_then(|()| {
            let keeper = journal.clone();
            std::thread::Builder::new()
                .name("grants".to_owned())
                .spawn(move || keeper.keep())
        });
        if let Err(fault) = thread {
            gateway.grants().tell_no_more(&told);
            journal.changes.forget();
            journal.shelf.remove_to(journal.place)?;
            return Err(fault);
        }
        Ok(journal)
    }

    /// Writes what has changed and waits for the disk. Blocks.
    pub(in crate::node) fn flush(&self) {
        if let Some(gateway) = self.gateway.upgrade() {
            self.note(&gateway, &self.changes.wait(Duration::ZERO), true);
            let written = self.writer.lock().written;
            self.wait_for_the_disk(written);
        }
    }

    /// Another process is about to take the grants over: ends are kept until it is known what becomes of it.
    pub(in crate::node) fn expect_another(&self) {
        let mut writer = self.writer.lock();
        writer.overlaps = true;
    }

    /// The other process did not take over. Blocks.
    pub(in crate::node) fn go_on_alone(&self) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let alone = self.shelf.remove_after(self.place).and_then(|()| {
            self.writer.lock().overlaps = false;
            // It may have removed this one.
            self.rewrite(&gateway, false)
        });
        if let Err(fault) = alone {
            self.give_up(&mut self.writer.lock(), &fault);
        }
    }

    /// The other process has taken over: from now on only what ends here is noted, and nothing of what lives. Blocks.
    pub(in crate::node) fn hand_over(&self) {
        self.close();
        let mut durable = self.durable.lock();
        let mut writer = self.writer.lock();
        if writer.open.is_none() {
            return;
        }
        let begun = self.begin_file(&[]);
        if let Err(fault) = begun.and_then(|draft| self.replace(&mut writer, draft, &mut durable)) {
            self.give_up(&mut writer, &fault);
        }
    }

    /// The process before this one is no more: what has ended there has ended here. Blocks.
    pub(in crate::node) fn succeed(&self) {
        let Some(gateway) = self.gateway.upgrade() else { return };
        let mut ended = HashSet::new();
        for file in self.shelf.read_before(self.place, &self.identity) {
            ended.extend(file.into_iter().flat_map(|batch| batch.ended));
        }
        let grants = ended.iter().filter_map(|id| gateway.grants().get(id.parse().ok()?));
        for grant in gateway.grants().revoke_together(grants.collect(), CloseReason::Killed) {
            gateway.control_channel().forget(grant.id());
            tracing::info!(session = %grant.id(), user = %grant.user(), reason = CloseReason::Killed.code(), "session closed: it ended in the process before");
        }
        match self.shelf.remove_before(self.place) {
            Ok(()) => self.writer.lock().overlaps = false,
            Err(fault) => tracing::warn!(%fault, "files of the process before this one are left in node.state_dir"),
        }
    }

    /// Leaves the file as it is from now on, but for ends: what lives may go.
    pub(in crate::node) fn close(&self) {
        {
            // A file that is being written anew is in its place by now, or will not be.
            let _writer = self.writer.lock();
            self.is_closing.store(true, Ordering::Release);
        }
        self.changes.forget();
    }

    /// The life of its thread.
    fn keep(&self) {
        let mut uses_due = clock::now() + USES;
        loop {
            let altered = self.changes.wait(TICK);
            let Some(gateway) = self.gateway.upgrade() else { return };
            if self.is_closing.load(Ordering::Acquire) {
                return;
            }
            let now = clock::now();
            self.note(&gateway, &altered, now >= uses_due);
            if now >= uses_due {
                uses_due = now + USES;
            }
            if self.has_outgrown()
                && let Err(fault) = self.rewrite(&gateway, false)
            {
                tracing::warn!(%fault, "the file of kept sessions cannot be made smaller");
            }
        }
    }

    /// Writes what has changed, without a wait for the disk.
    fn note(&self, gateway: &Gateway, altered: &[SessionId], with_uses: bool) {
        let Some(at) = Moment::now() else { return };
        let now = clock::now();
        for ids in altered.chunks(TOGETHER) {
            let grants = ids.iter().filter_map(|id| kept(gateway, *id, now)).collect();
            self.append(&Batch {
                at,
                grants,
                ..Batch::default()
            });
        }
        let used = if with_uses { self.changes.used() } else { Vec::new() };
        for ids in used.chunks(TOGETHER) {
            let used = ids.iter().filter_map(|id| gateway.grants().use_of(*id, now)).collect();
            self.append(&Batch {
                at,
                used,
                ..Batch::default()
            });
        }
    }

    fn append(&self, batch: &Batch) {
        if !batch.is_empty() {
            self.write(&mut self.writer.lock(), batch);
        }
    }

    /// Gives a record to the system; which one it was, of all that were.
    fn write(&self, writer: &mut Writer, batch: &Batch) -> Option<u64> {
        match writer.open.as_mut()?.draft.append(batch) {
            Ok(()) => {
                writer.written += 1;
                Some(writer.written)
            }
            Err(fault) => {
                self.give_up(writer, &fault);
                None
            }
        }
    }

    /// Waits until so many records are on the disk. Whoever waits meanwhile has waited with it.
    fn wait_for_the_disk(&self, records: u64) {
        let mut durable = self.durable.lock();
        if *durable >= records {
            return;
        }
        let (file, written) = {
            let writer = self.writer.lock();
            match &writer.open {
                Some(open) => (open.draft.file(), writer.written),
                None => return,
            }
        };
        match file.sync_data() {
            Ok(()) => *durable = written,
            Err(fault) => self.give_up(&mut self.writer.lock(), &fault),
        }
    }

    fn has_outgrown(&self) -> bool {
        let writer = self.writer.lock();
        (writer.open.as_ref()).is_some_and(|open| open.draft.size() > 2 * open.base + SLACK)
    }

    /// Writes what lives to another file, which then takes the place of the one that was.
    fn rewrite(&self, gateway: &Gateway, is_first: bool) -> io::Result<()> {
        let ids: Vec<_> = gateway.grants().list().iter().map(|grant| grant.id()).collect();
        let mut draft = self.begin_file(&ids)?;
        draft.file().sync_data()?;
        let mut durable = self.durable.lock();
        let mut writer = self.writer.lock();
        let is_over = !is_first && writer.open.is_none();
        if is_over || self.is_closing.load(Ordering::Acquire) {
            return Ok(());
        }
        // What has ended meanwhile stands among what lives.
        draft.append_ends(&writer.ended)?;
        self.replace(&mut writer, draft, &mut durable)?;
        if !writer.overlaps {
            // One that is about to end may have been looked at before it had.
            writer.ended.retain(|id| gateway.grants().get(*id).is_some());
        }
        Ok(())
    }

    /// A file of these grants, which is not in its place yet.
    fn begin_file(&self, ids: &[SessionId]) -> io::Result<Draft> {
        let sealer = Sealer::begin(self.shelf.secret()).ok_or_else(|| io::Error::other("no cipher"))?;
        let mut draft = self.shelf.draft(self.place, sealer, &self.identity)?;
        let Some(gateway) = self.gateway.upgrade() else {
            return Ok(draft);
        };
        for ids in ids.chunks(TOGETHER) {
            let at = Moment::now().ok_or_else(|| io::Error::other("no clock"))?;
            let now = clock::now();
            let grants = ids.iter().filter_map(|id| kept(&gateway, *id, now)).collect();
            draft.append(&Batch {
                at,
                grants,
                ..Batch::default()
            })?;
        }
        Ok(draft)
    }

    /// Puts a file in its place.
    fn replace(&self, writer: &mut Writer, draft: Draft, durable: &mut u64) -> io::Result<()> {
        draft.file().sync_data()?;
        self.shelf.put(self.place)?;
        let base = draft.size();
        writer.open = Some(Open { draft, base });
        *durable = writer.written;
        if let Err(fault) = self.shelf.sync() {
            self.give_up(writer, &fault);
        }
        Ok(())
    }

    /// What cannot be written to its end must not be read: it would bring ended sessions back.
    fn give_up(&self, writer: &mut Writer, fault: &io::Error) {
        if writer.open.take().is_none() {
            return;
        }
        self.changes.forget();
        match self.shelf.remove_to(self.place) {
            Ok(()) => tracing::error!(%fault, "sessions cannot be kept any more: a restart will end them"),
            Err(worse) => tracing::error!(
                %fault, %worse,
                "sessions cannot be kept any more, nor what is kept be removed: delete grants/*.journal in node.state_dir before a restart"
            ),
        }
    }
}

impl HearsOfEnds for Journal {
    fn ended(&self, ends: &[(SessionId, CloseReason)]) {
        // What ends with the process is what is to survive it.
        let ends = ends.iter().filter(|(_, reason)| *reason != CloseReason::Drained);
        let ids: HashSet<_> = ends.map(|(id, _)| *id).collect();
        if ids.is_empty() {
            return;
        }
        patiently(|| {
            let written = {
                let mut writer = self.writer.lock();
                writer.ended.extend(&ids);
                let batch = Batch::of_ends(&ids);
                batch.and_then(|batch| self.write(&mut writer, &batch))
            };
            if let Some(written) = written {
                self.wait_for_the_disk(written);
            }
        });
    }
}

fn kept(gateway: &Gateway, id: SessionId, now: std::time::Instant) -> Option<Kept> {
    let grant = gateway.grants().snapshot_of(id, now)?;
    let cookie = gateway.control_channel().cookie_of(id);
    Some(Kept { grant, cookie })
}

/// Does what blocks; others of a worker's tasks go on elsewhere meanwhile.
fn patiently(blocks: impl FnOnce()) {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(blocks),
        Ok(_) | Err(_) => blocks(),
    }
}

/// Items of one record.
const TOGETHER: usize = 128;
const TICK: Duration = Duration::from_secs(5);
/// How often uses are written: a crash may take so much of a session's idle time.
const USES: Duration = Duration::from_secs(10);
/// By how much a file may outgrow what lives.
const SLACK: u64 = 1024 * 1024;
