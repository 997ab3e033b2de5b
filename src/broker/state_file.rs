//! The file of what users have changed: its form, and how it is replaced whole.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::password::{self, Weakness};
use crate::types::{Secret, UserName};

use super::preferences::Preferences;

/// Why the kept state cannot be used, in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {problem}; {}", path.display(), problem.advice())]
pub struct StateFault {
    /// The file at fault.
    pub path: PathBuf,
    /// What is wrong.
    pub problem: StateProblem,
}

/// What is wrong with the file of the kept state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateProblem {
    /// It cannot be read.
    #[error("cannot be read ({0})")]
    Unreadable(io::ErrorKind),
    /// It is not what this program writes.
    #[error("is damaged at line {line}, column {column}")]
    Damaged {
        /// Counted from 1.
        line: usize,
        /// Counted from 1; 0 is the end of the line before.
        column: usize,
    },
    /// A later release wrote it.
    #[error("has form {0}, which a later release of this program wrote")]
    Later(u32),
    /// A password hash in it breaks a rule.
    #[error("holds a password of user `{user}` that cannot be used: {weakness}")]
    Password {
        /// Whose.
        user: UserName,
        /// The rule.
        weakness: Weakness,
    },
    /// It cannot be written.
    #[error("cannot be written ({0})")]
    Unwritable(io::ErrorKind),
}

impl StateProblem {
    /// What the operator can do about it.
    pub fn advice(&self) -> &'static str {
        match self {
            Self::Unreadable(io::ErrorKind::PermissionDenied) => {
                "let the gateway's user own it and its directory (chown, chmod 600)"
            }
            Self::Unreadable(_) => "check that it is a regular file on a sound disk",
            Self::Damaged { .. } => {
                "put a copy of it back, or move it away: then the passwords of the configuration count again, and \
                 preferences are gone"
            }
            Self::Later(_) => "install that release again, or move the file away",
            Self::Password { .. } => {
                "delete `password` of that user in it: then the one of the configuration counts again"
            }
            Self::Unwritable(io::ErrorKind::PermissionDenied) => {
                "let the gateway's user own the directory (chown, chmod 700)"
            }
            Self::Unwritable(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => "make room on the disk",
            Self::Unwritable(_) => "check node.state_dir and the disk that it is on",
        }
    }
}

/// What is kept of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) password: Option<ChangedPassword>,
    #[serde(default, skip_serializing_if = "Preferences::is_empty")]
    pub(super) preferences: Preferences,
    /// Since when the configuration does not know the user, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) absent_since: Option<i64>,
}

/// A password that its user has chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ChangedPassword {
    #[serde(serialize_with = "expose", deserialize_with = "conceal")]
    pub(super) hash: Secret,
    /// The configured hash in whose place it stands. Under another it does not count.
    pub(super) replaces: Fingerprint,
    /// Whether it was chosen because the configuration demanded it.
    pub(super) demanded: bool,
}

/// SHA-256 of a configured password hash, in hex: tells hashes apart and gives none away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Fingerprint(String);

impl Fingerprint {
    pub(super) fn of(hash: &Secret) -> Self {
        let digest = digest(&SHA256, hash.expose().as_bytes());
        let mut hex = String::with_capacity(64);
        for byte in digest.as_ref() {
            // Writing to a String does not fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Self(hex)
    }
}

/// The file. Whoever writes must see to it that nobody else does.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
}

impl StateFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// What is in it; nothing if there is none.
    pub(super) fn read(&self) -> Result<BTreeMap<UserName, Arc<Entry>>, StateFault> {
        match fs::read(&self.path) {
            Ok(bytes) => parse(&bytes).map_err(|problem| self.fault(problem)),
            Err(fault) if fault.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(fault) => Err(self.fault(StateProblem::Unreadable(fault.kind()))),
        }
    }

    /// Replaces it whole: whoever reads, even after a loss of power, finds the former one or this.
    pub(super) fn write(&self, users: &BTreeMap<UserName, Arc<Entry>>) -> Result<(), StateFault> {
        let document = Written {
            version: FORM,
            users: users.iter().map(|(name, entry)| (name.as_str(), &**entry)).collect(),
        };
        let written = serde_json::to_vec_pretty(&document).map_err(io::Error::from);
        written
            .and_then(|bytes| replace(&self.path, &bytes))
            .map_err(|fault| self.fault(StateProblem::Unwritable(fault.kind())))
    }

    pub(super) fn fault(&self, problem: StateProblem) -> StateFault {
        StateFault {
            path: self.path.clone(),
            problem,
        }
    }
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    users: BTreeMap<&'a str, &'a Entry>,
}

#[derive(Deserialize)]
struct Document {
    users: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Head {
    version: u32,
}

fn parse(bytes: &[u8]) -> Result<BTreeMap<UserName, Arc<Entry>>, StateProblem> {
    // The parser's own words are left out: they quote the text, which holds hashes.
    let damaged = |fault: serde_json::Error| StateProblem::Damaged {
        line: fault.line(),
        column: fault.column(),
    };
    let head: Head = serde_json::from_slice(bytes).map_err(damaged)?;
    if head.version > FORM {
        return Err(StateProblem::Later(head.version));
    }
    let document: Document = serde_json::from_slice(bytes).map_err(damaged)?;
    let mut users = BTreeMap::new();
    for (name, entry) in document.users {
        let user = UserName::new(&name);
        if let Some(changed) = &entry.password
            && let Err(weakness) = password::judge(changed.hash.expose())
        {
            return Err(StateProblem::Password { user, weakness });
        }
        users.insert(user, Arc::new(entry));
    }
    Ok(users)
}

/// Replaces a file whole, for its owner alone: whoever reads, even after a loss of power, finds the former one or this. Its
/// folder is made if need be. Only one may write at a time.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let beside = path.with_extension("json.new");
    match fs::remove_file(&beside) {
        Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    File::open(directory)?.sync_all()
}

fn expose<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

fn conceal<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::new)
}

/// The form of the file that this release writes.
const FORM: u32 = 1;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tempfile::TempDir;

    use super::*;

    const HASH: &str =
        "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI";

    fn some_users() -> BTreeMap<UserName, Arc<Entry>> {
        let changed = ChangedPassword {
            hash: Secret::new(HASH),
            replaces: Fingerprint::of(&Secret::new("configured")),
            demanded: true,
        };
        let preferences =
            Preferences::default().merged(None, vec![("lastUsedDesktop".into(), "office".into())], |_| true);
        let ann = Entry {
            password: Some(changed),
            ..Entry::default()
        };
        let ben = Entry {
            preferences: preferences.unwrap(),
            absent_since: Some(1_800_000_000),
            ..Entry::default()
        };
        BTreeMap::from([
            (UserName::new("ann"), Arc::new(ann)),
            (UserName::new("ben"), Arc::new(ben)),
        ])
    }

    fn file_in(folder: &TempDir) -> StateFile {
        StateFile::new(folder.path().join("state/directory.json"))
    }

    fn fault_of(text: &str) -> StateFault {
        let folder = TempDir::new().unwrap();
        let file = StateFile::new(folder.path().join("directory.json"));
        fs::write(&file.path, text).unwrap();
        file.read().unwrap_err()
    }

    #[test]
    fn what_is_written_is_read_and_no_file_is_nothing() {
        let folder = TempDir::new().unwrap();
        let file = file_in(&folder);
        assert_eq!(file.read(), Ok(BTreeMap::new()));
        file.write(&some_users()).unwrap();
        assert_eq!(file.read(), Ok(some_users()));
    }

    #[test]
    fn file_and_directory_are_for_their_owner_alone() {
        let folder = TempDir::new().unwrap();
        let file = file_in(&folder);
        let left_over = file.path.with_extension("json.new");
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::write(&left_over, "half of a docu").unwrap();
        fs::set_permissions(&left_over, fs::Permissions::from_mode(0o666)).unwrap();
        file.write(&some_users()).unwrap();
        assert_eq!(fs::metadata(&file.path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!left_over.exists());

        fs::remove_dir_all(folder.path().join("state")).unwrap();
        file.write(&some_users()).unwrap();
        let directory = fs::metadata(folder.path().join("state")).unwrap();
        assert_eq!(directory.permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_in_the_place_of_the_new_file_is_not_followed() {
        let folder = TempDir::new().unwrap();
        let file = file_in(&folder);
        let victim = folder.path().join("victim");
        fs::write(&victim, "untouched").unwrap();
        fs::create_dir(folder.path().join("state")).unwrap();
        std::os::unix::fs::symlink(&victim, file.path.with_extension("json.new")).unwrap();
        file.write(&some_users()).unwrap();
        assert_eq!(fs::read_to_string(victim).unwrap(), "untouched");
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_place_and_the_remedy() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            "{\"version\": 1}",
            "{\"version\": \"one\", \"users\": {}}",
            "\u{0}\u{0}",
        ] {
            let fault = fault_of(text);
            assert!(
                matches!(fault.problem, StateProblem::Damaged { .. }),
                "{text:?}: {fault}"
            );
            let words = fault.to_string();
            assert!(
                words.contains("directory.json") && words.contains("move it away"),
                "{words}"
            );
        }
    }

    #[test]
    fn a_fault_does_not_quote_the_file() {
        let fault = fault_of("{\"version\": 1, \"users\": {\"ann\": \"$argon2id$secret\"}}");
        assert_eq!(fault.problem, StateProblem::Damaged { line: 1, column: 50 });
        assert!(!fault.to_string().contains("secret"), "{fault}");
    }

    #[test]
    fn the_file_of_a_later_release_is_left_alone() {
        let fault = fault_of("{\"version\": 2, \"people\": [], \"users\": 7}");
        assert_eq!(fault.problem, StateProblem::Later(2));
    }

    #[test]
    fn a_kept_hash_must_be_as_strong_as_a_configured_one() {
        let weak = HASH.replace("t=2", "t=1");
        let entry = format!(r#"{{"password": {{"hash": "{weak}", "replaces": "", "demanded": false}}}}"#);
        let fault = fault_of(&format!(r#"{{"version": 1, "users": {{"ann": {entry}}}}}"#));
        assert!(matches!(fault.problem, StateProblem::Password { .. }), "{fault}");
        assert!(fault.to_string().contains("`ann`"), "{fault}");
    }

    #[test]
    fn a_disk_that_refuses_leaves_the_former_file() {
        let folder = TempDir::new().unwrap();
        let file = file_in(&folder);
        file.write(&some_users()).unwrap();
        // Not even root can take away a directory that is not empty.
        fs::create_dir_all(file.path.with_extension("json.new").join("inside")).unwrap();
        let fault = file.write(&BTreeMap::new()).unwrap_err();
        assert!(matches!(fault.problem, StateProblem::Unwritable(_)), "{fault}");
        assert_eq!(file.read(), Ok(some_users()));
    }
}
