//! What the command line, files and the environment give beforehand.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::Connect;
use crate::client::{AuthorityFault, Credentials, KnownGateways, Trust};
use crate::types::Secret;

/// Something that was given cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum GivenFault {
    #[error("{}: the password cannot be read ({problem}). Give a file that holds one password", file.display())]
    PasswordFile { file: PathBuf, problem: String },
    #[error(transparent)]
    Authorities(#[from] AuthorityFault),
}

/// What is known of the user.
pub(super) fn credentials(arguments: &Connect) -> Result<Credentials, GivenFault> {
    let password = match &arguments.password_file {
        Some(file) => Some(password_in(file).map_err(|error| GivenFault::PasswordFile {
            file: file.clone(),
            problem: error.to_string(),
        })?),
        None => std::env::var("PORTCULLIS_PASSWORD")
            .ok()
            .filter(|text| !text.is_empty())
            .map(Secret::new),
    };
    Ok(Credentials {
        user: arguments.user.clone(),
        password,
        domain: arguments.domain.clone(),
        accept_disclaimer: arguments.accept_disclaimer,
    })
}

/// What certificates are held to.
pub(super) fn trust(arguments: &Connect) -> Result<Trust, GivenFault> {
    match (&arguments.thumbprint, &arguments.ca) {
        (Some(thumbprint), _) => Ok(Trust::thumbprint(*thumbprint)),
        (None, Some(file)) => Ok(Trust::authorities(file)?),
        (None, None) => Ok(Trust::system(KnownGateways::of_user(|name| {
            std::env::var_os(name).map(PathBuf::from)
        }))),
    }
}

/// The user's language; `None` if it is none that a gateway could answer in.
pub(super) fn locale(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let locale = ["LC_ALL", "LC_MESSAGES", "LANG"]
        .iter()
        .find_map(|name| variable(name).filter(|text| !text.is_empty()))?;
    let language = locale.split('.').next().unwrap_or_default();
    let is_plain = locale.len() <= 64
        && locale
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-@".contains(&b));
    (is_plain && !matches!(language, "C" | "POSIX")).then_some(locale)
}

fn password_in(file: &Path) -> io::Result<Secret> {
    let invalid = |words: &str| io::Error::new(io::ErrorKind::InvalidData, words.to_owned());
    // Room for all of it from the start: a growing buffer would leave copies behind.
    let mut octets = Zeroizing::new(Vec::with_capacity(LONGEST + 2));
    File::open(file)?.take(LONGEST as u64 + 1).read_to_end(&mut octets)?;
    if octets.len() > LONGEST {
        return Err(invalid("it is too long"));
    }
    let text = std::str::from_utf8(&octets).map_err(|_| invalid("it is no text"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    match text.strip_suffix('\r').unwrap_or(text) {
        "" => Err(invalid("it is empty")),
        password => Ok(Secret::new(password)),
    }
}

const LONGEST: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newline_at_the_end_of_a_password_file_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        let read = |text: &[u8]| {
            std::fs::write(&file, text).unwrap();
            password_in(&file)
                .map(|secret| secret.expose().to_owned())
                .map_err(|error| error.to_string())
        };
        assert_eq!(read(b" plum \r\n"), Ok(" plum ".to_owned()));
        assert_eq!(read(b"a\nb\n\n"), Ok("a\nb\n".to_owned()));
        assert_eq!(read(b"\n"), Err("it is empty".to_owned()));
        assert_eq!(read(&[0xff]), Err("it is no text".to_owned()));
        assert_eq!(read(&[b'x'; 5000]), Err("it is too long".to_owned()));
    }

    #[test]
    fn only_a_real_language_is_sent() {
        let of = |pairs: &'static [(&str, &str)]| {
            locale(|name| {
                pairs
                    .iter()
                    .find(|(key, _)| *key == name)
                    .map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[("LANG", "de_DE.UTF-8")]).as_deref(), Some("de_DE.UTF-8"));
        assert_eq!(
            of(&[("LC_ALL", ""), ("LC_MESSAGES", "fr_FR"), ("LANG", "C")]).as_deref(),
            Some("fr_FR")
        );
        for none in [
            &[][..],
            &[("LANG", "C")],
            &[("LANG", "C.UTF-8")],
            &[("LC_ALL", "POSIX")],
            &[("LANG", "<x>")],
        ] {
            assert_eq!(of(none), None, "{none:?}");
        }
    }
}
