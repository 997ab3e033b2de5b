//! A word to the service manager (sd_notify(3)), if there is one.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells the service manager `state`, such as `READY=1`; does nothing without one.
pub fn notify(state: &str) {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(fault) = notify_at(&socket, state)
    {
        tracing::warn!(%fault, state, "the service manager cannot be told");
    }
}

fn notify_at(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address)?;
    Ok(())
}

/// The variable that names its socket.
const SOCKET: &str = "NOTIFY_SOCKET";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_told_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("notify");
        let name = format!("portcullis-test-{}", std::process::id());
        let abstract_name = SocketAddr::from_abstract_name(&name).unwrap();
        for (manager, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            notify_at(&socket, "READY=1").unwrap();
            let mut state = [0; 16];
            let length = manager.recv(&mut state).unwrap();
            assert_eq!(&state[..length], b"READY=1");
        }
        assert!(notify_at(folder.path().join("nobody").as_os_str(), "READY=1").is_err());
    }
}
