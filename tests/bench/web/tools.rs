//! `wrk` and `h2load`: what they are told, and what they say.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use crate::proxy::{Proxy, is_installed};

/// What a tool saw.
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
    /// Milliseconds; `None` if the tool does not tell.
    pub(crate) p99: Option<f64>,
    /// CPU that the tool itself took for each request, in microseconds.
    pub(crate) cpu: f64,
}

/// Small requests over HTTP/1.1 on 64 connections.
pub(crate) async fn wrk(proxy: &Proxy, path: &str, length: Duration) -> anyhow::Result<Load> {
    let seconds = format!("-d{}s", length.as_secs());
    let url = proxy.url(path);
    let (text, cpu) = run("wrk", &["-t1", "-c64", &seconds, "--latency", &url]).await?;
    ensure!(
        !text.contains("Non-2xx") && !text.contains("Socket errors"),
        "{url}:\n{text}"
    );
    let line = text
        .lines()
        .find(|line| line.contains(" requests in "))
        .context("no count")?;
    let requests: f64 = line.split_whitespace().next().unwrap_or_default().parse()?;
    let p99 = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("99%"))
        .context("no p99")?;
    let per_second = text
        .lines()
        .find_map(|line| line.strip_prefix("Requests/sec:"))
        .context("no rate")?;
    Ok(Load {
        requests,
        per_second: per_second.trim().parse()?,
        p99: Some(milliseconds(p99.trim())?),
        cpu: cpu.as_secs_f64() * 1e6 / requests,
    })
}

/// Small requests over HTTP/2, 16 at one time on each of 8 connections.
pub(crate) async fn h2load(proxy: &Proxy, path: &str, length: Duration) -> anyhow::Result<Load> {
    let seconds = format!("-D{}", length.as_secs());
    let url = proxy.url(path);
    let (text, cpu) = run("h2load", &["-c8", "-m16", "-t1", &seconds, &url]).await?;
    // requests: 50000 total, 50000 started, 50000 done, 50000 succeeded, 0 failed, 0 errored, 0 timeout
    let line = text
        .lines()
        .find(|line| line.starts_with("requests:"))
        .context("no count")?;
    let count = |word: &str| -> anyhow::Result<f64> {
        let part = line
            .split([',', ':'])
            .find(|part| part.trim().ends_with(word))
            .context("no such count")?;
        Ok(part.split_whitespace().next().unwrap_or_default().parse()?)
    };
    ensure!(count("failed")? == 0.0 && count("errored")? == 0.0, "{url}:\n{text}");
    let requests = count("succeeded")?;
    Ok(Load {
        requests,
        per_second: requests / length.as_secs_f64(),
        p99: None,
        cpu: cpu.as_secs_f64() * 1e6 / requests,
    })
}

/// What a tool says at its end, and the CPU time that it took.
async fn run(name: &str, arguments: &[&str]) -> anyhow::Result<(String, Duration)> {
    let before = cpu_of_children()?;
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .await
        .with_context(|| format!("{name} is not there: install wrk and nghttp2-client"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{name} {arguments:?}:\n{text}");
    Ok((text, cpu_of_children()?.saturating_sub(before)))
}

/// CPU time of all children of this process that have ended.
fn cpu_of_children() -> anyhow::Result<Duration> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may have anything in it. The third field is the first after it.
    let (_, fields) = stat.rsplit_once(") ").context("no name")?;
    let of_children = fields.split(' ').skip(13).take(2);
    let ticks: u32 = of_children.map(str::parse::<u32>).sum::<Result<_, _>>()?;
    Ok(TICK * ticks)
}

/// What Linux counts in for programs, whatever it counts in itself.
const TICK: Duration = Duration::from_millis(10);

/// `1.23ms`, `950.00us`, `1.02s`.
fn milliseconds(text: &str) -> anyhow::Result<f64> {
    let units = [("us", 1e-3), ("ms", 1.0), ("m", 60_000.0), ("s", 1e3)];
    let (number, factor) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))
        .with_context(|| format!("no time: {text}"))?;
    Ok(number.parse::<f64>()? * factor)
}

/// What is measured beside ours, and by what.
pub(crate) fn versions() -> Vec<String> {
    let of = |name: &str, argument: &str| -> Option<String> {
        if !is_installed(name) {
            return None;
        }
        let output = std::process::Command::new(name).arg(argument).output().ok()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        let line = text.lines().next()?;
        Some(line.trim().trim_start_matches("nginx version: ").to_owned())
    };
    [
        ("nginx", "-v"),
        ("haproxy", "-v"),
        ("wrk", "-v"),
        ("h2load", "--version"),
    ]
    .into_iter()
    .filter_map(|(name, argument)| of(name, argument))
    .collect()
}
