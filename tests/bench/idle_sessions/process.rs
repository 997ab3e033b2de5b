//! What the kernel tells of a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use portcullis::clock;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A running process, by its folder in `/proc`.
pub(crate) struct Process(PathBuf);

impl Process {
    pub(crate) fn new(id: u32) -> Self {
        Self(PathBuf::from(format!("/proc/{id}")))
    }

    /// What it holds; the kernel's socket buffers are not in it.
    pub(crate) fn memory(&self) -> anyhow::Result<Memory> {
        let rollup = fs::read_to_string(self.0.join("smaps_rollup"))?;
        let field = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name));
            let value = line.with_context(|| format!("no {name} line"))?;
            anyhow::Ok(value.trim().trim_end_matches(" kB").parse()?)
        };
        Ok(Memory {
            rss: field("Rss:")?,
            pss: field("Pss:")?,
        })
    }

    /// CPU time so far of the threads that live. `schedstat` counts nanoseconds, where `stat` counts ticks of 10 ms.
    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        let mut cpu = Cpu::default();
        for thread in fs::read_dir(self.0.join("task"))? {
            let thread = thread?.path();
            // It may have ended since.
            let Ok((name, spent)) = spent_by(&thread) else { continue };
            if name.starts_with("blocking") {
                cpu.hashing += spent;
            } else {
                cpu.rest += spent;
            }
        }
        Ok(cpu)
    }

    pub(crate) fn descriptors(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(self.0.join("fd"))?.count())
    }

    pub(crate) fn threads(&self) -> anyhow::Result<usize> {
        Ok(fs::read_dir(self.0.join("task"))?.count())
    }

    /// Waits until no more than that many descriptors are open.
    pub(crate) fn wait_for_descriptors(&self, most: usize, patience: Duration) -> anyhow::Result<()> {
        let deadline = clock::now() + patience;
        while self.descriptors()? > most {
            ensure!(
                clock::now() < deadline,
                "{} descriptors are open, not {most}",
                self.descriptors()?
            );
            sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

/// In KiB.
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) rss: u64,
    pub(crate) pss: u64,
}

/// CPU time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cpu {
    /// Of the threads for calls that block: password hashes.
    pub(crate) hashing: Duration,
    /// Of all others.
    pub(crate) rest: Duration,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            hashing: self.hashing.saturating_sub(before.hashing),
            rest: self.rest.saturating_sub(before.rest),
        }
    }

    pub(crate) fn total(self) -> Duration {
        self.hashing + self.rest
    }
}

fn spent_by(thread: &Path) -> anyhow::Result<(String, Duration)> {
    let name = fs::read_to_string(thread.join("comm"))?;
    let spent = fs::read_to_string(thread.join("schedstat"))?;
    let nanoseconds = spent.split(' ').next().context("empty schedstat")?.parse()?;
    Ok((name, Duration::from_nanos(nanoseconds)))
}

/// Thousands of connections need more files than the usual soft limit; children inherit it.
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
