//! The tokens of the admin API: made on the node, shown once, kept as hashes in one file of `node.state_dir`.
//!
//! A token is 256 random bits, so a plain hash of it tells nothing and guesses are hopeless. The running node owns the file:
//! a change is on the disk, whole, before it holds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::api::Scope;
use crate::broker::replace_file;
use crate::grant::{Randomness as _, SystemRandomness};
use crate::types::Secret;

/// All tokens of this node.
#[derive(Debug)]
pub(super) struct Tokens {
    file: PathBuf,
    kept: Mutex<BTreeMap<String, Entry>>,
}

/// What is known of a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) scope: Scope,
    /// SHA-256 of the token, in hexadecimal digits.
    hash: String,
    /// When it was made, in seconds since 1970.
    pub(super) created: i64,
    /// From when on it is refused, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) expires: Option<i64>,
}

/// Who a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) name: String,
    pub(super) scope: Scope,
}

/// Why a token is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unaccepted {
    /// No such token.
    Unknown,
    /// Its time is over.
    Expired,
}

/// Why a token is not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotMade {
    #[error("`{0}` is no name for a token: 1 to 64 letters, digits, `.`, `_` and `-`, and not `socket`.")]
    BadName(String),
    #[error("There is a token `{0}` already. Revoke it first, or choose another name.")]
    NameTaken(String),
    #[error("There are {MOST} tokens already. Revoke those that nobody uses.")]
    Full,
    #[error("The token cannot be kept: {0}. See node.state_dir and the disk that it is on.")]
    Unwritable(io::Error),
}

/// Why the tokens of a node cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}; put a copy of it back, or move it away: then there are no tokens", file.display())]
pub struct TokensFault {
    /// Where they are kept.
    pub file: PathBuf,
    /// What is wrong.
    pub problem: String,
}

impl Tokens {
    /// Those that are kept in a folder; none if nothing is. Blocks on the file system.
    ///
    /// # Errors
    /// The file is there and cannot be used.
    pub(super) fn load(folder: &Path) -> Result<Self, TokensFault> {
        let file = folder.join(FILE);
        let fault = |problem: String| TokensFault {
            file: file.clone(),
            problem,
        };
        let kept = match std::fs::read(&file) {
            Ok(bytes) => parse(&bytes).map_err(fault)?,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(cause) => return Err(fault(format!("cannot be read ({cause})"))),
        };
        Ok(Self {
            file,
            kept: Mutex::new(kept),
        })
    }

    /// Whose a token is at `now`.
    ///
    /// # Errors
    /// Nobody's, or no longer.
    pub(super) fn holder(&self, token: &str, now: Timestamp) -> Result<Holder, Unaccepted> {
        let hash = hash_of(token);
        let kept = self.kept.lock();
        // All are compared, so that the time taken says nothing.
        let found = kept.iter().fold(None, |found, (name, entry)| {
            let is_it = verify_slices_are_equal(entry.hash.as_bytes(), hash.as_bytes()).is_ok();
            if is_it { Some((name, entry)) } else { found }
        });
        let (name, entry) = found.ok_or(Unaccepted::Unknown)?;
        if entry.has_expired(now) {
            return Err(Unaccepted::Expired);
        }
        Ok(Holder {
            name: name.clone(),
            scope: entry.scope,
        })
    }

    /// All tokens by name.
    pub(super) fn list(&self) -> BTreeMap<String, Entry> {
        self.kept.lock().clone()
    }

    /// Makes a token. Blocks on the file system.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub(super) fn create(
        &self,
        name: &str,
        scope: Scope,
        created: Timestamp,
        expires: Option<Timestamp>,
    ) -> Result<Secret, NotMade> {
        if !is_name(name) {
            return Err(NotMade::BadName(name.chars().take(LONGEST_NAME).collect()));
        }
        let mut kept = self.kept.lock();
        if kept.contains_key(name) {
            return Err(NotMade::NameTaken(name.to_owned()));
        }
        if kept.len() >= MOST {
            return Err(NotMade::Full);
        }
        let token = draw();
        let entry = Entry {
            scope,
            hash: hash_of(token.expose()),
            created: created.as_second(),
            expires: expires.map(Timestamp::as_second),
        };
        let mut next = kept.clone();
        next.insert(name.to_owned(), entry);
        self.write(&next).map_err(NotMade::Unwritable)?;
        *kept = next;
        Ok(token)
    }

    /// Takes a token back; `false` if there is none of that name. Blocks on the file system.
    ///
    /// # Errors
    /// The disk refuses. The token is not accepted any more nevertheless, until the node starts again.
    pub(super) fn revoke(&self, name: &str) -> io::Result<bool> {
        let mut kept = self.kept.lock();
        if kept.remove(name).is_none() {
            return Ok(false);
        }
        self.write(&kept)?;
        Ok(true)
    }

    fn write(&self, kept: &BTreeMap<String, Entry>) -> io::Result<()> {
        let document = Document {
            version: FORM,
            tokens: kept.clone(),
        };
        replace_file(&self.file, &serde_json::to_vec_pretty(&document)?)
    }
}

impl Entry {
    pub(super) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now.as_second())
    }
}

#[derive(Serialize, Deserialize)]
struct Document {
    version: u32,
    tokens: BTreeMap<String, Entry>,
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<String, Entry>, String> {
    let document: Document = serde_json::from_slice(bytes)
        .map_err(|fault| format!("is damaged at line {}, column {}", fault.line(), fault.column()))?;
    if document.version > FORM {
        return Err(format!("has form {}, which a later release wrote", document.version));
    }
    Ok(document.tokens)
}

/// A name also stands in the log, beside `socket`.
fn is_name(name: &str) -> bool {
    let fits = |octet: u8| octet.is_ascii_alphanumeric() || b"._-".contains(&octet);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(fits) && name != "socket"
}

fn draw() -> Secret {
    let mut bits = Zeroizing::new([0_u8; 32]);
    SystemRandomness.fill(&mut *bits);
    Secret::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(*bits)))
}

fn hash_of(token: &str) -> String {
    let mut hex = String::with_capacity(64);
    for octet in digest(&SHA256, token.as_bytes()).as_ref() {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{octet:02x}");
    }
    hex
}

/// How every token begins, so that people and scanners of source code know one.
const PREFIX: &str = "pct_";
const FILE: &str = "tokens.json";
/// The form of the file that this release writes.
const FORM: u32 = 1;
const MOST: usize = 256;
const LONGEST_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use jiff::SignedDuration;
    use tempfile::TempDir;

    use super::*;

    fn now() -> Timestamp {
        crate::clock::wall()
    }

    #[test]
    fn a_token_is_known_by_its_hash_alone_and_after_a_restart_too() {
        let folder = TempDir::new().unwrap();
        let tokens = Tokens::load(folder.path()).unwrap();
        let token = tokens.create("ops", Scope::Operate, now(), None).unwrap();
        assert!(token.expose().starts_with("pct_") && token.expose().len() == 47);
        let file = folder.path().join(FILE);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(&token.expose()[4..]), "{text}");
        let again = Tokens::load(folder.path()).unwrap();
        let holder = again.holder(token.expose(), now()).unwrap();
        assert_eq!((holder.name.as_str(), holder.scope), ("ops", Scope::Operate));
    }

    #[test]
    fn a_token_ends_when_it_expires_and_when_it_is_revoked() {
        let folder = TempDir::new().unwrap();
        let tokens = Tokens::load(folder.path()).unwrap();
        let (made, end) = (now(), now() + SignedDuration::from_hours(1));
        let short = tokens.create("short", Scope::Read, made, Some(end)).unwrap();
        let long = tokens.create("long", Scope::Admin, made, None).unwrap();
        let before = end - SignedDuration::from_secs(1);
        assert!(tokens.holder(short.expose(), before).is_ok());
        assert_eq!(tokens.holder(short.expose(), end), Err(Unaccepted::Expired));
        assert!(tokens.revoke("long").unwrap());
        assert!(!tokens.revoke("long").unwrap());
        assert_eq!(tokens.holder(long.expose(), made), Err(Unaccepted::Unknown));
        assert!(tokens.holder("pct_", made).is_err() && tokens.holder("", made).is_err());
    }

    #[test]
    fn names_are_few_unique_and_fit_for_a_log() {
        let folder = TempDir::new().unwrap();
        let tokens = Tokens::load(folder.path()).unwrap();
        let made = |name: &str| tokens.create(name, Scope::Read, now(), None);
        for name in ["", "socket", "a b", "a\nb", "ä", &"x".repeat(65)] {
            assert!(matches!(made(name), Err(NotMade::BadName(_))), "{name:?}");
        }
        made("a.b_c-1").unwrap();
        assert!(matches!(made("a.b_c-1"), Err(NotMade::NameTaken(_))));
    }

    #[test]
    fn a_disk_that_refuses_makes_no_token() {
        let folder = TempDir::new().unwrap();
        let tokens = Tokens::load(folder.path()).unwrap();
        // Not even root can take away a directory that is not empty.
        std::fs::create_dir_all(folder.path().join("tokens.json.new/inside")).unwrap();
        let refused = tokens.create("ops", Scope::Read, now(), None);
        assert!(matches!(refused, Err(NotMade::Unwritable(_))));
        assert!(tokens.list().is_empty());
    }

    #[test]
    fn a_damaged_file_is_refused_and_not_quoted() {
        let folder = TempDir::new().unwrap();
        for text in [
            "",
            "{}",
            r#"{"version": 1, "tokens": {"a": "5eed"}}"#,
            r#"{"version": 2, "tokens": {}}"#,
        ] {
            std::fs::write(folder.path().join(FILE), text).unwrap();
            let words = Tokens::load(folder.path()).unwrap_err().to_string();
            assert!(words.contains("tokens.json") && !words.contains("5eed"), "{words}");
        }
    }
}
