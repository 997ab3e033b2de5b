//! `portcullis hash-password`: the hash that stands in the configuration.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use zeroize::Zeroizing;

use super::{Exit, explain, print};
use crate::config::password;
use crate::types::Secret;

/// Longest password, in bytes. Clients send no longer ones.
const MAX: usize = 1024;

/// Hash a password for directory.user.NAME.password_hash.
///
/// On a terminal the password is asked for twice, without echo. Otherwise it is read from standard input; a newline at
/// its end does not count. It never stands on the command line, where every user of the system could read it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  portcullis hash-password
  portcullis hash-password --password-file ann.txt")]
pub struct Arguments {
    /// Read the password from this file.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Exit {
    let hashed = password_of(arguments).and_then(|password| password::hash(&password).map_err(Refused::Hash));
    match hashed {
        Ok(hash) => print(&format!("{}\n", hash.expose()), Exit::Done),
        Err(refused) => {
            explain(&format!("No hash was made: {refused}.\n"));
            Exit::Failed
        }
    }
}

/// Why there is no hash.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{} cannot be read: {cause}. Give the path of a file that this user can read", file.display())]
    File { file: PathBuf, cause: io::Error },
    #[error("the password cannot be read: {0}. Run it on a terminal, or give --password-file")]
    Input(io::Error),
    #[error("the two passwords differ. Type the same one twice")]
    Differ,
    #[error("the password is empty. Choose one")]
    Empty,
    #[error("the password is longer than {MAX} bytes. Choose a shorter one")]
    TooLong,
    #[error("the password is no UTF-8 text. Save it as UTF-8")]
    NotText,
    #[error("{0}. Try again")]
    Hash(password::HashFailed),
}

fn password_of(arguments: &Arguments) -> Result<Secret, Refused> {
    if let Some(file) = &arguments.password_file {
        let unreadable = |cause| Refused::File {
            file: file.clone(),
            cause,
        };
        let bytes = read(File::open(file).map_err(unreadable)?).map_err(unreadable)?;
        return accept(&bytes);
    }
    if !io::stdin().is_terminal() {
        return accept(&read(io::stdin().lock()).map_err(Refused::Input)?);
    }
    let ask = |prompt: &str| {
        rpassword::prompt_password(prompt)
            .map(Zeroizing::new)
            .map_err(Refused::Input)
    };
    let first = ask("Password: ")?;
    if *first != *ask("Again: ")? {
        return Err(Refused::Differ);
    }
    accept(first.as_bytes())
}

fn read(source: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // Room for all of it from the start: a growing buffer would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX + 8));
    source.take(MAX as u64 + 3).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Takes a password into custody, without the newline at its end.
fn accept(bytes: &[u8]) -> Result<Secret, Refused> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|_| Refused::NotText)?;
    match text.len() {
        0 => Err(Refused::Empty),
        length if length > MAX => Err(Refused::TooLong),
        _ => Ok(Secret::new(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newline_at_the_end_goes() {
        assert_eq!(accept(b" plum \n").unwrap(), Secret::new(" plum "));
        assert_eq!(accept(b"plum\r\n").unwrap(), Secret::new("plum"));
        assert_eq!(accept(b"plum\n\n").unwrap(), Secret::new("plum\n"));
    }

    #[test]
    fn what_is_no_password_is_refused() {
        assert!(matches!(accept(b"\n"), Err(Refused::Empty)));
        assert!(matches!(accept(&[0xff]), Err(Refused::NotText)));
        let long = read(io::repeat(b'x')).unwrap();
        assert!(matches!(accept(&long), Err(Refused::TooLong)));
        assert!(accept(&[b'x'; MAX]).is_ok());
    }
}
