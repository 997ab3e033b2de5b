//! The server as a child process, and what the kernel tells of it.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::load::Target;
use crate::server::Shape;

/// The argument that makes this program the server.
pub(crate) const SERVE: &str = "--serve";

/// A running server; ended when dropped.
pub(crate) struct Child {
    process: std::process::Child,
    answers: BufReader<std::process::ChildStdout>,
}

impl Child {
    pub(crate) fn start(shape: Shape, upstream: SocketAddr) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args([SERVE, shape.letter(), &upstream.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().context("cannot start the server")?;
        let answers = BufReader::new(process.stdout.take().context("the server has no output")?);
        Ok(Self { process, answers })
    }

    /// Reads where the server listens; once, first.
    pub(crate) fn target(&mut self) -> anyhow::Result<Target> {
        let line = self.line()?;
        let (port, certificate) = line.split_once(' ').context("unexpected first line")?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.parse()?));
        Target::new(address, BASE64_STANDARD.decode(certificate)?)
    }

    /// Where the open connections are.
    pub(crate) fn shares(&mut self) -> anyhow::Result<Shares> {
        let input = self.process.stdin.as_mut().context("the server has no input")?;
        input.write_all(b"shares\n")?;
        self.line()?.parse()
    }

    /// Waits until the server has noticed that its clients are gone.
    pub(crate) fn wait_until_empty(&mut self) -> anyhow::Result<()> {
        while self.shares()?.open.iter().any(|&open| open > 0) {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// CPU time so far, a thread each.
    ///
    /// `schedstat` counts nanoseconds where the `stat` of the process counts ticks of 10 ms, too coarse for a light load.
    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        let mut cpu = Cpu::default();
        for task in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let task = task?.path();
            let spent = nanoseconds(&task)?;
            cpu.total += spent;
            cpu.switches += switches(&task)?;
            if fs::read_to_string(task.join("comm"))?.starts_with("worker") {
                cpu.workers.push(spent);
            }
        }
        Ok(cpu)
    }

    /// Proportional memory in kB; the kernel's socket buffers are not in it.
    pub(crate) fn pss_kb(&self) -> anyhow::Result<u64> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        let line = rollup
            .lines()
            .find_map(|line| line.strip_prefix("Pss:"))
            .context("no Pss line")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        drop(self.process.stdin.take()); // the server ends with its input
        let _ = self.process.wait();
    }
}

/// Open connections by worker, and streams among them; the multi-thread runtime is one worker.
#[derive(Default)]
pub(crate) struct Shares {
    open: Vec<usize>,
    streams: Vec<usize>,
}

impl FromStr for Shares {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> anyhow::Result<Self> {
        let mut shares = Self {
            open: Vec::new(),
            streams: Vec::new(),
        };
        for worker in line.split(' ') {
            let (open, streams) = worker.split_once(',').context("unexpected shares")?;
            shares.open.push(open.parse()?);
            shares.streams.push(streams.parse()?);
        }
        Ok(shares)
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (open, streams)) in self.open.iter().zip(&self.streams).enumerate() {
            let plus = if index > 0 { " + " } else { "" };
            write!(f, "{plus}{open} ({streams})")?;
        }
        Ok(())
    }
}

/// CPU time in nanoseconds, and context switches.
#[derive(Default)]
pub(crate) struct Cpu {
    /// Of all threads.
    pub(crate) total: u64,
    /// Context switches of all threads.
    pub(crate) switches: u64,
    /// Of each worker thread.
    pub(crate) workers: Vec<u64>,
}

fn nanoseconds(task: &Path) -> anyhow::Result<u64> {
    let schedstat = fs::read_to_string(task.join("schedstat")).context("this kernel has no schedstat")?;
    Ok(schedstat.split(' ').next().context("empty schedstat")?.parse()?)
}

fn switches(task: &Path) -> anyhow::Result<u64> {
    let status = fs::read_to_string(task.join("status"))?;
    let counts = status
        .lines()
        .filter_map(|line| line.split_once("voluntary_ctxt_switches:")); // both kinds
    Ok(counts.filter_map(|(_, count)| count.trim().parse::<u64>().ok()).sum())
}

/// Thousands of connections need more files than the usual soft limit.
pub(crate) fn raise_file_limit() -> anyhow::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("cannot raise the file limit")
}

pub(crate) fn kernel() -> anyhow::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/osrelease")?.trim_end().to_owned())
}

pub(crate) fn load_average() -> anyhow::Result<String> {
    let line = fs::read_to_string("/proc/loadavg")?;
    Ok(line.split(' ').next().unwrap_or_default().to_owned())
}
