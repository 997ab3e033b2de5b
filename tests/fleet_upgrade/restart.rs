//! Restarts, of nodes that a supervisor starts again.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis::clock;
use portcullis::types::Thumbprint;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use tempfile::TempDir;

use crate::rig::{ENTITLED, NEXT, NOWHERE, OLD, events, fleet, kill, last_words, private, script, stderr, told};
use crate::support::raw::{self, message};
use crate::support::{Gateway, PASSWORD, PATIENCE, Setup, portcullis};

/// A node with a supervisor that starts it again whenever it ends, at addresses of its own.
struct Supervised {
    supervisor: Child,
    folder: TempDir,
    /// Where its clients reach it.
    front: SocketAddr,
    health: SocketAddr,
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Supervised {
    fn start(index: usize) -> Self {
        static NEXT_PORT: AtomicUsize = AtomicUsize::new(9000);
        // Addresses of loopback that no other process of tests has, and ports that the system gives to nobody.
        let pid = std::process::id();
        let ip = format!(
            "127.{}.{}.{}",
            128 | (pid >> 14 & 127),
            pid >> 6 & 255,
            (pid & 63) << 2 | 1
        );
        let port = NEXT_PORT.fetch_add(3, Ordering::Relaxed);
        let at = |offset: usize| format!("{ip}:{}", port + offset);
        let setup = Setup::default()
            .named(&format!("gw-{index}"))
            .bind(&[&at(0)])
            .section(&format!(
                "[admin]\nbind = [\"{}\"]\n[health]\nbind = [\"{}\"]\n",
                at(1),
                at(2)
            ))
            .user("probe", "")
            .desktop_for("shell", NOWHERE.into(), "ssh", ENTITLED);
        let folder = Gateway::files(&setup);
        let place = folder.path();
        std::os::unix::fs::symlink(OLD, place.join("portcullis")).unwrap();
        private(&place.join("probe.password"), PASSWORD);
        script(
            &place.join("supervise"),
            "while [ -e \"$1/run\" ]; do \"$1/portcullis\" serve --config \"$1/gw.toml\" 2>> \"$1/log\" & \
             echo $! > \"$1/pid\"; wait $!; sleep 0.2; done",
        );
        let mut node = Self {
            supervisor: supervise(place),
            front: at(0).parse().unwrap(),
            health: at(2).parse().unwrap(),
            folder,
        };
        node.wait_until_healthy();
        let made = portcullis()
            .args(["token", "create", "--name", "fleet", "--scope", "admin", "--socket"])
            .arg(node.folder.path().join("admin.sock"))
            .output()
            .unwrap();
        private(
            &node.folder.path().join("token"),
            std::str::from_utf8(&made.stdout).unwrap(),
        );
        node.install(&NEXT);
        let place = node.folder.path().display();
        let inventory = format!(
            "[[node]]\nname = \"gw-{index}\"\nadmin = \"https://{}\"\ntoken_file = \"{place}/token\"\n\
             thumbprint = \"{}\"\nurl = \"https://{}\"\nurl_thumbprint = \"{}\"\nbinary = \"{place}/portcullis\"\n\
             login = {{ user = \"probe\", password_file = \"{place}/probe.password\" }}\n",
            at(1),
            node.thumbprint(),
            at(0),
            Thumbprint::of(&CertificateDer::from_pem_file(node.folder.path().join("chain.pem")).unwrap()).to_hex(),
        );
        fs::write(node.folder.path().join("inventory"), inventory).unwrap();
        node
    }

    /// Puts another program in the place of the one that runs.
    fn install(&mut self, program: &Path) {
        let (new, place) = (self.folder.path().join("new"), self.folder.path().join("portcullis"));
        std::os::unix::fs::symlink(program, &new).unwrap();
        fs::rename(new, place).unwrap();
    }

    fn is_healthy(&self) -> bool {
        let asked = || {
            let mut stream = TcpStream::connect(self.health)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        asked().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }

    /// A client's connection; none while nobody listens.
    fn connect(&self) -> Option<raw::Stream> {
        let stream = TcpStream::connect(self.front).ok()?;
        Some(raw::tls_over(stream, &self.folder.path().join("chain.pem")))
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.folder.path().join("pid")).unwrap()
    }

    fn wait_until_healthy(&self) {
        let deadline = clock::now() + PATIENCE * 2;
        while !self.is_healthy() {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(clock::now() < deadline, "{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn thumbprint(&self) -> String {
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let line = lines.find(|line| line["message"] == "answering operators").unwrap();
        line["thumbprint"].as_str().unwrap().to_owned()
    }

    /// Ends node and supervisor.
    fn stop(&mut self) {
        let place = self.folder.path();
        let _ = fs::remove_file(place.join("run"));
        if let Ok(pid) = fs::read_to_string(place.join("pid")) {
            kill("KILL", pid.trim());
        }
        let _ = self.supervisor.wait();
    }

    fn revive(&mut self) {
        self.supervisor = supervise(self.folder.path());
        self.wait_until_healthy();
    }
}

fn supervise(place: &Path) -> Child {
    fs::write(place.join("run"), "").unwrap();
    Command::new(place.join("supervise"))
        .arg(place)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Runs an upgrade; at the same time counts how many nodes are out at most.
fn upgrade_watched(nodes: &[Supervised], inventory: &Path, more: &[&str]) -> (Option<i32>, Vec<Value>, usize) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !over.load(Ordering::Relaxed) {
                most = most.max(nodes.iter().filter(|node| !node.is_healthy()).count());
                std::thread::sleep(Duration::from_millis(20));
            }
            most
        });
        let arguments = ["upgrade", "--method", "restart", "--watch", "1s", "--json"];
        let output = fleet(inventory, &[&arguments, more].concat()).output().unwrap();
        over.store(true, Ordering::Relaxed);
        (output.status.code(), events(&output), watch.join().unwrap())
    })
}

#[test]
fn a_restart_of_every_node_stops_at_the_one_that_does_not_come_back() {
    let mut nodes: Vec<_> = (1..=4).map(Supervised::start).collect();
    let folder = TempDir::new().unwrap();
    let inventory = folder.path().join("fleet.toml");
    // gw-1 is left to its supervisor; gw-2 has a command; gw-3's command ends it for good.
    let write = |restart_3: &str| {
        let of = |index: usize| fs::read_to_string(nodes[index].folder.path().join("inventory")).unwrap();
        let pid = |index: usize| nodes[index].folder.path().join("pid").display().to_string();
        let ends = |index: usize| format!("restart = [\"sh\", \"-c\", \"kill -TERM $(cat {})\"]\n", pid(index));
        let text = [of(0), of(1), ends(1), of(2), restart_3.to_owned(), of(3), ends(3)].concat();
        fs::write(&inventory, text).unwrap();
        ends(2)
    };
    let run = nodes[2].folder.path().join("run").display().to_string();
    let good = write("");
    let for_good = good.replace("kill", &format!("rm {run}; kill"));
    write(&for_good);

    let (code, events, most) = upgrade_watched(&nodes, &inventory, &["--patience", "20s"]);
    assert_eq!((code, most), (Some(7), 1), "{events:#?}");
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    assert_eq!(told(&events, "quiesced"), ["gw-1", "gw-2", "gw-3"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-3: No node answers at")
            && words.contains("Look at its log, and start it.")
            && words.contains("In service: gw-1, gw-2, gw-4. Out of service: gw-3."),
        "{words}"
    );

    nodes[2].stop();
    nodes[2].revive();
    let inventory_is = fs::read_to_string(&inventory).unwrap();
    fs::write(&inventory, inventory_is.replace(&for_good, &good)).unwrap();
    let (code, events, most) = upgrade_watched(&nodes, &inventory, &[]);
    assert_eq!((code, most), (Some(0), 1), "{events:#?}");
    assert_eq!(
        (told(&events, "resumed"), told(&events, "restarting")),
        (vec!["gw-3"], vec!["gw-4"])
    );
    assert!(nodes.iter().all(Supervised::is_healthy));

    // Two at a time, and back; never more.
    for node in &mut nodes {
        node.install(Path::new(OLD));
    }
    let (code, events, most) = upgrade_watched(&nodes, &inventory, &["--batch", "2"]);
    assert_eq!(code, Some(0), "{events:#?}");
    assert!((1..=2).contains(&most), "{most}");
    assert_eq!(told(&events, "in_service").len(), 4);
}

#[test]
fn a_node_is_not_restarted_before_its_users_have_gone() {
    let nodes: Vec<_> = (1..=2).map(Supervised::start).collect();
    let folder = TempDir::new().unwrap();
    let inventory = folder.path().join("fleet.toml");
    let of = |node: &Supervised| fs::read_to_string(node.folder.path().join("inventory")).unwrap();
    fs::write(&inventory, of(&nodes[0]) + &of(&nodes[1]) + "restart = [\"false\"]\n").unwrap();
    sign_in_on(nodes[0].connect().unwrap());
    let output = fleet(
        &inventory,
        &["upgrade", "--method", "restart", "--watch", "1s", "--drain", "2s"],
    )
    .output()
    .unwrap();
    let words = stderr(&output);
    assert_eq!(output.status.code(), Some(7), "{words}");
    assert!(
        words.contains("1 sessions are left after 2 s") && words.contains("It is back in service, as it was."),
        "{words}"
    );
    assert!(nodes.iter().all(Supervised::is_healthy));

    // Interrupted while it waits.
    let arguments = ["upgrade", "--method", "restart", "--watch", "1s", "--json"];
    let mut child = fleet(&inventory, &arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"event\":\"waiting\"")));
    assert!(!nodes[0].is_healthy());
    kill("INT", &child.id().to_string());
    let last: Value = serde_json::from_str(&lines.last().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    assert!(
        last["words"]
            .as_str()
            .unwrap()
            .contains("Interrupted. It is back in service, as it was."),
        "{last}"
    );
    assert!(nodes.iter().all(Supervised::is_healthy));

    // The first one is restarted though somebody is there; the command of the second one does nothing.
    let (code, events, most) = upgrade_watched(&nodes, &inventory, &["--drain", "1s", "--cut", "--patience", "5s"]);
    assert_eq!((code, most), (Some(7), 1), "{events:#?}");
    assert_eq!(
        (told(&events, "cutting"), told(&events, "in_service")),
        (vec!["gw-1"], vec!["gw-1"])
    );
    let words = last_words(&events);
    assert!(
        words.contains("gw-2: `false` failed (exit status: 1)") && words.contains("It is back in service, as it was."),
        "{words}"
    );
}

#[test]
fn a_node_with_far_more_errors_after_its_restart_is_left_out_of_service() {
    let nodes: Vec<_> = (1..=2).map(Supervised::start).collect();
    let folder = TempDir::new().unwrap();
    let inventory = folder.path().join("fleet.toml");
    let of = |node: &Supervised| fs::read_to_string(node.folder.path().join("inventory")).unwrap();
    fs::write(&inventory, of(&nodes[0]) + &of(&nodes[1])).unwrap();
    let (is_over, before) = (AtomicBool::new(false), nodes[0].pid());
    let output = std::thread::scope(|scope| {
        // The new program turns away who comes to it.
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                match nodes[0].connect().filter(|_| nodes[0].pid() != before) {
                    Some(stream) => turned_away(stream),
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
        let arguments = ["upgrade", "--method", "restart", "--watch", "3s", "--json"];
        let output = fleet(&inventory, &arguments).output().unwrap();
        is_over.store(true, Ordering::Relaxed);
        output
    });
    let events = events(&output);
    assert_eq!(output.status.code(), Some(7), "{events:#?}");
    assert_eq!(told(&events, "quiesced"), ["gw-1"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-1: ")
            && words.contains(" errors in 3 s; before: 0 errors in ")
            && words.contains(
                "It is quiesced: nobody new is sent there. To put it back as it is: portcullis fleet quiesce off gw-1"
            )
            && words.contains("In service: gw-2. Out of service: gw-1."),
        "{words}"
    );
    assert_eq!(nodes.iter().filter(|node| node.is_healthy()).count(), 1);
}

#[test]
fn those_who_were_cut_and_come_back_in_vain_are_waited_for() {
    let nodes: Vec<_> = (1..=2).map(Supervised::start).collect();
    let folder = TempDir::new().unwrap();
    let inventory = folder.path().join("fleet.toml");
    let of = |node: &Supervised| fs::read_to_string(node.folder.path().join("inventory")).unwrap();
    fs::write(&inventory, of(&nodes[0]) + &of(&nodes[1])).unwrap();
    sign_in_on(nodes[0].connect().unwrap());
    let arguments = [
        "upgrade", "--method", "restart", "--watch", "2s", "--drain", "1s", "--cut", "--json",
    ];
    let mut child = fleet(&inventory, &arguments).stdout(Stdio::piped()).spawn().unwrap();
    let (have_given_up, before) = (AtomicBool::new(false), nodes[0].pid());
    let events: Vec<Value> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !have_given_up.load(Ordering::Relaxed) {
                match nodes[0].connect().filter(|_| nodes[0].pid() != before) {
                    Some(stream) => turned_away(stream),
                    None => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        });
        let lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let events = lines.inspect(|line| {
            if line.contains("counting once more") || line.contains("\"stopped\"") {
                have_given_up.store(true, Ordering::Relaxed);
            }
        });
        events.map(|line| serde_json::from_str(&line).unwrap()).collect()
    });
    assert_eq!(child.wait().unwrap().code(), Some(0), "{events:#?}");
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    assert!(nodes.iter().all(Supervised::is_healthy));
}

/// Asks for a tunnel without a grant; a node that ends meanwhile answers nothing.
fn turned_away(mut stream: raw::Stream) {
    let head = b"POST /ice/tunnel?nobody HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
    let _ = stream.write_all(head).and_then(|()| stream.read(&mut [0]));
}

/// Signs `ann` in on a connection.
fn sign_in_on(mut stream: raw::Stream) {
    let first = raw::post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
    let cookie = first.session_cookie().unwrap();
    let password = raw::password_message("ann", PASSWORD, "<get-tunnel-connection/>");
    let second = raw::post_on(&mut stream, Some(&cookie), password.as_bytes());
    assert!(second.text().contains("<connection-id>"), "{}", second.text());
}
