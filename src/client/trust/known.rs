//! The gateways whose certificates were accepted before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::client::endpoint::Endpoint;
use crate::types::Thumbprint;

/// The file that remembers them: one line a gateway, `HOST:PORT sha256:HEX`.
///
/// Lines that are empty or start with `#` are kept and mean nothing. The file is replaced as a whole, so that a reader
/// sees the old one or the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownGateways {
    file: PathBuf,
}

impl KnownGateways {
    /// Those in `file`, which need not exist.
    pub fn new(file: impl Into<PathBuf>) -> Self {
        Self { file: file.into() }
    }

    /// Those of the user: `known_gateways` in `portcullis` in `$XDG_DATA_HOME`, or in `~/.local/share` without it.
    ///
    /// `variable` looks an environment variable up. `None`: neither `XDG_DATA_HOME` nor `HOME` is an absolute path.
    pub fn of_user(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<Self> {
        let absolute = |name: &str| variable(name).filter(|path| path.is_absolute());
        let data = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
        Some(Self::new(data.join("portcullis/known_gateways")))
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The certificate that was accepted for `endpoint`.
    ///
    /// # Errors
    /// The file cannot be read, or the gateway's line makes no sense: a damaged line must not read as "never seen".
    pub fn thumbprint_of(&self, endpoint: &Endpoint) -> Result<Option<Thumbprint>, KnownFault> {
        let text = self.read()?;
        let wanted = endpoint.to_string();
        let line = text.lines().enumerate().filter(|(_, line)| names(line, &wanted)).last();
        let Some((place, line)) = line else { return Ok(None) };
        let value = line.split_whitespace().nth(1).unwrap_or_default();
        match value.strip_prefix(ALGORITHM).map(str::parse) {
            Some(Ok(thumbprint)) => Ok(Some(thumbprint)),
            _ => Err(KnownFault::Unreadable {
                file: self.file.clone(),
                line: place + 1,
            }),
        }
    }

    /// Remembers the certificate of `endpoint`, in place of one that was there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self, endpoint: &Endpoint, thumbprint: Thumbprint) -> Result<(), KnownFault> {
        self.replace(endpoint, thumbprint).map_err(|error| self.fault(&error))
    }

    fn replace(&self, endpoint: &Endpoint, thumbprint: Thumbprint) -> io::Result<()> {
        let folder = self.file.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // Two clients that remember at the same time come one after the other.
        let lock = File::open(folder)?;
        flock(&lock, FlockOperation::LockExclusive)?;

        let wanted = endpoint.to_string();
        let mut text = String::new();
        for line in self
            .read()
            .map_err(io::Error::from)?
            .lines()
            .filter(|line| !names(line, &wanted))
        {
            text.push_str(line);
            text.push('\n');
        }
        text.push_str(&format!("{wanted} {ALGORITHM}{}\n", thumbprint.to_hex()));

        let mut draft = self.file.clone().into_os_string();
        draft.push(format!(".{}", std::process::id()));
        let written = write_new(Path::new(&draft), &text).and_then(|()| fs::rename(&draft, &self.file));
        if written.is_err() {
            let _ = fs::remove_file(&draft);
        }
        written?;
        lock.sync_all()
    }

    fn read(&self) -> Result<String, KnownFault> {
        match fs::read_to_string(&self.file) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
            Err(error) => Err(self.fault(&error)),
        }
    }

    fn fault(&self, error: &io::Error) -> KnownFault {
        KnownFault::Io {
            file: self.file.clone(),
            problem: error.to_string(),
        }
    }
}

/// Whether a line is about that gateway.
fn names(line: &str, endpoint: &str) -> bool {
    line.split_whitespace().next() == Some(endpoint)
}

fn write_new(file: &Path, text: &str) -> io::Result<()> {
    let _ = fs::remove_file(file);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

const ALGORITHM: &str = "sha256:";

/// The list of known gateways cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnownFault {
    /// The file cannot be read or written.
    #[error("{}: {problem}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// The system's words.
        problem: String,
    },
    /// A gateway's line makes no sense.
    #[error("{}:{line}: not a line of the form HOST:PORT sha256:HEX. Correct or remove it", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The line's number.
        line: usize,
    },
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use rustls::pki_types::CertificateDer;

    use super::*;

    fn thumbprint(of: &str) -> Thumbprint {
        Thumbprint::of(&CertificateDer::from_slice(of.as_bytes()))
    }

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn a_gateway_is_remembered_by_host_and_port() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("a/b/known"));
        assert_eq!(
            known.thumbprint_of(&endpoint("gw:1")),
            Ok(None),
            "the file need not exist"
        );
        known.remember(&endpoint("gw:1"), thumbprint("one")).unwrap();
        known.remember(&endpoint("[::1]:2"), thumbprint("two")).unwrap();
        assert_eq!(known.thumbprint_of(&endpoint("GW:1")), Ok(Some(thumbprint("one"))));
        assert_eq!(known.thumbprint_of(&endpoint("[::1]:2")), Ok(Some(thumbprint("two"))));
        assert_eq!(known.thumbprint_of(&endpoint("gw:2")), Ok(None));
    }

    #[test]
    fn a_line_is_replaced_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("known"));
        fs::write(known.file(), "# mine\n\ngw-10:443 sha256:aa\n").unwrap();
        known.remember(&endpoint("gw-1"), thumbprint("old")).unwrap();
        known.remember(&endpoint("gw-1"), thumbprint("new")).unwrap();
        let expected = format!(
            "# mine\n\ngw-10:443 sha256:aa\ngw-1:443 sha256:{}\n",
            thumbprint("new").to_hex()
        );
        assert_eq!(fs::read_to_string(known.file()).unwrap(), expected);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn only_the_user_can_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("portcullis/known"));
        known.remember(&endpoint("gw"), thumbprint("one")).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(known.file()), 0o600);
        assert_eq!(mode(known.file().parent().unwrap()), 0o700);
    }

    #[test]
    fn a_damaged_line_is_no_unknown_gateway() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("known"));
        for line in ["gw:443", "gw:443 sha256:12", "gw:443 md5:0"] {
            fs::write(known.file(), format!("# x\n{line}\n")).unwrap();
            let fault = known.thumbprint_of(&endpoint("gw")).unwrap_err();
            assert!(matches!(fault, KnownFault::Unreadable { line: 2, .. }), "{line}");
        }
        fs::remove_file(known.file()).unwrap();
        fs::create_dir(known.file()).unwrap();
        assert!(known.thumbprint_of(&endpoint("gw")).is_err());
    }

    #[test]
    fn clients_that_remember_at_the_same_time_do_not_lose_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let known = KnownGateways::new(folder.path().join("known"));
        std::thread::scope(|scope| {
            for place in 0..16 {
                let known = &known;
                // Another thread stands for another process: the draft's name is made unlike by the lock alone.
                scope.spawn(move || {
                    known
                        .remember(&endpoint(&format!("gw-{place}")), thumbprint("x"))
                        .unwrap()
                });
            }
        });
        assert_eq!(fs::read_to_string(known.file()).unwrap().lines().count(), 16);
    }

    #[test]
    fn the_file_of_the_user_is_found_by_the_environment() {
        let of = |pairs: &'static [(&str, &str)]| {
            let look = |name: &str| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| PathBuf::from(value))
            };
            KnownGateways::of_user(look).map(|known| known.file)
        };
        let file = |text: &str| Some(PathBuf::from(text));
        assert_eq!(
            of(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]),
            file("/d/portcullis/known_gateways")
        );
        assert_eq!(
            of(&[("XDG_DATA_HOME", "d"), ("HOME", "/h")]),
            file("/h/.local/share/portcullis/known_gateways")
        );
        assert_eq!(of(&[("HOME", "")]), None);
    }
}
