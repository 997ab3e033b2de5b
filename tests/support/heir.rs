//! Upgrades in place, and the processes that take over.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Gateway;

/// A process that took over. Dropped, it is killed.
pub struct Heir(pub u32);

impl Drop for Heir {
    fn drop(&mut self) {
        kill("KILL", self.0);
    }
}

/// Sends a signal to a process.
pub fn kill(signal: &str, pid: u32) {
    // One that has ended already is no fault.
    let _ = Command::new("kill")
        .arg(format!("-{signal}"))
        .arg(pid.to_string())
        .status();
}

/// Hands over to the same program, with the operator's command.
pub fn upgrade(gateway: &Gateway) -> Heir {
    let output = upgrade_to(gateway, Path::new(env!("CARGO_BIN_EXE_portcullis")));
    let told = String::from_utf8(output.stdout).unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}{words}{}", gateway.log_text());
    let told: Value = serde_json::from_str(&told).unwrap();
    Heir(told["pid"].as_u64().unwrap().try_into().unwrap())
}

/// The same to another one.
pub fn upgrade_to(gateway: &Gateway, binary: &Path) -> std::process::Output {
    let binary = binary.to_str().unwrap();
    gateway
        .operator(&["upgrade", "--json", "--binary", binary])
        .output()
        .unwrap()
}

/// Hands over by a signal to the process `pid`.
pub fn upgrade_by_signal(gateway: &Gateway, pid: u32) -> Heir {
    let before = gateway.lines().len();
    kill("USR2", pid);
    let line = gateway.wait_for_after(before, "handed over", |line| {
        line["message"]
            .as_str()
            .is_some_and(|words| words.starts_with("handed over:"))
    });
    Heir(line["pid"].as_u64().unwrap().try_into().unwrap())
}
