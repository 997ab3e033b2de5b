//! Nodes with admin ports, and whoever operates them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{Gateway, PASSWORD, Setup, portcullis};

/// The program that runs at first.
pub(crate) const OLD: &str = env!("CARGO_BIN_EXE_portcullis");

/// The program that is to run: the same, but for what a stripped file lacks.
pub(crate) static NEXT: LazyLock<PathBuf> = LazyLock::new(|| {
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
pub(crate) const NOWHERE: ([u8; 4], u16) = ([192, 0, 2, 1], 22);
pub(crate) const ENTITLED: &str = "users = [\"ann\", \"probe\"]";

/// Four nodes, each a process with its admin port; and the folder of whoever operates them.
pub(crate) struct Fleet {
    pub(crate) nodes: Vec<Gateway>,
    pub(crate) folder: TempDir,
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

pub(crate) fn kill(signal: &str, pid: &str) {
    // One that has ended already is no fault.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid)
        .stderr(Stdio::null())
        .status();
}

pub(crate) fn setup(name: &str) -> Setup {
    Setup::default()
        .named(name)
        .section("[admin]\nbind = [\"127.0.0.1:0\"]\n")
        .user("probe", "")
        .desktop_for("shell", NOWHERE.into(), "ssh", ENTITLED)
}

/// A file that only its owner may read.
pub(crate) fn private(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
}

/// A program of one line.
pub(crate) fn script(file: &Path, line: &str) -> PathBuf {
    fs::write(file, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(0o700)).unwrap();
    file.to_owned()
}

impl Fleet {
    pub(crate) fn start(setups: &[Setup]) -> Self {
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

    pub(crate) fn of_four() -> Self {
        Self::start(&["gw-1", "gw-2", "gw-3", "gw-4"].map(setup))
    }

    /// Writes the inventory, with the program of each node.
    pub(crate) fn inventory(&self, binary: impl Fn(usize) -> PathBuf) {
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

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("fleet.toml")
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        fleet(&self.file(), arguments).output().unwrap()
    }

    pub(crate) fn upgrade(&self, more: &[&str]) -> (Option<i32>, Vec<Value>) {
        self.upgrade_with(&[&["--watch", "1s"], more].concat())
    }

    /// The same, with errors counted for so long.
    pub(crate) fn upgrade_watching(&self, span: &str) -> (Option<i32>, Vec<Value>) {
        self.upgrade_with(&["--watch", span])
    }

    fn upgrade_with(&self, arguments: &[&str]) -> (Option<i32>, Vec<Value>) {
        let output = self.run(&[&["upgrade", "--json"], arguments].concat());
        (output.status.code(), events(&output))
    }

    /// The states, in the order of the inventory.
    pub(crate) fn states(&self) -> Vec<String> {
        let output = self.run(&["status", "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        let nodes = told["nodes"].as_array().unwrap().iter();
        nodes
            .map(|node| node["node"]["state"].as_str().unwrap_or("-").to_owned())
            .collect()
    }

    pub(crate) fn program(&self, index: usize) -> PathBuf {
        let output = self.run(&["status", "--json"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["nodes"][index]["node"]["program"].as_str().unwrap().into()
    }
}

pub(crate) fn fleet(inventory: &Path, arguments: &[&str]) -> Command {
    let mut command = portcullis();
    command.arg("fleet").args(arguments).arg("--inventory").arg(inventory);
    command
}

pub(crate) fn events(output: &Output) -> Vec<Value> {
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
pub(crate) fn told<'a>(events: &'a [Value], event: &str) -> Vec<&'a str> {
    let of_event = events.iter().filter(|told| told["event"] == event);
    of_event.map(|told| told["name"].as_str().unwrap_or_default()).collect()
}

pub(crate) fn last_words(events: &[Value]) -> &str {
    events.last().unwrap()["words"].as_str().unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
