//! Programs that the tests start, and end.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::PATIENCE;

/// A program of the system, by its name.
pub(super) fn tool(name: &str) -> Command {
    Command::new(path_of(name))
}

/// Where a program of the system is.
pub(super) fn path_of(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let mut places = folders.map(|folder| folder.join(name));
    places
        .find(|place| place.is_file())
        .unwrap_or_else(|| panic!("{name} is not installed: install it with tests/run"))
}

/// A script beside this file, in the Python that `tests/run` gives that package of PyPI.
pub(super) fn python(package: &str, script: &str) -> Command {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packages = here.join("target/python-peers/lib");
    let installed = fs::read_dir(packages).into_iter().flatten().flatten();
    let is_installed = installed.map(|python| python.path().join("site-packages")).any(|all| {
        let mut all = fs::read_dir(all).into_iter().flatten().flatten();
        all.any(|one| one.file_name().to_string_lossy().starts_with(&format!("{package}-")))
    });
    assert!(is_installed, "{package} is not installed: install it with tests/run");
    let mut command = Command::new(here.join("target/python-peers/bin/python"));
    command.arg(here.join("tests/e2e").join(script));
    command
}

/// A running program with its children. Dropped, it is ended.
pub(super) struct Peer {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Peer {
    /// Starts it; what it says goes to `NAME.log` in the folder.
    pub(super) fn start(command: &mut Command, folder: &Path) -> Self {
        let log = open_log(command, folder);
        command.stdout(log);
        Self::spawn(command, folder)
    }

    /// Starts it and gives what it writes on standard output.
    pub(super) fn start_speaking(command: &mut Command, folder: &Path) -> (Self, BufReader<ChildStdout>) {
        command.stdout(Stdio::piped());
        let mut peer = Self::spawn(command, folder);
        let stdout = peer.child.stdout.take().unwrap();
        (peer, BufReader::new(stdout))
    }

    fn spawn(command: &mut Command, folder: &Path) -> Self {
        let name = file_name(command.get_program());
        let log = folder.join(format!("{name}.log"));
        let stderr = open_log(command, folder);
        let child = command.stdin(Stdio::null()).stderr(stderr).process_group(0).spawn();
        let child = child.unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name, child, log }
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it said so far.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Whether it has not ended by itself.
    pub(super) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal to it and its children.
    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = kill_process_group(Pid::from_child(&self.child), signal);
    }

    /// Waits for its end.
    pub(super) fn wait(&mut self) -> ExitStatus {
        let (child, log) = (&mut self.child, &self.log);
        wait_until(
            || {
                format!(
                    "{} does not end\n{}",
                    self.name,
                    fs::read_to_string(log).unwrap_or_default()
                )
            },
            || child.try_wait().unwrap(),
        )
    }

    /// Waits until something holds that this program brings about.
    pub(super) fn wait_for<T>(&mut self, what: &str, mut holds: impl FnMut() -> Option<T>) -> T {
        let deadline = portcullis::clock::now() + PATIENCE;
        loop {
            if let Some(found) = holds() {
                return found;
            }
            let over = !self.is_running();
            assert!(
                !over && portcullis::clock::now() < deadline,
                "{}: {what}: not so{}\n{}",
                self.name,
                if over { ", it has ended" } else { "" },
                self.said()
            );
            sleep(STEP);
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let deadline = portcullis::clock::now() + Duration::from_secs(2);
        while self.is_running() && portcullis::clock::now() < deadline {
            sleep(STEP);
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Runs a program to its end, which has to be a good one, and gives what it wrote.
pub(super) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until something holds.
pub(super) fn wait_until<T>(what: impl Fn() -> String, mut holds: impl FnMut() -> Option<T>) -> T {
    let deadline = portcullis::clock::now() + PATIENCE;
    loop {
        if let Some(found) = holds() {
            return found;
        }
        assert!(portcullis::clock::now() < deadline, "{}", what());
        sleep(STEP);
    }
}

/// The next line, without its end; empty at the end of the stream.
pub(super) fn line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.truncate(line.trim_end().len());
    line
}

/// How many descriptors a process has open.
pub(super) fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

fn open_log(command: &Command, folder: &Path) -> File {
    let name = file_name(command.get_program());
    let log = folder.join(format!("{name}.log"));
    File::options().create(true).append(true).open(log).unwrap()
}

fn file_name(program: &OsStr) -> String {
    Path::new(program).file_name().unwrap().to_string_lossy().into_owned()
}

const STEP: Duration = Duration::from_millis(20);
