//! Secrets and files: what the configuration refers to outside of itself.

use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Check;
use crate::config::document::format;
use crate::config::document::secret::{HashSource, KeySource};
use crate::config::environment::Contents;
use crate::config::password;
use crate::config::path::SettingPath;
use crate::config::problem::Problem;
use crate::config::read::words_of;
use crate::types::Secret;

/// Longest secret, in bytes.
const MAX: u64 = 4096;

/// Fewest characters of a key: 128 bits in hexadecimal digits.
const MIN_KEY: usize = 32;

/// The permission bit that lets everyone read.
const OTHERS_READ: u32 = 0o004;

impl Check<'_> {
    /// A password hash, if it is one that can be used.
    pub(super) fn password_hash(&mut self, source: HashSource, path: &SettingPath) -> Option<Secret> {
        let hash = match source {
            HashSource::Inline(hash) => hash,
            HashSource::Kept(source) => self.secret(&source, path)?,
        };
        match password::judge(hash.expose()) {
            Ok(_) => Some(hash),
            Err(weakness) => {
                self.note(path.clone(), Problem::PasswordHash(weakness));
                None
            }
        }
    }

    /// A key, if it cannot be guessed.
    pub(super) fn key(&mut self, source: &KeySource, path: &SettingPath) -> Option<Secret> {
        let key = self.secret(source, path)?;
        if key.expose().chars().count() < MIN_KEY {
            self.note(path.clone(), Problem::ShortKey { min: MIN_KEY });
            return None;
        }
        Some(key)
    }

    /// A password in a file.
    pub(super) fn password_in(&mut self, file: &Path, path: &SettingPath) -> Option<Secret> {
        let text = self.secret_file(&self.resolved(file), path)?;
        Some(Secret::new(text.as_str()))
    }

    /// Checks that a file is there, readable and not empty; with `private`, also that it is not open to all.
    pub(super) fn file(&mut self, file: &Path, path: &SettingPath, private: bool) -> Option<PathBuf> {
        let file = self.resolved(file);
        self.open(&file, path, private, 1).map(|_| file)
    }

    /// Checks that a file is there, readable, not empty and not longer than `limit` bytes.
    pub(super) fn short_file(&mut self, file: &Path, path: &SettingPath, limit: u64) -> Option<PathBuf> {
        let file = self.resolved(file);
        let contents = self.open(&file, path, false, limit + 1)?;
        if contents.bytes.len() as u64 <= limit {
            return Some(file);
        }
        self.note(path.clone(), Problem::FileTooLong { file, limit });
        None
    }

    fn secret(&mut self, source: &KeySource, path: &SettingPath) -> Option<Secret> {
        let text = match source {
            KeySource::File(file) => self.secret_file(&self.resolved(file), &path.key("file"))?,
            KeySource::Env(name) => {
                let value = self.environment.variable(name);
                if value.is_none() {
                    self.note(path.key("env"), Problem::VariableUnset { name: name.clone() });
                }
                value?
            }
            KeySource::Credential(name) => {
                let path = path.key("credential");
                // A name with a slash would leave the folder of credentials.
                if let Err(problem) = format::check("name", name) {
                    self.note(path, problem);
                    return None;
                }
                let Some(folder) = self.environment.variable("CREDENTIALS_DIRECTORY") else {
                    self.note(path, Problem::NoCredentials { name: name.clone() });
                    return None;
                };
                self.secret_file(&Path::new(folder.as_str()).join(name), &path)?
            }
        };
        let why = match text.as_str() {
            "" => "is empty",
            text if text.contains(['\n', '\r', '\0']) => "has more than one line",
            text => return Some(Secret::new(text)),
        };
        self.note(path.clone(), Problem::BadSecret { why });
        None
    }

    /// What a file holds, without the newline at its end.
    fn secret_file(&mut self, file: &Path, path: &SettingPath) -> Option<Zeroizing<String>> {
        let contents = self.open(file, path, true, MAX + 1)?;
        let bytes = contents.bytes.strip_suffix(b"\n").unwrap_or(&contents.bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        let why = match std::str::from_utf8(bytes) {
            Ok(text) if text.len() as u64 <= MAX => return Some(Zeroizing::new(text.to_owned())),
            Ok(_) => "is too long",
            Err(_) => "is no UTF-8 text",
        };
        self.note(path.clone(), Problem::BadSecret { why });
        None
    }

    fn open(&mut self, file: &Path, path: &SettingPath, private: bool, limit: u64) -> Option<Contents> {
        let file = file.to_owned();
        match self.environment.read(&file, limit) {
            Ok(contents) if contents.bytes.is_empty() => {
                self.note(path.clone(), Problem::FileEmpty { file });
                None
            }
            Ok(contents) => {
                if private && contents.mode & OTHERS_READ != 0 {
                    self.note(path.clone(), Problem::FileOpenToAll { file });
                }
                Some(contents)
            }
            Err(why) => {
                self.note(
                    path.clone(),
                    Problem::FileUnreadable {
                        file,
                        why: words_of(&why),
                    },
                );
                None
            }
        }
    }
}
