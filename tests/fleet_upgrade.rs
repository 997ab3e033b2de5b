//! A fleet from one command: how its nodes are, in what they differ, and the way of all of them to another program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use portcullis::clock;
use portcullis::types::Thumbprint;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;
use support::raw::{self, message, post};
use support::{Gateway, PASSWORD, PATIENCE, Setup, portcullis};
use tempfile::TempDir;

/// The program that runs at first.
const OLD: &str = env!("CARGO_BIN_EXE_portcullis");

/// The program that is to run: the same, but for what a stripped file lacks.
static NEXT: LazyLock<PathBuf> = LazyLock::new(|| {
    let next = Path::new(env!("CARGO_TARGET_TMPDIR")).join("portcullis-next");
    let made = next.with_extension(std::process::id().to_string());
    // In another process: a file that is open for writing anywhere cannot be run.
    let line = "(strip -o \"$2\" \"$1\" || cp \"$1\" \"$2\") && printf x >> \"$2\" && mv \"$2\" \"$3\"";
    let made = Command::new("sh")
        .args(["-c", line, "sh", OLD])
        .arg(made)
        .arg(&next)
        .status();
    assert!(made.unwrap().success());
    next
});

/// A desktop that nobody opens.
const NOWHERE: ([u8; 4], u16) = ([192, 0, 2, 1], 22);
const ENTITLED: &str = "users = [\"ann\", \"probe\"]";

/// Four nodes, each a process with its admin port; and the folder of whoever operates them.
struct Fleet {
    nodes: Vec<Gateway>,
    folder: TempDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for line in self.nodes.iter().flat_map(Gateway::lines) {
            let words = line["message"].as_str().unwrap_or_default();
            if words.starts_with("handed over:") || words.starts_with("handing over") {
                kill("KILL", &line["pid"].to_string());
            }
        }
    }
}

fn kill(signal: &str, pid: &str) {
    // One that has ended already is no fault.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid)
        .stderr(Stdio::null())
        .status();
}

fn setup(name: &str) -> Setup {
    Setup::default()
        .named(name)
        .section("[admin]\nbind = [\"127.0.0.1:0\"]\n")
        .user("probe", "")
        .desktop_for("shell", NOWHERE.into(), "ssh", ENTITLED)
}

/// A file that only its owner may read.
fn private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A program of one line.
fn script(file: &Path, line: &str) -> PathBuf {
    fs::write(file, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o700)).unwrap();
    file.to_owned()
}

impl Fleet {
    fn start(setups: &[Setup]) -> Self {
        let nodes: Vec<_> = setups.iter().map(Gateway::start).collect();
        let fleet = Self {
            nodes,
            folder: TempDir::new().unwrap(),
        };
        private(&fleet.folder.path().join("probe.password"), &format!("{PASSWORD}\n"));
        for (index, node) in fleet.nodes.iter().enumerate() {
            let made = node
                .operator(&["token", "create", "--name", "fleet", "--scope", "admin"])
                .output();
            let token = String::from_utf8(made.unwrap().stdout).unwrap();
            private(&fleet.folder.path().join(format!("{index}.token")), &token);
        }
        fleet
    }

    fn of_four() -> Self {
        Self::start(&["gw-1", "gw-2", "gw-3", "gw-4"].map(setup))
    }

    /// Writes the inventory, with the program of each node.
    fn inventory(&self, binary: impl Fn(usize) -> PathBuf) {
        let nodes = self.nodes.iter().enumerate().map(|(index, node)| {
            let (admin, thumbprint) = node.admin_port();
            format!(
                "[[node]]\nname = \"gw-{}\"\nadmin = \"https://{admin}\"\ntoken_file = \"{index}.token\"\n\
                 thumbprint = \"{thumbprint}\"\nurl = \"https://{}\"\nurl_ca = {:?}\nbinary = {:?}\n\
                 login = {{ user = \"probe\", password_file = \"probe.password\" }}\n\n",
                index + 1,
                node.address,
                node.chain(),
                binary(index)
            )
        });
        fs::write(self.file(), nodes.collect::<String>()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("fleet.toml")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        fleet(&self.file(), arguments).output().unwrap()
    }

    fn upgrade(&self, more: &[&str]) -> (Option<i32>, Vec<Value>) {
        let output = self.run(&[&["upgrade", "--watch", "1s", "--json"], more].concat());
        (output.status.code(), events(&output))
    }

    /// The states, in the order of the inventory.
    fn states(&self) -> Vec<String> {
        let output = self.run(&["status", "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let nodes = told["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| node["node"]["state"].as_str().unwrap_or("-").to_owned())
            .collect()
    }

    fn program(&self, index: usize) -> PathBuf {
        let output = self.run(&["status", "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["nodes"][index]["node"]["program"].as_str().unwrap().into()
    }
}

fn fleet(inventory: &Path, arguments: &[&str]) -> Command {
    let mut command = portcullis();
    command.arg("fleet").args(arguments).arg("--inventory").arg(inventory);
    command
}

fn events(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        events
            .iter()
            .all(|event| event["schema"] == "portcullis.fleet-upgrade.v1")
    );
    events
}

/// The nodes of which something was told, in order.
fn told<'a>(events: &'a [Value], event: &str) -> Vec<&'a str> {
    let of_event = events.iter().filter(|told| told["event"] == event);
    of_event.map(|told| told["name"].as_str().unwrap_or_default()).collect()
}

fn last_words(events: &[Value]) -> &str {
    events.last().unwrap()["words"].as_str().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn an_upgrade_stops_where_it_fails_and_goes_on_when_that_is_mended() {
    let fleet = Fleet::of_four();
    let session = raw::sign_in(&fleet.nodes[0], "ann");
    let crashes = format!("case $1 in serve) exit 7;; *) exec {} \"$@\";; esac", NEXT.display());
    let crashes = script(&fleet.folder.path().join("crashes"), &crashes);
    fleet.inventory(|index| if index == 2 { crashes.clone() } else { NEXT.clone() });

    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "checked"), ["gw-1", "gw-2", "gw-3", "gw-4"]);
    assert_eq!(told(&events, "handing_over"), ["gw-1", "gw-2", "gw-3"]);
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-3: Not handed over, the running process goes on: the new process ended")
            && words.contains("In service: gw-1, gw-2, gw-3, gw-4.")
            && words.contains("the same command goes on"),
        "{words}"
    );
    assert_eq!(fleet.program(1), *NEXT);
    assert_eq!(
        [fleet.program(2), fleet.program(3)],
        [PathBuf::from(OLD), PathBuf::from(OLD)]
    );

    fleet.inventory(|_| NEXT.clone());
    let (code, events) = fleet.upgrade(&["--batch", "2"]);
    assert_eq!(code, Some(0), "{events:#?}");
    let mut together = told(&events, "handing_over");
    together.sort_unstable();
    assert_eq!(together, ["gw-3", "gw-4"]);
    assert_eq!(last_words(&events), "4 nodes run the program of the inventory.");
    assert_eq!(fleet.program(2), *NEXT);
    // Nobody was cut, and the node knows how it came to run.
    let launch = post(
        &fleet.nodes[0],
        Some(&session.cookie),
        &message("<get-tunnel-connection/>"),
    );
    assert!(launch.text().contains("<result>ok</result>"), "{}", launch.text());
    let status = fleet.run(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        status["nodes"][0]["node"]["last_upgrade"]["program"],
        NEXT.to_str().unwrap()
    );

    let again = fleet.run(&["upgrade", "--watch", "1s"]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(
        String::from_utf8_lossy(&again.stdout),
        "4 nodes run the program of the inventory.\n"
    );
}

#[test]
fn a_node_that_lets_nobody_through_any_more_is_taken_out_and_three_serve() {
    let fleet = Fleet::of_four();
    fleet.inventory(|_| NEXT.clone());
    // Read when another process starts, and not before.
    let file = fleet.nodes[2].folder().join("gw.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("probe", "nobody")).unwrap();

    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "in_service"), ["gw-1", "gw-2"]);
    assert_eq!(told(&events, "rolling_back"), ["gw-3"]);
    let words = last_words(&events);
    assert!(
        words.contains("gw-3: A user does not get through: the sign-in of probe")
            && words.contains("In service: gw-1, gw-2, gw-4. Out of service: gw-3.")
            && words.contains("portcullis fleet quiesce off gw-3"),
        "{words}"
    );
    assert_eq!(fleet.states(), ["serving", "serving", "quiesced", "serving"]);

    fs::write(&file, &good).unwrap();
    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(0), "{events:#?}");
    assert_eq!(told(&events, "handing_over"), ["gw-3", "gw-4"]);
    assert_eq!(fleet.states(), ["serving"; 4]);
    assert_eq!(fleet.program(2), *NEXT);
}

#[test]
fn a_node_that_runs_something_else_is_handed_back_to_what_it_ran() {
    let fleet = Fleet::start(&["gw-1", "gw-2"].map(setup));
    let other = script(
        &fleet.folder.path().join("other"),
        &format!("exec {} \"$@\"", NEXT.display()),
    );
    fleet.inventory(|_| other.clone());
    let (code, events) = fleet.upgrade(&[]);
    assert_eq!(code, Some(7), "{events:#?}");
    assert_eq!(told(&events, "rolling_back"), ["gw-1"]);
    let words = last_words(&events);
    assert!(
        words.contains("It runs another program than")
            && words.contains(&format!("handed back to {OLD} and serves as before")),
        "{words}"
    );
    assert_eq!(fleet.states(), ["serving"; 2]);
    assert_eq!(fleet.program(0), Path::new(OLD));
}

#[test]
fn nothing_is_changed_unless_every_check_of_every_node_holds() {
    let fleet = Fleet::of_four();
    fleet.inventory(|index| {
        if index == 1 {
            "/nowhere/portcullis".into()
        } else {
            NEXT.clone()
        }
    });
    let file = fleet.nodes[3].folder().join("gw.toml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, good.replace("grace_period", "grace_peroid")).unwrap();
    let output = fleet.run(&["upgrade"]);
    let words = stderr(&output);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{words}");
    assert!(
        words.contains("gw-1  ok: ")
            && words.contains("health check, sign-in and tunnel hold")
            && words.contains("gw-2  /nowhere/portcullis cannot take over: no such file or directory.")
            && words.contains("gw.toml:5: node.grace_peroid: no such setting. Did you mean grace_period?")
            && words.ends_with("Nothing was changed.\n"),
        "{words}"
    );
    fs::write(&file, &good).unwrap();
    fleet.inventory(|_| NEXT.clone());
    let quiesced = fleet.run(&["quiesce", "on", "gw-4"]);
    assert!(quiesced.status.success());
    let output = fleet.run(&["upgrade"]);
    assert_eq!(output.status.code(), Some(3));
    let words = stderr(&output);
    assert!(
        words.contains("gw-4  It is quiesced, and not by an upgrade of this inventory."),
        "{words}"
    );
    assert!(fleet.run(&["quiesce", "off", "gw-4"]).status.success());
    kill("KILL", &fleet.nodes[0].pid().to_string());
    let (code, events) = fleet.upgrade(&["--check"]);
    assert_eq!(code, Some(4), "{events:#?}");
    for node in &fleet.nodes[1..] {
        assert!(!node.log_text().contains("handing over"));
    }
}

#[test]
fn status_diff_and_quiesce_speak_of_all_nodes() {
    let nodes = [
        setup("gw-1"),
        setup("gw-2").section("[limits]\nconnections = 5000\n"),
        setup("gw-3"),
    ];
    let fleet = Fleet::start(&nodes);
    fleet.inventory(|_| NEXT.clone());
    let output = fleet.run(&["status"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let rows: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(
        (rows.len(), rows[1][0], rows[1][2].trim(), rows[1][6].trim()),
        (4, "gw-1", "serving", "200"),
        "{text}"
    );
    assert_eq!(rows[1][5], rows[3][5], "name and addresses do not count");
    assert_ne!(rows[1][5], rows[2][5]);

    let output = fleet.run(&["diff"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "limits.connections\n  (not written)  gw-1, gw-3\n  5000           gw-2\n"
    );
    assert!(stderr(&output).starts_with("1 difference between 3 nodes. Not compared: names"));
    fleet.nodes[1].reload(&nodes[2].clone().named("gw-2"));
    let output = fleet.run(&["diff", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &told["differences"]),
        (Some(0), &Value::Array(vec![]))
    );

    let output = fleet.run(&["quiesce", "on", "gw-3", "gw-1"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    assert_eq!(fleet.states(), ["quiesced", "serving", "quiesced"]);
    let output = fleet.run(&["quiesce", "on", "gw-1", "--wait", "--json"]);
    let event: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &event["event"]), (Some(0), &"empty".into()));
    assert_eq!(event["schema"], "portcullis.fleet-quiesce.v1");
    raw::sign_in(&fleet.nodes[0], "ann");
    let output = fleet.run(&["quiesce", "on", "gw-1", "--wait", "--timeout", "1s"]);
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("1 session left"), "{}", stderr(&output));
    assert_eq!(fleet.run(&["quiesce", "off", "gw-9"]).status.code(), Some(2));

    // An address that leads to another node than the one that is meant.
    let text = fs::read_to_string(fleet.file()).unwrap();
    fs::write(fleet.file(), text.replace("\"gw-2\"", "\"gw-7\"")).unwrap();
    let output = fleet.run(&["status"]);
    assert!(stderr(&output).contains("calls itself gw-2"), "{}", stderr(&output));
    fs::write(fleet.file(), text).unwrap();
    kill("KILL", &fleet.nodes[1].pid().to_string());
    let output = fleet.run(&["status"]);
    assert_eq!(output.status.code(), Some(4));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("gw-2  -") && text.contains("unreachable"), "{text}");
}

#[test]
fn every_fault_of_the_inventory_is_told_at_once_with_its_line() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("fleet.toml");
    private(&folder.path().join("token"), "pct_x\n");
    let text = "[[node]]\nname = \"gw-1\"\nadmin = \"http://gw-1:9443\"\ntoken_file = \"token\"\nbinray = \"/x\"\n\
                [[node]]\nname = \"gw-1\"\nadmin = \"https://gw-1:9443\"\ntoken_file = \"none\"\nca = \"token\"\n\
                thumbprint = \"00\"\nlogin = { user = \"probe\" }\n[[node]]\n";
    fs::write(&file, text).unwrap();
    let output = fleet(&file, &["status"]).output().unwrap();
    let words = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{words}");
    for expected in [
        "fleet.toml:3:9 ",
        "node[0].admin: \"http://gw-1:9443\" is no base URL",
        "fleet.toml:5:1 ",
        "node[0].binray: no such setting. Did you mean binary?",
        "node[1].name: \"gw-1\" is in the list a second time",
        "node[1].token_file: ",
        "node[1].thumbprint: \"00\" is no SHA-256 thumbprint",
        "node[1].login.password_file: is missing",
        "node[1].url: is missing",
        "node[2].name: is missing",
        "node[2].admin: is missing",
        "node[2].token_file: is missing",
    ] {
        assert!(words.contains(expected), "{expected}\n{words}");
    }
}

/// A node with a supervisor that starts it again whenever it ends, at addresses of its own.
struct Supervised {
    supervisor: Child,
    folder: TempDir,
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
    let url = of(&nodes[0]);
    let url = url
        .split("\nurl = \"https://")
        .nth(1)
        .unwrap()
        .split('"')
        .next()
        .unwrap();
    sign_in_on(raw::tls_over(
        TcpStream::connect(url).unwrap(),
        &nodes[0].folder.path().join("chain.pem"),
    ));
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

/// Signs `ann` in on a connection.
fn sign_in_on(mut stream: raw::Stream) {
    let first = raw::post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
    let cookie = first.session_cookie().unwrap();
    let password = raw::password_message("ann", PASSWORD, "<get-tunnel-connection/>");
    let second = raw::post_on(&mut stream, Some(&cookie), password.as_bytes());
    assert!(second.text().contains("<connection-id>"), "{}", second.text());
}
