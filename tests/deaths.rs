//! Processes that die, hang or lose each other in the middle of an upgrade. One of the two is the program itself; the
//! other is played by the test, which knows the words and stops wherever it likes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::fs;
use std::io::{Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use portcullis::clock;
use portcullis::node::handover::message::{Decoder, Message, VERSION};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use serde_json::Value;
use support::client::{echo, launch, open_tunnel, sign_in};
use support::heir::{upgrade, upgrade_to};
use support::raw::{self, read_head};
use support::{Gateway, PATIENCE, Setup, Target, portcullis};
use tempfile::TempDir;
use tokio::time::timeout;

/// One side of the line, as the test speaks it.
struct Line {
    stream: UnixStream,
    decoder: Decoder,
    descriptors: Vec<OwnedFd>,
}

impl Line {
    fn new(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            stream,
            decoder: Decoder::default(),
            descriptors: Vec::new(),
        }
    }

    fn say(&mut self, message: &Message) {
        // The other side may be no more: then nothing is heard of it either.
        let _ = self.stream.write_all(&message.encode().unwrap());
    }

    /// The next message; `None` at the end.
    fn hear(&mut self) -> Option<Message> {
        loop {
            if let Some(message) = self.decoder.next_message().unwrap() {
                return Some(message);
            }
            let mut bytes = [0; 64 * 1024];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
            let mut control = RecvAncillaryBuffer::new(&mut room);
            let mut parts = [std::io::IoSliceMut::new(&mut bytes)];
            let received = recvmsg(self.stream.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.descriptors.extend(descriptors);
                }
            }
            match received.map(|received| received.bytes) {
                Ok(0) | Err(rustix::io::Errno::CONNRESET) => return None,
                Ok(length) => self.decoder.push(&bytes[..length]),
                Err(fault) => panic!("nothing is heard: {fault}"),
            }
        }
    }

    /// Hears until a message of that kind comes.
    fn until(&mut self, is_it: impl Fn(&Message) -> bool) {
        loop {
            let message = self.hear().expect("the other side speaks");
            if is_it(&message) {
                return;
            }
        }
    }
}

/// How far the new process comes before it dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Started,
    Met,
    Introduced,
    Ready,
    Held,
    Taking,
    Taken,
    Installed,
    Told,
}

const STEPS: [Step; 9] = [
    Step::Started,
    Step::Met,
    Step::Introduced,
    Step::Ready,
    Step::Held,
    Step::Taking,
    Step::Taken,
    Step::Installed,
    Step::Told,
];

/// The program that the test plays: it says where it is and waits for its death.
fn played(gateway: &Gateway) -> PathBuf {
    let folder = gateway.folder().display();
    let text = format!(
        "#!/bin/sh\necho \"$$ $PORTCULLIS_HANDOVER\" > {folder}/told.new\nmv {folder}/told.new {folder}/told\nexec sleep 1000\n"
    );
    let path = gateway.folder().join("played");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// Plays a new process up to `step`, where it is killed; gives what the operator's command said.
fn play_new(gateway: &Gateway, step: Step) -> Output {
    let (command, pid, meeting) = begin_upgrade(gateway);
    let line = (step > Step::Started).then(|| {
        let mut line = Line::new(UnixStream::connect(meeting).unwrap());
        speak_as_new(&mut line, step, gateway.folder());
        line
    });
    kill("KILL", pid);
    drop(line);
    command.wait_with_output().unwrap()
}

/// Begins an upgrade to the program that the test plays: the operator's command, the program's id, and where it is awaited.
fn begin_upgrade(gateway: &Gateway) -> (Child, u32, String) {
    let told = gateway.folder().join("told");
    let _ = fs::remove_file(&told);
    let binary = played(gateway);
    let command = gateway
        .operator(&["upgrade", "--binary", binary.to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = clock::now() + PATIENCE;
    while !told.exists() {
        assert!(clock::now() < deadline, "the program is started");
        sleep(Duration::from_millis(10));
    }
    let told = fs::read_to_string(&told).unwrap();
    let (pid, meeting) = told.trim().split_once(' ').unwrap();
    (command, pid.parse().unwrap(), meeting.to_owned())
}

fn speak_as_new(line: &mut Line, step: Step, folder: &Path) {
    if step < Step::Introduced {
        return;
    }
    line.say(&Message::Hello {
        version: VERSION,
        program: "played".to_owned(),
    });
    line.until(|message| matches!(message, Message::Identity { .. }));
    if step < Step::Ready {
        return;
    }
    line.say(&Message::Ready {});
    if step < Step::Held {
        return;
    }
    line.until(|message| matches!(message, Message::Held {}));
    if step < Step::Taking {
        return;
    }
    line.say(&Message::Take {});
    if step < Step::Taken {
        return;
    }
    line.until(|message| matches!(message, Message::Whole { .. }));
    if step < Step::Installed {
        return;
    }
    let kin = folder.join("nobody");
    line.say(&Message::Installed { kin });
    if step == Step::Told {
        line.until(|message| matches!(message, Message::Go {}));
    }
}

fn kill(signal: &str, pid: u32) {
    // One that has ended already is no fault.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .status();
}

/// Users who come and go all the time, on connections of their own and on one that they keep. Whoever is not served is
/// counted.
struct Load {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    fn on(gateway: &Gateway) -> Self {
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (address, chain) = (gateway.address, gateway.chain());
        let threads = (0..3).map(|number| {
            let (stop, served, chain) = (stop.clone(), served.clone(), chain.clone());
            let connect = move || {
                let stream = std::net::TcpStream::connect(address).map_err(|fault| fault.to_string())?;
                Ok::<_, String>(raw::tls_over(stream, &chain))
            };
            std::thread::spawn(move || {
                let mut faults = Vec::new();
                let mut kept = None;
                while !stop.load(Ordering::SeqCst) {
                    let connected = kept.take().map_or_else(&connect, Ok);
                    match connected.and_then(|mut stream| ask(&mut stream).map(|closes| (stream, closes))) {
                        Ok((stream, closes)) => {
                            served.fetch_add(1, Ordering::SeqCst);
                            // One of them stays for as long as it may.
                            kept = (number == 0 && !closes).then_some(stream);
                        }
                        Err(fault) => faults.push(fault),
                    }
                    sleep(Duration::from_millis(2));
                }
                faults
            })
        });
        let threads = threads.collect();
        Self { stop, served, threads }
    }

    /// How many were served; panics if one was not.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads {
            let faults = thread.join().unwrap();
            assert!(faults.is_empty(), "{} of them: {:?}", faults.len(), faults.first());
        }
        self.served.load(Ordering::SeqCst)
    }
}

/// A gateway that takes any number of handshakes from one address.
fn under_load() -> Setup {
    Setup::default().section("[limits]\nhandshakes_per_source = 1000000\n")
}

/// Whether the answer was the last one of its connection.
fn ask(stream: &mut raw::Stream) -> Result<bool, String> {
    let asked = stream.write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n");
    asked.map_err(|fault| fault.to_string())?;
    let answer = read_head(stream);
    if answer.status == 200 {
        Ok(answer.header("connection") == ["close"])
    } else {
        Err(format!("status {}", answer.status))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_process_that_is_killed_at_any_step_costs_nobody_anything() {
    let target = Target::echo();
    let setup = under_load()
        .section("[state]\npersist_grants = true\n")
        .desktop("shell", target.address, "ssh");
    let gateway = Gateway::start(&setup);
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let mut channel = launch(&mut session, &tunnel, "shell").await;
    let load = Load::on(&gateway);
    for step in STEPS {
        let before = gateway.lines().len();
        let output = tokio::task::block_in_place(|| play_new(&gateway, step));
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{step:?}: {told}");
        assert!(told.contains("the running process goes on"), "{step:?}: {told}");
        assert!(
            told.contains("signal: 9") || told.contains("does not serve"),
            "{step:?}: {told}"
        );
        gateway.wait_for_after(before, "a clear line", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("not handed over, this process goes on")
        });
        assert_eq!(echo(&mut channel, b"as before").await, b"as before", "{step:?}");
        tokio::task::block_in_place(|| raw::sign_in(&gateway, "ann"));
        let mut another = launch(&mut session, &tunnel, "shell").await;
        assert_eq!(echo(&mut another, b"as before").await, b"as before", "{step:?}");
        let sessions = gateway.operator(&["sessions", "list", "--json"]).output().unwrap();
        let sessions: Value = serde_json::from_slice(&sessions.stdout).unwrap();
        for one in sessions["sessions"].as_array().unwrap() {
            if one["tunnel"] == false {
                let id = one["id"].as_str().unwrap();
                gateway.operator(&["sessions", "kill", id]).status().unwrap();
            }
        }
    }
    assert!(load.end() > 100, "the load was one");
}

#[test]
fn programs_that_crash_hang_refuse_or_are_not_sound_fail_nobody_and_say_why() {
    let gateway = Gateway::start(&under_load());
    let script = |name: &str, line: &str| {
        let path = gateway.folder().join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        path
    };
    let own = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let toml = gateway.folder().join("gw.toml");
    let good = fs::read_to_string(&toml).unwrap();
    let unsound = good.replace("chain.pem", "none.pem");
    fs::write(gateway.folder().join("none.pem"), "no certificate").unwrap();
    let load = Load::on(&gateway);
    for (binary, config, words) in [
        (script("crashes", "exit 7"), good.as_str(), "exit status: 7"),
        (script("hangs", "exec sleep 1000"), &good, "in time"),
        (own.clone(), "nonsense = 1", "nonsense"),
        // It starts, and finds that it cannot serve.
        (own, &unsound, "none.pem"),
    ] {
        fs::write(&toml, config).unwrap();
        let upgrade = gateway
            .operator(&["upgrade", "--binary", binary.to_str().unwrap()])
            .output()
            .unwrap();
        fs::write(&toml, &good).unwrap();
        let told = String::from_utf8(upgrade.stderr).unwrap();
        assert_eq!(upgrade.status.code(), Some(1), "{told}");
        assert!(
            told.contains("the running process goes on") && told.contains(words),
            "{told}"
        );
        gateway.wait_for("a clear line", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("not handed over, this process goes on") && message.contains(words)
        });
    }
    assert!(load.end() > 100, "the load was one");
}

#[test]
fn a_program_whose_health_check_fails_leaves_the_old_process_serving_and_says_why() {
    let is_well = Arc::new(AtomicBool::new(true));
    let answers = is_well.clone();
    let shop = Target::new(move |mut stream| {
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && matches!(stream.read(&mut byte), Ok(1)) {
            head.push(byte[0]);
        }
        let is_probe = head.starts_with(b"GET /probe ");
        let status = if is_probe && !answers.load(Ordering::SeqCst) {
            "503 Gone"
        } else {
            "200 OK"
        };
        let _ = write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        );
    });
    let setup = under_load().section(&format!(
        "[probe.slow]\npath = \"/probe\"\ninterval = \"60 s\"\ntimeout = \"1 s\"\nthreshold = 1\n\
         [pool.shop]\ntargets = [\"{}\"]\n[backend.shop]\nprobe = \"slow\"\n\
         [rule.shop]\nhosts = [\"gw.test\"]\npriority = 10\npool = \"shop\"\nbackend = \"shop\"\n",
        shop.address
    ));
    let gateway = Gateway::start(&setup);
    gateway.wait_for("the first probe", |line| line["message"] == "a target is healthy");
    let load = Load::on(&gateway);
    let own = PathBuf::from(env!("CARGO_BIN_EXE_portcullis"));
    let fails = |binary: &Path, words: &str| {
        let upgrade = upgrade_to(&gateway, binary);
        let told = String::from_utf8(upgrade.stderr).unwrap();
        assert_eq!(upgrade.status.code(), Some(1), "{told}");
        let goes_on = told.contains("the running process goes on") && told.contains("it is not healthy");
        assert!(goes_on && told.contains(words), "{told}");
        gateway.wait_for("a clear line", |line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("not handed over, this process goes on") && message.contains(words)
        });
    };
    // What the old process reaches, the new one does not.
    is_well.store(false, Ordering::SeqCst);
    fails(&own, "pool.shop: none of its targets is healthy");
    is_well.store(true, Ordering::SeqCst);

    // It loads everything, and has no descriptors left for clients.
    let starved = gateway.folder().join("starved");
    let text = format!("#!/bin/sh\nulimit -n 60\nexec '{}' \"$@\"\n", own.display());
    fs::write(&starved, text).unwrap();
    fs::set_permissions(&starved, fs::Permissions::from_mode(0o700)).unwrap();
    fails(&starved, "Too many open files");
    assert!(load.end() > 100, "the load was one");
    drop(upgrade(&gateway));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_living_processes_that_lose_each_other_admit_nobody_whom_the_other_may_have_ended() {
    let target = Target::echo();
    let mut gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let mut session = sign_in(&gateway).await;
    let (tunnel, _notices) = open_tunnel(&mut session).await;
    let channel = launch(&mut session, &tunnel, "shell").await;
    let (pid, line) = tokio::task::block_in_place(|| {
        let (command, pid, meeting) = begin_upgrade(&gateway);
        let mut line = Line::new(UnixStream::connect(meeting).unwrap());
        speak_as_new(&mut line, Step::Told, gateway.folder());
        line.say(&Message::Serving {});
        assert!(command.wait_with_output().unwrap().status.success());
        (pid, line)
    });
    gateway.wait_for("the handover", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("handed over:")
    });
    drop(line);
    gateway.wait_for("a clear line", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.contains("cannot be heard: ending every session here")
    });
    timeout(PATIENCE, tunnel.ended()).await.unwrap();
    drop((channel, session));
    assert!(tokio::task::block_in_place(|| gateway.wait()).success());
    kill("KILL", pid);
}

/// The program as the new process, with the test as the old one.
struct New {
    child: Child,
    pid: u32,
    /// Written by the program itself.
    log: PathBuf,
    line: Line,
    files: TempDir,
}

impl New {
    /// Starts it, with a shell between the test and it, whose id is the child's.
    fn start() -> Self {
        let files = Gateway::files(&Setup::default());
        let (meeting, log) = (files.path().join("line"), files.path().join("log"));
        let told = files.path().join("told");
        let listener = UnixListener::bind(&meeting).unwrap();
        let child = Command::new("sh")
            .args(["-c", "\"$@\" & echo $! > \"$TOLD\"; wait $!", "sh"])
            .arg(portcullis().get_program())
            .args(["serve", "--config"])
            .arg(files.path().join("gw.toml"))
            .env("PORTCULLIS_HANDOVER", &meeting)
            .env("TOLD", &told)
            .stdin(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut line = Line::new(stream);
        line.until(|message| matches!(message, Message::Hello { .. }));
        let deadline = clock::now() + PATIENCE;
        let pid = loop {
            let told = fs::read_to_string(&told).unwrap_or_default();
            if let Ok(pid) = told.trim().parse() {
                break pid;
            }
            assert!(clock::now() < deadline, "the shell says which process it is");
            sleep(Duration::from_millis(10));
        };
        Self {
            child,
            pid,
            log,
            line,
            files,
        }
    }

    /// Plays the old process up to a step.
    fn speak(&mut self, step: Step) {
        if step < Step::Ready {
            return;
        }
        let octets = "07".repeat(32);
        let identity = serde_json::json!({
            "kind": "identity", "version": VERSION, "node": "gw-1", "recognition": null,
            "keys": { "recognition": octets, "affinity": octets, "guid": "g" },
            "kin": self.files.path().join("nobody"),
        });
        self.line.say(&serde_json::from_value(identity).unwrap());
        self.line.until(|message| matches!(message, Message::Ready {}));
        if step < Step::Held {
            return;
        }
        self.line.say(&Message::Held {});
        self.line.until(|message| matches!(message, Message::Take {}));
        if step < Step::Taking {
            return;
        }
        self.line.say(&Message::Grants { grants: Vec::new() });
        if step < Step::Taken {
            return;
        }
        self.line.say(&Message::Whole {
            grants: 0,
            quiesced: None,
        });
        self.line.until(|message| matches!(message, Message::Installed { .. }));
        if step == Step::Told {
            self.line.say(&Message::Go {});
            self.line.until(|message| matches!(message, Message::Serving {}));
        }
    }

    /// Whether it serves clients.
    fn serves(&self) -> bool {
        self.wait_for("in service");
        let log = self.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let listening = lines.rfind(|line| line["message"] == "listening").unwrap();
        let address: std::net::SocketAddr = listening["address"].as_str().unwrap().parse().unwrap();
        let stream = std::net::TcpStream::connect(address).unwrap();
        ask(&mut raw::tls_over(stream, &self.files.path().join("chain.pem"))).is_ok()
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for(&self, words: &str) {
        let deadline = clock::now() + PATIENCE;
        while !self.log().contains(words) {
            assert!(clock::now() < deadline, "{words}: {}", self.log());
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for New {
    fn drop(&mut self) {
        kill("KILL", self.pid);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn an_old_process_that_is_lost_before_it_has_sent_everything_leaves_none_that_serves() {
    for step in [
        Step::Introduced,
        Step::Ready,
        Step::Held,
        Step::Taking,
        // Everything was sent, but the word did not come, and the old one lives: it may go on by itself.
        Step::Taken,
    ] {
        let mut new = New::start();
        new.speak(step);
        new.line.stream.shutdown(std::net::Shutdown::Both).unwrap();
        let status = new.child.wait().unwrap();
        assert_eq!(status.code(), Some(1), "{step:?}: {}", new.log());
        assert!(new.log().contains("Not started. "), "{step:?}: {}", new.log());
        assert!(!new.log().contains("in service"), "{step:?}: {}", new.log());
    }
}

#[test]
fn an_old_process_that_dies_once_it_has_sent_everything_is_succeeded() {
    let mut new = New::start();
    new.speak(Step::Taken);
    new.child.kill().unwrap();
    new.child.wait().unwrap();
    new.line.stream.shutdown(std::net::Shutdown::Both).unwrap();
    new.wait_for("the process before this one has died: taking over");
    assert!(new.serves());
}

#[test]
fn a_new_process_that_serves_goes_on_whatever_becomes_of_the_old_one() {
    let mut new = New::start();
    new.speak(Step::Told);
    new.line.stream.shutdown(std::net::Shutdown::Both).unwrap();
    new.wait_for("the process before this one has ended");
    assert!(new.serves());
}

#[test]
fn a_process_whose_successor_has_died_fails_at_its_end() {
    let mut gateway = Gateway::start(&Setup::default());
    let session = raw::sign_in(&gateway, "ann");
    let (tunnel, answer) = raw::open_tunnel(&gateway, &session.token);
    assert_eq!(answer.status, 200);
    let upgrade = gateway
        .operator(&["upgrade", "--json", "--binary", env!("CARGO_BIN_EXE_portcullis")])
        .output()
        .unwrap();
    assert!(upgrade.status.success(), "{}", gateway.log_text());
    let told: Value = serde_json::from_slice(&upgrade.stdout).unwrap();
    kill("KILL", told["pid"].as_u64().unwrap().try_into().unwrap());
    gateway.wait_for("the news of it", |line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.contains("took over is no more")
    });
    drop(tunnel);
    assert_eq!(gateway.wait().code(), Some(1), "so that it is started again");
}
