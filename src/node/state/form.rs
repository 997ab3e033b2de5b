//! The form of a file in which grants are kept: sealed records, one after the other.
//!
//! A head (magic, version, salt), then records of a length, the same length with its bits turned over, and what is
//! sealed: JSON under AES-256-GCM. The key of a file is derived from the node's and the salt, the nonce is the number of
//! the record, and the head is authenticated with each: a record that is missing, moved, altered or of another file is
//! seen. What ends in the middle of a record was being written when the process died, and nobody was told of it; any
//! other flaw means that something after it may be missing, so that nothing of the file counts.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::clock;
use crate::grant::{GrantSnapshot, Randomness as _, SystemRandomness, UseSnapshot};
use crate::node::handover::Keys;
use crate::types::{Octets32, Secret, SessionId};

/// The first record: whose the file is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Identity {
    /// The node's name.
    pub(super) node: String,
    /// What it drew at its start.
    pub(super) keys: Keys,
    /// Of which start of the system the times are.
    pub(super) boot: String,
}

/// A moment, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Moment {
    /// Since the system started.
    pub(super) up: u64,
    /// Of the day's clock, since 1970.
    pub(super) wall: i64,
}

/// A grant as it is kept, with the hash of its cookie.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) grant: GrantSnapshot,
    pub(super) cookie: Option<Octets32>,
}

/// A record: what was so at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Batch {
    pub(super) at: Moment,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) grants: Vec<Kept>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) used: Vec<UseSnapshot>,
    /// Ids of grants that have ended. There is no way back for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) ended: Vec<String>,
}

impl Moment {
    /// This moment; `None` if the system does not say how long it runs.
    pub(super) fn now() -> Option<Self> {
        Some(Self {
            up: u64::try_from(clock::uptime()?.as_millis()).ok()?,
            wall: clock::wall().as_millisecond(),
        })
    }
}

impl Batch {
    /// A record of ends.
    pub(super) fn of_ends<'a>(ids: impl IntoIterator<Item = &'a SessionId>) -> Option<Self> {
        Some(Self {
            at: Moment::now()?,
            ended: ids.into_iter().map(SessionId::to_string).collect(),
            ..Self::default()
        })
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.grants.is_empty() && self.used.is_empty() && self.ended.is_empty()
    }
}

/// Why nothing of a file counts.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it is not a file of kept sessions")]
    Foreign,
    #[error("it has form {0}, which another release of this program wrote")]
    Version(u32),
    #[error("it is sealed under another key, or damaged at its start")]
    Key,
    #[error("it is damaged at octet {0}")]
    Damaged(usize),
}

/// Seals the records of one file.
pub(super) struct Sealer {
    head: [u8; HEAD],
    key: LessSafeKey,
    next: u64,
}

impl Sealer {
    /// For a file that begins now, with a salt of its own.
    pub(super) fn begin(secret: &Secret) -> Option<Self> {
        let mut head = [0; HEAD];
        head[..MAGIC.len()].copy_from_slice(MAGIC);
        head[MAGIC.len()..SALT].copy_from_slice(&FORM.to_be_bytes());
        SystemRandomness.fill(&mut head[SALT..]);
        Some(Self {
            key: key_of(secret, &head)?,
            head,
            next: 0,
        })
    }

    /// What the file begins with.
    pub(super) fn head(&self) -> &[u8] {
        &self.head
    }

    /// The next record in octets. `None` if it is too long.
    pub(super) fn seal<T: Serialize>(&mut self, record: &T) -> Option<Vec<u8>> {
        let mut sealed = serde_json::to_vec(record).ok()?;
        self.key
            .seal_in_place_append_tag(nonce(self.next), Aad::from(&self.head), &mut sealed)
            .ok()?;
        self.next += 1;
        let length = u32::try_from(sealed.len()).ok().filter(|length| *length <= LONGEST)?;
        let lengths = [length.to_be_bytes(), (!length).to_be_bytes()].concat();
        Some([lengths, sealed].concat())
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer")
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

/// Reads a file as far as it was written.
///
/// # Errors
/// [`Unreadable`]: nothing of it counts.
pub(super) fn read(file: &[u8], secret: &Secret) -> Result<(Identity, Vec<Batch>), Unreadable> {
    let Some((head, mut rest)) = file.split_first_chunk::<HEAD>() else {
        return Err(Unreadable::Foreign);
    };
    if !head.starts_with(MAGIC) {
        return Err(Unreadable::Foreign);
    }
    let version = head[MAGIC.len()..SALT].try_into().map_or(0, u32::from_be_bytes);
    if version != FORM {
        return Err(Unreadable::Version(version));
    }
    let mut opener = Opener {
        head,
        key: key_of(secret, head).ok_or(Unreadable::Key)?,
        next: 0,
    };
    let identity = match opener.open(&mut rest) {
        Ok(Some(identity)) => identity,
        Ok(None) | Err(Flawed) => return Err(Unreadable::Key),
    };
    let mut batches = Vec::new();
    loop {
        let at = file.len() - rest.len();
        match opener.open(&mut rest) {
            Ok(Some(batch)) => batches.push(batch),
            Ok(None) => return Ok((identity, batches)),
            Err(Flawed) => return Err(Unreadable::Damaged(at)),
        }
    }
}

/// Opens the records of one file.
struct Opener<'a> {
    head: &'a [u8; HEAD],
    key: LessSafeKey,
    next: u64,
}

struct Flawed;

impl Opener<'_> {
    /// The next record; `None` at the end, or where a record was not written to its end.
    fn open<T: DeserializeOwned>(&mut self, rest: &mut &[u8]) -> Result<Option<T>, Flawed> {
        let Some((lengths, after)) = rest.split_first_chunk::<LENGTHS>() else {
            return Ok(None);
        };
        let [a, b, c, d, turned @ ..] = *lengths;
        let length = u32::from_be_bytes([a, b, c, d]);
        if length != !u32::from_be_bytes(turned) || length > LONGEST {
            return Err(Flawed);
        }
        let Some((sealed, after)) = usize::try_from(length)
            .ok()
            .and_then(|length| after.split_at_checked(length))
        else {
            return Ok(None);
        };
        let mut record = Zeroizing::new(sealed.to_vec());
        let opened = self
            .key
            .open_in_place(nonce(self.next), Aad::from(self.head), &mut record);
        let record = serde_json::from_slice(opened.map_err(|_| Flawed)?).map_err(|_| Flawed)?;
        self.next += 1;
        *rest = after;
        Ok(Some(record))
    }
}

/// What several files say together, of whom nothing is over for sure but what has ended.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// By id, as looked at in that moment.
    alive: BTreeMap<String, (Moment, Kept)>,
    ended: HashSet<String>,
    last: Moment,
}

impl Replay {
    /// Takes in the records of all files of one start of the system. What was so last counts; an end counts always.
    pub(super) fn of(mut batches: Vec<Batch>) -> Self {
        batches.sort_by_key(|batch| batch.at.up);
        let mut replay = Self::default();
        for batch in batches {
            replay.take(batch);
        }
        let ended = &replay.ended;
        replay.alive.retain(|id, _| !ended.contains(id));
        replay
    }

    fn take(&mut self, batch: Batch) {
        let Batch {
            at,
            grants,
            used,
            ended,
        } = batch;
        self.last = at;
        self.ended.extend(ended);
        for kept in grants {
            if let Some(id) = kept.grant.id() {
                self.alive.insert(id.to_string(), (at, kept));
            }
        }
        for by in used {
            let known = by.id().and_then(|id| self.alive.get_mut(&id.to_string()));
            if let Some((seen, kept)) = known {
                let later = millis(at.up.saturating_sub(seen.up));
                kept.grant = kept.grant.clone().aged(later).used(&by);
                *seen = at;
            }
        }
    }

    /// The grants that have not ended, each as it is `now` unless it was used meanwhile. `same_boot`: the system was not
    /// started since.
    ///
    /// # Errors
    /// The time that has passed cannot be known: the clock was set back.
    pub(super) fn alive(self, now: Moment, same_boot: bool) -> Result<Vec<Kept>, SetBack> {
        let since_last = if same_boot {
            now.up.checked_sub(self.last.up)
        } else {
            u64::try_from(now.wall.saturating_sub(self.last.wall)).ok()
        };
        let since_last = since_last.ok_or(SetBack)?;
        let aged = |(seen, kept): (Moment, Kept)| {
            let passed = self.last.up.saturating_sub(seen.up).saturating_add(since_last);
            Kept {
                grant: kept.grant.aged(millis(passed)),
                cookie: kept.cookie,
            }
        };
        Ok(self.alive.into_values().map(aged).collect())
    }
}

/// How much time has passed cannot be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the clock stands before the moment in which they were kept")]
pub(super) struct SetBack;

fn millis(millis: u64) -> std::time::Duration {
    std::time::Duration::from_millis(millis)
}

fn key_of(secret: &Secret, head: &[u8; HEAD]) -> Option<LessSafeKey> {
    let node = hmac::Key::new(hmac::HMAC_SHA256, secret.expose().as_bytes());
    let mut context = hmac::Context::with_key(&node);
    context.update(b"portcullis kept grants 1\0");
    context.update(&head[SALT..]);
    let key = UnboundKey::new(&AES_256_GCM, context.sign().as_ref()).ok()?;
    Some(LessSafeKey::new(key))
}

fn nonce(number: u64) -> Nonce {
    let mut octets = [0; NONCE_LEN];
    octets[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(octets)
}

const MAGIC: &[u8; 8] = b"PCGRANTS";
const FORM: u32 = 1;
const SALT: usize = 12;
const HEAD: usize = 44;
const LENGTHS: usize = 8;
/// A batch of grants with as many routes as they may have.
const LONGEST: u32 = 16 * 1024 * 1024;

#[cfg(test)]
mod tests;
