//! The node's own key for what it keeps.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::broker::replace_file;
use crate::grant::{Randomness as _, SystemRandomness};
use crate::types::{Octets32, Secret};

/// Reads the key, or makes it. Blocks.
///
/// # Errors
/// It can be neither read nor made, or others can read it.
pub(super) fn own(file: &Path) -> io::Result<Secret> {
    match fs::symlink_metadata(file) {
        Ok(facts) if !facts.is_file() => Err(io::Error::other("it is not a regular file")),
        Ok(facts) if facts.permissions().mode() & 0o077 != 0 => Err(io::Error::other(
            "others than its owner have rights on it; chmod 600, or delete it",
        )),
        Ok(_) => read(&fs::read_to_string(file)?),
        Err(fault) if fault.kind() == io::ErrorKind::NotFound => draw(file),
        Err(fault) => Err(fault),
    }
}

fn read(text: &str) -> io::Result<Secret> {
    let key = Octets32::from_digits(text.trim()).ok_or_else(|| io::Error::other("it is no key; delete it"))?;
    Ok(Secret::new(key.digits().as_str()))
}

fn draw(file: &Path) -> io::Result<Secret> {
    let mut key = Octets32([0; 32]);
    SystemRandomness.fill(&mut key.0);
    let digits = key.digits();
    replace_file(file, digits.as_bytes())?;
    Ok(Secret::new(digits.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_for_its_owner_alone() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("key");
        let made = own(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(own(&file).unwrap(), made);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(own(&file).unwrap_err().to_string().contains("chmod 600"));
        fs::remove_file(&file).unwrap();
        fs::write(&file, "short").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(own(&file).unwrap_err().to_string().contains("no key"));
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert!(own(&file).is_err());
    }
}
