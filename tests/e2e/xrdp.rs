//! xrdp: an RDP server before a desktop of TigerVNC's.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::peer::{Peer, path_of, run, tool};
use super::screen::Colour;
use super::sshd::free_address;

/// A running server.
pub(super) struct Xrdp {
    peer: Peer,
    folder: TempDir,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Xrdp {
    /// Starts it before a VNC server that is there already; it asks nobody who they are.
    pub(super) fn before(desktop: SocketAddr) -> Self {
        let (folder, address) = (TempDir::new().unwrap(), free_address());
        let (ip, port) = (desktop.ip(), desktop.port());
        let kind = format!("lib=libvnc.so\nip={ip}\nport={port}\nusername=na\npassword=\n");
        let config = folder.path().join("xrdp.ini");
        write_settings(folder.path(), &config, address, &kind);
        let mut command = tool("xrdp");
        let peer = Peer::start(command.arg("-n").arg("-c").arg(config), folder.path());
        Self { peer, folder, address }.listening()
    }

    /// Starts it with its session manager, which signs in [`USER`] and starts a session with a background of that colour.
    ///
    /// Both, and their sessions, live in namespaces of their own: there is the user, and nothing of them is left after
    /// the end.
    pub(super) fn with_sessions(background: Colour) -> Self {
        let (folder, address) = (TempDir::new().unwrap(), free_address());
        let place = folder.path();
        for name in ["etc", "run/sockdir", "home"] {
            fs::create_dir_all(place.join(name)).unwrap();
        }
        run(tool("cp").args(["-RL", "/etc/xrdp/."]).arg(place.join("etc")));
        let kind = "lib=libvnc.so\nip=127.0.0.1\nport=-1\nusername=ask\npassword=ask\n";
        write_settings(place, &place.join("etc/xrdp.ini"), address, kind);
        write_session_settings(place, background);
        add_user(place);
        fs::write(place.join("inside"), INSIDE).unwrap();
        // The session runs as its user, and finds its way through the folder.
        run(tool("chmod").arg("a+rx").arg(place));
        run(tool("chmod").arg("a+rwxt").arg(place.join("run/sockdir")));
        run(tool("chown").arg("45678:45678").arg(place.join("home")));
        let mut command = apart();
        let peer = Peer::start(command.arg("sh").arg(place.join("inside")).arg(place), place);
        Self { peer, folder, address }.listening()
    }

    fn listening(mut self) -> Self {
        let address = self.address;
        self.peer.wait_for("listens", || TcpStream::connect(address).ok());
        self
    }

    /// What the session wrote when it started: its user, and the size of its desktop.
    pub(super) fn session(&self) -> Option<String> {
        fs::read_to_string(self.folder.path().join("home/session")).ok()
    }

    /// Everything that the servers said, for a test that fails.
    pub(super) fn said(&self) -> String {
        let of = |name| fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
        [self.peer.said(), of("xrdp.log"), of("sesman.log")].concat()
    }
}

/// The name of the user for whom sessions are started.
pub(super) const USER: &str = "deskuser";

/// Their password.
pub(super) const USER_PASSWORD: &str = "desk password 1";

/// Whether this process may make namespaces, in which another user can be signed in.
pub(super) fn can_sign_users_in() -> bool {
    apart().arg("true").output().unwrap().status.success()
}

/// A program in namespaces of its own; they end with it.
fn apart() -> Command {
    let mut command = tool("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command
}

fn write_settings(folder: &Path, file: &Path, address: SocketAddr, kind: &str) {
    let name = folder.display();
    let mut openssl = tool("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=desktop",
        "-days",
        "30",
    ]);
    run(openssl
        .arg("-keyout")
        .arg(folder.join("key.pem"))
        .arg("-out")
        .arg(folder.join("cert.pem")));
    let text = format!(
        "[Globals]\nini_version=1\nfork=true\nport=tcp://{address}\nuse_vsock=false\nallow_channels=true\nsecurity_layer=negotiate\n\
         certificate={name}/cert.pem\nkey_file={name}/key.pem\nssl_protocols=TLSv1.2, TLSv1.3\nautorun=desktop\n\
         max_bpp=32\nuse_fastpath=both\n[Logging]\nLogFile={name}/xrdp.log\nLogLevel=INFO\nEnableSyslog=false\n\
         [Channels]\ncliprdr=true\ndrdynvc=true\n[desktop]\nname=desktop\n{kind}"
    );
    fs::write(file, text).unwrap();
}

fn write_session_settings(folder: &Path, [red, green, blue]: Colour) {
    let (name, port) = (folder.display(), free_address().port());
    let sesman = format!(
        "[Globals]\nListenAddress=127.0.0.1\nListenPort={port}\nEnableUserWindowManager=false\n\
         DefaultWindowManager=startwm.sh\n[Security]\nAllowRootLogin=false\nMaxLoginRetry=1\n\
         [Sessions]\nX11DisplayOffset=40\nMaxSessions=2\n[Logging]\nLogFile={name}/sesman.log\nLogLevel=INFO\n\
         EnableSyslog=false\n[Xvnc]\nparam={}\nparam=-nolisten\nparam=tcp\nparam=-localhost\n",
        path_of("Xtigervnc").display()
    );
    fs::write(folder.join("etc/sesman.ini"), sesman).unwrap();
    let start = format!(
        "#!/bin/sh\ncd {name}/home\nxsetroot -solid '#{red:02x}{green:02x}{blue:02x}'\n\
         {{ id -un; xwininfo -root; }} >session.tmp\nmv session.tmp session\nexec sleep 600\n"
    );
    let file = folder.join("etc/startwm.sh");
    fs::write(&file, start).unwrap();
    run(tool("chmod").arg("a+rx").arg(file));
}

/// Writes copies of the files of users, with one user more.
fn add_user(folder: &Path) {
    let hash = run(tool("openssl").args(["passwd", "-6", USER_PASSWORD]));
    let home = folder.join("home");
    for (file, line) in [
        ("passwd", format!("{USER}:x:45678:45678::{}:/bin/sh", home.display())),
        ("group", format!("{USER}:x:45678:")),
        ("shadow", format!("{USER}:{}:19000:0:99999:7:::", hash.trim())),
    ] {
        // As a copy, it keeps owner and mode.
        run(tool("cp").arg("-p").arg(Path::new("/etc").join(file)).arg(folder));
        let place = folder.join(file);
        let text = fs::read_to_string(&place).unwrap();
        fs::write(place, format!("{text}{line}\n")).unwrap();
    }
}

/// Runs in the namespaces. The X server of a session leaves files in /tmp when it is killed.
const INSIDE: &str = "set -e
mount --bind \"$1\" /mnt
mount -t tmpfs -o mode=1777 tmpfs /tmp
mkdir -p \"$1\"
mount --move /mnt \"$1\"
mount --bind \"$1/etc\" /etc/xrdp
mkdir -p /run/xrdp
mount --bind \"$1/run\" /run/xrdp
for file in passwd group shadow; do mount --bind \"$1/$file\" \"/etc/$file\"; done
xrdp-sesman -n &
exec xrdp -n
";
