//! What a configuration may ask of the world around it: environment variables and files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zeroize::Zeroizing;

/// The world around a configuration; tests bring their own.
pub trait Environment {
    /// The environment variable of that name, if it is set and is text.
    fn variable(&self, name: &str) -> Option<Zeroizing<String>>;

    /// Reads a regular file, at most `limit` bytes of it.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Contents>;
}

/// What a file holds.
pub struct Contents {
    /// The first bytes, up to the limit that was asked for.
    pub bytes: Zeroizing<Vec<u8>>,
    /// Permission bits (`0o640`).
    pub mode: u32,
}

/// The environment of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Process;

impl Environment for Process {
    fn variable(&self, name: &str) -> Option<Zeroizing<String>> {
        std::env::var(name).ok().map(Zeroizing::new)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Contents> {
        let about = std::fs::metadata(path)?;
        // Opening a pipe that nobody writes to would wait for ever.
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        File::open(path)?.take(limit).read_to_end(&mut bytes)?;
        Ok(Contents {
            bytes,
            mode: about.permissions().mode() & 0o7777,
        })
    }
}
