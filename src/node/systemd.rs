//! The service manager (sd_notify(3)), if there is one: a word to it, and the sockets that it keeps for the next process,
//! so that who waits in their backlog is served after a crash.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

use super::handover::message::{SocketFacts, SocketUse};

/// Tells the service manager `state`, such as `READY=1`; does nothing without one.
pub fn notify(state: &str) {
    tell(state, &[]);
}

/// What a socket is for that is worth keeping: who waits in its backlog is lost with it.
pub(super) fn is_worth_keeping(use_: SocketUse) -> bool {
    USES.iter().any(|(worthy, _)| *worthy == use_)
}

/// Has the service manager keep a socket. One that it has already is not kept twice.
pub(super) fn keep(facts: SocketFacts, socket: &OwnedFd) {
    if std::env::var_os(SOCKET).is_none() {
        return;
    }
    // One that the next process could not take would be in its way.
    if let Err(fault) = own(socket.as_raw_fd()) {
        return tracing::warn!(%fault, "the service manager is not asked to keep sockets: pidfd_getfd is refused here");
    }
    tell(&format!("FDSTORE=1\nFDNAME={}", name_of(facts)), &[socket.as_fd()]);
}

/// Has the service manager keep a socket no longer.
pub(super) fn let_go(facts: SocketFacts) {
    notify(&format!("FDSTOREREMOVE=1\nFDNAME={}", name_of(facts)));
}

/// The sockets that the service manager has kept of the process before. They stay open under their own numbers too, for
/// as long as this process lives.
pub(super) fn kept() -> HashMap<SocketFacts, OwnedFd> {
    let variable = |name: &str| std::env::var(name).ok();
    let is_ours = variable("LISTEN_PID").is_some_and(|pid| pid == std::process::id().to_string());
    let names = variable("LISTEN_FDNAMES").filter(|_| is_ours).unwrap_or_default();
    let mut sockets = HashMap::new();
    for (number, name) in (FIRST..).zip(names.split(':')) {
        // Of another name they are not of this program.
        let Some(facts) = facts_of(name) else { continue };
        match own(number) {
            Ok(socket) => _ = sockets.insert(facts, socket),
            Err(fault) => tracing::warn!(name, %fault, "a socket that the service manager kept cannot be taken"),
        }
    }
    sockets
}

/// A descriptor of this process as its own, once more.
fn own(number: RawFd) -> io::Result<OwnedFd> {
    let this = pidfd_open(getpid(), PidfdFlags::empty())?;
    Ok(pidfd_getfd(this, number, PidfdGetfdFlags::empty())?)
}

/// A name that the service manager takes: without a colon.
fn name_of(facts: SocketFacts) -> String {
    let use_ = USES
        .iter()
        .find(|(use_, _)| *use_ == facts.use_)
        .map_or("", |(_, name)| name);
    format!("{use_}-{}", facts.address).replace(':', "_")
}

fn facts_of(name: &str) -> Option<SocketFacts> {
    let (use_, address) = name.split_once('-')?;
    let (use_, _) = USES.iter().find(|(_, known)| *known == use_)?;
    Some(SocketFacts {
        address: address.replace('_', ":").parse::<SocketAddr>().ok()?,
        use_: *use_,
    })
}

fn tell(state: &str, descriptors: &[BorrowedFd<'_>]) {
    if let Some(socket) = std::env::var_os(SOCKET)
        && let Err(fault) = tell_at(&socket, state, descriptors)
    {
        tracing::warn!(%fault, state, "the service manager cannot be told");
    }
}

fn tell_at(socket: &OsStr, state: &str, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => UnixAddr::from_abstract_name(name)?,
        None => UnixAddr::from_pathname(socket)?,
    };
    let manager = UnixDatagram::unbound()?;
    manager.connect_addr(&address)?;
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut room);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        debug_assert!(fits, "one goes at a time");
    }
    let words = [IoSlice::new(state.as_bytes())];
    sendmsg(&manager, &words, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The words for what a socket is for, of those that have a backlog.
const USES: [(SocketUse, &str); 3] = [
    (SocketUse::Connections, "connections"),
    (SocketUse::Operators, "operators"),
    (SocketUse::Agents, "agents"),
];
/// The number of the first descriptor that is passed (sd_listen_fds(3)).
const FIRST: RawFd = 3;
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
        let abstract_name = UnixAddr::from_abstract_name(&name).unwrap();
        for (manager, socket) in [
            (UnixDatagram::bind(&path).unwrap(), path.into_os_string()),
            (
                UnixDatagram::bind_addr(&abstract_name).unwrap(),
                format!("@{name}").into(),
            ),
        ] {
            tell_at(&socket, "READY=1", &[]).unwrap();
            let mut state = [0; 16];
            let length = manager.recv(&mut state).unwrap();
            assert_eq!(&state[..length], b"READY=1");
        }
        assert!(tell_at(folder.path().join("nobody").as_os_str(), "READY=1", &[]).is_err());
    }

    #[test]
    fn a_socket_is_known_again_by_its_name() {
        for (use_, _) in USES {
            for address in ["0.0.0.0:443", "[::]:443", "[fe80::1%3]:4172", "127.0.0.1:0"] {
                let address = address.parse().unwrap();
                let facts = SocketFacts { address, use_ };
                let name = name_of(facts);
                assert!(!name.contains(':') && name.len() < 255, "{name}");
                assert_eq!(facts_of(&name), Some(facts));
            }
        }
        for foreign in ["", "stored", "agents", "agents-", "portcullis.socket", "web-0.0.0.0_80"] {
            assert_eq!(facts_of(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_descriptor_is_taken_by_its_number() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let again = std::net::TcpListener::from(own(listener.as_raw_fd()).unwrap());
        assert_eq!(again.local_addr().unwrap(), listener.local_addr().unwrap());
        assert!(own(RawFd::MAX).is_err());
    }
}
